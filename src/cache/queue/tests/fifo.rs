//! `Fifo`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{
    sync::Notify,
    task::{JoinSet, yield_now},
    time::{advance, sleep},
};
use tracing::Level;

use super::{key_queue::MAX_QUEUED, *};
use crate::log_throttle::test_log::TestLog;

type Names = Fifo<Named, &'static str>;

fn fifo() -> Arc<Names> {
    Arc::new(Fifo::new(by_name()))
}

fn add(fifo: &Names, object: Named) {
    fifo.add(object).now_or_never().expect("not full").unwrap();
}

fn delete(fifo: &Names, name: &'static str) {
    fifo.delete((name, 0)).now_or_never().expect("not full").unwrap();
}

fn replace(fifo: &Names, list: &[Named]) {
    fifo.replace(list.to_vec()).now_or_never().expect("never waits").unwrap();
}

/// Applies an empty list, after which everything may exist.
fn replace_nothing(fifo: &Names) {
    fifo.replace_except(Vec::new(), |_, _| true).now_or_never().expect("never waits").unwrap();
}

fn pop_now(fifo: &Names) -> Option<Named> {
    pop(fifo).now_or_never().map(|(object, _)| object)
}

/// client-go: `TestFIFO_basic`.
#[tokio::test]
async fn objects_of_two_producers_are_popped_in_the_order_of_each() {
    check_order_of_producers(Fifo::new(KeyFunc::infallible(|number: &u32| *number)), |number| number).await;
}

/// client-go: `TestFIFO_addUpdate`.
#[test]
fn the_newest_object_of_a_key_is_popped_once() {
    let fifo = fifo();
    add(&fifo, ("foo", 10));
    fifo.update(("foo", 15)).now_or_never().unwrap().unwrap();
    assert_eq!((fifo.list(), fifo.list_keys()), (vec![("foo", 15)], vec!["foo"]));
    assert_eq!(pop_now(&fifo), Some(("foo", 15)));
    assert_eq!((fifo.get_by_key(&"foo"), pop_now(&fifo)), (None, None));
}

/// client-go: `TestFIFO_addReplace`.
#[test]
fn a_replaced_object_is_popped_once() {
    let fifo = fifo();
    add(&fifo, ("foo", 10));
    add(&fifo, ("gone", 1));
    replace(&fifo, &[("foo", 15)]);
    assert_eq!(pop_now(&fifo), Some(("foo", 15)));
    assert_eq!((fifo.list(), pop_now(&fifo)), (vec![], None));
}

/// client-go: `TestFIFO_detectLineJumpers`.
#[test]
fn a_key_keeps_its_place_until_it_is_popped_and_then_is_last() {
    let fifo = fifo();
    for object in [("foo", 10), ("bar", 1), ("foo", 11), ("foo", 13), ("zab", 30)] {
        add(&fifo, object);
    }
    assert_eq!(pop_now(&fifo), Some(("foo", 13)));
    add(&fifo, ("foo", 14));
    assert_eq!([(); 3].map(|()| pop_now(&fifo)), [Some(("bar", 1)), Some(("zab", 30)), Some(("foo", 14))]);
}

/// client-go: `TestFIFO_HasSynced`.
#[test]
fn a_queue_has_synced_once_its_first_batch_is_processed() {
    let (a, b) = (("a", 1), ("b", 2));
    assert!(!fifo().has_synced(), "nothing yet");

    let one = fifo();
    add(&one, a);
    assert!(one.has_synced(), "one addition");
    replace(&one, &[a, b]);
    assert!(one.has_synced(), "the first batch was empty");

    let deleted = fifo();
    delete(&deleted, "a");
    assert!(deleted.has_synced(), "one deletion");

    let none = fifo();
    replace(&none, &[]);
    assert!(none.has_synced(), "a replacement by nothing");

    let two = fifo();
    replace(&two, &[a, b, a]);
    add(&two, ("c", 3));
    assert!(!two.has_synced());
    assert_eq!(pop(&*two).now_or_never(), Some((a, true)));
    assert!(!two.has_synced());
    assert_eq!(pop(&*two).now_or_never(), Some((b, true)));
    assert!(two.has_synced());
    assert_eq!(pop(&*two).now_or_never(), Some((("c", 3), false)));
}

