//! Counts of live values, by kind and thread. The checker compares them with the sizes that a server reports and its bounds.
//!
//! A counted value has a field of type `Alive`. Without debug assertions that field is empty, and nothing is counted.

/// Kind of a counted value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Encoded events that follow a position of a history.
    Block,
    /// Changes merged for a cursor under COALESCE.
    Merging,
    /// A batch in the history; the size is what the history charges for it.
    Record,
}

/// Mark of one live value, of some kind and size.
#[derive(Debug)]
pub(crate) struct Alive {
    #[cfg(debug_assertions)]
    kind: Kind,
    #[cfg(debug_assertions)]
    size: usize,
}

/// Number of live values and sum of their sizes. A value that another thread drops counts as negative there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of values.
    pub values: i64,
    /// Sum of their sizes.
    pub size: i64,
}

#[cfg(debug_assertions)]
thread_local! {
    static COUNTS: std::cell::Cell<[Count; 3]> = const { std::cell::Cell::new([Count { values: 0, size: 0 }; 3]) };
}

/// Returns the number and size of the live values of a kind on this thread.
#[cfg(debug_assertions)]
pub fn alive(kind: Kind) -> Count {
    COUNTS.get()[kind as usize]
}

/// Returns zero: without debug assertions nothing is counted.
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

impl Clone for Alive {
    #[cfg(debug_assertions)]
    fn clone(&self) -> Self {
        Self::new(self.kind, self.size)
    }

    #[cfg(not(debug_assertions))]
    fn clone(&self) -> Self {
        Self {}
    }
}

#[cfg(debug_assertions)]
impl Drop for Alive {
    fn drop(&mut self) {
        add(self.kind, -1, -(self.size.cast_signed() as i64));
    }
}
