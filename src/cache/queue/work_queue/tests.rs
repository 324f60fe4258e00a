//! Work queue: client-go's tests of `util/workqueue` and controller-runtime's of its priority queue, on a paused clock, and what
//! they do not test.

mod limiters;
mod model;
mod priorities;

use std::collections::BTreeMap;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{advance, sleep},
};
use tokio_test::{assert_pending, assert_ready, task};

use super::*;
use crate::sync::explore;

const MILLI: Duration = Duration::from_millis(1);

/// Hands out the next key, which must be ready.
fn take<K: WorkKey>(queue: &WorkQueue<K>) -> WorkItem<K> {
    queue.get().now_or_never().expect("a key is ready").expect("the queue is open")
}

/// Hands out a key and ends its processing.
fn process<K: WorkKey>(queue: &WorkQueue<K>) -> K {
    let item = take(queue);
    let key = item.key().clone();
    item.done();
    key
}

fn add<K: WorkKey>(queue: &WorkQueue<K>, key: K) {
    queue.try_add(key, AddOptions::default()).unwrap();
}

fn add_after<K: WorkKey>(queue: &WorkQueue<K>, key: K, after: Duration) {
    queue.try_add(key, AddOptions { after, ..AddOptions::default() }).unwrap();
}

fn add_at<K: WorkKey>(queue: &WorkQueue<K>, key: K, priority: i32) {
    queue.try_add(key, AddOptions { priority, ..AddOptions::default() }).unwrap();
}

/// client-go: `TestBasic`, `TestAddWhileProcessing`. No key is in processing twice at once, and each one that was added is processed
/// after that.
#[tokio::test(start_paused = true)]
async fn every_added_key_is_processed_after_its_addition_and_by_one_worker_at_a_time() {
    for is_drained in [false, true] {
        let queue = WorkQueue::default();
        let added = Arc::new(Mutex::new(BTreeMap::<u32, u32>::new()));
        let mut producers = JoinSet::new();
        for key in 0..50 {
            let (queue, added) = (queue.clone(), Arc::clone(&added));
            producers.spawn(async move {
                for number in 1..=50 {
                    added.lock().insert(key, number);
                    queue.add(key).await;
                    sleep(MILLI).await;
                }
            });
        }
        let (running, seen) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(BTreeMap::new())));
        let mut workers = JoinSet::new();
        for _ in 0..10 {
            let (queue, added) = (queue.clone(), Arc::clone(&added));
            let (running, seen) = (Arc::clone(&running), Arc::clone(&seen));
            workers.spawn(async move {
                while let Some(item) = queue.get().await {
                    let key = *item.key();
                    assert!(!running.lock().contains(&key), "in processing twice");
                    running.lock().push(key);
                    seen.lock().insert(key, added.lock()[&key]);
                    sleep(3 * MILLI).await;
                    running.lock().retain(|running| *running != key);
                    item.done();
                }
            });
        }
        while let Some(producer) = producers.join_next().await {
            producer.unwrap();
        }
        if is_drained {
            queue.shut_down_with_drain().await;
            assert!(running.lock().is_empty());
        } else {
            queue.shut_down();
        }
        queue.add(1000).await;
        while let Some(worker) = workers.join_next().await {
            worker.unwrap();
        }
        assert!(queue.is_empty() && queue.is_shutting_down());
        assert_eq!(*seen.lock(), *added.lock(), "the last addition of each was processed, and none after the end");
    }
}

/// client-go: `TestLen`; controller-runtime: "doesn't include non-ready items in `Len()`".
#[tokio::test(start_paused = true)]
async fn the_length_counts_the_keys_that_are_ready_once() {
    let queue = WorkQueue::default();
    for (key, length) in [("foo", 1), ("bar", 2), ("foo", 2)] {
        add(&queue, key);
        assert_eq!(queue.len(), length);
    }
    add_after(&queue, "baz", MILLI);
    assert_eq!((queue.len(), queue.stats().delayed), (2, 1));
    advance(MILLI).await;
    assert_eq!((queue.len(), queue.stats().delayed), (3, 0));
}

