//! Invalid requests of every kind: the code, the reason, one line that says what to do, and a server that keeps serving.

use informerd::proto::pb;
use tonic::{Code, Status};

use crate::{
    refused_watch::watch_refusal,
    sandbox::{Options, Sandbox, next, pod, queue, reason, watch_pods},
};

fn index(name: &str, values: &[&str]) -> pb::IndexMatch {
    pb::IndexMatch { name: name.to_owned(), values: values.iter().map(|&value| value.to_owned()).collect() }
}

fn shard(key: &str, ranges: &[(u64, u64)]) -> pb::Shard {
    let ranges = ranges.iter().map(|&(start, end)| pb::ShardRange { start, end }).collect();
    pb::Shard { key: key.to_owned(), ranges }
}

async fn watch_status(sandbox: &Sandbox, request: pb::WatchRequest) -> Status {
    watch_refusal(sandbox.client().await.watch(request)).await
}

#[tokio::test]
async fn every_bad_watch_is_refused_with_its_reason() {
    let options = Options { future_wait: std::time::Duration::from_millis(50), ..Options::default() };
    let sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let duration = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let base = watch_pods;
    #[rustfmt::skip]
    let table: Vec<(pb::WatchRequest, Code, &str, &str)> = vec![
        (pb::WatchRequest { resource: "pod".into(), ..base() }, Code::NotFound, "RESOURCE_NOT_FOUND", "resource \"pod\" not found; known: pods"),
        (pb::WatchRequest { resource: String::new(), ..base() }, Code::NotFound, "RESOURCE_NOT_FOUND", "resource: missing; known: pods"),
        (pb::WatchRequest { label_selector: "a in b".into(), ..base() }, Code::InvalidArgument, "LABEL_SELECTOR_INVALID", "label_selector, character 6: "),
        (pb::WatchRequest { field_selector: "spec.x".into(), ..base() }, Code::InvalidArgument, "FIELD_SELECTOR_INVALID", "field_selector, character "),
        (pb::WatchRequest { field_selector: "a[*]=b".into(), ..base() }, Code::InvalidArgument, "FIELD_SELECTOR_INVALID", "field_selector, character "),
        (pb::WatchRequest { resource_version: "0".into(), ..base() }, Code::InvalidArgument, "RESOURCE_VERSION_INVALID", "not a resource version"),
        (pb::WatchRequest { resource_version: "01".into(), ..base() }, Code::InvalidArgument, "RESOURCE_VERSION_INVALID", "not a resource version"),
        (pb::WatchRequest { resource_version: "abc.1".into(), ..base() }, Code::OutOfRange, "RESOURCE_VERSION_EXPIRED", "resource version abc.1 has expired (oldest: 1, current: 1): list again"),
        (pb::WatchRequest { resource_version: "abc.1".into(), min_resource_version: "abc.2".into(), ..base() }, Code::OutOfRange, "RESOURCE_VERSION_EXPIRED", "resource version abc.1 has expired"),
        (pb::WatchRequest { resource_version: "1".into(), min_resource_version: "abc.2".into(), ..base() }, Code::InvalidArgument, "RESOURCE_VERSION_INVALID", "abc.2 is not a version of this source"),
        (pb::WatchRequest { resource_version: "9".into(), ..base() }, Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE", "(current: 1)"),
        (pb::WatchRequest { resource_version: "1".into(), initial_events: 1, ..base() }, Code::InvalidArgument, "INITIAL_EVENTS_INVALID", "leave out one"),
        (pb::WatchRequest { initial_events: 7, ..base() }, Code::InvalidArgument, "INITIAL_EVENTS_INVALID", "supported: INITIAL_EVENTS_SEND"),
        (pb::WatchRequest { format: 9, ..base() }, Code::InvalidArgument, "PAYLOAD_FORMAT_INVALID", "supported: STRUCT"),
        (pb::WatchRequest { queue: Some(queue(pb::FullChannelPolicy::Drop, 65_537)), ..base() }, Code::InvalidArgument, "QUEUE_LENGTH_INVALID", "65536"),
        (pb::WatchRequest { queue: Some(pb::QueueOptions { policy: 77, length: 0 }), ..base() }, Code::InvalidArgument, "POLICY_INVALID", "supported: DROP"),
        (pb::WatchRequest { expression: "1 +".into(), ..base() }, Code::InvalidArgument, "EXPRESSION_INVALID", "expression, character 4: expected more"),
        (pb::WatchRequest { expression: "pod.x".into(), ..base() }, Code::InvalidArgument, "EXPRESSION_INVALID", "unknown variable \"pod\""),
        (pb::WatchRequest { index: Some(index("nodes", &["a"])), ..base() }, Code::InvalidArgument, "INDEX_NOT_FOUND", "known: app, namespace, node"),
        (pb::WatchRequest { index: Some(index("node", &[])), ..base() }, Code::InvalidArgument, "INDEX_VALUES_INVALID", "at least one value"),
        (pb::WatchRequest { index: Some(index("node", &["a"; 257])), ..base() }, Code::InvalidArgument, "INDEX_VALUES_INVALID", "257 values are more than 256"),
        (pb::WatchRequest { shard: Some(shard("", &[(0, 1)])), ..base() }, Code::InvalidArgument, "SHARD_INVALID", "shard.key, character 1: expected a key"),
        (pb::WatchRequest { shard: Some(shard("spec.list[*]", &[(0, 1)])), ..base() }, Code::InvalidArgument, "SHARD_INVALID", "shard.key, character "),
        (pb::WatchRequest { shard: Some(shard("uid", &[])), ..base() }, Code::InvalidArgument, "SHARD_INVALID", "shard.ranges: expected 1 to 64 ranges, found 0"),
        (pb::WatchRequest { shard: Some(shard("uid", &[(0, 1); 65])), ..base() }, Code::InvalidArgument, "SHARD_INVALID", "shard.ranges: expected 1 to 64 ranges, found 65"),
        (pb::WatchRequest { shard: Some(shard("uid", &[(0, 0), (1, 1)])), ..base() }, Code::InvalidArgument, "SHARD_INVALID", "shard.ranges: range 0x0000000000000001 to 0x0000000000000001 is empty or reversed"),
        (pb::WatchRequest { shard: Some(shard("uid", &[(2, 1)])), ..base() }, Code::InvalidArgument, "SHARD_INVALID", "is empty or reversed"),
        (pb::WatchRequest { timeout: duration(0), ..base() }, Code::InvalidArgument, "DURATION_INVALID", "timeout"),
        (pb::WatchRequest { bookmark_interval: duration(-5), ..base() }, Code::InvalidArgument, "DURATION_INVALID", "bookmark_interval"),
        (pb::WatchRequest { min_resource_version: "x".into(), ..base() }, Code::InvalidArgument, "RESOURCE_VERSION_INVALID", "min_resource_version"),
        (pb::WatchRequest { min_resource_version: "x.1".into(), ..base() }, Code::InvalidArgument, "RESOURCE_VERSION_INVALID", "not a version of this source"),
        (pb::WatchRequest { name: "x".repeat(70_000), ..base() }, Code::InvalidArgument, "REQUEST_INVALID", "65536"),
    ];
    for (request, code, expected, hint) in table {
        let label = format!("{request:.80?}");
        let status = watch_status(&sandbox, request).await;
        assert_eq!((status.code(), reason(&status).as_str()), (code, expected), "{label}: {status:?}");
        assert!(status.message().contains(hint), "{label}: {}", status.message());
        assert!(!status.message().contains('\n') && status.message().len() < 400, "{label}: {}", status.message());
    }
    let mut watch = sandbox.client().await.watch(base()).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some(), "the server goes on");
}

