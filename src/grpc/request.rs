//! Request messages of any service: each must arrive completely within a time limit and a size limit.
//!
//! A unary request must end within the time limit. In a stream of requests, the limit applies to the first message from the start
//! of the call, and to each later one from its first byte on: a client may be silent between messages.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use prometheus_client::metrics::counter::Counter;
use tokio::time::Sleep;

use super::{
    boundaries::{Boundaries, Boundary},
    frame::PREFIX_BYTES,
    open_streams::StreamEntry,
    peers::RequestCharge,
    status::ApiError,
};
use crate::transport::StreamHandle;

/// Limits for the messages of one call.
#[derive(Debug, Clone)]
pub(super) struct RequestBounds {
    /// Maximum size of a message, in bytes.
    pub(super) bytes: usize,
    /// Maximum time for a message.
    pub(super) timeout: Duration,
    /// True if the request may have more than one message.
    pub(super) is_stream: bool,
    /// True if the response may begin long after the request: other limits apply to the call once its message is complete.
    pub(super) waits: bool,
}

/// Request body of a call.
pub(super) type Messages = Box<RequestMessages<tonic::body::Body>>;

/// Request body that enforces the limits, and hands out whole messages, one in each frame. It copies them: a piece of a message would
/// keep the buffer of everything that arrived with it.
pub(super) struct RequestMessages<B> {
    body: B,
    bounds: RequestBounds,
    /// Stream of the call. If a message is late, the server closes its connection after the last stream has ended.
    stream: Option<StreamHandle>,
    /// Entry of a stream of requests whose caller was authenticated.
    entry: Option<StreamEntry>,
    boundaries: Boundaries,
    /// Message that is being received, with its prefix.
    message: BytesMut,
    is_complete: bool,
    /// Bytes that have arrived after it.
    rest: Bytes,
    /// Error that is not handed out yet.
    failed: Option<ApiError>,
    /// True if the body has no more frames.
    is_over: bool,
    /// Number of messages that have arrived completely.
    complete: u64,
    /// Counter of these.
    received: Option<Counter>,
    /// Account of the peer, and the bytes that are charged to it.
    charge: Option<RequestCharge>,
    charged: usize,
    /// Bytes that the call holds of earlier messages.
    kept: usize,
    /// Timer of the message that is expected; none between messages.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Returns a message that was [handed out](RequestMessages) without its prefix.
///
/// # Errors
///
/// If there is none, or if it is compressed.
pub(super) fn payload(message: &Bytes) -> Result<Bytes, ApiError> {
    match message.first() {
        Some(0) => Ok(message.slice(PREFIX_BYTES.min(message.len())..)),
        Some(_) => Err(ApiError::NotImplemented { what: "a compressed request" }),
        None => Err(ApiError::request("the message is missing")),
    }
}

// === impl RequestMessages ===

impl<B> RequestMessages<B> {
    pub(super) fn new(body: B, bounds: RequestBounds, stream: Option<StreamHandle>) -> Self {
        Self {
            body,
            bounds,
            stream,
            entry: None,
            boundaries: Boundaries::default(),
            message: BytesMut::new(),
            is_complete: false,
            rest: Bytes::new(),
            failed: None,
            is_over: false,
            complete: 0,
            received: None,
            charge: None,
            charged: 0,
            kept: 0,
            timer: None,
        }
    }

    /// Returns true if the request may have more than one message.
    pub(super) fn is_stream(&self) -> bool {
        self.bounds.is_stream
    }

    /// Sets the entry of the stream, at whose end the messages end with the reason.
    pub(super) fn belong_to(&mut self, entry: StreamEntry) {
        self.entry = Some(entry);
    }

    /// Waits until the server ends the stream, also after the last message.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<ApiError> {
        self.entry.as_mut().map_or(Poll::Pending, |entry| entry.poll_end(cx))
    }

    /// Counts the messages that have arrived completely.
    pub(super) fn counted_in(self, received: Option<Counter>) -> Self {
        Self { received, ..self }
    }

    /// Charges the bytes that have arrived to the account of the peer.
    pub(super) fn charged_to(self, charge: RequestCharge) -> Self {
        Self { charge: Some(charge), ..self }
    }

