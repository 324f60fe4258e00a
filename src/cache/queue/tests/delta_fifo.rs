//! `DeltaFifo`.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::{task::JoinSet, time::advance};

use super::*;
use crate::cache::{
    MapStore,
    ObjectDelta::{Added, Deleted, DeletedFinalStateUnknown, Replaced, Sync, Updated},
};

type Names = DeltaFifo<Named, &'static str>;
type NamedDelta = ObjectDelta<Named, &'static str>;

fn done<R>(ready: impl Future<Output = Result<R, KeyError>>) -> R {
    ready.now_or_never().expect("not full").unwrap()
}

fn unknowing() -> Names {
    DeltaFifo::new(DeltaFifoOptions::new(by_name()))
}

/// Makes a queue over known objects, which emits `Sync` for the objects of a list.
fn knowing(objects: &[Named]) -> Names {
    let known_objects = Some(known(objects));
    DeltaFifo::new(DeltaFifoOptions { known_objects, emit_replaced: false, ..DeltaFifoOptions::new(by_name()) })
}

fn known(objects: &[Named]) -> Arc<dyn KnownObjects<Named, &'static str>> {
    let store = MapStore::new(by_name());
    done(store.replace(objects.to_vec()));
    Arc::new(store)
}

fn tombstone(name: &'static str, last_known: Named) -> NamedDelta {
    DeletedFinalStateUnknown(Tombstone { key: name, last_known: Some(last_known) })
}

/// Pops everything.
fn pop_all(fifo: &Names) -> Vec<Vec<NamedDelta>> {
    std::iter::from_fn(|| pop(fifo).now_or_never()).map(|(deltas, _)| deltas.into_iter().collect()).collect()
}

/// Pops everything, and returns the numbers of the newest objects.
fn pop_newest(fifo: &Names) -> Vec<u32> {
    let popped = std::iter::from_fn(|| pop(fifo).now_or_never());
    popped.map(|(deltas, _)| deltas.newest().object().unwrap().1).collect()
}

/// client-go: `TestDeltaFIFO_basic`.
#[tokio::test]
async fn deltas_of_two_producers_are_popped_in_the_order_of_each() {
    let fifo = DeltaFifo::new(DeltaFifoOptions::new(KeyFunc::infallible(|number: &u32| *number)));
    check_order_of_producers(fifo, |deltas| {
        assert_eq!(deltas.iter().collect::<Vec<_>>(), [&Added(*deltas.key())]);
        *deltas.key()
    })
    .await;
}

/// client-go: `TestDeltaFIFO_addUpdate`.
#[test]
fn all_deltas_of_a_key_are_popped_together() {
    let fifo = unknowing();
    done(fifo.add(("foo", 10)));
    done(fifo.update(("foo", 12)));
    done(fifo.delete(("foo", 15)));
    let deltas = fifo.get(&("foo", 0)).unwrap().unwrap();
    assert_eq!(
        (deltas.oldest(), deltas.newest(), deltas.iter().count()),
        (&Added(("foo", 10)), &Deleted(("foo", 15)), 3)
    );
    assert_eq!((fifo.list(), fifo.list_keys()), (vec![deltas], vec!["foo"]));
    assert_eq!(pop_all(&fifo), [[Added(("foo", 10)), Updated(("foo", 12)), Deleted(("foo", 15))]]);
    assert_eq!(fifo.get_by_key(&"foo"), None);
}

/// client-go: `TestDeltaFIFO_enqueueingNoLister`.
#[test]
fn the_deletion_of_what_is_not_queued_is_ignored() {
    let fifo = unknowing();
    done(fifo.add(("foo", 10)));
    done(fifo.update(("bar", 15)));
    done(fifo.add(("qux", 17)));
    done(fifo.delete(("qux", 18)));
    done(fifo.delete(("baz", 20)));
    assert_eq!(pop_newest(&fifo), [10, 15, 18]);
}

/// client-go: `TestDeltaFIFO_enqueueingWithLister`.
#[test]
fn the_deletion_of_what_is_known_is_queued() {
    let fifo = knowing(&[("foo", 5), ("bar", 6), ("baz", 7)]);
    done(fifo.add(("foo", 10)));
    done(fifo.update(("bar", 15)));
    done(fifo.delete(("baz", 20)));
    assert_eq!(pop_newest(&fifo), [10, 15, 20]);
}

#[test]
fn after_a_first_deletion_the_first_batch_is_empty_also_if_it_was_ignored() {
    let fifo = unknowing();
    done(fifo.delete(("foo", 1)));
    assert!(fifo.has_synced());
    done(fifo.replace(vec![("foo", 2)]));
    assert!(fifo.has_synced());
}

