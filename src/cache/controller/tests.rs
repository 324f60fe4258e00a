//! Controller over a source in memory, on a paused clock.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};

use super::*;
use crate::{
    cache::{
        DeltaFifo, DeltaFifoOptions, Deltas, Fifo, KeyFunc, ListVersion, MapStore, ObjectDelta, ReflectorError,
        SourceError, Store,
    },
    model::ObjectKey,
    testing::FakeSource,
};

type Objects = MapStore<Arc<Object>>;
type ObjectFifo = DeltaFifo<Arc<Object>>;

fn pod(name: &str, value: u64) -> Value {
    json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "name": name }, "value": value })
}

fn value_of(object: &Object) -> u64 {
    serde_json::from_slice::<Value>(object.body()).unwrap()["value"].as_u64().unwrap()
}

/// Returns an empty store, and a queue whose known objects are those of the store.
fn queue() -> (Arc<Objects>, Arc<ObjectFifo>) {
    let objects = Arc::new(Objects::new(KeyFunc::default()));
    let options = DeltaFifoOptions {
        known_objects: Some(Arc::clone(&objects) as _),
        ..DeltaFifoOptions::new(KeyFunc::default())
    };
    (objects, Arc::new(ObjectFifo::new(options)))
}

/// Applies deltas to a store as client-go's `processDeltas` does: the store decides between an addition and an update. Returns
/// the changes: the values before and after.
fn process_deltas(store: &Objects, deltas: &Deltas<Arc<Object>>) -> Vec<(Option<u64>, Option<u64>)> {
    let change = |delta: &ObjectDelta<Arc<Object>>| {
        let (old, new) = match delta {
            ObjectDelta::Deleted(object) => (store.remove(object).unwrap(), None),
            ObjectDelta::DeletedFinalStateUnknown(tombstone) => {
                (tombstone.last_known.as_ref().and_then(|object| store.remove(object).unwrap()), None)
            }
            delta => {
                let object = delta.object().unwrap();
                (store.insert(Arc::clone(object)).unwrap(), Some(value_of(object)))
            }
        };
        (old.map(|old| value_of(&old)), new)
    };
    deltas.iter().map(change).collect()
}

fn spawn<Q, P, F>(config: ControllerConfig<FakeSource, Q, P>) -> (CancellationToken, JoinHandle<()>)
where
    Q: Queue<Object = Arc<Object>>,
    P: Fn(Q::Item, bool) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let stop = CancellationToken::new();
    (stop.clone(), tokio::spawn(Controller::new(config).run(stop)))
}

