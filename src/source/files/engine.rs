//! State of one directory, and the blocking work on it: scan, apply, report.
//!
//! `FilesSource` owns it, behind a lock that only threads take where blocking is allowed. `live` and `FilesSource::list` call
//! it.
//!
//! Invariants:
//! - A scan is applied as a whole or not at all: if the directory was absent, or was replaced before the end of the scan,
//!   nothing is applied, and so nothing is deleted.
//! - Additions and modifications are applied at once. An object that no file contains any more is deleted by a later scan, because
//!   one walk can fall into the middle of `rm -rf DIRECTORY` or of a checkout:
//!
//! | directory | deletion |
//! |---|---|
//! | the served one | after a quiet period without changes |
//! | another one, with files | after a rescan without changes |
//! | another one, without files, such as the mount point of an unmounted volume | never: the directory counts as unavailable |
//!
//! - It waits for files whose content, which may contain the object, is not applied yet; for six rescans at most.
//! - While a part of a file that was never read before cannot be read, nothing is deleted: it may contain any object. While
//!   there has been one ever since the start, the resource is incomplete: clients of an earlier run, which may have more objects
//!   than this one, keep what they have.
//! - A cancelled scan changes nothing.
//!
//! `live` decides when to scan.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    FilesConfig,
    catalog::{Catalog, Content, FileChange},
    notices::Notices,
    root::{DirectoryId, Root},
    scan::{Pending, Scan, ScanError, Scanner, may_hold},
};
use crate::{
    cache::{List, Problem, ProblemReason, SourceError, SourceHealth},
    model::{Event, Lineage, ObjectKey, ResourceVersion},
    source::{
        problems::Problems,
        text::{escaped, one_line},
    },
};

/// Limit of the kinds that a warning shows flags for.
const SHOWN_KINDS: usize = 8;

/// State of one directory.
#[derive(Debug)]
pub(super) struct Engine {
    config: Arc<FilesConfig>,
    health: SourceHealth,
    catalog: Catalog,
    problems: Problems,
    /// Directory of the catalog. A different one replaces it once all is applied.
    settled: Option<DirectoryId>,
    /// Mount points of other file systems below the root, with a trailing `/`.
    mounts: BTreeMap<String, DirectoryId>,
    pending: Pending,
    /// Time of the last change.
    changed_at: Instant,
    /// Set once there has been a manifest since the start.
    has_had_files: bool,
    /// Set once all has been read since the start.
    is_complete: bool,
    /// Reason why the directory itself cannot be served, while it cannot.
    outage: Option<String>,
    /// Kinds in the last warning.
    warned: BTreeSet<Box<str>>,
}

/// Engine behind a lock that a scan holds to its end; taken only where blocking is allowed.
pub(super) type SharedEngine = Arc<Mutex<Engine>>;

/// Result of a scan.
#[derive(Debug)]
pub(super) struct Scanned {
    /// Changes; then a bookmark, unless deletions wait for the next scans, within a rescan or of another directory: then the state
    /// differs from that of the directory.
    pub(super) events: Vec<Event>,
    /// Time of the next scan, if it is due before the interval.
    pub(super) again_at: Option<Instant>,
}

/// Files of a run, saved for the next one.
#[derive(Debug, Serialize, Deserialize)]
struct SavedFiles {
    /// Directory of the last scan after which all was applied.
    directory: Option<DirectoryId>,
    /// Paths, and the namespaces and names of the objects in each file.
    files: Vec<(String, Vec<(String, String)>)>,
    /// Mount points below the directory. Earlier versions did not save them.
    #[serde(default)]
    mounts: BTreeMap<String, DirectoryId>,
}

// === impl Engine ===

impl Engine {
    /// Returns an engine without any state, whose versions are of `lineage`.
    pub(super) fn new(config: Arc<FilesConfig>, lineage: Lineage, health: SourceHealth) -> Self {
        Self {
            catalog: Catalog::new(lineage),
            problems: Problems::new("files", config.resource.clone(), health.clone()),
            settled: None,
            mounts: BTreeMap::new(),
            pending: Pending::new(),
            changed_at: Instant::now(),
            has_had_files: false,
            is_complete: false,
            outage: None,
            warned: BTreeSet::new(),
            config,
            health,
        }
    }

    /// Returns the version of the last change.
    pub(super) fn version(&self) -> ResourceVersion {
        self.catalog.version()
    }

