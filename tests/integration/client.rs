//! The client library: a watch that survives the failures of its streams, and errors that say what to do.

use std::{collections::BTreeMap, convert::identity, sync::Arc, time::Duration};

use bytes::Bytes;
use informerd::{
    app::App,
    cache::{Delta, List},
    client::{Client, ClientError, Note, Query, ServerAddress, Update, Watch, WatchOptions},
    config::{Config, ServeFlags},
    model::{Event, Object, ResourceVersion},
    proto::pb,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{
    operators::watchers,
    sandbox::{DEADLINE, Options, Sandbox, pod, pod_at, queue, raw},
    tcp_proxy::TcpProxy,
};

fn pods() -> Query {
    Query { format: pb::PayloadFormat::Raw, ..Query::of("pods") }
}

/// Clients with a stream for each watch, and with one for all.
const STREAMS: [fn(Client) -> Client; 2] = [identity, Client::subscribing];

async fn connect(address: &str, streams: fn(Client) -> Client) -> Client {
    streams(Client::connect(&address.parse().unwrap()).await.unwrap())
}

async fn next(watch: &mut Watch) -> Update {
    let update = tokio::time::timeout(DEADLINE, watch.next()).await.expect("an update in time");
    update.expect("no end").expect("no error")
}

/// Returns an update in words.
fn words(update: &Update) -> String {
    match update {
        Update::Event { event_type, cause, object, resource_version } => {
            let event_type = event_type.as_str_name().trim_start_matches("EVENT_TYPE_");
            let cause = match cause {
                pb::Cause::Unspecified => String::new(),
                cause => format!(" {}", cause.as_str_name().trim_start_matches("CAUSE_")),
            };
            let at = if resource_version.is_empty() { String::new() } else { format!(" @{resource_version}") };
            format!("{event_type}{cause} {}{at}", object.name)
        }
        Update::Synced(progress) => format!("SYNCED @{}", progress.resource_version),
        Update::Bookmark(progress) => format!("BOOKMARK @{}", progress.resource_version),
        Update::Note(Note::Reconnecting { error, .. }) => {
            format!("reconnecting {}", error.reason().map_or_else(|| format!("{:?}", error.code()), str::to_owned))
        }
        Update::Note(Note::Resumed { resource_version }) => format!("resumed @{resource_version}"),
        Update::Note(Note::Relisted { resource_version, changes }) => format!("relisted {changes} @{resource_version}"),
        other => format!("{other:?}"),
    }
}

/// Returns the updates in words, up to one that begins with `last`. Of the failed attempts before it, the first is enough.
async fn until(watch: &mut Watch, last: &str) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    loop {
        let words = words(&next(watch).await);
        if seen.last() != Some(&words) {
            seen.push(words);
        }
        if seen.last().unwrap().starts_with(last) {
            return seen;
        }
    }
}

/// Returns the version up to which an update is complete.
fn version(update: &Update) -> &str {
    match update {
        Update::Event { resource_version, .. } => resource_version,
        Update::Synced(progress) | Update::Bookmark(progress) => &progress.resource_version,
        _ => "",
    }
}

/// Folds an update into a view, as any user would.
fn fold(view: &mut BTreeMap<String, Bytes>, update: &Update) {
    let Update::Event { event_type, object, .. } = update else { return };
    match event_type {
        pb::EventType::Added => assert!(view.insert(object.name.clone(), raw(object)).is_none(), "ADDED what it had"),
        pb::EventType::Modified => {
            let before = view.insert(object.name.clone(), raw(object)).expect("MODIFIED what it has");
            assert_ne!(before, raw(object), "a change");
        }
        pb::EventType::Deleted => assert!(view.remove(&object.name).is_some(), "DELETED what it has"),
        other => panic!("{other:?}"),
    }
}

async fn held_by(sandbox: &Sandbox) -> BTreeMap<String, Bytes> {
    let listed = connect(sandbox.address(), identity).await.list(&pods()).await.unwrap();
    listed.objects.iter().map(|object| (object.name.clone(), raw(object))).collect()
}

