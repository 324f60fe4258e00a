//! Policies for a stopped client: one of 100 watchers stops reading for 15 s while 200,000 events pass over 1,000 keys: changes,
//! deletions, and recreations with new uids.
//!
//! ```sh
//! cargo bench --bench stopped          # or: cargo bench --bench stopped -- 20000
//! ```
//!
//! The result depends on counts, not on times; the other 99 watchers get everything.
//!
//! - REPLAY: the stopped client gets every event in order.
//! - DROP: delivered and dropped events add up to those that were offered, and a resume from each hole's
//!   `after_resource_version` heals it.
//! - COALESCE: the client reads again, more slowly than events arrive. Each generation is exactly the difference between the
//!   client's state and the state at the generation's version: of each key that differs the last state, once, after a DELETED of
//!   the client's object if that is another one. Every event is accounted for. A second run has one key with nine of ten events:
//!   changes of the other keys are in the same generation.
//!
//! Prints the most memory that was held for the stopped client, by the named metrics, beside its bounds.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the figures; and a run that cannot go on has failed")]

#[path = "../tests/integration/refused_watch.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the integration tests, which use all of it")]
mod refused_watch;
#[path = "../tests/integration/sandbox.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the integration tests, which use all of it")]
mod sandbox;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use informerd::{
    model::{Event, Object, ResourceVersion},
    proto::pb,
    watch::{BroadcasterConfig, Retention},
};
use pb::FullChannelPolicy::{Coalesce, Drop, Replay};
use sandbox::{Options, Sandbox, queue, watch_from_now, watch_pods};
use tokio::task::JoinSet;
use tonic::Streaming;

const WATCHERS: usize = 100;
const STOPPED_FOR: Duration = Duration::from_secs(15);
const BURST: u64 = 50;
const KEYS: u64 = 1000;
/// Time that a slow client spends on one message.
const SLOW: Duration = Duration::from_micros(400);

const BOUNDS: Retention = Retention { events: 300_000, size: 512 << 20, age: Duration::from_secs(300) };

/// Changes upstream: the event at a version is always the same.
struct Script {
    /// True if one key gets nine of ten events.
    has_hot_key: bool,
    version: u64,
    pods: BTreeMap<String, Arc<Object>>,
}

/// Server with this upstream, and the watchers that do not stop.
struct Run {
    sandbox: Sandbox,
    script: Script,
    others: JoinSet<()>,
    /// Most bytes held: for lagging watches, and in the history.
    most: (u64, u64),
}

/// Message about an object: its type, the object's name, uid and body.
type ReceivedState = (pb::EventType, String, String, Bytes);

#[tokio::main]
async fn main() {
    let events: u64 = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(200_000);
    for policy in [Replay, Drop] {
        every_event_or_hole(policy, events).await;
    }
    for has_hot_key in [false, true] {
        every_generation(has_hot_key, events).await;
    }
}

/// Checks REPLAY and DROP: every event arrives in order, except in reported holes.
async fn every_event_or_hole(policy: pb::FullChannelPolicy, events: u64) {
    let (mut run, mut stopped) = Run::start(policy, false, events).await;
    let stopped_for = run.pass(events, STOPPED_FOR).await;
    assert!(stopped_for >= STOPPED_FOR.mul_f64(0.99), "{stopped_for:?}");
    run.others_end().await;

    let (mut delivered, mut dropped, mut version) = (0, 0, 1);
    let mut holes = Vec::new();
    while version < events + 1 {
        let response = event(&mut stopped).await;
        let reached = version_of(&response);
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
        let mut healed = run.sandbox.client().await.watch(request).await.unwrap().into_inner();
        let first: u64 = hole.after_resource_version.parse().unwrap();
        for missing in 0..hole.count {
            assert_eq!(version_of(&event(&mut healed).await), first + missing + 1);
        }
    }
    println!(
        "{policy:?}: {events} events, {WATCHERS} watchers, one stopped for {stopped_for:.1?}: delivered {delivered}, dropped \
         {dropped} in {} holes, all healed",
        holes.len(),
    );
    run.print_kept();
}

