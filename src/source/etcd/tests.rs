//! Tests of the source with its Reflector, against a scripted etcd over TCP. Under every fault, the state that the source's
//! events lead to has to be the written one: transactions complete, in order, each once.

mod events;
mod fake_etcd;
mod faults;
mod health;
mod quiet;
mod random_histories;
mod rewritten;
mod streams;
mod warm;

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::timeout;

use self::fake_etcd::FakeEtcd;
use super::*;
use crate::{
    cache::{SourceHealth, WarmStart},
    model::{Object, ResourceVersion},
    source::tests::{DEADLINE, Gate, Rig, SavedSnapshot},
};

const PREFIX: &str = "/s/";

// === impl Rig ===

impl Rig {
    fn start(config: EtcdConfig) -> Self {
        Self::resume(config, None)
    }

    /// Starts a source, with the stored state of a previous run if there is one.
    fn resume(config: EtcdConfig, kept: Option<&SavedSnapshot>) -> Self {
        let health = SourceHealth::new(config.heartbeat, Duration::from_secs(15));
        Self::follow(EtcdSource::new(config, health.clone()), health, kept, value)
    }

    /// Starts a source of one member.
    fn of(gate: &Gate) -> Self {
        Self::start(config(&[gate]))
    }

    /// Applies events up to the cluster's revision, and compares the state with the cluster's.
    async fn reach(&mut self, fake: &FakeEtcd) {
        self.reach_state(fake.revision(), || fake.state(PREFIX)).await;
    }
}

/// Returns the configuration for these members, in this order, with short times.
fn config(gates: &[&Gate]) -> EtcdConfig {
    let endpoints = gates.iter().map(|gate| gate.url().parse().unwrap()).collect();
    EtcdConfig {
        heartbeat: Duration::from_millis(100),
        answer_timeout: Duration::from_millis(500),
        progress_interval: Duration::from_millis(5),
        ..EtcdConfig::new("settings", endpoints, PREFIX)
    }
}

fn value(object: &Object) -> String {
    String::from_utf8_lossy(object.body()).into_owned()
}

/// Returns a cluster at revision 5, and a source that has followed it up to there.
async fn at_five() -> (FakeEtcd, Gate, Rig) {
    let fake = FakeEtcd::new();
    fake.write("a=1 b=1");
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    for changes in ["a=2", "a=3", "a=4"] {
        fake.write(changes);
        rig.told().await;
    }
    (fake, gate, rig)
}
