//! Informers of programs over a source in memory, on a paused clock.

mod blocking;
mod entries;
mod handlers;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::*;
use crate::{
    cache::{ReflectorConfig, Start, SyncState},
    model::{IndexersError, Selection},
    testing::FakeSource,
    watch::{Client, End, FullChannelPolicy, QueueOptions, Subscribe, Taken},
};

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    phase: String,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// Makes a pod with labels, as `a=1,b=2`.
fn pod(name: &str, labels: &str) -> Value {
    let labels: BTreeMap<&str, &str> = labels.split(',').filter_map(|label| label.split_once('=')).collect();
    json!({ "metadata": { "name": name, "labels": labels } })
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("", name).unwrap()
}

fn start<T: Decode>(source: &FakeSource) -> SharedInformer<T> {
    SharedInformer::start(source.clone(), InformerOptions::default())
}

async fn synced<T: Decode>(source: &FakeSource) -> SharedInformer<T> {
    let informer = start(source);
    informer.wait_for(&source.version()).await.unwrap();
    informer
}

fn names(pods: &[Entry<Pod>]) -> Vec<&str> {
    pods.iter().map(|pod| pod.metadata.name.as_str()).collect()
}

/// Returns an index by the keys of the labels, which counts its calls.
fn label_keys(name: &str, calls: &Arc<AtomicUsize>) -> (String, IndexFunc) {
    let calls = Arc::clone(calls);
    let closure = move |object: &Object| {
        calls.fetch_add(1, Ordering::Relaxed);
        object.labels().iter().map(|(key, _)| key.to_owned()).collect()
    };
    (name.to_owned(), IndexFunc::custom(name, closure))
}

/// Lets every task run until it waits.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// client-go `TestIndexer`: indexes added before the first list, and later.
#[tokio::test(start_paused = true)]
async fn indexes_added_at_any_time_have_the_present_objects_and_every_later_one() {
    let (source, calls) = (FakeSource::new(), Arc::default());
    source.add(&pod("pod1", "a=a-val,b=b-val1"));
    source.add(&pod("pod2", "a=a-val,b=b-val2"));
    let informer: SharedInformer<Pod> = start(&source);
    assert!(!informer.has_synced());
    informer.add_indexers([label_keys("labels", &calls)]).await.unwrap();
    informer.wait_for_cache_sync().await.unwrap();
    assert!(informer.has_synced());
    assert_eq!(names(&informer.by_index("labels", "a").unwrap()), ["pod1", "pod2"]);

    informer.wait_for(&source.add(&pod("pod3", "a=a-val2"))).await.unwrap();
    assert_eq!(names(&informer.by_index("labels", "a").unwrap()), ["pod1", "pod2", "pod3"]);

    let before = calls.load(Ordering::Relaxed);
    informer.add_indexers([label_keys("labels-again", &calls)]).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed) - before, 3, "each object once, and only by the new index");
    assert_eq!(names(&informer.by_index("labels-again", "a").unwrap()), ["pod1", "pod2", "pod3"]);
    assert_eq!(informer.list_index_func_values("labels-again").unwrap(), ["a", "b"]);

    let [first, third] = ["pod1", "pod3"].map(|name| {
        let snapshot = informer.handle().snapshot().unwrap();
        Arc::clone(snapshot.get(&key(name)).unwrap())
    });
    assert_eq!(names(&informer.index("labels", &first).unwrap()), ["pod1", "pod2", "pod3"], "each once");
    assert_eq!(informer.index_keys("labels", "b").unwrap(), [key("pod1"), key("pod2")]);
    informer.wait_for(&source.modify(&pod("pod1", ""))).await.unwrap();
    informer.wait_for(&source.delete("", "pod2")).await.unwrap();
    for index in ["labels", "labels-again"] {
        assert_eq!(names(&informer.index(index, &third).unwrap()), ["pod3"]);
        assert_eq!(informer.index_keys(index, "b").unwrap(), []);
        assert_eq!(informer.list_index_func_values(index).unwrap(), ["a"]);
    }
    assert_eq!(informer.by_index("none", "a").unwrap_err(), UnknownIndex { name: "none".to_owned() });
}

