//! One of 100 watchers stops reading for 15 s while 200,000 events pass.
//!
//! ```sh
//! cargo bench --bench stopped          # or: cargo bench --bench stopped -- 20000
//! ```
//!
//! Counts, and not times, decide: under REPLAY the stopped client gets every event in order; under DROP what was delivered and
//! what was dropped is what was offered, and a resume from each hole's `after_resource_version` heals it; under COALESCE it gets
//! each key's latest state once for each generation, and every event is accounted for; the other 99 get everything. Prints what was kept for the stopped client at most, by the named metrics, beside its bounds.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the figures; and a run that cannot go on has failed")]

#[path = "../tests/integration/sandbox.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the integration tests, which use all of it")]
mod sandbox;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use informerd::{
    model::ResourceVersion,
    proto::pb,
    watch::{BroadcasterConfig, Retention},
};
use pb::FullChannelPolicy::{Coalesce, Drop, Replay};
use sandbox::{Options, Sandbox, pod, queue, watch_from_now, watch_pods};
use tonic::Streaming;

const WATCHERS: usize = 100;
const STOPPED_FOR: Duration = Duration::from_secs(15);
const BURST: u64 = 50;

#[tokio::main]
async fn main() {
    let events: u64 = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(200_000);
    for policy in [Replay, Drop, Coalesce] {
        run(policy, events).await;
    }
}

async fn run(policy: pb::FullChannelPolicy, events: u64) {
    let bounds = Retention { events: 250_000, size: 320 << 20, age: Duration::from_secs(300) };
    let options = Options {
        broadcaster: BroadcasterConfig { retention: bounds, ..BroadcasterConfig::default() },
        history: bounds,
        ..Options::default()
    };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let mut readers = tokio::task::JoinSet::new();
    for _ in 1..WATCHERS {
        let mut watch = join(&sandbox, Replay, false).await;
        readers.spawn(async move {
            for at in 0..events {
                assert_eq!(event(&mut watch).await.resource_version, (at + 2).to_string());
            }
        });
    }
    let mut stopped = join(&sandbox, policy, true).await;

    let (start, mut most) = (Instant::now(), (0, 0));
    for at in 0..events {
        let spec = format!(r#""n":{at},"filler":"{}""#, "x".repeat(900));
        sandbox.put("shop", &format!("p{}", at % 1000), &spec).await;
        if at % BURST == 0 {
            let (kept, history) = kept(&sandbox);
            most = (most.0.max(kept), most.1.max(history));
            let due = STOPPED_FOR.mul_f64(at as f64 / events as f64);
            tokio::time::sleep(due.saturating_sub(start.elapsed())).await;
        }
    }
    sandbox.reached(&ResourceVersion::decimal(u128::from(events) + 1)).await;
    while readers.join_next().await.transpose().unwrap().is_some() {}
    let stopped_for = start.elapsed();
    assert!(stopped_for >= STOPPED_FOR.mul_f64(0.99), "{stopped_for:?}");

    if policy == Coalesce {
        read_generations(&sandbox, &mut stopped, events).await;
        return;
    }
    let (mut delivered, mut dropped, mut version) = (0, 0, 1);
    let mut holes = Vec::new();
    while version < events + 1 {
        let response = event(&mut stopped).await;
        let reached: u64 = response.resource_version.parse().unwrap();
        if let Some(hole) = &response.dropped {
            let expected = (version.to_string(), reached - version);
            assert_eq!((hole.after_resource_version.clone(), hole.count), expected);
            dropped += hole.count;
            holes.push(hole.clone());
        } else {
            assert_eq!(reached, version + 1, "in order, and no hole that was not told");
            delivered += 1;
        }
        version = reached;
    }
    assert_eq!(delivered + dropped, events);
    for hole in &holes {
        let request = pb::WatchRequest { resource_version: hole.after_resource_version.clone(), ..watch_pods() };
        let mut healed = sandbox.client().await.watch(request).await.unwrap().into_inner();
        let first: u64 = hole.after_resource_version.parse().unwrap();
        for missing in 0..hole.count {
            assert_eq!(event(&mut healed).await.resource_version, (first + missing + 1).to_string());
        }
    }
    let stats = sandbox.informer.stats();
    println!(
        "{:?}: {events} events, {WATCHERS} watchers, one stopped for {stopped_for:.1?}: delivered {delivered}, dropped {dropped} \
         in {} holes, all healed; the others got everything",
        policy,
        holes.len(),
    );
    println!(
        "  parked {} times, {} events told from the history; at most watch_retained {:.1} MiB and history {:.1} MiB (bounds \
         {} MiB each)",
        stats.parked.load(Ordering::Relaxed),
        stats.replayed.load(Ordering::Relaxed),
        most.0 as f64 / f64::from(1 << 20),
        most.1 as f64 / f64::from(1 << 20),
        bounds.size >> 20,
    );
    assert!(most.0 <= bounds.size as u64 && most.1 <= bounds.size as u64);
}

/// Under COALESCE: what lay in the queue, then each key at most once for each generation, up to the state of the server.
async fn read_generations(sandbox: &Sandbox, stopped: &mut Streaming<pb::WatchResponse>, events: u64) {
    let (mut view, mut generation) = (BTreeMap::new(), BTreeSet::new());
    view.insert("a".to_owned(), pod("shop", "a", "").body().clone());
    let (mut sent, mut accounted, mut version) = (0, 0, 1);
    while version < events + 1 {
        let response = event(stopped).await;
        sandbox::fold(&mut view, &response);
        let name = response.object.as_ref().unwrap().name.clone();
        assert!(generation.insert(name), "once for each generation");
        sent += 1;
        accounted += 1 + u64::from(response.coalesced);
        let reached: u64 = response.resource_version.parse().unwrap();
        if reached > version {
            generation.clear();
        }
        version = reached;
    }
    assert_eq!(accounted, events, "every event is accounted for");
    let snapshot = sandbox.informer.snapshot().unwrap();
    let held = snapshot.objects(None, None).map(|object| (object.key().name().to_owned(), object.body().clone()));
    assert!(view.into_iter().eq(held), "the state of the server");
    println!(
        "Coalesce: {events} events, {WATCHERS} watchers, one stopped: {sent} messages stand for all of them; the others got \
              everything"
    );
}

async fn join(sandbox: &Sandbox, policy: pb::FullChannelPolicy, is_slow: bool) -> Streaming<pb::WatchResponse> {
    let mut client = if is_slow { sandbox.slow_client().await } else { sandbox.client().await };
    let request = pb::WatchRequest { queue: Some(queue(policy, 1024)), ..watch_from_now() };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    watch.message().await.unwrap();
    watch
}

/// The next message that is not a bookmark.
async fn event(watch: &mut Streaming<pb::WatchResponse>) -> pb::WatchResponse {
    loop {
        let response = watch.message().await.unwrap().unwrap();
        if response.bookmark.is_none() {
            return response;
        }
    }
}

/// What is kept encoded for watches that lag, and what for those that resume.
fn kept(sandbox: &Sandbox) -> (u64, u64) {
    let watch = sandbox.informer.watch_stats().unwrap().retained_size.load(Ordering::Relaxed);
    (watch, sandbox.informer.stats().history_bytes.load(Ordering::Relaxed))
}
