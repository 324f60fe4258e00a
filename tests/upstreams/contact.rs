//! An upstream that is silent without closing anything, and credentials that do not arrive.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use informerd::proto::pb;
use serde_json::json;

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer, THINGS},
    etcd::{Etcd, Version},
    faults::{reach, write},
    kube::{check, things},
    served::Served,
    truth::Truth,
};

/// Time within which a resource has to be STALE.
const BOUND: Duration = Duration::from_secs(25);

// === impl Served ===

impl Served {
    /// Freezes the connections, whose kernels still acknowledge everything, until the resource is STALE.
    #[allow(clippy::print_stdout, reason = "a figure of the run")]
    async fn freeze_until_stale(&self) {
        self.gates.iter().for_each(|gate| gate.freeze(true));
        let since = Instant::now();
        while self.state("things").await != pb::SyncState::Stale {
            assert!(since.elapsed() < BOUND, "SYNCED {:?} after the last contact", since.elapsed());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        println!("STALE after {:?}", since.elapsed());
    }

    fn thaw(&self) {
        self.gates.iter().for_each(|gate| gate.freeze(false));
    }
}

/// Uses HTTP/2, as the API server does: a PING checks the shared connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_api_server_is_detected_and_missed_changes_arrive() {
    let apiserver = ApiServer::start().await;
    let mut truth = Truth::new(23);
    apiserver.write(&mut truth, THINGS).await;
    let served = Served::kube(&apiserver, ADMIN, things()).await;
    let followers = served.followers().await;
    for _ in 0..2 {
        served.freeze_until_stale().await;
        for _ in 0..5 {
            apiserver.write(&mut truth, THINGS).await;
        }
        served.thaw();
        check(&apiserver, &followers, &mut truth, THINGS, true).await;
    }
    assert_eq!(served.count("reflector_lists_total").await, 1);
    assert_eq!(served.count("cache_rewinds_total").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_etcd_is_detected_and_missed_changes_arrive() {
    let etcd = Etcd::start(Version::Latest).await;
    let (mut driver, mut truth) = (etcd.driver(), Truth::new(29));
    write(&mut truth, &mut driver, 10);
    let served = Served::start(&etcd, None).await;
    let followers = served.followers().await;
    served.freeze_until_stale().await;
    write(&mut truth, &mut driver, 10);
    served.thaw();
    reach(&followers, &truth, true).await;
    assert_eq!(served.count("reflector_lists_total").await, 1);
}

/// Checks that a plugin that hangs affects only the resources that need it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_an_exec_plugin_hangs_every_other_resource_is_followed() {
    let apiserver = ApiServer::start().await;
    let mut truth = Truth::new(31);
    apiserver.write(&mut truth, THINGS).await;
    let directory = tempfile::tempdir().unwrap();
    let plugin = directory.path().join("plugin");
    let runs = directory.path().join("runs");
    fs::write(&plugin, format!("#!/bin/sh\necho run >>{}\nexec sleep 1000\n", runs.display())).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let hanging = directory.path().join("kubeconfig");
    apiserver.kubeconfig(&hanging, apiserver.address().port(), ADMIN);
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&hanging).unwrap()).unwrap();
    let exec =
        json!({ "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": plugin });
    config["users"][0]["user"] = json!({ "exec": exec });
    fs::write(&hanging, config.to_string()).unwrap();
    let hangs = |mut source: serde_json::Value| {
        source["kubeconfig"] = json!(hanging);
        json!({ "source": { "kube": source }, "optional": true })
    };
    // More resources than this process has threads.
    let others = [("a", hangs(things())), ("b", hangs(things())), ("c", hangs(things()))];
    let served = Served::kube_among(&apiserver, ADMIN, things(), &others).await;
    let followers = served.followers().await;
    let since = Instant::now();
    let mut writes = 0;
    loop {
        apiserver.write(&mut truth, THINGS).await;
        check(&apiserver, &followers, &mut truth, THINGS, true).await;
        assert_eq!(served.state("things").await, pb::SyncState::Synced);
        assert!(served.is_live().await);
        writes += 1;
        let error = served.last_error_of("a").await;
        if error.contains("did not finish within 60 s") {
            assert!(error.contains(&format!("exec plugin {plugin:?}")), "{error}");
            break;
        }
        assert!(since.elapsed() < 3 * DEADLINE, "{error}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("{writes} changes were followed in the {:?} in which the plugin hung", since.elapsed());
    assert!(writes >= 20, "{writes}");
    assert_eq!(fs::read_to_string(&runs).unwrap().lines().count(), 1, "one for three resources");
    assert_eq!(served.state("a").await, pb::SyncState::Syncing);
}
