//! The `stream` source: watch events as JSON, from a file, a named pipe or standard input.
//!
//! ```text
//!             list ──▶ Known ◀──┐
//!   input ──▶ framing ──▶ decode ─ reader ──▶ watch::StreamWatcher ──▶ Watch
//!                                    └──────▶ Problems ──▶ SourceHealth
//! ```
//!
//! `{"type":"ADDED|MODIFIED|DELETED|BOOKMARK|ERROR","object":{…}}`, concatenated or one to a line, as
//! `kubectl get --watch --output-watch-events -o json` writes them. The application makes one source for each resource from its
//! configuration; the resource's Reflector drives it. Events that cannot be applied are reported in the resource's health.
//!
//! - The resource is synced, and empty, as soon as the input is open.
//! - Versions are `<lineage>.<n>`: the lineage is new at each start, and `n` increases by one with each event.
//! - The source reads only on demand: at most one chunk of the input is read ahead, and a slow consumer blocks the writer.
//! - An event that cannot be parsed or has no key is not applied. The source reports it for its whole lifetime, and continues.
//! - The end of the stream makes the resource STALE, and deletes nothing. A named pipe continues with its next writer, which
//!   repeats all objects; the source deletes those that it does not confirm, as at a relist (`reader`).
//! - A watch never ends. A list is the result of all events so far, so that a list never removes anything from the cache.
//!
//! A file that grows is not followed, deliberately: a pipe does that (`tail -n +1 -F FILE | informerd …`).

mod decode;
mod framing;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod input;
mod known;
mod reader;

#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio_stream::StreamExt;

pub use self::input::StreamPath;
use self::{
    known::Known,
    reader::{Lease, Reader},
};
use super::lineage::new_lineage;
use crate::{
    cache::{Delta, List, ListVersion, ListerWatcher, SourceError, SourceHealth, Watch},
    model::ResourceVersion,
    watch::StreamWatcher,
};

/// Heartbeat of a stream, which may be silent for any time: only its end is a sign.
pub const HEARTBEAT: Duration = Duration::MAX;

/// Default of [`StreamConfig::confirm_after`].
pub const DEFAULT_CONFIRM_AFTER: Duration = Duration::from_secs(10);

/// Configuration of a [`StreamSource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// Origin of the events.
    pub path: StreamPath,
    /// Name of the resource, for the log.
    pub resource: String,
    /// Time for which the next writer of a named pipe may go without an event of an object that existed before it. Then the
    /// source deletes the objects that the writer has sent no event of, as at a relist. Time counts from its first event on, and
    /// only while the pipe is empty and a reader waits for it. `None` for writers that do not begin with all objects: those
    /// that were deleted between two writers remain.
    pub confirm_after: Option<Duration>,
}

/// A stream of watch events as an upstream.
#[derive(Debug)]
pub struct StreamSource {
    shared: Arc<Shared>,
}

/// Reason why a stream cannot be read; the text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Path that does not exist.
    #[error("the file {} does not exist; create it, or correct the path", .0.display())]
    Missing(PathBuf),
    /// Path of a directory or a socket.
    #[error("{} is neither a file nor a named pipe; name the file or pipe with the events", .0.display())]
    NotAStream(PathBuf),
    /// Input that cannot be opened.
    #[error("{what} cannot be read ({reason}); give the user of informerd permission to read it")]
    Unreadable {
        /// The file, or "standard input".
        what: String,
        /// The operating system's message.
        reason: String,
    },
}

#[derive(Debug)]
struct Shared {
    config: StreamConfig,
    health: SourceHealth,
    known: Arc<Mutex<Known>>,
    slot: Mutex<Slot>,
}

/// Location of the reader.
#[derive(Debug)]
enum Slot {
    /// No reader: the input has not been opened.
    Closed,
    Idle(Box<Reader>),
    /// The lease of a watch.
    Taken,
}

