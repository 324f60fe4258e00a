//! The `files` source: a directory of manifests, watched for changes.
//!
//! ```text
//!             directory ──notify──▶ notices ─┐
//!                 │                          ▼
//!                 └──▶ scan ◀── engine ◀── live ──▶ Watch
//!   root, read, decode, readiness │  ▲
//!                         catalog ┘ └ Problems ──▶ SourceHealth
//! ```
//!
//! The application makes one source for each resource from its configuration; the resource's Reflector drives it. Problems of
//! single files are reported in the resource's health.
//!
//! - Manifests are regular files `*.json`, `*.yaml` and `*.yml`, in any directory below; names that begin with a dot are
//!   skipped. Symbolic links are followed inside the directory, which is how Kubernetes mounts a `ConfigMap`.
//! - Versions are `<lineage>.<n>`, the lineage new at each start. One changed object is one version; an unchanged object
//!   keeps its own.
//! - The source scans the directory after a change notice and a quiet period, and at an interval. A scan reads the files whose
//!   stamp has changed.
//! - Only a deletion deletes: a document that cannot be parsed, or a directory that is absent, keeps its objects and is reported.
//!   What was never read may be any object: while there is such a document nothing is deleted.
//!   An object that no file contains any more is deleted when that is certain (`engine`); a file that is being written is applied
//!   when it is closed (`readiness`).
//! - Only one list or watch is active; the next one ends the one before it.
//!
//! Unix only: identity and stamps of files are inode numbers and times of change.
//!
//! No changes have to be inferred: a scan compares the directory with the catalog. With a snapshot of the previous run the
//! catalog begins with its objects, so that the last good ones survive a restart; the versions are new all the same.

mod catalog;
mod decode;
mod engine;
mod live;
mod notices;
mod read;
mod readiness;
mod root;
mod scan;
mod source;

#[cfg(test)]
mod tests;

use std::{path::PathBuf, time::Duration};

pub use self::{root::DirectoryError, source::FilesSource};

/// Default interval of scans of the whole directory: the bound on finding a change without a notice, and on the last
/// contact.
pub const DEFAULT_RESCAN: Duration = Duration::from_secs(5);

/// Default quiet period after a burst of changes.
pub const DEFAULT_QUIET: Duration = Duration::from_millis(100);

/// Longest wait for the rest of a change, in rescans.
const MAX_RESCANS: u32 = 6;

/// Configuration of a [`FilesSource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesConfig {
    /// The directory.
    pub path: PathBuf,
    /// Kind of the objects to serve, in any case of letters; `None` for all.
    pub kind: Option<String>,
    /// Name of the resource, for the log.
    pub resource: String,
    /// Interval of scans of the whole directory; at least 10 ms. A file that stays open for writing is read after six of
    /// these.
    pub rescan: Duration,
    /// Quiet period after a burst of changes, before the source scans the directory; at most `rescan`. It scans in the middle of a
    /// burst that lasts five times as long. A file that is missing then, or an object that no file contains any more,
    /// is deleted if it is still missing after another quiet period. A file whose last change had no notice is applied when it
    /// has been unchanged for five quiet periods.
    pub quiet: Duration,
}

// === impl FilesConfig ===

impl FilesConfig {
    /// Returns the configuration that serves `path` as `resource`, with the defaults for everything else.
    pub fn new(path: impl Into<PathBuf>, resource: impl Into<String>) -> Self {
        let (path, resource) = (path.into(), resource.into());
        Self { path, kind: None, resource, rescan: DEFAULT_RESCAN, quiet: DEFAULT_QUIET }
    }

    /// Returns the longest time for which a change waits for others, or for its file to be closed.
    fn longest(&self) -> Duration {
        self.rescan.saturating_mul(MAX_RESCANS)
    }
}
