//! Reconciler over sources in memory, on a paused clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_test::{assert_pending, assert_ready, task};

use super::*;
use crate::{
    cache::{ExponentialRateLimiter, InformerOptions, SourceError, WorkQueueConfig},
    model::ObjectKey,
    testing::FakeSource,
};

type Informer = SharedInformer<Value>;
type Outcome = Result<Action, String>;

const MILLI: Duration = Duration::from_millis(1);

fn object(name: &str, value: u64) -> Value {
    json!({ "metadata": { "name": name }, "value": value })
}

fn owned(name: &str, owner: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "owner": owner } } })
}

fn start(source: &FakeSource) -> Informer {
    Informer::start(source.clone(), InformerOptions::default())
}

fn own_key(object: &Object) -> [String; 1] {
    [object.key().to_string()]
}

/// Returns the owner of an object, if it has one.
fn owner(object: &Object) -> Option<String> {
    object.labels().get("owner").map(str::to_owned)
}

/// Calls of a reconciler: the key and the time.
#[derive(Clone)]
struct Calls {
    began: Instant,
    calls: Arc<Mutex<Vec<(String, Duration)>>>,
}

impl Calls {
    fn new() -> Self {
        Self { began: Instant::now(), calls: Arc::default() }
    }

    fn record(&self, key: &str) {
        self.calls.lock().push((key.to_owned(), self.began.elapsed()));
    }

    fn keys(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock()).into_iter().map(|(key, _)| key).collect()
    }

    fn times(&self) -> Vec<u128> {
        std::mem::take(&mut *self.calls.lock()).into_iter().map(|(_, at)| at.as_millis()).collect()
    }
}

/// Runs a reconciler in a task, whose calls are recorded and have this outcome.
fn spawn(
    reconciler: Reconciler<String>,
    outcome: impl Fn(&str) -> Outcome + Send + Sync + 'static,
) -> (Calls, CancellationToken, JoinHandle<Result<(), Stopped>>) {
    let (calls, stop) = (Calls::new(), CancellationToken::new());
    let recorded = calls.clone();
    let reconcile = move |key: String| {
        recorded.record(&key);
        std::future::ready(outcome(&key))
    };
    (calls, stop.clone(), tokio::spawn(reconciler.run(stop, reconcile)))
}

