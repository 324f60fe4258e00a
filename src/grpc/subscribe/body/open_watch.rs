//! Open watches of a stream: a body, and the watch that owns it with all that share it.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Buf;
use tonic::{Code, Status};

use crate::{
    grpc::{
        audited_call::AuditedCall,
        status::ApiError,
        subscribe::ready_list::{ReadyList, WatchWaker},
        watch::{SharingKey, SharingWatch, WatchBody},
    },
    transport::{BoundedBody, BoundedFrame, Chunk, Room},
};

/// Body of a watch, and the watches that receive what it hands out.
pub(super) struct OpenWatch {
    /// Id of the watch that owns the body.
    pub(super) id: u32,
    pub(super) body: WatchBody,
    /// The other watches.
    pub(super) sharing: Vec<(u32, SharingWatch)>,
    /// Key under which others find the body to share it.
    pub(super) shared_as: Option<SharingKey>,
    /// True if the watch may share a body, or others its own, and has not looked for one in vain.
    pub(super) seeks: bool,
    pub(super) entry: Arc<WatchWaker>,
    /// The same, as a waker.
    waker: Waker,
    pub(super) audited: Option<AuditedCall>,
    /// True while its turn comes.
    pub(super) has_turn: bool,
    /// Number of bytes that it has encoded and not handed out.
    pub(super) encoded_bytes: usize,
}

/// Result of one turn of a watch.
pub(super) enum Turn {
    /// It has nothing for now.
    Nothing,
    /// Messages, and possibly more later.
    Messages(Chunk),
    /// Its last messages, or none.
    Ended(Chunk),
    /// Its next data needs this many bytes.
    TooLarge(usize),
}

/// Largest size of what a body hands out in its turn, unless one message is larger.
const TURN_BYTES: usize = 16 << 10;

// === impl OpenWatch ===

impl OpenWatch {
    pub(super) fn new(
        id: u32,
        key: usize,
        body: WatchBody,
        audited: Option<AuditedCall>,
        list: &Arc<ReadyList>,
    ) -> Self {
        let entry = WatchWaker::new(key, list);
        let waker = Waker::from(Arc::clone(&entry));
        let (sharing, shared_as) = (Vec::new(), None);
        Self { id, body, sharing, shared_as, seeks: true, entry, waker, audited, has_turn: false, encoded_bytes: 0 }
    }

    /// Returns the ids of its watches.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + Clone {
        [self.id].into_iter().chain(self.sharing.iter().map(|(id, _)| *id))
    }

    /// Returns the number of its watches.
    pub(super) fn count(&self) -> usize {
        1 + self.sharing.len()
    }

    /// Returns the ids of its watches whose rights have changed, if there are several.
    pub(super) fn changed(&self) -> Vec<u32> {
        if self.sharing.is_empty() || !self.body.is_notified() {
            return Vec::new();
        }
        let own = Some(self.id).filter(|_| self.body.has_new_access());
        let changed = self.sharing.iter().filter(|(_, sharing)| sharing.has_new_access());
        own.into_iter().chain(changed.map(|(id, _)| *id)).collect()
    }

    /// Removes one of several watches; none if it is not there. If it owns the body, another one does from now on.
    pub(super) fn take(&mut self, id: u32) -> Option<SharingWatch> {
        let taken = if id == self.id {
            let (next_id, next) = self.sharing.pop()?;
            (self.id, self.audited) = (next_id, next.audited().cloned());
            let before = self.body.change_owner(next);
            for (_, sharing) in &mut self.sharing {
                sharing.moves_to(&self.body);
            }
            before
        } else {
            let at = self.sharing.iter().position(|(other, _)| *other == id)?;
            self.sharing.swap_remove(at).1
        };
        self.body.loses_watch();
        Some(taken)
    }

    /// Ends one of several watches if its rights have changed, and returns the reason.
    pub(super) fn end_for_access(&mut self, id: u32) -> Option<ApiError> {
        let is_changed = self.changed().contains(&id);
        is_changed.then(|| self.take(id)?.end_for_access()).flatten()
    }

    /// Polls the body. If the room is not strict, its next message is handed out whatever its size.
    pub(super) fn poll(&mut self, room: Room, is_paused: bool) -> Turn {
        if is_paused && !self.body.has_ended() {
            match self.poll_body(Room { bytes: 0, is_strict: true }) {
                // It waits until it is resumed.
                Turn::TooLarge(_) if !self.body.has_ended() => return Turn::Nothing,
                Turn::TooLarge(_) => {}
                turn => return turn,
            }
        }
        let in_turn = Room { bytes: room.bytes.min(TURN_BYTES), is_strict: true };
        match self.poll_body(in_turn) {
            Turn::TooLarge(bytes) if bytes <= room.bytes => self.poll_body(Room { is_strict: true, ..room }),
            Turn::TooLarge(_) if !room.is_strict => self.poll_body(room),
            turn => turn,
        }
    }

    fn poll_body(&mut self, room: Room) -> Turn {
        match self.next_frame(room) {
            Poll::Pending => Turn::Nothing,
            Poll::Ready(Some(Ok(BoundedFrame::TooLarge(bytes)))) => Turn::TooLarge(bytes),
            Poll::Ready(Some(Ok(BoundedFrame::Frame(frame)))) => match frame.into_data() {
                Ok(chunk) => {
                    if let Some(audited) = &self.audited {
                        audited.sends_bytes(chunk.remaining());
                    }
                    if !self.body.has_ended() {
                        return Turn::Messages(chunk);
                    }
                    // The trailers follow, and need no room.
                    if let Poll::Ready(Some(Ok(BoundedFrame::Frame(frame)))) = self.next_frame(room) {
                        self.has_trailers(&frame);
                    }
                    Turn::Ended(chunk)
                }
                Err(trailers) => {
                    self.has_trailers(&trailers);
                    Turn::Ended(Chunk::default())
                }
            },
            Poll::Ready(Some(Err(_)) | None) => Turn::Ended(Chunk::default()),
        }
    }

    fn next_frame(&mut self, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        let mut cx = Context::from_waker(&self.waker);
        if self.sharing.is_empty() {
            self.body.poll_bounded(&mut cx, room)
        } else {
            self.body.poll_shared(&mut cx, room)
        }
    }

    pub(super) fn has_trailers(&self, frame: &http_body::Frame<Chunk>) {
        let status = frame.trailers_ref().and_then(Status::from_header_map);
        self.ends(status.map_or(Code::Unknown, |status| status.code()));
    }

    /// Records the code with which the watches have ended.
    pub(super) fn ends(&self, code: Code) {
        if let Some(audited) = &self.audited {
            audited.ends(code);
        }
        for (_, sharing) in &self.sharing {
            sharing.ends_with(&self.body, code);
        }
    }
}