/// Checks COALESCE: every generation is the difference.
async fn every_generation(has_hot_key: bool, events: u64) {
    let all = events + events / 4;
    let (mut run, mut stopped) = Run::start(Coalesce, has_hot_key, all).await;
    let stopped_for = run.pass(events, STOPPED_FOR).await;
    assert!(stopped_for >= STOPPED_FOR.mul_f64(0.99), "{stopped_for:?}");
    let reader = tokio::spawn(async move {
        let mut client = Script::new(has_hot_key);
        let (mut told, mut sent, mut accounted, mut kinds) = (Vec::new(), 0_u32, 0, [0; 3]);
        let (start, mut merged, mut largest) = (Instant::now(), 0, (0, 0));
        while client.version < all + 1 {
            let response = event(&mut stopped).await;
            let object = response.object.as_ref().unwrap();
            told.push((response.r#type(), object.name.clone(), object.uid.clone(), sandbox::raw(object)));
            accounted += 1 + u64::from(response.coalesced);
            kinds[response.r#type() as usize - 1] += 1;
            sent += 1;
            let reached = version_of(&response);
            if reached > client.version {
                let passed = reached - client.version;
                let difference = client.advance(reached);
                assert!(told == difference, "at {reached}: not what differs after {passed} events");
                merged += u32::from(passed > 1);
                largest = largest.max((passed, told.len()));
                told.clear();
            }
            if sent.is_multiple_of(50) {
                tokio::time::sleep((SLOW * sent).saturating_sub(start.elapsed())).await;
            }
        }
        assert_eq!(accounted, all, "every event is accounted for");
        assert!(kinds.iter().all(|&count| count > 0), "added, modified, deleted: {kinds:?}");
        assert!(merged > 1, "the client is slow for long enough");
        println!(
            "Coalesce{}: {all} events, {WATCHERS} watchers, one stopped for the first {events}, {stopped_for:.1?}, and slow \
             afterwards: {sent} messages stand for all of them ({} added, {} modified, {} deleted), with {merged} generations \
             of more than one event; the largest: {} messages for {} events",
            if has_hot_key { " with a hot key" } else { "" },
            kinds[0],
            kinds[1],
            kinds[2],
            largest.1,
            largest.0,
        );
    });
    run.pass(all - events, STOPPED_FOR / 4).await;
    run.others_end().await;
    reader.await.unwrap();
    run.print_kept();
}

// === impl Script ===

impl Script {
    /// Returns a script at version 1, without objects.
    fn new(has_hot_key: bool) -> Self {
        Self { has_hot_key, version: 1, pods: BTreeMap::new() }
    }

    /// Returns the key of the next event.
    fn next_name(&self) -> String {
        let at = self.version - 1;
        let key = match (self.has_hot_key, at % 10) {
            (false, _) => at % KEYS,
            (true, 0) => 1 + at / 10 % (KEYS - 1),
            (true, _) => 0,
        };
        format!("p{key}")
    }

    /// Returns the next event. Some are deletions, except of each fourth key; a deleted key is recreated as another object.
    fn next(&mut self) -> Event {
        let (at, name) = (self.version - 1, self.next_name());
        let key: u64 = name[1..].parse().unwrap();
        self.version += 1;
        let version = ResourceVersion::decimal(u128::from(self.version));
        let held = self.pods.get(&name);
        if let Some(pod) = held.filter(|_| !key.is_multiple_of(4) && (at / KEYS + key) % 5 == 4) {
            let deleted = Arc::new(pod.at_version(version));
            self.pods.remove(&name);
            return Event::Deleted(deleted);
        }
        let uid = held.map_or_else(|| format!("{name}-{at}"), |pod| pod.uid().to_owned());
        let filler = "x".repeat(900);
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"shop","name":"{name}","uid":"{uid}"}},"spec":{{"n":{at},"filler":"{filler}"}}}}"#
        );
        let pod = Arc::new(Object::from_json(Bytes::from(json), "unnamed", version).unwrap());
        self.pods.insert(name, Arc::clone(&pod));
        Event::Modified(pod)
    }

    /// Advances to a version; returns the difference, as the last change of each key.
    fn advance(&mut self, version: u64) -> Vec<ReceivedState> {
        let mut changed = BTreeMap::new();
        while self.version < version {
            let name = self.next_name();
            let had = self.pods.get(&name).cloned();
            self.next();
            changed.entry(name).or_insert((0, had)).0 = self.version;
        }
        let mut changed = Vec::from_iter(changed);
        changed.sort_unstable_by_key(|(_, (last, _))| *last);
        let mut told = Vec::new();
        for (name, (_, had)) in changed {
            let tell = |event_type, pod: &Object| (event_type, name.clone(), pod.uid().to_owned(), pod.shared_body());
            match (had, self.pods.get(&name)) {
                (Some(had), Some(now)) if had.uid() == now.uid() => told.push(tell(pb::EventType::Modified, now)),
                (had, now) => {
                    told.extend(had.map(|had| tell(pb::EventType::Deleted, &had)));
                    told.extend(now.map(|now| tell(pb::EventType::Added, now)));
                }
            }
        }
        told
    }
}

