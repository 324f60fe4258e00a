//! Digests, to be kept and compared by a later process.

use base64::prelude::{BASE64_STANDARD, Engine};
use ring::digest::SHA256;

use crate::model::Object;

/// Returns the SHA-256 of an object's body in base64: the same in every version and on every machine.
pub(super) fn of_body(object: &Object) -> String {
    of(object.body())
}

/// Returns the same of any bytes.
pub(super) fn of(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(ring::digest::digest(&SHA256, bytes))
}
