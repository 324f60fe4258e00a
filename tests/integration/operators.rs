//! Views of the operator: the list of watchers, and the end of a server with many watches.

use std::time::Duration;

use informerd::{
    config::ServeFlags,
    proto::pb::{self, admin_service_client::AdminServiceClient},
};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    authentication::line,
    sandbox::{DEADLINE, Options, Sandbox, end, next, pod, queue, reason, watch_from_now, watch_pods},
    served::Served,
};

pub(crate) async fn watchers(sandbox: &Sandbox, request: pb::ListWatchersRequest) -> pb::ListWatchersResponse {
    let mut admin = AdminServiceClient::connect(sandbox.address().to_owned()).await.unwrap();
    admin.list_watchers(request).await.unwrap().into_inner()
}

/// Waits until the watchers meet a condition.
pub(crate) async fn until(sandbox: &Sandbox, is_so: impl Fn(&[pb::Watcher]) -> bool) -> Vec<pb::Watcher> {
    let waited = async {
        loop {
            let found = watchers(sandbox, pb::ListWatchersRequest::default()).await.watchers;
            if is_so(&found) {
                return found;
            }
        }
    };
    tokio::time::timeout(DEADLINE, waited).await.expect("it is so in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_open_watches_are_listed_with_what_they_were_sent_and_how_far_they_lag() {
    // A client that reads nothing is not ended by itself.
    let options = Options { progress_timeout: Duration::from_secs(3600), ..Options::default() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", ""), pod("shop", "b", "")]).await;
    let mut all = sandbox.client().await.watch(watch_pods()).await.unwrap().into_inner();
    for _ in 0..3 {
        next(&mut all).await;
    }
    let request = pb::WatchRequest {
        label_selector: "app=a".to_owned(),
        queue: Some(queue(pb::FullChannelPolicy::Drop, 10)),
        ..watch_from_now()
    };
    let mut stopped = sandbox.slow_client().await.watch(request).await.unwrap().into_inner();
    next(&mut stopped).await;
    for at in 0..2_000 {
        sandbox.put("shop", "a", &format!(r#""n":{at},"filler":"{}""#, "x".repeat(4_000))).await;
        next(&mut all).await;
    }
    let found = until(&sandbox, |found| found[0].sent == 2_002 && found[1].queued > 10).await;
    let [all_of_it, web] = &found[..] else { panic!("{found:?}") };
    assert_eq!((all_of_it.id, all_of_it.resource.as_str(), all_of_it.queued), (1, "pods", 0));
    assert_eq!((all_of_it.selection.as_str(), all_of_it.policy()), ("everything", pb::FullChannelPolicy::Replay));
    assert_eq!(all_of_it.resource_version, "2001", "the last that was handed to the transport");
    assert!(all_of_it.peer.starts_with("127.0.0.1:") && !all_of_it.parked);
    assert_eq!(all_of_it.state(), pb::WatcherState::Live);
    assert!(matches!(web.state(), pb::WatcherState::Live | pb::WatcherState::Frozen), "{web:?}");
    assert_eq!((web.selection.as_str(), web.policy()), ("labels=app=a", pb::FullChannelPolicy::Drop));
    assert_eq!(web.queue_length, 10);
    assert!(web.dropped > 0 && web.dropped <= u64::from(web.queued), "its client will learn of {}", web.dropped);
    assert!(web.last_progress.is_some() && web.since.is_some() && web.sent + u64::from(web.queued) == 2_000);

    let page = watchers(&sandbox, pb::ListWatchersRequest { page_size: 1, ..Default::default() }).await;
    assert_eq!(page.watchers[0].id, 1);
    let request = pb::ListWatchersRequest { page_token: page.next_page_token, page_size: 1, ..Default::default() };
    let page = watchers(&sandbox, request).await;
    assert_eq!((page.watchers[0].id, page.next_page_token.as_str()), (2, ""));

    drop(all);
    until(&sandbox, |found| found.iter().map(|watcher| watcher.id).eq([2])).await;
    let mut admin = AdminServiceClient::connect(sandbox.address().to_owned()).await.unwrap();
    for (request, expected) in [
        (pb::ListWatchersRequest { resource: "none".into(), ..Default::default() }, "RESOURCE_NOT_FOUND"),
        (pb::ListWatchersRequest { page_token: "x".into(), ..Default::default() }, "PAGE_TOKEN_INVALID"),
    ] {
        assert_eq!(reason(&admin.list_watchers(request).await.unwrap_err()), expected);
    }

    let mut reading = sandbox.client().await.watch(watch_pods()).await.unwrap().into_inner();
    let mut other = sandbox.client().await.watch(watch_pods()).await.unwrap().into_inner();
    for _ in 0..3 {
        next(&mut reading).await;
        next(&mut other).await;
    }
    let request = pb::DisconnectWatchersRequest { ids: vec![3, 2, 77] };
    assert_eq!(admin.disconnect_watchers(request).await.unwrap().into_inner().ids, [3, 2]);
    let ended = end(&mut reading).await;
    assert_eq!((ended.code(), reason(&ended)), (Code::Unavailable, "DISCONNECTED".to_owned()));
    // The client that reads nothing keeps its window shut.
    until(&sandbox, |found| found.iter().map(|watcher| watcher.id).eq([4])).await;
    let request = pb::ListWatchersRequest { include_ended: true, ..Default::default() };
    let ended = watchers(&sandbox, request).await.watchers;
    let messages = ended.iter().filter(|watcher| [2, 3].contains(&watcher.id)).map(|watcher| {
        let status = watcher.end_status.as_ref().unwrap();
        (status.code, status.message.contains("an operator has ended this watch"))
    });
    assert!(messages.eq([(Code::Unavailable.into(), true); 2]));
    sandbox.put("shop", "a", "").await;
    next(&mut other).await;
    let request = pb::DisconnectWatchersRequest { ids: (0..1001).collect() };
    assert_eq!(reason(&admin.disconnect_watchers(request).await.unwrap_err()), "REQUEST_INVALID");
}

/// Checks that a watch without events is no dead one.
#[tokio::test]
async fn a_bookmark_is_progress_and_has_the_version() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let bookmark_interval = Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 });
    let request = pb::WatchRequest { bookmark_interval, ..watch_from_now() };
    let mut idle = sandbox.client().await.watch(request).await.unwrap().into_inner();
    for _ in 0..2 {
        next(&mut idle).await;
    }
    let at = |time: Option<prost_types::Timestamp>| time.map(|time| (time.seconds, time.nanos));
    let found = until(&sandbox, |found| at(found[0].last_progress) > at(found[0].since)).await;
    assert_eq!((found[0].resource_version.as_str(), found[0].sent), ("1", 0));
}

/// Opens a thousand watches: a drain ends few of them at once, and spreads many over the period.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_spreads_the_ends_of_many_watches() {
    const WATCHES: usize = 300;
    let options = Options { drain_period: Duration::from_secs(5), ..Options::default() };
    let sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let mut watches = Vec::new();
    for at in 0..WATCHES {
        // HTTP/2's own limit of streams on one connection is near.
        if at % 100 == 0 {
            watches.push((sandbox.client().await, Vec::new()));
        }
        let (client, open) = watches.last_mut().unwrap();
        let mut watch = client.watch(watch_from_now()).await.unwrap().into_inner();
        next(&mut watch).await;
        open.push(watch);
    }
    sandbox.lifecycle.draining.cancel();
    let started = Instant::now();
    let mut ends = tokio::task::JoinSet::new();
    for watch in watches.into_iter().flat_map(|(_, open)| open) {
        ends.spawn(async move {
            let mut watch = watch;
            let bookmark = next(&mut watch).await;
            let at = started.elapsed();
            assert!(bookmark.bookmark.unwrap().draining && bookmark.resource_version == "1");
            let status = end(&mut watch).await;
            assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "DRAINING"));
            at
        });
    }
    let ends = tokio::time::timeout(DEADLINE, ends.join_all()).await.expect("all of them end");
    assert_eq!(ends.len(), WATCHES);
    let first_half = ends.iter().filter(|at| **at < Duration::from_millis(WATCHES as u64 / 2)).count();
    assert!(first_half < WATCHES * 9 / 10, "not all at once: {first_half}");
}

