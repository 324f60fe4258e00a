//! apimachinery's tests of its fakes, on a paused clock, and those of the source and the server.

mod source;

use std::{sync::Arc, time::Duration};

use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_test::{assert_pending, assert_ready_eq};

use super::*;
use crate::{
    cache::SourceError,
    model::{Event, EventType, Object, ResourceVersion},
};

fn object(name: &str) -> Arc<Object> {
    Arc::new(Object::from_json("{}", name, ResourceVersion::decimal(1)).unwrap())
}

fn broken() -> SourceError {
    SourceError::Broken("reset".to_owned())
}

/// Returns the five events of `TestFake`.
fn table() -> Vec<FakeItem> {
    vec![
        Ok(Event::Added(object("foo"))),
        Ok(Event::Modified(object("qux"))),
        Ok(Event::Modified(object("bar"))),
        Ok(Event::Deleted(object("bar"))),
        Err(broken()),
    ]
}

async fn send_table(watcher: &FakeWatcher) -> Result<(), Stopped> {
    watcher.add(object("foo")).await?;
    watcher.action(EventType::Modified, object("qux")).await?;
    watcher.modify(object("bar")).await?;
    watcher.delete(object("bar")).await?;
    watcher.error(broken()).await
}

/// `TestFake`.
#[tokio::test(start_paused = true)]
async fn a_fake_watch_has_the_events_in_order_and_ends_at_the_stop() {
    for size in [0, 1, 8] {
        let watcher = FakeWatcher::with_size(size);
        let (sender, watch) = (watcher.clone(), watcher.watch());
        let sending: JoinHandle<Result<(), Stopped>> = tokio::spawn(async move {
            send_table(&sender).await?;
            sender.stop();
            sender.stop();
            Ok(())
        });
        assert_eq!(watch.collect::<Vec<_>>().await, table(), "{size} slots");
        assert_eq!(sending.await.unwrap(), Ok(()));
        assert!(watcher.is_stopped());
    }
}

#[test]
fn a_call_waits_until_its_event_was_received() {
    let watcher = FakeWatcher::new();
    let mut watch = tokio_test::task::spawn(watcher.watch());
    let mut first = tokio_test::task::spawn(watcher.add(object("first")));
    let mut second = tokio_test::task::spawn(watcher.add(object("second")));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_ready_eq!(watch.poll_next(), Some(Ok(Event::Added(object("first")))));
    assert_ready_eq!(first.poll(), Ok(()));
    assert_pending!(second.poll());
    assert_ready_eq!(watch.poll_next(), Some(Ok(Event::Added(object("second")))));
    assert_ready_eq!(second.poll(), Ok(()));

    let mut abandoned = tokio_test::task::spawn(watcher.add(object("abandoned")));
    assert_pending!(abandoned.poll());
    drop(abandoned);
    assert_pending!(watch.poll_next());
}

#[test]
fn a_call_with_a_slot_does_not_wait_and_its_event_outlives_the_stop() {
    let watcher = FakeWatcher::with_size(1);
    let mut watch = tokio_test::task::spawn(watcher.watch());
    assert_ready_eq!(tokio_test::task::spawn(watcher.add(object("first"))).poll(), Ok(()));
    let mut second = tokio_test::task::spawn(watcher.add(object("second")));
    assert_pending!(second.poll());
    watcher.stop();
    assert_ready_eq!(second.poll(), Err(Stopped));
    assert_ready_eq!(watch.poll_next(), Some(Ok(Event::Added(object("first")))));
    assert_ready_eq!(watch.poll_next(), None);
}

/// Upstream, the call panics.
#[tokio::test(start_paused = true)]
async fn a_call_after_a_stop_fails_and_so_does_one_that_waits() {
    let watcher = FakeWatcher::new();
    let watch = watcher.watch();
    let waiting = tokio::spawn({
        let watcher = watcher.clone();
        async move { watcher.add(object("a")).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    watcher.stop();
    assert_eq!(waiting.await.unwrap(), Err(Stopped));
    assert_eq!(watcher.bookmark(ResourceVersion::decimal(5)).await, Err(Stopped));
    assert_eq!(watch.collect::<Vec<_>>().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_reset_makes_a_new_channel() {
    let watcher = FakeWatcher::new();
    let before = watcher.watch();
    watcher.stop();
    watcher.reset();
    assert!(!watcher.is_stopped());
    assert_eq!(before.collect::<Vec<_>>().await, []);
    let mut watch = watcher.watch();
    assert_eq!(tokio::join!(watcher.add(object("a")), watch.next()), (Ok(()), Some(Ok(Event::Added(object("a"))))));
    drop(watch);
    assert!(watcher.is_stopped(), "a reader that goes stops the watch");
    assert_eq!(watcher.add(object("b")).await, Err(Stopped));
}

/// `TestFilterStop`: a filter of a watch is an adaptor of the stream, without a queue or a task.
#[tokio::test(start_paused = true)]
async fn a_filtered_watch_that_is_dropped_stops_the_watch_below() {
    let watcher = FakeWatcher::new();
    let is_served =
        |item: &Result<Event, SourceError>| !matches!(item, Ok(Event::Added(object)) if object.key().name() == "b");
    let mut filtered = watcher.watch().filter(is_served);
    let sender = watcher.clone();
    let sending: JoinHandle<Result<(), Stopped>> = tokio::spawn(async move {
        for name in ["b", "foo", "b", "bar"] {
            sender.add(object(name)).await?;
        }
        Ok(())
    });
    assert_eq!(filtered.next().await, Some(Ok(Event::Added(object("foo")))));
    drop(filtered);
    assert!(watcher.is_stopped());
    assert_eq!(sending.await.unwrap(), Err(Stopped));
}

/// `TestRaceFreeFake`.
#[tokio::test(start_paused = true)]
async fn a_race_free_fake_watch_has_the_events_in_order_also_after_the_stop() {
    let watcher = RaceFreeFakeWatcher::new();
    let watch = watcher.watch();
    watcher.add(object("foo"));
    watcher.action(EventType::Modified, object("qux"));
    watcher.modify(object("bar"));
    watcher.delete(object("bar"));
    watcher.error(broken());
    watcher.stop();
    watcher.stop();
    assert!(watcher.is_stopped());
    watcher.add(object("ignored"));
    assert_eq!(watch.collect::<Vec<_>>().await, table());

    watcher.reset();
    assert!(!watcher.is_stopped());
    let mut watch = watcher.watch();
    watcher.bookmark(ResourceVersion::decimal(5));
    assert_eq!(watch.next().await, Some(Ok(Event::Bookmark(ResourceVersion::decimal(5)))));
    drop(watch);
    assert!(watcher.is_stopped());
    watcher.add(object("ignored"));
}

#[test]
#[should_panic(expected = "channel full")]
fn a_race_free_fake_watch_that_is_not_read_panics() {
    let watcher = RaceFreeFakeWatcher::new();
    for _ in 0..DEFAULT_CHAN_SIZE {
        watcher.add(object("foo"));
    }
    watcher.add(object("foo"));
}
