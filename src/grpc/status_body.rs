//! Response that is a status alone: the call is refused, or its deadline has passed. That of a Watch has the status as a message,
//! too, as at each other end of it: not every library shows the details of the trailers.

use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use http::HeaderMap;
use http_body::Frame as BodyFrame;
use prost::Message;
use tonic::Status;

use super::{
    frame::{append, error},
    status::final_frames,
};
use crate::transport::{BoundedBody, BoundedFrame, Chunk, Exceeded, FinalFrames, Room};

/// Body of a response that is a status alone.
pub(super) struct StatusBody {
    /// ERROR of a Watch.
    message: Option<Chunk>,
    trailers: Option<HeaderMap>,
}

// === impl StatusBody ===

impl StatusBody {
    /// Creates the end of a call with these trailers.
    pub(super) fn new(trailers: HeaderMap, is_watch: bool) -> Self {
        let status = Status::from_header_map(&trailers).filter(|_| is_watch);
        let message = status.map(|status| {
            let details = tonic_types::Status::decode(status.details()).unwrap_or_default().details;
            let (code, message) = (status.code().into(), status.message().to_owned());
            let mut buffer = BytesMut::new();
            append(&mut buffer, &error(None, tonic_types::Status { code, message, details }));
            buffer.freeze().into()
        });
        Self { message, trailers: Some(trailers) }
    }
}

impl BoundedBody for StatusBody {
    fn poll_bounded(&mut self, _: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        Poll::Ready(match self.message.take() {
            Some(message) if room.allows(message.remaining()) => {
                Some(Ok(BoundedFrame::Frame(BodyFrame::data(message))))
            }
            Some(message) => {
                let bytes = message.remaining();
                self.message = Some(message);
                Some(Ok(BoundedFrame::TooLarge(bytes)))
            }
            None => self.trailers.take().map(|trailers| Ok(BoundedFrame::Frame(BodyFrame::trailers(trailers)))),
        })
    }

    fn encoded_bytes(&self) -> usize {
        self.message.as_ref().map_or(0, Buf::remaining)
    }

    fn exhausted(&mut self, _: usize, exceeded: Exceeded) -> FinalFrames {
        match self.trailers.take() {
            None => final_frames(exceeded),
            trailers => FinalFrames { message: None, trailers },
        }
    }
}

http_body!(StatusBody, body => body.trailers.is_none());