/// Metrics count the objects of every resource, so they are for those who may inspect all of them.
#[tokio::test]
async fn metrics_need_the_right_to_inspect_where_callers_are_authorized() {
    let tokens = [line("operator", "operator"), line("reader", "reader")].concat();
    let pod = r#"{"kind":"Pod","metadata":{"name":"web"}}"#;
    let rule =
        |user, verbs| format!("{{ subjects: ['user:{user}'], verbs: {verbs}, resources: ['*'], namespaces: ['*'] }}");
    let rules = [rule("operator", "[admin]"), rule("reader", "[list, watch]")].join(", ");
    let serve = async |more: &str| {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        std::fs::create_dir(directory.path().join("pods")).unwrap();
        write("pods/web.json", pod);
        write("tokens", &tokens);
        write(
            "informerd.yaml",
            &format!(
                "{{ authentication: {{ token_file: tokens }}, authorization: {{ rules: [{rules}] }}, {more} \
                 resources: {{ pods: {{ source: {{ files: {{ path: pods }} }} }} }} }}"
            ),
        );
        let config = Some(directory.path().join("informerd.yaml"));
        Served::start(directory, ServeFlags { config, ..ServeFlags::default() }).await
    };
    let server = serve("").await;
    for (token, expected) in [(None, 401), (Some("wrong"), 401), (Some("reader"), 403), (Some("operator"), 200)] {
        let (status, text) = server.get_with("/metrics", token).await;
        assert_eq!(status, expected, "{token:?}");
        assert_eq!(text.contains(r#"resource="pods""#), expected == 200, "{text}");
    }
    assert_eq!(server.get_with("/", None).await.0, 200, "the page has no data of its own");
    let (explain, changes) = ("/debug/explain?id=1&name=web", "/debug/changes?resource=pods");
    for (path, granted) in
        [("/debug/informers", 200), ("/debug/watches", 200), (explain, 403), (changes, 403), ("/loglevel", 501)]
    {
        for (token, expected) in [(None, 401), (Some("reader"), 403), (Some("operator"), granted)] {
            assert_eq!(server.get_with(path, token).await.0, expected, "{path} {token:?}");
        }
    }
    let mut admin = AdminServiceClient::connect(server.address.clone()).await.unwrap();
    for (token, expected) in [("reader", Some(Code::PermissionDenied)), ("operator", None)] {
        let mut request = tonic::Request::new(pb::GetStatsRequest {});
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        assert_eq!(admin.get_stats(request).await.map_err(|status| status.code()).err(), expected, "{token}");
    }
    // A probe has no credentials, and learns no more than the name of a resource.
    assert_eq!(server.get("/livez").await.0, 200);
    assert!([200, 503].contains(&server.get("/readyz").await.0));
    let open = serve("admin: { open_metrics: true },").await;
    assert_eq!(open.get("/metrics").await.0, 200);
    assert_eq!(open.get("/debug/informers").await.0, 401, "only the metrics are open");
    let with_bodies = serve("admin: { bodies: true },").await;
    for path in [changes, "/debug/explain?id=99&name=web"] {
        for (token, expected) in [(None, 401), (Some("reader"), 403), (Some("operator"), 200)] {
            let expected = if expected == 200 && path != changes { 404 } else { expected };
            assert_eq!(with_bodies.get_with(path, token).await.0, expected, "{path} {token:?}");
        }
    }
}
