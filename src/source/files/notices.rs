//! Change notices of the operating system: a bounded set of paths that may have changed.
//!
//! The thread of `notify` writes it; `live` waits for it, and owns it: dropping [`Notices`] ends the thread.
//!
//! Invariants:
//! - The set is bounded: above [`MAX_PATHS`] it only records that anything may have changed.
//! - No mark is lost between two reads: one that comes while a set is being processed is in the next one.
//! - A notice is a hint. A scan determines the actual change; the periodic scan finds changes without a notice.
//! - A file counts as being written from its first modification to its close, for at most [`MAX_PATHS`] files; for the same
//!   files the time of the last close is known.
//!
//! `unfinished` interprets a file that is being written, `scan` interprets paths.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use notify::{
    ErrorKind, EventKind, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, ModifyKind, RemoveKind},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::root::Root;

/// Limit of the remembered paths. To check more of them costs about as much as a scan of everything.
const MAX_PATHS: usize = 1024;

/// True if the system reports that a file was closed after it was written, as inotify does.
const REPORTS_CLOSE: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Delay before the next attempt to subscribe, after one failed.
const RETRY: Duration = Duration::from_secs(60);

/// Possible changes since the last read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dirty {
    /// These paths, absolute; none if the set is empty.
    Paths(BTreeSet<PathBuf>),
    /// Anything.
    Everything,
}

/// Set of marks, shared with the thread that fills it.
#[derive(Debug)]
pub(super) struct DirtySet {
    marks: Mutex<Dirty>,
    /// State of the paths with the most recent notices.
    noticed: Mutex<BTreeMap<PathBuf, Noticed>>,
    /// Reason why the watch does not cover everything below the directory, with the remedy.
    fault: Mutex<Option<String>>,
    wake: Notify,
}

/// State of one path according to its notices.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Noticed {
    /// Time of the last close or rename, by the clock of file times.
    pub(super) finished_at: Option<SystemTime>,
    /// Time of the first modification since the last close.
    pub(super) written_since: Option<Instant>,
}

/// Running subscription to the operating system, until it is dropped.
pub(super) type Subscription = Box<dyn Any + Send + Sync>;

/// Subscribes to everything below a directory. Injected, so that tests can replace it or make it fail.
pub(super) type Subscribe = fn(&Path, Arc<DirtySet>) -> Result<Subscription, SubscribeError>;

/// Reason why there is no subscription, with the remedy.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubscribeError {
    /// The directory, or one below it, was removed meanwhile. It may exist again at once.
    #[error("{0}")]
    Gone(String),
    /// The system refused, for example because of a limit.
    #[error("{0}")]
    Refused(String),
}

/// Notices about one directory, which may be replaced by another.
pub(super) struct Notices {
    subscribe: Subscribe,
    dirty: Arc<DirtySet>,
    state: State,
}

enum State {
    /// No subscription yet.
    Idle,
    Subscribed {
        root: Root,
        at: Instant,
        _subscription: Subscription,
    },
    Failed {
        root: Root,
        at: Instant,
        reason: String,
    },
}

// === impl DirtySet ===

impl DirtySet {
    fn new() -> Self {
        let marks = Mutex::new(Dirty::Paths(BTreeSet::new()));
        Self { marks, noticed: Mutex::default(), fault: Mutex::default(), wake: Notify::new() }
    }

    /// Marks one path.
    pub(super) fn mark(&self, path: PathBuf) {
        {
            let mut marks = self.marks.lock();
            match &mut *marks {
                Dirty::Everything => {}
                Dirty::Paths(paths) if paths.len() < MAX_PATHS || paths.contains(&path) => {
                    paths.insert(path);
                }
                Dirty::Paths(_) => *marks = Dirty::Everything,
            }
        }
        self.wake.notify_one();
    }

    /// Marks a file that is being written.
    pub(super) fn mark_written(&self, path: PathBuf) {
        self.note(path, |noticed| noticed.written_since = noticed.written_since.or_else(|| Some(Instant::now())));
    }

    /// Marks a file that is no longer written: it was closed, or another file has its path.
    pub(super) fn mark_finished(&self, path: PathBuf) {
        self.note(path, |noticed| *noticed = Noticed { finished_at: Some(SystemTime::now()), written_since: None });
    }

