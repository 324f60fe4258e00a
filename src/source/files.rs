//! The `files` source: a directory of manifests, watched for changes.
//!
//! ```text
//!             directory ──notify──▶ notices ─┐
//!                 │                          ▼
//!                 └──▶ scan ◀── engine ◀── live ──▶ Watch
//!   root, read, decode, lookup    │  ▲
//!    catalog, missing, unfinished ┘ └ Problems ──▶ SourceHealth
//! ```
//!
//! The application makes one source for each resource from its configuration; the resource's Reflector drives it. Problems of
//! single files are reported in the resource's health.
//!
//! - Manifests are regular files `*.json`, `*.yaml` and `*.yml`, in any directory below; names that begin with a dot are
//!   skipped. Symbolic links are followed inside the directory, which is how Kubernetes mounts a `ConfigMap`.
//! - Versions are `<lineage>.<n>`, the lineage new at each start. One changed object is one version; an unchanged object
//!   keeps its own.
//! - The source reads the paths of change notices after a quiet period, and rescans the whole directory at an interval.
//! - Only a deletion deletes: a file that cannot be parsed, or a directory that is absent, keeps its objects and is reported.
//!   A deletion is applied when it is certain (`missing`), also that of an object that its file no longer contains; a file that
//!   is being written is applied when it is closed (`unfinished`).
//! - Only one list or watch is active; the next one ends the one before it.
//!
//! Unix only: identity and stamps of files are inode numbers and times of change.
//!
//! No changes have to be inferred: a scan compares the directory with the catalog. The source stores nothing.

mod catalog;
mod decode;
mod engine;
mod kinds;
mod live;
mod lookup;
mod missing;
mod notices;
mod read;
mod root;
mod scan;
mod unfinished;

#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub use self::root::DirectoryError;
use self::{
    engine::{Engine, Failure},
    live::{Live, blocking},
    notices::{Notices, Subscribe},
    root::Root,
};
use super::{lineage::new_lineage, text};
use crate::{
    cache::{Delta, List, ListVersion, ListerWatcher, SourceError, SourceHealth, Watch},
    model::ResourceVersion,
};

/// Default interval of scans of the whole directory: the bound on finding a change without a notice, and on the last
/// contact.
pub const DEFAULT_RESCAN: Duration = Duration::from_secs(5);

/// Default quiet period after a burst of changes.
pub const DEFAULT_QUIET: Duration = Duration::from_millis(100);

/// Lower bound of the scan interval; a shorter one would be a busy loop.
const MIN_RESCAN: Duration = Duration::from_millis(10);

/// Configuration of a [`FilesSource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesConfig {
    /// The directory.
    pub path: PathBuf,
    /// Kind of the objects to serve, in any case of letters; `None` for all.
    pub kind: Option<String>,
    /// Name of the resource, for the log.
    pub resource: String,
    /// Interval of scans of the whole directory; at least 10 ms. A file that stays open for writing is read after six of
    /// these.
    pub rescan: Duration,
    /// Quiet period after a burst of changes, before the source reads the changed files; at most `rescan`. It reads them in the
    /// middle of a burst that lasts five times as long. A file that is missing then, or an object that no file contains any more,
    /// is deleted if it is still missing after another quiet period. A file whose last change had no notice is applied when it
    /// has been unchanged for five quiet periods.
    pub quiet: Duration,
}

/// A directory of manifests as an upstream.
#[derive(Debug)]
pub struct FilesSource {
    config: Arc<FilesConfig>,
    engine: SharedEngine,
    /// Ends the active list or watch.
    active: Mutex<CancellationToken>,
    subscribe: Subscribe,
}

/// Engine behind a lock that a scan holds to its end; taken only where blocking is allowed.
type SharedEngine = Arc<Mutex<Engine>>;

// === impl FilesConfig ===

impl FilesConfig {
    /// Returns the configuration that serves `path` as `resource`, with the defaults for everything else.
    pub fn new(path: impl Into<PathBuf>, resource: impl Into<String>) -> Self {
        let (path, resource) = (path.into(), resource.into());
        Self { path, kind: None, resource, rescan: DEFAULT_RESCAN, quiet: DEFAULT_QUIET }
    }
}

// === impl FilesSource ===

impl FilesSource {
    /// Returns a source that reports its problems to `health`. It reads nothing before the first list.
    pub fn new(config: FilesConfig, health: SourceHealth) -> Self {
        Self::with_subscribe(config, health, notices::subscribe)
    }

    /// Checks that `path` can be served now: a directory that can be listed and entered.
    ///
    /// # Errors
    ///
    /// The problem and its remedy, in one line.
    pub fn check(path: &Path) -> Result<(), DirectoryError> {
        Root::open(path).map(drop)
    }

    fn with_subscribe(mut config: FilesConfig, health: SourceHealth, subscribe: Subscribe) -> Self {
        config.rescan = config.rescan.max(MIN_RESCAN);
        config.quiet = config.quiet.min(config.rescan);
        let config = Arc::new(config);
        let engine = Arc::new(Mutex::new(Engine::new(config.clone(), new_lineage(), health)));
        Self { config, engine, active: Mutex::new(CancellationToken::new()), subscribe }
    }

    /// Ends the active list or watch, and returns the token of the next one.
    fn take_over(&self) -> CancellationToken {
        let token = CancellationToken::new();
        std::mem::replace(&mut *self.active.lock(), token.clone()).cancel();
        token
    }
}

impl ListerWatcher for FilesSource {
    async fn list(&self, _at: ListVersion) -> Result<List, SourceError> {
        let token = self.take_over();
        // Dropping this future ends the scan.
        let _guard = token.clone().drop_guard();
        let engine = self.engine.clone();
        let listed = blocking(move || engine.lock().list(&token)).await;
        listed.and_then(|list| list).map_err(SourceError::from)
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        let token = self.take_over();
        let engine = self.engine.clone();
        let current = blocking(move || engine.lock().version()).await?;
        if from != current {
            return Err(SourceError::Expired(format!(
                "cannot watch from version {from}: the directory is at {current}"
            )));
        }
        let live = Live::new(self.config.clone(), self.engine.clone(), Notices::new(self.subscribe), token);
        Ok(Box::pin(live.into_stream().map(|item| item.map(Delta::event))))
    }

    fn heartbeat(&self) -> Duration {
        self.config.rescan
    }
}

impl From<Failure> for SourceError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Cancelled => Self::Unavailable("replaced by another list or watch of the directory".into()),
            Failure::Outage(reason) => Self::Unavailable(reason),
        }
    }
}
