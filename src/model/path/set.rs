//! Set of paths that one walk through a JSON text follows together.
//!
//! All paths that lead through a value have passed the same number of steps, so they differ only in which of them are left: one bit
//! each. A step of the walk is one search among the keys of its level and two operations on a word, whatever the number of paths, and
//! wildcards and elements that overlap (`[*].a`, `[0].b`) need no copies of what follows them.

use std::cmp::Ordering;

use memchr::memchr;

use super::{Path, Step, unescaped};

/// Paths of a set, one bit each.
pub(super) type Bits = u64;

/// At most [`PathSet::MAX`] paths.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PathSet {
    /// Steps by their number; the last level has none.
    levels: Box<[Level]>,
    all: Bits,
}

/// Steps with the same number.
#[derive(Debug, Default, PartialEq, Eq)]
struct Level {
    /// Paths that end above this step.
    ended: Bits,
    /// Paths by key, sorted by length and bytes.
    keys: Vec<(Box<str>, Bits)>,
    /// Paths by element, sorted.
    elements: Vec<(usize, Bits)>,
    /// Paths with `[*]`.
    every: Bits,
    /// Paths with any key, and with any element or `[*]`.
    maps: Bits,
    arrays: Bits,
}

/// Value that a walk has reached: its depth, and the paths that lead to it or through it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'p> {
    set: &'p PathSet,
    depth: usize,
    paths: Bits,
}

// === impl PathSet ===

impl PathSet {
    /// Maximum number of paths.
    pub(super) const MAX: usize = Bits::BITS as usize;

    /// Returns the set of these paths, of which those beyond the maximum are left out. The first one has the lowest bit.
    pub(super) fn new<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Self {
        let paths: Vec<&Path> = paths.into_iter().take(Self::MAX).collect();
        let depth = paths.iter().map(|path| path.steps.len()).max().unwrap_or_default();
        let mut levels: Vec<Level> = (0..=depth).map(|_| Level::default()).collect();
        for (number, path) in paths.iter().enumerate() {
            let bit = 1 << number;
            for (level, step) in levels.iter_mut().zip(&*path.steps) {
                match step {
                    Step::Key(key) => {
                        level.maps |= bit;
                        add(&mut level.keys, |known| order(known.as_bytes(), key.as_bytes()), || key.clone(), bit);
                    }
                    Step::Index(index) => {
                        level.arrays |= bit;
                        add(&mut level.elements, |known| known.cmp(index), || *index, bit);
                    }
                    Step::Every => {
                        level.arrays |= bit;
                        level.every |= bit;
                    }
                }
            }
            levels[path.steps.len()].ended |= bit;
        }
        Self { levels: levels.into(), all: first(paths.len()) }
    }

    /// Returns the whole text, to which all paths lead.
    pub(super) fn root(&self) -> Place<'_> {
        Place { set: self, depth: 0, paths: self.all }
    }
}

/// Returns the bits of the first `count` paths.
pub(super) fn first(count: usize) -> Bits {
    Bits::MAX.checked_shr((PathSet::MAX - count.min(PathSet::MAX)) as u32).unwrap_or_default()
}

/// Adds a path to those with its key.
fn add<K>(sorted: &mut Vec<(K, Bits)>, compare: impl Fn(&K) -> Ordering, key: impl Fn() -> K, bit: Bits) {
    match sorted.binary_search_by(|(known, _)| compare(known)) {
        Ok(at) => sorted[at].1 |= bit,
        Err(at) => sorted.insert(at, (key(), bit)),
    }
}

/// Compares keys: most have another length than those of the paths.
fn order(a: &[u8], b: &[u8]) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

// === impl Level ===

impl Level {
    /// Returns the paths with a key, given as its JSON string: after at most seven comparisons.
    fn with_key(&self, key: &[u8]) -> Bits {
        let find = |key: &[u8]| {
            let found = self.keys.binary_search_by(|(known, _)| {
                #[cfg(test)]
                crate::model::work::add(1);
                order(known.as_bytes(), key)
            });
            found.map_or(0, |at| self.keys[at].1)
        };
        let key = &key[1..key.len() - 1];
        match memchr(b'\\', key) {
            None => find(key),
            Some(_) => unescaped(key).map_or(0, |key| find(key.as_bytes())),
        }
    }

    fn with_element(&self, index: usize) -> Bits {
        let found = self.elements.binary_search_by_key(&index, |(known, _)| *known);
        self.every | found.map_or(0, |at| self.elements[at].1)
    }
}

// === impl Place ===

impl<'p> Place<'p> {
    /// Returns the place without the paths that are not among `paths`.
    pub(super) fn only(self, paths: Bits) -> Self {
        Self { paths: self.paths & paths, ..self }
    }

    /// Returns true if a path leads to the value or through it.
    pub(super) fn has_paths(self) -> bool {
        self.paths != 0
    }

    /// Returns the paths that end at the value.
    pub(super) fn ended(self) -> Bits {
        self.level().map_or(0, |level| level.ended & self.paths)
    }

    /// Returns the paths that go on in the value, which begins with this byte.
    pub(super) fn go_on(self, first: u8) -> Bits {
        let paths = self.level().map_or(0, |level| match first {
            b'{' => level.maps,
            b'[' => level.arrays,
            _ => 0,
        });
        paths & self.paths
    }

    /// Returns the value of a key of the map here, given as its JSON string.
    pub(super) fn member(self, key: &[u8]) -> Self {
        let level = self.level().filter(|level| level.maps & self.paths != 0);
        self.below(level.map_or(0, |level| level.with_key(key)))
    }

    /// Returns an element of the array here.
    pub(super) fn element(self, index: usize) -> Self {
        let level = self.level().filter(|level| level.arrays & self.paths != 0);
        self.below(level.map_or(0, |level| level.with_element(index)))
    }

    fn below(self, paths: Bits) -> Self {
        Self { depth: self.depth + 1, paths: self.paths & paths, ..self }
    }

    fn level(self) -> Option<&'p Level> {
        self.set.levels.get(self.depth)
    }
}
