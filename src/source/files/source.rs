//! The source as the Reflector uses it.

use std::{path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    FilesConfig,
    engine::{Engine, Failure, SharedEngine},
    live::{DirectoryWatch, blocking},
    notices::{self, Notices, Subscribe},
    root::{DirectoryError, Root},
};
use crate::{
    cache::{List, ListVersion, ListerWatcher, SourceError, SourceHealth, Watch},
    model::ResourceVersion,
    source::lineage::new_lineage,
};

/// A directory of manifests as an upstream.
#[derive(Debug)]
pub struct FilesSource {
    config: Arc<FilesConfig>,
    engine: SharedEngine,
    /// Ends the active list or watch.
    active: Mutex<CancellationToken>,
    subscribe: Subscribe,
}

/// Lower bound of the scan interval; a shorter one would be a busy loop.
const MIN_RESCAN: Duration = Duration::from_millis(10);

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

    pub(super) fn with_subscribe(mut config: FilesConfig, health: SourceHealth, subscribe: Subscribe) -> Self {
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
        let live = DirectoryWatch::new(self.config.clone(), self.engine.clone(), Notices::new(self.subscribe), token);
        Ok(Box::pin(live.into_stream()))
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
