//! Store and indexes: client-go's tests, the difference made by a relist, and drawn histories against plain maps.

mod open;
mod property;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::*;
use crate::{
    model::{HistoryPosition, ObjectParts, Path},
    watch::History,
    watch::Retention,
};

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

/// Makes a pod with an annotation as in client-go's tests: names of users, separated by commas.
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

/// Returns the values after another one, each with the number of its objects.
fn counted(snapshot: &Snapshot, index: &str, after: Option<&str>) -> Vec<(String, u64)> {
    let mut counted: Vec<(String, u64)> = Vec::new();
    for (value, _) in snapshot.index_values(index, after).unwrap() {
        match counted.last_mut().filter(|(last, _)| last == value) {
            Some((_, count)) => *count += 1,
            None => counted.push((value.to_owned(), 1)),
        }
    }
    counted
}

/// Returns the whole index: each value, then the names under it.
fn users(indexer: &Indexer) -> Vec<(String, Vec<String>)> {
    let snapshot = indexer.snapshot();
    counted(&snapshot, "user", None)
        .into_iter()
        .map(|(value, count)| {
            let names = names(snapshot.by_index("user", &value, None).unwrap());
            assert_eq!(names.len() as u64, count);
            (value, names)
        })
        .collect()
}

/// Expected values, each with the names under it.
type Index<'a> = &'a [(&'a str, &'a [&'a str])];

fn index(expected: Index<'_>) -> Vec<(String, Vec<String>)> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    expected.iter().map(|(value, names)| ((*value).to_owned(), owned(names))).collect()
}

/// Formats each change: a sign, the name, the version, and the cause if it is not the usual one.
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
            Cause::Expired => " expired",
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
}

#[test]
fn namespaces_are_the_values_of_the_namespace_index_only() {
    let objects = ["shop/a", "b"].map(|name| pod(name, "", "ernie", version(1))).into();
    let snapshot = Indexer::new(indexers(), list(objects, 1)).snapshot();
    let found = |index, value| names(snapshot.by_index(index, value, None).unwrap());
    assert_eq!(found("namespace", "shop"), ["shop/a"]);
    assert_eq!(found("namespace", ""), [""; 0], "an object without a namespace has no value");
    assert_eq!(found("user", "ernie"), ["b", "shop/a"]);
    assert_eq!(found("user", "shop"), [""; 0]);
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
fn an_index_value_is_removed_with_its_last_object() {
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
fn an_index_follows_every_change_of_its_objects() {
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
fn the_type_of_an_event_depends_on_the_store() {
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

/// A batch is applied as a whole, at the version of its last event.
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

/// client-go `TestReplaceEvents`; a relist is one batch.
#[test]
fn a_relist_yields_deletions_first_and_then_changes_in_list_order() {
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

#[test]
fn the_deletion_of_an_earlier_object_under_the_same_key_changes_nothing() {
    let mut indexer = Indexer::new(indexers(), list(vec![pod("a", "second", "x", version(1))], 1));
    let deletion = |uid, number| Event::Deleted(pod("a", uid, "", version(number)));
    assert_eq!(told(&indexer.apply(deletion("first", 2))), [""; 0]);
    assert_eq!(users(&indexer), index(&[("x", &["a"])]));
    assert_eq!(told(&indexer.apply(deletion("", 3))), ["-a 3"], "without a uid nobody can tell");
}

/// A view may leave the labels out of the body.
#[test]
fn a_change_of_labels_alone_is_a_change_also_in_a_lineage() {
    let object = |app: &str, number| {
        let version = ResourceVersion::of_lineage("x".into(), number);
        let labels = [("app".to_owned(), app.to_owned())].into();
        let key = ObjectKey::new("", "a").unwrap();
        Arc::new(Object::new(ObjectParts { labels, ..ObjectParts::bare(key, version) }))
    };
    let at = |number| ResourceVersion::of_lineage("x".into(), number);
    let mut indexer = Indexer::new(indexers(), List::new(vec![object("web", 1)], at(1)));
    assert!(indexer.apply(Event::Modified(object("web", 2))).changes.is_empty());
    assert_eq!(indexer.apply(Event::Modified(object("db", 3))).changes.len(), 1);
    let list = List::new(vec![object("shop", 4)], at(4));
    assert_eq!(indexer.replace(list).changes.len(), 1);
}

#[test]
fn the_deletion_of_an_expired_object_has_its_own_cause() {
    let mut indexer = Indexer::new(indexers(), list(vec![pod("a", "", "", version(1))], 5));
    let expired = |number| Event::Removed(pod("a", "", "", version(number)), Cause::Expired);
    let batch = indexer.apply(expired(6));
    assert_eq!((told(&batch), batch.is_relist), (vec!["-a 6 expired".to_owned()], false));
    assert_eq!(told(&indexer.apply(expired(7))), [""; 0]);
}

/// The deletion of an object that still exists has its own cause, unless another object has taken its place.
#[test]
fn an_object_that_can_no_longer_be_served_is_not_deleted() {
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
fn without_upstream_versions_other_bytes_are_a_change() {
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

/// After a new CRD default or an API server upgrade the bodies differ without a write.
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

    // Some sources have the type outside of the bytes.
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
