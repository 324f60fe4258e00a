//! Model of the order between threads: the real writer, bulk thread and readers, under schedules that Shuttle draws.
//!
//! ```text
//!   main: Writer ── publish ──▶ snapshot, history, ports, distributed ◀── readers: three of a part, two of everything
//!                                                                        (join, take, bookmark, resume), one that waits for a version
//! ```
//!
//! A schedule switches threads at each lock and atomic of [`crate::sync`]. The number of changes and those that a reader selects
//! are drawn with it. Verified in each schedule:
//!
//! - a reader gets exactly the changes of its selection after its snapshot or its resume point, once and in order;
//! - no bookmark is above a change that is still to come, none is below the one before;
//! - no watch shows a change before the snapshot does;
//! - every waiting thread is woken: Shuttle fails a schedule in which every thread waits;
//! - nothing is left after the readers have ended.
//!
//! Not covered: weaker memory orderings than sequential consistency, the queue of commands (tokio's), and full queues, which have a
//! model of their own (`watch/tests/queues.rs`).

use std::ops::RangeInclusive;

use futures_util::future::poll_fn;
use shuttle::{
    future::block_on,
    rand::{Rng, thread_rng},
    thread,
};

use super::*;
use crate::{
    model::{LabelSelector, ObjectParts},
    sync::explore,
};

/// Changes of one schedule: true for each one that the selections include, always for the last one.
#[derive(Debug)]
struct Changes(Vec<bool>);

/// Client that checks the events that it gets.
struct Reader {
    handle: InformerHandle<Deliveries>,
    changes: Arc<Changes>,
    selection: Arc<Selection>,
    /// Last version of an event or of joining, and of a bookmark.
    seen: u128,
    bookmark: u128,
}

const CHANGES: RangeInclusive<usize> = 3..=6;

// === impl Changes ===

impl Changes {
    fn draw() -> Self {
        let mut rng = thread_rng();
        let count = rng.gen_range(CHANGES);
        Self((1..=count).map(|at| at == count || rng.gen_ratio(2, 3)).collect())
    }

    fn last(&self) -> u128 {
        self.0.len() as u128
    }

    /// Returns the first change of the selection after a version.
    fn next(&self, after: u128, selects_all: bool) -> Option<u128> {
        (after + 1..=self.last()).find(|version| selects_all || self.0[*version as usize - 1])
    }

    fn event(&self, number: u128) -> Event {
        Event::Modified(if self.0[number as usize - 1] {
            labelled("a", "web", number)
        } else {
            labelled("b", "db", number)
        })
    }
}

// === impl Reader ===

impl Reader {
    fn subscribe(&self) -> Subscribe<Deliveries> {
        Subscribe { selection: Arc::clone(&self.selection), ..replay() }
    }

    /// Follows the changes to the last one, and resumes once on the way if a version to leave at is given.
    async fn follow(mut self, leaves_at: Option<u128>) {
        let joined = self.handle.join(&Start::Now, self.subscribe()).unwrap();
        self.seen = joined.snapshot.version().number();
        self.bookmark = self.seen;
        let mut cursor = joined.cursor;
        self.read(&mut cursor, leaves_at.unwrap_or(u128::MAX)).await;
        if leaves_at.is_none() {
            return;
        }
        let reached = cursor.reached();
        drop(cursor);
        let mut cursor = if thread_rng().r#gen() {
            self.handle.join(&Start::After(reached.version), self.subscribe()).unwrap().cursor
        } else {
            self.handle.cursor_at(self.subscribe(), reached, false)
        };
        self.read(&mut cursor, u128::MAX).await;
    }

    /// Takes events until all have come, or one of this version.
    async fn read(&mut self, cursor: &mut Cursor<Deliveries>, until: u128) {
        while self.seen < self.changes.last().min(until) {
            let taken = poll_fn(|cx| {
                self.take_bookmark(cursor);
                let polled = cursor.poll_take(cx, usize::MAX);
                if polled.is_pending() {
                    self.take_bookmark(cursor);
                }
                polled
            });
            match taken.await {
                Taken::Frames(frames) => frames.iter().flat_map(Deliveries::as_slice).for_each(|event| self.see(event)),
                other => panic!("taken: {other:?}"),
            }
        }
    }

    fn see(&mut self, delivery: &Delivery) {
        let version = delivery.version.number();
        let next = self.changes.next(self.seen, self.selection.selects_all());
        assert_eq!(Some(version), next, "after {}: {:?}", self.seen, self.changes);
        assert!(version > self.bookmark, "{version} comes after the bookmark {}", self.bookmark);
        let snapshot = self.handle.snapshot().unwrap().version().number();
        assert!(version <= snapshot, "a watch has {version}, the snapshot {snapshot}");
        self.seen = version;
    }

    /// Takes a bookmark as the body of a watch does.
    fn take_bookmark(&mut self, cursor: &mut Cursor<Deliveries>) {
        let distributed = self.handle.distributed();
        if !cursor.advance_at_head(distributed.as_deref()) {
            return;
        }
        let version = cursor.version().number();
        let next = self.changes.next(self.seen, self.selection.selects_all());
        assert!(next.is_none_or(|next| version < next), "a bookmark at {version}, and {next:?} is still to come");
        assert!(version >= self.bookmark, "a bookmark at {version} after one at {}", self.bookmark);
        self.bookmark = version;
    }
}

