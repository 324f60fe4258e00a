//! Drawn operations, applied to the indexer and to a plain store without indexes.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

/// Cost of an object besides its body.
const CHANGE_BYTES: usize = 256;

const NAMES: [&str; 6] = ["a", "b", "shop/a", "shop/b", "shop-x/a", "shop-x/c"];

#[derive(Debug, Clone)]
enum Op {
    Put {
        name: usize,
        uid: usize,
        users: usize,
    },
    Delete(usize),
    Bookmark,
    /// List with the objects of the store at these positions, unchanged, and new ones.
    Replace {
        kept: Vec<usize>,
        put: Vec<(usize, usize, usize)>,
    },
}

const USERS: [&str; 6] = ["", "bert", "bert,ernie", "ernie", "oscar,bert", "b"];
const UIDS: [&str; 3] = ["", "first", "second"];

fn any_op() -> impl Strategy<Value = Op> {
    let put = || (0..NAMES.len(), 0..UIDS.len(), 0..USERS.len());
    prop_oneof![
        4 => put().prop_map(|(name, uid, users)| Op::Put { name, uid, users }),
        2 => (0..NAMES.len()).prop_map(Op::Delete),
        1 => Just(Op::Bookmark),
        1 => (vec(0..NAMES.len(), 0..6), vec(put(), 0..4)).prop_map(|(kept, put)| Op::Replace { kept, put }),
    ]
}

type Store = BTreeMap<ObjectKey, Arc<Object>>;

/// Computes an index from scratch.
fn naive_index(store: &Store, func: &IndexFunc) -> BTreeMap<String, Vec<ObjectKey>> {
    let mut index: BTreeMap<String, Vec<ObjectKey>> = BTreeMap::new();
    for (key, object) in store {
        for value in func.values(object) {
            index.entry(value).or_default().push(key.clone());
        }
    }
    index
}

fn check(snapshot: &Snapshot, store: &Store) {
    assert_eq!(snapshot.objects(None, None).cloned().collect::<Vec<_>>(), store.values().cloned().collect::<Vec<_>>());
    assert_eq!((snapshot.len(), snapshot.is_empty()), (store.len(), store.is_empty()));
    let bodies = store.values().map(|object| object.body().len()).sum::<usize>();
    assert_eq!(snapshot.body_bytes(), bodies);
    assert_eq!(snapshot.size(), (bodies + store.len() * CHANGE_BYTES) as u64);
    let namespaces: BTreeSet<&str> = store.keys().map(ObjectKey::namespace).collect();
    assert!(snapshot.namespaces().iter().eq(namespaces));
    for (name, func) in snapshot.indexers.iter() {
        let naive = naive_index(store, func);
        let values = counted(snapshot, name, None);
        assert_eq!(values, naive.iter().map(|(value, keys)| (value.clone(), keys.len() as u64)).collect::<Vec<_>>());
        for (at, (value, keys)) in naive.iter().enumerate() {
            let rest: Vec<_> = counted(snapshot, name, Some(value));
            assert_eq!(rest, values[at + 1..], "after {value:?}");
            let found = snapshot.by_index(name, value, None).unwrap().map(|object| object.key().clone());
            assert_eq!(found.collect::<Vec<_>>(), *keys);
        }
    }
}

