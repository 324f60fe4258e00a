//! Value of `--policy`.

use clap::ValueEnum;
use informerd::proto::pb;

/// Policy for full queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Policy {
    /// All wait: the throughput of the server
    Block,
    /// It reads from the history
    Replay,
    /// Events are lost
    Drop,
    /// Events merge
    Coalesce,
}

// === impl Policy ===

impl From<Policy> for pb::FullChannelPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Block => Self::Block,
            Policy::Replay => Self::Replay,
            Policy::Drop => Self::Drop,
            Policy::Coalesce => Self::Coalesce,
        }
    }
}
