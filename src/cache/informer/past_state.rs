//! States at earlier versions, computed from a snapshot and the changes that the history still has.
//!
//! For each object that has changed since, the first of these changes has its earlier state. So the snapshot may be newer than the
//! changes that are read, and the history is locked for a part of them at a time: the informer's task is not held up.

use std::{
    cmp,
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use super::{InformerHandle, JoinError, not_in_history};
use crate::{
    cache::Snapshot,
    model::{Batch, Change, HistoryPosition, Object, ObjectKey, ResourceVersion},
    watch::{Backlog, Frame, NotInHistory, bytes_of},
};

/// Net difference of one object between two versions. Both states are set if it has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetChange {
    /// Earlier state; none if the object did not exist.
    pub old: Option<Arc<Object>>,
    /// Later state; none if the object did not exist.
    pub new: Option<Arc<Object>>,
}

/// Some of the last changes.
#[derive(Debug, Default)]
pub struct RecentChanges {
    /// Changes that were wanted, each with the offset after it, in order.
    pub changes: VecDeque<(u64, Change)>,
    /// Offset after everything that was looked at.
    pub offset: u64,
    /// True if changes before these, and after the requested offset, were not looked at.
    pub has_gap: bool,
}

/// Objects as they were at a version, and the snapshot that has all others.
struct Earlier {
    snapshot: Arc<Snapshot>,
    objects: HashMap<ObjectKey, Option<Arc<Object>>, foldhash::fast::RandomState>,
    /// Cost of the changes since, counted as the history does.
    replaced: u64,
}

/// Changes that are read while the history is locked.
const CHANGES: usize = 1024;

// === impl InformerHandle ===

impl<F: Frame> InformerHandle<F> {
    /// Returns the state at exactly a version, which must be complete. It takes time and memory for each object that has changed
    /// since.
    ///
    /// # Errors
    ///
    /// [`JoinError::Expired`] if the history does not reach back to the version, or the version is inside a relist or another batch.
    pub fn state_at(&self, version: &ResourceVersion) -> Result<Snapshot, JoinError> {
        let Earlier { snapshot, objects, replaced } = self.earlier(version, |_| true)?;
        let objects = objects.iter().map(|(key, object)| (key, object.as_ref()));
        Ok(snapshot.with_earlier(version, objects, replaced))
    }

    /// Returns an object as it was at exactly a version, and the number of the history.
    ///
    /// # Errors
    ///
    /// Those of [`Self::state_at`].
    pub fn object_at(
        &self,
        key: &ObjectKey,
        version: &ResourceVersion,
    ) -> Result<(Option<Arc<Object>>, u64), JoinError> {
        let Earlier { snapshot, mut objects, .. } = self.earlier(version, |changed| changed == key)?;
        let object = objects.remove(key).unwrap_or_else(|| snapshot.get(key).cloned());
        Ok((object, snapshot.history_id()))
    }

    /// Returns the objects that differ between two versions, sorted by key, and a snapshot from which the cost of their old states
    /// follows: that at the first version, as far as that goes.
    ///
    /// # Errors
    ///
    /// Those of [`Self::state_at`], of the first version and then of the second one.
    pub fn changes_between(
        &self,
        from: &ResourceVersion,
        to: &ResourceVersion,
    ) -> Result<(Vec<NetChange>, Snapshot), (JoinError, ResourceVersion)> {
        // The second state comes first: its snapshot has no change that the first one lacks.
        let later = self.earlier(to, |_| true).map_err(|error| (error, to.clone()))?;
        let earlier = self.earlier(from, |_| true).map_err(|error| (error, from.clone()))?;
        let by_key: BTreeMap<_, _> = earlier.objects.into_iter().collect();
        let differing = by_key.into_iter().filter_map(|(key, old)| {
            let new = later.objects.get(&key).cloned().unwrap_or_else(|| later.snapshot.get(&key).cloned());
            (old != new).then_some(NetChange { old, new })
        });
        let changes = differing.collect();
        if self.shared.past.history().lock().oldest_position().offset > later.snapshot.offset() {
            // It may be another history, in which the first version is that of another state.
            return Err((not_in_history(&self.shared.past.history().lock(), NotInHistory::Expired), from.clone()));
        }
        Ok((changes, earlier.snapshot.with_earlier(from, [], earlier.replaced)))
    }

