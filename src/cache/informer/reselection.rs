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
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use super::{InformerHandle, Joined, join::Joining};
use crate::{
    cache::{JoinError, Scan, Snapshot},
    model::{Cause, EventType, HistoryPosition, Namespaces, Object, ObjectKey, ResourceVersion, Selection, Transition},
    watch::{Deliveries, Delivery, Frame, Replay, Subscribe},
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
pub(super) struct Reselecting<F: Frame> {
    pub(super) from: Arc<Selection>,
    /// Selection of all objects whose namespaces may differ.
    differing: Selection,
    pub(super) reached: HistoryPosition,
    /// True if a relist on the way to the position must still be reported to the client.
    pub(super) has_gap: bool,
    /// Position up to which the changes were read.
    read: HistoryPosition,
    subscribe: Subscribe<F>,
    /// State of each changed object before its first change; `None` if it did not exist.
    changed: HashMap<ObjectKey, Option<Arc<Object>>>,
    step: Step<F>,
}

enum Step<F: Frame> {
    Joining(Joining<F>),
    /// Changes up to the snapshot, if there is one, or the first part of them.
    Reading(Box<Replay>, Option<Snapshot>),
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

impl<F: Frame> Reselecting<F> {
    /// Begins the search at a position that a watch has reached with the selection `from`; `subscribe` has the new one.
    pub(super) fn new(
        informer: &InformerHandle<F>,
        from: Arc<Selection>,
        subscribe: Subscribe<F>,
        reached: HistoryPosition,
        has_gap: bool,
    ) -> Self {
        let namespaces = match (&from.namespaces, &subscribe.selection.namespaces) {
            (Some(from), Some(to)) => {
                let differs = |namespace: &&str| from.contains(namespace) != to.contains(namespace);
                Some(from.iter().chain(to.iter()).filter(differs).collect::<Namespaces>())
            }
            (None, _) | (_, None) => None,
        };
        let differing = Selection { namespaces, ..Selection::clone(&from) };
        let step = Step::Joining(Box::pin(informer.clone().join_after(reached.clone(), subscribe.clone())));
        let read = reached.clone();
        Self { from, differing, reached, has_gap, read, subscribe, changed: HashMap::new(), step }
    }

    /// Searches further, for a short time. A history other than `history_id` has no such position.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        informer: &InformerHandle<F>,
        history_id: u64,
    ) -> Poll<Result<Option<Box<Reselection>>, JoinError>> {
        let ends_at = Instant::now() + SLICE;
        loop {
            match &mut self.step {
                Step::Joining(joining) => {
                    let Joined { snapshot, backlog, cursor, history_id: joined } = ready!(joining.as_mut().poll(cx))?;
                    if joined != history_id {
                        return Poll::Ready(Ok(None));
                    }
                    let replay = Replay::new(backlog.batches, backlog.first, self.read.clone());
                    self.step = Step::Reading(Box::new(replay), cursor.map(|_| snapshot));
                }
                Step::Reading(replay, snapshot) => {
                    let mut events = Vec::new();
                    for _ in 0..CHANGES {
                        replay.step::<Deliveries>(&self.differing, &(), &mut events);
                    }
                    for event in events {
                        let key = event.object.key().clone();
                        self.changed.entry(key).or_insert_with(|| before(event));
                    }
                    if replay.is_done() {
                        if let Some(snapshot) = snapshot.take() {
                            return Poll::Ready(Ok(Some(Box::new(self.finish(snapshot)))));
                        }
                        self.read = replay.reached();
                        let joining = informer.clone().join_after(self.read.clone(), self.subscribe.clone());
                        self.step = Step::Joining(Box::pin(joining));
                    } else if Instant::now() >= ends_at {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    fn finish(&mut self, snapshot: Snapshot) -> Reselection {
        let mut earlier = Vec::new();
        let changed = mem::take(&mut self.changed).into_iter().map(|(key, state)| {
            earlier.extend(state);
            key
        });
        let changed = changed.collect();
        let (from, to) = (Arc::clone(&self.from), Arc::clone(&self.subscribe.selection));
        let (scan, version) = (Scan::of(&self.differing), self.reached.version.clone());
        Reselection { snapshot, scan, earlier, version, changed, from, to }
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
