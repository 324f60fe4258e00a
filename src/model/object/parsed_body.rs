//! Parsed body that is no object yet: the part of making one that needs no memory of the cache.

use smallvec::SmallVec;

use super::{Envelope, JSON, Object, Span, TextBuilder, within};
use crate::model::{ObjectKey, ResourceVersion};

/// Media type and envelope of a body, as positions in the text of the object that will have it. Another thread can parse than the one
/// that makes the object, and so allocates what the cache keeps.
#[derive(Debug)]
pub(crate) struct ParsedBody {
    media_type: &'static str,
    api_version: Span,
    kind: Span,
    labels: SmallVec<[(Span, Span); 2]>,
    /// Strings that are not in the body, and follow it.
    rest: Vec<u8>,
}

// === impl ParsedBody ===

impl ParsedBody {
    /// Parses any bytes, for a source that has key and uid from elsewhere.
    pub(crate) fn new(body: &[u8]) -> Self {
        let (media_type, Envelope { api_version, kind, labels, .. }) = Object::any_envelope(body);
        let mut text = TextBuilder { text: body, rest: Vec::new() };
        Self {
            media_type,
            api_version: text.span(&api_version),
            kind: text.span(&kind),
            labels: labels.iter().map(|(key, value)| (text.span(key), text.span(value))).collect(),
            rest: text.rest,
        }
    }

    /// Returns the object with this body, which has to be the one that was parsed.
    pub(crate) fn object(self, key: ObjectKey, uid: &str, body: &[u8], version: ResourceVersion) -> Object {
        let Self { media_type, api_version, kind, labels, rest } = self;
        let mut text = TextBuilder { text: body, rest };
        Object {
            key,
            version,
            media_type,
            body_len: within(body.len()),
            is_json: media_type == JSON,
            uid: text.span(uid),
            api_version,
            kind,
            labels: labels.as_slice().into(),
            text: text.finish(),
        }
    }
}
