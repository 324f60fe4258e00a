//! Past of a resource as readers on other threads see it: its history up to the published offset, and the wake-up of those that wait for
//! more.
//!
//! Each reader has a *port*. Parked, it has read everything up to an offset, and the writer checks each later publish cycle for it, in
//! order. The first cycle that may concern it ends the parking, at the offset of its batch: the reader continues there, because nothing
//! before concerns it. Order:
//!
//! - The writer stores the published offset, then checks the ports.
//! - A reader loads the published offset under the lock of its port, and parks only if that is its own: a cycle that is published
//!   later is checked later, and no other thread takes the port for one that has everything.
//!
//! So no cycle is missed between the two. A selection that joins a port ends its parking, so that the reader also reads what was checked
//! without that selection.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use slab::Slab;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{History, wakeups::wake_all};
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
    /// Offset after the last relist; 0 without one.
    relisted: AtomicU64,
    ports: Mutex<Ports>,
    has_ended: AtomicBool,
}

/// Ports, and the selections of their readers.
#[derive(Debug, Default)]
struct Ports {
    members: Slab<Member>,
    /// Numbers of the members, by the values that a change has.
    routes: Routes,
    /// Ports with selections that see every change, by their addresses.
    unrouted: HashMap<usize, Unrouted, foldhash::fast::RandomState>,
    /// Selections of the members, each once.
    selections: Slab<SharedSelection>,
    by_selection: HashMap<Arc<Selection>, usize>,
    /// Numbers that a change has found: empty between two cycles, which use its memory again.
    found: Vec<usize>,
}

/// Selection of a port, by its key.
#[derive(Debug)]
struct Member {
    port: Arc<Port>,
    selection: usize,
}

#[derive(Debug)]
struct SharedSelection {
    selection: Arc<Selection>,
    members: usize,
    /// Number of the last batch for which it was evaluated, and if it selects something of that.
    evaluated: (u64, bool),
}

#[derive(Debug)]
struct Unrouted {
    port: Arc<Port>,
    /// Keys of the selections that see every change, one for each member.
    selections: SmallVec<[usize; 2]>,
}

