//! Interface of a stream's body to its connection.

use std::task::{Context, Poll};

use http_body::Frame;
use tonic::{Code, Status};

use super::{SubscribeBody, error};
use crate::{
    grpc::{
        status::{ApiError, trailers},
        subscribe::{deliveries::Deliveries, lanes::Lanes},
    },
    transport::{BoundedBody, BoundedFrame, Exceeded, FinalFrames, Room},
};

impl BoundedBody for SubscribeBody {
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        // Before the ids are taken: what wakes a watch after that wakes the stream.
        self.ready.register(cx.waker());
        if !self.is_draining && self.drained.as_mut().poll(cx).is_ready() {
            self.drain();
        }
        self.poll_requests(cx);
        self.requests.keep(self.kept_of_requests());
        if self.end.is_none()
            && let Poll::Ready(refusal) = self.requests.poll_shed(cx)
        {
            self.end_with(&refusal);
            // The client reads nothing: the status of the stream stands for those of the watches that were not open.
            self.ended.clear();
        }
        self.poll_paused(cx);
        if let Some(needed) = self.poll_turns(cx, room) {
            return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(needed))));
        }
        if !self.deliveries.is_empty() {
            return Poll::Ready(Some(Ok(BoundedFrame::Frame(Frame::data(self.deliveries.take())))));
        }
        let Some(status) = self.take_end() else { return Poll::Pending };
        self.is_over = true;
        Poll::Ready(Some(Ok(BoundedFrame::Frame(Frame::trailers(trailers(&status))))))
    }

    fn encoded_bytes(&self) -> usize {
        self.encoded_bytes + self.lanes.values().map(Lanes::encoded_bytes).sum::<usize>()
    }

    fn is_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    fn deadline_exceeded(&mut self) {
        self.detach_all();
        for (_, watch) in &mut self.bodies {
            watch.body.deadline_exceeded();
            watch.ends(Code::DeadlineExceeded);
        }
    }

    fn exhausted(&mut self, room: usize, exceeded: Exceeded) -> FinalFrames {
        self.is_over = true;
        self.detach_all();
        let refusal = ApiError::held(exceeded, None);
        let (status, last) = (refusal.to_status(), error(&refusal));
        let (mut with_versions, mut without) = (Deliveries::default(), Deliveries::default());
        for (_, watch) in &mut self.bodies {
            let FinalFrames { message, trailers } = watch.body.exhausted(usize::MAX, exceeded);
            watch.has_trailers(&Frame::trailers(trailers.unwrap_or_default()));
            with_versions.add(watch.id, message.unwrap_or_default(), true);
            without.add(watch.id, last.clone(), true);
        }
        // The same end for all needs less room than the version that each watch resumes from.
        let fits = |deliveries: &&mut Deliveries| !deliveries.is_empty() && deliveries.bytes() <= room;
        let message = [&mut with_versions, &mut without].into_iter().find(fits).map(Deliveries::take);
        FinalFrames { message, trailers: Some(trailers(&status)) }
    }
}

http_body!(SubscribeBody, body => body.is_over);