async fn of_lineage(lineage: &'static str, pods: &[(&str, &str)]) -> Sandbox {
    let version = ResourceVersion::of_lineage(lineage.into(), 1);
    let pods: Vec<Arc<Object>> = pods.iter().map(|(name, spec)| pod_at("shop", name, spec, &version)).collect();
    Sandbox::start_with(Options { lineage: Some(lineage), ..Options::default() }, pods).await
}

/// Checks that a restart that renumbers everything yields exactly the additions, changes and deletions.
#[tokio::test]
async fn a_watch_survives_a_restart_with_another_lineage() {
    for streams in STREAMS {
        let mut before = of_lineage("a", &[("changed", ""), ("gone", r#""x":7"#), ("same", "")]).await;
        let proxy = TcpProxy::to(before.address()).await;
        let options = WatchOptions { keep_objects: true, ..WatchOptions::default() };
        let mut watch = connect(proxy.address(), streams).await.watch(&pods(), &options);
        let seen = until(&mut watch, "SYNCED").await;
        assert_eq!(seen, ["ADDED INITIAL changed", "ADDED INITIAL gone", "ADDED INITIAL same", "SYNCED @a.1"]);
        before.put("shop", "live", "").await;
        assert_eq!(words(&next(&mut watch).await), "ADDED live @a.2");

        let mut after = of_lineage("b", &[("changed", r#""x":1"#), ("live", ""), ("new", ""), ("same", "")]).await;
        proxy.lead_to(after.address());
        proxy.cut();
        assert!(
            matches!(next(&mut watch).await, Update::Note(Note::Reconnecting { error, .. }) if error.is_retryable())
        );
        assert_eq!(words(&next(&mut watch).await), "reconnecting RESOURCE_VERSION_EXPIRED");
        let mut updates = Vec::new();
        for _ in 0..5 {
            updates.push(next(&mut watch).await);
        }
        let seen: Vec<String> = updates.iter().map(words).collect();
        assert_eq!(seen, ["MODIFIED changed", "ADDED new", "DELETED INFERRED gone", "relisted 3 @b.1", "SYNCED @b.1"]);
        let Update::Event { object, .. } = &updates[2] else { panic!() };
        assert!(raw(object).windows(5).any(|window| window == br#""x":7"#), "the last known state");
        assert_eq!((object.namespace.as_str(), object.resource_version.as_str()), ("shop", "b.1"));

        after.put("shop", "same", r#""x":2"#).await;
        assert_eq!(words(&next(&mut watch).await), "MODIFIED same @b.2");
    }
}

/// Rewrites the history while no client is connected, at versions that continue upwards: the client compares a new list.
#[tokio::test]
async fn a_history_rewritten_meanwhile_is_delivered_as_the_difference() {
    for streams in STREAMS {
        let sandbox = Sandbox::start(vec![pod("shop", "a", ""), pod("shop", "b", "")]).await;
        let proxy = TcpProxy::to(sandbox.address()).await;
        let mut watch = connect(proxy.address(), streams).await.watch(&pods(), &WatchOptions::default());
        until(&mut watch, "SYNCED").await;
        proxy.lead_nowhere();
        proxy.cut();
        let version = ResourceVersion::decimal(1);
        let other = vec![pod_at("shop", "a", r#""is":"another""#, &version)];
        sandbox.say(Delta::HistoryRewritten(List::new(other, version))).await;
        let next_version = ResourceVersion::decimal(2);
        sandbox.push(Event::Bookmark(next_version.clone())).await;
        sandbox.reached(&next_version).await;
        proxy.lead_to(sandbox.address());
        let seen = until(&mut watch, "SYNCED").await;
        assert_eq!(
            seen[seen.len() - 4..],
            ["MODIFIED a", "DELETED INFERRED b", "relisted 2 @2", "SYNCED @2"],
            "{seen:?}"
        );
        assert!(seen.iter().any(|words| words == "reconnecting HISTORY_CHANGED"), "{seen:?}");
    }
}

#[tokio::test]
async fn a_watch_whose_connection_breaks_resumes_without_a_list() {
    for streams in STREAMS {
        let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
        let proxy = TcpProxy::to(sandbox.address()).await;
        let mut watch = connect(proxy.address(), streams).await.watch(&pods(), &WatchOptions::default());
        until(&mut watch, "SYNCED").await;
        sandbox.put("shop", "a", r#""x":1"#).await;
        assert_eq!(words(&next(&mut watch).await), "MODIFIED a @2");
        proxy.lead_nowhere();
        proxy.cut();
        for _ in 0..2 {
            let Update::Note(Note::Reconnecting { error, delay }) = next(&mut watch).await else { panic!() };
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(delay >= Duration::from_millis(100) && delay < Duration::from_millis(800), "{delay:?}");
        }
        proxy.lead_to(sandbox.address());
        let seen = until(&mut watch, "resumed").await;
        assert!(seen.iter().all(|words| !words.starts_with("relisted")), "{seen:?}");
        sandbox.put("shop", "b", "").await;
        until(&mut watch, "ADDED b @3").await;
    }
}

#[tokio::test]
async fn changes_during_a_break_are_delivered_after_it() {
    for streams in STREAMS {
        let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
        let proxy = TcpProxy::to(sandbox.address()).await;
        let mut watch = connect(proxy.address(), streams).await.watch(&pods(), &WatchOptions::default());
        until(&mut watch, "SYNCED @1").await;
        proxy.lead_nowhere();
        proxy.cut();
        until(&mut watch, "reconnecting").await;
        let created = sandbox.put("shop", "b", "").await;
        sandbox.put("shop", "a", r#""x":1"#).await;
        sandbox.delete(&created).await;
        proxy.lead_to(sandbox.address());
        let seen = until(&mut watch, "DELETED").await;
        assert_eq!(seen[seen.len() - 4..], ["resumed @1", "ADDED b @2", "MODIFIED a @3", "DELETED b @4"]);
    }
}

/// Cuts an upstream relist, which is one batch: no client can resume inside it, so the server repeats it from its beginning.
#[tokio::test]
async fn an_interrupted_batch_is_delivered_once() {
    for streams in STREAMS {
        const PODS: usize = 10_000;
        let filler = |at: usize| format!(r#""n":{at},"filler":"{}""#, "x".repeat(2_000));
        let at = |version: u128, n: usize| -> Vec<Arc<Object>> {
            let version = ResourceVersion::decimal(version);
            (0..PODS).map(|name| pod_at("shop", &format!("p{name}"), &filler(n), &version)).collect()
        };
        let sandbox = Sandbox::start(at(1, 0)).await;
        let proxy = TcpProxy::to(sandbox.address()).await;
        let mut watch = connect(proxy.address(), streams).await.watch(&pods(), &WatchOptions::default());
        let mut view = BTreeMap::new();
        while !matches!(watch_and_fold(&mut watch, &mut view).await, Update::Synced(_)) {}
        sandbox.list(at(9, 1), 10).await;
        let (mut events, mut resumed) = (0, 0);
        loop {
            let update = watch_and_fold(&mut watch, &mut view).await;
            match &update {
                Update::Event { .. } => events += 1,
                Update::Note(Note::Resumed { resource_version }) => {
                    assert_eq!(resource_version, "1");
                    resumed += 1;
                }
                Update::Note(Note::Reconnecting { .. }) => {}
                other => panic!("{other:?}"),
            }
            if version(&update) == "10" {
                break;
            }
            if events == 500 {
                proxy.cut();
            }
        }
        assert_eq!((events, view), (PODS, held_by(&sandbox).await));
        assert!(resumed > 0, "the cut came in time");
    }
}

#[tokio::test]
async fn a_watch_moves_from_a_server_that_drains_to_the_next() {
    for streams in STREAMS {
        let before = Sandbox::start(vec![pod("shop", "a", "")]).await;
        let mut after = Sandbox::start(vec![pod("shop", "a", "")]).await;
        let proxy = TcpProxy::to(before.address()).await;
        let mut watch = connect(proxy.address(), streams).await.watch(&pods(), &WatchOptions::default());
        until(&mut watch, "SYNCED").await;
        proxy.lead_to(after.address());
        before.lifecycle.draining.cancel();
        // The old connection still exists; the client does not use it again.
        assert_eq!(until(&mut watch, "resumed").await, ["reconnecting DRAINING", "resumed @1"]);
        after.put("shop", "b", "").await;
        until(&mut watch, "ADDED b @2").await;
    }
}

#[tokio::test]
async fn a_silent_stream_is_abandoned() {
    for streams in STREAMS {
        let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
        let proxy = TcpProxy::to(sandbox.address()).await;
        let options = WatchOptions { bookmark_interval: Duration::from_millis(100), ..WatchOptions::default() };
        let mut watch = connect(proxy.address(), streams).await.watch(&pods(), &options);
        until(&mut watch, "BOOKMARK").await;
        proxy.silence();
        let seen = until(&mut watch, "resumed").await;
        assert_eq!(seen[seen.len() - 2..], ["reconnecting DeadlineExceeded", "resumed @1"]);
        sandbox.put("shop", "b", "").await;
        until(&mut watch, "ADDED b @2").await;
    }
}

#[tokio::test]
async fn a_rewritten_history_is_listed_again() {
    for streams in STREAMS {
        let sandbox = Sandbox::start_unsynced(Options::default()).await;
        sandbox.list(vec![pod("shop", "a", ""), pod("shop", "b", "")], 100).await;
        let mut watch = connect(sandbox.address(), streams).await.watch(&pods(), &WatchOptions::default());
        until(&mut watch, "SYNCED @100").await;
        sandbox.list(vec![pod("shop", "b", "")], 50).await;
        let seen = until(&mut watch, "SYNCED @50").await;
        assert_eq!(seen, ["reconnecting HISTORY_CHANGED", "DELETED INFERRED a", "relisted 1 @50", "SYNCED @50"]);
    }
}

/// Checks that initial events that are cut off repeatedly are reported once, and completed.
#[tokio::test]
async fn interrupted_initial_events_are_delivered_once() {
    for streams in STREAMS {
        let filler = format!(r#""filler":"{}""#, "x".repeat(2000));
        let pods_there: Vec<_> = (0..20_000).map(|at| pod("shop", &format!("p{at}"), &filler)).collect();
        let sandbox = Sandbox::start(pods_there).await;
        let proxy = TcpProxy::to(sandbox.address()).await;
        let mut watch = connect(proxy.address(), streams).await.watch(&pods(), &WatchOptions::default());
        let (mut view, mut events, mut cuts) = (BTreeMap::new(), 0, 0);
        loop {
            let update = next(&mut watch).await;
            fold(&mut view, &update);
            match update {
                Update::Event { .. } => {
                    events += 1;
                    if events % 3_000 == 0 {
                        proxy.cut();
                    }
                }
                Update::Note(Note::Reconnecting { .. }) => cuts += 1,
                Update::Synced(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((events, view.len()), (20_000, 20_000));
        assert!(cuts > 0, "a cut came in time");
    }
}

/// Cuts the watch at any moment of a storm, and checks that the folded updates are the state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_interrupted_during_a_storm_holds_the_state_at_its_end() {
    for streams in STREAMS {
        const CHANGES: usize = 3_000;
        let mut sandbox = Sandbox::start((0..50).map(|at| pod("shop", &format!("p{at}"), "")).collect()).await;
        let proxy = TcpProxy::to(sandbox.address()).await;
        let mut watch = connect(proxy.address(), streams).await.watch(&pods(), &WatchOptions::default());
        let last = format!("{}", CHANGES + 2);
        let reader = tokio::spawn(async move {
            let (mut view, mut breaks) = (BTreeMap::new(), 0);
            loop {
                let update = next(&mut watch).await;
                fold(&mut view, &update);
                breaks += usize::from(matches!(update, Update::Note(Note::Reconnecting { .. })));
                if version(&update) == last {
                    return (view, breaks);
                }
            }
        });
        for at in 0..CHANGES {
            let name = format!("p{}", at * 7 % 60);
            let key = informerd::model::ObjectKey::new("shop", &name).unwrap();
            let held = sandbox.informer.snapshot().unwrap();
            match held.get(&key).filter(|_| at % 5 == 0) {
                Some(pod) => sandbox.delete(&pod.clone()).await,
                None => drop(sandbox.put("shop", &name, &format!(r#""n":{at}"#)).await),
            }
            if at % 100 == 0 {
                // Gives the watch time to make progress.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if at % 500 == 250 {
                proxy.cut();
            }
        }
        sandbox.put("shop", "last", "").await;
        let (view, breaks) = reader.await.unwrap();
        assert_eq!(view, held_by(&sandbox).await);
        assert!(breaks > 0);
    }
}

/// Number of events of 4 KB that are more than the buffers of a client can hold.
const MOST_EVENTS: u64 = 100_000;

/// Returns the number of events that the only watch of a server was sent.
async fn sent(sandbox: &Sandbox) -> u64 {
    watchers(sandbox, pb::ListWatchersRequest::default()).await.watchers[0].sent
}

/// Runs a client under DROP that does not read in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_events_are_fetched_again() {
    for streams in STREAMS {
        let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
        let options = WatchOptions { queue: Some(queue(pb::FullChannelPolicy::Drop, 16)), ..WatchOptions::default() };
        let mut watch = connect(sandbox.address(), streams).await.watch(&pods(), &options);
        let (mut view, mut healed) = (BTreeMap::new(), 0);
        while !matches!(watch_and_fold(&mut watch, &mut view).await, Update::Synced(_)) {}
        let filler = "x".repeat(4000);
        // Nothing reads the watch, so its buffers fill up, however fast the events come.
        for at in 1.. {
            sandbox.put("shop", &format!("p{}", at % 100), &format!(r#""n":{at},"filler":"{filler}""#)).await;
            if at % 2_000 == 0 && sent(&sandbox).await + 1_000 < at {
                break;
            }
            assert!(at < MOST_EVENTS, "everything was sent");
        }
        let last = sandbox.put("shop", "last", "").await.version().clone();
        sandbox.reached(&last).await;
        loop {
            let update = watch_and_fold(&mut watch, &mut view).await;
            healed += usize::from(matches!(update, Update::Note(Note::Healing { .. })));
            assert!(!matches!(update, Update::Dropped { .. }));
            if version(&update) == last.to_string() {
                break;
            }
        }
        assert_eq!(view, held_by(&sandbox).await);
        assert!(healed > 0, "something was dropped");
    }
}

async fn watch_and_fold(watch: &mut Watch, view: &mut BTreeMap<String, Bytes>) -> Update {
    let update = next(watch).await;
    fold(view, &update);
    update
}

#[tokio::test]
async fn the_reads_give_everything_of_one_snapshot() {
    let filler = format!(r#""nodeName":"n1","filler":"{}""#, "x".repeat(4000));
    let mut there: Vec<_> = (0..600).map(|at| pod("shop", &format!("p{at:03}"), &filler)).collect();
    there.push(pod("shop", "web", r#""nodeName":"n2""#));
    let sandbox = Sandbox::start(there).await;
    let client = connect(sandbox.address(), identity).await;

    let listed = client.list(&pods()).await.unwrap();
    assert_eq!((listed.objects.len(), listed.resource_version.as_str()), (601, "1"));
    let by_name = Query { name: Some("web".to_owned()), ..pods() };
    assert_eq!(client.list(&by_name).await.unwrap().objects.len(), 1);
    let by_index = client.by_index(&pods(), "node", "n1").await.unwrap();
    assert_eq!((by_index.objects.len(), by_index.objects[599].name.as_str()), (600, "p599"));
    let index = Some(("node".to_owned(), vec!["n2".to_owned()]));
    assert_eq!(client.list(&Query { index: index.clone(), ..pods() }).await.unwrap().objects.len(), 1);
    let twice = client.by_index(&Query { index, ..pods() }, "node", "n1").await.unwrap_err();
    assert!(matches!(twice, ClientError::Request { .. }), "{twice}");
    let got = client.get("pods", "shop", "web", pb::PayloadFormat::Metadata).await.unwrap();
    assert_eq!((got.object.name.as_str(), got.object.body), ("web", None));
    let values = client.values("pods", "node").await.unwrap();
    let values: Vec<_> = values.values.iter().map(|value| (value.value.as_str(), value.objects)).collect();
    assert_eq!(values, [("n1", 600), ("n2", 1)]);
    let resources = client.resources().await.unwrap();
    assert_eq!((resources[0].name.as_str(), resources[0].objects), ("pods", 601));
}

#[tokio::test]
async fn errors_are_typed_and_one_line() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let client = connect(sandbox.address(), identity).await;
    let error = client.list(&Query::of("pod")).await.unwrap_err();
    assert_eq!((error.code(), error.reason()), (Code::NotFound, Some("RESOURCE_NOT_FOUND")));
    assert_eq!(error.metadata("known"), Some("pods"));
    assert_eq!(error.to_string(), "resource \"pod\" not found; known: pods (NOT_FOUND / RESOURCE_NOT_FOUND)");
    assert!(!error.is_retryable());
    let error = client.get("pods", "shop", "none", pb::PayloadFormat::Raw).await.unwrap_err();
    assert_eq!(error.reason(), Some("OBJECT_NOT_FOUND"));
    let error = client.values("pods", "none").await.unwrap_err();
    assert_eq!(error.reason(), Some("INDEX_NOT_FOUND"));

    let bad = Query { label_selector: "a=b=c".to_owned(), ..pods() };
    let mut watch = client.watch(&bad, &WatchOptions::default());
    let error = watch.next().await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.reason()), (Code::InvalidArgument, Some("LABEL_SELECTOR_INVALID")));
    assert!(watch.next().await.is_none() && watch.next().await.is_none(), "over");
}

#[tokio::test]
async fn an_unreachable_server_is_named() {
    let address: ServerAddress = "127.0.0.1:1".parse().unwrap();
    let error = Client::connect(&address).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }) && error.is_retryable());
    let text = error.to_string();
    assert!(text.starts_with(&format!("cannot connect to {address}: Connection refused")), "{text}");

    let client = Client::connect_lazy(&address).unwrap();
    assert!(matches!(client.resources().await, Err(ClientError::Unreachable { .. })));
    let options = WatchOptions { fail_fast: true, ..WatchOptions::default() };
    let mut watch = client.watch(&pods(), &options);
    assert!(matches!(watch.next().await, Some(Err(ClientError::Unreachable { .. }))));
    assert!(watch.next().await.is_none());
    let mut patient = client.watch(&pods(), &WatchOptions::default());
    assert_eq!(words(&next(&mut patient).await), "reconnecting Unavailable");

    let nowhere: ServerAddress = "unix:/nowhere/informerd.sock".parse().unwrap();
    let text = Client::connect(&nowhere).await.unwrap_err().to_string();
    assert!(text.starts_with("cannot connect to unix:/nowhere/informerd.sock: No such file"), "{text}");
}

#[tokio::test]
async fn a_unix_socket_is_served_like_any_other() {
    let directory = TempDir::new().unwrap();
    std::fs::create_dir(directory.path().join("pods")).unwrap();
    std::fs::write(directory.path().join("pods/a.yaml"), "{kind: Pod, metadata: {name: a}}\n").unwrap();
    let address = format!("unix:{}", directory.path().join("informerd.sock").display());
    let files = vec![format!("pods={}@Pod", directory.path().join("pods").display())];
    let flags = ServeFlags { files, ..ServeFlags::default() };
    let flags = flags.with("listen", address.as_str()).with("admin.listen", "127.0.0.1:0");
    let app = App::start(Config::load(&flags).unwrap()).await.unwrap();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(app.run(shutdown.clone().cancelled_owned()));
    let client = connect(&address, identity).await;
    assert_eq!(client.list(&pods()).await.unwrap().objects.len(), 1);
    let mut watch = client.watch(&pods(), &WatchOptions::default());
    assert_eq!(words(&next(&mut watch).await), "ADDED INITIAL a");
    until(&mut watch, "SYNCED").await;
    shutdown.cancel();
    assert_eq!(words(&next(&mut watch).await), "reconnecting DRAINING");
    drop((watch, client));
    running.await.unwrap().unwrap();
}
