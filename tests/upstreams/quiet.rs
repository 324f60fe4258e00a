//! A quiet prefix of etcd: one list, SYNCED throughout, and the first put arrives over the same watch.

use std::{
    collections::BTreeMap,
    env,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use informerd::proto::pb;

use crate::{
    etcd::{Driver, Etcd, VERSIONS, Version},
    follow::Follower,
    served::Served,
    truth::PREFIX,
};

/// Length of the test: more than the source's first interval (5 s) and its timeout (10 s); `INFORMERD_QUIET_SECONDS` makes it
/// minutes.
const SECONDS: u64 = 20;

/// Changes to the prefix before it is listed.
type Before = fn(&mut Driver);

const BEFORE: [(&str, Before); 4] = [
    ("a fresh etcd", |_| {}),
    ("emptied", |driver| {
        put(driver, Some("1"));
        put(driver, None);
    }),
    ("emptied and compacted", |driver| {
        put(driver, Some("1"));
        let revision = put(driver, None);
        driver.compact(revision);
    }),
    ("a key, compacted", |driver| {
        let revision = put(driver, Some("1"));
        driver.compact(revision);
    }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_prefix_stays_synced_with_one_list_and_its_first_put_arrives() {
    let seconds =
        env::var("INFORMERD_QUIET_SECONDS").map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    let cases = VERSIONS.iter().flat_map(|version| BEFORE.map(|(name, before)| (*version, name, before)));
    let cases = cases.map(|(version, name, before)| async move {
        (version, name, quiet(version, name, before, Duration::from_secs(seconds)).await)
    });
    for (version, name, took) in join_all(cases).await {
        println!("{version:?}, {name}: the first put, after {seconds} s, arrived within {took:?}");
    }
}

/// Follows a prefix for this time. Returns the time that the first put then takes to arrive.
async fn quiet(version: Version, name: &str, before: Before, time: Duration) -> Duration {
    let etcd = Etcd::start(version).await;
    let mut driver = etcd.driver();
    before(&mut driver);
    let served = Served::start(&etcd, None).await;
    let follower = Follower::start(served.client().await, "").await;
    let mut client = served.client().await;
    let started = Instant::now();
    while started.elapsed() < time {
        let answer = client.list_resources(pb::ListResourcesRequest::default()).await.unwrap().into_inner();
        let resource = &answer.resources[0];
        let (state, error) = (resource.state(), resource.last_error.as_str());
        assert_eq!((state, error), (pb::SyncState::Synced, ""), "{version:?}, {name}, after {:?}", started.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let put_at = Instant::now();
    let revision = put(&mut driver, Some("first"));
    follower.reach(revision).await;
    let took = put_at.elapsed();
    for counter in ["reflector_lists_total", "reflector_watches_total"] {
        assert_eq!(served.count(counter).await, 1, "{version:?}, {name}: {counter}");
    }
    assert_eq!(served.gates[0].accepted(), 1, "{version:?}, {name}");
    took
}

/// Puts the one key, or deletes it.
fn put(driver: &mut Driver, value: Option<&str>) -> i64 {
    driver.write(&BTreeMap::from([(format!("{PREFIX}a"), value.map(str::to_owned))]))
}
