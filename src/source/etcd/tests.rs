//! The source under its Reflector, against a scripted etcd over TCP. Whatever is done to it, what comes out of the queue is
//! folded, and has to be what was written: transactions whole, in order, each once.

mod faults;
mod gate;
mod health;
mod play;
mod rewind;
mod told;
mod warm;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{task::JoinHandle, time::timeout};

use self::{gate::Gate, play::Play};
use super::*;
use crate::{
    cache::{BackoffConfig, Delta, FifoBounds, RealFifo, Reflector, ReflectorConfig, ReflectorStats},
    model::{Event, Object},
};

/// No test waits longer than this for anything.
const DEADLINE: Duration = Duration::from_secs(20);
const PREFIX: &str = "/s/";

/// A source, what drives it, and what has come of it.
struct Rig {
    fifo: Arc<RealFifo>,
    health: SourceHealth,
    stats: Arc<ReflectorStats>,
    task: JoinHandle<()>,
    /// Key to uid and value.
    state: BTreeMap<String, (String, String)>,
    version: u128,
    rewinds: usize,
}

// === impl Rig ===

impl Rig {
    fn start(config: EtcdConfig) -> Self {
        Self::resume(config, None)
    }

    /// With what an earlier start has kept, if there is something.
    fn resume(config: EtcdConfig, kept: Option<(ResourceVersion, &[u8])>) -> Self {
        let health = SourceHealth::new(config.heartbeat, Duration::from_secs(15));
        let source = EtcdSource::new(config, health.clone());
        let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
        let backoff = BackoffConfig {
            initial: Duration::from_millis(1),
            max: Duration::from_millis(20),
            ..BackoffConfig::default()
        };
        let config = ReflectorConfig { first_list: ListVersion::MostRecent, backoff };
        let mut reflector = Reflector::new(source, Arc::clone(&fifo), health.clone(), config);
        if let Some((version, proof)) = kept {
            reflector.resume(version, proof).unwrap();
        }
        let stats = Arc::clone(reflector.stats());
        let task = tokio::spawn(reflector.run());
        Self { fifo, health, stats, task, state: BTreeMap::new(), version: 0, rewinds: 0 }
    }

    /// A source of one member.
    fn of(gate: &Gate) -> Self {
        Self::start(config(&[gate]))
    }

    /// The next delta, folded, in short: `list 5`, `rewind 5`, `6 +a=1 -b`, `bookmark 7`.
    async fn next(&mut self) -> String {
        let popped = timeout(DEADLINE, self.fifo.pop_batch(1, 1)).await.expect("something in time");
        let delta = popped.unwrap().remove(0);
        let version = delta.version().map_or(self.version, ResourceVersion::number);
        let text = match delta {
            Delta::Replace(list) => {
                self.replace(&list);
                format!("list {version}")
            }
            Delta::Rewind(list) => {
                self.rewinds += 1;
                self.version = 0;
                self.replace(&list);
                format!("rewind {version}")
            }
            Delta::Event(Event::Bookmark(_)) => format!("bookmark {version}"),
            Delta::Relist(events, _) => panic!("etcd lists nothing by itself: {events:?}"),
            Delta::Event(event) => format!("{version}{}", self.apply(&event)),
            Delta::Checkpoint(_) => "checkpoint".to_owned(),
            Delta::Transaction(events) => {
                assert!(events.iter().all(|event| event.version().number() == version), "one revision: {events:?}");
                let told: String = events.iter().map(|event| self.apply(event)).collect();
                format!("{version}{told}")
            }
        };
        assert!(version >= self.version, "{text} after {}", self.version);
        assert!(version > self.version || !text.contains(['+', '~', '-']), "{text} is told again");
        self.version = version;
        text
    }

    /// What comes next but for bookmarks.
    async fn told(&mut self) -> String {
        loop {
            let text = self.next().await;
            if !text.starts_with("bookmark") {
                return text;
            }
        }
    }

    /// Folds until it is there, and holds the state against the truth.
    async fn reach(&mut self, play: &Play) {
        while self.version < play.revision() {
            self.next().await;
        }
        assert_eq!(self.state, play.state(PREFIX));
    }

    fn replace(&mut self, list: &List) {
        let entry = |object: &Arc<Object>| (object.key().to_string(), (object.uid().to_owned(), value(object)));
        self.state = list.objects.iter().map(entry).collect();
    }

    fn apply(&mut self, event: &Event) -> String {
        let (Event::Added(object) | Event::Modified(object) | Event::Deleted(object)) = event else {
            panic!("a bookmark in a transaction")
        };
        let (key, value) = (object.key().to_string(), value(object));
        if let Event::Deleted(_) = event {
            self.state.remove(&key);
            return format!(" -{key}");
        }
        let text = format!(" {}{key}={value}", if matches!(event, Event::Added(_)) { '+' } else { '~' });
        self.state.insert(key, (object.uid().to_owned(), value));
        text
    }

    fn lists(&self) -> u64 {
        self.stats.lists.load(Ordering::Relaxed)
    }

    /// Waits for the source to say what is wrong.
    async fn error(&self, part: &str) -> String {
        let said = async {
            loop {
                if let Some(error) = self.health.report().last_error.filter(|error| error.contains(part)) {
                    return error;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(DEADLINE, said).await.unwrap_or_else(|_| panic!("{part}: {:?}", self.health.report()))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.task.abort();
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
