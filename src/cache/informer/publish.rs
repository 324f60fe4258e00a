//! Order in which readers get a new state: its snapshot, the watchers' logs, the distributed version, the waiting callers.
//!
//! A model test explores it together with the reading threads (`tests/model.rs`).

use std::sync::{Arc, atomic::Ordering};

use super::{InformerShared, Writer};
use crate::{
    cache::History,
    model::{Batch, Cause, Change},
    watch::Frame,
};

// === impl Writer ===

impl<F: Frame> Writer<F> {
    /// Publishes the new state to readers, then to watchers, then the position that watchers may have reached.
    pub(super) fn publish(&mut self, batches: &[Arc<Batch>]) {
        let Some(live) = &mut self.live else { return };
        self.shared.measure_history(&live.history);
        let distributed = Arc::new(live.history.current().clone());
        let snapshot = Arc::new(live.indexer.snapshot());
        let is_first =
            self.shared.snapshot.load().as_ref().is_none_or(|last| last.history_id() != snapshot.history_id());
        // The waited-for version of another history may never be reached.
        let reached = if is_first { u128::MAX } else { snapshot.version().number() };
        self.shared.snapshot.store(Some(snapshot));
        live.broadcaster.publish(batches);
        live.broadcaster.drop_before(live.history.begin());
        self.shared.note_gap(batches);
        self.shared.distributed.store(Some(distributed));
        self.shared.waiters.wake(reached);

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

    pub(super) fn measure_history(&self, history: &History) {
        self.oldest.store(Some(Arc::new(history.oldest().clone())));
        self.stats.history_events.store(history.events() as u64, Ordering::Relaxed);
        self.stats.history_bytes.store(history.bytes() as u64, Ordering::Relaxed);
    }
}
