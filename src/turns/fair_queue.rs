//! Fair queue: owners take turns, and so do the connections of each owner, however many values wait for one of them. No operation
//! takes a time that depends on the number of those that wait.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::Party;

/// Waiting values, by owner and connection.
#[derive(Debug)]
pub(crate) struct FairQueue<T>(RoundRobin<RoundRobin<VecDeque<T>>>);

/// Queues that take turns, by key; none is empty.
#[derive(Debug)]
struct RoundRobin<Q> {
    last_turn: u64,
    /// Keys of the queues, in order of their turns.
    order: BTreeMap<u64, u64>,
    /// Turns of the queues, by the number of their values.
    by_len: BTreeSet<(usize, u64)>,
    queues: HashMap<u64, Turn<Q>>,
}

/// Queue, its turn, and the number of its values.
#[derive(Debug)]
struct Turn<Q> {
    number: u64,
    len: usize,
    queue: Q,
}

// === impl FairQueue ===

impl<T> FairQueue<T> {
    /// Adds a value, behind the others of its connection.
    pub(crate) fn push(&mut self, party: Party, value: T) {
        self.0.add(party.owner, |connections| {
            connections.add(party.connection, |values| values.push_back(value));
        });
    }

    /// Takes the first value of the connection whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_of(|_| true).map(|(_, value)| value)
    }

    /// Takes the first value of those owners only whose turn it may be, with its owner. The others keep their places.
    pub(crate) fn pop_of(&mut self, is_eligible: impl Fn(u64) -> bool) -> Option<(u64, T)> {
        let owner = self.0.order.values().copied().find(|owner| is_eligible(*owner))?;
        let value = self.0.remove(owner, true, |connections| {
            let connection = *connections.order.first_key_value()?.1;
            connections.remove(connection, true, VecDeque::pop_front)
        })?;
        Some((owner, value))
    }

    /// Returns true if a value of one of those owners waits.
    pub(super) fn has(&self, is_eligible: impl Fn(u64) -> bool) -> bool {
        self.0.order.values().any(|owner| is_eligible(*owner))
    }

    /// Removes a value of a party.
    pub(super) fn remove(&mut self, party: Party, is_it: impl Fn(&T) -> bool) -> Option<T> {
        self.0.remove(party.owner, false, |connections| {
            connections.remove(party.connection, false, |values| {
                values.iter().position(is_it).and_then(|at| values.remove(at))
            })
        })
    }

    /// Removes the last value of the owner with the most, with the owner.
    pub(super) fn pop_largest(&mut self) -> Option<(u64, T)> {
        let owner = self.0.largest()?;
        self.pop_last(owner).map(|value| (owner, value))
    }

    /// Removes the last value of an owner's connection with the most.
    pub(super) fn pop_last(&mut self, owner: u64) -> Option<T> {
        self.0.remove(owner, false, |connections| {
            let largest = connections.largest()?;
            connections.remove(largest, false, VecDeque::pop_back)
        })
    }

    /// Returns true if no value waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.queues.is_empty()
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self(RoundRobin::default())
    }
}

// === impl RoundRobin ===

impl<Q: Default> RoundRobin<Q> {
    /// Adds a value to the queue of a key; a new queue comes last.
    fn add(&mut self, key: u64, add: impl FnOnce(&mut Q)) {
        let Self { last_turn, order, by_len, queues } = self;
        let turn = queues.entry(key).or_insert_with(|| {
            *last_turn += 1;
            order.insert(*last_turn, key);
            Turn { number: *last_turn, len: 0, queue: Q::default() }
        });
        add(&mut turn.queue);
        by_len.remove(&(turn.len, turn.number));
        turn.len += 1;
        by_len.insert((turn.len, turn.number));
    }

    /// Takes a value out of the queue of a key. What remains keeps its place, or has the last one if this was its turn.
    fn remove<T>(&mut self, key: u64, is_turn: bool, take: impl FnOnce(&mut Q) -> Option<T>) -> Option<T> {
        let turn = self.queues.get_mut(&key)?;
        let taken = take(&mut turn.queue)?;
        self.by_len.remove(&(turn.len, turn.number));
        turn.len -= 1;
        if is_turn || turn.len == 0 {
            self.order.remove(&turn.number);
            self.last_turn += 1;
            turn.number = self.last_turn;
        }
        if turn.len == 0 {
            self.queues.remove(&key);
        } else {
            self.order.insert(turn.number, key);
            self.by_len.insert((turn.len, turn.number));
        }
        Some(taken)
    }

    /// Returns the key of the queue with the most values; of several, that whose turn comes last.
    fn largest(&self) -> Option<u64> {
        let (_, turn) = self.by_len.last()?;
        self.order.get(turn).copied()
    }
}

impl<Q> Default for RoundRobin<Q> {
    fn default() -> Self {
        Self { last_turn: 0, order: BTreeMap::new(), by_len: BTreeSet::new(), queues: HashMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counts by which a value is shed are those of what waits, whatever was added, taken and removed before.
    #[test]
    fn the_counts_are_those_of_the_values() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut queue = FairQueue::default();
        let mut model: BTreeMap<(u64, u64), Vec<u32>> = BTreeMap::new();
        let len_of = |model: &BTreeMap<(u64, u64), Vec<u32>>, owner: u64| -> usize {
            model.iter().filter(|((other, _), _)| *other == owner).map(|(_, values)| values.len()).sum()
        };
        for number in 0..20_000 {
            let party = Party { owner: random.u64(..8), connection: random.u64(..3) };
            match random.u8(..8) {
                0..4 => {
                    queue.push(party, number);
                    model.entry((party.owner, party.connection)).or_default().push(number);
                }
                4 => {
                    let popped = queue.pop_of(|owner| owner % 2 == 0);
                    let is_there = model.iter().any(|((owner, _), values)| owner % 2 == 0 && !values.is_empty());
                    assert_eq!(popped.is_some(), is_there);
                    if let Some((owner, value)) = popped {
                        let of_owner = model.iter_mut().filter(|((other, _), _)| *other == owner);
                        let values = of_owner.map(|(_, values)| values).find(|values| values.first() == Some(&value));
                        values.expect("the first of a connection").remove(0);
                    }
                }
                5 => {
                    let values = model.entry((party.owner, party.connection)).or_default();
                    let at = (!values.is_empty()).then(|| random.usize(..values.len()));
                    let removed = at.and_then(|at| queue.remove(party, |value| *value == values[at]));
                    assert_eq!(removed, at.map(|at| values.remove(at)));
                }
                _ => {
                    let most = (0..8).map(|owner| len_of(&model, owner)).max();
                    let popped = queue.pop_largest();
                    assert_eq!(popped.is_some(), most != Some(0));
                    if let Some((owner, value)) = popped {
                        assert_eq!(Some(len_of(&model, owner)), most);
                        let of_owner = model.iter_mut().filter(|((other, _), _)| *other == owner);
                        let values = of_owner.map(|(_, values)| values).max_by_key(|values| values.len()).unwrap();
                        let most = values.len();
                        let with_it = model.iter_mut().filter(|((other, _), values)| {
                            *other == owner && values.len() == most && values.last() == Some(&value)
                        });
                        with_it.map(|(_, values)| values).next().expect("the last of the largest").pop();
                    }
                }
            }
        }
        while queue.pop().is_some() {}
        assert!(queue.is_empty() && queue.0.order.is_empty() && queue.0.by_len.is_empty());
    }
}
