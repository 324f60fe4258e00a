//! Tests of the source under its Reflector, against a scripted API over TCP. Each folds the queue's deltas into a state and
//! compares it with the written one: all changes in order, each once.

mod answers;
mod connections;
mod events;
mod fake_api;
mod faults;
mod feed;
mod kinds;
mod lists;
mod metadata;
mod namespaces;
mod open;
mod reviews;
mod rewritten;
mod warm;

use std::{path::PathBuf, sync::LazyLock, time::Duration};

use base64::prelude::{BASE64_STANDARD, Engine};
use tokio::time::timeout;

use self::fake_api::{FakeApi, Fault};
use super::*;
use crate::{
    cache::{ListVersion, ListerWatcher, SourceError, SourceHealth},
    model::{Object, Path},
    source::tests::{DEADLINE, Gate, Rig, SavedSnapshot},
};

/// A scripted API behind a gate, with a kubeconfig.
struct Fixture {
    fake: FakeApi,
    gate: Gate,
    kubeconfig: tempfile::TempPath,
}

// === impl Fixture ===

impl Fixture {
    async fn new() -> Self {
        let fake = FakeApi::new();
        let gate = Gate::to(fake.listen().await).await;
        let kubeconfig = kubeconfig(&gate.url(), "");
        Self { fake, gate, kubeconfig }
    }

    /// Returns a configuration with short timeouts.
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

    /// Starts a source that resumes from a previous run.
    fn resumed(&self, kept: &SavedSnapshot) -> Rig {
        follow(self.config(), Some(kept))
    }

    /// Starts a source, and waits for its list.
    async fn listed(&self) -> Rig {
        let mut rig = self.rig();
        assert_eq!(rig.told().await, format!("list {}", self.fake.revision()));
        rig
    }

    /// Folds deltas up to the API's revision, and compares the state.
    async fn reach(&self, rig: &mut Rig) {
        rig.reach_state(self.fake.revision(), || self.fake.state()).await;
    }
}

fn follow(config: KubeConfig, kept: Option<&SavedSnapshot>) -> Rig {
    let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
    Rig::follow(KubeSource::new(config, health.clone()), health, kept, value)
}

fn value(object: &Object) -> String {
    Path::parse("value").unwrap().scalar(object.body()).unwrap_or_default().into_owned()
}

/// Writes a kubeconfig for a server and a user. It names an authority, since loading the system's takes longer.
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

/// Waits until a condition holds.
async fn until(mut condition: impl FnMut() -> bool) {
    let so = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(DEADLINE, so).await.expect("in time");
}
