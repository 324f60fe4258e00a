//! Clients that do not read, under each policy: what they cost the others, and what they receive.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use informerd::{
    proto::pb,
    watch::{BroadcasterConfig, BroadcasterStats, Retention},
};
use tokio::time::Instant;
use tonic::{Code, Streaming};

use crate::sandbox::{DEADLINE, Options, Sandbox, end, fold, next, pod, queue, reason, watch_from_now};

/// Number of events of about 1 KiB: the buffers below the cursor hold a small part of them, yet more than a queue, so that under
/// BLOCK the server waits for no client earlier.
const EVENTS: u64 = 8_000;
const QUEUE: u32 = 16;

fn filler(at: u64) -> String {
    format!(r#""n":{at},"filler":"{}""#, "x".repeat(1000))
}

async fn publish(sandbox: &mut Sandbox) -> informerd::model::ResourceVersion {
    let mut last = None;
    for at in 0..EVENTS {
        last = Some(sandbox.put("shop", &format!("p{}", at % 100), &filler(at)).await);
    }
    last.unwrap().version().clone()
}

async fn join(sandbox: &Sandbox, policy: pb::FullChannelPolicy, is_slow: bool) -> Streaming<pb::WatchResponse> {
    let mut client = if is_slow { sandbox.slow_client().await } else { sandbox.client().await };
    let length = if is_slow { QUEUE } else { 65_536 };
    let request = pb::WatchRequest { queue: Some(queue(policy, length)), ..watch_from_now() };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    next(&mut watch).await;
    watch
}

/// Joins a client under BLOCK that reads as many events as its queue is long, and then none: from now on the server waits for it.
/// Returns the last version that it has read, too.
async fn join_blocking(sandbox: &mut Sandbox) -> (Streaming<pb::WatchResponse>, u64) {
    let mut watch = join(sandbox, pb::FullChannelPolicy::Block, true).await;
    let mut last = String::new();
    for at in 0..u64::from(QUEUE) {
        sandbox.put("shop", &format!("p{at}"), &filler(at)).await;
        last = next(&mut watch).await.resource_version;
    }
    (watch, last.parse().unwrap())
}

/// Reads a fast client's events after a version. Returns the longest pause between two of them.
fn read_all(mut watch: Streaming<pb::WatchResponse>, after: u64) -> tokio::task::JoinHandle<Duration> {
    tokio::spawn(async move {
        let (mut longest, mut last) = (Duration::ZERO, Instant::now());
        for at in 1..=EVENTS {
            let response = next(&mut watch).await;
            assert_eq!(response.resource_version, (after + at).to_string(), "in order, none missing");
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        longest
    })
}

fn stat(sandbox: &Sandbox, counter: impl Fn(&BroadcasterStats) -> u64) -> u64 {
    counter(&sandbox.informer.watch_stats().unwrap())
}

/// Checks that the others are delayed by at most the budget, and that the slow client's stream ends with its reason and version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_block_a_client_that_does_not_read_costs_its_budget_once_and_is_ended() {
    let block_timeout = Duration::from_millis(400);
    let broadcaster = BroadcasterConfig { block_timeout, ..BroadcasterConfig::default() };
    let mut sandbox =
        Sandbox::start_with(Options { broadcaster, ..Options::default() }, vec![pod("shop", "a", "")]).await;
    let (mut slow, began_at) = join_blocking(&mut sandbox).await;
    let fast = read_all(join(&sandbox, pb::FullChannelPolicy::Block, false).await, began_at);
    publish(&mut sandbox).await;
    let longest = fast.await.unwrap();
    assert_eq!(stat(&sandbox, |stats| stats.evicted.load(Ordering::Relaxed)), 1);
    let blocked = Duration::from_micros(stat(&sandbox, |stats| stats.blocked_micros.load(Ordering::Relaxed)));
    // Not a timed test: the writer must have waited at least for the budget, and the pause of the others contains it.
    assert!(blocked >= block_timeout && longest >= block_timeout / 2, "blocked {blocked:?}, longest pause {longest:?}");

    let mut last = began_at.to_string();
    let status = loop {
        let response = next(&mut slow).await;
        if response.r#type() == pb::EventType::Bookmark {
            assert_eq!(response.resource_version, last, "its own position, before the end");
            continue;
        }
        if response.r#type() == pb::EventType::Error {
            assert_eq!(response.resource_version, last, "the last version that it was handed");
            break end(&mut slow).await;
        }
        let expected: u64 = last.parse::<u64>().unwrap() + 1;
        assert_eq!(response.resource_version, expected.to_string(), "no hole before the end");
        last = response.resource_version;
    };
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "SLOW_CONSUMER"));
    assert!(last.parse::<u64>().unwrap() < began_at + EVENTS, "it was ended before the end");
}

