use bytes::Bytes;
use proptest::prelude::*;

use super::*;

/// Content of a file: names of objects with a value each, in order.
type Manifest = Vec<(&'static str, u8)>;

#[derive(Debug, Clone)]
enum Step {
    Write(Manifest),
    /// Write of a file with a part that cannot be read, beside these objects.
    Break(Manifest),
    Remove,
}

const PATHS: [&str; 4] = ["a.yaml", "b.yaml", "b/c.yaml", "d.yaml"];
const NAMES: [&str; 4] = ["w", "x", "y", "z"];

fn object(name: &str, value: u8, version: ResourceVersion) -> Object {
    let kind = if value > 2 { "Big" } else { "Small" };
    let body = format!(r#"{{"kind":"{kind}","metadata":{{"name":"{name}"}},"value":{value}}}"#);
    Object::from_json(Bytes::from(body), "unnamed", version).unwrap()
}

fn read(catalog: &Catalog, path: &str, manifest: &[(&str, u8)]) -> FileChange {
    let objects = manifest.iter().map(|(name, value)| object(name, *value, catalog.next_version())).collect();
    change(path, Content::Objects(objects))
}

fn change(path: &str, content: Content) -> FileChange {
    FileChange { path: path.into(), stamp: None, is_trusted: false, content }
}

/// Returns a read of a file that has a part that cannot be read, beside these objects.
fn partial(catalog: &Catalog, path: &str, manifest: &[(&str, u8)]) -> FileChange {
    let objects = manifest.iter().map(|(name, value)| object(name, *value, catalog.next_version())).collect();
    let unread = Unread { count: Some(1), reason: "broken".into() };
    change(path, Content::Partial(objects, unread))
}

fn gone(path: &str) -> FileChange {
    change(path, Content::Absent)
}

fn catalog(files: &[(&str, &[(&str, u8)])]) -> Catalog {
    let mut catalog = Catalog::new("abc".into());
    let changes = files.iter().map(|(path, manifest)| read(&catalog, path, manifest)).collect();
    assert_eq!(catalog.apply(changes, Instant::now()), [], "the first application has no events");
    assert_eq!(catalog.version().to_string(), "abc.1");
    catalog
}

impl Catalog {
    /// Applies changes, and deletes at once the objects that no file contains any more.
    fn apply_all(&mut self, changes: Vec<FileChange>) -> Vec<Event> {
        let mut events = self.apply(changes, Instant::now());
        events.extend(self.delete(|_| true));
        events
    }
}

/// Shows events as, for example, `+x=1@abc.2`.
fn shown(events: &[Event]) -> Vec<String> {
    let show = |sign: &str, object: &Object| {
        let body = std::str::from_utf8(object.body()).unwrap();
        let value = body.rsplit_once(':').unwrap().1.trim_end_matches('}');
        format!("{sign}{}={value}@{}", object.key(), object.version())
    };
    let show = |event: &Event| match event {
        Event::Added(object) => show("+", object),
        Event::Modified(object) => show("~", object),
        Event::Deleted(object) => show("-", object),
        Event::NotServed(object) | Event::Removed(object, _) => {
            panic!("the last good state of {} is kept", object.key())
        }
        Event::Bookmark(version) => version.to_string(),
    };
    events.iter().map(show).collect()
}

#[test]
fn every_change_of_one_object_is_the_next_version() {
    let mut catalog = catalog(&[("a.yaml", &[("x", 1), ("y", 1), ("z", 1)])]);
    let events = catalog.apply_all(vec![read(&catalog, "a.yaml", &[("w", 1), ("y", 2), ("z", 1)])]);
    assert_eq!(shown(&events), ["+w=1@abc.2", "~y=2@abc.3", "-x=1@abc.4"]);
    assert_eq!(catalog.version().to_string(), "abc.4");
    let versions: Vec<_> = catalog.objects().iter().map(|o| format!("{}@{}", o.key(), o.version())).collect();
    assert_eq!(versions, ["w@abc.2", "y@abc.3", "z@abc.1"], "what did not change keeps its version");
}

#[test]
fn the_first_path_wins_and_the_next_one_takes_over() {
    let mut catalog = catalog(&[("b.yaml", &[("x", 2)]), ("a.yaml", &[("x", 1), ("x", 3)])]);
    let duplicates: Vec<_> = catalog.duplicates().map(|(key, by, path)| format!("{key} {by} {path}")).collect();
    assert_eq!(duplicates, ["x a.yaml a.yaml", "x a.yaml b.yaml"]);
    let events = catalog.apply_all(vec![read(&catalog, "a.yaml", &[("x", 3)])]);
    assert_eq!(shown(&events), ["~x=3@abc.2"]);
    let events = catalog.apply_all(vec![gone("a.yaml")]);
    assert_eq!(shown(&events), ["~x=2@abc.3"]);
    assert_eq!(catalog.duplicates().count(), 0);
    assert_eq!(shown(&catalog.apply_all(vec![gone("b.yaml")])), ["-x=2@abc.4"]);
}

#[test]
fn the_same_bytes_from_another_file_are_no_change() {
    let mut catalog = catalog(&[("b.yaml", &[("x", 1)]), ("c.yaml", &[("x", 1)])]);
    let before = catalog.objects();
    assert_eq!(catalog.apply_all(vec![gone("b.yaml"), read(&catalog, "a.yaml", &[("x", 1)])]), [], "a rename");
    assert_eq!(catalog.apply_all(vec![gone("a.yaml")]), [], "the waiting one takes over");
    assert_eq!(catalog.objects(), before);
    assert!(Arc::ptr_eq(&catalog.objects()[0], &before[0]));
}

#[test]
fn a_missing_file_keeps_its_objects_behind_those_of_existing_files() {
    let mut catalog = catalog(&[("a.yaml", &[("x", 1), ("y", 1)]), ("b.yaml", &[("z", 1)])]);
    assert_eq!(catalog.apply(vec![gone("a.yaml")], Instant::now()), []);
    assert_eq!(catalog.objects().len(), 3);
    assert!(catalog.may_have_had("a.yaml") && !catalog.may_have_had("c.yaml"));
    let moved = read(&catalog, "c.yaml", &[("x", 2)]);
    assert_eq!(shown(&catalog.apply(vec![moved], Instant::now())), ["~x=2@abc.2"], "moved and changed");
    let back = read(&catalog, "a.yaml", &[("x", 1), ("y", 1)]);
    assert_eq!(shown(&catalog.apply(vec![back], Instant::now())), ["~x=1@abc.3"]);
    assert_eq!(catalog.duplicates().count(), 1);
    assert_eq!(shown(&catalog.apply_all(vec![gone("a.yaml")])), ["~x=2@abc.4", "-y=1@abc.5"]);
}

#[test]
fn an_object_that_moves_is_no_event_and_stays_until_it_is_deleted() {
    let mut catalog = catalog(&[("a.yaml", &[("x", 1), ("y", 1)]), ("b.yaml", &[("z", 1)])]);
    let before = catalog.objects();
    let (begin, later) = (Instant::now(), Instant::now() + std::time::Duration::from_secs(1));
    let loses = read(&catalog, "a.yaml", &[("y", 1)]);
    assert_eq!(catalog.apply(vec![loses], begin), []);
    assert_eq!(catalog.objects(), before, "by key");
    let has = read(&catalog, "b.yaml", &[("z", 1), ("x", 1)]);
    assert_eq!(catalog.apply(vec![has], begin), []);
    assert!(Arc::ptr_eq(&catalog.objects()[0], &before[0]));
    assert_eq!((catalog.unclaimed_since(), catalog.delete(|_| true)), (None, vec![]));
    catalog.apply(vec![gone("b.yaml")], begin);
    let changed = read(&catalog, "a.yaml", &[("x", 2)]);
    assert_eq!(shown(&catalog.apply(vec![changed], later)), ["~x=2@abc.2"]);
    assert_eq!(shown(&catalog.delete(|since| since == begin)), ["-z=1@abc.3"], "x has a file again");
    catalog.hold(begin);
    assert_eq!(shown(&catalog.delete(|since| since == begin)), ["-y=1@abc.4"], "y waits since it was held last");
}

#[test]
fn a_file_that_cannot_be_read_keeps_its_last_good_objects() {
    let mut catalog = catalog(&[("a.yaml", &[("x", 1)])]);
    assert_eq!(catalog.apply_all(vec![partial(&catalog, "a.yaml", &[])]), []);
    let unread = |catalog: &Catalog| {
        catalog.unread().map(|(path, unread, kept)| (path.to_string(), unread.count, kept)).collect::<Vec<_>>()
    };
    assert_eq!(unread(&catalog), [("a.yaml".to_owned(), Some(1), 1)]);
    assert_eq!(catalog.objects().len(), 1);
    assert_eq!(catalog.apply_all(vec![read(&catalog, "a.yaml", &[("x", 1)])]), [], "mended, and the same as before");
    assert_eq!(unread(&catalog), []);
    assert_eq!(shown(&catalog.apply_all(vec![read(&catalog, "a.yaml", &[])])), ["-x=1@abc.2"]);
    assert_eq!(catalog.apply_all(vec![partial(&catalog, "a.yaml", &[])]), []);
    assert_eq!(unread(&catalog), [("a.yaml".to_owned(), Some(1), 0)], "it has no last good object");
}

#[test]
fn the_readable_part_of_a_file_is_served_and_the_rest_of_its_objects_are_kept() {
    let mut catalog = catalog(&[("a.yaml", &[("w", 1), ("x", 1), ("y", 1)])]);
    let events = catalog.apply_all(vec![partial(&catalog, "a.yaml", &[("x", 2), ("z", 1)])]);
    assert_eq!(shown(&events), ["~x=2@abc.2", "+z=1@abc.3"]);
    let known: Vec<_> = catalog.objects().iter().map(|object| object.key().to_string()).collect();
    assert_eq!(known, ["w", "x", "y", "z"]);
    let moved = read(&catalog, "b.yaml", &[("y", 5)]);
    assert_eq!(catalog.apply_all(vec![moved]), [], "a kept object keeps its place");
    assert_eq!(catalog.duplicates().count(), 1);
    let events = catalog.apply_all(vec![read(&catalog, "a.yaml", &[("x", 2), ("z", 1)])]);
    assert_eq!(shown(&events), ["~y=5@abc.4", "-w=1@abc.5"]);
}

#[test]
fn the_objects_of_an_earlier_run_are_those_of_its_files() {
    let mut catalog = Catalog::new("abc".into());
    let version = catalog.next_version();
    let objects = ["w", "x", "y"].map(|name| Arc::new(object(name, 1, version.clone())));
    let keys = |names: &[&str]| names.iter().map(|name| ObjectKey::new("", name).unwrap()).collect::<Vec<_>>();
    catalog.resume(vec![("a.yaml".into(), keys(&["w", "gone"])), ("b.yaml".into(), keys(&["x"]))], objects.to_vec());
    assert_eq!((catalog.objects().len(), catalog.version()), (3, version));
    assert_eq!(catalog.unclaimed.len(), 1, "no file had y");
    let changes = vec![partial(&catalog, "a.yaml", &[]), read(&catalog, "b.yaml", &[("x", 2), ("y", 1)])];
    assert_eq!(shown(&catalog.apply_all(changes)), ["~x=2@abc.2"]);
    assert_eq!(catalog.objects().len(), 3);
}

#[test]
fn kinds_are_those_of_existing_objects() {
    let mut catalog = catalog(&[("a.yaml", &[("x", 1), ("y", 3)])]);
    assert_eq!(catalog.kinds().iter().map(|kind| &**kind).collect::<Vec<_>>(), ["Big", "Small"]);
    catalog.apply_all(vec![read(&catalog, "a.yaml", &[("x", 1), ("y", 2)])]);
    assert_eq!(catalog.kinds().iter().map(|kind| &**kind).collect::<Vec<_>>(), ["Small"]);
    catalog.apply_all(vec![gone("a.yaml")]);
    assert_eq!(catalog.kinds().len(), 0);
    assert_eq!((catalog.files.len(), catalog.claims.len()), (0, 0));
}

fn manifest() -> impl Strategy<Value = Manifest> {
    prop::collection::vec((prop::sample::select(&NAMES[..]), 0..5_u8), 0..4)
}

fn step() -> impl Strategy<Value = (&'static str, Step)> {
    let step = prop_oneof![
        6 => manifest().prop_map(Step::Write),
        1 => Just(Step::Break(Manifest::new())),
        2 => manifest().prop_map(Step::Break),
        2 => Just(Step::Remove),
    ];
    (prop::sample::select(&PATHS[..]), step)
}

/// Model of the rules, as simple as possible: the content of every file, what was read last before what was kept, and the first
/// object of each key.
#[derive(Default)]
struct Model(BTreeMap<&'static str, FileModel>);

#[derive(Default)]
struct FileModel {
    read: Manifest,
    kept: Manifest,
}

impl Model {
    fn apply(&mut self, path: &'static str, step: &Step) {
        match step {
            Step::Write(manifest) => {
                self.0.insert(path, FileModel { read: manifest.clone(), ..FileModel::default() });
            }
            Step::Remove => {
                self.0.remove(path);
            }
            Step::Break(manifest) => {
                let file = self.0.entry(path).or_default();
                let mut kept = std::mem::replace(&mut file.read, manifest.clone());
                kept.append(&mut file.kept);
                kept.retain(|(name, _)| !manifest.iter().any(|(read, _)| read == name));
                file.kept = kept;
            }
        }
    }

    fn served(&self) -> BTreeMap<String, u8> {
        let parts = |file: &FileModel| file.read.iter().chain(&file.kept).rev().copied().collect::<Vec<_>>();
        self.0.values().rev().flat_map(parts).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Returns the number of objects that wait for another one.
    fn waiting(&self) -> usize {
        let mut keys = std::collections::BTreeSet::new();
        self.0
            .values()
            .flat_map(|file| file.read.iter().chain(&file.kept))
            .filter(|(name, _)| !keys.insert(*name))
            .count()
    }
}

fn value_of(object: &Object) -> u8 {
    serde_json::from_slice::<serde_json::Value>(object.body()).unwrap()["value"].as_u64().unwrap() as u8
}

fn served(objects: &[Arc<Object>]) -> BTreeMap<String, u8> {
    objects.iter().map(|object| (object.key().to_string(), value_of(object))).collect()
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn events_fold_to_the_merged_state(scans in prop::collection::vec((prop::collection::vec(step(), 0..5), any::<bool>()), 1..12)) {
        let mut catalog = Catalog::new("abc".into());
        let mut model = Model::default();
        let mut folded: BTreeMap<String, Arc<Object>> = BTreeMap::new();
        let mut last: BTreeMap<String, u8> = BTreeMap::new();
        for (at, (scan, deletes)) in scans.into_iter().enumerate() {
            let mut changes = Vec::new();
            for (path, step) in scan {
                model.apply(path, &step);
                match &step {
                    Step::Write(manifest) => {
                        let mut change = read(&catalog, path, manifest);
                        // As in a scan, which meets a path once.
                        if let Content::Objects(objects) = &change.content
                            && !changes.iter().any(|earlier: &FileChange| *earlier.path == *path)
                            && catalog.holds(path, objects)
                        {
                            change.content = Content::Same;
                        }
                        changes.push(change);
                    }
                    Step::Remove => changes.push(gone(path)),
                    Step::Break(manifest) => changes.push(partial(&catalog, path, manifest)),
                }
            }
            let before = catalog.version();
            let mut events = catalog.apply(changes, Instant::now());
            prop_assert!(!events.iter().any(|event| matches!(event, Event::Deleted(_))), "the engine says when");
            if deletes {
                events.extend(catalog.delete(|_| true));
            }
            let mut expected = before;
            for event in &events {
                expected = expected.next();
                prop_assert_eq!(event.version(), &expected);
                let (Event::Added(object) | Event::Modified(object) | Event::Deleted(object)) = event else {
                    unreachable!("the catalog makes no bookmarks")
                };
                let name = object.key().to_string();
                let old = match event {
                    Event::Deleted(_) => folded.remove(&name),
                    _ => folded.insert(name, object.clone()),
                };
                prop_assert_eq!(old.is_none(), matches!(event, Event::Added(_)));
                if let (Some(old), Event::Modified(new)) = (old, event) {
                    prop_assert_ne!(old.body(), new.body(), "no event for identical bytes");
                }
            }
            let objects = catalog.objects();
            if at == 0 {
                prop_assert!(events.is_empty());
                folded = objects.iter().map(|object| (object.key().to_string(), object.clone())).collect();
            } else {
                prop_assert_eq!(&expected, &catalog.version());
            }
            prop_assert_eq!(folded.values().cloned().collect::<Vec<_>>(), objects.clone());
            let known = served(&objects);
            let in_files = model.served();
            last.retain(|name, _| !deletes && !in_files.contains_key(name));
            last.extend(in_files);
            prop_assert_eq!(&known, &last);
            let all: usize = catalog.files.values().map(|record| record.objects.len()).sum();
            prop_assert_eq!((catalog.claims.len(), catalog.duplicates().count()), (all, model.waiting()));
        }
    }
}

fn with_uid(catalog: &Catalog, path: &str, objects: &[(&str, &str, u8)]) -> FileChange {
    let object = |(name, uid, value): &(&str, &str, u8)| {
        let body = format!(r#"{{"metadata":{{"name":"{name}","uid":"{uid}"}},"value":{value}}}"#);
        Object::from_json(Bytes::from(body), "unnamed", catalog.next_version()).unwrap()
    };
    let objects = objects.iter().map(object).collect();
    change(path, Content::Objects(objects))
}

#[test]
fn a_repeated_uid_is_of_the_first_object() {
    let mut catalog = Catalog::new("abc".into());
    let uids = |catalog: &Catalog| -> Vec<String> {
        catalog.objects().iter().map(|object| format!("{} {}", object.key(), object.uid())).collect()
    };
    let first = with_uid(&catalog, "a.yaml", &[("x", "u", 1), ("y", "u", 1), ("z", "v", 1)]);
    catalog.apply_all(vec![first]);
    assert_eq!(uids(&catalog), ["x u", "y u/y", "z v"]);
    let repeated: Vec<_> =
        catalog.repeated_uids().map(|(path, key, uid, of)| format!("{path} {key} {uid} {of:?}")).collect();
    assert_eq!(repeated.len(), 1, "{repeated:?}");
    assert!(repeated[0].starts_with("a.yaml y u Some("), "{repeated:?}");

    let second = with_uid(&catalog, "b.yaml", &[("w", "v", 1)]);
    catalog.apply_all(vec![second]);
    assert_eq!(uids(&catalog), ["w v/w", "x u", "y u/y", "z v"], "z had it first");
    let changed = with_uid(&catalog, "a.yaml", &[("y", "u", 2), ("z", "v", 2)]);
    catalog.apply_all(vec![changed]);
    assert_eq!(uids(&catalog), ["w v/w", "y u/y", "z v"], "y is the same object without x");
    let changed = with_uid(&catalog, "a.yaml", &[("y", "t", 2)]);
    catalog.apply_all(vec![changed]);
    assert_eq!((uids(&catalog), catalog.repeated_uids().count()), (vec!["w v/w".to_owned(), "y t".to_owned()], 1));
}
