//! Internals of a group: its log, its list of parked readers, and their lock.

use std::task::Wake;

use bytes::Bytes;
use parking_lot::Mutex;

use super::*;
use crate::{
    model::{Batch, Cause, Change, Object},
    watch::{Broadcaster, BroadcasterConfig, Deliveries, FullChannelPolicy, QueueOptions, Retention, Subscribe},
};

/// A log has one mark for each event of each group.
#[test]
fn a_mark_is_no_larger_than_a_version_and_an_offset() {
    assert!(std::mem::size_of::<crate::watch::run::Mark>() <= 32);
}

fn broadcaster() -> Broadcaster<Deliveries> {
    Broadcaster::new(BroadcasterConfig::default(), ResourceVersion::decimal(1))
}

fn subscribe(broadcaster: &mut Broadcaster<Deliveries>, policy: FullChannelPolicy) -> Cursor<Deliveries> {
    let queue = QueueOptions { policy, length: 1 };
    broadcaster.subscribe(Subscribe {
        selection: Arc::default(),
        format: (),
        queue,
        client: crate::watch::Client::Watch,
        initial_events: false,
    })
}

fn publish(broadcaster: &mut Broadcaster<Deliveries>) {
    let before = broadcaster.version().clone();
    let version = before.next();
    let object = Object::from_json(Bytes::from_static(b"{}"), "a", version.clone()).unwrap();
    let change = Change {
        old: None,
        new: Some(Arc::new(object)),
        version: version.clone(),
        cause: Cause::Change,
        index_values: None,
    };
    broadcaster.publish(&[Batch { before, after: version, changes: vec![change], is_relist: false, is_open: false }]);
}

fn poll(cursor: &mut Cursor<Deliveries>, waker: &Waker) -> Poll<Taken<Deliveries>> {
    cursor.poll_take(&mut Context::from_waker(waker), usize::MAX)
}

#[test]
fn a_log_drops_events_that_all_have_read_or_none_will_read() {
    let mut broadcaster = broadcaster();
    let mut cursor = subscribe(&mut broadcaster, FullChannelPolicy::Replay);
    for _ in 0..1000 {
        publish(&mut broadcaster);
        assert!(poll(&mut cursor, Waker::noop()).is_ready());
        assert!(cursor.group.log.lock().runs.len() <= 8);
    }
    let mut slow = subscribe(&mut broadcaster, FullChannelPolicy::Replay);
    for _ in 0..1000 {
        publish(&mut broadcaster);
    }
    assert!((1000..=1008).contains(&slow.group.log.lock().runs.len()));
    for cursor in [&mut slow, &mut cursor] {
        assert!(matches!(poll(cursor, Waker::noop()), Poll::Ready(Taken::Frames(_))));
    }
    for _ in 0..1100 {
        publish(&mut broadcaster);
        assert!(poll(&mut cursor, Waker::noop()).is_ready());
        assert!(poll(&mut slow, Waker::noop()).is_ready());
    }
    assert!(cursor.group.log.lock().runs.len() <= 8, "also after a long backlog");
}

/// Also if the retention, and not a slow reader's position, bounds the log.
#[test]
fn a_log_that_was_long_is_short_again() {
    let retention = Retention { events: 1000, ..BroadcasterConfig::default().retention };
    let config = BroadcasterConfig { retention, ..BroadcasterConfig::default() };
    let mut broadcaster = Broadcaster::<Deliveries>::new(config, ResourceVersion::decimal(1));
    let mut cursor = subscribe(&mut broadcaster, FullChannelPolicy::Replay);
    for _ in 0..900 {
        publish(&mut broadcaster);
    }
    for _ in 0..2_000 {
        publish(&mut broadcaster);
        while poll(&mut cursor, Waker::noop()).is_ready() {}
    }
    let runs = cursor.group.log.lock().runs.len();
    assert!(runs <= 16, "{runs} runs are kept, and everybody has read everything");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_was_evicted_keeps_nothing_in_the_log() {
    let mut broadcaster = broadcaster();
    let mut evicted = subscribe(&mut broadcaster, FullChannelPolicy::Block);
    let mut reader = subscribe(&mut broadcaster, FullChannelPolicy::Replay);
    publish(&mut broadcaster);
    assert!(poll(&mut evicted, Waker::noop()).is_ready());
    publish(&mut broadcaster);
    broadcaster.ready().await;
    assert!(evicted.gauge().is_evicted());
    for _ in 0..100 {
        publish(&mut broadcaster);
        assert!(poll(&mut reader, Waker::noop()).is_ready());
    }
    assert!(evicted.group.log.lock().runs.len() <= 8);
}

#[test]
fn readers_that_come_park_and_go_leave_nothing_behind() {
    let mut broadcaster = broadcaster();
    let mut steady = subscribe(&mut broadcaster, FullChannelPolicy::Replay);
    assert!(poll(&mut steady, Waker::noop()).is_pending());
    for _ in 0..1000 {
        let mut visitor = subscribe(&mut broadcaster, FullChannelPolicy::Replay);
        assert!(poll(&mut visitor, Waker::noop()).is_pending());
    }
    assert!(steady.group.log.lock().parked_len() <= 8);
    drop(steady);
    for _ in 0..1000 {
        drop(subscribe(&mut broadcaster, FullChannelPolicy::Replay));
    }
    assert!(broadcaster.stats().groups.load(Ordering::Relaxed) <= 1);
}

/// Waker that owns another reader of the same group, whose lock is not reentrant.
struct Owner(Mutex<Option<Cursor<Deliveries>>>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().take());
    }
}

#[test]
fn wakers_are_woken_and_dropped_outside_of_the_lock() {
    let mut broadcaster = broadcaster();
    let owner = |broadcaster: &mut _| {
        Waker::from(Arc::new(Owner(Mutex::new(Some(subscribe(broadcaster, FullChannelPolicy::Replay))))))
    };
    let mut cursor = subscribe(&mut broadcaster, FullChannelPolicy::Replay);
    // Woken by an event.
    let waker = owner(&mut broadcaster);
    assert!(poll(&mut cursor, &waker).is_pending());
    drop(waker);
    publish(&mut broadcaster);
    assert!(poll(&mut cursor, Waker::noop()).is_ready());
    // Displaced by another.
    let waker = owner(&mut broadcaster);
    assert!(poll(&mut cursor, &waker).is_pending());
    drop(waker);
    assert!(poll(&mut cursor, Waker::noop()).is_pending());
    // Dropped with its reader.
    let mut other = subscribe(&mut broadcaster, FullChannelPolicy::Replay);
    let waker = owner(&mut broadcaster);
    assert!(poll(&mut other, &waker).is_pending());
    drop((waker, other));
    // Woken by the end.
    let waker = owner(&mut broadcaster);
    assert!(poll(&mut cursor, &waker).is_pending());
    drop((waker, broadcaster));
    assert!(poll(&mut cursor, Waker::noop()).is_ready());
    assert_eq!(cursor.stats.watchers.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn the_writer_is_woken_by_a_reader_outside_of_the_lock() {
    let mut broadcaster = broadcaster();
    let mut slow = subscribe(&mut broadcaster, FullChannelPolicy::Block);
    publish(&mut broadcaster);
    assert!(poll(&mut slow, Waker::noop()).is_ready());
    let owned = subscribe(&mut broadcaster, FullChannelPolicy::Replay);
    publish(&mut broadcaster);
    let waker = Waker::from(Arc::new(Owner(Mutex::new(Some(owned)))));
    let mut ready = Box::pin(broadcaster.ready());
    assert!(ready.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(poll(&mut slow, Waker::noop()).is_ready());
    assert!(ready.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}
