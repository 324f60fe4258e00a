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

/// Returns the largest size of the body of an object with this envelope, in any format of a message: key, other texts, labels.
#[cfg(feature = "client")]
pub(crate) fn max_body_bytes<'a>(
    key: [&str; 2],
    texts: [&str; 3],
    labels: impl Iterator<Item = (&'a str, &'a str)>,
) -> usize {
    MAX_OBJECT_BYTES.min((MAX_MESSAGE_BYTES - REST_BYTES).saturating_sub(envelope_bytes(key, texts, labels)))
}

/// Returns the largest size of an envelope in a message, in bytes.
fn envelope_bytes<'a>(key: [&str; 2], texts: [&str; 3], labels: impl Iterator<Item = (&'a str, &'a str)>) -> usize {
    // The token of the next page has the key of the last object once more, in base64.
    let key: usize = key.iter().map(|part| part.len() * 3).sum();
    let texts: usize = texts.iter().map(|text| text.len()).sum();
    key + texts + labels.map(|(key, value)| LABEL_BYTES + key.len() + value.len()).sum::<usize>()
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
        let (key, texts) = self.envelope_texts();
        let envelope = envelope_bytes(key, texts, self.labels().iter());
        if size > MAX_OBJECT_BYTES {
            return Err(ObjectError::TooLarge { size });
        }
        if size + envelope > MAX_MESSAGE_BYTES - REST_BYTES {
            return Err(ObjectError::MessageTooLarge { size: size + envelope });
        }
        Ok(self)
    }

    /// Returns the largest size of a body of this object in any format.
    #[cfg(feature = "client")]
    pub(crate) fn max_body_bytes(&self) -> usize {
        let (key, texts) = self.envelope_texts();
        max_body_bytes(key, texts, self.labels().iter())
    }

    fn envelope_texts(&self) -> ([&str; 2], [&str; 3]) {
        ([self.key.namespace(), self.key.name()], [self.uid(), self.api_version(), self.kind()])
    }
}

// === impl ObjectError ===

impl ObjectError {
    /// Returns true for an object that is too large to be sent.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::MessageTooLarge { .. })
    }
}
