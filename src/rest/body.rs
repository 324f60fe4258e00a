//! Body of a response: a document, the chunks of a list, or the lines of a watch.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body::{Body, Frame};
use serde_json::Value;
use tonic::{Code, Status};

use crate::{
    grpc::{ListEnd, ListProgress, Listing, Outcome},
    model::Object,
    proto::PayloadFormat,
    transport::{BoundedBody, BoundedFrame, Chunk, Exceeded, FinalFrames, Room},
};

/// Body of a response.
pub struct RestBody {
    kind: Kind,
    /// Place of the call; none for a response without one.
    outcome: Option<Outcome>,
}

enum Kind {
    Full(Bytes),
    List(Box<ListBody>),
    Watch(Box<dyn BoundedBody<Error = Status>>),
    Over,
}

/// Encoder of a list as JSON.
pub(super) trait ListEncoder: Send + 'static {
    /// Appends what is before the objects.
    fn head(&self, buffer: &mut BytesMut);

    /// Appends an object.
    fn item(&self, object: &Object, payload: PayloadFormat, buffer: &mut BytesMut);

    /// Appends what is behind the objects.
    fn end(&self, end: &ListEnd, buffer: &mut BytesMut);
}

/// Objects of a list, as JSON.
pub(super) struct ListBody {
    listing: Listing,
    encoder: Box<dyn ListEncoder>,
    /// Encoded and not handed out.
    buffer: BytesMut,
    is_first: bool,
    is_done: bool,
}

/// Bytes that are encoded at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Returns the response to a read: its body, but not to HEAD.
pub(super) fn of_read(method: &Method, body: RestBody, content_type: &'static str) -> Response<RestBody> {
    let body = if method == Method::HEAD { body.without_content() } else { body };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// Returns a response that is a document.
pub(super) fn json(status: StatusCode, value: &Value) -> Response<RestBody> {
    let mut response = Response::new(RestBody::full(value.to_string() + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

// === impl ListBody ===

impl ListBody {
    pub(super) fn new(listing: Listing, encoder: impl ListEncoder) -> Self {
        let mut buffer = BytesMut::new();
        encoder.head(&mut buffer);
        Self { listing, encoder: Box::new(encoder), buffer, is_first: true, is_done: false }
    }

    /// Returns the next bytes, at most as many as there is room for; `None` after the last.
    fn poll(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<Bytes, usize>>> {
        let Self { listing, encoder, buffer, is_first, is_done } = self;
        if buffer.is_empty() && !*is_done {
            let payload = listing.payload();
            let polled = listing.poll_next(cx, buffer, CHUNK_BYTES, |object, buffer| {
                if !std::mem::take(is_first) {
                    buffer.extend_from_slice(b",");
                }
                encoder.item(object, payload, buffer);
            });
            match polled {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ListProgress::More) if buffer.is_empty() => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(ListProgress::More) => {}
                Poll::Ready(ListProgress::Done) => {
                    *is_done = true;
                    encoder.end(&listing.end(), buffer);
                }
            }
        }
        if buffer.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(take(buffer, room)))
    }
}

/// Takes as much as there is room for. Without any, returns the room for all.
fn take(buffer: &mut BytesMut, room: Room) -> Result<Bytes, usize> {
    if room.is_shut() {
        return Err(buffer.len());
    }
    let bytes = if room.is_strict { buffer.len().min(room.bytes) } else { buffer.len() };
    Ok(buffer.split_to(bytes).freeze())
}

// === impl RestBody ===

impl RestBody {
    pub(super) fn full(text: impl Into<Bytes>) -> Self {
        Self { kind: Kind::Full(text.into()), outcome: None }
    }

    pub(super) fn list(list: ListBody, outcome: Outcome) -> Self {
        Self { kind: Kind::List(Box::new(list)), outcome: Some(outcome) }
    }

    pub(super) fn watch(watch: Box<dyn BoundedBody<Error = Status>>, outcome: Outcome) -> Self {
        Self { kind: Kind::Watch(watch), outcome: Some(outcome) }
    }

    /// Keeps the place of a call until the document is sent.
    pub(super) fn of_call(self, outcome: Outcome) -> Self {
        Self { outcome: Some(outcome), ..self }
    }

    /// Returns the body of a response to HEAD.
    fn without_content(self) -> Self {
        Self { kind: Kind::Over, ..self }
    }

    fn ends(&mut self, code: Code) {
        if let Some(outcome) = &mut self.outcome {
            outcome.ends(code);
        }
        (self.kind, self.outcome) = (Kind::Over, None);
    }
}

impl BoundedBody for RestBody {
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        let data: Option<Chunk> = match &mut self.kind {
            Kind::Full(text) if text.is_empty() => None,
            Kind::Full(_) if room.is_shut() => return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(1)))),
            Kind::Full(text) => {
                let bytes = if room.is_strict { text.len().min(room.bytes) } else { text.len() };
                Some(text.split_to(bytes).into())
            }
            Kind::List(list) => match list.poll(cx, room) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Err(needed))) => return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(needed)))),
                Poll::Ready(Some(Ok(data))) => Some(data.into()),
                Poll::Ready(None) => None,
            },
            Kind::Watch(watch) => match watch.poll_bounded(cx, room) {
                Poll::Ready(Some(Ok(BoundedFrame::Frame(frame)))) => match frame.into_data() {
                    Ok(data) => Some(data),
                    Err(frame) => {
                        let code = frame.trailers_ref().and_then(Status::from_header_map).map(|status| status.code());
                        self.ends(code.unwrap_or(Code::Unknown));
                        return Poll::Ready(None);
                    }
                },
                polled => return polled,
            },
            Kind::Over => None,
        };
        let Some(data) = data else {
            self.ends(Code::Ok);
            return Poll::Ready(None);
        };
        if let Some(outcome) = &self.outcome {
            outcome.sends(data.remaining());
        }
        Poll::Ready(Some(Ok(BoundedFrame::Frame(Frame::data(data)))))
    }

    fn encoded_bytes(&self) -> usize {
        match &self.kind {
            Kind::Full(text) => text.len(),
            Kind::List(list) => list.buffer.len(),
            Kind::Watch(watch) => watch.encoded_bytes(),
            Kind::Over => 0,
        }
    }

    fn exhausted(&mut self, room: usize, exceeded: Exceeded) -> FinalFrames {
        let message = match &mut self.kind {
            Kind::Watch(watch) => watch.exhausted(room, exceeded).message,
            _ => None,
        };
        self.ends(Code::ResourceExhausted);
        FinalFrames { message, trailers: HeaderMap::new() }
    }
}

impl Body for RestBody {
    type Data = Chunk;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Chunk>, Status>>> {
        self.get_mut().poll_any(cx)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.kind, Kind::Over)
    }
}

impl fmt::Debug for RestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestBody").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}
