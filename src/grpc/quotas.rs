//! Quotas of each caller: an authenticated user, or a peer where nobody has authenticated the user.
//!
//! A call takes its parts before it begins to work, and a refusal names the quota. A caller at its quota delays nobody, and is
//! delayed by nobody: it retries. The quota of bytes is the [`Ledger`]'s, which ends the caller's streams, too. Only callers that
//! have something open, or whose rate of lists has not recovered, have an entry.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    call::Call,
    exceeded_limit::{ExceededLimit, Limited},
    status::ApiError,
};
use crate::{
    transport::{Exceeded, Ledger, Origin, Permit, Quota},
    turns::{FairSemaphore, QueueBounds},
};

/// Quotas of one caller; without a value there is none.
#[derive(Debug, Clone, Default)]
pub struct QuotaConfig {
    /// Open calls of Watch, Until, List, ByIndex and Changes, and watches of Subscribe streams; as many of these streams.
    pub streams: Option<usize>,
    /// Rate of the calls that list: List, ByIndex, Changes, ListIndexValues, and watches with initial events.
    pub lists: Option<ListRate>,
    /// Lists and watches that receive objects of a snapshot at a time.
    pub bulk_responses: Option<usize>,
    /// Bytes that wait for the caller to read them.
    pub bytes_held: Option<usize>,
}

/// Rate of calls.
#[derive(Debug, Clone, Copy)]
pub struct ListRate {
    /// Calls in a second, without a pause; not 0.
    pub per_second: u32,
    /// Calls at once, after a pause; not 0.
    pub burst: u32,
}

/// Quotas of all callers.
#[derive(Debug)]
pub(super) struct Quotas {
    streams: Option<Arc<Quota>>,
    /// Subscribe streams, of which the watches count as streams.
    subscriptions: Option<Arc<Quota>>,
    lists: Option<TokenBuckets>,
    bulk_responses: Option<Arc<Quota>>,
    /// Permits for states of the past, which all callers share.
    past_states: Arc<FairSemaphore>,
    ledger: Arc<Ledger>,
}

/// Permit under a quota; none without such a quota. Boxed, because every watch has one.
pub(super) type QuotaPermit = Option<Box<Permit>>;

/// Token bucket of each origin.
#[derive(Debug)]
struct TokenBuckets {
    rate: ListRate,
    state: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    /// Time at which the bucket of an origin is full again. A bucket that is full needs no entry.
    full_at: HashMap<Origin, Instant>,
    /// Number of entries at which those of full buckets are removed.
    sweep_at: usize,
}

/// Maximum number of states of the past at a time, and of calls that wait for one.
pub(super) const MAX_PAST_STATES: usize = 16;
const MAX_WAITING: usize = 1024;
/// Least number of entries at which those of full buckets are removed.
const MIN_SWEEP: usize = 1024;

// === impl Quotas ===

impl Quotas {
    /// Creates the quotas; that of the bytes is the ledger's. One caller may have `peer_share` percent of the states of the past.
    pub(super) fn new(config: &QuotaConfig, ledger: Arc<Ledger>, peer_share: u32) -> Self {
        let QuotaConfig { streams, lists, bulk_responses, bytes_held: _ } = *config;
        let waiting = QueueBounds { calls: MAX_WAITING, bytes: usize::MAX };
        Self {
            streams: streams.map(Quota::of_each),
            subscriptions: streams.map(Quota::of_each),
            lists: lists.map(|rate| TokenBuckets { rate, state: Mutex::default() }),
            bulk_responses: bulk_responses.map(Quota::of_each),
            past_states: FairSemaphore::new(MAX_PAST_STATES, waiting, peer_share),
            ledger,
        }
    }

    /// Returns the permits for states of the past.
    pub(super) fn past_states(&self) -> &Arc<FairSemaphore> {
        &self.past_states
    }

    /// Admits a call, unless too many bytes wait for its caller. Those of its stream count from now on.
    pub(super) fn call(&self, call: &Call) -> Result<(), ApiError> {
        let Some(origin) = call.caller().origin().filter(|_| self.ledger.has_limit_for_each()) else { return Ok(()) };
        if let Some(limit) = self.ledger.exceeded_by(origin) {
            return Err(ExceededLimit::of_quota(Limited::BytesHeld, limit).into());
        }
        if let Some(stream) = &call.stream {
            stream.belongs_to(origin);
        }
        Ok(())
    }