/// client-go: `TestDeltaFIFO_addReplace`.
#[test]
fn a_replaced_object_is_the_newest() {
    let fifo = unknowing();
    done(fifo.add(("foo", 10)));
    done(fifo.replace(vec![("foo", 15)]));
    assert_eq!(pop_all(&fifo), [[Added(("foo", 10)), Replaced(("foo", 15))]]);
    assert_eq!(fifo.list(), []);
}

/// client-go: `TestDeltaFIFO_Resync`.
#[test]
fn a_resync_queues_the_known_objects() {
    let fifo = knowing(&[("foo", 5)]);
    done(fifo.resync());
    assert!(!fifo.has_synced(), "it is no addition");
    assert_eq!(pop_all(&fifo), [[Sync(("foo", 5))]]);
    done(unknowing().resync());
}

/// client-go: `TestDeltaFIFO_ResyncNonExisting`.
#[test]
fn a_resync_passes_over_what_is_queued_as_deleted() {
    let fifo = knowing(&[("foo", 5)]);
    done(fifo.delete(("foo", 10)));
    done(fifo.resync());
    assert_eq!(pop_all(&fifo), [[Deleted(("foo", 10))]]);
}

/// client-go: `TestDeltaFIFO_UpdateResyncRace`.
#[test]
fn a_resync_passes_over_what_is_queued_as_updated() {
    let fifo = knowing(&[("foo", 5)]);
    done(fifo.update(("foo", 6)));
    done(fifo.resync());
    assert_eq!(pop_all(&fifo), [[Updated(("foo", 6))]]);
}

/// client-go: `TestDeltaFIFO_DeleteExistingNonPropagated`.
#[test]
fn an_addition_and_its_deletion_are_both_kept() {
    let fifo = knowing(&[]);
    done(fifo.add(("foo", 5)));
    done(fifo.delete(("foo", 6)));
    assert_eq!(pop_all(&fifo), [[Added(("foo", 5)), Deleted(("foo", 6))]]);
}

/// client-go: `TestDeltaFIFO_detectLineJumpers`.
#[test]
fn a_key_keeps_its_place_until_its_deltas_are_popped_and_then_is_last() {
    let fifo = unknowing();
    for object in [("foo", 10), ("bar", 1), ("foo", 11), ("foo", 13), ("zab", 30)] {
        done(fifo.add(object));
    }
    let (first, _) = pop(&fifo).now_or_never().unwrap();
    assert_eq!(first.newest(), &Added(("foo", 13)));
    done(fifo.add(("foo", 14)));
    assert_eq!(pop_newest(&fifo), [1, 30, 14]);
}

/// client-go: `TestDeltaFIFO_replaceWithDeleteDeltaIn`.
#[test]
fn a_list_is_queued_after_a_deletion() {
    let fifo = knowing(&[("foo", 1)]);
    done(fifo.delete(("foo", 1)));
    done(fifo.replace(vec![("foo", 2)]));
    assert_eq!(pop_all(&fifo), [[Deleted(("foo", 1)), Sync(("foo", 2))]]);
}

/// client-go: `TestDeltaFIFOW_ReplaceMakesDeletionsForObjectsOnlyInQueue`.
#[test]
fn a_list_deletes_what_is_only_queued_once() {
    const OBJECT: Named = ("foo", 2);
    const V2: Named = ("foo", 3);
    let list = |list: &[Named]| {
        let list = list.to_vec();
        Box::new(move |fifo: &Names| done(fifo.replace(list.clone()))) as Box<dyn Fn(&Names)>
    };
    let add = |object| Box::new(move |fifo: &Names| done(fifo.add(object))) as Box<dyn Fn(&Names)>;
    let delete = || Box::new(move |fifo: &Names| done(fifo.delete(OBJECT))) as Box<dyn Fn(&Names)>;
    let cases = [
        (vec![add(OBJECT), list(&[])], vec![Added(OBJECT), tombstone("foo", OBJECT)]),
        (vec![list(&[OBJECT]), list(&[])], vec![Sync(OBJECT), tombstone("foo", OBJECT)]),
        (vec![add(OBJECT), delete(), list(&[])], vec![Added(OBJECT), Deleted(OBJECT)]),
        (
            vec![list(&[OBJECT]), list(&[OBJECT]), list(&[]), list(&[])],
            vec![Sync(OBJECT), Sync(OBJECT), tombstone("foo", OBJECT)],
        ),
        (vec![add(OBJECT), list(&[]), list(&[])], vec![Added(OBJECT), tombstone("foo", OBJECT)]),
        (
            vec![add(OBJECT), delete(), add(V2), list(&[])],
            vec![Added(OBJECT), Deleted(OBJECT), Added(V2), tombstone("foo", V2)],
        ),
    ];
    for (operations, expected) in cases {
        let without = DeltaFifo::new(DeltaFifoOptions { emit_replaced: false, ..DeltaFifoOptions::new(by_name()) });
        for fifo in [without, knowing(&[])] {
            for operation in &operations {
                operation(&fifo);
            }
            assert_eq!(pop_all(&fifo).concat(), expected);
            assert_eq!(fifo.list(), []);
        }
    }
}

