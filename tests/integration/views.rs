//! Views: the part of each body that a client receives.

mod named;

use std::sync::Arc;

use informerd::{
    model::{Event, Object, ResourceVersion},
    proto::pb::{self, admin_service_client::AdminServiceClient},
};
use tonic::{Code, Streaming};

use crate::{
    client_commands::Server,
    sandbox::{Sandbox, next, pod, raw, reason, watch_pods, words},
};

fn view(fields: &[&str], drop: &[&str]) -> pb::View {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    pb::View { fields: texts(fields), drop: texts(drop), ..Default::default() }
}

fn named(name: &str) -> pb::View {
    pb::View { name: name.to_owned(), ..Default::default() }
}

fn text(object: &pb::Object) -> String {
    String::from_utf8(raw(object).to_vec()).unwrap()
}

fn pods() -> Vec<Arc<Object>> {
    vec![
        pod("shop", "a", r#""nodeName":"n1","x":[{"ip":"1","y":2},{"ip":"2"}]"#),
        pod("shop", "b", r#""nodeName":"n2""#),
    ]
}

const NODE: &str = r#"{"spec":{"nodeName":"n1"}}"#;

#[tokio::test]
async fn reads_have_the_part_of_the_bodies_that_the_view_keeps() {
    let (sandbox, raw) = (Sandbox::start(pods()).await, pb::PayloadFormat::Raw.into());
    let resource = || "pods".to_owned();
    let list = pb::ListRequest {
        resource: resource(),
        format: raw,
        view: Some(view(&["spec.x[].ip"], &[])),
        ..Default::default()
    };
    let chunk = sandbox.client().await.list(list).await.unwrap().into_inner().message().await.unwrap().unwrap();
    let bodies: Vec<String> = chunk.objects.iter().map(text).collect();
    assert_eq!(bodies, [r#"{"spec":{"x":[{"ip":"1"},{"ip":"2"}]}}"#, r#"{"spec":{}}"#]);
    assert_eq!(chunk.objects[0].labels["app"], "a", "the envelope is whole");

    let found = pb::ByIndexRequest {
        resource: resource(),
        index: "node".to_owned(),
        value: "n1".to_owned(),
        format: raw,
        view: Some(view(&["spec"], &["spec.x"])),
        ..Default::default()
    };
    let chunk = sandbox.client().await.by_index(found).await.unwrap().into_inner().message().await.unwrap().unwrap();
    assert_eq!(text(&chunk.objects[0]), NODE);

    let get = |format, view| pb::GetRequest {
        resource: resource(),
        namespace: "shop".to_owned(),
        name: "a".to_owned(),
        format,
        view: Some(view),
        ..Default::default()
    };
    let object = sandbox.client().await.get(get(raw, view(&["spec.nodeName"], &[]))).await.unwrap().into_inner().object;
    assert_eq!(text(&object.unwrap()), NODE);
    let object = sandbox.client().await.get(get(raw, named("@metadata"))).await.unwrap().into_inner().object.unwrap();
    assert!(text(&object).contains(r#""metadata":{"#) && !text(&object).contains("spec"), "{}", text(&object));
    let format = pb::PayloadFormat::Struct.into();
    let object =
        sandbox.client().await.get(get(format, view(&["spec.nodeName"], &[]))).await.unwrap().into_inner().object;
    let Some(pb::object::Body::Struct(body)) = object.unwrap().body else { panic!("no Struct") };
    assert_eq!(body.fields.keys().collect::<Vec<_>>(), ["spec"]);

    for (view, message) in [
        (view(&["a["], &[]), "view.fields, character 3: expected '*', an index or a quoted key: \"a[»\""),
        (named("small"), "view.name: view \"small\" not found; known: @metadata, @no-managed-fields, @no-status"),
    ] {
        let refused = sandbox.client().await.get(get(raw, view)).await.unwrap_err();
        assert_eq!(
            (refused.code(), &*reason(&refused), refused.message()),
            (Code::InvalidArgument, "VIEW_INVALID", message)
        );
    }
}

#[tokio::test]
async fn a_watch_has_the_part_of_the_bodies_that_the_view_keeps() {
    let mut sandbox = Sandbox::start(pods()).await;
    // Selection looks at the whole object.
    let field_selector = "spec.x!=1".to_owned();
    let request = pb::WatchRequest { view: Some(view(&["spec.nodeName"], &[])), field_selector, ..watch_pods() };
    let mut stream = sandbox.client().await.watch(request.clone()).await.unwrap().into_inner();
    let first = next(&mut stream).await;
    assert_eq!((words(&first), text(first.object.as_ref().unwrap())), ("ADDED INITIAL a".to_owned(), NODE.to_owned()));
    next(&mut stream).await;
    let end = next(&mut stream).await;
    let pod = sandbox.put("shop", "a", r#""nodeName":"n3","x":2"#).await;
    let modified = next(&mut stream).await;
    assert_eq!(text(modified.object.as_ref().unwrap()), r#"{"spec":{"nodeName":"n3"}}"#);
    sandbox.delete(&pod).await;
    let deleted = next(&mut stream).await;
    assert_eq!(text(deleted.object.as_ref().unwrap()), r#"{"spec":{"nodeName":"n3"}}"#);

    let resumed = pb::WatchRequest { resource_version: end.resource_version, ..request };
    let mut stream = sandbox.client().await.watch(resumed).await.unwrap().into_inner();
    assert_eq!([next(&mut stream).await, next(&mut stream).await], [modified, deleted], "a resume encodes the same");
}

#[tokio::test]
async fn conditions_see_whole_objects_whatever_the_view() {
    let sandbox = Sandbox::start(pods()).await;
    let watch = pb::WatchRequest { view: Some(view(&["spec.nodeName"], &[])), ..watch_pods() };
    let request = pb::UntilRequest { watch: Some(watch), conditions: vec!["object.spec.x[1].ip == '2'".to_owned()] };
    let event = sandbox.client().await.until(request).await.unwrap().into_inner().event.unwrap();
    assert_eq!(text(event.object.as_ref().unwrap()), NODE);
}

/// Returns a request for the node of each pod, and for changes of it and of the labels alone.
fn nodes() -> pb::WatchRequest {
    let view = pb::View { only_if_changed: true, ..view(&["spec.nodeName"], &[]) };
    let bookmark_interval = Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 });
    pb::WatchRequest { view: Some(view), bookmark_interval, ..watch_pods() }
}

fn labelled(version: u128, uid: &str, label: &str, spec: &str) -> Arc<Object> {
    let json = format!(
        r#"{{"metadata":{{"namespace":"shop","name":"a","uid":"{uid}","labels":{{"app":"{label}"}}}},"spec":{{{spec}}}}}"#
    );
    Arc::new(Object::from_json(json, "unnamed", ResourceVersion::decimal(version)).unwrap())
}

/// Reads a stream up to a bookmark at a version. Returns the events, and the number of suppressed changes.
async fn to_bookmark(stream: &mut Streaming<pb::WatchResponse>, version: &str) -> (Vec<String>, u64) {
    let (mut events, mut suppressed) = (Vec::new(), 0);
    loop {
        let response = next(stream).await;
        let Some(bookmark) = &response.bookmark else {
            events.push(format!("{} {}", words(&response), text(response.object.as_ref().unwrap())));
            continue;
        };
        suppressed += bookmark.suppressed;
        if response.resource_version == version {
            return (events, suppressed);
        }
    }
}

const CHANGES: [&str; 5] = [
    r#"MODIFIED a @3 {"spec":{"nodeName":"n2"}}"#,
    r#"MODIFIED a @5 {"spec":{"nodeName":"n2"}}"#,
    r#"DELETED a @5 {"spec":{"nodeName":"n2"}}"#,
    r#"ADDED a @7 {"spec":{"nodeName":"n2"}}"#,
    r#"DELETED a @9 {"spec":{"nodeName":"n2"}}"#,
];

/// Writes changes at the versions 2 to 9, of which three are outside of the view.
async fn change(sandbox: &Sandbox) {
    let (first, second) = (r#""nodeName":"n1","x":1"#, r#""nodeName":"n2","x":2"#);
    for object in [
        labelled(2, "1", "a", first),
        labelled(3, "1", "a", r#""nodeName":"n2""#),
        labelled(4, "1", "a", second),
        labelled(5, "1", "b", second),
        labelled(7, "2", "b", second),
        labelled(8, "2", "b", r#""nodeName":"n2","x":3"#),
    ] {
        sandbox.push(Event::Modified(object)).await;
    }
    sandbox.push(Event::Deleted(labelled(9, "2", "b", r#""nodeName":"n2","x":3"#))).await;
}

#[tokio::test]
async fn changes_outside_of_the_view_are_suppressed_and_counted_in_bookmarks() {
    let sandbox = Sandbox::start(vec![labelled(1, "1", "a", r#""nodeName":"n1""#)]).await;
    let mut live = sandbox.client().await.watch(nodes()).await.unwrap().into_inner();
    assert_eq!(to_bookmark(&mut live, "1").await.0.len(), 1);
    change(&sandbox).await;
    assert_eq!(to_bookmark(&mut live, "9").await, (CHANGES.map(str::to_owned).to_vec(), 3));

    // The same ones are suppressed for a client that resumes, from wherever it does.
    let left = [(1, 5, 3), (2, 5, 2), (3, 4, 2), (4, 4, 1), (5, 3, 1), (7, 1, 1), (8, 1, 0)];
    for (version, events, suppressed) in left {
        let request = pb::WatchRequest { resource_version: version.to_string(), ..nodes() };
        let mut resumed = sandbox.client().await.watch(request).await.unwrap().into_inner();
        let expected = CHANGES[CHANGES.len() - events..].iter().map(|&event| event.to_owned()).collect();
        assert_eq!(to_bookmark(&mut resumed, "9").await, (expected, suppressed), "after {version}");
    }
}

/// A client that was cut off inside of a batch may have received a state between the two that a relist compares.
#[tokio::test]
async fn what_a_relist_has_changed_is_never_suppressed() {
    let sandbox = Sandbox::start(vec![labelled(1, "1", "a", r#""nodeName":"n1""#)]).await;
    let mut live = sandbox.client().await.watch(nodes()).await.unwrap().into_inner();
    to_bookmark(&mut live, "1").await;
    sandbox.list(vec![labelled(5, "1", "a", r#""nodeName":"n1","x":1"#)], 5).await;
    let expected = (vec![r#"MODIFIED a @5 {"spec":{"nodeName":"n1"}}"#.to_owned()], 0);
    assert_eq!(to_bookmark(&mut live, "5").await, expected);
    let request = pb::WatchRequest { resource_version: "1".to_owned(), ..nodes() };
    let mut resumed = sandbox.client().await.watch(request).await.unwrap().into_inner();
    assert_eq!(to_bookmark(&mut resumed, "5").await, expected);
}

#[tokio::test]
async fn reads_ignore_only_if_changed() {
    let sandbox = Sandbox::start(pods()).await;
    let view = Some(pb::View { only_if_changed: true, ..pb::View::default() });
    let list = pb::ListRequest { resource: "pods".to_owned(), view: view.clone(), ..Default::default() };
    let chunk = sandbox.client().await.list(list).await.unwrap().into_inner().message().await.unwrap().unwrap();
    assert_eq!(chunk.objects.len(), 2);
    let until = pb::UntilRequest {
        watch: Some(pb::WatchRequest { view, ..watch_pods() }),
        conditions: vec!["object.spec.nodeName == 'n2'".to_owned()],
    };
    assert!(sandbox.client().await.until(until).await.unwrap().into_inner().event.is_some());
}

#[tokio::test]
async fn operators_see_views_and_suppressed_changes() {
    let sandbox = Sandbox::start(vec![labelled(1, "1", "a", r#""nodeName":"n1""#)]).await;
    let mut stream = sandbox.client().await.watch(nodes()).await.unwrap().into_inner();
    to_bookmark(&mut stream, "1").await;
    change(&sandbox).await;
    to_bookmark(&mut stream, "9").await;
    let mut admin = AdminServiceClient::connect(sandbox.address().to_owned()).await.unwrap();
    let watchers = admin.list_watchers(pb::ListWatchersRequest::default()).await.unwrap().into_inner();
    assert_eq!((watchers.watchers[0].suppressed, &watchers.watchers[0].view), (3, &nodes().view));
}

#[test]
fn commands_print_the_part_of_the_bodies_that_their_flags_keep() {
    let server = Server::shop();
    let run = |arguments: &[&str]| {
        let (code, out, err) = server.run(arguments);
        assert_eq!((code, &*err), (0, ""), "{arguments:?}");
        out
    };
    let fields = ["--fields", "kind,spec.replicas", "-o", "jsonl", "-n", "platform"];
    let list = run(&[&["list", "deployments"], &fields[..]].concat());
    assert!(
        list.lines().count() > 1 && list.lines().all(|line| line.starts_with(r#"{"kind":"Deployment","spec":{"#)),
        "{list}"
    );
    let get = run(&["get", "deployments", "web", "--view", "@metadata", "-o", "json"]);
    assert!(get.contains("\"metadata\"") && !get.contains("\"spec\""), "{get}");
    let (code, _, err) = server.run(&["list", "pods", "--fields", "a["]);
    assert!(
        code == 2 && err.contains("view.fields, character ") && err.contains("expected '*', an index or a quoted key"),
        "{code} {err}"
    );
}
