//! Decisions of another authority about callers, each requested once for all calls that need it, and used for a while. Without an
//! answer there is no decision. Reviews have [turns](crate::turns) by user, and one whose decision has only expired comes first.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use quick_cache::{Weighter, unsync::Cache};
use tokio::time::{Instant, timeout};

use super::{identity::Identity, reviewer::ReviewError};
use crate::turns::{Class, FairSemaphore, Full, QueueBounds};

/// Decisions `D` about the accesses `A` of callers.
pub(super) struct Decisions<A, D> {
    pub(super) known: Mutex<Cache<Key<A>, Entry<D>, ByteWeighter>>,
    ttl: Duration,
    turns: Arc<FairSemaphore>,
    metrics: ReviewMetrics,
}

/// Reviews of accesses, by result; clones share the counters.
#[derive(Debug, Clone, Default)]
pub(super) struct ReviewMetrics(Family<[(&'static str, &'static str); 1], Counter>);

/// Bytes of a value besides those of its type.
pub(super) trait HeapBytes {
    /// Returns the approximate number.
    fn heap_bytes(&self) -> usize;
}

/// Decision about an access.
pub(super) trait Decision: Clone + HeapBytes + Send + Sync + 'static {
    /// Returns true if it gives access to anything.
    fn is_granted(&self) -> bool;
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key<A> {
    caller: Caller,
    access: A,
}

/// Identity without the time at which it expires, which changes with each token.
#[derive(Clone)]
struct Caller(Identity);

#[derive(Clone)]
pub(super) enum Entry<D> {
    /// Review that some callers wait for, and that ends with the last of them.
    Running {
        review: WeakShared<Review<D>>,
        /// True if the caller was admitted before.
        is_known: bool,
    },
    Known {
        decision: D,
        until: Instant,
    },
    /// The last review failed, and the caller was admitted before it.
    Lapsed,
}

/// Review of one access.
pub(super) type Review<D> = BoxFuture<'static, Result<D, ReviewError>>;

#[derive(Clone)]
pub(super) struct ByteWeighter;

/// Time limit of one review.
pub(super) const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the decisions kept.
pub(super) const MAX_BYTES: u64 = 16 << 20;
/// Most reviews at a time.
const MAX_IN_FLIGHT: usize = 64;
/// Bounds of the reviews that wait.
const QUEUE: QueueBounds = QueueBounds { calls: 8192, bytes: 16 << 20 };
/// Bytes of a decision without its texts.
const ENTRY_BYTES: usize = 256;

// === impl Decisions ===

impl<A, D> Decisions<A, D>
where
    A: Clone + Eq + Hash + HeapBytes + Send + 'static,
    D: Decision,
{
    /// Creates an empty set of decisions, each of which is used for `ttl`. One user has `peer_share` percent of the reviews at most.
    pub(super) fn new(ttl: Duration, peer_share: u32, metrics: ReviewMetrics) -> Arc<Self> {
        Arc::new(Self {
            known: Mutex::new(Cache::with_weighter(MAX_BYTES as usize / ENTRY_BYTES, MAX_BYTES, ByteWeighter)),
            ttl,
            turns: FairSemaphore::new(MAX_IN_FLIGHT, QUEUE, peer_share),
            metrics,
        })
    }

    /// Returns a known decision, or the one of a review, which all who need it at the time wait for. A caller of an open stream is
    /// known, and so is one who was admitted before: not one whom the authority has denied the same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the review unless others wait for it.
    pub(super) async fn get(
        self: &Arc<Self>,
        caller: &Identity,
        access: A,
        is_stream: bool,
        request: impl FnOnce(A) -> Review<D>,
    ) -> Result<D, ReviewError> {
        let key = Key { caller: Caller(caller.clone()), access };
        let review = {
            let mut known = self.known.lock();
            let (running, was_admitted) = match known.get(&key) {
                Some(Entry::Known { decision, until }) if Instant::now() < *until => return Ok(decision.clone()),
                Some(Entry::Known { decision, .. }) => (None, decision.is_granted()),
                Some(Entry::Lapsed) => (None, true),
                Some(Entry::Running { review, is_known }) => (review.upgrade(), *is_known),
                None => (None, false),
            };
            let is_known = is_stream || was_admitted;
            running.unwrap_or_else(|| {
                let review = self.review(key.clone(), request(key.access.clone()), is_known);
                if let Some(review) = review.downgrade() {
                    known.insert(key, Entry::Running { review, is_known });
                }
                review
            })
        };
        review.await
    }

    fn review(self: &Arc<Self>, key: Key<A>, request: Review<D>, is_known: bool) -> Shared<Review<D>> {
        let this = Arc::clone(self);
        let (party, class) = (key.caller.0.party(), if is_known { Class::Known } else { Class::New });
        let bytes = usize::try_from(ByteWeighter.weight(&key, &Entry::<D>::Lapsed)).unwrap_or(usize::MAX);
        let review = async move {
            let limited = timeout(REVIEW_TIMEOUT, async {
                let _permit = this.turns.acquire(party, class, bytes).await?;
                Ok::<_, Full>(request.await)
            });
            let (result, decision) = match limited.await {
                Ok(Ok(Ok(decision))) => ("decided", Ok(decision)),
                Ok(Ok(Err(error))) => ("failed", Err(error)),
                Ok(Err(full)) => ("rejected", Err(ReviewError(full.to_string()))),
                Err(_) => {
                    let problem = format!("review of an access not answered within {REVIEW_TIMEOUT:?}");
                    ("failed", Err(ReviewError(problem)))
                }
            };
            this.metrics.0.get_or_create(&[("result", result)]).inc();
            let mut known = this.known.lock();
            match &decision {
                Ok(decision) => {
                    let until = Instant::now() + this.ttl;
                    known.insert(key, Entry::Known { decision: decision.clone(), until });
                }
                // The next caller tries again.
                Err(_) if is_known => known.insert(key, Entry::Lapsed),
                Err(_) => drop(known.remove(&key)),
            }
            decision
        };
        review.boxed().shared()
    }
}

// === impl ReviewMetrics ===

impl ReviewMetrics {
    /// Registers the metrics.
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Reviews of accesses by another authority, by result";
        registry.register("informerd_access_reviews", help, self.0.clone());
    }
}

// === impl Caller ===

impl Caller {
    fn parts(&self) -> (&str, &[String], &str, &BTreeMap<String, Vec<String>>) {
        let details = self.0.details();
        (&details.user, &details.groups, &details.uid, &details.extra)
    }
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

// === impl ByteWeighter ===

impl<A: HeapBytes, D: HeapBytes> Weighter<Key<A>, Entry<D>> for ByteWeighter {
    fn weight(&self, key: &Key<A>, entry: &Entry<D>) -> u64 {
        let (user, groups, uid, extra) = key.caller.parts();
        let groups: usize = groups.iter().map(String::len).sum();
        let extra: usize =
            extra.iter().map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>()).sum();
        let decision = match entry {
            Entry::Known { decision, .. } => decision.heap_bytes(),
            Entry::Running { .. } | Entry::Lapsed => 0,
        };
        (ENTRY_BYTES + user.len() + groups + uid.len() + extra + key.access.heap_bytes() + decision) as u64
    }
}

impl Decision for bool {
    fn is_granted(&self) -> bool {
        *self
    }
}

impl HeapBytes for bool {
    fn heap_bytes(&self) -> usize {
        0
    }
}
