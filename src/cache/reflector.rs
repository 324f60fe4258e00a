//! Endless list and watch of one upstream, which queues the results.
//!
//! A pure state machine (`state.rs`, after client-go's reflector) chooses the next request after each outcome. This file
//! executes it: it calls the upstream, waits, and records the source's health. The Reflector never gives up: it repeats a
//! failed request for as long as the task runs, and reports the failure in the [`SourceHealth`].

mod state;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::time::Instant;
use tokio_stream::StreamExt;

use self::state::{Next, Outcome, State};
use super::{
    Backoff, BackoffConfig, CheckpointRequests, Delta, ListVersion, ListerWatcher, RealFifo, SourceError, SourceHealth,
    WarmStart, Watch, checkpoint::Requests,
};
use crate::model::{AppliedVersion, ResourceVersion};

/// Driver of one [`ListerWatcher`].
#[derive(Debug)]
pub struct Reflector<S> {
    source: S,
    fifo: Arc<RealFifo>,
    checkpoints: CheckpointRequests,
    requests: Requests,
    health: SourceHealth,
    stats: Arc<ReflectorStats>,
    backoff: Backoff,
    state: State,
    /// True if the upstream's history was rewritten, and the next list is the first of the new one.
    is_history_rewritten: bool,
}

/// Parameters of a Reflector.
#[derive(Debug, Clone, PartialEq)]
pub struct ReflectorConfig {
    /// Freshness of the first list. The service uses [`ListVersion::MostRecent`], so that no restart serves an older state than
    /// before; client-go's default is [`ListVersion::Any`].
    pub first_list: ListVersion,
    /// Delays between attempts.
    pub backoff: BackoffConfig,
}

/// Counters of one Reflector, read at scrape.
#[derive(Debug, Default)]
pub struct ReflectorStats {
    /// Lists requested.
    pub lists: AtomicU64,
    /// Lists that failed.
    pub list_failures: AtomicU64,
    /// Objects in all lists that succeeded.
    pub listed_objects: AtomicU64,
    /// Watches requested.
    pub watches: AtomicU64,
    /// Watches that could not be opened or ended with an error.
    pub watch_failures: AtomicU64,
    /// Events received, bookmarks included.
    pub events: AtomicU64,
}

/// Bound below which a watch without events is a failure, not a normal close: something between this server and the upstream
/// closes it at once, and a repetition without a delay would be a busy loop.
const VERY_SHORT_WATCH: Duration = Duration::from_secs(1);
/// Duration of an open watch that shows that the upstream serves watches, though it delivered nothing.
const STEADY_WATCH: Duration = Duration::from_secs(10);

// === impl ReflectorConfig ===

impl Default for ReflectorConfig {
    fn default() -> Self {
        Self { first_list: ListVersion::Any, backoff: BackoffConfig::default() }
    }
}

// === impl Reflector ===

impl<S: ListerWatcher> Reflector<S> {
    /// Makes a Reflector that has not sent a request yet.
    pub fn new(source: S, fifo: Arc<RealFifo>, health: SourceHealth, config: ReflectorConfig) -> Self {
        let ReflectorConfig { first_list, backoff } = config;
        let (backoff, state) = (Backoff::new(backoff), State::new(first_list));
        let (checkpoints, requests) = CheckpointRequests::new();
        Self {
            source,
            fifo,
            checkpoints,
            requests,
            health,
            stats: Arc::default(),
            backoff,
            state,
            is_history_rewritten: false,
        }
    }

    /// Returns the identity for a warm start of this source ([`WarmStart::identity`]); `None` if it has no warm start.
    pub fn identity(&self) -> Option<String> {
        self.source.warm_start().map(WarmStart::identity)
    }