    /// Updates the state of a file, and marks it.
    fn note(&self, path: PathBuf, change: impl FnOnce(&mut Noticed)) {
        {
            let mut all = self.noticed.lock();
            if all.len() >= MAX_PATHS && !all.contains_key(&path) {
                // A file that has been open longest has probably counted as written for as long as it may.
                let order = |noticed: &Noticed| (noticed.written_since, noticed.finished_at);
                let first = all.iter().min_by_key(|(_, noticed)| order(noticed)).map(|(path, _)| path.clone());
                first.and_then(|first| all.remove(&first));
            }
            change(all.entry(path.clone()).or_default());
        }
        self.mark(path);
    }

    /// Marks everything.
    pub(super) fn mark_everything(&self) {
        *self.marks.lock() = Dirty::Everything;
        self.wake.notify_one();
    }

    /// Returns the state of this absolute path; `None` if it had no notice, or no recent one.
    pub(super) fn noticed(&self, path: &Path) -> Option<Noticed> {
        self.noticed.lock().get(path).copied()
    }

    /// Forgets the state of all paths, because the notice of a close may have been lost.
    fn forget_noticed(&self) {
        self.noticed.lock().clear();
    }

    /// Records that the watch has become incomplete.
    fn set_fault(&self, reason: String) {
        *self.fault.lock() = Some(reason);
        self.mark_everything();
    }

    /// Waits for a mark since the last call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no mark.
    pub(super) async fn marked(&self) {
        self.wake.notified().await;
    }

    /// Takes the set, and leaves an empty one.
    pub(super) fn take(&self) -> Dirty {
        std::mem::replace(&mut *self.marks.lock(), Dirty::Paths(BTreeSet::new()))
    }
}

// === impl Notices ===

impl Notices {
    /// Returns notices without a subscription, until [`Notices::follow`].
    pub(super) fn new(subscribe: Subscribe) -> Self {
        Self { subscribe, dirty: Arc::new(DirtySet::new()), state: State::Idle }
    }

    /// Returns the set that the subscription fills.
    pub(super) fn dirty(&self) -> &Arc<DirtySet> {
        &self.dirty
    }

    /// Subscribes to this directory, unless that has been done; a subscription to an earlier one at the same path ends.
    ///
    /// # Errors
    ///
    /// The reason why not all changes cause notices, with the remedy. The next attempt is a minute later, or at the next call if
    /// a directory was only removed meanwhile.
    pub(super) fn follow(&mut self, root: &Root) -> Result<(), String> {
        match &self.state {
            State::Subscribed { root: known, at, .. } if known == root => match &*self.dirty.fault.lock() {
                None => return Ok(()),
                Some(reason) if at.elapsed() < RETRY => return Err(reason.clone()),
                Some(_) => {}
            },
            State::Failed { root: known, at, reason } if known == root && at.elapsed() < RETRY => {
                return Err(reason.clone());
            }
            State::Idle | State::Subscribed { .. } | State::Failed { .. } => {}
        }
        // The old subscription ends before the new one begins: both at once could exceed a limit.
        self.state = State::Idle;
        self.dirty.forget_noticed();
        *self.dirty.fault.lock() = None;
        let (root, at) = (root.clone(), Instant::now());
        match (self.subscribe)(&root.path, self.dirty.clone()) {
            Ok(subscription) => {
                self.state = State::Subscribed { root, at, _subscription: subscription };
                Ok(())
            }
            Err(SubscribeError::Gone(reason)) => Err(reason),
            Err(SubscribeError::Refused(reason)) => {
                self.state = State::Failed { root, at, reason: reason.clone() };
                Err(reason)
            }
        }
    }

    /// Ends the subscription, until the next [`Notices::follow`].
    pub(super) fn forget(&mut self) {
        self.state = State::Idle;
    }
}

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notices").field("dirty", &self.dirty).finish_non_exhaustive()
    }
}

