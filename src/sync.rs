//! Locks and atomics shared by the threads of one resource: the points where the order between threads matters.
//!
//! Outside of unit tests these are the types of `parking_lot`, `arc-swap` and `std`. In a unit test that explores schedules
//! (`schedules`), the Shuttle scheduler chooses the next thread at each use of one of them.
//!
//! Counters that no decision depends on are plain atomics, and not in this module.

#[cfg(test)]
mod scheduled;
#[cfg(test)]
mod schedules;

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};

#[cfg(not(test))]
pub(crate) use arc_swap::{ArcSwap, ArcSwapOption};
#[cfg(not(test))]
pub(crate) use parking_lot::{Condvar, Mutex};

#[cfg(test)]
pub(crate) use self::{
    scheduled::{ArcSwap, ArcSwapOption, AtomicBool, AtomicU64, Condvar, Mutex},
    schedules::explore,
};
