//! Writer of snapshot files: the next run serves them at once, and its upstreams have to send only the changes since.
//!
//! One task for all resources writes one file at a time, outside of the threads that serve. It writes a state soon after its
//! first list and after its history was rewritten, then at intervals if objects have changed, and a last time when the server
//! drains. A failure is reported for as long as it stands, and everything else continues: a directory that cannot be opened, or
//! written to, is tried again.
//!
//! A file is plain text, so Secrets are written only where the configuration has `snapshot: true`: a kube resource of Secrets
//! has no file, and the state of a relay with a Secret among its objects is neither written nor used. A file that must not
//! exist any more is removed at start.

use std::{
    borrow::Borrow,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::time;
use tokio_util::sync::CancellationToken;

use crate::{
    cache::{
        CheckpointRequests, Informer, InformerHandle, ListerWatcher, Problem, ProblemReason, Reflector, SavedState,
        SnapshotDirectory, SnapshotFile, SnapshotFileStats, SourceHealth,
    },
    config::{Config, ResourceConfig, SourceConfig},
    grpc::WireFrame,
    model::{Object, ResourceVersion},
};

/// Snapshot files of all resources; clones share them.
#[derive(Debug, Clone)]
pub(super) struct SnapshotWriter {
    shared: Arc<SnapshotWriterShared>,
}

#[derive(Debug)]
struct SnapshotWriterShared {
    path: PathBuf,
    interval: Duration,
    /// Directory of the files, or the reason why there is none now.
    directory: Mutex<Result<SnapshotDirectory, String>>,
    writers: Mutex<Vec<ResourceSnapshotWriter>>,
}

/// Snapshot file of one resource; clones share it.
#[derive(Debug, Clone)]
pub(super) struct ResourceSnapshotWriter {
    shared: Arc<ResourceSnapshotShared>,
}

/// Contents of a resource's snapshot file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contents {
    /// Everything.
    All,
    /// Everything, unless there is a Secret among the objects.
    NoSecrets,
    /// No file.
    None,
}

#[derive(Debug)]
struct ResourceSnapshotShared {
    contents: Contents,
    resource: String,
    identity: String,
    /// File, once the directory is open.
    file: Mutex<Option<SnapshotFile>>,
    stats: Arc<SnapshotFileStats>,
    /// Reason why the directory cannot be written to, and why the file could not.
    problems: Mutex<[Option<String>; 2]>,
    /// True if it is written soon after each change: what the source cannot read later is known only from there.
    is_prompt: bool,
    checkpoints: CheckpointRequests,
    informer: InformerHandle<WireFrame>,
    /// Last state that was written.
    written: Mutex<Option<LastWrite>>,
    /// Time of the next write, and number of the history at the last attempt.
    due: Mutex<(Instant, u64)>,
}

/// Last write of a file.
#[derive(Debug)]
struct LastWrite {
    /// Changes up to that write.
    changes: Changes,
    /// Version of a state that lacks changes ahead of it: they have to be written once they are complete.
    lacks_after: Option<ResourceVersion>,
}

/// Numbers of changes of objects, and of rewrites of the history. A version that advances alone is not worth a file.
type Changes = (u64, u64);

/// Interval of the search for states to write.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time to wait for a checkpoint. A resource whose changes wait for a client under BLOCK is written later.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest interval of the checks that the directory can be written to.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Places of the two reasons why a state is not written.
const OF_DIRECTORY: usize = 0;
const OF_FILE: usize = 1;
/// Smallest interval of the writes of a file that is written soon after each change, in durations of a write.
const PROMPT_SHARE: u32 = 20;

// === impl SnapshotWriter ===

impl SnapshotWriter {
    /// Opens the configured directory, if there is one.
    pub(super) fn open(config: &Config) -> Option<Self> {
        let path = config.general.state_dir.clone()?;
        let interval = config.general.state_interval;
        let directory = Mutex::new(Err(String::new()));
        let shared = SnapshotWriterShared { path, interval, directory, writers: Mutex::default() };
        shared.check();
        Some(Self { shared: Arc::new(shared) })
    }

