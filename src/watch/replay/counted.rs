//! Number of events of a selection and a format up to an offset, counted once for all queues under BLOCK.

use super::{ReplayPosition, lookahead::Lookahead};
use crate::{
    model::Selection,
    sync::Mutex,
    watch::{Frame, Past},
};

/// Count of the events of one kind: of most kinds, none.
#[derive(Debug, Default)]
pub(in crate::watch) struct Counted(Mutex<Option<Box<Inner>>>);

#[derive(Debug)]
struct Inner {
    counted: Lookahead,
    /// Number of the count.
    count: u64,
}

/// Number of events since a count began.
#[derive(Debug, Clone, Copy)]
pub(in crate::watch) struct Total {
    /// Number of the count: each begins at another position.
    count: u64,
    events: u64,
}

// === impl Counted ===

impl Counted {
    /// Counts up to a published offset; `None` if the history does not have what follows the last one. A first count begins at a
    /// position.
    pub(in crate::watch) fn up_to<F: Frame>(
        &self,
        head: u64,
        past: &Past,
        selected: (&Selection, &F::Format),
        begin: &ReplayPosition,
    ) -> Option<Total> {
        let mut inner = self.0.lock();
        let Inner { counted, count } =
            &mut **inner.get_or_insert_with(|| Box::new(Inner { counted: Lookahead::at(begin.clone()), count: 0 }));
        if counted.advance::<F>(past, selected, head, (u64::MAX, usize::MAX), || false).is_ok() {
            return Some(Total { count: *count, events: counted.events });
        }
        (*counted, *count) = (Lookahead::at(begin.clone()), *count + 1);
        None
    }
}

// === impl Total ===

impl Total {
    /// Returns the number of events after another one of the same count.
    pub(in crate::watch) fn after(self, other: Self) -> Option<u64> {
        (self.count == other.count).then(|| self.events.wrapping_sub(other.events))
    }

    /// Adds events that were read.
    pub(in crate::watch) fn add(&mut self, events: u64) {
        self.events = self.events.wrapping_add(events);
    }

    /// Returns what it was before so many events.
    pub(in crate::watch) fn before(self, events: u64) -> Self {
        Self { events: self.events.wrapping_sub(events), ..self }
    }
}
