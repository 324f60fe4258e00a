//! Second reader at the position of another one.

use super::{Log, Skipping, Slot};
use crate::watch::{Frame, policy::State};

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Adds a slot that continues as another one does. Returns its index; none while a thread works on what merges for the other.
    pub(in crate::watch) fn duplicate(&mut self, index: usize, id: u64) -> Option<usize> {
        let slot = self.slots[index].duplicate(id)?;
        let added = self.slots.insert(slot);
        let skipping = self.skipping.iter().find(|skipping| skipping.slot == index);
        let skipping = skipping.map(|skipping| Skipping { slot: added, ..skipping.clone() });
        self.skipping.extend(skipping);
        self.note_low(added);
        Some(added)
    }

    /// Returns the number of suppressed changes that no bookmark has reported, and of events that the reader of a slot must read before
    /// the writer may wait for it. `None` if the slot is not live, or if threads fill the log: they may be behind its reader.
    pub(in crate::watch) fn live_at_head(&self, index: usize) -> Option<(u64, u64)> {
        let slot = &self.slots[index];
        let is_skipping = self.skipping.iter().any(|skipping| skipping.slot == index);
        let is_alike = matches!(slot.state, State::Live) && self.deferred.is_none() && !is_skipping;
        let left_to_read = slot.block.as_ref().map_or(0, |right| right.left_to_read);
        is_alike.then_some((slot.unreported, left_to_read))
    }
}

// === impl Slot ===

impl Slot {
    fn duplicate(&self, id: u64) -> Option<Self> {
        let state = self.state.duplicate()?;
        Some(Self { id, watches: 1, state, block: self.block.clone(), waker: None, ..*self })
    }
}
