//! A source under its Reflector, with the folded state of its queue; a repeated, torn or backward event fails the test.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tokio::{task::JoinHandle, time::timeout};

use super::DEADLINE;
use crate::{
    cache::{
        BackoffConfig, CheckpointRequests, Delta, FifoBounds, List, ListVersion, ListerWatcher, ProgressDemand,
        RealFifo, Reflector, ReflectorConfig, ReflectorStats, SourceHealth, UnreadableItem,
    },
    model::{Event, Object, ResourceVersion},
};

/// A source with its queue, its health, and the folded state.
pub(in crate::source) struct Rig {
    pub(in crate::source) fifo: Arc<RealFifo>,
    pub(in crate::source) checkpoints: CheckpointRequests,
    pub(in crate::source) health: SourceHealth,
    pub(in crate::source) demand: ProgressDemand,
    pub(in crate::source) stats: Arc<ReflectorStats>,
    task: JoinHandle<()>,
    value: fn(&Object) -> String,
    /// Key to uid and value.
    pub(in crate::source) state: BTreeMap<String, (String, String)>,
    pub(in crate::source) version: u128,
    /// Last complete version.
    pub(in crate::source) safe: u128,
    pub(in crate::source) history_rewrites: usize,
    /// New namespaces of the last list.
    pub(in crate::source) new_namespaces: Vec<String>,
    pub(in crate::source) expires_older: bool,
}

/// State that a next run can begin with, and its proof.
#[derive(Clone)]
pub(in crate::source) struct SavedSnapshot {
    pub(in crate::source) proof: Bytes,
    pub(in crate::source) version: u128,
    pub(in crate::source) state: BTreeMap<String, (String, String)>,
}

// === impl Rig ===

impl Rig {
    /// Lists and watches a source, with short delays, and resumes from saved data, if there are any. `value` returns the
    /// compared part of an object.
    pub(in crate::source) fn follow(
        source: impl ListerWatcher,
        health: SourceHealth,
        kept: Option<&SavedSnapshot>,
        value: fn(&Object) -> String,
    ) -> Self {
        let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
        let backoff = BackoffConfig {
            initial: Duration::from_millis(1),
            max: Duration::from_millis(20),
            ..BackoffConfig::default()
        };
        let config = ReflectorConfig { first_list: ListVersion::MostRecent, backoff, ..ReflectorConfig::default() };
        let demand = source.demand();
        let mut reflector = Reflector::new(source, Arc::clone(&fifo), health.clone(), config);
        if let Some(kept) = kept {
            let mut list = List::new(Vec::new(), ResourceVersion::decimal(kept.version));
            reflector.resume(&mut list, &kept.proof, None).unwrap();
        }
        let (stats, checkpoints) = (Arc::clone(reflector.stats()), reflector.checkpoints().clone());
        let task = tokio::spawn(reflector.run());
        let version = kept.map_or(0, |kept| kept.version);
        let objects = kept.map(|kept| kept.state.clone()).unwrap_or_default();
        Self {
            fifo,
            checkpoints,
            health,
            demand,
            stats,
            task,
            value,
            state: objects,
            version,
            safe: version,
            history_rewrites: 0,
            new_namespaces: Vec::new(),
            expires_older: false,
        }
    }

    /// Returns the folded state, and its proof.
    pub(in crate::source) async fn kept(&mut self) -> SavedSnapshot {
        let proof = self.proof().await.expect("a proof");
        SavedSnapshot { proof, version: self.safe, state: self.state.clone() }
    }

    /// Returns the proof of the state; `None` if the source has none.
    pub(in crate::source) async fn proof(&mut self) -> Option<Bytes> {
        let checkpoints = self.checkpoints.clone();
        let mut taking = tokio::spawn(async move { drop(checkpoints.take().await) });
        loop {
            // Bookmarks may come before the proof.
            let popped = tokio::select! {
                biased;
                popped = timeout(DEADLINE, self.fifo.pop_batch(1, 1)) => popped.expect("an answer in time"),
                _ = &mut taking => return None,
            };
            match popped.unwrap().remove(0) {
                Delta::Checkpoint { proof, .. } => return Some(proof),
                delta => self.advance(delta.version().unwrap().number(), delta.closes()),
            }
        }
    }

