//! Order of the keys: controller-runtime's tests of its priority queue.

use super::*;

/// "returns items in order".
#[test]
fn keys_of_a_higher_priority_come_first_and_the_others_in_their_order() {
    let queue = WorkQueue::default();
    for (key, priority) in [("foo", 0), ("low", -100), ("bar", 1), ("baz", 0), ("top", i32::MAX), ("last", i32::MIN)] {
        add_at(&queue, key, priority);
    }
    let item = take(&queue);
    assert_eq!((item.key(), item.priority()), (&"top", i32::MAX));
    item.done();
    assert_eq!([(); 5].map(|()| process(&queue)), ["bar", "foo", "baz", "low", "last"]);
}

/// "retains the highest priority", "will not decrease the priority", "gets pushed to the front if the priority increases",
/// "follows FIFO order in the new priority queue when item priority changes".
#[test]
fn the_highest_priority_counts_and_a_key_is_the_last_one_of_its_new_priority() {
    let queue = WorkQueue::default();
    for (key, priority) in [("foo", 0), ("bar", 1), ("baz", 1), ("foo", 1), ("bar", 0), ("bar", 1)] {
        add_at(&queue, key, priority);
    }
    assert_eq!(queue.stats().adds, 3);
    let item = take(&queue);
    assert_eq!((item.key(), item.priority()), (&"bar", 1));
    // Also of one in processing.
    for priority in [2, 3, 0] {
        add_at(&queue, "bar", priority);
    }
    assert_eq!(process(&queue), "baz");
    item.done();
    let item = take(&queue);
    assert_eq!((item.key(), item.priority()), (&"bar", 3));
    item.done();
    assert_eq!(process(&queue), "foo");
}

/// "updates metrics correctly for an item that gets initially added with after and then without", "… when an item with after is
/// re-added with higher priority and no after".
#[tokio::test(start_paused = true)]
async fn an_addition_without_a_delay_ends_that_of_a_delayed_key() {
    for priority in [0, 3] {
        let queue = WorkQueue::default();
        queue.try_add("foo", AddOptions { priority: 2, after: MILLI, ..AddOptions::default() }).unwrap();
        add(&queue, "bar");
        assert_eq!(
            queue.stats(),
            WorkQueueStats { depth: 1, delayed: 1, adds: 1, retries: 1, ..WorkQueueStats::default() }
        );
        add_at(&queue, "foo", priority);
        assert_eq!(queue.stats(), WorkQueueStats { depth: 2, adds: 2, retries: 1, ..WorkQueueStats::default() });
        assert_eq!(take(&queue).priority(), priority.max(2));
    }
}

/// "returns many items", "Get from priority queue might get stuck when the priority queue is shut down".
#[tokio::test(start_paused = true)]
async fn many_getters_share_the_keys_and_end_at_the_shutdown() {
    let queue = WorkQueue::default();
    let mut workers = JoinSet::new();
    for _ in 0..10 {
        let queue = queue.clone();
        workers.spawn(async move {
            let mut keys = Vec::new();
            while let Some(item) = queue.get().await {
                keys.push(*item.key());
                item.done();
            }
            keys
        });
    }
    for key in 0..1000 {
        queue.add(key).await;
        if key % 100 == 0 {
            sleep(MILLI).await;
        }
    }
    sleep(MILLI).await;
    queue.shut_down();
    let mut keys = workers.join_all().await.concat();
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..1000));
}
