//! Fair queue: origins take turns, and so do the connections of each origin, however many values wait for one of them.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use super::call::Caller;
use crate::transport::Origin;

/// Waiting values, by origin and connection. Callers without a known origin count as one.
#[derive(Debug)]
pub(super) struct FairQueue<T>(RoundRobin<Option<Origin>, RoundRobin<Caller, VecDeque<T>>>);

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
    pub(super) fn push(&mut self, caller: Caller, value: T) {
        self.0.of(caller.origin()).of(caller).push_back(value);
    }

    /// Takes the first value of the connection whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        let next = self.0.next(|connections| {
            let next = connections.next(|values| (values.pop_front(), values.is_empty())).flatten();
            (next, connections.order.is_empty())
        });
        next.flatten()
    }

    /// Returns true if no value waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.order.is_empty()
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self(RoundRobin::default())
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

    /// Takes from the queue of the next key, and moves that key to the end if its queue is not empty.
    fn next<T>(&mut self, take: impl FnOnce(&mut V) -> (T, bool)) -> Option<T> {
        let key = self.order.pop_front()?;
        let (taken, is_empty) = take(self.waiting.get_mut(&key)?);
        if is_empty {
            self.waiting.remove(&key);
        } else {
            self.order.push_back(key);
        }
        Some(taken)
    }
}

impl<K, V> Default for RoundRobin<K, V> {
    fn default() -> Self {
        Self { order: VecDeque::new(), waiting: HashMap::new() }
    }
}
