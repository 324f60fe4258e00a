//! The `stream` source: watch events as JSON, from a file, a named pipe or standard input.
//!
//! ```text
//!             list ──▶ Known ◀──┐
//!   input ──▶ framing ──▶ decode ─ reader ──▶ watch::StreamWatcher ──▶ Watch
//!                                    └──────▶ Problems ──▶ SourceHealth
//! ```
//!
//! `{"type":"ADDED|MODIFIED|DELETED|BOOKMARK|ERROR","object":{…}}`, concatenated or one to a line, as
//! `kubectl get --watch --output-watch-events -o json` writes them. Made by the application from its configuration, one for
//! each resource; driven by the resource's Reflector, and writing what cannot be applied to the resource's health.
//!
//! - The resource is synced, and empty, as soon as the input is open.
//! - Versions are `<lineage>.<n>`, the lineage new at each start, `n` one more with each event.
//! - Reading waits for whoever takes the events; nothing is read ahead but one chunk of the input.
//! - What cannot be read or keyed is not applied: it is reported, for as long as the source lives, and reading goes on.
//! - The end of the stream is STALE, and deletes nothing. A named pipe goes on with its next writer, which repeats all that
//!   there is; what it does not confirm is deleted, as by a relist (`reader`).
//! - A watch never ends, and a list is what all events up to then add up to: no list takes anything away from the cache.
//!
//! Deliberately not here: a file that grows. What follows it writes to a pipe (`tail -n +1 -F FILE | informerd …`).

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

/// A stream may be silent for ever: only its end is a sign.
pub const HEARTBEAT: Duration = Duration::MAX;

/// How long the next writer of a pipe may be without confirming an object, unless configured.
pub const DEFAULT_CONFIRM_AFTER: Duration = Duration::from_secs(10);

/// What a [`StreamSource`] reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// Where the events come from.
    pub path: StreamPath,
    /// The name of the resource, for the log.
    pub resource: String,
    /// How long the next writer of a named pipe may go without an event of an object that was there before it. After it, the
    /// objects that it has sent no event of are deleted, as by a relist. Time counts from the writer's first event on, and
    /// only while the pipe is empty and somebody waits for it. `None` for writers that do not begin with all objects: what was
    /// deleted between two of them stays.
    pub confirm_after: Option<Duration>,
}

/// A stream of watch events as an upstream.
#[derive(Debug)]
pub struct StreamSource {
    shared: Arc<Shared>,
}

/// Why a stream cannot be read; the text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Nothing is there.
    #[error("the file {} does not exist; create it, or correct the path", .0.display())]
    Missing(PathBuf),
    /// A directory or a socket is there.
    #[error("{} is no file and no named pipe; name what the events are written to", .0.display())]
    NotAStream(PathBuf),
    /// It cannot be opened.
    #[error("{what} cannot be read ({reason}); let the user that runs informerd read it")]
    Unreadable {
        /// The file, or "standard input".
        what: String,
        /// In the words of the operating system.
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

/// Where the reader is.
#[derive(Debug)]
enum Slot {
    /// Nothing has been opened yet.
    Closed,
    Idle(Box<Reader>),
    /// A watch has it.
    Taken,
}

/// One watch. It is a stream's state and not a task.
struct Live {
    shared: Arc<Shared>,
    watcher: StreamWatcher<Lease>,
}

// === impl StreamConfig ===

impl StreamConfig {
    /// Serves `path` as `resource`, with the defaults for everything else.
    pub fn new(path: StreamPath, resource: impl Into<String>) -> Self {
        Self { path, resource: resource.into(), confirm_after: Some(DEFAULT_CONFIRM_AFTER) }
    }
}

// === impl StreamSource ===

impl StreamSource {
    /// A source whose problems are reported to `health`. Nothing is opened before the first list.
    pub fn new(config: StreamConfig, health: SourceHealth) -> Self {
        let first = ResourceVersion::of_lineage(new_lineage(), 1);
        let known = Arc::new(Mutex::new(Known::new(first)));
        Self { shared: Arc::new(Shared { config, health, known, slot: Mutex::new(Slot::Closed) }) }
    }

    /// Whether `path` can be read now. Standard input always can.
    ///
    /// # Errors
    ///
    /// In one line that says what to do.
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
        // The only failures are a panic, which is a bug that was reported where it happened, and the end of the runtime.
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
            return Err(SourceError::Busy("another watch reads the stream".into()));
        };
        let current = self.shared.known.lock().version.clone();
        if from != current {
            return Err(SourceError::Expired(format!("the stream is at {current}, and {from} was asked for")));
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
            // The watcher has given it back; it is gone if another watch was faster.
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
