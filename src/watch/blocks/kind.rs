//! Kinds of cursors.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::{
    model::Selection,
    watch::{Frame, replay::Counted},
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

// === impl Kind ===

impl<F: Frame> Kind<F> {
    pub(super) fn new(selection: Arc<Selection>, format: F::Format, id: u64) -> Self {
        Self { selection, format, id, cursors: AtomicUsize::default(), counted: Counted::default() }
    }

    /// Returns the selection and the format.
    pub(in crate::watch) fn selected(&self) -> (&Selection, &F::Format) {
        (&self.selection, &self.format)
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