async fn pass(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// client-go: `TestUpdate`. Changes that a list brings and changes that the watch brings are updates of the same kind.
#[tokio::test(start_paused = true)]
async fn an_update_has_the_object_before_it_whether_it_was_listed_or_watched() {
    let source = FakeSource::new();
    for name in ["kept", "lost", "missed"] {
        source.add(&pod(name, 1));
    }
    let (objects, queue) = queue();
    let changes = Arc::new(Mutex::new(BTreeMap::<String, Vec<_>>::new()));
    let (store, seen) = (Arc::clone(&objects), Arc::clone(&changes));
    let process = move |deltas: Deltas<Arc<Object>>, _| {
        let processed = process_deltas(&store, &deltas);
        seen.lock().entry(deltas.key().name().to_owned()).or_default().extend(processed);
        std::future::ready(Ok(()))
    };
    let (stop, task) = spawn(ControllerConfig::new(Arc::clone(&queue), source.clone(), process));
    pass(1).await;
    assert!(queue.has_synced());
    source.modify(&pod("kept", 2));
    pass(1).await;
    source.modify(&pod("kept", 4));
    source.modify_drop_watch(&pod("missed", 3));
    source.delete_drop_watch("", "lost");
    source.expire();
    source.close_watches();
    pass(60_000).await;
    stop.cancel();
    task.await.unwrap();
    let changes = changes.lock();
    assert_eq!(changes["missed"], [(None, Some(1)), (Some(1), Some(3))]);
    assert_eq!(changes["lost"], [(None, Some(1)), (Some(1), None)]);
    assert_eq!(changes["kept"][..3], [(None, Some(1)), (Some(1), Some(2)), (Some(2), Some(4))]);
    assert_eq!(objects.list().len(), 2);
}

/// client-go: `TestHammerController`. Tasks change objects at random, and watches break; what has been processed is in the end
/// the state of the source, and each change began with the state that the one before it left.
#[tokio::test(start_paused = true)]
async fn many_writers_and_faults_leave_the_state_of_the_source() {
    let source = FakeSource::new();
    let (objects, queue) = queue();
    let last = Arc::new(Mutex::new(BTreeMap::<ObjectKey, Option<u64>>::new()));
    let (store, seen) = (Arc::clone(&objects), Arc::clone(&last));
    let process = move |deltas: Deltas<Arc<Object>>, _| {
        for (old, new) in process_deltas(&store, &deltas) {
            let before = seen.lock().insert(deltas.key().clone(), new).flatten();
            assert_eq!(before, old, "{}", deltas.key());
        }
        std::future::ready(Ok(()))
    };
    let (stop, task) = spawn(ControllerConfig::new(Arc::clone(&queue), source.clone(), process));
    let writers = (0..8).map(|writer| {
        let source = source.clone();
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(writer);
            let mut own: Vec<String> = Vec::new();
            for number in 0..300 {
                match random.u8(..100) {
                    ..40 => {
                        let name = format!("{writer}-{number}");
                        source.add(&pod(&name, number));
                        own.push(name);
                    }
                    ..75 if !own.is_empty() => drop(source.modify(&pod(&own[random.usize(..own.len())], number))),
                    ..95 if !own.is_empty() => drop(source.delete("", &own.swap_remove(random.usize(..own.len())))),
                    95..98 => source.close_watches(),
                    98.. => source.expire(),
                    _ => {}
                }
                tokio::task::yield_now().await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let expected = source.list(ListVersion::MostRecent).await.unwrap().objects;
    pass(60_000).await;
    assert_eq!(objects.list(), expected);
    stop.cancel();
    task.await.unwrap();
}

/// client-go: `TestPanicPropagated`.
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_function_ends_the_controller_with_it() {
    let source = FakeSource::new();
    source.add(&pod("web", 1));
    let (_, queue) = queue();
    let process = |deltas: Deltas<Arc<Object>>, _| async move {
        assert!(deltas.iter().count() == 0, "simulated");
        Ok(())
    };
    let (_stop, task) = spawn(ControllerConfig::new(Arc::clone(&queue), source, process));
    let panic = task.await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref(), Some(&"simulated"));
    assert_eq!(queue.list().len(), 1, "the item is in the queue again");
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_the_queue_and_processes_its_rest() {
    let source = FakeSource::new();
    for name in ["a", "b", "c"] {
        source.add(&pod(name, 1));
    }
    let (_, queue) = queue();
    let processed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&processed);
    let process = move |_: Deltas<Arc<Object>>, is_in_initial_list: bool| {
        let count = Arc::clone(&count);
        async move {
            assert!(is_in_initial_list);
            pass(1000).await;
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    };
    let (stop, task) = spawn(ControllerConfig::new(Arc::clone(&queue), source.clone(), process));
    pass(1500).await;
    stop.cancel();
    pass(1).await;
    source.add(&pod("d", 1));
    task.await.unwrap();
    assert_eq!(processed.load(Ordering::Relaxed), 3, "the one in processing and the queued ones, and nothing later");
    assert!(queue.is_closed());

    // A queue that something else closes ends the Controller, too.
    let (_, queue) = self::queue();
    let process = |_: Deltas<Arc<Object>>, _| std::future::ready(Ok(()));
    let (_stop, task) = spawn(ControllerConfig::new(Arc::clone(&queue), FakeSource::new(), process));
    pass(1).await;
    queue.close();
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_was_stopped_before_requests_nothing() {
    let source = FakeSource::new();
    source.fail_list(SourceError::Unavailable("requested".to_owned()));
    let (_, queue) = queue();
    let process = |_: Deltas<Arc<Object>>, _| std::future::ready(Ok::<(), String>(()));
    let controller = Controller::new(ControllerConfig::new(queue, source, process));
    let (stop, stats) = (CancellationToken::new(), Arc::clone(controller.stats()));
    stop.cancel();
    controller.run(stop).await;
    assert_eq!(stats.lists.load(Ordering::Relaxed), 0);
}

/// Function that fails for the object `bad`, and its calls: the name, the value and the time in milliseconds.
struct Failing {
    is_broken: AtomicBool,
    began: Instant,
    calls: Mutex<Vec<(String, u64, u128)>>,
}

impl Failing {
    fn new() -> Arc<Self> {
        Arc::new(Self { is_broken: AtomicBool::new(true), began: Instant::now(), calls: Mutex::default() })
    }

    fn process(&self, object: &Object) -> Result<(), String> {
        let name = object.key().name().to_owned();
        let is_bad = name == "bad" && self.is_broken.load(Ordering::Relaxed);
        self.calls.lock().push((name, value_of(object), self.began.elapsed().as_millis()));
        if is_bad { Err("disk full".to_owned()) } else { Ok(()) }
    }

    /// Returns the calls for one object since the last time.
    fn calls_of(&self, name: &str) -> Vec<(u64, u128)> {
        let of = |calls: Vec<(String, u64, u128)>| calls.into_iter().filter(|call| call.0 == name);
        of(std::mem::take(&mut self.calls.lock())).map(|(_, value, at)| (value, at)).collect()
    }
}

/// Starts a Controller over a queue of the newest objects.
fn failing(source: &FakeSource, retry_on_error: bool) -> (Arc<Failing>, CancellationToken, JoinHandle<()>) {
    let failing = Failing::new();
    let called = Arc::clone(&failing);
    let process = move |object: Arc<Object>, _| std::future::ready(called.process(&object));
    let queue = Arc::new(Fifo::new(KeyFunc::default()));
    let config = ControllerConfig { retry_on_error, ..ControllerConfig::new(queue, source.clone(), process) };
    let (stop, task) = spawn(config);
    (failing, stop, task)
}

#[tokio::test(start_paused = true)]
async fn a_failed_item_returns_after_growing_delays_and_others_do_not_wait() {
    let source = FakeSource::new();
    source.add(&pod("bad", 1));
    source.add(&pod("good", 1));
    let (failing, stop, task) = failing(&source, true);
    pass(50).await;
    assert_eq!(failing.calls_of("good"), [(1, 0)]);
    failing.calls.lock().clear();
    pass(30_000).await;
    let times: Vec<u128> = failing.calls_of("bad").into_iter().map(|(_, at)| at).collect();
    assert_eq!(times, [100, 300, 700, 1500, 3100, 6300, 12_700, 22_700], "doubled up to 10 s");

    // A newer object takes the place of the one that waits, and a success resets the delay.
    source.modify(&pod("bad", 2));
    failing.is_broken.store(false, Ordering::Relaxed);
    pass(10_000).await;
    assert_eq!(failing.calls_of("bad"), [(2, 32_700)]);
    failing.is_broken.store(true, Ordering::Relaxed);
    source.modify(&pod("bad", 3));
    pass(150).await;
    assert_eq!(failing.calls_of("bad").len(), 2, "at once and after 100 ms");

    // A deleted object does not return, and the next one begins anew.
    source.delete("", "bad");
    pass(60_000).await;
    assert_eq!(failing.calls_of("bad"), []);
    source.add(&pod("bad", 4));
    pass(150).await;
    assert_eq!(failing.calls_of("bad").len(), 2);

    // A stop ends the delay: one last attempt.
    stop.cancel();
    task.await.unwrap();
    assert_eq!(failing.calls_of("bad").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_item_is_dropped_without_retries() {
    let source = FakeSource::new();
    source.add(&pod("bad", 1));
    let (failing, stop, task) = failing(&source, false);
    pass(60_000).await;
    assert_eq!(failing.calls_of("bad").len(), 1);
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn resyncs_the_expected_type_and_the_error_handler_are_those_of_the_reflector() {
    let source = FakeSource::new();
    source.add(&pod("web", 1));
    source.add(&json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "name": "a" } }));
    source.fail_list(SourceError::Unavailable("500".to_owned()));
    let (objects, queue) = queue();
    let (synced, errors) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (count, reported) = (Arc::clone(&synced), Arc::clone(&errors));
    let process = move |deltas: Deltas<Arc<Object>>, _| {
        count.fetch_add(u64::from(matches!(deltas.newest(), ObjectDelta::Sync(_))), Ordering::Relaxed);
        process_deltas(&objects, &deltas);
        std::future::ready(Ok(()))
    };
    let (stop, task) = spawn(ControllerConfig {
        name: Some("pods".to_owned()),
        expected: Some(("v1".to_owned(), "Pod".to_owned())),
        full_resync_period: Duration::from_secs(10),
        should_resync: Some(Arc::new(|| true)),
        on_error: Some(Arc::new(move |error: &ReflectorError| reported.lock().push(error.to_string()))),
        ..ControllerConfig::new(queue, source, process)
    });
    pass(25_000).await;
    assert_eq!(synced.load(Ordering::Relaxed), 2);
    let errors = errors.lock().clone();
    assert_eq!(errors[0], "list failed: 500");
    assert!(errors[1].starts_with("unexpected type of a: found \"v1, Kind=Node\""), "{errors:?}");
    stop.cancel();
    task.await.unwrap();
}