    /// Adds a resource with the identity of its source. `None` if its state must not or cannot be written.
    pub(super) fn add(
        &self,
        resource: &ResourceConfig,
        identity: &str,
        checkpoints: &CheckpointRequests,
        informer: &InformerHandle<WireFrame>,
    ) -> Option<ResourceSnapshotWriter> {
        let directory = self.shared.directory.lock();
        let file = directory.as_ref().map(|directory| directory.file(&resource.name, identity));
        let contents = Contents::of(resource);
        if contents == Contents::None {
            if let Ok(file) = &file {
                remove(file, &resource.name);
            }
            return None;
        }
        let (file, problem) = (file.as_ref().ok().cloned(), file.err().cloned());
        report(informer.health(), problem.clone());
        let stats = file.as_ref().map(|file| Arc::clone(file.stats())).unwrap_or_default();
        let shared = ResourceSnapshotShared {
            contents,
            resource: resource.name.clone(),
            identity: identity.to_owned(),
            file: Mutex::new(file),
            stats,
            problems: Mutex::new([problem, None]),
            is_prompt: matches!(resource.source, SourceConfig::Files(_)),
            checkpoints: checkpoints.clone(),
            informer: informer.clone(),
            written: Mutex::default(),
            due: Mutex::new((Instant::now(), 0)),
        };
        let writer = ResourceSnapshotWriter { shared: Arc::new(shared) };
        self.shared.writers.lock().push(writer.clone());
        Some(writer)
    }

    /// Removes a resource: its file stays as it is.
    pub(super) fn remove(&self, resource: &str) {
        self.shared.writers.lock().retain(|writer| writer.shared.resource != resource);
    }

    /// Writes changed states at intervals, and a last time when the server drains; then it returns.
    pub(super) async fn run(self, draining: CancellationToken) {
        let interval = self.shared.interval;
        let writers = || self.shared.writers.lock().clone();
        let mut next_check = Instant::now();
        while !draining.is_cancelled() {
            if Instant::now() >= next_check {
                let shared = Arc::clone(&self.shared);
                // The only failure is a panic, which was reported at its origin.
                tokio::task::spawn_blocking(move || shared.check()).await.ok();
                next_check = Instant::now() + PROBE_INTERVAL.min(interval);
            }
            for writer in writers() {
                let (due, tried) = *writer.shared.due.lock();
                let (_, history) = writer.changes();
                // The file still has the old history: the next run would serve it, and find the rewrite again.
                if (Instant::now() >= due || history != tried) && writer.write().await {
                    *writer.shared.due.lock() = (Instant::now() + writer.interval(interval), history);
                }
            }
            tokio::select! {
                () = draining.cancelled() => {}
                () = time::sleep(CHECK_INTERVAL.min(interval)) => {}
            }
        }
        for writer in writers() {
            writer.write().await;
        }
    }
}

// === impl SnapshotWriterShared ===

impl SnapshotWriterShared {
    /// Opens the directory, unless it is open, and checks that it can be written to, so that a problem is reported for as long as it
    /// stands, and no longer. Blocks.
    fn check(&self) {
        let mut directory = self.directory.lock();
        if directory.as_ref().is_ok_and(|directory| !directory.path().is_dir()) {
            *directory = Err(String::new());
        }
        if let Err(before) = &*directory {
            let opened = SnapshotDirectory::open(&self.path).map_err(|error| format!("state_dir: {error}"));
            match &opened {
                Ok(opened) if opened.is_open_to_all() => {
                    let directory = opened.path().display();
                    tracing::warn!(%directory, "state_dir is world-writable; run chmod o-w on it");
                }
                Ok(_) => {}
                Err(problem) if problem == before => {}
                Err(problem) => tracing::warn!(problem, "state_dir not usable, writing no snapshots until it is"),
            }
            if opened.is_ok() && !before.is_empty() {
                tracing::info!(directory = %self.path.display(), "state_dir usable");
            }
            *directory = opened;
        }
        let problem = match &*directory {
            Ok(directory) => directory.check().err().map(|error| format!("state_dir: {error}")),
            Err(problem) => Some(problem.clone()),
        };
        for writer in &*self.writers.lock() {
            let ResourceSnapshotShared { resource, identity, file, stats, .. } = &*writer.shared;
            if let Ok(directory) = &*directory {
                let opened = || directory.file(resource, identity).with_stats(Arc::clone(stats));
                file.lock().get_or_insert_with(opened);
            }
            writer.report(OF_DIRECTORY, problem.clone());
        }
    }
}

