//! Request messages of any service: each must arrive completely within a time limit and a size limit.
//!
//! A unary request must end within the time limit. In a stream of requests, the limit applies to the first message from the start
//! of the call, and to each later one from its first byte on: a client may be silent between messages.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use prometheus_client::metrics::counter::Counter;
use tokio::time::Sleep;

use super::{
    boundaries::{Boundaries, Boundary},
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
}

/// Request body that enforces the limits.
pub(super) struct RequestMessages<B> {
    body: B,
    bounds: RequestBounds,
    /// Stream of the call. If a message is late, the server closes its connection after the last stream has ended.
    stream: Option<StreamHandle>,
    boundaries: Boundaries,
    /// Number of messages that have arrived completely.
    complete: u64,
    /// Counter of these.
    received: Option<Counter>,
    /// Timer of the message that is expected; none between messages.
    timer: Option<Pin<Box<Sleep>>>,
}

// === impl RequestMessages ===

impl<B> RequestMessages<B> {
    pub(super) fn new(body: B, bounds: RequestBounds, stream: Option<StreamHandle>) -> Self {
        Self { body, bounds, stream, boundaries: Boundaries::default(), complete: 0, received: None, timer: None }
    }

    /// Counts the messages that have arrived completely.
    pub(super) fn counted_in(self, received: Option<Counter>) -> Self {
        Self { received, ..self }
    }

    /// Parses bytes that have arrived.
    fn read(&mut self, mut data: &[u8]) -> Result<(), ApiError> {
        loop {
            if self.complete > 0 && !self.bounds.is_stream && !data.is_empty() {
                return Err(ApiError::request("more than one message, or trailing data"));
            }
            match self.boundaries.next(&mut data) {
                None => return Ok(()),
                Some(Boundary::Prefix(length)) if length > self.bounds.bytes => {
                    return Err(ApiError::RequestTooLarge { limit: self.bounds.bytes });
                }
                Some(Boundary::Prefix(_)) => {}
                Some(Boundary::End) => {
                    self.complete += 1;
                    if let Some(received) = &self.received {
                        received.inc();
                    }
                    if self.bounds.is_stream {
                        self.timer = None;
                    }
                }
            }
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
}

impl<B: Body<Data = Bytes> + Unpin> Body for RequestMessages<B> {
    type Data = Bytes;
    type Error = ApiError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ApiError>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            return this.poll_timeout(cx).map(|refusal| Some(Err(refusal)));
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(frame.data_ref().map_or(Ok(()), |data| this.read(data)).map(|()| frame)),
            Some(Err(_)) => Some(Err(ApiError::request("the stream broke before the end of the message"))),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

impl<B> fmt::Debug for RequestMessages<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestMessages").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::StreamExt;
    use http_body_util::{BodyExt, StreamBody};
    use tokio::{sync::mpsc, time::Instant};
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Creates a request body, and the channel that feeds it.
    fn messages(is_stream: bool) -> (mpsc::Sender<Bytes>, impl Body<Data = Bytes, Error = ApiError> + Unpin) {
        let (sender, sent) = mpsc::channel(10);
        let body = StreamBody::new(ReceiverStream::new(sent).map(|data| Ok::<_, Infallible>(Frame::data(data))));
        (sender, RequestMessages::new(body, RequestBounds { bytes: 8, timeout: TIMEOUT, is_stream }, None))
    }

    fn message(payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[0], &length[..], payload].concat()
    }

    async fn collected(pieces: &[&[u8]], is_stream: bool) -> Result<Bytes, ApiError> {
        let frames = pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))));
        let body = StreamBody::new(tokio_stream::iter(frames.collect::<Vec<_>>()));
        let bounds = RequestBounds { bytes: 8, timeout: TIMEOUT, is_stream };
        RequestMessages::new(body, bounds, None).collect().await.map(http_body_util::Collected::to_bytes)
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
            body.frame().await.unwrap().unwrap();
            assert_eq!(body.frame().await.unwrap().unwrap_err(), ApiError::RequestTimeout { timeout: TIMEOUT });
            assert_eq!(began.elapsed(), TIMEOUT);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_stream_may_be_silent_only_between_messages() {
        let (_silent, mut body) = messages(true);
        body.frame().await.unwrap().unwrap_err();

        let (sender, mut body) = messages(true);
        let whole = message(b"12345678");
        for _ in 0..3 {
            for half in [&whole[..4], &whole[4..]] {
                sender.send(Bytes::copy_from_slice(half)).await.unwrap();
                body.frame().await.unwrap().unwrap();
                if half.len() > 4 {
                    tokio::time::timeout(TIMEOUT * 10, body.frame()).await.expect_err("it waits");
                } else {
                    tokio::time::timeout(TIMEOUT / 2, body.frame()).await.expect_err("it waits");
                }
            }
        }
        sender.send(Bytes::copy_from_slice(&whole[..6])).await.unwrap();
        body.frame().await.unwrap().unwrap();
        let began = Instant::now();
        assert_eq!(body.frame().await.unwrap().unwrap_err(), ApiError::RequestTimeout { timeout: TIMEOUT });
        assert_eq!(began.elapsed(), TIMEOUT);
    }
}