/// client-go `TestIndexer`: the errors of `AddIndexers`.
#[tokio::test(start_paused = true)]
async fn of_several_indexes_all_are_added_or_none() {
    let (source, calls) = (FakeSource::new(), Arc::default());
    let informer: SharedInformer<Pod> = start(&source);
    let functions = |names: &[&str]| names.iter().map(|name| label_keys(name, &calls)).collect::<Vec<_>>();
    informer.add_indexers(functions(&["a", "b"])).await.unwrap();
    for _ in 0..2 {
        let duplicate = AddIndexersError::Invalid(IndexersError::Duplicate { name: "b".to_owned() });
        assert_eq!(informer.add_indexers(functions(&["c", "b"])).await, Err(duplicate));
        let built_in = AddIndexersError::Invalid(IndexersError::BuiltIn);
        assert_eq!(informer.add_indexers(functions(&["d", "namespace"])).await, Err(built_in));
        assert!(informer.by_index("c", "").is_err() && informer.by_index("d", "").is_err());
        assert!(informer.by_index("a", "").unwrap().is_empty());
        // Once more with a state.
        informer.wait_for_cache_sync().await.unwrap();
    }
    let handle = informer.handle().clone();
    informer.stop().await;
    assert_eq!(informer.add_indexers(functions(&["e"])).await, Err(AddIndexersError::Stopped(Stopped)));
    assert_eq!(handle.indexers().names().collect::<Vec<_>>(), ["a", "b", "namespace"]);
}

#[tokio::test(start_paused = true)]
async fn readers_are_not_blocked_while_objects_are_indexed() {
    let source = FakeSource::new();
    source.add(&pod("a", "x=1"));
    let informer: SharedInformer<Pod> = synced(&source).await;
    let handle = informer.handle().clone();
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let closure = move |object: &Object| {
        let snapshot = handle.snapshot().unwrap();
        assert!(snapshot.get(object.key()).is_some() && snapshot.by_index("late", "x", None).is_none());
        counted.fetch_add(1, Ordering::Relaxed);
        vec![object.key().to_string()]
    };
    informer.add_indexers([("late".to_owned(), IndexFunc::custom("late", closure))]).await.unwrap();
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    assert_eq!(informer.index_keys("late", "a").unwrap(), [key("a")]);
}

