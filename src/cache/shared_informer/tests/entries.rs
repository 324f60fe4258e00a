//! Entries, filters by a closure, and informers that start and stop together.

use tokio::time::Instant;
use tracing::Level;

use super::{handlers::TestListener, *};
use crate::{
    cache::{ListVersion, SourceError},
    log_throttle::test_log::TestLog,
};

/// Value without a name.
#[derive(Debug, Deserialize)]
struct Phase {
    phase: String,
}

#[tokio::test(start_paused = true)]
async fn handlers_and_reads_have_key_and_version_of_a_value_that_has_neither() {
    let source = FakeSource::new();
    let write = |name: &str, phase: &str| {
        let metadata = json!({ "namespace": "shop", "name": name, "labels": { "a": "1" } });
        source.modify(&json!({ "metadata": metadata, "phase": phase }))
    };
    write("web", "Pending");
    let informer = synced::<Phase>(&source).await;
    informer.add_indexers([("a".to_owned(), IndexFunc::Label("a".to_owned()))]).await.unwrap();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let text = |entry: &Entry<Phase>| format!("{} {} {}", entry.key(), entry.version(), entry.phase);
    let log = |call: &'static str| {
        let calls = Arc::clone(&calls);
        move |text: String| calls.lock().push(format!("{call} {text}"))
    };
    let (add, update, delete) = (log("add"), log("update"), log("delete"));
    let handler = ResourceEventHandlerFuncs::<Phase>::new()
        .on_add(move |entry, _| add(text(&entry)))
        .on_update(move |old, new| update(format!("{} to {}", text(&old), text(&new))))
        .on_delete(move |entry, _| delete(text(&entry)));
    let _registration = informer.add_handler(handler, HandlerOptions::default()).unwrap();
    write("web", "Running");
    let version = source.delete("shop", "web");
    let version = informer.wait_for(&version).await.map(|_| write("db", "New")).unwrap();
    let state = informer.wait_for(&version).await.unwrap();
    for entry in [&state.list()[0], &state.by_index("a", "1").unwrap()[0], &informer.list()[0]] {
        assert_eq!(text(entry), "shop/db 5 New");
    }
    let held = state.get(&ObjectKey::new("shop", "db").unwrap()).unwrap();
    assert_eq!((held.object().version().to_string(), &*held.value().phase), ("5".to_owned(), "New"));
    assert_eq!(format!("{held:?}"), r#"Entry { key: shop/db, version: 5, value: Phase { phase: "New" }, .. }"#);
    informer.stop().await;
    let expected = [
        "add shop/web 2 Pending",
        "update shop/web 2 Pending to shop/web 3 Running",
        // The state that the handler received last.
        "delete shop/web 3 Running",
        "add shop/db 5 New",
    ];
    assert_eq!(*calls.lock(), expected);
}

