//! Application of the messages of successive streams to the store.
//!
//! - The initial events are collected apart, and applied at their end as the difference to the store. Objects are compared by uid,
//!   labels and body, not by version, as another lineage renumbers everything; objects without bodies (METADATA) by version, too.
//! - A batch is open while the version does not advance, or is lower than the object's own: its events wait, and are applied in one
//!   step with the message that advances it. An event that the server marks `open` is applied at once, unless others wait.
//! - A stream that breaks off discards what waits: the resume repeats it.

use std::{collections::BTreeMap, mem, sync::Arc};

use super::{
    handler::{Notification, Notifier},
    store::{Key, Published, Store},
};
use crate::{
    client::{
        Progress,
        follower::{Followed, FollowedEvent, News, is_another, own_body},
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
            own_body(&mut object);
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
            let key = key_of(&object);
            if event_type == pb::EventType::Deleted {
                self.delete(&key, cause, object);
            } else {
                self.upsert(key, object);
            }
        }
    }

    fn delete(&mut self, key: &Key, cause: pb::Cause, object: pb::Object) {
        let Some(known) = self.store.get(key).filter(|known| !is_another(known, &object)) else { return };
        // Its rights or its format leave the object without a body: then the store has its last state.
        let has_content = object.body.is_some() || known.body.is_none();
        let last = if has_content { Arc::new(object) } else { Arc::clone(known) };
        self.store.remove(key);
        self.notifications.push(Notification::Deleted { last, cause });
    }

    fn upsert(&mut self, key: Key, object: pb::Object) {
        let new = Arc::new(object);
        match self.store.insert(key, Arc::clone(&new)) {
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
        let vanished: Vec<Key> = self.store.keys().filter(|key| !listed.contains_key(*key)).cloned().collect();
        for key in vanished {
            let inferred = |last| Notification::Deleted { last, cause: pb::Cause::Inferred };
            self.notifications.extend(self.store.remove(&key).map(inferred));
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

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::client::{follower::Follower, informer::handler};

    /// Informer without I/O.
    struct Following {
        follower: Follower,
        replica: Replica,
        published: Published,
        notifier: Notifier,
    }

    impl Following {
        fn new() -> Self {
            let (notifier, _) =
                handler::start(thread::Builder::new(), None, Arc::new(|_| {}), 1, CancellationToken::new()).unwrap();
            let replica = Replica::new(Store::new(Vec::new()));
            let mut following =
                Self { follower: Follower::new(true, None), replica, published: Published::default(), notifier };
            following.begin();
            following
        }

        fn begin(&mut self) {
            self.follower.begin();
            self.replica.begin(self.follower.is_listing);
        }

        /// Applies a message; returns the state that readers see: its version, and the objects with theirs.
        fn shown(&mut self, message: pb::WatchResponse) -> String {
            let followed = self.follower.follow(message).unwrap();
            self.replica.apply(followed, self.follower.position.as_deref(), &self.published, &self.notifier);
            let snapshot = self.published.load();
            let objects: Vec<_> =
                snapshot.list().map(|object| format!(" {}@{}", object.name, object.resource_version)).collect();
            format!("{}:{}", snapshot.version(), objects.concat())
        }
    }

    fn message(r#type: pb::EventType, version: &str) -> pb::WatchResponse {
        pb::WatchResponse { r#type: r#type.into(), resource_version: version.to_owned(), ..Default::default() }
    }

    fn event(r#type: pb::EventType, name: &str, own: &str, version: &str) -> pb::WatchResponse {
        let object = pb::Object {
            name: name.to_owned(),
            resource_version: own.to_owned(),
            uid: "u".to_owned(),
            ..Default::default()
        };
        pb::WatchResponse { object: Some(object), ..message(r#type, version) }
    }

    fn put(name: &str, own: &str, version: &str) -> pb::WatchResponse {
        event(pb::EventType::Modified, name, own, version)
    }

    fn bookmark(version: &str, initial_events_end: bool, namespaces: &[&str]) -> pb::WatchResponse {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        let bookmark = pb::Bookmark { initial_events_end, namespaces, ..Default::default() };
        pb::WatchResponse { bookmark: Some(bookmark), ..message(pb::EventType::Bookmark, version) }
    }

    fn dropped(after: &str) -> pb::WatchResponse {
        let dropped = pb::Dropped { count: 1, after_resource_version: after.to_owned() };
        pb::WatchResponse { dropped: Some(dropped), ..message(pb::EventType::Dropped, "99") }
    }

    #[test]
    fn a_list_and_a_batch_are_shown_whole() {
        let mut informer = Following::new();
        assert_eq!(informer.shown(put("a", "3", "")), ":");
        assert_eq!(informer.shown(put("b", "4", "")), ":");
        assert_eq!(informer.shown(bookmark("5", true, &[])), "5: a@3 b@4");
        assert_eq!(informer.shown(put("c", "7", "5")), "5: a@3 b@4");
        assert_eq!(informer.shown(event(pb::EventType::Deleted, "a", "7", "7")), "7: b@4 c@7");
        assert_eq!(informer.shown(put("d", "8", "7")), "7: b@4 c@7");
        assert_eq!(informer.shown(put("e", "12", "9")), "9: b@4 c@7 d@8", "the begin of the batch after it");
        assert_eq!(informer.shown(bookmark("12", false, &[])), "12: b@4 c@7 d@8 e@12");
        informer.follower.expire();
        informer.begin();
        assert_eq!(informer.shown(put("b", "4", "")), "12: b@4 c@7 d@8 e@12");
        assert_eq!(informer.shown(bookmark("2", true, &[])), "2: b@4", "of another history");
    }

    #[test]
    fn an_open_event_is_shown_at_once_unless_others_wait() {
        let mut informer = Following::new();
        informer.shown(bookmark("5", true, &[]));
        let open = |message: pb::WatchResponse| pb::WatchResponse { open: true, ..message };
        assert_eq!(informer.shown(open(put("a", "7", "5"))), "5: a@7");
        assert_eq!(informer.shown(put("b", "8", "5")), "5: a@7");
        assert_eq!(informer.shown(open(put("c", "9", "5"))), "5: a@7");
        assert_eq!(informer.shown(open(put("d", "9", "6"))), "6: a@7 b@8 c@9 d@9");
    }

    #[test]
    fn a_stream_that_ends_discards_the_batch_that_waits() {
        let mut informer = Following::new();
        informer.shown(bookmark("5", true, &[]));
        informer.shown(put("a", "7", "5"));
        informer.begin();
        assert_eq!(informer.shown(bookmark("6", false, &[])), "6:");
        informer.shown(put("a", "7", "6"));
        assert_eq!(informer.shown(dropped("6")), "6:", "the hole is within the batch");
        informer.begin();
        informer.shown(put("b", "8", "6"));
        assert_eq!(informer.shown(dropped("8")), "8: b@8");
        assert_eq!(informer.shown(dropped("")), "8: b@8");
        assert!(informer.follower.position.is_none());
    }

    #[test]
    fn other_namespaces_at_the_same_version_complete_their_batch() {
        let mut informer = Following::new();
        informer.shown(bookmark("5", true, &["x"]));
        informer.shown(put("a", "7", "5"));
        assert_eq!(informer.shown(bookmark("5", false, &["x"])), "5:");
        assert_eq!(informer.shown(bookmark("5", false, &["x", "y"])), "5: a@7");
    }

    #[test]
    fn a_bookmark_shows_that_nothing_is_missing_unless_it_is_within_a_list_or_the_last() {
        let mut informer = Following::new();
        let mut is_current = |message: pb::WatchResponse| {
            let followed = informer.follower.follow(message).unwrap();
            let position = informer.follower.position.as_deref();
            informer.replica.apply(followed, position, &informer.published, &informer.notifier).map(|(_, is)| is)
        };
        assert_eq!(is_current(bookmark("", false, &[])), Some(false));
        assert_eq!(is_current(bookmark("5", true, &[])), Some(true));
        assert_eq!(is_current(put("a", "6", "6")), None);
        assert_eq!(is_current(bookmark("6", false, &[])), Some(true));
        let mut draining = bookmark("7", false, &[]);
        draining.bookmark.as_mut().unwrap().draining = true;
        assert_eq!(is_current(draining), Some(false));
    }
}
