//! informerd as a process that is killed, and resumes from its snapshot.

use std::{
    fs,
    time::{Duration, Instant},
};

use informerd::proto::pb;
use tonic::Code;

use crate::{
    DEADLINE,
    etcd::{Etcd, VERSIONS},
    faults::{reach, write},
    follow::Follower,
    killable::KillableServer,
    served::gauge,
    truth::{PREFIX, Truth},
};

/// Returns the versions of the events of a resumed watch, up to one of them.
async fn told(mut stream: tonic::Streaming<pb::WatchResponse>, up_to: i64) -> Vec<i64> {
    let mut versions = Vec::new();
    let telling = async {
        while versions.last().is_none_or(|last| *last < up_to) {
            let message = stream.message().await.unwrap().expect("no end");
            versions.extend(message.object.map(|object| object.resource_version.parse::<i64>().unwrap()));
        }
    };
    tokio::time::timeout(DEADLINE, telling).await.expect("all of it in time");
    versions.dedup();
    versions
}

/// Checks that it serves before etcd is there, and lists nothing: a client that was killed with the server misses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_resumes_where_it_was() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(11));
        write(&mut truth, &mut driver, 50);
        let mut served = KillableServer::start(&etcd);
        served.synced().await;
        served.kept(truth.revision()).await;
        let kept_at = truth.revision();
        let mut missed: Vec<i64> = (0..20).map(|_| truth.write(&mut driver)).collect();
        served.until("reached", |resource| resource.resource_version == truth.revision().to_string()).await;
        served.kill();
        missed.extend((0..20).map(|_| truth.write(&mut driver)));

        etcd.signal("-STOP");
        served.restart();
        let resource = served.until("served", |resource| !resource.resource_version.is_empty()).await;
        assert_eq!(resource.state(), pb::SyncState::Stale, "{version:?}");
        let oldest: i64 = resource.oldest_resource_version.parse().unwrap();
        assert!(oldest >= kept_at, "{version:?}");
        let early = served.followers(2).await;
        let resumed = served.watch(oldest).await.unwrap();
        let status = served.refusal(kept_at - 1).await.unwrap();
        assert_eq!(status.code(), Code::OutOfRange, "{version:?}: older than the state");
        etcd.signal("-CONT");

        served.synced().await;
        write(&mut truth, &mut driver, 10);
        reach(&early, &truth, true).await;
        missed.retain(|revision| *revision > oldest);
        let told = told(resumed, *missed.last().unwrap()).await;
        assert_eq!(told, missed, "{version:?}: what a client of before the kill has missed, and nothing else");
        // The last version that a client can have received before the kill is later than the snapshot.
        assert!(served.refusal(missed[10]).await.is_none(), "{version:?}");
        assert_eq!(served.count("reflector_lists_total").await, 0, "{version:?}");
        assert_eq!(served.count("reflector_listed_objects_total").await, 0, "{version:?}");
        assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}");
        reach(&served.followers(1).await, &truth, true).await;

        // With SIGTERM too: the last revision is then in the file.
        let before = truth.revision();
        served.terminate();
        served.restart();
        let resource = served.until("served", |resource| !resource.resource_version.is_empty()).await;
        assert!(resource.oldest_resource_version.parse::<i64>().unwrap() >= before, "{version:?}: written on drain");
    }
}

/// Compacts the missed events: the server lists once, and sends the difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_compacted_while_the_server_was_down_are_a_difference() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(12));
        write(&mut truth, &mut driver, 50);
        let mut served = KillableServer::start(&etcd);
        served.synced().await;
        served.kept(truth.revision()).await;
        served.kill();
        write(&mut truth, &mut driver, 60);
        driver.compact(truth.revision());
        etcd.signal("-STOP");
        served.restart();
        let early = served.followers(2).await;
        etcd.signal("-CONT");
        let revision = truth.revision();
        served.until("reached", |resource| resource.resource_version.parse::<i64>().unwrap_or(0) >= revision).await;
        write(&mut truth, &mut driver, 10);
        reach(&early, &truth, false).await;
        let is_inferred =
            early.iter().all(|follower| follower.followed().told.iter().any(|told| told.cause == pb::Cause::Inferred));
        assert!(is_inferred, "{version:?}: deletions that nobody saw");
        assert_eq!(served.count("reflector_lists_total").await, 1, "{version:?}");
        assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}");
        reach(&served.followers(1).await, &truth, true).await;
    }
}

