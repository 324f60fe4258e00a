//! One request and its response, on their stream.
//!
//! A body is polled for as much as its stream's window has room for. A message that is larger than the window is encoded as a
//! whole when the connection has room for it: streams with such a message wait in a queue, and are not polled meanwhile.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Buf;
use h2::{Reason, SendStream, server::SendResponse};
use http::{HeaderMap, Response};

use super::{
    BoundedBody, BoundedFrame, Exceeded, FinalFrames, Room,
    body::{BoxError, MAX_ROOM},
    budget::{BudgetKind, QueuePosition, UNSENT_LARGE},
    data_payload::DataPayload,
    handle::StreamHandle,
    progress::Wait,
};
use crate::log_throttle::LogThrottle;

/// Driver of a stream: first its call, then the response body, which is polled for what can be sent. Ready when it is over.
pub(super) struct Exchange<B: BoundedBody> {
    stage: Stage<B>,
    handle: StreamHandle,
    /// Place in the queue for the socket: waits until the connection has written some of the data that fits into its windows.
    socket: QueuePosition,
    /// Place in the queue for large messages: waits until the connection has room for one.
    large: QueuePosition,
}

enum Stage<B> {
    Calling(Call<B>, SendResponse<DataPayload>),
    Sending(B, SendStream<DataPayload>),
    /// The body has ended, and its last data is larger than its window.
    Flushing(B, SendStream<DataPayload>),
    Over,
}

/// Outcome of polling a body for its next frame.
enum SendResult {
    Sent,
    /// The next message has this many bytes, and there is no room for it.
    TooLarge(usize),
    Nothing,
    Over(Option<Reason>),
}

/// Future of the service's response.
pub(super) type Call<B> = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

/// Largest message that can fit into a window; the server does not reserve more capacity.
const MAX_FITTING: usize = 64 << 20;

// === impl Exchange ===

impl<B: BoundedBody> Exchange<B> {
    pub(super) fn new(call: Call<B>, respond: SendResponse<DataPayload>, handle: StreamHandle) -> Self {
        handle.begin();
        Self {
            stage: Stage::Calling(call, respond),
            handle,
            socket: QueuePosition::default(),
            large: QueuePosition::default(),
        }
    }

    /// Reports the bytes that the body has encoded while it waits.
    fn note_encoded(&self) {
        let encoded_bytes = if let Stage::Sending(body, _) = &self.stage { body.encoded_bytes() } else { 0 };
        self.handle.note_encoded(encoded_bytes);
    }

    /// Ends the stream, with the last words of its body if they can be sent.
    fn end(&mut self, reason: Reason) {
        if let Some(exceeded) = self.handle.exhausted()
            && (!self.send_final_frames(exceeded) || self.handle.is_socket_full())
        {
            self.handle.close_after_last();
        }
        self.reset(reason);
    }

    /// Sends the last words of the body, if no data is before them. Trailers need no window; the message takes what there is. A body
    /// without trailers is left to be reset.
    fn send_final_frames(&mut self, exceeded: Exceeded) -> bool {
        let Self { stage: Stage::Sending(body, stream), handle, .. } = self else { return false };
        stream.reserve_capacity(MAX_ROOM);
        let FinalFrames { message, trailers } = body.exhausted(stream.capacity().min(MAX_ROOM), exceeded);
        if handle.has_unsent(1) {
            return false;
        }
        if let Some(message) = message
            && let Err(error) = stream.send_data(DataPayload::new(message, handle, BudgetKind::Socket), false)
        {
            tracing::debug!(%error, "stream lost");
        }
        if let Some(trailers) = trailers {
            send_trailers(stream, trailers);
            self.stage = Stage::Over;
        }
        true
    }

    /// Sends `RST_STREAM`, and discards unsent data.
    fn reset(&mut self, reason: Reason) {
        match &mut self.stage {
            Stage::Calling(_, respond) => respond.send_reset(reason),
            Stage::Sending(_, stream) | Stage::Flushing(_, stream) => stream.send_reset(reason),
            Stage::Over => {}
        }
        self.stage = Stage::Over;
    }

