//! Readers of a past: each lane gets exactly what it selects after its start, under drawn batches and under schedules that Shuttle draws.

use std::{future::poll_fn, sync::atomic::AtomicU64, time::Duration};

use proptest::{collection::vec, prelude::*};
use shuttle::{
    future::block_on,
    rand::{Rng, thread_rng},
    thread,
};
use tokio::time::Instant;

use super::*;
use crate::{model::Transition, sync::explore};

/// Lane: the offset at which it began, and the offsets of the changes that it got, each with its transition.
#[derive(Debug, Default)]
struct Lane {
    selection: Arc<Selection>,
    start: u64,
    got: Vec<(u64, Transition)>,
}

/// Everything that is published, change by change.
#[derive(Debug, Default)]
struct Truth(Vec<Change>);

const BOUNDS: Retention = Retention { events: 40, size: 1 << 20, age: Duration::from_secs(300) };

// === impl Truth ===

impl Truth {
    fn of(batches: &[Arc<Batch>]) -> Self {
        Self(batches.iter().flat_map(|batch| batch.changes.clone()).collect())
    }

    /// Verifies that a lane has got everything up to an offset.
    fn verify(&self, lane: &Lane, up_to: u64) {
        let due: Vec<(u64, Transition)> = (0..)
            .zip(&self.0)
            .filter(|(offset, _)| (lane.start..up_to).contains(offset))
            .filter_map(|(offset, change)| Some((offset, lane.selection.transition(change)?)))
            .collect();
        assert_eq!(lane.got, due, "from {} to {up_to}", lane.start);
    }
}

fn past() -> Arc<Past> {
    let past = Past::new(BOUNDS);
    past.restart(History::new(BOUNDS, HistoryPosition { version: version(0), offset: 0 }), || {});
    Arc::new(past)
}

fn publish(past: &Past, batches: &[Arc<Batch>]) {
    for batch in batches {
        past.history().lock().record(Arc::clone(batch), Instant::now());
    }
    past.publish(batches);
}

/// Returns a selection that nothing routes to.
fn not(value: &str) -> Arc<Selection> {
    Arc::new(Selection { labels: LabelSelector::parse(&format!("app!={value}")).unwrap(), ..Selection::default() })
}

fn selections() -> [Arc<Selection>; 4] {
    [app("web"), app("db"), not("web"), everything()]
}

fn add(reader: &mut Reader<Lane>, selection: &Arc<Selection>, offset: u64) {
    if reader.is_joinable(selection, offset) {
        let lane = Lane { selection: Arc::clone(selection), start: offset, got: Vec::new() };
        reader.add(Arc::clone(selection), lane);
    }
}

/// Adds a batch to the lanes, and verifies its order, its versions, and the lasts.
fn take(reader: &mut Reader<Lane>, read: &SelectedBatch) {
    for (at, selected) in read.selected.iter().enumerate() {
        let later = &read.selected[at + 1..];
        assert!(later.first().is_none_or(|next| next.change >= selected.change), "in order");
        assert_eq!(selected.is_last, later.iter().all(|later| later.lane != selected.lane));
        let reached = read.reached(selected);
        let is_after = selected.is_last && !read.batch.is_open;
        assert_eq!(&reached.version, if is_after { &read.batch.after } else { &read.batch.before });
        let Some(lane) = reader.get_mut(selected.lane) else { panic!("a lane that was removed gets nothing") };
        lane.got.push((reached.offset - 1, selected.transition));
    }
}

