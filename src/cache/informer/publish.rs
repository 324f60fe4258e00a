//! Order in which readers get a new state: its snapshot, the published offset, the distributed version, the waiting callers.
//!
//! A model test explores it together with the reading threads (`tests/model.rs`).

use std::sync::{Arc, atomic::Ordering};

use super::{InformerShared, Writer};
use crate::{
    cache::CreationTime,
    model::{Batch, Cause, Change},
    watch::{Frame, History},
};

// === impl Writer ===

impl<F: Frame> Writer<F> {
    /// Publishes the new state to readers, then to watchers, then the position that watchers may have reached.
    pub(super) fn publish(&mut self, batches: &[Arc<Batch>]) {
        let Some(live) = &mut self.live else { return };
        let distributed = Arc::new(self.shared.past.history().lock().current().clone());
        let snapshot = Arc::new(live.indexer.snapshot());
        // The waited-for version of another history may never be reached.
        let is_first = std::mem::take(&mut self.has_new_history);
        let reached = if is_first { u128::MAX } else { snapshot.version().number() };
        self.shared.snapshot.store(Some(snapshot));
        let received = self.received.take().filter(|_| batches.iter().any(|batch| !batch.changes.is_empty()));
        if let Some(received) = received {
            self.shared.stats.applied.observe(received.elapsed());
        }
        self.broadcaster.publish_recorded(batches);
        self.shared.measure_history(&self.shared.past.history().lock());
        if received.is_some() {
            self.shared.measure_creation(batches, self.config.creation_time);
        }
        self.shared.note_gap(batches);
        self.shared.distributed.store(Some(distributed));
        self.shared.waiters.wake(reached);
        self.shared.health.note_reached(live.indexer.version());
        self.unread.report(&self.shared.health);

        let changes: usize = batches.iter().map(|batch| batch.changes.len()).sum();
        let is_not_served = |change: &&Change| change.cause == Cause::NotServed;
        let not_served = batches.iter().flat_map(|batch| &batch.changes).filter(is_not_served).count();
        self.shared.stats.not_served.fetch_add(not_served as u64, Ordering::Relaxed);
        self.shared.stats.changes.fetch_add(changes as u64, Ordering::Relaxed);
    }
}

// === impl InformerShared ===

impl InformerShared {
    /// Notes a relist before its version is distributed, so that a reader of that version finds the gap.
    fn note_gap(&self, batches: &[Arc<Batch>]) {
        if let Some(batch) = batches.iter().rfind(|batch| batch.is_gap()) {
            let (last, _) = &**self.relists.load();
            self.relists.store(Arc::new((Some(batch.after.clone()), last.clone())));
        }
    }

    /// Measures the delay of the last addition of a publish cycle, from its creation upstream. Objects of lists existed before.
    fn measure_creation(&self, batches: &[Arc<Batch>], creation_time: Option<CreationTime>) {
        let Some(creation_time) = creation_time else { return };
        let changes = batches.iter().filter(|batch| !batch.is_relist).flat_map(|batch| &batch.changes);
        let added = changes.filter(|change| change.old.is_none()).filter_map(|change| change.new.as_ref()).next_back();
        if let Some(created_at) = added.and_then(|object| creation_time(object)) {
            // The clock of the upstream may be ahead.
            self.stats.propagation.observe(created_at.elapsed().unwrap_or_default());
        }
    }

    pub(super) fn measure_history(&self, history: &History) {
        self.oldest.store(Some(Arc::new((history.oldest().clone(), history.oldest_at()))));
        self.stats.history_events.store(history.events() as u64, Ordering::Relaxed);
        self.stats.history_bytes.store(history.bytes() as u64, Ordering::Relaxed);
    }
}