fn labelled(name: &str, app: &str, number: u128) -> Arc<Object> {
    Arc::new(Object::new(ObjectParts {
        key: ObjectKey::new("shop", name).unwrap(),
        uid: String::new(),
        version: version(number),
        labels: [("app".to_owned(), app.to_owned())].into(),
        api_version: String::new(),
        kind: String::new(),
        media_type: "application/json",
        body: Bytes::from_static(b"{}"),
    }))
}

/// Returns a selection of the same objects that nothing routes to, and that is equal to no other.
fn not_db(other: &str) -> Arc<Selection> {
    let labels = LabelSelector::parse(&format!("app notin (db,{other})")).unwrap();
    Arc::new(Selection { labels, ..Selection::default() })
}

/// Runs one schedule.
fn schedule() {
    let changes = Arc::new(Changes::draw());
    let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(5));
    let (informer, handle) = Informer::new(fifo, health, config());
    let Informer { mut commands, mut writer, .. } = informer;
    let first = vec![labelled("a", "web", 0), labelled("b", "db", 0)];
    writer.apply(vec![Delta::Replace(List::new(first, version(0)))]);

    let mut waiting = Vec::new();
    for selection in [not_db("x"), not_db("x"), not_db("y"), Arc::default(), Arc::default()] {
        let (handle, changes) = (handle.clone(), Arc::clone(&changes));
        let leaves_at = thread_rng().r#gen::<bool>().then(|| thread_rng().gen_range(1..=changes.last()));
        let reader = Reader { handle, changes, selection, seen: 0, bookmark: 0 };
        waiting.push(thread::spawn(move || block_on(reader.follow(leaves_at))));
    }
    let last = changes.last();
    waiting.push(thread::spawn(move || {
        for number in 1..=last {
            block_on(handle.wait_for(number, |snapshot| snapshot.version().number() >= number));
        }
    }));

    let mut numbers = 1..=last;
    while !numbers.is_empty() {
        while let Ok(command) = commands.try_recv() {
            writer.handle(command);
        }
        let count = thread_rng().gen_range(1..=2);
        let deltas = numbers.by_ref().take(count).map(|number| Delta::event(changes.event(number))).collect();
        writer.apply(deltas);
    }
    // Runs until the last handle is dropped.
    block_on(async {
        while let Some(command) = commands.recv().await {
            writer.handle(command);
        }
    });
    for waiting in waiting {
        waiting.join().unwrap();
    }
    writer.sweep();
    let stats = Arc::clone(writer.broadcaster.stats());
    let left = [&stats.watchers, &stats.groups].map(|left| left.load(Ordering::Relaxed));
    assert_eq!(left, [0, 0], "watchers and their kinds are left");
}

/// 500 schedules of each kind, or `INFORMERD_MODEL_SCHEDULES`; always the same, or those of `INFORMERD_CHECKER_SEED`.
#[test]
fn no_order_of_threads_breaks_a_watch() {
    explore(schedule);
}
