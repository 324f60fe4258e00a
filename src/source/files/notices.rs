//! Change notices of the operating system.
//!
//! The thread of `notify` writes them; `live` waits for them, and owns them: dropping [`Notices`] ends the thread.
//!
//! Invariants:
//! - No mark is lost: one that comes during a scan leads to the next one.
//! - A notice is a hint. A scan determines the actual change; the periodic scan finds changes without a notice.
//! - A file counts as being written from its first modification to its close, for at most [`MAX_PATHS`] files; for the same
//!   files the time of the last close is known.
//!
//! `unfinished` interprets a file that is being written.

use std::{
    any::Any,
    collections::BTreeMap,
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
use rustix::io::Errno;
use tokio::{sync::Notify, time::Instant};

use super::root::Root;
use crate::source::text::one_line;

/// Limit of the paths with a remembered state.
const MAX_PATHS: usize = 1024;

/// True if the system reports that a file was closed after it was written, as inotify does.
const REPORTS_CLOSE: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Delay before the next attempt to subscribe, after one failed.
const RETRY: Duration = Duration::from_secs(60);

/// State of the notices, shared with the thread that writes it.
#[derive(Debug, Default)]
pub(super) struct DirtySet {
    /// State of the paths with the most recent notices.
    noticed: Mutex<BTreeMap<PathBuf, Noticed>>,
    /// Reason why the subscription does not cover everything below the directory, or was refused, with the remedy.
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
    attempt: Option<Attempt>,
}

/// Last attempt to subscribe.
struct Attempt {
    root: Root,
    at: Instant,
    /// The subscription; `None` if the system refused it.
    _subscription: Option<Subscription>,
}

// === impl DirtySet ===

impl DirtySet {
    /// Marks a change.
    pub(super) fn mark(&self) {
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
            change(all.entry(path).or_default());
        }
        self.mark();
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
        self.mark();
    }

    /// Waits for a mark since the last call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no mark.
    pub(super) async fn marked(&self) {
        self.wake.notified().await;
    }
}

// === impl Notices ===

impl Notices {
    /// Returns notices without a subscription, until [`Notices::follow`].
    pub(super) fn new(subscribe: Subscribe) -> Self {
        Self { subscribe, dirty: Arc::default(), attempt: None }
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
        if let Some(attempt) = self.attempt.as_ref().filter(|attempt| attempt.root == *root) {
            match &*self.dirty.fault.lock() {
                None => return Ok(()),
                Some(reason) if attempt.at.elapsed() < RETRY => return Err(reason.clone()),
                Some(_) => {}
            }
        }
        // The old subscription ends before the new one begins: both at once could exceed a limit.
        self.attempt = None;
        self.dirty.forget_noticed();
        *self.dirty.fault.lock() = None;
        let (at, subscribed) = (Instant::now(), (self.subscribe)(&root.path, self.dirty.clone()));
        let (subscription, outcome) = match subscribed {
            Ok(subscription) => (Some(subscription), Ok(())),
            Err(SubscribeError::Gone(reason)) => return Err(reason),
            Err(SubscribeError::Refused(reason)) => {
                *self.dirty.fault.lock() = Some(reason.clone());
                (None, Err(reason))
            }
        };
        self.attempt = Some(Attempt { root: root.clone(), at, _subscription: subscription });
        outcome
    }

    /// Ends the subscription, until the next [`Notices::follow`].
    pub(super) fn forget(&mut self) {
        self.attempt = None;
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
            dirty.mark();
        }
        Ok(event) => match event.kind {
            EventKind::Modify(ModifyKind::Data(_)) if REPORTS_CLOSE => {
                event.paths.into_iter().for_each(|path| dirty.mark_written(path));
            }
            EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Remove(RemoveKind::File)
            | EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                event.paths.into_iter().for_each(|path| dirty.mark_finished(path));
            }
            _ => dirty.mark(),
        },
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
    format!("{}; {}", one_line(&error.to_string()), advice(&error.kind))
}

fn advice(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::MaxFilesWatch => "raise the sysctl fs.inotify.max_user_watches",
        // The limit on instances has the same error as the limit on open files.
        ErrorKind::Io(error) if Errno::from_io_error(error) == Some(Errno::MFILE) => {
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
    fn a_mark_wakes_a_later_waiter() {
        let set = DirtySet::default();
        assert_pending!(task::spawn(set.marked()).poll());
        set.mark();
        set.mark();
        assert_ready!(task::spawn(set.marked()).poll());
        assert_pending!(task::spawn(set.marked()).poll());
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_is_written_from_its_first_modification_until_it_is_closed() {
        let set = DirtySet::default();
        let begin = Instant::now();
        set.mark_written("/a".into());
        tokio::time::advance(RETRY).await;
        set.mark_written("/a".into());
        let since = |path: &str| set.noticed(Path::new(path)).and_then(|noticed| noticed.written_since);
        assert_eq!(since("/a"), Some(begin));
        set.mark_finished("/a".into());
        assert_eq!(since("/a"), None);
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
        assert_ready!(task::spawn(notices.dirty().marked()).poll());
        assert_eq!(notices.follow(&root), Err("full".into()));
        tokio::time::advance(RETRY).await;
        assert_eq!(notices.follow(&root), Ok(()));
    }
}
