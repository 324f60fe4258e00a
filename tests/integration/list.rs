//! List, ByIndex, Get, values and resources.

use std::sync::Arc;

use informerd::{
    model::{IndexFunc, Object, Path},
    proto::pb,
};
use prost::Message;
use tonic::{Code, Streaming};

use crate::{
    refused_watch::watch_refusal,
    sandbox::{Options, Sandbox, pod, reason},
};

fn list_pods() -> pb::ListRequest {
    pb::ListRequest { resource: "pods".to_owned(), format: pb::PayloadFormat::Metadata.into(), ..Default::default() }
}

async fn chunks(sandbox: &Sandbox, request: pb::ListRequest) -> Result<Vec<pb::ListResponse>, tonic::Status> {
    collect(sandbox.client().await.list(request).await?.into_inner()).await
}

async fn collect(mut stream: Streaming<pb::ListResponse>) -> Result<Vec<pb::ListResponse>, tonic::Status> {
    let mut chunks = Vec::new();
    while let Some(chunk) = stream.message().await? {
        chunks.push(chunk);
    }
    Ok(chunks)
}

async fn names(sandbox: &Sandbox, request: pb::ListRequest) -> Vec<String> {
    let chunks = chunks(sandbox, request).await.unwrap();
    let names = chunks.iter().flat_map(|chunk| &chunk.objects);
    names.map(|object| format!("{}/{}", object.namespace, object.name)).collect()
}

