//! Tests of the public interface: the guarantees of a Broadcaster and its cursors, with small worlds of objects to publish.

mod block;
mod blocks;
mod budget;
#[cfg(feature = "cel")]
mod ends;
mod expressions;
mod merging;
mod panics;
mod policies;
pub(crate) mod property;
mod queues;
mod reader;
mod stress;
mod text;
mod threads;
mod upstream;
mod versions;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::Bytes;

use self::text::{Letter, Text};
use super::*;
use crate::model::{
    Batch, Cause, Change, EventType, HistoryPosition, IndexFunc, IndexMatch, LabelSelector, Object, ObjectKey,
    ObjectParts, ResourceVersion, Selection,
};

/// Objects of one resource, each with one label `app`, and the version of the last change.
struct World {
    version: u128,
    objects: BTreeMap<String, Arc<Object>>,
}

impl World {
    fn at(version: u128) -> Self {
        Self { version, objects: BTreeMap::new() }
    }

    /// Creates or changes an object.
    fn put(&mut self, name: &str, app: &str) -> Change {
        self.put_sized(name, app, 0)
    }

    fn put_sized(&mut self, name: &str, app: &str, body: usize) -> Change {
        self.change(name, object(name, app, self.version + 1, body))
    }

    /// Creates or changes an object to a state of the next version.
    fn change(&mut self, name: &str, new: Arc<Object>) -> Change {
        self.version += 1;
        let old = self.objects.insert(name.to_owned(), Arc::clone(&new));
        Change { old, new: Some(new), version: version(self.version), cause: Cause::Change, index_values: None }
    }

    fn delete(&mut self, name: &str) -> Change {
        self.version += 1;
        let old = self.objects.remove(name);
        assert!(old.is_some(), "{name} exists");
        Change { old, new: None, version: version(self.version), cause: Cause::Change, index_values: None }
    }

    /// Returns a batch of several changes.
    fn batch(&mut self, change: impl FnOnce(&mut Self) -> Vec<Change>) -> Batch {
        let before = version(self.version);
        let changes = change(self);
        Batch { before, after: version(self.version), changes, is_relist: false, is_open: false }
    }

    /// Returns a batch of one change.
    fn one(&mut self, name: &str, app: &str) -> Batch {
        self.batch(|world| vec![world.put(name, app)])
    }

    /// Returns `count` batches of one change of the same object.
    fn several(&mut self, count: usize) -> Vec<Batch> {
        (0..count).map(|_| self.one("a", "web")).collect()
    }
}

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn object(name: &str, app: &str, number: u128, body: usize) -> Arc<Object> {
    Arc::new(Object::new(ObjectParts {
        key: ObjectKey::new("shop", name).unwrap(),
        uid: String::new(),
        version: version(number),
        labels: [("app".to_owned(), app.to_owned())].into(),
        api_version: String::new(),
        kind: String::new(),
        media_type: "application/octet-stream",
        body: Bytes::from(vec![b'.'; body]),
    }))
}

fn everything() -> Arc<Selection> {
    Arc::default()
}

/// Returns a selection of the objects whose label `app` has this value.
fn app(value: &str) -> Arc<Selection> {
    Arc::new(Selection { labels: LabelSelector::parse(&format!("app={value}")).unwrap(), ..Selection::default() })
}

const fn queue(policy: FullChannelPolicy, length: usize) -> QueueOptions {
    QueueOptions { policy, length }
}

/// Returns the subscription of a client that is live from the start.
fn live<F: Frame>(selection: Arc<Selection>, queue: QueueOptions) -> Subscribe<F>
where
    F::Format: Default,
{
    Subscribe { selection, format: F::Format::default(), queue, client: Client::Watch, initial_events: false }
}

fn broadcaster<F: Frame>(at: u128) -> Broadcaster<F> {
    Broadcaster::new(BroadcasterConfig::default(), version(at))
}

/// Returns the end of a cursor whose next events the history does not have any more.
fn expired(oldest: u128) -> Item {
    Ended(End::Expired { oldest: version(oldest) })
}

/// Begins a new history at a version.
fn rewrite<F: Frame>(broadcaster: &mut Broadcaster<F>, number: u128) {
    let offset = broadcaster.reached().offset + 1;
    let begin = HistoryPosition { version: version(number), offset };
    let history = History::new(BroadcasterConfig::default().retention, begin);
    broadcaster.start_new_history(&End::HistoryRewritten, history, || {});
}

/// Result of a cursor, event by event.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    /// Type, name and resume version.
    Event(EventType, String, u128),
    Dropped(u64, u128),
    Ended(End),
}

use Item::{Dropped, Ended};

fn event(event_type: EventType, name: &str, version: u128) -> Item {
    Item::Event(event_type, name.to_owned(), version)
}

/// Returns the events of [`World::several`] at these versions.
fn modified(versions: impl IntoIterator<Item = u128>) -> Vec<Item> {
    let event_type = |version| if version == 1 { EventType::Added } else { EventType::Modified };
    versions.into_iter().map(|version| event(event_type(version), "a", version)).collect()
}

fn items(taken: Taken<Deliveries>) -> Vec<Item> {
    let item =
        |delivery: &Delivery| event(delivery.event_type, delivery.object.key().name(), delivery.version.number());
    match taken {
        Taken::Frames(frames) => frames.iter().flat_map(Deliveries::as_slice).map(item).collect(),
        Taken::Dropped { count, after } => vec![Dropped(count, after.number())],
        Taken::Ended(end) => vec![Ended(end)],
    }
}

/// Takes once; returns nothing if there is nothing yet.
fn take(cursor: &mut Cursor<Deliveries>, max_size: usize) -> Vec<Item> {
    match cursor.poll_take(&mut Context::from_waker(Waker::noop()), max_size) {
        Poll::Ready(taken) => items(taken),
        Poll::Pending => Vec::new(),
    }
}

/// Takes until there is nothing more.
fn drain(cursor: &mut Cursor<Deliveries>) -> Vec<Item> {
    let mut all = Vec::new();
    loop {
        let taken = take(cursor, usize::MAX);
        let is_over = taken.is_empty() || matches!(taken[..], [Ended(_)]);
        all.extend(taken);
        if is_over {
            return all;
        }
    }
}

/// Takes and waits until the end.
async fn read_to_end(mut cursor: Cursor<Deliveries>, max_size: usize) -> Vec<Item> {
    let mut all = Vec::new();
    loop {
        all.extend(items(cursor.take(max_size).await));
        if let Some(Ended(_)) = all.last() {
            return all;
        }
    }
}

/// Waker that records if it was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Flag {
    fn is_set(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}
