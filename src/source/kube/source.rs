//! The source: lists and watches one resource of one API.

use std::{
    sync::{Arc, LazyLock},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    KubeCluster, KubeConfig, client,
    client::KubeClients,
    feed, initial_events,
    known::KnownState,
    list,
    namespaces::{Namespaces, existence},
    resume_check::{ResumePoint, SavedResumePoint},
    shared::{KubeShared, ObjectList},
    watch::KubeWatch,
};
use crate::{
    cache::{
        CreationTime, List, ListVersion, ListerWatcher, ProblemReason, ProgressDemand, RewriteEvidence, SourceError,
        SourceHealth, WarmStart, Watch,
    },
    model::{AppliedVersion, Object, Path, ResourceVersion},
    source::problems::SavedProblems,
};

/// Upstream that is a resource of a Kubernetes API.
#[derive(Debug)]
pub struct KubeSource {
    shared: Arc<KubeShared>,
    /// Watch whose initial events were the last list.
    opened: Mutex<Option<(ResourceVersion, KubeWatch)>>,
    /// Selected namespaces, if several; each has its own path.
    namespaces: Option<Namespaces>,
}

/// Data saved for the next run.
#[derive(Serialize, Deserialize)]
struct SavedPosition {
    cluster: Option<String>,
    /// Version that is safe to resume from.
    version: String,
    /// True if the version after it is known in part: its changes are in `resume_point`.
    #[serde(default)]
    is_open: bool,
    /// True if every version stays open until the next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    leaves_open: bool,
    #[serde(rename = "mark")]
    resume_point: Option<SavedResumePoint>,
    problems: SavedProblems,
    /// Kind of the lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
}

// === impl KubeSource ===

impl KubeSource {
    /// Returns a source with its own connections, not connected yet, which reports its problems to `health`.
    pub fn new(config: KubeConfig, health: SourceHealth) -> Self {
        Self::with_clients(config, health, &KubeClients::default())
    }

    /// Returns a source that shares the connections and credentials of every other source of the same cluster and context. They
    /// run on the runtime of the first such call, which has to outlast the sources.
    pub fn with_clients(config: KubeConfig, health: SourceHealth, clients: &KubeClients) -> Self {
        let one = Some(config.namespace.clone()).filter(|name| !name.is_empty());
        health.set_namespaces(one.into_iter().chain(config.namespaces.iter().cloned()).collect());
        let client = clients.get(&config.cluster, config.contact_timeout);
        let has_several = !config.namespaces.is_empty() || !config.namespace_selector.is_empty();
        let shared = Arc::new(KubeShared::new(config, Arc::clone(&client), health));
        let namespaces = has_several.then(|| Namespaces::new(&shared, client));
        Self { shared, opened: Mutex::default(), namespaces }
    }

    /// Checks that there is a kubeconfig with the context, or a surrounding cluster, without a connection.
    ///
    /// # Errors
    ///
    /// The reason in one line.
    pub fn check(config: &KubeConfig) -> Result<(), String> {
        client::check(&config.cluster)
    }

