//! Reflector with a store of its own: resyncs, the expected type, the filter, and reported errors.

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::*;
use crate::{
    cache::{DeltaFifo, DeltaFifoOptions, Deltas, KeyFunc, MapStore, ObjectDelta, Store},
    model::Cause,
    testing::FakeSource,
};

/// Store that records what is written to it.
#[derive(Debug, Default)]
struct Recorded {
    calls: Mutex<Vec<String>>,
    /// Number of the resync that fails.
    fails_at: Option<u64>,
    /// Version whose delta is rejected once.
    rejects: Mutex<Option<u128>>,
    resyncs: AtomicU64,
}

impl ReflectorStore for Recorded {
    type Error = String;

    async fn apply(&self, delta: Delta) -> Result<(), String> {
        let version = delta.version().unwrap().number();
        if self.rejects.lock().take_if(|rejected| *rejected == version).is_some() {
            return Err("full".to_owned());
        }
        // Without what the source writes to them.
        let of = |object: &Arc<Object>| {
            let text = serde_json::from_slice::<Value>(object.body()).map_or_else(
                |_| String::new(),
                |mut body| {
                    let metadata = body["metadata"].as_object_mut().unwrap();
                    metadata.retain(|field, _| field != "uid" && field != "resourceVersion");
                    body.to_string()
                },
            );
            format!(" {}{text}", object.key().name())
        };
        let list = |list: &List| list.objects.iter().map(of).collect::<String>();
        let events = |events: &[Event]| {
            events.iter().fold(String::new(), |text, event| match event {
                Event::Added(object) => text + "add" + &of(object),
                Event::Modified(object) => text + "modify" + &of(object),
                Event::Deleted(object) => text + "delete" + &of(object),
                Event::Bookmark(_) => text + "bookmark",
                event => format!("{text}{event:?}"),
            })
        };
        let text = match &delta {
            Delta::Replace(listed) => format!("list{}", list(listed)),
            Delta::HistoryRewritten(listed) => format!("rewritten{}", list(listed)),
            Delta::Changes { events: changes, .. } => events(changes),
            Delta::Relist(changes, _) => format!("relist {}", events(changes)),
            Delta::Checkpoint { .. } => panic!("{delta:?}"),
        };
        self.calls.lock().push(text);
        Ok(())
    }

    async fn resync(&self) -> Result<(), String> {
        let resyncs = self.resyncs.fetch_add(1, Ordering::Relaxed) + 1;
        if self.fails_at == Some(resyncs) { Err("no consumer".to_owned()) } else { Ok(()) }
    }
}

impl Recorded {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock())
    }
}

/// Running Reflector over a source in memory.
struct Running {
    source: FakeSource,
    store: Arc<Recorded>,
    health: SourceHealth,
    stats: Arc<ReflectorStats>,
    errors: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    fn start(source: FakeSource, store: Recorded, config: ReflectorConfig) -> Self {
        let (store, errors) = (Arc::new(store), Arc::<Mutex<Vec<_>>>::default());
        let health = SourceHealth::new(source.heartbeat(), Duration::from_secs(15));
        let reported = Arc::clone(&errors);
        let backoff = BackoffConfig { jitter: 0.0, ..BackoffConfig::default() };
        let config = ReflectorConfig { backoff, ..config };
        let config = config.with_error_handler(move |error| reported.lock().push(error.to_string()));
        let reflector = Reflector::new(source.clone(), Arc::clone(&store), health.clone(), config);
        assert_eq!(reflector.last_sync_resource_version(), None);
        let stats = Arc::clone(reflector.stats());
        Self { source, store, health, stats, errors, task: tokio::spawn(reflector.run()) }
    }

    /// Returns what was written, and what was reported, within a time.
    async fn after(&self, time: Duration) -> (Vec<String>, Vec<String>) {
        tokio::time::sleep(time).await;
        (self.store.take(), std::mem::take(&mut self.errors.lock()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const INSTANT: Duration = Duration::from_millis(1);

fn pod(name: &str, secret: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "secret": secret })
}

fn node(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } })
}

fn body(object: &Value) -> String {
    format!("{}{object}", object["metadata"]["name"].as_str().unwrap())
}

