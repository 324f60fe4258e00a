//! Budgets of the time for which the writer may be held back under BLOCK: by all clients of a resource together, and by each of them.
//!
//! A budget is a token bucket of time: as large as `block_timeout`, refilled at a tenth of the time in which nobody draws on
//! it, as the dispatch budget of the kube-apiserver's watch cache is refilled at a twentieth of it (SEMANTICS 2.4). Time for
//! which several draw on it counts once. So over any time `t` it allows for `block_timeout + t / 10`.
//!
//! - The resource's decides how long the writer waits. Every client that holds the writer back draws on it, and so it is
//!   spent no later than that of any client.
//! - A client's decides whether it is ended when the resource's is spent. All its watches of the resource share it.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::sync::Mutex;

/// The owner of a budget of BLOCK: all its watches of a resource share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Client {
    /// This watch, which shares its budget with no other: the choice for users of the library, whose watches are in their
    /// own hands.
    Watch,
    /// A host, or a network in which anybody may have any address ([`Client::at`]).
    Address(IpAddr),
    /// A user of this machine, at the other end of a unix socket.
    User(u32),
}

/// A budget of waiting time that refills at a tenth of wall time.
#[derive(Debug, Clone)]
pub(super) struct TimeBudget {
    capacity: Duration,
    /// More than the capacity when a timer came late: it has to be earned before anything can be spent again.
    spent: Duration,
    as_of: Instant,
}

/// A budget that several watches may draw on at the same time.
#[derive(Debug)]
pub(super) struct SharedBudget {
    drawn: Mutex<Drawn>,
}

#[derive(Debug)]
struct Drawn {
    budget: TimeBudget,
    /// Watches that draw on it now, since when, and when the last of those that have ceased to did so.
    watches: usize,
    since: Instant,
    until: Instant,
}

/// The budgets of the clients of a resource.
#[derive(Debug)]
pub(super) struct ClientBudgets {
    capacity: Duration,
    budgets: HashMap<Client, Arc<SharedBudget>>,
    sweep_at: usize,
}

/// Wall time in which one unit of budget is earned.
const REFILL_DIVISOR: u32 = 10;
/// Clients without a watch whose budget is not full: so many are remembered, those that have spent the most. So there are
/// never more than twice as many as have a watch under BLOCK, and twice this number.
const MAX_ABSENT: usize = 1024;
/// Of an IPv6 address, the part that a host cannot choose.
const NETWORK_BITS: u32 = 64;

// === impl Client ===

impl Client {
    /// The client at an address: an IPv4 host, or the network (/64) of an IPv6 host, which may choose the rest of its address
    /// for each connection.
    pub fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> NETWORK_BITS << NETWORK_BITS).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

// === impl TimeBudget ===

impl TimeBudget {
    /// Returns a full budget.
    pub(super) fn new(capacity: Duration, now: Instant) -> Self {
        Self { capacity, spent: Duration::ZERO, as_of: now }
    }

    fn spent(&self, now: Instant) -> Duration {
        self.spent.saturating_sub(now.saturating_duration_since(self.as_of) / REFILL_DIVISOR)
    }

    /// Returns what can be spent from now on.
    pub(super) fn available(&self, now: Instant) -> Duration {
        self.capacity.saturating_sub(self.spent(now))
    }

    /// Charges the time from `since` until `now`, in which nothing is earned.
    pub(super) fn charge(&mut self, since: Instant, now: Instant) {
        self.spent = self.spent(since).saturating_add(now.saturating_duration_since(since));
        self.as_of = now;
    }
}

// === impl SharedBudget ===

impl SharedBudget {
    /// Returns a full budget that nobody draws on.
    pub(super) fn new(capacity: Duration, now: Instant) -> Self {
        let drawn = Drawn { budget: TimeBudget::new(capacity, now), watches: 0, since: now, until: now };
        Self { drawn: Mutex::new(drawn) }
    }

    /// Begins to draw on it for one more watch.
    pub(super) fn begin(&self, now: Instant) {
        let mut drawn = self.drawn.lock();
        if drawn.watches == 0 {
            (drawn.since, drawn.until) = (now, now);
        }
        drawn.watches += 1;
    }

    /// Ceases to draw on it for one watch. When it was the last one, returns the time that is charged.
    pub(super) fn end(&self, now: Instant) -> Option<Duration> {
        let mut drawn = self.drawn.lock();
        drawn.until = drawn.until.max(now);
        drawn.watches = drawn.watches.saturating_sub(1);
        if drawn.watches > 0 {
            return None;
        }
        let Drawn { since, until, .. } = *drawn;
        drawn.budget.charge(since, until);
        Some(until.saturating_duration_since(since))
    }

    /// Returns what is left of it.
    pub(super) fn left(&self, now: Instant) -> Duration {
        let drawn = self.drawn.lock();
        let is_drawn = drawn.watches > 0;
        let since = if is_drawn { drawn.since } else { now };
        drawn.budget.available(since).saturating_sub(now.saturating_duration_since(since))
    }

    /// Returns when nothing will be left of it; `None` while nobody draws on it.
    pub(super) fn spent_at(&self) -> Option<Instant> {
        let drawn = self.drawn.lock();
        (drawn.watches > 0).then(|| drawn.since + drawn.budget.available(drawn.since))
    }
}

// === impl ClientBudgets ===

impl ClientBudgets {
    pub(super) fn new(capacity: Duration) -> Self {
        Self { capacity, budgets: HashMap::new(), sweep_at: MAX_ABSENT }
    }

    /// Returns the budget that a client's next watch draws on.
    pub(super) fn of(&mut self, client: &Client, now: Instant) -> Arc<SharedBudget> {
        let full = || Arc::new(SharedBudget::new(self.capacity, now));
        if *client == Client::Watch {
            return full();
        }
        if let Some(budget) = self.budgets.get(client) {
            return Arc::clone(budget);
        }
        let budget = full();
        if self.budgets.len() >= self.sweep_at {
            self.sweep(now);
            self.sweep_at = 2 * self.budgets.len().max(MAX_ABSENT / 2);
        }
        self.budgets.insert(client.clone(), Arc::clone(&budget));
        budget
    }

    /// Forgets the clients without a watch whose budget is full again, and of the others those that have spent the least.
    pub(super) fn sweep(&mut self, now: Instant) {
        let capacity = self.capacity;
        let is_absent = |budget: &Arc<SharedBudget>| Arc::strong_count(budget) == 1;
        self.budgets.retain(|_, budget| !is_absent(budget) || budget.left(now) < capacity);
        let absent = self.budgets.iter().filter(|(_, budget)| is_absent(budget));
        let mut absent: Vec<(Duration, Client)> =
            absent.map(|(client, budget)| (budget.left(now), client.clone())).collect();
        if absent.len() > MAX_ABSENT {
            absent.sort_unstable_by_key(|(left, _)| *left);
            for (_, client) in &absent[MAX_ABSENT..] {
                self.budgets.remove(client);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.budgets.len()
    }
}

#[cfg(test)]
mod tests;
