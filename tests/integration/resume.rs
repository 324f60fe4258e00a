//! Watches that resume: from the history, across relists, from a version that the server has not reached yet, and after being
//! parked.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use informerd::{
    model::{Event, ResourceVersion},
    proto::pb,
    watch::{BroadcasterConfig, Retention},
};
use tonic::Code;

use crate::{
    refused_watch::watch_refusal,
    sandbox::{
        DEADLINE, Options, Sandbox, end, fold, next, pod, pod_at, queue, reason, watch_from_now, watch_pods, words,
    },
};

fn from(version: &str) -> pb::WatchRequest {
    pb::WatchRequest { resource_version: version.to_owned(), ..watch_pods() }
}

async fn take(watch: &mut tonic::Streaming<pb::WatchResponse>, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    for _ in 0..count {
        seen.push(words(&next(watch).await));
    }
    seen
}

#[tokio::test]
async fn a_watch_resumes_after_any_version_and_gets_exactly_what_came_after() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut live = sandbox.client().await.watch(watch_from_now()).await.unwrap().into_inner();
    next(&mut live).await;
    for at in 0..5 {
        sandbox.put("shop", &format!("p{}", at % 2), &format!(r#""n":{at}"#)).await;
    }
    let seen = take(&mut live, 5).await;
    assert_eq!(seen[4], "MODIFIED p0 @6");
    let mut resumed = Vec::new();
    for start in 1..=6_usize {
        let mut watch = sandbox.client().await.watch(from(&start.to_string())).await.unwrap().into_inner();
        assert_eq!(take(&mut watch, 6 - start).await, seen[start - 1..], "after {start}");
        assert_eq!(take(&mut watch, 1).await, ["BOOKMARK @6"], "it has caught up");
        resumed.push(watch);
    }
    sandbox.put("shop", "p9", "").await;
    for watch in &mut resumed {
        assert_eq!(take(watch, 1).await, ["ADDED p9 @7"], "then live");
    }
}

/// Checks that watches with the same selection share one encoding, whichever of them resumes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_missed_by_many_watches_of_a_selection_are_encoded_once() {
    const EVENTS: usize = 500;
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    for at in 0..EVENTS {
        sandbox.put("shop", &format!("p{}", at % 10), "").await;
    }
    sandbox.reached(&ResourceVersion::decimal(EVENTS as u128 + 1)).await;
    let mut client = sandbox.client().await;
    let mut watches = Vec::new();
    for _ in 0..50 {
        watches.push(client.watch(from("1")).await.unwrap().into_inner());
    }
    for watch in &mut watches {
        for at in 0..EVENTS {
            assert_eq!(next(watch).await.resource_version, (at + 2).to_string());
        }
    }
    let replayed = sandbox.informer.stats().replayed.load(Ordering::Relaxed);
    assert_eq!(replayed, 50 * EVENTS as u64);
    // Watches of two threads at the same position may encode it at the same time.
    let encoded = sandbox.informer.watch_stats().unwrap().encoded.load(Ordering::Relaxed);
    assert!(encoded <= 4 * EVENTS as u64, "{encoded}");
}