/// Restores etcd while the server is down: behind, at the same revision, or ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_while_the_server_was_down_is_detected() {
    for version in VERSIONS {
        for rewritten in [0, 30, 60] {
            let mut etcd = Etcd::start(version).await;
            let (mut driver, mut truth) = (etcd.driver(), Truth::new(13));
            write(&mut truth, &mut driver, 20);
            let (snapshot, restored_to) = (etcd.snapshot(), truth.revision());
            let mut served = KillableServer::start(&etcd);
            served.synced().await;
            write(&mut truth, &mut driver, 30);
            served.kept(truth.revision()).await;
            served.kill();
            etcd.restore(&snapshot);
            served.restart();
            let early = served.followers(3).await;
            etcd.restart().await;
            truth.rewind(restored_to);
            // The server may look before the writes, after them or in between.
            let mut driver = etcd.driver();
            write(&mut truth, &mut driver, rewritten);
            for follower in &early {
                let end = follower.end().await;
                assert_eq!(end, (Code::OutOfRange, "HISTORY_CHANGED".to_owned()), "{version:?}, {rewritten} rewritten");
            }
            served.synced().await;
            assert_eq!(served.count("cache_rewinds_total").await, 1, "{version:?}, {rewritten} rewritten");
            write(&mut truth, &mut driver, 5);
            reach(&served.followers(2).await, &truth, true).await;

            // The next snapshot is of the new history.
            served.kept(truth.revision()).await;
            served.kill();
            served.restart();
            let early = served.followers(2).await;
            served.synced().await;
            write(&mut truth, &mut driver, 5);
            reach(&early, &truth, true).await;
            assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}, {rewritten} rewritten");
            assert_eq!(served.count("reflector_lists_total").await, 0, "{version:?}, {rewritten} rewritten");
        }
    }
}

/// Kills it repeatedly, at any moment, during writes: it serves what was written, and lists only where it must.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_any_moment_leave_a_correct_state() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(14));
        write(&mut truth, &mut driver, 20);
        let mut served = KillableServer::start(&etcd);
        served.synced().await;
        let mut lists = true;
        for round in 0..12 {
            let follower = Follower::start(served.client().await, "").await;
            write(&mut truth, &mut driver, 20);
            let told = follower.reach(truth.revision()).await;
            assert!(lists || told.relists.is_empty(), "{version:?}, {round}");
            truth.check_but(&told, &told.relists);
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(37 * round) {
                write(&mut truth, &mut driver, 1);
            }
            let listed = served.count("reflector_lists_total").await;
            assert_eq!(listed, u64::from(lists), "{version:?}, {round}: each start had a state to go on from");
            served.kill();
            lists = served.has_to_list(&truth);
            write(&mut truth, &mut driver, 5);
            served.restart();
            served.synced().await;
            assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}");
        }
        write(&mut truth, &mut driver, 5);
        reach(&served.followers(1).await, &truth, true).await;
        served.kept(truth.revision()).await;
        served.kill();
        served.restart();
        served.synced().await;
        reach(&served.followers(1).await, &truth, true).await;
        assert_eq!(served.count("reflector_lists_total").await, 0, "{version:?}: there was a state to go on from");
        assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}");
    }
}