/// Checks that all watches of a host share its budget: the server ends another one, on another connection, for what the first has
/// spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_block_a_returning_client_has_the_remaining_budget_of_its_host() {
    let block_timeout = Duration::from_secs(1);
    let broadcaster = BroadcasterConfig { block_timeout, ..BroadcasterConfig::default() };
    let mut sandbox =
        Sandbox::start_with(Options { broadcaster, ..Options::default() }, vec![pod("shop", "a", "")]).await;
    let began = Instant::now();
    let mut comes_back = Vec::new();
    for evicted in 1..=3 {
        comes_back.push(join_blocking(&mut sandbox).await);
        publish(&mut sandbox).await;
        let is_evicted = |sandbox: &Sandbox| stat(sandbox, |stats| stats.evicted.load(Ordering::Relaxed)) == evicted;
        let waits = async {
            while !is_evicted(&sandbox) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let is_ended = tokio::time::timeout(DEADLINE, waits).await;
        assert!(is_ended.is_ok(), "{:?}", sandbox.informer.watch_stats());
    }
    let blocked = Duration::from_micros(stat(&sandbox, |stats| stats.blocked_micros.load(Ordering::Relaxed)));
    // Late timers take time too; three watches with a budget each would take a whole budget more.
    assert!(blocked < 2 * block_timeout + began.elapsed() / 10, "{blocked:?} of {:?}", began.elapsed());
    assert_eq!(stat(&sandbox, |stats| stats.denied.load(Ordering::Relaxed)), 0, "nobody else has spent anything");
}

/// Checks that no client is delayed, the hole is reported, and delivered and dropped events add up to those offered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_drop_a_client_that_does_not_read_receives_the_exact_count_of_missed_events() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut slow = join(&sandbox, pb::FullChannelPolicy::Drop, true).await;
    let fast = read_all(join(&sandbox, pb::FullChannelPolicy::Drop, false).await, 1);
    publish(&mut sandbox).await;
    fast.await.unwrap();
    assert_eq!(stat(&sandbox, |stats| stats.blocked_micros.load(Ordering::Relaxed)), 0, "nobody waited");

    let (mut delivered, mut dropped, mut version) = (0, 0, 1);
    while version < EVENTS + 1 {
        let response = next(&mut slow).await;
        let reached: u64 = response.resource_version.parse().unwrap();
        if let Some(hole) = &response.dropped {
            assert_eq!(hole.after_resource_version, version.to_string(), "the last version before the hole");
            assert_eq!(hole.count, reached - version, "of one event for each version");
            dropped += hole.count;
        } else {
            assert_eq!(reached, version + 1, "no hole that was not told");
            delivered += 1;
        }
        version = reached;
    }
    assert_eq!(delivered + dropped, EVENTS);
    assert!(dropped > EVENTS / 2 && delivered >= u64::from(QUEUE), "delivered {delivered}, dropped {dropped}");
    assert_eq!(stat(&sandbox, |stats| stats.dropped.load(Ordering::Relaxed)), dropped);
}

/// Reads late, within what is retained: everything arrives in order, and no client waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_replay_a_client_that_reads_late_gets_everything() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let slow = join(&sandbox, pb::FullChannelPolicy::Replay, true).await;
    let fast = read_all(join(&sandbox, pb::FullChannelPolicy::Replay, false).await, 1);
    publish(&mut sandbox).await;
    fast.await.unwrap();
    assert_eq!(stat(&sandbox, |stats| stats.blocked_micros.load(Ordering::Relaxed)), 0, "nobody waited");
    read_all(slow, 1).await.unwrap();
}

/// Reads later than what is retained: the stream ends with its reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_replay_a_client_beyond_the_retention_is_ended_with_the_reason() {
    let retention = Retention { events: 200, size: 1 << 30, age: Duration::from_secs(300) };
    let broadcaster = BroadcasterConfig { retention, ..BroadcasterConfig::default() };
    let options = Options { broadcaster, history: retention, ..Options::default() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let mut slow = join(&sandbox, pb::FullChannelPolicy::Replay, true).await;
    let version = publish(&mut sandbox).await;
    sandbox.reached(&version).await;
    let retained = stat(&sandbox, |stats| stats.retained_size.load(Ordering::Relaxed));
    assert!(retained < 300 * 2000, "bounded: {retained}");
    let mut version = 1;
    let status = loop {
        let response = next(&mut slow).await;
        if response.r#type() == pb::EventType::Bookmark {
            assert_eq!(response.resource_version, version.to_string(), "its own position, before the end");
            continue;
        }
        if response.r#type() == pb::EventType::Error {
            break end(&mut slow).await;
        }
        version += 1;
        assert_eq!(response.resource_version, version.to_string(), "no hole before the end");
    };
    assert_eq!((status.code(), reason(&status).as_str()), (Code::OutOfRange, "RESOURCE_VERSION_EXPIRED"));
}

