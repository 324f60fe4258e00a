//! State that the user of a watch holds, and the updates that the server's messages add to it. No IO and no clock.
//!
//! A [`View`] outlives the streams of a watch. Each stream [begins](View::begin) with a resume after the last safe version, or
//! with a list. The view [applies](View::apply) each message that the follower has read, and returns the updates that are new.
//!
//! Invariants, also across broken streams, repeated events and relists:
//!
//! - Folding the updates gives the objects of `known`: ADDED only of an unknown key, MODIFIED and DELETED only of a known one.
//! - At the end of a list, and whenever the version advances, that is the server's state at the version.
//! - A list (the initial events) is compared key by key as it streams. Additions and changes are delivered at once, deletions
//!   only at its end, when they are certain. A list that breaks off has deleted nothing; what it added stays known.
//! - Objects are compared by uid and by a hash of their content. The version counts only within one lineage, as another one
//!   renumbers everything, and for objects without a body to compare (METADATA).
//! - While a version has not advanced, a batch is open, and a resume repeats it. Its events are kept as hashes, and are filtered
//!   out when they are repeated in the same order. Events in another order (of another replica) are folded against `known`. What
//!   leaves or enters with the caller's namespaces is no part of the batch: a resume does not repeat it.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, Hash, Hasher},
    mem,
};

use foldhash::quality::RandomState;
use prost::Message;

use super::{
    Note, Update,
    follower::{Followed, FollowedEvent, News, is_another, is_same_lineage, own_body},
};
use crate::proto::pb;

#[cfg(test)]
mod tests;

/// State that the user of one watch holds.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "two options and two independent facts, not a state machine")]
pub(super) struct View {
    keep_objects: bool,
    known: HashMap<Key, KnownObject, RandomState>,
    /// Randomly keyed hasher, so that no server can make two contents look the same.
    hashes: RandomState,
    scratch: Vec<u8>,
    /// Hashes of the events of the open batch.
    open: Vec<u64>,
    /// Number of hashes in `open` that this stream has repeated; all of them in a stream that repeats nothing.
    repeated: usize,
    /// Namespaces of the last bookmark; none before the first.
    namespaces: Option<Vec<String>>,
    /// Number of the current list: an object with another number has not been in it.
    pass: u64,
    /// Number of updates from listing since the last complete list.
    changes: u64,
    has_synced: bool,
    /// True if events are missing, which the user has opted in to.
    has_hole: bool,
    /// True if the watch began at a version, without the state at it: events of unknown objects are passed on as they are.
    is_partial: bool,
}

/// Namespace and name.
type Key = (String, String);

struct KnownObject {
    /// Last delivered state, without the key, and without the body unless objects are kept.
    object: pb::Object,
    content: u64,
    pass: u64,
}

/// Largest number of hashes: 8 MiB. A larger batch is still folded correctly; after a resume within it, changes that it undoes
/// may be delivered twice.
const MAX_OPEN: usize = 1 << 20;

// === impl View ===

impl View {
    /// Creates the view of a user who holds nothing yet; if `is_partial`, of one who wants the changes after a version without the
    /// state at it.
    pub(super) fn new(keep_objects: bool, is_partial: bool) -> Self {
        Self { keep_objects, is_partial, ..Self::default() }
    }

    /// Returns the number of objects that the user holds.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Begins a stream that resumes or lists.
    pub(super) fn begin(&mut self, is_listing: bool) {
        self.repeated = 0;
        if is_listing {
            self.pass += 1;
            self.open.clear();
        }
    }

    /// Applies one message of the stream.
    pub(super) fn apply(&mut self, followed: Followed, updates: &mut VecDeque<Update>) {
        let Followed { news, before, is_last } = followed;
        if before.is_some() {
            self.open.clear();
            self.repeated = 0;
        }
        match news {
            News::Event(event) => self.event(event, before, updates),
            News::Synced(progress) => {
                self.note_namespaces(&progress.namespaces);
                self.end_list(&progress.resource_version, updates);
                updates.extend((!is_last).then_some(Update::Synced(progress)));
            }
            News::Bookmark(progress) => {
                self.note_namespaces(&progress.namespaces);
                updates.extend((!is_last).then_some(Update::Bookmark(progress)));
            }
            News::Listing(_) => {}
            News::Dropped { count, after, healing: Some(delay) } => {
                updates.push_back(Update::Note(Note::Healing { count, after, delay }));
            }
            News::Dropped { count, after, healing: None } => {
                self.has_hole = true;
                updates.push_back(Update::Dropped { count, after });
            }
        }
    }

    /// Records the namespaces of a bookmark. Other ones than before end the events of their change.
    fn note_namespaces(&mut self, namespaces: &[String]) {
        let before = self.namespaces.replace(namespaces.to_vec());
        if before.is_some_and(|before| before != namespaces) {
            self.open.clear();
            self.repeated = 0;
        }
    }

    fn event(&mut self, event: FollowedEvent, before: Option<String>, updates: &mut VecDeque<Update>) {
        let content = self.content(&event.object);
        let is_listed = event.is_listed();
        if !is_listed && before.is_none() && self.is_repeat(&event, content) {
            return;
        }
        let length = updates.len();
        if event.event_type == pb::EventType::Deleted {
            self.delete(event, updates);
        } else {
            self.upsert(event, before, content, updates);
        }
        if is_listed {
            self.changes += (updates.len() - length) as u64;
        }
    }

