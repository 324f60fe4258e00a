//! Requests of a stream: messages as they arrive. `RequestMessages` limits the size of each and the time it takes.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use http_body::Body as _;
use prost::Message;
use tonic::body::Body;

use crate::{
    grpc::{frame::PREFIX_BYTES, request::RequestMessages, status::ApiError},
    proto::pb,
};

/// Requests of a stream.
pub(super) struct Requests {
    body: RequestMessages<Body>,
    /// Bytes that have arrived and are not decoded.
    buffer: BytesMut,
    is_over: bool,
}

// === impl Requests ===

impl Requests {
    pub(super) fn new(body: RequestMessages<Body>) -> Self {
        Self { body, buffer: BytesMut::new(), is_over: false }
    }

    /// Returns true if the client sends nothing more.
    pub(super) fn are_over(&self) -> bool {
        self.is_over
    }

    /// Returns the next request; none after the last.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<pb::SubscribeRequest, ApiError>>> {
        loop {
            if let Some(request) = self.decode() {
                return Poll::Ready(Some(request));
            }
            if self.is_over {
                let end = self.body.poll_end(cx);
                return Poll::Ready(if let Poll::Ready(refusal) = end { Some(Err(refusal)) } else { None });
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(refusal)) => {
                    self.ends();
                    return Poll::Ready(Some(Err(refusal)));
                }
                None => {
                    self.is_over = true;
                    if !self.buffer.is_empty() {
                        return Poll::Ready(Some(Err(ApiError::request("the stream ends within a message"))));
                    }
                }
            }
        }
    }

    /// Reads no more requests.
    pub(super) fn ends(&mut self) {
        self.is_over = true;
        self.buffer.clear();
    }

    /// Decodes the first message of the buffer, if all of it has arrived.
    fn decode(&mut self) -> Option<Result<pb::SubscribeRequest, ApiError>> {
        let mut prefix = self.buffer.get(..PREFIX_BYTES)?;
        let (is_compressed, length) = (prefix.get_u8() != 0, prefix.get_u32() as usize);
        if is_compressed {
            return Some(Err(ApiError::NotImplemented { what: "a compressed request" }));
        }
        self.buffer.get(..PREFIX_BYTES + length)?;
        self.buffer.advance(PREFIX_BYTES);
        let message = self.buffer.split_to(length);
        Some(pb::SubscribeRequest::decode(message).map_err(|error| ApiError::request(error.to_string())))
    }
}
