//! The interface between the checker and a scripted upstream.

use std::{collections::BTreeMap, fmt::Debug, path::Path, time::Duration};

use proptest::strategy::BoxedStrategy;

use super::served::Served;

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
    /// The shortest time between two watches while nothing is wrong.
    pub(crate) watch: Duration,
}

/// An upstream that a script drives, and the source that follows it.
///
/// Everything but `serve` is computed from the script alone.
pub(crate) trait Upstream: Sized + 'static {
    /// The configuration of one history.
    type Setup: Clone + Debug;
    /// A write, an event or a fault.
    type Step: Clone + Debug;

    /// The clock is paused, and jumps to the next timer when nothing is left to do. Otherwise it is the real one.
    const IS_PAUSED: bool;
    /// Histories at one time; 0 for one on each processor.
    const PARALLEL: usize = 0;
    /// Kinds of steps and configurations that are not drawn yet: the kind, and the finding that it meets.
    const NOT_YET: &'static [(&'static str, &'static str)];
    /// The kinds that a run of some hundred histories must have drawn.
    const REQUIRED: &'static [&'static str];

    fn any_setup() -> BoxedStrategy<Self::Setup>;
    /// Changes of objects.
    fn any_write() -> BoxedStrategy<Self::Step>;
    /// Faults that stand until they are healed.
    fn any_fault() -> BoxedStrategy<Self::Step>;
    /// What happens at one moment: a restart, a restore, a compaction, an answer that fails once.
    fn any_event() -> BoxedStrategy<Self::Step>;
    /// The name under which a step is counted.
    fn kind(step: &Self::Step) -> &'static str;

    /// The names under which a configuration is counted, if it has any.
    fn setup_kinds(_setup: &Self::Setup) -> Vec<&'static str> {
        Vec::new()
    }

    /// Steps before the server starts.
    fn first_steps(setup: &Self::Setup) -> Vec<Self::Step>;

    async fn start(setup: &Self::Setup) -> Self;
    async fn step(&mut self, step: &Self::Step);
    /// Ends every fault that stands.
    async fn heal(&mut self);
    /// A write that is surely a change.
    async fn probe(&mut self);

    /// Starts the source and what serves it, with the state of the last run if there is one in the directory.
    async fn serve(&self, state_directory: &Path) -> Served;

    /// States that may be served while SYNCED, the present one first. There are others only where the upstream itself gives
    /// no sign that it is behind.
    fn truths(&self) -> Vec<Truth>;
    /// A body as it is compared.
    fn normal(body: &[u8]) -> Vec<u8> {
        body.to_vec()
    }
    /// Times that the upstream's history was rewritten.
    fn rewrites(&self) -> u64;
    /// Events and faults so far that interrupt the source or may cause a list, when drawn and when they take effect.
    fn disturbances(&self) -> u64;
    /// A fault stands.
    fn is_faulty(&self) -> bool;
    /// Nothing whatsoever reaches the source.
    fn is_unreachable(&self) -> bool {
        false
    }
    fn bounds(&self) -> Bounds;
    /// Lists and watches that the upstream was asked for; `None` where it cannot tell.
    fn requests(&self) -> Option<(u64, u64)>;
    /// The object was deleted at some time, so that a client may be told so.
    fn was_deleted(&self, _key: &Key) -> bool {
        true
    }
    /// More to count: faults as they took effect.
    fn tally(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }
}
