//! Order between threads, under schedules that Shuttle draws: the blocks that a thread makes, and a history that begins anew while
//! cursors read.

use std::future::poll_fn;

use FullChannelPolicy::Replay;
use shuttle::{
    future::block_on,
    rand::{Rng, thread_rng},
    thread,
};

use super::*;
use crate::sync::{self, explore};

/// A thread makes the blocks of cursors that join at any time: none waits for ever, and each gets all of its events.
fn costly_blocks() {
    const CHANGES: usize = 3;
    let threads = Arc::new(BulkThreads::manual(Arc::default()));
    let mut broadcaster =
        Broadcaster::<Text>::new(BroadcasterConfig::default(), version(0)).deferring_to(Some(&threads));
    let mut world = World::at(0);
    let readers: Vec<_> = [everything(), everything(), app("web")]
        .into_iter()
        .map(|selection| {
            let subscribe = Subscribe { format: Letter('p'), ..live(selection, queue(Replay, 100)) };
            let mut cursor = broadcaster.subscribe(subscribe);
            thread::spawn(move || {
                let mut lines = 0;
                while lines < CHANGES {
                    match block_on(poll_fn(|cx| cursor.poll_take(cx, 1 << 20))) {
                        Taken::Frames(frames) => lines += frames.iter().map(|frame| frame.lines().len()).sum::<usize>(),
                        taken => panic!("{taken:?}"),
                    }
                }
            })
        })
        .collect();
    let is_over = Arc::new(sync::AtomicBool::default());
    let worker = {
        let (threads, is_over) = (Arc::clone(&threads), Arc::clone(&is_over));
        thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                if !threads.run_one() {
                    thread::yield_now();
                }
            }
        })
    };
    for _ in 0..CHANGES {
        broadcaster.publish(&world.several(1));
        thread::yield_now();
    }
    for reader in readers {
        reader.join().unwrap();
    }
    is_over.store(true, Ordering::SeqCst);
    worker.join().unwrap();
}

#[test]
fn no_order_of_threads_loses_a_costly_block() {
    explore(costly_blocks);
}

/// Cursors read while the history begins anew, at a lower or a higher version: each ends with that, and none has an event of the new one.
fn rewritten_history() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let mut cursor = broadcaster.subscribe(live(everything(), queue(Replay, 1)));
            thread::spawn(move || {
                loop {
                    for item in items(block_on(poll_fn(|cx| cursor.poll_take(cx, 1)))) {
                        match item {
                            Item::Event(_, name, _) => assert_eq!(name, "a", "an event of the history that came after"),
                            Dropped(..) => panic!("nothing is lost"),
                            Ended(end) => return assert_eq!(end, End::HistoryRewritten),
                        }
                    }
                }
            })
        })
        .collect();
    let mut world = World::at(0);
    for _ in 0..2 {
        broadcaster.publish(&world.several(1));
        thread::yield_now();
    }
    let begin = [0, 100][thread_rng().gen_range(0..2)];
    rewrite(&mut broadcaster, begin);
    let mut world = World::at(begin);
    for _ in 0..4 {
        broadcaster.publish(&[world.one("b", "web")]);
        thread::yield_now();
    }
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn no_order_of_threads_mixes_two_histories() {
    explore(rewritten_history);
}
