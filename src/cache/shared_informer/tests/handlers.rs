//! Event handlers: client-go's tests of its shared informer, and drawn histories under every policy.

mod property;
mod registrations;

use std::fmt::Debug;

use tokio::{sync::Semaphore, time::Instant};
use tracing::Level;

use super::*;
use crate::{log_throttle::test_log::TestLog, watch::QueueOptions};

/// Handler that records its calls, and takes a permit for each, if it has any permits, and a time.
#[derive(Debug, Clone, Default)]
pub(super) struct TestListener {
    pub(super) calls: Arc<Mutex<Calls>>,
    takes: Duration,
    permits: Option<Arc<Semaphore>>,
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    log: Vec<String>,
    /// Objects as the calls add up.
    held: BTreeMap<ObjectKey, Arc<Object>>,
    /// Calls that did not follow from those before.
    pub(super) contradictions: Vec<String>,
}

// === impl TestListener ===

impl TestListener {
    pub(super) fn taking(takes: Duration) -> Self {
        Self { takes, ..Self::default() }
    }

    /// Returns the calls since the last time.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().log)
    }

    async fn receive(&self, call: String, old: Option<&Arc<Object>>, new: Option<&Arc<Object>>) {
        let key = new.or(old).unwrap().key().clone();
        {
            let mut calls = self.calls.lock();
            let held = match new {
                Some(new) => calls.held.insert(key, Arc::clone(new)),
                None => calls.held.remove(&key),
            };
            let follows = held.as_ref() == old;
            if !follows {
                calls.contradictions.push(format!("{call} with {held:?}"));
            }
            calls.log.push(call);
        }
        if let Some(permits) = &self.permits {
            permits.acquire().await.unwrap().forget();
        }
        tokio::time::sleep(self.takes).await;
    }
}

/// Returns the objects that an informer has.
fn objects(informer: &SharedInformer<Object>) -> Vec<Arc<Object>> {
    informer.list().iter().map(|entry| Arc::clone(entry.object())).collect()
}

impl ResourceEventHandler<Object> for TestListener {
    async fn on_add(&mut self, object: Entry<Object>, is_in_initial_list: bool) {
        let initial = if is_in_initial_list { " initial" } else { "" };
        self.receive(format!("add {}{initial}", object.key()), None, Some(object.object())).await;
    }

    async fn on_update(&mut self, old: Entry<Object>, new: Entry<Object>) {
        let call = if Arc::ptr_eq(old.object(), new.object()) { "resync" } else { "update" };
        self.receive(format!("{call} {}", new.key()), Some(old.object()), Some(new.object())).await;
    }

    async fn on_delete(&mut self, last_state: Entry<Object>, deletion: Deletion) {
        let inferred = if deletion.is_inferred() { " inferred" } else { "" };
        self.receive(format!("delete {}{inferred}", last_state.key()), Some(last_state.object()), None).await;
    }
}

fn named(name: &str) -> HandlerOptions {
    HandlerOptions { name: name.to_owned(), ..HandlerOptions::default() }
}

fn resynced(seconds: u64) -> HandlerOptions {
    HandlerOptions { resync: Duration::from_secs(seconds), ..HandlerOptions::default() }
}

/// Waits until everything has been handled. The clock advances as soon as every task waits.
async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// client-go `TestAddWhileActive`.
#[tokio::test(start_paused = true)]
async fn a_handler_added_to_a_running_informer_has_synced_once_it_has_returned_from_the_present_objects() {
    let source = FakeSource::new();
    source.add(&pod("pod1", ""));
    let informer: SharedInformer<Object> = start(&source);
    let [early, late] = [Duration::ZERO, Duration::from_secs(10)].map(TestListener::taking);
    let first = informer.add_handler(early.clone(), named("early")).unwrap();
    assert!(!first.has_synced(), "before the first list");
    assert!(first.wait_for_sync().await);

    let begun = Instant::now();
    let second = informer.add_handler(late.clone(), named("late")).unwrap();
    assert!(!second.has_synced());
    pass(9).await;
    assert_eq!((late.calls(), second.has_synced()), (vec!["add pod1 initial".to_owned()], false));
    source.add(&pod("pod2", ""));
    assert!(second.wait_for_sync().await);
    assert_eq!(begun.elapsed().as_secs(), 10);
    pass(1).await;
    assert_eq!(early.calls(), ["add pod1 initial", "add pod2"]);
    assert_eq!(late.calls(), ["add pod2"], "and each event once");
}

