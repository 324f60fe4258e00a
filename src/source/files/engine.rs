//! One directory's state, and the blocking work on it: scan, take over, tell.
//!
//! Owned by `FilesSource`, behind a lock that only threads take where blocking is allowed. `live` and `FilesSource::list`
//! call it.
//!
//! Invariants:
//! - A scan counts as a whole or not at all: if the directory was not there, or not the same any more at the end of it,
//!   nothing is taken over, and so nothing is deleted.
//! - Additions and modifications count at once, a deletion only when it is certain (`missing`); what a walk has missed is
//!   deleted by a later walk, which has read what was written before. Another directory at the
//!   path, such as the mount point of a volume that was unmounted, counts as unavailable as long as it has no manifests.
//! - A cancelled scan has changed nothing.
//!
//! Not here: when to scan (`live`).

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

/// The state of one directory.
#[derive(Debug)]
pub(super) struct Engine {
    config: Arc<FilesConfig>,
    health: SourceHealth,
    catalog: Catalog,
    problems: Problems,
    /// What the last walk found wrong that does not lie in a file's content.
    found: BTreeMap<String, String>,
    /// The directory that the catalog is of. Another one is taken over once nothing is missing in it.
    settled: Option<DirectoryId>,
    missing: Missing<Arc<str>>,
    /// The objects that no file has any more.
    lost: Missing<ObjectKey>,
    /// The files whose content does not count yet.
    unfinished: BTreeSet<Arc<str>>,
    /// When one of these counts though nothing more is noticed of it.
    counts_at: Option<Instant>,
    doubt: Doubt,
    shrunk: Shrunk,
    /// The directories below the root where another file system was mounted, with a trailing `/`.
    mounts: BTreeMap<String, DirectoryId>,
    /// Whether the last walk met a symbolic link: then one file can be several, and nothing is looked at alone.
    links: bool,
    /// Whether there has been a manifest since the start.
    has_had_files: bool,
    /// Why the directory itself cannot be served, while it cannot.
    outage: Option<String>,
    /// The kinds that were warned of.
    warned: Vec<String>,
}

/// What only another walk can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    None,
    /// Which of the missing files and objects are deleted: the last walk has found them to be missing, and may have passed by the
    /// files that have the objects now.
    Missing,
    /// Everything: the last walk met not all files that were there, because the directory changed meanwhile.
    All,
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nobody wants it any more.
    Cancelled,
    /// The directory cannot be read; the text says what to do.
    Outage(String),
}

/// What a look has found.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) events: Vec<Event>,
    /// When to look again.
    pub(super) again_at: Option<Instant>,
    /// It is not certain yet that a file that was not found was deleted: the state is not proved to be that of the directory.
    pub(super) is_uncertain: bool,
}

/// What became of looking at single paths.
#[derive(Debug)]
pub(super) enum Refresh {
    /// All of them were dealt with.
    Done(Looked),
    /// Only a scan of everything can tell.
    Unclear,
}

// === impl Engine ===

impl Engine {
    /// Nothing is known yet; versions will be of `lineage`.
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

    /// The version of the last change.
    pub(super) fn version(&self) -> ResourceVersion {
        self.catalog.version()
    }

    /// Scans, and returns everything.
    pub(super) fn list(&mut self, cancelled: &CancellationToken) -> Result<List, Failure> {
        self.scan(None, cancelled)?;
        Ok(List::new(self.catalog.objects(), self.catalog.version()))
    }

    /// Scans, and returns what has changed. The notices follow the directory before it is read, so that there is no gap
    /// between what was read and what they tell.
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
        // What is being written is not what was missing.
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

    /// Looks at single paths, and returns what has changed.
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
                // What the last walk said about this path may not hold any more.
                _ if self.found.contains_key(&*escaped(path)) => return Ok(Refresh::Unclear),
                Probe::File(change) => changes.push(change),
                Probe::Unfinished(path, stamp) => unfinished.push((path, stamp)),
                Probe::Absent(path) => absent.push(path),
                Probe::Unclear => return Ok(Refresh::Unclear),
            }
        }
        let counts_at = scanner.again_at();
        // Files that are gone together with the directory are not deleted.
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

    /// Looks for the missing files again, and returns what has changed.
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

    /// Takes note that the directory is changing at this moment, so that no deletion is certain.
    pub(super) fn disturb(&mut self, now: Instant) {
        self.missing.disturb(now);
        self.lost.disturb(now);
    }

    fn signs<'a>(&'a self, notices: Option<&'a DirtySet>, now: Instant) -> Signs<'a> {
        let FilesConfig { rescan, quiet, .. } = *self.config;
        Signs { notices, shrunk: &self.shrunk, rescan, quiet, now, clock: SystemTime::now() }
    }

    /// The directory, if it is the one that the catalog is of, and single files of it can be looked at.
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

    /// Takes over changes, and the deletions that are certain by now.
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
        // What waits for a file is looked at again with that file.
        let lost = self.lost.next_look(patience).filter(|_| self.is_all_read());
        let again_at = self.missing.next_look(patience).into_iter().chain(lost).chain(self.counts_at).min();
        Looked { events, again_at, is_uncertain: !self.missing.is_empty() }
    }

    /// Whether no file may have an object that is not known to be in it.
    fn is_all_read(&self) -> bool {
        self.unfinished.is_empty() && self.missing.is_empty() && self.doubt != Doubt::All
    }

    /// The patience with objects that no file has any more.
    fn patience_for_objects(&self, patience: Patience) -> Patience {
        let longest = self.config.rescan.saturating_mul(MAX_RESCANS);
        let unchanged = if self.is_all_read() { patience.unchanged } else { longest };
        Patience { unchanged, at_most: longest }
    }

    /// Reports a directory that has had no manifest since the start: perhaps its volume is mounted later.
    fn report_empty(&mut self) {
        self.has_had_files |= self.catalog.len() > 0;
        let message = || {
            let directory = self.config.path.display();
            format!("the directory {directory} has no .json, .yaml or .yml file: mount its volume, or correct the path")
        };
        let found = (!self.has_had_files).then(|| Problem::new(ProblemReason::DirectoryEmpty, "", message()));
        self.problems.replace(&[ProblemReason::DirectoryEmpty], found.into_iter().collect());
    }

    /// One reason for each path: what is wrong with the file comes before what is wrong with its place among others.
    fn standing(&self) -> BTreeMap<String, String> {
        let mut standing: BTreeMap<String, String> = BTreeMap::new();
        for (key, served, waiting) in self.catalog.duplicates() {
            let reason = || format!("{} is in {} as well, which comes first and is served", key, escaped(served));
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
            tracing::warn!(source = "files", resource, reason, "the directory cannot be read; its objects are kept");
            self.outage = Some(reason.to_owned());
        }
    }

    fn recovered(&mut self) {
        if self.outage.take().is_some() {
            tracing::info!(source = "files", resource = self.config.resource, "the directory can be read again");
        }
    }

    /// Several kinds in one resource are legal and rarely meant: an index or a client of one meets objects of another.
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
