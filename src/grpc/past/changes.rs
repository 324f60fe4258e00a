//! Changes: the net difference between two versions, encoded when the client has room for it.

use std::{
    collections::VecDeque,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use http_body::Frame as BodyFrame;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use tonic::Status;

use super::{Difference, PastVersion};
use crate::{
    auth::Operation,
    cache::NetChange,
    grpc::{
        access::{Access, Wanted},
        audited_call::AuditedCall,
        bulk_scheduler::BulkPermit,
        call::{Call, Caller},
        encoder::{Failed, NextObject, ObjectField},
        frame::{self, CHUNK_BYTES, PREFIX_BYTES},
        held_snapshots::HeldSnapshot,
        query::{self, Parts, parts},
        quotas::QuotaPermit,
        service::Service,
        status::{ApiError, final_frames, trailers},
        time_slice::TimeSlice,
        views::OpenView,
    },
    model::{MAX_MESSAGE_BYTES, ResourceVersion, Selection},
    proto::{self, EncodedObject, ObjectFormat, PayloadFormat, pb},
    transport::{BoundedBody, BoundedFrame, Chunk, Exceeded, FinalFrames, Room},
};

/// Body of one response.
pub(in crate::grpc) struct ChangesBody {
    service: Service,
    /// Changes that are still to be sent.
    changes: VecDeque<NetChange>,
    selection: Selection,
    format: ObjectFormat,
    caller: Caller,
    /// The two states of the next change, while they are encoded on a bulk thread.
    next: [NextObject; 2],
    /// The next message without its changes; after the first one, without namespaces.
    head: pb::ChangesResponse,
    /// Encoded changes of the next message.
    encoded: BytesMut,
    stage: Stage,
    permit: BulkPermit,
    audited: Option<AuditedCall>,
    _held: HeldSnapshot,
    _quotas: [QuotaPermit; 2],
    _view: Option<Box<OpenView>>,
}

/// Progress of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There may be more changes.
    Changes,
    /// The next message is complete; true if it is the last one.
    Message(bool),
    Trailers,
    Over,
}

/// Result of encoding the next changes.
enum Filled {
    /// The next change does not fit into the room, and the message has no other; it needs this many bytes.
    Nothing(usize),
    /// The message is large enough, or there is no room for more.
    Enough,
    /// The slice of time is over; other tasks come first.
    Some,
    /// A bulk thread encodes a state of the next change.
    Waiting,
    All,
}

/// Field number of the changes of a `ChangesResponse`.
const CHANGES: u32 = 2;
/// Field numbers of a `NetChange`.
const TYPE: u32 = 1;
const OLD: u32 = 2;
const NEW: u32 = 3;
/// Size of the type with its field number.
const TYPE_BYTES: usize = 2;
/// Approximate maximum size of a message without its changes and namespaces, in bytes.
const HEAD_BYTES: usize = 1 << 10;