/// Subscribes with `notify`: inotify on Linux.
pub(super) fn subscribe(root: &Path, dirty: Arc<DirtySet>) -> Result<Subscription, SubscribeError> {
    let base = root.to_owned();
    let handle = move |event: notify::Result<notify::Event>| match event {
        Ok(event) if !changes(event.kind) => {}
        Ok(event) if event.need_rescan() || event.paths.is_empty() || event.paths.contains(&base) => {
            dirty.forget_noticed();
            dirty.mark_everything();
        }
        Ok(event) => {
            let mark = match event.kind {
                EventKind::Modify(ModifyKind::Data(_)) if REPORTS_CLOSE => DirtySet::mark_written,
                EventKind::Modify(ModifyKind::Name(_))
                | EventKind::Remove(RemoveKind::File)
                | EventKind::Access(AccessKind::Close(AccessMode::Write)) => DirtySet::mark_finished,
                _ => DirtySet::mark,
            };
            event.paths.into_iter().for_each(|path| mark(&dirty, path));
        }
        // New directories have no notices from now on, until the periodic scan.
        Err(error) => dirty.set_fault(explained(&error)),
    };
    // Only the scan follows links, because it checks them: their targets are below the root themselves.
    let config = notify::Config::default().with_follow_symlinks(false);
    let mut watcher = notify::RecommendedWatcher::new(handle, config).map_err(|error| refused(&error))?;
    watcher.watch(root, RecursiveMode::Recursive).map_err(|error| refused(&error))?;
    Ok(Box::new(watcher))
}

fn refused(error: &notify::Error) -> SubscribeError {
    let is_gone = match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        _ => false,
    };
    if is_gone { SubscribeError::Gone(explained(error)) } else { SubscribeError::Refused(explained(error)) }
}

/// Returns true for a change. A read is none; otherwise the source's own reads would cause notices for ever.
fn changes(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

fn explained(error: &notify::Error) -> String {
    format!("{}; {}", super::text::one_line(&error.to_string()), advice(&error.kind))
}

fn advice(kind: &ErrorKind) -> &'static str {
    // EMFILE: the limit on instances has the same error as the limit on open files.
    const EMFILE: i32 = 24;
    match kind {
        ErrorKind::MaxFilesWatch => "raise the sysctl fs.inotify.max_user_watches",
        ErrorKind::Io(error) if error.raw_os_error() == Some(EMFILE) => {
            "raise the sysctl fs.inotify.max_user_instances, or the limit on open files"
        }
        _ => "the directory is scanned at its interval",
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    #[test]
    fn too_many_paths_become_everything() {
        let set = DirtySet::new();
        for n in 0..MAX_PATHS {
            set.mark(format!("/{n}").into());
        }
        set.mark("/0".into());
        assert!(matches!(set.take(), Dirty::Paths(paths) if paths.len() == MAX_PATHS));
        for n in 0..=MAX_PATHS {
            set.mark(format!("/{n}").into());
        }
        assert_eq!(set.take(), Dirty::Everything);
        assert_eq!(set.take(), Dirty::Paths(BTreeSet::new()));
    }

    #[test]
    fn a_mark_wakes_whoever_waits_later() {
        let set = DirtySet::new();
        assert_pending!(task::spawn(set.marked()).poll());
        set.mark("/a".into());
        set.mark_everything();
        assert_ready!(task::spawn(set.marked()).poll());
        assert_pending!(task::spawn(set.marked()).poll());
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_is_written_from_its_first_modification_until_it_is_closed() {
        let set = DirtySet::new();
        let begin = Instant::now();
        set.mark_written("/a".into());
        tokio::time::advance(RETRY).await;
        set.mark_written("/a".into());
        let since = |path: &str| set.noticed(Path::new(path)).and_then(|noticed| noticed.written_since);
        assert_eq!(since("/a"), Some(begin));
        set.mark_finished("/a".into());
        assert_eq!(since("/a"), None);
        assert_eq!(set.take(), Dirty::Paths(BTreeSet::from(["/a".into()])));
        set.mark_written("/first".into());
        for n in 0..MAX_PATHS {
            tokio::time::advance(Duration::from_nanos(1)).await;
            set.mark_written(format!("/{n}").into());
        }
        assert_eq!(set.noticed.lock().len(), MAX_PATHS, "bounded");
        assert_eq!(since("/first"), None, "the oldest goes first");
        set.forget_noticed();
        assert_eq!(since("/1"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_stands_until_a_later_try_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let mut notices = Notices::new(|_, _| Err(SubscribeError::Refused("no".into())));
        assert_eq!(notices.follow(&root), Err("no".into()));
        notices.subscribe = |_, _| Ok(Box::new(()));
        assert_eq!(notices.follow(&root), Err("no".into()), "not tried again yet");
        tokio::time::advance(RETRY).await;
        assert_eq!(notices.follow(&root), Ok(()));
        // The limit is reached with a new directory.
        notices.dirty().set_fault("full".into());
        assert_eq!(notices.dirty().take(), Dirty::Everything);
        assert_eq!(notices.follow(&root), Err("full".into()));
        tokio::time::advance(RETRY).await;
        assert_eq!(notices.follow(&root), Ok(()));
    }
}