    /// Parses the bytes that have arrived, up to the end of a message.
    fn parse(&mut self) -> Result<(), ApiError> {
        if self.complete > 0 && !self.bounds.is_stream {
            return Err(ApiError::request("more than one message, or trailing data"));
        }
        while !self.is_complete {
            let mut left = &self.rest[..];
            let boundary = self.boundaries.next(&mut left);
            let parsed = self.rest.len() - left.len();
            self.message.extend_from_slice(&self.rest.split_to(parsed));
            match boundary {
                None => return Ok(()),
                Some(Boundary::Prefix(length)) if length > self.bounds.bytes => {
                    return Err(ApiError::RequestTooLarge { limit: self.bounds.bytes });
                }
                Some(Boundary::Prefix(_)) => {}
                Some(Boundary::End) => {
                    self.is_complete = true;
                    self.complete += 1;
                    if self.complete == 1 {
                        self.has_begun();
                    }
                    if let Some(received) = &self.received {
                        received.inc();
                    }
                    if self.bounds.is_stream {
                        self.timer = None;
                    }
                }
            }
        }
        Ok(())
    }

    /// Charges what the call holds of earlier messages, in bytes.
    pub(super) fn keep(&mut self, bytes: usize) {
        if self.kept != bytes {
            self.kept = bytes;
            self.account();
        }
    }

    /// Charges what is held now.
    fn account(&mut self) {
        let held = self.message.capacity() + self.rest.len() + self.kept;
        if let Some(charge) = self.charge.as_ref().filter(|_| held != self.charged) {
            charge.replace(self.charged, held);
        }
        self.charged = held;
    }

    /// Ends the request with an error, and frees what it holds.
    fn fail(&mut self, error: ApiError) {
        self.failed = Some(error);
        self.is_over = true;
        self.message = BytesMut::new();
        self.rest = Bytes::new();
        self.account();
    }

    /// Takes the message. A unary one counts until its call ends.
    fn take(&mut self) -> Bytes {
        self.is_complete = false;
        let message = std::mem::take(&mut self.message).freeze();
        if self.bounds.is_stream || self.bounds.waits {
            self.account();
        }
        message
    }

    /// The first message is complete: the call of a stream, or of one that waits, has other limits from now on.
    fn has_begun(&self) {
        if let Some(charge) = self.charge.as_ref().filter(|_| self.bounds.is_stream || self.bounds.waits) {
            charge.release_head();
        }
    }

    /// Returns true between the messages of a stream, where a client may be silent.
    fn is_between(&self) -> bool {
        self.bounds.is_stream && self.complete > 0 && self.boundaries.is_between()
    }

    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<ApiError> {
        if self.is_between() {
            return Poll::Pending;
        }
        let timeout = self.bounds.timeout;
        ready!(self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout))).as_mut().poll(cx));
        if let Some(stream) = &self.stream {
            stream.close_after_last();
        }
        Poll::Ready(ApiError::RequestTimeout { timeout })
    }

    /// Waits until the request must end: it is not complete in time, or its peer holds too much.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<ApiError> {
        if let Poll::Ready(error) = self.poll_shed(cx) {
            return Poll::Ready(error);
        }
        self.poll_timeout(cx)
    }

    /// Waits until the request must end because its peer holds too much. What holds nothing never ends so, and is polled with each
    /// event.
    pub(super) fn poll_shed(&self, cx: &mut Context<'_>) -> Poll<ApiError> {
        let charge = self.charge.as_ref().filter(|_| self.charged > 0);
        charge.map_or(Poll::Pending, |charge| charge.poll_ended(cx))
    }
}

impl<B: Body<Data = Bytes> + Unpin> RequestMessages<B> {
    /// Receives a message without handing it out. Ready when it is complete, or when the request is over. What a client sends after a
    /// unary request is not left in HTTP/2's windows.
    pub(super) fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !(self.is_over || (self.is_complete && self.bounds.is_stream)) {
            if !self.rest.is_empty() {
                if let Err(error) = self.parse() {
                    self.fail(error);
                }
                self.account();
                continue;
            }
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                if self.is_complete {
                    break;
                }
                let error = ready!(self.poll_ended(cx));
                self.fail(error);
                break;
            };
            match frame {
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                Some(Err(_)) => self.fail(ApiError::request("the stream broke before the end of the message")),
                None if self.is_complete || self.message.is_empty() => self.is_over = true,
                None => self.fail(ApiError::request("the stream ends within a message")),
            }
        }
        Poll::Ready(())
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for RequestMessages<B> {
    type Data = Bytes;
    type Error = ApiError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ApiError>>> {
        let this = self.get_mut();
        if let Poll::Ready(refusal) = this.poll_end(cx) {
            return Poll::Ready(Some(Err(refusal)));
        }
        ready!(this.poll_received(cx));
        Poll::Ready(match this.failed.take() {
            Some(error) => Some(Err(error)),
            None => this.is_complete.then(|| Ok(Frame::data(this.take()))),
        })
    }

    fn is_end_stream(&self) -> bool {
        let is_empty = !self.is_complete && self.message.is_empty() && self.rest.is_empty();
        is_empty && self.failed.is_none() && (self.is_over || self.body.is_end_stream())
    }
}