    /// Admits a stream, until the permit is dropped.
    pub(super) fn stream(&self, call: &Call) -> Result<QuotaPermit, ApiError> {
        self.admit(self.streams.as_ref(), call)
    }

    /// Admits a Subscribe stream, until the permit is dropped.
    pub(super) fn subscription(&self, call: &Call) -> Result<QuotaPermit, ApiError> {
        self.admit(self.subscriptions.as_ref(), call)
    }

    fn admit(&self, streams: Option<&Arc<Quota>>, call: &Call) -> Result<QuotaPermit, ApiError> {
        self.call(call)?;
        permit(streams, call).map_err(|exceeded| ExceededLimit::of_quota(Limited::Streams, exceeded.limit()).into())
    }

    /// Admits the objects of a snapshot in a response, until the permit is dropped.
    pub(super) fn bulk_response(&self, call: &Call) -> Result<QuotaPermit, ApiError> {
        let permit = permit(self.bulk_responses.as_ref(), call);
        let permit = permit.map_err(|exceeded| ExceededLimit::of_quota(Limited::BulkResponses, exceeded.limit()))?;
        self.list(call)?;
        Ok(permit)
    }

    /// Admits a call that lists.
    pub(super) fn list(&self, call: &Call) -> Result<(), ApiError> {
        let (Some(lists), Some(origin)) = (&self.lists, call.caller().origin()) else { return Ok(()) };
        let per_second = lists.rate.per_second;
        let quota = ExceededLimit::of_quota(Limited::Lists, per_second as usize);
        lists.take(origin).map_err(|delay| quota.retried_after(delay).into())
    }
}

fn permit(quota: Option<&Arc<Quota>>, call: &Call) -> Result<QuotaPermit, Exceeded> {
    quota.map(|quota| quota.take(call.caller().origin()).map(Box::new)).transpose()
}

// === impl TokenBuckets ===

impl TokenBuckets {
    /// Takes a token of an origin.
    ///
    /// # Errors
    ///
    /// The time until there is a token.
    fn take(&self, origin: Origin) -> Result<(), Duration> {
        let token = Duration::from_secs(1) / self.rate.per_second;
        let (now, mut buckets) = (Instant::now(), self.state.lock());
        if buckets.full_at.len() >= buckets.sweep_at {
            buckets.full_at.retain(|_, full_at| *full_at > now);
            buckets.sweep_at = MIN_SWEEP.max(2 * buckets.full_at.len());
        }
        let full_at = buckets.full_at.get(&origin).map_or(now, |full_at| now.max(*full_at));
        // One token of the bucket is there if no more than the others are missing.
        let missing = (full_at - now).saturating_sub(token * (self.rate.burst - 1));
        if !missing.is_zero() {
            return Err(missing);
        }
        buckets.full_at.insert(origin, full_at + token);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(user: u64) -> Origin {
        Origin::Identity(user)
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_has_a_burst_and_is_refilled_at_the_rate() {
        let buckets = TokenBuckets { rate: ListRate { per_second: 4, burst: 3 }, state: Mutex::default() };
        for _ in 0..3 {
            buckets.take(origin(1)).unwrap();
        }
        assert_eq!(buckets.take(origin(1)), Err(Duration::from_millis(250)));
        buckets.take(origin(2)).unwrap();
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(buckets.take(origin(1)), Err(Duration::from_millis(150)), "a refusal costs nothing");
        tokio::time::advance(Duration::from_millis(150)).await;
        buckets.take(origin(1)).unwrap();
        buckets.take(origin(1)).unwrap_err();
        tokio::time::advance(Duration::from_secs(60)).await;
        for _ in 0..3 {
            buckets.take(origin(1)).unwrap();
        }
        buckets.take(origin(1)).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn an_origin_whose_bucket_is_full_is_forgotten() {
        let buckets = TokenBuckets { rate: ListRate { per_second: 1, burst: 1 }, state: Mutex::default() };
        for user in 0..100_000 {
            buckets.take(origin(user)).unwrap();
            if user % 1000 == 0 {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
        }
        assert!(buckets.state.lock().full_at.len() <= 4 * MIN_SWEEP);
    }
}
