//! Verification of a resource while it is served: at intervals its upstream is listed by a second instance of its source, and
//! compared with the cache, object by object.
//!
//! An interval has one list. Objects that differ are compared again with the cache alone, after a time in which it would have
//! received them; only what has not changed since is confirmed by a second list, and is a difference then: the problem
//! `VERIFY_DIFFERS`, until a verification finds none. What changes all the time is left to the next interval.
//!
//! The cost is bounded: one verification in the server at a time, for a limited time, in a thread of the lowest priority. It
//! holds the list while it compares, and otherwise digests of the objects that differ, at most 10,000. Readers and the writer of the
//! resource never wait for it: it reads a snapshot of the cache.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span};

use super::{
    comparison::{Comparison, State},
    error::named,
    upstream::Upstream,
    writer::RuntimeThread,
};
use crate::{
    cache::{InformerHandle, List, Problem, ProblemReason, Snapshot, SyncState},
    config::ResourceConfig,
    grpc::WireFrame,
    source::kube::KubeClients,
    telemetry::VerifyStats,
};

/// Thread of all verifications, and what they share.
pub(super) struct VerifyThread {
    thread: RuntimeThread,
    turn: Arc<Semaphore>,
    /// Connections of the verifications only: those of the resources must not depend on a thread of low priority.
    kube_clients: KubeClients,
}

/// Verification of one resource.
struct Verifier<L> {
    resource: String,
    interval: Duration,
    upstream: L,
    informer: InformerHandle<WireFrame>,
    stats: Arc<VerifyStats>,
    turn: Arc<Semaphore>,
}

/// Upstream of a resource, without its watch.
pub(super) trait Lister: Send + Sync + 'static {
    /// Returns true if the upstream assigns the versions in a list of it.
    fn assigns_versions(&self, list: &List) -> bool;

    /// Returns the objects that the upstream has now.
    ///
    /// # Errors
    ///
    /// The failure and its cause, as one line.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the list; nothing is lost.
    fn list(&self) -> impl Future<Output = Result<List, String>> + Send;
}

/// Outcome of a verification.
#[derive(Debug)]
enum Outcome {
    /// The resource was not SYNCED: nothing to compare.
    NotSynced,
    /// Comparison of this number of objects.
    Compared { objects: usize, differences: Differences },
}

/// Objects that differ from those of the upstream.
#[derive(Debug, Default)]
struct Differences {
    /// Number of those that are held.
    count: usize,
    /// Number of those that are not.
    omitted: usize,
    /// First ones, with their differences.
    shown: Vec<String>,
}

/// Largest part of the interval by which one is longer: replicas list at different times.
const JITTER: f64 = 0.1;
/// Time for one verification.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Bounds of the time in which the cache receives what the list has. It is the time after which a resource without contact is
/// STALE, so that a connection that has broken unnoticed is no difference.
const SETTLE: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(120)];
/// Bound of the objects that differ and are held.
const MAX_HELD: usize = 10_000;
/// Bound of the objects in a message.
const MAX_SHOWN: usize = 5;
/// Priority of the thread: the lowest of `nice`.
#[cfg(target_os = "linux")]
const PRIORITY: i32 = 19;

// === impl VerifyThread ===

impl VerifyThread {
    pub(super) fn start() -> io::Result<Self> {
        let thread = RuntimeThread::start("verify", lower_priority)?;
        Ok(Self { thread, turn: Arc::new(Semaphore::new(1)), kube_clients: KubeClients::default() })
    }

    /// Verifies a resource at intervals until `stop`; returns the counters.
    pub(super) fn spawn(
        &self,
        tasks: &mut JoinSet<String>,
        interval: Duration,
        resource: &ResourceConfig,
        informer: InformerHandle<WireFrame>,
        stop: CancellationToken,
    ) -> Arc<VerifyStats> {
        let stats = Arc::new(VerifyStats::default());
        let verifier = Verifier {
            resource: resource.name.clone(),
            interval,
            upstream: Upstream::with_clients(resource, self.kube_clients.clone()),
            informer,
            stats: Arc::clone(&stats),
            turn: Arc::clone(&self.turn),
        };
        let verifying = async move {
            // In its lines, those of the second instance are distinct from those of the source.
            let span = info_span!("verification", resource = verifier.resource);
            stop.run_until_cancelled(Box::pin(verifier.run().instrument(span))).await;
        };
        self.thread.spawn(tasks, named(format!("verification of {}", resource.name), verifying));
        stats
    }
}

/// Gives the threads of the runtime, which call this first, the lowest priority. On Linux only, where it is one of each thread.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, PRIORITY) {
        tracing::debug!(%error, "priority of the verification not lowered");
    }
}

// === impl Verifier ===

impl<L: Lister> Verifier<L> {
    async fn run(self) {
        // A random part of the first interval: replicas that start together list at different times.
        sleep(self.interval.mul_f64(fastrand::f64())).await;
        loop {
            self.take_turn().await;
            sleep(self.interval.mul_f64(1.0 + JITTER * fastrand::f64())).await;
        }
    }

