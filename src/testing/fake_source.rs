//! Upstream in memory, which a test changes and breaks.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::stream;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use super::fake_watcher::event;
use crate::{
    cache::{Delta, List, ListVersion, ListerWatcher, SourceError, Watch},
    model::{Event, EventType, Object, ObjectKey, ResourceVersion},
};

/// Upstream in memory (client-go's `FakeControllerSource`), for one Reflector; clones share it.
///
/// It counts versions: the empty source is at version 1, and each change has the next one. A watch receives every change after
/// its version, until the test closes or breaks it.
///
/// Objects are JSON in Kubernetes' form with a `metadata.name`, or anything that serializes to it. Others panic. As an API server
/// does, it writes `metadata.resourceVersion` to them, and `metadata.uid` to those without one: another one to each object that is added.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use informerd::{
///     cache::{ListVersion, ListerWatcher, SourceError},
///     testing::FakeSource,
/// };
/// use serde_json::json;
///
/// let pods = FakeSource::new();
/// let version = pods.add(&json!({ "metadata": { "namespace": "shop", "name": "web" } }));
/// assert_eq!(version.to_string(), "2");
/// assert_eq!(pods.list(ListVersion::MostRecent).await.unwrap().objects.len(), 1);
///
/// pods.delete("shop", "web");
/// pods.expire();
/// assert!(matches!(pods.watch(version).await, Err(SourceError::Expired(_))));
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FakeSource {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Signal of each new entry in the log.
    logged: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    version: u128,
    /// Oldest version that a watch can begin at.
    oldest: u128,
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    /// Input of all watches, in order.
    log: Vec<Entry>,
    /// Position in the log at which the present history begins.
    begins: usize,
    /// True from a rewrite of the history to the next list of the most recent state.
    is_rewritten: bool,
    list_failures: VecDeque<SourceError>,
    watch_failures: VecDeque<SourceError>,
}

#[derive(Debug)]
enum Entry {
    Change {
        event: Event,
        /// True if open watches do not receive it.
        is_dropped: bool,
    },
    /// End of all open watches, with or without an error.
    End(Option<SourceError>),
}

/// Position of one watch.
#[derive(Debug)]
struct Reader {
    shared: Arc<Shared>,
    logged: watch::Receiver<()>,
    next: usize,
    /// Length of the log when the watch was opened.
    opened_at: usize,
    has_ended: bool,
}

// === impl FakeSource ===

impl FakeSource {
    /// Makes an empty source.
    pub fn new() -> Self {
        let state = State {
            version: 1,
            oldest: 1,
            objects: BTreeMap::new(),
            log: Vec::new(),
            begins: 0,
            is_rewritten: false,
            list_failures: VecDeque::new(),
            watch_failures: VecDeque::new(),
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), logged: watch::Sender::new(()) }) }
    }

    /// Stores an object, and sends ADDED. Returns the version.
    pub fn add(&self, object: &impl Serialize) -> ResourceVersion {
        self.store(EventType::Added, object, false)
    }

    /// Stores an object, and sends MODIFIED. Returns the version.
    pub fn modify(&self, object: &impl Serialize) -> ResourceVersion {
        self.store(EventType::Modified, object, false)
    }

    /// Deletes an object, and sends DELETED. Returns the version.
    ///
    /// # Panics
    ///
    /// If there is no such object.
    pub fn delete(&self, namespace: &str, name: &str) -> ResourceVersion {
        self.remove(namespace, name, false)
    }

    /// Stores an object. Open watches miss it; a watch that begins before this version receives ADDED.
    pub fn add_drop_watch(&self, object: &impl Serialize) -> ResourceVersion {
        self.store(EventType::Added, object, true)
    }

    /// Stores an object. Open watches miss it; a watch that begins before this version receives MODIFIED.
    pub fn modify_drop_watch(&self, object: &impl Serialize) -> ResourceVersion {
        self.store(EventType::Modified, object, true)
    }

    /// Deletes an object. Open watches miss it; a watch that begins before this version receives DELETED.
    ///
    /// # Panics
    ///
    /// If there is no such object.
    pub fn delete_drop_watch(&self, namespace: &str, name: &str) -> ResourceVersion {
        self.remove(namespace, name, true)
    }

    /// Returns the version of the last change.
    pub fn version(&self) -> ResourceVersion {
        ResourceVersion::decimal(self.shared.state.lock().version)
    }

    /// Makes a list fail: the next one, or the one after those that fail already.
    pub fn fail_list(&self, error: SourceError) {
        self.shared.state.lock().list_failures.push_back(error);
    }

    /// Makes the opening of a watch fail: the next one, or the one after those that fail already.
    pub fn fail_watch(&self, error: SourceError) {
        self.shared.state.lock().watch_failures.push_back(error);
    }

    /// Closes the open watches, after the changes up to now.
    pub fn close_watches(&self) {
        self.log(|state| state.log.push(Entry::End(None)));
    }

    /// Expires the versions before the present one: no watch begins there any more. Open watches continue.
    pub fn expire(&self) {
        let mut state = self.shared.state.lock();
        state.oldest = state.version;
    }

    /// Rewrites the history, as if the upstream was restored from a backup of its present objects: they and their changes are
    /// numbered from 2 again. Open watches fail, and so does every request for an older version, until a list of the most
    /// recent state.
    pub fn rewrite_history(&self) {
        self.log(|state| {
            state.version = 1;
            for object in state.objects.values_mut() {
                state.version += 1;
                *object = Arc::new(written(object, state.version, ""));
            }
            state.oldest = state.version;
            state.is_rewritten = true;
            state.log.push(Entry::End(Some(rewritten())));
            state.begins = state.log.len();
        });
    }

    fn store(&self, event_type: EventType, object: &impl Serialize, is_dropped: bool) -> ResourceVersion {
        let body = serde_json::to_vec(object).expect("the object serializes to JSON");
        let first = ResourceVersion::decimal(1);
        let object = Object::from_json(body, "", first).expect("the object has Kubernetes' form and a metadata.name");
        self.log(|state| {
            let object = state.change(event_type, &object, is_dropped);
            state.objects.insert(object.key().clone(), Arc::clone(&object));
            object.version().clone()
        })
    }

    fn remove(&self, namespace: &str, name: &str, is_dropped: bool) -> ResourceVersion {
        let key = ObjectKey::new(namespace, name).expect("a key");
        self.log(|state| {
            let object = state.objects.remove(&key).unwrap_or_else(|| panic!("there is no object {key}"));
            state.change(EventType::Deleted, &object, is_dropped).version().clone()
        })
    }

    /// Changes the state, and wakes the watches.
    fn log<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.shared.state.lock());
        self.shared.logged.send_replace(());
        changed
    }
}