    /// Begins with the objects of an earlier run, under versions of this one.
    ///
    /// # Errors
    ///
    /// If the proof cannot be read.
    pub(super) fn resume(&mut self, list: &mut List, proof: &[u8]) -> Result<(), String> {
        let SavedFiles { directory, files, mounts } =
            serde_json::from_slice(proof).map_err(|error| format!("invalid resume proof: {error}"))?;
        let mut known = Vec::with_capacity(files.len());
        for (path, keys) in files {
            let keys: Result<Vec<_>, _> =
                keys.iter().map(|(namespace, name)| ObjectKey::new(namespace, name)).collect();
            known.push((path.into(), keys.map_err(|error| format!("invalid resume proof: {error}"))?));
        }
        list.version = self.catalog.next_version();
        for object in &mut list.objects {
            *object = Arc::new(object.at_version(list.version.clone()));
        }
        self.has_had_files |= !known.is_empty();
        self.catalog.resume(known, list.objects.clone());
        (self.settled, self.mounts) = (directory, mounts);
        self.report_incomplete("the directory has not been read since the start");
        Ok(())
    }

    /// Returns the files with the keys of their objects, for the next run; `None` before the first scan.
    pub(super) fn proof(&self) -> Option<Vec<u8>> {
        let directory = self.settled.filter(|_| self.catalog.version().number() > 0)?;
        let key = |key: &ObjectKey| (key.namespace().to_owned(), key.name().to_owned());
        let files = self.catalog.keys().map(|(path, keys)| (path.to_string(), keys.map(key).collect()));
        let mounts = self.mounts.clone();
        serde_json::to_vec(&SavedFiles { directory: Some(directory), files: files.collect(), mounts }).ok()
    }

    /// Scans, and returns all objects.
    pub(super) fn list(&mut self, cancelled: &CancellationToken) -> Result<List, SourceError> {
        self.scan(None, cancelled)?;
        Ok(List::new(self.catalog.objects(), self.catalog.version()))
    }

    /// Scans, and returns the changes. The notices cover the directory before the scan reads it, so that no change falls between
    /// the two.
    pub(super) fn scan(
        &mut self,
        notices: Option<&mut Notices>,
        cancelled: &CancellationToken,
    ) -> Result<Scanned, SourceError> {
        let began = Instant::now();
        let outcome = self.walk(notices, cancelled);
        self.apply(outcome, began, cancelled)
    }

    /// Applies what a walk that began at this time has found.
    fn apply(
        &mut self,
        outcome: Result<(Root, Scan), SourceError>,
        began: Instant,
        cancelled: &CancellationToken,
    ) -> Result<Scanned, SourceError> {
        let now = Instant::now();
        if !cancelled.is_cancelled() {
            self.report_outage(outcome.as_ref().err().map(ToString::to_string));
            if outcome.is_err() {
                // Its time is no quiet one: the next scan may fall into the middle of a clone.
                self.changed_at = now;
                self.catalog.hold(now);
            }
        }
        let (root, mut scan) = outcome?;
        let is_other = !self.is_settled(&root);
        let is_change = |change: &FileChange| matches!(change.content, Content::Objects(_) | Content::Absent);
        if scan.changes.iter().any(is_change) {
            self.changed_at = now;
        }
        let before = self.version();
        let mut events = self.catalog.apply(std::mem::take(&mut scan.changes), now);
        let unread = self.unread(&scan);
        // While some file's objects are unknown, one of them may be in it.
        let is_all_read = scan.pending.is_empty() && !scan.is_torn;
        let delay = if is_other { self.config.rescan } else { self.config.quiet };
        // What the walk has found may be as old as its begin.
        let since = |begin: Instant| began.saturating_duration_since(begin);
        if unread.is_some() {
            self.changed_at = now;
            self.catalog.hold(now);
        } else {
            let is_certain = is_all_read && since(self.changed_at) >= delay;
            let longest = self.config.longest();
            events.extend(self.catalog.delete(|begin| is_certain || since(begin) >= longest));
        }
        let unclaimed = self.catalog.unclaimed_since();
        let is_waiting = unclaimed.is_some() && unread.is_none();
        if scan.pending.is_empty() && unclaimed.is_none() {
            self.settled = Some(root.id);
        } else if is_other {
            let resource = &self.config.resource;
            tracing::info!(source = "files", resource, "directory replaced; deletions wait for the next scans");
        }
        let deleted_at = (is_waiting && is_all_read).then(|| self.changed_at + delay);
        let again_at = deleted_at.into_iter().chain(scan.again_at).min();
        // In a directory that is never quiet a deletion waits for long, and the resource is not STALE meanwhile.
        let is_soon = is_all_read && unclaimed.is_some_and(|begin| since(begin) < self.config.rescan);
        if !scan.is_torn && !(is_waiting && (is_soon || is_other)) {
            events.push(Event::Bookmark(self.version()));
        }
        self.report(&scan, unread);
        if self.version() != before {
            self.warn_of_kinds();
        }
        (self.mounts, self.pending) = (scan.mounts, scan.pending);
        Ok(Scanned { events, again_at })
    }

