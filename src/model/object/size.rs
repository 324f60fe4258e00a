//! Sizes that an object may have: every message of it, in whatever format, is within the limit of a client.

use super::{Object, ObjectError};

/// Maximum size of an object's body: with an envelope of usual size, a message of it is far below [`MAX_MESSAGE_BYTES`].
pub const MAX_OBJECT_BYTES: usize = 3 << 20;
/// Maximum size of a message, before it is compressed: gRPC's default limit for what a client receives, in any language.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Part of it for what is not of the object: versions, history, the ids of watches that share the message, keys of fields.
pub(super) const REST_BYTES: usize = 64 << 10;
/// Largest size of a label in a message beside its texts.
const LABEL_BYTES: usize = 15;

/// Largest size of the number of a version, a media type, and the tags and lengths of the fields of an object.
const FIELDS_BYTES: usize = 192;

#[cfg(feature = "client")]
fn max_body_beside(envelope: usize) -> usize {
    MAX_OBJECT_BYTES.min((MAX_MESSAGE_BYTES - REST_BYTES).saturating_sub(envelope))
}

/// Returns the largest size of an envelope in a message, from the same.
fn envelope_bytes(key: usize, texts: usize, labels: impl Iterator<Item = usize>) -> usize {
    // The token of the next page has the key of the last object once more, in base64.
    key * 3 + texts + labels.map(|label| LABEL_BYTES + label).sum::<usize>()
}

// === impl Object ===

impl Object {
    /// Returns the object if every message of it is within [`MAX_MESSAGE_BYTES`].
    ///
    /// # Errors
    ///
    /// The object is too large.
    pub fn checked(self) -> Result<Self, ObjectError> {
        let size = self.body().len();
        let envelope = self.envelope_bytes();
        if size > MAX_OBJECT_BYTES {
            return Err(ObjectError::TooLarge { size });
        }
        if size + envelope > MAX_MESSAGE_BYTES - REST_BYTES {
            return Err(ObjectError::MessageTooLarge { size: size + envelope });
        }
        Ok(self)
    }

    /// Returns the largest size of the body of an object in any format of a message, from the sizes of its key, of its other texts,
    /// and of its labels.
    #[cfg(feature = "client")]
    pub(crate) fn max_body_bytes_of(key: usize, texts: usize, labels: impl Iterator<Item = usize>) -> usize {
        max_body_beside(envelope_bytes(key, texts, labels))
    }

    /// Returns the largest size of a body of this object in any format.
    #[cfg(feature = "client")]
    pub(crate) fn max_body_bytes(&self) -> usize {
        max_body_beside(self.envelope_bytes())
    }

    /// Returns a bound, in bytes, of the object as a field of a message, with its body as it is. Cheap: it reads no text.
    pub fn max_raw_len(&self) -> usize {
        let lineage = self.version.lineage().map_or(0, |lineage| lineage.as_str().len());
        self.body_len as usize + self.envelope_bytes() + lineage + FIELDS_BYTES
    }

    fn envelope_bytes(&self) -> usize {
        let texts = [self.uid, self.api_version, self.kind].map(|span| span.len as usize);
        let labels = self.labels.iter().map(|(key, value)| key.len as usize + value.len as usize);
        envelope_bytes(self.key.namespace().len() + self.key.name().len(), texts.iter().sum(), labels)
    }
}

// === impl ObjectError ===

impl ObjectError {
    /// Returns true for an object that is too large to be sent.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::MessageTooLarge { .. })
    }
}
