//! Tests of answers with 200 that are no list of the resource, of lists without a version, of pages without an end, and of single
//! objects that cannot be read.

use serde_json::{Value, json};

use super::{
    fake_api::{bookmark, event},
    *,
};
use crate::{
    cache::SyncState,
    model::{MAX_OBJECT_BYTES, ResourceVersion},
};

/// Starts a source over an API without initial events, whose objects it has.
async fn three() -> (Fixture, Rig) {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.streams = false);
    fixture.fake.write("a=1 b=1 c=1");
    let rig = fixture.listed().await;
    (fixture, rig)
}

/// Makes the source list again, with these answers first.
fn answer(fixture: &Fixture, answers: &[Value]) {
    fixture.fake.set(|store| {
        store.watches.push_back(Fault::Refuse(500, None, "{}".to_owned()));
        store.lists.extend(answers.iter().map(|answer| Fault::Answer(answer.to_string())));
    });
    fixture.gate.cut();
}

fn item(name: &str, version: &str) -> Value {
    json!({"metadata": {"name": name, "uid": "u2", "resourceVersion": version}, "value": "1"})
}

#[tokio::test]
async fn an_answer_that_is_no_list_of_the_resource_empties_nothing() {
    let metadata = json!({"resourceVersion": "999"});
    for wrong in [
        json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "rows": [{}]}),
        json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": metadata}),
        json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}}),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "items": []}),
        json!({"kind": "SecretList", "apiVersion": "example.com/v1", "metadata": metadata, "items": []}),
        json!({"kind": "SecretList", "apiVersion": "v1", "metadata": metadata, "items": [item("s", "900")]}),
        json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": []}),
        json!({"metadata": metadata, "items": []}),
        json!({"kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": metadata}),
        json!({"kind": "WidgetList", "apiVersion": "example.com/v1", "items": []}),
        json!({"kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": {}, "items": []}),
        json!({"kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": {"resourceVersion": "x1"}, "items": []}),
        json!({"kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": {"resourceVersion": 999}, "items": []}),
        json!({}),
        json!([]),
        json!(null),
    ] {
        let (fixture, mut rig) = three().await;
        answer(&fixture, &vec![wrong.clone(); 1000]);
        let error = rig.error("list failed").await;
        assert!(error.contains("invalid upstream data"), "{wrong}: {error}");
        fixture.fake.write("a=2");
        fixture.fake.set(|store| store.lists.clear());
        assert_eq!(rig.told().await, "list 5", "{wrong}");
        assert_eq!((rig.state.clone(), rig.history_rewrites), (fixture.fake.state(), 0), "{wrong}");
        fixture.fake.write("a=3");
        assert_eq!(rig.told().await, "6 ~a=3", "{wrong}: its versions are still the API's");
    }
}

/// The same before anything is known of the kind, and at a start from a snapshot.
#[tokio::test]
async fn the_first_list_is_one_of_the_resource_too() {
    let wrong = json!({"kind": "SecretList", "apiVersion": "example.com/v1", "metadata": {"resourceVersion": "999"}, "items": []});
    let (fixture, mut rig) = three().await;
    let kept = rig.kept().await;
    drop(rig);
    for kept in [None, Some(&kept)] {
        fixture.fake.set(|store| store.lists.push_back(Fault::Answer(wrong.to_string())));
        if kept.is_some() {
            // The first one answers the head.
            answer(&fixture, std::slice::from_ref(&wrong));
        }
        let mut rig = follow(fixture.config(), kept);
        let error = rig.error("list failed").await;
        assert!(error.contains("list of kind \"SecretList\""), "{error}");
        assert_eq!((rig.told().await, rig.history_rewrites), ("list 4".to_owned(), 0));
    }
}

/// The head is such an answer as well: its version would prove a rewritten history.
#[tokio::test]
async fn a_head_that_is_no_list_of_the_resource_proves_nothing() {
    for wrong in [
        json!({"kind": "Status", "status": "Success", "metadata": {"resourceVersion": "1"}}),
        json!({"kind": "SecretList", "metadata": {"resourceVersion": "1"}, "items": []}),
    ] {
        let (fixture, mut rig) = three().await;
        fixture.fake.write("a=2");
        assert_eq!(rig.told().await, "5 ~a=2");
        fixture.fake.set(|store| store.lists.push_back(Fault::Answer(wrong.to_string())));
        fixture.gate.cut();
        fixture.fake.write("a=3");
        assert_eq!((rig.told().await, rig.history_rewrites, rig.lists()), ("6 ~a=3".to_owned(), 0, 1), "{wrong}");
    }
}

