//! Shared helpers of the sources' tests.

#[allow(dead_code, reason = "the tests over real upstreams use the rest")]
pub(in crate::source) mod gate;
mod rig;

use std::time::Duration;

pub(in crate::source) use self::{
    gate::Gate,
    rig::{Rig, SavedSnapshot},
};
use crate::{cache::Delta, model::Event};

/// Returns the only event of a delta.
pub(in crate::source) fn sole_event(delta: Delta) -> Event {
    match delta {
        Delta::Changes { mut events, .. } if events.len() == 1 => events.remove(0),
        other => panic!("not one event: {other:?}"),
    }
}

/// Longest wait of any test.
pub(in crate::source) const DEADLINE: Duration = Duration::from_secs(20);
