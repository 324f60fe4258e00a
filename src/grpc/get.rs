//! Get: one object of the cache, encoded when there is room for it.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use http_body::Frame as BodyFrame;
use prost::Message;
use tonic::Status;

use super::{
    access::{Access, Wanted},
    call::{Call, Caller},
    encoder::{Failed, NextObject},
    frame,
    past::AtVersion,
    query,
    service::Service,
    status::{ApiError, final_frames, trailers},
    views::OpenView,
};
use crate::{
    auth::Operation,
    model::Object,
    proto::{self, ObjectFormat, pb},
    transport::{BoundedBody, BoundedFrame, Chunk, Exceeded, FinalFrames, Room},
};

/// Body of one response.
pub(super) struct GetBody {
    service: Service,
    object: Arc<Object>,
    format: ObjectFormat,
    caller: Caller,
    next: NextObject,
    /// Response without the object.
    rest: pb::GetResponse,
    stage: Stage,
    _view: Option<Box<OpenView>>,
}

/// Progress of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Object,
    Trailers,
    Over,
}

/// Answers Get.
pub(super) async fn get(service: &Service, request: pb::GetRequest, call: Call) -> Result<GetBody, ApiError> {
    let wanted = Wanted {
        operation: Operation::Get,
        resource: &request.resource,
        // The empty text is no wildcard here: it stands for objects without a namespace.
        namespace: Some(&request.namespace),
        name: &request.name,
        format: request.format,
        view: request.view.as_ref(),
    };
    let Access { resource, mut format, .. } = service.access(&call, wanted).await?;
    let (version, matching) = (&request.min_resource_version, request.resource_version_match);
    let at = AtVersion::parse("min_resource_version", version, matching, request.history)?;
    let key = query::key("name", &request.namespace, &request.name)?;
    service.quotas().call(&call)?;
    let caller = call.caller();
    let view = resource.views.read(&resource.name, caller, &mut format)?;
    if let Some(audited) = &call.audited {
        audited.reads(Some(&key), None, &format);
    }
    let (object, version, history_id) = service.read(&resource, &key, &at, &call).await?;
    let object = object.ok_or_else(|| ApiError::object(&resource.name, &key))?;
    let report = resource.informer.report();
    let rest = pb::GetResponse {
        resource_version: version.to_string(),
        object: None,
        source: proto::sync_state(report.state).into(),
        source_seen_at: report.seen_at.map(proto::timestamp),
        history: resource.informer.history(history_id, None),
    };
    if let Some(audited) = &call.audited {
        audited.sends(1);
    }
    Ok(GetBody {
        service: service.clone(),
        object,
        format,
        caller,
        next: NextObject::default(),
        rest,
        stage: Stage::Object,
        _view: view,
    })
}

// === impl GetBody ===

impl GetBody {
    /// Encodes the response, or returns the room that it needs.
    fn poll_message(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Result<Result<Chunk, usize>, Failed>> {
        let Self { object, format, service, caller, next, rest, .. } = self;
        let object =
            ready!(next.field(cx, object, format, service.structs(), (service.encoder(), *caller, frame::OBJECTS)))?;
        let needed = frame::PREFIX_BYTES + rest.encoded_len() + object.len();
        if !room.allows(needed) {
            return Poll::Ready(Ok(Err(needed)));
        }
        let head = frame::head(rest, object.len());
        let mut buffer = BytesMut::with_capacity(object.len());
        object.write(&mut buffer);
        next.clear();
        Poll::Ready(Ok(Ok([head, buffer.freeze()].into_iter().collect())))
    }
}

impl BoundedBody for GetBody {
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        let frame = match self.stage {
            Stage::Object => match ready!(self.poll_message(cx, room)) {
                Ok(Ok(message)) => {
                    self.stage = Stage::Trailers;
                    BodyFrame::data(message)
                }
                Ok(Err(needed)) => return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(needed)))),
                Err(Failed) => {
                    self.stage = Stage::Over;
                    BodyFrame::trailers(trailers(&ApiError::Internal.to_status()))
                }
            },
            Stage::Trailers => {
                self.stage = Stage::Over;
                BodyFrame::trailers(trailers(&Status::ok("")))
            }
            Stage::Over => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(BoundedFrame::Frame(frame))))
    }

    /// Returns the size of the object until it is sent: this body may hold the last reference to it, and a copy in its format.
    fn encoded_bytes(&self) -> usize {
        let object = if self.stage == Stage::Object { self.object.body().len() } else { 0 };
        object + self.next.bytes()
    }

    fn exhausted(&mut self, _: usize, exceeded: Exceeded) -> FinalFrames {
        self.stage = Stage::Over;
        final_frames(exceeded)
    }
}

http_body!(GetBody, body => body.stage == Stage::Over);

debug_fields!(GetBody, this => { object: this.object.key(), stage: this.stage });
