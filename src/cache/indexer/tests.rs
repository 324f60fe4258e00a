//! The store and its indexes: client-go's tests, the difference that a relist makes, and any history against plain maps.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};
use tokio::time::Instant;

use super::*;
use crate::{
    cache::History,
    model::{ObjectParts, Path, Reached},
    watch::Retention,
};

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

/// A pod with an annotation as client-go's tests have it: names of users, separated by commas.
fn pod(name: &str, uid: &str, users: &str, version: ResourceVersion) -> Arc<Object> {
    let users: Vec<&str> = users.split(',').filter(|user| !user.is_empty()).collect();
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let metadata = serde_json::json!({ "namespace": namespace, "name": name, "uid": uid });
    let json = serde_json::json!({ "metadata": metadata, "users": users }).to_string();
    Arc::new(Object::from_json(Bytes::from(json), "", version).unwrap())
}

fn put(name: &str, users: &str, number: u128) -> Event {
    Event::Modified(pod(name, "", users, version(number)))
}

fn delete(name: &str, number: u128) -> Event {
    Event::Deleted(pod(name, "", "", version(number)))
}

fn list(objects: Vec<Arc<Object>>, number: u128) -> List {
    List::new(objects, version(number))
}

fn indexers() -> Arc<Indexers> {
    let by_user = IndexFunc::Path(Path::parse(".users[*]").unwrap());
    Arc::new(Indexers::new([("user".to_owned(), by_user)]).unwrap())
}

fn empty() -> Indexer {
    Indexer::new(indexers(), list(Vec::new(), 1))
}

fn names<'a>(objects: impl Iterator<Item = &'a Arc<Object>>) -> Vec<String> {
    objects.map(|object| object.key().to_string()).collect()
}

fn by_user(indexer: &Indexer, user: &str) -> Vec<String> {
    names(indexer.snapshot().by_index("user", user, None).unwrap())
}

/// The whole index: value, then the names under it.
fn users(indexer: &Indexer) -> Vec<(String, Vec<String>)> {
    let snapshot = indexer.snapshot();
    let values = snapshot.index_values("user", None).unwrap();
    values
        .map(|(value, count)| {
            let names = names(snapshot.by_index("user", &value, None).unwrap());
            assert_eq!(names.len() as u64, count);
            (value.to_string(), names)
        })
        .collect()
}

