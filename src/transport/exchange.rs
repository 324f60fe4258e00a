//! One request and its response, on their stream.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use h2::{Reason, SendStream, server::SendResponse};
use http::{HeaderMap, Response};

use super::{Chunk, Room, Supplied, Supply, connection::BoxError, streams::StreamHandle};

/// A stream: first its call, then the body of the response, which is asked for what can be sent. Ready when it is over.
pub(super) struct Exchange<B> {
    stage: Stage<B>,
    handle: StreamHandle,
}

enum Stage<B> {
    Calling(Call<B>, SendResponse<Chunk>),
    Sending(B, SendStream<Chunk>),
    Over,
}

/// The service at work.
pub(super) type Call<B> = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

/// A frame is asked for with at most so much room: writes are cheap when they are large, and streams take turns.
pub(super) const MAX_ROOM: usize = 64 << 10;

// === impl Exchange ===

impl<B: Supply> Exchange<B> {
    pub(super) fn new(call: Call<B>, respond: SendResponse<Chunk>, handle: StreamHandle) -> Self {
        Self { stage: Stage::Calling(call, respond), handle }
    }

    /// Sends `RST_STREAM`, whatever is still to be sent.
    fn reset(&mut self, reason: Reason) {
        match &mut self.stage {
            Stage::Calling(_, respond) => respond.send_reset(reason),
            Stage::Sending(_, stream) => stream.send_reset(reason),
            Stage::Over => {}
        }
        self.stage = Stage::Over;
    }

    /// Waits for the response, and sends its head.
    fn poll_call(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Stage::Calling(call, respond) = &mut self.stage else { return Poll::Ready(()) };
        let Poll::Ready(response) = call.as_mut().poll(cx) else {
            // The client may cancel it meanwhile.
            ready!(respond.poll_reset(cx)).map_or_else(|error| tracing::debug!(%error, "stream lost"), drop);
            self.stage = Stage::Over;
            return Poll::Ready(());
        };
        let (head, body) = match response {
            Ok(response) => response.into_parts(),
            Err(error) => {
                tracing::warn!(%error, "a call failed without a response");
                self.reset(Reason::INTERNAL_ERROR);
                return Poll::Ready(());
            }
        };
        let is_over = body.is_end_stream();
        match respond.send_response(Response::from_parts(head, ()), is_over) {
            Ok(stream) if !is_over => self.stage = Stage::Sending(body, stream),
            Ok(_) => self.stage = Stage::Over,
            Err(error) => {
                tracing::debug!(%error, "a response could not be sent");
                self.reset(Reason::INTERNAL_ERROR);
            }
        }
        Poll::Ready(())
    }

    /// Sends what the body has and there is room for. Ready with `None` when the stream is over.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Option<Reason>> {
        let Stage::Sending(body, stream) = &mut self.stage else { return Poll::Ready(None) };
        loop {
            // A stream claims a part of the connection's window only while it is polled, or waits for its first byte of it.
            stream.reserve_capacity(MAX_ROOM);
            // What h2 still has of it counts against its capacity: a piece is whole again as soon as there is any.
            let mut room = if stream.capacity() > 0 { MAX_ROOM } else { 0 };
            // That may have woken this very stream.
            self.handle.settle();
            if let Some(reason) = self.handle.wanted_reset() {
                return Poll::Ready(Some(reason));
            }
            let mut is_strict = true;
            loop {
                match body.poll_supply(cx, Room { bytes: room, is_strict }) {
                    Poll::Ready(Some(Ok(Supplied::Frame(frame)))) => match frame.into_data() {
                        Ok(chunk) => {
                            let length = bytes::Buf::remaining(&chunk);
                            if let Err(error) = stream.send_data(chunk, false) {
                                tracing::debug!(%error, "stream lost");
                                return Poll::Ready(None);
                            }
                            room = room.saturating_sub(length);
                            is_strict = true;
                        }
                        Err(frame) => {
                            send_trailers(stream, frame.into_trailers().unwrap_or_default());
                            return Poll::Ready(None);
                        }
                    },
                    Poll::Ready(Some(Ok(Supplied::TooLarge))) if room == 0 => break,
                    // A message that is larger than its window is made whole.
                    Poll::Ready(Some(Ok(Supplied::TooLarge))) => is_strict = false,
                    Poll::Ready(Some(Err(error))) => {
                        let error: BoxError = error.into();
                        tracing::debug!(%error, "a body failed");
                        return Poll::Ready(Some(Reason::INTERNAL_ERROR));
                    }
                    Poll::Ready(None) => {
                        send_end(stream);
                        return Poll::Ready(None);
                    }
                    Poll::Pending => {
                        stream.reserve_capacity(0);
                        ready!(stream.poll_reset(cx)).map_or_else(|error| tracing::debug!(%error, "stream lost"), drop);
                        return Poll::Ready(None);
                    }
                }
            }
            stream.reserve_capacity(1);
            // When none comes, the stream is closed.
            let Some(Ok(_)) = ready!(stream.poll_capacity(cx)) else { return Poll::Ready(None) };
        }
    }
}

impl<B: Supply> Future for Exchange<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.handle.register(cx.waker());
        if let Some(reason) = this.handle.wanted_reset() {
            this.reset(reason);
            return Poll::Ready(());
        }
        ready!(this.poll_call(cx));
        if let Some(reason) = ready!(this.poll_send(cx)) {
            this.reset(reason);
        }
        this.stage = Stage::Over;
        Poll::Ready(())
    }
}

impl<B> fmt::Debug for Exchange<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("handle", &self.handle).finish_non_exhaustive()
    }
}

fn send_trailers(stream: &mut SendStream<Chunk>, trailers: HeaderMap) {
    stream.reserve_capacity(0);
    if let Err(error) = stream.send_trailers(trailers) {
        tracing::debug!(%error, "stream lost");
    }
}

fn send_end(stream: &mut SendStream<Chunk>) {
    stream.reserve_capacity(0);
    if let Err(error) = stream.send_data(Chunk::default(), true) {
        tracing::debug!(%error, "stream lost");
    }
}
