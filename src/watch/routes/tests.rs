use std::sync::Arc;

use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::*;
use crate::model::{Cause, FieldSelector, LabelSelector, Object, ResourceVersion, Shard};

fn object(namespace: &str, name: &str, app: &str) -> Arc<Object> {
    let json = format!(r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","labels":{{"app":"{app}"}}}}}}"#);
    Arc::new(Object::from_json(Bytes::from(json), "", ResourceVersion::decimal(1)).unwrap())
}

fn found(routes: &Routes, old: Option<Arc<Object>>, new: Option<Arc<Object>>) -> Vec<usize> {
    let change = Change { old, new, version: ResourceVersion::decimal(1), cause: Cause::Change, index_values: None };
    let mut groups = Vec::new();
    routes.find(&change, &mut groups);
    groups
}

fn by_app(values: &[&str]) -> Selection {
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    let index = IndexMatch { name: "app".into(), func: IndexFunc::Label("app".into()), values };
    Selection { index: Some(index), ..Selection::default() }
}

fn limited(namespaces: &[&str]) -> Selection {
    Selection { namespaces: Some(namespaces.iter().copied().collect()), ..Selection::default() }
}

#[test]
fn a_change_leads_to_the_groups_of_its_name_its_namespace_and_the_values_before_and_after_it() {
    let selections = [
        Selection::default(),
        Selection { name: Some("a".into()), namespace: Some("shop".into()), ..Selection::default() },
        Selection { namespace: Some("shop".into()), ..Selection::default() },
        by_app(&["web", "db"]),
        by_app(&["db"]),
        by_app(&[]),
        limited(&["bank", "shop"]),
        Selection { namespace: Some("none".into()), ..limited(&["shop"]) },
        limited(&[]),
    ];
    let mut routes = Routes::default();
    for (group, selection) in selections.iter().enumerate() {
        routes.insert(selection, group);
    }
    assert_eq!(*routes.unrouted(), BTreeSet::from([0]));
    assert_eq!(found(&routes, None, Some(object("shop", "a", "none"))), [1, 2, 6]);
    assert_eq!(found(&routes, None, Some(object("bank", "b", "none"))), [6]);
    assert_eq!(found(&routes, Some(object("", "b", "web")), None), [3]);
    assert_eq!(found(&routes, Some(object("", "b", "web")), Some(object("", "b", "db"))), [3, 4], "each once");
    assert_eq!(found(&routes, None, Some(object("", "b", "none"))), [0; 0]);

    for (group, selection) in selections.iter().enumerate() {
        routes.remove(selection, group);
    }
    assert!(is_empty(&routes), "nothing leaks");
}

fn is_empty(routes: &Routes) -> bool {
    let Routes { unrouted, names, namespaces, indexes, fields, labels, shards } = routes;
    unrouted.is_empty()
        && names.is_empty()
        && namespaces.is_empty()
        && indexes.is_empty()
        && fields.is_empty()
        && labels.is_empty()
        && shards.is_empty()
}

fn any_selection() -> impl Strategy<Value = Selection> {
    let labels =
        ["app=web", "app in (web,db)", "app=", "tier=x,app=db", "app!=web", "app", "!tier", "tier in (x,y,z),app=web"];
    // Objects have values at few of the paths, so that there can be more paths than are routed by.
    let fields = prop_oneof![
        select(vec!["n=1", "n=", "n!=1", "list=1", "n=2,list=", "metadata.name=a", "metadata.namespace=shop,n=1"])
            .prop_map(str::to_owned),
        (0..60).prop_map(|path| format!("other{path}=1")),
        (0..60).prop_map(|path| format!("other{path}=1,n=1")),
    ];
    let part = |values: &[&'static str]| option::weighted(0.15, select(values.to_vec()).prop_map(str::to_owned));
    let index = option::weighted(0.2, select(vec![vec!["web", "db"], vec!["db"], vec![]]));
    let labels = option::weighted(0.4, select(labels.to_vec()));
    let namespaces = option::weighted(0.2, select(vec![vec!["shop"], vec!["", "bank"], vec!["shop", "bank"], vec![]]));
    let namespaces = (part(&["shop", "bank", ""]), namespaces);
    let shard = option::weighted(0.3, any_shard());
    (namespaces, part(&["a", "b"]), labels, option::weighted(0.5, fields), index, shard).prop_map(
        |((namespace, namespaces), name, labels, fields, index, shard)| Selection {
            namespace,
            namespaces: namespaces.map(|namespaces| namespaces.into_iter().collect()),
            name,
            labels: LabelSelector::parse(labels.unwrap_or_default()).unwrap(),
            fields: FieldSelector::parse(&fields.unwrap_or_default()).unwrap(),
            shard,
            ..index.map(|values| by_app(&values)).unwrap_or_default()
        },
    )
}

/// Shard whose borders may be next to the hashes of objects.
fn any_shard() -> impl Strategy<Value = Shard> {
    let keys = prop_oneof![
        select(vec!["namespace", "key", "uid", "n", "list"]).prop_map(str::to_owned),
        (0..60).prop_map(|path| format!("other{path}"))
    ];
    let values = select(vec!["", "shop", "bank", "shop/a", "b", "1", "2"]);
    let border = prop_oneof![any::<u64>(), (values, 0..3_u64).prop_map(|(value, more)| hash(value).wrapping_add(more))];
    (keys, vec((border.clone(), border), 1..4)).prop_map(|(key, borders)| {
        let ranges: Vec<_> =
            borders.into_iter().map(|(a, b)| (a.min(b), a.max(b).checked_add(1).unwrap_or_default())).collect();
        Shard::new(ShardKey::parse(&key).unwrap(), &ranges).unwrap()
    })
}

/// Returns the hash of a text, as that of the namespace of an object.
fn hash(text: &str) -> u64 {
    ShardKey::Namespace.hash(&object(text, "x", ""))
}

/// States before and after a change of one object, at least one of which is present.
fn any_change() -> impl Strategy<Value = Change> {
    let labels = select(vec![r#""app":"web""#, r#""app":"db","tier":"x""#, r#""app":"""#, r#""tier":"y""#, ""]);
    let body = select(vec![r#""n":1"#, r#""n":"2""#, r#""n":null"#, r#""list":[1,2]"#, r#""list":1"#, r#""other3":1"#]);
    let states = vec((labels, body), 1..=2);
    (select(vec!["shop", "bank", ""]), select(vec!["a", "b"]), states, any::<bool>()).prop_map(
        |(namespace, name, states, is_deleted)| {
            let object = |(labels, body): (&str, &str)| {
                let metadata = format!(r#"{{"namespace":"{namespace}","name":"{name}","labels":{{{labels}}}}}"#);
                let json = format!(r#"{{"metadata":{metadata},{body}}}"#);
                Arc::new(Object::from_json(Bytes::from(json), "", ResourceVersion::decimal(1)).unwrap())
            };
            let (old, new) = match *states {
                [old, new] => (Some(object(old)), Some(object(new))),
                [old] if is_deleted => (Some(object(old)), None),
                _ => (None, Some(object(states[0]))),
            };
            Change { old, new, version: ResourceVersion::decimal(1), cause: Cause::Change, index_values: None }
        },
    )
}

proptest! {
    #![proptest_config(crate::property_config())]

    /// A group that no route finds would get no event from the change, whatever other groups were inserted and removed.
    #[test]
    fn every_concerned_group_is_found(
        selections in vec((any_selection(), any::<bool>()), 0..80),
        changes in vec(any_change(), 1..20),
    ) {
        let mut routes = Routes::default();
        for (group, (selection, _)) in selections.iter().enumerate() {
            routes.insert(selection, group);
        }
        prop_assert!(routes.fields.len() <= MAX_PATHS);
        let paths = routes.shards.keys().filter(|key| matches!(key, ShardKey::Path(_)));
        prop_assert!(paths.count() <= MAX_PATHS);
        for (group, (selection, _)) in selections.iter().enumerate().filter(|(_, (_, stays))| !stays) {
            routes.remove(selection, group);
        }
        for change in changes {
            let mut asked = Vec::new();
            routes.find(&change, &mut asked);
            for (group, (selection, stays)) in selections.iter().enumerate() {
                let is_asked = asked.contains(&group) || routes.unrouted().contains(&group);
                prop_assert!(*stays || !is_asked, "{selection} has gone");
                prop_assert!(!stays || is_asked || selection.transition(&change).is_none(), "{selection}: {change:?}");
            }
        }
        for (group, (selection, _)) in selections.iter().enumerate().filter(|(_, (_, stays))| *stays) {
            routes.remove(selection, group);
        }
        prop_assert!(is_empty(&routes));
    }
}

/// A change costs the same with a hundred clients of a value each as with only the client of its value.
#[test]
fn a_group_with_one_value_is_not_found_for_other_values() {
    let fields = |text: &str| Selection { fields: FieldSelector::parse(text).unwrap(), ..Selection::default() };
    for (text, concerned) in [("spec.app=v", 0), ("metadata.name=v", 1)] {
        let mut routes = Routes::default();
        for group in 0..100 {
            routes.insert(&fields(&format!("{text}{group}")), group);
        }
        assert!(routes.unrouted().is_empty(), "{text}");
        assert_eq!(found(&routes, None, Some(object("", "v7", "none"))).len(), concerned);
        routes.insert(&fields(&text.replace('=', "!=")), 100);
        assert_eq!(routes.unrouted().len(), 1);
    }
    let mut routes = Routes::default();
    let labels = |text: &str| Selection { labels: LabelSelector::parse(text).unwrap(), ..Selection::default() };
    for group in 0..100 {
        routes.insert(&labels(&format!("app in (v{group},w)")), group);
    }
    assert!(routes.unrouted().is_empty());
    assert_eq!(found(&routes, Some(object("", "a", "v7")), Some(object("", "a", "v8"))), [7, 8]);
    // A path beyond the maximum is routed by the selection's other values.
    let mut routes = Routes::default();
    let both = |group| Selection {
        labels: LabelSelector::parse("app=web").unwrap(),
        fields: FieldSelector::parse(&format!("spec.n{group}=1")).unwrap(),
        ..Selection::default()
    };
    for group in 0..=MAX_PATHS {
        routes.insert(&both(group), group);
    }
    assert_eq!((routes.fields.len(), routes.unrouted().len()), (MAX_PATHS, 0));
    assert_eq!(found(&routes, None, Some(object("", "a", "web"))), [MAX_PATHS]);
}

/// A change costs the same however many shards there are: the groups that are found for it are counted, and the lookups are as many as
/// there are sizes of blocks.
#[test]
fn a_change_is_found_for_its_shard_however_many_there_are() {
    for key in ["uid", "namespace", "key", "metadata.labels.app"] {
        let key = ShardKey::parse(key).unwrap();
        for shards in [1, 3, 8, 100, 4096, 10_000] {
            let of = |part| Selection { shard: Shard::part(key.clone(), part, shards), ..Selection::default() };
            let mut routes = Routes::default();
            for part in 0..shards {
                assert!(routes.insert(&of(part), part as usize), "nothing but the shard selects");
            }
            assert!(routes.unrouted().is_empty());
            for number in 0..200 {
                let name = format!("pod-{number}");
                let object = object(&name, &name, &name);
                let part = ((u128::from(key.hash(&object)) * u128::from(shards)) >> 64) as u64;
                assert!(of(part).matches(&object));
                let groups = found(&routes, None, Some(object));
                assert!(groups.contains(&(part as usize)), "shard {part} of {shards} by {key}");
                assert!(groups.len() <= 2, "{groups:?} of {shards} by {key}: at most one border is in a block");
            }
            for part in 0..shards {
                routes.remove(&of(part), part as usize);
            }
            assert!(is_empty(&routes));
        }
    }
}

/// A change between shards leads to both, and each range, however wide, to few blocks.
#[test]
fn a_range_is_in_few_blocks() {
    let mut routes = Routes::default();
    let shard = |start, end| Shard::new(ShardKey::parse("metadata.labels.app").unwrap(), &[(start, end)]);
    for group in 0..100 {
        let selection = Selection { shard: shard(group + 1, u64::MAX - group).ok(), ..Selection::default() };
        routes.insert(&selection, group as usize);
    }
    let groups: usize = routes.shards.values().flat_map(Map::values).map(BTreeSet::len).sum();
    assert!(groups <= 100 * 32, "{groups} for ranges within one another");
    let at = |app: &str| Selection { shard: shard(hash(app), hash(app) + 1).ok(), ..Selection::default() };
    let mut routes = Routes::default();
    routes.insert(&at("web"), 1);
    routes.insert(&at("db"), 2);
    assert_eq!(found(&routes, Some(object("", "a", "web")), Some(object("", "a", "db"))), [1, 2]);
    assert!(!routes.insert(&Selection { namespace: Some("shop".into()), ..at("web") }, 3), "its namespace selects too");
}