/// An object whose kind was renamed with its definition: discovery has the new one.
#[tokio::test]
async fn a_list_of_another_kind_is_accepted_once_discovery_has_it() {
    let (fixture, rig) = three().await;
    drop(rig);
    let source = |fixture: &Fixture| KubeSource::new(fixture.config(), SourceHealth::new(DEADLINE, DEADLINE));
    let gadgets = json!({"kind": "GadgetList", "apiVersion": "example.com/v1", "metadata": {"resourceVersion": "5"}, "items": []});
    let source = source(&fixture);
    source.list(ListVersion::MostRecent).await.unwrap();
    fixture.fake.set(|store| store.lists.push_back(Fault::Answer(gadgets.to_string())));
    source.list(ListVersion::MostRecent).await.unwrap_err();
    fixture.fake.set(|store| {
        store.kind = "Gadget";
        store.lists.push_back(Fault::Answer(gadgets.to_string()));
    });
    assert_eq!(source.list(ListVersion::MostRecent).await.unwrap().objects.len(), 0);
}

/// A definition may be installed after the start, and so may the rights to see it.
#[tokio::test]
async fn a_kind_is_discovered_as_soon_as_the_api_has_it() {
    let fixture = Fixture::new().await;
    let others = json!({"kind": "APIResourceList", "resources": [{"name": "gadgets", "kind": "Gadget"}]});
    fixture.fake.set(|store| {
        store.others.extend([401, 403, 404].map(|code| Fault::Refuse(code, None, "{}".to_owned())));
        store.others.extend([json!({}), others].map(|answer| Fault::Answer(answer.to_string())));
        store.others.extend((0..7).map(|_| Fault::Refuse(404, None, "{}".to_owned())));
    });
    let health = SourceHealth::new(DEADLINE, DEADLINE);
    let discovery = KubeSource::discover(&fixture.config(), health.clone(), &KubeClients::default());
    tokio::time::pause();
    timeout(Duration::from_secs(12 * 60), discovery).await.expect("within a minute of its definition");
    assert_eq!(health.api_kind().map(|kind| kind.kind), Some("Widget".to_owned()));
}

fn page(next: &str, items: &[Value]) -> Fault {
    let metadata = json!({"resourceVersion": "4", "continue": next});
    Fault::Answer(
        json!({"kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": metadata, "items": items}).to_string(),
    )
}

#[tokio::test]
async fn pages_without_an_end_are_listed_in_one_piece() {
    let (fixture, rig) = three().await;
    drop(rig);
    let empty = || (0..200).map(|number| page(&format!("t{number}"), &[])).collect::<Vec<_>>();
    let repeated = || (0..200).map(|number| page(&format!("t{number}"), &[item("a", "2")])).collect::<Vec<_>>();
    for (what, pages) in [
        ("one token", (0..3).map(|number| page("t", &[item(&number.to_string(), "2")])).collect()),
        ("a circle", ["t", "u", "v", "t"].map(|token| page(token, &[item(token, "2")])).into()),
        ("empty pages", empty()),
        ("one page", repeated()),
    ] {
        fixture.fake.set(|store| {
            store.asked.clear();
            store.lists = pages.into();
        });
        let source = KubeSource::new(fixture.config(), SourceHealth::new(DEADLINE, DEADLINE));
        let listed = source.list(ListVersion::MostRecent);
        let paged = async {
            // The answer without pages is the regular one.
            until(|| fixture.fake.asked().iter().filter(|asked| asked.contains("page")).count() >= 1).await;
        };
        let (list, ()) = tokio::join!(listed, paged);
        let is_regular = list.as_ref().is_ok_and(|list| list.objects.len() == 3);
        let problem = list.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(is_regular || problem.contains("pages that do not end"), "{what}: {problem}");
        assert!(fixture.fake.asked().len() < 110, "{what}");
        fixture.fake.set(|store| store.lists.clear());
    }
}

