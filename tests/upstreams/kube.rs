//! informerd over the API server of Kubernetes: a built-in kind and a custom one.

use std::process::Command;

use futures_util::future::join_all;
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    apiserver::{ADMIN, ApiServer, CONFIG_MAPS, Kind, READER, THINGS},
    follow::{Followed, Follower},
    served::Served,
    truth::{Changes, Truth},
};

pub(crate) fn things() -> Value {
    json!({ "group": "example.com", "version": "v1", "plural": "things" })
}

pub(crate) fn config_maps() -> Value {
    json!({ "version": "v1", "plural": "configmaps", "label_selector": "suite in (truth)" })
}

// === impl ApiServer ===

impl ApiServer {
    /// Writes one object, or deletes it, and records the version.
    pub(crate) async fn write(&self, truth: &mut Truth, kind: Kind) -> i64 {
        let changes: Changes = truth.draw(1);
        let (key, value) = changes.first_key_value().map(|(key, value)| (key.clone(), value.clone())).unwrap();
        let (namespace, name) = key.split_once('/').unwrap();
        let all = kind.path(namespace);
        let one = format!("{all}/o-{name}");
        let before = self.version(kind).await;
        match value {
            None => drop(self.ask("DELETE", &one, None).await.unwrap()),
            Some(value) => {
                let data = json!({ "value": value });
                if self.ask("PATCH", &one, Some(&json!({ "data": data }))).await.is_err() {
                    let metadata = json!({ "name": format!("o-{name}"), "labels": { "suite": "truth" } });
                    self.post(&all, &kind.object(&metadata, &data)).await;
                }
            }
        }
        let version = self.first_after(kind, before).await;
        truth.note(version, changes);
        version
    }

    /// Writes until the last change is no deletion. A version with one stays open until the next, or until the second bookmark,
    /// which is a minute or two later.
    async fn close(&self, truth: &mut Truth, kind: Kind) {
        while truth.ends_with_deletion() {
            self.write(truth, kind).await;
        }
    }

    /// Returns the version of a list.
    async fn version(&self, kind: Kind) -> i64 {
        let list = self.ask("GET", &format!("{}?limit=1", kind.all()), None).await.unwrap();
        list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }

    /// Returns the version of the first event after another one.
    async fn first_after(&self, kind: Kind, version: i64) -> i64 {
        let target = format!("{}?watch=1&timeoutSeconds=30&resourceVersion={version}", kind.all());
        let mut body = self.client.send(Request::get(target).body(Body::empty()).unwrap()).await.unwrap().into_body();
        let mut line = Vec::new();
        while !line.contains(&b'\n') {
            line.extend_from_slice(body.frame().await.expect("an event").unwrap().data_ref().unwrap());
        }
        let event: Value = serde_json::Deserializer::from_slice(&line).into_iter().next().unwrap().unwrap();
        event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }
}

/// Returns every event, with values for bodies and the drawn names.
pub(crate) fn read(mut followed: Followed, kind: Kind) -> Followed {
    followed.may_begin_open = true;
    for told in &mut followed.told {
        told.value = told.value.as_deref().map(|body| kind.value(body));
        told.key = told.key.replace("/o-", "/");
    }
    followed
}

