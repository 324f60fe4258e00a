//! An etcd that is restored from a snapshot: its history is rewritten, and every client receives that.

use std::fs;

use tonic::Code;

use informerd::proto::pb;

use crate::{
    etcd::{Etcd, VERSIONS, Version},
    faults::{reach, write},
    follow::Follower,
    killable::KillableServer,
    served::Served,
    truth::Truth,
};

/// Restores a cluster behind informerd, at the same revision, or ahead, with the old id and raft term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_loses_writes_is_detected_wherever_the_revision_continues() {
    for version in VERSIONS {
        for (rewritten, is_compacted) in [(0, false), (30, false), (60, false), (60, true)] {
            rewound(version, rewritten, is_compacted).await;
        }
    }
}

/// Loses thirty transactions, writes others, and perhaps compacts them before informerd can see it.
async fn rewound(version: Version, rewritten: usize, is_compacted: bool) {
    let mut etcd = Etcd::start(version).await;
    let (mut driver, mut truth) = (etcd.driver(), Truth::new(6));
    write(&mut truth, &mut driver, 20);
    let (snapshot, kept) = (etcd.snapshot(), truth.revision());
    let served = Served::start(&etcd, None).await;
    let followers = served.followers().await;
    write(&mut truth, &mut driver, 30);
    reach(&followers, &truth, true).await;
    let lost = truth.revision();

    served.refuse(true);
    etcd.restore(&snapshot);
    etcd.restart().await;
    truth.rewind(kept);
    let mut driver = etcd.driver();
    write(&mut truth, &mut driver, rewritten);
    if is_compacted {
        driver.compact(truth.revision());
    }
    served.refuse(false);
    for follower in &followers {
        let end = follower.end().await;
        assert_eq!(end, (Code::OutOfRange, "HISTORY_CHANGED".to_owned()), "{version:?}, {rewritten} rewritten");
    }
    assert_eq!(served.count("cache_rewinds_total").await, 1, "{version:?}, {rewritten} rewritten");

    write(&mut truth, &mut driver, 5);
    let after = served.followers().await;
    reach(&after, &truth, true).await;
    write(&mut truth, &mut driver, 10);
    served.cut();
    write(&mut truth, &mut driver, 10);
    reach(&after, &truth, true).await;
    assert_eq!(served.count("cache_rewinds_total").await, 1, "and only once");
    if lost <= truth.revision() {
        let resumed = pb::WatchRequest {
            resource: "things".to_owned(),
            resource_version: kept.to_string(),
            ..pb::WatchRequest::default()
        };
        let status = served.client().await.watch(resumed).await;
        let status = match status {
            Err(status) => status,
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(message) => assert!(message.is_some(), "an end with a status"),
                        Err(status) => break status,
                    }
                }
            }
        };
        assert_eq!(status.code(), Code::OutOfRange, "a version from before is not resumed from: {status}");
    }
}

/// Starts the origin of two relays again without its snapshot, perhaps over an etcd that was restored meanwhile and is beyond the
/// known version. One relay runs on; the other one was killed, too, and resumes from its snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_notice_that_the_etcd_of_their_origin_was_restored() {
    for is_restored in [true, false] {
        let mut etcd = Etcd::start(Version::Latest).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(9));
        write(&mut truth, &mut driver, 20);
        let (snapshot, kept) = (etcd.snapshot(), truth.revision());
        let mut origin = KillableServer::start(&etcd);
        origin.synced().await;
        let running = Served::relay_of(origin.address()).await;
        let mut killed = KillableServer::relay(&origin);
        let mut followers = running.followers().await;
        killed.synced().await;
        write(&mut truth, &mut driver, 30);
        reach(&followers, &truth, true).await;
        killed.kept(truth.revision()).await;

        killed.kill();
        origin.kill();
        fs::remove_file(origin.state()).unwrap();
        if is_restored {
            etcd.restore(&snapshot);
            etcd.restart().await;
            truth.rewind(kept);
            driver = etcd.driver();
        }
        write(&mut truth, &mut driver, 60);
        killed.restart();
        followers.extend(killed.followers(3).await);
        origin.restart();
        if is_restored {
            for follower in &followers {
                assert_eq!(follower.end().await, (Code::OutOfRange, "HISTORY_CHANGED".to_owned()));
            }
            followers = running.followers().await;
            killed.synced().await;
            followers.extend(killed.followers(3).await);
        }
        write(&mut truth, &mut driver, 5);
        reach(&followers, &truth, is_restored).await;
        for history_rewrites in [running.count("cache_rewinds_total").await, killed.count("cache_rewinds_total").await]
        {
            assert_eq!(history_rewrites, u64::from(is_restored));
        }
    }
}

/// Checks that a restart is not reported as a restore, and a restore that loses nothing of the prefix only if informerd cannot
/// prove that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_of_everything_continues_as_before() {
    for version in VERSIONS {
        let mut etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(7));
        write(&mut truth, &mut driver, 20);
        let served = Served::start(&etcd, None).await;
        let follower = Follower::start(served.client().await, "").await;
        write(&mut truth, &mut driver, 10);
        let snapshot = etcd.snapshot();
        reach(std::slice::from_ref(&follower), &truth, true).await;
        served.refuse(true);
        etcd.restore(&snapshot);
        etcd.restart().await;
        let mut driver = etcd.driver();
        write(&mut truth, &mut driver, 10);
        served.refuse(false);
        reach(&[follower], &truth, true).await;
        assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}: the history is the same");
    }
}