#[tokio::test(start_paused = true)]
async fn each_version_is_decoded_once_and_on_first_use() {
    static DECODED: AtomicUsize = AtomicUsize::new(0);

    #[derive(Debug)]
    struct Counted;

    impl<'de> Deserialize<'de> for Counted {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            DECODED.fetch_add(1, Ordering::Relaxed);
            serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
        }
    }

    let decoded = || DECODED.load(Ordering::Relaxed);
    let source = FakeSource::new();
    for at in 0..100 {
        source.add(&pod(&format!("{at}"), ""));
    }
    let informer: SharedInformer<Counted> = synced(&source).await;
    assert_eq!((informer.list_keys().len(), decoded()), (100, 0));
    let first = informer.get(&key("7")).unwrap();
    assert!(Arc::ptr_eq(first.value(), informer.get(&key("7")).unwrap().value()));
    assert_eq!(decoded(), 1);
    let before = informer.snapshot();
    for _ in 0..2 {
        assert_eq!((informer.list().len(), decoded()), (100, 100));
    }
    informer.wait_for(&source.modify(&pod("7", "a=1"))).await.unwrap();
    assert!(!Arc::ptr_eq(first.value(), informer.get(&key("7")).unwrap().value()));
    for _ in 0..2 {
        assert!(Arc::ptr_eq(first.value(), before.get(&key("7")).unwrap().value()), "the old version is still in use");
        assert_eq!((before.list().len(), informer.list().len(), decoded()), (100, 100, 101));
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_is_reported_once_and_left_out() {
    #[derive(Debug, Deserialize)]
    struct Strict {
        metadata: StrictMetadata,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    #[expect(dead_code, reason = "some fields are those that it may have")]
    struct StrictMetadata {
        name: String,
        labels: Value,
        resource_version: Value,
        uid: Value,
    }

    let source = FakeSource::new();
    source.add(&pod("good", "a=1"));
    source.add(&json!({ "metadata": { "name": "bad", "labels": { "a": "1" } , "annotations": {} } }));
    let informer: SharedInformer<Strict> = start(&source);
    let reported = Arc::new(Mutex::new(Vec::new()));
    let reports = Arc::clone(&reported);
    informer.set_error_handler(move |error| reports.lock().push(error.to_string()));
    let by_label = ("a".to_owned(), IndexFunc::Label("a".to_owned()));
    informer.add_indexers([by_label]).await.unwrap();
    informer.wait_for(&source.version()).await.unwrap();
    let names = |pods: Vec<Entry<Strict>>| pods.iter().map(|pod| pod.metadata.name.clone()).collect::<Vec<_>>();
    for _ in 0..2 {
        assert_eq!(names(informer.list()), ["good"]);
        assert_eq!(names(informer.by_index("a", "1").unwrap()), ["good"]);
        assert!(informer.get(&key("bad")).is_none());
        assert_eq!(informer.list_keys(), [key("bad"), key("good")]);
    }
    let [error] = &informer.undecodable()[..] else { panic!("one object") };
    assert_eq!((&error.key, error.version.number()), (&key("bad"), 3));
    assert!(error.reason.contains("annotations"), "{error}");
    assert_eq!(*reported.lock(), [error.to_string()]);

    let version = source.modify(&pod("bad", "a=1"));
    assert_eq!(names(informer.wait_for(&version).await.unwrap().list()), ["bad", "good"]);
    assert!(informer.undecodable().is_empty());
    assert_eq!(reported.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_object_itself_is_not_decoded() {
    let source = FakeSource::new();
    source.add(&pod("a", ""));
    let informer: SharedInformer<Object> = synced(&source).await;
    let snapshot = informer.handle().snapshot().unwrap();
    assert!(Arc::ptr_eq(informer.list()[0].object(), snapshot.get(&key("a")).unwrap()));
    assert!(informer.undecodable().is_empty());
}

/// client-go `TestStateSharedInformer`; here an informer runs from the moment at which it is made.
#[tokio::test(start_paused = true)]
async fn a_stop_applies_what_is_queued_and_ends_the_watches_after_it() {
    let source = FakeSource::new();
    let options = InformerOptions { batch_window: Duration::from_secs(60), ..InformerOptions::default() };
    let informer: SharedInformer<Pod> = SharedInformer::start(source.clone(), options);
    informer.wait_for_cache_sync().await.unwrap();
    let subscribe = Subscribe {
        selection: Arc::new(Selection::default()),
        format: (),
        queue: QueueOptions { policy: FullChannelPolicy::Replay, length: 9 },
        client: Client::Watch,
        initial_events: false,
    };
    let mut watch = informer.handle().join(&Start::Now, subscribe).unwrap().cursor;
    let version = source.add(&pod("queued", ""));
    settle().await;
    assert!(informer.list().is_empty(), "the next cycle begins in a minute");

    assert!(!informer.is_stopped());
    let stopped = informer.stop();
    assert!(informer.is_stopped());
    stopped.await;
    assert_eq!(names(&informer.list()), ["queued"]);
    assert_eq!(informer.last_sync_resource_version(), Some(version.clone()));
    assert!(matches!(watch.take(9).await, Taken::Frames(_)));
    assert!(matches!(watch.take(9).await, Taken::Ended(End::Stopped)));

    assert!(informer.wait_for(&version).await.is_ok(), "the last state is still there");
    source.add(&pod("late", ""));
    assert_eq!(informer.wait_for(&source.version()).await.unwrap_err(), WaitError::Stopped(Stopped));
    informer.stop().await;
    assert_eq!(names(&informer.list()), ["queued"]);
}

#[tokio::test(start_paused = true)]
async fn dropping_an_informer_stops_it() {
    let source = FakeSource::new();
    source.fail_list(crate::cache::SourceError::Unavailable("not yet".to_owned()));
    let informer: SharedInformer<Pod> = start(&source);
    settle().await;
    assert_eq!(informer.health().state, SyncState::Syncing);
    assert_eq!(informer.health().last_error.as_deref(), Some("list failed: not yet"));
    let handle = informer.handle().clone();
    drop(informer);
    handle.stopped().await;
    assert!(handle.snapshot().is_none());

    let informer: SharedInformer<Pod> = start(&source);
    let stopped = informer.stop();
    stopped.await;
    assert_eq!(informer.wait_for_cache_sync().await.unwrap_err(), Stopped);
    assert!(informer.list().is_empty() && informer.last_sync_resource_version().is_none());
    assert!(informer.by_index("namespace", "shop").unwrap().is_empty());
}

/// client-go `TestSharedInformerErrorHandling`.
#[tokio::test(start_paused = true)]
async fn a_failed_list_is_reported_to_the_error_handler() {
    let source = FakeSource::new();
    source.fail_list(crate::cache::SourceError::Unavailable("denied".to_owned()));
    let reported = Arc::new(Mutex::new(Vec::new()));
    let reports = Arc::clone(&reported);
    let reflector = ReflectorConfig::default().with_error_handler(move |error| reports.lock().push(error.to_string()));
    let options = InformerOptions { reflector, ..InformerOptions::default() };
    let informer: SharedInformer<Pod> = SharedInformer::start(source, options);
    informer.wait_for_cache_sync().await.unwrap();
    assert_eq!(*reported.lock(), ["list failed: denied"]);
}

#[tokio::test(start_paused = true)]
async fn a_version_of_a_rewritten_history_is_not_waited_for() {
    let source = FakeSource::new();
    source.add(&pod("a", ""));
    for _ in 0..5 {
        source.modify(&pod("a", ""));
    }
    let informer: SharedInformer<Pod> = synced(&source).await;
    let late = ResourceVersion::decimal(source.version().number() + 1);
    let (waited, ()) = tokio::join!(informer.wait_for(&late), async {
        settle().await;
        source.rewrite_history();
    });
    assert_eq!(waited.unwrap_err(), WaitError::HistoryRewritten);
    assert_eq!(informer.wait_for(&source.version()).await.unwrap().version(), Some(&source.version()));
    let foreign = "abc.1".parse().unwrap();
    assert_eq!(informer.wait_for(&foreign).await.unwrap_err(), WaitError::HistoryRewritten);
}