#[tokio::test]
async fn every_bad_read_is_refused_with_its_reason() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut client = sandbox.client().await;
    let list = |request: pb::ListRequest| {
        let mut client = client.clone();
        async move { client.list(pb::ListRequest { resource: "pods".into(), ..request }).await.unwrap_err() }
    };
    let status = list(pb::ListRequest { label_selector: "a=b=c".into(), ..Default::default() }).await;
    assert_eq!(reason(&status), "LABEL_SELECTOR_INVALID");
    let status = list(pb::ListRequest { page_token: "x".into(), ..Default::default() }).await;
    assert_eq!(reason(&status), "PAGE_TOKEN_INVALID");
    let status = list(pb::ListRequest { index: Some(index("none", &["a"])), ..Default::default() }).await;
    assert_eq!(reason(&status), "INDEX_NOT_FOUND");
    let status = list(pb::ListRequest { expression: "type == 'ADDED'".into(), ..Default::default() }).await;
    assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "EXPRESSION_INVALID"));

    let status = list(pb::ListRequest { shard: Some(shard("uid", &[])), ..Default::default() }).await;
    assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "SHARD_INVALID"));
    let by_shard = pb::ByIndexRequest {
        resource: "pods".into(),
        index: "node".into(),
        shard: Some(shard("uid", &[(3, 2)])),
        ..Default::default()
    };
    assert_eq!(reason(&client.by_index(by_shard).await.unwrap_err()), "SHARD_INVALID");

    let by_index = pb::ByIndexRequest { resource: "pods".into(), index: "none".into(), ..Default::default() };
    assert_eq!(reason(&client.by_index(by_index).await.unwrap_err()), "INDEX_NOT_FOUND");
    let like = |value: &str, name: &str| pb::ByIndexRequest {
        resource: "pods".into(),
        index: "node".into(),
        value: value.to_owned(),
        like: Some(pb::ObjectKey { namespace: "shop".into(), name: name.to_owned() }),
        ..Default::default()
    };
    let status = client.by_index(like("n1", "a")).await.unwrap_err();
    assert_eq!((status.code(), &*reason(&status)), (Code::InvalidArgument, "INDEX_VALUES_INVALID"));
    assert_eq!(status.message(), "like: cannot be given together with value; leave out one of them");
    assert_eq!(reason(&client.by_index(like("", "")).await.unwrap_err()), "NAME_INVALID");
    let values = pb::ListIndexValuesRequest { resource: "pods".into(), ..Default::default() };
    assert_eq!(reason(&client.list_index_values(values).await.unwrap_err()), "INDEX_NOT_FOUND");
    let get = pb::GetRequest { resource: "pods".into(), ..Default::default() };
    assert_eq!(reason(&client.get(get).await.unwrap_err()), "NAME_INVALID");
}