/// Part of a reader that others see.
#[derive(Debug)]
pub(in crate::watch) struct Port {
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
            relisted: AtomicU64::default(),
            ports: Mutex::default(),
            has_ended: AtomicBool::default(),
        }
    }

    pub(crate) fn history(&self) -> &Mutex<History> {
        &self.history
    }

    /// Replaces the history by an empty one, in which nobody can continue to read, and does something else while it is locked. Wakes the
    /// readers, which notice that.
    pub(in crate::watch) fn restart(&self, history: History, also: impl FnOnce()) {
        self.head.store(history.current().offset, Ordering::SeqCst);
        {
            let mut present = self.history.lock();
            *present = history;
            also();
        }
        self.unpark_all(0);
    }

    /// Lets readers read up to the end of the recorded batches, of which these were added since the last call. The snapshot must have
    /// them.
    pub(in crate::watch) fn publish(&self, batches: &[Arc<Batch>]) {
        let count: usize = batches.iter().map(|batch| batch.changes.len()).sum();
        let head = self.history.lock().current().offset;
        if batches.iter().any(|batch| batch.is_gap()) {
            self.relisted.store(head + 1, Ordering::SeqCst);
        }
        self.head.store(head, Ordering::SeqCst);
        let mut wakers = Vec::new();
        self.ports.lock().post(batches, head.saturating_sub(count as u64), &mut wakers);
        wake_all(wakers);
    }

    /// Wakes every reader although nothing was published.
    pub(in crate::watch) fn notify(&self) {
        let wakers: Vec<Waker> = {
            let ports = self.ports.lock();
            ports.members.iter().filter_map(|(_, member)| member.port.state.lock().waker.take()).collect()
        };
        wake_all(wakers);
    }

    /// Records that nothing will be published any more.
    pub(in crate::watch) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        // Who is parked has everything, also if the history has dropped what does not concern it.
        self.unpark_all(self.head());
    }

    fn unpark_all(&self, from: u64) {
        let mut wakers = Vec::new();
        for (_, Member { port, .. }) in &self.ports.lock().members {
            port.unpark(from, &mut wakers);
        }
        wake_all(wakers);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Returns the offset up to which readers may read.
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::SeqCst)
    }

    /// Returns true if a relist follows a position, before another offset.
    pub(crate) fn has_relist_between(&self, version: &ResourceVersion, offset: u64, to: u64) -> bool {
        // Copied only where there may be one: every cursor calls this when it is woken, on all threads.
        let from = || HistoryPosition { version: version.clone(), offset };
        self.relisted.load(Ordering::SeqCst) > offset && self.history.lock().has_relist_between(&from(), to)
    }

    /// Adds a selection to a port. Returns its number.
    pub(in crate::watch) fn add(&self, port: &Arc<Port>, selection: &Arc<Selection>) -> usize {
        let mut ports = self.ports.lock();
        let Ports { members, routes, unrouted, selections, by_selection, .. } = &mut *ports;
        let key = *by_selection.entry(Arc::clone(selection)).or_insert_with_key(|selection| {
            selections.insert(SharedSelection { selection: Arc::clone(selection), members: 0, evaluated: (0, false) })
        });
        selections[key].members += 1;
        let number = members.insert(Member { port: Arc::clone(port), selection: key });
        routes.insert(selection, number);
        if routes.unrouted().contains(&number) {
            let entry = unrouted.entry(Arc::as_ptr(port) as usize);
            let new = || Unrouted { port: Arc::clone(port), selections: SmallVec::new() };
            entry.or_insert_with(new).selections.push(key);
        }
        number
    }

    /// Removes a selection.
    pub(in crate::watch) fn remove(&self, number: usize) {
        let mut ports = self.ports.lock();
        let Ports { members, routes, unrouted, selections, by_selection, .. } = &mut *ports;
        let Member { port, selection: key } = members.remove(number);
        let address = Arc::as_ptr(&port) as usize;
        routes.remove(&selections[key].selection, number);
        if let Some(of_port) = unrouted.get_mut(&address) {
            if let Some(at) = of_port.selections.iter().position(|other| *other == key) {
                of_port.selections.swap_remove(at);
            }
            if of_port.selections.is_empty() {
                unrouted.remove(&address);
            }
        }
        selections[key].members -= 1;
        let is_last = selections[key].members == 0;
        let gone = is_last.then(|| selections.remove(key));
        if let Some(gone) = &gone {
            by_selection.remove(&gone.selection);
        }
        drop(ports);
        // Nothing is dropped under the lock.
        drop((port, gone));
    }
}

// === impl Ports ===

impl Ports {
    /// Ends the parking of each reader that a batch may concern. The first one begins at `offset`.
    fn post(&mut self, batches: &[Arc<Batch>], mut offset: u64, wakers: &mut Vec<Waker>) {
        let Self { members, routes, unrouted, selections, found, .. } = self;
        if members.is_empty() {
            return;
        }
        let mut left = MAX_EVALUATIONS;
        for batch in batches.iter().filter(|batch| !batch.changes.is_empty()) {
            for change in &batch.changes {
                routes.find(change, found);
                for Member { port, selection } in found.drain(..).map(|number| &members[number]) {
                    let selection = &selections[*selection].selection;
                    // A route is coarse: who is led to a change that it does not select stays parked.
                    let may_select = || selection.expression.is_some() || selection.transition(change).is_some();
                    if port.is_parked() && may_select() {
                        port.unpark(offset, wakers);
                    }
                }
            }
            let end = offset + batch.changes.len() as u64;
            for Unrouted { port, selections: keys } in unrouted.values() {
                if !port.is_parked() {
                    continue;
                }
                let mut selects = |key: &usize| {
                    let SharedSelection { selection, evaluated, .. } = &mut selections[*key];
                    if evaluated.0 != end {
                        if selection.expression.is_some() || batch.changes.len() > left {
                            return true;
                        }
                        left -= batch.changes.len();
                        *evaluated = (end, batch.changes.iter().any(|change| selection.transition(change).is_some()));
                    }
                    evaluated.1
                };
                if keys.len() > MAX_CHECKED || keys.iter().any(&mut selects) {
                    port.unpark(offset, wakers);
                }
            }
            offset = end;
        }
    }
}

