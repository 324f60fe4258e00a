//! Digests that a later process can compare.

use base64::prelude::{BASE64_STANDARD, Engine};
use ring::digest::SHA256;

use crate::model::Object;

/// Returns the SHA-256 of an object's body in base64, which is the same in every program version and on every machine.
pub(super) fn of_body(object: &Object) -> String {
    of(object.body())
}

/// Returns the SHA-256 of any bytes in base64.
pub(super) fn of(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(ring::digest::digest(&SHA256, bytes))
}