#[tokio::test]
async fn every_bad_until_is_refused_with_its_reason() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut client = sandbox.client().await;
    let base = watch_pods;
    let none = pb::InitialEvents::None.into();
    let second = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    #[rustfmt::skip]
    let table: Vec<(pb::WatchRequest, &[&str], Code, &str, &str)> = vec![
        (pb::WatchRequest { resource: "pod".into(), ..base() }, &["true"], Code::NotFound, "RESOURCE_NOT_FOUND", "resource \"pod\" not found; known: pods"),
        (base(), &[], Code::InvalidArgument, "CONDITIONS_INVALID", "1 to 32 conditions, found 0"),
        (base(), &["true"; 33], Code::InvalidArgument, "CONDITIONS_INVALID", "1 to 32 conditions, found 33"),
        (base(), &["true", "1 +"], Code::InvalidArgument, "EXPRESSION_INVALID", "conditions: [1], character 4: expected more"),
        (base(), &["typ == 1"], Code::InvalidArgument, "EXPRESSION_INVALID", "(known: type, object, count)"),
        (pb::WatchRequest { expression: "type == 1".into(), ..base() }, &["true"], Code::InvalidArgument, "EXPRESSION_INVALID", "expression, character 1: "),
        (pb::WatchRequest { queue: Some(queue(pb::FullChannelPolicy::Replay, 0)), ..base() }, &["true"], Code::InvalidArgument, "UNTIL_INVALID", "watch.queue"),
        (pb::WatchRequest { timeout: second, ..base() }, &["true"], Code::InvalidArgument, "UNTIL_INVALID", "watch.timeout"),
        (pb::WatchRequest { resource_version: "1".into(), ..base() }, &["true"], Code::InvalidArgument, "UNTIL_INVALID", "watch.resource_version"),
        (pb::WatchRequest { initial_events: none, ..base() }, &["true"], Code::InvalidArgument, "UNTIL_INVALID", "watch.initial_events"),
        (pb::WatchRequest { format: 9, ..base() }, &["true"], Code::InvalidArgument, "PAYLOAD_FORMAT_INVALID", "supported: STRUCT"),
        (pb::WatchRequest { label_selector: "a in b".into(), ..base() }, &["true"], Code::InvalidArgument, "LABEL_SELECTOR_INVALID", "label_selector, character 6: "),
    ];
    for (watch, conditions, code, expected, hint) in table {
        let label = format!("{watch:.80?} {conditions:?}");
        let conditions = conditions.iter().map(|&text| text.to_owned()).collect();
        let status = client.until(pb::UntilRequest { watch: Some(watch), conditions }).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (code, expected), "{label}: {status:?}");
        assert!(status.message().contains(hint), "{label}: {}", status.message());
        assert!(!status.message().contains('\n') && status.message().len() < 400, "{label}: {}", status.message());
    }
}

#[tokio::test]
async fn watchers_are_bounded() {
    let options = Options { max_watchers: 2, ..Options::default() };
    let sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let mut client = sandbox.client().await;
    let first = client.watch(watch_pods()).await.unwrap();
    let second = client.watch(watch_pods()).await.unwrap();
    let status = watch_refusal(client.watch(watch_pods())).await;
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "TOO_MANY_WATCHERS"));
    drop((first, second));
    let freed = async {
        while next(client.watch(watch_pods()).await.unwrap().get_mut()).await.error.is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::sandbox::DEADLINE, freed).await.expect("a place is free again");
}