/// Resumes from both ends of a relist, and from the versions inside its gap, which have expired.
#[tokio::test]
async fn a_watch_resumes_across_a_relist_and_not_from_inside_it() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", ""), pod("shop", "b", "")]).await;
    let version = ResourceVersion::decimal(9);
    let relisted = vec![pod_at("shop", "b", r#""x":1"#, &version), pod_at("shop", "c", "", &version)];
    sandbox.list(relisted, 10).await;
    let mut watch = sandbox.client().await.watch(from("1")).await.unwrap().into_inner();
    assert_eq!(take(&mut watch, 3).await, ["DELETED INFERRED a @1", "MODIFIED b @1", "ADDED c @10"]);
    for inside in ["2", "5", "9"] {
        let status = watch_refusal(sandbox.client().await.watch(from(inside))).await;
        assert_eq!((status.code(), reason(&status).as_str()), (Code::OutOfRange, "RESOURCE_VERSION_EXPIRED"));
    }
    let mut watch = sandbox.client().await.watch(from("10")).await.unwrap().into_inner();
    assert_eq!(take(&mut watch, 1).await, ["BOOKMARK @10"]);
    sandbox.push(Event::Deleted(pod_at("shop", "c", "", &ResourceVersion::decimal(11)))).await;
    assert_eq!(take(&mut watch, 1).await, ["DELETED c @11"]);
}

/// Resumes from a version that this server has not reached yet, as another replica may have sent it: the watch waits for it.
#[tokio::test]
async fn a_version_not_reached_yet_is_awaited_and_earlier_events_are_never_sent() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut client = sandbox.client().await;
    let opening = tokio::spawn(async move { client.watch(from("3")).await });
    for at in 0..4 {
        sandbox.put("shop", "a", &format!(r#""n":{at}"#)).await;
    }
    let mut watch = tokio::time::timeout(DEADLINE, opening).await.unwrap().unwrap().unwrap().into_inner();
    assert_eq!(take(&mut watch, 2).await, ["MODIFIED a @4", "MODIFIED a @5"]);

    let options = Options { future_wait: Duration::from_millis(50), ..Options::default() };
    let sandbox = Sandbox::start_with(options, Vec::new()).await;
    let status = watch_refusal(sandbox.client().await.watch(from("9"))).await;
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE"));
}

/// Returns the next event; a bookmark may come between any two.
async fn next_event(watch: &mut tonic::Streaming<pb::WatchResponse>) -> pb::WatchResponse {
    loop {
        let response = next(watch).await;
        if response.r#type() != pb::EventType::Bookmark {
            return response;
        }
    }
}

/// Leaves a REPLAY client far behind: it reads from the history, becomes live again, and nothing is missing or repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_lags_receives_everything_and_becomes_live_again() {
    const EVENTS: u64 = 20_000;
    let few = Retention { events: 100, size: 1 << 30, age: Duration::from_secs(300) };
    let options = Options {
        broadcaster: BroadcasterConfig { retention: few, ..BroadcasterConfig::default() },
        history: Retention { events: 1 << 20, ..few },
        ..Options::default()
    };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let mut watches = Vec::new();
    for selector in ["", "app in (p1,p2,p3)"] {
        let request = pb::WatchRequest {
            queue: Some(queue(pb::FullChannelPolicy::Replay, 10)),
            label_selector: selector.to_owned(),
            ..watch_from_now()
        };
        let mut watch = sandbox.slow_client().await.watch(request).await.unwrap().into_inner();
        next(&mut watch).await;
        watches.push(watch);
    }
    for at in 0..EVENTS {
        sandbox.put("shop", &format!("p{}", at % 100), &format!(r#""filler":"{}""#, "x".repeat(1000))).await;
    }
    sandbox.reached(&ResourceVersion::decimal(u128::from(EVENTS) + 1)).await;
    let mut all = watches.remove(0);
    for at in 0..EVENTS {
        assert_eq!(
            next_event(&mut all).await.resource_version,
            (at + 2).to_string(),
            "in order, none missing, none twice"
        );
    }
    let mut some = watches.remove(0);
    for round in 0..EVENTS / 100 {
        for name in 1..=3 {
            let response = next_event(&mut some).await;
            assert_eq!(response.object.as_ref().unwrap().name, format!("p{name}"));
            assert_eq!(response.resource_version, (round * 100 + name + 2).to_string());
        }
    }
    sandbox.put("shop", "p1", r#""x":1"#).await;
    for watch in [&mut all, &mut some] {
        assert_eq!(words(&next_event(watch).await), format!("MODIFIED p1 @{}", EVENTS + 2), "live again");
    }
}

/// Resumes from the version that a DROPPED event names, which delivers the dropped events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hole_is_healed_by_a_resume_from_the_version_before_it() {
    const EVENTS: u64 = 5_000;
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let request = pb::WatchRequest { queue: Some(queue(pb::FullChannelPolicy::Drop, 10)), ..watch_from_now() };
    let mut watch = sandbox.slow_client().await.watch(request).await.unwrap().into_inner();
    next(&mut watch).await;
    for at in 0..EVENTS {
        sandbox.put("shop", &format!("p{}", at % 10), &format!(r#""filler":"{}""#, "x".repeat(1000))).await;
    }
    sandbox.reached(&ResourceVersion::decimal(u128::from(EVENTS) + 1)).await;
    let hole = loop {
        if let Some(hole) = next(&mut watch).await.dropped {
            break hole;
        }
    };
    let first: u64 = hole.after_resource_version.parse().unwrap();
    let mut healed = sandbox.client().await.watch(from(&hole.after_resource_version)).await.unwrap().into_inner();
    for missing in 0..hole.count {
        assert_eq!(next(&mut healed).await.resource_version, (first + missing + 1).to_string());
    }
}

/// Cuts a client many times: its folded view is the state of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeatedly_disconnected_client_folds_to_the_state() {
    const EVENTS: usize = 3_000;
    let mut sandbox = Sandbox::start((0..20).map(|at| pod("shop", &format!("p{at}"), "")).collect()).await;
    let mut client = sandbox.client().await;
    let last = (EVENTS + 1).to_string();
    let reader = tokio::spawn(async move {
        let (mut view, mut version, mut cuts) = (BTreeMap::new(), String::new(), 0_u32);
        loop {
            let mut watch = client.watch(from(&version)).await.unwrap().into_inner();
            // Cut after a few events, but not before the initial events are complete.
            for at in 0.. {
                let response = next(&mut watch).await;
                fold(&mut view, &response);
                version.clone_from(&response.resource_version);
                if version == last {
                    return (view, cuts);
                }
                if !version.is_empty() && at > cuts as usize % 37 {
                    cuts += 1;
                    break;
                }
            }
        }
    });
    for at in 0..EVENTS {
        sandbox.put("shop", &format!("p{}", at * 7 % 30), &format!(r#""n":{at}"#)).await;
    }
    let (view, cuts) = tokio::time::timeout(DEADLINE, reader).await.unwrap().unwrap();
    let snapshot = sandbox.informer.snapshot().unwrap();
    let held = snapshot.objects(None, None).map(|object| (object.key().name().to_owned(), object.shared_body()));
    assert_eq!(view, held.collect());
    assert!(cuts > 10, "{cuts}");
}

/// Checks for a bookmark at each change of the source's state, and before each close.
#[tokio::test]
async fn the_state_of_the_source_is_sent_when_it_changes_and_the_position_before_the_end() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut watch = sandbox.client().await.watch(watch_from_now()).await.unwrap().into_inner();
    let first = next(&mut watch).await;
    assert_eq!(first.bookmark.unwrap().source(), pb::SyncState::Stale, "nobody has said that the upstream is alive");
    sandbox.informer.health().record_contact();
    let told = next(&mut watch).await;
    assert_eq!((words(&told).as_str(), told.bookmark.unwrap().source()), ("BOOKMARK @1", pb::SyncState::Synced));
    sandbox.lifecycle.draining.cancel();
    assert!(next(&mut watch).await.bookmark.unwrap().draining);
    assert_eq!(end(&mut watch).await.code(), Code::Unavailable);
}

/// One step of a script, and the events that a client of everything receives for it.
struct Step {
    before: u128,
    after: u128,
    told: Vec<String>,
}

/// Source that relists now and then, and records what it did.
struct Script {
    held: BTreeMap<String, std::sync::Arc<informerd::model::Object>>,
    version: u128,
    random: u64,
}

impl Script {
    fn draw(&mut self, below: u64) -> u64 {
        // Numerical Recipes' linear congruential generator: the same run each time.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    async fn change(&mut self, sandbox: &Sandbox) -> Step {
        let before = self.version;
        self.version += 1 + u128::from(self.draw(2));
        let version = ResourceVersion::decimal(self.version);
        let name = format!("p{:02}", self.draw(12));
        let is_deletion = self.held.contains_key(&name) && self.draw(3) == 0;
        let event_type = match (self.held.contains_key(&name), is_deletion) {
            (_, true) => "DELETED",
            (true, false) => "MODIFIED",
            (false, false) => "ADDED",
        };
        if is_deletion {
            let last = self.held.remove(&name).unwrap();
            sandbox.push(Event::Deleted(std::sync::Arc::new(last.at_version(version.clone())))).await;
        } else {
            let pod = pod_at("shop", &name, &format!(r#""n":{}"#, self.version), &version);
            self.held.insert(name.clone(), pod.clone());
            sandbox.push(Event::Modified(pod)).await;
        }
        Step { before, after: self.version, told: vec![format!("{event_type} {name} @{version}")] }
    }

    /// Lists what has become of every object in the meantime.
    async fn relist(&mut self, sandbox: &Sandbox) -> Step {
        let before = self.version;
        self.version += 10;
        let version = ResourceVersion::decimal(self.version);
        let (mut gone, mut changed) = (Vec::new(), Vec::new());
        for at in 0..12 {
            let name = format!("p{at:02}");
            let is_held = self.held.contains_key(&name);
            match self.draw(4) {
                0 if is_held => {
                    self.held.remove(&name);
                    gone.push(format!("DELETED INFERRED {name}"));
                }
                1 | 2 => {
                    let pod = pod_at("shop", &name, &format!(r#""n":{}"#, self.version), &version);
                    self.held.insert(name.clone(), pod);
                    changed.push(format!("{} {name}", if is_held { "MODIFIED" } else { "ADDED" }));
                }
                _ => {}
            }
        }
        let told: Vec<String> = gone.into_iter().chain(changed).collect();
        let last = told.len().saturating_sub(1);
        let at = |index| if index == last { self.version } else { before };
        let told = told.into_iter().enumerate().map(|(index, told)| format!("{told} @{}", at(index))).collect();
        sandbox.list(self.held.values().cloned().collect(), self.version).await;
        Step { before, after: self.version, told }
    }
}

/// Checks that nothing is lost, and nothing repeated except for a batch that the client left in the middle: it is repeated whole.
#[tokio::test]
async fn two_thousand_rounds_of_disconnect_and_resume_across_fifty_relists_lose_and_repeat_nothing() {
    const ROUNDS: usize = 2_000;
    const RELISTS: usize = 50;
    let sandbox = Sandbox::start(Vec::new()).await;
    let mut script = Script { held: BTreeMap::new(), version: 1, random: 42 };
    let mut steps: Vec<Step> = Vec::new();
    // Position of the client: its version, and the next step that it receives.
    let (mut version, mut at) = (1_u128, 0_usize);
    let (mut events, mut repeated) = (0, 0);
    for round in 0..ROUNDS {
        let step = match round % (ROUNDS / RELISTS) {
            0 => script.relist(&sandbox).await,
            _ => script.change(&sandbox).await,
        };
        steps.push(step);
        sandbox.reached(&ResourceVersion::decimal(script.version)).await;
        // A connection of its own: h2's client closes one on which it has cut a thousand busy streams.
        let mut watch = sandbox.client().await.watch(from(&version.to_string())).await.unwrap().into_inner();
        let available: Vec<&String> = steps[at..].iter().flat_map(|step| &step.told).collect();
        let count = script.draw(available.len() as u64 + 1) as usize;
        let last_round = round + 1 == ROUNDS;
        let count = if last_round { available.len() } else { count };
        for expected in &available[..count] {
            let response = next(&mut watch).await;
            assert_eq!(words(&response), **expected, "round {round}, from {version}");
            version = response.resource_version.parse().unwrap();
            events += 1;
        }
        // A client that left inside a batch still has the version before it.
        let reached = steps.iter().position(|step| step.after > version).unwrap_or(steps.len());
        let in_full: usize = steps[at..reached.max(at)].iter().map(|step| step.told.len()).sum();
        repeated += count.saturating_sub(in_full);
        at = reached.max(at);
        assert!(steps.get(at).is_none_or(|step| step.before <= version), "nothing was skipped");
    }
    assert_eq!((version, at), (script.version, steps.len()), "at the end it has been told everything");
    let told: usize = steps.iter().map(|step| step.told.len()).sum();
    assert_eq!(events, told + repeated);
    assert!(repeated > 20, "batches were left in the middle: {repeated}");
}