/// client-go: `TestReinsert`, `TestCollapse`, `TestCollapseWhileProcessing`; controller-runtime: "returns an item as soon as its
/// unlocked", "enqueues a locked item", "de-duplicates items", "doesn't return an item that is currently locked".
#[tokio::test(start_paused = true)]
async fn a_key_added_while_it_is_in_processing_is_handed_out_once_after_that() {
    let queue = WorkQueue::default();
    add(&queue, "foo");
    add(&queue, "foo");
    let item = take(&queue);
    let mut other = task::spawn(queue.get());
    assert_pending!(other.poll());
    add(&queue, "foo");
    add(&queue, "foo");
    assert_pending!(other.poll(), "it is in processing");
    assert_eq!((queue.len(), queue.stats().depth), (0, 1));
    item.done();
    assert!(other.is_woken());
    assert_ready!(other.poll()).unwrap().done();
    assert_eq!(queue.stats(), WorkQueueStats { adds: 2, ..WorkQueueStats::default() });
}

/// client-go: `TestQueueDrainageUsingShutDownWithDrain`, `TestNoQueueDrainageUsingShutDown`,
/// `TestForceQueueShutdownUsingShutDown`.
#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_every_key_and_a_shutdown_for_none() {
    let queue = WorkQueue::default();
    for key in ["foo", "bar", "baz"] {
        add(&queue, key);
    }
    let (foo, bar) = (take(&queue), take(&queue));
    queue.shut_down();
    let mut drain = task::spawn(queue.shut_down_with_drain());
    assert_pending!(drain.poll());
    foo.done();
    bar.done();
    assert_pending!(drain.poll(), "upstream waits for those in processing alone");
    assert_eq!(process(&queue), "baz");
    assert!(drain.is_woken());
    assert_ready!(drain.poll());
    assert!(queue.get().await.is_none());
    // The program may stop to wait.
    add(&queue, "ignored");
    drop(queue.shut_down_with_drain());
}

/// client-go: `TestQueueDrainageUsingShutDownWithDrainWithDirtyItem`.
#[tokio::test(start_paused = true)]
async fn a_key_added_while_it_was_in_processing_is_drained_too() {
    let queue = WorkQueue::default();
    add(&queue, "foo");
    let item = take(&queue);
    add(&queue, "foo");
    let mut drain = task::spawn(queue.shut_down_with_drain());
    assert_pending!(drain.poll());
    assert!(queue.get().await.is_none(), "it is in processing");
    item.done();
    assert_pending!(drain.poll());
    assert_eq!(process(&queue), "foo");
    assert_ready!(drain.poll());
    assert!(queue.get().await.is_none());
}

/// client-go: `TestGarbageCollection`.
#[test]
fn a_key_that_was_processed_is_not_kept() {
    let queue = WorkQueue::default();
    let key = Arc::new("foo");
    add(&queue, Arc::clone(&key));
    add_after(&queue, Arc::clone(&key), MILLI);
    queue.try_add(Arc::clone(&key), AddOptions { is_rate_limited: true, ..AddOptions::default() }).unwrap();
    queue.forget(&key);
    drop(process(&queue));
    assert_eq!(Arc::strong_count(&key), 1);
}

/// client-go: `TestSimpleQueue`, `TestDeduping`; controller-runtime: "retains the lowest after duration".
#[tokio::test(start_paused = true)]
async fn a_delayed_key_is_ready_once_at_the_end_of_its_shortest_delay() {
    let queue = WorkQueue::default();
    for delays in [[50, 70], [70, 50]] {
        for delay in delays {
            add_after(&queue, "foo", delay * MILLI);
        }
        advance(49 * MILLI).await;
        assert_eq!(queue.len(), 0);
        advance(MILLI).await;
        assert_eq!(process(&queue), "foo");
        advance(100 * MILLI).await;
        assert_eq!(queue.len(), 0, "it was added once");
    }
    // An addition ends the delay, as in controller-runtime's queue; client-go's hands the key out twice.
    add_after(&queue, "foo", 50 * MILLI);
    add(&queue, "foo");
    add_after(&queue, "foo", 50 * MILLI);
    assert_eq!(process(&queue), "foo");
    advance(100 * MILLI).await;
    assert_eq!(queue.len(), 0);
    add_after(&queue, "foo", Duration::MAX);
    assert_eq!(queue.stats().delayed, 1, "a delay that no clock can express is none that ends");
}

