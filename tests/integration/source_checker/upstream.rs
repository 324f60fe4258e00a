//! Interface between the checker and a scripted upstream.

use std::{collections::BTreeMap, fmt::Debug, path::Path, time::Duration};

use proptest::strategy::BoxedStrategy;

use super::{proxy::Proxy, served::Served};

/// Namespace and name.
pub(crate) type Key = (String, String);

/// Object that the upstream has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fact {
    /// `None` if the upstream has no uids.
    pub(crate) uid: Option<String>,
    /// `None` if the server generates the versions.
    pub(crate) version: Option<String>,
    pub(crate) body: Vec<u8>,
}

/// All objects of the upstream at one moment.
pub(crate) type Truth = BTreeMap<Key, Fact>;

/// Times and numbers that a source must keep to, in the time of the history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Time until a write arrives, without faults.
    pub(crate) prompt: Duration,
    /// Time after which the state is equal to the truth, or STALE, during a fault.
    pub(crate) detects: Duration,
    /// Time after which the state is SYNCED and equal to the truth, once all faults have healed.
    pub(crate) recovers: Duration,
    /// Number of lists that a source may begin for each start, and for each disturbance of its upstream.
    pub(crate) lists: u64,
    /// Number of watches that are open at one time.
    pub(crate) watches: u64,
    /// Shortest time between two watches, without faults.
    pub(crate) watch: Duration,
}

/// Configuration of one history.
pub(crate) trait UpstreamSetup: Clone + Debug + 'static {
    fn any() -> BoxedStrategy<Self>;

    /// Returns the names under which it is counted.
    fn kinds(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// Write, event or fault.
pub(crate) trait UpstreamStep: Clone + Debug + 'static {
    /// Draws changes of objects.
    fn any_write() -> BoxedStrategy<Self>;
    /// Draws faults that last until they are healed.
    fn any_fault() -> BoxedStrategy<Self>;
    /// Draws events of one moment: a restart, a restore, a compaction, an answer that fails once.
    fn any_event() -> BoxedStrategy<Self>;
    /// Returns the name under which it is counted.
    fn kind(&self) -> &'static str;
    /// Returns true if it neither interrupts the source nor may cause a list.
    fn is_write(&self) -> bool;
}

/// Upstream that a script drives, and the source that follows it.
///
/// All methods but `serve` compute their results from the script alone.
pub(crate) trait Upstream: Sized + 'static {
    type Setup: UpstreamSetup;
    type Step: UpstreamStep;

    /// Kinds of steps and configurations that are not drawn yet, each with the finding that it leads to.
    const NOT_YET: &'static [(&'static str, &'static str)];
    /// Kinds that must occur in a run of some hundred histories.
    const REQUIRED: &'static [&'static str];

    async fn start(setup: &Self::Setup) -> Self;
    async fn step(&mut self, step: &Self::Step);
    /// Ends all active faults.
    async fn heal(&mut self);
    /// Makes a write that is always a change; the number differs each time.
    async fn probe(&mut self, number: u32);
    /// Returns the proxies between the servers.
    fn proxies(&self) -> Vec<&Proxy>;

    /// Starts the source and the server, with the snapshot of the previous run if the directory has one.
    async fn serve(&self, state_directory: &Path) -> Served;

    /// Returns the states that may be served while SYNCED, the current one first. Others exist only if the upstream itself gives
    /// no sign that it lags.
    fn truths(&self) -> Vec<Truth>;
    /// Returns the number of times that the upstream's history was rewritten.
    fn rewrites(&self) -> u64;
    /// Returns the number of events so far that interrupted the source, or caused a list, later than they were drawn, without
    /// those of the proxies.
    fn late_disturbances(&self) -> u64 {
        0
    }
    /// Returns true if a fault is active, not counting those of the proxies.
    fn has_fault(&self) -> bool {
        false
    }
    /// Returns true if no bytes reach the source.
    fn is_unreachable(&self) -> bool {
        false
    }
    fn bounds(&self) -> Bounds;
    /// Returns the number of lists and watches requested of the upstream; `None` if it cannot count them.
    fn requests(&self) -> Option<(u64, u64)>;
    /// Returns a request that the source must not make.
    fn violation(&self) -> Option<String> {
        None
    }
    /// Returns true if the object was deleted at some time, so that a client may receive DELETED.
    fn was_deleted(&self, _key: &Key) -> bool {
        true
    }
    /// Returns further counts besides the proxies': faults that took effect.
    fn tally(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }
}
