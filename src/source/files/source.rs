//! The source as the Reflector uses it.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    FilesConfig,
    engine::{Engine, SharedEngine},
    live::{DirectoryWatch, blocking},
    notices::{self, Notices, Subscribe},
    root::{DirectoryError, Root},
};
use crate::{
    cache::{List, ListVersion, ListerWatcher, SourceError, SourceHealth, WarmStart, Watch},
    model::ResourceVersion,
    source::{lineage::new_lineage, text::one_line},
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

/// Limit of the kinds that an error shows.
const MAX_KINDS: usize = 8;

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

    /// Checks that the directory has an object of the kind, if it has any. Blocks.
    ///
    /// # Errors
    ///
    /// The problem, with the kinds that there are, in one line.
    pub fn check_kind(mut config: FilesConfig) -> Result<(), String> {
        let Some(kind) = config.kind.take() else { return Ok(()) };
        let directory = config.path.display().to_string();
        let health = SourceHealth::new(config.rescan, config.rescan);
        let listed = Engine::new(Arc::new(config), new_lineage(), health).list(&CancellationToken::new());
        // A directory that cannot be read is reported by `check`.
        let objects = listed.map(|list| list.objects).unwrap_or_default();
        let kinds: BTreeSet<&str> =
            objects.iter().map(|object| object.kind()).filter(|kind| !kind.is_empty()).collect();
        if objects.is_empty() || kinds.iter().any(|found| found.eq_ignore_ascii_case(&kind)) {
            return Ok(());
        }
        let kinds: Vec<&str> = kinds.into_iter().take(MAX_KINDS).collect();
        let found = if kinds.is_empty() { "objects without a kind".to_owned() } else { kinds.join(", ") };
        Err(one_line(&format!("the directory {directory} has no object of kind {kind:?}, but {found}")))
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
        blocking(move || engine.lock().list(&token)).await?
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

    fn warm_start(&self) -> Option<&dyn WarmStart> {
        Some(self)
    }
}

impl WarmStart for FilesSource {
    fn identity(&self) -> String {
        let FilesConfig { path, kind, .. } = &*self.config;
        let kind = kind.as_ref().map(|kind| format!(" of kind {:?}", kind.to_lowercase())).unwrap_or_default();
        format!("files below {}{kind}", path.display())
    }

    /// Returns the files as of the last scan, of which the Reflector may not have all events yet: the next run reads them again.
    fn proof(&self) -> Option<Bytes> {
        // A scan holds the lock, and this is no thread to wait for it. The next request comes soon.
        self.engine.try_lock()?.proof().map(Bytes::from)
    }

    fn resume(&self, _: &ResourceVersion, _: &[u8]) -> Result<(), String> {
        Err("the objects are needed, too".to_owned())
    }

    fn resume_with(&self, list: &mut List, proof: &[u8]) -> Result<(), String> {
        self.engine.lock().resume(list, proof)
    }
}