/// State of one watch, without a task of its own.
struct Live {
    shared: Arc<Shared>,
    watcher: StreamWatcher<Lease>,
}

// === impl StreamConfig ===

impl StreamConfig {
    /// Returns the configuration that serves `path` as `resource`, with the defaults for everything else.
    pub fn new(path: StreamPath, resource: impl Into<String>) -> Self {
        Self { path, resource: resource.into(), confirm_after: Some(DEFAULT_CONFIRM_AFTER) }
    }
}

// === impl StreamSource ===

impl StreamSource {
    /// Returns a source that reports its problems to `health`. It opens nothing before the first list.
    pub fn new(config: StreamConfig, health: SourceHealth) -> Self {
        let first = ResourceVersion::of_lineage(new_lineage(), 1);
        let known = Arc::new(Mutex::new(Known::new(first)));
        Self { shared: Arc::new(Shared { config, health, known, slot: Mutex::new(Slot::Closed) }) }
    }

    /// Checks that `path` can be read now. Standard input always passes.
    ///
    /// # Errors
    ///
    /// The problem and its remedy, in one line.
    pub fn check(path: &StreamPath) -> Result<(), StreamError> {
        path.check()
    }

    /// Opens the input, once.
    async fn open(&self) -> Result<(), SourceError> {
        let shared = &self.shared;
        if !matches!(*shared.slot.lock(), Slot::Closed) {
            return Ok(());
        }
        let path = shared.config.path.clone();
        let opened = tokio::task::spawn_blocking(move || path.open()).await;
        // The only failures are a panic, which is a bug that was reported at its origin, and the end of the runtime.
        let opened = opened.map_err(|error| SourceError::Unavailable(error.to_string()))?;
        let input = opened.map_err(|error| SourceError::Unavailable(error.to_string()))?;
        let mut slot = shared.slot.lock();
        if matches!(*slot, Slot::Closed) {
            let resource = shared.config.resource.clone();
            let (known, health) = (Arc::clone(&shared.known), shared.health.clone());
            let reader = Reader::new(input, resource, known, health, shared.config.confirm_after);
            *slot = Slot::Idle(Box::new(reader));
        }
        Ok(())
    }
}

impl ListerWatcher for StreamSource {
    async fn list(&self, _at: ListVersion) -> Result<List, SourceError> {
        self.open().await?;
        Ok(self.shared.known.lock().list())
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        self.open().await?;
        let Some(lease) = Lease::take(&self.shared) else {
            return Err(SourceError::Busy("the stream is in use by another watch".into()));
        };
        let current = self.shared.known.lock().version.clone();
        if from != current {
            return Err(SourceError::Expired(format!("cannot watch from version {from}: the stream is at {current}")));
        }
        let live = Live { shared: Arc::clone(&self.shared), watcher: StreamWatcher::new(lease) };
        Ok(Box::pin(futures_util::stream::unfold(live, |mut live| async move {
            live.next().await.map(|item| (item, live))
        })))
    }

    fn heartbeat(&self) -> Duration {
        HEARTBEAT
    }
}

// === impl Live ===

impl Live {
    async fn next(&mut self) -> Option<Result<Delta, SourceError>> {
        loop {
            if let Some(item) = self.watcher.next().await {
                return Some(item.map_err(|error| SourceError::Undecodable(error.to_string())));
            }
            // The watcher has returned the lease; another watch may have taken it meanwhile.
            let mut lease = Lease::take(&self.shared)?;
            lease.reopen().await;
            self.watcher = StreamWatcher::new(lease);
        }
    }
}

// === impl StreamError ===

impl StreamError {
    fn of(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing(path.to_owned()),
            _ => Self::Unreadable { what: path.display().to_string(), reason: error.to_string() },
        }
    }

    fn of_stdin(error: &io::Error) -> Self {
        Self::Unreadable { what: "standard input".to_owned(), reason: error.to_string() }
    }
}