/// Answers Changes.
pub(in crate::grpc) async fn changes(
    service: &Service,
    request: pb::ChangesRequest,
    call: Call,
) -> Result<ChangesBody, ApiError> {
    let pb::ChangesRequest { resource, namespace, name, format, view, .. } = &request;
    let wanted = Wanted::objects(Operation::List, resource, namespace, *format);
    let mut access = service.access(&call, Wanted { view: view.as_ref(), ..wanted }).await?;
    let caller = call.caller();
    let parts = Parts { name, ..parts!(request, caller) };
    let selection = query::selection(&mut access, parts).await?;
    let Access { resource, mut format, .. } = access;
    let (from, to) = ("from_resource_version", "to_resource_version");
    let invalid = |field, message| ApiError::Invalid { reason: "RESOURCE_VERSION_INVALID", field, message };
    let from = query::version(from, &request.from_resource_version)?
        .ok_or_else(|| invalid(from, "is required: the version that the changes come after".to_owned()))?;
    let until = query::version(to, &request.to_resource_version)?;
    let quotas = [service.quotas().stream(&call)?, service.quotas().bulk_response(&call)?];
    let view = resource.views.read(&resource.name, caller, &mut format)?;
    let from = PastVersion { version: from, history: request.history.clone() };
    let present = service.complete(&resource, &from, call.wait).await?;
    let until = until.unwrap_or_else(|| present.safe_version().clone());
    if until < from.version {
        return Err(invalid(to, format!("{until} is before from_resource_version, {}", from.version)));
    }
    let until = PastVersion { version: until, ..from.clone() };
    let Difference { changes, since, permit } = service.difference(&resource, [&from, &until], &call).await?;
    if let Some(audited) = &call.audited {
        audited.begins_from(&from.version.to_string());
        audited.begins(&selection, &format, resource.is_secret);
    }
    let namespaces = selection.namespaces.as_ref();
    Ok(ChangesBody {
        service: service.clone(),
        changes: changes.into(),
        caller,
        next: Default::default(),
        head: head(
            &until.version,
            resource.informer.history(since.history_id(), namespaces),
            proto::namespaces(namespaces),
        ),
        encoded: BytesMut::new(),
        stage: Stage::Changes,
        permit: service.bulk_scheduler().begin(caller),
        _held: resource.calls.snapshots().hold(&since, call.stream).with_permit(Some(permit)),
        selection,
        format,
        audited: call.audited,
        _quotas: quotas,
        _view: view,
    })
}

fn head(version: &ResourceVersion, history: String, namespaces: Vec<String>) -> pb::ChangesResponse {
    pb::ChangesResponse { resource_version: version.to_string(), history, namespaces, changes: Vec::new() }
}

// === impl ChangesBody ===