async fn pass(millis: u32) {
    tokio::time::sleep(millis * MILLI).await;
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_both_states_are_reconciled_after_each_change() {
    let (pods, owners) = (FakeSource::new(), FakeSource::new());
    pods.add(&owned("web", "shop"));
    owners.add(&object("shop", 1));
    let (pod_informer, owner_informer) = (start(&pods), start(&owners));
    let reconciler = Reconciler::new(WorkQueue::default()).watch(&owner_informer, own_key).watch(&pod_informer, owner);
    let (calls, stop, task) = spawn(reconciler, |_| Ok(Action::Done));
    pass(10).await;
    assert_eq!(calls.keys(), ["shop"], "once for both");
    pods.modify(&owned("web", "bank"));
    pass(10).await;
    assert_eq!(calls.keys(), ["shop", "bank"]);
    pods.delete("", "web");
    owners.add(&object("post", 1));
    pass(10).await;
    assert_eq!(BTreeSet::from_iter(calls.keys()), BTreeSet::from(["bank".to_owned(), "post".to_owned()]));
    // What is missing in a list was deleted.
    owners.delete_drop_watch("", "post");
    owners.expire();
    owners.close_watches();
    pass(60_000).await;
    assert_eq!(calls.keys(), ["post"]);
    stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_reconciled_before_every_informer_has_its_first_list() {
    let (early, late) = (FakeSource::new(), FakeSource::new());
    early.add(&object("web", 1));
    late.add(&object("db", 1));
    late.fail_list(SourceError::Unavailable("500".to_owned()));
    let (one, other) = (start(&early), Arc::new(start(&late)));
    let reconciler = Reconciler::new(WorkQueue::default()).watch(&one, own_key).watch(&other, own_key);
    let checked = Arc::clone(&other);
    let (calls, stop, task) = spawn(reconciler, move |_| {
        assert!(checked.has_synced());
        Ok(Action::Done)
    });
    pass(1).await;
    assert!(one.has_synced() && calls.keys().is_empty());
    pass(60_000).await;
    assert_eq!(BTreeSet::from_iter(calls.keys()), BTreeSet::from(["db".to_owned(), "web".to_owned()]));
    stop.cancel();
    task.await.unwrap().unwrap();

    // An informer that ends before is an error, and so is one that has ended; a stop is none.
    let never = || {
        let source = FakeSource::new();
        for _ in 0..100 {
            source.fail_list(SourceError::Unavailable("500".to_owned()));
        }
        start(&source)
    };
    for stops_before in [false, true] {
        let informer = never();
        if stops_before {
            informer.stop().await;
        }
        let queue = WorkQueue::default();
        let (_, _, task) = spawn(Reconciler::new(queue.clone()).watch(&informer, own_key), |_| Ok(Action::Done));
        pass(1).await;
        informer.stop().await;
        assert_eq!(task.await.unwrap(), Err(Stopped));
        assert!(queue.is_shutting_down());
    }
    let informer = never();
    let (_, stop, task) = spawn(Reconciler::new(WorkQueue::default()).watch(&informer, own_key), |_| Ok(Action::Done));
    stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn errors_and_panics_are_tried_again_after_growing_delays_and_others_do_not_wait() {
    let source = FakeSource::new();
    for name in ["bad", "broken", "good"] {
        source.add(&object(name, 1));
    }
    let informer = start(&source);
    let rate_limiter = Box::new(ExponentialRateLimiter::new(10 * MILLI, 40 * MILLI));
    let queue = WorkQueue::new(WorkQueueConfig { rate_limiter, max_keys: 3 });
    let is_fixed = Arc::new(AtomicBool::new(false));
    let fixed = Arc::clone(&is_fixed);
    let outcome = move |key: &str| match key {
        _ if fixed.load(Ordering::Relaxed) => Ok(Action::Done),
        "bad" => Err("disk full".to_owned()),
        "broken" => panic!("simulated"),
        _ => Ok(Action::Done),
    };
    let (calls, stop, task) = spawn(Reconciler::new(queue.clone()).watch(&informer, own_key), outcome);
    pass(1).await;
    assert_eq!(BTreeSet::from_iter(calls.keys()).len(), 3);
    let began = Instant::now();
    pass(124).await;
    assert_eq!(calls.keys(), ["bad", "broken"].repeat(4), "after 10, 30, 70 and 110 ms");
    assert_eq!((queue.requeues(&"bad".to_owned()), began.elapsed()), (5, 124 * MILLI));

    // A change does not wait for the delay, and a success ends the counting.
    is_fixed.store(true, Ordering::Relaxed);
    source.modify(&object("bad", 2));
    pass(1).await;
    assert_eq!((calls.keys(), queue.requeues(&"bad".to_owned())), (vec!["bad".to_owned()], 0));
    pass(100).await;
    assert_eq!(calls.keys(), ["broken"]);
    stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_action_repeats_its_key_after_a_time_or_at_a_change() {
    let source = FakeSource::new();
    source.add(&object("web", 1));
    let informer = start(&source);
    let (calls, stop, task) =
        spawn(Reconciler::new(WorkQueue::default()).watch(&informer, own_key), |_| Ok(Action::After(1000 * MILLI)));
    pass(2500).await;
    let times = calls.times();
    let first = times[0];
    assert_eq!(times, [first, first + 1000, first + 2000]);
    source.modify(&object("web", 2));
    pass(1600).await;
    let times = calls.times();
    assert_eq!(times.len(), 2, "at the change, and a second after it: {times:?}");
    assert_eq!(times[1], times[0] + 1000);
    stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn changes_come_before_the_first_list_and_resyncs() {
    let source = FakeSource::new();
    for number in 0..10 {
        source.add(&object(&format!("old-{number}"), 1));
    }
    let informer = start(&source);
    let options = HandlerOptions { resync: Duration::from_secs(60), ..HandlerOptions::default() };
    let reconciler = Reconciler::new(WorkQueue::default()).watch_with(&informer, options, own_key);
    let (calls, stop) = (Calls::new(), CancellationToken::new());
    let recorded = calls.clone();
    let reconcile = move |key: String| {
        recorded.record(&key);
        async {
            pass(100).await;
            Ok::<_, String>(Action::Done)
        }
    };
    let task = tokio::spawn(reconciler.run(stop.clone(), reconcile));
    pass(150).await;
    source.modify(&object("old-9", 2));
    source.add(&object("new", 1));
    pass(1800).await;
    let keys = calls.keys();
    assert_eq!(keys[2..4], ["old-9", "new"]);
    assert_eq!(keys.len(), 11, "old-9 once, for the list and the change");
    pass(58_500).await;
    source.modify(&object("old-9", 3));
    pass(200).await;
    let keys = calls.keys();
    assert!(
        (5..8).contains(&keys.len()) && keys.contains(&"old-9".to_owned()),
        "it is before most of the resync: {keys:?}"
    );
    stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_calls_that_go_on_and_a_shutdown_of_the_queue_for_all() {
    for is_stop in [true, false] {
        let source = FakeSource::new();
        for number in 0..5 {
            source.add(&object(&number.to_string(), 1));
        }
        let informer = start(&source);
        let (stop, ended) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&ended);
        let reconcile = move |_: String| {
            let counted = Arc::clone(&counted);
            async move {
                pass(1000).await;
                counted.fetch_add(1, Ordering::Relaxed);
                Err::<Action, _>("again")
            }
        };
        let queue = WorkQueue::default();
        let reconciler = Reconciler::new(queue.clone()).watch(&informer, own_key).workers(2);
        let task = tokio::spawn(reconciler.run(stop.clone(), reconcile));
        pass(500).await;
        if is_stop {
            stop.cancel();
        } else {
            queue.shut_down();
        }
        task.await.unwrap().unwrap();
        assert_eq!(ended.load(Ordering::Relaxed), if is_stop { 2 } else { 5 });
        assert!(queue.is_shutting_down());
        source.add(&object("later", 1));
        pass(10).await;
        assert_eq!(queue.stats().delayed, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reconciler_that_is_dropped_returns_its_keys() {
    let source = FakeSource::new();
    source.add(&object("web", 1));
    let informer = start(&source);
    let queue = WorkQueue::default();
    let reconciler = Reconciler::new(queue.clone()).watch(&informer, own_key);
    let pending = |_: String| std::future::pending::<Outcome>();
    let mut run = task::spawn(reconciler.run(CancellationToken::new(), pending));
    assert_pending!(run.poll());
    pass(10).await;
    assert_pending!(run.poll());
    pass(10).await;
    assert_eq!(queue.stats().processing, 1);
    drop(run);
    pass(1).await;
    assert_eq!((queue.stats().processing, queue.len()), (0, 1));
    let mut next = task::spawn(queue.get());
    assert_eq!(assert_ready!(next.poll()).unwrap().key(), "web");
}

/// A reconciler that fails one time in ten, and sources that break: the last call of each key saw its last state, and no key was
/// reconciled twice at a time.
#[tokio::test(start_paused = true)]
async fn the_last_reconciliation_of_each_key_sees_its_last_state() {
    let source = FakeSource::new();
    let informer = Arc::new(start(&source));
    let (running, last) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(Mutex::new(BTreeMap::new())));
    let (pods, in_progress, seen) = (Arc::clone(&informer), Arc::clone(&running), Arc::clone(&last));
    let random = Arc::new(Mutex::new(fastrand::Rng::with_seed(7)));
    let reconcile = move |key: ObjectKey| {
        let (pods, running, last) = (Arc::clone(&pods), Arc::clone(&in_progress), Arc::clone(&seen));
        let (fails, delay) = {
            let mut random = random.lock();
            (random.u8(..10) == 0, random.u32(..5))
        };
        async move {
            assert!(running.lock().insert(key.clone()), "{key} is reconciled twice at a time");
            let state = pods.get(&key).map(|pod| pod["value"].clone());
            pass(delay).await;
            assert!(running.lock().remove(&key));
            if fails {
                return Err("simulated");
            }
            last.lock().insert(key, state);
            Ok(Action::Done)
        }
    };
    let stop = CancellationToken::new();
    let queue = WorkQueue::new(WorkQueueConfig { max_keys: 100, ..WorkQueueConfig::default() });
    let reconciler = Reconciler::new(queue).watch(&informer, |pod| [pod.key().clone()]).workers(8);
    let task = tokio::spawn(reconciler.run(stop.clone(), reconcile));
    let mut random = fastrand::Rng::with_seed(11);
    let mut expected = BTreeMap::new();
    for number in 0..5000u64 {
        let name = format!("pod-{}", random.u32(..500));
        let key = ObjectKey::new("", &name).unwrap();
        let exists = expected.get(&key).is_some_and(Option::is_some);
        match random.u8(..20) {
            0 if exists => {
                source.delete_drop_watch("", &name);
                expected.insert(key, None);
            }
            1 if exists => {
                source.delete("", &name);
                expected.insert(key, None);
            }
            2 => source.close_watches(),
            3 if random.u8(..10) == 0 => {
                source.expire();
                source.close_watches();
            }
            _ => {
                if exists {
                    source.modify(&object(&name, number));
                } else {
                    source.add(&object(&name, number));
                }
                expected.insert(key, Some(json!(number)));
            }
        }
        if number % 10 == 0 {
            pass(1).await;
        }
    }
    source.expire();
    source.close_watches();
    pass(600_000).await;
    // A key that nobody saw between its addition and its deletion was never reconciled.
    let absent = |state: &&Option<Value>| state.is_some();
    let last = last.lock().clone();
    assert_eq!(
        last.iter().filter(|(_, state)| absent(state)).collect::<Vec<_>>(),
        expected.iter().filter(|(_, state)| absent(state)).collect::<Vec<_>>()
    );
    stop.cancel();
    task.await.unwrap().unwrap();
}
