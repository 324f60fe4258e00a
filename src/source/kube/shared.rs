//! Shared state of a source, and the result of reading a list.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;

use super::{
    KubeConfig,
    api::Api,
    client::{Client, ESCAPED},
    initial_events_attempts::InitialEventsAttempts,
    known::KnownState,
    resume_check::ResumePoint,
    sent_ahead::SentAhead,
    unreadable::UnreadableObject,
};
use crate::{
    cache::{List, ListVersion, Problem, ProgressDemand, SourceError, SourceHealth, Watch},
    model::{Object, ResourceVersion},
    source::problems::{OBJECT_REASONS, Problems},
};

#[derive(Debug)]
pub(super) struct KubeShared {
    pub(super) config: KubeConfig,
    pub(super) api: Api,
    pub(super) known: Mutex<KnownState>,
    pub(super) problems: Problems,
    pub(super) health: SourceHealth,
    pub(super) demand: ProgressDemand,
    pub(super) initial_events: Mutex<InitialEventsAttempts>,
    pub(super) sent_ahead: SentAhead,
    pub(super) feed: Feed,
    pub(super) list_kind: ListKind,
    /// True if the last list had an item that may be any object.
    is_uncertain: AtomicBool,
    /// Set once every list is to be paged.
    pub(super) pages: AtomicBool,
    pub(super) path: String,
}

/// Kind of the lists of a resource, once one was accepted.
#[derive(Debug, Default)]
pub(super) struct ListKind(pub(super) Mutex<Option<String>>);

/// Facts about the feed of a resource, which outlast its watches.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// True once the API has sent a bookmark.
    pub(super) has_bookmarks: AtomicBool,
    /// Longest time for which the version stood still behind that of the cluster, until a bookmark alone advanced it: nothing was
    /// missing.
    pub(super) pace: Mutex<Duration>,
    /// Most recent version of the cluster at the last check that found the watch fed.
    pub(super) checked: Mutex<Option<ResourceVersion>>,
}

/// Content of a list.
#[derive(Debug, Default)]
pub(super) struct ObjectList {
    pub(super) objects: Vec<Arc<Object>>,
    /// The API's version of the whole list.
    pub(super) version: String,
    /// Objects that cannot be served, with the reason.
    pub(super) problems: Vec<(Arc<Object>, Problem)>,
    pub(super) unreadable: Vec<UnreadableObject>,
    pub(super) kind: String,
    pub(super) api_version: String,
    /// Number of items so far.
    pub(super) items: usize,
    /// True once it has a page.
    pub(super) is_begun: bool,
}

#[derive(Deserialize)]
struct Namespace {
    metadata: NamespaceMetadata,
}

#[derive(Deserialize)]
struct NamespaceMetadata {
    uid: String,
}

/// Time from a list with an item that may be any object to the next one.
const RELIST_AFTER: Duration = Duration::from_secs(60);
const CLUSTER: &str = "/api/v1/namespaces/kube-system";

// === impl ObjectList ===

impl ObjectList {
    /// Returns true if there are objects, and none of them has a decimal version.
    pub(super) fn has_no_decimal(&self) -> bool {
        let is_empty = self.objects.is_empty() && self.problems.is_empty();
        is_empty && self.unreadable.iter().any(|item| item.has_other_version)
    }
}

// === impl KubeShared ===

impl KubeShared {
    pub(super) fn new(config: KubeConfig, client: Arc<Client>, health: SourceHealth) -> Self {
        Self {
            path: path(&config, &config.namespace),
            api: Api::new(client, &config, health.clone()),
            known: Mutex::new(if config.has_opaque_versions { KnownState::opaque() } else { KnownState::default() }),
            problems: Problems::new("kube", config.resource.clone(), health.clone()),
            health,
            demand: ProgressDemand::default(),
            initial_events: Mutex::default(),
            sent_ahead: SentAhead::default(),
            feed: Feed::default(),
            list_kind: ListKind::default(),
            is_uncertain: AtomicBool::new(false),
            pages: AtomicBool::new(false),
            config,
        }
    }

    /// Returns the path of the resource with a query and the configured selectors.
    pub(super) fn target(&self, query: &[(&str, &str)]) -> String {
        self.target_in("", None, query)
    }

