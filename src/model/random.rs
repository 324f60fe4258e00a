//! Random numbers that name things.

use std::hash::{BuildHasher, RandomState};

/// Returns a number that no other process has returned, on this machine or another, so far as chance allows.
///
/// The keys of a `RandomState` are the system's randomness. `fastrand`, which jitter is made of, begins with the time since
/// the machine was started: replicas that start together may have the same numbers. None of the names is a secret, so that it
/// does not matter how far others can guess them: a page token, a lineage and a path of relays are shown to every client.
pub(crate) fn random_id() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