fn of_pods() -> ReflectorConfig {
    ReflectorConfig { expected: Some(("v1".to_owned(), "Pod".to_owned())), ..ReflectorConfig::default() }
}

/// Leaves out the objects with the secret "x", and removes the secrets of the others.
fn without_secrets() -> ReflectorConfig {
    let field = crate::model::Path::parse("secret").unwrap();
    let fields = crate::model::FieldCut::new([field]).unwrap();
    let filter: ObjectFilter = Arc::new(move |object: Arc<Object>| {
        let is_served = !String::from_utf8_lossy(object.body()).contains(r#""secret":"x""#);
        is_served.then(|| object.without(&fields))
    });
    ReflectorConfig { filter: Some(filter), ..ReflectorConfig::default() }
}

/// client-go: `TestReflectorResyncChan`.
#[tokio::test(start_paused = true)]
async fn a_resync_comes_each_period_beside_the_watch() {
    let every = |secs| ReflectorConfig { resync_period: Duration::from_secs(secs), ..ReflectorConfig::default() };
    let running = Running::start(FakeSource::new(), Recorded::default(), every(10));
    for expected in [0, 1, 2] {
        tokio::time::sleep(Duration::from_secs(9)).await;
        running.source.add(&pod(&format!("p{expected}"), ""));
        assert_eq!(running.store.resyncs.load(Ordering::Relaxed), expected);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(running.store.take().len(), 4, "one list and three events");

    let running = Running::start(FakeSource::new(), Recorded::default(), every(0));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(running.store.resyncs.load(Ordering::Relaxed), 0);
}

/// client-go: `TestReflectorResync`. Ours goes on: a list follows.
#[tokio::test(start_paused = true)]
async fn a_failed_resync_ends_the_watch_and_a_list_follows_after_the_delay() {
    let config = ReflectorConfig { resync_period: Duration::from_secs(10), ..ReflectorConfig::default() };
    let running = Running::start(FakeSource::new(), Recorded { fails_at: Some(2), ..Recorded::default() }, config);
    assert_eq!(running.after(Duration::from_millis(20_700)).await.0, ["list"]);
    assert_eq!(running.store.resyncs.load(Ordering::Relaxed), 2);
    assert_eq!(running.health.report().last_error.as_deref(), Some("resync failed: no consumer"));
    let (calls, errors) = running.after(Duration::from_millis(200)).await;
    assert_eq!(calls, ["list"]);
    assert_eq!(errors, [""; 0], "reported with the failure, not with the list");
    assert_eq!(running.health.report().last_error, None);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(running.store.resyncs.load(Ordering::Relaxed), 3, "one period after the list");
}

#[tokio::test(start_paused = true)]
async fn a_resync_takes_place_only_if_it_should() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let should_resync: ShouldResync = Arc::new(move || count.fetch_add(1, Ordering::Relaxed) % 2 == 1);
    let config = ReflectorConfig {
        resync_period: Duration::from_secs(10),
        should_resync: Some(should_resync),
        ..ReflectorConfig::default()
    };
    let running = Running::start(FakeSource::new(), Recorded::default(), config);
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert_eq!((asked.load(Ordering::Relaxed), running.store.resyncs.load(Ordering::Relaxed)), (4, 2));
}

/// client-go: `TestReflectorWatchHandler`, its half of the wrong type. Ours advances the version.
#[tokio::test(start_paused = true)]
async fn an_object_of_another_type_is_reported_counted_and_left_out() {
    let source = FakeSource::new();
    let web = source.add(&pod("web", ""));
    source.add(&node("a"));
    source.add(&node("b"));
    let running = Running::start(source, Recorded::default(), of_pods());
    let (calls, errors) = running.after(INSTANT).await;
    assert_eq!(calls, [format!("list {}", body(&pod("web", "")))]);
    let problem = |name, count| {
        format!(
            "unexpected type of {name}: found \"v1, Kind=Node\", expected \"v1, Kind=Pod\" (objects left out: {count})"
        )
    };
    assert_eq!(errors, [problem("a", 2)]);
    let listed = running.stats.last_sync_resource_version();
    assert!(listed.as_ref() > Some(&web));

    let left_out = running.source.modify(&node("a"));
    let (calls, errors) = running.after(INSTANT).await;
    assert_eq!((calls, errors), (vec!["bookmark".to_owned()], vec![problem("a", 1)]));
    assert_eq!(running.stats.last_sync_resource_version(), Some(left_out), "as that of the source");
    assert_eq!(running.stats.unexpected.load(Ordering::Relaxed), 3);

    let next = running.source.modify(&pod("web", "y"));
    assert_eq!(running.after(INSTANT).await.0, [format!("modify {}", body(&pod("web", "y")))]);
    assert_eq!(running.stats.last_sync_resource_version(), Some(next));
}

/// The source is past them: it could not prove the history up to an earlier version.
#[tokio::test(start_paused = true)]
async fn the_next_watch_begins_after_events_of_another_type() {
    let running = Running::start(FakeSource::new(), Recorded::default(), of_pods());
    tokio::time::sleep(Duration::from_secs(2)).await;
    running.source.add(&node("a"));
    tokio::time::sleep(INSTANT).await;
    running.source.close_watches();
    let (calls, errors) = running.after(INSTANT).await;
    assert_eq!((calls, errors.len()), (vec!["list".to_owned(), "bookmark".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn a_filter_changes_objects_and_what_it_rejects_is_deleted() {
    let source = FakeSource::new();
    source.add(&pod("web", "s"));
    source.add(&pod("hidden", "x"));
    let running = Running::start(source, Recorded::default(), without_secrets());
    let clear = |name: &str| format!("{name}{}", pod(name, "").to_string().replace(r#","secret":"""#, ""));
    assert_eq!(running.after(INSTANT).await.0, [format!("list {}", clear("web"))]);
    for (secret, expected) in [
        ("t", format!("modify {}", clear("web"))),
        ("x", "delete web".to_owned()),
        ("u", format!("modify {}", clear("web"))),
    ] {
        running.source.modify(&pod("web", secret));
        assert_eq!(running.after(INSTANT).await.0, [expected]);
    }
    running.source.add(&pod("new", "x"));
    assert_eq!(running.after(INSTANT).await.0, ["delete new"], "which was never stored");
    running.source.delete("", "new");
    running.source.delete("", "web");
    assert_eq!(running.after(INSTANT).await.0, ["delete new".to_owned(), format!("delete {}", clear("web"))]);
    assert_eq!(running.stats.last_sync_resource_version(), Some(running.source.version()));
}

/// As of a source that polls, or of a relay whose upstream lists.
#[tokio::test(start_paused = true)]
async fn a_list_inside_a_watch_is_filtered_as_any_other() {
    #[derive(Debug)]
    struct Polled;

    impl ListerWatcher for Polled {
        async fn list(&self, _: ListVersion) -> Result<List, SourceError> {
            Ok(List::new(Vec::new(), version(1)))
        }

        async fn watch(&self, _: ResourceVersion) -> Result<Watch, SourceError> {
            let objects = [pod("web", "s"), pod("hidden", "x"), node("a")];
            let objects = objects.map(|json| Arc::new(Object::from_json(json.to_string(), "", version(2)).unwrap()));
            let list = List::new(objects.to_vec(), version(2));
            let relist = Delta::Relist(objects.map(Event::Modified).into(), Cause::Inferred);
            let deltas = [Delta::Replace(list.clone()), relist, Delta::HistoryRewritten(list)];
            Ok(Box::pin(stream::iter(deltas.map(Ok)).chain(stream::pending())))
        }

        fn heartbeat(&self) -> Duration {
            Duration::MAX
        }
    }

    let store = Arc::new(Recorded::default());
    let config = ReflectorConfig { expected: of_pods().expected, ..without_secrets() };
    let reflector =
        Reflector::new(Polled, Arc::clone(&store), SourceHealth::new(Duration::MAX, Duration::ZERO), config);
    let stats = Arc::clone(reflector.stats());
    let task = tokio::spawn(reflector.run());
    tokio::time::sleep(INSTANT).await;
    task.abort();
    let web = format!("web{}", pod("web", "").to_string().replace(r#","secret":"""#, ""));
    let relist = format!("relist modify {web}delete hiddenbookmark");
    assert_eq!(store.take(), ["list".to_owned(), format!("list {web}"), relist, format!("rewritten {web}")]);
    assert_eq!(stats.unexpected.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the filter changed key, uid or version of web")]
async fn a_filter_that_changes_the_version_panics() {
    let filter: ObjectFilter = Arc::new(|object| Some(Arc::new(object.at_version(version(1)))));
    let source = FakeSource::new();
    source.add(&pod("web", ""));
    let config = ReflectorConfig { filter: Some(filter), ..ReflectorConfig::default() };
    let health = SourceHealth::new(source.heartbeat(), Duration::ZERO);
    Reflector::new(source, Arc::new(Recorded::default()), health, config).run().await;
}

/// client-go only logs it, and the change is lost.
#[tokio::test(start_paused = true)]
async fn what_the_store_rejects_is_listed_again_after_the_delay() {
    let source = FakeSource::new();
    let store = Recorded { rejects: Mutex::new(Some(2)), ..Recorded::default() };
    let running = Running::start(source, store, ReflectorConfig::default());
    tokio::time::sleep(INSTANT).await;
    running.source.add(&pod("web", ""));
    let (calls, errors) = running.after(INSTANT).await;
    assert_eq!((calls, errors), (vec!["list".to_owned()], vec!["store failed: full".to_owned()]));
    assert_eq!(running.health.state(), SyncState::Stale);
    assert_eq!(running.stats.last_sync_resource_version(), Some(version(1)));
    assert_eq!(running.after(Duration::from_secs(1)).await.0, [format!("list {}", body(&pod("web", "")))]);
    assert_eq!(running.health.state(), SyncState::Synced);
}

#[tokio::test(start_paused = true)]
async fn failed_lists_and_watches_are_reported_and_a_normal_close_is_not() {
    let source = FakeSource::new();
    source.fail_list(unavailable());
    source.fail_watch(busy());
    let running = Running::start(source, Recorded::default(), ReflectorConfig::default());
    let (_, errors) = running.after(Duration::from_secs(30)).await;
    assert_eq!(errors, ["list failed: 500", "watch failed: upstream unavailable: 429"]);
    running.source.close_watches();
    let (_, errors) = running.after(Duration::from_secs(30)).await;
    assert_eq!(errors, [""; 0]);
    running.source.add(&pod("web", ""));
    running.source.expire();
    running.source.add_drop_watch(&pod("other", ""));
    running.source.expire();
    running.source.close_watches();
    let (calls, errors) = running.after(INSTANT).await;
    assert_eq!((calls.len(), errors.len()), (2, 1), "{calls:?} {errors:?}");
    assert!(errors[0].starts_with("watch failed: resource version expired upstream"));
    assert_eq!(running.health.report().last_error, None);
}

/// The rule of the health: an expired watch is no failure while its list succeeds.
#[tokio::test(start_paused = true)]
async fn an_expired_watch_is_a_failure_only_if_the_list_fails() {
    let run = run_for(Duration::from_secs(1), vec![Listed(10), Refuse(expired())]).await;
    let report = run.health.report();
    assert_eq!((report.state, report.problems), (SyncState::Stale, 0));
    assert_eq!(report.last_error.as_deref(), Some("changes of the upstream were missed: it is listed again"));
    let run = run_for(Duration::from_secs(1), vec![Listed(10), Refuse(expired()), FailList(busy())]).await;
    assert_eq!(run.health.report().last_error.as_deref(), Some("list failed: upstream unavailable: 429"));
}

/// client-go: `TestRunUntil`, `TestReflectorStopWatch`, `TestReflectorWatchStoppedBefore`, `TestReflectorWatchStoppedAfter`,
/// `TestReflectorHandleWatchStoppedBefore`, `TestReflectorHandleWatchStoppedAfter`: a dropped Reflector has released its watch, and
/// one that was never polled has requested nothing.
#[tokio::test(start_paused = true)]
async fn a_reflector_that_is_dropped_stops_its_watch() {
    /// Source whose watch holds a reference.
    #[derive(Debug)]
    struct Held(Arc<()>);

    impl ListerWatcher for Held {
        async fn list(&self, _: ListVersion) -> Result<List, SourceError> {
            Ok(List::new(Vec::new(), version(1)))
        }

        async fn watch(&self, _: ResourceVersion) -> Result<Watch, SourceError> {
            let held = Arc::clone(&self.0);
            Ok(Box::pin(stream::unfold(held, async |held| {
                std::future::pending::<()>().await;
                Some((Err(SourceError::Broken(String::new())), held))
            })))
        }

        fn heartbeat(&self) -> Duration {
            Duration::MAX
        }
    }

    let held = Arc::new(());
    let health = || SourceHealth::new(Duration::MAX, Duration::ZERO);
    let reflector =
        || Reflector::new(Held(Arc::clone(&held)), Arc::new(Recorded::default()), health(), ReflectorConfig::default());
    let stats = {
        let reflector = reflector();
        let stats = Arc::clone(reflector.stats());
        drop(reflector.run());
        stats
    };
    assert_eq!((stats.lists.load(Ordering::Relaxed), Arc::strong_count(&held)), (0, 1), "stopped before its start");
    let task = tokio::spawn(reflector().run());
    tokio::time::sleep(INSTANT).await;
    assert_eq!(Arc::strong_count(&held), 3, "the source and its watch");
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(Arc::strong_count(&held), 1);
}

/// Every store of the library is one: a queue of deltas has the additions, changes and deletions of lists and events.
#[tokio::test(start_paused = true)]
async fn any_store_of_objects_follows_the_source() {
    let source = FakeSource::new();
    source.add(&pod("web", ""));
    let (objects, queue) = (
        Arc::new(MapStore::new(KeyFunc::default())),
        Arc::new(DeltaFifo::new(DeltaFifoOptions::new(KeyFunc::default()))),
    );
    let health = || SourceHealth::new(Duration::MAX, Duration::ZERO);
    let config = ReflectorConfig { resync_period: Duration::from_secs(1), ..ReflectorConfig::default() };
    let tasks = [
        tokio::spawn(Reflector::new(source.clone(), Arc::clone(&objects), health(), config.clone()).run()),
        tokio::spawn(Reflector::new(source.clone(), Arc::clone(&queue), health(), config).run()),
    ];
    tokio::time::sleep(INSTANT).await;
    source.modify(&pod("web", "a"));
    source.add(&pod("api", ""));
    tokio::time::sleep(Duration::from_secs(2)).await;
    source.delete("", "web");
    tokio::time::sleep(INSTANT).await;
    let names = objects.list().iter().map(|object| object.key().name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names, ["api"]);
    let deltas = |deltas: &Deltas<Arc<Object>>| {
        let of = |delta: &ObjectDelta<Arc<Object>>| match delta {
            ObjectDelta::Replaced(_) => "replaced",
            ObjectDelta::Added(_) => "added",
            ObjectDelta::Updated(_) => "updated",
            ObjectDelta::Deleted(_) => "deleted",
            other => panic!("{other:?}"),
        };
        deltas.iter().map(of).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(queue.list().iter().map(deltas).collect::<Vec<_>>(), ["added", "replaced updated deleted"]);
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_reflector_has_the_name_of_its_place_or_the_given_one() {
    let named = |name: Option<&str>| {
        let health = SourceHealth::new(Duration::MAX, Duration::ZERO);
        let config = ReflectorConfig { name: name.map(str::to_owned), ..ReflectorConfig::default() };
        Reflector::new(FakeSource::new(), Arc::new(Recorded::default()), health, config)
    };
    let line = line!() - 2;
    assert_eq!(named(None).name(), format!("{}:{line}", file!()));
    assert_eq!(named(Some("pods")).name(), "pods");
}

#[test]
fn the_last_version_follows_across_the_halves_of_its_number() {
    let stats = ReflectorStats::default();
    assert_eq!(stats.last_sync_resource_version(), None);
    let numbers = [7, 8, u128::from(u64::MAX), 1 << 64, (1 << 64) + 5, 9];
    stats.begin_at(&version(numbers[0]));
    for pair in numbers.windows(2) {
        stats.advance(&version(pair[0]), &version(pair[1]));
        assert_eq!(stats.last_sync_resource_version(), Some(version(pair[1])));
    }
    let other = "run.3".parse::<ResourceVersion>().unwrap();
    stats.begin_at(&other);
    stats.advance(&other, &other.next());
    assert_eq!(stats.last_sync_resource_version(), Some(other.next()));
}