    /// Returns the same in one namespace, if it is not empty, with an additional field selector.
    pub(super) fn target_in(&self, namespace: &str, field: Option<&str>, query: &[(&str, &str)]) -> String {
        let KubeConfig { label_selector, field_selector, .. } = &self.config;
        let fields = match field {
            Some(field) if field_selector.split(',').all(|configured| configured != field) => {
                [field_selector.as_str(), field]
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .collect::<Vec<_>>()
                    .join(",")
            }
            _ => field_selector.clone(),
        };
        let selectors = [("labelSelector", &**label_selector), ("fieldSelector", &*fields)];
        let selectors = selectors.into_iter().filter(|(_, selector)| !selector.is_empty());
        let pairs = query.iter().copied().chain(selectors);
        let pairs = pairs.map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, ESCAPED)));
        let query = pairs.collect::<Vec<_>>().join("&");
        let path = if namespace.is_empty() { Cow::Borrowed(&*self.path) } else { path(&self.config, namespace).into() };
        if query.is_empty() { path.into_owned() } else { format!("{path}?{query}") }
    }

    /// Checks that the cluster is still the same, as far as its uid may be read.
    pub(super) async fn check_cluster(&self) -> Result<(), SourceError> {
        let namespace = match self.api.get(CLUSTER).await {
            Ok(namespace) => namespace,
            // The request is forbidden, or the namespace does not exist: the API is of another kind.
            Err(SourceError::Refused(_) | SourceError::Unavailable(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let Ok(Namespace { metadata }) = serde_json::from_slice(&namespace) else { return Ok(()) };
        self.known.lock().check_cluster(&metadata.uid).map_err(SourceError::HistoryRewritten)
    }

    /// Returns a watch that ends after a while if the last list had an item that may be any object, so that the resource is listed
    /// again.
    pub(super) fn relisting(&self, watch: Watch) -> Watch {
        if !self.is_uncertain.load(Ordering::Relaxed) {
            return watch;
        }
        let expired =
            || async { Err(SourceError::Expired("listing again after a list with an unreadable item".to_owned())) };
        Box::pin(watch.take_until(tokio::time::sleep(RELIST_AFTER)).chain(stream::once(expired())))
    }

    /// Turns a reading into a list at its version.
    pub(super) fn settle(&self, reading: ObjectList, at: &ListVersion) -> Result<List, SourceError> {
        let ObjectList { mut objects, version: text, problems, unreadable, .. } = reading;
        let mut known = self.known.lock();
        if known.may_begin_lineage() && ResourceVersion::parse_decimal(&text).is_err() {
            tracing::warn!(version = text, "list versions are not decimals: numbering versions from this start");
            known.begin_lineage();
        }
        let version = known.state_of_list(&text).map_err(SourceError::Undecodable)?;
        if let ListVersion::NotOlderThan(known) = at
            && version < *known
        {
            // An API server that lags, or a history that was rewritten: the most recent list decides.
            return Err(SourceError::VersionTooLarge(format!(
                "API version {version} is older than the last known version {known}"
            )));
        }
        // The cache compares only with the version before an open one.
        if let Some(position) = known.position().filter(|position| position.is_open() && version < position.version) {
            let text = format!("cluster version {version} is older than the last known version {}", position.version);
            known.forget();
            return Err(SourceError::HistoryRewritten(text));
        }
        let expires_older = known.position().is_some_and(|position| self.sent_ahead.is_above(&position.safe()));
        if version.lineage().is_some() {
            for object in &mut objects {
                *object = Arc::new(object.at_version(version.clone()));
            }
        }
        known.note_list(&version, ResumePoint::of_list(&objects));
        let is_polled = known.is_unversioned();
        drop(known);
        let (not_served, mut problems): (_, Vec<_>) = problems.into_iter().unzip();
        problems.extend(unreadable.iter().map(|unreadable| unreadable.problem.clone()));
        self.problems.replace(&OBJECT_REASONS, problems);
        if is_polled {
            self.note_polling("its lists have no version");
        }
        let unreadable = unreadable.into_iter().map(|unreadable| unreadable.identity).collect();
        let list = List { not_served, unreadable, expires_older, ..List::new(objects, version) };
        // Nothing that this list lacks counts as deleted, so it is not known to be the present state.
        self.health.set_unconfirmed(list.has_unknown());
        self.is_uncertain.store(list.has_unknown(), Ordering::Relaxed);
        Ok(list)
    }
}

fn path(config: &KubeConfig, namespace: &str) -> String {
    let KubeConfig { group, version, plural, .. } = config;
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    if namespace.is_empty() { format!("{root}/{plural}") } else { format!("{root}/namespaces/{namespace}/{plural}") }
}