#[test]
fn deleted_objects_are_passed_over_and_count_for_the_first_batch() {
    let fifo = fifo();
    replace(&fifo, &[("a", 1), ("b", 2), ("c", 3)]);
    delete(&fifo, "c");
    delete(&fifo, "a");
    delete(&fifo, "never");
    add(&fifo, ("d", 4));
    assert_eq!(fifo.list_keys(), ["b", "d"]);
    add(&fifo, ("a", 5));
    assert_eq!(pop(&*fifo).now_or_never(), Some((("a", 5), true)), "the place stayed");
    assert_eq!(pop(&*fifo).now_or_never(), Some((("b", 2), true)));
    assert!(!fifo.has_synced());
    assert_eq!(pop(&*fifo).now_or_never(), Some((("d", 4), false)));
    assert!(fifo.has_synced());
}

#[test]
fn what_a_second_list_removes_is_no_longer_awaited() {
    let fifo = fifo();
    replace(&fifo, &[("a", 1), ("b", 2)]);
    replace(&fifo, &[("c", 3), ("b", 4)]);
    assert!(!fifo.has_synced());
    assert_eq!(pop(&*fifo).now_or_never(), Some((("c", 3), false)));
    assert_eq!(pop(&*fifo).now_or_never(), Some((("b", 4), true)));
    assert!(fifo.has_synced());
}

/// client-go: `TestFIFO_PopShouldUnblockWhenClosed`.
#[tokio::test(start_paused = true)]
async fn closing_ends_every_pop_after_what_was_queued() {
    let fifo = fifo();
    let mut pops = JoinSet::new();
    for _ in 0..10 {
        let fifo = Arc::clone(&fifo);
        pops.spawn(async move { fifo.pop(|_, _| ready(Ok::<_, ProcessError<()>>(()))).await });
    }
    advance(Duration::from_secs(1)).await;
    assert!(pops.try_join_next().is_none());
    fifo.close();
    assert!(fifo.is_closed());
    while let Some(ended) = pops.join_next().await {
        assert_eq!(ended.unwrap(), Err(PopError::Closed));
    }
    add(&fifo, ("late", 1));
    assert_eq!(pop_now(&fifo), Some(("late", 1)));
    let closed = fifo.pop(|_, _| ready(Ok::<_, ProcessError<()>>(()))).await;
    assert_eq!(closed, Err(PopError::Closed));
}

fn fail(
    error: ProcessError<&'static str>,
) -> impl FnOnce(Named, bool) -> std::future::Ready<Result<(), ProcessError<&'static str>>> + Send {
    |_, _| ready(Err(error))
}

/// client-go: `TestFIFO_requeueOnPop`.
#[test]
fn a_requeued_object_is_put_back_and_another_error_removes_it() {
    let fifo = fifo();
    let object = ("foo", 10);
    replace(&fifo, &[object]);
    let inner = fifo.pop(fail(ProcessError::Requeue(None))).now_or_never().unwrap();
    assert_eq!((inner, fifo.get_by_key(&"foo")), (Ok(object), Some(object)));
    assert!(fifo.has_synced(), "a requeued object counts as processed");
    add(&fifo, ("bar", 1));
    let inner = fifo.pop(fail(ProcessError::Requeue(Some("test")))).now_or_never().unwrap();
    assert_eq!((inner, fifo.get_by_key(&"foo")), (Err(PopError::Requeued("test")), Some(object)));
    assert_eq!(pop_now(&fifo), Some(("bar", 1)), "it is the last one");
    let failed = fifo.pop(fail("gone".into())).now_or_never().unwrap();
    assert_eq!(failed, Err(PopError::Failed { item: object, error: "gone" }));
    assert_eq!((fifo.get_by_key(&"foo"), pop_now(&fifo)), (None, None));
}

