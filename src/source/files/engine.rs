//! One directory's state, and the blocking work on it: scan, take over, tell.
//!
//! Owned by `FilesSource`, behind a lock that only threads take where blocking is allowed. `live` and `FilesSource::list`
//! call it.
//!
//! Invariants:
//! - A scan counts as a whole or not at all: if the directory was not there, or not the same any more at the end of it,
//!   nothing is taken over, and so nothing is deleted.
//! - What was cancelled has changed nothing.
//!
//! Not here: when to scan (`live`).

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use tokio_util::sync::CancellationToken;

use super::{
    FilesConfig,
    catalog::{Catalog, FileChange, Finding},
    notices::Notices,
    root::Root,
    scan::{Probe, Scan, ScanError, Scanner},
    text::{escaped, one_line},
};
use crate::{
    cache::{List, Problem, ProblemReason, SourceHealth},
    model::{Event, Lineage, ResourceVersion},
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
    /// Whether the last walk met a symbolic link: then one file can be several, and nothing is looked at alone.
    links: bool,
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

/// What became of looking at single paths.
#[derive(Debug)]
pub(super) enum Refresh {
    /// All of them were dealt with.
    Done(Vec<Event>),
    /// Only a scan of everything can tell.
    Unclear,
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
            links: false,
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
        Ok(List { objects: self.catalog.objects(), version: self.catalog.version() })
    }

    /// Scans, and returns what has changed. The notices follow the directory before it is read, so that there is no gap
    /// between what was read and what they tell.
    pub(super) fn scan(
        &mut self,
        notices: Option<&mut Notices>,
        cancelled: &CancellationToken,
    ) -> Result<Vec<Event>, Failure> {
        if cancelled.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        let outcome = self.walk(notices, cancelled);
        match &outcome {
            Ok(_) => self.recovered(),
            Err(Failure::Outage(reason)) => self.failed(reason),
            Err(Failure::Cancelled) => {}
        }
        let Scan { mut changes, seen, unknown, problems, links } = outcome?;
        let is_gone = |path: &&Arc<str>| !seen.contains(*path) && !super::scan::may_hold(&unknown, path);
        let gone = self.catalog.paths().filter(is_gone);
        changes.extend(gone.map(|path| FileChange { path: path.clone(), finding: Finding::Gone }).collect::<Vec<_>>());
        self.found = problems;
        self.links = links;
        Ok(self.take_over(changes))
    }

    /// Looks at single paths, and returns what has changed.
    pub(super) fn refresh(
        &mut self,
        paths: &BTreeSet<PathBuf>,
        cancelled: &CancellationToken,
    ) -> Result<Refresh, Failure> {
        if cancelled.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        if self.links || self.outage.is_some() {
            return Ok(Refresh::Unclear);
        }
        let Ok(root) = Root::open(&self.config.path) else { return Ok(Refresh::Unclear) };
        let mut scanner = Scanner::new(&root, &self.catalog, self.config.kind.as_deref(), cancelled);
        let mut changes = Vec::new();
        for path in paths {
            let Some(path) = path.strip_prefix(&root.path).ok().and_then(|path| path.to_str()) else {
                return Ok(Refresh::Unclear);
            };
            match scanner.probe(path) {
                Probe::Nothing => {}
                // What the last walk said about this path may not hold any more.
                _ if self.found.contains_key(&*escaped(path)) => return Ok(Refresh::Unclear),
                Probe::File(change) => changes.push(change),
                Probe::Unclear => return Ok(Refresh::Unclear),
            }
        }
        // Files that are gone together with the directory are not deleted.
        if Root::open(&self.config.path).as_ref() != Ok(&root) {
            return Ok(Refresh::Unclear);
        }
        Ok(Refresh::Done(self.take_over(changes)))
    }

    fn walk(&mut self, notices: Option<&mut Notices>, cancelled: &CancellationToken) -> Result<Scan, Failure> {
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
        if let Some(Err(reason)) = notices.map(|notices| notices.follow(&root)) {
            let (resource, rescan) = (&self.config.resource, self.config.rescan);
            tracing::warn!(source = "files", resource, ?rescan, reason, "changes are found by the periodic scan only");
        }
        let scanner = Scanner::new(&root, &self.catalog, self.config.kind.as_deref(), cancelled);
        let scan = scanner.walk().map_err(|error| match error {
            ScanError::Cancelled => Failure::Cancelled,
            ScanError::Root(error) => outage(format!("the directory {} cannot be read: {error}", root.path.display())),
        })?;
        match Root::open(&self.config.path) {
            Ok(now) if now == root => Ok(scan),
            Ok(_) => Err(outage(format!("the directory {} was replaced while it was read", root.path.display()))),
            Err(error) => Err(outage(error.to_string())),
        }
    }

    fn take_over(&mut self, changes: Vec<FileChange>) -> Vec<Event> {
        let events = self.catalog.apply(changes);
        let problem = |(path, reason)| Problem::new(ProblemReason::FileInvalid, path, reason);
        self.problems.replace(&[ProblemReason::FileInvalid], self.standing().into_iter().map(problem).collect());
        self.warn_of_kinds();
        events
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
mod tests {
    use super::*;

    #[test]
    fn several_kinds_are_told_with_the_flags_to_use() {
        let kinds = ["Gateway", "Ingress", "NetworkPolicy", "Pod"].map(str::to_owned);
        assert_eq!(
            kinds_advice(&kinds, std::path::Path::new("./m")),
            "several kinds in one resource; serve each as its own: --files gateways=./m@Gateway \
             --files ingresses=./m@Ingress --files networkpolicies=./m@NetworkPolicy --files pods=./m@Pod"
        );
    }
}
