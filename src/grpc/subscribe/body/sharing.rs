//! Sharing of bodies: watches of a stream that receive the same have one body.

use tonic::Code;

use super::{SubscribeBody, Subscribed, error, open_watch::OpenWatch};

/// Largest number of watches with one body: their ids are in each of its deliveries, which have at most 64 KiB.
const MAX_SHARING: usize = 1024;

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
            let sharing = body.share(&other_watch.body);
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
        } else if let Some(audited) = watch.take(id).as_ref().and_then(|sharing| sharing.audited()) {
            audited.ends(Code::Ok);
        }
    }

    /// Gives the watches that were paused bodies of their own.
    pub(super) fn split_paused(&mut self) {
        for id in std::mem::take(&mut self.to_split) {
            self.split_off(id);
        }
    }

    /// Gives the watches of a body whose rights may have changed bodies of their own.
    pub(super) fn split_changed(&mut self, key: usize) {
        let Some(watch) = self.bodies.get(key).filter(|watch| watch.count() > 1) else { return };
        if watch.body.is_notified() && watch.has_new_access() {
            for id in watch.ids().collect::<Vec<_>>() {
                self.split_off(id);
            }
        }
    }

    /// Gives one of several watches a body of its own. If that is not possible now, one whose rights have changed ends: it may receive
    /// no more; another one gets it later.
    fn split_off(&mut self, id: u32) {
        let Some(&Subscribed::Open(key)) = self.watches.get(&id) else { return };
        let Some(watch) = self.bodies.get_mut(key).filter(|watch| watch.count() > 1) else { return };
        let Some(sharing) = watch.take(id) else { return };
        let audited = sharing.audited().cloned();
        match watch.body.split(sharing) {
            Ok(body) => self.insert(id, body, audited),
            Err(sharing) => {
                if let Some(refusal) = sharing.end_for_access() {
                    self.watches.remove(&id);
                    self.paused.remove(&id);
                    self.ended.push_back((id, error(&refusal)));
                } else {
                    watch.sharing.push((id, sharing));
                    self.to_split.push(id);
                }
            }
        }
    }
}
