//! Kinds of cursors.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::{
    model::Selection,
    watch::{
        Frame,
        replay::{Counted, ReplayPosition},
    },
};

/// Selection and format of cursors, which share what is encoded for them.
#[derive(Debug)]
pub(in crate::watch) struct Kind<F: Frame> {
    pub(in crate::watch) selection: Arc<Selection>,
    pub(in crate::watch) format: F::Format,
    /// Unique within the resource.
    pub(super) id: u64,
    /// Number of cursors.
    cursors: AtomicUsize,
    /// Number of its events, for the queues under BLOCK.
    pub(in crate::watch) counted: Counted,
}

/// Kind and position of a block: offset, number of the version, and if a relist must be reported. Within a history all versions are
/// of one lineage.
pub(super) type Key = (u64, u64, u128, bool);

// === impl Kind ===

impl<F: Frame> Kind<F> {
    pub(super) fn new(selection: Arc<Selection>, format: F::Format, id: u64) -> Self {
        Self { selection, format, id, cursors: AtomicUsize::default(), counted: Counted::default() }
    }

    /// Returns the selection and the format.
    pub(in crate::watch) fn selected(&self) -> (&Selection, &F::Format) {
        (&self.selection, &self.format)
    }

    /// Returns the key of its block at a position.
    pub(super) fn key_of(&self, at: &ReplayPosition) -> Key {
        (self.id, at.offset, at.version.number(), at.is_gap)
    }

    pub(super) fn cursors(&self) -> usize {
        self.cursors.load(Ordering::Relaxed)
    }

    /// Returns true if its events take long enough to be left to threads.
    pub(in crate::watch) fn is_costly(&self) -> bool {
        self.selection.expression.is_some() || F::is_costly(&self.format)
    }

    /// Counts one more cursor.
    pub(in crate::watch) fn enter(&self) {
        self.cursors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one cursor less.
    pub(in crate::watch) fn leave(&self) {
        self.cursors.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn is_shared(&self) -> bool {
        self.cursors() > 1
    }
}
