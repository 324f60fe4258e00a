//! State of one directory, and the blocking work on it: scan, apply, report.
//!
//! `FilesSource` owns it, behind a lock that only threads take where blocking is allowed. `live` and `FilesSource::list` call
//! it.
//!
//! Invariants:
//! - A scan is applied as a whole or not at all: if the directory was absent, or was replaced before the end of the scan,
//!   nothing is applied, and so nothing is deleted.
//! - Additions and modifications are applied at once, a deletion only when it is certain (`missing`): a file that a walk has
//!   missed is deleted by a later walk, which has read all earlier writes. A different directory at the path, such as the
//!   mount point of an unmounted volume, counts as unavailable while it has no manifests.
//! - While a part of a file that was never read before cannot be read (`unread`), nothing is deleted: it may contain any object.
//! - A cancelled scan changes nothing.
//!
//! `live` decides when to scan.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    FilesConfig,
    catalog::{Catalog, Content, FileChange, Finding},
    kinds::kinds_advice,
    lookup::{Lookup, look_up},
    missing::{DeletionDelay, Missing},
    notices::Notices,
    root::{DirectoryId, Root},
    scan::{Scan, ScanError, Scanner, may_hold},
    unfinished::{Shrunk, Signs},
    unread::UnreadParts,
};
use crate::{
    cache::{List, Problem, ProblemReason, SourceHealth},
    model::{Event, Lineage, ObjectKey, ResourceVersion},
    source::{
        problems::Problems,
        text::{escaped, one_line},
    },
};

/// State of one directory.
#[derive(Debug)]
pub(super) struct Engine {
    config: Arc<FilesConfig>,
    health: SourceHealth,
    catalog: Catalog,
    problems: Problems,
    /// Directory of the catalog. A different one replaces it once nothing is missing in it.
    settled: Option<DirectoryId>,
    missing: Missing<Arc<str>>,
    /// Objects that no file contains any more.
    lost: Missing<ObjectKey>,
    /// True if the last walk did not meet all existing files.
    was_torn: bool,
    shrunk: Shrunk,
    /// Mount points of other file systems below the root, with a trailing `/`.
    mounts: BTreeMap<String, DirectoryId>,
    /// Set once there has been a manifest since the start.
    has_had_files: bool,
    unread: UnreadParts,
    /// Reason why the directory itself cannot be served, while it cannot.
    outage: Option<String>,
    /// Kinds in the last warning.
    warned: Vec<String>,
}

/// Engine behind a lock that a scan holds to its end; taken only where blocking is allowed.
pub(super) type SharedEngine = Arc<Mutex<Engine>>;

/// Reason why there is no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The caller cancelled it.
    Cancelled,
    /// The directory cannot be read; the text says what to do.
    Outage(String),
}

/// Result of a scan.
#[derive(Debug)]
pub(super) struct Scanned {
    /// Changes; then a bookmark, unless a missing file may not be deleted after all: then the state may differ from that of the
    /// directory.
    pub(super) events: Vec<Event>,
    /// Time of the next scan, if it is due before the interval.
    pub(super) again_at: Option<Instant>,
}

/// Files of a run, saved for the next one.
#[derive(Debug, Serialize, Deserialize)]
struct SavedFiles {
    /// Directory of the last scan in which nothing was missing.
    directory: Option<DirectoryId>,
    /// Paths, and the namespaces and names of the objects in each file.
    files: Vec<(String, Vec<(String, String)>)>,
}

/// Result of a walk.
struct WalkResult {
    root: Root,
    scan: Scan,
    /// Known files that do not exist.
    absent: BTreeSet<Arc<str>>,
    /// True if the walk did not meet a known file that exists: the directory changed meanwhile.
    is_torn: bool,
}

/// Remainder of a scan.
struct Remainder {
    /// True if the content of every existing file is applied.
    is_all_read: bool,
    /// True if a file is being written that was never read before.
    has_new_unfinished: bool,
    /// Directories that could not be read.
    unknown: BTreeSet<String>,
    /// Time at which another file is applied even without a notice.
    again_at: Option<Instant>,
    /// Problems outside of the files' contents.
    problems: BTreeMap<String, String>,
}

// === impl Engine ===