    /// Returns true if this event of an open batch repeats one of an earlier stream.
    fn is_repeat(&mut self, event: &FollowedEvent, content: u64) -> bool {
        let FollowedEvent { event_type, object, .. } = event;
        let hash = self.hashes.hash_one((
            *event_type as i32,
            &object.namespace,
            &object.name,
            &object.uid,
            &object.resource_version,
            content,
        ));
        if let Some(expected) = self.open.get(self.repeated) {
            if *expected == hash {
                self.repeated += 1;
                return true;
            }
            // Another order than before: this stream's order counts from here on.
            self.open.truncate(self.repeated);
        }
        if self.open.len() < MAX_OPEN {
            self.open.push(hash);
            self.repeated += 1;
        }
        false
    }

    fn upsert(&mut self, event: FollowedEvent, before: Option<String>, content: u64, updates: &mut VecDeque<Update>) {
        let is_listed = event.is_listed();
        let FollowedEvent { event_type, cause, mut object, version, .. } = event;
        let added_cause = match (is_listed, event_type) {
            (true, _) if self.has_synced => pb::Cause::Unspecified,
            (true, _) => pb::Cause::Initial,
            (false, pb::EventType::Added) => cause,
            (false, _) => pb::Cause::Unspecified,
        };
        let key = take_key(&mut object);
        let body = object.body.take();
        let mut last = object.clone();
        object.body = body;
        if self.keep_objects {
            last.body.clone_from(&object.body);
            own_body(&mut last);
        }
        let (event_type, cause) = match self.known.get_mut(&key) {
            None => {
                self.known.insert(key.clone(), KnownObject { object: last, content, pass: self.pass });
                if self.is_partial { (event_type, cause) } else { (pb::EventType::Added, added_cause) }
            }
            Some(known) => {
                let is_changed = known.content != content
                    || known.object.uid != object.uid
                    || (known.object.resource_version != object.resource_version
                        && (!is_listed || object.body.is_none() || is_same_lineage(&known.object, &object)));
                let mut replaced = mem::replace(&mut known.object, last);
                known.content = content;
                known.pass = self.pass;
                if !is_changed {
                    return;
                }
                if replaced.uid == object.uid {
                    (pb::EventType::Modified, pb::Cause::Unspecified)
                } else {
                    replaced.resource_version.clone_from(&object.resource_version);
                    // The ADDED of the new object follows: only then is the new version safe.
                    let before = before.unwrap_or_else(|| version.clone());
                    updates.push_back(inferred(key.clone(), replaced, before));
                    (pb::EventType::Added, added_cause)
                }
            }
        };
        (object.namespace, object.name) = key;
        updates.push_back(Update::Event { event_type, cause, object, resource_version: version });
    }

    fn delete(&mut self, event: FollowedEvent, updates: &mut VecDeque<Update>) {
        let FollowedEvent { event_type, cause, mut object, version: resource_version, .. } = event;
        let key = take_key(&mut object);
        let is_new = match self.known.get(&key) {
            Some(known) => self.has_hole || !is_another(&known.object, &object),
            None => self.is_partial,
        };
        if !is_new {
            return;
        }
        self.known.remove(&key);
        (object.namespace, object.name) = key;
        updates.push_back(Update::Event { event_type, cause, object, resource_version });
    }

    /// Ends a list: objects that were not in it are deleted.
    fn end_list(&mut self, version: &str, updates: &mut VecDeque<Update>) {
        let pass = self.pass;
        let mut vanished: Vec<_> = self.known.extract_if(|_, known| known.pass != pass).collect();
        vanished.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        self.changes += vanished.len() as u64;
        for (key, KnownObject { mut object, .. }) in vanished {
            version.clone_into(&mut object.resource_version);
            updates.push_back(inferred(key, object, String::new()));
        }
        if self.has_synced {
            let (resource_version, changes) = (version.to_owned(), self.changes);
            updates.push_back(Update::Note(Note::Relisted { resource_version, changes }));
        }
        self.changes = 0;
        self.has_synced = true;
        self.has_hole = false;
    }

    /// Returns a hash of everything that can change while uid and version stay the same.
    fn content(&mut self, object: &pb::Object) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        (&object.labels, &object.api_version, &object.kind, &object.media_type).hash(&mut hasher);
        match &object.body {
            None => hasher.write_u8(0),
            Some(pb::object::Body::Raw(bytes)) => (1_u8, bytes).hash(&mut hasher),
            Some(pb::object::Body::Struct(fields)) => {
                self.scratch.clear();
                // A sorted map: the same fields are the same bytes.
                fields.encode_raw(&mut self.scratch);
                (2_u8, &self.scratch).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

fn take_key(object: &mut pb::Object) -> Key {
    (mem::take(&mut object.namespace), mem::take(&mut object.name))
}

/// Returns a DELETED for an object whose deletion was not received.
fn inferred(key: Key, mut object: pb::Object, resource_version: String) -> Update {
    (object.namespace, object.name) = key;
    Update::Event { event_type: pb::EventType::Deleted, cause: pb::Cause::Inferred, object, resource_version }
}
