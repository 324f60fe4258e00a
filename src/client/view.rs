//! State that the user of a watch holds, and the updates that the server's messages add to it. No IO and no clock.
//!
//! A [`View`] outlives the streams of a watch. Each stream [begins](View::begin) with a resume after the last safe version, or
//! with a list. The view [applies](View::apply) each of its messages and returns the updates that are new.
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
//!   out when they are repeated in the same order. Events in another order (of another replica) are folded against `known`.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, Hash, Hasher},
    mem,
};

use foldhash::quality::RandomState;
use prost::Message;

use super::{ClientError, Note, Progress, Update};
use crate::{model::ResourceVersion, proto::pb};

#[cfg(test)]
mod tests;

/// State that the user of one watch holds.
#[allow(clippy::struct_excessive_bools, reason = "two options and three independent facts, not a state machine")]
pub(super) struct View {
    keep_objects: bool,
    heal_drops: bool,
    known: HashMap<Key, KnownObject, RandomState>,
    /// Randomly keyed hasher, so that no server can make two contents look the same.
    hashes: RandomState,
    scratch: Vec<u8>,
    /// Last safe version; none when the next stream has to list.
    position: Option<String>,
    /// History that the position belongs to, as the server names it.
    history: String,
    /// Hashes of the events applied since `position`.
    open: Vec<u64>,
    /// Number of hashes in `open` that this stream has repeated; all of them in a stream that repeats nothing.
    repeated: usize,
    /// True while the stream is in its initial events.
    is_listing: bool,
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    namespace: String,
    name: String,
}

struct KnownObject {
    /// Last delivered state, without the key, and without the body unless objects are kept.
    object: pb::Object,
    content: u64,
    pass: u64,
}

/// Step that follows a message.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// Read the next message.
    Continue,
    /// Open another stream: this one has ended, or is about to.
    Ended(ClientError),
    /// Open another stream from the version before the hole.
    Heal { count: u64, after: String },
}

/// Attributes of an event besides its object.
struct EventAttributes {
    event_type: pb::EventType,
    cause: pb::Cause,
    /// Version that is safe to resume after; empty in a list.
    version: String,
    /// Version that was safe to resume after before this event, where it differs.
    before: Option<String>,
}

/// Largest number of hashes: 8 MiB. A larger batch is still folded correctly; after a resume within it, changes that it undoes
/// may be delivered twice.
const MAX_OPEN: usize = 1 << 20;

// === impl View ===

impl View {
    pub(super) fn new(keep_objects: bool, heal_drops: bool) -> Self {
        Self {
            keep_objects,
            heal_drops,
            known: HashMap::default(),
            hashes: RandomState::default(),
            scratch: Vec::new(),
            position: None,
            history: String::new(),
            open: Vec::new(),
            repeated: 0,
            is_listing: false,
            pass: 0,
            changes: 0,
            has_synced: false,
            has_hole: false,
            is_partial: false,
        }
    }

    /// Creates the view of a user who wants the changes after a version, and does not hold the state at it.
    pub(super) fn since(version: String, keep_objects: bool, heal_drops: bool) -> Self {
        Self { position: Some(version), is_partial: true, ..Self::new(keep_objects, heal_drops) }
    }

    /// Returns true if the user does not hold the state that the changes belong to, so that no list can replace missed ones.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns the version to resume after; none when the next stream has to list.
    pub(super) fn position(&self) -> Option<&str> {
        self.position.as_deref()
    }

    /// Returns the history that [`View::position`] belongs to; empty if the server has not sent it.
    pub(super) fn history(&self) -> &str {
        &self.history
    }

    /// Returns the number of objects that the user holds.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Begins a stream that resumes after [`View::position`], or lists.
    pub(super) fn begin(&mut self) {
        self.repeated = 0;
        self.is_listing = self.position.is_none();
        if self.is_listing {
            self.pass += 1;
            self.open.clear();
        }
    }

    /// Discards the position, which cannot be resumed from: the next stream lists.
    pub(super) fn expire(&mut self) {
        self.position = None;
    }

