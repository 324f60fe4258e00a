//! Quotas and shares of one caller: they hold wherever its calls come from, and nobody else notices them.

use std::{fmt::Debug, net::Ipv4Addr, time::Duration};

use informerd::{
    auth::{Identity, IdentityDetails},
    grpc::{ListRate, QuotaConfig},
    proto::pb::{self, informer_service_client::InformerServiceClient},
    transport::Peer,
};
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt;

use crate::{
    operators::until,
    sandbox::{DEADLINE, Options, Sandbox, pod, reason, watch_from_now, watch_pods},
};

/// A call of a user over a connection of this host; without a user, nobody has authenticated it.
fn by<M>(user: &str, host: u8, message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Peer::Tcp((Ipv4Addr::new(10, 0, 0, host), 1000).into()));
    if !user.is_empty() {
        let user = user.to_owned();
        request.extensions_mut().insert(Identity::new(IdentityDetails { user, ..IdentityDetails::default() }));
    }
    request
}

async fn sandbox(quotas: QuotaConfig) -> Sandbox {
    let options = Options { quotas, ..Options::default() };
    Sandbox::start_with(options, vec![pod("shop", "a", ""), pod("shop", "b", "")]).await
}

async fn refused<T: Debug>(sandbox: &Sandbox, quota: &str, call: impl Future<Output = Result<T, Status>>) -> Duration {
    let before = sandbox.refused(metric(quota));
    let status = call.await.expect_err("a refusal");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "QUOTA_EXCEEDED"), "{status:?}");
    assert!(status.message().contains(&format!("(quotas.{quota})")), "{}", status.message());
    let details = status.get_error_details();
    assert_eq!(details.error_info().unwrap().metadata["quota"], quota);
    assert_eq!(sandbox.refused(metric(quota)), before + 1);
    details.retry_info().unwrap().retry_delay.unwrap()
}

fn metric(quota: &str) -> &'static str {
    match quota {
        "streams" => "quota_streams",
        "lists_per_second" => "quota_lists_per_second",
        "bulk_responses" => "quota_bulk_responses",
        _ => "quota_bytes_held",
    }
}

