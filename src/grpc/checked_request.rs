//! Request messages of the generated services, each decoded once before it is handed on: what is malformed has a status with a reason,
//! which the services do not give it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use prost::{DecodeError, Message};
use tonic_health::pb::HealthCheckRequest;
use tonic_reflection::pb::{v1, v1alpha};

use super::{
    boundaries::{Boundaries, Boundary},
    frame::PREFIX_BYTES,
    status::ApiError,
};
use crate::proto::pb;

/// Request body that hands out whole messages that can be decoded.
pub(super) struct CheckedRequest<B> {
    body: B,
    method: Option<Method>,
    boundaries: Boundaries,
    /// Beginning of a message.
    begun: BytesMut,
    has_message: bool,
}

/// Request of a method.
#[derive(Clone, Copy)]
struct Method {
    check: fn(&[u8]) -> Result<(), DecodeError>,
    is_stream: bool,
}

// === impl Method ===

impl Method {
    /// Returns the method of this path; `None` for one of a program's own services.
    fn of(path: &str) -> Option<Self> {
        let (service, name) = path.strip_prefix('/')?.split_once('/')?;
        Some(match (service, name) {
            ("informerd.v1.InformerService", "Until") => Self::unary::<pb::UntilRequest>(),
            ("informerd.v1.InformerService", "Explain") => Self::unary::<pb::ExplainRequest>(),
            ("informerd.v1.InformerService", "ListIndexValues") => Self::unary::<pb::ListIndexValuesRequest>(),
            ("informerd.v1.InformerService", "ListResources") => Self::unary::<pb::ListResourcesRequest>(),
            ("informerd.v1.AdminService", "ListWatchers") => Self::unary::<pb::ListWatchersRequest>(),
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

impl<B> CheckedRequest<B> {
    /// Creates the body of a request for this path.
    pub(super) fn new(body: B, path: &str) -> Self {
        let (boundaries, begun) = (Boundaries::default(), BytesMut::new());
        Self { body, method: Method::of(path), boundaries, begun, has_message: false }
    }

    /// Checks bytes that have arrived. Returns the messages that end in them.
    fn check(&mut self, bytes: &[u8]) -> Result<Bytes, ApiError> {
        let (mut rest, mut whole) = (bytes, BytesMut::new());
        loop {
            let before = rest;
            let boundary = self.boundaries.next(&mut rest);
            self.begun.extend_from_slice(&before[..before.len() - rest.len()]);
            match boundary {
                None => return Ok(whole.freeze()),
                Some(Boundary::Prefix(_)) if self.begun.first() != Some(&0) => {
                    return Err(ApiError::NotImplemented { what: "a compressed request" });
                }
                Some(Boundary::Prefix(_)) => {}
                Some(Boundary::End) => {
                    let message = self.begun.split();
                    let decoded = self.method.map_or(Ok(()), |method| (method.check)(&message[PREFIX_BYTES..]));
                    decoded.map_err(|error| ApiError::request(error.to_string()))?;
                    self.has_message = true;
                    whole.unsplit(message);
                }
            }
        }
    }

    /// Checks the end of the body.
    fn end(&self) -> Result<(), ApiError> {
        if !self.begun.is_empty() {
            return Err(ApiError::request("the stream ends within a message"));
        }
        if !self.has_message && self.method.is_some_and(|method| !method.is_stream) {
            return Err(ApiError::request("the message is missing"));
        }
        Ok(())
    }
}

impl<B: Body<Data = Bytes, Error = ApiError> + Unpin> Body for CheckedRequest<B> {
    type Data = Bytes;
    type Error = ApiError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ApiError>>> {
        let this = self.get_mut();
        loop {
            let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(cx)?) else {
                return Poll::Ready(this.end().err().map(Err));
            };
            match frame.into_data() {
                Ok(data) => {
                    let whole = this.check(&data)?;
                    if !whole.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(whole))));
                    }
                }
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }
}
