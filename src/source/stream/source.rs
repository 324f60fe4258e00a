//! The source as the Reflector uses it. One watch at a time has the reader, as a lease that returns it when dropped: a watch
//! that ends loses no bytes that were read and not delivered yet.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio_stream::StreamExt;

use super::{
    HEARTBEAT, StreamConfig,
    input::{StreamError, StreamPath},
    known::StreamState,
    reader::Reader,
};
use crate::{
    cache::{Delta, List, ListVersion, ListerWatcher, SourceError, SourceHealth, Watch},
    model::ResourceVersion,
    source::lineage::new_lineage,
    watch::{DecodeError, Decoder, StreamWatcher},
};

/// A stream of watch events as an upstream.
#[derive(Debug)]
pub struct StreamSource {
    shared: Arc<StreamShared>,
}

/// Configuration and state of one source.
#[derive(Debug)]
struct StreamShared {
    config: StreamConfig,
    health: SourceHealth,
    known: Arc<Mutex<StreamState>>,
    slot: Mutex<ReaderSlot>,
}

/// Location of the reader.
#[derive(Debug)]
enum ReaderSlot {
    /// No reader: the input has not been opened.
    Closed,
    Idle(Box<Reader>),
    /// The lease of a watch.
    Taken,
}

/// Exclusive use of the reader by one watch.
#[derive(Debug)]
struct ReaderLease {
    shared: Arc<StreamShared>,
    /// The reader; `None` only while the lease returns it.
    reader: Option<Box<Reader>>,
}

/// State of one watch, without a task of its own.
struct StreamWatch {
    shared: Arc<StreamShared>,
    watcher: StreamWatcher<ReaderLease>,
}

// === impl StreamSource ===

impl StreamSource {
    /// Returns a source that reports its problems to `health`. It opens nothing before the first list.
    pub fn new(config: StreamConfig, health: SourceHealth) -> Self {
        let first = ResourceVersion::of_lineage(new_lineage(), 1);
        let known = Arc::new(Mutex::new(StreamState::new(first)));
        Self { shared: Arc::new(StreamShared { config, health, known, slot: Mutex::new(ReaderSlot::Closed) }) }
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
        if !matches!(*shared.slot.lock(), ReaderSlot::Closed) {
            return Ok(());
        }
        let path = shared.config.path.clone();
        let opened = tokio::task::spawn_blocking(move || path.open()).await;
        // The only failures are a panic, which is a bug that was reported at its origin, and the end of the runtime.
        let opened = opened.map_err(|error| SourceError::Unavailable(error.to_string()))?;
        let input = opened.map_err(|error| SourceError::Unavailable(error.to_string()))?;
        let mut slot = shared.slot.lock();
        if matches!(*slot, ReaderSlot::Closed) {
            let (known, health) = (Arc::clone(&shared.known), shared.health.clone());
            let reader = Reader::new(input, &shared.config, known, health);
            *slot = ReaderSlot::Idle(Box::new(reader));
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
        let Some(lease) = ReaderLease::take(&self.shared) else {
            return Err(SourceError::Busy("the stream is in use by another watch".into()));
        };
        let current = self.shared.known.lock().version.clone();
        if from != current {
            return Err(SourceError::Expired(format!("cannot watch from version {from}: the stream is at {current}")));
        }
        let live = StreamWatch { shared: Arc::clone(&self.shared), watcher: StreamWatcher::new(lease) };
        Ok(Box::pin(futures_util::stream::unfold(live, |mut live| async move {
            live.next().await.map(|item| (item, live))
        })))
    }

    fn heartbeat(&self) -> Duration {
        HEARTBEAT
    }
}

// === impl ReaderLease ===

impl ReaderLease {
    /// Takes the reader, unless it has not been opened or another watch has it.
    fn take(shared: &Arc<StreamShared>) -> Option<Self> {
        let mut slot = shared.slot.lock();
        match std::mem::replace(&mut *slot, ReaderSlot::Taken) {
            ReaderSlot::Idle(reader) => Some(Self { shared: Arc::clone(shared), reader: Some(reader) }),
            other => {
                *slot = other;
                None
            }
        }
    }
}

impl Decoder for ReaderLease {
    type Event = Delta;

    async fn decode(&mut self) -> Result<Delta, DecodeError> {
        match &mut self.reader {
            Some(reader) => reader.next().await,
            None => Err(DecodeError::End),
        }
    }
}

impl Drop for ReaderLease {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            *self.shared.slot.lock() = ReaderSlot::Idle(reader);
        }
    }
}

// === impl StreamWatch ===

impl StreamWatch {
    async fn next(&mut self) -> Option<Result<Delta, SourceError>> {
        loop {
            if let Some(item) = self.watcher.next().await {
                return Some(item.map_err(|error| SourceError::Undecodable(error.to_string())));
            }
            // The watcher has returned the lease; another watch may have taken it meanwhile.
            let mut lease = ReaderLease::take(&self.shared)?;
            let expired = match &mut lease.reader {
                Some(reader) => reader.reopen().await,
                None => None,
            };
            if expired.is_some() {
                // The lease returns the reader, and the next call continues from here.
                return expired.map(Ok);
            }
            self.watcher = StreamWatcher::new(lease);
        }
    }
}