// === impl Run ===

impl Run {
    /// Starts a server, the watchers that read this many events, and the one that stops.
    async fn start(
        policy: pb::FullChannelPolicy,
        has_hot_key: bool,
        events: u64,
    ) -> (Self, Streaming<pb::WatchResponse>) {
        let options = Options {
            broadcaster: BroadcasterConfig { retention: BOUNDS, ..BroadcasterConfig::default() },
            history: BOUNDS,
            ..Options::default()
        };
        let sandbox = Sandbox::start_with(options, Vec::new()).await;
        let mut others = JoinSet::new();
        for _ in 1..WATCHERS {
            let mut watch = join(&sandbox, Replay, false).await;
            others.spawn(async move {
                for at in 0..events {
                    assert_eq!(version_of(&event(&mut watch).await), at + 2);
                }
            });
        }
        let stopped = join(&sandbox, policy, true).await;
        (Self { sandbox, script: Script::new(has_hot_key), others, most: (0, 0) }, stopped)
    }

    /// Publishes this many events over a time; returns the time until the server had them.
    async fn pass(&mut self, events: u64, over: Duration) -> Duration {
        let start = Instant::now();
        for at in 0..events {
            self.sandbox.push(self.script.next()).await;
            if at % BURST == 0 {
                let stats = self.sandbox.informer.watch_stats().unwrap();
                self.most.0 = self.most.0.max(stats.retained_size.load(Ordering::Relaxed));
                self.most.1 = self.most.1.max(self.sandbox.informer.stats().history_bytes.load(Ordering::Relaxed));
                let due = over.mul_f64(at as f64 / events as f64);
                tokio::time::sleep(due.saturating_sub(start.elapsed())).await;
            }
        }
        self.sandbox.reached(&ResourceVersion::decimal(u128::from(self.script.version))).await;
        start.elapsed()
    }

    /// Waits until the other watchers have received everything.
    async fn others_end(&mut self) {
        while self.others.join_next().await.transpose().unwrap().is_some() {}
    }

    fn print_kept(&self) {
        let (stats, (watch, history)) = (self.sandbox.informer.stats(), self.most);
        println!(
            "  the others got everything; {} events replayed from the history; at most watch_retained {:.1} MiB and history \
             {:.1} MiB (bounds {} MiB each; the history twice that for a client that needs it)",
            stats.replayed.load(Ordering::Relaxed),
            watch as f64 / f64::from(1 << 20),
            history as f64 / f64::from(1 << 20),
            BOUNDS.size >> 20,
        );
        assert!(watch <= BOUNDS.size as u64 && history <= 2 * BOUNDS.size as u64);
    }
}

async fn join(sandbox: &Sandbox, policy: pb::FullChannelPolicy, is_slow: bool) -> Streaming<pb::WatchResponse> {
    let mut client = if is_slow { sandbox.slow_client().await } else { sandbox.client().await };
    let request = pb::WatchRequest { queue: Some(queue(policy, 1024)), ..watch_from_now() };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    watch.message().await.unwrap();
    watch
}

/// Returns the next message that is not a bookmark.
async fn event(watch: &mut Streaming<pb::WatchResponse>) -> pb::WatchResponse {
    loop {
        let response = watch.message().await.unwrap().unwrap();
        if response.bookmark.is_none() {
            return response;
        }
    }
}

fn version_of(response: &pb::WatchResponse) -> u64 {
    response.resource_version.parse().unwrap()
}