    /// Folds the next delta, and returns its summary: `list 5`, `rewind 5`, `6 +a=1 -b`, `bookmark 7`, `7 ahead +a=1@9`.
    pub(in crate::source) async fn next(&mut self) -> String {
        let popped = timeout(DEADLINE, self.fifo.pop_batch(1, 1)).await.expect("something in time");
        let delta = popped.unwrap().remove(0);
        let version = delta.version().map_or(self.version, ResourceVersion::number);
        let closes = delta.closes();
        let text = match delta {
            Delta::Replace(list) => {
                // As the informer does.
                if version < self.version {
                    self.history_rewrites += 1;
                    (self.version, self.safe) = (0, 0);
                }
                self.replace(&list);
                format!("list {version}")
            }
            Delta::HistoryRewritten(list) => {
                self.history_rewrites += 1;
                (self.version, self.safe) = (0, 0);
                self.replace(&list);
                format!("rewind {version}")
            }
            Delta::Relist(events, _) => panic!("only a relay has an upstream that lists: {events:?}"),
            Delta::Checkpoint { .. } => "checkpoint".to_owned(),
            Delta::Changes { events, .. } if matches!(*events, [Event::Bookmark(_)]) => format!("bookmark {version}"),
            Delta::Changes { events, .. } if matches!(*events, [_, Event::Bookmark(_)]) => {
                assert_eq!(version, self.version, "what is ahead moves nobody on");
                return format!("{version} ahead{}@{}", self.apply(&events[0]), events[0].version());
            }
            Delta::Changes { events, .. } => {
                assert!(events.iter().all(|event| event.version().number() == version), "one revision: {events:?}");
                let told: String = events.iter().map(|event| self.apply(event)).collect();
                format!("{version}{told}")
            }
        };
        assert!(version >= self.version, "{text} after {}", self.version);
        let is_complete = version <= self.safe && self.health.late_changes() == 0;
        assert!(!is_complete || !text.contains(['+', '~', '-', '!']), "{text} is told again");
        self.advance(version, closes);
        text
    }

    fn advance(&mut self, version: u128, closes: bool) {
        match closes {
            true => self.safe = version,
            false if version > self.version => self.safe = version - 1,
            false => {}
        }
        self.version = version;
    }

    /// Returns the summary of the next delta that is no bookmark.
    pub(in crate::source) async fn told(&mut self) -> String {
        loop {
            let text = self.next().await;
            if !text.starts_with("bookmark") {
                return text;
            }
        }
    }

    /// Folds deltas up to a version, and compares the state.
    pub(in crate::source) async fn reach_state(
        &mut self,
        version: impl Into<u128>,
        state: impl FnOnce() -> BTreeMap<String, (String, String)>,
    ) {
        let version = version.into();
        while self.version < version {
            self.next().await;
        }
        assert_eq!(self.state, state());
    }

    fn replace(&mut self, list: &List) {
        let entry = |object: &Arc<Object>| (object.key().to_string(), (object.uid().to_owned(), (self.value)(object)));
        self.new_namespaces.clone_from(&list.new_namespaces);
        self.expires_older = list.expires_older;
        let is_kept = |key: &str, uid: &str| {
            let is_it = |item: &UnreadableItem| match &item.key {
                Some(named) => named.to_string() == key,
                None => item.uid.is_empty() || item.uid == uid,
            };
            list.unreadable.iter().any(is_it)
        };
        self.state.retain(|key, (uid, _)| is_kept(key, uid));
        self.state.extend(list.objects.iter().map(entry));
    }

    fn apply(&mut self, event: &Event) -> String {
        let (sign, object) = match event {
            Event::Added(object) => ('+', object),
            Event::Modified(object) => ('~', object),
            Event::Deleted(object) => ('-', object),
            Event::NotServed(object) => ('!', object),
            Event::Removed(object, _) => ('^', object),
            Event::Bookmark(_) => panic!("a bookmark in a transaction"),
        };
        let (key, value) = (object.key().to_string(), (self.value)(object));
        if !matches!(sign, '+' | '~') {
            self.state.remove(&key);
            return format!(" {sign}{key}");
        }
        let text = format!(" {sign}{key}={value}");
        self.state.insert(key, (object.uid().to_owned(), value));
        text
    }

    pub(in crate::source) fn lists(&self) -> u64 {
        self.stats.lists.load(Ordering::Relaxed)
    }

    /// Waits for an error of the source that contains this text, and returns it. A failure may have ended since.
    pub(in crate::source) async fn error(&self, part: &str) -> String {
        self.find_error(part, || self.health.failures().into_iter().chain(self.health.report().last_error).collect())
            .await
    }

    /// Waits until the state of the source has this text in its error.
    pub(in crate::source) async fn fails(&self, part: &str) {
        self.find_error(part, || self.health.report().last_error.into_iter().collect()).await;
    }

    async fn find_error(&self, part: &str, errors: impl Fn() -> Vec<String>) -> String {
        let said = async {
            loop {
                if let Some(error) = errors().into_iter().find(|error| error.contains(part)) {
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
