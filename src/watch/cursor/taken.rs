//! Results of a take.

use super::super::{End, Frames};
use crate::model::ResourceVersion;

/// Size of the next event, which exceeds the limit; `None` if it is not known before the event is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge(pub Option<usize>);

/// Result of taking from a cursor.
#[derive(Debug, Clone)]
pub enum Taken<F> {
    /// The next events, in order.
    Frames(Frames<F>),
    /// Events are missing here, under DROP.
    Dropped {
        /// Number of missing events of the selection.
        count: u64,
        /// Last version before the gap: a watch from here receives the missing events.
        after: ResourceVersion,
    },
    /// The cursor has ended.
    Ended(End),
}