    /// Waits for the response, and sends its headers.
    fn poll_call(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Stage::Calling(call, respond) = &mut self.stage else { return Poll::Ready(()) };
        let Poll::Ready(response) = call.as_mut().poll(cx) else {
            // The client may cancel the call meanwhile.
            ready!(respond.poll_reset(cx)).map_or_else(|error| tracing::debug!(%error, "stream lost"), drop);
            self.stage = Stage::Over;
            return Poll::Ready(());
        };
        let (head, body) = match response {
            Ok(response) => response.into_parts(),
            Err(error) => {
                static LOG: LogThrottle = LogThrottle::new();
                if let Some(times) = LOG.poll() {
                    tracing::warn!(%error, times, "call failed without a response");
                }
                self.handle.fails();
                self.reset(Reason::INTERNAL_ERROR);
                return Poll::Ready(());
            }
        };
        let is_over = body.is_end_stream();
        match respond.send_response(Response::from_parts(head, ()), is_over) {
            Ok(stream) if !is_over => self.stage = Stage::Sending(body, stream),
            Ok(_) => self.stage = Stage::Over,
            Err(error) => {
                tracing::debug!(%error, "response not sent");
                self.reset(Reason::INTERNAL_ERROR);
            }
        }
        Poll::Ready(())
    }

    /// Waits until the last messages are sent, if they are larger than their window.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Stage::Sending(_, _) = self.stage
            && self.handle.has_unsent(1)
            && let Stage::Sending(body, stream) = std::mem::replace(&mut self.stage, Stage::Over)
        {
            self.stage = Stage::Flushing(body, stream);
        }
        let Stage::Flushing(body, stream) = &mut self.stage else { return Poll::Ready(()) };
        if !self.handle.has_unsent(1) {
            return Poll::Ready(());
        }
        if body.poll_discarded(cx).is_ready() {
            // gRPC maps this to `RESOURCE_EXHAUSTED`.
            self.reset(Reason::ENHANCE_YOUR_CALM);
            return Poll::Ready(());
        }
        self.handle.waits_for(Wait::Nothing);
        poll_lost(stream, cx).map(drop)
    }

    /// Sends the data of the body that there is room for. Ready when the stream is over.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Option<Reason>> {
        let Self { stage: Stage::Sending(body, stream), handle, socket, large } = self else {
            return Poll::Ready(None);
        };
        let budgets = handle.budgets();
        loop {
            // The unsent data of this stream comes first, and that of the whole connection.
            if handle.is_full() || budgets.socket.poll_reserve(socket, 0, cx).is_pending() {
                handle.waits_for(Wait::Nothing);
                return poll_lost(stream, cx);
            }
            // A stream claims a part of the connection's window only while it is polled, or waits for its first bytes.
            stream.reserve_capacity(MAX_ROOM);
            // The claim may have woken this stream itself.
            handle.settle();
            if let Some(reason) = handle.wanted_reset() {
                return Poll::Ready(Some(reason));
            }
            let capacity = stream.capacity().min(MAX_ROOM);
            let mut room = Room { bytes: capacity, is_strict: true };
            let mut asked = SendResult::Sent;
            while let SendResult::Sent = asked {
                asked = poll_body(body, stream, handle, &mut room, cx);
            }
            if let SendResult::TooLarge(needed) = asked {
                if room.bytes < capacity {
                    // Too large only for the room that earlier messages of this round have left.
                    continue;
                }
                if capacity == 0 {
                    budgets.large.leave(large);
                    // For a whole message, if a frame has room for it: of one byte, HTTP/2 would make a frame.
                    stream.reserve_capacity(needed.clamp(1, MAX_ROOM));
                    handle.waits_for(Wait::Window);
                    // Without an answer, the stream is closed.
                    let Some(Ok(_)) = ready!(stream.poll_capacity(cx)) else { return Poll::Ready(None) };
                    continue;
                }
                if needed <= MAX_FITTING {
                    stream.reserve_capacity(needed);
                }
                let mut room = Room { bytes: stream.capacity(), is_strict: false };
                let reserved = match needed {
                    needed if needed <= room.bytes => 0,
                    needed if needed <= MAX_FITTING => needed,
                    // No other stream encodes a large message until the size of this one is known.
                    _ => UNSENT_LARGE,
                };
                if reserved > 0 && budgets.large.poll_reserve(large, reserved, cx).is_pending() {
                    stream.reserve_capacity(0);
                    handle.waits_for(Wait::Window);
                    return poll_lost(stream, cx);
                }
                asked = poll_body(body, stream, handle, &mut room, cx);
                budgets.large.release(reserved);
            }
            match asked {
                SendResult::Sent => {}
                // Unreachable for a body that follows the contract: no message is too large without a strict limit.
                SendResult::TooLarge(_) => return Poll::Ready(Some(Reason::INTERNAL_ERROR)),
                SendResult::Nothing => {
                    budgets.socket.leave(socket);
                    budgets.large.leave(large);
                    stream.reserve_capacity(0);
                    handle.waits_for(if body.is_paused() { Wait::Paused } else { Wait::Nothing });
                    return poll_lost(stream, cx);
                }
                SendResult::Over(reason) => return Poll::Ready(reason),
            }
        }
    }
}

