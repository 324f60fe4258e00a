//! Two servers that differ only in what a caller may not see give it the same answers.
//!
//! Requests, changes of what the caller may see and changes of its rights are drawn once, for both. What it may not see is drawn
//! for each: objects with their namespaces, names, labels and bodies, problems and errors of the upstream, watches of others, and
//! what a view leaves out of the bodies of a caller who may read no more than that.

mod calls;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use fastrand::Rng;
use futures_util::future::join_all;
use informerd::{
    auth::{Authorizer, Identity, IdentityDetails, Rules},
    cache::{Delta, List, Problem, ProblemReason},
    grpc::AccessConfig,
    model::{Event, NamedViews, Object, ResourceVersion, View},
    proto::pb,
};
use serde_json::json;
use tonic::{Request, Status, Streaming};
use tonic_types::StatusExt;

use self::calls::Call;
use super::reviews::FakeReviewer;
use crate::sandbox::{Options, Sandbox, next, pod_at, queue, watch_pods};

/// One run: a server, and the answers that the caller has received so far.
struct Run {
    server: Sandbox,
    /// Rules, which may change; none where Kubernetes reviews each access.
    rules: Option<Authorizer>,
    /// Draws of everything that the caller may not see.
    hidden: Rng,
    /// Namespaces of the hidden objects.
    places: &'static [&'static str],
    objects: BTreeMap<(String, String), Arc<Object>>,
    readable: &'static [&'static str],
    /// True if the caller may read a view only.
    is_of_view: bool,
    answers: Vec<String>,
    watches: Vec<Streaming<pb::WatchResponse>>,
    /// Watches of others.
    others: Vec<Streaming<pb::WatchResponse>>,
    page_tokens: Vec<String>,
}

/// Step of both runs.
#[derive(Debug, Clone)]
enum Step {
    Call(Call),
    /// A change that the caller may see, of an object in this namespace.
    Seen(&'static str, &'static str, bool),
    /// A change that it may not see: one version.
    Hidden,
    /// The upstream is listed again.
    Relist,
    /// The upstream has a problem, or fails.
    Problem,
    Watch(pb::WatchRequest),
    /// All watches are read to a last event; then the caller's rights become these.
    Follow(&'static [&'static str]),
}

const SEEDS: u64 = 12;
/// Number of seeds with calls that wait for the first list.
const WAITING: u64 = 2;
const ROUNDS: usize = 8;
const STEPS: usize = 14;
const READABLE: [&[&str]; 3] = [&["x", "y"], &["x"], &["y"]];
const NAMES: [&str; 3] = ["a", "b", "c"];
const POLICIES: [pb::FullChannelPolicy; 4] = [
    pb::FullChannelPolicy::Drop,
    pb::FullChannelPolicy::Block,
    pb::FullChannelPolicy::Replay,
    pb::FullChannelPolicy::Coalesce,
];

/// Returns the rules that let Ann read these namespaces, perhaps in a view only, and Bob everything.
fn rules(readable: &[&str], is_of_view: bool) -> Rules {
    let mut ann = json!({ "subjects": ["user:ann"], "verbs": ["get", "list", "watch"], "resources": ["*"], "namespaces": readable });
    if is_of_view {
        ann["views"] = json!(["small"]);
    }
    let bob = json!({ "subjects": ["user:bob"], "verbs": ["*"], "resources": ["*"], "namespaces": ["*"] });
    Rules::from_value(&json!([ann, bob])).unwrap()
}

/// Draws the steps of a round. At most one seen change comes before the last event of a round, so that no queue is full.
fn steps(random: &mut Rng, is_of_view: bool) -> Vec<Step> {
    let mut steps: Vec<Step> = (0..STEPS).map(|_| Step::Call(Call::draw(random, is_of_view))).collect();
    let mut add = |step: Step, random: &mut Rng| steps.insert(random.usize(..=steps.len()), step);
    add(Step::Seen(pick(random, &["x", "y"]), pick(random, &NAMES), random.bool()), random);
    for _ in 0..random.usize(1..6) {
        add(Step::Hidden, random);
    }
    match random.u8(..4) {
        0 => add(Step::Relist, random),
        1 => add(Step::Problem, random),
        2 => {
            let (format, policy) = (random.i32(1..3), pick(random, &POLICIES));
            // Bookmarks count what a view suppresses.
            let name = if is_of_view { "small" } else { "@metadata" }.to_owned();
            let view = pb::View { name, only_if_changed: random.bool(), ..Default::default() };
            let view = (is_of_view || random.bool()).then_some(view);
            add(Step::Watch(pb::WatchRequest { format, view, queue: Some(queue(policy, 3)), ..watch_pods() }), random);
        }
        _ => {}
    }
    steps.push(Step::Follow(pick(random, &READABLE)));
    steps
}

fn pick<T: Copy>(random: &mut Rng, of: &[T]) -> T {
    of[random.usize(..of.len())]
}

// === impl Run ===