/// client-go `TestRemoveWhileActive`.
#[tokio::test(start_paused = true)]
async fn no_call_begins_after_the_removal_and_other_handlers_go_on() {
    let source = FakeSource::new();
    source.add(&pod("pod1", ""));
    source.add(&pod("pod2", ""));
    let informer: SharedInformer<Object> = synced(&source).await;
    let [removed, other, dropped] = [10, 0, 0].map(|seconds| TestListener::taking(Duration::from_secs(seconds)));
    let registration = informer.add_handler(removed.clone(), named("removed")).unwrap();
    let kept = informer.add_handler(other.clone(), named("other")).unwrap();
    drop(informer.add_handler(dropped.clone(), named("dropped")).unwrap());
    assert!(kept.wait_for_sync().await);
    registration.remove();
    source.add(&pod("pod3", ""));
    pass(60).await;
    assert_eq!(removed.calls(), ["add pod1 initial"], "that call had begun");
    assert!(!registration.has_synced() && !registration.wait_for_sync().await);
    assert_eq!(other.calls(), ["add pod1 initial", "add pod2 initial", "add pod3"]);
    assert_eq!(dropped.calls(), [""; 0]);
}

/// client-go `TestRemovingRemovedSharedInformer`.
#[tokio::test(start_paused = true)]
async fn removing_a_removed_handler_does_nothing() {
    let source = FakeSource::new();
    source.add(&pod("pod1", ""));
    let informer: SharedInformer<Object> = synced(&source).await;
    let listener = TestListener::default();
    let registration = informer.add_handler(listener.clone(), named("twice")).unwrap();
    assert!(registration.wait_for_sync().await);
    registration.remove();
    registration.remove();
    source.add(&pod("pod2", ""));
    pass(1).await;
    assert_eq!(listener.calls(), ["add pod1 initial"]);
    assert!(registration.has_synced(), "it had");
    let again = informer.add_handler(listener.clone(), named("again")).unwrap();
    assert!(again.wait_for_sync().await);
    assert_eq!(listener.calls(), ["add pod1 initial", "add pod2 initial"]);
}

/// client-go `TestAddOnStoppedSharedInformer`.
#[tokio::test(start_paused = true)]
async fn adding_a_handler_to_a_stopped_informer_is_an_error() {
    let informer: SharedInformer<Object> = synced(&FakeSource::new()).await;
    drop(informer.stop());
    assert_eq!(informer.add_handler(TestListener::default(), named("late")).unwrap_err(), Stopped);
}

