//! Walk of the directory, which reads the files that have changed since the last update of the catalog.
//!
//! `engine` calls it, on a thread where blocking is allowed; it reads the catalog and changes nothing.
//!
//! Invariants:
//! - Only regular files are opened, and only for reading (`read`).
//! - A symbolic link is followed only if its target is inside the root.
//! - A file or directory that cannot be read is not considered deleted.
//! - A file that may still be written exists, but its content is not applied yet (`unfinished`).
//! - The walk is bounded: by depth, by number of entries, at a symbolic link to one of the directories above it, and by
//!   cancellation.
//!
//! `catalog` applies the results; `live` decides when to scan.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs, io,
    path::Path,
    sync::Arc,
};

use foldhash::fast::RandomState;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    catalog::{Catalog, Content, FileChange, Finding, Stamp},
    decode::{self, Decoded, Format, Unread},
    read::{Outcome, Reader},
    root::{DirectoryId, FileId, Root},
    unfinished::Signs,
};
use crate::{model::ResourceVersion, source::text::escaped};

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
    /// Those among them whose content is not applied yet.
    pub(super) unfinished: BTreeSet<Arc<str>>,
    /// Those among these that have fewer objects than before.
    pub(super) shrunk: BTreeMap<Arc<str>, Stamp>,
    /// Time at which the next of these is applied even without another notice.
    pub(super) again_at: Option<Instant>,
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
    /// The root itself cannot be listed.
    Root(io::Error),
}

/// Outcome of reading one file.
enum FileOutcome {
    Found(Finding),
    /// The content is not applied yet; with the stamp if it has fewer objects than before.
    Unfinished(Option<Stamp>),
    /// The file was deleted, or is no regular file.
    Nothing,
}