    /// Walks, and checks that the directory is the same at the end.
    fn walk(
        &self,
        mut notices: Option<&mut Notices>,
        cancelled: &CancellationToken,
    ) -> Result<(Root, Scan), SourceError> {
        let outage = |reason: String| SourceError::Unavailable(one_line(&reason));
        if cancelled.is_cancelled() {
            return Err(replaced());
        }
        let open = || Root::open(&self.config.path).map_err(|error| outage(error.to_string()));
        let root = open().inspect_err(|_| notices.iter_mut().for_each(|notices| notices.forget()))?;
        let directory = root.path.display();
        if let Some(notices) = &mut notices {
            let found = notices.follow(&root).err().map(|reason| {
                let rescan = self.config.rescan;
                let message =
                    format!("change notifications are incomplete, a scan every {rescan:?} finds the rest: {reason}");
                Problem::new(ProblemReason::NotificationsUnavailable, "", message)
            });
            self.problems.replace(&[ProblemReason::NotificationsUnavailable], found.into_iter().collect());
        }
        let dirty = notices.as_ref().map(|notices| &**notices.dirty());
        let scanner = Scanner::new(&root, &self.catalog, &self.config, &self.pending, dirty, cancelled);
        let mut scan = scanner.walk().map_err(|error| match error {
            ScanError::Cancelled => replaced(),
            ScanError::Directory(error) => outage(format!("the directory {directory} cannot be read: {error}")),
        })?;
        self.keep_unmounted(&root, &mut scan);
        self.find_absent(&root, &mut scan, cancelled)?;
        if open()? != root {
            return Err(outage(format!("the directory {directory} was replaced during the scan")));
        }
        let had_files = self.catalog.unclaimed_since().is_some()
            || scan.changes.iter().any(|of| matches!(of.content, Content::Absent));
        if scan.seen.is_empty() && had_files && !self.is_settled(&root) {
            return Err(outage(format!(
                "the directory {directory} was replaced by one without manifests, as when a volume is unmounted; mount it or \
                 create the files again; if they were deleted on purpose, restart informerd, without the snapshot of this \
                 resource in state_dir"
            )));
        }
        Ok((root, scan))
    }

    /// Keeps the files of an unmounted volume below the root while its mount point is empty.
    fn keep_unmounted(&self, root: &Root, scan: &mut Scan) {
        for (directory, id) in &self.mounts {
            let is_below = |path: &Arc<str>| path.starts_with(directory.as_str());
            let is_empty = || !scan.seen.iter().any(is_below) && root.path.join(directory).is_dir();
            if scan.mounts.get(directory) != Some(id) && is_empty() && self.catalog.paths().any(is_below) {
                let problem = "volume unmounted, its objects are kept; mount it, create the files again, or delete the \
                               directory";
                scan.problems.insert(escaped(directory).into_owned(), problem.to_owned());
                scan.unknown.insert(directory.clone());
                scan.mounts.insert(directory.clone(), *id);
            }
        }
    }

    /// Adds the known files that the walk did not meet and that do not exist.
    fn find_absent(&self, root: &Root, scan: &mut Scan, cancelled: &CancellationToken) -> Result<(), SourceError> {
        for path in self.catalog.paths() {
            if cancelled.is_cancelled() {
                return Err(replaced());
            }
            if scan.seen.contains(path) || may_hold(&scan.unknown, path) {
                continue;
            }
            if root.may_lead_to_file(path) {
                scan.is_torn = true;
            } else {
                let (path, content) = (path.clone(), Content::Absent);
                scan.changes.push(FileChange { path, stamp: None, is_trusted: false, content });
            }
        }
        Ok(())
    }

    /// Records that the directory is changing now, so that no deletion is certain.
    pub(super) fn disturb(&mut self, now: Instant) {
        self.changed_at = now;
    }

    fn is_settled(&self, root: &Root) -> bool {
        self.settled.is_none_or(|settled| settled == root.id)
    }

    /// Returns the place and problem of the first part that cannot be read and has no last good objects.
    fn unread(&self, scan: &Scan) -> Option<String> {
        let file = self.catalog.unknown().map(|(path, unread)| format!("{}: {}", escaped(path), unread.reason));
        let is_known = |directory: &String| {
            !directory.is_empty() && self.catalog.paths().any(|path| path.starts_with(directory.as_str()))
        };
        let described = |directory: &String| {
            let directory = escaped(directory);
            // A link that cannot be followed may be one to a file.
            let problem = scan.problems.get(&*directory).or_else(|| scan.problems.get(directory.trim_end_matches('/')));
            format!("./{directory}: {}", problem.map_or("not read", |problem| problem))
        };
        file.or_else(|| scan.unknown.iter().find(|directory| !is_known(directory)).map(described))
    }

