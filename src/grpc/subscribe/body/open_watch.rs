//! Watches of a stream that are apart: each has a body.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Buf;
use tonic::{Code, Status};

use crate::{
    grpc::{
        audited_call::AuditedCall,
        subscribe::ready_list::{ReadyList, WatchWaker},
        watch::WatchBody,
    },
    transport::{BoundedBody, BoundedFrame, Chunk, Room},
};

/// Watch that is apart.
pub(super) struct OpenWatch {
    pub(super) id: u32,
    pub(super) body: WatchBody,
    /// False if the watch can never be attached.
    pub(super) may_attach: bool,
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
pub(super) const TURN_BYTES: usize = 16 << 10;

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
        Self { id, body, may_attach: true, entry, waker, audited, has_turn: false, encoded_bytes: 0 }
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
        self.body.poll_bounded(&mut cx, room)
    }

    pub(super) fn has_trailers(&self, frame: &http_body::Frame<Chunk>) {
        let status = frame.trailers_ref().and_then(Status::from_header_map);
        self.ends(status.map_or(Code::Unknown, |status| status.code()));
    }

    /// Records the code with which the watch has ended.
    pub(super) fn ends(&self, code: Code) {
        if let Some(audited) = &self.audited {
            audited.ends(code);
        }
    }
}
