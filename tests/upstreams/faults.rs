//! Faults between etcd and informerd: they end no client's stream, and lose nothing.

use std::time::Duration;

use tonic::Code;

use informerd::proto::pb;

use crate::{
    etcd::{Driver, Etcd, VERSIONS, Version},
    follow::Follower,
    gate::Gate,
    served::{Served, counter},
    truth::{PREFIX, Truth},
};

/// Cuts connections, stops etcd for a while, and kills and restarts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_and_restarts_end_no_watch_and_lose_nothing() {
    for version in VERSIONS {
        let mut etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(1));
        write(&mut truth, &mut driver, 20);
        let served = Served::start(&etcd, None).await;
        let followers = served.followers().await;

        for _ in 0..5 {
            write(&mut truth, &mut driver, 10);
            served.cut();
            write(&mut truth, &mut driver, 10);
        }
        etcd.signal("-STOP");
        tokio::time::sleep(Duration::from_secs(2)).await;
        etcd.signal("-CONT");
        write(&mut truth, &mut driver, 20);
        for _ in 0..2 {
            etcd.kill();
            etcd.restart().await;
            // A new driver, since the first waits for the killed server.
            driver = etcd.driver();
            write(&mut truth, &mut driver, 20);
        }
        reach(&followers, &truth, true).await;
        assert_eq!(served.count("reflector_lists_total").await, 1, "{version:?}: what broke was taken up again");
        assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}");
    }
}

/// Stops the followed one of three members until it has stopped each; the cluster continues without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_member_is_replaced_by_the_next() {
    for version in VERSIONS {
        let members = Etcd::cluster(version, 3).await;
        let mut truth = Truth::new(8);
        let mut driver = members[1].driver();
        driver.settle();
        write(&mut truth, &mut driver, 20);
        let served = Served::over(&members, None).await;
        let followers = served.followers().await;
        for followed in 0..3 {
            let accepted = || served.gates.iter().map(Gate::accepted).collect::<Vec<_>>();
            let before = accepted();
            members[followed].signal("-STOP");
            let mut driver = members[(followed + 1) % 3].driver();
            driver.settle();
            write(&mut truth, &mut driver, 20);
            reach(&followers, &truth, true).await;
            let mut expected = before;
            expected[(followed + 1) % 3] += 1;
            assert_eq!(accepted(), expected, "{version:?}: from {followed} to the next");
            members[followed].signal("-CONT");
        }
        assert_eq!(served.count("reflector_lists_total").await, 1, "{version:?}");
        assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}");
    }
}

/// Compacts everything before the last revision ten times a second, while connections are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_ten_times_a_second_is_survived() {
    for version in VERSIONS {
        let mut etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(2));
        write(&mut truth, &mut driver, 20);
        let served = Served::start(&etcd, None).await;
        let followers = served.followers().await;
        for round in 0..30 {
            write(&mut truth, &mut driver, 10);
            driver.compact(truth.revision());
            match round % 10 {
                3 | 6 => served.cut(),
                9 => {
                    served.refuse(true);
                    write(&mut truth, &mut driver, 10);
                    driver.compact(truth.revision());
                    served.refuse(false);
                }
                _ => {}
            }
            if round == 15 {
                etcd.kill();
                etcd.restart().await;
                driver = etcd.driver();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        write(&mut truth, &mut driver, 5);
        reach(&followers, &truth, false).await;
        assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}: history has not changed");
        let late = served.followers().await;
        reach(&late, &truth, true).await;
    }
}

/// Uses etcd's own counters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_gets_one_list_and_watch_whatever_the_number_of_clients() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(3));
        write(&mut truth, &mut driver, 10);
        drop(driver);
        let served = Served::start(&etcd, None).await;
        let mut followers = served.followers().await;
        let asked = async || {
            let started = "grpc_server_started_total grpc_method=";
            let lists = counter(etcd.address(), &format!("{started}\"Range\"")).await;
            let watches = counter(etcd.address(), &format!("{started}\"Watch\"")).await;
            (lists, watches, counter(etcd.address(), "etcd_debugging_mvcc_watcher_total").await)
        };
        assert_eq!(asked().await, (1, 1, 1), "{version:?}: one list, one watch");
        for _ in 0..10 {
            followers.extend(served.followers().await);
        }
        // informerd requests the head of an old etcd that is quiet, which is no list.
        let (lists, streams, watches) = asked().await;
        assert_eq!((streams, watches), (1, 1), "{version:?}: {} clients", followers.len());
        assert!(lists == 1 || version == Version::Old, "{version:?}: {lists} ranges");
        assert_eq!(served.count("reflector_lists_total").await, 1);
    }
}

/// Waits for a version that only other keys have reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_requested_for_a_version_of_other_keys() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(4));
        write(&mut truth, &mut driver, 10);
        let served = Served::start(&etcd, None).await;
        Follower::start(served.client().await, "").await;
        let revision = driver.write(&[("/elsewhere".to_owned(), Some("x".to_owned()))].into());
        let (name, object) = ("things".to_owned(), truth.any_key());
        let request = pb::GetRequest {
            resource: name,
            namespace: object.0,
            name: object.1,
            min_resource_version: revision.to_string(),
            ..pb::GetRequest::default()
        };
        let mut request = tonic::Request::new(request);
        request.set_timeout(Duration::from_secs(3));
        let answer = served.client().await.get(request).await;
        match version {
            Version::Latest => {
                assert_eq!(answer.unwrap().into_inner().resource_version, revision.to_string(), "{version:?}");
            }
            Version::Old => assert_eq!(answer.unwrap_err().code(), Code::Unavailable, "it cannot be asked"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_read_the_prefix_is_enough() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(5));
        write(&mut truth, &mut driver, 10);
        driver.protect("reader", "secret", PREFIX);
        let served = Served::start(&etcd, Some(("reader", "secret"))).await;
        let followers = served.followers().await;
        let mut driver = etcd.driver_as("root", "secret");
        write(&mut truth, &mut driver, 10);
        served.cut();
        write(&mut truth, &mut driver, 10);
        reach(&followers, &truth, true).await;
    }
}

pub(crate) fn write(truth: &mut Truth, driver: &mut Driver, transactions: usize) {
    for _ in 0..transactions {
        truth.write(driver);
    }
}

/// Waits until every client has received everything, and compares it with the truth.
pub(crate) async fn reach(followers: &[Follower], truth: &Truth, is_complete: bool) {
    for follower in followers {
        truth.check(&follower.reach(truth.revision()).await, is_complete);
    }
}