/// client-go: `TestAddTwoFireEarly`, `TestCopyShifting`.
#[tokio::test(start_paused = true)]
async fn delayed_keys_are_ready_in_the_order_of_their_times() {
    let queue = WorkQueue::default();
    for (key, delay) in [("foo", 1000), ("bar", 500), ("baz", 250)] {
        add_after(&queue, key, delay * MILLI);
    }
    let began = Instant::now();
    for (key, at) in [("baz", 250), ("bar", 500), ("foo", 1000)] {
        let item = queue.get().await.unwrap();
        assert_eq!((*item.key(), began.elapsed()), (key, at * MILLI));
        item.done();
    }
    let queue = WorkQueue::default();
    for (key, delay) in [("foo", 1000), ("bar", 500), ("baz", 250)] {
        add_after(&queue, key, delay * MILLI);
    }
    advance(2000 * MILLI).await;
    add(&queue, "last");
    assert_eq!([(); 4].map(|()| process(&queue)), ["baz", "bar", "foo", "last"]);
}

/// A worker that is busy sets no timer: the others have one each.
#[tokio::test(start_paused = true)]
async fn whoever_waits_gets_a_delayed_key_at_its_time() {
    let queue = WorkQueue::default();
    let mut getters = [(); 3].map(|()| task::spawn(queue.get()));
    for getter in &mut getters {
        assert_pending!(getter.poll());
    }
    add_after(&queue, "later", 10 * MILLI);
    add_after(&queue, "sooner", 5 * MILLI);
    for getter in &mut getters {
        assert!(getter.is_woken(), "each sets its timer again");
        assert_pending!(getter.poll());
    }
    let [first, mut second, mut third] = getters;
    drop(first);
    advance(5 * MILLI).await;
    assert!(second.is_woken());
    let item = assert_ready!(second.poll()).unwrap();
    assert_eq!(item.key(), &"sooner");
    assert!(third.is_woken());
    assert_pending!(third.poll());
    advance(5 * MILLI).await;
    assert!(third.is_woken());
    assert_eq!(assert_ready!(third.poll()).unwrap().key(), &"later");
}

/// The wake-up of a getter that is dropped goes to another one.
#[tokio::test(start_paused = true)]
async fn no_key_is_lost_with_a_getter_that_is_dropped() {
    let queue = WorkQueue::default();
    let mut getters = [(); 2].map(|()| task::spawn(queue.get()));
    for getter in &mut getters {
        assert_pending!(getter.poll());
    }
    add(&queue, "foo");
    let [first, mut second] = getters;
    let (woken, mut other) = if first.is_woken() {
        (first, second)
    } else {
        second.enter(|_, _| ());
        (second, first)
    };
    drop(woken);
    assert!(other.is_woken());
    assert_eq!(assert_ready!(other.poll()).unwrap().key(), &"foo");
}

/// Two workers look for keys while two keys are added, and end their processing together: each needs a wake-up of its own, in any
/// order of the threads. Shuttle fails a schedule in which every thread waits.
#[test]
fn no_order_of_threads_loses_a_wake_up() {
    explore(|| {
        let (queue, barrier) = (WorkQueue::default(), Arc::new(shuttle::sync::Barrier::new(2)));
        let worker = |_| {
            let (queue, barrier) = (queue.clone(), Arc::clone(&barrier));
            shuttle::thread::spawn(move || {
                let item = shuttle::future::block_on(queue.get()).unwrap();
                barrier.wait();
                item.done();
            })
        };
        let workers = [0, 1].map(worker);
        add(&queue, 0);
        add(&queue, 1);
        let [(), ()] = workers.map(|worker| worker.join().unwrap());
    });
}

