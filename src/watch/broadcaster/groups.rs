//! Groups of a resource, by their selection and format, and by the changes that concern them.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
};

use slab::Slab;

use crate::{
    model::{HistoryPosition, Selection},
    watch::{Frame, config::BroadcasterStats, group::Group, routes::Routes, writer_signals::WriterSignals},
};

/// Groups, each with its number as its id.
#[derive(Debug)]
pub(super) struct Groups<F: Frame> {
    by_id: Slab<Arc<Group<F>>>,
    by_key: HashMap<GroupKey<F>, usize>,
    pub(super) routes: Routes,
    pub(super) stats: Arc<BroadcasterStats>,
}

type GroupKey<F> = (Arc<Selection>, <F as Frame>::Format);

// === impl Groups ===

impl<F: Frame> Groups<F> {
    pub(super) fn new(stats: Arc<BroadcasterStats>) -> Self {
        Self { by_id: Slab::new(), by_key: HashMap::new(), routes: Routes::default(), stats }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Group<F>>> {
        self.by_id.iter().map(|(_, group)| group)
    }

    pub(super) fn get(&self, id: usize) -> Option<&Arc<Group<F>>> {
        self.by_id.get(id)
    }

    /// Returns the group with this selection and format. If there is none, creates it at a position.
    pub(super) fn get_or_create(
        &mut self,
        selection: Arc<Selection>,
        format: F::Format,
        reached: &HistoryPosition,
        writer_signals: &Arc<WriterSignals>,
    ) -> &Arc<Group<F>> {
        let Self { by_id, by_key, routes, stats } = self;
        let id = *by_key.entry((selection, format)).or_insert_with_key(|(selection, format)| {
            let entry = by_id.vacant_entry();
            let id = entry.key();
            let is_selective = routes.insert(selection, id);
            let is_budgeted = is_budgeted(selection, is_selective) || F::is_costly(format);
            let (selection, writer_signals) = (Arc::clone(selection), Arc::clone(writer_signals));
            entry.insert(Arc::new(Group::new(
                id,
                selection,
                format.clone(),
                is_budgeted,
                reached.clone(),
                writer_signals,
            )));
            id
        });
        stats.groups.store(by_id.len() as u64, Ordering::Relaxed);
        &by_id[id]
    }

    /// Removes those of these groups that have no readers any more, and those that ended on their own.
    pub(super) fn remove_vacant(&mut self, ids: Vec<usize>) {
        for id in ids {
            let is_over = |group: &Arc<Group<F>>| {
                let mut log = group.log.lock();
                let is_over = log.slots.is_empty() || log.end.is_some();
                if is_over {
                    log.end_deferral(&self.stats);
                }
                is_over
            };
            if self.by_id.get(id).is_some_and(is_over) {
                self.remove(id);
            }
        }
        self.stats.groups.store(self.by_id.len() as u64, Ordering::Relaxed);
    }

    pub(super) fn remove(&mut self, id: usize) {
        let group = self.by_id.remove(id);
        self.routes.remove(&group.selection, id);
        self.by_key.remove(&(Arc::clone(&group.selection), group.format.clone()));
    }

    /// Removes all groups.
    pub(super) fn clear(&mut self) {
        self.by_id.clear();
        self.by_key.clear();
        self.routes = Routes::default();
        self.stats.groups.store(0, Ordering::Relaxed);
    }
}

impl<F: Frame> std::ops::Index<usize> for Groups<F> {
    type Output = Arc<Group<F>>;

    fn index(&self, id: usize) -> &Arc<Group<F>> {
        &self.by_id[id]
    }
}

/// Returns true if the writer's time for a selection is bounded. `is_selective` is true if it is found for few changes that it
/// does not select.
pub(super) fn is_budgeted(selection: &Selection, is_selective: bool) -> bool {
    let is_exact = || Selection { namespace: None, namespaces: None, ..selection.clone() }.selects_all();
    selection.expression.is_some() || !is_selective && !is_exact()
}