impl Engine {
    /// Returns an engine without any state, whose versions are of `lineage`.
    pub(super) fn new(config: Arc<FilesConfig>, lineage: Lineage, health: SourceHealth) -> Self {
        Self {
            catalog: Catalog::new(lineage),
            problems: Problems::new("files", config.resource.clone(), health.clone()),
            settled: None,
            missing: Missing::default(),
            lost: Missing::default(),
            was_torn: false,
            shrunk: Shrunk::default(),
            mounts: BTreeMap::new(),
            has_had_files: false,
            unread: UnreadParts::new(health.clone()),
            outage: None,
            warned: Vec::new(),
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
        let SavedFiles { directory, files } =
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
        self.settled = directory;
        self.unread.begin("the directory has not been read since the start");
        Ok(())
    }

    /// Returns the files with the keys of their objects, for the next run; `None` before the first scan.
    pub(super) fn proof(&self) -> Option<Vec<u8>> {
        let directory = self.settled.filter(|_| self.catalog.version().number() > 0)?;
        let key = |key: &ObjectKey| (key.namespace().to_owned(), key.name().to_owned());
        let files = self.catalog.keys().map(|(path, keys)| (path.to_string(), keys.map(key).collect()));
        serde_json::to_vec(&SavedFiles { directory: Some(directory), files: files.collect() }).ok()
    }

    /// Scans, and returns all objects.
    pub(super) fn list(&mut self, cancelled: &CancellationToken) -> Result<List, Failure> {
        self.scan(None, cancelled)?;
        Ok(List::new(self.catalog.objects(), self.catalog.version()))
    }

    /// Scans, and returns the changes. The notices cover the directory before the scan reads it, so that no change falls between
    /// the two.
    pub(super) fn scan(
        &mut self,
        notices: Option<&mut Notices>,
        cancelled: &CancellationToken,
    ) -> Result<Scanned, Failure> {
        if cancelled.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        let outcome = self.walk(notices, cancelled);
        match &outcome {
            Ok(_) => self.recovered(),
            Err(Failure::Outage(reason)) => self.failed(reason),
            Err(Failure::Cancelled) => {}
        }
        let WalkResult { root, scan, absent, is_torn } = outcome?;
        let Scan { mut changes, unfinished, shrunk, again_at, problems, mounts, unknown, .. } = scan;
        let now = Instant::now();
        self.shrunk.replace(shrunk, now);
        let mut found = self.missing.retain(|path| absent.contains(path));
        let is_other = !self.is_settled(&root);
        let is_new = |change: &FileChange| self.catalog.file(&change.path).is_none();
        if is_other && (!found.is_empty() || changes.iter().any(is_new)) {
            self.disturb(now);
        }
        // A file that is being written is not the one that was missing.
        found.retain(|path| !unfinished.contains(path));
        changes.extend(found.into_iter().map(|path| FileChange { path, finding: Finding::Found }));
        for path in &absent {
            if self.missing.insert(path, now) {
                changes.push(FileChange { path: path.clone(), finding: Finding::Missing });
            }
        }
        self.mounts = mounts;
        let is_all_read = unfinished.is_empty() && !is_torn;
        let has_new_unfinished = unfinished.iter().any(|path| self.catalog.file(path).is_none());
        let remainder = Remainder { is_all_read, has_new_unfinished, unknown, again_at, problems };
        let mut scanned = self.take_over(changes, remainder, self.deletion_delay(is_other), now);
        self.report_empty();
        if self.missing.is_empty() && self.lost.is_empty() && unfinished.is_empty() {
            self.settled = Some(root.id);
        } else if is_other {
            let (resource, missing) = (&self.config.resource, self.missing.len());
            tracing::info!(
                source = "files",
                resource,
                missing,
                "directory replaced; deletions wait for the next scans"
            );
        }
        // A directory that changes during each walk is walked at the interval.
        let was_torn = std::mem::replace(&mut self.was_torn, is_torn);
        if is_torn && !was_torn {
            scanned.again_at.get_or_insert(now + self.config.quiet);
        }
        if !is_torn && (self.missing.is_empty() || self.unread.forbid_deletions()) {
            scanned.events.push(Event::Bookmark(self.version()));
        }
        Ok(scanned)
    }

    /// Walks, and checks that the directory is the same at the end.
    fn walk(
        &mut self,
        mut notices: Option<&mut Notices>,
        cancelled: &CancellationToken,
    ) -> Result<WalkResult, Failure> {
        let outage = |reason: String| Failure::Outage(one_line(&reason));
        let root = match Root::open(&self.config.path) {
            Ok(root) => root,
            Err(error) => {
                if let Some(notices) = notices {
                    notices.forget();
                }
                return Err(outage(error.to_string()));
            }
        };
        if let Some(notices) = &mut notices {
            let message = |reason| {
                format!(
                    "change notifications are incomplete, a scan every {:?} finds the rest: {reason}",
                    self.config.rescan
                )
            };
            let problem = |reason| Problem::new(ProblemReason::NotificationsUnavailable, "", message(reason));
            let found = notices.follow(&root).err().map(problem);
            self.problems.replace(&[ProblemReason::NotificationsUnavailable], found.into_iter().collect());
        }
        let signs = Signs {
            notices: notices.as_ref().map(|notices| &**notices.dirty()),
            shrunk: &self.shrunk,
            config: &self.config,
            now: Instant::now(),
            clock: SystemTime::now(),
        };
        let mut scan = Scanner::new(&root, &self.catalog, signs, cancelled).walk().map_err(|error| match error {
            ScanError::Cancelled => Failure::Cancelled,
            ScanError::Root(error) => outage(format!("the directory {} cannot be read: {error}", root.path.display())),
        })?;
        self.keep_unmounted(&root, &mut scan);
        let (absent, is_torn) = self.absent(&root, &scan, cancelled)?;
        match Root::open(&self.config.path) {
            Ok(now) if now == root => {}
            Ok(_) => {
                return Err(outage(format!("the directory {} was replaced during the scan", root.path.display())));
            }
            Err(error) => return Err(outage(error.to_string())),
        }
        let is_emptied = scan.seen.is_empty() && !absent.is_empty() && !self.is_settled(&root);
        if is_emptied {
            return Err(outage(format!(
                "the directory {} was replaced by one without manifests, as when a volume is unmounted; mount it or \
                 create the files again; if they were deleted on purpose, restart informerd, without the snapshot of \
                 this resource in state_dir",
                root.path.display()
            )));
        }
        Ok(WalkResult { root, scan, absent, is_torn })
    }

    /// Keeps the files of an unmounted volume below the root while its mount point is empty.
    fn keep_unmounted(&self, root: &Root, scan: &mut Scan) {
        let is_other = |(directory, id): &(&String, &DirectoryId)| scan.mounts.get(*directory) != Some(*id);
        for (directory, id) in self.mounts.iter().filter(is_other).collect::<Vec<_>>() {
            let is_below = |path: &Arc<str>| path.starts_with(directory.as_str());
            let is_empty = !scan.seen.iter().any(is_below) && root.path.join(directory).is_dir();
            if is_empty && self.catalog.paths().any(is_below) {
                let problem = "volume unmounted, its objects are kept; mount it, create the files again, or delete the \
                               directory";
                scan.problems.insert(escaped(directory).into_owned(), problem.to_owned());
                scan.unknown.insert(directory.clone());
                scan.mounts.insert(directory.clone(), *id);
            }
        }
    }

    /// Returns the known files that the walk did not meet and that do not exist; and true if another one exists after all.
    fn absent(
        &self,
        root: &Root,
        scan: &Scan,
        cancelled: &CancellationToken,
    ) -> Result<(BTreeSet<Arc<str>>, bool), Failure> {
        let (mut absent, mut is_torn) = (BTreeSet::new(), false);
        let is_seen = |path: &Arc<str>| scan.seen.contains(path) || may_hold(&scan.unknown, path);
        for path in self.catalog.paths().filter(|path| !is_seen(path)) {
            if cancelled.is_cancelled() {
                return Err(Failure::Cancelled);
            }
            match look_up(root, path) {
                Lookup::Absent => drop(absent.insert(path.clone())),
                Lookup::Present | Lookup::Unclear => is_torn = true,
            }
        }
        Ok((absent, is_torn))
    }

    /// Records that the directory is changing now, so that no deletion is certain.
    pub(super) fn disturb(&mut self, now: Instant) {
        self.missing.disturb(now);
        self.lost.disturb(now);
    }

    fn is_settled(&self, root: &Root) -> bool {
        self.settled.is_none_or(|settled| settled == root.id)
    }

    fn deletion_delay(&self, is_other: bool) -> DeletionDelay {
        let FilesConfig { rescan, quiet, .. } = *self.config;
        if is_other {
            DeletionDelay { unchanged: rescan, at_most: self.config.longest() }
        } else {
            DeletionDelay { unchanged: quiet, at_most: rescan }
        }
    }

    /// Applies changes, and the deletions that are certain by now.
    fn take_over(
        &mut self,
        changes: Vec<FileChange>,
        remainder: Remainder,
        deletion_delay: DeletionDelay,
        now: Instant,
    ) -> Scanned {
        let is_change =
            |change: &FileChange| matches!(change.finding, Finding::Read { content: Content::Objects(_), .. });
        if changes.iter().any(is_change) {
            self.lost.disturb(now);
        }
        let mut events = self.catalog.apply(changes);
        let unclaimed = self.catalog.unclaimed();
        self.lost.retain(|key| unclaimed.contains_key(key));
        for key in unclaimed.keys() {
            self.lost.insert(key, now);
        }
        self.unread.find(&self.catalog, &remainder.unknown, &remainder.problems);
        let is_held = self.unread.forbid_deletions();
        let certain = self.missing.take_certain(deletion_delay, now, |path| is_held && self.catalog.has_objects(path));
        let begin = certain.iter().map(|(_, begin)| *begin).min().unwrap_or(now);
        let gone = |(path, _)| FileChange { path, finding: Finding::Gone };
        events.extend(self.catalog.apply(certain.into_iter().map(gone).collect()));
        for key in self.catalog.unclaimed().keys() {
            self.lost.insert_since(key, begin);
        }
        // While some file's objects are unknown, one of them may be the lost one.
        let is_all_read = remainder.is_all_read && self.missing.is_empty();
        let at_most = self.config.longest();
        let unchanged = if is_all_read { deletion_delay.unchanged } else { at_most };
        let certain = self.lost.take_certain(DeletionDelay { unchanged, at_most }, now, |_| is_held);
        let certain: Vec<_> = certain.into_iter().map(|(key, _)| key).collect();
        events.extend(self.catalog.delete(&certain));
        self.unread.report(remainder.has_new_unfinished, self.catalog.version());
        let problem = |(path, reason)| Problem::new(ProblemReason::FileInvalid, path, reason);
        let problems = self.file_problems(remainder.problems).into_iter().map(problem).collect();
        self.problems.replace(&[ProblemReason::FileInvalid], problems);
        self.warn_of_kinds();
        // An object that waits for a file is checked again with that file.
        let lost = self.lost.next_look(deletion_delay, |_| is_held).filter(|_| is_all_read);
        let missing = self.missing.next_look(deletion_delay, |path| is_held && self.catalog.has_objects(path));
        let again_at = missing.into_iter().chain(lost).chain(remainder.again_at).min();
        Scanned { events, again_at }
    }

    /// Reports a directory without any manifest since the start, whose volume may be mounted later, or without any of the kind.
    fn report_empty(&mut self) {
        let has_files = self.catalog.len() > 0;
        let kind = self.config.kind.as_deref().filter(|_| has_files && self.catalog.kinds().len() == 0);
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
    fn file_problems(&self, outside: BTreeMap<String, String>) -> BTreeMap<String, String> {
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
            let kept_all = if unread.count > kept { "; nothing is deleted until it can be read" } else { "" };
            problems.insert(escaped(path).into_owned(), format!("{}{kept_objects}{kept_all}", unread.reason));
        }
        problems.extend(outside);
        problems
    }

    fn failed(&mut self, reason: &str) {
        self.health.record_failure(reason);
        if self.outage.as_deref() != Some(reason) {
            let resource = &self.config.resource;
            tracing::warn!(source = "files", resource, reason, "directory not read; keeping its objects");
            self.outage = Some(reason.to_owned());
        }
    }

    fn recovered(&mut self) {
        if self.outage.take().is_some() {
            tracing::info!(source = "files", resource = self.config.resource, "directory readable again");
        }
    }

    /// Warns of several kinds in one resource: they are legal and rarely intended, since an index or a client of one kind gets
    /// objects of another.
    fn warn_of_kinds(&mut self) {
        if self.config.kind.is_some() || self.catalog.kinds().eq(self.warned.iter().map(String::as_str)) {
            return;
        }
        self.warned = self.catalog.kinds().map(str::to_owned).collect();
        if self.warned.len() > 1 {
            let (resource, advice) = (&self.config.resource, kinds_advice(&self.warned, &self.config.path));
            tracing::warn!(source = "files", resource, "{advice}");
        }
    }
}

#[cfg(test)]
mod tests;
