//! Lists of the upstream: those that continue its history, and those that rewrite it.

use std::rc::Rc;

use informerd::proto::pb::Cause;

use super::{Batch, Change, Truth, Upstream};
use crate::checker::{
    pod::{Held, Pod},
    selection::Selection,
};

impl Truth {
    /// Returns a list, after writes that were not reported.
    pub(crate) fn relist(&mut self, step: u64) -> Upstream {
        let (before, after) = (self.safe_version(), self.version + step);
        self.version = after;
        let existing = |old: &Rc<Held>| self.world.get(&old.pod.key).filter(|new| new.pod.uid == old.pod.uid);
        let deletion = |old: &Rc<Held>| {
            let cause = if existing(old).is_some() { Cause::NotServed } else { Cause::Inferred };
            Change { old: Some(Rc::clone(old)), new: None, version: after, cause }
        };
        let is_listed = |old: &Rc<Held>| self.world.get(&old.pod.key).is_some_and(|new| new.is_served);
        let vanished = self.seen.values().filter(|old| !is_listed(old));
        let replaced = self.seen.values().filter(|old| is_listed(old) && existing(old).is_none());
        let mut changes: Vec<Change> = vanished.chain(replaced).map(deletion).collect();
        let (mut listed, not_served) = (Vec::new(), self.not_served());
        for new in self.world.values_mut().filter(|new| new.is_served) {
            let old = self.seen.get(&new.pod.key);
            let is_unchanged = old.is_some_and(|old| old.body == new.body);
            if self.has_lineage {
                // Such a source has no versions of objects: every object has the version of its list.
                let at_list = Rc::new(Held { version: after, ..Held::clone(new) });
                listed.push(Rc::clone(&at_list));
                *new = if is_unchanged { Rc::clone(old.expect("it is the same")) } else { at_list };
            } else {
                listed.push(Rc::clone(new));
            }
            if !is_unchanged {
                let old = old.filter(|old| old.pod.uid == new.pod.uid).cloned();
                changes.push(Change {
                    old,
                    new: Some(Rc::clone(new)),
                    version: new.version,
                    cause: Cause::Unspecified,
                });
            }
        }
        self.seen = self.served();
        // A list without a new version comes at one that was already complete.
        self.push(Batch { is_relist: true, is_open: before == after, ..Batch::new(before, after, changes) });
        self.open.clear();
        self.last = Upstream::Bookmark(after);
        Upstream::List(listed, not_served, after)
    }

    /// Returns the result of the upstream's own relist, as a relay receives it, after writes that were not reported.
    pub(crate) fn relisted(&mut self, step: u64) -> Upstream {
        let (before, after) = (self.safe_version(), self.version + step);
        self.version = after;
        let (mut told, mut changes) = (Vec::new(), Vec::new());
        let gone = |old: &Rc<Held>, version, cause| Change { old: Some(Rc::clone(old)), new: None, version, cause };
        for old in self.seen.values() {
            match self.world.get(&old.pod.key) {
                None => {
                    told.push(Upstream::Deleted(Rc::clone(old), after));
                    changes.push(gone(old, after, Cause::Inferred));
                }
                Some(new) if !new.is_served => {
                    let is_same = new.pod.uid == old.pod.uid;
                    told.push(Upstream::NotServed(Rc::clone(new)));
                    changes.push(gone(old, new.version, if is_same { Cause::NotServed } else { Cause::Inferred }));
                }
                Some(_) => {}
            }
        }
        for new in self.world.values_mut().filter(|new| new.is_served) {
            let old = self.seen.get(&new.pod.key);
            if old.is_some_and(|old| old.body == new.body) {
                continue;
            }
            if self.has_lineage {
                Rc::make_mut(new).version = after;
            }
            let (is_replaced, version) = (old.is_some_and(|old| old.pod.uid != new.pod.uid), new.version);
            changes.extend(old.filter(|_| is_replaced).map(|old| gone(old, version, Cause::Inferred)));
            let (old, new) = (old.filter(|_| !is_replaced).cloned(), Rc::clone(new));
            told.push(Upstream::Put(Rc::clone(&new)));
            changes.push(Change { old, new: Some(new), version, cause: Cause::Unspecified });
        }
        told.push(Upstream::Bookmark(after));
        self.seen = self.served();
        self.push(Batch { is_relist: true, is_open: before == after, ..Batch::new(before, after, changes) });
        self.open.clear();
        self.last = Upstream::Bookmark(after);
        Upstream::Relisted(told)
    }

    /// Rewrites the history, at any version, with some objects unchanged and others changed: an older state was restored, and
    /// perhaps written to since, or it is a different upstream. The upstream either reports this, or its list shows it: an object
    /// has another version than at a complete version.
    pub(crate) fn rewrite(&mut self, ahead: i64, keep: u8, is_said: bool) -> Upstream {
        let (known, safe) = (self.seen_version(), self.safe_version());
        let version = if self.has_lineage { 3 } else { known.saturating_add_signed(ahead).max(2) };
        let is_known = |held: &Rc<Held>| held.version > 1 && held.version <= safe;
        let other = self.seen.values().find(|held| is_known(held)).map(|held| held.pod.key);
        let is_shown = !self.has_lineage && version >= known && other.is_some();
        let kept = std::mem::take(&mut self.world).into_values().enumerate();
        for (at, mut held) in kept {
            let is_other = Some(held.pod.key) == other;
            if !is_other && keep >> (at % 8) & 1 == 0 {
                continue;
            }
            let at = if is_other { held.version.min(safe) - 1 } else { held.version };
            Rc::make_mut(&mut held).version = if self.has_lineage { version } else { at.min(version) };
            self.world.insert(held.pod.key, held);
        }
        self.version = version;
        self.begin();
        match self.list() {
            Upstream::List(held, not_served, at) if is_said || !is_shown => Upstream::Rewritten(held, not_served, at),
            list => list,
        }
    }

    /// Returns true if these objects, each written again at a version, are all that was held at that version and show nothing else:
    /// without stable bodies, other bytes at the same version are no evidence.
    fn is_state_at(&self, version: u64, written: &[Rc<Held>]) -> bool {
        let epoch = self.current();
        let batches = epoch.batches.iter().take_while(|batch| batch.after <= version).count();
        let state = epoch.state_at(batches, Selection::All);
        let is_same = |new: &Rc<Held>| {
            let held = state.get(&new.pod.key).filter(|_| !self.has_stable_bodies);
            held.is_some_and(|held| held.version == version && held.pod.uid == new.pod.uid)
        };
        written.len() == state.len() && written.iter().all(is_same)
    }

    /// Rewrites the history at an older version: a different upstream, with some of the objects, each changed.
    pub(crate) fn rewrite_history(&mut self, back: u64, keep: u8) -> Upstream {
        let version = if self.has_lineage { 3 } else { self.seen_version().saturating_sub(back) };
        if version == 0 {
            return self.relist(0);
        }
        let kept = std::mem::take(&mut self.world).into_values().enumerate();
        let kept: Vec<_> = kept.filter(|(at, _)| keep >> (at % 8) & 1 == 1).map(|(_, held)| held).collect();
        if !self.has_lineage && version == self.safe_version() && self.is_state_at(version, &kept) {
            // The list of a replica that has not reached the open version is the same: nobody can see a rewrite.
            self.world = kept.into_iter().map(|held| (held.pod.key, held)).collect();
            return self.relist(0);
        }
        self.version = version;
        for held in kept {
            self.serial += 1;
            let Pod { key, uid, app, node, .. } = held.pod;
            self.put(key, Some(uid), app, node);
        }
        self.begin();
        self.list()
    }
}
