//! The audit log: a line for the beginning and the end of each stream and for each denial, and nothing of an object.

use std::{net::Ipv4Addr, path::Path, sync::atomic::Ordering};

use informerd::{
    audit::AuditLog,
    auth::{Identity, IdentityDetails},
    grpc::QuotaConfig,
    proto::pb::{self, admin_service_client::AdminServiceClient},
    transport::Peer,
};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::sandbox::{DEADLINE, Options, Sandbox, pod, watch_from_now, watch_pods};

/// Text of a body.
const CANARY: &str = "canary-of-a-body";
/// Text of credentials.
const TOKEN: &str = "canary-of-a-token";

fn by<M>(user: &str, message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
    request.extensions_mut().insert(Peer::Tcp((Ipv4Addr::new(10, 0, 0, 1), 1000).into()));
    let user = user.to_owned();
    request.extensions_mut().insert(Identity::new(IdentityDetails { user, ..IdentityDetails::default() }));
    request
}

/// Waits for this number of lines. Their contents must be neither of a body nor of credentials.
pub(crate) async fn lines(log: &AuditLog, file: &Path, count: usize) -> Vec<Value> {
    let read = async {
        loop {
            log.flush(DEADLINE);
            let text = std::fs::read_to_string(file).unwrap();
            assert!(!text.contains(CANARY) && !text.contains(TOKEN), "{text}");
            let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            if lines.len() >= count {
                return lines;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, read).await.expect("the lines are written")
}

/// Returns the text of each of these fields, `-` for a missing one.
pub(crate) fn fields(line: &Value, names: &str) -> String {
    let text = |name: &str| match &line[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    names.split(' ').map(text).collect::<Vec<_>>().join(" ")
}

struct Rig {
    sandbox: Sandbox,
    log: AuditLog,
    directory: tempfile::TempDir,
}

impl Rig {
    async fn new(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = AuditLog::open(&directory.path().join("audit.log")).unwrap();
        let objects = ["a", "b"].map(|name| pod("shop", name, &format!(r#""text":"{CANARY}""#)));
        let sandbox = Sandbox::start_with(Options { audit: Some(log.clone()), ..options }, objects.into()).await;
        Self { sandbox, log, directory }
    }

    async fn lines(&self, count: usize) -> Vec<Value> {
        lines(&self.log, &self.directory.path().join("audit.log"), count).await
    }
}

#[tokio::test]
async fn a_stream_has_a_line_at_its_beginning_and_at_its_end() {
    let rig = Rig::new(Options::default()).await;
    let mut client = rig.sandbox.in_process();
    let request =
        pb::WatchRequest { label_selector: "!x".into(), format: pb::PayloadFormat::Raw.into(), ..watch_pods() };
    let mut watch = client.watch(by("alice", request)).await.unwrap().into_inner();
    let begin = &rig.lines(1).await[0];
    let names = "event user peer method resource selection format from duration_ms status";
    assert_eq!(fields(begin, names), "begin alice 10.0.0.1:1000 Watch pods labels=!x RAW LIST - -");
    let mut version = String::new();
    for _ in 0..3 {
        version = watch.message().await.unwrap().unwrap().resource_version;
    }
    drop(watch);
    let end = &rig.lines(2).await[1];
    assert_eq!(fields(end, "event user method resource status events"), "end alice Watch pods Cancelled 2");
    assert_eq!(end["call"], begin["call"]);
    assert!(end["bytes"].as_u64().unwrap() > CANARY.len() as u64 && end["duration_ms"].is_u64(), "{end}");
    assert!(end["time"].as_str().unwrap() >= begin["time"].as_str().unwrap(), "{end}");

    let list = pb::ListRequest { resource: "pods".into(), namespace: "shop".into(), ..Default::default() };
    let mut list = client.list(by("bob", list)).await.unwrap().into_inner();
    while list.message().await.unwrap().is_some() {}
    drop(list);
    let found = rig.lines(4).await;
    assert_eq!(
        fields(&found[2], "event user method namespace selection format from"),
        "begin bob List shop namespace=shop STRUCT -"
    );
    assert_eq!(fields(&found[3], "event status events"), "end Ok 2");
    let until = pb::UntilRequest { watch: Some(watch_pods()), conditions: vec!["count == 2".into()] };
    client.until(by("bob", until)).await.unwrap();
    let found = rig.lines(6).await;
    assert_eq!(fields(&found[4], "event method"), "begin Until");
    assert_eq!(fields(&found[5], "event method status"), "end Until Ok");
    // Invalid requests have no lines.
    client.watch(by("bob", pb::WatchRequest { label_selector: "a in".into(), ..watch_pods() })).await.unwrap_err();
    client.watch(by("bob", watch_from_now())).await.unwrap();
    assert_eq!(fields(&rig.lines(7).await[6], "event user method from"), "begin bob Watch NOW");
    let resumed = pb::WatchRequest { resource_version: version.clone(), ..watch_pods() };
    client.watch(by("bob", resumed)).await.unwrap();
    let found = rig.lines(9).await;
    let newest = found.iter().rfind(|line| line["event"] == "begin").unwrap();
    assert_eq!(fields(newest, "method from"), format!("Watch {version}"));
}

#[tokio::test]
async fn a_denied_call_of_any_kind_has_a_line_with_its_reason() {
    let quotas = QuotaConfig { streams: Some(1), ..QuotaConfig::default() };
    let rig = Rig::new(Options { is_secret: true, quotas, ..Options::default() }).await;
    let mut client = rig.sandbox.in_process();
    let names = "event user method resource format status reason";
    let get = pb::GetRequest {
        resource: "pods".into(),
        name: "a".into(),
        format: pb::PayloadFormat::Raw.into(),
        ..Default::default()
    };
    client.get(by("alice", get)).await.unwrap_err();
    let values = pb::ListIndexValuesRequest { resource: "pods".into(), index: "node".into(), ..Default::default() };
    client.list_index_values(by("bob", values)).await.unwrap_err();
    let watch = pb::WatchRequest { format: pb::PayloadFormat::Metadata.into(), ..watch_pods() };
    let _open = client.watch(by("alice", watch.clone())).await.unwrap();
    client.watch(by("alice", watch)).await.unwrap_err();
    let found = rig.lines(4).await;
    assert_eq!(fields(&found[0], names), "denied alice Get pods RAW PermissionDenied ACCESS_DENIED");
    assert_eq!(fields(&found[1], "event method reason"), "denied ListIndexValues ACCESS_DENIED");
    assert_eq!(fields(&found[3], "event method status reason"), "denied Watch ResourceExhausted QUOTA_EXCEEDED");
}

/// Values of bodies are shown by Explain and by an index: the log has them as bodies.
#[tokio::test]
async fn an_answer_that_is_no_stream_has_one_line() {
    let rig = Rig::new(Options::default()).await;
    let mut client = rig.sandbox.in_process();
    let get = |name: &str| {
        let (resource, namespace, name) = ("pods".to_owned(), "shop".to_owned(), name.to_owned());
        pb::GetRequest { resource, namespace, name, ..Default::default() }
    };
    client.get(by("bob", get("a"))).await.unwrap();
    client.get(by("bob", get("none"))).await.unwrap_err();
    let values = pb::ListIndexValuesRequest { resource: "pods".into(), index: "node".into(), ..Default::default() };
    client.list_index_values(by("bob", values)).await.unwrap();
    let values = pb::ListIndexValuesRequest { resource: "pods".into(), index: "app".into(), ..Default::default() };
    client.list_index_values(by("bob", values)).await.unwrap();
    let key = Some(pb::ObjectKey { namespace: "shop".into(), name: "b".into() });
    let index = Some(pb::IndexMatch { name: "node".into(), values: vec!["n1".into()] });
    for selection in [
        pb::WatchRequest { label_selector: "!x".into(), ..watch_pods() },
        pb::WatchRequest { field_selector: "text!=a".into(), ..watch_pods() },
        pb::WatchRequest { index, ..watch_pods() },
    ] {
        let selection = Some(pb::explain_request::Selection::Watch(selection));
        client.explain(by("bob", pb::ExplainRequest { selection, key: key.clone() })).await.unwrap();
    }
    let names = "event user method resource namespace name selection format status events";
    let found: Vec<_> = rig.lines(7).await.iter().map(|line| fields(line, names)).collect();
    assert_eq!(
        found,
        [
            "read bob Get pods shop a - STRUCT Ok 1",
            "read bob Get pods shop none - STRUCT NotFound 0",
            "read bob ListIndexValues pods - - index=node RAW Ok 0",
            "read bob ListIndexValues pods - - index=app METADATA Ok 2",
            "read bob Explain pods shop b labels=!x METADATA Ok 1",
            "read bob Explain pods shop b fields=text!=a RAW Ok 1",
            "read bob Explain pods shop b index=node in (n1) RAW Ok 1",
        ]
    );
    client.list_resources(by("bob", pb::ListResourcesRequest {})).await.unwrap();
    client.get(by("bob", get("a"))).await.unwrap();
    assert_eq!(fields(&rig.lines(8).await[7], "event method"), "read Get", "ListResources shows no object");
}

/// Two of the watches share what they receive: their lines are of each.
#[tokio::test]
async fn each_watch_of_a_subscribe_stream_has_its_own_lines() {
    let quotas = QuotaConfig { streams: Some(3), ..QuotaConfig::default() };
    let mut rig = Rig::new(Options { quotas, ..Options::default() }).await;
    let (requests, sent) = mpsc::channel(10);
    let mut client = rig.sandbox.in_process();
    let mut responses = client.subscribe(by("alice", ReceiverStream::new(sent))).await.unwrap().into_inner();
    let interval = Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 });
    let shared = || pb::WatchRequest { bookmark_interval: interval, ..watch_from_now() };
    let other = pb::WatchRequest { label_selector: "!x".into(), ..watch_from_now() };
    let open = |id, watch| pb::OpenWatch { id, watch: Some(watch) };
    let requested = async |open, close| {
        requests.send(pb::SubscribeRequest { open, close, ..Default::default() }).await.unwrap();
    };
    for (id, watch) in [(1, other), (2, shared()), (3, shared()), (4, shared())] {
        requested(vec![open(id, watch)], Vec::new()).await;
        while !responses.message().await.unwrap().unwrap().deliveries.iter().any(|told| told.watch_ids.contains(&id)) {}
    }
    let names = "event user method resource selection status reason events";
    let found = rig.lines(4).await;
    assert_eq!(fields(&found[0], names), "begin alice Subscribe pods labels=!x - - -");
    assert_eq!(fields(&found[1], names), "begin alice Subscribe pods everything - - -");
    assert_eq!(fields(&found[2], "event"), "begin");
    assert_eq!(fields(&found[3], names), "denied alice Subscribe pods - ResourceExhausted QUOTA_EXCEEDED -");
    let stats = rig.sandbox.informer.watch_stats().unwrap();
    while stats.cursors.load(Ordering::Relaxed) > 2 {
        responses.message().await.unwrap();
    }

    let mut told = [0; 4];
    let mut change = async |told: &mut [u64; 4], expected: [u64; 4]| {
        rig.sandbox.put("shop", "a", &format!(r#""at":{expected:?}"#)).await;
        while *told != expected {
            for delivery in responses.message().await.unwrap().unwrap().deliveries {
                let events = delivery.responses.iter().filter(|response| response.object.is_some()).count() as u64;
                delivery.watch_ids.into_iter().for_each(|id| told[id as usize] += events);
            }
        }
    };
    change(&mut told, [0, 1, 1, 1]).await;
    // The one whose body the other shares.
    requested(Vec::new(), vec![2]).await;
    change(&mut told, [0, 2, 1, 2]).await;
    requested(Vec::new(), vec![1]).await;
    change(&mut told, [0, 2, 1, 3]).await;
    rig.sandbox.lifecycle.draining.cancel();
    while responses.message().await.is_ok_and(|message| message.is_some()) {}
    let found = rig.lines(7).await;
    for (at, (begin, status, events)) in [(1, "Ok", 1), (0, "Ok", 2), (2, "Unavailable", 3)].into_iter().enumerate() {
        let end = &found[4 + at];
        assert_eq!(end["call"], found[begin]["call"], "{found:#?}");
        assert_eq!(fields(end, "event user method status events"), format!("end alice Subscribe {status} {events}"));
        assert!(end["bytes"].as_u64().unwrap() > events * CANARY.len() as u64 / 2, "{end}");
    }
}

/// A watch that is refused when it joins, one that is closed while it waits, and one that still waits when its stream ends, have the
/// status that their client receives.
#[tokio::test]
async fn a_watch_that_does_not_open_has_the_status_of_its_end() {
    let rig = Rig::new(Options::default()).await;
    let (requests, sent) = mpsc::channel(10);
    let mut client = rig.sandbox.in_process();
    let mut responses = client.subscribe(by("alice", ReceiverStream::new(sent))).await.unwrap().into_inner();
    let read = tokio::spawn(async move { while responses.message().await.is_ok_and(|message| message.is_some()) {} });
    for (id, version, close, lines) in
        [(1, "foreign.1", None, 2), (2, "98", None, 3), (3, "99", Some(2), 5), (0, "", None, 6)]
    {
        let watch = Some(pb::WatchRequest { resource_version: version.to_owned(), ..watch_pods() });
        let (open, close) = (vec![pb::OpenWatch { id, watch }], close.into_iter().collect());
        requests.send(pb::SubscribeRequest { open, close, ..Default::default() }).await.unwrap();
        rig.lines(lines).await;
    }
    read.await.unwrap();
    let found: Vec<String> = rig.lines(6).await.iter().map(|line| fields(line, "event from status")).collect();
    let expected = [
        "begin foreign.1 -",
        "end foreign.1 OutOfRange",
        "begin 98 -",
        "end 98 Ok",
        "begin 99 -",
        "end 99 InvalidArgument",
    ];
    assert_eq!(found, expected);
}

/// A selection may have the size of a request.
#[tokio::test]
async fn a_long_selection_is_not_logged_whole() {
    let rig = Rig::new(Options::default()).await;
    let mut client = rig.sandbox.in_process();
    let values = (0..200).map(|at| format!("{at:0100}")).collect();
    let watch = pb::WatchRequest { index: Some(pb::IndexMatch { name: "node".into(), values }), ..watch_pods() };
    client.watch(by("bob", watch.clone())).await.unwrap();
    let key = Some(pb::ObjectKey { namespace: "shop".into(), name: "b".into() });
    let selection = Some(pb::explain_request::Selection::Watch(watch));
    client.explain(by("bob", pb::ExplainRequest { selection, key })).await.unwrap();
    for line in rig.lines(3).await {
        let selection = line["selection"].as_str().unwrap();
        assert!(selection.len() <= 4096 && selection.ends_with('…'), "{} bytes: {line}", selection.len());
    }
}

/// Checks that without authorization only this machine ends watches of others, and that each attempt has a line.
#[tokio::test]
async fn who_ends_watches_has_a_line() {
    let rig = Rig::new(Options::default()).await;
    let mut admin = AdminServiceClient::new(rig.sandbox.service());
    let request = |user: &str| by(user, pb::DisconnectWatchersRequest { ids: vec![7, 8] });
    assert_eq!(admin.disconnect_watchers(request("eve")).await.unwrap_err().code(), tonic::Code::PermissionDenied);
    let mut local = request("ann");
    local.extensions_mut().insert(Peer::Tcp((Ipv4Addr::LOCALHOST, 1000).into()));
    assert!(admin.disconnect_watchers(local).await.unwrap().into_inner().ids.is_empty());
    let found = rig.lines(2).await;
    let found: Vec<String> = found.iter().map(|line| fields(line, "event user method selection status")).collect();
    let expected =
        ["denied eve DisconnectWatchers - PermissionDenied", "disconnect ann DisconnectWatchers watchers=7,8 Ok"];
    assert_eq!(found, expected);
}
