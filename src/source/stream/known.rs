//! Current objects of a stream, the result of all events so far, with the last event of each.
//!
//! `reader` writes it with each event, every list reads it. An object is unconfirmed by the present writer of a pipe if its
//! last event is older than that writer.

use std::{
    borrow::Borrow,
    collections::{HashMap, HashSet},
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::{
    cache::List,
    model::{Cause, Event, EventType, Object, ObjectKey, ResourceVersion},
    source::uids::Uids,
};

/// State of a stream.
#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) version: ResourceVersion,
    objects: HashSet<KeyedObject, foldhash::fast::RandomState>,
    /// Version of the last event of an object, if that changed nothing. That of all others is the version of the object.
    repeated_at: HashMap<ObjectKey, u128, foldhash::fast::RandomState>,
    uids: Uids,
}

/// Object identified by its key.
#[derive(Debug)]
struct KeyedObject(Arc<Object>);

// === impl StreamState ===

impl StreamState {
    /// Returns a state without objects, at this version.
    pub(super) fn new(version: ResourceVersion) -> Self {
        Self { version, objects: HashSet::default(), repeated_at: HashMap::default(), uids: Uids::default() }
    }

    /// Returns all objects.
    pub(super) fn list(&self) -> List {
        let objects = self.objects.iter().map(|KeyedObject(object)| Arc::clone(object)).collect();
        List::new(objects, self.version.clone())
    }

    /// Applies one event. Returns it, and the version of the last event of the same object before it.
    pub(super) fn apply(&mut self, event_type: EventType, object: Object) -> (Event, Option<u128>) {
        self.version.clone_from(object.version());
        let now = self.version.number();
        if event_type == EventType::Deleted {
            return self.delete(object);
        }
        let old = self.objects.get(object.key()).map(|KeyedObject(old)| Arc::clone(old));
        let before = old.as_ref().map(|old| self.last_event(old));
        let object = self.uids.claim(&object, old.as_deref()).unwrap_or(object);
        let object = Arc::new(match &old {
            Some(old) => object.keyed_as(old),
            None => object,
        });
        match &old {
            // The cache keeps the old one of two equal objects; so that there is one body, this does too.
            Some(old) if old.body() == object.body() && old.uid() == object.uid() => {
                self.repeated_at.insert(old.key().clone(), now);
            }
            _ => {
                self.repeated_at.remove(object.key());
                self.objects.replace(KeyedObject(Arc::clone(&object)));
            }
        }
        let event = if event_type == EventType::Added { Event::Added(object) } else { Event::Modified(object) };
        (event, before)
    }

    /// Applies a deletion, unless it is that of an earlier object with the same key. Returns what [`StreamState::apply`] does.
    fn delete(&mut self, object: Object) -> (Event, Option<u128>) {
        let held = self.objects.get(object.key()).filter(|KeyedObject(held)| self.uids.may_be(held, object.uid()));
        let Some(KeyedObject(held)) = held else {
            return (Event::Deleted(Arc::new(object)), None);
        };
        // The cache deletes the object with the uid that it is served with.
        let object = object.with_uid(held.uid());
        let before = self.remove(object.key()).map(|(_, before)| before);
        (Event::Deleted(Arc::new(object)), before)
    }

    /// Returns the version of the last event of an object.
    fn last_event(&self, object: &Object) -> u128 {
        self.repeated_at.get(object.key()).copied().unwrap_or_else(|| object.version().number())
    }

    /// Removes an object. Returns it, with the version of its last event.
    fn remove(&mut self, key: &ObjectKey) -> Option<(Arc<Object>, u128)> {
        let KeyedObject(object) = self.objects.take(key)?;
        let last_event = self.last_event(&object);
        self.repeated_at.remove(key);
        self.uids.release(&object);
        Some((object, last_event))
    }

    /// Returns the number of objects without an event after this version.
    pub(super) fn count_silent_since(&self, version: u128) -> usize {
        self.objects.iter().filter(|KeyedObject(object)| self.last_event(object) <= version).count()
    }

    /// Removes the objects without an event after this version. Returns their deletions, sorted by key and all at one version.
    pub(super) fn remove_silent_since(&mut self, version: u128) -> Vec<Event> {
        let is_silent = |KeyedObject(object): &&KeyedObject| self.last_event(object) <= version;
        let mut silent: Vec<_> =
            self.objects.iter().filter(is_silent).map(|KeyedObject(object)| object.key().clone()).collect();
        if silent.is_empty() {
            return Vec::new();
        }
        silent.sort_unstable();
        let removed: Vec<_> = silent.iter().filter_map(|key| self.remove(key)).collect();
        self.version = self.version.next();
        let deletion =
            |(object, _): &(Arc<Object>, u128)| Event::Deleted(Arc::new(object.at_version(self.version.clone())));
        removed.iter().map(deletion).collect()
    }

    /// Removes the objects with these keys. Returns their deletions, all at one version, and the versions of their last events.
    pub(super) fn expire(&mut self, keys: &[ObjectKey]) -> (Vec<Event>, Vec<u128>) {
        let next = self.version.next();
        let deletion = |object: Arc<Object>| Event::Removed(Arc::new(object.at_version(next.clone())), Cause::Expired);
        let removed = keys.iter().filter_map(|key| self.remove(key));
        let expired: (Vec<_>, Vec<_>) = removed.map(|(object, last_event)| (deletion(object), last_event)).unzip();
        if !expired.0.is_empty() {
            self.version = next;
        }
        expired
    }
}