/// A writer, and readers that join and leave at any time: none misses a change or a wake-up, and none is ahead of a bookmark.
fn schedule() {
    const CHANGES: usize = 5;
    let mut rng = thread_rng();
    let mut world = World::at(0);
    let apps = ["web", "db", "job"];
    let mut batches: Vec<Arc<Batch>> =
        (0..CHANGES).map(|_| Arc::new(world.one(["a", "b"][rng.gen_range(0..2)], apps[rng.gen_range(0..3)]))).collect();
    // Each selection has one of the last two.
    batches.extend(["db", "web"].map(|app| Arc::new(world.one("last", app))));
    let (past, truth) = (past(), Arc::new(Truth::of(&batches)));
    let (end, distributed) = (batches.len() as u64, Arc::new(AtomicU64::new(0)));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (past, truth, distributed) = (Arc::clone(&past), Arc::clone(&truth), Arc::clone(&distributed));
            let lanes: Vec<_> = selections().into_iter().filter(|_| rng.gen_ratio(1, 2)).collect();
            thread::spawn(move || {
                let mut reader = Reader::<Lane>::new(Arc::clone(&past), 0);
                let (mut left, mut rng) = (lanes, thread_rng());
                add(&mut reader, &app("web"), 0);
                while reader.offset() < end || !left.is_empty() {
                    let known = distributed.load(Ordering::SeqCst);
                    let is_there = reader.advance(known);
                    if is_there {
                        let at = reader.offset();
                        assert!(at >= known);
                        reader.iter_mut().for_each(|(_, lane)| truth.verify(lane, at));
                    }
                    if rng.gen_ratio(1, 2)
                        && let Some(selection) = left.pop()
                    {
                        let offset = past.head();
                        add(&mut reader, &selection, offset);
                    }
                    let polled = poll_fn(|cx| match reader.poll(cx) {
                        Poll::Pending if !left.is_empty() || reader.offset() == end => Poll::Ready(None),
                        polled => polled.map(Some),
                    });
                    match block_on(polled) {
                        Some(Read::Batch(batch)) => take(&mut reader, &batch),
                        Some(Read::More) | None => thread::yield_now(),
                        Some(Read::Stopped) => panic!("nothing was dropped"),
                    }
                }
                reader.iter_mut().for_each(|(_, lane)| truth.verify(lane, end));
            })
        })
        .collect();
    let mut left = &batches[..];
    while !left.is_empty() {
        let (cycle, rest) = left.split_at(rng.gen_range(1..=left.len().min(2)));
        publish(&past, cycle);
        distributed.store((batches.len() - rest.len()) as u64, Ordering::SeqCst);
        if rng.gen_ratio(1, 3) {
            past.notify();
        }
        left = rest;
    }
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn no_order_of_threads_loses_a_change_or_a_wake_up_of_a_reader() {
    explore(schedule);
}

