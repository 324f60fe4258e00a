//! Walks the directory and reads what has changed since the catalog was last brought up to date.
//!
//! Called by `engine`, on a thread where blocking is allowed; reads the catalog and changes nothing.
//!
//! Invariants:
//! - Only regular files are opened, and only to be read (`read`).
//! - A symbolic link counts only while its target is inside the root.
//! - A file or directory that cannot be looked at is not taken for deleted.
//! - A file that may still be written is there, and its content does not count yet (`unfinished`).
//! - The walk ends: by depth, by number of entries, at a symbolic link to one of the directories above it, or when it is
//!   cancelled.
//!
//! Not here: what becomes of the findings (`catalog`), and when to scan (`live`).

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
    decode::{self, Format},
    read::{Outcome, Reader},
    root::{DirectoryId, FileId, Root},
    text::escaped,
    unfinished::Signs,
};
use crate::model::ResourceVersion;

/// How many directories deep files are looked for.
const MAX_DEPTH: usize = 32;

/// How many files and directories are looked at in one scan.
const MAX_ENTRIES: usize = 1_000_000;

/// What a walk has found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Files that are there and may have changed.
    pub(super) changes: Vec<FileChange>,
    /// Every file that is there.
    pub(super) seen: HashSet<Arc<str>, RandomState>,
    /// Of these, the ones whose content does not count yet; with the stamp if they have fewer objects than before.
    pub(super) unfinished: Vec<(Arc<str>, Option<Stamp>)>,
    /// When one of these counts though nothing more is noticed of it.
    pub(super) again_at: Option<Instant>,
    /// The directories that could not be looked into, with a trailing `/`; empty text for the root. What is known to be
    /// in them stays.
    pub(super) unknown: BTreeSet<String>,
    /// What cannot be served, and why, by path.
    pub(super) problems: BTreeMap<String, String>,
    /// Whether there is any symbolic link that counts.
    pub(super) links: bool,
    /// The directories where another file system is mounted, with a trailing `/`.
    pub(super) mounts: BTreeMap<String, DirectoryId>,
}

/// Why a walk has no result.
#[derive(Debug)]
pub(super) enum ScanError {
    /// Nobody wants it any more.
    Cancelled,
    /// The root itself cannot be listed.
    Root(io::Error),
}

/// What is the matter with one file's path, as far as it can be dealt with alone.
#[derive(Debug)]
pub(super) enum Probe {
    /// Nothing that counts.
    Nothing,
    /// This file, and no other, may have changed.
    File(FileChange),
    /// The content of this file does not count yet; with the stamp if it has fewer objects than before.
    Unfinished(Arc<str>, Option<Stamp>),
    /// This file, which is known, is not there.
    Absent(Arc<str>),
    /// More than this file may have changed: walk.
    Unclear,
}

/// What became of reading one file.
enum Reading {
    Found(Finding),
    /// Its content does not count yet; with the stamp if it has fewer objects than before.
    Unfinished(Option<Stamp>),
    /// It is gone, or no regular file.
    Nothing,
}

/// Reads files on behalf of a walk or of a single look.
pub(super) struct Scanner<'a> {
    pub(super) root: &'a Root,
    pub(super) catalog: &'a Catalog,
    pub(super) kind: Option<&'a str>,
    pub(super) cancelled: &'a CancellationToken,
    signs: Signs<'a>,
    version: ResourceVersion,
    reader: Reader,
    entries: usize,
    max_entries: usize,
    /// The directories on the way to where the walk is.
    above: Vec<FileId>,
    found: Scan,
}

// === impl Scanner ===

