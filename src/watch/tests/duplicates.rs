//! Duplicates of a cursor, under schedules that Shuttle draws: a second reader loses nothing that the first one had not taken, though
//! threads merge for both, and drop what no reader needs.

use std::future::poll_fn;

use shuttle::{
    future::block_on,
    rand::{Rng, thread_rng},
    thread,
};

use super::*;
use crate::{sync::explore, watch::selection_budget::Stepped};

/// Client under COALESCE: the versions of the objects that it has, by name.
struct Reader {
    cursor: Cursor<Deliveries>,
    has: BTreeMap<String, u128>,
}

const NAMES: [&str; 2] = ["a", "b"];
const CHANGES: u128 = 6;
const DUPLICATES: usize = 2;

// === impl Reader ===

impl Reader {
    fn see(&mut self, taken: &Taken<Deliveries>) {
        let Taken::Frames(frames) = taken else { panic!("taken: {taken:?}") };
        for delivery in frames.iter().flat_map(Deliveries::as_slice) {
            self.has.insert(delivery.object.key().name().to_owned(), delivery.object.version().number());
        }
    }

    /// Returns the same reader with a duplicate of its cursor, as soon as no thread merges for it.
    fn duplicate(&self) -> Self {
        loop {
            if let Some(cursor) = self.cursor.duplicate() {
                return Self { cursor, has: self.has.clone() };
            }
            thread::yield_now();
        }
    }

    /// Takes everything up to the last change.
    async fn follow(mut self) {
        while self.cursor.version().number() < CHANGES {
            let taken = poll_fn(|cx| self.cursor.poll_take(cx, 1)).await;
            self.see(&taken);
        }
        let last = NAMES.iter().zip(CHANGES - 1..).map(|(name, version)| ((*name).to_owned(), version)).collect();
        assert_eq!(self.has, last);
    }
}

/// Runs one schedule.
fn schedule() {
    let clock: Arc<Stepped> = Arc::default();
    clock.step.store(if thread_rng().r#gen() { 1_000_000 } else { 0 }, Ordering::SeqCst);
    let threads = Arc::new(BulkThreads::manual(clock));
    let bulk = [threads.body(), threads.body()].map(thread::spawn);
    let mut broadcaster = Broadcaster::new(BroadcasterConfig::default(), version(0)).deferring_to(Some(&threads));
    let cursor = broadcaster.subscribe(live(everything(), queue(FullChannelPolicy::Coalesce, 1)));
    let reader = thread::spawn(move || {
        let mut reader = Reader { cursor, has: BTreeMap::new() };
        let others: Vec<_> = (0..DUPLICATES)
            .map(|_| {
                let duplicate = reader.duplicate();
                if let Poll::Ready(taken) = reader.cursor.poll_take(&mut Context::from_waker(Waker::noop()), 1) {
                    reader.see(&taken);
                }
                thread::spawn(move || block_on(duplicate.follow()))
            })
            .collect();
        block_on(reader.follow());
        for other in others {
            other.join().unwrap();
        }
    });
    let mut world = World::at(0);
    for number in 0..CHANGES {
        let batch = world.batch(|world| vec![world.put(NAMES[number as usize % NAMES.len()], "web")]);
        let reached = HistoryPosition { version: batch.after.clone(), offset: number as u64 + 1 };
        broadcaster.publish(&[batch]);
        broadcaster.drop_before(&reached);
        broadcaster.sweep();
    }
    reader.join().unwrap();
    let expired = broadcaster.stats().expired.load(Ordering::Relaxed);
    assert_eq!(expired, 0, "what the history has dropped is kept up to a bound");
    drop((broadcaster, threads));
    for bulk in bulk {
        bulk.join().unwrap();
    }
}

#[test]
fn no_order_of_threads_loses_what_a_duplicate_needs() {
    explore(schedule);
}