/// client-go: `TestFIFO_addIfNotPresent`.
#[test]
fn an_object_is_added_only_if_there_is_none_of_its_key() {
    let fifo = fifo();
    add(&fifo, ("a", 1));
    add(&fifo, ("b", 2));
    for object in [("b", 3), ("c", 4), ("a", 5)] {
        fifo.add_if_not_present(object).now_or_never().unwrap().unwrap();
    }
    assert_eq!([(); 4].map(|()| pop_now(&fifo)), [Some(("a", 1)), Some(("b", 2)), Some(("c", 4)), None]);
}

/// Pops an object in a task of its own, which processes it until it is notified.
fn process_until(
    fifo: &Arc<Names>,
    end: &Arc<Notify>,
    result: Result<(), ProcessError<()>>,
) -> tokio::task::JoinHandle<Result<Named, PopError<Named, ()>>> {
    let (fifo, end) = (Arc::clone(fifo), Arc::clone(end));
    let process = move |_, _| async move {
        end.notified().await;
        result
    };
    tokio::spawn(async move { fifo.pop(process).await })
}

#[tokio::test(start_paused = true)]
async fn a_key_in_processing_is_not_handed_out_again() {
    let (fifo, end) = (fifo(), Arc::new(Notify::new()));
    add(&fifo, ("a", 1));
    let first = process_until(&fifo, &end, Ok(()));
    yield_now().await;
    add(&fifo, ("a", 2));
    add(&fifo, ("b", 1));
    assert_eq!(pop_now(&fifo), Some(("b", 1)), "another key passes it");
    assert_eq!(pop_now(&fifo), None);
    let second = process_until(&fifo, &end, Ok(()));
    yield_now().await;
    fifo.close();
    yield_now().await;
    assert!(!second.is_finished(), "a closed queue has something as long as it is in processing");
    end.notify_one();
    assert_eq!(first.await.unwrap(), Ok(("a", 1)));
    end.notify_one();
    assert_eq!(second.await.unwrap(), Ok(("a", 2)));
}

#[tokio::test(start_paused = true)]
async fn an_object_returns_to_its_place_if_its_processing_is_dropped_or_panics() {
    let (fifo, end) = (fifo(), Arc::new(Notify::new()));
    replace(&fifo, &[("a", 1), ("b", 2)]);
    let dropped = process_until(&fifo, &end, Ok(()));
    yield_now().await;
    dropped.abort();
    dropped.await.unwrap_err();
    assert_eq!(fifo.list(), [("a", 1), ("b", 2)]);

    let (panicking, called) = (Arc::clone(&fifo), Arc::new(AtomicBool::new(false)));
    let was_called = Arc::clone(&called);
    let process = move |object, is_in_initial_list| {
        assert_eq!((object, is_in_initial_list), (("a", 1), true));
        called.store(true, Ordering::SeqCst);
        let panic = || -> Result<(), ProcessError<()>> { panic!("as the test requires") };
        async move { panic() }
    };
    let ended = tokio::spawn(async move { panicking.pop(process).await.map(drop).map_err(drop) }).await;
    assert!(ended.unwrap_err().is_panic() && was_called.load(Ordering::SeqCst));
    assert!(!fifo.has_synced());
    assert_eq!(pop(&*fifo).await, (("a", 1), true));
    assert_eq!(pop_now(&fifo), Some(("b", 2)));
    assert!(fifo.has_synced());
}