debug_fields!([B] RequestMessages<B> { bounds });

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt, StreamExt};
    use http_body_util::{BodyExt, StreamBody};
    use tokio::{sync::mpsc, time::Instant};
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;
    use crate::transport::PeerAccount;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn bounds(is_stream: bool) -> RequestBounds {
        RequestBounds { bytes: 8, timeout: TIMEOUT, is_stream, waits: false }
    }

    /// Creates a request body, and the channel that feeds it.
    fn messages(is_stream: bool) -> (mpsc::Sender<Bytes>, impl Body<Data = Bytes, Error = ApiError> + Unpin) {
        let (sender, sent) = mpsc::channel(10);
        let body = StreamBody::new(ReceiverStream::new(sent).map(|data| Ok::<_, Infallible>(Frame::data(data))));
        (sender, RequestMessages::new(body, bounds(is_stream), None))
    }

    fn message(payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[0], &length[..], payload].concat()
    }

    async fn collected(pieces: &[&[u8]], is_stream: bool) -> Result<Bytes, ApiError> {
        let frames = pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))));
        let body = StreamBody::new(tokio_stream::iter(frames.collect::<Vec<_>>()));
        RequestMessages::new(body, bounds(is_stream), None).collect().await.map(http_body_util::Collected::to_bytes)
    }

    #[tokio::test]
    async fn the_message_limit_holds_however_the_bytes_are_split() {
        let whole = message(b"12345678");
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        for pieces in [&[&*whole][..], &[&whole[..3], &whole[3..]], &bytes] {
            assert_eq!(collected(pieces, false).await.unwrap(), whole);
        }
        assert_eq!(collected(&[&message(b"")], false).await.unwrap(), message(b""));
        // The prefix contains the size, so it is checked before the message arrives.
        let too_large = ApiError::RequestTooLarge { limit: 8 };
        assert_eq!(collected(&[&message(b"123456789")[..5]], false).await, Err(too_large.clone()));
        let two = [message(b"1"), message(b"2")].concat();
        let refusal = collected(&[&two], false).await.unwrap_err();
        assert_eq!(refusal.code_and_reason().1, "REQUEST_INVALID");
        assert_eq!(collected(&[&two], true).await.unwrap(), two);
        assert_eq!(collected(&[&message(b"1"), &message(b"123456789")], true).await, Err(too_large));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_incomplete_at_its_timeout_is_rejected() {
        let whole = message(b"12345678");
        for sent in [&[][..], &whole[..3], &whole[..7], &whole] {
            let (sender, mut body) = messages(false);
            sender.send(Bytes::copy_from_slice(sent)).await.unwrap();
            let began = Instant::now();
            if sent == whole {
                body.frame().await.unwrap().unwrap();
            }
            assert_eq!(body.frame().await.unwrap().unwrap_err(), ApiError::RequestTimeout { timeout: TIMEOUT });
            assert_eq!(began.elapsed(), TIMEOUT);
        }
    }

    #[tokio::test]
    async fn what_follows_a_unary_request_is_read_and_refused_before_the_message_is_taken() {
        let (sender, sent) = mpsc::channel(10);
        let body = StreamBody::new(ReceiverStream::new(sent).map(|data| Ok::<_, Infallible>(Frame::data(data))));
        let mut body = RequestMessages::new(body, bounds(false), None);
        sender.send(message(b"1").into()).await.unwrap();
        let mut received = async || std::future::poll_fn(|cx| body.poll_received(cx)).await;
        received().await;
        sender.send(Bytes::from_static(b"more")).await.unwrap();
        received().await;
        let refusal = body.frame().await.unwrap().unwrap_err();
        assert_eq!(refusal.code_and_reason().1, "REQUEST_INVALID");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_stream_may_be_silent_only_between_messages() {
        let (_silent, mut body) = messages(true);
        body.frame().await.unwrap().unwrap_err();

        let (sender, mut body) = messages(true);
        let whole = message(b"12345678");
        for _ in 0..3 {
            sender.send(Bytes::copy_from_slice(&whole[..4])).await.unwrap();
            tokio::time::timeout(TIMEOUT / 2, body.frame()).await.expect_err("it waits");
            sender.send(Bytes::copy_from_slice(&whole[4..])).await.unwrap();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), whole);
            tokio::time::timeout(TIMEOUT * 10, body.frame()).await.expect_err("it waits");
        }
        sender.send(Bytes::copy_from_slice(&whole[..6])).await.unwrap();
        let began = Instant::now();
        assert_eq!(body.frame().await.unwrap().unwrap_err(), ApiError::RequestTimeout { timeout: TIMEOUT });
        assert_eq!(began.elapsed(), TIMEOUT);
    }

    #[tokio::test]
    async fn a_request_that_ends_within_a_message_is_invalid_and_messages_are_handed_out_whole() {
        let whole = message(b"12345678");
        for end in 1..whole.len() {
            let refusal = collected(&[&whole[..end]], true).await.unwrap_err();
            assert_eq!(refusal.code_and_reason().1, "REQUEST_INVALID");
        }
        let (sender, mut body) = messages(true);
        let (two, three) = (message(b"two"), message(b"three"));
        sender.send([&whole[..], &two, &three[..6]].concat().into()).await.unwrap();
        sender.send(Bytes::copy_from_slice(&three[6..])).await.unwrap();
        drop(sender);
        for expected in [whole, two, three] {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), expected);
        }
        assert!(body.frame().await.is_none());
    }

    /// Sends pieces to requests of one peer that may hold `limit` bytes, and returns what they hold and the reasons of their ends.
    async fn charged(limit: usize, bounds: &RequestBounds, pieces: &[&[u8]]) -> (usize, Vec<Option<&'static str>>) {
        let account = PeerAccount::new(limit, 100);
        let mut bodies = Vec::new();
        for piece in pieces {
            let (sender, sent) = mpsc::channel(10);
            let body = StreamBody::new(ReceiverStream::new(sent).map(|data| Ok::<_, Infallible>(Frame::data(data))));
            let charge = RequestCharge::of_body(&account);
            let mut body = RequestMessages::new(body, bounds.clone(), None).charged_to(charge);
            sender.send(Bytes::copy_from_slice(piece)).await.unwrap();
            drop(body.frame().now_or_never());
            bodies.push((sender, body));
        }
        let held = account.held();
        let reason = |body: &mut RequestMessages<_>| match body.frame().now_or_never() {
            Some(Some(Err(error))) => Some(error.code_and_reason().1),
            _ => None,
        };
        let reasons = bodies.iter_mut().map(|(_, body)| reason(body)).collect();
        drop(bodies);
        assert_eq!(account.held(), 0);
        (held, reasons)
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_arrived_is_charged_and_the_oldest_request_ends_above_the_limit() {
        let (unary, stream) = (bounds(false), bounds(true));
        let late = RequestBounds { waits: true, ..bounds(false) };
        let whole = message(b"12345678");
        // One byte is charged, too.
        assert!(charged(1000, &unary, &[&whole[..1]]).await.0 > 0);
        let (held, ends) = charged(1000, &unary, &[&whole[..12], &whole[..12]]).await;
        assert!(held >= 24 && ends == [None, None], "{held}, {ends:?}");
        let ended = Some("REQUEST_MEMORY_EXCEEDED");
        let pieces = [&whole[..12]; 3];
        assert_eq!(charged(held, &unary, &pieces).await, (held, vec![ended, None, None]));
        assert_eq!(charged(held, &stream, &pieces).await, (held, vec![ended, None, None]));
        // A message counts until the call ends, except in a stream and where the response may be late.
        for (bounds, counts) in [(unary, true), (stream, false), (late, false)] {
            assert_eq!(charged(1000, &bounds, &[&whole]).await.0 > 0, counts, "{bounds:?}");
        }
    }
}
