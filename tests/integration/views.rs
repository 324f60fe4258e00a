//! Views: the part of each body that a client receives.

use std::sync::Arc;

use informerd::{model::Object, proto::pb};
use tonic::Code;

use crate::sandbox::{Sandbox, next, pod, raw, reason, watch_pods, words};

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
        (view(&["a["], &[]), "view.fields: expected '*', an index or a quoted key at character 3: \"a[»\""),
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
