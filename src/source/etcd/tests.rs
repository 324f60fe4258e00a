//! The source under its Reflector, against a scripted etcd over TCP. Whatever is done to it, what comes out of the queue is
//! folded, and has to be what was written: transactions whole, in order, each once.

mod drawn;
mod faults;
mod health;
mod play;
mod quiet;
mod rewind;
mod told;
mod warm;

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::timeout;

use self::play::Play;
use super::*;
use crate::{
    model::Object,
    source::tests::{DEADLINE, Gate, Kept, Rig},
};

const PREFIX: &str = "/s/";

// === impl Rig ===

impl Rig {
    fn start(config: EtcdConfig) -> Self {
        Self::resume(config, None)
    }

    /// With what an earlier start has kept, if there is something.
    fn resume(config: EtcdConfig, kept: Option<&Kept>) -> Self {
        let health = SourceHealth::new(config.heartbeat, Duration::from_secs(15));
        Self::follow(EtcdSource::new(config, health.clone()), health, kept, value)
    }

    /// A source of one member.
    fn of(gate: &Gate) -> Self {
        Self::start(config(&[gate]))
    }

    /// Folds until it is there, and holds the state against the truth.
    async fn reach(&mut self, play: &Play) {
        self.reach_state(play.revision(), || play.state(PREFIX)).await;
    }
}

/// Members in this order, with times for tests.
fn config(gates: &[&Gate]) -> EtcdConfig {
    let endpoints = gates.iter().map(|gate| gate.url()).collect();
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

/// A cluster at revision 5, and a source that has followed it there.
async fn at_five() -> (Play, Gate, Rig) {
    let play = Play::new();
    play.write("a=1 b=1");
    let gate = play.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    for changes in ["a=2", "a=3", "a=4"] {
        play.write(changes);
        rig.told().await;
    }
    (play, gate, rig)
}
