//! Parts of files that cannot be read and have no last good objects: they may contain any object.
//!
//! `engine` keeps them. While there is one, no object is deleted. While there has been one ever since the start, the resource is
//! incomplete: clients of an earlier run, which know more than this one, keep what they have.

use std::collections::{BTreeMap, BTreeSet};

use super::catalog::Catalog;
use crate::{cache::SourceHealth, model::ResourceVersion, source::text::escaped};

/// Search for parts that cannot be read and have no last good objects.
#[derive(Debug)]
pub(super) struct UnreadParts {
    health: SourceHealth,
    /// Place and problem of the first of them.
    first: Option<String>,
    /// Set once there was none.
    is_complete: bool,
}

// === impl UnreadParts ===

impl UnreadParts {
    /// Returns the state before the first scan.
    pub(super) fn new(health: SourceHealth) -> Self {
        Self { health, first: None, is_complete: false }
    }

    /// Begins with the state of an earlier run, which may have had more objects.
    pub(super) fn begin(&self, problem: &str) {
        self.report_incomplete(problem);
    }

    /// Searches the result of a scan, whose problems with directories are by path.
    pub(super) fn find(
        &mut self,
        catalog: &Catalog,
        unknown_directories: &BTreeSet<String>,
        problems: &BTreeMap<String, String>,
    ) {
        let is_known = |directory: &String| {
            !directory.is_empty() && catalog.paths().any(|path| path.starts_with(directory.as_str()))
        };
        let mut directories = unknown_directories.iter().filter(|directory| !is_known(directory));
        let file = catalog.unknown().next().map(|(path, unread)| format!("{}: {}", escaped(path), unread.reason));
        let described = |directory: &String| {
            let directory = escaped(directory);
            // A link that cannot be followed may be one to a file.
            let problem = problems.get(&*directory).or_else(|| problems.get(directory.trim_end_matches('/')));
            format!("./{directory}: {}", problem.map_or("not read", |problem| problem))
        };
        self.first = file.or_else(|| directories.next().map(described));
    }

    /// Returns true if no object may be deleted.
    pub(super) fn forbid_deletions(&self) -> bool {
        self.first.is_some()
    }

    /// Reports after a scan if the resource is complete: at this version, if it was not before.
    pub(super) fn report(&mut self, has_new_unfinished: bool, version: ResourceVersion) {
        if self.is_complete {
            return;
        }
        match &self.first {
            Some(problem) => self.report_incomplete(problem),
            None if has_new_unfinished => self.report_incomplete("a file is being written"),
            None => {
                self.is_complete = true;
                self.health.complete_at(version);
            }
        }
    }

    fn report_incomplete(&self, problem: &str) {
        self.health.mark_incomplete(format!(
            "objects may exist that have not been read since the start, so clients of an earlier run keep theirs: {problem}"
        ));
    }
}
