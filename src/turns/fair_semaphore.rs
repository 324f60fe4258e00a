//! Semaphore with fair turns and a bounded queue.
//!
//! - One owner has its share of the permits at most (`limits.peer_share`); one that was refused several times in a row, a quarter of
//!   that.
//! - Known callers come first, and a quarter of the permits is for them alone. After [`MAX_RUN`] turns in a row one of a class below
//!   has a turn, so that nobody waits for ever.
//! - Within a class owners take turns, and so do the connections of each.
//! - The queue is bounded in number and bytes, for each owner to its share. Beyond that the last call of the connection with the
//!   most is refused, of the owner with the most, in the lowest class: a caller with few calls is not refused for those of another.
//!   The time is bounded by whoever waits.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Class, FairQueue, Party};

/// Permits, and the calls that wait for one.
#[derive(Debug)]
pub(crate) struct FairSemaphore {
    limits: Limits,
    state: Mutex<State>,
}

/// Permits and bounds of the queue: of all, and of one owner.
#[derive(Debug, Clone, Copy)]
struct Limits {
    permits: usize,
    queue: QueueBounds,
    permits_of_owner: usize,
    queue_of_owner: QueueBounds,
}

/// Bounds of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueBounds {
    /// Number of calls that wait.
    pub(crate) calls: usize,
    /// Bytes that these calls hold.
    pub(crate) bytes: usize,
}

/// Permit; dropping it passes it on.
#[derive(Debug)]
#[must_use = "it is passed on when this is dropped"]
pub(crate) struct FairPermit {
    /// None once it was passed on.
    semaphore: Option<Arc<FairSemaphore>>,
    owner: u64,
    class: Class,
}

/// Bound of the queue for which a call was refused, with the number of calls that may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    /// That of all callers.
    #[error("too many calls wait for a review, of all callers")]
    All(usize),
    /// That of the caller.
    #[error("too many calls of this caller wait for a review")]
    Share(usize),
}

#[derive(Debug, Default)]
struct State {
    last_ticket: u64,
    queues: [FairQueue<Waiter>; CLASSES.len()],
    /// Turns of each class in a row, while a lower one waited.
    runs: [u32; CLASSES.len()],
    all: Usage,
    /// Permits in use by callers that are not known.
    not_known: usize,
    /// Owners with permits or waiting calls.
    owners: HashMap<u64, Usage>,
}

/// Permits in use and calls that wait, of one owner or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    permits: usize,
    /// Those of these that calls of the class of suspects have.
    suspect: usize,
    calls: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    bytes: usize,
    sender: Answer,
}

/// Place of a call in the queue, which it leaves when this is dropped.
struct Place<'a> {
    semaphore: &'a FairSemaphore,
    party: Party,
    class: Class,
    ticket: u64,
    /// False once it is answered: then it is in no queue, and a search would look at all that wait.
    is_waiting: bool,
}

/// Sender of the answer to a call that waits.
type Answer = oneshot::Sender<Result<FairPermit, Full>>;

const CLASSES: [Class; 3] = [Class::Known, Class::New, Class::Suspect];
/// Part of the permits that known callers alone have, as a divisor.
const RESERVED: usize = 4;
/// Part of the permits of an owner that it may have while it is suspect, as a divisor.
const SUSPECT: usize = 4;
/// Turns of a class in a row, while a lower one waits.
const MAX_RUN: u32 = 3;

/// Returns `percent` of the whole, and at least one.
fn share_of(all: usize, percent: u32) -> usize {
    (all / 100 * percent as usize + all % 100 * percent as usize / 100).max(1)
}

// === impl FairSemaphore ===

impl FairSemaphore {
    /// Creates a semaphore of which one owner may have `percent`, of the permits and of the queue.
    pub(crate) fn new(permits: usize, queue: QueueBounds, percent: u32) -> Arc<Self> {
        let queue_of_owner =
            QueueBounds { calls: share_of(queue.calls, percent), bytes: share_of(queue.bytes, percent) };
        let limits = Limits { permits, queue, permits_of_owner: share_of(permits, percent), queue_of_owner };
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// Waits for a permit. `bytes` is the memory that the call holds meanwhile.
    ///
    /// # Errors
    ///
    /// If the queue is full.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call leaves the queue, and a permit that arrives after the cancellation is passed on.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        party: Party,
        class: Class,
        bytes: usize,
    ) -> Result<FairPermit, Full> {
        let (sender, granted) = oneshot::channel();
        let ticket = self.state.lock().push(party, class, bytes, sender);
        let mut place = Place { semaphore: self, party, class, ticket, is_waiting: true };
        self.grant();
        self.shed(party.owner);
        // Never an error of the channel: no sender is dropped unused while its call waits.
        let answer = granted.await.unwrap_or(Err(Full::All(self.limits.queue.calls)));
        place.is_waiting = false;
        answer
    }

    /// Gives the free permits to those whose turn it is.
    fn grant(self: &Arc<Self>) {
        loop {
            let Some((owner, class, sender)) = self.state.lock().next(&self.limits) else { return };
            let permit = FairPermit { semaphore: Some(Arc::clone(self)), owner, class };
            if let Err(Ok(mut unused)) = sender.send(Ok(permit)) {
                // Of a call that was cancelled: its drop would recurse, once for each of those.
                unused.semaphore = None;
                self.state.lock().release(owner, class);
            }
        }
    }

    /// Refuses calls until the queue is within its bounds again, after an owner has added one.
    fn shed(&self, owner: u64) {
        loop {
            let Some((sender, full)) = self.state.lock().shed(owner, &self.limits) else { return };
            // A call that was cancelled needs no answer.
            drop(sender.send(Err(full)));
        }
    }
}

