//! Tests of the source from the Reflector's side, over real directories.

mod layout;
mod live;
mod outage;
mod problems;
mod replaced;
mod unfinished;
mod unread;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::{
    DEFAULT_QUIET, FilesConfig, FilesSource,
    notices::{self, Subscribe},
};
use crate::{
    cache::{ListVersion, ListerWatcher, Problem, ProblemReason, SourceError, SourceHealth, Watch},
    model::{Event, Object, ResourceVersion},
    source::tests::sole_event,
};

/// Limit of every wait in a test.
const DEADLINE: Duration = Duration::from_secs(20);

/// Interval longer than every test: every change is found by a notice.
const NEVER: Duration = Duration::from_secs(3600);

/// Interval for changes that only the periodic scan can find.
const SOON: Duration = Duration::from_millis(50);

/// Directory and its source.
struct Rig {
    dir: TempDir,
    source: FilesSource,
    health: SourceHealth,
}

/// Watch, and the state that its events lead to: the body by key.
struct Follower {
    watch: Watch,
    state: BTreeMap<String, Arc<Object>>,
    version: ResourceVersion,
    /// Changes, such as `+x`, `~x`, `-x`.
    seen: Vec<String>,
}

fn without_notices(_: &Path, _: Arc<notices::DirtySet>) -> notify::Result<notices::Subscription> {
    Err(notify::Error::generic("no notices here"))
}

impl Rig {
    fn new() -> Self {
        Self::with(NEVER, |_| {}, notices::subscribe)
    }

    fn scanning(rescan: Duration) -> Self {
        Self::with(rescan, |_| {}, without_notices)
    }

    fn of_kind(kind: &str) -> Self {
        Self::with(NEVER, |config| config.kind = Some(kind.into()), notices::subscribe)
    }

    /// Starts a source of a directory within the temporary one, so that the directory can be removed.
    fn with(rescan: Duration, change: impl FnOnce(&mut FilesConfig), subscribe: Subscribe) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        let mut config = FilesConfig::new(dir.path().join("root"), "test");
        (config.rescan, config.quiet) = (rescan, DEFAULT_QUIET / 5);
        change(&mut config);
        let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(15));
        let source = FilesSource::with_subscribe(config, health.clone(), subscribe);
        Self { dir, source, health }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join("root").join(relative)
    }

    fn write(&self, relative: &str, text: impl AsRef<[u8]>) {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Replaces a file by a new one, as careful editors and tools do.
    fn replace(&self, relative: &str, text: &str) {
        let temporary = self.path(&format!(".{relative}.tmp"));
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.path(relative)).unwrap();
    }

    fn remove(&self, relative: &str) {
        fs::remove_file(self.path(relative)).unwrap();
    }

    fn link(&self, target: impl AsRef<Path>, relative: &str) {
        std::os::unix::fs::symlink(target, self.path(relative)).unwrap();
    }

    async fn keys(&self) -> Vec<String> {
        let list = self.source.list(ListVersion::MostRecent).await.unwrap();
        list.objects.iter().map(|object| object.key().to_string()).collect()
    }

    /// Returns the only object's body.
    async fn body(&self) -> String {
        let list = self.source.list(ListVersion::MostRecent).await.unwrap();
        assert_eq!(list.objects.len(), 1, "{:?}", list.objects);
        String::from_utf8(list.objects[0].body().to_vec()).unwrap()
    }

    fn problem(&self) -> String {
        let mut invalid = self.invalid();
        assert_eq!(invalid.len(), 1, "{invalid:?}");
        invalid.remove(0)
    }

    /// Returns the problems of files.
    fn invalid(&self) -> Vec<String> {
        self.health.problems_of(&[ProblemReason::FileInvalid]).iter().map(Problem::to_string).collect()
    }

    /// Lists, watches, and waits until the watch is ready.
    async fn follow(&self) -> Follower {
        let list = self.source.list(ListVersion::MostRecent).await.unwrap();
        let watch = self.source.watch(list.version.clone()).await.unwrap();
        let state = list.objects.into_iter().map(|object| (object.key().to_string(), object)).collect();
        let mut follower = Follower { watch, state, version: list.version, seen: Vec::new() };
        follower.bookmark().await;
        follower
    }
}

impl Follower {
    /// Returns the next event after it has checked its version and applied it.
    async fn next(&mut self) -> Event {
        let delta = timeout(DEADLINE, self.watch.next()).await.expect("an event in time").expect("no end").unwrap();
        let event = sole_event(delta);
        let sign = match &event {
            Event::Added(_) => '+',
            Event::Modified(_) => '~',
            Event::Deleted(_) => '-',
            Event::NotServed(_) | Event::Removed(_, _) => panic!("the last good state is kept: {event:?}"),
            Event::Bookmark(version) => {
                assert_eq!(version, &self.version);
                return event;
            }
        };
        let (Event::Added(object) | Event::Modified(object) | Event::Deleted(object)) = &event else { unreachable!() };
        assert_eq!(object.version(), &self.version.next(), "no version is left out");
        self.version = object.version().clone();
        let key = object.key().to_string();
        self.seen.push(format!("{sign}{key}"));
        match &event {
            Event::Deleted(_) => assert!(self.state.remove(&key).is_some()),
            _ => drop(self.state.insert(key, object.clone())),
        }
        event
    }

    async fn bookmark(&mut self) {
        while !matches!(self.next().await, Event::Bookmark(_)) {}
    }

    /// Waits for `count` changes, and returns all changes since the last call.
    async fn changes(&mut self, count: usize) -> Vec<String> {
        while self.seen.len() < count {
            self.next().await;
        }
        std::mem::take(&mut self.seen)
    }

    /// Polls the watch until `condition` holds, and applies its events.
    async fn until(&mut self, mut condition: impl FnMut(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while !condition(self) {
            assert!(tokio::time::Instant::now() < deadline, "the condition did not come to hold");
            // Cancel-safe: the watch keeps the step that was begun.
            drop(timeout(Duration::from_millis(10), self.next()).await);
        }
    }

    fn body(&self, key: &str) -> &str {
        std::str::from_utf8(self.state[key].body()).unwrap()
    }
}

fn pod(name: &str, value: impl std::fmt::Display) -> String {
    format!(r#"{{"kind":"Pod","metadata":{{"name":"{name}"}},"value":"{value}"}}"#)
}