/// client-go: `TestDeltaFIFO_ReplaceMakesDeletions`.
#[test]
fn a_list_deletes_what_is_queued_or_known() {
    const KNOWN: [Named; 3] = [("foo", 5), ("bar", 6), ("baz", 7)];
    let list = || vec![("foo", 5)];
    let (synced, bar, baz) = (vec![Sync(("foo", 5))], vec![tombstone("bar", ("bar", 6))], tombstone("baz", ("baz", 7)));

    let fifo = knowing(&KNOWN);
    done(fifo.delete(("baz", 10)));
    done(fifo.replace(list()));
    assert_eq!(pop_all(&fifo), [vec![Deleted(("baz", 10))], synced.clone(), bar.clone()]);

    let fifo = knowing(&KNOWN);
    done(fifo.add(("baz", 10)));
    done(fifo.replace(list()));
    let added = vec![Added(("baz", 10)), tombstone("baz", ("baz", 10))];
    assert_eq!(pop_all(&fifo), [added.clone(), synced.clone(), bar.clone()]);

    // Deleted and created again in the queue.
    let fifo = knowing(&KNOWN);
    done(fifo.delete(("bar", 6)));
    done(fifo.add(("bar", 100)));
    done(fifo.replace(list()));
    let recreated = vec![Deleted(("bar", 6)), Added(("bar", 100)), tombstone("bar", ("bar", 100))];
    assert_eq!(pop_all(&fifo), [recreated, synced.clone(), vec![baz.clone()]]);

    // The deletion has the newest object.
    let fifo = knowing(&KNOWN);
    done(fifo.replace(vec![("bar", 100), ("foo", 5)]));
    done(fifo.replace(list()));
    let replaced = vec![Sync(("bar", 100)), tombstone("bar", ("bar", 100))];
    assert_eq!(pop_all(&fifo), [replaced, [synced[0].clone(), synced[0].clone()].to_vec(), vec![baz]]);

    let fifo = DeltaFifo::new(DeltaFifoOptions { emit_replaced: false, ..DeltaFifoOptions::new(by_name()) });
    done(fifo.add(("baz", 10)));
    done(fifo.replace(list()));
    assert_eq!(pop_all(&fifo), [added, synced]);
}

/// client-go: `TestDeltaFIFO_ReplaceMakesDeletionsReplaced`.
#[test]
fn the_objects_of_a_list_are_replaced_by_default() {
    let fifo = DeltaFifo::new(DeltaFifoOptions {
        known_objects: Some(known(&[("foo", 5), ("bar", 6), ("baz", 7)])),
        ..DeltaFifoOptions::new(by_name())
    });
    done(fifo.delete(("baz", 10)));
    done(fifo.replace(vec![("foo", 6)]));
    let expected = [Deleted(("baz", 10)), Replaced(("foo", 6)), tombstone("bar", ("bar", 6))];
    assert_eq!(pop_all(&fifo).concat(), expected);
}

/// client-go: `TestDeltaFIFO_ReplaceDeltaType`.
#[test]
fn the_objects_of_a_list_are_replaced_or_synced() {
    for (emit_replaced, expected) in [(true, Replaced(("foo", 5))), (false, Sync(("foo", 5)))] {
        let fifo = DeltaFifo::new(DeltaFifoOptions { emit_replaced, ..DeltaFifoOptions::new(by_name()) });
        done(fifo.replace(vec![("foo", 5)]));
        assert_eq!(pop_all(&fifo), [[expected]]);
    }
}

/// client-go: `TestDeltaFIFO_HasSynced`.
#[test]
fn a_delta_queue_has_synced_once_its_first_batch_is_processed() {
    let (a, b) = (("a", 1), ("b", 2));
    assert!(!unknowing().has_synced(), "nothing yet");

    let one = unknowing();
    done(one.add(a));
    assert!(one.has_synced());

    let none = unknowing();
    done(none.replace(vec![]));
    assert!(none.has_synced());

    let two = unknowing();
    done(two.replace(vec![a, b]));
    assert!(!two.has_synced());
    assert!(pop(&two).now_or_never().unwrap().1 && !two.has_synced());
    assert!(pop(&two).now_or_never().unwrap().1 && two.has_synced());

    let equal = unknowing();
    done(equal.replace(vec![a, ("a", 2)]));
    assert_eq!(pop_all(&equal), [[Replaced(a), Replaced(("a", 2))]]);
    assert!(equal.has_synced());
}