    /// Reports the problems of files, and if all has been read since the start.
    fn report(&mut self, scan: &Scan, unread: Option<String>) {
        if !self.is_complete {
            let is_new = |path: &Arc<str>| self.catalog.file(path).is_none();
            let being_written = || scan.pending.keys().any(is_new).then(|| "a file is being written".to_owned());
            if let Some(problem) = unread.or_else(being_written) {
                self.report_incomplete(&problem);
            } else {
                self.is_complete = true;
                self.health.complete_at(self.catalog.version());
            }
        }
        let problem = |(path, reason)| Problem::new(ProblemReason::FileInvalid, path, reason);
        let problems = self.file_problems(&scan.problems).into_iter().map(problem).collect();
        self.problems.replace(&[ProblemReason::FileInvalid], problems);
        self.report_empty();
    }

    fn report_incomplete(&self, problem: &str) {
        let problem = format!(
            "objects may exist that have not been read since the start, so clients of an earlier run keep theirs: {problem}"
        );
        self.health.mark_incomplete(problem, None);
    }

    /// Reports a directory without any manifest since the start, whose volume may be mounted later, or without any of the kind.
    fn report_empty(&mut self) {
        let has_files = self.catalog.paths().next().is_some();
        let kind = self.config.kind.as_deref().filter(|_| has_files && !self.catalog.has_objects());
        self.has_had_files |= has_files && kind.is_none();
        let message = || {
            let directory = self.config.path.display();
            match kind {
                Some(kind) => {
                    format!("the directory {directory} has no object of kind {kind:?}: write it as the files do")
                }
                None => format!(
                    "the directory {directory} has no .json, .yaml or .yml file: mount its volume, or correct the path"
                ),
            }
        };
        let found = (!self.has_had_files).then(|| Problem::new(ProblemReason::DirectoryEmpty, "", message()));
        self.problems.replace(&[ProblemReason::DirectoryEmpty], found.into_iter().collect());
    }

    /// Returns one reason for each path: a problem of the file has precedence over one with other files.
    fn file_problems(&self, outside: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut problems: BTreeMap<String, String> = BTreeMap::new();
        for (key, served, waiting) in self.catalog.duplicates() {
            let reason = || format!("{} is also in {}, which comes first and is served", key, escaped(served));
            problems.entry(escaped(waiting).into_owned()).or_insert_with(|| one_line(&reason()));
        }
        for (path, key, uid, other) in self.catalog.repeated_uids() {
            let of =
                other.map_or_else(|| "was that of another object".to_owned(), |other| format!("is that of {other}"));
            let reason =
                || format!("{key}: metadata.uid {uid:?} {of}; it is served with the uid \"{uid}/{key}\": remove it");
            problems.entry(escaped(path).into_owned()).or_insert_with(|| one_line(&reason()));
        }
        for (path, unread, kept) in self.catalog.unread() {
            let kept_objects = if kept > 0 { "; its last good objects are kept" } else { "" };
            let may_be_any = unread.count.is_none_or(|count| count > kept);
            let kept_all = if may_be_any { "; nothing is deleted until it can be read" } else { "" };
            problems.insert(escaped(path).into_owned(), format!("{}{kept_objects}{kept_all}", unread.reason));
        }
        problems.extend(outside.iter().map(|(path, reason)| (path.clone(), reason.clone())));
        problems
    }

    /// Reports the beginning and the end of an outage.
    fn report_outage(&mut self, reason: Option<String>) {
        let resource = &self.config.resource;
        if let Some(reason) = &reason {
            self.health.record_failure(reason);
        }
        match &reason {
            Some(reason) if self.outage.as_ref() != Some(reason) => {
                tracing::warn!(source = "files", resource, reason, "directory not read; keeping its objects");
            }
            None if self.outage.is_some() => tracing::info!(source = "files", resource, "directory readable again"),
            Some(_) | None => {}
        }
        self.outage = reason;
    }

    /// Warns of several kinds in one resource: they are legal and rarely intended, since an index or a client of one kind gets
    /// objects of another.
    fn warn_of_kinds(&mut self) {
        let kinds = self.catalog.kinds();
        if self.config.kind.is_some() || kinds.len() < 2 || kinds == self.warned {
            return;
        }
        let directory = self.config.path.display();
        let flags =
            kinds.iter().take(SHOWN_KINDS).map(|kind| format!(" --files {}={directory}@{kind}", kind.to_lowercase()));
        let flags = escaped(&flags.collect::<String>()).into_owned();
        let more = if kinds.len() > SHOWN_KINDS { " …" } else { "" };
        let resource = &self.config.resource;
        tracing::warn!(
            source = "files",
            resource,
            "several kinds in one resource; serve each as its own:{flags}{more}"
        );
        self.warned = kinds;
    }
}

/// Returns the error of a list or watch that another one has ended.
pub(super) fn replaced() -> SourceError {
    SourceError::Unavailable("replaced by another list or watch of the directory".into())
}

#[cfg(test)]
mod tests;