    /// Waits until no other resource is verified, and verifies this one.
    async fn take_turn(&self) {
        // The semaphore is never closed.
        let Ok(_turn) = self.turn.acquire().await else { return };
        let started = Instant::now();
        let verified = timeout(TIME_LIMIT, self.verify()).await;
        let outcome = verified.unwrap_or_else(|_| Err(format!("not finished within {TIME_LIMIT:?}")));
        let Self { resource, stats, .. } = self;
        match outcome {
            Err(error) => {
                add(&stats.failed);
                tracing::warn!(resource, error, "verification failed");
            }
            Ok(Outcome::NotSynced) => {
                add(&stats.skipped);
                tracing::debug!(resource, "verification skipped: not synced");
            }
            Ok(Outcome::Compared { objects, differences }) => {
                add(if differences.count > 0 { &stats.differs } else { &stats.equal });
                stats.differences.store((differences.count + differences.omitted) as u64, Ordering::Relaxed);
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                stats.completed_at_ms.store(now.as_millis() as u64, Ordering::Relaxed);
                tracing::debug!(resource, objects, took = ?started.elapsed(), "verified");
                self.report(&differences);
            }
        }
    }

    /// Reports the differences; none end the problem.
    fn report(&self, differences: &Differences) {
        let (Self { resource, informer, .. }, Differences { count, omitted, shown }) = (self, differences);
        if *count == 0 {
            if informer.health().clear_problem(ProblemReason::VerifyDiffers, "").is_some() {
                tracing::info!(resource, "verified: no object differs from the upstream any more");
            }
            return;
        }
        let least = if *omitted > 0 { "at least " } else { "" };
        let more = if *count > shown.len() { ", …" } else { "" };
        let objects = format!("{}{more}", shown.join(", "));
        tracing::warn!(resource, count, omitted, objects, "objects differ from the upstream");
        let message = format!(
            "{least}{count} objects differ from a list of the upstream: {objects}; `informerd verify {resource} --config FILE` \
             lists them, and a restart without the snapshot file of state_dir replaces them; report it"
        );
        informer.health().set_problem(Problem::new(ProblemReason::VerifyDiffers, "", message));
    }

    async fn verify(&self) -> Result<Outcome, String> {
        let settle = self.informer.health().max_silence().clamp(SETTLE[0], SETTLE[1]);
        let mut comparison = Comparison::new(settle, MAX_HELD);
        let Some(objects) = self.compare(&mut comparison).await? else { return Ok(Outcome::NotSynced) };
        let mut differences = Differences::default();
        if !comparison.is_equal() {
            sleep(settle).await;
            let Some(snapshot) = self.snapshot() else { return Ok(Outcome::NotSynced) };
            comparison.leave_out_changed(|key| snapshot.get(key).map(|object| State::of(object)));
        }
        if !comparison.is_equal() {
            let Some(_) = self.compare(&mut comparison).await? else { return Ok(Outcome::NotSynced) };
            let found = comparison.differences();
            let shown = found.iter().take(MAX_SHOWN).map(|(key, difference)| format!("{key} ({})", difference.what));
            differences = Differences { count: found.len(), omitted: comparison.omitted(), shown: shown.collect() };
            let changing = comparison.open();
            if changing > 0 {
                tracing::debug!(
                    resource = self.resource,
                    changing,
                    "objects that change left to the next verification"
                );
            }
        }
        Ok(Outcome::Compared { objects, differences })
    }

    /// Lists the upstream, and compares the cache with it. Returns the number of objects; none if the resource is not SYNCED.
    async fn compare(&self, comparison: &mut Comparison) -> Result<Option<usize>, String> {
        if self.snapshot().is_none() {
            return Ok(None);
        }
        let listed = self.upstream.list().await?;
        let compares_versions = self.upstream.assigns_versions(&listed);
        // Of two objects with the same key the last wins.
        let listed: BTreeMap<_, _> = listed.objects.iter().map(|object| (object.key(), object)).collect();
        let Some(snapshot) = self.snapshot() else { return Ok(None) };
        let objects = listed.len();
        let listed = listed.into_iter().map(|(key, object)| (key, State::of(object)));
        let served = snapshot.objects(None, None).map(|object| (object.key(), State::of(object)));
        comparison.compare(compares_versions, listed, served, Instant::now());
        Ok(Some(objects))
    }

    /// Returns the cache; none if it is not SYNCED.
    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.informer.snapshot().filter(|_| self.informer.state() == SyncState::Synced)
    }
}

impl Lister for Upstream {
    fn assigns_versions(&self, list: &List) -> bool {
        self.assigns_versions(list)
    }

    async fn list(&self) -> Result<List, String> {
        self.list().await.map_err(|error| error.to_string())
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