fn shop() -> Vec<Arc<Object>> {
    vec![
        pod("b", "web", r#""nodeName":"n1""#),
        pod("a", "web", r#""nodeName":"n2""#),
        pod("a", "api", r#""nodeName":"n1""#),
        pod("a-b", "api", ""),
    ]
}

#[tokio::test]
async fn a_list_is_sorted_and_selected() {
    let sandbox = Sandbox::start(shop()).await;
    assert_eq!(names(&sandbox, list_pods()).await, ["a/api", "a/web", "a-b/api", "b/web"]);
    let namespace = pb::ListRequest { namespace: "a".to_owned(), ..list_pods() };
    assert_eq!(names(&sandbox, namespace).await, ["a/api", "a/web"]);
    let labels = pb::ListRequest { label_selector: "app in (web)".to_owned(), ..list_pods() };
    assert_eq!(names(&sandbox, labels).await, ["a/web", "b/web"]);
    let fields = pb::ListRequest { field_selector: "spec.nodeName=".to_owned(), ..list_pods() };
    assert_eq!(names(&sandbox, fields).await, ["a-b/api"], "a missing field is the empty string");
    let values = vec!["n2".to_owned(), "n1".to_owned(), "none".to_owned()];
    let index = Some(pb::IndexMatch { name: "node".to_owned(), values });
    let by_index = pb::ListRequest { index, label_selector: "app=web".to_owned(), ..list_pods() };
    assert_eq!(names(&sandbox, by_index).await, ["a/web", "b/web"]);
}

#[tokio::test]
async fn an_empty_list_is_one_chunk_with_the_version() {
    let sandbox = Sandbox::start(Vec::new()).await;
    let chunks = chunks(&sandbox, list_pods()).await.unwrap();
    assert_eq!(chunks.len(), 1);
    assert_eq!((chunks[0].resource_version.as_str(), chunks[0].objects.len()), ("1", 0));
    assert_eq!(chunks[0].source(), pb::SyncState::Stale, "nobody has said that the upstream is alive");
}

#[tokio::test]
async fn by_index_finds_the_objects_of_a_value() {
    let sandbox = Sandbox::start(shop()).await;
    let mut client = sandbox.client().await;
    let mut find = async |index: &str, value: &str| {
        let request = pb::ByIndexRequest {
            resource: "pods".to_owned(),
            index: index.to_owned(),
            value: value.to_owned(),
            ..Default::default()
        };
        let mut stream = client.by_index(request).await.unwrap().into_inner();
        let mut names = Vec::new();
        while let Some(chunk) = stream.message().await.unwrap() {
            assert_eq!(chunk.resource_version, "1");
            names.extend(chunk.objects.into_iter().map(|object| format!("{}/{}", object.namespace, object.name)));
        }
        names
    };
    assert_eq!(find("node", "n1").await, ["a/api", "b/web"]);
    assert_eq!(find("app", "api").await, ["a/api", "a-b/api"]);
    assert_eq!(find("namespace", "a-b").await, ["a-b/api"]);
    assert!(find("node", "n9").await.is_empty());
}

/// Checks the pages too: each is of the first one's snapshot, in which the object may have other values than now.
#[tokio::test]
async fn by_index_like_finds_the_objects_that_share_a_value() {
    let port = IndexFunc::Path(Path::parse(".spec.ports[*]").unwrap());
    let options = Options { indexes: vec![("port".to_owned(), port)], ..Options::default() };
    // More values than a request may name.
    let many: Vec<_> = (1000..1300).map(|port| port.to_string()).collect();
    let pods = vec![
        pod("a", "api", r#""ports":[80,443]"#),
        pod("a", "db", r#""ports":[5432]"#),
        pod("a", "web", r#""ports":[443,80,8080]"#),
        pod("b", "dns", r#""ports":[]"#),
        pod("b", "mesh", &format!(r#""ports":[{}]"#, many.join(","))),
        pod("b", "web", r#""ports":[8080,1299]"#),
    ];
    let mut sandbox = Sandbox::start_with(options, pods).await;
    let like = |namespace: &str, name: &str| pb::ByIndexRequest {
        resource: "pods".to_owned(),
        index: "port".to_owned(),
        like: Some(pb::ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }),
        ..Default::default()
    };
    let client = sandbox.client().await;
    let find = async |request: pb::ByIndexRequest| {
        let mut stream = client.clone().by_index(request).await?.into_inner();
        let (mut names, mut token) = (Vec::new(), String::new());
        while let Some(chunk) = stream.message().await? {
            names.extend(chunk.objects.into_iter().map(|object| format!("{}/{}", object.namespace, object.name)));
            token = chunk.next_page_token;
        }
        Ok::<_, tonic::Status>((names, token))
    };
    let names = async |request| find(request).await.unwrap().0;
    assert_eq!(names(like("a", "api")).await, ["a/api", "a/web"], "each once");
    assert_eq!(names(like("a", "web")).await, ["a/api", "a/web", "b/web"]);
    assert_eq!(names(like("b", "mesh")).await, ["b/mesh", "b/web"]);
    assert_eq!(names(like("b", "dns")).await, <[&str; 0]>::default(), "no value, so not even itself");
    let selected = pb::ByIndexRequest { namespace: "b".to_owned(), ..like("a", "web") };
    assert_eq!(names(selected).await, ["b/web"]);
    let selected = pb::ByIndexRequest { label_selector: "app=api".to_owned(), ..like("a", "web") };
    assert_eq!(names(selected).await, ["a/api"]);
    let absent = find(like("b", "none")).await.unwrap_err();
    assert_eq!((absent.code(), &*reason(&absent)), (Code::NotFound, "OBJECT_NOT_FOUND"));
    assert_eq!(absent.message(), "pods \"b/none\" not found");

    let page = pb::ByIndexRequest { page_size: 2, ..like("a", "web") };
    let (first, page_token) = find(page.clone()).await.unwrap();
    let changed = sandbox.put("a", "web", r#""ports":[5432]"#).await;
    sandbox.reached(changed.version()).await;
    let next = pb::ByIndexRequest { page_token: page_token.clone(), ..page };
    assert_eq!((first, names(next).await), (vec!["a/api".to_owned(), "a/web".to_owned()], vec!["b/web".to_owned()]));
    assert_eq!(names(like("a", "web")).await, ["a/db", "a/web"]);
    let other = find(pb::ByIndexRequest { page_token, ..like("a", "api") }).await.unwrap_err();
    assert_eq!(&*reason(&other), "PAGE_TOKEN_INVALID", "a token is of one object's values");
}

/// Checks that all pages come from one snapshot whatever changes meanwhile (AIP-158).
#[tokio::test]
async fn pages_continue_in_their_snapshot_while_the_resource_changes() {
    let pods: Vec<_> = (0..25).map(|at| pod("shop", &format!("p{at:02}"), "")).collect();
    let mut sandbox = Sandbox::start(pods).await;
    let mut request = pb::ListRequest { page_size: 10, ..list_pods() };
    let (mut pages, mut seen) = (0, Vec::new());
    loop {
        let chunks = chunks(&sandbox, request.clone()).await.unwrap();
        assert!(chunks.iter().all(|chunk| chunk.resource_version == "1"));
        seen.extend(chunks.iter().flat_map(|chunk| &chunk.objects).map(|object| object.name.clone()));
        pages += 1;
        let created = sandbox.put("shop", &format!("p{pages:02}x"), "").await;
        sandbox.reached(created.version()).await;
        request.page_token = chunks.last().unwrap().next_page_token.clone();
        request.page_size = 8;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, (0..25).map(|at| format!("p{at:02}")).collect::<Vec<_>>());
    assert_eq!(pages, 3, "10, 8 and 7");
}

/// Checks that reads name the history of their version: a restored upstream may reach the same number on another way.
#[tokio::test]
async fn reads_name_the_history_to_watch_from() {
    let sandbox = Sandbox::start_unsynced(Options::default()).await;
    sandbox.list(shop(), 100).await;
    let mut client = sandbox.client().await;
    let page = pb::ListRequest { page_size: 1, ..list_pods() };
    let first = chunks(&sandbox, page.clone()).await.unwrap().remove(0);
    let by_index = pb::ByIndexRequest {
        resource: "pods".to_owned(),
        index: "node".to_owned(),
        value: "n1".to_owned(),
        ..Default::default()
    };
    let found = client.by_index(by_index.clone()).await.unwrap().into_inner().message().await.unwrap().unwrap();
    let get = pb::GetRequest {
        resource: "pods".to_owned(),
        namespace: "a".to_owned(),
        name: "web".to_owned(),
        ..Default::default()
    };
    let got = client.get(get.clone()).await.unwrap().into_inner();
    let watch = |history: &str| pb::WatchRequest {
        resource: "pods".to_owned(),
        resource_version: first.resource_version.clone(),
        history: history.to_owned(),
        ..Default::default()
    };
    for history in [&first.history, &found.history, &got.history] {
        client.watch(watch(history)).await.unwrap();
    }
    // Restored, and again at that version and beyond.
    sandbox.list(shop(), 50).await;
    sandbox.list(shop(), 150).await;
    for history in [&first.history, &found.history, &got.history] {
        let ended = watch_refusal(client.watch(watch(history))).await;
        assert_eq!((ended.code(), reason(&ended).as_str()), (Code::OutOfRange, "HISTORY_CHANGED"));
    }
    // The same number may be another state by now, and so an exact read of it has the history, too.
    let exact = pb::ResourceVersionMatch::Exact.into();
    let at = |version: &str, history: &str| {
        let (min_resource_version, history) = (version.to_owned(), history.to_owned());
        let list = pb::ListRequest {
            min_resource_version: min_resource_version.clone(),
            resource_version_match: exact,
            history: history.clone(),
            page_token: String::new(),
            ..page.clone()
        };
        let found = pb::ByIndexRequest {
            resource: "pods".to_owned(),
            index: "namespace".to_owned(),
            value: "a".to_owned(),
            min_resource_version: min_resource_version.clone(),
            resource_version_match: exact,
            history: history.clone(),
            ..Default::default()
        };
        let changes = pb::ChangesRequest {
            resource: "pods".to_owned(),
            from_resource_version: min_resource_version.clone(),
            history: history.clone(),
            ..Default::default()
        };
        let get = pb::GetRequest { min_resource_version, resource_version_match: exact, history, ..get.clone() };
        (list, found, get, changes)
    };
    let present = client.get(get.clone()).await.unwrap().into_inner();
    for (version, history, expected) in [
        (&first.resource_version, &first.history, Some("HISTORY_CHANGED")),
        (&present.resource_version, &first.history, Some("HISTORY_CHANGED")),
        (&"9000".to_owned(), &first.history, Some("HISTORY_CHANGED")),
        (&present.resource_version, &present.history, None),
        (&present.resource_version, &String::new(), None),
        (&present.resource_version, &"another-server.1".to_owned(), None),
    ] {
        let (list, found, get, changes) = at(version, history);
        let ends = [
            client.list(list).await.map(drop),
            client.by_index(found).await.map(drop),
            client.get(get).await.map(drop),
            client.changes(changes).await.map(drop),
        ];
        for (end, call) in ends.into_iter().zip(["List", "ByIndex", "Get", "Changes"]) {
            let end = end.err().map(|status| (status.code(), reason(&status)));
            let expected = expected.map(|reason| (Code::OutOfRange, reason.to_owned()));
            assert_eq!(end, expected, "{call} at {version} of {history:?}");
        }
    }
    let next = pb::ListRequest { page_token: first.next_page_token.clone(), ..page };
    assert_eq!(
        chunks(&sandbox, next).await.unwrap()[0].history,
        first.history,
        "a page is of the snapshot of the first"
    );
    assert_ne!(client.get(get).await.unwrap().into_inner().history, got.history);
    let found = client.by_index(by_index).await.unwrap().into_inner().message().await.unwrap().unwrap();
    let now = pb::WatchRequest { resource_version: found.resource_version.clone(), ..watch(&found.history) };
    client.watch(now).await.unwrap();
}

#[tokio::test]
async fn a_page_that_ends_with_the_list_has_no_token() {
    let sandbox = Sandbox::start(shop()).await;
    for (page_size, has_more) in [(3, true), (4, false), (5, false)] {
        let chunks = chunks(&sandbox, pb::ListRequest { page_size, ..list_pods() }).await.unwrap();
        assert_eq!(!chunks.last().unwrap().next_page_token.is_empty(), has_more, "{page_size}");
    }
}

#[tokio::test]
async fn a_token_of_another_query_is_refused() {
    let sandbox = Sandbox::start(shop()).await;
    let first = chunks(&sandbox, pb::ListRequest { page_size: 1, ..list_pods() }).await.unwrap();
    let page_token = first[0].next_page_token.clone();
    let other = pb::ListRequest { page_token, namespace: "a".to_owned(), ..list_pods() };
    let status = chunks(&sandbox, other).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "PAGE_TOKEN_INVALID"));
    let status = chunks(&sandbox, pb::ListRequest { page_token: "zzz".to_owned(), ..list_pods() }).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "PAGE_TOKEN_INVALID"));
}

#[tokio::test]
async fn chunks_are_at_most_one_mib_and_a_larger_object_comes_alone() {
    let large = |size: usize| format!(r#""data":"{}""#, "x".repeat(size));
    let mut pods: Vec<_> = (0..300).map(|at| pod("shop", &format!("p{at:03}"), &large(10_000))).collect();
    pods.push(pod("shop", "p150-huge", &large(2 << 20)));
    let sandbox = Sandbox::start(pods).await;
    for format in [pb::PayloadFormat::Raw, pb::PayloadFormat::Struct] {
        let chunks = chunks(&sandbox, pb::ListRequest { format: format.into(), ..list_pods() }).await.unwrap();
        assert_eq!(chunks.iter().map(|chunk| chunk.objects.len()).sum::<usize>(), 301);
        for chunk in &chunks {
            assert!(chunk.encoded_len() <= (1 << 20) + 1024 || chunk.objects.len() == 1, "{}", chunk.encoded_len());
        }
        assert!(chunks.len() > 10, "streamed");
    }
}

#[tokio::test]
async fn get_values_and_resources_answer() {
    let sandbox = Sandbox::start(shop()).await;
    let mut client = sandbox.client().await;
    let get = |name: &str| pb::GetRequest {
        resource: "pods".to_owned(),
        namespace: "a".to_owned(),
        name: name.to_owned(),
        ..Default::default()
    };
    let got = client.get(get("web")).await.unwrap().into_inner();
    let object = got.object.unwrap();
    assert_eq!((object.kind.as_str(), object.resource_version.as_str()), ("Pod", "1"));
    assert!(matches!(object.body, Some(pb::object::Body::Struct(_))), "STRUCT unless asked otherwise");
    let status = client.get(get("none")).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::NotFound, "OBJECT_NOT_FOUND"));

    let mut request = pb::ListIndexValuesRequest {
        resource: "pods".to_owned(),
        index: "node".to_owned(),
        page_size: 1,
        ..Default::default()
    };
    let first = client.list_index_values(request.clone()).await.unwrap().into_inner();
    request.page_token = first.next_page_token;
    let second = client.list_index_values(request).await.unwrap().into_inner();
    let values: Vec<_> = first.values.iter().chain(&second.values).map(|v| (v.value.as_str(), v.objects)).collect();
    assert_eq!(values, [("n1", 2), ("n2", 1)]);
    assert!(second.next_page_token.is_empty());

    let answer = client.list_resources(pb::ListResourcesRequest {}).await.unwrap().into_inner();
    let (resources, server) = (answer.resources, answer.server.unwrap());
    assert_eq!(resources.len(), 1);
    assert_eq!(server.version, env!("CARGO_PKG_VERSION"));
    assert!(server.capabilities.is_sorted() && server.capabilities.contains(&"sources".to_owned()));
    assert_eq!((resources[0].objects, resources[0].resource_version.as_str()), (4, "1"));
    assert_eq!(resources[0].indexes, ["app", "namespace", "node"]);
}

#[tokio::test]
async fn min_resource_version_waits_for_the_write_until_the_deadline() {
    let mut sandbox = Sandbox::start(shop()).await;
    let mut client = sandbox.client().await;
    let version = informerd::model::ResourceVersion::decimal(2);
    let request = pb::ListRequest { min_resource_version: version.to_string(), ..list_pods() };
    let waiting = tokio::spawn({
        let (mut client, request) = (client.clone(), request.clone());
        async move { client.list(request).await.unwrap().into_inner().message().await.unwrap().unwrap() }
    });
    sandbox.put("a", "new", "").await;
    let chunk = waiting.await.unwrap();
    assert_eq!((chunk.resource_version.as_str(), chunk.objects.len()), ("2", 5), "it reads its write");

    let mut late = tonic::Request::new(pb::ListRequest { min_resource_version: "99".to_owned(), ..list_pods() });
    late.metadata_mut().insert("grpc-timeout", "2S".parse().unwrap());
    let status = client.list(late).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE"));
}

#[tokio::test]
async fn a_resource_that_is_not_synced_reports_the_reason() {
    let sandbox = Sandbox::start_unsynced(Options::default()).await;
    sandbox.informer.health().record_failure("connection refused");
    let mut request = tonic::Request::new(list_pods());
    request.metadata_mut().insert("grpc-timeout", "2S".parse().unwrap());
    let status = sandbox.client().await.list(request).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "NOT_SYNCED"));
    assert!(status.message().contains("connection refused"), "{}", status.message());
}

/// Regression test for a race that the checker found: the server at times refused what it could answer.
#[tokio::test]
async fn reads_are_answered_while_the_server_drains() {
    let sandbox = Sandbox::start(shop()).await;
    sandbox.lifecycle.draining.cancel();
    let mut client = sandbox.in_process();
    for _ in 0..20 {
        let answer = client.list(list_pods()).await.unwrap().into_inner();
        assert_eq!(collect(answer).await.unwrap()[0].objects.len(), 4);
    }
    let later = pb::ListRequest { min_resource_version: "9".to_owned(), ..list_pods() };
    let status = client.list(later).await.unwrap_err();
    assert_eq!((status.code(), &*reason(&status)), (Code::Unavailable, "DRAINING"), "nothing is waited for any more");
}
