//! Warm starts from the snapshot of a previous run: over an unreachable etcd, and as a relay.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant, SystemTime},
};

use informerd::{
    cache::{Checkpoint, Delta, Indexer, List, SnapshotDirectory, SnapshotFile},
    config::ServeFlags,
    model::{Event, Object, ResourceVersion},
    proto::pb,
};
use tempfile::TempDir;
use tonic::Code;

use crate::{
    refused_watch::watch_refusal,
    sandbox::{DEADLINE, Sandbox, fold, next, pod, pod_at, reason, words},
    served::Served,
};

/// Address without a listener.
const PROOF: &str = r#"{"identity":[7,2],"revision":10,"mark":null,"problems":[]}"#;
const NOWHERE: &str = "http://127.0.0.1:1";

fn state_of(directory: &TempDir, prefix: &str) -> SnapshotFile {
    let state = SnapshotDirectory::open(&directory.path().join("state")).unwrap();
    state.file("settings", &format!("the keys of {prefix:?} in etcd at {NOWHERE}"))
}

/// Returns the state at version 10 of a previous run.
fn checkpoint(objects: Vec<Arc<Object>>, proof: &'static str) -> Checkpoint {
    let version = ResourceVersion::decimal(10);
    let snapshot = Indexer::new(Arc::default(), List::new(objects, version.clone())).snapshot();
    Checkpoint { snapshot, proof: proof.into(), unchanged_since: version, is_whole: true }
}

/// Writes the snapshot of a previous run: version 10, an hour ago.
fn kept() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let version = ResourceVersion::decimal;
    let object = |name: &str, at| Arc::new(Object::from_json(format!("{{\"at\":{at}}}"), name, version(at)).unwrap());
    let checkpoint = checkpoint(vec![object("a", 3), object("b", 7)], PROOF);
    let file = state_of(&directory, "/s/");
    file.write(&checkpoint, Some(SystemTime::now() - Duration::from_secs(3600))).unwrap();
    assert_eq!(file.stats().writes.load(Ordering::Relaxed), 1);
    directory
}

async fn start(directory: &TempDir) -> Served {
    let flags = ServeFlags { etcd: vec![format!("settings={NOWHERE}/s/")], ..ServeFlags::default() };
    let flags = flags.with("state_dir", directory.path().join("state").to_str());
    Served::start(tempfile::tempdir().unwrap(), flags).await
}

