//! Budgets of the time for which the writer may be held back under BLOCK: by all clients of a resource together, and by
//! each.
//!
//! A budget is a token bucket of time: as large as `block_timeout`, refilled at a tenth of the time in which nobody draws
//! on it. The dispatch budget of the kube-apiserver's watch cache works alike, and is refilled at a twentieth. Time for
//! which several watches draw on it counts once. So over any time `t` it allows for `block_timeout + t / 10`.
//!
//! - The resource's budget limits the writer's wait. Every client that holds the writer back draws on it, and so it is
//!   spent no later than that of any client.
//! - A client's budget decides if the client is ended when the resource's is spent. All its watches of the resource share
//!   it.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::sync::Mutex;

/// Owner of a budget under BLOCK: all its watches of a resource share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Client {
    /// One watch, which shares its budget with no other: for users of the library, who control all of their watches.
    Watch,
    /// Host, or a network whose hosts choose their addresses freely ([`Client::at`]).
    Address(IpAddr),
    /// User of this machine, connected through a Unix socket.
    User(u32),
    /// User that the program has authenticated, wherever it connects from: a hash of its name under a key of the program.
    Identity(u64),
}

/// Budget of waiting time that refills at a tenth of wall time.
#[derive(Debug, Clone)]
pub(super) struct TimeBudget {
    capacity: Duration,
    /// Exceeds the capacity after a late timer: the excess must be earned before anything can be spent again.
    spent: Duration,
    as_of: Instant,
}

/// Budget that several watches may draw on at the same time.
#[derive(Debug)]
pub(super) struct SharedBudget {
    drawn: Mutex<Drawn>,
}

#[derive(Debug)]
struct Drawn {
    budget: TimeBudget,
    /// Watches that draw on it now, the time since when they do, and the time when the last of those that stopped did so.
    watches: usize,
    since: Instant,
    until: Instant,
}

/// Budgets of the clients of a resource.
#[derive(Debug)]
pub(super) struct ClientBudgets {
    capacity: Duration,
    budgets: HashMap<Client, Arc<SharedBudget>>,
    sweep_at: usize,
}

/// Wall time in which one unit of budget is earned.
const REFILL_DIVISOR: u32 = 10;
/// Maximum number of remembered clients that have neither a watch nor a full budget; those that have spent the most are
/// kept. So there are at most twice as many entries as clients with a watch under BLOCK, plus twice this number.
const MAX_ABSENT: usize = 1024;
/// Leading bits of an IPv6 address, which a host cannot choose.
const NETWORK_BITS: u32 = 64;

// === impl Client ===

impl Client {
    /// Returns the client at an address: an IPv4 host, or the network (/64) of an IPv6 host, which may choose the rest of
    /// its address for each connection.
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

    /// Returns the time that can be spent from now on.
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

    /// Starts to draw on it for one more watch.
    pub(super) fn begin(&self, now: Instant) {
        let mut drawn = self.drawn.lock();
        if drawn.watches == 0 {
            (drawn.since, drawn.until) = (now, now);
        }
        drawn.watches += 1;
    }

    /// Stops drawing on it for one watch. If that was the last one, returns the time that is charged.
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

    /// Returns the remaining time.
    pub(super) fn left(&self, now: Instant) -> Duration {
        let drawn = self.drawn.lock();
        let is_drawn = drawn.watches > 0;
        let since = if is_drawn { drawn.since } else { now };
        drawn.budget.available(since).saturating_sub(now.saturating_duration_since(since))
    }

    /// Returns the time at which the budget will be spent; `None` while nobody draws on it.
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

    /// Removes the clients without a watch whose budget is full again, and beyond a bound those that have spent the least.
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
