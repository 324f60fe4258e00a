//! Work that panics: whoever waits for it gets an end, and the threads go on with other work.

use FullChannelPolicy::{Coalesce, Replay};

use super::*;
use crate::watch::tests::text::with_panics;

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
fn a_cursor_whose_encoding_panics_ends() {
    let threads = BulkThreads::manual(Arc::default());
    let mut broadcaster =
        Broadcaster::<Text>::new(BroadcasterConfig::default(), version(0)).deferring_to(Some(&threads));
    let mut world = World::at(0);
    let [mut panics, mut same] = [(); 2].map(|()| broadcaster.subscribe(subscribe(PANICS, queue(Replay, 100))));
    let mut other = broadcaster.subscribe(subscribe(Letter('p'), queue(Replay, 100)));
    broadcaster.publish(&world.several(2));
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&flag));
    assert!(panics.poll_take(&mut Context::from_waker(&waker), 1).is_pending(), "a thread is to encode it");
    assert_eq!((taken(&mut same), taken(&mut other)), (Ok(0), Ok(0)));
    work(&threads);
    assert_eq!((flag.is_set(), taken(&mut panics)), (true, Err(End::Failed)));
    assert_eq!((taken(&mut same), taken(&mut other)), (Err(End::Failed), Ok(2)));
    let mut next = broadcaster.subscribe(subscribe(Letter('p'), queue(Replay, 100)));
    broadcaster.publish(&world.several(3));
    assert_eq!(taken(&mut next), Ok(0));
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
    assert_eq!(taken(&mut panics), Ok(0), "a thread is to merge");
    work(&threads);
    assert_eq!(taken(&mut panics), Err(End::Failed));
    assert_eq!(taken(&mut other), Ok(1));
}