/// client-go: `TestDeltaFIFO_HasSyncedCorrectOnDeletion`.
#[test]
fn inferred_deletions_are_part_of_the_first_batch() {
    let fifo = knowing(&[("foo", 5), ("bar", 6), ("baz", 7)]);
    done(fifo.replace(vec![("foo", 5)]));
    for expected in [Sync(("foo", 5)), tombstone("bar", ("bar", 6)), tombstone("baz", ("baz", 7))] {
        assert!(!fifo.has_synced());
        let (deltas, is_in_initial_list) = pop(&fifo).now_or_never().unwrap();
        assert!(is_in_initial_list);
        assert_eq!(deltas.into_iter().collect::<Vec<_>>(), [expected]);
    }
    assert!(fifo.has_synced());
}

/// client-go: `TestDeltaFIFO_KeyOf`. Deltas always have a key and a delta.
#[test]
fn objects_tombstones_and_deltas_have_the_same_key() {
    let fifo = knowing(&[("foo", 5)]);
    assert_eq!(fifo.key_of(&("foo", 10)).unwrap(), "foo");
    done(fifo.replace(vec![]));
    let (deltas, _) = pop(&fifo).now_or_never().unwrap();
    let DeletedFinalStateUnknown(tombstone) = deltas.newest() else { panic!("{deltas:?}") };
    assert_eq!((*deltas.key(), tombstone.key), ("foo", "foo"));
}

/// client-go: `TestDeltaFIFO_PopShouldUnblockWhenClosed`.
#[tokio::test(start_paused = true)]
async fn closing_ends_every_pop_of_deltas() {
    let fifo = Arc::new(unknowing());
    let mut pops = JoinSet::new();
    for _ in 0..10 {
        let fifo = Arc::clone(&fifo);
        pops.spawn(async move { fifo.pop(|_, _| ready(Ok::<_, ProcessError<()>>(()))).await });
    }
    advance(Duration::from_secs(1)).await;
    assert!(pops.try_join_next().is_none());
    fifo.close();
    while let Some(ended) = pops.join_next().await {
        assert_eq!(ended.unwrap(), Err(PopError::Closed));
    }
}

/// client-go: `TestDeltaFIFO_requeueOnPop`.
#[test]
fn requeued_deltas_are_put_back() {
    let fifo = unknowing();
    done(fifo.add(("foo", 10)));
    for inner in [None, Some("test")] {
        let process = |_, _| ready(Err(ProcessError::Requeue(inner)));
        let popped = fifo.pop(process).now_or_never().unwrap();
        assert_eq!(popped.err(), inner.map(PopError::Requeued));
        assert_eq!(fifo.get_by_key(&"foo"), Some(Deltas::new("foo", Added(("foo", 10)))));
    }
    assert_eq!(pop_all(&fifo), [[Added(("foo", 10))]]);
}

/// client-go: `TestDeltaFIFO_addIfNotPresent`.
#[test]
fn deltas_are_added_only_if_there_are_none_of_their_key() {
    let fifo = unknowing();
    done(fifo.add(("a", 1)));
    done(fifo.add_if_not_present(Deltas::new("a", Updated(("a", 2)))));
    done(fifo.add_if_not_present(Deltas::new("b", Updated(("b", 3)))));
    assert_eq!(pop_all(&fifo), [[Added(("a", 1))], [Updated(("b", 3))]]);
}

#[test]
fn two_deletions_become_the_one_that_has_more_of_the_object() {
    let (first, last) = (Deleted(("a", 1)), Deleted(("a", 2)));
    let (known, newer) = (tombstone("a", ("a", 3)), tombstone("a", ("a", 4)));
    let unknown: NamedDelta = DeletedFinalStateUnknown(Tombstone { key: "a", last_known: None });
    for (earlier, later, expected) in [
        (&first, &last, &last),
        (&first, &known, &first),
        (&known, &first, &first),
        (&known, &newer, &newer),
        (&known, &unknown, &known),
        (&unknown, &known, &known),
    ] {
        let mut deltas = Deltas::new("a", earlier.clone());
        deltas.push(later.clone());
        assert_eq!(deltas, Deltas::new("a", expected.clone()));
    }
}