/// Blocks the path of the snapshot file, then frees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_cannot_be_written_is_reported_until_it_can() {
    let etcd = Etcd::start(VERSIONS[0]).await;
    let (mut driver, mut truth) = (etcd.driver(), Truth::new(15));
    write(&mut truth, &mut driver, 5);
    let served = KillableServer::start(&etcd);
    served.synced().await;
    served.kept(truth.revision()).await;
    let obstacle = served.state().with_extension("tmp");
    fs::create_dir(&obstacle).unwrap();
    write(&mut truth, &mut driver, 5);
    let resource = served.until("reported", |resource| !resource.last_error.is_empty()).await;
    let expected = format!("state_dir: {} cannot be written: File exists", served.state().display());
    assert!(resource.last_error.starts_with(&expected), "{}", resource.last_error);
    assert_eq!(resource.state(), pb::SyncState::Synced);
    assert!(served.count("state_write_failures_total").await > 0);
    reach(&served.followers(1).await, &truth, true).await;
    fs::remove_dir(&obstacle).unwrap();
    served.until("mended", |resource| resource.last_error.is_empty()).await;
}

/// Measures the gain of a warm start over a list, of 100,000 objects of 1 KiB. Takes a minute, and prints its figures; INFORMERD
/// names the program of a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_a_kill_with_100_000_objects() {
    const OBJECTS: usize = 100_000;
    const AT_A_TIME: usize = 100;
    let etcd = Etcd::start(VERSIONS[0]).await;
    let mut driver = etcd.driver();
    let key = |at: usize| format!("{PREFIX}ns-{}/object-{at}", at % 100);
    let value = |at: usize, round: usize| {
        let head =
            format!(r#"{{"kind":"Thing","metadata":{{"labels":{{"app":"a{}"}}}},"round":{round},"data":""#, at % 50);
        format!("{head}{}\"}}", "x".repeat(1024 - 2 - head.len()))
    };
    let mut put = |first: usize, count: usize, round: usize| {
        for from in (first..first + count).step_by(AT_A_TIME) {
            let to = (from + AT_A_TIME).min(first + count);
            driver.write(&(from..to).map(|at| (key(at), Some(value(at, round)))).collect());
        }
    };
    put(0, OBJECTS, 0);
    let mut served = KillableServer::start(&etcd);
    let is_written = async |served: &KillableServer, writes: u64| {
        while served.count("state_writes_total").await < writes {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    served.synced().await;
    is_written(&served, 1).await;
    for round in 1..=3 {
        served.reset_peak();
        let before = served.memory("VmRSS");
        put(0, 1, round);
        is_written(&served, 1 + round as u64).await;
        println!(
            "a state of {} bytes, written in {:.3} s; RSS {} KiB before, {} KiB at most while it is written",
            fs::metadata(served.state()).unwrap().len(),
            gauge(served.admin, "informerd_state_write_seconds").await,
            before,
            served.memory("VmHWM"),
        );
    }
    for (what, missed) in [("warm", 0), ("warm", 1000), ("warm", OBJECTS / 10), ("cold", 0)] {
        for round in 0..3 {
            served.kill();
            put(0, missed, 10 + round);
            if what == "cold" {
                drop(fs::remove_file(served.state()));
            }
            let started = Instant::now();
            served.restart();
            let get = pb::GetRequest {
                resource: "things".to_owned(),
                namespace: "ns-7".to_owned(),
                name: "object-99907".to_owned(),
                ..pb::GetRequest::default()
            };
            let mut client = served.client().await;
            let connected = started.elapsed();
            let answer = client.get(get).await.unwrap().into_inner();
            let (answered, source) = (started.elapsed(), answer.source());
            served.synced().await;
            let fresh = started.elapsed();
            let [connected, answered, fresh] = [connected, answered, fresh].map(|time| time.as_millis());
            println!(
                "{what}, {missed} changes missed: connected {connected} ms, first answer {answered} ms ({source:?}), \
                 SYNCED {fresh} ms, {} lists, {} items listed, RSS {} KiB",
                served.count("reflector_lists_total").await,
                served.count("reflector_listed_objects_total").await,
                served.memory("VmRSS"),
            );
            let writes = u64::from(missed > 0 || what == "cold");
            is_written(&served, writes).await;
        }
    }
}
