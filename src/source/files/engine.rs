//! One directory's state, and the blocking work on it: scan, take over, tell.
//!
//! Owned by `FilesSource`, behind a lock that only threads take where blocking is allowed. `live` and `FilesSource::list`
//! call it.
//!
//! Invariants:
//! - A scan counts as a whole or not at all: if the directory was not there, or not the same any more at the end of it,
//!   nothing is taken over, and so nothing is deleted.
//! - Additions and modifications count at once, a deletion only when it is certain (`missing`). Another directory at the
//!   path, such as the mount point of a volume that was unmounted, counts as unavailable as long as it has no manifests.
//! - A cancelled scan has changed nothing.
//!
//! Not here: when to scan (`live`).

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    FilesConfig,
    catalog::{Catalog, FileChange, Finding},
    lookup::{Lookup, look_up},
    missing::{Missing, Patience},
    notices::{DirtySet, Notices},
    root::{DirectoryId, Root},
    scan::{Probe, Scan, ScanError, Scanner, may_hold},
    text::{escaped, one_line},
    unfinished::{MAX_RESCANS, Shrunk, Signs},
};
use crate::{
    cache::{List, Problem, ProblemReason, SourceHealth},
    model::{Event, Lineage, ResourceVersion},
    planted::planted,
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
    /// The directory that the catalog is of. Another one is taken over once no file is missing in it.
    settled: Option<DirectoryId>,
    missing: Missing,
    /// The last walk met not all files that were there: the directory changed meanwhile, and only another walk can tell.
    is_torn: bool,
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
    /// When to look again, because a file was not found and it is not certain yet that it was deleted. Until then the state
    /// is not proved to be that of the directory.
    pub(super) again_at: Option<Instant>,
}

/// What became of looking at single paths.
#[derive(Debug)]
pub(super) enum Refresh {
    /// All of them were dealt with.
    Done(Looked),
    /// Only a scan of everything can tell.
    Unclear,
}

/// A walk of everything.
struct Walked {
    root: Root,
    scan: Scan,
    /// The known files that are not there.
    absent: BTreeSet<Arc<str>>,
    /// A known file was not met by the walk, and is there: the directory changed meanwhile.
    is_torn: bool,
}

