//! What the tests of several sources share.

#[allow(dead_code, reason = "the tests over real upstreams use the rest")]
pub(in crate::source) mod gate;
mod rig;

use std::time::Duration;

pub(in crate::source) use self::{
    gate::Gate,
    rig::{Kept, Rig},
};
use crate::{cache::Delta, model::Event};

/// The event of a delta that has one.
pub(in crate::source) fn sole_event(delta: Delta) -> Event {
    match delta {
        Delta::Changes { mut events, .. } if events.len() == 1 => events.remove(0),
        other => panic!("not one event: {other:?}"),
    }
}

/// No test waits longer than this for anything.
pub(in crate::source) const DEADLINE: Duration = Duration::from_secs(20);
