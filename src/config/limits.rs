//! Bounds of what clients may use: the section `limits`.

use std::time::Duration;

use super::{error::ConfigErrors, raw::RawLimits, value};
use crate::model::Expression;

/// Bounds of what clients may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsConfig {
    /// The largest request, in bytes as encoded; by default 64 KiB, never 0.
    pub request_bytes: usize,
    /// Time that a client may take for the handshake of TLS, the preface of HTTP/2, a header block, or the message of a
    /// request; on the admin port, for the head of a request. By default 10 seconds, from 100 milliseconds to 5 minutes.
    pub request_timeout: Duration,
    /// Connections open at the same time, never 0; with `None`, what the limit on open files leaves, and at most 100 000.
    pub connections: Option<usize>,
    /// The part that one peer may have of connections, watches, compilations and page snapshots, in percent; by default 25,
    /// from 1 to 100. A peer is an IPv4 address, a /64 of IPv6, or a user of a unix socket.
    pub peer_share: u32,
    /// Expressions and conditions that wait to be compiled at the same time; by default 4096, never 0.
    pub compilations: usize,
    /// Snapshots that are kept for the next pages of lists; by default 16, never 0.
    pub page_snapshots: usize,
    /// Calls open at the same time on one connection; by default 1024, never 0.
    pub streams_per_connection: u32,
    /// Of bodies in STRUCT that are kept for the next who is sent them, in bytes.
    pub struct_bytes: usize,
    /// Bytes held for all clients together, from 1 MiB to 1 TiB; with `None`, a quarter of the cgroup's limit, and 1 GiB
    /// where there is none.
    pub memory: Option<usize>,
    /// Steps of one evaluation of an expression; by default [`Expression::DEFAULT_MAX_STEPS`], from 100 to 100 000.
    pub expression_steps: u64,
}

/// Reads the section.
pub(super) fn resolve(raw: &RawLimits, errors: &mut ConfigErrors) -> LimitsConfig {
    let default = LimitsConfig::default();
    let streams = raw.streams_per_connection.as_ref();
    LimitsConfig {
        request_bytes: errors
            .read("limits.request_bytes", raw.request_bytes.as_ref(), value::positive_size)
            .unwrap_or(default.request_bytes),
        request_timeout: errors
            .read("limits.request_timeout", raw.request_timeout.as_ref(), value::request_timeout)
            .unwrap_or(default.request_timeout),
        connections: errors.read("limits.connections", raw.connections.as_ref(), value::positive_count),
        peer_share: errors
            .read("limits.peer_share", raw.peer_share.as_ref(), value::percent)
            .unwrap_or(default.peer_share),
        compilations: errors
            .read("limits.compilations", raw.compilations.as_ref(), value::positive_count)
            .unwrap_or(default.compilations),
        page_snapshots: errors
            .read("limits.page_snapshots", raw.page_snapshots.as_ref(), value::positive_count)
            .unwrap_or(default.page_snapshots),
        streams_per_connection: errors
            .read("limits.streams_per_connection", streams, value::positive_count_31)
            .unwrap_or(default.streams_per_connection),
        struct_bytes: errors
            .read("limits.struct_bytes", raw.struct_bytes.as_ref(), value::positive_size)
            .unwrap_or(default.struct_bytes),
        memory: errors.read("limits.memory", raw.memory.as_ref(), value::memory),
        expression_steps: errors
            .read("limits.expression_steps", raw.expression_steps.as_ref(), value::expression_steps)
            .unwrap_or(default.expression_steps),
    }
}

// === impl LimitsConfig ===

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            request_bytes: 64 << 10,
            request_timeout: Duration::from_secs(10),
            connections: None,
            peer_share: 25,
            compilations: 4096,
            page_snapshots: 16,
            streams_per_connection: 1024,
            struct_bytes: 64 << 20,
            memory: None,
            expression_steps: Expression::DEFAULT_MAX_STEPS,
        }
    }
}
