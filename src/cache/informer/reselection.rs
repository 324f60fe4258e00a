//! Change of the namespaces of an open watch: the objects that leave its selection, and those that enter it.
//!
//! A watch at a position has the objects that its old selection had there. Before it continues with the new selection, it must have
//! those of the new one at that position. The state at the position is a later snapshot without the changes in between, which are
//! in the history:
//!
//! ```text
//!   position ──▶ [changes] ──▶ [changes] ──▶ snapshot
//!       ▲      the first change of an object      │
//!       └───── has its state at the position ◀────┘
//! ```

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use super::InformerHandle;
use crate::{
    cache::{JoinError, Scan, Snapshot},
    model::{Cause, EventType, HistoryPosition, Namespaces, Object, ObjectKey, ResourceVersion, Selection, Transition},
    watch::{Deliveries, Delivery, Frame, Replay},
};

/// Objects that leave the selection of a watch or enter it at one version, because its namespaces have changed.
#[derive(Debug, Clone)]
pub struct Reselection {
    /// State after the version; [`Reselection::earlier`] comes first.
    pub snapshot: Snapshot,
    /// Objects of the snapshot that may leave or enter.
    pub scan: Scan,
    /// States at the version of objects that have changed up to the snapshot, in any order.
    pub earlier: Vec<Arc<Object>>,
    /// Version of the state, which all events carry.
    pub version: ResourceVersion,
    changed: HashSet<ObjectKey>,
    from: Arc<Selection>,
    to: Arc<Selection>,
}

/// Search for the state of a watch at its position.
pub(super) struct Reselecting {
    pub(super) from: Arc<Selection>,
    to: Arc<Selection>,
    /// Selection of all objects whose namespaces may differ.
    differing: Selection,
    pub(super) reached: HistoryPosition,
    /// True if a relist on the way to the position must still be reported to the client.
    pub(super) has_gap: bool,
    /// Later state; none before the first step.
    snapshot: Option<Snapshot>,
    /// Changes up to that which are being read.
    replay: Option<Box<Replay>>,
    /// Position up to which the changes were read.
    read: HistoryPosition,
    /// State of each changed object before its first change; `None` if it did not exist.
    changed: HashMap<ObjectKey, Option<Arc<Object>>>,
}

/// Maximum time of one step.
const SLICE: Duration = Duration::from_micros(500);
/// Number of changes between two looks at the clock.
const CHANGES: usize = 16;

// === impl Reselection ===

impl Reselection {
    /// Returns the event of an object for the watch; `None` if it neither leaves nor enters.
    pub fn transition(&self, object: &Object) -> Option<Transition> {
        let namespace = object.key().namespace();
        let (from, to) = (is_in(&self.from, namespace), is_in(&self.to, namespace));
        let (selection, event_type, cause) = match (from, to) {
            (true, false) => (&self.from, EventType::Deleted, Cause::LeftSelection),
            (false, true) => (&self.to, EventType::Added, Cause::EnteredSelection),
            (true, true) | (false, false) => return None,
        };
        selection.matches(object).then_some(Transition { event_type, cause })
    }

    /// Returns true if the state of this object in the snapshot is a later one.
    pub fn is_later(&self, key: &ObjectKey) -> bool {
        self.changed.contains(key)
    }
}

fn is_in(selection: &Selection, namespace: &str) -> bool {
    selection.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(namespace))
}

// === impl Reselecting ===

impl Reselecting {
    /// Begins the search at a position that a watch has reached with the selection `from`.
    pub(super) fn new(from: Arc<Selection>, to: Arc<Selection>, reached: HistoryPosition, has_gap: bool) -> Self {
        let namespaces = match (&from.namespaces, &to.namespaces) {
            (Some(from), Some(to)) => {
                let differs = |namespace: &&str| from.contains(namespace) != to.contains(namespace);
                Some(from.iter().chain(to.iter()).filter(differs).collect::<Namespaces>())
            }
            (None, _) | (_, None) => None,
        };
        let differing = Selection { namespaces, ..Selection::clone(&from) };
        let read = reached.clone();
        Self { from, to, differing, reached, has_gap, snapshot: None, replay: None, read, changed: HashMap::new() }
    }

    /// Searches further, for a short time. A history other than `history_id` has no such position.
    pub(super) fn poll<F: Frame>(
        &mut self,
        cx: &mut Context<'_>,
        informer: &InformerHandle<F>,
        history_id: u64,
    ) -> Poll<Result<Option<Box<Reselection>>, JoinError>> {
        let ends_at = Instant::now() + SLICE;
        loop {
            if self.snapshot.is_none() {
                self.snapshot = informer.snapshot().map(|snapshot| Snapshot::clone(&snapshot));
            }
            let Some(snapshot) = &self.snapshot else { return Poll::Ready(Err(JoinError::NotSynced)) };
            if self.read.offset >= snapshot.offset() {
                let is_same = informer.history_id() == history_id;
                return Poll::Ready(Ok(self.finish().filter(|_| is_same).map(Box::new)));
            }
            let replay = match &mut self.replay {
                Some(replay) => replay,
                none => none.insert(Box::new(informer.replay(&self.read, snapshot.offset())?)),
            };
            let mut events = Vec::new();
            for _ in 0..CHANGES {
                replay.step::<Deliveries>(&self.differing, &(), &mut events);
            }
            for event in events {
                let key = event.object.key().clone();
                self.changed.entry(key).or_insert_with(|| before(event));
            }
            if replay.is_done() {
                self.read = replay.reached();
                self.replay = None;
            } else if Instant::now() >= ends_at {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn finish(&mut self) -> Option<Reselection> {
        let mut earlier = Vec::new();
        let changed = mem::take(&mut self.changed).into_iter().map(|(key, state)| {
            earlier.extend(state);
            key
        });
        let changed = changed.collect();
        let (from, to) = (Arc::clone(&self.from), Arc::clone(&self.to));
        let (scan, version) = (Scan::of(&self.differing), self.reached.version.clone());
        Some(Reselection { snapshot: self.snapshot.take()?, scan, earlier, version, changed, from, to })
    }
}

/// Returns the state of an object before an event.
fn before(event: Delivery) -> Option<Arc<Object>> {
    match event.event_type {
        EventType::Added => None,
        EventType::Modified => event.previous,
        EventType::Deleted => Some(event.object),
    }
}