// === impl ResourceSnapshotWriter ===

impl ResourceSnapshotWriter {
    /// Returns the counters of the file.
    pub(super) fn stats(&self) -> &Arc<SnapshotFileStats> {
        &self.shared.stats
    }

    /// Returns the interval of the writes, of which this is the configured one.
    fn interval(&self, configured: Duration) -> Duration {
        let ResourceSnapshotShared { is_prompt, stats, .. } = &*self.shared;
        let took = Duration::from_micros(stats.micros.load(Ordering::Relaxed));
        if *is_prompt { configured.min(took.saturating_mul(PROMPT_SHARE)) } else { configured }
    }

    /// Sets one of the reasons why the state is not written, that of the directory or that of the file, and reports the first that
    /// stands.
    fn report(&self, of: usize, problem: Option<String>) {
        let mut problems = self.shared.problems.lock();
        problems[of] = problem;
        report(self.shared.informer.health(), problems.iter().flatten().next().cloned());
    }

    /// Lets informer and Reflector begin with the snapshot of the previous run, if there is one. Blocks.
    pub(super) fn begin<S: ListerWatcher>(&self, informer: &mut Informer<WireFrame>, reflector: &mut Reflector<S>) {
        let ResourceSnapshotShared { contents, resource, written, .. } = &*self.shared;
        let Some(file) = self.shared.file.lock().clone() else { return };
        let (started, path) = (Instant::now(), file.path().display());
        let resumed = file.read().map_err(|error| error.to_string()).and_then(|saved| {
            let Some(SavedState { mut list, proof, seen_at }) = saved else { return Ok(()) };
            if !contents.allow(&list.objects) {
                remove(&file, resource);
                return Ok(());
            }
            reflector.resume(&mut list, &proof, seen_at)?;
            *written.lock() = Some(LastWrite { changes: self.changes(), lacks_after: None });
            tracing::info!(file = %path, objects = list.objects.len(), took = ?started.elapsed(), "snapshot file read");
            informer.begin_warm(list);
            Ok(())
        });
        if let Err(problem) = resumed {
            tracing::warn!(file = %path, problem, "snapshot file not used, listing instead");
        }
    }

    /// Writes the state if objects have changed. Returns true if it tried.
    async fn write(&self) -> bool {
        let ResourceSnapshotShared { contents, resource, checkpoints, informer, written, .. } = &*self.shared;
        let Some(file) = self.shared.file.lock().clone() else { return false };
        // Read before the state is taken: changes counted meanwhile are written again, and not lost.
        let changes = self.changes();
        let Some(snapshot) = informer.snapshot() else { return false };
        let is_written = |written: &LastWrite| {
            let is_complete = written.lacks_after.as_ref().is_none_or(|version| version == snapshot.safe_version());
            written.changes == changes && is_complete
        };
        if written.lock().as_ref().is_some_and(is_written) {
            return false;
        }
        let Ok(Some(checkpoint)) = time::timeout(CHECKPOINT_TIMEOUT, checkpoints.take()).await else {
            return false;
        };
        if !contents.allow(checkpoint.snapshot.objects(None, None)) {
            remove(&file, resource);
            *written.lock() = Some(LastWrite { changes, lacks_after: None });
            return true;
        }
        let lacks_after = (!checkpoint.is_whole).then(|| checkpoint.snapshot.safe_version().clone());
        let seen_at = informer.report().seen_at;
        let writing = tokio::task::spawn_blocking(move || {
            let written = file.write(&checkpoint, seen_at);
            written.map_err(|error| format!("state_dir: {} cannot be written: {error}", file.path().display()))
        });
        let problem = match writing.await {
            Ok(Ok(bytes)) => {
                tracing::debug!(resource, bytes, "snapshot file written");
                *written.lock() = Some(LastWrite { changes, lacks_after });
                None
            }
            Ok(Err(problem)) => Some(problem),
            Err(error) => Some(format!("state_dir: {error}")),
        };
        if let Some(problem) = &problem {
            tracing::warn!(resource, problem, "snapshot file not written");
        }
        self.report(OF_FILE, problem);
        true
    }