/// How many kinds the advice shows flags for.
const SHOWN_KINDS: usize = 8;

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
            is_torn: false,
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
        let Scan { mut changes, shrunk, problems, links, mounts, .. } = scan;
        let now = Instant::now();
        self.shrunk.retain(&shrunk.iter().map(|(path, _)| path.clone()).collect());
        for (path, stamp) in shrunk {
            self.shrunk.insert(path, stamp, now);
        }
        let found = self.missing.retain(&absent);
        let is_other = !self.is_settled(&root);
        let is_new = |change: &FileChange| self.catalog.file(&change.path).is_none();
        if is_other && (!found.is_empty() || changes.iter().any(is_new)) {
            self.missing.disturb(now);
        }
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
        let mut looked = self.take_over(changes, patience, now);
        self.report_empty();
        if self.missing.is_empty() {
            self.settled = Some(root.id);
        } else if is_other {
            let (resource, missing) = (&self.config.resource, self.missing.paths().count());
            tracing::info!(
                source = "files",
                resource,
                missing,
                "directory replaced; deletions wait for the next scans"
            );
        }
        // A directory that changes during each walk is walked at the interval.
        let was_torn = std::mem::replace(&mut self.is_torn, is_torn);
        if is_torn {
            let pause = if was_torn { self.config.rescan } else { self.config.quiet };
            looked.again_at.get_or_insert(now + pause);
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
        let signs = Signs { notices: Some(notices), shrunk: &self.shrunk, rescan: self.config.rescan, now };
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
        // Files that are gone together with the directory are not deleted.
        if Root::open(&self.config.path).as_ref() != Ok(&root) {
            return Ok(Refresh::Unclear);
        }
        for (path, stamp) in unfinished {
            if self.missing.remove(&path) {
                changes.push(FileChange { path: path.clone(), finding: Finding::Found });
            }
            if let Some(stamp) = stamp {
                self.shrunk.insert(path, stamp, now);
            }
        }
        for change in &changes {
            self.missing.remove(&change.path);
            self.shrunk.remove(&change.path);
        }
        for path in absent {
            if self.missing.insert(&path, now) {
                changes.push(FileChange { path, finding: Finding::Missing });
            }
        }
        Ok(Refresh::Done(self.take_over(changes, self.patience(false), now)))
    }

    /// Looks for the missing files again, and returns what has changed.
    pub(super) fn look_for_missing(&mut self, cancelled: &CancellationToken) -> Result<Refresh, Failure> {
        let Some(root) = self.settled_root() else { return Ok(Refresh::Unclear) };
        for path in self.missing.paths() {
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
        Ok(Refresh::Done(self.take_over(Vec::new(), self.patience(false), Instant::now())))
    }

    /// Takes note that the directory is changing at this moment, so that no deletion is certain.
    pub(super) fn disturb(&mut self) {
        self.missing.disturb(Instant::now());
    }

    /// The directory, if it is the one that the catalog is of, and single files of it can be looked at.
    fn settled_root(&self) -> Option<Root> {
        if self.outage.is_some() || self.is_torn {
            return None;
        }
        Root::open(&self.config.path).ok().filter(|root| self.is_settled(root))
    }

    fn is_settled(&self, root: &Root) -> bool {
        self.settled.is_none_or(|settled| settled == root.id) || planted!(AnotherRootIsTheSame)
    }

    fn patience(&self, is_other: bool) -> Patience {
        let FilesConfig { rescan, quiet, .. } = *self.config;
        if is_other {
            Patience { unchanged: rescan, at_most: rescan.saturating_mul(MAX_RESCANS) }
        } else {
            Patience { unchanged: quiet, at_most: rescan }
        }
    }

    fn walk(&mut self, mut notices: Option<&mut Notices>, cancelled: &CancellationToken) -> Result<Walked, Failure> {
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
                    "not all changes are reported, and found by a scan every {:?} only: {reason}",
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
            rescan: self.config.rescan,
            now: Instant::now(),
        };
        let scanner = Scanner::new(&root, &self.catalog, self.config.kind.as_deref(), signs, cancelled);
        let mut scan = scanner.walk().map_err(|error| match error {
            ScanError::Cancelled => Failure::Cancelled,
            ScanError::Root(error) => outage(format!("the directory {} cannot be read: {error}", root.path.display())),
        })?;
        self.keep_unmounted(&root, &mut scan);
        let (absent, is_torn) = self.absent(&root, &scan, cancelled)?;
        match Root::open(&self.config.path) {
            Ok(now) if now == root => {}
            Ok(_) => {
                return Err(outage(format!("the directory {} was replaced while it was read", root.path.display())));
            }
            Err(error) => return Err(outage(error.to_string())),
        }
        let is_emptied = scan.seen.is_empty() && !absent.is_empty() && !self.is_settled(&root);
        if is_emptied && !planted!(EmptyRootIsADeletion) {
            return Err(outage(format!(
                "the directory {} was replaced by one without manifests, as when a volume is unmounted: mount it or \
                 create the files again; if they were deleted on purpose, restart informerd",
                root.path.display()
            )));
        }
        Ok(Walked { root, scan, absent, is_torn })
    }

    /// Keeps the files of a volume below the root that is not mounted any more, as long as its mount point is empty.
    fn keep_unmounted(&self, root: &Root, scan: &mut Scan) {
        let is_other = |(directory, id): &(&String, &DirectoryId)| scan.mounts.get(*directory) != Some(*id);
        for (directory, id) in self.mounts.iter().filter(is_other).collect::<Vec<_>>() {
            let is_below = |path: &Arc<str>| path.starts_with(directory.as_str());
            let is_empty = !scan.seen.iter().any(is_below) && root.path.join(directory).is_dir();
            if is_empty && self.catalog.paths().any(is_below) {
                let problem = "a volume was mounted here and is not any more; its objects are kept: mount it, create the \
                               files again, or delete the directory";
                scan.problems.insert(escaped(directory).into_owned(), problem.to_owned());
                scan.unknown.insert(directory.clone());
                scan.mounts.insert(directory.clone(), *id);
            }
        }
    }

    /// The known files that a walk has not met and that are not there; and whether one of them is there after all.
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

    /// Takes over changes, and the deletions that are certain by now.
    fn take_over(&mut self, mut changes: Vec<FileChange>, patience: Patience, now: Instant) -> Looked {
        let certain = self.missing.take_certain(patience, now);
        changes.extend(certain.into_iter().map(|path| FileChange { path, finding: Finding::Gone }));
        let events = self.catalog.apply(changes);
        let problem = |(path, reason)| Problem::new(ProblemReason::FileInvalid, path, reason);
        self.problems.replace(&[ProblemReason::FileInvalid], self.standing().into_iter().map(problem).collect());
        self.warn_of_kinds();
        Looked { events, again_at: self.missing.next_look(patience) }
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

/// For example `several kinds in one resource; serve each as its own: --files pods=DIR@Pod --files services=DIR@Service`.
fn kinds_advice(kinds: &[String], directory: &std::path::Path) -> String {
    let directory = directory.to_string_lossy();
    let flags = kinds.iter().take(SHOWN_KINDS).map(|kind| format!(" --files {}={directory}@{kind}", plural(kind)));
    let more = if kinds.len() > SHOWN_KINDS { " …" } else { "" };
    escaped(&format!("several kinds in one resource; serve each as its own:{}{more}", flags.collect::<String>()))
        .into_owned()
}

/// As Kubernetes names its resources, for nearly all of them.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.as_bytes() {
        [.., b'a' | b'e' | b'o' | b'u', b'y'] => kind + "s",
        [.., b'y'] => format!("{}ies", &kind[..kind.len() - 1]),
        [.., b's' | b'x'] | [.., b'c' | b's', b'h'] => kind + "es",
        _ => kind + "s",
    }
}

#[cfg(test)]
mod tests;
