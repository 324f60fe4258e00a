//! Fair queues: origins take turns, and the connections of each of them, however much waits for one.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use crate::transport::{Origin, Peer};

/// A client at a port is a connection; unix sockets of one user, and callers that no transport knows, are one together.
pub(super) type Connection = Option<Peer>;

/// Values that wait, by the origin and the connection that they are of.
#[derive(Debug)]
pub(super) struct Fair<T>(Ring<Option<Origin>, Ring<Connection, VecDeque<T>>>);

/// Those who wait, by what they take turns by.
#[derive(Debug)]
struct Ring<K, V> {
    /// Each that waits once: the next one first.
    order: VecDeque<K>,
    waiting: HashMap<K, V>,
}

// === impl Fair ===

impl<T> Fair<T> {
    /// Adds a value, behind the others of its connection.
    pub(super) fn push(&mut self, connection: Connection, value: T) {
        let origin = connection.as_ref().map(Peer::origin);
        self.0.of(origin).of(connection).push_back(value);
    }

    /// Takes the first value of the connection whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        let next = self.0.next(|connections| {
            let next = connections.next(|values| (values.pop_front(), values.is_empty())).flatten();
            (next, connections.order.is_empty())
        });
        next.flatten()
    }

    /// Returns whether nothing waits.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.order.is_empty()
    }
}

impl<T> Default for Fair<T> {
    fn default() -> Self {
        Self(Ring::default())
    }
}

// === impl Ring ===

impl<K: Copy + Eq + Hash, V: Default> Ring<K, V> {
    /// Returns what waits under a key, which comes last if nothing did.
    fn of(&mut self, key: K) -> &mut V {
        let order = &mut self.order;
        self.waiting.entry(key).or_insert_with(|| {
            order.push_back(key);
            V::default()
        })
    }

    /// Takes something of the next key, which comes last then if it has more.
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

impl<K, V> Default for Ring<K, V> {
    fn default() -> Self {
        Self { order: VecDeque::new(), waiting: HashMap::new() }
    }
}
