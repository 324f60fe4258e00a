//! Walk of the directory, which reads the files that have changed since the last update of the catalog.
//!
//! `engine` calls it, on a thread where blocking is allowed; it reads the catalog and changes nothing.
//!
//! Invariants:
//! - Only regular files are opened, and only for reading (`read`).
//! - A symbolic link is followed only if its target is inside the root.
//! - A file or directory that cannot be read is not considered deleted.
//! - A file that may still be written exists, but its content is not applied yet (`readiness`).
//! - The walk is bounded: by depth, by number of entries, at a symbolic link to one of the directories above it, and by
//!   cancellation.
//!
//! `catalog` applies the results; `live` decides when to scan.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use foldhash::fast::RandomState;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    FilesConfig,
    catalog::{Catalog, Content, FileChange, Stamp},
    decode::{self, Decoded, Format, Unread},
    notices::DirtySet,
    read::{Outcome, Reader},
    readiness::{Facts, Fewer, Quality, Reason, Writer, unmodified},
    root::{DirectoryId, FileId, Root, is_absent},
};
use crate::{model::ResourceVersion, source::text::escaped};

/// Existing files whose content is not applied yet, and the state of those with fewer objects than before.
pub(super) type Pending = BTreeMap<Arc<str>, Option<Fewer>>;

/// Reason for a file that is empty: it may have been truncated a moment ago, or by a full disk.
const BLANK: &str = "file is empty; delete it to delete its objects";

/// Limit of the depth of directories.
const MAX_DEPTH: usize = 32;

/// Limit of the files and directories in one scan.
const MAX_ENTRIES: usize = 1_000_000;

/// Result of a walk.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Existing files that may have changed.
    pub(super) changes: Vec<FileChange>,
    /// All existing files.
    pub(super) seen: HashSet<Arc<str>, RandomState>,
    pub(super) pending: Pending,
    /// Time at which the next of these is applied even without another notice.
    pub(super) again_at: Option<Instant>,
    /// True if the walk did not meet a known file that exists: the directory changed meanwhile.
    pub(super) is_torn: bool,
    /// Directories that could not be read, with a trailing `/`; empty text for the root. The known files in them stay.
    pub(super) unknown: BTreeSet<String>,
    /// Problems of files and directories, by path.
    pub(super) problems: BTreeMap<String, String>,
    /// Mount points of other file systems, with a trailing `/`.
    pub(super) mounts: BTreeMap<String, DirectoryId>,
}

/// Reason why a walk has no result.
#[derive(Debug)]
pub(super) enum ScanError {
    /// The caller cancelled it.
    Cancelled,
    /// The directory cannot be listed.
    Directory(io::Error),
}

/// Content that is not applied yet.
type NotYet = (Reason, Option<Fewer>);

/// Walk in progress.
pub(super) struct Scanner<'a> {
    root: &'a Root,
    catalog: &'a Catalog,
    config: &'a FilesConfig,
    /// Files whose content was not applied by the scan before.
    pending: &'a Pending,
    /// Notices; `None` for a list, which has none.
    notices: Option<&'a DirtySet>,
    cancelled: &'a CancellationToken,
    now: Instant,
    version: ResourceVersion,
    reader: Reader,
    entries: usize,
    max_entries: usize,
    /// Directories above the current one, and itself.
    above: Vec<FileId>,
    found: Scan,
}

// === impl Scanner ===

