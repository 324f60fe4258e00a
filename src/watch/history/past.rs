//! Past of a resource as readers on other threads see it: its history up to the published offset, and the wake-up of those that wait for
//! more.
//!
//! Each reader has a *port*. Parked, it has read everything up to an offset, and the writer checks each later publish cycle for it, in
//! order. The first cycle that may concern it ends the parking, at the offset of its batch: the reader continues there, because nothing
//! before concerns it. Order:
//!
//! - The writer stores the published offset, then checks the ports.
//! - A reader parks its port, then loads the published offset. If that is higher than its own, a cycle may have been checked before it
//!   was parked: it ends the parking itself and reads.
//!
//! So no cycle is missed between the two. A selection that joins a port ends its parking, so that the reader also reads what was checked
//! without that selection.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use slab::Slab;

use super::History;
use crate::{
    model::{Batch, HistoryPosition, ResourceVersion, Selection},
    sync::{AtomicBool, AtomicU64, Mutex},
    watch::{Retention, routes::Routes},
};

/// Past of one resource. The writer records and publishes; readers read it by offset.
pub struct Past {
    history: Mutex<History>,
    /// Offset up to which readers may read: the snapshot has everything before it.
    head: AtomicU64,
    ports: Mutex<Ports>,
    has_ended: AtomicBool,
}

/// Ports, and the selections of their readers.
#[derive(Debug, Default)]
struct Ports {
    selections: Slab<(Arc<Port>, Arc<Selection>)>,
    /// Numbers of the selections, by the values that a change has.
    routes: Routes,
    /// Ports with selections that see every change, by their addresses.
    unrouted: HashMap<usize, Unrouted, foldhash::fast::RandomState>,
    /// Numbers that a change has found: empty between two cycles, which use its memory again.
    found: Vec<usize>,
}

#[derive(Debug)]
struct Unrouted {
    port: Arc<Port>,
    /// Numbers of the selections that see every change.
    selections: BTreeSet<usize>,
}

/// Part of a reader that others see.
#[derive(Debug)]
pub(super) struct Port {
    state: Mutex<PortState>,
    /// Offset up to which the reader has read; while it is parked, it may have read more.
    at: AtomicU64,
}

#[derive(Debug, Default)]
struct PortState {
    is_parked: bool,
    /// Offset from which on the reader has to read, once it is not parked any more.
    from: u64,
    waker: Option<Waker>,
}

/// View of the lag of a reader from outside.
#[derive(Debug, Clone)]
pub struct PastGauge {
    past: Arc<Past>,
    port: Arc<Port>,
}

/// Selections of a port that the writer evaluates before it wakes the reader; with more of them a wake-up is cheaper.
const MAX_CHECKED: usize = 4;
/// Largest number of evaluations for that in a publish cycle. Further readers are woken.
const MAX_EVALUATIONS: usize = 2048;

// === impl Past ===

impl Past {
    /// Returns an empty past.
    pub(crate) fn new(bounds: Retention) -> Self {
        let begin = HistoryPosition { version: ResourceVersion::decimal(0), offset: 0 };
        Self {
            history: Mutex::new(History::new(bounds, begin)),
            head: AtomicU64::default(),
            ports: Mutex::default(),
            has_ended: AtomicBool::default(),
        }
    }

    pub(crate) fn history(&self) -> &Mutex<History> {
        &self.history
    }

    /// Replaces the history by an empty one, in which nobody can continue to read. Wakes the readers, which notice that.
    pub(crate) fn restart(&self, history: History) {
        self.head.store(history.current().offset, Ordering::SeqCst);
        *self.history.lock() = history;
        self.unpark_all();
    }

