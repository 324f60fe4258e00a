//! Selections: upstream's scripts, the table of transitions, and any history of one key.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::model::{IndexFunc, Path, ResourceVersion, ShardKey, TermResult};

fn object(json: &str, version: u128) -> Arc<Object> {
    let body = Bytes::copy_from_slice(json.as_bytes());
    Arc::new(Object::from_json(body, "file", ResourceVersion::decimal(version)).unwrap())
}

/// Returns a pod in the state that a test watches: the node that it runs on.
fn pod(node: &str, version: u128) -> Arc<Object> {
    object(&format!(r#"{{"metadata":{{"name":"web"}},"spec":{{"nodeName":"{node}"}}}}"#), version)
}

fn on_host() -> Selection {
    Selection { fields: FieldSelector::parse("spec.nodeName=host").unwrap(), ..Selection::default() }
}

/// Returns the changes of one object with these states, one version each; `None` is a deletion.
fn history(states: &[Option<&str>]) -> Vec<Change> {
    let mut old = None;
    let mut changes = Vec::new();
    for (state, number) in states.iter().zip(1..) {
        let new = state.map(|node| pod(node, number));
        if old.is_some() || new.is_some() {
            let version = ResourceVersion::decimal(number);
            changes.push(Change { old, new: new.clone(), version, cause: Cause::Change, index_values: None });
        }
        old = new;
    }
    changes
}

/// Returns the events of a watcher: type, cause and version.
fn watch(selection: &Selection, changes: &[Change]) -> Vec<(EventType, Cause, u128)> {
    let event = |change: &Change| {
        let Transition { event_type, cause } = selection.transition(change)?;
        Some((event_type, cause, change.version.number()))
    };
    changes.iter().filter_map(event).collect()
}

/// apiserver `TestCacheWatcherHandlesFiltering`, first script: matching, then leaving, then entering again.
#[test]
fn leaving_and_entering_again_is_deleted_and_added() {
    assert_eq!(
        watch(&on_host(), &history(&[Some("host"), Some(""), Some("host")])),
        [
            (EventType::Added, Cause::Change, 1),
            (EventType::Deleted, Cause::LeftSelection, 2),
            (EventType::Added, Cause::EnteredSelection, 3),
        ]
    );
}

/// apiserver `TestCacheWatcherHandlesFiltering`, second script: ignored until it matches, and after it has left.
#[test]
fn changes_outside_of_the_selection_have_no_transition() {
    let states = [Some(""), Some(""), Some("host"), Some("host"), Some(""), Some("")];
    assert_eq!(
        watch(&on_host(), &history(&states)),
        [
            (EventType::Added, Cause::EnteredSelection, 3),
            (EventType::Modified, Cause::Change, 4),
            (EventType::Deleted, Cause::LeftSelection, 5),
        ]
    );
}

/// apimachinery `TestFilter`: of foo, bar, baz, qux and zoo, those that begin with b are filtered out.
#[test]
fn only_selected_objects_have_transitions() {
    let no_b = Selection { labels: LabelSelector::parse("first!=b").unwrap(), ..Selection::default() };
    let added = |name: &str| {
        let json = format!(r#"{{"metadata":{{"name":"{name}","labels":{{"first":"{}"}}}}}}"#, &name[..1]);
        Change {
            old: None,
            new: Some(object(&json, 1)),
            version: ResourceVersion::decimal(1),
            cause: Cause::Change,
            index_values: None,
        }
    };
    let changes = ["foo", "bar", "baz", "qux", "zoo"].map(added);
    let seen: Vec<_> =
        changes.iter().filter(|c| no_b.transition(c).is_some()).map(|c| c.object().key().name()).collect();
    assert_eq!(seen, ["foo", "qux", "zoo"]);
}

/// Table of all combinations of old and new state (apiserver's `convertToWatchEvent`); a deletion keeps its own cause.
#[test]
fn the_table_of_transitions() {
    let (matching, other) = (Some(pod("host", 1)), Some(pod("", 1)));
    for cause in [Cause::Change, Cause::Inferred] {
        let transition = |old: &Option<Arc<Object>>, new: &Option<Arc<Object>>| {
            let version = ResourceVersion::decimal(2);
            let transition = on_host().transition(&Change {
                old: old.clone(),
                new: new.clone(),
                version,
                cause,
                index_values: None,
            });
            transition.map(|Transition { event_type, cause }| (event_type, cause))
        };
        assert_eq!(transition(&None, &matching), Some((EventType::Added, Cause::Change)));
        assert_eq!(transition(&other, &matching), Some((EventType::Added, Cause::EnteredSelection)));
        assert_eq!(transition(&matching, &matching), Some((EventType::Modified, Cause::Change)));
        assert_eq!(transition(&matching, &other), Some((EventType::Deleted, Cause::LeftSelection)));
        assert_eq!(transition(&matching, &None), Some((EventType::Deleted, cause)));
        assert_eq!(transition(&None, &other), None);
        assert_eq!(transition(&other, &other), None);
        assert_eq!(transition(&other, &None), None);
    }
}

#[test]
fn every_part_has_to_match() {
    let web = object(
        r#"{"metadata":{"namespace":"shop","name":"web","labels":{"app":"web"}},"spec":{"nodeName":"host","n":1}}"#,
        1,
    );
    let index = |values: &[&str]| {
        let func = IndexFunc::Path(Path::parse(".spec.n").unwrap());
        Some(IndexMatch { name: "n".into(), func, values: values.iter().map(|v| (*v).to_owned()).collect() })
    };
    let all = Selection {
        namespace: Some("shop".into()),
        namespaces: Some(["shop", "bank"].into_iter().collect()),
        name: Some("web".into()),
        labels: LabelSelector::parse("app in (web)").unwrap(),
        index: index(&["2", "1"]),
        shard: Shard::part(ShardKey::Key, 0, 2),
        ..on_host()
    };
    assert!(all.matches(&web));
    assert!(!all.selects_all());
    for other in [
        Selection { namespace: Some(String::new()), ..all.clone() },
        Selection { namespaces: Some(["bank"].into_iter().collect()), ..all.clone() },
        Selection { namespaces: Some(Namespaces::default()), ..all.clone() },
        Selection { name: Some("we".into()), ..all.clone() },
        Selection { labels: LabelSelector::parse("!app").unwrap(), ..all.clone() },
        Selection { fields: FieldSelector::parse("spec.n=2").unwrap(), ..all.clone() },
        Selection { index: index(&["2"]), ..all.clone() },
        Selection { index: index(&[]), ..all.clone() },
        Selection { shard: Shard::part(ShardKey::Key, 1, 2), ..all.clone() },
    ] {
        assert!(!other.matches(&web), "{other}");
    }
    assert_eq!(
        all.to_string(),
        "namespace=shop namespace in (bank,shop) name=web labels=app=web fields=spec.nodeName=host index=n in (1,2) \
         shard=shardRange(key, '0x0000000000000000', '0x8000000000000000')"
    );
}

#[test]
fn the_default_is_everything() {
    let everything = Selection::default();
    assert!(everything.selects_all() && everything.matches(&object("[1]", 1)));
    assert_eq!(everything.to_string(), "everything");
    for part in [
        Selection { namespace: Some(String::new()), ..Selection::default() },
        Selection { namespaces: Some(Namespaces::default()), ..Selection::default() },
        Selection { name: Some("a".into()), ..Selection::default() },
        Selection { labels: LabelSelector::parse("a").unwrap(), ..Selection::default() },
        on_host(),
        Selection {
            index: Some(IndexMatch { name: "namespace".into(), func: IndexFunc::Namespace, values: BTreeSet::new() }),
            ..Selection::default()
        },
        Selection { shard: Shard::part(ShardKey::Uid, 0, 1), ..Selection::default() },
    ] {
        assert!(!part.selects_all(), "{part}");
    }
}

fn text(object: &Arc<Object>) -> String {
    String::from_utf8_lossy(object.body()).into_owned()
}

proptest! {
    #![proptest_config(crate::property_config())]

    /// An object is selected if all terms match, whatever the parts of the selection and the state of the object.
    #[test]
    fn the_terms_are_the_selection(
        namespace in proptest::option::of(select(vec!["shop", "bank"])),
        namespaces in proptest::option::of(vec(select(vec!["shop", "bank", ""]), 0..2)),
        labels in select(vec!["", "app=web", "app!=web,tier", "tier in (a,b)", "!tier"]),
        fields in select(vec!["", "spec.n=1", "spec.n!=1,metadata.name=web", "spec.none="]),
        values in proptest::option::of(vec(select(vec!["1", "2"]), 0..2)),
        part in proptest::option::of(0_u64..2),
        (of, app, n) in (select(vec!["shop", "bank", ""]), select(vec!["web", "db"]), 0..3_u8),
    ) {
        let path = Path::parse("spec.n").unwrap();
        let selection = Selection {
            namespace: namespace.map(str::to_owned),
            namespaces: namespaces.map(|namespaces| namespaces.into_iter().collect()),
            name: None,
            labels: LabelSelector::parse(labels).unwrap(),
            fields: FieldSelector::parse(fields).unwrap(),
            index: values.map(|values| IndexMatch {
                name: "n".to_owned(),
                func: IndexFunc::Path(path.clone()),
                values: values.into_iter().map(str::to_owned).collect(),
            }),
            shard: part.and_then(|part| Shard::part(ShardKey::Path(path), part, 2)),
            expression: None,
        };
        let tier = if n > 0 { r#","tier":"a""# } else { "" };
        let object = object(
            &format!(r#"{{"metadata":{{"namespace":"{of}","name":"web","labels":{{"app":"{app}"{tier}}}}},"spec":{{"n":{n}}}}}"#),
            1,
        );
        let terms = selection.terms(&object, true);
        let is_match = |term: &Term| term.result.as_ref().is_some_and(|(result, _)| *result == TermResult::Match);
        prop_assert_eq!(terms.iter().all(is_match), selection.matches(&object), "{:?}", terms);
        let without_body = |term: Term| Term { result: term.result.filter(|_| !term.reads_body), ..term };
        let expected: Vec<_> = terms.iter().cloned().map(without_body).collect();
        prop_assert_eq!(selection.terms(&object, false), expected);
        prop_assert_eq!(terms.is_empty(), selection.selects_all());
        prop_assert_eq!(terms.iter().any(|term| term.reads_body), selection.reads_body());
    }

    /// A client that only applies its events holds exactly the objects that match.
    #[test]
    fn a_client_holds_exactly_what_matches(
        states in vec(select(vec![None, Some("host"), Some(""), Some("other")]), 0..24),
        text in select(vec!["", "spec.nodeName=host", "spec.nodeName!=host", "spec.nodeName=", "spec.nodeName=none"]),
    ) {
        let selection = Selection { fields: FieldSelector::parse(text).unwrap(), ..Selection::default() };
        let mut held: Option<Arc<Object>> = None;
        for change in history(&states) {
            match selection.transition(&change).map(|transition| transition.event_type) {
                Some(EventType::Added) => {
                    prop_assert!(held.is_none(), "added what was held");
                    held.clone_from(&change.new);
                }
                Some(EventType::Modified) => {
                    prop_assert!(held.is_some(), "modified what was not held");
                    held.clone_from(&change.new);
                }
                Some(EventType::Deleted) => {
                    prop_assert_eq!(&held.take(), &change.old, "deleted with another state than was held");
                }
                None => {}
            }
            prop_assert_eq!(&held, &change.new.filter(|new| selection.matches(new)));
        }
    }

    /// Each worker of a fleet folds the events of its shard. At every version they hold the state together, and no object twice, while
    /// objects move between shards. At times the fleet is divided anew, and each worker begins with the state.
    #[test]
    fn a_fleet_holds_the_state_at_every_version(
        steps in vec((0..6_usize, select(vec![None, Some("host"), Some(""), Some("other"), Some("n1")]), any::<bool>()), 1..40),
        fleets in vec(vec(any::<u64>(), 0..6), 1..4),
        key in select(vec!["spec.nodeName", "uid", "key"]),
    ) {
        let key = ShardKey::parse(key).unwrap();
        let mut fleets = fleets.into_iter().cycle();
        let mut state: BTreeMap<usize, Arc<Object>> = BTreeMap::new();
        let mut fleet: Vec<(Selection, BTreeSet<String>)> = Vec::new();
        for ((number, node, is_new_fleet), version) in steps.into_iter().zip(1..) {
            if is_new_fleet || fleet.is_empty() {
                let borders: BTreeSet<u64> = fleets.next().unwrap().into_iter().chain([0]).collect();
                let ends = borders.iter().skip(1).copied().chain([0]);
                let shards = borders.iter().zip(ends).map(|(start, end)| Shard::new(key.clone(), &[(*start, end)]).ok());
                let worker = |shard| {
                    let selection = Selection { shard, ..Selection::default() };
                    let held = state.values().filter(|object| selection.matches(object)).map(text);
                    (selection.clone(), held.collect())
                };
                fleet = shards.map(worker).collect();
            }
            let old = state.remove(&number);
            let new = node.map(|node| {
                let metadata = format!(r#"{{"name":"web-{number}","uid":"{number}-{}"}}"#, number * 7919);
                object(&format!(r#"{{"metadata":{metadata},"spec":{{"nodeName":"{node}","n":{version}}}}}"#), version)
            });
            state.extend(new.iter().map(|new| (number, Arc::clone(new))));
            if old.is_none() && new.is_none() {
                continue;
            }
            let change =
                Change { old, new, version: ResourceVersion::decimal(version), cause: Cause::Change, index_values: None };
            for (selection, held) in &mut fleet {
                let Some(Transition { event_type, .. }) = selection.transition(&change) else { continue };
                if event_type != EventType::Added {
                    prop_assert!(held.remove(&text(change.old.as_ref().unwrap())), "{event_type:?} of what it had not");
                }
                if event_type != EventType::Deleted {
                    held.insert(text(change.new.as_ref().unwrap()));
                }
            }
            let held: Vec<String> = fleet.iter().flat_map(|(_, held)| held).cloned().collect();
            prop_assert_eq!(held.len(), state.len(), "an object is held twice, or by nobody");
            prop_assert_eq!(BTreeSet::from_iter(held), state.values().map(text).collect::<BTreeSet<_>>());
        }
    }
}

#[test]
fn the_description_of_a_selection_of_secrets_has_nothing_of_their_bodies() {
    let index = |path: &str| {
        let func = IndexFunc::Path(Path::parse(path).unwrap());
        Some(IndexMatch { name: "key".to_owned(), func, values: BTreeSet::from(["canary".to_owned()]) })
    };
    let fields = |text: &str| FieldSelector::parse(text).unwrap();
    let by_body = Selection { fields: fields("data.key=canary"), index: index(".data.key"), ..Selection::default() };
    assert_eq!(by_body.described(true), "fields=… index=key in (…)");
    assert_eq!(by_body.described(false), by_body.to_string());
    assert_eq!(by_body.to_string(), "fields=data.key=canary index=key in (canary)");
    let by_name = Selection { fields: fields("metadata.name=canary"), ..Selection::default() };
    assert_eq!(by_name.described(true), by_name.to_string(), "no secret");
}

/// Only objects that the rest of the selection selects are evaluated, and those that are selected are counted by their reader.
#[cfg(feature = "cel")]
#[test]
fn evaluations_are_counted_with_the_first_failure() {
    let selection = Selection {
        labels: LabelSelector::parse("app!=none").unwrap(),
        expression: Some(Expression::parse("object.n > 0").unwrap()),
        ..Selection::default()
    };
    let mut evaluations = Evaluations::default();
    let mut matches = |name: &str, labels: &str, n: &str| {
        let metadata = format!(r#"{{"namespace":"shop","name":"{name}","labels":{{{labels}}}}}"#);
        let object = object(&format!(r#"{{"metadata":{metadata},"n":{n}}}"#), 1);
        let is_match = selection.matches_counted(&object, &mut evaluations);
        assert_eq!(is_match, selection.matches(&object), "{name}");
        is_match
    };
    assert!(!matches("other", r#""app":"none""#, r#""secret""#), "not evaluated");
    assert!(!matches("zero", "", "0") && matches("one", "", "1"));
    assert!(!matches("text", "", r#""secret""#) && !matches("list", "", "[1]"));
    assert_eq!((evaluations.evaluated, evaluations.failed), (3, 2), "without the one that is selected");
    let first = evaluations.first.as_deref().unwrap();
    assert_eq!(first.0.to_string(), "shop/text");
    assert!(first.1.contains("wrong type") && !first.1.contains("secret"), "{first:?}");
    let mut before = Evaluations::default();
    before.add_selected();
    before.append(&mut evaluations);
    assert_eq!((before.evaluated, before.failed, before.first.is_some()), (4, 2, true));
    assert_eq!(evaluations, Evaluations::default());
}