impl ChangesBody {
    /// Encodes the next changes, until the message is large enough or the slice of time is over.
    fn fill(&mut self, cx: &mut Context<'_>, room: Room) -> Result<Filled, Failed> {
        let head = self.head_bytes();
        if !room.allows(self.encoded.len() + head) {
            // There was room for these changes when they were encoded.
            return Ok(Filled::Nothing(self.encoded.len() + head));
        }
        let slice = TimeSlice::begin();
        let chunk = CHUNK_BYTES.min(room.bytes).saturating_sub(head);
        loop {
            let Self { changes, selection, format, service, caller, next, encoded, audited, .. } = self;
            let Some(NetChange { old, new }) = changes.front_mut() else { return Ok(Filled::All) };
            // An object that is not selected is not there, for this client.
            for state in [&mut *old, &mut *new] {
                state.take_if(|object| !selection.matches(object));
            }
            let event_type = match (&old, &new) {
                (None, None) => {
                    changes.pop_front();
                    if slice.is_over() {
                        return Ok(Filled::Some);
                    }
                    continue;
                }
                (None, Some(_)) => pb::EventType::Added,
                (Some(_), None) => pb::EventType::Deleted,
                (Some(_), Some(_)) => pb::EventType::Modified,
            };
            let mut fields: [Option<ObjectField<'_>>; 2] = [None, None];
            for ((state, tag), (next, field)) in
                [(&*old, OLD), (&*new, NEW)].into_iter().zip(next.iter_mut().zip(&mut fields))
            {
                let Some(object) = state else { continue };
                match next.field(cx, object, format, service.structs(), (service.encoder(), *caller, tag)) {
                    Poll::Ready(encoded) => *field = Some(encoded?),
                    Poll::Pending => return Ok(Filled::Waiting),
                }
            }
            let len_of = |fields: &[Option<ObjectField<'_>>; 2]| {
                TYPE_BYTES + fields.iter().flatten().map(ObjectField::len).sum::<usize>()
            };
            if let Some(object) = old.as_ref().filter(|_| new.is_some() && len_of(&fields) > MAX_MESSAGE_BYTES - head) {
                let metadata = ObjectFormat::from(PayloadFormat::Metadata);
                let without_body = EncodedObject::shared(object, object.version(), &metadata, service.structs());
                fields[0] = Some(ObjectField::Small(without_body, OLD));
            }
            let len = len_of(&fields);
            // The number of the field takes one byte.
            let total = 1 + encoded_len_varint(len as u64) + len;
            let is_first = encoded.is_empty();
            if is_first && !room.allows(total + head) {
                return Ok(Filled::Nothing(total + head));
            }
            if !is_first && encoded.len() + total > chunk {
                return Ok(Filled::Enough);
            }
            encoded.reserve(total);
            encode_key(CHANGES, WireType::LengthDelimited, encoded);
            encode_varint(len as u64, encoded);
            encode_key(TYPE, WireType::Varint, encoded);
            encode_varint(u64::from(i32::from(event_type).cast_unsigned()), encoded);
            fields.iter().flatten().for_each(|field| field.write(encoded));
            drop(fields);
            next.iter_mut().for_each(NextObject::clear);
            changes.pop_front();
            if let Some(audited) = audited {
                audited.sends(1);
            }
            if encoded.len() >= chunk {
                return Ok(Filled::Enough);
            }
            if slice.is_over() {
                return Ok(Filled::Some);
            }
        }
    }

    /// Returns the approximate maximum size of the next message without its changes, in bytes.
    fn head_bytes(&self) -> usize {
        let namespaces = self.selection.namespaces.as_ref().filter(|_| !self.head.namespaces.is_empty());
        HEAD_BYTES + frame::namespaces_len(namespaces)
    }

    /// Returns the message with the changes that are encoded.
    fn message(&mut self) -> Chunk {
        let changes = std::mem::take(&mut self.encoded).freeze();
        let message = [frame::head(&self.head, changes.len()), changes].into_iter().collect();
        self.head.namespaces.clear();
        message
    }

    fn fail(&mut self) -> BodyFrame<Chunk> {
        self.stage = Stage::Over;
        BodyFrame::trailers(trailers(&ApiError::Internal.to_status()))
    }
}

impl BoundedBody for ChangesBody {
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        let frame = loop {
            match self.stage {
                Stage::Changes => {
                    if room.is_shut() {
                        return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(self.head_bytes()))));
                    }
                    ready!(self.permit.poll(cx));
                    let Ok(filled) = self.fill(cx, room) else { break self.fail() };
                    if let Filled::Nothing(needed) = filled {
                        return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(needed))));
                    }
                    self.permit.release();
                    match filled {
                        Filled::Nothing(_) => {}
                        Filled::Some => {
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                        Filled::Waiting => return Poll::Pending,
                        Filled::Enough => self.stage = Stage::Message(false),
                        Filled::All => self.stage = Stage::Message(true),
                    }
                }
                Stage::Message(is_last) => {
                    let needed = self.encoded.len() + self.head_bytes();
                    if !room.allows(needed) {
                        return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(needed))));
                    }
                    self.stage = if is_last { Stage::Trailers } else { Stage::Changes };
                    break BodyFrame::data(self.message());
                }
                Stage::Trailers => {
                    self.stage = Stage::Over;
                    break BodyFrame::trailers(trailers(&Status::ok("")));
                }
                Stage::Over => return Poll::Ready(None),
            }
        };
        Poll::Ready(Some(Ok(BoundedFrame::Frame(frame))))
    }

    fn encoded_bytes(&self) -> usize {
        PREFIX_BYTES + self.encoded.capacity() + self.next.iter().map(NextObject::bytes).sum::<usize>()
    }

    fn exhausted(&mut self, _: usize, exceeded: Exceeded) -> FinalFrames {
        self.stage = Stage::Over;
        final_frames(exceeded)
    }
}

http_body!(ChangesBody, body => body.stage == Stage::Over);

debug_fields!(ChangesBody { selection, stage });
