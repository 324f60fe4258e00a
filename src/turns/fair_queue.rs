//! Fair queue: owners take turns, and so do the connections of each owner, however many values wait for one of them.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use super::Party;

/// Waiting values, by owner and connection.
#[derive(Debug)]
pub(crate) struct FairQueue<T>(RoundRobin<u64, Connections<T>>);

type Connections<T> = RoundRobin<u64, VecDeque<T>>;

/// Queues that take turns, by key.
#[derive(Debug)]
struct RoundRobin<K, V> {
    /// Keys of the queues that are not empty, each once, in order of their turns.
    order: VecDeque<K>,
    waiting: HashMap<K, V>,
}

// === impl FairQueue ===

impl<T> FairQueue<T> {
    /// Adds a value, behind the others of its connection.
    pub(crate) fn push(&mut self, party: Party, value: T) {
        self.0.of(party.owner).of(party.connection).push_back(value);
    }

    /// Takes the first value of the connection whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_of(|_| true).map(|(_, value)| value)
    }

    /// Takes the first value of those owners only whose turn it may be, with its owner. The others keep their places.
    pub(super) fn pop_of(&mut self, is_eligible: impl Fn(u64) -> bool) -> Option<(u64, T)> {
        let at = self.0.order.iter().position(|owner| is_eligible(*owner))?;
        let owner = self.0.order[at];
        let next = self.0.next(at, |connections| {
            let next = connections.next(0, |values| (values.pop_front(), values.is_empty())).flatten();
            (next, connections.order.is_empty())
        });
        next.flatten().map(|value| (owner, value))
    }

    /// Returns true if a value of one of those owners waits.
    pub(super) fn has(&self, is_eligible: impl Fn(u64) -> bool) -> bool {
        self.0.order.iter().any(|owner| is_eligible(*owner))
    }

    /// Removes a value of a party.
    pub(super) fn remove(&mut self, party: Party, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let removed = self.0.edit(party.owner, |connections| {
            let removed = connections.edit(party.connection, |values| {
                let removed = values.iter().position(is_it).and_then(|at| values.remove(at));
                (removed, values.is_empty())
            });
            (removed.flatten(), connections.order.is_empty())
        });
        removed.flatten()
    }

    /// Returns the owner of the most values.
    pub(super) fn largest_owner(&self) -> Option<u64> {
        let values = |owner: &u64| self.0.waiting.get(owner).map_or(0, Connections::len);
        self.0.order.iter().copied().max_by_key(values)
    }

    /// Removes the last value of an owner's connection with the most.
    pub(super) fn pop_last(&mut self, owner: u64) -> Option<T> {
        let popped = self.0.edit(owner, |connections| {
            let values = |connection: &u64| connections.waiting.get(connection).map_or(0, VecDeque::len);
            let largest = connections.order.iter().copied().max_by_key(values);
            let popped = largest.and_then(|largest| {
                connections.edit(largest, |values| (values.pop_back(), values.is_empty())).flatten()
            });
            (popped, connections.order.is_empty())
        });
        popped.flatten()
    }

    /// Returns true if no value waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.order.is_empty()
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self(RoundRobin::default())
    }
}

// === impl Connections ===

impl<T> Connections<T> {
    fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }
}

// === impl RoundRobin ===

impl<K: Copy + Eq + Hash, V: Default> RoundRobin<K, V> {
    /// Returns the queue of a key; a new queue comes last.
    fn of(&mut self, key: K) -> &mut V {
        let order = &mut self.order;
        self.waiting.entry(key).or_insert_with(|| {
            order.push_back(key);
            V::default()
        })
    }

    /// Takes from the queue at this place, and moves its key to the end if it is not empty.
    fn next<T>(&mut self, at: usize, take: impl FnOnce(&mut V) -> (T, bool)) -> Option<T> {
        let key = self.order.remove(at)?;
        let (taken, is_empty) = take(self.waiting.get_mut(&key)?);
        if is_empty {
            self.waiting.remove(&key);
        } else {
            self.order.push_back(key);
        }
        Some(taken)
    }

    /// Takes from the queue of a key, which keeps its place if it is not empty.
    fn edit<T>(&mut self, key: K, take: impl FnOnce(&mut V) -> (T, bool)) -> Option<T> {
        let (taken, is_empty) = take(self.waiting.get_mut(&key)?);
        if is_empty {
            self.waiting.remove(&key);
            self.order.retain(|other| *other != key);
        }
        Some(taken)
    }
}

impl<K, V> Default for RoundRobin<K, V> {
    fn default() -> Self {
        Self { order: VecDeque::new(), waiting: HashMap::new() }
    }
}