    /// Resumes from the snapshot of the previous run, which the informer begins with, and whose upstream was seen last at
    /// `seen_at`: watches from its version, and lists only if the upstream cannot serve that watch.
    ///
    /// # Errors
    ///
    /// If the source rejects the proof. The Reflector then begins with a list.
    pub fn resume(
        &mut self,
        version: ResourceVersion,
        proof: &[u8],
        seen_at: Option<SystemTime>,
    ) -> Result<(), String> {
        let source = self.source.warm_start().ok_or("the source does not support snapshots")?;
        source.resume(&version, proof)?;
        self.health.mark_resumed(seen_at);
        self.state.resume(version);
        Ok(())
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Arc<ReflectorStats> {
        &self.stats
    }

    /// Returns the handle that requests checkpoints.
    pub fn checkpoints(&self) -> &CheckpointRequests {
        &self.checkpoints
    }

    /// Lists and watches until the future is dropped; it never ends by itself.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons a list or closes a watch. Results that were not queued are lost together with the Reflector.
    pub async fn run(mut self) {
        let mut next = self.state.start();
        loop {
            let outcome = match next.request {
                state::Request::List(at) => self.list(at).await,
                state::Request::Watch(from) => self.watch(from).await,
            };
            let error = outcome.error();
            next = self.step(outcome);
            let delay = next.delayed.then(|| self.backoff.next_delay(Instant::now()));
            if let Some(error) = error {
                tracing::warn!(%error, retry_in = ?delay.unwrap_or_default(), "upstream failed");
            }
            if let Some(delay) = delay {
                with_requests(&mut self.requests, &self.source, &self.fifo, tokio::time::sleep(delay)).await;
            }
        }
    }

    fn step(&mut self, outcome: Outcome) -> Next {
        if let Some(error) = outcome.error() {
            self.health.record_failure(error);
        }
        if outcome.has_missed_changes() {
            self.health.mark_lost();
        }
        self.is_history_rewritten |= outcome.is_history_rewritten();
        self.state.step(outcome)
    }

    async fn list(&mut self, at: ListVersion) -> Outcome {
        self.stats.lists.fetch_add(1, Ordering::Relaxed);
        match with_requests(&mut self.requests, &self.source, &self.fifo, self.source.list(at)).await {
            Ok(list) => {
                tracing::info!(objects = list.objects.len(), resource_version = %list.version, "listed");
                self.stats.listed_objects.fetch_add(list.objects.len() as u64, Ordering::Relaxed);
                self.health.record_contact();
                if self.state.list_is_recovery() {
                    self.backoff.reset();
                }
                let version = list.version.clone();
                let is_history_rewritten = std::mem::take(&mut self.is_history_rewritten);
                let delta = if is_history_rewritten { Delta::HistoryRewritten(list) } else { Delta::Replace(list) };
                self.fifo.push(delta).await;
                Outcome::Listed(version)
            }
            Err(error) => {
                self.stats.list_failures.fetch_add(1, Ordering::Relaxed);
                Outcome::ListFailed(error)
            }
        }
    }

    async fn watch(&mut self, from: ResourceVersion) -> Outcome {
        self.stats.watches.fetch_add(1, Ordering::Relaxed);
        let opened_at = Instant::now();
        let watch = self.source.watch(from.clone());
        let outcome = match with_requests(&mut self.requests, &self.source, &self.fifo, watch).await {
            Ok(watch) => {
                let outcome = self.follow(watch, from, opened_at).await;
                if opened_at.elapsed() >= STEADY_WATCH {
                    self.state.progress();
                }
                outcome
            }
            Err(error) => Outcome::WatchNotOpened(error),
        };
        if outcome.error().is_some() {
            self.stats.watch_failures.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Queues events until the watch ends.
    async fn follow(&mut self, mut watch: Watch, from: ResourceVersion, opened_at: Instant) -> Outcome {
        let mut reached = AppliedVersion::closed(from);
        let mut events: u64 = 0;
        let is_very_short = |events| events == 0 && opened_at.elapsed() < VERY_SHORT_WATCH;
        while let Some(item) = with_requests(&mut self.requests, &self.source, &self.fifo, watch.next()).await {
            let delta = match item {
                Ok(delta) => delta,
                Err(SourceError::Broken(error)) if !is_very_short(events) => {
                    tracing::warn!(error, "upstream watch broken");
                    return Outcome::WatchClosed { reached: reached.safe().clone() };
                }
                Err(error) => return Outcome::WatchFailed { reached: reached.safe().clone(), error },
            };
            let Some(version) = delta.version().cloned() else { continue };
            events += 1;
            self.stats.events.fetch_add(1, Ordering::Relaxed);
            if delta.is_bookmark() && version < *reached.version() && version >= *reached.safe() {
                // The version of the last change is still open.
                self.health.record_contact();
                continue;
            }
            // One low event means a broken stream, and does not prove a rewritten history. client-go would accept the lower
            // version.
            if version < *reached.version() || !version.same_lineage(reached.version()) {
                let error = format!("event at version {version} after version {}", reached.version());
                return Outcome::WatchBroken { reached: reached.safe().clone(), error };
            }
            self.health.record_contact();
            // The same version again is no progress: each watch may begin with a bookmark and then fail.
            if version > *reached.version() {
                self.state.progress();
                self.backoff.reset();
            }
            tracing::trace!(resource_version = %version, "version received");
            reached.advance(&version, delta.closes());
            if reached.is_open() {
                self.state.opened(&version);
            }
            self.fifo.push(delta).await;
            // An upstream that always has more must not starve the informer, which runs on the same thread.
            tokio::task::consume_budget().await;
        }
        if is_very_short(events) {
            return Outcome::WatchTooShort { reached: reached.safe().clone() };
        }
        Outcome::WatchClosed { reached: reached.safe().clone() }
    }
}

/// Waits for the upstream, and meanwhile passes requests for checkpoints on to the informer, each with the proof of the
/// history: everything that the source has returned is in the queue before it.
async fn with_requests<T>(
    requests: &mut Requests,
    source: &impl ListerWatcher,
    fifo: &RealFifo,
    upstream: impl Future<Output = T>,
) -> T {
    let mut upstream = pin!(upstream);
    loop {
        tokio::select! {
            // Requests first: an upstream that always has more must not hold them back.
            biased;
            // Cancel-safe: `recv` loses nothing when the other arm wins.
            Some(reply) = requests.recv() => {
                if let Some(proof) = source.warm_start().and_then(WarmStart::proof) {
                    fifo.push(Delta::Checkpoint { proof, reply }).await;
                }
            }
            done = &mut upstream => return done,
        }
    }
}

#[cfg(test)]
mod tests;