// === impl Port ===

impl Port {
    /// Returns a port that has read everything up to an offset.
    pub(in crate::watch) fn new(at: u64) -> Self {
        let port = Self { state: Mutex::default(), at: AtomicU64::default() };
        port.reads(at);
        port
    }

    /// Parks the reader, which has read everything up to an offset, unless there is more after all. Returns true if it is parked.
    pub(in crate::watch) fn park_at_head(&self, at: u64, waker: &Waker, is_still_there: impl FnOnce() -> bool) -> bool {
        let mut state = self.state.lock();
        // Evaluated under the lock: nobody sees a port parked for whom something was published.
        let is_parked = is_still_there();
        let waker = is_parked.then(|| waker.clone());
        let before = std::mem::replace(&mut *state, PortState { is_parked, from: at, waker });
        drop(state);
        drop(before);
        is_parked
    }

    /// Keeps the reader parked, with this waker. Returns the offset from which on it has to read if it is not parked any more.
    pub(in crate::watch) fn repark(&self, waker: &Waker) -> Option<u64> {
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
    pub(in crate::watch) fn advance(&self, at: u64) -> bool {
        let mut state = self.state.lock();
        if state.is_parked {
            state.from = state.from.max(at);
        }
        state.is_parked
    }

    /// Returns the offset up to which the reader has nothing to read; `None` while it is parked, when that is everything.
    pub(in crate::watch) fn position(&self) -> Option<u64> {
        let state = self.state.lock();
        (!state.is_parked).then(|| state.from.max(self.at.load(Ordering::Relaxed)))
    }

    fn is_parked(&self) -> bool {
        self.state.lock().is_parked
    }

    /// Ends the parking, if the reader is parked: it has to read from this offset on.
    fn unpark(&self, from: u64, wakers: &mut Vec<Waker>) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_parked) {
            state.from = state.from.max(from);
            wakers.extend(state.waker.take());
        }
    }

    /// Ends the parking by the reader itself, which reads from its own offset on: what came before it was parked may concern it.
    pub(in crate::watch) fn end_parking(&self, at: u64) {
        let before = std::mem::replace(&mut *self.state.lock(), PortState { from: at, ..PortState::default() });
        drop(before);
    }

    pub(in crate::watch) fn reads(&self, at: u64) {
        self.at.store(at, Ordering::Relaxed);
    }
}

// === impl PastGauge ===

impl PastGauge {
    pub(in crate::watch) fn new(past: &Arc<Past>, port: &Arc<Port>) -> Self {
        Self { past: Arc::clone(past), port: Arc::clone(port) }
    }

    /// Returns the offset that the reader reads next; `None` while it is parked.
    pub(in crate::watch) fn position(&self) -> Option<u64> {
        self.port.position()
    }

    /// Returns the number of published changes that the reader has not read, of all selections.
    pub fn lag(&self) -> u64 {
        let head = self.past.head();
        self.position().map_or(0, |at| head.saturating_sub(at))
    }

    /// Returns the time at which the oldest of them was recorded.
    pub fn waiting_since(&self) -> Option<Instant> {
        let at = self.position().filter(|at| *at < self.past.head())?;
        self.past.history.lock().recorded_after(at)
    }
}

debug_fields!(Past, this => { head: this.head() });