/// Walk in progress.
pub(super) struct Scanner<'a> {
    root: &'a Root,
    catalog: &'a Catalog,
    cancelled: &'a CancellationToken,
    signs: Signs<'a>,
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
        signs: Signs<'a>,
        cancelled: &'a CancellationToken,
    ) -> Self {
        Self {
            root,
            catalog,
            cancelled,
            signs,
            version: catalog.next_version(),
            reader: Reader::default(),
            entries: 0,
            max_entries: MAX_ENTRIES,
            above: Vec::new(),
            found: Scan::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn with_max_entries(self, max_entries: usize) -> Self {
        Self { max_entries, ..self }
    }

    /// Walks the whole directory.
    pub(super) fn walk(mut self) -> Result<Scan, ScanError> {
        self.found.seen.reserve(self.catalog.len());
        let root = self.root;
        self.above.push(root.id.file);
        self.directory(&root.path, &mut String::new())?;
        Ok(self.found)
    }

    /// Walks one directory. `relative` is empty for the root, or else ends in `/`; it is unchanged on return.
    fn directory(&mut self, absolute: &Path, relative: &mut String) -> Result<(), ScanError> {
        if self.above.len() > MAX_DEPTH {
            self.unknown(relative, &format!("nested too deeply (limit: {MAX_DEPTH} directories); not read"));
            return Ok(());
        }
        let entries = match fs::read_dir(absolute) {
            Ok(entries) => entries,
            Err(error) if relative.is_empty() => return Err(ScanError::Root(error)),
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => {
                self.unknown(relative, &format!("the directory cannot be read: {error}"));
                return Ok(());
            }
        };
        let length = relative.len();
        for entry in entries {
            if self.cancelled.is_cancelled() {
                return Err(ScanError::Cancelled);
            }
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if relative.is_empty() => return Err(ScanError::Root(error)),
                Err(error) => {
                    self.unknown(relative, &format!("the directory cannot be read: {error}"));
                    return Ok(());
                }
            };
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if let Some(name) = name.to_str() {
                relative.push_str(name);
                self.entry(&entry, name, relative)?;
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

    fn entry(&mut self, entry: &fs::DirEntry, name: &str, relative: &mut String) -> Result<(), ScanError> {
        let format = Format::of(name);
        let file_type = match entry.file_type() {
            Ok(file_type) => file_type,
            Err(error) => {
                self.unreadable(relative, &error);
                return Ok(());
            }
        };
        if file_type.is_symlink() {
            return self.link(&entry.path(), format, relative);
        }
        let format = format.filter(|_| file_type.is_file());
        if format.is_none() && !file_type.is_dir() {
            return Ok(());
        }
        match entry.metadata() {
            Ok(metadata) if file_type.is_dir() => self.below(&entry.path(), &metadata, relative),
            Ok(metadata) => {
                self.file(relative, &metadata, format, || entry.path());
                Ok(())
            }
            Err(error) => {
                self.unreadable(relative, &error);
                Ok(())
            }
        }
    }

    /// Follows a symbolic link, if its target is inside the root.
    fn link(&mut self, path: &Path, format: Option<Format>, relative: &mut String) -> Result<(), ScanError> {
        let target = fs::canonicalize(path).and_then(|target| Ok((fs::symlink_metadata(&target)?, target)));
        let (metadata, target) = match target {
            Ok(target) => target,
            Err(error) if is_absent(&error) => {
                if format.is_some() {
                    self.problem(relative, "the target of the symbolic link does not exist");
                }
                return Ok(());
            }
            Err(error) => {
                if format.is_some() {
                    self.unreadable(relative, &error);
                } else {
                    let directory = format!("{relative}/");
                    self.unknown(&directory, &format!("the symbolic link cannot be followed: {error}"));
                }
                return Ok(());
            }
        };
        let counts = metadata.is_dir() || (metadata.is_file() && format.is_some());
        if !counts {
            return Ok(());
        }
        if !target.starts_with(&self.root.path) {
            self.problem(relative, "the symbolic link leaves the directory; not followed");
            return Ok(());
        }
        if metadata.is_file() {
            self.file(relative, &metadata, format, || target);
            return Ok(());
        }
        if self.above.contains(&FileId::of(&metadata)) {
            self.problem(relative, "the symbolic link points to a directory above it; not followed");
            return Ok(());
        }
        self.below(&target, &metadata, relative)
    }

    fn below(&mut self, absolute: &Path, metadata: &fs::Metadata, relative: &mut String) -> Result<(), ScanError> {
        if !self.count(relative) {
            return Ok(());
        }
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
    fn file<P: AsRef<Path>>(
        &mut self,
        relative: &str,
        metadata: &fs::Metadata,
        format: Option<Format>,
        absolute: impl FnOnce() -> P,
    ) {
        let Some(format) = format else { return };
        if !self.count(relative) {
            return;
        }
        let path = match self.catalog.file(relative) {
            Some((path, stamp)) if stamp == Some(&Stamp::of(metadata)) => {
                self.found.seen.insert(path.clone());
                return;
            }
            Some((path, _)) => path.clone(),
            None => relative.into(),
        };
        let absolute = absolute();
        match self.read(&path, absolute.as_ref(), format) {
            FileOutcome::Found(finding) => {
                self.found.seen.insert(path.clone());
                self.found.changes.push(FileChange { path, finding });
            }
            FileOutcome::Unfinished(stamp) => {
                if self.signs.is_written(absolute.as_ref()).is_some_and(|lasts| lasts >= self.signs.config.rescan) {
                    let longest = self.signs.config.longest();
                    let problem =
                        format!("file is still open for writing; read when it is closed, or after {longest:?}");
                    self.problem(relative, &problem);
                }
                self.found.seen.insert(path.clone());
                self.found.shrunk.extend(stamp.map(|stamp| (path.clone(), stamp)));
                self.found.unfinished.insert(path);
            }
            FileOutcome::Nothing => {}
        }
    }

    fn read(&mut self, path: &str, absolute: &Path, format: Format) -> FileOutcome {
        let outcome = self.reader.read(&self.root.path, absolute);
        // Checked after the bytes were read, because a writer may have begun meanwhile.
        if outcome.is_ok() && self.signs.is_written(absolute).is_some() {
            return FileOutcome::Unfinished(None);
        }
        let (id, stamp, content) = match outcome {
            Ok(Outcome::Bytes { stamp, is_trusted, bytes }) => {
                let Decoded { objects, unread } = if decode::is_blank(bytes) {
                    let unread = self.catalog.may_have_had(path).then(|| unreadable(BLANK));
                    Decoded { unread, ..Decoded::default() }
                } else {
                    decode::decode(path, format, bytes, self.signs.config.kind.as_deref(), &self.version)
                };
                let content = match unread {
                    None if self.catalog.holds(path, &objects) => Content::Same,
                    _ if self.is_changing(path, absolute, &stamp, unread.is_none()) => {
                        return FileOutcome::Unfinished(None);
                    }
                    None if self.has_just_shrunk(path, objects.len(), &stamp) => {
                        return FileOutcome::Unfinished(Some(stamp));
                    }
                    None => Content::Objects(objects),
                    Some(unread) => Content::Partial(objects, unread),
                };
                (Some(stamp.id), is_trusted.then_some(stamp), content)
            }
            Ok(Outcome::Torn) => return FileOutcome::Unfinished(None),
            Ok(Outcome::Refused(stamp, reason)) => (None, stamp, Content::Partial(Vec::new(), unreadable(reason))),
            Ok(Outcome::NotAFile) => return FileOutcome::Nothing,
            Err(error) if is_absent(&error) => return FileOutcome::Nothing,
            // The cause may be outside of the file: its stamp does not show when it is fixed.
            Err(error) => (None, None, Content::Partial(Vec::new(), unreadable(format!("cannot be read: {error}")))),
        };
        FileOutcome::Found(Finding::Read { id, stamp, content })
    }

    /// Returns true if a file was modified so recently that its content is not applied. Valid content with a notice is.
    fn is_changing(&mut self, path: &str, absolute: &Path, stamp: &Stamp, is_good: bool) -> bool {
        let Some(at) = self.signs.left_alone_at(stamp) else { return false };
        let is_linked = || absolute != self.root.path.join(path);
        if is_good && (self.signs.is_noticed(absolute, stamp) || is_linked()) {
            return false;
        }
        self.found.again_at = Some(self.found.again_at.map_or(at, |other| other.min(at)));
        true
    }

    fn has_just_shrunk(&self, path: &str, objects: usize, stamp: &Stamp) -> bool {
        let before = self.catalog.read_as(path);
        before.is_some_and(|(id, before)| id == stamp.id && objects < before) && self.signs.has_just_shrunk(path, stamp)
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

    /// Records that this entry cannot be read: what the catalog has of it, as a file or as a directory, stays.
    fn unreadable(&mut self, relative: &str, error: &io::Error) {
        if is_absent(error) {
            return;
        }
        self.problem(relative, &format!("cannot be read: {error}"));
        self.found.seen.extend(self.catalog.file(relative).map(|(path, _)| path.clone()));
        self.found.unknown.insert(format!("{relative}/"));
    }

    fn problem(&mut self, path: &str, reason: &str) {
        self.found.problems.insert(escaped(path).into_owned(), reason.to_owned());
    }
}

/// Returns a file of which no part can be read.
fn unreadable(reason: impl Into<String>) -> Unread {
    Unread { count: 1, reason: reason.into() }
}

/// Returns true if a known file that a walk has not met may still exist, in a directory that could not be read.
pub(super) fn may_hold(unknown: &BTreeSet<String>, path: &str) -> bool {
    let mut directories = path.match_indices('/').map(|(slash, _)| &path[..=slash]);
    unknown.contains("") || directories.any(|directory| unknown.contains(directory))
}

pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
