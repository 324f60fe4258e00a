//! The `stream` source: watch events as JSON, from a file, a named pipe or standard input.
//!
//! ```text
//!         list ──▶ StreamState ◀┐
//!   input ──▶ framing ──▶ decode ─ reader ──▶ StreamWatcher ──▶ Watch
//!                                    └──────▶ Problems ──▶ SourceHealth
//! ```
//!
//! `{"type":"ADDED|MODIFIED|DELETED|BOOKMARK|ERROR","object":{…}}`, concatenated or one to a line, as
//! `kubectl get --watch --output-watch-events -o json` writes them. The application makes one source for each resource from its
//! configuration; the resource's Reflector drives it. Events that cannot be applied are reported in the resource's health.
//!
//! Beside `type` and `object`, an event may have what `informerd record` writes: `namespace`, `name` and `uid` in place of those of
//! the object, and `data` (base64) in place of `object` for bytes that are not JSON.
//!
//! - The resource is synced, and empty, as soon as the input is open.
//! - Versions are `<lineage>.<n>`: the lineage is new at each start, and `n` increases by one with each event.
//! - The source reads only on demand: at most one chunk of the input is read ahead, and a slow consumer blocks the writer.
//! - An event that cannot be parsed or has no key is not applied. The source reports it for its whole lifetime, and continues.
//! - The end of the stream makes the resource STALE, and deletes nothing by itself. A named pipe continues with its next writer, which
//!   repeats all objects; the source deletes those that it does not confirm, as at a relist (`reader`).
//! - With a time to live, an object without an event for that long is deleted (`lease`).
//! - A watch never ends. A list is the result of all events so far, so that a list never removes anything from the cache.
//!
//! A file that grows is not followed, deliberately: a pipe does that (`tail -n +1 -F FILE | informerd …`).

mod decode;
mod framing;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod input;
mod known;
mod lease;
mod reader;
mod source;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::{
    input::{StreamError, StreamPath},
    source::StreamSource,
};

/// Heartbeat of a stream, which may be silent for any time: only its end is a sign.
pub const HEARTBEAT: Duration = Duration::MAX;

/// Default of [`StreamConfig::confirm_after`].
pub const DEFAULT_CONFIRM_AFTER: Duration = Duration::from_secs(10);

/// Configuration of a [`StreamSource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// Origin of the events.
    pub path: StreamPath,
    /// Name of the resource, for the log.
    pub resource: String,
    /// Time for which the next writer of a named pipe may go without an event of an object that existed before it. Then the
    /// source deletes the objects that the writer has sent no event of, as at a relist. Time counts from its first event on, and
    /// only while the pipe is empty and a reader waits for it. `None` for writers that do not begin with all objects: those
    /// that were deleted between two writers remain.
    pub confirm_after: Option<Duration>,
    /// Time after its last event at which an object is deleted, with [`Cause::Expired`](crate::model::Cause::Expired), also after
    /// the end of the stream. `None`: never.
    pub ttl: Option<Duration>,
}

// === impl StreamConfig ===

impl StreamConfig {
    /// Returns the configuration that serves `path` as `resource`, with the defaults for everything else.
    pub fn new(path: StreamPath, resource: impl Into<String>) -> Self {
        Self { path, resource: resource.into(), confirm_after: Some(DEFAULT_CONFIRM_AFTER), ttl: None }
    }
}
