//! Interface of a watch's body to its connection: hands out what is encoded, if it fits into the room.

use std::task::{Context, Poll, ready};

use bytes::Buf;
use http_body::Frame;
use tonic::Status;

use super::{StepResult, WatchBody};
use crate::{
    grpc::{
        status::{ApiError, trailers},
        watch_end::WatchEnd,
    },
    transport::{BoundedBody, BoundedFrame, Exceeded, FinalFrames, Room},
    watch::Cursor,
};

impl WatchBody {
    /// Ends the watch with an error, unless it has ended.
    pub(in crate::grpc) fn refuse(&mut self, refusal: &ApiError) {
        if self.end.is_none() && !self.is_over {
            self.end_now(refusal);
        }
    }

    /// Returns the next frame. A change of rights has been looked for: one from now on is found with its notification.
    pub(in crate::grpc::watch) fn poll_next_frame(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
    ) -> Poll<Option<Result<BoundedFrame, Status>>> {
        loop {
            if let Some(chunk) = self.ready.take_if(|chunk| room.allows(chunk.remaining())) {
                return Poll::Ready(Some(Ok(BoundedFrame::Frame(Frame::data(chunk)))));
            }
            if self.ready.is_some() && room.is_shut() {
                // A paused watch ends although its client has not read what is ready.
                self.poll_end(cx);
            }
            if let Some(chunk) = &self.ready {
                return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(chunk.remaining()))));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            if let Some(status) = self.end.take() {
                self.is_over = true;
                return Poll::Ready(Some(Ok(BoundedFrame::Frame(Frame::trailers(trailers(&status))))));
            }
            if let StepResult::TooLarge(needed) = ready!(self.poll_next(cx, room)) {
                return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(needed))));
            }
        }
    }

    /// Ends the RPC with a status. The writer does not wait any more for a watch that has only its last message to send.
    pub(super) fn set_end(&mut self, status: Status) {
        self.end = Some(status);
        self.watch.leave_queue();
    }

    /// Returns true if nothing but its end is left to hand out.
    pub(in crate::grpc) fn has_ended(&self) -> bool {
        self.end.is_some() || self.is_over
    }

    /// Records that the watch ends because the conditions of an Until are met.
    pub(in crate::grpc) fn meets_conditions(&self) {
        self.watcher.ends(WatchEnd::condition_met());
    }
}

impl BoundedBody for WatchBody {
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        if self.watcher.has_new_access() {
            self.change_access();
        }
        self.poll_next_frame(cx, room)
    }

    fn encoded_bytes(&self) -> usize {
        let ready = self.ready.as_ref().map_or(0, Buf::remaining);
        let initial = self.initial.as_ref().map_or(0, |initial| initial.events.encoded_bytes());
        ready + initial + self.watch.cursor().map_or(0, Cursor::held)
    }

    fn deadline_exceeded(&mut self) {
        self.watcher.ends(WatchEnd::deadline_exceeded());
    }

    fn exhausted(&mut self, room: usize, exceeded: Exceeded) -> FinalFrames {
        // An end that was not handed out yet is sent as it is.
        if self.end.is_none() {
            let after = self.position().filter(|_| self.ready.is_none()).cloned();
            self.end_now(&ApiError::held(exceeded, after));
        }
        let status = self.end.take().unwrap_or_else(|| Status::ok(""));
        self.is_over = true;
        let message = self.ready.take().filter(|message| message.remaining() <= room);
        FinalFrames { message, trailers: Some(trailers(&status)) }
    }
}

http_body!(WatchBody, body => body.is_over);

debug_fields!(WatchBody, this => {
    resource: this.resource.name,
    selection: this.watch.subscribe().selection,
    position: this.position(),
});
