//! Options of a watch.

use std::time::Duration;

use crate::{cache::BackoffConfig, proto::pb};

/// Options of a watch.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchOptions {
    /// Server-side queue, and the policy when it is full. None is the server's default.
    pub queue: Option<pb::QueueOptions>,
    /// Interval of bookmarks while there are no events; 30 s, between 100 ms and a day. After three intervals without a message,
    /// the watch takes the stream and its connection for dead.
    pub bookmark_interval: Duration,
    /// Longest time until the first message of a stream that lists; 30 s. A server waits up to 10 s for its own first list.
    pub list_timeout: Duration,
    /// Longest time until the first message of a stream that resumes; 100 s. A server that is behind waits for the version, up to
    /// its `future_wait` of 90 s.
    pub resume_timeout: Duration,
    /// Largest random delay before the watch moves away from a server that drains, and before it lists again, so that the clients of
    /// a server do not all do so at once; 1 s. The delay between streams is added, except to that of the first list.
    pub drain_jitter: Duration,
    /// True to keep a copy of every object, so that an inferred DELETED has the last known body; default false.
    pub keep_objects: bool,
    /// True to fetch dropped events again under DROP; default true. If false, an [`Update::Dropped`](super::Update::Dropped)
    /// reports the hole.
    pub heal_drops: bool,
    /// True to end with the error if the first attempt reaches no server, instead of trying again; default false.
    pub fail_fast: bool,
    /// Delays between streams.
    pub backoff: BackoffConfig,
}

// === impl WatchOptions ===

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            queue: None,
            bookmark_interval: Duration::from_secs(30),
            list_timeout: Duration::from_secs(30),
            resume_timeout: Duration::from_secs(100),
            drain_jitter: Duration::from_secs(1),
            keep_objects: false,
            heal_drops: true,
            fail_fast: false,
            backoff: BackoffConfig {
                initial: Duration::from_millis(100),
                max: Duration::from_secs(10),
                jitter: 1.0,
                reset_after: Duration::from_secs(60),
            },
        }
    }
}