/// Values, each with the names under it.
type Index<'a> = &'a [(&'a str, &'a [&'a str])];

fn index(expected: Index<'_>) -> Vec<(String, Vec<String>)> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    expected.iter().map(|(value, names)| ((*value).to_owned(), owned(names))).collect()
}

/// What a change is: a sign, the name, the version, and the cause if it is not the usual one.
fn told(batch: &Batch) -> Vec<String> {
    let text = |change: &Change| {
        let sign = match (&change.old, &change.new) {
            (None, Some(_)) => '+',
            (Some(_), Some(_)) => '~',
            _ => '-',
        };
        let cause = match change.cause {
            Cause::Inferred => " inferred",
            Cause::NotServed => " not served",
            _ => "",
        };
        format!("{sign}{} {}{cause}", change.object().key(), change.version)
    };
    batch.changes.iter().map(text).collect()
}

// === Indexes ===

/// client-go `TestIndex`, `TestGetIndexFuncValues`.
#[test]
fn objects_are_found_by_the_values_of_an_index() {
    let indexer = Indexer::new(
        indexers(),
        list(
            ["one foo", "two foo", "tre bar"]
                .map(|pod_of| {
                    let (name, user) = pod_of.split_once(' ').unwrap();
                    pod(name, "", user, version(1))
                })
                .into(),
            1,
        ),
    );
    assert_eq!(users(&indexer), index(&[("bar", &["tre"]), ("foo", &["one", "two"])]));
    let snapshot = indexer.snapshot();
    assert!(snapshot.by_index("none", "foo", None).is_none(), "an unknown index is an error");
    assert!(snapshot.index_values("none", None).is_none());
    assert_eq!(snapshot.index_func("user"), indexers().get("user"));
}

/// client-go `TestMultiIndexKeys`.
#[test]
fn an_object_may_have_several_values_and_move_between_them() {
    let mut indexer = empty();
    indexer.apply(put("one", "ernie,bert", 2));
    indexer.apply(put("two", "bert,oscar", 3));
    indexer.apply(put("tre", "ernie,elmo", 4));
    assert_eq!(
        users(&indexer),
        index(&[("bert", &["one", "two"]), ("elmo", &["tre"]), ("ernie", &["one", "tre"]), ("oscar", &["two"])])
    );
    assert_eq!(by_user(&indexer, "other"), [""; 0], "a value that nothing has is no error");
    indexer.apply(delete("tre", 5));
    assert_eq!(by_user(&indexer, "ernie"), ["one"]);
    assert_eq!(by_user(&indexer, "elmo"), [""; 0]);
    indexer.apply(put("two", "oscar", 6));
    assert_eq!(users(&indexer), index(&[("bert", &["one"]), ("ernie", &["one"]), ("oscar", &["two"])]));
}

/// client-go `TestThreadSafeStoreDeleteRemovesEmptySetsFromIndex`, `..AddKeepsNonEmptySetPostDeleteFromIndex`.
#[test]
fn a_value_goes_with_its_last_object() {
    let mut indexer = empty();
    indexer.apply(put("key", "value", 2));
    assert_eq!(indexer.state.indexes.iter().map(OrdSet::len).sum::<usize>(), 1);
    indexer.apply(delete("key", 3));
    assert_eq!(indexer.state.indexes.iter().map(OrdSet::len).sum::<usize>(), 0);
    indexer.apply(put("key", "value", 4));
    indexer.apply(put("key2", "value", 5));
    indexer.apply(delete("key", 6));
    assert_eq!(users(&indexer), index(&[("value", &["key2"])]));
}

/// client-go `TestThreadSafeStoreIndexingFunctionsWithMultipleValues`.
#[test]
fn an_index_follows_every_step_of_its_objects() {
    let mut indexer = empty();
    let steps: [(Event, Index<'_>); 10] = [
        (put("key1", "foo", 2), &[("foo", &["key1"])]),
        (put("key2", "bar", 3), &[("bar", &["key2"]), ("foo", &["key1"])]),
        (put("key1", "foo,bar", 4), &[("bar", &["key1", "key2"]), ("foo", &["key1"])]),
        (put("key2", "foo,baz", 5), &[("bar", &["key1"]), ("baz", &["key2"]), ("foo", &["key1", "key2"])]),
        (put("key1", "baz", 6), &[("baz", &["key1", "key2"]), ("foo", &["key2"])]),
        (put("key1", "baz", 7), &[("baz", &["key1", "key2"]), ("foo", &["key2"])]),
        (put("key2", "", 8), &[("baz", &["key1"])]),
        (delete("key2", 9), &[("baz", &["key1"])]),
        (delete("key1", 10), &[]),
        (delete("key1", 11), &[]),
    ];
    for (event, expected) in steps {
        indexer.apply(event);
        assert_eq!(users(&indexer), index(expected), "at {}", indexer.version());
    }
}

// === Live events ===

/// client-go `TestThreadSafeStoreRV`.
#[test]
fn the_applied_version_follows_events_bookmarks_and_lists() {
    let mut indexer = empty();
    let at = |indexer: &Indexer| (indexer.version().number(), indexer.snapshot().version().number());
    for (event, expected) in [
        (put("a", "", 10), 10),
        (put("a", "x", 20), 20),
        (delete("a", 30), 30),
        (put("b", "", 40), 40),
        (Event::Bookmark(version(50)), 50),
    ] {
        let batch = indexer.apply(event);
        assert_eq!(at(&indexer), (expected, expected));
        assert_eq!(batch.after, version(expected));
    }
    let batch = indexer.replace(list(Vec::new(), 60));
    assert_eq!((batch.before, batch.after), (version(50), version(60)));
    assert_eq!(at(&indexer), (60, 60));
}

/// etcd: several events may share one revision, and a resume point must not split it.
#[test]
fn a_transaction_is_one_batch_at_its_version() {
    let mut indexer = empty();
    indexer.apply(put("a", "x", 10));
    let batch = indexer.apply_events([put("b", "y", 20), delete("a", 20), put("c", "z", 20)], true);
    assert_eq!(told(&batch), ["+b 20", "-a 20", "+c 20"]);
    assert_eq!((batch.before, batch.after), (version(10), version(20)));
    let repeated = indexer.apply_events([put("b", "y", 20), delete("a", 20), put("c", "z", 20)], true);
    assert_eq!(told(&repeated), [""; 0]);
}

/// client-go `processDeltas`: the type of an event is a hint.
#[test]
fn the_store_decides_what_an_event_is() {
    let mut indexer = empty();
    let object = |users, number| pod("a", "", users, version(number));
    assert_eq!(told(&indexer.apply(Event::Modified(object("x", 2)))), ["+a 2"]);
    assert_eq!(told(&indexer.apply(Event::Added(object("y", 3)))), ["~a 3"]);
    assert_eq!(told(&indexer.apply(Event::Added(object("y", 3)))), [""; 0], "a repetition");
    assert_eq!(told(&indexer.apply(Event::Bookmark(version(4)))), [""; 0]);
    let deletion = indexer.apply(Event::Deleted(object("last", 5)));
    assert_eq!(told(&deletion), ["-a 5"]);
    assert_eq!(deletion.changes[0].old, Some(object("y", 3)), "the last state that anybody has seen");
    assert_eq!(told(&indexer.apply(Event::Deleted(object("last", 6)))), [""; 0], "of what is not there");
    assert!(indexer.snapshot().is_empty());
    assert_eq!(indexer.snapshot().body_bytes(), 0);
}

/// Invariant 4.
#[test]
fn another_uid_under_the_same_key_is_a_deletion_and_an_addition() {
    let mut indexer = Indexer::new(indexers(), list(vec![pod("a", "first", "x", version(1))], 1));
    let live = indexer.apply(Event::Modified(pod("a", "second", "y", version(2))));
    assert_eq!(told(&live), ["-a 2", "+a 2"]);
    assert_eq!((live.before, live.after), (version(1), version(2)));
    assert_eq!(users(&indexer), index(&[("y", &["a"])]));

    let relist = indexer.replace(list(vec![pod("a", "third", "z", version(7))], 9));
    assert_eq!(told(&relist), ["-a 9 inferred", "+a 7"]);
    assert_eq!(users(&indexer), index(&[("z", &["a"])]));

    let unknown = indexer.apply(Event::Modified(pod("a", "", "z", version(10))));
    assert_eq!(told(&unknown), ["~a 10"], "without a uid nobody can tell");
}

/// A later start has no history: whoever resumes from the version before has to get all of the open one.
#[tokio::test]
async fn what_is_kept_for_a_later_start_is_the_state_of_the_version_to_resume_from() {
    let held = ["a", "b", "c"].map(|name| pod(name, "", "", version(1))).into();
    let mut indexer = Indexer::new(indexers(), list(held, 5));
    let bounds = Retention { events: 100, size: 1 << 20, age: Duration::from_secs(300) };
    let mut history = History::new(bounds, Reached { version: version(5), offset: 0 });
    let mut apply = |events: Vec<Event>, closes: bool| {
        history.record(Arc::new(indexer.apply_events(events, closes)), Instant::now());
        let kept = indexer.snapshot_before(&history.ahead());
        kept.objects(None, None).map(|object| object.key().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(apply(vec![delete("a", 9)], false), ["a", "b", "c"]);
    assert_eq!(apply(vec![delete("b", 9)], false), ["a", "b", "c"]);
    assert_eq!(apply(vec![Event::Bookmark(version(9))], true), ["c"]);
    assert_eq!(apply(vec![delete("c", 12)], false), ["c"]);
    assert_eq!(apply(vec![put("d", "", 13)], true), ["d"]);
}

/// Invariant 14: at one version there is one state. Told as a deletion at the version that everybody has, nobody who resumes from it
/// would be told.
#[test]
fn a_list_at_the_held_version_has_whatever_is_held() {
    let state = |names: &[&str], at| list(names.iter().map(|name| pod(name, "", "", version(3))).collect(), at);
    let indexer = Indexer::new(indexers(), state(&["a", "b"], 10));
    let missing = |list: &List, evidence| indexer.snapshot().contradiction(list, evidence).map(ToString::to_string);
    assert_eq!(missing(&state(&["b"], 10), Evidence::Listed).as_deref(), Some("a"));
    assert_eq!(missing(&state(&["a", "b"], 10), Evidence::Listed), None);
    assert_eq!(missing(&state(&["b"], 11), Evidence::Bytes), None, "it was deleted since");
    assert_eq!(missing(&state(&["b"], 10), Evidence::Held), None, "what the API selects may change");
    let not_served = List { not_served: state(&["a"], 10).objects, ..state(&["b"], 10) };
    assert_eq!(missing(&not_served, Evidence::Bytes), None);
    let namespace = indexer.snapshot().objects(None, None).next().unwrap().key().namespace().to_owned();
    let lost = List { lost_namespaces: vec![namespace], ..state(&[], 10) };
    assert_eq!(missing(&lost, Evidence::Listed), None, "nobody asked for it");
    let counted = |at| ResourceVersion::of_lineage("abc".into(), at);
    let counts =
        |names: &[&str]| List::new(names.iter().map(|name| pod(name, "", "", counted(3))).collect(), counted(10));
    let indexer = Indexer::new(indexers(), counts(&["a", "b"]));
    assert_eq!(indexer.snapshot().contradiction(&counts(&["b"]), Evidence::Bytes), None, "a source that counts for it");
}

/// Invariant 12: objects on a shared lease expire by the hundred at one version.
#[test]
fn a_version_is_safe_once_it_is_closed() {
    let held = ["a", "b", "c"].map(|name| pod(name, "", "", version(1))).into();
    let mut indexer = Indexer::new(indexers(), list(held, 5));
    let at = |indexer: &Indexer| (indexer.version().number(), indexer.snapshot().safe_version().number());
    let bounds = |batch: &Batch| (batch.before.number(), batch.after.number(), batch.is_open);
    let first = indexer.apply_events([delete("a", 9)], false);
    assert_eq!((told(&first), bounds(&first), at(&indexer)), (vec!["-a 9".to_owned()], (8, 9, true), (9, 8)));
    assert_eq!(told(&indexer.apply_events([delete("a", 9)], false)), [""; 0], "told again after a reconnection");
    let second = indexer.apply_events([delete("b", 9)], false);
    assert_eq!((bounds(&second), at(&indexer)), ((8, 9, true), (9, 8)));
    let listed = list(vec![pod("c", "", "", version(1)), pod("z", "", "", version(9))], 9);
    assert_eq!(indexer.snapshot().contradiction(&listed, Evidence::Listed), None, "it may come at the open version");
    let end = indexer.apply(Event::Bookmark(version(9)));
    assert_eq!((bounds(&end), at(&indexer)), ((8, 9, false), (9, 9)));
    let contradiction = indexer.snapshot().contradiction(&listed, Evidence::Listed).map(ToString::to_string);
    assert_eq!(contradiction.as_deref(), Some("z"), "now it would have come");
    let late = indexer.apply_events([delete("c", 9)], false);
    assert_eq!((bounds(&late), late.is_late(), at(&indexer)), ((9, 9, true), true, (9, 9)));
    let next = indexer.apply_events([put("d", "", 12)], false);
    assert_eq!((bounds(&next), at(&indexer)), ((11, 12, true), (12, 11)));
    let next = indexer.apply(put("e", "", 13));
    assert_eq!((bounds(&next), at(&indexer)), ((12, 13, false), (13, 13)), "a later version closes it");
}

/// What the open version lacks may be in the list, or missing from it.
#[test]
fn a_relist_closes_an_open_version_and_begins_before_it() {
    for to in [9, 12] {
        let held = ["a", "b"].map(|name| pod(name, "", "", version(1))).into();
        let mut indexer = Indexer::new(indexers(), list(held, 5));
        indexer.apply_events([delete("a", 9)], false);
        let relist = indexer.replace(list(Vec::new(), to));
        assert_eq!(told(&relist), [format!("-b {to} inferred")]);
        assert_eq!((relist.before, relist.after, relist.is_open), (version(8), version(to), false));
        assert_eq!(indexer.snapshot().safe_version(), &version(to));
    }
}

/// Who begins again before an open version is told what came before it.
#[test]
fn what_is_older_than_an_open_version_neither_takes_it_back_nor_closes_it() {
    let held = ["a", "b", "c"].map(|name| pod(name, "", "", version(1))).into();
    let mut indexer = Indexer::new(indexers(), list(held, 5));
    indexer.apply_events([delete("a", 9)], false);
    let is_open = |batch: Batch, indexer: &Indexer| {
        assert_eq!((batch.before, batch.after, batch.is_open, batch.is_relist), (version(8), version(9), true, false));
        assert_eq!((indexer.version(), indexer.snapshot().safe_version()), (&version(9), &version(8)));
        batch.changes
    };
    let bookmark = indexer.apply(Event::Bookmark(version(8)));
    assert_eq!(is_open(bookmark, &indexer), []);
    let relisted = indexer.apply_relist([Event::Bookmark(version(8))], Cause::Inferred);
    assert_eq!(is_open(relisted, &indexer), []);
    let listed = indexer.replace(list(vec![pod("c", "", "", version(1))], 8));
    assert_eq!(told(&listed), ["-b 9"], "the list is of a server that has begun the version");
    is_open(listed, &indexer);
}

// === Relist ===

/// client-go `TestReplaceEvents`; invariant 4.
#[test]
fn a_relist_is_deletions_first_and_then_what_is_new_in_the_order_of_the_list() {
    let object = |name, number| pod(name, "", "", version(number));
    let held = ["a", "b", "c", "d"].map(|name| object(name, 1)).into();
    let mut indexer = Indexer::new(indexers(), list(held, 5));
    let relist = list(vec![object("z", 7), object("c", 6), object("b", 1), object("e", 8)], 9);
    let batch = indexer.replace(relist.clone());
    assert_eq!(told(&batch), ["-a 9 inferred", "-d 9 inferred", "+z 7", "~c 6", "+e 8"]);
    assert_eq!((&batch.before, &batch.after), (&version(5), &version(9)));
    assert_eq!(names(indexer.snapshot().objects(None, None)), ["b", "c", "e", "z"]);
    assert_eq!(told(&indexer.replace(relist)), [""; 0], "and again it produces nothing");
}

/// An object that still exists is not deleted, unless another one has taken its place.
#[test]
fn what_can_no_longer_be_served_is_not_deleted() {
    let object = |name, uid, number| pod(name, uid, "", version(number));
    let held = ["a", "b", "c", "d", "e"].map(|name| object(name, "1", 1)).to_vec();
    let mut indexer = Indexer::new(indexers(), list(held, 5));
    assert_eq!(told(&indexer.apply(Event::NotServed(object("a", "1", 6)))), ["-a 6 not served"]);
    assert_eq!(told(&indexer.apply(Event::NotServed(object("a", "1", 7)))), [""; 0], "it was not served before");
    assert_eq!(told(&indexer.apply(Event::NotServed(object("b", "2", 8)))), ["-b 8"], "another object");
    assert_eq!(told(&indexer.apply(Event::Modified(object("a", "1", 9)))), ["+a 9"], "it is served again");
    let not_served = vec![object("a", "1", 10), object("c", "", 10), object("d", "2", 10), object("z", "1", 10)];
    let relist = List { not_served, ..list(vec![object("f", "1", 10)], 11) };
    let expected = ["-a 11 not served", "-c 11 not served", "-d 11 inferred", "-e 11 inferred", "+f 10"];
    assert_eq!(told(&indexer.replace(relist.clone())), expected);
    assert_eq!(told(&indexer.replace(relist)), [""; 0]);
    let events = [Event::NotServed(object("f", "1", 12)), Event::Bookmark(version(13))];
    assert_eq!(
        told(&indexer.apply_relist(events, Cause::Inferred)),
        ["-f 12 not served"],
        "at a relist of a relay's origin"
    );
}

#[test]
fn of_two_objects_with_one_key_the_last_wins() {
    let object = |users, number| pod("a", "", users, version(number));
    let both = || vec![object("x", 2), object("y", 3)];
    let mut indexer = Indexer::new(indexers(), list(both(), 3));
    assert_eq!(users(&indexer), index(&[("y", &["a"])]));
    assert_eq!(indexer.snapshot().body_bytes(), object("y", 3).body().len());
    assert_eq!(told(&indexer.replace(list(both(), 4))), [""; 0]);
    let reversed = both().into_iter().rev().collect();
    assert_eq!(told(&indexer.replace(list(reversed, 5))), ["~a 2"]);
    assert_eq!(users(&indexer), index(&[("x", &["a"])]));
}

#[test]
fn without_versions_of_its_own_a_source_has_changed_what_has_other_bytes() {
    let at = |number| ResourceVersion::of_lineage("abc".into(), number);
    let object = |name, users, number| pod(name, "", users, at(number));
    let first = List::new(vec![object("a", "x", 1), object("b", "x", 1)], at(1));
    let mut indexer = Indexer::new(indexers(), first);
    let second = List::new(vec![object("a", "x", 2), object("b", "y", 2)], at(2));
    assert_eq!(told(&indexer.replace(second)), ["~b abc.2"]);

    let live = indexer.apply(Event::Modified(object("b", "y", 3)));
    assert_eq!((told(&live), live.after), (vec![], at(3)), "live too: the version moves, and nothing else");
    assert_eq!(indexer.snapshot().get(&ObjectKey::new("", "b").unwrap()).unwrap().version(), &at(2));
    assert_eq!(told(&indexer.apply(Event::Added(object("b", "z", 4)))), ["~b abc.4"]);
    assert_eq!(told(&indexer.apply(Event::Added(pod("b", "uid", "z", at(5))))), ["~b abc.5"]);
    let with_versions = pod("a", "", "x", version(7));
    let mut indexer = Indexer::new(indexers(), list(vec![with_versions], 7));
    assert_eq!(told(&indexer.apply(put("a", "x", 8))), ["~a 8"], "a version of its own is a change");
}

/// A CRD that gains a default, an API server that is upgraded: nothing is written, and the bodies are others.
#[test]
fn other_bytes_at_the_same_version_are_a_modification_at_a_relist_and_live() {
    let object = |name, users, number| pod(name, "uid", users, version(number));
    let mut indexer = Indexer::new(indexers(), list(vec![object("a", "x", 3), object("b", "x", 4)], 5));
    let batch = indexer.replace(list(vec![object("a", "y", 3), object("b", "x", 4)], 9));
    assert_eq!(told(&batch), ["~a 3"]);
    assert_eq!((batch.before, batch.after, batch.is_relist), (version(5), version(9), true));
    assert_eq!(users(&indexer), index(&[("x", &["b"]), ("y", &["a"])]));

    let live = indexer.apply(Event::Modified(object("b", "z", 4)));
    assert_eq!(told(&live), ["~b 4"]);
    assert_eq!(users(&indexer), index(&[("y", &["a"]), ("z", &["b"])]));

    // The type is not in the bytes of every source.
    let typed = |kind: &str| {
        let parts =
            ObjectParts { kind: kind.to_owned(), ..ObjectParts::bare(ObjectKey::new("", "c").unwrap(), version(6)) };
        Arc::new(Object::new(parts))
    };
    indexer.apply(Event::Added(typed("Old")));
    assert_eq!(told(&indexer.apply(Event::Modified(typed("New")))), ["~c 6"]);
    assert_eq!(told(&indexer.apply(Event::Modified(typed("New")))), [""; 0]);
}

// === Snapshots ===

#[test]
fn a_snapshot_does_not_change_with_the_store() {
    let mut indexer = empty();
    indexer.apply(put("a", "x", 2));
    let before = indexer.snapshot();
    indexer.apply(put("a", "y", 3));
    indexer.apply(put("b", "x", 4));
    indexer.replace(list(Vec::new(), 5));
    assert_eq!(before.version(), &version(2));
    assert_eq!(names(before.objects(None, None)), ["a"]);
    assert_eq!(names(before.by_index("user", "x", None).unwrap()), ["a"]);
    assert_eq!(before.get(&ObjectKey::new("", "a").unwrap()).unwrap().version(), &version(2));
    assert!(indexer.snapshot().is_empty());
}

// === Any history ===

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
    /// Those of the store at these places as they are, and new ones.
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

/// The indexes by computing them again.
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
    assert_eq!(snapshot.body_bytes(), store.values().map(|object| object.body().len()).sum::<usize>());
    for (name, func) in snapshot.indexers().iter() {
        let naive = naive_index(store, func);
        let values: Vec<_> = snapshot.index_values(name, None).unwrap().map(|(v, n)| (v.to_string(), n)).collect();
        assert_eq!(values, naive.iter().map(|(value, keys)| (value.clone(), keys.len() as u64)).collect::<Vec<_>>());
        for (value, keys) in &naive {
            let found = snapshot.by_index(name, value, None).unwrap().map(|object| object.key().clone());
            assert_eq!(found.collect::<Vec<_>>(), *keys);
        }
    }
}

/// Applies changes one by one; each has to fit the state that it meets.
fn fold(store: &mut Store, batch: &Batch) {
    for change in &batch.changes {
        let key = change.object().key().clone();
        assert_eq!(store.get(&key), change.old.as_ref());
        assert_ne!(change.old, change.new);
        match &change.new {
            Some(new) => store.insert(key, Arc::clone(new)),
            None => store.remove(&key),
        };
    }
}

proptest! {
    #[test]
    fn the_store_equals_a_map_and_the_changes_of_a_batch_are_the_difference(ops in vec(any_op(), 1..40)) {
        let mut indexer = empty();
        let mut store = Store::new();
        let mut folded = Store::new();
        let mut snapshots = Vec::new();
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
            snapshots.push((indexer.snapshot(), store.clone()));
        }
        for (snapshot, store) in snapshots {
            check(&snapshot, &store);
        }
    }

    #[test]
    fn pages_go_on_strictly_after_any_key(
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

        let func = snapshot.index_func("user").unwrap();
        let found: Vec<_> = snapshot.by_index("user", user, after.as_ref()).unwrap().collect();
        let expected = rest.iter().copied().filter(|object| func.values(object).iter().any(|value| value == user));
        prop_assert_eq!(found, expected.collect::<Vec<_>>());

        let values: Vec<_> = snapshot.index_values("user", Some(user)).unwrap().map(|(v, n)| (v.to_string(), n)).collect();
        let expected = naive_index(&store, func).into_iter().filter(|(value, _)| **value > *user);
        prop_assert_eq!(values, expected.map(|(value, keys)| (value, keys.len() as u64)).collect::<Vec<_>>());
    }
}
