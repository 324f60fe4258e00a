//! Rules of COALESCE, key by key, and compared with a plain model.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{
    model::{LabelSelector, Selection},
    watch::{Deliveries, Delivery},
};

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn position(offset: u64) -> ReplayPosition {
    ReplayPosition { version: version(99), offset, is_gap: false }
}

fn object(name: &str, uid: &str, app: &str, number: u128) -> Arc<Object> {
    let json = format!(r#"{{"metadata":{{"name":"{name}","uid":"{uid}","labels":{{"app":"{app}"}}}},"n":{number}}}"#);
    Arc::new(Object::from_json(Bytes::from(json), "x", version(number)).unwrap())
}

fn change(old: Option<&Arc<Object>>, new: Option<&Arc<Object>>, number: u128) -> Change {
    Change { old: old.cloned(), new: new.cloned(), version: version(number), cause: Cause::Change, index_values: None }
}

fn merged(selection: &Selection, changes: &[Change]) -> Generation {
    merged_in(selection, changes, false)
}

fn merged_in(selection: &Selection, changes: &[Change], is_relist: bool) -> Generation {
    let mut generation = Generation::default();
    let (before, after) = (version(1), version(99));
    let batch = Batch { before, after, changes: Vec::new(), is_relist, is_open: false };
    for change in changes {
        if let Some(transition) = selection.transition(change) {
            generation.merge(&batch, change, transition);
        }
    }
    generation
}

fn told(generation: Generation, max_size: usize) -> Vec<Delivery> {
    let (mut telling, before) =
        (generation.drain(position(9), true, |_, _| false), HistoryPosition { version: version(1), offset: 3 });
    let is_empty = telling.is_done();
    let mut all = Vec::new();
    while !telling.is_done() {
        let (frames, events) = telling.encode::<Deliveries>(&before, &(), max_size);
        assert_eq!(frames.as_slice().len() as u64, events);
        all.extend(frames.as_slice().to_vec());
    }
    let after = telling.after(&before);
    assert!(after.offset == 9 && (is_empty || after.version == version(99)), "{after:?}");
    all
}

fn lines(changes: &[Change], selector: &str) -> Vec<String> {
    let selection = Selection { labels: LabelSelector::parse(selector).unwrap(), ..Selection::default() };
    let line = |event: &Delivery| {
        format!(
            "{:?} {:?} {} {} +{} @{}",
            event.event_type,
            event.cause,
            event.object.key(),
            event.object_version,
            event.coalesced,
            event.version
        )
    };
    told(merged(&selection, changes), usize::MAX).iter().map(line).collect()
}

#[test]
fn the_event_depends_on_the_client_state_and_the_latest_state() {
    let [a1, a2, a3] = [1, 2, 3].map(|number| object("a", "u", "web", number));
    let other = object("a", "v", "web", 4);
    let none: [String; 0] = [];
    assert_eq!(lines(&[change(None, Some(&a1), 1), change(Some(&a1), Some(&a2), 2)], ""), ["Added Change a 2 +1 @99"]);
    assert_eq!(lines(&[change(None, Some(&a1), 1), change(Some(&a1), None, 2)], ""), none, "it vanished");
    let modified = [change(Some(&a1), Some(&a2), 2), change(Some(&a2), Some(&a3), 3)];
    assert_eq!(lines(&modified, ""), ["Modified Change a 3 +1 @99"]);
    let deleted = [change(Some(&a1), Some(&a2), 2), change(Some(&a2), None, 3)];
    assert_eq!(lines(&deleted, ""), ["Deleted Change a 3 +1 @99"]);
    let recreated = [change(Some(&a1), None, 3), change(None, Some(&other), 4), change(Some(&other), Some(&other), 5)];
    assert_eq!(lines(&recreated, ""), ["Deleted Change a 3 +0 @1", "Added Change a 4 +1 @99"], "another uid");
    let again = [change(Some(&a1), None, 2), change(None, Some(&a3), 3)];
    assert_eq!(lines(&again, ""), ["Modified Change a 3 +1 @99"], "the same uid");
    let unknown = object("a", "", "web", 3);
    for (had, now) in [(&a1, &unknown), (&unknown, &a1)] {
        let again = [change(Some(had), None, 4), change(None, Some(now), 5)];
        let told = lines(&again, "");
        assert!(told.len() == 1 && told[0].starts_with("Modified"), "without a uid nobody can tell: {told:?}");
    }
}

#[test]
fn a_deletion_carries_the_state_that_the_client_has() {
    let [a1, a2] = [1, 2].map(|number| object("a", "u", "web", number));
    let everything = Selection::default();
    let generation = merged(&everything, &[change(Some(&a1), Some(&a2), 2), change(Some(&a2), None, 3)]);
    assert_eq!(told(generation, 1)[0].object, a1, "and not the one that it was never told of");
}

#[test]
fn entering_and_leaving_a_selection_merge_in_the_same_way() {
    let [web, db, web_again] = [("web", 1), ("db", 2), ("web", 3)].map(|(app, number)| object("a", "u", app, number));
    let leaves = [change(Some(&web), Some(&db), 2)];
    assert_eq!(lines(&leaves, "app=web"), ["Deleted LeftSelection a 2 +0 @99"]);
    let enters = [change(Some(&db), Some(&web_again), 3)];
    assert_eq!(lines(&enters, "app=web"), ["Added EnteredSelection a 3 +0 @99"]);
    let comes_back = [change(Some(&web), Some(&db), 2), change(Some(&db), Some(&web_again), 3)];
    assert_eq!(lines(&comes_back, "app=web"), ["Modified Change a 3 +1 @99"]);
    assert!(lines(&comes_back, "app=db").is_empty(), "it came and went");
}

/// Found by the checker: a DELETED that was merged with later events had their version, and no cause.
#[test]
fn a_replaced_object_is_deleted_at_its_own_version_with_its_own_cause() {
    let [web, db] = [("web", 1), ("db", 2)].map(|(app, number)| object("a", "u", app, number));
    let others = [("v", 5), ("v", 6), ("w", 8)].map(|(uid, number)| object("a", uid, "web", number));
    let left = change(Some(&web), Some(&db), 2);
    let created = [change(Some(&db), None, 4), change(None, Some(&others[0]), 5)];
    let replaced = |changes: &[Change]| lines(&[[left.clone()].as_slice(), &created, changes].concat(), "app=web");
    let deleted = "Deleted LeftSelection a 2 +0 @1";
    assert_eq!(replaced(&[]), [deleted, "Added Change a 5 +0 @99"]);
    let again = [change(Some(&others[0]), None, 7), change(None, Some(&others[2]), 8)];
    assert_eq!(replaced(&again), [deleted, "Added Change a 8 +2 @99"], "the one between left no trace");
    let gone = change(Some(&others[0]), None, 7);
    assert_eq!(replaced(&[gone]), ["Deleted LeftSelection a 2 +2 @99"]);
    let inferred = Change { cause: Cause::Inferred, ..change(Some(&web), None, 9) };
    let listed = change(None, Some(&others[2]), 8);
    let told = ["Deleted Inferred a 9 +0 @1", "Added Change a 8 +0 @99"];
    assert_eq!(lines(&[inferred, listed], "app=web"), told, "at a relist");
    let modified = change(Some(&others[0]), Some(&others[1]), 6);
    let entered = lines(&[change(Some(&db), Some(&others[0]), 5), modified], "app=web");
    assert_eq!(entered, ["Added EnteredSelection a 6 +1 @99"], "and what came has the cause by which it came");
}

#[test]
fn keys_are_ordered_by_their_last_change_and_only_the_last_event_advances() {
    let object = |name, number| object(name, "u", "web", number);
    let (a1, a2, b1, c1) = (object("a", 1), object("a", 4), object("b", 2), object("c", 3));
    let changes = [
        change(None, Some(&a1), 1),
        change(None, Some(&b1), 2),
        change(None, Some(&c1), 3),
        change(Some(&a1), Some(&a2), 4),
        change(Some(&b1), None, 5),
    ];
    assert_eq!(
        lines(&changes, ""),
        ["Added Change c 3 +0 @1", "Added Change a 4 +3 @99"],
        "b's two are counted with the last"
    );
}

#[test]
fn objects_added_and_deleted_in_between_are_only_counted() {
    let mut changes = Vec::new();
    for number in 0..10_000 {
        let comes = object(&format!("x{number}"), "u", "web", number);
        changes.extend([change(None, Some(&comes), number), change(Some(&comes), None, number)]);
    }
    let generation = merged(&Selection::default(), &changes);
    assert!(generation.pending.is_empty() && generation.size().held() < 10_000, "{:?}", generation.size());
    let last = object("a", "u", "web", 10_000);
    changes.push(change(None, Some(&last), 10_000));
    assert_eq!(lines(&changes, ""), ["Added Change a 10000 +20000 @99"]);
}

#[test]
fn old_states_are_held_while_they_may_be_delivered() {
    let [a1, a2] = [1, 2].map(|number| object("a", "u", "web", number));
    let size = a1.body().len();
    let modified = merged(&Selection::default(), &[change(Some(&a1), Some(&a2), 2)]);
    assert_eq!((modified.size().had, modified.size().bodies), (size, 2 * size));
    let telling = modified.drain(position(9), false, |_, _| false);
    assert_eq!((telling.size().had, telling.size().bodies), (0, size));
    assert_eq!(Arc::strong_count(&a1), 1);
    drop(telling);
    let modified =
        merged(&Selection::default(), &[change(Some(&a1), Some(&a2), 2)]).drain(position(9), true, |_, _| false);
    assert_eq!((modified.size().had, modified.size().bodies), (size, 2 * size), "a frame with the previous state");
    let deleted = merged(&Selection::default(), &[change(Some(&a1), None, 2)]).drain(position(9), false, |_, _| false);
    assert_eq!((deleted.size().had, deleted.size().bodies), (size, size));
}

proptest! {
    #![proptest_config(crate::property_config())]

    /// A client that has a state and receives a generation has the latest state, and every event is counted.
    #[test]
    fn a_generation_leads_from_the_client_state_to_the_latest_state(
        before in 0_usize..20,
        script in prop::collection::vec((0_u8..5, prop::option::weighted(0.75, (0_u8..2, any::<bool>()))), 0..60),
        max_size in 1_usize..5,
        selector in prop::sample::select(vec!["", "app=web"]),
    ) {
        let selection = Selection { labels: LabelSelector::parse(selector).unwrap(), ..Selection::default() };
        let mut held: BTreeMap<u8, Arc<Object>> = BTreeMap::new();
        let mut changes = Vec::new();
        let mut had = BTreeMap::new();
        let state = |held: &BTreeMap<u8, Arc<Object>>| -> BTreeMap<String, Arc<Object>> {
            let matching = held.values().filter(|object| selection.matches(object));
            matching.map(|object| (object.key().name().to_owned(), Arc::clone(object))).collect()
        };
        for (at, (name, what)) in script.iter().enumerate() {
            if at == before {
                had = state(&held);
                changes.clear();
            }
            let number = at as u128 + 2;
            let old = held.get(name).cloned();
            let new = what.map(|(uid, is_web)| {
                object(&format!("o{name}"), &uid.to_string(), if is_web { "web" } else { "db" }, number)
            });
            // Like the indexer: another uid is a deletion and an addition.
            let is_replaced = old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| old.uid() != new.uid());
            match &new {
                Some(new) => drop(held.insert(*name, Arc::clone(new))),
                None => drop(held.remove(name)),
            }
            if is_replaced {
                changes.push(change(old.as_ref(), None, number));
                changes.push(change(None, new.as_ref(), number));
            } else if old.is_some() || new.is_some() {
                changes.push(change(old.as_ref(), new.as_ref(), number));
            }
        }
        if before >= script.len() {
            had = BTreeMap::new();
        }
        let events = changes.iter().filter(|change| selection.transition(change).is_some()).count();
        let told = told(merged(&selection, &changes), max_size);
        let mut view = had;
        for event in &told {
            let name = event.object.key().name().to_owned();
            match event.event_type {
                EventType::Added => prop_assert!(view.insert(name, Arc::clone(&event.object)).is_none()),
                EventType::Modified => {
                    prop_assert!(event.previous.is_some());
                    prop_assert_eq!(&view.insert(name, Arc::clone(&event.object)), &event.previous);
                }
                EventType::Deleted => prop_assert_eq!(view.remove(&name), Some(Arc::clone(&event.object))),
            }
        }
        prop_assert_eq!(view, state(&held));
        if let Some(last) = told.last() {
            let counted: usize = told.iter().map(|event| 1 + event.coalesced as usize).sum();
            prop_assert!(counted >= events, "nothing is left out of the count");
            prop_assert_eq!(&last.version, &version(99));
        }
        prop_assert!(told.iter().rev().skip(1).all(|event| event.version == version(1)));
    }
}