#[tokio::test(start_paused = true)]
async fn what_changed_during_the_processing_is_newer() {
    for is_requeued in [true, false] {
        let (fifo, end) = (fifo(), Arc::new(Notify::new()));
        for (change, expected) in [
            ((|fifo: &Names| add(fifo, ("a", 2))) as fn(&Names), vec![("a", 2), ("b", 1)]),
            (|fifo| delete(fifo, "a"), vec![("b", 1)]),
            (|fifo| replace(fifo, &[("b", 2)]), vec![("b", 2)]),
            (|fifo| replace(fifo, &[("b", 2), ("a", 3)]), vec![("a", 3), ("b", 2)]),
            (|fifo| replace_nothing(fifo), vec![("a", 1), ("b", 1)]),
        ] {
            replace(&fifo, &[("a", 1), ("b", 1)]);
            let task = process_until(&fifo, &end, Err(ProcessError::Requeue(None)));
            yield_now().await;
            change(&fifo);
            if is_requeued {
                end.notify_one();
                task.await.unwrap().unwrap();
            } else {
                task.abort();
                task.await.unwrap_err();
            }
            assert_eq!(fifo.list(), expected, "requeued: {is_requeued}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_addition_waits_while_the_queue_is_full_and_a_list_does_not() {
    let fifo = Arc::new(Fifo::new(KeyFunc::infallible(|number: &usize| *number)));
    fifo.replace((1..MAX_QUEUED).collect()).now_or_never().unwrap().unwrap();
    fifo.add(0).now_or_never().expect("there is one place").unwrap();
    let (adding, unless_present) = (Arc::clone(&fifo), Arc::clone(&fifo));
    let added = tokio::spawn(async move { adding.add(5000).await });
    let other = tokio::spawn(async move { unless_present.add_if_not_present(5001).await });
    sleep(Duration::from_secs(1)).await;
    assert!(!added.is_finished() && !other.is_finished());
    assert!(fifo.add(5002).now_or_never().is_none(), "one that was dropped is not queued");
    fifo.add(1).now_or_never().expect("it has a place").unwrap();
    let process = |number, _| ready(fifo.add(number).now_or_never().unwrap().map_err(ProcessError::Failed));
    assert_eq!(fifo.pop(process).await.unwrap(), 1, "one in processing needs no other place");
    assert_eq!(fifo.list_keys().len(), MAX_QUEUED);
    assert_eq!(pop(&*fifo).await.0, 2);
    sleep(Duration::from_secs(1)).await;
    assert!(added.is_finished() != other.is_finished(), "one place is free");
    assert_eq!(fifo.list_keys().len(), MAX_QUEUED);
    fifo.replace((0..2 * MAX_QUEUED).collect()).now_or_never().expect("always accepted").unwrap();
    fifo.close();
    added.await.unwrap().unwrap();
    other.await.unwrap().unwrap();
    fifo.add(1).now_or_never().expect("a closed queue takes it").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_of_deleted_objects_has_places_again_once_they_are_passed_over() {
    let fifo = Arc::new(Fifo::new(KeyFunc::infallible(|number: &usize| *number)));
    fifo.replace((0..MAX_QUEUED).collect()).now_or_never().unwrap().unwrap();
    for number in 0..MAX_QUEUED {
        fifo.delete(number).await.unwrap();
    }
    let adding = Arc::clone(&fifo);
    let added = tokio::spawn(async move { adding.add(5000).await });
    yield_now().await;
    assert!(!added.is_finished());
    assert_eq!(pop(&*fifo).await, (5000, false));
    added.await.unwrap().unwrap();
    assert!(fifo.has_synced());
}

#[tokio::test(start_paused = true)]
async fn slow_processing_is_logged_while_more_than_ten_keys_wait() {
    let (warnings, _guard) = TestLog::start(Level::WARN);
    let fifo = Fifo::new(KeyFunc::infallible(|number: &u32| *number));
    for (queued, time, expected) in [(12, 101, 1), (12, 100, 0), (11, 101, 0), (12, 5000, 1)] {
        fifo.replace((0..queued).collect()).await.unwrap();
        let process = |_, _| async move {
            sleep(Duration::from_millis(time)).await;
            Ok::<_, ProcessError<Infallible>>(())
        };
        fifo.pop(process).await.unwrap();
        let logged = warnings.take();
        assert_eq!(logged.len(), expected, "{logged:?}");
        let fields = format!("message=slow queue key=0 depth=11 took={:?} ", Duration::from_millis(time));
        assert!(logged.iter().all(|text| *text == fields), "{logged:?}");
    }
}