/// Polls a body for its next frame, and hands that to HTTP/2.
fn poll_body<B: BoundedBody>(
    body: &mut B,
    stream: &mut SendStream<DataPayload>,
    handle: &StreamHandle,
    room: &mut Room,
    cx: &mut Context<'_>,
) -> SendResult {
    match body.poll_bounded(cx, *room) {
        Poll::Ready(Some(Ok(BoundedFrame::Frame(frame)))) => match frame.into_data() {
            Ok(chunk) => {
                let length = chunk.remaining();
                let kept = if length > room.bytes { BudgetKind::Window } else { BudgetKind::Socket };
                if let Err(error) = stream.send_data(DataPayload::new(chunk, handle, kept), false) {
                    tracing::debug!(%error, "stream lost");
                    return SendResult::Over(None);
                }
                room.bytes = room.bytes.saturating_sub(length);
                SendResult::Sent
            }
            Err(frame) => {
                send_trailers(stream, frame.into_trailers().unwrap_or_default());
                SendResult::Over(None)
            }
        },
        Poll::Ready(Some(Ok(BoundedFrame::TooLarge(needed)))) => SendResult::TooLarge(needed),
        Poll::Ready(Some(Err(error))) => {
            let error: BoxError = error.into();
            tracing::debug!(%error, "response body failed");
            handle.fails();
            SendResult::Over(Some(Reason::INTERNAL_ERROR))
        }
        Poll::Ready(None) => {
            send_end(stream);
            SendResult::Over(None)
        }
        Poll::Pending => SendResult::Nothing,
    }
}

/// Waits until the client resets the stream, or the connection is lost.
fn poll_lost(stream: &mut SendStream<DataPayload>, cx: &mut Context<'_>) -> Poll<Option<Reason>> {
    ready!(stream.poll_reset(cx)).map_or_else(|error| tracing::debug!(%error, "stream lost"), drop);
    Poll::Ready(None)
}

impl<B: BoundedBody> Future for Exchange<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if let Some(reason) = this.handle.wanted_reset() {
            this.end(reason);
            return Poll::Ready(());
        }
        ready!(this.poll_call(cx));
        let sent = this.poll_send(cx);
        this.note_encoded();
        if let Some(reason) = ready!(sent) {
            this.end(reason);
        }
        ready!(this.poll_flush(cx));
        this.stage = Stage::Over;
        Poll::Ready(())
    }
}

impl<B: BoundedBody> Drop for Exchange<B> {
    fn drop(&mut self) {
        let budgets = self.handle.budgets();
        budgets.socket.leave(&mut self.socket);
        budgets.large.leave(&mut self.large);
        self.handle.note_encoded(0);
        self.handle.end();
    }
}

impl<B: BoundedBody> fmt::Debug for Exchange<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("handle", &self.handle).finish_non_exhaustive()
    }
}

fn send_trailers(stream: &mut SendStream<DataPayload>, trailers: HeaderMap) {
    stream.reserve_capacity(0);
    if let Err(error) = stream.send_trailers(trailers) {
        tracing::debug!(%error, "stream lost");
    }
}

fn send_end(stream: &mut SendStream<DataPayload>) {
    stream.reserve_capacity(0);
    if let Err(error) = stream.send_data(DataPayload::default(), true) {
        tracing::debug!(%error, "stream lost");
    }
}
