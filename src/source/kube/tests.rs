//! The source under its Reflector, against a scripted API over TCP. Whatever is done to it, what comes out of the queue is
//! folded, and has to be what was written: in order, each once.

mod connections;
mod faults;
mod lists;
mod metadata;
mod namespaces;
mod open;
mod play;
mod rewind;
mod told;
mod warm;

use std::{path::PathBuf, sync::LazyLock, time::Duration};

use base64::prelude::{BASE64_STANDARD, Engine};
use tokio::time::timeout;

use self::play::{Fault, Play};
use super::*;
use crate::{
    cache::{ListVersion, ListerWatcher, SourceError, SourceHealth},
    model::{Object, Path},
    source::tests::{DEADLINE, Gate, Kept, Rig},
};

/// A source of one API, behind a gate.
struct Stand {
    play: Play,
    gate: Gate,
    kubeconfig: tempfile::TempPath,
}

// === impl Stand ===

impl Stand {
    async fn new() -> Self {
        let play = Play::new();
        let gate = Gate::to(play.listen().await).await;
        let kubeconfig = kubeconfig(&gate.url(), "");
        Self { play, gate, kubeconfig }
    }

    /// With times for tests.
    fn config(&self) -> KubeConfig {
        KubeConfig {
            cluster: KubeCluster { kubeconfig: Some(PathBuf::from(&*self.kubeconfig)), context: None },
            answer_timeout: Duration::from_secs(5),
            contact_timeout: Duration::from_secs(5),
            ..KubeConfig::new("widgets", "example.com", "v1", "widgets")
        }
    }

    fn rig(&self) -> Rig {
        follow(self.config(), None)
    }

    /// A later start.
    fn resumed(&self, kept: &Kept) -> Rig {
        follow(self.config(), Some(kept))
    }

    /// One that has been listed.
    async fn listed(&self) -> Rig {
        let mut rig = self.rig();
        assert_eq!(rig.told().await, format!("list {}", self.play.revision()));
        rig
    }

    /// Folds until it is there, and holds the state against the truth.
    async fn reach(&self, rig: &mut Rig) {
        rig.reach_state(self.play.revision(), || self.play.state()).await;
    }
}

fn follow(config: KubeConfig, kept: Option<&Kept>) -> Rig {
    let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
    Rig::follow(KubeSource::new(config, health.clone()), health, kept, value)
}

fn value(object: &Object) -> String {
    Path::parse("value").unwrap().scalar(object.body()).unwrap_or_default()
}

/// A file that leads to a server, as this user. It names whom to trust, which takes less time than what the system trusts.
fn kubeconfig(server: &str, user: &str) -> tempfile::TempPath {
    static AUTHORITY: LazyLock<String> = LazyLock::new(|| {
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        BASE64_STANDARD.encode(signed.cert.pem())
    });
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let authority = &*AUTHORITY;
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: k, cluster: {{server: '{server}', \
         certificate-authority-data: {authority}}}}}], \
         users: [{{name: u, user: {{{user}}}}}], contexts: [{{name: c, context: {{cluster: k, user: u}}}}]}}"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// Waits until something is so.
async fn until(mut condition: impl FnMut() -> bool) {
    let so = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(DEADLINE, so).await.expect("in time");
}
