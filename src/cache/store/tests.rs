//! Stores: the body that client-go's tests of stores have in common, what each adds, and expiry on a paused clock.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, advance};

use super::*;
use crate::cache::Fifo;

/// Object with an id and a value: client-go's `testStoreObject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TestObject(&'static str, &'static str);

/// Returns the id as the key; an object without one has none.
fn by_id() -> KeyFunc<TestObject, &'static str> {
    KeyFunc::new(|TestObject(id, _)| if id.is_empty() { Err("the id is empty") } else { Ok(*id) })
}

const BAD: TestObject = TestObject("", "bad");

async fn check_store(store: impl Store<Object = TestObject, Key = &'static str, Item = TestObject>) {
    store.add(TestObject("foo", "bar")).await.unwrap();
    assert_eq!(store.get(&TestObject("foo", "")).unwrap(), Some(TestObject("foo", "bar")));

    store.update(TestObject("foo", "baz")).await.unwrap();
    assert_eq!(store.get_by_key(&"foo"), Some(TestObject("foo", "baz")));

    store.delete(TestObject("foo", "")).await.unwrap();
    assert_eq!(store.get_by_key(&"foo"), None);
    store.delete(TestObject("foo", "")).await.unwrap();

    for object in [TestObject("c", "d"), TestObject("a", "b"), TestObject("e", "f")] {
        store.update(object).await.unwrap();
    }
    store.add(TestObject("e", "g")).await.unwrap();
    assert_eq!(store.list(), [TestObject("a", "b"), TestObject("c", "d"), TestObject("e", "g")]);
    assert_eq!(store.list_keys(), ["a", "c", "e"]);

    let list = vec![TestObject("foo", "old"), TestObject("bar", "bar"), TestObject("foo", "foo")];
    store.replace(list).await.unwrap();
    let replaced = [TestObject("bar", "bar"), TestObject("foo", "foo")];
    assert_eq!(store.list(), replaced, "the last of equal keys counts");
    store.resync().await.unwrap();

    store.add(BAD).await.unwrap_err();
    store.update(BAD).await.unwrap_err();
    store.delete(BAD).await.unwrap_err();
    store.get(&BAD).unwrap_err();
    let error = store.replace(vec![TestObject("new", "new"), BAD]).await.unwrap_err();
    assert_eq!(error.to_string(), "no key for an object: the id is empty");
    assert_eq!(format!("{:?}", error.object), format!("{BAD:?}"));
    assert_eq!(store.list(), replaced, "an error changes nothing");
}

/// client-go: `TestCache`.
#[tokio::test]
async fn a_map_store_behaves_as_a_store() {
    check_store(MapStore::new(by_id())).await;
}

/// client-go: `TestFIFOCache`.
#[tokio::test]
async fn a_fifo_behaves_as_a_store() {
    check_store(Fifo::new(by_id())).await;
}

/// client-go: `TestUndeltaStore`.
#[tokio::test]
async fn an_undelta_store_behaves_as_a_store() {
    check_store(UndeltaStore::new(by_id(), drop)).await;
}

#[tokio::test]
async fn an_expiration_cache_behaves_as_a_store() {
    check_store(ExpirationCache::new(by_id(), TTL)).await;
}

/// client-go: `TestKeyError`.
#[tokio::test]
async fn the_cause_of_a_key_error_is_its_source() {
    #[derive(Debug, PartialEq, thiserror::Error)]
    #[error("no metadata")]
    struct NoMeta;
    let key_func = KeyFunc::<u32, u32>::new(|_| Err(NoMeta));
    let error = key_func.key_of(&5).unwrap_err();
    assert_eq!(format!("{:?}", error.object), "5");
    assert_eq!(error.source().and_then(<dyn Error>::downcast_ref), Some(&NoMeta));
    let nested = KeyFunc::<u32, u32>::new(move |number| Err(key_func.key_of(number).unwrap_err()));
    let outer = nested.key_of(&6).unwrap_err();
    let inner = outer.source().and_then(<dyn Error>::downcast_ref::<KeyError>).unwrap();
    assert_eq!(inner.source().and_then(<dyn Error>::downcast_ref), Some(&NoMeta));
}

