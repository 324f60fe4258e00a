//! `informerd verify` over etcd, and over a relay of it.

use crate::{
    etcd::{Etcd, VERSIONS},
    follow::Follower,
    served::Served,
    truth::PREFIX,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_and_its_relay_have_the_objects_of_etcd() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let mut driver = etcd.driver();
        let object = |n: u32| (format!("{PREFIX}a/{n}"), Some(format!("{{\"n\":{n}}}")));
        driver.write(&(0..3).map(object).collect());
        let served = Served::start(&etcd, None).await;
        let relay = Served::relay(&served).await;
        for each in [&served, &relay] {
            Follower::start(each.client().await, "").await;
            let equal = "# things: 3 objects are those of the upstream\n";
            assert_eq!(each.verify("things").await, (Some(0), equal.to_owned()));
        }
    }
}
