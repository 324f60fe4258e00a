//! Views that the operator has named, and those that requests have to name.

use std::fs;

use informerd::{
    model::{NamedViews, View},
    proto::pb,
};
use serde_json::Value;
use tempfile::TempDir;
use tonic::{Code, Status};

use super::{named, pods, text, view};
use crate::{
    client_commands::{Server, Watch},
    command_line::run,
    sandbox::{Options, Sandbox, next, reason, watch_pods, words},
};

const SMALL: &str = r#"{"spec":{"nodeName":"n1"}}"#;

/// Starts a server with two views, of which requests perhaps have to name one.
async fn server(required: bool) -> Sandbox {
    let of = |field: &str| View::parse(&[field], &[]).unwrap();
    let views = NamedViews::new([("small".to_owned(), of("spec.nodeName")), ("other".to_owned(), of("kind"))]).unwrap();
    let names = ["small", "@metadata"].map(str::to_owned);
    let views = if required { views.required(&names).unwrap() } else { views };
    Sandbox::start_with(Options { views, ..Options::default() }, pods()).await
}

fn until(watch: pb::WatchRequest, condition: &str) -> pb::UntilRequest {
    pb::UntilRequest { watch: Some(watch), conditions: vec![condition.to_owned()] }
}

/// Returns the bodies of the first object that each call with a body returns, or the refusals.
async fn bodies(sandbox: &Sandbox, view: Option<pb::View>) -> Vec<Result<String, Status>> {
    let (resource, format) = ("pods".to_owned(), pb::PayloadFormat::Raw.into());
    let mut client = sandbox.in_process();
    let first = |objects: Vec<pb::Object>| text(&objects[0]);
    let request = pb::ListRequest { resource: resource.clone(), format, view: view.clone(), ..Default::default() };
    let list = async {
        let chunk = client.clone().list(request).await?.into_inner().message().await?;
        Ok(first(chunk.unwrap().objects))
    };
    let list = list.await;
    let request = pb::ByIndexRequest {
        resource: resource.clone(),
        index: "app".to_owned(),
        value: "a".to_owned(),
        format,
        view: view.clone(),
        ..Default::default()
    };
    let by_index = async {
        let chunk = client.clone().by_index(request).await?.into_inner().message().await?;
        Ok(first(chunk.unwrap().objects))
    };
    let by_index = by_index.await;
    let (namespace, name) = ("shop".to_owned(), "a".to_owned());
    let request = pb::GetRequest { resource, namespace, name, format, view: view.clone(), ..Default::default() };
    let get = client.get(request).await.map(|found| text(&found.into_inner().object.unwrap()));
    let watch = pb::WatchRequest { view, ..watch_pods() };
    let watched = match client.watch(watch.clone()).await {
        Ok(stream) => Ok(text(&next(&mut stream.into_inner()).await.object.unwrap())),
        Err(status) => Err(status),
    };
    let met = client.until(until(watch, "type == 'ADDED'")).await;
    let met = met.map(|met| text(&met.into_inner().event.unwrap().object.unwrap()));
    vec![list, by_index, get, watched, met]
}

#[tokio::test]
async fn every_call_has_the_view_that_it_names() {
    for required in [false, true] {
        let sandbox = server(required).await;
        for body in bodies(&sandbox, Some(named("small"))).await {
            assert_eq!(body.unwrap(), SMALL);
        }
        let request = pb::ListResourcesRequest {};
        let resource = sandbox.client().await.list_resources(request).await.unwrap().into_inner().resources.remove(0);
        let paths = |view: &pb::NamedView| view.view.clone().unwrap().fields;
        let shown: Vec<_> = resource.views.iter().map(|view| (&*view.name, paths(view))).collect();
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let small = ("small", texts(&[".spec.nodeName"]));
        let metadata = ("@metadata", texts(&[".apiVersion", ".kind", ".metadata"]));
        let expected = if required { [metadata, small] } else { [("other", texts(&[".kind"])), small] };
        assert_eq!((resource.view_required, &shown[..]), (required, &expected[..]));
    }
}

#[tokio::test]
async fn where_views_are_required_no_other_part_of_a_body_is_served() {
    let sandbox = server(true).await;
    let others =
        [None, Some(pb::View::default()), Some(view(&["spec.nodeName"], &[])), Some(named("other")), Some(named("x"))];
    for other in others {
        for refused in bodies(&sandbox, other.clone()).await {
            let refused = refused.unwrap_err();
            assert_eq!((refused.code(), &*reason(&refused)), (Code::PermissionDenied, "VIEW_NOT_ALLOWED"), "{other:?}");
        }
    }
    let metadata = pb::WatchRequest { format: pb::PayloadFormat::Metadata.into(), ..watch_pods() };
    let mut stream = sandbox.client().await.watch(metadata).await.unwrap().into_inner();
    let first = next(&mut stream).await;
    assert_eq!((words(&first), first.object.unwrap().body), ("ADDED INITIAL a".to_owned(), None));
}

