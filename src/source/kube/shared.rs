//! Shared state of a source, and the result of reading a list.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::AtomicBool},
};

use form_urlencoded::Serializer;
use parking_lot::Mutex;
use serde::Deserialize;

use super::{
    KubeConfig, api::Api, client::Client, initial_events_attempts::InitialEventsAttempts, known::KnownState,
    resume_check::ResumePoint, sent_ahead::SentAhead,
};
use crate::{
    cache::{List, ListVersion, Problem, ProgressDemand, SourceError, SourceHealth},
    model::Object,
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
    /// Set once every list is to be paged.
    pub(super) pages: AtomicBool,
    pub(super) path: String,
}

/// Content of a list.
#[derive(Debug, Default)]
pub(super) struct ObjectList {
    pub(super) objects: Vec<Arc<Object>>,
    /// The API's version of the whole list.
    pub(super) version: String,
    /// Objects that cannot be served, with the reason.
    pub(super) problems: Vec<(Arc<Object>, Problem)>,
}

/// Failure of a list.
#[derive(Debug)]
pub(super) enum ListFailure {
    Source(SourceError),
    /// A version is not a decimal.
    NotDecimal,
}

#[derive(Deserialize)]
struct Namespace {
    metadata: NamespaceMetadata,
}

#[derive(Deserialize)]
struct NamespaceMetadata {
    uid: String,
}

const CLUSTER: &str = "/api/v1/namespaces/kube-system";

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
        let query = Serializer::new(String::new()).extend_pairs(query.iter().copied().chain(selectors)).finish();
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

    /// Turns a reading into a list at its version.
    pub(super) fn settle(&self, reading: ObjectList, at: &ListVersion) -> Result<List, SourceError> {
        let ObjectList { mut objects, version: text, problems } = reading;
        let mut known = self.known.lock();
        let version = known.state(&text).or_else(|_| {
            known.begin_lineage();
            known.state(&text)
        });
        let version = version.map_err(|error| SourceError::Undecodable(error.to_string()))?;
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
        drop(known);
        let (not_served, problems) = problems.into_iter().unzip();
        self.problems.replace(&OBJECT_REASONS, problems);
        Ok(List { not_served, expires_older, ..List::new(objects, version) })
    }
}

// === impl ListFailure ===

impl ListFailure {
    pub(super) fn into_error(self) -> SourceError {
        match self {
            Self::Source(error) => error,
            Self::NotDecimal => SourceError::Undecodable("resource version is not a decimal".to_owned()),
        }
    }
}

impl From<SourceError> for ListFailure {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

fn path(config: &KubeConfig, namespace: &str) -> String {
    let KubeConfig { group, version, plural, .. } = config;
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    if namespace.is_empty() { format!("{root}/{plural}") } else { format!("{root}/namespaces/{namespace}/{plural}") }
}