    /// Returns the last `most` of the wanted changes after an offset, or of all. At most the last `looked_at` are looked at.
    pub fn recent_changes(
        &self,
        after: Option<u64>,
        looked_at: u64,
        most: usize,
        is_wanted: impl Fn(&Change) -> bool,
    ) -> RecentChanges {
        let history = self.shared.past.history();
        let (begin, version, end) = {
            let history = history.lock();
            let HistoryPosition { version, offset } = history.oldest_position().clone();
            (offset, version, history.current().offset)
        };
        // An offset that is not reached yet is of another history.
        let after = after.filter(|after| *after <= end);
        let from = after.unwrap_or_default().max(end.saturating_sub(looked_at)).max(begin);
        let has_gap = after.is_some_and(|after| after < from);
        let mut recent = RecentChanges { offset: from, has_gap, ..RecentChanges::default() };
        let mut reached = HistoryPosition { version, offset: from };
        loop {
            let backlog = history.lock().after_offset(&reached);
            let Ok(Backlog { batches, first, has_more, .. }) = backlog else { break };
            let changes = batches.iter().flat_map(|batch| &batch.changes);
            for (offset, change) in (first + 1..).zip(changes) {
                reached.offset = offset;
                if offset > recent.offset && is_wanted(change) {
                    recent.changes.push_back((offset, change.clone()));
                }
            }
            let surplus = recent.changes.len().saturating_sub(most);
            recent.changes.drain(..surplus);
            recent.has_gap |= surplus > 0 && after.is_some();
            recent.offset = recent.offset.max(reached.offset);
            if !has_more {
                break;
            }
        }
        recent
    }

    /// Returns the objects that have changed since a version and are wanted, as they were then.
    fn earlier(&self, version: &ResourceVersion, is_wanted: impl Fn(&ObjectKey) -> bool) -> Result<Earlier, JoinError> {
        let past = &self.shared.past;
        let expired = |error| not_in_history(&past.history().lock(), error);
        // Loaded before the history is read, so that the history has every change of it.
        let snapshot = self.snapshot().ok_or(JoinError::NotSynced)?;
        let begin = {
            let history = past.history().lock();
            // A history that has begun anew since has nothing of the snapshot.
            let is_of_history = snapshot.offset() >= history.oldest_position().offset;
            if is_of_history { history.offset_after(version) } else { Err(NotInHistory::Expired) }
        };
        let mut offset = begin.map_err(expired)?;
        if *version > *snapshot.safe_version() {
            return Err(expired(NotInHistory::Future));
        }
        self.stats().past_states.fetch_add(1, Ordering::Relaxed);
        let mut earlier = Earlier { snapshot, objects: HashMap::default(), replaced: 0 };
        while offset < earlier.snapshot.offset() {
            let batches = past.history().lock().read(offset, earlier.snapshot.offset(), CHANGES);
            let batches =
                batches.filter(|batches| !batches.is_empty()).ok_or_else(|| expired(NotInHistory::Expired))?;
            for (batch, _) in batches {
                if splits(&batch, version) {
                    return Err(expired(NotInHistory::Expired));
                }
                for change in &batch.changes {
                    earlier.replaced += bytes_of(change.old.as_ref()) as u64;
                    let key = change.object().key();
                    let is_changed = is_after(&batch, change, version) && is_wanted(key);
                    if is_changed && !earlier.objects.contains_key(key) {
                        earlier.objects.insert(key.clone(), change.old.clone());
                    }
                }
                offset += batch.changes.len() as u64;
            }
        }
        Ok(earlier)
    }
}

/// Returns true if the state at a version lacks a change. The changes of a relist are found at its end, also those of objects with
/// earlier versions.
fn is_after(batch: &Batch, change: &Change, version: &ResourceVersion) -> bool {
    let changed_at = if batch.is_relist { &batch.after } else { &change.version };
    // One of another lineage is not before it either.
    !matches!(changed_at.partial_cmp(version), Some(cmp::Ordering::Less | cmp::Ordering::Equal))
}

/// Returns true if a version is inside a batch, and only some of its changes are part of the state: nobody ever receives that.
fn splits(batch: &Batch, version: &ResourceVersion) -> bool {
    let is_inside = batch.before < *version && *version < batch.after;
    is_inside && !batch.changes.iter().all(|change| is_after(batch, change, version))
}
