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
//! - A cancelled scan changes nothing.
//!
//! `live` decides when to scan.

mod walk;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::SystemTime,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::walk::Walked;
use super::{
    FilesConfig,
    catalog::{Catalog, Content, FileChange, Finding},
    kinds::kinds_advice,
    lookup::{Lookup, look_up},
    missing::{Missing, Patience},
    notices::{DirtySet, Notices},
    root::{DirectoryId, Root},
    scan::{Probe, Scan, Scanner},
    text::{escaped, one_line},
    unfinished::{MAX_RESCANS, Shrunk, Signs},
};
use crate::{
    cache::{List, Problem, ProblemReason, SourceHealth},
    model::{Event, Lineage, ObjectKey, ResourceVersion},
    source::problems::Problems,
};

/// State of one directory.
#[derive(Debug)]
pub(super) struct Engine {
    config: Arc<FilesConfig>,
    health: SourceHealth,
    catalog: Catalog,
    problems: Problems,
    /// Problems that the last walk found outside of the files' contents.
    found: BTreeMap<String, String>,
    /// Directory of the catalog. A different one replaces it once nothing is missing in it.
    settled: Option<DirectoryId>,
    missing: Missing<Arc<str>>,
    /// Objects that no file contains any more.
    lost: Missing<ObjectKey>,
    /// Files whose content is not applied yet.
    unfinished: BTreeSet<Arc<str>>,
    /// Time at which the next of these is applied even without another notice.
    counts_at: Option<Instant>,
    doubt: Doubt,
    shrunk: Shrunk,
    /// Mount points of other file systems below the root, with a trailing `/`.
    mounts: BTreeMap<String, DirectoryId>,
    /// True if the last walk met a symbolic link: then one file can have several paths, and only a walk can look at it.
    links: bool,
    /// Set once there has been a manifest since the start.
    has_had_files: bool,
    /// Reason why the directory itself cannot be served, while it cannot.
    outage: Option<String>,
    /// Kinds in the last warning.
    warned: Vec<String>,
}

/// Questions that only another walk can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    None,
    /// Deletion of the missing files and objects: the last walk was the first that did not find them, and may have passed by
    /// files that contain the objects now.
    Missing,
    /// Everything: the last walk did not meet all existing files, because the directory changed meanwhile.
    All,
}

/// Reason why there is no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The caller cancelled it.
    Cancelled,
    /// The directory cannot be read; the text says what to do.
    Outage(String),
}

/// Result of a scan or refresh.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) events: Vec<Event>,
    /// Time of the next check.
    pub(super) again_at: Option<Instant>,
    /// True if a missing file may not be deleted after all: the state may differ from that of the directory.
    pub(super) is_uncertain: bool,
}

/// Outcome of a refresh of single paths.
#[derive(Debug)]
pub(super) enum Refresh {
    /// All paths were processed.
    Done(Looked),
    /// Only a scan of everything can decide.
    Unclear,
}

// === impl Engine ===