/// Selections, conditions, indexes and shards do not find out what a view leaves out.
#[tokio::test]
async fn where_views_are_required_selections_are_by_metadata() {
    let sandbox = server(true).await;
    let mut client = sandbox.in_process();
    let base = || pb::WatchRequest { view: Some(named("small")), ..watch_pods() };
    let index = |name: &str| Some(pb::IndexMatch { name: name.to_owned(), values: vec!["a".to_owned()] });
    let shard =
        |key: &str| Some(pb::Shard { key: key.to_owned(), ranges: vec![pb::ShardRange { start: 0, end: 1 << 63 }] });
    let metadata = pb::PayloadFormat::Metadata.into();
    let mut probes = vec![
        pb::WatchRequest { field_selector: "spec.nodeName=n1".to_owned(), ..base() },
        pb::WatchRequest { index: index("node"), ..base() },
        pb::WatchRequest { shard: shard("spec.nodeName"), ..base() },
        pb::WatchRequest { shard: shard("spec.nodeName"), view: None, format: metadata, ..base() },
    ];
    if cfg!(feature = "cel") {
        probes.push(pb::WatchRequest { expression: "true".to_owned(), ..base() });
    }
    let mut refusals = Vec::new();
    for probe in probes {
        let pb::WatchRequest { resource, view, format, field_selector, expression, index, shard, .. } = probe.clone();
        let list =
            pb::ListRequest { resource, view, format, field_selector, expression, index, shard, ..Default::default() };
        refusals.push(client.list(list).await.map(drop).unwrap_err());
        refusals.push(client.until(until(probe.clone(), "count == 0")).await.map(drop).unwrap_err());
        refusals.push(client.watch(probe).await.map(drop).unwrap_err());
    }
    let (resource, node) = ("pods".to_owned(), "node".to_owned());
    let by_index = |like| pb::ByIndexRequest {
        resource: resource.clone(),
        index: node.clone(),
        value: if like { String::new() } else { "n1".to_owned() },
        like: like.then(|| pb::ObjectKey { namespace: "shop".to_owned(), name: "a".to_owned() }),
        format: metadata,
        ..Default::default()
    };
    refusals.push(client.by_index(by_index(false)).await.map(drop).unwrap_err());
    refusals.push(client.by_index(by_index(true)).await.map(drop).unwrap_err());
    let values = pb::ListIndexValuesRequest { resource, index: node, ..Default::default() };
    refusals.push(client.list_index_values(values.clone()).await.map(drop).unwrap_err());
    if cfg!(feature = "cel") {
        refusals.push(client.until(until(base(), "object.kind == 'Pod'")).await.map(drop).unwrap_err());
    }
    for refusal in refusals {
        assert_eq!((refusal.code(), &*reason(&refusal)), (Code::PermissionDenied, "ACCESS_DENIED"), "{refusal:?}");
        assert!(refusal.message().ends_with("select by namespace, name and labels"), "{}", refusal.message());
    }

    for request in [
        pb::WatchRequest { label_selector: "app=a".to_owned(), ..base() },
        pb::WatchRequest { field_selector: "metadata.name=a".to_owned(), ..base() },
        pb::WatchRequest { index: index("app"), ..base() },
        pb::WatchRequest { name: "a".to_owned(), ..base() },
    ] {
        let mut stream = client.watch(request.clone()).await.unwrap().into_inner();
        assert_eq!(text(next(&mut stream).await.object.as_ref().unwrap()), SMALL);
        assert!(next(&mut stream).await.bookmark.is_some(), "the only one: {request:?}");
    }
    client.watch(pb::WatchRequest { shard: shard("key"), ..base() }).await.unwrap();
    let values = pb::ListIndexValuesRequest { index: "app".to_owned(), ..values };
    assert_eq!(client.list_index_values(values).await.unwrap().into_inner().values.len(), 2);
}

