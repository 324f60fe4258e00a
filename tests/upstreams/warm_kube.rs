//! informerd over an API server as a process that is killed, and resumes from its snapshot.

use informerd::proto::pb;
use tonic::Code;

use crate::{
    apiserver::{ADMIN, ApiServer, THINGS},
    killable::KillableServer,
    kube::{check, things},
    truth::Truth,
};

async fn write(apiserver: &ApiServer, truth: &mut Truth, changes: usize) {
    for _ in 0..changes {
        apiserver.write(truth, THINGS).await;
    }
}

/// Checks that it serves before the API server is there, and lists nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_resumes_where_it_was_over_an_api_server() {
    let (apiserver, mut truth) = (ApiServer::start().await, Truth::new(21));
    write(&apiserver, &mut truth, 30).await;
    let mut served = KillableServer::kube(&apiserver, ADMIN, things());
    for round in 0..4 {
        served.synced().await;
        write(&apiserver, &mut truth, 10).await;
        // The last change may be a deletion, at a version that is still open, or known by a list only.
        served.kept(truth.safe()).await;
        served.kill();
        write(&apiserver, &mut truth, round * 5).await;
        apiserver.signal("-STOP");
        served.restart();
        let resource = served.until("served", |resource| !resource.resource_version.is_empty()).await;
        assert_eq!(resource.state(), pb::SyncState::Stale);
        let early = served.followers(3).await;
        apiserver.signal("-CONT");
        served.synced().await;
        write(&apiserver, &mut truth, 5).await;
        check(&apiserver, &early, &mut truth, THINGS, true).await;
        assert_eq!(served.count("reflector_lists_total").await, 0, "round {round}");
        assert_eq!(served.count("cache_rewinds_total").await, 0, "round {round}");
    }
}

/// Starts the API server meanwhile, so that its watch cache lacks the known version: one list, and the difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_the_api_server_cannot_replay_after_a_kill_are_a_difference() {
    let (mut apiserver, mut truth) = (ApiServer::start().await, Truth::new(22));
    write(&apiserver, &mut truth, 30).await;
    let mut served = KillableServer::kube(&apiserver, ADMIN, things());
    served.synced().await;
    write(&apiserver, &mut truth, 10).await;
    served.kept(truth.safe()).await;
    served.kill();
    write(&apiserver, &mut truth, 20).await;
    apiserver.kill();
    served.restart();
    let early = served.followers(3).await;
    apiserver.restart().await;
    served.synced().await;
    write(&apiserver, &mut truth, 5).await;
    check(&apiserver, &early, &mut truth, THINGS, false).await;
    assert_eq!(served.count("reflector_lists_total").await, 1);
    assert_eq!(served.count("cache_rewinds_total").await, 0);
}

/// Restores the cluster while the server is down, perhaps until it is beyond the known version again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_restored_while_the_server_was_down_ends_every_watch() {
    for rewritten in [0, 60] {
        let (mut apiserver, mut truth) = (ApiServer::start().await, Truth::new(23));
        write(&apiserver, &mut truth, 10).await;
        let (snapshot, restored_to) = (apiserver.etcd.snapshot(), truth.revision());
        let mut served = KillableServer::kube(&apiserver, ADMIN, things());
        served.synced().await;
        write(&apiserver, &mut truth, 30).await;
        served.kept(truth.safe()).await;
        served.kill();
        apiserver.kill();
        apiserver.etcd.restore(&snapshot);
        apiserver.etcd.restart().await;
        apiserver.restart().await;
        truth.rewind(restored_to);
        write(&apiserver, &mut truth, rewritten).await;
        // The early clients connect before the API is reachable.
        apiserver.signal("-STOP");
        served.restart();
        let early = served.followers(3).await;
        apiserver.signal("-CONT");
        for follower in &early {
            let end = follower.end().await;
            assert_eq!(end, (Code::OutOfRange, "HISTORY_CHANGED".to_owned()), "{rewritten} rewritten");
        }
        served.synced().await;
        write(&apiserver, &mut truth, 5).await;
        check(&apiserver, &served.followers(2).await, &mut truth, THINGS, false).await;
        assert_eq!(served.count("cache_rewinds_total").await, 1, "{rewritten} rewritten");
    }
}
