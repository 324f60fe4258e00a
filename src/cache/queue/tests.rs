//! Queues: client-go's tests of `FIFO` and `DeltaFIFO`, and any interleaving of their operations against a model.

mod delta_fifo;
mod fifo;
mod property;

use std::{convert::Infallible, future::ready, sync::Arc};

use tokio::task::{JoinSet, yield_now};

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

/// Checks that the numbers of two producers are popped in the order of each.
async fn check_order_of_producers<Q: Queue<Object = u32>>(queue: Q, number_of: impl Fn(Q::Item) -> u32) {
    let queue = Arc::new(queue);
    let mut producers = JoinSet::new();
    for producer in 0..2 {
        let queue = Arc::clone(&queue);
        producers.spawn(async move {
            for number in 0..500 {
                queue.add(producer * 1000 + number).await.unwrap();
                yield_now().await;
            }
        });
    }
    let mut next = [0, 1000];
    for _ in 0..1000 {
        let number = number_of(pop(&*queue).await.0);
        let producer = number as usize / 1000;
        assert_eq!(number, next[producer]);
        next[producer] += 1;
    }
}
