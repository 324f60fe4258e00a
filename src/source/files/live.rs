//! Watch of a directory: waits for possible changes, has the engine scan for them, and delivers the result.
//!
//! One [`DirectoryWatch`] is one watch. It is the state of a stream, not a task: nothing happens unless the watch is polled, and
//! dropping it ends the notices and cancels the current scan.
//!
//! Invariants:
//! - At most one scan runs; its events are delivered before the next one begins. That bounds the queue: one event for each
//!   changed object, which it shares with the catalog.
//! - A bookmark follows the changes of every scan, unless an object has been in no file for less than a rescan: its deletion comes
//!   first. No bookmark comes while the directory is absent or being replaced.
//! - A burst of changes is checked once: after a quiet period, or when it has lasted [`BURST`] quiet periods. After a scan comes a
//!   pause of the same length: a large directory that changes all the time is not scanned all the time.
//! - The first step is a scan, which finds the changes since the list.

use std::{collections::VecDeque, sync::Arc};

use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    FilesConfig,
    engine::{Scanned, SharedEngine, replaced},
    notices::{DirtySet, Notices},
};
use crate::{
    cache::{Delta, SourceError},
    model::Event,
};

/// Longest delay by a burst of changes, in quiet periods.
const BURST: u32 = 5;

/// One watch of one directory.
#[derive(Debug)]
pub(super) struct DirectoryWatch {
    config: Arc<FilesConfig>,
    engine: SharedEngine,
    /// Notices; a running scan has them.
    notices: Option<Notices>,
    dirty: Arc<DirtySet>,
    cancelled: CancellationToken,
    /// Ends the current scan when the watch is dropped.
    _guard: DropGuard,
    ready: VecDeque<Event>,
    next_scan: Instant,
    /// Time before which no other scan begins.
    paused_until: Instant,
}

// === impl DirectoryWatch ===

impl DirectoryWatch {
    /// Returns a watch from the engine's current version on.
    pub(super) fn new(
        config: Arc<FilesConfig>,
        engine: SharedEngine,
        notices: Notices,
        cancelled: CancellationToken,
    ) -> Self {
        Self {
            config,
            engine,
            dirty: notices.dirty().clone(),
            notices: Some(notices),
            _guard: cancelled.clone().drop_guard(),
            cancelled,
            ready: VecDeque::new(),
            next_scan: Instant::now(),
            paused_until: Instant::now(),
        }
    }

    /// Converts the watch to the stream that the Reflector reads.
    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Delta, SourceError>> + Send {
        futures_util::stream::unfold(self, |mut live| async move {
            live.next().await.map(|event| (Ok(Delta::event(event)), live))
        })
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if self.cancelled.is_cancelled() {
                return None;
            }
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let cancelled = self.cancelled.clone();
            let is_quiet = cancelled.run_until_cancelled(self.wait()).await?;
            self.scan(is_quiet).await;
        }
    }

    /// Waits until a scan is due. After a notice that is when the burst of changes is over, or has lasted long enough; returns false
    /// for the latter.
    async fn wait(&self) -> bool {
        sleep_until(self.paused_until).await;
        tokio::select! {
            // Notices come before the timer, whose scan would fall into the middle of a burst.
            biased;
            // Cancel-safe, both of them: a mark without a waiter is kept.
            () = self.dirty.marked() => {}
            () = sleep_until(self.next_scan) => return true,
        }
        let end = Instant::now() + self.config.quiet * BURST;
        loop {
            let quiet = (Instant::now() + self.config.quiet).min(end);
            if timeout_at(quiet, self.dirty.marked()).await.is_err() {
                return quiet < end;
            }
        }
    }

    /// Scans the directory, which may still be changing.
    async fn scan(&mut self, is_quiet: bool) {
        let (engine, cancelled) = (self.engine.clone(), self.cancelled.clone());
        let (begin, mut notices) = (Instant::now(), self.notices.take());
        let scanned = blocking(move || {
            let mut engine = engine.lock();
            if !is_quiet {
                engine.disturb(Instant::now());
            }
            let outcome = engine.scan(notices.as_mut(), &cancelled);
            (notices, outcome)
        });
        let Ok((notices, outcome)) = scanned.await else { return self.cancelled.cancel() };
        self.notices = notices;
        let now = Instant::now();
        self.paused_until = now + begin.elapsed().min(self.config.rescan);
        self.next_scan = now + self.config.rescan;
        if let Ok(Scanned { events, again_at }) = outcome {
            self.ready.extend(events);
            self.next_scan = again_at.map_or(self.next_scan, |at| at.min(self.next_scan));
        }
    }
}

/// Runs blocking work on a thread that may wait for the disk.
///
/// # Cancel safety
///
/// Dropping the future does not stop the work; its cancellation token does.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, SourceError> {
    // The only failures are a panic, which is a bug that was reported at its origin, and the end of the runtime.
    tokio::task::spawn_blocking(work).await.map_err(|_| replaced())
}