// === impl State ===

impl State {
    fn push(&mut self, party: Party, class: Class, bytes: usize, sender: Answer) -> u64 {
        self.last_ticket += 1;
        let waiter = Waiter { ticket: self.last_ticket, bytes, sender };
        self.queues[class as usize].push(party, waiter);
        for usage in [&mut self.all, self.owners.entry(party.owner).or_default()] {
            usage.calls += 1;
            usage.bytes += bytes;
        }
        self.last_ticket
    }

    /// Takes the call whose turn it is, and a permit for it, if there is one that it may have.
    fn next(&mut self, limits: &Limits) -> Option<(u64, Class, Answer)> {
        let class = self.next_class(limits)?;
        let owners = &self.owners;
        let popped = self.queues[class as usize].pop_of(|owner| may_have(owners, owner, class, limits));
        let (owner, Waiter { bytes, sender, .. }) = popped?;
        self.leaves(owner, bytes);
        for usage in [&mut self.all, self.owners.entry(owner).or_default()] {
            usage.permits += 1;
            usage.suspect += usize::from(class == Class::Suspect);
        }
        self.not_known += usize::from(class != Class::Known);
        Some((owner, class, sender))
    }

    /// Returns the class whose turn it is: the highest one in which a call may have a permit, but each time after [`MAX_RUN`] turns
    /// one below it.
    fn next_class(&mut self, limits: &Limits) -> Option<Class> {
        let permits = limits.permits;
        if self.all.permits >= permits {
            return None;
        }
        let has_turn = |class: &Class| {
            let is_reserved = *class != Class::Known && self.not_known >= permits - permits / RESERVED;
            let queue = &self.queues[*class as usize];
            !is_reserved && queue.has(|owner| may_have(&self.owners, owner, *class, limits))
        };
        let waiting = CLASSES.map(|class| has_turn(&class));
        for class in CLASSES.into_iter().filter(|class| waiting[*class as usize]) {
            let is_lowest = !waiting[class as usize + 1..].contains(&true);
            let run = &mut self.runs[class as usize];
            if is_lowest || *run < MAX_RUN {
                *run = if is_lowest { 0 } else { *run + 1 };
                return Some(class);
            }
            *run = 0;
        }
        None
    }

    /// Counts a call that waits no more.
    fn leaves(&mut self, owner: u64, bytes: usize) {
        for usage in [Some(&mut self.all), self.owners.get_mut(&owner)].into_iter().flatten() {
            usage.calls -= 1;
            usage.bytes -= bytes;
        }
        self.forget(owner);
    }

    /// Takes a permit back.
    fn release(&mut self, owner: u64, class: Class) {
        for usage in [Some(&mut self.all), self.owners.get_mut(&owner)].into_iter().flatten() {
            usage.permits -= 1;
            usage.suspect -= usize::from(class == Class::Suspect);
        }
        self.not_known -= usize::from(class != Class::Known);
        self.forget(owner);
    }

    /// Removes the entry of an owner that has nothing.
    fn forget(&mut self, owner: u64) {
        if self.owners.get(&owner) == Some(&Usage::default()) {
            self.owners.remove(&owner);
        }
    }

    /// Takes a call out of a queue that is beyond its bounds: of this owner, or of all.
    fn shed(&mut self, owner: u64, limits: &Limits) -> Option<(Answer, Full)> {
        let usage = self.owners.get(&owner).copied().unwrap_or_default();
        let mut from_lowest = self.queues.iter_mut().rev();
        let (owner, waiter, full) = if usage.exceeds(limits.queue_of_owner) {
            (owner, from_lowest.find_map(|queue| queue.pop_last(owner))?, Full::Share(limits.queue_of_owner.calls))
        } else if self.all.exceeds(limits.queue) {
            let (owner, waiter) = from_lowest.find_map(FairQueue::pop_largest)?;
            (owner, waiter, Full::All(limits.queue.calls))
        } else {
            return None;
        };
        self.leaves(owner, waiter.bytes);
        Some((waiter.sender, full))
    }
}

// === impl Usage ===

impl Usage {
    fn exceeds(&self, queue: QueueBounds) -> bool {
        self.calls > queue.calls || self.bytes > queue.bytes
    }
}

/// Returns true if an owner has fewer permits than it may have.
fn may_have(owners: &HashMap<u64, Usage>, owner: u64, class: Class, limits: &Limits) -> bool {
    let share = limits.permits_of_owner;
    // Those that it got before it was suspect do not count: its calls would wait until all of these have ended.
    let has_suspects = |usage: &Usage| class == Class::Suspect && usage.suspect >= (share / SUSPECT).max(1);
    owners.get(&owner).is_none_or(|usage| usage.permits < share && !has_suspects(usage))
}

// === impl Place ===

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_waiting {
            return;
        }
        let mut state = self.semaphore.state.lock();
        let removed = state.queues[self.class as usize].remove(self.party, |waiter| waiter.ticket == self.ticket);
        if let Some(Waiter { bytes, .. }) = &removed {
            state.leaves(self.party.owner, *bytes);
        }
        drop(state);
        drop(removed);
    }
}

// === impl FairPermit ===

impl Drop for FairPermit {
    fn drop(&mut self) {
        if let Some(semaphore) = self.semaphore.take() {
            semaphore.state.lock().release(self.owner, self.class);
            semaphore.grant();
        }
    }
}

#[cfg(test)]
mod tests;
