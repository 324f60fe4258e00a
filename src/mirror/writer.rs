//! Consumer of the queue: brings the files of each object to its newest state.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    content::files_of,
    directory::{FileError, Files, MirrorDirectory},
    file_name::Layout,
    file_system::{FileSystem, SystemFiles},
};
use crate::{
    cache::{Deltas, KnownObjects},
    model::{Object, ObjectKey},
};

/// Output for notes, one line each.
pub type Notes = Arc<dyn Fn(&dyn fmt::Display) + Send + Sync>;

/// Writer of a directory.
pub(super) struct Writer<F = SystemFiles> {
    layout: Layout,
    directory: Mutex<MirrorDirectory<F>>,
    known: Arc<KnownFiles>,
    problems: Mutex<Problems>,
    processed: Notify,
    notes: Notes,
}

/// Objects that have files, or may have some: those of the directory at the start, and those that the writer has received. A
/// resync writes them again. One that was rejected has no state here.
#[derive(Debug)]
pub(super) struct KnownFiles(Mutex<BTreeMap<ObjectKey, Option<Arc<Object>>>>);

/// Objects whose files are not what they should be.
#[derive(Debug, Default)]
struct Problems {
    /// Objects whose files could not be written or removed, until that succeeds.
    failed: BTreeSet<ObjectKey>,
    /// Objects that have no files because of their content.
    rejected: BTreeSet<ObjectKey>,
}

// === impl Writer ===

impl<F: FileSystem> Writer<F> {
    pub(super) fn new(directory: MirrorDirectory<F>, keys: BTreeSet<ObjectKey>, layout: Layout, notes: Notes) -> Self {
        let known = Arc::new(KnownFiles(Mutex::new(keys.into_iter().map(|key| (key, None)).collect())));
        let (directory, problems) = (Mutex::new(directory), Mutex::default());
        Self { layout, directory, known, problems, processed: Notify::new(), notes }
    }

    /// Returns the objects that have files.
    pub(super) fn known(&self) -> &Arc<KnownFiles> {
        &self.known
    }

    /// Returns the number of files that were written or removed.
    pub(super) fn changes(&self) -> u64 {
        self.directory.lock().changes()
    }

    /// Returns the number of objects whose files could not be written or removed.
    pub(super) fn failed(&self) -> u64 {
        self.problems.lock().failed.len() as u64
    }

    /// Removes what is foreign, as the first change does. Blocks.
    pub(super) fn prepare(&self) -> io::Result<()> {
        self.directory.lock().prepare()
    }

    /// Waits until something was processed since the last call.
    pub(super) async fn processed(&self) {
        self.processed.notified().await;
    }

    /// Writes the newest state of an object, or removes its files. Blocks.
    ///
    /// # Errors
    ///
    /// If a file cannot be written or removed: the deltas are to be processed again later. The first failure is noted, and the end
    /// of the last one.
    pub(super) fn process(&self, deltas: &Deltas<Arc<Object>>) -> Result<(), FileError> {
        let (key, newest) = (deltas.key(), deltas.newest());
        let object = newest.object().filter(|_| !newest.is_deletion());
        let files = match object.map(|object| files_of(self.layout, object)) {
            None => Files::new(),
            Some(Ok(files)) => files,
            Some(Err(reason)) => {
                self.reject(key, &reason);
                return Ok(());
            }
        };
        self.problems.lock().rejected.remove(key);
        if let Some(object) = object {
            // Before its files exist: a deletion that follows a failure must not be ignored.
            self.known.0.lock().insert(key.clone(), Some(Arc::clone(object)));
        }
        let applied = self.directory.lock().apply(key, &files);
        if applied.is_ok() && object.is_none() {
            self.known.0.lock().remove(key);
        }
        self.report(key, applied.as_ref().err());
        self.processed.notify_one();
        applied
    }

    /// Notes the first object without files: the others have none for the same reason.
    fn reject(&self, key: &ObjectKey, reason: &str) {
        // Its deletion must not be ignored: it ends the problem.
        self.known.0.lock().entry(key.clone()).or_default();
        let is_first = {
            let mut problems = self.problems.lock();
            problems.failed.remove(key);
            problems.rejected.insert(key.clone()) && problems.rejected.len() == 1
        };
        if is_first {
            (self.notes)(&format_args!("# {key}: {reason}; its files stay as they are"));
        }
        self.processed.notify_one();
    }

    fn report(&self, key: &ObjectKey, error: Option<&FileError>) {
        let (was_failing, is_failing) = {
            let failed = &mut self.problems.lock().failed;
            let was_failing = !failed.is_empty();
            match error {
                Some(_) => failed.insert(key.clone()),
                None => failed.remove(key),
            };
            (was_failing, !failed.is_empty())
        };
        match error {
            Some(error) if !was_failing => (self.notes)(&format_args!("# cannot write {error}; retrying")),
            None if was_failing && !is_failing => (self.notes)(&"# all files are written again"),
            _ => {}
        }
    }
}

debug_fields!([F] Writer<F> { layout, problems });

// === impl KnownFiles ===

impl KnownFiles {
    /// Returns the number of objects.
    pub(super) fn len(&self) -> u64 {
        self.0.lock().len() as u64
    }
}

impl KnownObjects<Arc<Object>> for KnownFiles {
    fn known_keys(&self) -> Vec<ObjectKey> {
        self.0.lock().keys().cloned().collect()
    }

    /// Returns an object; `None` also for one that had files at the start, and was not received since.
    fn known(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.0.lock().get(key).cloned().flatten()
    }

    fn is_known(&self, key: &ObjectKey) -> bool {
        self.0.lock().contains_key(key)
    }
}