/// Applies changes one by one, and checks that each fits the state before it, and the values of the indexes that it carries.
fn fold(store: &mut Store, batch: &Batch) {
    for change in &batch.changes {
        let key = change.object().key().clone();
        assert_eq!(store.get(&key), change.old.as_ref());
        assert_ne!(change.old, change.new);
        assert_eq!(change.index_values.is_none(), batch.is_relist, "the history keeps those of a relist");
        for state in change.old_state().into_iter().chain(change.new_state()) {
            for (_, func) in indexers().iter() {
                assert_eq!(*state.values(func), func.values(state.object()), "{func:?}");
            }
        }
        match &change.new {
            Some(new) => store.insert(key, Arc::clone(new)),
            None => store.remove(&key),
        };
    }
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn the_store_equals_a_map_and_the_changes_of_a_batch_are_the_difference(ops in vec(any_op(), 1..40)) {
        let mut indexer = empty();
        let mut store = Store::new();
        let mut folded = Store::new();
        let (mut snapshots, mut replaced) = (Vec::new(), 0);
        for (op, at) in ops.into_iter().zip(2..) {
            let new = |(name, uid, users): (usize, usize, usize)| pod(NAMES[name], UIDS[uid], USERS[users], version(at));
            let old = store.clone();
            let batch = match op {
                Op::Put { name, uid, users } => {
                    let object = new((name, uid, users));
                    store.insert(object.key().clone(), Arc::clone(&object));
                    indexer.apply(Event::Added(object))
                }
                Op::Delete(name) => {
                    let object = new((name, 0, 0));
                    store.remove(object.key());
                    indexer.apply(Event::Deleted(object))
                }
                Op::Bookmark => indexer.apply(Event::Bookmark(version(at))),
                Op::Replace { kept, put } => {
                    let kept = kept.into_iter().filter_map(|name| store.get(new((name, 0, 0)).key()).cloned());
                    // An upstream does not have two states of one object at one version.
                    let mut seen = BTreeSet::new();
                    let put = put.into_iter().filter(|(name, _, _)| seen.insert(*name)).map(new);
                    let objects: Vec<_> = kept.chain(put).collect();
                    store = objects.iter().map(|object| (object.key().clone(), Arc::clone(object))).collect();
                    let batch = indexer.replace(list(objects, at));
                    let is_deletion: Vec<_> = batch.changes.iter().map(|change| change.new.is_none()).collect();
                    assert!(is_deletion.is_sorted_by(|a, b| a >= b), "deletions first");
                    let causes = batch.changes.iter().map(|change| change.cause == Cause::Inferred);
                    assert_eq!(causes.collect::<Vec<_>>(), is_deletion);
                    let unchanged = |change: &Change| store.get(change.object().key()) == old.get(change.object().key());
                    assert!(!batch.changes.iter().any(unchanged), "what is unchanged produces nothing");
                    batch
                }
            };
            prop_assert_eq!(&batch.after, &version(at));
            prop_assert_eq!(&batch.before, &version(at - 1));
            fold(&mut folded, &batch);
            prop_assert_eq!(&folded, &store);
            check(&indexer.snapshot(), &store);
            let cost = |change: &Change| CHANGE_BYTES + change.old.as_ref().map_or(0, |old| old.body().len());
            replaced += batch.changes.iter().map(cost).sum::<usize>() as u64;
            prop_assert_eq!(indexer.snapshot().replaced_bytes(), replaced);
            snapshots.push((indexer.snapshot(), store.clone()));
        }
        for (snapshot, store) in snapshots {
            check(&snapshot, &store);
        }
    }

    #[test]
    fn pages_continue_strictly_after_any_key(
        held in vec((select(NAMES.to_vec()), select(USERS.to_vec())), 0..8),
        after in proptest::option::of(select(NAMES.to_vec())),
        namespace in proptest::option::of(select(vec!["", "shop", "shop-x", "none"])),
        user in select(vec!["bert", "ernie", "b", "be"]),
    ) {
        let objects: Vec<_> = held.iter().map(|(name, users)| pod(name, "", users, version(1))).collect();
        let store: Store = objects.iter().map(|object| (object.key().clone(), Arc::clone(object))).collect();
        let snapshot = Indexer::new(indexers(), list(objects, 1)).snapshot();
        let after = after.map(|name| pod(name, "", "", version(1)).key().clone());
        let rest: Vec<_> = store.values().filter(|object| after.as_ref().is_none_or(|after| object.key() > after)).collect();

        let listed: Vec<_> = snapshot.objects(namespace, after.as_ref()).collect();
        let expected = rest.iter().copied().filter(|o| namespace.is_none_or(|namespace| o.key().namespace() == namespace));
        prop_assert_eq!(listed, expected.collect::<Vec<_>>());

        let func = snapshot.indexers.get("user").unwrap();
        let found: Vec<_> = snapshot.by_index("user", user, after.as_ref()).unwrap().collect();
        let expected = rest.iter().copied().filter(|object| func.values(object).iter().any(|value| value == user));
        prop_assert_eq!(found, expected.collect::<Vec<_>>());

        let values = counted(&snapshot, "user", Some(user));
        let expected = naive_index(&store, func).into_iter().filter(|(value, _)| **value > *user);
        prop_assert_eq!(values, expected.map(|(value, keys)| (value, keys.len() as u64)).collect::<Vec<_>>());
    }
}
