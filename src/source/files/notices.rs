//! What the operating system says about changes in the directory: a bounded set of paths that may have changed.
//!
//! Written by the thread of `notify`; read by `live`, which waits for it, and owned by it: dropping [`Notices`] ends the
//! thread.
//!
//! Invariants:
//! - The set is bounded: past [`MAX_PATHS`] it only says that anything may have changed.
//! - Nothing is lost between two readings: a mark that comes while the set is being dealt with is in the next one.
//! - A notice is a hint. What has changed, a scan finds out; what no notice told, the periodic scan finds.
//! - A file counts as being written from its first modification to its close, of at most [`MAX_PATHS`] files; of as many the
//!   time of the last close is known.
//!
//! Not here: what follows from a file that is being written (`unfinished`), and what a path means (`scan`).

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

/// The paths that are remembered one by one. Looking at more of them costs about as much as looking at everything.
const MAX_PATHS: usize = 1024;

/// Whether the system reports that a file was closed after it was written: inotify does.
const REPORTS_CLOSE: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// How long to do without notices after they could not be had, before asking for them again.
const RETRY: Duration = Duration::from_secs(60);

/// What may have changed since the last reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dirty {
    /// These paths, absolute; none if the set is empty.
    Paths(BTreeSet<PathBuf>),
    /// Anything.
    Everything,
}

/// The set, shared with the thread that fills it.
#[derive(Debug)]
pub(super) struct DirtySet {
    marks: Mutex<Dirty>,
    /// What is known of the paths that had a notice last.
    noticed: Mutex<BTreeMap<PathBuf, Noticed>>,
    /// Why not everything below the directory is watched; what to do about it.
    fault: Mutex<Option<String>>,
    wake: Notify,
}

/// What the notices of one path say.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Noticed {
    /// When the last one of a close or a rename came, by the clock that files have their times from.
    pub(super) finished_at: Option<SystemTime>,
    /// The first modification since the file was closed last.
    pub(super) written_since: Option<Instant>,
}

/// The running subscription to the operating system: dropping it ends it.
pub(super) type Subscription = Box<dyn Any + Send + Sync>;

/// Subscribes to everything below a directory. Injected, so that tests can do without, or fail.
pub(super) type Subscribe = fn(&Path, Arc<DirtySet>) -> Result<Subscription, SubscribeError>;

/// Why there is no subscription, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubscribeError {
    /// The directory, or one below it, was taken away meanwhile. It may be back at once.
    #[error("{0}")]
    Gone(String),
    /// A limit was reached, for example.
    #[error("{0}")]
    Refused(String),
}

/// The notices about one directory, wherever it goes.
pub(super) struct Notices {
    subscribe: Subscribe,
    dirty: Arc<DirtySet>,
    state: State,
}

enum State {
    /// Not asked for yet.
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

    /// Marks a file that somebody writes.
    pub(super) fn mark_written(&self, path: PathBuf) {
        self.note(path, |noticed| noticed.written_since = noticed.written_since.or_else(|| Some(Instant::now())));
    }

    /// Marks a file that is not written any more: it was closed, or something else has its path.
    pub(super) fn mark_finished(&self, path: PathBuf) {
        self.note(path, |noticed| *noticed = Noticed { finished_at: Some(SystemTime::now()), written_since: None });
    }

    /// Takes note of a file, and marks it.
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

    /// What the notices of this absolute path say; `None` if none has come, or not lately.
    pub(super) fn noticed(&self, path: &Path) -> Option<Noticed> {
        self.noticed.lock().get(path).copied()
    }

    /// Forgets what the notices of each path say: the notice of a close may have been lost.
    fn forget_noticed(&self) {
        self.noticed.lock().clear();
    }

    /// Takes note that the watch has become incomplete.
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
    /// No notices yet, until [`Notices::follow`].
    pub(super) fn new(subscribe: Subscribe) -> Self {
        Self { subscribe, dirty: Arc::new(DirtySet::new()), state: State::Idle }
    }

    /// The set that is filled.
    pub(super) fn dirty(&self) -> &Arc<DirtySet> {
        &self.dirty
    }

    /// Makes sure that the notices are about this directory, and not about one that was at the same path before.
    ///
    /// # Errors
    ///
    /// When not all changes are noticed: why, and what to do. It is tried again once a minute, and the next time if something
    /// has only gone away.
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
        // The old subscription ends before the new one begins: both at once could be one too many.
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

    /// Does without notices until the directory is another one.
    pub(super) fn forget(&mut self) {
        self.state = State::Idle;
    }
}

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notices").field("dirty", &self.dirty).finish_non_exhaustive()
    }
}

/// Subscribes by way of `notify`: inotify on Linux.
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
        // New directories go unnoticed from now on, until the periodic scan.
        Err(error) => dirty.set_fault(explained(&error)),
    };
    // Links are followed by the scan, which knows which ones may be: their targets are below the root themselves.
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

/// Reading is not changing; our own reading would wake us for ever.
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
    // EMFILE: the limit on instances shows itself as the limit on open files does.
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