/// Compares every stream with the writes, when no version is open any more.
pub(crate) async fn check(
    apiserver: &ApiServer,
    followers: &[Follower],
    truth: &mut Truth,
    kind: Kind,
    is_complete: bool,
) {
    apiserver.close(truth, kind).await;
    for follower in followers {
        truth.check(&read(follower.reach(truth.revision()).await, kind), is_complete);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_receives_everything_across_cuts_and_the_difference_across_a_restart() {
    let mut apiserver = ApiServer::start().await;
    for (kind, source) in [(THINGS, things()), (CONFIG_MAPS, config_maps())] {
        let mut truth = Truth::new(7);
        for _ in 0..20 {
            apiserver.write(&mut truth, kind).await;
        }
        let served = Served::kube(&apiserver, ADMIN, source).await;
        let followers = served.followers().await;
        for n in 0..40 {
            apiserver.write(&mut truth, kind).await;
            if n % 7 == 0 {
                served.cut();
            }
        }
        check(&apiserver, &followers, &mut truth, kind, true).await;
        assert_eq!(served.count("reflector_lists_total").await, 1);
        // An API server does not replay events from before its own start.
        apiserver.kill();
        apiserver.restart().await;
        for _ in 0..10 {
            apiserver.write(&mut truth, kind).await;
        }
        check(&apiserver, &followers, &mut truth, kind, false).await;
        assert_eq!(served.count("cache_rewinds_total").await, 0);
        assert!(served.count("reflector_lists_total").await <= 2);
    }
}

/// Compacts the missed events in etcd, while the API server is down too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missed_changes_are_listed_once_and_delivered_as_the_difference() {
    let mut apiserver = ApiServer::start().await;
    let mut truth = Truth::new(11);
    for _ in 0..20 {
        apiserver.write(&mut truth, THINGS).await;
    }
    let served = Served::kube(&apiserver, ADMIN, things()).await;
    let followers = served.followers().await;
    served.refuse(true);
    for _ in 0..20 {
        apiserver.write(&mut truth, THINGS).await;
    }
    apiserver.kill();
    apiserver.etcd.driver().compact(truth.revision());
    apiserver.restart().await;
    apiserver.write(&mut truth, THINGS).await;
    served.refuse(false);
    check(&apiserver, &followers, &mut truth, THINGS, false).await;
    assert_eq!(served.count("cache_rewinds_total").await, 0);
    assert_eq!(served.count("reflector_lists_total").await, 2);
}

/// Restores a cluster with the same identity and fewer writes while no client is connected. It continues behind the known
/// version, or beyond it: by other writes of the kind, or by those of other kinds alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_from_a_backup_ends_every_watch() {
    join_all(
        [(0, false), (40, false), (0, true)].map(|(rewritten, by_others)| tokio::spawn(restored(rewritten, by_others))),
    )
    .await
    .into_iter()
    .for_each(Result::unwrap);
}

/// Loses twenty writes, and makes others, or those of another kind until the cluster is beyond the known version.
async fn restored(rewritten: usize, passes_by_others: bool) {
    let mut apiserver = ApiServer::start().await;
    let mut truth = Truth::new(13);
    for _ in 0..10 {
        apiserver.write(&mut truth, THINGS).await;
    }
    let (snapshot, kept) = (apiserver.etcd.snapshot(), truth.revision());
    let served = Served::kube(&apiserver, ADMIN, things()).await;
    // A missing deletion shows only with the next bookmark, a minute later; the resource is STALE until then.
    for _ in 0..20 {
        apiserver.write(&mut truth, THINGS).await;
    }
    apiserver.close(&mut truth, THINGS).await;
    let followers = served.followers().await;
    let lost = apiserver.version(THINGS).await;

    served.refuse(true);
    apiserver.kill();
    apiserver.etcd.restore(&snapshot);
    apiserver.etcd.restart().await;
    apiserver.restart().await;
    truth.rewind(kept);
    for _ in 0..rewritten {
        apiserver.write(&mut truth, THINGS).await;
    }
    let mut other = 0;
    while passes_by_others && apiserver.version(THINGS).await <= lost {
        other += 1;
        let metadata = json!({ "name": format!("other-{other}") });
        apiserver.post(&CONFIG_MAPS.path("a"), &CONFIG_MAPS.object(&metadata, &json!({}))).await;
    }
    let is_beyond = apiserver.version(THINGS).await > lost;
    assert_eq!(is_beyond, rewritten > 0 || passes_by_others, "{rewritten} rewritten");
    served.refuse(false);
    for follower in &followers {
        let end = follower.end().await;
        assert_eq!(end, (Code::OutOfRange, "HISTORY_CHANGED".to_owned()), "{rewritten} rewritten, {other} others");
    }
    apiserver.write(&mut truth, THINGS).await;
    check(&apiserver, &served.followers().await, &mut truth, THINGS, false).await;
    assert_eq!(served.count("cache_rewinds_total").await, 1, "{rewritten} rewritten, {other} others");
}

/// Checks that the role of `informerd rbac` is enough, and that the error without it says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_role_is_enough() {
    let apiserver = ApiServer::start().await;
    let mut truth = Truth::new(17);
    apiserver.write(&mut truth, THINGS).await;
    let served = Served::kube(&apiserver, READER, things()).await;
    let forbidden = async {
        while !served.last_error().await.contains("; grant the role that `informerd rbac` prints") {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(crate::DEADLINE, forbidden).await.expect("the error in time");
    let role = Command::new(env!("CARGO_BIN_EXE_informerd"))
        .args(["rbac", "--kube", "things=example.com/v1/things"])
        .output()
        .unwrap();
    let role = String::from_utf8(role.stdout).unwrap();
    apiserver.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await;
    apiserver.bind("informerd", READER).await;
    let followers = served.followers().await;
    apiserver.write(&mut truth, THINGS).await;
    check(&apiserver, &followers, &mut truth, THINGS, true).await;
}