#[test]
fn inside_of_a_batch_the_client_does_not_get_its_version() {
    let [a, b] = ["a", "b"].map(|name| object(name, "1", "web", 2));
    let changes = [change(None, Some(&a), 2), change(None, Some(&b), 3)];
    let before = HistoryPosition { version: version(1), offset: 3 };
    for (reached, expected) in [(1, 1), (98, 98), (99, 99), (120, 99)] {
        let position = ReplayPosition { version: version(reached), ..position(9) };
        let draining = merged(&Selection::default(), &changes).drain(position, true, |_, _| false);
        assert_eq!(draining.after(&before).version, version(expected));
    }
}

#[test]
fn the_size_of_a_draining_generation_is_its_list_and_its_bodies() {
    let states = ["a", "b", "c", "d"].map(|name| object(name, "u", "web", 1));
    let came = states.each_ref().map(|state| change(None, Some(state), 1));
    let size = merged(&Selection::default(), &came).drain(position(9), true, |_, _| false).size();
    let bodies: usize = states.iter().map(|state| state.body().len()).sum();
    assert!(size.entries >= 4 * size_of::<CoalescedEvent>(), "{size:?}");
    assert_eq!((size.bodies, size.had), (bodies, 0));
    let gone = states.each_ref().map(|state| change(Some(state), None, 2));
    let size = merged(&Selection::default(), &gone).drain(position(9), true, |_, _| false).size();
    assert_eq!((size.bodies, size.had), (bodies, bodies), "old states are held for it alone");
}