#[test]
fn the_key_of_an_object_of_a_resource_is_its_own() {
    let object = Object::from_json(r#"{"metadata":{"namespace":"shop","name":"a/b"}}"#, "", "5".parse().unwrap());
    let object = Arc::new(object.unwrap());
    assert_eq!(KeyFunc::default().key_of(&object).unwrap(), *object.key());
}

/// Store and the states that it has pushed.
type Pushes = Arc<Mutex<Vec<Vec<TestObject>>>>;

fn pushing() -> (UndeltaStore<TestObject, &'static str>, Pushes) {
    let pushes = Pushes::default();
    let states = Arc::clone(&pushes);
    (UndeltaStore::new(by_id(), move |state| states.lock().push(state)), pushes)
}

const A: TestObject = TestObject("a", "1");
const B: TestObject = TestObject("b", "2");

/// client-go: `TestUpdateCallsPush`.
#[tokio::test]
async fn an_update_pushes_the_state_also_if_nothing_differs() {
    let (store, pushes) = pushing();
    store.add(B).await.unwrap();
    store.add(A).await.unwrap();
    store.update(A).await.unwrap();
    assert_eq!(*pushes.lock(), [vec![B], vec![A, B], vec![A, B]]);
}

/// client-go: `TestDeleteCallsPush`.
#[tokio::test]
async fn a_deletion_pushes_the_state_also_of_an_absent_key() {
    let (store, pushes) = pushing();
    store.add(A).await.unwrap();
    store.delete(A).await.unwrap();
    store.delete(A).await.unwrap();
    assert_eq!(*pushes.lock(), [vec![A], vec![], vec![]]);
}

/// client-go: `TestReplaceCallsPush`.
#[tokio::test]
async fn a_replacement_pushes_once() {
    let (store, pushes) = pushing();
    store.replace(vec![B, A]).await.unwrap();
    assert_eq!(*pushes.lock(), [vec![A, B]]);
}

/// client-go: `TestReadsDoNotCallPush`.
#[tokio::test]
async fn reads_and_failures_push_nothing() {
    let (store, pushes) = pushing();
    store.get(&A).unwrap();
    assert_eq!((store.get_by_key(&"a"), store.list(), store.list_keys()), (None, vec![], vec![]));
    store.resync().await.unwrap();
    store.add(BAD).await.unwrap_err();
    store.update(BAD).await.unwrap_err();
    store.delete(BAD).await.unwrap_err();
    store.replace(vec![A, BAD]).await.unwrap_err();
    assert_eq!(*pushes.lock(), Vec::<Vec<TestObject>>::new());
}

#[test]
fn pushes_of_several_threads_are_in_order_and_one_at_a_time() {
    let (pushing, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (in_push, pushed) = (Arc::clone(&pushing), Arc::clone(&last));
    let store = UndeltaStore::new(KeyFunc::infallible(|number: &usize| *number), move |state: Vec<usize>| {
        assert_eq!(in_push.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
        // Nothing is deleted: each state has one object more.
        assert_eq!(state.len(), pushed.lock().len() + 1);
        *pushed.lock() = state;
        in_push.fetch_sub(1, Ordering::SeqCst);
    });
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..50 {
                    futures_util::FutureExt::now_or_never(store.add(4 * number + thread)).unwrap().unwrap();
                }
            });
        }
    });
    assert_eq!(*last.lock(), (0..200).collect::<Vec<_>>());
}

const TTL: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_nanos(1);

fn expiring(ttl: Duration) -> ExpirationCache<TestObject, &'static str> {
    ExpirationCache::new(by_id(), ttl)
}

