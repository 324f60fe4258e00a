//! The source itself: lists and watches one resource of one API.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use form_urlencoded::Serializer;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    KubeCluster, KubeConfig,
    api::{self, Api},
    client::{Client, KubeClients},
    head::Head,
    initial::{self, InitialEvents},
    known::{Known, Origin, Position},
    list::{self, VersionQuery},
    namespaces::{Namespaces, existence},
    proof::{KeptMark, Mark, Recognition},
    sent_ahead::SentAhead,
    watch::{self, Live},
};
use crate::{
    cache::{Evidence, List, ListVersion, ListerWatcher, Problem, SourceError, SourceHealth, WarmStart, Watch},
    model::{Object, ResourceVersion},
    source::problems::{KeptProblems, OBJECT_REASONS, Problems},
};

/// A resource of a Kubernetes API as an upstream.
#[derive(Debug)]
pub struct KubeSource {
    shared: Arc<Shared>,
    /// The watch whose initial events were the last list.
    opened: Mutex<Option<(ResourceVersion, Live)>>,
    /// Instead of one path.
    namespaces: Option<Namespaces>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: KubeConfig,
    pub(super) api: Api,
    pub(super) known: Mutex<Known>,
    pub(super) problems: Problems,
    pub(super) health: SourceHealth,
    pub(super) initial_events: Mutex<InitialEvents>,
    pub(super) sent_ahead: SentAhead,
    /// Whether every list is paged.
    pub(super) pages: AtomicBool,
    path: String,
}

/// What a list is made of.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) objects: Vec<Arc<Object>>,
    /// What the API calls the version of all.
    pub(super) version: String,
    /// Objects that cannot be served, and why.
    pub(super) problems: Vec<(Arc<Object>, Problem)>,
}

/// Why there is no list.
#[derive(Debug)]
pub(super) enum Stop {
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

/// What a later start goes on with.
#[derive(Serialize, Deserialize)]
struct Kept {
    cluster: Option<String>,
    /// Safe to resume from.
    version: String,
    /// The version after it is known in part: its changes are the mark's.
    #[serde(default)]
    is_open: bool,
    /// Every version stays open until the next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    leaves_open: bool,
    mark: Option<KeptMark>,
    problems: KeptProblems,
}

const CLUSTER: &str = "/api/v1/namespaces/kube-system";

// === impl KubeSource ===

impl KubeSource {
    /// A source with connections of its own, which has not connected yet and reports its problems to `health`.
    pub fn new(config: KubeConfig, health: SourceHealth) -> Self {
        Self::with_clients(config, health, &KubeClients::default())
    }

    /// The same with the connections and credentials of every other source of the same cluster and context. They are made on
    /// the runtime of the first such call, which has to outlast the sources.
    pub fn with_clients(config: KubeConfig, health: SourceHealth, clients: &KubeClients) -> Self {
        let one = Some(config.namespace.clone()).filter(|name| !name.is_empty());
        health.set_namespaces(one.into_iter().chain(config.namespaces.iter().cloned()).collect());
        let client = clients.get(&config.cluster, config.contact_timeout);
        let has_several = !config.namespaces.is_empty() || !config.namespace_selector.is_empty();
        let shared = Arc::new(Shared::new(config, Arc::clone(&client), health));
        let namespaces = has_several.then(|| Namespaces::new(&shared, client));
        Self { shared, opened: Mutex::default(), namespaces }
    }

    /// Whether there is a kubeconfig with the context, or a cluster that this runs in. No connection is made.
    ///
    /// # Errors
    ///
    /// In one line.
    pub fn check(config: &KubeConfig) -> Result<(), String> {
        api::check(&config.cluster)
    }

