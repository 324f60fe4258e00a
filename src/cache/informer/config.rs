//! Parameters and counters of one informer.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use crate::{
    cache::{CreationTime, ProgressDemand, Provenance, RewriteEvidence},
    model::{Cause, Indexers},
    watch::{BroadcasterConfig, DurationHistogram, Retention},
};

/// Parameters of an informer. The defaults are the bounds of a server, without indexes, for a source with the defaults of a
/// [`ListerWatcher`](crate::cache::ListerWatcher).
#[derive(Debug, Clone, Default)]
pub struct InformerConfig {
    /// Indexes to keep.
    pub indexers: Arc<Indexers>,
    /// Bounds of distribution.
    pub broadcaster: BroadcasterConfig,
    /// Bounds of the history; sizes in bytes of bodies and records.
    pub history: Retention,
    /// Evidence of the source: [`ListerWatcher::rewrite_evidence`](crate::cache::ListerWatcher::rewrite_evidence).
    pub rewrite_evidence: RewriteEvidence,
    /// Cause of deletions whose events have none. A source whose events all have one sets that of an object that it has found
    /// replaced.
    pub deletion: Cause,
    /// Demand that the source reads: [`ListerWatcher::demand`](crate::cache::ListerWatcher::demand).
    pub demand: ProgressDemand,
    /// Servers before this one: [`ListerWatcher::provenance`](crate::cache::ListerWatcher::provenance).
    pub provenance: Provenance,
    /// Creation times of the source: [`ListerWatcher::creation_time`](crate::cache::ListerWatcher::creation_time).
    pub creation_time: Option<CreationTime>,
    /// Least time between two publish cycles, unless a whole cycle's worth of events is queued. The first event after a pause
    /// is applied at once, the next ones are gathered: a cycle costs much more than an event. The resolution of timers may add
    /// a millisecond.
    pub batch_window: Duration,
}

/// Counters and gauges of one informer, read at scrape.
#[derive(Debug, Default)]
pub struct InformerStats {
    /// Changes applied: objects added, modified and deleted.
    pub changes: AtomicU64,
    /// Events of the upstream that changed nothing.
    pub unchanged: AtomicU64,
    /// Relists applied, the first list included.
    pub replaces: AtomicU64,
    /// Changes of objects that still exist upstream and can no longer be served.
    pub not_served: AtomicU64,
    /// Times that the upstream's history was rewritten.
    pub history_rewrites: AtomicU64,
    /// Events that the history holds now.
    pub history_events: AtomicU64,
    /// Bytes that the history holds now: bodies that only the history needs, and the records.
    pub history_bytes: AtomicU64,
    /// Events sent to watches that resumed, until they had caught up.
    pub replayed: AtomicU64,
    /// States of earlier versions computed from the history.
    pub past_states: AtomicU64,
    /// Time from the receipt of a change from the upstream until the cache has it: of one change of each publish cycle.
    pub applied: DurationHistogram,
    /// Time from the creation of an object upstream until its addition was distributed: of one addition of each publish cycle, if
    /// the source has [creation times](crate::cache::ListerWatcher::creation_time).
    pub propagation: DurationHistogram,
    /// Failed evaluations of the expressions of requests, which share this counter.
    pub expression_errors: Arc<AtomicU64>,
}