/// Step of a history.
#[derive(Debug, Clone)]
enum Op {
    /// Publishes batches in one cycle, each of writes of an object with a label.
    Publish(Vec<Vec<(usize, usize)>>),
    Relist(Vec<(usize, usize)>),
    Poll,
    Advance,
    Add(usize, u64),
    Remove(usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    let writes = vec((0_usize..4, 0_usize..3), 1..4);
    prop_oneof![
        4 => vec(writes.clone(), 1..3).prop_map(Op::Publish),
        1 => vec((0_usize..4, 0_usize..3), 0..4).prop_map(Op::Relist),
        4 => Just(Op::Poll),
        2 => Just(Op::Advance),
        3 => (0_usize..4, 0_u64..4).prop_map(|(selection, behind)| Op::Add(selection, behind)),
        1 => (0_usize..4).prop_map(Op::Remove),
    ]
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn each_lane_gets_what_it_selects_after_its_start(ops in vec(any_op(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build().unwrap();
        let _entered = runtime.enter();
        let (past, mut world, mut all) = (past(), World::at(0), Vec::<Arc<Batch>>::new());
        let (mut reader, mut ends) = (Reader::<Lane>::new(Arc::clone(&past), 0), vec![0]);
        let mut relists: Vec<HistoryPosition> = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        for op in ops {
            match op {
                Op::Publish(cycle) => {
                    let put = |world: &mut World, writes: Vec<(usize, usize)>| {
                        let app = |app| ["web", "db", "job"][app];
                        Arc::new(world.batch(|world| writes.into_iter().map(|(name, of)| world.put(["a", "b", "c", "d"][name], app(of))).collect()))
                    };
                    let batches: Vec<_> = cycle.into_iter().map(|writes| put(&mut world, writes)).collect();
                    publish(&past, &batches);
                    for batch in batches {
                        ends.push(ends.last().unwrap() + batch.changes.len() as u64);
                        all.push(batch);
                    }
                }
                Op::Relist(writes) => {
                    let mut batch = world.batch(|world| writes.into_iter().map(|(name, of)| world.put(["a", "b", "c", "d"][name], ["web", "db", "job"][of])).collect());
                    world.version += 1;
                    (batch.after, batch.is_relist) = (version(world.version), true);
                    relists.push(HistoryPosition { version: batch.after.clone(), offset: past.head() });
                    let batch = Arc::new(batch);
                    publish(&past, &[Arc::clone(&batch)]);
                    ends.push(past.head());
                    all.push(batch);
                }
                Op::Poll => match reader.poll(&mut cx) {
                    Poll::Pending | Poll::Ready(Read::More) => {}
                    Poll::Ready(Read::Batch(read)) => {
                        take(&mut reader, &read);
                        let before = relists.iter().rev().find(|relist| relist.offset <= read.first);
                        prop_assert_eq!(read.last_relist.as_ref(), before);
                        let truth = Truth::of(&all);
                        reader.iter_mut().for_each(|(_, lane)| truth.verify(lane, read.first + read.batch.changes.len() as u64));
                    }
                    Poll::Ready(Read::Stopped) => {
                        prop_assert!(past.history().lock().oldest_position().offset > reader.offset(), "the history has the rest");
                        reader = Reader::new(Arc::clone(&past), past.head());
                    }
                },
                Op::Advance => {
                    let truth = Truth::of(&all);
                    if reader.advance(past.head()) {
                        prop_assert_eq!(reader.offset(), past.head());
                        let head = past.head();
                        reader.iter_mut().for_each(|(_, lane)| truth.verify(lane, head));
                    }
                }
                Op::Add(selection, behind) => {
                    let offset = ends[ends.len().saturating_sub(1 + behind as usize)];
                    add(&mut reader, &selections()[selection], offset);
                }
                Op::Remove(at) => {
                    let key = reader.iter_mut().map(|(key, _)| key).nth(at);
                    key.map(|key| reader.remove(key));
                }
            }
        }
    }
}

/// The writer evaluates for a reader of few selections, and wakes it for what it selects alone.
#[tokio::test(start_paused = true)]
async fn a_reader_is_woken_by_what_it_selects() {
    let (past, mut world) = (past(), World::at(0));
    for (selection, others) in [(app("web"), "db"), (not("db"), "db")] {
        let mut reader = Reader::new(Arc::clone(&past), past.head());
        add(&mut reader, &selection, past.head());
        let flag: Arc<Flag> = Arc::default();
        let waker = Waker::from(Arc::clone(&flag));
        let mut cx = Context::from_waker(&waker);
        assert!(reader.poll(&mut cx).is_pending());
        publish(&past, &[Arc::new(world.one(others, others)), Arc::new(world.one(others, others))]);
        assert!(!flag.0.load(Ordering::SeqCst) && reader.poll(&mut cx).is_pending());
        assert_eq!(reader.gauge().lag(), 0);
        publish(&past, &[Arc::new(world.one(others, others)), Arc::new(world.one("b", "web"))]);
        assert!(flag.0.load(Ordering::SeqCst));
        assert!(reader.gauge().lag() > 0, "it has not read yet");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(reader.gauge().waiting_since().map(|at| at.elapsed()), Some(Duration::from_secs(3)));
        let Poll::Ready(Read::Batch(read)) = reader.poll(&mut cx) else { panic!("there is something to read") };
        assert_eq!(read.first, past.head() - 1);
        assert!(reader.poll(&mut cx).is_pending());
        drop(reader);
        publish(&past, &[Arc::new(world.one("b", "web"))]);
    }
}

/// A batch that is too large for all lanes together is left to each of them.
#[tokio::test(start_paused = true)]
async fn a_reader_stops_before_a_large_batch_and_at_the_end() {
    let (past, mut world) = (past(), World::at(0));
    let wide = Retention { events: 10_000, ..BOUNDS };
    past.restart(History::new(wide, HistoryPosition { version: version(0), offset: 0 }), || {});
    let mut reader = Reader::new(Arc::clone(&past), 0);
    add(&mut reader, &everything(), 0);
    let mut cx = Context::from_waker(Waker::noop());
    let large = world.batch(|world| (0..1025).map(|_| world.put("a", "web")).collect());
    publish(&past, &[Arc::new(world.one("a", "web")), Arc::new(large)]);
    assert!(matches!(reader.poll(&mut cx), Poll::Ready(Read::Batch(_))));
    assert!(matches!(reader.poll(&mut cx), Poll::Ready(Read::Stopped)));
    assert_eq!(reader.offset(), 1);
    let mut reader = Reader::new(Arc::clone(&past), past.head());
    add(&mut reader, &everything(), past.head());
    assert!(reader.poll(&mut cx).is_pending());
    past.end();
    assert!(matches!(reader.poll(&mut cx), Poll::Ready(Read::Stopped)));
}
