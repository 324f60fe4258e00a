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
    client::{ClientError, streams::ResumePoint},
    model::ResourceVersion,
    proto::pb,
};

/// Writer of an informer's store.
pub(super) struct Replica {
    store: Store,
    /// Last version of the streams; none when the next stream has to list.
    position: Option<String>,
    /// Last history of a bookmark.
    history: String,
    /// Namespaces of the last bookmark of the stream; none before it.
    namespaces: Option<Vec<String>>,
    /// Initial events, while the stream is in them.
    listed: Option<BTreeMap<Key, pb::Object>>,
    /// Events of a batch that is open.
    pending: Vec<PendingEvent>,
    /// Calls of the step that is being applied.
    notifications: Vec<Notification>,
}

struct PendingEvent {
    event_type: pb::EventType,
    cause: pb::Cause,
    object: pb::Object,
}

/// Step that follows a message.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// Read the next message.
    Continue,
    /// Read the next message: nothing is missing up to this one.
    Current,
    /// Open another stream: this one has ended, or is about to.
    Ended(ClientError),
    /// Open another stream from the version before the hole.
    Heal { count: u64, after: String },
}

// === impl Replica ===

impl Replica {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            position: None,
            history: String::new(),
            namespaces: None,
            listed: None,
            pending: Vec::new(),
            notifications: Vec::new(),
        }
    }

    /// Returns the version to resume from; none when the next stream has to list.
    pub(super) fn resume_point(&self) -> Option<ResumePoint<'_>> {
        self.position.as_deref().map(|version| ResumePoint { version, history: &self.history })
    }

    /// Begins a stream that resumes, or lists.
    pub(super) fn begin(&mut self) {
        self.pending.clear();
        self.namespaces = None;
        self.listed = self.position.is_none().then(BTreeMap::new);
    }

    /// Discards the position, which cannot be resumed from: the next stream lists.
    pub(super) fn expire(&mut self) {
        self.position = None;
    }

    /// Applies one message of the stream, shows the new state to readers, and then notifies the handler.
    ///
    /// # Errors
    ///
    /// [`ClientError::Contract`] for a message that no server sends: to ignore it could skip data.
    pub(super) fn apply(
        &mut self,
        response: pb::WatchResponse,
        published: &Published,
        notifier: &Notifier,
    ) -> Result<Next, ClientError> {
        let next = self.message(response);
        let has_advanced =
            self.listed.is_none() && self.position.as_deref().is_some_and(|to| to != self.store.version());
        if let (true, Some(version)) = (has_advanced, &self.position) {
            self.store.set_version(version);
        }
        if has_advanced || !self.notifications.is_empty() {
            self.store.publish(published);
        }
        self.notifications.drain(..).for_each(|notification| notifier.notify(notification));
        next
    }

    fn message(&mut self, response: pb::WatchResponse) -> Result<Next, ClientError> {
        let (event_type, cause) = (response.r#type(), response.cause());
        match event_type {
            pb::EventType::Added | pb::EventType::Modified | pb::EventType::Deleted => {
                let mut object = response.object.ok_or_else(|| ClientError::contract("event without an object"))?;
                if let Some(listed) = &mut self.listed {
                    // Otherwise one object would keep its whole batch in memory.
                    if let Some(pb::object::Body::Raw(body)) = &mut object.body {
                        *body = Bytes::copy_from_slice(body);
                    }
                    listed.insert(key_of(&object), object);
                } else if response.resource_version.is_empty() {
                    return Err(ClientError::contract("event without a version to resume from"));
                } else {
                    let event = PendingEvent { event_type, cause, object };
                    self.event(event, &response.resource_version, response.open);
                }
                Ok(Next::Continue)
            }
            pb::EventType::Bookmark => self.bookmark(response.bookmark.unwrap_or_default(), &response.resource_version),
            pb::EventType::Dropped => {
                let pb::Dropped { count, after_resource_version: after } = response.dropped.unwrap_or_default();
                if after.is_empty() {
                    self.expire();
                } else {
                    // The batch that waits is complete if the version has advanced since.
                    self.advance(&after);
                }
                Ok(Next::Heal { count, after })
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

    fn event(&mut self, event: PendingEvent, version: &str, is_open: bool) {
        // The batch of another version that waits is complete, and this event belongs to one that is open: a selection does not see
        // every version, and the version before a batch may be new to it.
        if !is_open && is_before(version, &event.object.resource_version) {
            self.advance(version);
        }
        let is_alone = self.pending.is_empty();
        self.pending.push(event);
        if is_open && is_alone {
            self.complete();
        }
        self.advance(version);
    }

    /// Advances the position, which completes the batch that waits.
    fn advance(&mut self, version: &str) {
        if self.position.as_deref() != Some(version) {
            self.complete();
            self.position = Some(version.to_owned());
        }
    }

    fn complete(&mut self) {
        for event in mem::take(&mut self.pending) {
            self.apply_event(event);
        }
    }

    fn apply_event(&mut self, PendingEvent { event_type, cause, object }: PendingEvent) {
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

    fn bookmark(&mut self, bookmark: pb::Bookmark, version: &str) -> Result<Next, ClientError> {
        if let Some(listed) = self.listed.take_if(|_| bookmark.initial_events_end) {
            if version.is_empty() {
                return Err(ClientError::contract("BOOKMARK without a version"));
            }
            self.replace(listed);
            self.position = Some(version.to_owned());
        } else if self.listed.is_none() {
            if version.is_empty() {
                return Err(ClientError::contract("BOOKMARK without a version"));
            }
            // Objects leave and enter with the caller's namespaces at the version that the stream has already.
            if self.namespaces.as_ref().is_some_and(|namespaces| *namespaces != bookmark.namespaces) {
                self.complete();
            }
            self.advance(version);
        }
        if self.listed.is_none() {
            self.history = bookmark.history;
            self.namespaces = Some(bookmark.namespaces);
        }
        if bookmark.draining {
            return Ok(Next::Ended(ClientError::draining()));
        }
        Ok(if self.listed.is_some() { Next::Continue } else { Next::Current })
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

/// Returns true if a version is lower than another one of the same lineage.
fn is_before(version: &str, other: &str) -> bool {
    let parse = |text: &str| text.parse::<ResourceVersion>().ok();
    version != other && parse(version).zip(parse(other)).is_some_and(|(version, other)| version < other)
}

/// Returns true if two states of an object are the same to a handler.
fn is_same(old: &pb::Object, new: &pb::Object) -> bool {
    let has_body = old.body.is_some() || new.body.is_some();
    old.labels == new.labels
        && old.body == new.body
        && old.media_type == new.media_type
        && (has_body || old.resource_version == new.resource_version)
}
