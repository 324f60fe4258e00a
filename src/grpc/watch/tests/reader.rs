//! Client of a watch: it reads within the room that it has, folds the messages, and checks that each may come.

use std::{
    collections::BTreeMap,
    task::{Context, Poll, Waker},
};

use bytes::Buf;
use prost::Message;
use tonic_types::RpcStatusExt;

use super::{NAMESPACES, set};
use crate::{
    cache::InformerHandle,
    grpc::{
        frame::{PREFIX_BYTES, WireFrame},
        watch::body::WatchBody,
    },
    model::Namespaces,
    proto::pb::{self, Cause, EventType},
    transport::{BoundedBody, BoundedFrame, Room},
    watch::QueueOptions,
};

/// Watch, and the fold of its messages: the versions of the objects.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about what may come next")]
pub(super) struct Reader {
    pub(super) id: u64,
    /// None after its end: the connection drops it.
    pub(super) body: Option<WatchBody>,
    pub(super) selection: usize,
    pub(super) queue: QueueOptions,
    pub(super) namespaces: Option<Namespaces>,
    /// Namespaces of the last complete bookmark.
    pub(super) reported: Option<Namespaces>,
    pub(super) fold: BTreeMap<(String, String), String>,
    pub(super) version: String,
    pub(super) history: String,
    pub(super) is_synced: bool,
    /// True if it may read other namespaces than those of the last complete bookmark.
    pub(super) is_changing: bool,
    /// True if its last bookmark was not a complete one.
    pub(super) is_between: bool,
    /// True if its last poll found nothing.
    pub(super) is_idle: bool,
    /// True if its last poll found a message for which there was no room.
    pub(super) has_no_room: bool,
    /// True if it was in the middle of something at the last change of its namespaces, and may have to list again.
    pub(super) may_end: bool,
    /// True if it may receive what it has, or lack what it does not.
    pub(super) is_lenient: bool,
    /// True from its resumption to its first bookmark.
    pub(super) is_resuming: bool,
    pub(super) has_gap: bool,
    pub(super) is_revoked: bool,
    /// True if nothing but its end may follow.
    pub(super) must_end: bool,
    pub(super) end: Option<String>,
}

// === impl Reader ===

impl Reader {
    /// Takes the next frame that fits into the room. Returns false if there is none.
    pub(super) fn read(&mut self, room: Room) -> bool {
        let Some(body) = &mut self.body else { return false };
        let mut cx = Context::from_waker(Waker::noop());
        let polled = body.poll_bounded(&mut cx, room);
        (self.is_idle, self.has_no_room) = (polled.is_pending(), false);
        let Poll::Ready(frame) = polled else { return false };
        match frame.expect("a body ends with trailers").unwrap() {
            BoundedFrame::TooLarge(needed) => {
                assert!(room.is_strict || room.bytes == 0, "{needed}");
                self.has_no_room = true;
                return false;
            }
            BoundedFrame::Frame(frame) => {
                let mut data = frame.into_data().expect("nothing is read after an ERROR");
                while data.remaining() > PREFIX_BYTES {
                    data.advance(1);
                    let length = data.get_u32() as usize;
                    self.take(&pb::WatchResponse::decode(data.copy_to_bytes(length)).unwrap());
                }
            }
        }
        true
    }

    fn take(&mut self, message: &pb::WatchResponse) {
        if !message.resource_version.is_empty() {
            self.version.clone_from(&message.resource_version);
        }
        assert!(!self.must_end || message.r#type() == EventType::Error, "{message:?}");
        match message.r#type() {
            EventType::Added | EventType::Modified | EventType::Deleted => self.fold(message),
            EventType::Bookmark => self.bookmark(message.bookmark.as_ref().unwrap()),
            EventType::Dropped => self.has_gap = true,
            EventType::Error => {
                let details = message.error.as_ref().unwrap().get_error_details();
                self.end = Some(details.error_info().map(|info| info.reason.clone()).unwrap_or_default());
                self.body = None;
            }
            EventType::Unspecified => panic!("{message:?}"),
        }
    }

    fn fold(&mut self, message: &pb::WatchResponse) {
        assert!(!self.is_revoked, "after the decision: {message:?}");
        let object = message.object.as_ref().unwrap();
        let is_allowed = self.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(&object.namespace));
        let key = (object.namespace.clone(), object.name.clone());
        let is_strict = !self.is_lenient && !self.has_gap;
        let had = match message.r#type() {
            EventType::Deleted => self.fold.remove(&key),
            _ => self.fold.insert(key, object.resource_version.clone()),
        };
        if object.body.is_none() {
            assert!(!is_allowed && self.is_between && self.is_synced, "{message:?}");
            assert_eq!((message.r#type(), message.cause()), (EventType::Deleted, Cause::LeftSelection));
            let bare = pb::Object {
                namespace: object.namespace.clone(),
                name: object.name.clone(),
                uid: "uid".to_owned(),
                resource_version: object.resource_version.clone(),
                ..Default::default()
            };
            assert_eq!(*object, bare);
            assert!(!is_strict || had.as_ref() == Some(&object.resource_version), "{had:?} {message:?}");
            return;
        }
        assert!(is_allowed, "{message:?} {:?}", self.namespaces);
        assert_eq!(self.is_synced, message.cause() != Cause::Initial);
        let is_new = message.r#type() == EventType::Added;
        assert!(!is_strict || had.is_none() == is_new, "{had:?} {message:?}");
    }

    fn bookmark(&mut self, bookmark: &pb::Bookmark) {
        self.is_synced |= bookmark.initial_events_end;
        self.history.clone_from(&bookmark.history);
        let named: Option<Namespaces> =
            Some(bookmark.namespaces.iter().cloned().collect()).filter(|_| !bookmark.namespaces.is_empty());
        self.is_between = bookmark.history.ends_with('-');
        let is_complete = InformerHandle::<WireFrame>::is_history_of(&bookmark.history, named.as_ref());
        if is_complete {
            // The watch may have ended before its namespaces changed.
            self.must_end = named != self.namespaces;
            (self.is_changing, self.may_end, self.is_resuming) = (false, false, false);
            self.reported.clone_from(&named);
            let is_foreign =
                |(namespace, _): &&(String, String)| named.as_ref().is_some_and(|set| !set.contains(namespace));
            let foreign: Vec<_> = self.fold.keys().filter(is_foreign).collect();
            assert!(self.has_gap || foreign.is_empty(), "{foreign:?} after {named:?}");
        } else {
            // No rights are those of this history.
            assert!(self.is_changing && self.is_between);
            for bits in (0..1 << NAMESPACES.len()).map(Some).chain([None]) {
                assert!(!InformerHandle::<WireFrame>::is_history_of(&bookmark.history, set(bits).as_ref()));
            }
        }
    }
}