fn watch(from: &str) -> pb::WatchRequest {
    let format = pb::PayloadFormat::Raw.into();
    pb::WatchRequest { resource: "settings".into(), resource_version: from.into(), format, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_served_at_once_as_stale() {
    let directory = kept();
    let served = start(&directory).await;
    let mut client = served.client().await;
    let request = pb::ListRequest { resource: "settings".into(), ..Default::default() };
    let list = client.list(request).await.unwrap().into_inner().message().await.unwrap().unwrap();
    assert_eq!((list.resource_version.as_str(), list.objects.len()), ("10", 2));
    assert_eq!(list.source(), pb::SyncState::Stale);
    let seen_at = SystemTime::try_from(list.source_seen_at.unwrap()).unwrap();
    let ago = seen_at.elapsed().unwrap().as_secs();
    assert!((3600..3660).contains(&ago), "seen by the earlier start: {ago} s ago");

    // STALE counts as ready, and the health service reports SERVING.
    assert_eq!(served.get("/readyz").await, (200, "ok\n".to_owned()));
    // Before, it is that there was no contact.
    let resource = served.until(|resource| resource.last_error.contains("127.0.0.1:1")).await;
    assert_eq!((resource.resource_version.as_str(), resource.oldest_resource_version.as_str()), ("10", "10"));
    assert_eq!(resource.version_format(), pb::VersionFormat::Decimal);
    let [problem] = &*resource.problems else { panic!("{:?}", resource.problems) };
    assert_eq!((&*problem.reason, &*problem.message), ("UPSTREAM_UNREACHABLE", &*resource.last_error));
    let (_, metrics) = served.get("/metrics").await;
    for line in ["cache_stale{resource=\"settings\"} 1.0", "reflector_lists_total{resource=\"settings\"} 0"] {
        assert!(metrics.contains(&format!("informerd_{line}\n")), "{line}: {metrics}");
    }

    let mut view = std::collections::BTreeMap::new();
    let mut stream = client.watch(watch("")).await.unwrap().into_inner();
    for expected in ["ADDED INITIAL a", "ADDED INITIAL b"] {
        let event = next(&mut stream).await;
        assert_eq!(words(&event), expected);
        fold(&mut view, &event);
    }
    assert_eq!(view["b"], "{\"at\":7}");
    let bookmark = next(&mut stream).await;
    assert_eq!(words(&bookmark), "BOOKMARK @10");
    let bookmark = bookmark.bookmark.unwrap();
    assert!(bookmark.initial_events_end && bookmark.source() == pb::SyncState::Stale);
    assert_eq!(bookmark.history, resource.history);

    let mut resumed = client.watch(watch("10")).await.unwrap().into_inner();
    assert_eq!(words(&next(&mut resumed).await), "BOOKMARK @10", "it has caught up");
    for older in ["3", "9"] {
        let status = watch_refusal(client.watch(watch(older))).await;
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (Code::OutOfRange, "RESOURCE_VERSION_EXPIRED"),
            "{older}"
        );
    }
    // The server waits for a later version: the upstream may reach it yet.
    let later =
        pb::ListRequest { min_resource_version: "11".into(), resource: "settings".into(), ..Default::default() };
    let mut later = tonic::Request::new(later);
    later.set_timeout(Duration::from_millis(300));
    let status = client.list(later).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE"));

    served.shutdown.cancel();
    let draining = next(&mut resumed).await;
    assert!(draining.bookmark.unwrap().draining && draining.resource_version == "10");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_change_nothing_is_written_again() {
    let directory = kept();
    let written = || fs::metadata(directory.path().join("state/settings.state")).unwrap().ino();
    let before = written();
    let served = start(&directory).await;
    served.until(|resource| !resource.last_error.is_empty()).await;
    served.stop().await;
    assert_eq!(written(), before);
}

/// Checks that the server starts without an unusable snapshot file, whatever is wrong with it, and waits for a list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_snapshots_are_ignored() {
    type Spoil = fn(&TempDir);
    let spoils: [(&str, Spoil); 4] = [
        ("a bit", |directory| {
            let path = directory.path().join("state/settings.state");
            let mut bytes = fs::read(&path).unwrap();
            bytes[200] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("half of it", |directory| {
            let path = directory.path().join("state/settings.state");
            let bytes = fs::read(&path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("another prefix", |directory| {
            state_of(directory, "/other/").write(&checkpoint(Vec::new(), PROOF), None).unwrap();
        }),
        ("a proof of nothing", |directory| {
            state_of(directory, "/s/").write(&checkpoint(Vec::new(), "{}"), None).unwrap();
        }),
    ];
    for (what, spoil) in spoils {
        let directory = kept();
        spoil(&directory);
        let served = start(&directory).await;
        // On a busy machine it may say first that there was no contact.
        let resource = served.until(|resource| resource.last_error.starts_with("list failed: ")).await;
        assert_eq!((resource.state(), resource.resource_version.as_str()), (pb::SyncState::Syncing, ""), "{what}");
        assert_eq!(served.get("/readyz").await.0, 503, "{what}");
        served.stop().await;
    }
}

/// Checks that the server starts with an unusable directory too. (It reports the error once etcd is there.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_runs_without_an_unusable_snapshot_directory() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("state"), "a file").unwrap();
    let served = start(&directory).await;
    served.until(|resource| !resource.last_error.is_empty()).await;
    served.stop().await;

    let directory = kept();
    let first = start(&directory).await;
    first.until(|resource| resource.state() == pb::SyncState::Stale).await;
    let second = start(&directory).await;
    let resource = second.until(|resource| !resource.last_error.is_empty()).await;
    assert_eq!(resource.state(), pb::SyncState::Syncing, "it is the first one's");
    second.stop().await;
    first.stop().await;
    let third = start(&directory).await;
    third.until(|resource| resource.state() == pb::SyncState::Stale).await;
    third.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_resumes_where_its_previous_run_ended() {
    let origin = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let directory = tempfile::tempdir().unwrap();
    let start = async || {
        let flags = ServeFlags { relay: vec![format!("pods={}", origin.address())], ..ServeFlags::default() };
        let flags = flags.with("state_dir", directory.path().join("state").to_str());
        Served::start(tempfile::tempdir().unwrap(), flags).await
    };
    let is_at = |version: &'static str| move |resource: &pb::Resource| resource.resource_version == version;
    let earlier = start().await;
    earlier.until(is_at("1")).await;
    earlier.stop().await;

    origin.push(Event::Added(pod_at("shop", "b", "", &ResourceVersion::decimal(7)))).await;
    let relay = start().await;
    relay.until(is_at("7")).await;
    let (_, metrics) = relay.get("/metrics").await;
    assert!(metrics.contains("reflector_lists_total{resource=\"pods\"} 0\n"), "nothing is listed: {metrics}");
    let mut client = relay.client().await;
    let request = pb::WatchRequest { resource: "pods".into(), ..watch("1") };
    let mut resumed = client.watch(request).await.unwrap().into_inner();
    assert_eq!(words(&next(&mut resumed).await), "ADDED b @7");
    relay.stop().await;

    // A rewritten history, while no relay was connected.
    origin.list(vec![pod("shop", "c", "")], 3).await;
    let relay = start().await;
    relay.until(is_at("3")).await;
    relay.stop().await;
}

/// Checks that the snapshot is at a complete version. A change ahead of it is saved once its version is complete too, even if
/// nothing else changes then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_ahead_are_saved_once_they_are_complete() {
    let origin = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let directory = tempfile::tempdir().unwrap();
    let relay = format!("pods: {{ source: {{ informerd: {{ endpoint: {:?} }} }} }}", origin.address());
    let path = directory.path().join("config.yaml");
    fs::write(&path, format!("state_dir: ./state\nstate_interval: 100ms\nresources: {{ {relay} }}")).unwrap();
    let flags = ServeFlags { config: Some(path), ..ServeFlags::default() };
    let served = Served::start(tempfile::tempdir().unwrap(), flags).await;
    let kept = || {
        let file = fs::read(directory.path().join("state/pods.state")).unwrap();
        let (length, rest) = file.strip_prefix(b"informerd state\n").unwrap()[4..].split_first_chunk::<4>().unwrap();
        let header: serde_json::Value = serde_json::from_slice(&rest[..u32::from_le_bytes(*length) as usize]).unwrap();
        (header["version"].as_str().unwrap().to_owned(), header["objects"].as_u64().unwrap())
    };
    let written = async |times: u64| {
        let line = format!("informerd_state_writes_total{{resource=\"pods\"}} {times}\n");
        let started = Instant::now();
        while !served.get("/metrics").await.1.contains(&line) {
            assert!(started.elapsed() < DEADLINE, "not in time: {line}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    written(1).await;
    let version = ResourceVersion::decimal(2);
    let deleted = Event::Deleted(pod_at("shop", "a", "", &version));
    origin.say(Delta::Changes { events: [deleted].into_iter().collect(), closes: false }).await;
    served.until(|resource| resource.objects == 0).await;
    written(2).await;
    assert_eq!(kept(), ("1".to_owned(), 1));
    origin.push(Event::Bookmark(version)).await;
    written(3).await;
    assert_eq!(kept(), ("2".to_owned(), 0));
    served.stop().await;
}

/// Checks that a relay writes Secrets only on request: a snapshot is in plain text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_of_a_relay_are_saved_only_if_configured() {
    let secret = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"key"},"data":{"tls.key":"c2VjcmV0"}}"#;
    let secret = Object::from_json(secret, "", ResourceVersion::decimal(1)).unwrap();
    let origin = Sandbox::start(vec![Arc::new(secret)]).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state/pods.state");
    let start = async |snapshot: &str| {
        let source = format!("source: {{ informerd: {{ endpoint: {:?} }} }}", origin.address());
        let config = format!("state_dir: ./state\nresources: {{ pods: {{ {source}{snapshot} }} }}");
        let path = directory.path().join("config.yaml");
        fs::write(&path, config).unwrap();
        let flags = ServeFlags { config: Some(path), ..ServeFlags::default() };
        let served = Served::start(tempfile::tempdir().unwrap(), flags).await;
        served.until(|resource| resource.objects == 1).await;
        served
    };
    for forbidden in ["", ", snapshot: false"] {
        start(forbidden).await.stop().await;
        assert!(!file.exists(), "{forbidden}");
        start(", snapshot: true").await.stop().await;
        assert!(file.exists(), "as requested");
        // The snapshot file of an earlier configuration is neither used nor kept.
        let served = start(forbidden).await;
        assert!(!file.exists(), "{forbidden}");
        let (_, metrics) = served.get("/metrics").await;
        assert!(metrics.contains("reflector_lists_total{resource=\"pods\"} 1\n"), "{metrics}");
        served.stop().await;
        assert!(!file.exists(), "{forbidden}");
    }
}
