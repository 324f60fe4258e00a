//! Counts of what is alive, by kind and thread: the checker compares it with what a server says that it retains, and with its bounds.
//!
//! A value that is counted has a field of the type `Alive`. Without debug assertions that field is empty, and nothing of this
//! is left.

/// The kinds of values that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Events in a log of a group; their size is that of the run and its marks, without the arena.
    Run,
    /// Changes that have merged for a cursor under COALESCE, or were published and are kept for those under it.
    Merging,
    /// A batch in the history; its size is what it is charged with.
    Record,
}

/// A value of some kind and size that is alive.
#[derive(Debug)]
pub(crate) struct Alive {
    #[cfg(debug_assertions)]
    kind: Kind,
    #[cfg(debug_assertions)]
    size: usize,
}

/// The number of values and the sum of their sizes. A value that is dropped on another thread counts as negative there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Their number.
    pub values: i64,
    /// The sum of their sizes.
    pub size: i64,
}

#[cfg(debug_assertions)]
thread_local! {
    static COUNTS: std::cell::Cell<[Count; 3]> = const { std::cell::Cell::new([Count { values: 0, size: 0 }; 3]) };
}

/// Returns how many values of a kind are alive on this thread.
#[cfg(debug_assertions)]
pub fn alive(kind: Kind) -> Count {
    COUNTS.get()[kind as usize]
}

/// Returns zero: nothing is counted.
#[cfg(not(debug_assertions))]
pub fn alive(_: Kind) -> Count {
    Count::default()
}

#[cfg(debug_assertions)]
fn add(kind: Kind, values: i64, size: i64) {
    let mut counts = COUNTS.get();
    let count = &mut counts[kind as usize];
    (count.values, count.size) = (count.values + values, count.size + size);
    COUNTS.set(counts);
}

// === impl Alive ===

impl Alive {
    /// Counts one value.
    #[cfg(debug_assertions)]
    pub(crate) fn new(kind: Kind, size: usize) -> Self {
        add(kind, 1, size.cast_signed() as i64);
        Self { kind, size }
    }

    /// Counts nothing.
    #[cfg(not(debug_assertions))]
    pub(crate) const fn new(_: Kind, _: usize) -> Self {
        Self {}
    }
}

#[cfg(debug_assertions)]
impl Drop for Alive {
    fn drop(&mut self) {
        add(self.kind, -1, -(self.size.cast_signed() as i64));
    }
}