#[tokio::test]
async fn a_peer_has_its_share_of_watches() {
    let options = Options { max_watchers: 4, peer_share: 50, ..Options::default() };
    let sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(sandbox.client().await.watch(watch_pods()).await.unwrap());
    }
    let status = watch_status(&sandbox, watch_pods()).await;
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "TOO_MANY_WATCHERS"));
    for part in ["2 of this caller are open", "limits.peer_share", "watch.max_watchers"] {
        assert!(status.message().contains(part), "{}", status.message());
    }
    assert_eq!(sandbox.refused("peer_watchers"), 1);
}

/// Sends very long texts: the error must still fit into the client's header buffer.
#[tokio::test]
async fn errors_quote_long_texts_in_part() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut client = sandbox.client().await;
    let (long, name) = ("\u{1}é".repeat(20_000), "x".repeat(60_000));
    let expressions = [name[..4000].to_owned(), format!("{}(1)", &name[..4000]), format!("1 {}", &name[..4000])];
    let mut requests: Vec<_> =
        expressions.map(|expression| pb::WatchRequest { expression, ..watch_pods() }).into_iter().collect();
    for text in [&long, &name] {
        let text = text.clone();
        requests.extend([
            pb::WatchRequest { resource: text.clone(), ..watch_pods() },
            pb::WatchRequest { index: Some(index(&text, &["a"])), ..watch_pods() },
            pb::WatchRequest { label_selector: text.clone(), ..watch_pods() },
            pb::WatchRequest { field_selector: text.clone(), ..watch_pods() },
            pb::WatchRequest { resource_version: format!("{text}.1"), ..watch_pods() },
            pb::WatchRequest { min_resource_version: format!("{text}.1"), ..watch_pods() },
        ]);
    }
    let mut refused = Vec::new();
    for request in requests {
        refused.push(watch_refusal(client.watch(request)).await);
    }
    for text in [long, name] {
        let list = pb::ListRequest { resource: "pods".into(), page_token: text.clone(), ..Default::default() };
        refused.push(client.list(list).await.unwrap_err());
        let by_index = pb::ByIndexRequest { resource: "pods".into(), index: text.clone(), ..Default::default() };
        refused.push(client.by_index(by_index).await.unwrap_err());
        let get = pb::GetRequest { resource: "pods".into(), name: text, ..Default::default() };
        refused.push(client.get(get).await.unwrap_err());
    }
    for status in refused {
        assert!(!reason(&status).is_empty(), "{status:.300?}");
        let mut headers = http::HeaderMap::new();
        status.add_header(&mut headers).unwrap();
        let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        assert!(bytes < 8 << 10, "{bytes} bytes: {:.300}", status.message());
    }
}

/// Compares the documented table of reasons, which is part of the API, with the reasons in the code, both ways.
#[test]
fn the_api_page_lists_every_reason() {
    let source = include_str!("../../src/grpc/status.rs").split("#[cfg(test)]").next().unwrap().to_owned()
        + include_str!("../../src/grpc/access.rs")
        + include_str!("../../src/grpc/call.rs")
        + include_str!("../../src/grpc/exceeded_limit.rs")
        + include_str!("../../src/grpc/explain.rs")
        + include_str!("../../src/grpc/get.rs")
        + include_str!("../../src/grpc/query.rs")
        + include_str!("../../src/grpc/page.rs").split("#[cfg(test)]").next().unwrap()
        + include_str!("../../src/grpc/service.rs").split("#[cfg(test)]").next().unwrap()
        + include_str!("../../src/grpc/subscribe/body.rs")
        + include_str!("../../src/grpc/until.rs")
        + include_str!("../../src/grpc/views.rs").split("#[cfg(test)]").next().unwrap()
        + include_str!("../../src/grpc/watch/open.rs");
    let is_reason = |word: &&str| {
        word.len() > 6 && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_') && !word.starts_with("FULL_CHANNEL")
    };
    let reasons = |text: &str, quote: char| -> std::collections::BTreeSet<String> {
        text.split(quote).skip(1).step_by(2).filter(is_reason).map(str::to_owned).collect()
    };
    let page = include_str!("../../docs/api.md");
    let table = page.split("## Status codes").nth(1).and_then(|rest| rest.split("\n## ").next());
    assert_eq!(reasons(table.expect("a section on status codes"), '`'), reasons(&source, '"'));
}