    /// Returns the request for the version that a state needs to be as recent as the request: of a state at `at`, which may be recent
    /// itself. It fails if the API does not say which version is its most recent, and for the objects of several namespaces, whose
    /// versions are not of one list.
    pub fn most_recent(
        &self,
    ) -> impl Fn(AppliedVersion) -> BoxFuture<'static, Result<ResourceVersion, String>> + Send + Sync + use<> {
        let (shared, has_several) = (Arc::clone(&self.shared), self.namespaces.is_some());
        move |at| {
            let shared = Arc::clone(&shared);
            Box::pin(async move {
                if has_several {
                    return Err("the objects of several namespaces have no common version".to_owned());
                }
                shared.needed_version(at).await
            })
        }
    }

    /// Requests at most one object of each namespace, or of all.
    ///
    /// # Errors
    ///
    /// If the API does not respond, has no such resource, or does not allow its list.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn probe(&self) -> Result<(), SourceError> {
        let names = match &self.namespaces {
            Some(namespaces) => namespaces.names().await?,
            // The path has the namespace, if there is one.
            None => vec![String::new()],
        };
        for name in names {
            self.shared.api.list(&self.shared.target_in(&name, None, &[("limit", "1")])).await?;
        }
        Ok(())
    }

    /// Opens a watch, or polls where there is none.
    async fn deltas(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        let shared = &self.shared;
        let (position, is_unversioned) = {
            let known = shared.known.lock();
            (known.watch_position(&from), known.is_unversioned())
        };
        if is_unversioned && position.is_some() {
            return Ok(shared.poll(from));
        }
        let opened = self.opened.lock().take().filter(|(version, _)| *version == from);
        let live = match opened {
            Some((_, live)) => live,
            None => match shared.watch(&from, position).await {
                Err(SourceError::Refused(problem)) if shared.api.has_no_watch() => {
                    shared.note_polling(&problem);
                    return Ok(shared.poll(from));
                }
                live => live?,
            },
        };
        shared.health.clear_problem(ProblemReason::UpstreamPolled, "");
        let feed = Box::pin(feed::keep_checking(Arc::clone(shared)));
        Ok(Box::pin(futures_util::stream::try_unfold((live, feed), |(mut live, mut feed)| async move {
            let next = tokio::select! {
                // Received events come first. Cancel-safe: both go on at the next poll.
                biased;
                next = live.next() => next?,
                error = &mut feed => return Err(error),
            };
            Ok(next.map(|delta| (delta, (live, feed))))
        })))
    }

    async fn read(&self, at: &ListVersion) -> Result<(ObjectList, Option<KubeWatch>), SourceError> {
        let shared = &self.shared;
        let are_worthwhile = shared.initial_events.lock().are_worthwhile();
        if are_worthwhile && *at != ListVersion::Any {
            match initial_events::read(shared, at).await {
                Ok((reading, live)) => {
                    shared.initial_events.lock().succeeded();
                    return Ok((reading, Some(live)));
                }
                // The version is at fault, and the most recent state is requested next.
                Err(error @ SourceError::VersionTooLarge(_)) if *at != ListVersion::MostRecent => return Err(error),
                // A list follows whatever the failure is: there is always another way for an attempt to end.
                Err(error) => {
                    tracing::info!(%error, "initial events not available, listing");
                    // Without an answer there was no attempt.
                    if !matches!(error, SourceError::Busy(_)) {
                        let mut attempts = shared.initial_events.lock();
                        attempts.failed();
                        if matches!(error, SourceError::Broken(_)) {
                            attempts.has_new_connection();
                        }
                    }
                }
            }
        }
        list::read(shared, at).await.map(|reading| (reading, None))
    }
}

/// Returns the creation time of an object, which Kubernetes records in whole seconds.
fn created_at(object: &Object) -> Option<SystemTime> {
    static PATH: LazyLock<Option<Path>> = LazyLock::new(|| Path::parse("metadata.creationTimestamp").ok());
    let time: jiff::Timestamp = PATH.as_ref()?.scalar_of_json(object.json()?)?.parse().ok()?;
    Some(time.into())
}