impl Run {
    /// Starts a server that has not synced.
    async fn start(hidden: Rng, places: &'static [&'static str], is_reviewed: bool, is_of_view: bool) -> Self {
        let reviewer = FakeReviewer::default();
        reviewer.allow("ann", READABLE[0]);
        reviewer.allow("bob", &[""]);
        let of_rules = || Authorizer::of_rules(rules(READABLE[0], is_of_view));
        let authorizer = if is_reviewed { reviewer.authorizer() } else { of_rules() };
        let access = AccessConfig { authorizer: Some(authorizer.clone()), ..AccessConfig::default() };
        let small = View::parse(&["metadata.namespace", "metadata.name", "spec.nodeName"], &[]).unwrap();
        let views = NamedViews::new([("small".to_owned(), small)]).unwrap();
        Self {
            server: Sandbox::start_unsynced(Options { views, access, ..Options::default() }).await,
            rules: Some(authorizer).filter(|_| !is_reviewed),
            hidden,
            places,
            objects: BTreeMap::new(),
            readable: READABLE[0],
            is_of_view,
            answers: Vec::new(),
            watches: Vec::new(),
            others: Vec::new(),
            page_tokens: vec![String::new()],
        }
    }

    fn answered<T: Debug>(&mut self, answer: Result<T, Status>) {
        self.answers.push(answer.map_or_else(|status| in_words(&status), |message| format!("{message:?}")));
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Call(call) => call.make(self).await,
            Step::Seen(namespace, name, is_deleted) => {
                let version = self.server.version();
                let pod = self.seen_pod(namespace, name, &version);
                self.publish(pod, is_deleted).await;
            }
            Step::Hidden => {
                let version = self.server.version();
                let pod = self.hidden_pod(&version);
                let is_deleted = self.hidden.bool();
                self.publish(pod, is_deleted).await;
            }
            Step::Relist => {
                let version = self.server.version();
                self.hide(&version);
                self.list(version).await;
            }
            Step::Problem => self.problem().await,
            Step::Watch(request) => {
                let opened = self.server.in_process().watch(by("ann", request)).await.unwrap();
                self.watches.push(opened.into_inner());
                let at = self.watches.len() - 1;
                self.follow(at, |message| message.bookmark.is_some_and(|bookmark| bookmark.initial_events_end)).await;
                self.answers.push("watched".to_owned());
            }
            Step::Follow(readable) => {
                let version = self.server.version();
                self.publish(pod_at(self.readable[0], &format!("last-{version}"), "", &version), false).await;
                let last = version.to_string();
                for at in 0..self.watches.len() {
                    self.follow(at, |message| message.object.is_some() && message.resource_version == last).await;
                }
                self.allow(readable).await;
            }
        }
    }

    /// Replaces the rights, and reads each watch until it has them.
    async fn allow(&mut self, readable: &'static [&'static str]) {
        let Some(authorizer) = self.rules.as_ref().filter(|_| self.readable != readable) else { return };
        authorizer.set_rules(rules(readable, self.is_of_view));
        self.readable = readable;
        for at in 0..self.watches.len() {
            let has_them = |message: pb::WatchResponse| {
                message
                    .bookmark
                    .is_some_and(|bookmark| !bookmark.history.ends_with('-') && bookmark.namespaces == readable)
            };
            self.follow(at, has_them).await;
        }
    }

    /// Changes an object, or deletes it if it exists; otherwise it is new.
    async fn publish(&mut self, pod: Arc<Object>, is_deleted: bool) {
        let key = (pod.key().namespace().to_owned(), pod.key().name().to_owned());
        let version = pod.version().clone();
        let event = if is_deleted && self.objects.remove(&key).is_some() {
            Event::Deleted(pod)
        } else {
            self.objects.insert(key, Arc::clone(&pod));
            Event::Modified(pod)
        };
        self.server.push(event).await;
        self.server.reached(&version).await;
    }

    /// Returns an object that the caller may see, up to what a view leaves out of it.
    fn seen_pod(&mut self, namespace: &str, name: &str, version: &ResourceVersion) -> Arc<Object> {
        let left_out = if self.is_of_view { self.hidden.u64(..).to_string() } else { "0".to_owned() };
        let spec = format!(r#""nodeName":"node-{name}","at":"{version}","secret":{left_out}"#);
        pod_at(namespace, name, &spec, version)
    }

    fn hidden_pod(&mut self, version: &ResourceVersion) -> Arc<Object> {
        let (place, name) =
            (pick(&mut self.hidden, self.places), pick(&mut self.hidden, &["a", "b", "secret", "other"]));
        let node = pick(&mut self.hidden, &["node-a", "hidden", "elsewhere"]);
        pod_at(place, name, &format!(r#""nodeName":"{node}","secret":{}"#, self.hidden.u64(..)), version)
    }

    /// Puts hidden objects into the next list.
    fn hide(&mut self, version: &ResourceVersion) {
        for _ in 0..self.hidden.usize(1..20) {
            let pod = self.hidden_pod(version);
            self.objects.insert((pod.key().namespace().to_owned(), pod.key().name().to_owned()), pod);
        }
    }

    async fn list(&mut self, version: ResourceVersion) {
        let objects = self.objects.values().cloned().collect();
        self.server.say(Delta::Replace(List::new(objects, version.clone()))).await;
        self.server.reached(&version).await;
    }

    /// Reports problems that name hidden objects, and opens watches of others: another number in each run.
    async fn problem(&mut self) {
        let health = self.server.informer.health().clone();
        for number in 0..self.hidden.usize(1..5) {
            let reasons = [ProblemReason::ObjectTooLarge, ProblemReason::ObjectInvalid, ProblemReason::FileInvalid];
            let (reason, place) = (pick(&mut self.hidden, &reasons), pick(&mut self.hidden, self.places));
            health.set_problem(Problem::new(reason, format!("{place}/hidden-{number}"), format!("hidden {number}")));
            if self.server.informer.snapshot().is_some() {
                let watch = self.server.in_process().watch(by("bob", watch_pods())).await.unwrap().into_inner();
                self.others.push(watch);
            }
        }
        health.record_failure(format!("failed at z/hidden-{}", self.hidden.u8(..)));
    }

    /// Reads a watch until a message.
    async fn follow(&mut self, at: usize, is_last: impl Fn(pb::WatchResponse) -> bool) {
        loop {
            let mut message = next(&mut self.watches[at]).await;
            let is_end = is_last(message.clone());
            normalize(&mut message);
            self.answers.push(format!("{message:?}"));
            if is_end {
                break;
            }
        }
    }
}

/// The same calls, events and versions: only what the caller may not see differs.
#[tokio::test]
async fn what_a_caller_may_not_see_changes_no_answer() {
    let mut answers = BTreeSet::new();
    for seed in 0..SEEDS {
        let (is_reviewed, is_of_view) = (seed % 3 == 0, seed % 3 == 1);
        let places: [&[&str]; 2] = [&["z"], &["", "w", "z", "z2"]];
        let mut runs = Vec::new();
        for (number, places) in (0..).zip(places) {
            runs.push(Run::start(Rng::with_seed(1000 * seed + number), places, is_reviewed, is_of_view).await);
        }
        let mut random = Rng::with_seed(seed);
        // Before the first list, calls wait, and then fail with the same error, whatever the upstream's is.
        for run in &mut runs {
            run.problem().await;
        }
        if seed < WAITING {
            let waiting: Vec<Call> = (0..40).map(|_| Call::draw(&mut random, is_of_view)).collect();
            join_all(runs.iter_mut().map(|run| Call::make_all(&waiting, run))).await;
        }
        for run in &mut runs {
            let version = run.server.version();
            for (namespace, name) in [("x", "a"), ("x", "b"), ("y", "a")] {
                let pod = run.seen_pod(namespace, name, &version);
                run.objects.insert((namespace.to_owned(), name.to_owned()), pod);
            }
            run.hide(&version);
            run.list(version).await;
        }
        let steps: Vec<Step> = (0..ROUNDS).flat_map(|_| steps(&mut random, is_of_view)).collect();
        for step in steps {
            for run in &mut runs {
                run.take(step.clone()).await;
            }
            let [first, second] = &runs[..] else { unreachable!("two runs") };
            assert_eq!(first.answers, second.answers, "seed {seed}: {step:?}");
            answers.extend(runs.iter_mut().flat_map(|run| std::mem::take(&mut run.answers)));
        }
    }
    assert!(answers.len() > 500, "{}", answers.len());
    for hidden in ["hidden", "elsewhere", "secret", "z2"] {
        // A caller's own words may be in an error.
        let answer = answers.iter().find(|answer| answer.contains(&format!("-{hidden}")) || answer.contains(r#""z2""#));
        assert_eq!(answer, None);
    }
    for reason in
        ["ACCESS_DENIED", "NOT_SYNCED", "PAGE_TOKEN_INVALID", "OBJECT_NOT_FOUND", "LeftSelection", "suppressed: 1"]
    {
        assert!(answers.iter().any(|answer| answer.contains(reason)), "{reason}");
    }
}

/// Removes what differs between any two servers: the name of the history, and the times.
fn normalize(message: &mut pb::WatchResponse) {
    if let Some(bookmark) = &mut message.bookmark {
        (bookmark.history, bookmark.source_seen_at) = (String::new(), None);
    }
}

fn in_words(status: &Status) -> String {
    let details = status.get_error_details();
    let info = details.error_info().unwrap_or_else(|| panic!("every status has a reason: {status:?}"));
    // A map on the wire, in any order.
    let metadata: BTreeMap<_, _> = info.metadata.iter().collect();
    format!("{:?} {} {} {metadata:?} {:?}", status.code(), status.message(), info.reason, details.retry_info())
}

/// Returns a request of a user, as authentication passes it on.
fn by<M>(user: &str, message: M) -> Request<M> {
    let details = IdentityDetails { user: user.to_owned(), ..IdentityDetails::default() };
    let mut request = Request::new(message);
    request.extensions_mut().insert(Identity::new(details));
    request
}
