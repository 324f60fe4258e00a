//! Turns of callers at what is bounded, such as reviews and compilations.
//!
//! - [`FairQueue`]: values that wait; owners take turns, and so do the connections of each.
//! - [`FairSemaphore`]: permits, of which one owner has its share at most, and a bounded queue for them.
//! - [`Party`]: the caller as both see it. [`Class`]: the callers that come first.

mod fair_queue;
mod fair_semaphore;

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::LazyLock,
};

pub(crate) use self::{
    fair_queue::FairQueue,
    fair_semaphore::{FairPermit, FairSemaphore, Full, QueueBounds},
};

/// Caller in a queue: its owner, which has one share, and its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Party {
    owner: u64,
    connection: u64,
}

/// Class of a caller, in the order in which they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// It was admitted before.
    Known,
    New,
    /// It was refused several times in a row.
    Suspect,
}

// === impl Party ===

impl Party {
    /// Returns the party of an owner and one of its connections. Both are hashed under a key of this process, so that no caller can
    /// choose the party of another one.
    pub fn new(owner: &impl Hash, connection: &impl Hash) -> Self {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self { owner: KEY.hash_one(owner), connection: KEY.hash_one(connection) }
    }

    /// Returns the same party for all connections of its owner.
    pub(crate) fn of_owner(self) -> Self {
        Self { connection: 0, ..self }
    }
}