impl<'a> Scanner<'a> {
    pub(super) fn new(
        root: &'a Root,
        catalog: &'a Catalog,
        config: &'a FilesConfig,
        pending: &'a Pending,
        notices: Option<&'a DirtySet>,
        cancelled: &'a CancellationToken,
    ) -> Self {
        Self {
            root,
            catalog,
            config,
            pending,
            notices,
            cancelled,
            now: Instant::now(),
            version: catalog.next_version(),
            reader: Reader::default(),
            entries: 0,
            max_entries: MAX_ENTRIES,
            above: vec![root.id.file],
            found: Scan::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn with_max_entries(self, max_entries: usize) -> Self {
        Self { max_entries, ..self }
    }

    /// Walks the whole directory.
    pub(super) fn walk(mut self) -> Result<Scan, ScanError> {
        self.entries(&self.root.path, &mut String::new())?;
        Ok(self.found)
    }

    /// Walks one directory below the root. `relative` ends in `/`.
    fn directory(&mut self, absolute: &Path, relative: &mut String) -> Result<(), ScanError> {
        if self.above.len() > MAX_DEPTH {
            self.unknown(relative, &format!("nested too deeply (limit: {MAX_DEPTH} directories); not read"));
            return Ok(());
        }
        match self.entries(absolute, relative) {
            Err(ScanError::Directory(error)) if is_absent(&error) => {}
            Err(ScanError::Directory(error)) => {
                self.unknown(relative, &format!("the directory cannot be read: {error}"));
            }
            outcome => return outcome,
        }
        Ok(())
    }

    /// Walks the entries of a directory. `relative` is empty for the root, or else ends in `/`.
    fn entries(&mut self, absolute: &Path, relative: &mut String) -> Result<(), ScanError> {
        let length = relative.len();
        for entry in fs::read_dir(absolute).map_err(ScanError::Directory)? {
            if self.cancelled.is_cancelled() {
                return Err(ScanError::Cancelled);
            }
            let entry = entry.map_err(ScanError::Directory)?;
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if let Some(name) = name.to_str() {
                relative.push_str(name);
                self.entry(&entry, Format::of(name), relative)?;
                relative.truncate(length);
            } else {
                let name = name.to_string_lossy();
                if Format::of(&name).is_some() || entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    self.problem(&format!("{relative}{name}"), "name is not UTF-8; rename it");
                }
            }
        }
        Ok(())
    }

    /// Walks a directory or reads a file, or follows a symbolic link to one, if its target is inside the root.
    fn entry(&mut self, entry: &fs::DirEntry, format: Option<Format>, relative: &mut String) -> Result<(), ScanError> {
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        let found = match entry.file_type() {
            Ok(kind) if !(is_link || kind.is_dir() || kind.is_file() && format.is_some()) => return Ok(()),
            Ok(_) if is_link => {
                fs::canonicalize(entry.path()).and_then(|target| Ok((fs::symlink_metadata(&target)?, Some(target))))
            }
            kind => kind.and_then(|_| Ok((entry.metadata()?, None))),
        };
        match (found, format) {
            (Ok((metadata, Some(target))), _)
                if !target.starts_with(&self.root.path)
                    && (metadata.is_dir() || metadata.is_file() && format.is_some()) =>
            {
                self.problem(relative, "the symbolic link leaves the directory; not followed");
            }
            (Ok((metadata, target)), _) if metadata.is_dir() => {
                if is_link && self.above.contains(&FileId::of(&metadata)) {
                    self.problem(relative, "the symbolic link points to a directory above it; not followed");
                } else if self.count(relative) {
                    return self.below(&target.unwrap_or_else(|| entry.path()), &metadata, relative);
                }
            }
            (Ok((metadata, target)), Some(format)) if metadata.is_file() && self.count(relative) => {
                self.file(relative, &Stamp::of(&metadata), format, || target.unwrap_or_else(|| entry.path()));
            }
            (Err(error), Some(_)) if is_link && is_absent(&error) => {
                self.problem(relative, "the target of the symbolic link does not exist");
            }
            (Err(error), _) if !is_absent(&error) => {
                // What the catalog has of it, as a file or as a directory, stays.
                self.problem(relative, &format!("cannot be read: {error}"));
                self.found.seen.extend(self.catalog.file(relative).map(|(path, _)| path.clone()));
                self.found.unknown.insert(format!("{relative}/"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Walks a directory below the current one.
    fn below(&mut self, absolute: &Path, metadata: &fs::Metadata, relative: &mut String) -> Result<(), ScanError> {
        let id = FileId::of(metadata);
        relative.push('/');
        if self.above.last().is_some_and(|above| above.dev != id.dev) {
            self.found.mounts.insert(relative.clone(), DirectoryId::of(metadata));
        }
        self.above.push(id);
        let outcome = self.directory(absolute, relative);
        self.above.pop();
        outcome
    }

    /// Reads a file whose stamp has changed.
    fn file(&mut self, relative: &str, stamp: &Stamp, format: Format, absolute: impl FnOnce() -> PathBuf) {
        let known = self.catalog.file(relative);
        let path = known.map_or_else(|| relative.into(), |(path, _)| path.clone());
        if known.is_none_or(|(_, file)| !file.is_trusted || file.stamp.as_ref() != Some(stamp)) {
            match self.read(&path, &absolute(), format) {
                Ok(Some(change)) => self.found.changes.push(change),
                // The file was deleted, or is no regular file.
                Ok(None) => return,
                Err((reason, fewer)) => {
                    if let Reason::Unnoticed(time) | Reason::Invalid(time) = reason {
                        let at = self.now + time;
                        self.found.again_at = Some(self.found.again_at.map_or(at, |other| other.min(at)));
                    }
                    if matches!(reason, Reason::Open(lasts) if lasts >= self.config.rescan) {
                        let longest = self.config.longest();
                        let problem =
                            format!("file is still open for writing; read when it is closed, or after {longest:?}");
                        self.problem(relative, &problem);
                    }
                    self.found.pending.insert(path.clone(), fewer);
                }
            }
        }
        self.found.seen.insert(path);
    }

    fn read(&mut self, path: &Arc<str>, absolute: &Path, format: Format) -> Result<Option<FileChange>, NotYet> {
        let change =
            |stamp, is_trusted, content| Ok(Some(FileChange { path: path.clone(), stamp, is_trusted, content }));
        let invalid = |stamp: Option<Stamp>, reason: String| {
            change(stamp, stamp.is_some(), Content::Partial(Vec::new(), Unread { count: Some(1), reason }))
        };
        let (stamp, is_trusted, is_torn, bytes) = match self.reader.read(&self.root.path, absolute) {
            Ok(Outcome::Bytes { stamp, is_trusted, is_torn, bytes }) => (stamp, is_trusted, is_torn, bytes),
            Ok(Outcome::Refused(stamp, reason)) => return invalid(stamp, reason),
            Ok(Outcome::NotAFile) => return Ok(None),
            Err(error) if is_absent(&error) => return Ok(None),
            // The cause may be outside of the file: its stamp does not show when it is fixed.
            Err(error) => return invalid(None, format!("cannot be read: {error}")),
        };
        // After the bytes were read, because a writer may have begun meanwhile.
        let (writer, unmodified) = match self.notices {
            None => (Writer::Finished, Duration::MAX),
            Some(notices) => {
                let is_linked = absolute != self.root.path.join(&**path);
                (Writer::of(notices.noticed(absolute), &stamp, is_linked), unmodified(&stamp, SystemTime::now()))
            }
        };
        let facts = |quality| Facts { writer, unmodified, quality };
        let earlier = self.pending.get(path).copied().flatten();
        if let Some(reason) = facts(if is_torn { Quality::Torn } else { Quality::Bytes }).reason_to_wait(self.config) {
            return Err((reason, earlier));
        }
        let Decoded { objects, unread } = if decode::is_blank(bytes) {
            let unread = || Unread { count: Some(1), reason: BLANK.into() };
            Decoded { unread: self.catalog.may_have_had(path).then(unread), ..Decoded::default() }
        } else {
            decode::decode(path, format, bytes, self.config.kind.as_deref(), &self.version)
        };
        if unread.is_none() && self.catalog.holds(path, &objects) {
            return change(Some(stamp), is_trusted, Content::Same);
        }
        let fewer = self.fewer(path, &stamp, objects.len());
        let since = |begin: Instant| self.now.saturating_duration_since(begin);
        let quality = match (&unread, fewer) {
            (Some(_), _) => Quality::Invalid,
            (None, Some(Fewer { since: found, begin, .. })) => {
                Quality::Fewer { unchanged: since(found), lasts: since(begin) }
            }
            (None, None) => Quality::Good,
        };
        if let Some(reason) = facts(quality).reason_to_wait(self.config) {
            return Err((reason, if unread.is_some() { earlier } else { fewer }));
        }
        let content = match unread {
            None => Content::Objects(objects),
            Some(unread) => Content::Partial(objects, unread),
        };
        change(Some(stamp), is_trusted, content)
    }

    /// Returns the state of a file that has fewer objects than before, and was not replaced by another one.
    fn fewer(&self, path: &str, stamp: &Stamp, objects: usize) -> Option<Fewer> {
        let (_, known) = self.catalog.file(path)?;
        known.stamp.filter(|before| before.id == stamp.id && objects < known.objects.len())?;
        let new = Fewer { stamp: *stamp, since: self.now, begin: self.now };
        Some(match self.pending.get(path).copied().flatten() {
            Some(found) if found.stamp == *stamp => found,
            Some(found) => Fewer { begin: found.begin, ..new },
            None => new,
        })
    }

    /// Counts an entry; above the limit nothing more is read, and the known files stay.
    fn count(&mut self, relative: &str) -> bool {
        if self.entries == self.max_entries {
            let reason = format!("too many files and directories (limit: {}); not read from here on", self.max_entries);
            if self.found.unknown.insert(String::new()) {
                self.problem(relative, &reason);
            }
            return false;
        }
        self.entries += 1;
        true
    }

    /// Records that the files below `directory` are unknown.
    fn unknown(&mut self, directory: &str, reason: &str) {
        self.problem(directory, reason);
        self.found.unknown.insert(directory.to_owned());
    }

    fn problem(&mut self, path: &str, reason: &str) {
        self.found.problems.insert(escaped(path).into_owned(), reason.to_owned());
    }
}

/// Returns true if a known file that a walk has not met may still exist, in a directory that could not be read.
pub(super) fn may_hold(unknown: &BTreeSet<String>, path: &str) -> bool {
    let mut directories = path.match_indices('/').map(|(slash, _)| &path[..=slash]);
    unknown.contains("") || directories.any(|directory| unknown.contains(directory))
}