/// Writes a configuration of pods with views, of which requests perhaps have to name one.
fn configuration(directory: &TempDir, more: &str) -> String {
    let path = directory.path().join("informerd.yaml");
    let manifests = fs::canonicalize("examples/manifests").unwrap();
    let text = format!(
        "resources:\n  pods:\n    source: {{ files: {{ path: {}, kind: Pod }} }}\n    views:\n      small: {{ fields: [kind, \
         spec.nodeName] }}\n      lean: {{ drop: [status] }}\n{more}",
        manifests.display()
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_commands_name_views_of_the_configuration_and_show_them() {
    let directory = TempDir::new().unwrap();
    let path = configuration(&directory, "");
    let (code, out, err) = run(&["check", "--config", &path]);
    assert_eq!((code, &*err), (Some(0), ""));
    assert!(out.contains("pods: view lean of -.status\npods: view small of .kind,.spec.nodeName\n"), "{out}");

    let server = Server::start_at("127.0.0.1:0", &["--config", &path]);
    let ok = |arguments: &[&str]| {
        let (code, out, err) = server.run(arguments);
        assert_eq!((code, &*err), (0, ""), "{arguments:?}");
        out
    };
    let small = ["--view", "small", "-o", "jsonl"];
    for command in [&["list", "pods"][..], &["by-index", "pods", "namespace", "platform"]] {
        let out = ok(&[command, &small].concat());
        assert!(out.lines().count() > 1, "{out}");
        assert!(out.lines().all(|line| line.starts_with(r#"{"kind":"Pod","spec":{"#) && line.len() < 140), "{out}");
    }
    let pod = ok(&["list", "pods", "-o", "name"]).lines().next().unwrap().to_owned();
    let pod = pod.strip_prefix("pods/").unwrap_or(&pod).to_owned();
    assert!(ok(&[&["get", "pods", &pod], &small[..]].concat()).starts_with(r#"{"kind":"Pod","spec":{"nodeName":"#));
    assert!(ok(&["resources", "-o", "wide"]).contains("lean,small"));
    let shown: Value = serde_json::from_str(&ok(&["resources", "-o", "json"])).unwrap();
    assert_eq!(shown["resources"][0]["views"][1]["view"]["fields"][1], ".spec.nodeName");
    assert_eq!(shown["resources"][0].get("viewRequired"), None);

    let mut watch = Watch::of(server.command(&["record", "pods", &pod, "--view", "small", "--changed"]));
    let row = watch.row();
    assert!(row.starts_with(r#"{"type":"ADDED","object":{"kind":"Pod","spec":{"nodeName":"#), "{row}");
    watch.interrupt();
    let mirror = directory.path().join("mirror");
    let (code, _, err) =
        server.run(&["mirror", "pods", mirror.to_str().unwrap(), "--once", "--view", "small", "--changed"]);
    assert_eq!(code, 0, "{err}");
    let copy = fs::read_to_string(mirror.join(format!("{pod}.json"))).unwrap();
    assert!(copy.starts_with(r#"{"kind":"Pod","spec":{"nodeName":"#) && !copy.contains("status"), "{copy}");
    let (code, _, err) = server.run(&["list", "pods", "--changed"]);
    assert!(code == 2 && err.contains("unexpected argument '--changed'"), "{code} {err}");
}

#[test]
fn a_command_without_a_required_view_prints_those_that_there_are() {
    let directory = TempDir::new().unwrap();
    let path = configuration(&directory, "    allowed_views: [small]\n");
    let (_, out, _) = run(&["check", "--config", &path]);
    assert!(
        out.contains("pods: view small of .kind,.spec.nodeName\npods: requests of bodies have to name one of small\n")
    );
    let server = Server::start_at("127.0.0.1:0", &["--config", &path]);
    let (code, _, err) = server.run(&["list", "pods"]);
    assert_ne!(code, 0);
    let problem = "view.name: resource \"pods\" serves views only: name one of small, or request METADATA";
    assert!(err.contains(problem), "{err}");
    assert!(server.run(&["resources", "-o", "wide"]).1.contains("small (required)"));
    let (code, out, err) = server.run(&["list", "pods", "--view", "small", "-o", "name"]);
    assert!(code == 0 && err.is_empty() && out.lines().count() > 1, "{err}");
}

#[test]
fn check_prints_the_view_that_a_relay_follows() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("informerd.yaml");
    for (view, shown) in
        [("fields: [kind, spec.x], drop: [spec.x.y]", "kind,spec.x,-spec.x.y"), ("name: small", "small")]
    {
        let relay = format!("{{ informerd: {{ endpoint: 'http://127.0.0.1:1', view: {{ {view} }} }} }}");
        fs::write(&path, format!("resources: {{ pods: {{ source: {relay} }} }}")).unwrap();
        let (code, out, err) = run(&["check", "--config", path.to_str().unwrap(), "--offline"]);
        assert_eq!((code, &*err), (Some(0), ""));
        assert!(
            out.contains(&format!("pods: pods of informerd at http://127.0.0.1:1 in the view {shown}, indexed")),
            "{out}"
        );
    }
}
