//! Change notices of the operating system.
//!
//! The thread of `notify` writes them; `live` waits for them, and owns them: dropping [`Notices`] ends the thread.
//!
//! Invariants:
//! - No mark is lost: one that comes during a scan leads to the next one.
//! - A notice is a hint. A scan determines the actual change; the periodic scan finds changes without a notice.
//! - A file is open from its first modification to its close, for at most [`MAX_PATHS`] files; for the same files the time of the
//!   last close is known.
//!
//! `readiness` decides by that if the content of a file is applied.

use std::{
    any::Any,
    collections::BTreeMap,
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

use super::root::{Root, is_absent};
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

/// State of one path according to its notices. In the order in which they are forgotten: the longest open file has probably
/// waited for as long as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Noticed {
    /// Time of the last close or rename, by the clock of file times.
    Finished(SystemTime),
    /// Time of the first modification since the last close.
    Open(Instant),
}

/// Running subscription to the operating system, until it is dropped.
pub(super) type Subscription = Box<dyn Any + Send + Sync>;

/// Subscribes to everything below a directory. Injected, so that tests can replace it or make it fail.
pub(super) type Subscribe = fn(&Path, Arc<DirtySet>) -> notify::Result<Subscription>;

/// Notices about one directory, which may be replaced by another.
#[derive(Debug)]
pub(super) struct Notices {
    subscribe: Subscribe,
    dirty: Arc<DirtySet>,
    /// Last attempt to subscribe: the directory, the time, and the subscription unless the system refused it.
    attempt: Option<(Root, Instant, Option<Subscription>)>,
}

// === impl DirtySet ===

impl DirtySet {
    /// Marks a change.
    pub(super) fn mark(&self) {
        self.wake.notify_one();
    }

    /// Records that a file is being written, or no longer: it was closed, or another file has its path.
    pub(super) fn note(&self, path: PathBuf, is_open: bool) {
        let mut all = self.noticed.lock();
        if all.len() >= MAX_PATHS && !all.contains_key(&path) {
            let first = all.iter().min_by_key(|(_, noticed)| **noticed).map(|(path, _)| path.clone());
            first.and_then(|first| all.remove(&first));
        }
        let new = if is_open { Noticed::Open(Instant::now()) } else { Noticed::Finished(SystemTime::now()) };
        let noticed = all.entry(path).or_insert(new);
        if !is_open || !matches!(noticed, Noticed::Open(_)) {
            *noticed = new;
        }
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
        if let Some((_, at, _)) = self.attempt.as_ref().filter(|(followed, ..)| followed == root) {
            match &*self.dirty.fault.lock() {
                None => return Ok(()),
                Some(reason) if at.elapsed() < RETRY => return Err(reason.clone()),
                Some(_) => {}
            }
        }
        // The old subscription ends before the new one begins: both at once could exceed a limit.
        self.attempt = None;
        self.dirty.forget_noticed();
        *self.dirty.fault.lock() = None;
        let at = Instant::now();
        let error = match (self.subscribe)(&root.path, self.dirty.clone()) {
            Ok(subscription) => {
                self.attempt = Some((root.clone(), at, Some(subscription)));
                return Ok(());
            }
            Err(error) => error,
        };
        let reason = explained(&error);
        if !is_gone(&error) {
            *self.dirty.fault.lock() = Some(reason.clone());
            self.attempt = Some((root.clone(), at, None));
        }
        Err(reason)
    }

    /// Ends the subscription, until the next [`Notices::follow`].
    pub(super) fn forget(&mut self) {
        self.attempt = None;
    }
}

/// Subscribes with `notify`: inotify on Linux.
pub(super) fn subscribe(root: &Path, dirty: Arc<DirtySet>) -> notify::Result<Subscription> {
    let base = root.to_owned();
    let handle = move |event: notify::Result<notify::Event>| {
        let event = match event {
            Ok(event) => event,
            // New directories have no notices from now on, until the periodic scan.
            Err(error) => return dirty.set_fault(explained(&error)),
        };
        let is_open = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Remove(RemoveKind::File) => Some(false),
            // A read is no change; otherwise the source's own reads would cause notices for ever.
            EventKind::Access(_) => return,
            EventKind::Modify(ModifyKind::Data(_)) if REPORTS_CLOSE => Some(true),
            _ => None,
        };
        if event.need_rescan() || event.paths.is_empty() || event.paths.contains(&base) {
            dirty.forget_noticed();
        } else if let Some(is_open) = is_open {
            event.paths.into_iter().for_each(|path| dirty.note(path, is_open));
        }
        dirty.mark();
    };
    // Only the scan follows links, because it checks them: their targets are below the root themselves.
    let config = notify::Config::default().with_follow_symlinks(false);
    let mut watcher = notify::RecommendedWatcher::new(handle, config)?;
    watcher.watch(root, RecursiveMode::Recursive)?;
    Ok(Box::new(watcher))
}

/// Returns true if the directory, or one below it, was removed meanwhile. It may exist again at once.
fn is_gone(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => is_absent(error),
        _ => false,
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
    async fn a_file_is_open_from_its_first_modification_until_it_is_closed() {
        let (set, begin) = (DirtySet::default(), Instant::now());
        let noticed = |path: &str| set.noticed(Path::new(path));
        set.note("/a".into(), true);
        tokio::time::advance(RETRY).await;
        set.note("/a".into(), true);
        assert_eq!(noticed("/a"), Some(Noticed::Open(begin)));
        set.note("/a".into(), false);
        let closed = noticed("/a").unwrap();
        assert!(matches!(closed, Noticed::Finished(_)));
        set.note("/a".into(), false);
        assert!(noticed("/a").unwrap() >= closed, "the last close counts");
        set.note("/first".into(), true);
        for n in 0..MAX_PATHS {
            tokio::time::advance(Duration::from_nanos(1)).await;
            set.note(format!("/{n}").into(), true);
        }
        assert_eq!(set.noticed.lock().len(), MAX_PATHS, "bounded");
        assert_eq!(noticed("/a"), None, "closed files go first");
        assert_eq!(noticed("/first"), None, "then the oldest");
        assert!(noticed("/0").is_some());
        set.forget_noticed();
        assert_eq!(noticed("/1"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_stands_until_a_later_try_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let mut notices = Notices::new(|_, _| Err(notify::Error::generic("no")));
        assert_eq!(notices.follow(&root), Err("no; the directory is scanned at its interval".into()));
        notices.subscribe = |_, _| Ok(Box::new(()));
        assert_eq!(
            notices.follow(&root),
            Err("no; the directory is scanned at its interval".into()),
            "not tried again yet"
        );
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
