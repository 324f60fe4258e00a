//! The bodies of a stream: the request's as it is received, and the response's as it is asked for.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;
use http_body::{Body, Frame};

use super::Chunk;

/// The body of a request. What is read from it is what the client may send more of.
pub struct RequestBody(RecvStream);

/// A body that is asked for its next frame with the room that there is for it, so that nothing is made before it can be sent.
pub trait Supply: Body<Data = Chunk, Error: Into<BoxError>> + Send + Unpin + 'static {
    /// Polls for the next frame.
    fn poll_supply(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<Supplied, Self::Error>>>;

    /// Returns the bytes that it has made and not handed out.
    fn made(&self) -> usize;

    /// Ends because more than `limit` bytes are held for all streams, and its own has waited longest. It is not polled any more.
    /// There is `room` for a message.
    fn exhausted(&mut self, room: usize, limit: usize) -> LastWords;

    /// Polls for the next frame, of any size.
    fn poll_any(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Chunk>, Self::Error>>> {
        let any = Room { bytes: usize::MAX, is_strict: false };
        Poll::Ready(match ready!(self.poll_supply(cx, any)) {
            Some(Ok(Supplied::Frame(frame))) => Some(Ok(frame)),
            // Nothing is too large.
            Some(Ok(Supplied::TooLarge(_))) | None => None,
            Some(Err(error)) => Some(Err(error)),
        })
    }
}

/// Last message and trailers of a body that has to end before its time.
#[derive(Debug)]
pub struct LastWords {
    /// Data within the room that there was for it.
    pub message: Option<Chunk>,
    /// The end.
    pub trailers: HeaderMap,
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The room for the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What can be sent now.
    pub bytes: usize,
    /// When one message alone is larger, nothing is to be made; otherwise it is made whole.
    pub is_strict: bool,
}

/// A frame is asked for with at most so much room: writes are cheap when they are large, and streams take turns.
pub(super) const MAX_ROOM: usize = 64 << 10;
/// The size of a message that is known once it is made.
pub const UNKNOWN: usize = usize::MAX;

/// The answer of a body that was asked for its next frame.
#[derive(Debug)]
pub enum Supplied {
    /// Data within the room, or trailers, which need none.
    Frame(Frame<Chunk>),
    /// There is a message that needs so many bytes of room, and there is less. What is not known before it is made needs
    /// [`UNKNOWN`]. It is to be asked for without a strict bound.
    TooLarge(usize),
}

// === impl RequestBody ===

impl RequestBody {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self(stream)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let stream = &mut self.get_mut().0;
        Poll::Ready(match ready!(stream.poll_data(cx)) {
            Some(Ok(data)) => {
                // Fails for a stream that is closed, where it does not matter.
                drop(stream.flow_control().release_capacity(data.len()));
                Some(Ok(Frame::data(data)))
            }
            // The client sends no more, and may still read: what it has sent decides.
            Some(Err(error)) if matches!(error.reason(), Some(Reason::NO_ERROR | Reason::CANCEL)) => None,
            Some(Err(error)) => Some(Err(error)),
            None => ready!(stream.poll_trailers(cx)).transpose().map(|trailers| trailers.map(Frame::trailers)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody").finish_non_exhaustive()
    }
}

// === impl Room ===

impl Room {
    /// Returns whether nothing at all fits.
    pub fn is_shut(self) -> bool {
        self.is_strict && self.bytes == 0
    }

    /// Whether data of this size may be handed out, if it cannot be less.
    pub fn allows(self, bytes: usize) -> bool {
        bytes <= self.bytes || !self.is_strict
    }

    /// The same room without so many bytes, which come on top of what is made for it.
    #[must_use]
    pub fn without(self, bytes: usize) -> Self {
        Self { bytes: self.bytes.saturating_sub(bytes), ..self }
    }
}
