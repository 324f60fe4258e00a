//! The `files` source: a directory of manifests, served live.
//!
//! ```text
//!             directory ──notify──▶ notices ─┐
//!                 │                          ▼
//!                 └──▶ scan ◀── engine ◀── live ──▶ Watch
//!   root, read, decode, lookup    │  ▲
//!    catalog, missing, unfinished ┘ └ Problems ──▶ SourceHealth
//! ```
//!
//! Made by the application from its configuration, one for each resource; driven by the resource's Reflector, and
//! writing what is wrong with single files to the resource's health.
//!
//! - What counts: regular files `*.json`, `*.yaml` and `*.yml`, in any directory below; nothing whose name begins with a
//!   dot. Symbolic links are followed inside the directory, which is how Kubernetes mounts a `ConfigMap`.
//! - Versions are `<lineage>.<n>`, the lineage new at each start. One changed object is one version; what did not change
//!   keeps its own.
//! - What notices tell is looked at when it has been quiet; everything is looked at at an interval.
//! - Nothing is deleted but by a deletion: a file that cannot be parsed, or a directory that is away, keeps its objects
//!   and is reported. A deletion counts when it is certain (`missing`), also of an object that its file does not have any more;
//!   a file that is being written counts when it is closed (`unfinished`).
//! - Only one list or watch is active; the next one ends the one before it.
//!
//! Unix only: identity and stamps of files are inode numbers and times of change.
//!
//! Not here: inferring what was missed (a scan compares with what is known, so that nothing is), and storing.

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

/// How often the whole directory is looked at, unless configured: the bound on noticing what no notice told, and the
/// proof of life.
pub const DEFAULT_RESCAN: Duration = Duration::from_secs(5);

/// How long a burst of changes has to be over before it is looked at, unless configured.
pub const DEFAULT_QUIET: Duration = Duration::from_millis(100);

/// A shorter interval would be a loop.
const MIN_RESCAN: Duration = Duration::from_millis(10);

/// What a [`FilesSource`] serves, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesConfig {
    /// The directory.
    pub path: PathBuf,
    /// Only objects of this kind count, in any case of letters; `None` for all.
    pub kind: Option<String>,
    /// The name of the resource, for the log.
    pub resource: String,
    /// How often the whole directory is looked at; at least 10 ms. A file that stays open for writing is read after six of
    /// these.
    pub rescan: Duration,
    /// How long a burst of changes has to be over before it is looked at; at most `rescan`. A burst that lasts five times as
    /// long is looked at in its midst. A file that is missing then is deleted when it is missing for as long again, and so is an
    /// object that no file has any more. A file counts whose last change no notice told of when it has been left alone for five
    /// times as long.
    pub quiet: Duration,
}

/// A directory of manifests as an upstream.
#[derive(Debug)]
pub struct FilesSource {
    config: Arc<FilesConfig>,
    engine: SharedEngine,
    /// Ends the list or watch that is active.
    active: Mutex<CancellationToken>,
    subscribe: Subscribe,
}

/// Locked for as long as a scan takes, and only where blocking is allowed.
type SharedEngine = Arc<Mutex<Engine>>;

// === impl FilesConfig ===

impl FilesConfig {
    /// Serves `path` as `resource`, with the defaults for everything else.
    pub fn new(path: impl Into<PathBuf>, resource: impl Into<String>) -> Self {
        let (path, resource) = (path.into(), resource.into());
        Self { path, kind: None, resource, rescan: DEFAULT_RESCAN, quiet: DEFAULT_QUIET }
    }
}

// === impl FilesSource ===

impl FilesSource {
    /// A source whose problems are reported to `health`. Nothing is read before the first list.
    pub fn new(config: FilesConfig, health: SourceHealth) -> Self {
        Self::with_subscribe(config, health, notices::subscribe)
    }

    /// Whether `path` can be served now: it is a directory that can be listed and entered.
    ///
    /// # Errors
    ///
    /// In one line that says what to do.
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

    /// Ends what is active, and returns the token of what comes after it.
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
            return Err(SourceError::Expired(format!("the directory is at {current}, and {from} was asked for")));
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
            Failure::Cancelled => Self::Unavailable("another list or watch of the directory has taken over".into()),
            Failure::Outage(reason) => Self::Unavailable(reason),
        }
    }
}