impl Engine {
    /// Returns an engine without any state, whose versions are of `lineage`.
    pub(super) fn new(config: Arc<FilesConfig>, lineage: Lineage, health: SourceHealth) -> Self {
        Self {
            catalog: Catalog::new(lineage),
            problems: Problems::new("files", config.resource.clone(), health.clone()),
            found: BTreeMap::new(),
            settled: None,
            missing: Missing::default(),
            lost: Missing::default(),
            unfinished: BTreeSet::new(),
            counts_at: None,
            doubt: Doubt::None,
            shrunk: Shrunk::default(),
            mounts: BTreeMap::new(),
            links: false,
            has_had_files: false,
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
    ) -> Result<Looked, Failure> {
        if cancelled.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        let outcome = self.walk(notices, cancelled);
        match &outcome {
            Ok(_) => self.recovered(),
            Err(Failure::Outage(reason)) => self.failed(reason),
            Err(Failure::Cancelled) => {}
        }
        let Walked { root, scan, absent, is_torn } = outcome?;
        let Scan { mut changes, unfinished, again_at, problems, links, mounts, .. } = scan;
        let now = Instant::now();
        (self.unfinished, self.counts_at) = (BTreeSet::new(), again_at);
        let mut shrunk = BTreeSet::new();
        for (path, stamp) in unfinished {
            if let Some(stamp) = stamp {
                shrunk.insert(path.clone());
                self.shrunk.insert(path.clone(), stamp, now);
            }
            self.unfinished.insert(path);
        }
        self.shrunk.retain(&shrunk);
        let mut found = self.missing.retain(|path| absent.contains(path));
        let is_other = !self.is_settled(&root);
        let is_new = |change: &FileChange| self.catalog.file(&change.path).is_none();
        if is_other && (!found.is_empty() || changes.iter().any(is_new)) {
            self.disturb(now);
        }
        // A file that is being written is not the one that was missing.
        found.retain(|path| !self.unfinished.contains(path));
        changes.extend(found.into_iter().map(|path| FileChange { path, finding: Finding::Found }));
        for path in &absent {
            if self.missing.insert(path, now) {
                changes.push(FileChange { path: path.clone(), finding: Finding::Missing });
            }
        }
        let patience = self.patience(is_other);
        self.found = problems;
        self.links = links;
        self.mounts = mounts;
        // A directory that changes during each walk is walked at the interval.
        let was_torn = self.doubt == Doubt::All;
        self.doubt = if is_torn { Doubt::All } else { Doubt::None };
        let mut looked = self.take_over(changes, patience, now);
        if !is_torn && (self.missing.has_changed(now) || self.lost.has_changed(now)) {
            self.doubt = Doubt::Missing;
        }
        self.report_empty();
        if self.missing.is_empty() && self.lost.is_empty() && self.unfinished.is_empty() {
            self.settled = Some(root.id);
        } else if is_other {
            let (resource, missing) = (&self.config.resource, self.missing.keys().len());
            tracing::info!(
                source = "files",
                resource,
                missing,
                "directory replaced; deletions wait for the next scans"
            );
        }
        if is_torn {
            let pause = if was_torn { self.config.rescan } else { self.config.quiet };
            looked.again_at.get_or_insert(now + pause);
            looked.is_uncertain = true;
        }
        Ok(looked)
    }

    /// Reads single paths, and returns the changes.
    pub(super) fn refresh(
        &mut self,
        paths: &BTreeSet<PathBuf>,
        notices: &DirtySet,
        cancelled: &CancellationToken,
    ) -> Result<Refresh, Failure> {
        if cancelled.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        let Some(root) = self.settled_root().filter(|_| !self.links) else { return Ok(Refresh::Unclear) };
        let now = Instant::now();
        let mut changes = Vec::new();
        let (mut absent, mut unfinished) = (Vec::new(), Vec::new());
        let signs = self.signs(Some(notices), now);
        let mut scanner = Scanner::new(&root, &self.catalog, self.config.kind.as_deref(), signs, cancelled);
        for path in paths {
            let Some(path) = path.strip_prefix(&root.path).ok().and_then(|path| path.to_str()) else {
                return Ok(Refresh::Unclear);
            };
            match scanner.probe(path) {
                Probe::Nothing => {}
                // The problem that the last walk found at this path may be over.
                _ if self.found.contains_key(&*escaped(path)) => return Ok(Refresh::Unclear),
                Probe::File(change) => changes.push(change),
                Probe::Unfinished(path, stamp) => unfinished.push((path, stamp)),
                Probe::Absent(path) => absent.push(path),
                Probe::Unclear => return Ok(Refresh::Unclear),
            }
        }
        let counts_at = scanner.again_at();
        // Files that disappear together with the directory are not deleted.
        if Root::open(&self.config.path).as_ref() != Ok(&root) {
            return Ok(Refresh::Unclear);
        }
        self.counts_at = self.counts_at.into_iter().chain(counts_at).min();
        for change in &changes {
            self.missing.remove(&change.path);
            self.shrunk.remove(&change.path);
            self.unfinished.remove(&change.path);
        }
        for (path, stamp) in unfinished {
            self.missing.remove(&path);
            if let Some(stamp) = stamp {
                self.shrunk.insert(path.clone(), stamp, now);
            }
            self.unfinished.insert(path);
        }
        for path in absent {
            self.unfinished.remove(&path);
            if self.missing.insert(&path, now) {
                changes.push(FileChange { path, finding: Finding::Missing });
            }
        }
        Ok(Refresh::Done(self.take_over(changes, self.patience(false), now)))
    }

    /// Looks for the missing files again, and returns the changes.
    pub(super) fn look_for_missing(&mut self, cancelled: &CancellationToken) -> Result<Refresh, Failure> {
        let now = Instant::now();
        let is_due = self.doubt == Doubt::Missing || self.counts_at.is_some_and(|at| at <= now);
        let Some(root) = self.settled_root().filter(|_| !is_due) else { return Ok(Refresh::Unclear) };
        for path in self.missing.keys() {
            if cancelled.is_cancelled() {
                return Err(Failure::Cancelled);
            }
            if look_up(&root, path) != Lookup::Absent {
                return Ok(Refresh::Unclear);
            }
        }
        if Root::open(&self.config.path).as_ref() != Ok(&root) {
            return Ok(Refresh::Unclear);
        }
        Ok(Refresh::Done(self.take_over(Vec::new(), self.patience(false), now)))
    }

    /// Records that the directory is changing now, so that no deletion is certain.
    pub(super) fn disturb(&mut self, now: Instant) {
        self.missing.disturb(now);
        self.lost.disturb(now);
    }

    fn signs<'a>(&'a self, notices: Option<&'a DirtySet>, now: Instant) -> Signs<'a> {
        let FilesConfig { rescan, quiet, .. } = *self.config;
        Signs { notices, shrunk: &self.shrunk, rescan, quiet, now, clock: SystemTime::now() }
    }

    /// Returns the directory if it is that of the catalog, and single files of it can be read.
    fn settled_root(&self) -> Option<Root> {
        if self.outage.is_some() || self.doubt == Doubt::All {
            return None;
        }
        Root::open(&self.config.path).ok().filter(|root| self.is_settled(root))
    }

    fn is_settled(&self, root: &Root) -> bool {
        self.settled.is_none_or(|settled| settled == root.id)
    }

    fn patience(&self, is_other: bool) -> Patience {
        let FilesConfig { rescan, quiet, .. } = *self.config;
        if is_other {
            Patience { unchanged: rescan, at_most: rescan.saturating_mul(MAX_RESCANS) }
        } else {
            Patience { unchanged: quiet, at_most: rescan }
        }
    }

    /// Applies changes, and the deletions that are certain by now.
    fn take_over(&mut self, changes: Vec<FileChange>, patience: Patience, now: Instant) -> Looked {
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
        if self.doubt != Doubt::Missing {
            let certain = self.missing.take_certain(patience, now);
            let begin = certain.iter().map(|(_, begin)| *begin).min().unwrap_or(now);
            let gone = |(path, _)| FileChange { path, finding: Finding::Gone };
            events.extend(self.catalog.apply(certain.into_iter().map(gone).collect()));
            for key in self.catalog.unclaimed().keys() {
                self.lost.insert_since(key, begin);
            }
            let certain = self.lost.take_certain(self.patience_for_objects(patience), now);
            let certain: Vec<_> = certain.into_iter().map(|(key, _)| key).collect();
            events.extend(self.catalog.delete(&certain));
        }
        let problem = |(path, reason)| Problem::new(ProblemReason::FileInvalid, path, reason);
        self.problems.replace(&[ProblemReason::FileInvalid], self.standing().into_iter().map(problem).collect());
        self.warn_of_kinds();
        // An object that waits for a file is checked again with that file.
        let lost = self.lost.next_look(patience).filter(|_| self.is_all_read());
        let again_at = self.missing.next_look(patience).into_iter().chain(lost).chain(self.counts_at).min();
        Looked { events, again_at, is_uncertain: !self.missing.is_empty() }
    }

    /// Returns true if every file's objects are known.
    fn is_all_read(&self) -> bool {
        self.unfinished.is_empty() && self.missing.is_empty() && self.doubt != Doubt::All
    }

    /// Returns the patience with objects that no file contains any more, which is longer while some file's objects are unknown.
    fn patience_for_objects(&self, patience: Patience) -> Patience {
        let longest = self.config.rescan.saturating_mul(MAX_RESCANS);
        let unchanged = if self.is_all_read() { patience.unchanged } else { longest };
        Patience { unchanged, at_most: longest }
    }

    /// Reports a directory without any manifest since the start: its volume may be mounted later.
    fn report_empty(&mut self) {
        self.has_had_files |= self.catalog.len() > 0;
        let message = || {
            let directory = self.config.path.display();
            format!("the directory {directory} has no .json, .yaml or .yml file: mount its volume, or correct the path")
        };
        let found = (!self.has_had_files).then(|| Problem::new(ProblemReason::DirectoryEmpty, "", message()));
        self.problems.replace(&[ProblemReason::DirectoryEmpty], found.into_iter().collect());
    }

    /// Returns one reason for each path: a problem of the file has precedence over one with other files.
    fn standing(&self) -> BTreeMap<String, String> {
        let mut standing: BTreeMap<String, String> = BTreeMap::new();
        for (key, served, waiting) in self.catalog.duplicates() {
            let reason = || format!("{} is also in {}, which comes first and is served", key, escaped(served));
            standing.entry(escaped(waiting).into_owned()).or_insert_with(|| one_line(&reason()));
        }
        for (path, reason, is_kept) in self.catalog.unusable() {
            let outcome = if is_kept { "; its last good objects are kept" } else { "" };
            standing.insert(escaped(path).into_owned(), format!("{reason}{outcome}"));
        }
        standing.extend(self.found.iter().map(|(path, reason)| (path.clone(), reason.clone())));
        standing
    }

    fn failed(&mut self, reason: &str) {
        self.health.failed(reason);
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