/// The same of two additions that look for a place while both places become free.
#[test]
fn no_order_of_threads_loses_the_wake_up_of_an_addition() {
    explore(|| {
        let queue = WorkQueue::new(WorkQueueConfig { max_keys: 2, ..WorkQueueConfig::default() });
        let items = [0, 1].map(|key| {
            add(&queue, key);
            take(&queue)
        });
        let addition = |key| {
            let queue = queue.clone();
            shuttle::thread::spawn(move || shuttle::future::block_on(queue.add(key)))
        };
        let additions = [2, 3].map(addition);
        let [(), ()] = items.map(WorkItem::done);
        let [(), ()] = additions.map(|addition| addition.join().unwrap());
        assert_eq!(queue.len(), 2);
    });
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_worker_panics_or_is_dropped_returns() {
    let queue = WorkQueue::default();
    add_at(&queue, "foo", 7);
    let item = take(&queue);
    add_after(&queue, "foo", 10 * MILLI);
    drop(item);
    assert_eq!(queue.stats().delayed, 0, "at once, not after the delay");
    let worker = queue.clone();
    let task = tokio::spawn(async move {
        let _item = worker.get().await.unwrap();
        std::panic::resume_unwind(Box::new("simulated"));
    });
    assert!(task.await.unwrap_err().is_panic());
    let item = take(&queue);
    assert_eq!(item.priority(), 7);
    // It is one of those that a drain waits for.
    let mut drain = task::spawn(queue.shut_down_with_drain());
    assert_pending!(drain.poll());
    drop(item);
    assert_pending!(drain.poll());
    assert_eq!(process(&queue), "foo");
    assert_ready!(drain.poll());
}

#[tokio::test(start_paused = true)]
async fn a_bound_counts_new_places_only() {
    let queue = WorkQueue::new(WorkQueueConfig { max_keys: 2, ..WorkQueueConfig::default() });
    add(&queue, "foo");
    add_after(&queue, "bar", MILLI);
    let item = take(&queue);
    // Those in processing, delayed or ready have a place.
    for key in ["foo", "bar"] {
        add(&queue, key);
    }
    assert_eq!(queue.try_add("baz", AddOptions::default()), Err(WorkQueueFull("baz")));
    let mut addition = task::spawn(queue.add("baz"));
    assert_pending!(addition.poll());
    item.done();
    assert_pending!(addition.poll(), "foo was added again");
    assert_eq!(process(&queue), "bar");
    assert!(addition.is_woken());
    assert_ready!(addition.poll());
    assert_eq!([(); 2].map(|()| process(&queue)), ["foo", "baz"]);

    // A shutdown ends the wait.
    let queue = WorkQueue::new(WorkQueueConfig { max_keys: 0, ..WorkQueueConfig::default() });
    add(&queue, "foo");
    let mut addition = task::spawn(queue.add("bar"));
    assert_pending!(addition.poll());
    queue.shut_down();
    assert!(addition.is_woken());
    assert_ready!(addition.poll());
    assert_eq!(process(&queue), "foo");
    assert!(queue.get().await.is_none());
}

/// client-go: `TestMetrics`, `TestMetricShutdown`. Upstream refreshes two of them at intervals, in a task that the shutdown ends.
#[tokio::test(start_paused = true)]
async fn the_counters_are_those_of_client_go() {
    let queue = WorkQueue::default();
    let millis = |histogram: &DurationHistogram| {
        let count: u64 = histogram.counts().iter().sum();
        (count, (histogram.sum() * 1e3).round() as u64)
    };
    add(&queue, "foo");
    assert_eq!(queue.stats(), WorkQueueStats { depth: 1, adds: 1, ..WorkQueueStats::default() });
    advance(50 * MILLI).await;
    let item = take(&queue);
    assert_eq!(millis(queue.latency()), (1, 50));
    for _ in 0..5 {
        add(&queue, "foo");
    }
    assert_eq!(queue.stats(), WorkQueueStats { depth: 1, processing: 1, adds: 2, ..WorkQueueStats::default() });
    advance(25 * MILLI).await;
    item.done();
    assert_eq!(millis(queue.work_duration()), (1, 25));
    let item = take(&queue);
    assert_eq!(millis(queue.latency()), (2, 75), "from its addition, not from the end of the processing before it");
    add(&queue, "bar");
    let other = take(&queue);
    advance(MILLI).await;
    let running = WorkQueueStats { processing: 2, adds: 3, unfinished: 2 * MILLI, ..WorkQueueStats::default() };
    assert_eq!(queue.stats(), WorkQueueStats { longest_running: MILLI, ..running });
    item.done();
    other.done();
    assert_eq!(millis(queue.work_duration()), (3, 27));

    add_after(&queue, "foo", 10 * MILLI);
    let delayed = WorkQueueStats { delayed: 1, adds: 3, retries: 1, ..WorkQueueStats::default() };
    assert_eq!(queue.stats(), delayed);
    advance(15 * MILLI).await;
    assert_eq!(queue.stats(), WorkQueueStats { depth: 1, delayed: 0, adds: 4, ..delayed });
    assert_eq!(process(&queue), "foo");
    assert_eq!(millis(queue.latency()), (4, 80), "from the end of the delay");
    add_after(&queue, "foo", 10 * MILLI);
    queue.shut_down();
    assert_eq!(queue.stats(), WorkQueueStats { adds: 4, retries: 2, ..WorkQueueStats::default() });
}
