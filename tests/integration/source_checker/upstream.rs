//! The interface between the checker and a scripted upstream.

use std::{collections::BTreeMap, fmt::Debug, path::Path, time::Duration};

use proptest::strategy::BoxedStrategy;

use super::{proxy::Proxy, served::Served};

/// A namespace and a name.
pub(crate) type Key = (String, String);

/// An object that the upstream has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fact {
    /// `None` where the upstream has no uid of its own.
    pub(crate) uid: Option<String>,
    /// `None` where the server makes the versions.
    pub(crate) version: Option<String>,
    pub(crate) body: Vec<u8>,
}

/// Every object that the upstream has at one moment.
pub(crate) type Truth = BTreeMap<Key, Fact>;

/// Times and numbers that a source must keep to, in the time of the history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// A write arrives within this while nothing is wrong.
    pub(crate) prompt: Duration,
    /// While a fault stands, the state is equal to the truth, or STALE, after this.
    pub(crate) detects: Duration,
    /// After all faults have healed, the state is SYNCED and equal to the truth after this.
    pub(crate) recovers: Duration,
    /// Lists that a source may begin for each start, and for each disturbance of its upstream.
    pub(crate) lists: u64,
    /// Watches that are open at one time.
    pub(crate) watches: u64,
    /// The shortest time between two watches while nothing is wrong.
    pub(crate) watch: Duration,
}

/// The configuration of one history.
pub(crate) trait UpstreamSetup: Clone + Debug + 'static {
    fn any() -> BoxedStrategy<Self>;

    /// The names under which it is counted, if it has any.
    fn kinds(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// A write, an event or a fault.
pub(crate) trait UpstreamStep: Clone + Debug + 'static {
    /// Changes of objects.
    fn any_write() -> BoxedStrategy<Self>;
    /// Faults that stand until they are healed.
    fn any_fault() -> BoxedStrategy<Self>;
    /// What happens at one moment: a restart, a restore, a compaction, an answer that fails once.
    fn any_event() -> BoxedStrategy<Self>;
    /// The name under which it is counted.
    fn kind(&self) -> &'static str;
    /// It neither interrupts the source nor may cause a list.
    fn is_write(&self) -> bool;
}

/// An upstream that a script drives, and the source that follows it.
///
/// Everything but `serve` is computed from the script alone.
pub(crate) trait Upstream: Sized + 'static {
    type Setup: UpstreamSetup;
    type Step: UpstreamStep;

    /// Kinds of steps and configurations that are not drawn yet: the kind, and the finding that it meets.
    const NOT_YET: &'static [(&'static str, &'static str)];
    /// The kinds that a run of some hundred histories must have drawn.
    const REQUIRED: &'static [&'static str];

    async fn start(setup: &Self::Setup) -> Self;
    async fn step(&mut self, step: &Self::Step);
    /// Ends every fault that stands.
    async fn heal(&mut self);
    /// A write that is surely a change; the number is another one each time.
    async fn probe(&mut self, number: u32);
    /// The ways between the servers.
    fn proxies(&self) -> Vec<&Proxy>;

    /// Starts the source and what serves it, with the state of the last run if there is one in the directory.
    async fn serve(&self, state_directory: &Path) -> Served;

    /// States that may be served while SYNCED, the present one first. There are others only where the upstream itself gives
    /// no sign that it is behind.
    fn truths(&self) -> Vec<Truth>;
    /// Times that the upstream's history was rewritten.
    fn rewrites(&self) -> u64;
    /// Events so far that interrupted the source, or gave cause for a list, later than they were drawn. Those of the proxies are
    /// counted by themselves.
    fn late_disturbances(&self) -> u64 {
        0
    }
    /// A fault stands that is none of the proxies.
    fn has_fault(&self) -> bool {
        false
    }
    /// Nothing whatsoever reaches the source.
    fn is_unreachable(&self) -> bool {
        false
    }
    fn bounds(&self) -> Bounds;
    /// Lists and watches that the upstream was asked for; `None` where it cannot tell.
    fn requests(&self) -> Option<(u64, u64)>;
    /// A request that the source must not make.
    fn misdeed(&self) -> Option<String> {
        None
    }
    /// The object was deleted at some time, so that a client may be told so.
    fn was_deleted(&self, _key: &Key) -> bool {
        true
    }
    /// More to count besides the proxies: faults as they took effect.
    fn tally(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }
}