// === impl KeyedObject ===

impl Borrow<ObjectKey> for KeyedObject {
    fn borrow(&self) -> &ObjectKey {
        self.0.key()
    }
}

impl Hash for KeyedObject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

impl PartialEq for KeyedObject {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for KeyedObject {}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn event(known: &mut StreamState, event_type: EventType, name: &str, value: u8) -> Option<u128> {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}},"value":{value}}}"#);
        let object = Object::from_json(Bytes::from(body), "", known.version.next()).unwrap();
        known.apply(event_type, object).1
    }

    fn bodies(known: &StreamState) -> Vec<String> {
        let mut bodies: Vec<_> =
            known.list().objects.iter().map(|object| String::from_utf8(object.body().to_vec()).unwrap()).collect();
        bodies.sort_unstable();
        bodies
    }

    /// A record has uids beside the bodies: the same bytes under another uid are another object.
    #[test]
    fn another_uid_with_the_same_body_is_held() {
        let mut known = StreamState::new("a.1".parse().unwrap());
        for uid in ["5", "9"] {
            let (key, body) = (ObjectKey::new("", "a").unwrap(), Bytes::from_static(b"{}"));
            let object = Object::from_json_of(key, uid, body, known.version.next()).unwrap();
            known.apply(EventType::Modified, object);
            let uids: Vec<_> = known.list().objects.iter().map(|object| object.uid().to_owned()).collect();
            assert_eq!(uids, [uid]);
        }
    }

    #[test]
    fn no_two_objects_have_one_uid() {
        let mut known = StreamState::new("a.1".parse().unwrap());
        let put = |known: &mut StreamState, name: &str| {
            let key = ObjectKey::new("", name).unwrap();
            let object = Object::from_json_of(key, "u", Bytes::from_static(b"{}"), known.version.next()).unwrap();
            let (Event::Added(object), _) = known.apply(EventType::Added, object) else { panic!("added") };
            object.uid().to_owned()
        };
        assert_eq!((put(&mut known, "a"), put(&mut known, "b")), ("u".to_owned(), "u/b".to_owned()));
        assert_eq!(put(&mut known, "b"), "u/b", "the same object");
        known.remove_silent_since(2);
        assert_eq!((put(&mut known, "c"), put(&mut known, "b")), ("u".to_owned(), "u/b".to_owned()), "a is gone");
    }

    #[test]
    fn a_deletion_is_of_the_object_with_its_uid() {
        let mut known = StreamState::new("a.1".parse().unwrap());
        let mut event = |event_type, name: &str, uid: &str| {
            let key = ObjectKey::new("", name).unwrap();
            let object = Object::from_json_of(key, uid, Bytes::from_static(b"{}"), known.version.next()).unwrap();
            let (event, before) = known.apply(event_type, object);
            let (Event::Added(object) | Event::Deleted(object)) = event else { panic!("{event:?}") };
            (object.uid().to_owned(), before, known.list().objects.len())
        };
        event(EventType::Added, "a", "u");
        event(EventType::Added, "b", "u");
        assert_eq!(event(EventType::Deleted, "b", "u"), ("u/b".to_owned(), Some(3), 1), "as it is served");
        event(EventType::Added, "b", "2");
        assert_eq!(event(EventType::Deleted, "b", "1"), ("1".to_owned(), None, 2), "of an earlier object");
        assert_eq!(event(EventType::Deleted, "b", ""), ("2".to_owned(), Some(5), 1), "of any");
        assert_eq!(event(EventType::Deleted, "b", "2"), ("2".to_owned(), None, 1));
    }

    #[test]
    fn objects_without_an_event_after_a_version_are_removed_together() {
        let mut known = StreamState::new("a.1".parse().unwrap());
        for name in ["c", "a", "b", "d"] {
            assert_eq!(event(&mut known, EventType::Added, name, 1), None);
        }
        let silent = known.version.number();
        assert_eq!(silent, 5);
        assert_eq!(event(&mut known, EventType::Added, "b", 1), Some(4), "the same bytes confirm it");
        assert_eq!(event(&mut known, EventType::Deleted, "d", 1), Some(5));
        assert_eq!(known.count_silent_since(silent), 2);
        assert_eq!(event(&mut known, EventType::Modified, "b", 3), Some(6));
        assert_eq!(event(&mut known, EventType::Modified, "b", 2), Some(8), "it is changed, no longer repeated");
        let events = known.remove_silent_since(silent);
        let shown: Vec<_> = events
            .iter()
            .map(|event| match event {
                Event::Deleted(object) => format!("{}@{}", object.key(), object.version()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(shown, ["a@a.10", "c@a.10"]);
        assert_eq!(bodies(&known), [r#"{"metadata":{"name":"b"},"value":2}"#]);
        assert_eq!((known.remove_silent_since(silent).len(), known.version.number()), (0, 10));
    }
}