#[test]
fn unchanged_objects_are_not_delivered_and_count_with_the_last_event() {
    let [a1, a2, b1, b2] =
        [("a", 1), ("a", 2), ("b", 1), ("b", 2)].map(|(name, number)| object(name, "u", "web", number));
    let back = [change(Some(&b1), Some(&b2), 3), change(Some(&b2), Some(&b1), 4)];
    let none: [String; 0] = [];
    assert_eq!(lines(&back, ""), none);
    let all = [vec![change(None, Some(&a1), 1), change(Some(&a1), Some(&a2), 2)], back.to_vec()].concat();
    assert_eq!(lines(&all, ""), ["Added Change a 2 +3 @99"]);
}

#[test]
fn a_merged_change_is_suppressed_if_it_leaves_what_the_client_has() {
    let [a1, a2, a3] = [("x", 1), ("y", 2), ("x", 3)].map(|(app, number)| object("a", "1", app, number));
    let [b1, b2] = [("1", 4), ("2", 5)].map(|(uid, number)| object("b", uid, "x", number));
    let c = object("c", "1", "x", 6);
    let [there_and_back, further] =
        [(&a1, &a2, 2), (&a2, &a3, 3)].map(|(old, new, at)| change(Some(old), Some(new), at));
    let is_suppressed = |had: &Object, now: &Object| had.labels() == now.labels();
    let drain_in = |changes: &[Change], is_relist| {
        let telling = merged_in(&Selection::default(), changes, is_relist).drain(position(9), false, is_suppressed);
        (telling.drained.iter().map(|event| event.event_type).collect::<Vec<_>>(), telling.suppressed())
    };
    let drain = |changes: &[Change]| drain_in(changes, false);
    assert_eq!(drain(&[there_and_back.clone(), further.clone()]), (vec![], 2), "compared with what the client has");
    assert_eq!(drain_in(&[there_and_back.clone(), further.clone()], true), (vec![EventType::Modified], 0), "a relist");
    assert_eq!(drain(&[there_and_back]), (vec![EventType::Modified], 0));
    assert_eq!(drain(&[further.clone(), change(None, Some(&c), 4)]), (vec![EventType::Modified, EventType::Added], 0));
    assert_eq!(drain(&[change(Some(&a3), None, 4)]), (vec![EventType::Deleted], 0));
    let replaced = drain(&[change(Some(&b1), None, 5), change(None, Some(&b2), 5)]);
    assert_eq!(replaced, (vec![EventType::Deleted, EventType::Added], 0), "another uid");
}