    fn changes(&self) -> Changes {
        let stats = self.shared.informer.stats();
        (stats.changes.load(Ordering::Relaxed), stats.history_rewrites.load(Ordering::Relaxed))
    }
}

/// Reports the reason why the state is not written; `None` ends the report.
fn report(health: &SourceHealth, problem: Option<String>) {
    match problem {
        Some(problem) => drop(health.set_problem(Problem::new(ProblemReason::SnapshotNotWritten, "", problem))),
        None => drop(health.clear_problem(ProblemReason::SnapshotNotWritten, "")),
    }
}

/// Removes a state that must not be kept.
fn remove(file: &SnapshotFile, resource: &str) {
    let path = file.path().display();
    match file.remove() {
        Ok(true) => tracing::info!(resource, file = %path, "snapshot file removed: not allowed for this resource"),
        Ok(false) => {}
        Err(error) => tracing::warn!(
            resource, file = %path, %error,
            "snapshot file not removed, and not allowed for this resource: remove it"
        ),
    }
}

// === impl Contents ===

impl Contents {
    fn of(resource: &ResourceConfig) -> Self {
        match (resource.options.snapshot, &resource.source) {
            (Some(false), _) => Self::None,
            (None, SourceConfig::Kube(_)) if resource.source.is_of_secrets() => Self::None,
            // Its objects may be of any kind.
            (None, SourceConfig::Informerd(_) | SourceConfig::Files(_)) => Self::NoSecrets,
            _ => Self::All,
        }
    }

    fn allow<O: Borrow<Arc<Object>>>(self, objects: impl IntoIterator<Item = O>) -> bool {
        let is_secret = |object: &O| {
            let object = Borrow::<Arc<Object>>::borrow(object);
            (object.api_version(), object.kind()) == ("v1", "Secret")
        };
        self == Self::All || !objects.into_iter().any(|object| is_secret(&object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::ResourceOptions,
        source::{etcd::EtcdConfig, kube::KubeConfig, relay::RelayConfig},
    };

    #[test]
    fn snapshots_contain_secrets_only_if_configured() {
        let kube = |group: &str, plural: &str| SourceConfig::Kube(KubeConfig::new("", group, "v1", plural));
        let relay = SourceConfig::Informerd(RelayConfig::new("http://127.0.0.1:1".parse().unwrap(), "x"));
        let etcd = SourceConfig::Etcd(EtcdConfig::new("", Vec::new(), ""));
        for (source, expected) in [
            (kube("", "secrets"), Contents::None),
            (kube("", "pods"), Contents::All),
            (kube("example.com", "secrets"), Contents::All),
            (relay, Contents::NoSecrets),
            (etcd, Contents::All),
        ] {
            let of = |snapshot| {
                Contents::of(&ResourceConfig {
                    name: "x".into(),
                    source: source.clone(),
                    indexers: Arc::default(),
                    views: Arc::default(),
                    options: ResourceOptions { snapshot, ..ResourceOptions::default() },
                })
            };
            assert_eq!(
                [of(None), of(Some(true)), of(Some(false))],
                [expected, Contents::All, Contents::None],
                "{source:?}"
            );
        }
    }
}
