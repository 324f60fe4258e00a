//! Request messages of the generated services, each decoded once before it is handed on: what is malformed has a status with a reason,
//! which the services do not give it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use prost::{DecodeError, Message};
use tonic_health::pb::HealthCheckRequest;
use tonic_reflection::pb::{v1, v1alpha};

use super::{
    request::{Messages, payload},
    status::ApiError,
};
use crate::proto::pb;

/// Request body that hands out messages that can be decoded.
pub(super) struct CheckedRequest {
    messages: Messages,
    method: Method,
    has_message: bool,
}

/// Method whose requests are checked.
#[derive(Clone, Copy)]
pub(super) struct Method {
    check: fn(&[u8]) -> Result<(), DecodeError>,
    is_stream: bool,
}

// === impl Method ===

impl Method {
    /// Returns the method of this path; `None` for one of another service, which reads its requests itself.
    pub(super) fn of(path: &str) -> Option<Self> {
        let (service, name) = path.strip_prefix('/')?.split_once('/')?;
        Some(match (service, name) {
            ("informerd.v1.InformerService", "Until") => Self::unary::<pb::UntilRequest>(),
            ("informerd.v1.InformerService", "Explain") => Self::unary::<pb::ExplainRequest>(),
            ("informerd.v1.InformerService", "ListIndexValues") => Self::unary::<pb::ListIndexValuesRequest>(),
            ("informerd.v1.InformerService", "ListResources") => Self::unary::<pb::ListResourcesRequest>(),
            ("informerd.v1.AdminService", "ListWatchers") => Self::unary::<pb::ListWatchersRequest>(),
            ("informerd.v1.AdminService", "DisconnectWatchers") => Self::unary::<pb::DisconnectWatchersRequest>(),
            ("informerd.v1.AdminService", "GetStats") => Self::unary::<pb::GetStatsRequest>(),
            ("grpc.health.v1.Health", _) => Self::unary::<HealthCheckRequest>(),
            ("grpc.reflection.v1.ServerReflection", _) => Self::stream::<v1::ServerReflectionRequest>(),
            ("grpc.reflection.v1alpha.ServerReflection", _) => Self::stream::<v1alpha::ServerReflectionRequest>(),
            _ => return None,
        })
    }

    fn unary<M: Message + Default>() -> Self {
        Self { check: |bytes| M::decode(bytes).map(drop), is_stream: false }
    }

    fn stream<M: Message + Default>() -> Self {
        Self { is_stream: true, ..Self::unary::<M>() }
    }
}

// === impl CheckedRequest ===

impl CheckedRequest {
    /// Creates the body of a request for a method.
    pub(super) fn new(messages: Messages, method: Method) -> Self {
        Self { messages, method, has_message: false }
    }
}

impl Body for CheckedRequest {
    type Data = Bytes;
    type Error = ApiError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ApiError>>> {
        let this = self.get_mut();
        let Some(frame) = ready!(Pin::new(&mut this.messages).poll_frame(cx)?) else {
            let is_missing = !this.has_message && !this.method.is_stream;
            return Poll::Ready(is_missing.then(|| Err(ApiError::request("the message is missing"))));
        };
        if let Some(message) = frame.data_ref() {
            let decoded = (this.method.check)(&payload(message)?);
            decoded.map_err(|error| ApiError::request(error.to_string()))?;
            this.has_message = true;
        }
        Poll::Ready(Some(Ok(frame)))
    }
}
