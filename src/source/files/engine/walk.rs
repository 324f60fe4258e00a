//! Walk of the whole directory, and the known files that it did not find.
//!
//! `engine` calls it for every scan. It counts as a whole or not at all.

use std::{collections::BTreeSet, sync::Arc};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Engine, Failure};
use crate::{
    cache::{Problem, ProblemReason},
    source::files::{
        lookup::{Lookup, look_up},
        notices::Notices,
        root::{DirectoryId, Root},
        scan::{Scan, ScanError, Scanner, may_hold},
        text::{escaped, one_line},
    },
};

/// Result of a walk.
pub(super) struct Walked {
    pub(super) root: Root,
    pub(super) scan: Scan,
    /// Known files that do not exist.
    pub(super) absent: BTreeSet<Arc<str>>,
    /// True if the walk did not meet a known file that exists: the directory changed meanwhile.
    pub(super) is_torn: bool,
}

impl Engine {
    /// Walks, and checks that the directory is the same at the end.
    pub(super) fn walk(
        &mut self,
        mut notices: Option<&mut Notices>,
        cancelled: &CancellationToken,
    ) -> Result<Walked, Failure> {
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
        let signs = self.signs(notices.as_ref().map(|notices| &**notices.dirty()), Instant::now());
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
                return Err(outage(format!("the directory {} was replaced during the scan", root.path.display())));
            }
            Err(error) => return Err(outage(error.to_string())),
        }
        let is_emptied = scan.seen.is_empty() && !absent.is_empty() && !self.is_settled(&root);
        if is_emptied {
            return Err(outage(format!(
                "the directory {} was replaced by one without manifests, as when a volume is unmounted; mount it or \
                 create the files again, or restart informerd if they were deleted on purpose",
                root.path.display()
            )));
        }
        Ok(Walked { root, scan, absent, is_torn })
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
    pub(super) fn absent(
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
}
