//! The memory that is held for clients that do not take what they asked for: how much it is, for whom, and until when.

use std::time::Duration;

use informerd::{
    proto::pb,
    transport::Waiting,
    watch::{BroadcasterConfig, Retention},
};
use tonic::Streaming;

use crate::{
    operators::until,
    sandbox::{Options, Sandbox, next, pod, queue, watch_from_now, watch_pods},
};

/// More than the window of a slow client.
const LARGE: usize = 1 << 20;

fn filler(bytes: usize) -> String {
    format!(r#""filler":"{}""#, "x".repeat(bytes))
}

/// A history that keeps hardly anything.
fn forgetful() -> Options {
    let history = Retention { events: 1, size: 1 << 30, age: Duration::from_secs(300) };
    Options { history, ..Options::default() }
}

/// Reads events until one is at this version.
async fn read_up_to(watch: &mut Streaming<pb::WatchResponse>, version: &str) {
    while next(watch).await.resource_version != version {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_larger_than_its_window_is_held_until_the_client_takes_it() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", &filler(LARGE))]).await;
    let mut slow = sandbox.slow_client().await.watch(watch_pods()).await.unwrap().into_inner();
    let held = until(&sandbox, |found| found[0].bytes_held >= LARGE as u64).await[0].bytes_held;
    assert!(held < 2 * LARGE as u64, "{held}");
    let waiting = sandbox.ledger.waiting();
    assert!((LARGE..2 * LARGE).contains(&waiting.sending), "{waiting:?}");

    assert_eq!(next(&mut slow).await.object.unwrap().name, "a");
    assert!(next(&mut slow).await.bookmark.unwrap().initial_events_end);
    let live = until(&sandbox, |found| found[0].bytes_held == 0).await;
    assert_eq!(live[0].state(), pb::WatcherState::Live);
    assert_eq!(sandbox.ledger.waiting(), Waiting::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_states_that_only_snapshots_have_are_held_once_however_many_streams_share_them() {
    const OBJECTS: usize = 20;
    const SIZE: usize = 100_000;
    let pods = (0..OBJECTS).map(|at| pod("shop", &format!("p{at:02}"), &filler(SIZE))).collect();
    let mut sandbox = Sandbox::start_with(forgetful(), pods).await;
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut watch = sandbox.slow_client().await.watch(watch_pods()).await.unwrap().into_inner();
        next(&mut watch).await;
        slow.push(watch);
    }
    assert_eq!(sandbox.ledger.waiting().kept, 0, "the cache has all of it");
    let mut last = None;
    for at in 0..OBJECTS {
        last = Some(sandbox.put("shop", &format!("p{at:02}"), &filler(SIZE)).await);
    }
    sandbox.reached(last.unwrap().version()).await;
    // The history has the last of them.
    let kept = (OBJECTS - 1) * SIZE..OBJECTS * SIZE;
    let is_held =
        |found: &[pb::Watcher]| found.iter().map(|watcher| watcher.bytes_held as usize).sum::<usize>() >= kept.start;
    let found = until(&sandbox, is_held).await;
    assert!(found.iter().all(|watcher| watcher.state() == pb::WatcherState::InitialEvents));
    assert!(kept.contains(&sandbox.ledger.waiting().kept), "{:?}", sandbox.ledger.waiting());

    // The last of them has the same as all of them together.
    slow.truncate(1);
    until(&sandbox, |found| found.len() == 1 && found[0].bytes_held >= kept.start as u64).await;
    assert!(kept.contains(&sandbox.ledger.waiting().kept));
    drop(slow);
    until(&sandbox, |found| found.is_empty() && sandbox.ledger.waiting() == Waiting::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_merged_for_a_client_is_held_until_it_is_told() {
    const SIZE: usize = 1000;
    let few = Retention { events: 100, size: 1 << 30, age: Duration::from_secs(300) };
    let broadcaster = BroadcasterConfig { retention: few, ..BroadcasterConfig::default() };
    let options = Options { broadcaster, history: few, ..Options::default() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let request = pb::WatchRequest { queue: Some(queue(pb::FullChannelPolicy::Coalesce, 16)), ..watch_from_now() };
    let mut slow = sandbox.slow_client().await.watch(request).await.unwrap().into_inner();
    next(&mut slow).await;
    let mut last = None;
    for at in 0..8_000 {
        last = Some(sandbox.put("shop", &format!("p{}", at % 500), &filler(SIZE)).await);
    }
    let last = last.unwrap().version().to_string();
    // An entry for each key, at least.
    let is_held = |found: &[pb::Watcher]| found[0].bytes_held > 500 * 64 && sandbox.ledger.waiting().kept > 500 * 64;
    let found = until(&sandbox, is_held).await;
    assert_eq!(found[0].state(), pb::WatcherState::Coalescing);
    let kept = sandbox.ledger.waiting().kept;
    // Both states of all keys, what the queue held, and entries.
    assert!((500 * 64..3 * 500 * (SIZE + 500)).contains(&kept), "{kept}");

    read_up_to(&mut slow, &last).await;
    let live = until(&sandbox, |found| found[0].bytes_held == 0).await;
    assert_eq!(live[0].state(), pb::WatcherState::Live);
    until(&sandbox, |_| sandbox.ledger.waiting() == Waiting::default()).await;
}