/// client-go's `FilteringResourceEventHandler`: each pair of a state before and after.
#[tokio::test(start_paused = true)]
async fn a_filter_turns_updates_into_additions_and_deletions() {
    let source = FakeSource::new();
    let informer = synced::<Object>(&source).await;
    let listener = TestListener::default();
    let filter = |object: &Entry<Object>| object.labels().get("a").is_some();
    let handler = FilteringResourceEventHandler { filter, handler: listener.clone() };
    let _registration = informer.add_handler(handler, HandlerOptions::default()).unwrap();
    for labels in ["", "b=1", "a=1", "a=2", "b=2", "a=3"] {
        let version = source.modify(&pod("x", labels));
        informer.wait_for(&version).await.unwrap();
        settle().await;
    }
    source.delete("", "x");
    source.add(&pod("y", ""));
    source.delete("", "y");
    informer.stop().await;
    assert_eq!(listener.calls(), ["add x", "update x", "delete x", "add x", "delete x"]);
    assert_eq!(listener.calls.lock().contradictions, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn informers_of_a_set_are_awaited_and_stopped_together() {
    let (pods, nodes) = (FakeSource::new(), FakeSource::new());
    pods.add(&pod("a", ""));
    let mut set = InformerSet::new();
    let all_pods = set.start::<Pod>(pods, InformerOptions::default());
    let all_nodes = set.start::<Object>(nodes.clone(), InformerOptions::default());
    set.wait_for_cache_sync().await.unwrap();
    assert_eq!((all_pods.list().len(), all_nodes.has_synced()), (1, true));
    let listener = TestListener::taking(Duration::from_secs(20));
    let _registration = all_nodes.add_handler(listener.clone(), HandlerOptions::default()).unwrap();
    nodes.add(&pod("slow", ""));
    settle().await;
    let begun = Instant::now();
    set.stop_within(Duration::from_secs(60)).await;
    assert_eq!((begun.elapsed(), listener.calls()), (Duration::from_secs(20), vec!["add slow".to_owned()]));
    assert!(all_pods.is_stopped() && all_nodes.is_stopped());

    let later = set.start::<Pod>(FakeSource::new(), InformerOptions::default());
    settle().await;
    later.stop().await;
    assert_eq!(set.wait_for_cache_sync().await, Ok(()), "a state of a stopped informer is one");
}

#[tokio::test(start_paused = true)]
async fn a_set_with_an_informer_that_stops_before_its_first_list_is_not_synced() {
    let source = FakeSource::new();
    for _ in 0..100 {
        source.fail_list(SourceError::Unavailable("away".to_owned()));
    }
    let mut set = InformerSet::new();
    let _pods = set.start::<Pod>(FakeSource::new(), InformerOptions::default());
    let nodes = set.start::<Pod>(source, InformerOptions::default());
    let (synced, ()) = tokio::join!(set.wait_for_cache_sync(), async {
        settle().await;
        nodes.stop().await;
    });
    assert_eq!(synced, Err(Stopped));
}

/// A call that hangs is dropped after the grace, and other handlers get everything before.
#[tokio::test(start_paused = true)]
async fn a_stop_drops_a_call_that_goes_on_after_the_grace() {
    let source = FakeSource::new();
    let informer = synced::<Object>(&source).await;
    let (hanging, other) = (TestListener::taking(Duration::from_secs(86_400)), TestListener::default());
    let _hanging = informer.add_handler(hanging.clone(), HandlerOptions::default()).unwrap();
    let _other = informer.add_handler(other.clone(), HandlerOptions::default()).unwrap();
    source.add(&pod("a", ""));
    source.add(&pod("b", ""));
    settle().await;
    let begun = Instant::now();
    informer.stop_within(Duration::from_secs(5)).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    assert_eq!((hanging.calls().len(), other.calls().len()), (1, 2));
    // Nothing holds the handlers any more.
    settle().await;
    assert_eq!((Arc::strong_count(&hanging.calls), Arc::strong_count(&other.calls)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_index_that_fails_has_no_value_for_the_object_and_is_logged() {
    let (log, _guard) = TestLog::start(Level::ERROR);
    let source = FakeSource::new();
    source.add(&pod("good", "n=7"));
    source.add(&pod("bad", "n=x"));
    let informer = synced::<Pod>(&source).await;
    let number =
        |object: &Object| object.labels().get("n").unwrap_or_default().parse::<u8>().map(|n| vec![n.to_string()]);
    informer.add_indexers([("n".to_owned(), IndexFunc::fallible("n", number))]).await.unwrap();
    assert_eq!(informer.list_index_func_values("n").unwrap(), ["7"]);
    let lines = log.take();
    assert!(lines.iter().any(|line| line.contains("index function failed") && line.contains("bad")), "{lines:?}");
}

/// As an API server does.
#[tokio::test(start_paused = true)]
async fn a_fake_source_writes_version_and_uid_into_the_body() {
    let source = FakeSource::new();
    let informer = synced::<Value>(&source).await;
    let metadata = async |version: &ResourceVersion| {
        let state = informer.wait_for(version).await.unwrap();
        let object = state.get(&key("a")).unwrap();
        assert_eq!(object["metadata"]["resourceVersion"], object.version().to_string());
        assert_eq!(object["metadata"]["uid"], object.object().uid());
        object.object().uid().to_owned()
    };
    let first = metadata(&source.add(&pod("a", ""))).await;
    assert_eq!(metadata(&source.modify(&pod("a", "b=1"))).await, first, "an object keeps its uid");
    source.delete("", "a");
    let second = metadata(&source.add(&pod("a", ""))).await;
    assert!(!second.is_empty() && second != first, "another object");
    let own = json!({ "metadata": { "name": "a", "uid": "own" } });
    assert_eq!(metadata(&source.modify(&own)).await, "own");
    source.rewrite_history();
    let list = source.list(ListVersion::MostRecent).await.unwrap();
    let body: Value = serde_json::from_slice(list.objects[0].body()).unwrap();
    assert_eq!(body["metadata"]["resourceVersion"], source.version().to_string());
}