    /// Lets readers read up to the end of the recorded batches, of which these were added since the last call. The snapshot must have
    /// them.
    pub(crate) fn publish(&self, batches: &[Arc<Batch>]) {
        let count: usize = batches.iter().map(|batch| batch.changes.len()).sum();
        let head = self.history.lock().current().offset;
        self.head.store(head, Ordering::SeqCst);
        let mut wakers = Vec::new();
        self.ports.lock().post(batches, head.saturating_sub(count as u64), &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes every reader although nothing was published.
    pub(crate) fn notify(&self) {
        let wakers: Vec<Waker> = {
            let ports = self.ports.lock();
            ports.selections.iter().filter_map(|(_, (port, _))| port.state.lock().waker.take()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Records that nothing will be published any more.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.unpark_all();
    }

    fn unpark_all(&self) {
        let mut wakers = Vec::new();
        for (_, (port, _)) in &self.ports.lock().selections {
            let from = port.state.lock().from;
            port.unpark(from, &mut wakers);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Returns the offset up to which readers may read.
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::SeqCst)
    }

    /// Adds a selection to a port. Returns its number.
    pub(super) fn add(&self, port: &Arc<Port>, selection: &Arc<Selection>) -> usize {
        let mut ports = self.ports.lock();
        let number = ports.selections.insert((Arc::clone(port), Arc::clone(selection)));
        ports.routes.insert(selection, number);
        if ports.routes.unrouted().contains(&number) {
            let entry = ports.unrouted.entry(Arc::as_ptr(port) as usize);
            let unrouted = entry.or_insert_with(|| Unrouted { port: Arc::clone(port), selections: BTreeSet::new() });
            unrouted.selections.insert(number);
        }
        number
    }

    /// Removes a selection.
    pub(super) fn remove(&self, number: usize) {
        let mut ports = self.ports.lock();
        let (port, selection) = ports.selections.remove(number);
        ports.routes.remove(&selection, number);
        let address = Arc::as_ptr(&port) as usize;
        if let Some(unrouted) = ports.unrouted.get_mut(&address) {
            unrouted.selections.remove(&number);
            if unrouted.selections.is_empty() {
                ports.unrouted.remove(&address);
            }
        }
        drop(ports);
    }
}

// === impl Ports ===

impl Ports {
    /// Ends the parking of each reader that a batch may concern. The first one begins at `offset`.
    fn post(&mut self, batches: &[Arc<Batch>], mut offset: u64, wakers: &mut Vec<Waker>) {
        let Self { selections, routes, unrouted, found } = self;
        if selections.is_empty() {
            return;
        }
        let mut left = MAX_EVALUATIONS;
        for batch in batches {
            for change in &batch.changes {
                routes.find(change, found);
                for number in found.drain(..) {
                    selections[number].0.unpark(offset, wakers);
                }
            }
            for Unrouted { port, selections: numbers } in unrouted.values() {
                let evaluations = numbers.len() * batch.changes.len();
                let is_checked = numbers.len() <= MAX_CHECKED && evaluations <= left;
                left -= if is_checked { evaluations } else { 0 };
                let selects = |number: &usize| {
                    let (_, selection) = &selections[*number];
                    batch.changes.iter().any(|change| selection.transition(change).is_some())
                };
                if !batch.changes.is_empty() && (!is_checked || numbers.iter().any(selects)) {
                    port.unpark(offset, wakers);
                }
            }
            offset += batch.changes.len() as u64;
        }
    }
}

// === impl Port ===

impl Port {
    /// Returns a port that has read everything up to an offset.
    pub(super) fn new(at: u64) -> Self {
        let port = Self { state: Mutex::default(), at: AtomicU64::default() };
        port.reads(at);
        port
    }

    /// Parks the reader, which has read everything up to an offset.
    pub(super) fn park(&self, at: u64, waker: &Waker) {
        let mut state = self.state.lock();
        let before =
            std::mem::replace(&mut *state, PortState { is_parked: true, from: at, waker: Some(waker.clone()) });
        drop(state);
        drop(before);
    }

    /// Keeps the reader parked, with this waker. Returns the offset from which on it has to read if it is not parked any more.
    pub(super) fn repark(&self, waker: &Waker) -> Option<u64> {
        let mut state = self.state.lock();
        if !state.is_parked {
            return Some(state.from);
        }
        let is_same = state.waker.as_ref().is_some_and(|parked| parked.will_wake(waker));
        let displaced = if is_same { None } else { state.waker.replace(waker.clone()) };
        drop(state);
        drop(displaced);
        None
    }

    /// Records that the reader has read everything up to an offset, if it is parked. Returns true if so.
    pub(super) fn advance(&self, at: u64) -> bool {
        let mut state = self.state.lock();
        if state.is_parked {
            state.from = state.from.max(at);
        }
        state.is_parked
    }

    /// Ends the parking, if the reader is parked: it has to read from this offset on.
    fn unpark(&self, from: u64, wakers: &mut Vec<Waker>) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_parked) {
            state.from = state.from.max(from);
            wakers.extend(state.waker.take());
        }
    }

    /// Ends the parking by the reader itself. Returns the offset from which on it has to read.
    pub(super) fn end_parking(&self) -> u64 {
        let (from, waker) = {
            let mut state = self.state.lock();
            state.is_parked = false;
            (state.from, state.waker.take())
        };
        drop(waker);
        from
    }

    pub(super) fn reads(&self, at: u64) {
        self.at.store(at, Ordering::Relaxed);
    }
}

// === impl PastGauge ===

impl PastGauge {
    pub(super) fn new(past: &Arc<Past>, port: &Arc<Port>) -> Self {
        Self { past: Arc::clone(past), port: Arc::clone(port) }
    }

    /// Returns the number of published changes that the reader has not read, of all selections.
    pub fn lag(&self) -> u64 {
        let head = self.past.head();
        if self.port.state.lock().is_parked { 0 } else { head.saturating_sub(self.port.at.load(Ordering::Relaxed)) }
    }
}

impl fmt::Debug for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Past").field("head", &self.head()).finish_non_exhaustive()
    }
}
