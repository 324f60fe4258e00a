//! Watch of a directory: waits for possible changes, has the engine check them, and delivers the result.
//!
//! One [`Live`] is one watch. It is the state of a stream, not a task: nothing happens unless the watch is polled, and
//! dropping it ends the notices and cancels the current scan.
//!
//! Invariants:
//! - At most one scan runs; its events are delivered before the next one begins. That bounds the queue: one event for each
//!   changed object, which it shares with the catalog.
//! - A bookmark follows every complete scan, as soon as no file is missing without a certain deletion: no bookmark comes while
//!   the directory is absent or being replaced.
//! - A burst of changes is checked once: after a quiet period, or when it has lasted [`BURST`] quiet periods.
//! - The first step is a scan, which finds the changes since the list.

use std::{collections::VecDeque, sync::Arc};

use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    FilesConfig, SharedEngine,
    engine::{Failure, Looked, Refresh},
    notices::{Dirty, Notices},
};
use crate::{
    cache::SourceError,
    model::{Event, ResourceVersion},
};

/// Longest delay by a burst of changes, in quiet periods.
const BURST: u32 = 5;

/// One watch of one directory.
#[derive(Debug)]
pub(super) struct Live {
    config: Arc<FilesConfig>,
    engine: SharedEngine,
    /// Notices; a running scan has them.
    notices: Option<Notices>,
    cancelled: CancellationToken,
    /// Ends the current scan when the watch is dropped.
    _guard: DropGuard,
    ready: VecDeque<Event>,
    next_scan: Instant,
    /// Time to look for missing files again.
    again_at: Option<Instant>,
    /// True if a bookmark is due when no file is missing any more.
    owes_bookmark: bool,
}

/// Reason for a step of the watch.
#[derive(Debug)]
enum Wake {
    /// Another list or watch has replaced this one.
    Cancelled,
    Notices,
    /// The time to look for missing files again.
    Missing,
    Interval,
}

// === impl Live ===

impl Live {
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
            notices: Some(notices),
            _guard: cancelled.clone().drop_guard(),
            cancelled,
            ready: VecDeque::new(),
            next_scan: Instant::now(),
            again_at: None,
            owes_bookmark: false,
        }
    }

    /// Converts the watch to the stream that the Reflector reads.
    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Event, SourceError>> + Send {
        futures_util::stream::unfold(self, |mut live| async move { live.next().await.map(|event| (event, live)) })
    }

    async fn next(&mut self) -> Option<Result<Event, SourceError>> {
        loop {
            if self.cancelled.is_cancelled() {
                return None;
            }
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            let looked = match self.wait().await {
                Wake::Cancelled => return None,
                Wake::Notices => {
                    let is_quiet = self.settle().await;
                    self.look(is_quiet).await
                }
                Wake::Missing => self.look_for_missing().await,
                Wake::Interval => self.scan().await,
            };
            match looked {
                Ok(()) | Err(Failure::Outage(_)) => {}
                Err(Failure::Cancelled) => return None,
            }
        }
    }

    async fn wait(&self) -> Wake {
        let marked = async {
            match &self.notices {
                Some(notices) => notices.dirty().marked().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The end comes first; notices come before the timers, whose checks would fall into the middle of a burst.
            biased;
            // Cancel-safe, all of them.
            () = self.cancelled.cancelled() => Wake::Cancelled,
            () = marked => Wake::Notices,
            () = sleep_until(self.next_scan) => Wake::Interval,
            () = sleep_until(self.again_at.unwrap_or(self.next_scan)) => Wake::Missing,
        }
    }

    /// Waits until the burst of changes is over, or has lasted long enough. Returns true if it is over.
    async fn settle(&self) -> bool {
        let Some(notices) = &self.notices else { return true };
        let end = Instant::now() + self.config.quiet * BURST;
        loop {
            let quiet = (Instant::now() + self.config.quiet).min(end);
            // Cancel-safe: a mark without a waiter is kept.
            if timeout_at(quiet, notices.dirty().marked()).await.is_err() {
                return quiet < end;
            }
        }
    }

    /// Checks the changes that the notices report, path by path if possible.
    async fn look(&mut self, is_quiet: bool) -> Result<(), Failure> {
        let Some(notices) = &self.notices else { return self.scan().await };
        let notices = notices.dirty().clone();
        let dirty = notices.take();
        if !is_quiet {
            let engine = self.engine.clone();
            blocking(move || engine.lock().disturb(Instant::now())).await?;
        }
        let paths = match dirty {
            Dirty::Paths(paths) if Instant::now() < self.next_scan => paths,
            Dirty::Paths(_) | Dirty::Everything => return self.scan().await,
        };
        let (engine, cancelled) = (self.engine.clone(), self.cancelled.clone());
        let refresh = blocking(move || engine.lock().refresh(&paths, &notices, &cancelled)).await?;
        self.refreshed(refresh?).await
    }

    /// Looks for the missing files again.
    async fn look_for_missing(&mut self) -> Result<(), Failure> {
        let (engine, cancelled) = (self.engine.clone(), self.cancelled.clone());
        let refresh = blocking(move || engine.lock().look_for_missing(&cancelled)).await?;
        self.refreshed(refresh?).await
    }

    async fn refreshed(&mut self, refresh: Refresh) -> Result<(), Failure> {
        match refresh {
            Refresh::Unclear => self.scan().await,
            Refresh::Done(Looked { events, again_at, is_uncertain }) => {
                self.ready.extend(events);
                self.again_at = again_at;
                if !is_uncertain && self.owes_bookmark {
                    let engine = self.engine.clone();
                    self.bookmark(blocking(move || engine.lock().version()).await?);
                }
                Ok(())
            }
        }
    }

    /// Scans the whole directory.
    async fn scan(&mut self) -> Result<(), Failure> {
        let (engine, cancelled) = (self.engine.clone(), self.cancelled.clone());
        let mut notices = self.notices.take();
        if let Some(notices) = &notices {
            // The scan sees every change that was marked up to here.
            notices.dirty().take();
        }
        let scanned = blocking(move || {
            let mut engine = engine.lock();
            let outcome = engine.scan(notices.as_mut(), &cancelled).map(|looked| (looked, engine.version()));
            (notices, outcome)
        });
        let (notices, outcome) = scanned.await?;
        self.notices = notices;
        self.next_scan = Instant::now() + self.config.rescan;
        (self.again_at, self.owes_bookmark) = (None, false);
        let (Looked { events, again_at, is_uncertain }, version) = outcome?;
        self.ready.extend(events);
        self.again_at = again_at;
        if is_uncertain {
            self.owes_bookmark = true;
        } else {
            self.bookmark(version);
        }
        Ok(())
    }

    fn bookmark(&mut self, version: ResourceVersion) {
        self.owes_bookmark = false;
        self.ready.push_back(Event::Bookmark(version));
    }
}

/// Runs blocking work on a thread that may wait for the disk.
///
/// # Cancel safety
///
/// Dropping the future does not stop the work; its cancellation token does.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    // The only failures are a panic, which is a bug that was reported at its origin, and the end of the runtime.
    tokio::task::spawn_blocking(work).await.map_err(|_| Failure::Cancelled)
}
