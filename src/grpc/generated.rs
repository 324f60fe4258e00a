//! Implementations of the generated service traits, and the bodies of their responses.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http_body::{Body, Frame as BodyFrame};
use prost::Message;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use super::{
    call::Call,
    discovery, explain,
    frame::PREFIX_BYTES,
    service::Service,
    status::{final_frames, trailers},
    until, watchers,
};
use crate::{
    auth::Operation,
    proto::{self, pb},
    transport::{BoundedBody, BoundedFrame, Chunk, Exceeded, FinalFrames, Room},
};

/// Response body of a generated service. It encodes its messages when it is polled.
pub(super) struct Generated {
    body: tonic::body::Body,
    /// Size of the first message until that is encoded, if the handler set a [`MessageSize`].
    first: usize,
    /// Memory of the first message until that is encoded.
    decoded: usize,
    /// Frame that is encoded, and did not fit into the room.
    next: Option<BodyFrame<Chunk>>,
    /// Error of the request body, if there was one: streaming services end with OK in that case.
    failure: Arc<OnceLock<Status>>,
    /// Ends the request body when this is dropped.
    _request: oneshot::Sender<()>,
}

/// Size of the single message of a response; an extension of that response.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MessageSize {
    encoded: usize,
    /// Memory that the message takes until it is encoded.
    decoded: usize,
}

#[tonic::async_trait]
impl pb::informer_service_server::InformerService for Service {
    async fn list_index_values(
        &self,
        request: Request<pb::ListIndexValuesRequest>,
    ) -> Result<Response<pb::ListIndexValuesResponse>, Status> {
        let (request, call) = called(request);
        let result = discovery::index_values(self, &request, &call).await;
        let answered = result.map_err(|refusal| self.metrics().refuse(&refusal))?;
        let value = |value: &pb::IndexValue| size_of::<pb::IndexValue>() + value.value.len();
        let decoded = answered.values.iter().map(value).sum();
        Ok(answer(answered, decoded))
    }

    async fn list_resources(
        &self,
        request: Request<pb::ListResourcesRequest>,
    ) -> Result<Response<pb::ListResourcesResponse>, Status> {
        let (_, call) = called(request);
        let answered = discovery::resources(self, &call).await?;
        let decoded = answered.encoded_len();
        Ok(answer(answered, decoded))
    }

    async fn explain(&self, request: Request<pb::ExplainRequest>) -> Result<Response<pb::ExplainResponse>, Status> {
        let (request, call) = called(request);
        let explained = explain::explain(self, request, call).await;
        let answered = explained.map_err(|refusal| self.metrics().refuse(&refusal))?;
        let decoded = answered.encoded_len();
        Ok(answer(answered, decoded))
    }

    async fn until(&self, request: Request<pb::UntilRequest>) -> Result<Response<pb::UntilResponse>, Status> {
        let (request, call) = called(request);
        let answered = until::until(self, request, call).await?;
        let decoded = answered.event.as_ref().and_then(|event| event.object.as_ref()).map_or(0, proto::memory_of);
        Ok(answer(answered, decoded))
    }
}

#[tonic::async_trait]
impl pb::admin_service_server::AdminService for Service {
    async fn list_watchers(
        &self,
        request: Request<pb::ListWatchersRequest>,
    ) -> Result<Response<pb::ListWatchersResponse>, Status> {
        let (request, call) = called(request);
        let inspected = self.inspected(&call, Operation::Inspect, &request.resource).await?;
        let answered = self.watchers().list(&request, &inspected)?;
        let decoded = answered.encoded_len();
        Ok(answer(answered, decoded))
    }

    async fn disconnect_watchers(
        &self,
        request: Request<pb::DisconnectWatchersRequest>,
    ) -> Result<Response<pb::DisconnectWatchersResponse>, Status> {
        let (request, call) = called(request);
        let answered = watchers::disconnect(self, &request, &call).await?;
        let decoded = answered.encoded_len();
        Ok(answer(answered, decoded))
    }

    async fn get_stats(&self, request: Request<pb::GetStatsRequest>) -> Result<Response<pb::GetStatsResponse>, Status> {
        let (_, call) = called(request);
        self.inspect_all(call.identity.as_ref()).await?;
        let answered = self.stats();
        let decoded = answered.encoded_len();
        Ok(answer(answered, decoded))
    }
}

/// Creates a response that carries the encoded size of its message, and the message's memory until it is encoded.
fn answer<M: Message>(message: M, decoded: usize) -> Response<M> {
    let size = MessageSize { encoded: message.encoded_len(), decoded };
    let mut response = Response::new(message);
    response.extensions_mut().insert(size);
    response
}

fn called<M>(request: Request<M>) -> (M, Call) {
    let (metadata, extensions, message) = request.into_parts();
    (message, Call::new(metadata.as_ref(), &extensions))
}

// === impl Generated ===

impl Generated {
    /// Creates the body of a response, whose request may fail.
    pub(super) fn new(
        body: tonic::body::Body,
        size: Option<MessageSize>,
        failure: Arc<OnceLock<Status>>,
        request: oneshot::Sender<()>,
    ) -> Self {
        // A message of unknown size has at least its prefix.
        let MessageSize { encoded, decoded } = size.unwrap_or_default();
        Self { body, first: encoded + PREFIX_BYTES, decoded, next: None, failure, _request: request }
    }
}

impl BoundedBody for Generated {
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        let next = match self.next.take() {
            Some(next) => next,
            None if !room.allows(self.first) => return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(self.first)))),
            None => match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match self.failure.get().filter(|_| frame.is_trailers()) {
                    Some(failure) => BodyFrame::trailers(trailers(failure)),
                    None => frame.map_data(Chunk::from),
                },
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            },
        };
        (self.first, self.decoded) = (0, 0);
        let length = next.data_ref().map_or(0, Buf::remaining);
        if !room.allows(length) {
            self.next = Some(next);
            return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(length))));
        }
        Poll::Ready(Some(Ok(BoundedFrame::Frame(next))))
    }

    /// Returns the memory of the message that waits to be sent.
    fn encoded_bytes(&self) -> usize {
        self.decoded + self.next.as_ref().and_then(BodyFrame::data_ref).map_or(0, Buf::remaining)
    }

    fn exhausted(&mut self, _: usize, exceeded: Exceeded) -> FinalFrames {
        final_frames(exceeded)
    }
}

http_body!(Generated, body => body.next.is_none() && body.body.is_end_stream());