impl<'a> Scanner<'a> {
    pub(super) fn new(
        root: &'a Root,
        catalog: &'a Catalog,
        kind: Option<&'a str>,
        signs: Signs<'a>,
        cancelled: &'a CancellationToken,
    ) -> Self {
        Self {
            root,
            catalog,
            kind,
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

    /// Walks everything.
    pub(super) fn walk(mut self) -> Result<Scan, ScanError> {
        self.found.seen.reserve(self.catalog.len());
        let root = self.root;
        self.above.push(root.id.file);
        self.directory(&root.path, &mut String::new())?;
        Ok(self.found)
    }

    /// Looks at one path below the root, given that there are no symbolic links in the whole tree.
    pub(super) fn probe(&mut self, path: &str) -> Probe {
        if path.split('/').any(|part| part.starts_with('.')) {
            return Probe::Nothing;
        }
        let absolute = self.root.path.join(path);
        let known = self.catalog.file(path).map(|(path, _)| path.clone());
        let metadata = match fs::symlink_metadata(&absolute) {
            Ok(metadata) if metadata.is_dir() || metadata.is_symlink() => return Probe::Unclear,
            Ok(metadata) => Some(metadata),
            Err(error) if is_absent(&error) => None,
            Err(_) => return Probe::Unclear,
        };
        let name = path.rsplit('/').next().unwrap_or(path);
        match (Format::of(name), metadata) {
            (Some(format), Some(metadata)) if metadata.is_file() => {
                let path = known.unwrap_or_else(|| path.into());
                match self.read(&path, &absolute, format) {
                    Reading::Found(finding) => Probe::File(FileChange { path, finding }),
                    Reading::Unfinished(stamp) => Probe::Unfinished(path, stamp),
                    Reading::Nothing => Probe::Unclear,
                }
            }
            _ => match known {
                Some(path) => Probe::Absent(path),
                // A directory that was deleted or renamed leaves its files behind in the catalog.
                None if self.catalog.paths().any(|file| is_below(file, path)) => Probe::Unclear,
                None => Probe::Nothing,
            },
        }
    }

    /// When the content of a file counts that was looked at and does not yet, though nothing more is noticed of it.
    pub(super) fn again_at(&self) -> Option<Instant> {
        self.found.again_at
    }

    /// Goes through one directory. `relative` is empty for the root, or else ends in `/`; it is given back as it was.
    fn directory(&mut self, absolute: &Path, relative: &mut String) -> Result<(), ScanError> {
        if self.above.len() > MAX_DEPTH {
            self.unknown(relative, &format!("deeper than {MAX_DEPTH} directories; not read"));
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
                    self.problem(&format!("{relative}{name}"), "the name is not UTF-8; rename it");
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
                self.found.links = true;
                if format.is_some() {
                    self.problem(relative, "the target of the symbolic link does not exist");
                }
                return Ok(());
            }
            Err(error) => {
                self.found.links = true;
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
        self.found.links = true;
        if !target.starts_with(&self.root.path) {
            self.problem(relative, "the symbolic link leaves the directory; not followed");
            return Ok(());
        }
        if metadata.is_file() {
            self.file(relative, &metadata, format, || target);
            return Ok(());
        }
        if self.above.contains(&FileId::of(&metadata)) {
            self.problem(relative, "the symbolic link leads to a directory above it; not followed");
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

    /// Reads a file whose stamp is not the known one.
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
            Reading::Found(finding) => {
                self.found.seen.insert(path.clone());
                self.found.changes.push(FileChange { path, finding });
            }
            Reading::Unfinished(stamp) => {
                if self.signs.is_written(absolute.as_ref()).is_some_and(|lasts| lasts >= self.signs.rescan) {
                    let longest = self.signs.longest();
                    let problem = format!("is still open for writing; read when it is closed, or after {longest:?}");
                    self.problem(relative, &problem);
                }
                self.found.seen.insert(path.clone());
                self.found.unfinished.push((path, stamp));
            }
            Reading::Nothing => {}
        }
    }

    fn read(&mut self, path: &str, absolute: &Path, format: Format) -> Reading {
        let outcome = self.reader.read(&self.root.path, absolute);
        // Looked at after the bytes were read: who began to write meanwhile counts too.
        if outcome.is_ok() && self.signs.is_written(absolute).is_some() {
            return Reading::Unfinished(None);
        }
        let (id, stamp, content) = match outcome {
            Ok(Outcome::Bytes { stamp, is_trusted, bytes }) => {
                let decoded = if decode::is_blank(bytes) {
                    None
                } else {
                    Some(decode::decode(path, format, bytes, self.kind, &self.version))
                };
                let is_good = matches!(decoded, Some(Ok(_)));
                let content = match decoded {
                    Some(Ok(objects)) if self.catalog.holds(path, &objects) => Content::Same,
                    _ if self.is_changing(path, absolute, &stamp, is_good) => return Reading::Unfinished(None),
                    Some(Ok(objects)) if self.has_just_shrunk(path, objects.len(), &stamp) => {
                        return Reading::Unfinished(Some(stamp));
                    }
                    None => Content::Blank,
                    Some(Ok(objects)) => Content::Objects(objects),
                    Some(Err(reason)) => Content::Unusable(reason),
                };
                (Some(stamp.id()), is_trusted.then_some(stamp), content)
            }
            Ok(Outcome::Torn) => return Reading::Unfinished(None),
            Ok(Outcome::Refused(stamp, reason)) => (None, stamp, Content::Unusable(reason)),
            Ok(Outcome::NotAFile) => return Reading::Nothing,
            Err(error) if is_absent(&error) => return Reading::Nothing,
            // The reason may lie outside the file: its stamp does not show when it is mended.
            Err(error) => (None, None, Content::Unusable(format!("cannot be read: {error}"))),
        };
        Reading::Found(Finding::Read { id, stamp, content })
    }

    /// Whether a file was modified so recently that its content does not count. What is good counts with a notice.
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
        before.is_some_and(|(id, before)| id == stamp.id() && objects < before)
            && self.signs.has_just_shrunk(path, stamp)
    }

    /// Counts an entry; past the bound nothing more is looked at, and what is known stays.
    fn count(&mut self, relative: &str) -> bool {
        if self.entries == self.max_entries {
            let reason =
                format!("more than {} files and directories; from here on they are not read", self.max_entries);
            if self.found.unknown.insert(String::new()) {
                self.problem(relative, &reason);
            }
            return false;
        }
        self.entries += 1;
        true
    }

    /// The files below `directory` cannot be told.
    fn unknown(&mut self, directory: &str, reason: &str) {
        self.problem(directory, reason);
        self.found.unknown.insert(directory.to_owned());
    }

    /// This entry cannot be looked at: what is known of it, as a file or as a directory, stays.
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

/// Whether a known file that a walk has not seen may still be there: it is in a directory that could not be looked into.
pub(super) fn may_hold(unknown: &BTreeSet<String>, path: &str) -> bool {
    let mut directories = path.match_indices('/').map(|(slash, _)| &path[..=slash]);
    unknown.contains("") || directories.any(|directory| unknown.contains(directory))
}

pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn is_below(file: &str, directory: &str) -> bool {
    file.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}
