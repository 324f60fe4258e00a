//! Work that panics: whoever waits for it gets an end, and the threads go on with other work.

use FullChannelPolicy::{Coalesce, Replay};

use super::*;
use crate::watch::{
    BacklogReader,
    replay::tests::{at, batches, selection},
    selection_budget::Stepped,
    tests::{deferred::not, text::with_panics},
};

/// Format under which every encoding and every comparison of a thread panics.
const PANICS: Letter = Letter('!');

fn subscribe(format: Letter, queue: QueueOptions) -> Subscribe<Text> {
    Subscribe { format, ..live(everything(), queue) }
}

/// Does all pending work, in which that format panics.
fn work(threads: &BulkThreads) {
    with_panics(|| while threads.run_one() {});
}

/// Returns the number of lines that a cursor has, or its end.
fn taken(cursor: &mut Cursor<Text>) -> Result<usize, End> {
    match cursor.poll_take(&mut Context::from_waker(Waker::noop()), 1 << 20) {
        Poll::Ready(Taken::Frames(frames)) => Ok(frames.iter().map(|frame| frame.lines().len()).sum()),
        Poll::Ready(Taken::Ended(end)) => Err(end),
        Poll::Ready(taken) => panic!("{taken:?}"),
        Poll::Pending => Ok(0),
    }
}

#[test]
fn a_deferred_group_whose_encoding_panics_ends() {
    let clock: Arc<Stepped> = Arc::default();
    let threads = BulkThreads::manual(Arc::clone(&clock));
    let mut broadcaster =
        Broadcaster::<Text>::new(BroadcasterConfig::default(), version(0)).deferring_to(Some(&threads));
    let mut world = World::at(0);
    let selecting = Subscribe { format: PANICS, ..live(not("db"), queue(Replay, 100)) };
    let mut panics = broadcaster.subscribe(selecting);
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&flag));
    // The writer has no time for the group.
    clock.step.store(1_000_000_000, Ordering::SeqCst);
    assert!(panics.poll_take(&mut Context::from_waker(&waker), 1).is_pending());
    broadcaster.publish(&world.several(2));
    clock.step.store(0, Ordering::SeqCst);
    work(&threads);
    assert_eq!((flag.is_set(), taken(&mut panics)), (true, Err(End::Failed)));
    let mut next = broadcaster.subscribe(subscribe(Letter('a'), queue(Replay, 100)));
    broadcaster.publish(&world.several(3));
    work(&threads);
    assert_eq!(taken(&mut next), Ok(3));
}

#[test]
fn a_reader_under_coalesce_whose_merge_panics_ends() {
    let threads = BulkThreads::manual(Arc::default());
    let mut broadcaster =
        Broadcaster::<Text>::new(BroadcasterConfig::default(), version(0)).deferring_to(Some(&threads));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(1));
    let [mut panics, mut other] =
        [PANICS, Letter('a')].map(|format| broadcaster.subscribe(subscribe(format, queue(Coalesce, 1))));
    broadcaster.publish(&world.several(3));
    for cursor in [&mut panics, &mut other] {
        assert_eq!(taken(cursor), Ok(0), "it merges");
    }
    work(&threads);
    assert_eq!(taken(&mut panics), Err(End::Failed));
    assert_eq!(taken(&mut other), Ok(1));
}

#[test]
fn a_reader_of_the_history_whose_replay_panics_ends() {
    let threads = BulkThreads::manual(Arc::default());
    let backfill = Arc::new(Backfill::<Text>::new(1 << 20));
    backfill.give_threads(&threads);
    let batches = batches(&[vec![(0, Some(true))], vec![(0, Some(false))]]);
    for (format, has_failed) in [(PANICS, true), (Letter('a'), false), (PANICS, true)] {
        let mut reader = BacklogReader::<Text>::new(batches.clone(), 0, at(version(1)), false);
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(Arc::clone(&flag));
        let mut take = || {
            let cx = Context::from_waker(&waker);
            reader.poll_take(&cx, &backfill, &selection(""), &format, 1 << 20, false)
        };
        let first = take();
        work(&threads);
        let events = match first {
            // Made for the one before.
            Poll::Ready(taken) => taken.unwrap().1,
            Poll::Pending => {
                assert!(flag.is_set());
                let Poll::Ready(taken) = take() else { panic!("it waits for ever") };
                taken.unwrap().1
            }
        };
        assert_eq!((events > 0, reader.has_failed()), (!has_failed, has_failed));
    }
}