    /// Applies one message of the stream.
    ///
    /// # Errors
    ///
    /// [`ClientError::Contract`] for a message that no server sends: to ignore it could skip data.
    pub(super) fn apply(
        &mut self,
        response: pb::WatchResponse,
        updates: &mut VecDeque<Update>,
    ) -> Result<Next, ClientError> {
        let (event_type, cause) = (response.r#type(), response.cause());
        let version = response.resource_version;
        match event_type {
            pb::EventType::Added | pb::EventType::Modified | pb::EventType::Deleted => {
                let object = response.object.ok_or_else(|| ClientError::contract("event without an object"))?;
                if version.is_empty() && !self.is_listing {
                    return Err(ClientError::contract("event without a version to resume from"));
                }
                // No version within a list is safe to resume after.
                let version = if self.is_listing { String::new() } else { version };
                self.event(EventAttributes { event_type, cause, version, before: None }, object, updates);
                Ok(Next::Continue)
            }
            pb::EventType::Bookmark => self.bookmark(&response.bookmark.unwrap_or_default(), version, updates),
            pb::EventType::Dropped => {
                let dropped = response.dropped.unwrap_or_default();
                Ok(self.dropped(dropped.count, dropped.after_resource_version, &version, updates))
            }
            pb::EventType::Error => {
                let error = response.error.ok_or_else(|| ClientError::contract("ERROR without a status"))?;
                Ok(Next::Ended(ClientError::from_proto(&error)))
            }
            pb::EventType::Unspecified => {
                Err(ClientError::contract(format!("event of unknown type {}", response.r#type)))
            }
        }
    }

    fn event(&mut self, mut told: EventAttributes, object: pb::Object, updates: &mut VecDeque<Update>) {
        let content = self.content(&object);
        if !self.is_listing {
            if self.position.as_deref() != Some(&*told.version) {
                told.before = self.advance(&told.version);
            } else if self.is_repeat(&told, &object, content) {
                return;
            }
        }
        let length = updates.len();
        if told.event_type == pb::EventType::Deleted {
            self.delete(told, object, updates);
        } else {
            self.upsert(told, object, content, updates);
        }
        if self.is_listing {
            self.changes += (updates.len() - length) as u64;
        }
    }

    /// Returns true if this event of an open batch repeats one of an earlier stream.
    fn is_repeat(&mut self, told: &EventAttributes, object: &pb::Object, content: u64) -> bool {
        let hash = self.hashes.hash_one((
            told.event_type as i32,
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

    /// Advances the position, which closes the batch; returns the old position if it has changed.
    fn advance(&mut self, version: &str) -> Option<String> {
        if self.position.as_deref() == Some(version) {
            return None;
        }
        self.open.clear();
        self.repeated = 0;
        self.position.replace(version.to_owned())
    }

    fn upsert(&mut self, told: EventAttributes, mut object: pb::Object, content: u64, updates: &mut VecDeque<Update>) {
        let added_cause = match (self.is_listing, told.event_type) {
            (true, _) if self.has_synced => pb::Cause::Unspecified,
            (true, _) => pb::Cause::Initial,
            (false, pb::EventType::Added) => told.cause,
            (false, _) => pb::Cause::Unspecified,
        };
        let key = take_key(&mut object);
        let last = if self.keep_objects { with_own_body(&object) } else { without_body(&object) };
        let (event_type, cause) = match self.known.get_mut(&key) {
            None => {
                self.known.insert(key.clone(), KnownObject { object: last, content, pass: self.pass });
                if self.is_partial { (told.event_type, told.cause) } else { (pb::EventType::Added, added_cause) }
            }
            Some(known) => {
                let is_changed = known.content != content
                    || known.object.uid != object.uid
                    || (known.object.resource_version != object.resource_version
                        && (!self.is_listing || object.body.is_none() || is_same_lineage(&known.object, &object)));
                let mut before = mem::replace(&mut known.object, last);
                known.content = content;
                known.pass = self.pass;
                if !is_changed {
                    return;
                }
                if before.uid == object.uid {
                    (pb::EventType::Modified, pb::Cause::Unspecified)
                } else {
                    before.resource_version.clone_from(&object.resource_version);
                    // The ADDED of the new object follows: only then is the new version safe.
                    let version = told.before.unwrap_or_else(|| told.version.clone());
                    updates.push_back(inferred(key.clone(), before, version));
                    (pb::EventType::Added, added_cause)
                }
            }
        };
        give_key(&mut object, key);
        updates.push_back(Update::Event { event_type, cause, object, resource_version: told.version });
    }

    fn delete(&mut self, told: EventAttributes, mut object: pb::Object, updates: &mut VecDeque<Update>) {
        let key = take_key(&mut object);
        let known = self.known.get(&key);
        if known.is_none() && !self.is_partial {
            return;
        }
        // Another object has the key already: an earlier stream was ahead of this one.
        let is_another = |known: &KnownObject| {
            known.object.uid != object.uid && !known.object.uid.is_empty() && !object.uid.is_empty()
        };
        if known.is_some_and(is_another) && !self.has_hole {
            return;
        }
        self.known.remove(&key);
        give_key(&mut object, key);
        let EventAttributes { event_type, cause, version: resource_version, .. } = told;
        updates.push_back(Update::Event { event_type, cause, object, resource_version });
    }

    fn bookmark(
        &mut self,
        bookmark: &pb::Bookmark,
        version: String,
        updates: &mut VecDeque<Update>,
    ) -> Result<Next, ClientError> {
        let is_end = self.is_listing && bookmark.initial_events_end;
        self.history.clone_from(&bookmark.history);
        if version.is_empty() && (is_end || !self.is_listing) {
            return Err(ClientError::contract("BOOKMARK without a version"));
        }
        if is_end {
            self.end_list(&version, updates);
        } else if !self.is_listing {
            self.advance(&version);
        }
        if bookmark.draining {
            return Ok(Next::Ended(ClientError::draining()));
        }
        let progress = Progress {
            resource_version: version,
            source: bookmark.source(),
            source_seen_at: bookmark.source_seen_at,
            namespaces: bookmark.namespaces.clone(),
            expression_errors: bookmark.expression_errors.clone(),
        };
        if is_end {
            updates.push_back(Update::Synced(progress));
        } else if !self.is_listing {
            updates.push_back(Update::Bookmark(progress));
        }
        Ok(Next::Continue)
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
        self.position = Some(version.to_owned());
        self.is_listing = false;
        self.has_synced = true;
        self.has_hole = false;
    }

    fn dropped(&mut self, count: u64, after: String, version: &str, updates: &mut VecDeque<Update>) -> Next {
        if self.heal_drops {
            if after.is_empty() {
                self.expire();
            } else {
                self.advance(&after);
            }
            return Next::Heal { count, after };
        }
        self.has_hole = true;
        if !version.is_empty() {
            self.advance(version);
        }
        updates.push_back(Update::Dropped { count, after });
        Next::Continue
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
    Key { namespace: mem::take(&mut object.namespace), name: mem::take(&mut object.name) }
}

fn give_key(object: &mut pb::Object, key: Key) {
    object.namespace = key.namespace;
    object.name = key.name;
}

fn without_body(object: &pb::Object) -> pb::Object {
    pb::Object {
        namespace: String::new(),
        name: String::new(),
        uid: object.uid.clone(),
        resource_version: object.resource_version.clone(),
        labels: object.labels.clone(),
        api_version: object.api_version.clone(),
        kind: object.kind.clone(),
        media_type: object.media_type.clone(),
        body: None,
    }
}

/// Returns the object with a copy of the body: the received body may be a slice of something larger.
fn with_own_body(object: &pb::Object) -> pb::Object {
    let body = object.body.as_ref().map(|body| match body {
        pb::object::Body::Raw(bytes) => pb::object::Body::Raw(bytes::Bytes::copy_from_slice(bytes)),
        pb::object::Body::Struct(fields) => pb::object::Body::Struct(fields.clone()),
    });
    pb::Object { body, ..without_body(object) }
}

/// Returns a DELETED for an object whose deletion was not received.
fn inferred(key: Key, mut object: pb::Object, resource_version: String) -> Update {
    give_key(&mut object, key);
    Update::Event { event_type: pb::EventType::Deleted, cause: pb::Cause::Inferred, object, resource_version }
}

/// Returns true if the versions of two states of an object are of the same lineage.
fn is_same_lineage(one: &pb::Object, other: &pb::Object) -> bool {
    let parse = |object: &pb::Object| object.resource_version.parse::<ResourceVersion>().ok();
    parse(one).zip(parse(other)).is_some_and(|(one, other)| one.same_lineage(&other))
}
