//! Bodies of a stream: the request body as it is received, and the response body, which is polled for what can be sent.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;
use http_body::{Body, Frame};

use super::{Chunk, Exceeded};

/// Body of a request. Reading from it enlarges the client's flow-control window.
pub struct RequestBody(Received);

enum Received {
    Http2(RecvStream),
    #[cfg(feature = "kubernetes-api")]
    Http1(hyper::body::Incoming),
}

/// Body that is polled with the room for its next frame, so that it encodes nothing before that can be sent.
pub trait BoundedBody: Body<Data = Chunk, Error: Into<BoxError>> + Send + Unpin + 'static {
    /// Polls for the next frame within the room.
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Self::Error>>>;

    /// Returns the number of bytes that it has encoded and not handed out.
    fn encoded_bytes(&self) -> usize;

    /// Returns true if its client has paused a part of it. The stream waits then, also without data to send now, and may be
    /// [ended](Self::exhausted) for the memory that is held for it.
    fn is_paused(&self) -> bool {
        false
    }

    /// Waits, after the last frame, until what was not sent of the body must be discarded. What it needs for frames can go now; its
    /// place in the account of its peer stays until it is dropped.
    fn poll_discarded(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Records that the body ends because the deadline of its call has passed. It is not polled again.
    fn deadline_exceeded(&mut self) {}

    /// Ends the body, because more bytes than the limit are held for all streams, or for those of its owner, and its stream has
    /// waited longest. There is `room` for a last message. The body is not polled again.
    fn exhausted(&mut self, room: usize, exceeded: Exceeded) -> FinalFrames;

    /// Polls for the next frame, of any size.
    fn poll_any(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Chunk>, Self::Error>>> {
        let any = Room { bytes: usize::MAX, is_strict: false };
        Poll::Ready(match ready!(self.poll_bounded(cx, any)) {
            Some(Ok(BoundedFrame::Frame(frame))) => Some(Ok(frame)),
            // Unreachable for a body that follows the contract: every size is allowed.
            Some(Ok(BoundedFrame::TooLarge(_))) | None => None,
            Some(Err(error)) => Some(Err(error)),
        })
    }
}

/// Last message and trailers of a body that the server ends early.
#[derive(Debug)]
pub struct FinalFrames {
    /// Data that fits into the room for it.
    pub message: Option<Chunk>,
    /// Trailers of the response; without any, the stream is reset, so that nobody takes a part of the response for all of it.
    pub trailers: Option<HeaderMap>,
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Room for the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Number of bytes that can be sent now.
    pub bytes: usize,
    /// True if a message that is larger must not be encoded; otherwise it is encoded as a whole.
    pub is_strict: bool,
}

/// Maximum room for one frame: large enough for cheap writes, small enough for streams to take turns.
pub(super) const MAX_ROOM: usize = 64 << 10;
/// Size of a message that is not known before it is encoded.
pub const UNKNOWN: usize = usize::MAX;

/// Result of polling a body for its next frame.
#[derive(Debug)]
pub enum BoundedFrame {
    /// Data that fits into the room, or trailers, which need none.
    Frame(Frame<Chunk>),
    /// The next message needs this many bytes, more than there are; [`UNKNOWN`] if its size is not known before it is encoded.
    /// The caller polls again with a room that is not strict.
    TooLarge(usize),
}

// === impl RequestBody ===

impl RequestBody {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self(Received::Http2(stream))
    }
}

#[cfg(feature = "kubernetes-api")]
impl From<hyper::body::Incoming> for RequestBody {
    fn from(body: hyper::body::Incoming) -> Self {
        Self(Received::Http1(body))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        #[cfg_attr(
            not(feature = "kubernetes-api"),
            expect(clippy::infallible_destructuring_match, reason = "HTTP/1.1 is the other")
        )]
        let stream = match &mut self.get_mut().0 {
            Received::Http2(stream) => stream,
            #[cfg(feature = "kubernetes-api")]
            Received::Http1(body) => return Pin::new(body).poll_frame(cx).map_err(Into::into),
        };
        Poll::Ready(match ready!(stream.poll_data(cx)) {
            Some(Ok(data)) => {
                // Fails for a closed stream, which needs no capacity.
                drop(stream.flow_control().release_capacity(data.len()));
                Some(Ok(Frame::data(data)))
            }
            // The client sends no more, but may still read the response: the data received so far is the request.
            Some(Err(error)) if matches!(error.reason(), Some(Reason::NO_ERROR | Reason::CANCEL)) => None,
            Some(Err(error)) => Some(Err(error.into())),
            None => {
                let trailers = ready!(stream.poll_trailers(cx)).transpose();
                trailers.map(|trailers| trailers.map(Frame::trailers).map_err(Into::into))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Received::Http2(stream) => stream.is_end_stream(),
            #[cfg(feature = "kubernetes-api")]
            Received::Http1(body) => body.is_end_stream(),
        }
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody").finish_non_exhaustive()
    }
}

// === impl Room ===

impl Room {
    /// Returns true if no data fits.
    pub fn is_shut(self) -> bool {
        self.is_strict && self.bytes == 0
    }

    /// Returns true if data of this size, which cannot be split, may be handed out.
    pub fn allows(self, bytes: usize) -> bool {
        bytes <= self.bytes || !self.is_strict
    }

    /// Returns the room that is left after `bytes`.
    #[must_use]
    pub fn without(self, bytes: usize) -> Self {
        Self { bytes: self.bytes.saturating_sub(bytes), ..self }
    }
}
