//! Body of a response: a document, the chunks of a list, or the lines of a watch.

use std::{
    fmt,
    future::poll_fn,
    io::Write,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame};
use serde_json::Value;
use tonic::{Code, Status};

use crate::{
    grpc::{ListEnd, ListProgress, Listing, Outcome, PeerCall},
    model::Object,
    proto::PayloadFormat,
    transport::{BoundedBody, BoundedFrame, Chunk, Exceeded, FinalFrames, Room},
};

/// Body of a response.
pub struct RestBody {
    kind: Kind,
    /// Place of the call in the metrics; none for a response without one.
    outcome: Option<Outcome>,
    /// Place of the request in the account of its peer; none for one that was refused, or that the account has ended.
    place: Option<PeerCall>,
}

enum Kind {
    Full(Bytes),
    List(Box<ListBody>),
    Watch(Box<dyn BoundedBody<Error = Status>>, &'static [u8]),
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

/// Body of the response to a read.
pub(super) enum ReadBody {
    Object(Bytes),
    List(Box<ListBody>),
    /// Events, each of which ends with these bytes.
    Watch(Box<dyn BoundedBody<Error = Status>>, &'static [u8]),
    /// Only event of a watch that is refused, and over.
    Refused(Bytes),
}

/// Objects of a list, as JSON.
pub(super) struct ListBody {
    listing: Listing,
    encoder: Box<dyn ListEncoder>,
    /// Encoded and not compressed.
    plain: BytesMut,
    /// Compressor, and what it has not handed out; none for a client that gets plain text.
    gzip: Option<GzEncoder<Vec<u8>>>,
    /// Ready to be handed out.
    buffer: BytesMut,
    is_first: bool,
    is_done: bool,
}

/// Bytes that are encoded or compressed at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Size above which a list is compressed, as by an API server.
const COMPRESSED_BYTES: usize = 128 << 10;
/// About the memory of a compressor, in bytes.
const COMPRESSOR_BYTES: usize = 320 << 10;

/// Returns a response that is a document.
pub(super) fn json(status: StatusCode, value: &Value) -> Response<RestBody> {
    let mut response = Response::new(RestBody::full(value.to_string() + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

// === impl ListBody ===

impl ListBody {
    /// Begins the document of a list. One that may be compressed is encoded up to the size above which it is.
    pub(super) async fn begin(listing: Listing, encoder: impl ListEncoder, may_compress: bool) -> Self {
        let mut plain = BytesMut::new();
        encoder.head(&mut plain);
        let (encoder, buffer) = (Box::new(encoder), BytesMut::new());
        let mut list = Self { listing, encoder, plain, gzip: None, buffer, is_first: true, is_done: false };
        if may_compress {
            let enough = COMPRESSED_BYTES + 1;
            poll_fn(|cx| list.poll_encoded(cx, enough, enough)).await;
            let is_large = list.plain.len() > COMPRESSED_BYTES;
            list.gzip = is_large.then(|| GzEncoder::new(Vec::new(), Compression::fast()));
        }
        list
    }

    /// Encodes objects until at least so many bytes are encoded, or all; at a time about `bytes`.
    fn poll_encoded(&mut self, cx: &mut Context<'_>, bytes: usize, least: usize) -> Poll<()> {
        let Self { listing, encoder, plain, is_first, is_done, .. } = self;
        if plain.len() >= least || *is_done {
            return Poll::Ready(());
        }
        let payload = listing.payload();
        let progress = ready!(listing.poll_next(cx, plain, bytes, |object, buffer| {
            if !std::mem::take(is_first) {
                buffer.extend_from_slice(b",");
            }
            encoder.item(object, payload, buffer);
        }));
        match progress {
            ListProgress::More if plain.len() < least => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            ListProgress::More => {}
            ListProgress::Done => {
                *is_done = true;
                encoder.end(&listing.end(), plain);
            }
        }
        Poll::Ready(())
    }

    /// Returns the next bytes, at most as many as there is room for; `None` after the last.
    fn poll(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<Bytes, usize>>> {
        if self.buffer.is_empty() {
            if self.plain.is_empty() {
                ready!(self.poll_encoded(cx, CHUNK_BYTES, 1));
            }
            match self.gzip.take() {
                None => std::mem::swap(&mut self.plain, &mut self.buffer),
                Some(gzip) => {
                    self.compress(gzip);
                    if self.buffer.is_empty() && self.gzip.is_some() {
                        // The compressor keeps it for now.
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
        }
        if self.buffer.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(take(&mut self.buffer, room)))
    }

    /// Compresses the next bytes. The last ones end the compressor.
    fn compress(&mut self, mut gzip: GzEncoder<Vec<u8>>) {
        let next = self.plain.split_to(self.plain.len().min(CHUNK_BYTES));
        // Writing to memory does not fail.
        drop(gzip.write_all(&next));
        if self.is_done && self.plain.is_empty() {
            self.buffer.extend_from_slice(&gzip.finish().unwrap_or_default());
        } else {
            self.buffer.extend_from_slice(&std::mem::take(gzip.get_mut()));
            self.gzip = Some(gzip);
        }
    }

    fn bytes(&self) -> usize {
        self.plain.len() + self.buffer.len() + if self.gzip.is_some() { COMPRESSOR_BYTES } else { 0 }
    }
}

// === impl ReadBody ===

impl ReadBody {
    /// Returns the response with this body.
    pub(super) fn into_response(self, outcome: Outcome, content_type: &'static str) -> Response<RestBody> {
        let (mut headers, is_gzip) = (HeaderMap::new(), matches!(&self, Self::List(list) if list.gzip.is_some()));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        if is_gzip {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        }
        let outcome = (!matches!(self, Self::Refused(_))).then_some(outcome);
        let kind = match self {
            Self::Object(text) | Self::Refused(text) => Kind::Full(text),
            Self::List(list) => Kind::List(list),
            Self::Watch(watch, event_end) => Kind::Watch(watch, event_end),
        };
        let mut response = Response::new(RestBody { kind, outcome, place: None });
        *response.headers_mut() = headers;
        response
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
        Self { kind: Kind::Full(text.into()), outcome: None, place: None }
    }

    pub(super) fn empty() -> Self {
        Self { kind: Kind::Over, outcome: None, place: None }
    }

    /// Leaves out the content, as in a response to HEAD: the call ends with its headers.
    pub(super) fn without_content(mut self) -> Self {
        self.kind = Kind::Over;
        self.ends(Code::Ok);
        self
    }

    /// Keeps the place of a request until its response is sent.
    pub(super) fn at(self, place: PeerCall) -> Self {
        let place = place.of_response(matches!(self.kind, Kind::Watch(..)));
        Self { place: Some(place), ..self }
    }

    /// Keeps the place of a call until the document is sent.
    pub(super) fn of_call(self, outcome: Outcome) -> Self {
        Self { outcome: Some(outcome), ..self }
    }

    fn ends(&mut self, code: Code) {
        if let Some(outcome) = &mut self.outcome {
            if code == Code::Ok && matches!(self.kind, Kind::Full(_) | Kind::List(_)) {
                outcome.sends_messages(1);
            }
            outcome.ends(code);
        }
        (self.kind, self.outcome) = (Kind::Over, None);
    }
}

impl BoundedBody for RestBody {
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        if let Some(Poll::Ready(refusal)) = self.place.as_ref().map(|place| place.poll_ended(cx)) {
            self.place = None;
            let status = refusal.to_status();
            self.ends(status.code());
            return Poll::Ready(Some(Err(status)));
        }
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
            Kind::Watch(watch, event_end) => match watch.poll_bounded(cx, room) {
                Poll::Ready(Some(Ok(BoundedFrame::Frame(frame)))) => match frame.into_data() {
                    Ok(data) => {
                        if let Some(outcome) = &self.outcome {
                            let events = data.pieces().map(|piece| memchr::memmem::find_iter(piece, event_end).count());
                            outcome.sends_messages(events.sum::<usize>() as u64);
                        }
                        Some(data)
                    }
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
            Kind::List(list) => list.bytes(),
            Kind::Watch(watch, _) => watch.encoded_bytes(),
            Kind::Over => 0,
        }
    }

    fn poll_discarded(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        (self.kind, self.outcome) = (Kind::Over, None);
        self.place.as_ref().map_or(Poll::Ready(()), |place| place.poll_ended(cx).map(drop))
    }

    fn exhausted(&mut self, room: usize, exceeded: Exceeded) -> FinalFrames {
        let (message, trailers) = match &mut self.kind {
            // A watch may end at any event.
            Kind::Watch(watch, _) => (watch.exhausted(room, exceeded).message, Some(HeaderMap::new())),
            _ => (None, None),
        };
        self.ends(Code::ResourceExhausted);
        FinalFrames { message, trailers }
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