/// client-go: `TestTTLExpirationBasic`.
#[tokio::test(start_paused = true)]
async fn a_read_removes_an_expired_entry() {
    let cache = expiring(TTL);
    cache.add(A).await.unwrap();
    cache.add(B).await.unwrap();
    advance(TTL + MOMENT).await;
    assert_eq!(cache.list_keys(), ["a", "b"], "whose keys are listed without their ages");
    assert_eq!(cache.get(&A).unwrap(), None);
    assert_eq!(cache.list_keys(), ["b"]);
    assert_eq!(cache.get_by_key(&"b"), None);
    assert!(cache.list_keys().is_empty());
    assert!(cache.expire().is_empty(), "a read has removed everything");
}

/// client-go: `TestReAddExpiredItem`.
#[tokio::test(start_paused = true)]
async fn an_entry_that_was_added_again_after_its_expiry_stays() {
    let cache = expiring(TTL);
    cache.add(A).await.unwrap();
    advance(TTL + MOMENT).await;
    cache.add(TestObject("a", "new")).await.unwrap();
    assert_eq!(cache.get(&A).unwrap(), Some(TestObject("a", "new")));
    advance(TTL).await;
    assert!(cache.expire().is_empty());
    assert_eq!(cache.list(), [TestObject("a", "new")]);
}

/// client-go: `TestTTLList`.
#[tokio::test(start_paused = true)]
async fn a_list_has_only_what_has_not_expired_and_removes_the_rest() {
    let cache = expiring(TTL);
    let (first, last, renewed) = (TestObject("c", "first"), TestObject("b", "last"), TestObject("a", "renewed"));
    cache.replace(vec![renewed, first]).await.unwrap();
    advance(MOMENT).await;
    cache.add(last).await.unwrap();
    advance(TTL).await;
    cache.update(renewed).await.unwrap();
    assert_eq!(cache.list(), [renewed, last]);
    advance(MOMENT).await;
    assert_eq!(cache.list(), [renewed]);
    assert_eq!(cache.list_keys(), ["a"]);
}

/// client-go: `TestTTLPolicy`. A negative time to live cannot be written.
#[tokio::test(start_paused = true)]
async fn an_entry_expires_after_its_time_to_live_not_at_it() {
    let (cache, immortal) = (expiring(TTL), expiring(Duration::ZERO));
    cache.add(A).await.unwrap();
    immortal.add(A).await.unwrap();
    assert_eq!((cache.get(&A).unwrap(), immortal.next_expiry()), (Some(A), None));
    advance(TTL).await;
    assert_eq!(cache.get(&A).unwrap(), Some(A), "exactly at it");
    advance(MOMENT).await;
    assert_eq!(cache.get(&A).unwrap(), None);
    advance(1_000_000 * TTL).await;
    assert_eq!((immortal.get(&A).unwrap(), immortal.expire()), (Some(A), vec![]));
}

#[tokio::test(start_paused = true)]
async fn expired_entries_are_returned_oldest_first_as_soon_as_they_are_due() {
    let cache = expiring(TTL);
    assert_eq!(cache.next_expiry(), None);
    cache.replace(vec![B, A]).await.unwrap();
    let begun = Instant::now();
    assert_eq!(cache.entry(&"a"), Some(TimestampedEntry { object: A, stamp: begun }));
    advance(2 * MOMENT).await;
    cache.add(TestObject("0", "youngest")).await.unwrap();
    assert_eq!(cache.next_expiry(), Some(begun + TTL + MOMENT));
    advance(TTL.saturating_sub(2 * MOMENT)).await;
    assert!(cache.expire().is_empty(), "before it is due");
    advance(MOMENT).await;
    assert_eq!(Some(Instant::now()), cache.next_expiry());
    assert_eq!(cache.expire(), [A, B]);
    advance(TTL).await;
    assert_eq!(cache.expire(), [TestObject("0", "youngest")]);
    assert_eq!((cache.next_expiry(), cache.list()), (None, vec![]));
}