/// Repeats a call until it is admitted: a stream that was dropped is free soon.
async fn admitted<T>(mut call: impl AsyncFnMut() -> Result<Response<T>, Status>) -> T {
    let admitted = async {
        loop {
            match call().await {
                Ok(answer) => return answer.into_inner(),
                Err(status) => assert_eq!(reason(&status), "QUOTA_EXCEEDED"),
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, admitted).await.expect("a place is free")
}

fn list() -> pb::ListRequest {
    pb::ListRequest { resource: "pods".into(), ..Default::default() }
}

#[tokio::test]
async fn the_streams_of_a_user_count_together_and_those_of_others_do_not() {
    let sandbox = sandbox(QuotaConfig { streams: Some(2), ..QuotaConfig::default() }).await;
    let client = || sandbox.in_process();
    let first = client().watch(by("a", 1, watch_pods())).await.unwrap();
    let _list = client().list(by("a", 2, list())).await.unwrap();
    refused(&sandbox, "streams", client().watch(by("a", 3, watch_from_now()))).await;
    let until = pb::UntilRequest { watch: Some(watch_pods()), conditions: vec!["count > 9".into()] };
    refused(&sandbox, "streams", client().until(by("a", 1, until.clone()))).await;
    let by_index = pb::ByIndexRequest {
        resource: "pods".into(),
        index: "namespace".into(),
        value: "shop".into(),
        ..Default::default()
    };
    refused(&sandbox, "streams", client().by_index(by("a", 1, by_index))).await;
    // Single answers are not streams.
    let get =
        pb::GetRequest { resource: "pods".into(), namespace: "shop".into(), name: "a".into(), ..Default::default() };
    client().get(by("a", 1, get)).await.unwrap();
    // Many others at the same host, and some without a name there.
    let mut others = Vec::new();
    for user in ["b", "c", "d", "e", ""] {
        for _ in 0..2 {
            others.push(client().watch(by(user, 1, watch_pods())).await.unwrap());
        }
    }
    refused(&sandbox, "streams", client().watch(by("", 1, watch_pods()))).await;
    drop(first);
    admitted(async || client().watch(by("a", 1, watch_pods())).await).await;
}

#[tokio::test]
async fn subscribe_streams_count_with_and_without_watches() {
    let sandbox = sandbox(QuotaConfig { streams: Some(2), ..QuotaConfig::default() }).await;
    let client = || sandbox.in_process();
    let requests = tokio_stream::pending::<pb::SubscribeRequest>;
    let first = client().subscribe(by("a", 1, requests())).await.unwrap();
    let _second = client().subscribe(by("a", 2, requests())).await.unwrap();
    refused(&sandbox, "streams", client().subscribe(by("a", 3, requests()))).await;
    // Their watches count as others do.
    let _watch = client().watch(by("a", 1, watch_pods())).await.unwrap();
    let _other = client().watch(by("a", 2, watch_pods())).await.unwrap();
    refused(&sandbox, "streams", client().watch(by("a", 3, watch_pods()))).await;
    client().subscribe(by("b", 1, requests())).await.unwrap();
    drop(first);
    admitted(async || client().subscribe(by("a", 1, requests())).await).await;
}

#[tokio::test]
async fn an_until_is_a_stream_while_it_waits() {
    let sandbox = sandbox(QuotaConfig { streams: Some(1), ..QuotaConfig::default() }).await;
    let request = pb::UntilRequest { watch: Some(watch_pods()), conditions: vec!["count > 9".into()] };
    let mut client = sandbox.in_process();
    let waiting = tokio::spawn(async move { client.until(by("a", 1, request)).await });
    let watch = async || sandbox.in_process().watch(by("a", 1, watch_pods())).await;
    until(&sandbox, |watches| watches.len() == 1).await;
    refused(&sandbox, "streams", watch()).await;
    waiting.abort();
    admitted(watch).await;
}

#[tokio::test]
async fn lists_have_a_rate_for_each_user() {
    let lists = Some(ListRate { per_second: 1, burst: 4 });
    let sandbox = sandbox(QuotaConfig { lists, ..QuotaConfig::default() }).await;
    let client = || sandbox.in_process();
    let values = pb::ListIndexValuesRequest { resource: "pods".into(), index: "app".into(), ..Default::default() };
    tokio::time::pause();
    client().list(by("a", 1, list())).await.unwrap();
    client().list_index_values(by("a", 2, values.clone())).await.unwrap();
    client().watch(by("a", 3, watch_pods())).await.unwrap();
    client().list(by("a", 4, pb::ListRequest { page_size: 1, ..list() })).await.unwrap();
    let delay = refused(&sandbox, "lists_per_second", client().list(by("a", 1, list()))).await;
    assert!(delay > Duration::ZERO && delay <= Duration::from_secs(1), "{delay:?}");
    refused(&sandbox, "lists_per_second", client().list_index_values(by("a", 1, values))).await;
    refused(&sandbox, "lists_per_second", client().watch(by("a", 1, watch_pods()))).await;
    client().watch(by("a", 1, watch_from_now())).await.expect("it lists nothing");
    client().list(by("b", 1, list())).await.expect("the host is not the user");
    tokio::time::advance(delay).await;
    client().list(by("a", 1, list())).await.expect("after the delay");
    refused(&sandbox, "lists_per_second", client().list(by("a", 1, list()))).await;
}

#[tokio::test]
async fn bulk_responses_count_until_they_are_sent() {
    let sandbox = sandbox(QuotaConfig { bulk_responses: Some(1), ..QuotaConfig::default() }).await;
    let client = || sandbox.in_process();
    let unread = client().list(by("a", 1, list())).await.unwrap();
    refused(&sandbox, "bulk_responses", client().list(by("a", 2, list()))).await;
    refused(&sandbox, "bulk_responses", client().watch(by("a", 3, watch_pods()))).await;
    client().watch(by("a", 1, watch_from_now())).await.expect("no snapshot");
    drop(client().list(by("b", 1, list())).await.expect("another user"));
    drop(unread);
    // A client that reads nothing yet.
    let unread = || InformerServiceClient::new(sandbox.service());
    let mut watch = admitted(async || unread().watch(by("a", 1, watch_pods())).await).await;
    refused(&sandbox, "bulk_responses", client().list(by("a", 1, list()))).await;
    while !watch.message().await.unwrap().unwrap().bookmark.is_some_and(|bookmark| bookmark.initial_events_end) {}
    admitted(async || client().list(by("a", 1, list())).await).await;
}

/// Leaves the lists of one host unread: they end while they exceed its quota, and those of another host are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn above_its_bytes_a_caller_loses_its_own_streams() {
    const LIMIT: usize = 5 << 19;
    let large = format!(r#""filler":"{}""#, "x".repeat(1 << 20));
    let quotas = QuotaConfig { bytes_held: Some(LIMIT), ..QuotaConfig::default() };
    let sandbox = Sandbox::start_with(Options { quotas, ..Options::default() }, vec![pod("shop", "a", &large)]).await;
    let open = async |host: u8| {
        let mut client = sandbox.slow_client_from(Ipv4Addr::new(127, 0, 0, host)).await;
        client.list(list()).await.unwrap().into_inner()
    };
    let mut other = open(2).await;
    // Two fit, and the other's is there for longer.
    let mut lists = vec![open(1).await, open(1).await];
    until(&sandbox, |_| sandbox.ledger.waiting().total() > 3 << 20).await;
    assert_eq!(sandbox.ledger.ended(), 0);
    lists.push(open(1).await);
    until(&sandbox, |_| sandbox.ledger.ended() > 0).await;
    let mut ended = 0;
    for list in &mut lists {
        match list.message().await {
            Ok(message) => assert_eq!(message.unwrap().objects.len(), 1),
            // Bytes that were with HTTP/2 are reset, and then there is no reason.
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                ended += 1;
            }
        }
    }
    assert_eq!((ended, sandbox.ledger.ended()), (1, 1));
    assert_eq!(other.message().await.unwrap().unwrap().objects.len(), 1);
}

#[tokio::test]
async fn the_share_of_watches_is_that_of_a_user_where_there_is_one() {
    let options = Options { max_watchers: 4, peer_share: 50, ..Options::default() };
    let sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let client = || sandbox.in_process();
    let _a = [
        client().watch(by("a", 1, watch_pods())).await.unwrap(),
        client().watch(by("a", 2, watch_pods())).await.unwrap(),
    ];
    let status = client().watch(by("a", 3, watch_pods())).await.unwrap_err();
    assert_eq!(reason(&status), "TOO_MANY_WATCHERS");
    assert!(status.message().contains("2 of this caller are open"), "{}", status.message());
    let _b = client().watch(by("b", 1, watch_pods())).await.expect("another user at the same host");
    let _c = client().watch(by("", 1, watch_pods())).await.expect("and nobody there");
}
