//! Application of the messages of successive streams to the store.
//!
//! - The initial events are collected apart, and applied at their end as the difference to the store. Objects are compared by uid,
//!   labels and body, not by version, as another lineage renumbers everything; objects without bodies (METADATA) by version, too.
//! - A batch is open while the version does not advance, or is lower than the object's own: its events wait, and are applied in one
//!   step with the message that advances it. An event that the server marks `open` is applied at once, unless others wait.
//! - A stream that breaks off discards what waits: the resume repeats it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use bytes::Bytes;

use super::{
    handler::{Notification, Notifier},
    store::{Key, Published, Store},
};
use crate::{
    client::{
        Progress,
        follower::{Followed, FollowedEvent, News},
    },
    proto::pb,
};

/// Writer of an informer's store.
pub(super) struct Replica {
    store: Store,
    /// Namespaces of the last bookmark of the stream; none before it.
    namespaces: Option<Vec<String>>,
    /// Initial events, while the stream is in them.
    listed: Option<BTreeMap<Key, pb::Object>>,
    /// Events of a batch that is open.
    pending: Vec<(pb::EventType, pb::Cause, pb::Object)>,
    /// Calls of the step that is being applied.
    notifications: Vec<Notification>,
}

// === impl Replica ===

impl Replica {
    pub(super) fn new(store: Store) -> Self {
        Self { store, namespaces: None, listed: None, pending: Vec::new(), notifications: Vec::new() }
    }

    /// Begins a stream that resumes, or lists.
    pub(super) fn begin(&mut self, is_listing: bool) {
        self.pending.clear();
        self.namespaces = None;
        self.listed = is_listing.then(BTreeMap::new);
    }

    /// Applies one message of the stream, which leads to a position, shows the new state to readers, and then notifies the handler.
    /// Returns the content of a bookmark, and true if nothing is missing up to it.
    pub(super) fn apply(
        &mut self,
        followed: Followed,
        position: Option<&str>,
        published: &Published,
        notifier: &Notifier,
    ) -> Option<(Progress, bool)> {
        let progress = self.message(followed);
        let advanced = position.filter(|to| self.listed.is_none() && *to != self.store.version());
        if let Some(version) = advanced {
            self.store.set_version(version);
        }
        if advanced.is_some() || !self.notifications.is_empty() {
            self.store.publish(published);
        }
        self.notifications.drain(..).for_each(|notification| notifier.notify(notification));
        progress
    }

    fn message(&mut self, Followed { news, before, is_last }: Followed) -> Option<(Progress, bool)> {
        let mut is_complete = before.is_some();
        match news {
            News::Event(event) => self.event(event, is_complete),
            News::Listing(progress) => return Some((progress, false)),
            News::Synced(progress) | News::Bookmark(progress) => {
                // Objects leave and enter with the caller's namespaces at the version that the stream has already.
                is_complete |= self.namespaces.as_ref().is_some_and(|namespaces| *namespaces != progress.namespaces);
                if let Some(listed) = self.listed.take() {
                    self.replace(listed);
                } else if is_complete {
                    self.complete();
                }
                self.namespaces = Some(progress.namespaces.clone());
                return Some((progress, !is_last));
            }
            News::Dropped { .. } if is_complete => self.complete(),
            News::Dropped { .. } => {}
        }
        None
    }

    fn event(&mut self, event: FollowedEvent, has_advanced: bool) {
        let (is_in_batch, is_open) = (event.is_in_batch(), event.is_open);
        let FollowedEvent { event_type, cause, mut object, .. } = event;
        if let Some(listed) = &mut self.listed {
            // Otherwise one object would keep its whole batch in memory.
            if let Some(pb::object::Body::Raw(body)) = &mut object.body {
                *body = Bytes::copy_from_slice(body);
            }
            listed.insert(key_of(&object), object);
            return;
        }
        // The batch of another version that waits is complete, and this event belongs to one that is open: a selection does not see
        // every version, and the version before a batch may be new to it.
        if has_advanced && is_in_batch {
            self.complete();
        }
        let is_alone = self.pending.is_empty();
        self.pending.push((event_type, cause, object));
        if (is_open && is_alone) || (has_advanced && !is_in_batch) {
            self.complete();
        }
    }

    fn complete(&mut self) {
        for (event_type, cause, object) in mem::take(&mut self.pending) {
            self.apply_event(event_type, cause, object);
        }
    }

    fn apply_event(&mut self, event_type: pb::EventType, cause: pb::Cause, object: pb::Object) {
        let key = key_of(&object);
        if event_type != pb::EventType::Deleted {
            return self.upsert(key, object);
        }
        let Some(known) = self.store.get(&key) else { return };
        // An earlier stream was ahead of this one, and another object has the key already.
        if known.uid != object.uid && !known.uid.is_empty() && !object.uid.is_empty() {
            return;
        }
        // Its rights or its format leave the object without a body: then the store has its last state.
        let has_content = object.body.is_some() || known.body.is_none();
        let last = if has_content { Arc::new(object) } else { Arc::clone(known) };
        self.store.remove(&key);
        self.notifications.push(Notification::Deleted { last, cause });
    }

    fn upsert(&mut self, key: Key, object: pb::Object) {
        let new = Arc::new(object);
        let old = self.store.get(&key).cloned();
        self.store.insert(key, Arc::clone(&new));
        match old {
            None => self.notifications.push(Notification::Added(new)),
            Some(old) if old.uid != new.uid => {
                self.notifications.push(Notification::Deleted { last: old, cause: pb::Cause::Inferred });
                self.notifications.push(Notification::Added(new));
            }
            Some(old) if is_same(&old, &new) => {}
            Some(old) => self.notifications.push(Notification::Updated { old, new }),
        }
    }

    /// Applies a list as the difference to the store.
    fn replace(&mut self, listed: BTreeMap<Key, pb::Object>) {
        let keys: BTreeSet<&Key> = listed.keys().collect();
        let vanished: Vec<Key> = self.store.keys().filter(|key| !keys.contains(key)).cloned().collect();
        for key in vanished {
            let removed = self.store.remove(&key);
            let inferred = removed.map(|last| Notification::Deleted { last, cause: pb::Cause::Inferred });
            self.notifications.extend(inferred);
        }
        for (key, object) in listed {
            self.upsert(key, object);
        }
    }
}

fn key_of(object: &pb::Object) -> Key {
    (object.namespace.clone(), object.name.clone())
}

/// Returns true if two states of an object are the same to a handler.
fn is_same(old: &pb::Object, new: &pb::Object) -> bool {
    let has_body = old.body.is_some() || new.body.is_some();
    old.labels == new.labels
        && old.body == new.body
        && old.media_type == new.media_type
        && (has_body || old.resource_version == new.resource_version)
}
