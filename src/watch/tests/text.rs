//! Frame of bytes, for tests in which sizes and formats matter: one line for each event.

use std::{cell::Cell, ops::Range};

use bytes::{Bytes, BytesMut};

use super::*;

/// Lines; the format is a letter that every line begins with. Under `s`, a change is suppressed if the labels stay the same. Under `!`,
/// each encoding and each comparison panics during [`with_panics`].
#[derive(Debug, Clone)]
pub(super) struct Text(Bytes);

/// Returns the line of an event.
pub(super) fn line(format: Letter, notice: &GroupEvent<'_>) -> String {
    let GroupEvent { event_type, cause, object, object_version, version, relisted, .. } = notice;
    let gap = if *relisted { " after a relist" } else { "" };
    let (name, app) = (object.key().name(), object.labels().get("app").unwrap_or_default());
    let body = String::from_utf8_lossy(object.body());
    let of = object.version();
    format!(
        "{}:{event_type:?}/{cause:?} {name}={app}@{of} at {object_version} resume {version}{gap} {body}\n",
        format.0
    )
}

thread_local! {
    static HAS_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function in which the format `!` panics.
pub(super) fn with_panics(call: impl FnOnce()) {
    HAS_PANICS.set(true);
    call();
    HAS_PANICS.set(false);
}

fn plan_panic(format: Letter) {
    if format.0 == '!' && HAS_PANICS.get() {
        std::panic::panic_any(crate::watch::bulk::PlannedPanic);
    }
}

impl Text {
    pub(super) fn lines(&self) -> Vec<String> {
        let text = std::str::from_utf8(&self.0).unwrap();
        text.split_inclusive('\n').map(str::to_owned).collect()
    }
}

impl Text {
    /// Returns the address and the length of its bytes.
    pub(super) fn place(&self) -> (*const u8, usize) {
        (self.0.as_ptr(), self.0.len())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Letter(pub(super) char);

impl Default for Letter {
    fn default() -> Self {
        Self('a')
    }
}

impl Frame for Text {
    type Format = Letter;
    type Arena = BytesMut;

    const HAS_PREVIOUS: bool = false;

    fn is_suppressed(format: &Letter, had: &Object, now: &Object) -> bool {
        plan_panic(*format);
        format.0 == 's' && had.labels() == now.labels()
    }

    fn is_costly(format: &Letter) -> bool {
        matches!(format.0, 's' | 'p' | '!')
    }

    fn encode(arena: &mut BytesMut, format: &Letter, notice: &GroupEvent<'_>) {
        plan_panic(*format);
        arena.extend_from_slice(line(*format, notice).as_bytes());
    }

    fn size(arena: &BytesMut) -> usize {
        arena.len()
    }

    fn freeze(arena: BytesMut) -> Self {
        Self(arena.freeze())
    }

    fn slice(&self, range: Range<usize>) -> Self {
        Self(self.0.slice(range))
    }

    fn bytes(arena: &BytesMut) -> usize {
        arena.capacity()
    }
}
