//! Queues: client-go's tests of `FIFO` and `DeltaFIFO`, and any interleaving of their operations against a model.

mod delta_fifo;
mod fifo;
mod property;

use std::{convert::Infallible, future::ready};

use super::*;
use crate::cache::KeyFunc;

/// Object with a name and a value: client-go's `testFifoObject`.
type Named = (&'static str, u32);

fn by_name() -> KeyFunc<Named, &'static str> {
    KeyFunc::infallible(|(name, _): &Named| *name)
}

/// Pops an item, and returns it with true if it belongs to the first batch.
async fn pop<Q: Queue>(queue: &Q) -> (Q::Item, bool) {
    let mut is_initial = false;
    let process = |_, is_in_initial_list| {
        is_initial = is_in_initial_list;
        ready(Ok::<_, ProcessError<Infallible>>(()))
    };
    let item = queue.pop(process).await.unwrap();
    (item, is_initial)
}