/// metrics.k8s.io: neither the lists nor their items have versions, and there are no watches.
#[tokio::test]
async fn an_api_whose_lists_have_no_version_is_polled() {
    let fixture = Fixture::new().await;
    let list = |value: &str| {
        let items = json!([{"metadata": {"name": "a"}, "value": value}, {"metadata": {"name": "b"}, "value": "0"}]);
        Fault::Answer(
            json!({"kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": {}, "items": items}).to_string(),
        )
    };
    fixture.fake.set(|store| {
        store.streams = false;
        // The head of a first run, its list, and the list once more without versions.
        store.lists.extend([list("1"), list("1"), list("1"), list("1"), list("2")]);
        let gone = Fault::Answer(json!({"kind": "Status", "metadata": {}}).to_string());
        store.lists.extend([gone, list("3"), list("3")]);
    });
    let health = SourceHealth::new(Duration::from_millis(200), Duration::from_millis(400));
    let mut rig = Rig::follow(KubeSource::new(fixture.config(), health.clone()), health, None, value);
    let mut values = Vec::new();
    while values.last().is_none_or(|last: &String| last != "3") {
        rig.next().await;
        values.push(rig.state["a"].1.clone());
        if values.len() < 3 {
            let report = rig.health.report();
            assert_eq!((report.state, report.problems), (SyncState::Synced, 1));
            assert!(report.last_error.unwrap().contains("its lists have no version"));
        }
    }
    values.dedup();
    assert_eq!((values, rig.history_rewrites), (["1", "2", "3"].map(str::to_owned).into(), 0));
}

/// A resource that can be listed and not watched, with versions.
#[tokio::test]
async fn a_resource_without_watches_is_polled() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    fixture.fake.set(|store| {
        store.streams = false;
        store.watches.extend((0..100).map(|_| Fault::Refuse(405, None, "{}".to_owned())));
    });
    let health = SourceHealth::new(Duration::from_millis(200), Duration::from_millis(400));
    let mut rig = Rig::follow(KubeSource::new(fixture.config(), health.clone()), health, None, value);
    assert_eq!(rig.told().await, "list 2");
    fixture.fake.write("a=2 b=1");
    assert_eq!(rig.told().await, "list 4");
    assert_eq!(rig.state, fixture.fake.state());
    let report = rig.health.report();
    assert_eq!((report.state, report.problems), (SyncState::Synced, 1), "{report:?}");
    fixture.fake.write("-a");
    assert_eq!(rig.told().await, "list 5");
    assert_eq!((rig.state.clone(), rig.lists(), rig.history_rewrites), (fixture.fake.state(), 1, 0));
}

/// Returns items that cannot be read, each in place of `b`, with the subject of its problem.
fn poison() -> Vec<(Value, &'static str)> {
    let metadata = |metadata: Value| json!({"metadata": metadata, "value": "9"});
    vec![
        (metadata(json!({"name": "b", "uid": "u3", "resourceVersion": "3", "labels": {"on": true}})), "b"),
        (metadata(json!({"name": "b", "uid": 3, "resourceVersion": "3"})), "b"),
        (metadata(json!({"name": "b", "uid": "u3", "resourceVersion": 3})), "b"),
        (metadata(json!({"name": "b", "uid": "u3"})), "b"),
        (metadata(json!({"name": "b", "uid": "u3", "resourceVersion": "x3"})), "b"),
        (metadata(json!({"uid": "u3", "resourceVersion": "3"})), "uid u3"),
        (metadata(json!({"name": 7, "uid": "u3", "resourceVersion": "3"})), "uid u3"),
        (metadata(json!({"name": "", "uid": "u3", "resourceVersion": "3"})), "uid u3"),
        (metadata(json!({"name": ["b"]})), "item 2 of the list"),
        (metadata(json!("b")), "item 2 of the list"),
        (json!({"value": "9"}), "item 2 of the list"),
        (json!(null), "item 2 of the list"),
        (json!("b"), "item 2 of the list"),
        (json!(5), "item 2 of the list"),
    ]
}

