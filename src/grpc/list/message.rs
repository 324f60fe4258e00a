//! Message of a List: its head, and the objects that were collected for it, compressed if that is worthwhile.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use prost::Message;

use super::{ListBody, MessageObjects, Stage};
use crate::{
    grpc::{
        compression::MAX_HEAD_BYTES,
        encoder::{Failed, SLICE_BYTES},
        frame::{self, OBJECTS},
        page::MAX_TOKEN_BYTES,
    },
    model::ObjectKey,
    proto::{self, pb},
    transport::Chunk,
};

// === impl ListBody ===

impl ListBody {
    /// Returns the message with the objects that were collected.
    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Chunk, Failed>> {
        let objects = ready!(self.poll_objects(cx))?;
        let namespaces = proto::namespaces(self.namespaces());
        self.has_answered = true;
        let is_last_page = self.next_page_token.is_empty();
        let evaluations = (self.stage == Stage::Last).then(|| self.position.evaluations(is_last_page));
        let rest = pb::ListResponse {
            resource_version: self.snapshot.safe_version().to_string(),
            objects: Vec::new(),
            next_page_token: std::mem::take(&mut self.next_page_token),
            source: proto::sync_state(self.source.state).into(),
            source_seen_at: self.source.seen_at.map(proto::timestamp),
            history: self.history.clone(),
            namespaces,
            expression_errors: evaluations.and_then(proto::expression_errors),
        };
        self.bytes = 0;
        Poll::Ready(match objects {
            MessageObjects::Plain(objects) => Ok([frame::head(&rest, objects.len()), objects].into_iter().collect()),
            MessageObjects::Compressed(compressed) => compressed.after(&rest.encode_to_vec()).ok_or(Failed),
        })
    }

    /// Returns the objects that were collected, compressed if that is worthwhile; large ones are compressed on a bulk thread.
    fn poll_objects(&mut self, cx: &mut Context<'_>) -> Poll<Result<MessageObjects, Failed>> {
        if self.compressing.is_none() {
            let (collected, encoded) =
                (std::mem::take(&mut self.collected), std::mem::take(&mut self.objects).freeze());
            // More than that cannot be stored before what is compressed. A token and a failed evaluation have a key.
            let has_small_head = self.head_bytes() + MAX_TOKEN_BYTES + ObjectKey::MAX_BYTES <= MAX_HEAD_BYTES;
            let form = self.compressed.clone().filter(|_| has_small_head);
            if collected.is_empty() {
                return Poll::Ready(Ok(MessageObjects::Plain(encoded)));
            }
            let is_large = self.bytes > SLICE_BYTES;
            let (format, structs) = (self.format.clone(), Arc::clone(self.service.structs()));
            let compress = move || {
                let plain = || match &encoded {
                    encoded if format.view.is_some() => encoded.clone(),
                    _ => {
                        let mut objects = BytesMut::new();
                        frame::append_objects(&mut objects, OBJECTS, &collected, (&format, &structs));
                        objects.freeze()
                    }
                };
                let make = || {
                    let plain = plain();
                    (plain.len(), move |to: &mut Vec<u8>| to.extend_from_slice(&plain))
                };
                let compressed = form.and_then(|form| form.get(&collected, make));
                compressed.map_or_else(|| MessageObjects::Plain(plain()), MessageObjects::Compressed)
            };
            if !is_large {
                return Poll::Ready(Ok(compress()));
            }
            self.compressing = Some(self.service.encoder().encode(self.caller, compress));
        }
        let Some(compressing) = &mut self.compressing else { return Poll::Pending };
        let objects = ready!(compressing.poll(cx));
        self.compressing = None;
        Poll::Ready(objects)
    }
}