impl Default for FakeSource {
    fn default() -> Self {
        Self::new()
    }
}

impl ListerWatcher for FakeSource {
    async fn list(&self, at: ListVersion) -> Result<List, SourceError> {
        let mut state = self.shared.state.lock();
        if let Some(error) = state.list_failures.pop_front() {
            return Err(error);
        }
        if let ListVersion::NotOlderThan(version) = at {
            state.check(&version)?;
        }
        state.is_rewritten = false;
        let objects = state.objects.values().cloned().collect();
        Ok(List::new(objects, ResourceVersion::decimal(state.version)))
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        let mut state = self.shared.state.lock();
        if let Some(error) = state.watch_failures.pop_front() {
            return Err(error);
        }
        state.check(&from)?;
        if from.number() < state.oldest {
            return Err(SourceError::Expired(format!("{from} is older than {}", state.oldest)));
        }
        let is_after = |entry: &Entry| matches!(entry, Entry::Change { event, .. } if *event.version() > from);
        let opened_at = state.log.len();
        let next = state.log[state.begins..].iter().position(is_after).map_or(opened_at, |at| state.begins + at);
        let (shared, logged) = (Arc::clone(&self.shared), self.shared.logged.subscribe());
        let reader = Reader { shared, logged, next, opened_at, has_ended: false };
        Ok(Box::pin(stream::unfold(reader, Reader::next)))
    }

    /// Returns [`Duration::MAX`]: the source may be silent for ever.
    fn heartbeat(&self) -> Duration {
        Duration::MAX
    }
}

// === impl State ===

impl State {
    /// Logs a change at the next version, and returns the object at that version.
    fn change(&mut self, event_type: EventType, object: &Object, is_dropped: bool) -> Arc<Object> {
        self.version += 1;
        let uid =
            self.objects.get(object.key()).map_or_else(|| format!("uid-{}", self.version), |old| old.uid().to_owned());
        let object = Arc::new(written(object, self.version, &uid));
        self.log.push(Entry::Change { event: event(event_type, Arc::clone(&object)), is_dropped });
        object
    }

    /// Checks that this history has a version.
    fn check(&self, version: &ResourceVersion) -> Result<(), SourceError> {
        if self.is_rewritten {
            return Err(rewritten());
        }
        if version.number() > self.version {
            return Err(SourceError::VersionTooLarge(format!("{version} is newer than {}", self.version)));
        }
        Ok(())
    }
}

// === impl Reader ===

impl Reader {
    /// Waits for the next item; `None` after the end.
    async fn next(mut self) -> Option<(Result<Delta, SourceError>, Self)> {
        loop {
            self.logged.mark_unchanged();
            if let Poll::Ready(item) = self.read() {
                return item.map(|item| (item, self));
            }
            self.logged.changed().await.ok()?;
        }
    }

    /// Returns the next item or the end, if the log has it.
    fn read(&mut self) -> Poll<Option<Result<Delta, SourceError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let state = self.shared.state.lock();
        while let Some(entry) = state.log.get(self.next) {
            let was_open = self.next >= self.opened_at;
            self.next += 1;
            match entry {
                Entry::Change { event, is_dropped } if !(was_open && *is_dropped) => {
                    return Poll::Ready(Some(Ok(Delta::event(event.clone()))));
                }
                Entry::End(error) if was_open => {
                    self.has_ended = true;
                    return Poll::Ready(error.clone().map(Err));
                }
                Entry::Change { .. } | Entry::End(_) => {}
            }
        }
        Poll::Pending
    }
}

/// Returns the object as the source stores it.
fn written(object: &Object, version: u128, uid: &str) -> Object {
    let mut body: Value = serde_json::from_slice(object.body()).expect("it is JSON");
    let metadata = &mut body["metadata"];
    metadata["resourceVersion"] = version.to_string().into();
    if object.uid().is_empty() {
        metadata["uid"] = uid.into();
    }
    let version = ResourceVersion::decimal(version);
    Object::from_json(body.to_string(), "", version).expect("it was an object")
}

fn rewritten() -> SourceError {
    SourceError::HistoryRewritten("restored from a backup".to_owned())
}