#[tokio::test]
async fn an_item_that_cannot_be_read_leaves_the_others_and_what_is_held_of_it() {
    for (poison, subject) in poison() {
        let (fixture, mut rig) = three().await;
        fixture.fake.write("a=2");
        assert_eq!(rig.told().await, "5 ~a=2");
        let before = fixture.fake.state();
        let items = json!([item("a", "6"), poison]);
        let metadata = json!({"resourceVersion": "7"});
        let list = json!({"kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": metadata, "items": items});
        fixture.fake.set(|store| store.revision = 7);
        // The first one answers the head.
        answer(&fixture, &[list.clone(), list]);
        assert_eq!(rig.told().await, "list 7", "{poison}");
        assert_eq!((&rig.state["b"], rig.history_rewrites), (&before["b"], 0), "{poison}");
        assert_eq!(rig.state["a"], ("u2".to_owned(), "1".to_owned()), "{poison}");
        let problems = rig.health.problems();
        assert_eq!((problems.len(), &*problems[0].subject), (1, subject), "{poison}: {problems:?}");
        // `c` is deleted, unless the item may be any object.
        let is_any = subject.starts_with("item");
        assert_eq!(rig.state.contains_key("c"), is_any, "{poison}");
        until(|| (rig.health.state() == SyncState::Stale) == is_any).await;
        fixture.fake.write("b=8");
        assert!(rig.told().await.ends_with("b=8"), "{poison}");
    }
}

#[tokio::test]
async fn an_event_that_cannot_be_read_leaves_the_others_and_what_is_held_of_it() {
    // An event of null has no object, and so is none: the resource is listed.
    for (poison, subject) in poison().into_iter().filter(|(poison, _)| !poison.is_null()) {
        let (fixture, mut rig) = three().await;
        let before = fixture.fake.state();
        let lines = ["MODIFIED", "ADDED"].map(|event_type| event(event_type, &poison));
        // Its deletion needs no more than the key and the version.
        let gone = json!({"metadata": {"name": "b", "resourceVersion": "8", "labels": {"on": true}}});
        let rest = [event("MODIFIED", &item("a", "6")), event("DELETED", &gone), bookmark("9", None)];
        let lines = lines.into_iter().chain(rest).collect();
        fixture.fake.set(|store| {
            store.revision = 9;
            store.watches.push_back(Fault::Tell(lines));
        });
        fixture.gate.cut();
        assert_eq!(rig.told().await, "6 ~a=1", "{poison}");
        assert_eq!((&rig.state["b"], rig.state.len(), rig.lists()), (&before["b"], 3, 1), "{poison}");
        let subject = if subject.starts_with("item") { "an event of the watch" } else { subject };
        let problems = || rig.health.problems().iter().any(|problem| problem.subject == subject);
        assert!(subject == "b" || problems(), "{poison}");
        assert_eq!(rig.told().await, "8 -b", "{poison}");
        assert!(rig.health.problems().iter().all(|problem| problem.subject != "b"), "{poison}");
    }
}

#[tokio::test]
async fn an_object_with_a_problem_that_is_deleted_among_the_initial_events_is_not_listed() {
    let poison = |version: &str| {
        let metadata = json!({"name": "b", "uid": "u2", "resourceVersion": version, "labels": {"on": true}});
        json!({ "metadata": metadata })
    };
    let mut too_large = item("b", "3");
    too_large["value"] = "x".repeat(MAX_OBJECT_BYTES).into();
    for problem in [poison("3"), too_large] {
        let fixture = Fixture::new().await;
        let lines = vec![
            event("ADDED", &item("b", "2")),
            event("MODIFIED", &problem),
            event("DELETED", &poison("4")),
            bookmark("4", Some("true")),
        ];
        fixture.fake.set(|store| {
            store.revision = 4;
            store.watches.push_back(Fault::Tell(lines));
        });
        let mut rig = fixture.rig();
        assert_eq!((rig.told().await, rig.state.len()), ("list 4".to_owned(), 0));
        assert!(rig.health.problems().iter().all(|problem| problem.subject != "b"));
    }
}

/// The first list of a run has nothing to keep.
#[tokio::test]
async fn initial_events_with_an_unreadable_one_are_a_list() {
    let fixture = Fixture::new().await;
    let poison = json!({"metadata": {"name": "b", "uid": "u3", "resourceVersion": "3", "labels": {"on": true}}});
    let lines = vec![event("ADDED", &item("a", "2")), event("ADDED", &poison), bookmark("4", Some("true"))];
    fixture.fake.set(|store| {
        store.revision = 4;
        store.watches.push_back(Fault::Tell(lines));
    });
    let mut rig = fixture.rig();
    assert_eq!((rig.told().await, rig.state.len()), ("list 4".to_owned(), 1));
    assert_eq!(rig.health.problems()[0].subject, "b");
    let source = KubeSource::new(fixture.config(), SourceHealth::new(DEADLINE, DEADLINE));
    assert_eq!(source.list(ListVersion::NotOlderThan(ResourceVersion::decimal(4))).await.unwrap().version.number(), 4);
}