    async fn read(&self, at: &ListVersion) -> Result<(Reading, Option<Live>), Stop> {
        let shared = &self.shared;
        let are_worthwhile = shared.initial_events.lock().are_worthwhile();
        if are_worthwhile && *at != ListVersion::Any {
            match initial::read(shared, at).await {
                Ok((reading, live)) => {
                    shared.initial_events.lock().succeeded();
                    return Ok((reading, Some(live)));
                }
                // SEMANTICS 1.27, rule 15.
                Err(Stop::Source(
                    error @ (SourceError::Refused(_)
                    | SourceError::Unavailable(_)
                    | SourceError::Undecodable(_)
                    | SourceError::Broken(_)),
                )) => {
                    if matches!(error, SourceError::Refused(_)) {
                        shared.initial_events.lock().failed();
                    }
                    tracing::info!(%error, "no initial events: the resource is listed");
                }
                Err(other) => return Err(other),
            }
        }
        list::read(shared, at).await.map(|reading| (reading, None))
    }
}

impl ListerWatcher for KubeSource {
    async fn list(&self, at: ListVersion) -> Result<List, SourceError> {
        if let Some(namespaces) = &self.namespaces {
            return namespaces.list(&at).await;
        }
        let shared = &self.shared;
        *self.opened.lock() = None;
        shared.sent_ahead.find(shared).await?;
        let (reading, live) = match self.read(&at).await {
            Err(Stop::NotDecimal) if shared.known.lock().is_decimal() => {
                tracing::warn!("the API's versions are not decimals: they are counted here, anew at each start");
                shared.known.lock().begin_lineage();
                self.read(&at).await
            }
            read => read,
        }
        .map_err(Stop::into_error)?;
        // Only now: it is of this list that the cluster has to be known.
        shared.check_cluster().await?;
        let list = shared.settle(reading, &at)?;
        let missing = Some(shared.config.namespace.clone()).filter(|name| !name.is_empty() && list.objects.is_empty());
        existence::check(shared, missing.as_slice()).await;
        *self.opened.lock() = live.map(|live| (list.version.clone(), live));
        Ok(list)
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        if let Some(namespaces) = &self.namespaces {
            return namespaces.watch(from).await;
        }
        let shared = &self.shared;
        shared.sent_ahead.find(shared).await?;
        let position = shared.known.lock().begin_watch(&from);
        let opened = self.opened.lock().take().filter(|(version, _)| *version == from);
        let live = if let Some((_, live)) = opened { live } else { shared.watch(&from, position).await? };
        let name = Some(shared.config.namespace.clone()).filter(|name| !name.is_empty());
        let checks = Box::pin(existence::keep_checking(Arc::clone(shared), name.into_iter().collect()));
        Ok(Box::pin(futures_util::stream::unfold(Some((live, checks)), |open| async move {
            let (mut live, mut checks) = open?;
            let next = tokio::select! {
                biased;
                next = live.next() => next,
                // Which never ends.
                () = &mut checks => Ok(None),
            };
            match next {
                Ok(Some(delta)) => Some((Ok(delta), Some((live, checks)))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })))
    }

    fn heartbeat(&self) -> Duration {
        self.shared.config.contact_timeout
    }

    fn evidence(&self) -> Evidence {
        let fields = self.shared.config.field_selector.split(',').filter(|field| !field.is_empty());
        let of_metadata = |field: &str| field.trim_start().starts_with("metadata.");
        if fields.into_iter().all(of_metadata) { Evidence::Listed } else { Evidence::Held }
    }

    fn warm_start(&self) -> Option<&dyn WarmStart> {
        Some(self)
    }
}

impl WarmStart for KubeSource {
    /// Another cluster behind the same kubeconfig is found out when it is asked.
    fn identity(&self) -> String {
        let KubeConfig { label_selector, field_selector, cluster, drop_fields, .. } = &self.shared.config;
        let KubeCluster { kubeconfig, context } = cluster;
        // Nothing is kept of opaque versions, and what was kept before they were is of another form.
        let opaque = if self.shared.config.has_opaque_versions { " with opaque versions" } else { "" };
        let partial = if self.shared.config.is_metadata_only { " metadata only" } else { "" };
        let namespaces =
            self.namespaces.as_ref().map_or(String::new(), |namespaces| format!(" {}", namespaces.identity()));
        format!(
            "{} by labels {label_selector:?} and fields {field_selector:?} of {kubeconfig:?} in {context:?} without {drop_fields:?}{opaque}{partial}{namespaces}",
            self.shared.path
        )
    }

    fn proof(&self) -> Option<Bytes> {
        if let Some(namespaces) = &self.namespaces {
            return namespaces.proof();
        }
        let (cluster, position, leaves_open) = {
            let known = self.shared.known.lock();
            (known.cluster().map(str::to_owned), known.position()?.clone(), known.leaves_open())
        };
        // What is counted here counts anew at each start.
        let version = position.version.lineage().is_none().then(|| position.safe().to_string())?;
        let is_open = position.is_open();
        let mark = position.mark().as_ref().map(Mark::keep);
        let kept = Kept { cluster, version, is_open, leaves_open, mark, problems: self.shared.problems.keep() };
        serde_json::to_vec(&kept).ok().map(Bytes::from)
    }

    fn resume(&self, at: &ResourceVersion, proof: &[u8]) -> Result<(), String> {
        if let Some(namespaces) = &self.namespaces {
            return namespaces.resume(at, proof);
        }
        let kept: Kept = serde_json::from_slice(proof).map_err(|error| format!("its proof cannot be read: {error}"))?;
        let Kept { cluster, version, is_open, leaves_open, mark, problems } = kept;
        if version != at.to_string() {
            return Err(format!("its proof is of version {version}, and it is at {at}"));
        }
        let known = Known::resume(cluster, at.clone(), is_open, mark.and_then(Mark::resume));
        *self.shared.known.lock() = known.with_open_versions(leaves_open);
        if leaves_open {
            self.shared.sent_ahead.resume();
        }
        self.shared.problems.resume(problems);
        Ok(())
    }
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(config: KubeConfig, client: Arc<Client>, health: SourceHealth) -> Self {
        Self {
            path: path(&config, &config.namespace),
            api: Api::new(client, &config, health.clone()),
            known: Mutex::new(if config.has_opaque_versions { Known::opaque() } else { Known::default() }),
            problems: Problems::new("kube", config.resource.clone(), health.clone()),
            health,
            initial_events: Mutex::default(),
            sent_ahead: SentAhead::default(),
            pages: AtomicBool::new(false),
            config,
        }
    }

    /// The path of the resource with a query, and what is selected.
    pub(super) fn target(&self, query: &[(&str, &str)]) -> String {
        self.target_in("", None, query)
    }

    /// The same in one namespace, if one is given, of what a field selector selects besides.
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

    pub(super) fn version_query(&self, at: &ListVersion) -> VersionQuery {
        let text = match at {
            ListVersion::Any => Cow::Borrowed("0"),
            ListVersion::MostRecent => Cow::Borrowed(""),
            ListVersion::NotOlderThan(version) => {
                self.known.lock().text_of(version).map_or(Cow::Borrowed(""), Cow::Owned)
            }
        };
        VersionQuery { text, is_exact: false }
    }

    /// Opens a watch from a version, if the history of the cluster is the one that is known there.
    ///
    /// What the head proves is enough only at the version of the last known change: a cluster that was restored to a state
    /// between that change and the known version has the change too, and may have others since. So a watch that broke goes on
    /// from before the change. One that the API has just closed itself ended in the history that it goes on with, and so does a list
    /// that it has just answered; a proxy may have held the request for the watch until the cluster was restored.
    ///
    /// Of versions that are counted here the text before the last change is known, unless that is older than the list.
    pub(super) async fn watch(
        self: &Arc<Self>,
        from: &ResourceVersion,
        position: Option<Position>,
    ) -> Result<Live, SourceError> {
        let Some(position) = position else { return watch::open(self, from, None).await };
        let (from, mark, Position { version, origin, .. }) = (position.safe(), position.mark(), position);
        if matches!(origin, Origin::List(_)) {
            let live = watch::open(self, &from, None).await?;
            if origin.is_just_listed() {
                return Ok(live);
            }
        }
        self.check_cluster().await?;
        let is_counted = version.lineage().is_some();
        if is_counted && origin.is_just_closed() {
            return watch::open(self, &from, None).await;
        }
        if is_counted {
            let replay = self.known.lock().begin_replay();
            let unproved = || SourceError::Expired(format!("no change before {version} to recognise the history by"));
            return watch::open_replay(self, replay.ok_or_else(unproved)?).await;
        }
        let head = self.head(&version, mark.as_ref()).await?;
        let is_known = match (origin, &mark) {
            _ if origin.is_just_closed() => true,
            (Origin::List(_) | Origin::Watch | Origin::Closed(_), None) => head == Head::Empty,
            (Origin::List(_) | Origin::Watch | Origin::Closed(_), Some(mark)) => {
                head == Head::HasMark && *mark.version() == version
            }
            _ => false,
        };
        if is_known {
            return watch::open(self, &from, None).await;
        }
        let Some((mark, before)) = mark.and_then(|mark| mark.before().map(|before| (mark, before))) else {
            return Err(SourceError::Expired(format!("{version} has nothing before it to be recognised by")));
        };
        watch::open(self, &before, Some(Recognition::new(mark, version))).await
    }

    /// Whose API it is, as far as we may know.
    pub(super) async fn check_cluster(&self) -> Result<(), SourceError> {
        let namespace = match self.api.get(CLUSTER).await {
            Ok(namespace) => namespace,
            // Not for us to read, or not there: an API of another kind.
            Err(SourceError::Refused(_) | SourceError::Unavailable(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let Ok(Namespace { metadata }) = serde_json::from_slice(&namespace) else { return Ok(()) };
        self.known.lock().check_cluster(&metadata.uid).map_err(SourceError::HistoryChanged)
    }

    /// What was read, at its version.
    pub(super) fn settle(&self, reading: Reading, at: &ListVersion) -> Result<List, SourceError> {
        let Reading { mut objects, version: text, problems } = reading;
        let mut known = self.known.lock();
        let version = known.state(&text).or_else(|_| {
            known.begin_lineage();
            known.state(&text)
        });
        let version = version.map_err(|error| SourceError::Undecodable(error.to_string()))?;
        if let ListVersion::NotOlderThan(known) = at
            && version < *known
        {
            // An API server that lags, or a cluster that went back in time: the most recent list tells.
            return Err(SourceError::VersionTooLarge(format!("the API is at {version}, and {known} was known")));
        }
        // The cache compares with the version before an open one.
        if let Some(position) = known.position().filter(|position| position.is_open() && version < position.version) {
            let text = format!("the cluster is at version {version}, and {} was known", position.version);
            known.forget();
            return Err(SourceError::HistoryChanged(text));
        }
        let expires_older = known.position().is_some_and(|position| self.sent_ahead.is_above(&position.safe()));
        if version.lineage().is_some() {
            for object in &mut objects {
                *object = Arc::new(object.at_version(version.clone()));
            }
        }
        known.note_list(&version, Mark::of_list(&objects));
        drop(known);
        let (not_served, problems) = problems.into_iter().unzip();
        self.problems.replace(&OBJECT_REASONS, problems);
        Ok(List { not_served, expires_older, ..List::new(objects, version) })
    }
}

// === impl Stop ===

impl Stop {
    pub(super) fn into_error(self) -> SourceError {
        match self {
            Self::Source(error) => error,
            Self::NotDecimal => SourceError::Undecodable("a version that is not a decimal".to_owned()),
        }
    }
}

impl From<SourceError> for Stop {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

fn path(config: &KubeConfig, namespace: &str) -> String {
    let KubeConfig { group, version, plural, .. } = config;
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    if namespace.is_empty() { format!("{root}/{plural}") } else { format!("{root}/namespaces/{namespace}/{plural}") }
}
