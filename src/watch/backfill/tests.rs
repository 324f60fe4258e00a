//! A reader of a backlog takes what a replay of its own would yield, whatever others read; and each event is encoded once.

use std::task::Waker;

use proptest::prelude::*;

use super::*;
use crate::{
    model::{Batch, HistoryPosition},
    watch::{
        Deliveries, Delivery, TooLarge,
        replay::tests::{at, batches, events, replayed, selection, version},
        selection_budget::Stepped,
    },
};

type Reader = BacklogReader<Deliveries>;

/// Waker that records if it was woken.
#[derive(Default)]
struct Flag(std::sync::atomic::AtomicBool);

impl Flag {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl std::task::Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn poll(
    reader: &mut Reader,
    backfill: &Arc<Backfill<Deliveries>>,
    selection: &Arc<Selection>,
    max_size: usize,
) -> Poll<Result<(Option<Deliveries>, u64), TooLarge>> {
    reader.poll_take(&Context::from_waker(Waker::noop()), backfill, selection, &(), max_size, false)
}

/// Takes once, after the threads have done their work.
fn take(
    reader: &mut Reader,
    backfill: &Arc<Backfill<Deliveries>>,
    threads: &BulkThreads,
    selection: &Arc<Selection>,
    max_size: usize,
) -> Vec<Delivery> {
    loop {
        match poll(reader, backfill, selection, max_size) {
            Poll::Ready(taken) => {
                let (frame, count) = taken.unwrap();
                let taken = events(frame.as_slice());
                assert_eq!(taken.len() as u64, count);
                return taken;
            }
            Poll::Pending => assert!(threads.run_one(), "what it waits for is being made"),
        }
    }
}

/// Returns batches of one change each, of few objects.
fn many(changes: usize) -> Vec<Arc<Batch>> {
    batches(&(0..changes).map(|at| vec![((at % 7) as u8, Some(at % 2 == 0))]).collect::<Vec<_>>())
}

#[test]
fn a_thousand_clients_that_resume_from_one_version_have_each_event_encoded_once() {
    let (batches, selection) = (many(1000), selection(""));
    let threads = BulkThreads::manual(Arc::default());
    let backfill = Arc::new(Backfill::new(1 << 20));
    backfill.give_threads(&threads);
    let mut readers: Vec<Reader> = (0..1000).map(|_| Reader::new(batches.clone(), 0, at(version(1)), false)).collect();
    while !readers.iter().all(Reader::is_done) {
        for reader in &mut readers {
            drop(poll(reader, &backfill, &selection, 100));
        }
        while threads.run_one() {}
    }
    assert_eq!(backfill.encoded(), 1000, "and not a million");
}

#[test]
fn clients_that_began_at_different_offsets_soon_read_the_same_blocks() {
    let (batches, selection) = (many(2560), selection(""));
    let threads = BulkThreads::manual(Arc::default());
    let backfill = Arc::new(Backfill::new(1 << 20));
    for first in [0_usize, 100, 200, 300] {
        let reached = HistoryPosition { version: version(1 + 2 * first as u128), offset: first as u64 };
        let mut reader = Reader::new(batches[first..].to_vec(), first as u64, reached, false);
        while !reader.is_done() {
            take(&mut reader, &backfill, &threads, &selection, 1000);
        }
    }
    assert_eq!(backfill.encoded(), 2560 + 156 + 56 + 212);
}

#[test]
fn kept_blocks_are_bounded_and_a_dropped_one_is_encoded_again() {
    const BOUND: usize = 100_000;
    let batches = many(300);
    let threads = BulkThreads::manual(Arc::default());
    let backfill = Arc::new(Backfill::new(BOUND));
    backfill.give_threads(&threads);
    let selections: Vec<_> = (0..100).map(|number| selection(&format!("app!=x{number}"))).collect();
    let mut readers: Vec<Reader> = (0..100).map(|_| Reader::new(batches.clone(), 0, at(version(1)), false)).collect();
    let mut taken = vec![0; 100];
    for _ in 0..400 {
        for ((reader, selection), taken) in readers.iter_mut().zip(&selections).zip(&mut taken) {
            *taken += take(reader, &backfill, &threads, selection, 50).len();
            assert!(backfill.bytes() <= BOUND);
        }
    }
    assert_eq!(taken, [300; 100]);
    assert!(backfill.encoded() > 300 * 100);
}

#[test]
fn a_block_counts_with_its_events_its_steps_and_both_of_its_keys() {
    let (batches, selection) = (many(10), selection(""));
    let backfill = Arc::new(Backfill::<Deliveries>::new(1 << 20));
    let mut reader = Reader::new(batches, 0, at(version(1)), false);
    let Poll::Ready(Ok((Some(frame), 10))) = poll(&mut reader, &backfill, &selection, usize::MAX) else {
        panic!("it has ten events")
    };
    let keys = 2 * size_of::<Key<Deliveries>>();
    let each = size_of::<Delivery>() + size_of::<Step>();
    let old_states = frame.as_slice().iter().filter_map(|event| event.previous.as_ref());
    let bodies: usize = old_states.map(|object| object.body().len()).sum();
    assert!(bodies > 0, "states that the store no longer has");
    assert_eq!(backfill.bytes(), 10 * each + bodies + size_of::<Block<Deliveries>>() + keys);
}

/// Between two batches a reader may stop anywhere; inside a batch only after an event.
#[test]
fn a_batch_of_which_nothing_is_selected_is_one_step() {
    let batches = batches(&vec![vec![(1, Some(true)); 10]; 10]);
    let backfill = Arc::new(Backfill::<Deliveries>::new(1 << 20));
    let mut reader = Reader::new(batches, 0, at(version(1)), false);
    assert!(poll(&mut reader, &backfill, &selection("app=none"), usize::MAX).is_ready());
    let keys = 2 * size_of::<Key<Deliveries>>();
    assert_eq!(backfill.bytes(), 10 * size_of::<Step>() + size_of::<Block<Deliveries>>() + keys);
}

#[test]
fn all_waiters_of_a_block_are_woken_and_it_counts_once_even_if_encoded_twice() {
    let (batches, selection) = (many(10), selection(""));
    let threads = BulkThreads::manual(Arc::default());
    let backfill = Arc::new(Backfill::<Deliveries>::new(1 << 20));
    backfill.give_threads(&threads);
    let flags: [Arc<Flag>; 3] = Default::default();
    for flag in &flags {
        let mut reader = Reader::new(batches.clone(), 0, at(version(1)), false);
        let waker = Waker::from(Arc::clone(flag));
        for _ in 0..2 {
            let polled = reader.poll_take(&Context::from_waker(&waker), &backfill, &selection, &(), 1, false);
            assert!(polled.is_pending());
        }
    }
    assert!(threads.run_one() && flags.iter().all(|flag| flag.is_set()));
    let bytes = backfill.bytes();
    let key = (Arc::clone(&selection), (), Replay::new(batches.clone(), 0, at(version(1))).position());
    let mut order = BlockBuilder::new(key, Replay::new(batches, 0, at(version(1))));
    assert!(order.make(threads.queue().clock()));
    backfill.finish(order);
    assert_eq!((backfill.bytes(), backfill.state.lock().order.len()), (bytes, 1));
}

#[test]
fn of_blocks_that_were_all_taken_only_the_oldest_is_dropped() {
    let (batches, selections) = (many(10), ["app!=a", "app!=b", "app!=c", "app!=d"].map(selection));
    let read = |backfill: &Arc<Backfill<Deliveries>>, selected: usize| {
        let mut reader = Reader::new(batches.clone(), 0, at(version(1)), false);
        assert!(poll(&mut reader, backfill, &selections[selected], usize::MAX).is_ready());
        backfill.encoded()
    };
    let one = Arc::new(Backfill::new(1 << 20));
    read(&one, 0);
    let backfill = Arc::new(Backfill::new(3 * one.bytes()));
    assert_eq!([0, 1, 2, 0, 1, 2].map(|selected| read(&backfill, selected)), [10, 20, 30, 30, 30, 30]);
    assert_eq!(read(&backfill, 3), 40);
    assert_eq!([1, 2, 3].map(|selected| read(&backfill, selected)), [40; 3], "these are still there");
    assert_eq!(read(&backfill, 0), 50);
    assert_eq!(backfill.bytes(), 3 * one.bytes());
}

#[test]
fn a_relist_after_the_last_event_is_kept_until_it_is_reported() {
    let mut batches = many(2);
    let last = batches.last().unwrap();
    let relist =
        Batch { before: last.after.clone(), after: version(99), changes: vec![], is_relist: true, is_open: false };
    batches.push(Arc::new(relist));
    for (length, has_gap) in [(2, false), (3, true)] {
        let backfill = Arc::new(Backfill::<Deliveries>::new(1 << 20));
        let mut reader = Reader::new(batches[..length].to_vec(), 0, at(version(1)), false);
        while !reader.is_done() {
            assert!(poll(&mut reader, &backfill, &selection(""), usize::MAX).is_ready());
        }
        assert_eq!(reader.has_gap(), has_gap);
    }
}

#[test]
fn one_piece_of_work_encodes_a_cheap_block_and_few_costly_ones_are_begun() {
    let batches = many(20);
    let clock: Arc<Stepped> = Arc::default();
    let threads = BulkThreads::manual(Arc::clone(&clock));
    let backfill = Arc::new(Backfill::<Deliveries>::new(1 << 20));
    backfill.give_threads(&threads);
    let order = |number: usize| {
        let selection = selection(&format!("app!=x{number}"));
        let mut reader = Reader::new(batches.clone(), 0, at(version(1)), false);
        assert!(poll(&mut reader, &backfill, &selection, usize::MAX).is_pending());
        (reader, selection)
    };
    let (mut reader, selection) = order(0);
    assert!(threads.run_one() && !threads.run_one(), "one piece");
    assert!(poll(&mut reader, &backfill, &selection, usize::MAX).is_ready());
    let readers: Vec<_> = (1..20).map(order).collect();
    clock.step.store(1_000_000, Ordering::SeqCst);
    let mut most = 0;
    while threads.run_one() {
        most = most.max(backfill.state.lock().orders.iter().filter(|order| order.encoded > 0).count());
    }
    assert_eq!(most, MAX_STARTED_BLOCKS);
    for (mut reader, selection) in readers {
        assert!(poll(&mut reader, &backfill, &selection, usize::MAX).is_ready(), "and all are made");
    }
}

/// The reader must return soon, because its connection may have other work.
#[test]
fn blocks_without_events_are_bounded_in_one_call() {
    let (batches, selection) = (many(40 * 256), selection("app=none"));
    let backfill = Arc::new(Backfill::<Deliveries>::new(1 << 20));
    let mut reader = Reader::new(batches, 0, at(version(1)), false);
    let offsets: Vec<u64> = std::iter::from_fn(|| {
        let is_done = reader.is_done();
        assert!(matches!(poll(&mut reader, &backfill, &selection, 100), Poll::Ready(Ok((None, 0)))));
        (!is_done).then(|| reader.reached().offset)
    })
    .collect();
    assert_eq!(offsets, [16 * 256, 32 * 256, 40 * 256]);
}

#[test]
fn an_event_that_does_not_fit_reports_its_size_and_stays() {
    let (batches, selection) = (many(3), selection(""));
    let backfill = Arc::new(Backfill::<Deliveries>::new(1 << 20));
    let mut reader = Reader::new(batches, 0, at(version(1)), false);
    let context = Context::from_waker(Waker::noop());
    let mut take = |size, must_fit| match reader.poll_take(&context, &backfill, &selection, &(), size, must_fit) {
        Poll::Ready(taken) => taken.map(|(_, events)| events),
        Poll::Pending => panic!("there are no threads"),
    };
    assert_eq!(take(0, true), Err(TooLarge(Some(1))));
    assert_eq!(take(0, false), Ok(1));
    assert_eq!(take(1, true), Ok(1));
    assert_eq!(take(5, true), Ok(1));
    assert_eq!(take(0, true), Ok(0), "there is nothing more");
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn a_reader_takes_the_events_of_a_replay_of_its_own(
        script in prop::collection::vec(
            prop::collection::vec((0_u8..4, prop::option::weighted(0.8, any::<bool>())), 0..5), 1..12),
        readers in prop::collection::vec((0_usize..12, 0_usize..12, 0_usize..3, 0_usize..20), 1..8),
        order in prop::collection::vec((0_usize..8, 1_usize..4), 0..60),
        bound in prop::sample::select(vec![0_usize, 1000, 1 << 20]),
        has_threads in any::<bool>(),
        step in prop::sample::select(vec![0_u64, 200_000, 1_000_000]),
    ) {
        let all = batches(&script);
        let selections = [selection(""), selection("app=web"), selection("app!=web")];
        let clock: Arc<Stepped> = Arc::default();
        clock.step.store(step, Ordering::SeqCst);
        let threads = BulkThreads::manual(clock);
        let backfill = Arc::new(Backfill::new(bound));
        if has_threads {
            backfill.give_threads(&threads);
        }
        let offsets: Vec<u64> = std::iter::once(0).chain(all.iter().scan(0, |end, batch| {
            *end += batch.changes.len() as u64;
            Some(*end)
        })).collect();
        let mut expected = Vec::new();
        let mut actual = Vec::new();
        for (from, to, selected, told) in readers {
            let (from, to) = (from.min(all.len()), to.min(all.len()));
            let (from, to) = (from.min(to), to.max(from));
            let (backlog, first) = (all[from..to].to_vec(), offsets[from]);
            let start = HistoryPosition { version: version(1 + 2 * from as u128), offset: first };
            let mut replay = Replay::new(backlog.clone(), first, start.clone());
            let selection = &selections[selected];
            let due = replayed(&mut replay, selection);
            let mut reader = Reader::new(backlog, first, start, false);
            // Some begin where others are in the middle of a block.
            let mut had = Vec::new();
            while had.len() < told.min(due.len()) {
                had.extend(take(&mut reader, &backfill, &threads, selection, 1));
            }
            expected.push((due, replay.reached()));
            actual.push((reader, selection, had));
        }
        let count = actual.len();
        let rest = (0..count).flat_map(|at| std::iter::repeat_n((at, 2), 80));
        for (at, max_size) in order.into_iter().chain(rest) {
            let (reader, selection, had) = &mut actual[at % count];
            had.extend(take(reader, &backfill, &threads, selection, max_size));
        }
        for ((due, reached), (reader, _, had)) in expected.into_iter().zip(actual) {
            prop_assert_eq!(had, due);
            prop_assert!(reader.is_done());
            prop_assert_eq!(reader.reached(), reached);
            prop_assert!(!reader.has_gap());
        }
        prop_assert!(backfill.bytes() <= bound || backfill.state.lock().order.len() == 1);
    }
}