/// client-go `TestRemoveOnStoppedSharedInformer`.
#[tokio::test(start_paused = true)]
async fn a_handler_of_a_stopped_informer_can_be_removed() {
    let informer: SharedInformer<Object> = synced(&FakeSource::new()).await;
    let registration = informer.add_handler(TestListener::default(), named("early")).unwrap();
    informer.stop().await;
    registration.remove();
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_until_the_handlers_have_everything() {
    let source = FakeSource::new();
    source.add(&pod("pod1", ""));
    let informer: SharedInformer<Object> = synced(&source).await;
    let slow = TestListener::taking(Duration::from_secs(10));
    let _registration = informer.add_handler(slow.clone(), named("slow")).unwrap();
    pass(1).await;
    source.add(&pod("pod2", ""));
    informer.wait_for(&source.version()).await.unwrap();
    let begun = Instant::now();
    informer.stop().await;
    assert!(begun.elapsed() > Duration::from_secs(18));
    assert_eq!(slow.calls(), ["add pod1 initial", "add pod2"]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_added_before_a_stop_gets_the_last_state() {
    let source = FakeSource::new();
    source.add(&pod("pod1", ""));
    let informer: SharedInformer<Object> = synced(&source).await;
    let listener = TestListener::default();
    let registration = informer.add_handler(listener.clone(), named("last")).unwrap();
    informer.stop().await;
    assert_eq!(listener.calls(), ["add pod1 initial"]);
    assert!(registration.has_synced());
}

/// client-go `TestSharedInformerWatchDisruption`.
#[tokio::test(start_paused = true)]
async fn changes_missed_by_a_broken_watch_arrive_as_the_difference() {
    let source = FakeSource::new();
    for name in ["pod1", "pod2"] {
        source.add(&pod(name, ""));
    }
    let informer: SharedInformer<Object> = synced(&source).await;
    let [changed, all] = [(); 2].map(|()| TestListener::default());
    let _changed = informer.add_handler(changed.clone(), named("never resynced")).unwrap();
    let _all = informer.add_handler(all.clone(), resynced(1)).unwrap();
    settle().await;
    assert_eq!([changed.calls(), all.calls()].map(|calls| calls.len()), [2, 2]);

    source.add_drop_watch(&pod("pod3", ""));
    source.modify_drop_watch(&pod("pod2", "a=1"));
    source.delete_drop_watch("", "pod1");
    settle().await;
    assert_eq!(informer.list_keys(), [key("pod1"), key("pod2")], "the watch missed them");
    source.expire();
    source.close_watches();
    informer.wait_for(&source.version()).await.unwrap();
    settle().await;
    let expected = ["delete pod1 inferred", "update pod2", "add pod3"];
    let sorted = |listener: &TestListener| {
        let mut calls = listener.calls();
        calls.retain(|call| !call.starts_with("resync"));
        calls.sort_by_key(|call| call.split(' ').nth(1).unwrap().to_owned());
        calls
    };
    assert_eq!(sorted(&all), expected);
    assert_eq!(sorted(&changed), expected);
    pass(1).await;
    assert_eq!(all.calls(), ["resync pod2", "resync pod3"]);
    assert_eq!(changed.calls(), [""; 0]);
}

/// client-go `TestListenerResyncPeriods`.
#[tokio::test(start_paused = true)]
async fn each_handler_is_resynced_at_its_own_period() {
    let source = FakeSource::new();
    source.add(&pod("pod1", ""));
    source.add(&pod("pod2", ""));
    let informer: SharedInformer<Object> = synced(&source).await;
    let listeners = [(); 4].map(|()| TestListener::default());
    let short = HandlerOptions { resync: Duration::from_millis(1), ..named("at least 1 s") };
    let options = [resynced(0), resynced(2), resynced(3), short];
    let added = listeners.iter().zip(options).map(|(listener, of)| informer.add_handler(listener.clone(), of).unwrap());
    let _registrations: Vec<_> = added.collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    for listener in &listeners {
        assert_eq!(listener.calls(), ["add pod1 initial", "add pod2 initial"]);
    }
    for expected in [[0, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1], [0, 1, 1, 1]] {
        pass(1).await;
        for (listener, times) in listeners.iter().zip(expected) {
            assert_eq!(listener.calls(), ["resync pod1", "resync pod2"].repeat(times), "{expected:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_with_an_event_in_the_queue_is_not_resynced() {
    let source = FakeSource::new();
    for name in ["pod1", "pod2", "pod3"] {
        source.add(&pod(name, ""));
    }
    let informer: SharedInformer<Object> = synced(&source).await;
    let listener = TestListener { permits: Some(Arc::new(Semaphore::new(3))), ..TestListener::default() };
    let _registration = informer.add_handler(listener.clone(), resynced(10)).unwrap();
    pass(11).await;
    assert_eq!(listener.calls().last().unwrap(), "resync pod1");
    // The call for the first object still goes on.
    source.modify(&pod("pod2", "a=1"));
    source.delete("", "pod3");
    informer.wait_for(&source.version()).await.unwrap();
    listener.permits.as_ref().unwrap().add_permits(9);
    pass(1).await;
    assert_eq!(listener.calls(), ["update pod2", "delete pod3"]);
    pass(10).await;
    assert_eq!(listener.calls(), ["resync pod1", "resync pod2"]);
    assert_eq!(listener.calls.lock().contradictions, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn events_come_between_the_resyncs_of_a_handler_that_takes_longer_than_the_interval() {
    let source = FakeSource::new();
    for name in ["pod1", "pod2", "pod3"] {
        source.add(&pod(name, ""));
    }
    let informer: SharedInformer<Object> = synced(&source).await;
    let listener = TestListener::taking(Duration::from_millis(700));
    let _registration = informer.add_handler(listener.clone(), resynced(1)).unwrap();
    pass(10).await;
    source.add(&pod("pod4", ""));
    pass(10).await;
    assert!(listener.calls().contains(&"add pod4".to_owned()));
    informer.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rewritten_history_arrives_as_the_difference_to_what_a_handler_had() {
    let source = FakeSource::new();
    for name in ["pod1", "pod2", "pod3"] {
        source.add(&pod(name, ""));
    }
    let informer: SharedInformer<Object> = synced(&source).await;
    let listener = TestListener::default();
    let registration = informer.add_handler(listener.clone(), named("restored")).unwrap();
    assert!(registration.wait_for_sync().await);
    assert_eq!(listener.calls().len(), 3);
    source.delete_drop_watch("", "pod1");
    source.modify_drop_watch(&pod("pod2", "a=1"));
    source.add_drop_watch(&pod("pod0", ""));
    source.rewrite_history();
    pass(60).await;
    assert_eq!(listener.calls(), ["add pod0", "delete pod1 inferred", "update pod2"]);
    assert_eq!(listener.calls.lock().held.values().cloned().collect::<Vec<_>>(), objects(&informer));
    assert!(registration.has_synced());
}

/// client-go `TestEventPanics`.
#[tokio::test(start_paused = true)]
async fn a_panic_is_logged_with_the_name_and_counted_and_the_handler_goes_on() {
    let (log, _guard) = TestLog::start(Level::ERROR);
    let source = FakeSource::new();
    let informer: SharedInformer<Object> = synced(&source).await;
    let listener = TestListener::default();
    let calls = Arc::new(Mutex::new(Vec::new()));
    // Panics in the calls with this name.
    let panicking = |wanted: &'static str| {
        let calls = Arc::clone(&calls);
        let call = move |name: &str| {
            calls.lock().push(format!("{wanted}: {name}"));
            assert_ne!(name, wanted, "{wanted} is refused");
        };
        let (on_add, on_update, on_delete) = (call.clone(), call.clone(), call);
        ResourceEventHandlerFuncs::<Object>::new()
            .on_add(move |_, _| on_add("add"))
            .on_update(move |_, _| on_update("update"))
            .on_delete(move |_, _| on_delete("delete"))
    };
    let names = ["add", "update", "delete"];
    let added = names.map(|name| informer.add_handler(panicking(name), named(name)).unwrap());
    let other = informer.add_handler(listener.clone(), named("other")).unwrap();
    pass(1).await;
    source.add(&pod("pod1", ""));
    pass(1).await;
    source.modify(&pod("pod1", "a=1"));
    pass(1).await;
    source.delete("", "pod1");
    pass(1).await;
    source.add(&pod("pod2", ""));
    pass(1).await;
    assert_eq!(listener.calls(), ["add pod1", "update pod1", "delete pod1", "add pod2"]);
    let calls = std::mem::take(&mut *calls.lock());
    for name in names {
        let prefix = format!("{name}: ");
        let of_one: Vec<_> = calls.iter().filter_map(|call| call.strip_prefix(&*prefix)).collect();
        assert_eq!(of_one, ["add", "update", "delete", "add"], "{name}");
    }
    assert_eq!(added.each_ref().map(super::super::ResourceEventHandlerRegistration::failures), [2, 1, 1]);
    assert!(other.failures() == 0 && added.iter().all(super::super::ResourceEventHandlerRegistration::has_synced));
    let log = log.take();
    assert_eq!(log.len(), 4, "{log:?}");
    for (name, line) in ["add", "update", "delete", "add"].iter().zip(&*log) {
        let has = |text: &str| line.contains(text);
        assert!(has(&format!("handler={name:?}")) && has(&format!("{name} is refused")), "{line}");
    }
    drop(added);
    drop(other);
}

/// client-go's `FilteringResourceEventHandler`.
#[tokio::test(start_paused = true)]
async fn a_handler_with_a_selection_receives_entering_as_addition_and_leaving_as_deletion() {
    let source = FakeSource::new();
    source.add(&pod("pod1", "app=web"));
    source.add(&pod("pod2", "app=db"));
    let informer: SharedInformer<Object> = synced(&source).await;
    let listener = TestListener::default();
    let labels = crate::model::LabelSelector::parse("app=web").unwrap();
    let selection = Selection { labels, ..Selection::default() };
    let _registration = informer.add_handler(listener.clone(), HandlerOptions { selection, ..resynced(60) }).unwrap();
    pass(1).await;
    source.modify(&pod("pod1", "app=db"));
    pass(1).await;
    source.modify(&pod("pod2", "app=web"));
    pass(1).await;
    source.modify(&pod("pod2", "app=web,b=1"));
    pass(1).await;
    assert_eq!(listener.calls(), ["add pod1 initial", "delete pod1", "add pod2", "update pod2"]);
    pass(60).await;
    assert_eq!(listener.calls(), ["resync pod2"]);
}

/// Another uid under the same key is another object.
#[tokio::test(start_paused = true)]
async fn an_object_that_was_replaced_is_deleted_and_added() {
    let of = |uid: &str| json!({ "metadata": { "name": "pod1", "uid": uid } });
    let source = FakeSource::new();
    source.add(&of("1"));
    let informer: SharedInformer<Object> = synced(&source).await;
    let listener = TestListener::default();
    let _registration = informer.add_handler(listener.clone(), named("uids")).unwrap();
    pass(1).await;
    source.modify(&of("2"));
    pass(1).await;
    source.modify_drop_watch(&of("3"));
    source.rewrite_history();
    pass(60).await;
    let mut calls = listener.calls();
    assert_eq!(calls.remove(0), "add pod1 initial");
    assert_eq!(calls, ["delete pod1", "add pod1", "delete pod1 inferred", "add pod1"]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_receives_objects_while_they_can_be_decoded() {
    let source = FakeSource::new();
    source.add(&pod("good", "a=1"));
    source.add(&json!({ "metadata": { "name": "bad" }, "phase": 7 }));
    let informer: SharedInformer<Pod> = synced(&source).await;
    let calls = Arc::new(Mutex::new(Vec::new()));
    let [adds, updates, deletes] = [(); 3].map(|()| Arc::clone(&calls));
    let handler = ResourceEventHandlerFuncs::<Pod>::new()
        .on_add(move |pod, initial| adds.lock().push(format!("add {} {initial}", pod.metadata.name)))
        .on_update(move |_, pod| updates.lock().push(format!("update {}", pod.metadata.name)))
        .on_delete(move |pod, deletion| {
            deletes.lock().push(format!("delete {} {}", pod.metadata.name, deletion.is_inferred()));
        });
    let _registration = informer.add_handler(handler, named("typed")).unwrap();
    pass(1).await;
    for labels in ["a=1", "a=2"] {
        source.modify(&pod("bad", labels));
        pass(1).await;
    }
    source.modify(&json!({ "metadata": { "name": "bad" }, "phase": 8 }));
    pass(1).await;
    source.delete("", "bad");
    source.delete("", "good");
    pass(1).await;
    let expected = ["add good true", "add bad false", "update bad", "delete bad true", "delete good false"];
    assert_eq!(*calls.lock(), expected);
}
