//! Stub of the CEL programs for a build without CEL, in which no expression parses.

use bytes::Bytes;

use super::{
    error::{ExpressionError, Failure},
    variables::EventView,
};
use crate::model::SyntaxError;

/// Program, which cannot exist.
pub(super) enum Program {}

/// Does some work: no bodies are parsed.
pub(super) fn sharing<T>(work: impl FnOnce() -> T) -> T {
    work()
}

// === impl Program ===

impl Program {
    pub(super) fn compile(text: &str, _: &[&str]) -> Result<Self, ExpressionError> {
        Err(SyntaxError::new(text, 0, "built without expressions (cargo feature `cel`)").into())
    }

    pub(super) fn other_than_bool(&self) -> Option<&'static str> {
        match *self {}
    }

    pub(super) fn test(&self, _: u64, _: Option<EventView<'_>>, _: Option<&Bytes>) -> Result<bool, Failure> {
        match *self {}
    }

    pub(super) fn values(&self, _: u64, _: &Bytes) -> Result<Vec<String>, Failure> {
        match *self {}
    }
}