/// Reads the snapshot at the client's own pace: it does not count against the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_its_initial_events_slowly_loses_none_and_blocks_no_other() {
    let pods = (0..EVENTS).map(|at| pod("shop", &format!("initial{at:05}"), &filler(at))).collect();
    let mut sandbox = Sandbox::start(pods).await;
    let mut slow = Vec::new();
    for policy in [pb::FullChannelPolicy::Drop, pb::FullChannelPolicy::Block] {
        let request = pb::WatchRequest {
            queue: Some(queue(policy, 1)),
            initial_events: pb::InitialEvents::Send.into(),
            ..watch_from_now()
        };
        slow.push(sandbox.slow_client().await.watch(request).await.unwrap().into_inner());
    }
    let fast = read_all(join(&sandbox, pb::FullChannelPolicy::Block, false).await, 1);
    publish(&mut sandbox).await;
    fast.await.unwrap();
    assert_eq!(stat(&sandbox, |stats| stats.blocked_micros.load(Ordering::Relaxed)), 0, "nobody waited");
    for mut watch in slow {
        for at in 0..EVENTS {
            assert_eq!(next(&mut watch).await.object.unwrap().name, format!("initial{at:05}"));
        }
        assert!(next(&mut watch).await.bookmark.unwrap().initial_events_end);
        for at in 0..EVENTS {
            let response = tokio::time::timeout(DEADLINE, next(&mut watch)).await.unwrap();
            assert_eq!(response.resource_version, (at + 2).to_string());
        }
    }
}

/// Checks that each generation has each key's last state exactly once, with deletions and recreations relative to what the client
/// held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_coalesce_a_client_that_does_not_read_receives_the_latest_states() {
    let few = Retention { events: 500, size: 1 << 30, age: Duration::from_secs(300) };
    let broadcaster = BroadcasterConfig { retention: few, ..BroadcasterConfig::default() };
    let options = Options { broadcaster, history: few, ..Options::default() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let mut slow = join(&sandbox, pb::FullChannelPolicy::Coalesce, true).await;
    let last = publish(&mut sandbox).await;
    sandbox.reached(&last).await;
    assert_eq!(stat(&sandbox, |stats| stats.blocked_micros.load(Ordering::Relaxed)), 0, "nobody waited");

    let (mut view, mut events, mut accounted, mut version) = (BTreeMap::new(), 0, 0, 1);
    view.insert("a".to_owned(), pod("shop", "a", "").shared_body());
    while version < EVENTS + 1 {
        let response = next(&mut slow).await;
        fold(&mut view, &response);
        events += 1;
        accounted += 1 + u64::from(response.coalesced);
        let reached: u64 = response.resource_version.parse().unwrap();
        assert!(reached >= version, "versions never go back");
        version = reached;
    }
    assert_eq!(accounted, EVENTS, "every event is accounted for");
    assert!(events < EVENTS / 2, "{events} of {EVENTS} were sent");
    let snapshot = sandbox.informer.snapshot().unwrap();
    let held = snapshot.objects(None, None).map(|object| (object.key().name().to_owned(), object.shared_body()));
    assert_eq!(view, held.collect());
}

/// Shuts the window of a client, which can then receive nothing: its resources are freed all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_block_a_client_that_never_reads_again_is_reset() {
    let broadcaster = BroadcasterConfig { block_timeout: Duration::from_millis(50), ..BroadcasterConfig::default() };
    let evicted_grace = Duration::from_millis(50);
    let options = Options { broadcaster, evicted_grace, ..Options::default() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let (mut slow, _) = join_blocking(&mut sandbox).await;
    publish(&mut sandbox).await;
    let watchers = || sandbox.informer.watch_stats().unwrap().watchers.load(Ordering::Relaxed);
    let freed = async {
        while watchers() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, freed).await.expect("its cursor is gone, though it has read nothing");
    assert_eq!(stat(&sandbox, |stats| stats.evicted.load(Ordering::Relaxed)), 1);
    // The unread rest of its window, and then the reset.
    assert_eq!(end(&mut slow).await.code(), Code::Cancelled);
}
