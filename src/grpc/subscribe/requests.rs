//! Requests of a stream: messages as they arrive. `RequestMessages` limits the size of each and the time it takes.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::Body as _;
use prost::Message;

use crate::{
    grpc::{
        request::{Messages, payload},
        status::ApiError,
    },
    proto::pb,
};

/// Requests of a stream.
pub(super) struct Requests {
    body: Messages,
    is_over: bool,
}

// === impl Requests ===

impl Requests {
    pub(super) fn new(body: Messages) -> Self {
        Self { body, is_over: false }
    }

    /// Returns true if the client sends nothing more.
    pub(super) fn are_over(&self) -> bool {
        self.is_over
    }

    /// Returns the next request; none after the last.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<pb::SubscribeRequest, ApiError>>> {
        loop {
            if self.is_over {
                let end = self.body.poll_end(cx);
                return Poll::Ready(if let Poll::Ready(refusal) = end { Some(Err(refusal)) } else { None });
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(message) = frame.into_data() {
                        return Poll::Ready(Some(decode(&message)));
                    }
                }
                Some(Err(refusal)) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(refusal)));
                }
                None => self.is_over = true,
            }
        }
    }

    /// Charges what the stream holds of earlier requests, in bytes.
    pub(super) fn keep(&mut self, bytes: usize) {
        self.body.keep(bytes);
    }

    /// Waits until the stream must end because its peer holds too much.
    pub(super) fn poll_shed(&self, cx: &mut Context<'_>) -> Poll<ApiError> {
        self.body.poll_shed(cx)
    }
}

fn decode(message: &Bytes) -> Result<pb::SubscribeRequest, ApiError> {
    pb::SubscribeRequest::decode(payload(message)?).map_err(|error| ApiError::request(error.to_string()))
}
