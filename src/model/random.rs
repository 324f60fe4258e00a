//! Random numbers for names.

use std::hash::{BuildHasher, RandomState};

/// Returns a number that with high probability no other process has returned, on this machine or another.
///
/// The keys of a `RandomState` come from the system's randomness. `fastrand`, the source of jitter, is seeded with the time
/// since the machine was started: replicas that start together may get the same numbers. None of the names is a secret, so
/// guessing them does no harm: lineages, relay paths and the process in a page token are visible to every client.
pub(crate) fn random_id() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