impl ListerWatcher for KubeSource {
    async fn list(&self, at: ListVersion) -> Result<List, SourceError> {
        if let Some(namespaces) = &self.namespaces {
            return namespaces.list(&at).await;
        }
        let shared = &self.shared;
        *self.opened.lock() = None;
        shared.sent_ahead.find(shared.present_version()).await?;
        let (mut reading, mut live) = self.read(&at).await?;
        if reading.has_no_decimal() && shared.known.lock().may_begin_lineage() {
            tracing::warn!("resource versions are not decimals: numbering them from this start");
            shared.known.lock().begin_lineage();
            (reading, live) = self.read(&at).await?;
        }
        shared.check_kind(&reading).await?;
        // Not before: this list's cluster is the one to check.
        shared.check_cluster().await?;
        let missing = Some(shared.config.namespace.clone());
        let missing = missing.filter(|name| !name.is_empty() && reading.objects.is_empty());
        existence::check(shared, missing.as_slice()).await;
        // The position moves with the list: nothing is awaited in between.
        let list = shared.settle(reading, &at)?;
        *self.opened.lock() = live.map(|live| (list.version.clone(), live));
        Ok(list)
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        if let Some(namespaces) = &self.namespaces {
            return namespaces.watch(from).await;
        }
        let shared = &self.shared;
        shared.sent_ahead.find(shared.present_version()).await?;
        let name = Some(shared.config.namespace.clone()).filter(|name| !name.is_empty());
        let checks = existence::keep_checking(Arc::clone(shared), name.into_iter().collect());
        let deltas = self.deltas(from).await?;
        Ok(shared.relisting(Box::pin(deltas.take_until(checks))))
    }

    fn creation_time(&self) -> Option<CreationTime> {
        Some(created_at)
    }

    fn heartbeat(&self) -> Duration {
        self.shared.config.contact_timeout
    }

    fn rewrite_evidence(&self) -> RewriteEvidence {
        let fields = self.shared.config.field_selector.split(',').filter(|field| !field.is_empty());
        let of_metadata = |field: &str| field.trim_start().starts_with("metadata.");
        if fields.into_iter().all(of_metadata) { RewriteEvidence::Listed } else { RewriteEvidence::Held }
    }

    fn demand(&self) -> ProgressDemand {
        self.shared.demand.clone()
    }

    fn warm_start(&self) -> Option<&dyn WarmStart> {
        Some(self)
    }
}

impl WarmStart for KubeSource {
    /// Returns the identity, without the cluster's uid: a request detects another cluster behind the same kubeconfig.
    fn identity(&self) -> String {
        let KubeConfig { label_selector, field_selector, cluster, drop_fields, .. } = &self.shared.config;
        let KubeCluster { kubeconfig, context } = cluster;
        // Opaque versions save no position, and one that was saved before they were configured has another form.
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
        // Versions numbered by lineage begin anew in each run.
        let version = position.version.lineage().is_none().then(|| position.safe().to_string())?;
        let is_open = position.is_open();
        let resume_point = position.resume_point().as_ref().map(ResumePoint::keep);
        let kept = SavedPosition {
            cluster,
            version,
            is_open,
            leaves_open,
            resume_point,
            problems: self.shared.problems.keep(),
            kind: self.shared.list_kind.get(),
        };
        serde_json::to_vec(&kept).ok().map(Bytes::from)
    }

    fn resume(&self, at: &ResourceVersion, proof: &[u8]) -> Result<(), String> {
        if let Some(namespaces) = &self.namespaces {
            return namespaces.resume(at, proof);
        }
        let kept: SavedPosition =
            serde_json::from_slice(proof).map_err(|error| format!("invalid resume proof: {error}"))?;
        let SavedPosition { cluster, version, is_open, leaves_open, resume_point, problems, kind } = kept;
        if version != at.to_string() {
            return Err(format!("resume proof of version {version} for a snapshot at {at}"));
        }
        let known = KnownState::resume(cluster, at.clone(), is_open, resume_point.and_then(ResumePoint::resume));
        *self.shared.known.lock() = known.with_open_versions(leaves_open);
        if leaves_open {
            self.shared.sent_ahead.resume();
        }
        self.shared.problems.resume(problems);
        self.shared.list_kind.resume(kind);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_creation_time_is_that_of_the_metadata() {
        let created = |json: &'static str| {
            created_at(&Object::from_json(json, "pods", ResourceVersion::decimal(1)).unwrap())
                .map(|at| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs())
        };
        let json = r#"{"metadata":{"name":"a","creationTimestamp":"2026-01-01T00:00:07Z"}}"#;
        assert_eq!(created(json), Some(1_767_225_607));
        for json in [r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":{"name":"a","creationTimestamp":"soon"}}"#] {
            assert_eq!(created(json), None, "{json}");
        }
    }
}
