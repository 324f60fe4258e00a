//! Sharing of bodies: watches of a stream that receive the same have one body.

use tonic::Code;

use super::{SubscribeBody, Subscribed, error, open_watch::OpenWatch};

/// Largest number of watches with one body: their ids are in each of its deliveries, which have at most 64 KiB.
const MAX_SHARING: usize = 1024;
/// Largest number of paused watches that get bodies of their own before others of the server get their turn.
const MAX_SPLITS: usize = 64;

// === impl SubscribeBody ===

impl SubscribeBody {
    /// Lets a watch that has nothing to hand out share the body of another one, or others share its own.
    pub(super) fn share(&mut self, key: usize) {
        if !self.bodies.get(key).is_some_and(|watch| watch.seeks && watch.count() == 1) || self.is_paused(key) {
            return;
        }
        let Some((alike, standing)) = self.bodies[key].body.shareable() else { return };
        let found = self.shareable.get(&alike).copied().filter(|other| *other != key);
        let has_room = |other: &usize| self.bodies.get(*other).is_some_and(|other| other.count() < MAX_SHARING);
        let Some(other) = found.filter(|other| has_room(other) && !self.is_paused(*other)) else {
            self.unregister(key);
            self.shareable.insert(alike, key);
            let watch = &mut self.bodies[key];
            (watch.shared_as, watch.seeks) = (Some(alike), false);
            return;
        };
        // Otherwise they stand at one place after the next event, or the next bookmark.
        if self.bodies[other].body.shareable() == Some((alike, standing)) {
            self.unregister(key);
            let OpenWatch { id, body, encoded_bytes, .. } = *self.bodies.remove(key);
            self.encoded_bytes -= encoded_bytes;
            let other_watch = &mut self.bodies[other];
            let sharing = body.share(&mut other_watch.body);
            // A list that doubles would leave up to half of its memory unused; this one has at most 1,024.
            if other_watch.sharing.len() == other_watch.sharing.capacity() {
                other_watch.sharing.reserve_exact(1 + other_watch.sharing.len() / 8);
            }
            other_watch.sharing.push((id, sharing));
            self.watches.insert(id, Subscribed::Open(other));
        }
    }

    /// Returns true if the only watch of a body is paused.
    pub(super) fn is_paused(&self, key: usize) -> bool {
        self.bodies.get(key).is_some_and(|watch| watch.count() == 1 && self.paused.contains(&watch.id))
    }

    /// Lets no further watch share a body.
    pub(super) fn unregister(&mut self, key: usize) {
        if let Some(shared_as) = self.bodies.get_mut(key).and_then(|watch| watch.shared_as.take())
            && self.shareable.get(&shared_as) == Some(&key)
        {
            self.shareable.remove(&shared_as);
        }
    }

    /// Removes a closed watch from its body, and the body with its last watch.
    pub(super) fn leave(&mut self, id: u32, key: usize) {
        let Some(watch) = self.bodies.get_mut(key) else { return };
        if watch.count() == 1 {
            watch.ends(Code::Ok);
            self.remove(key);
            return;
        }
        if let Some(audited) = watch.take(id).as_ref().and_then(|sharing| sharing.audited()) {
            audited.ends(Code::Ok);
        }
        self.is_split(id, key);
    }

    /// Remembers to give a paused watch a body of its own, if it shares one.
    pub(super) fn split_later(&mut self, id: u32) {
        let Some(key) = self.watches.get(&id).and_then(Subscribed::key) else { return };
        if self.bodies[key].count() > 1 {
            self.splitting.entry(key).or_default().insert(id);
        }
    }

    /// Forgets that a watch is to get a body of its own: it has one, has ended, or is no longer paused.
    pub(super) fn is_split(&mut self, id: u32, key: usize) {
        if let Some(ids) = self.splitting.get_mut(&key) {
            ids.remove(&id);
            if ids.is_empty() {
                self.splitting.remove(&key);
            }
        }
    }

    /// Gives some of the watches that were paused bodies of their own, at the same cost however many wait.
    pub(super) fn split_paused(&mut self) {
        let mut from = 0;
        for _ in 0..MAX_SPLITS {
            let Some((&key, ids)) = self.splitting.range(from..).next() else { return };
            match ids.last().copied() {
                Some(id) if self.split_off(id) => self.is_split(id, key),
                // The others of this body cannot either.
                _ => from = key + 1,
            }
        }
    }

    /// Gives the watches of a body whose rights have changed bodies of their own. Returns false if that is possible only later: the body
    /// has no turn until then.
    pub(super) fn split_changed(&mut self, key: usize) -> bool {
        let changed = self.bodies.get(key).map(|watch| watch.changed()).unwrap_or_default();
        changed.into_iter().all(|id| self.split_off(id))
    }

    /// Gives one of several watches a body of its own. Returns false if that is possible only later.
    fn split_off(&mut self, id: u32) -> bool {
        let Some(key) = self.watches.get(&id).and_then(Subscribed::key) else { return true };
        let Some(watch) = self.bodies.get_mut(key).filter(|watch| watch.count() > 1) else { return true };
        if watch.body.is_ending() {
            // It ends with the others, or now if it may receive no more.
            if let Some(refusal) = watch.end_for_access(id) {
                self.watches.remove(&id);
                self.paused.remove(&id);
                self.ended.push_back((id, error(&refusal)));
            }
            return true;
        }
        let Some(duplicate) = watch.body.duplicate() else { return false };
        if let Some(sharing) = watch.take(id) {
            let audited = sharing.audited().cloned();
            let body = watch.body.split(duplicate, sharing);
            self.is_split(id, key);
            self.insert(id, body, audited);
        }
        true
    }
}

#[cfg(test)]
mod tests;
