//! What the tests of several sources share.

pub(in crate::source) mod gate;
mod rig;

use std::time::Duration;

pub(in crate::source) use self::{
    gate::Gate,
    rig::{Kept, Rig},
};

/// No test waits longer than this for anything.
pub(in crate::source) const DEADLINE: Duration = Duration::from_secs(20);
