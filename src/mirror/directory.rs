//! Directory of a mirror: it holds exactly one file for each object, or for each key of its data, and nothing else.
//!
//! ```text
//!   DIR/.informerd-mirror          the resource and the layout: without it, every file of the directory is foreign
//!   DIR/.informerd-mirror.tmp      a file that is being written
//!   DIR/shop/web.json
//! ```
//!
//! Invariants:
//!
//! - A file is written under another name and then renamed: its readers see the old bytes or the new ones. A file with the same
//!   bytes is not written. Nothing is synced to the disk: after a crash of the machine the next start compares every file.
//! - Only one process has the directory: it is locked until this is dropped.
//! - A start with foreign files changes nothing; if it may remove them, it does so when the server has answered. `lost+found` belongs
//!   to the file system.
//! - After an end at any point the next start removes what the mirror itself has left: the file that was being written, and
//!   empty directories.
//! - Every path is opened directory by directory, and no symbolic link is followed below the directory itself.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, openat},
    io::Errno,
};

use super::{
    file_name::{Layout, data_directory, object_file},
    file_system::{EntryKind, FileSystem, SystemFiles, entries, has_bytes, open_directory, remove_empty},
    survey::{MARKER, Survey, TEMPORARY, remove},
};
use crate::model::ObjectKey;

/// Wanted files of one object by path, and their bytes.
pub(super) type Files<'a> = BTreeMap<String, Cow<'a, [u8]>>;

/// Directory of one mirror.
#[derive(Debug)]
pub(super) struct MirrorDirectory<F = SystemFiles> {
    root: OwnedFd,
    layout: Layout,
    files: F,
    changes: u64,
    /// Directories in which a file was removed, until they are removed if they are empty.
    emptied: BTreeSet<String>,
    /// Paths that are to be removed before the first change.
    to_remove: Vec<Vec<u8>>,
    /// Marker that is then to be written.
    marker: Option<String>,
}

/// Reason why a directory cannot be that of a mirror.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be made, read or changed.
    #[error("{path}: {error}")]
    Io {
        /// Path of the directory.
        path: String,
        /// Error of the system.
        error: io::Error,
    },
    /// Another mirror has it.
    #[error("{path} is in use by another informerd mirror; give each its own directory")]
    InUse {
        /// Path of the directory.
        path: String,
    },
    /// The directory has files that are not of this mirror.
    #[error(
        "{path} has files that are not of this mirror: {names}; choose another directory, or remove them with --replace"
    )]
    Foreign {
        /// Path of the directory.
        path: String,
        /// Names of the first three.
        names: String,
        /// True if it is the directory of another mirror.
        is_of_other: bool,
    },
}

/// Indicates a file that could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub(super) struct FileError {
    /// Path below the directory of the mirror.
    pub(super) path: String,
    /// Error of the system.
    pub(super) error: io::Error,
}

/// Number of foreign files that an error names.
const NAMED: usize = 3;

// === impl MirrorDirectory ===

impl<F: FileSystem> MirrorDirectory<F> {
    /// Makes the directory if it is missing, locks it, and removes what an earlier mirror left unfinished. Returns it with the keys of
    /// the objects that have files. With `replace`, foreign files wait for [`Self::prepare`], and so does all the rest.
    ///
    /// # Errors
    ///
    /// If there are foreign files, another process has it, or the system fails. Only after a failure of the system may something
    /// have changed.
    pub(super) fn open(
        path: &Path,
        resource: &str,
        layout: Layout,
        replace: bool,
        files: F,
    ) -> Result<(Self, BTreeSet<ObjectKey>), OpenError> {
        let shown = || path.display().to_string();
        let io = |error| OpenError::Io { path: shown(), error };
        fs::create_dir_all(path).map_err(io)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(rustix::fs::CWD, path, flags, Mode::empty()).map_err(|error| io(error.into()))?;
        // A file system without locks has none to give.
        if flock(&root, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Err(OpenError::InUse { path: shown() });
        }
        let marker = marker(resource, layout);
        let is_ours = has_bytes(root.as_fd(), MARKER, marker.as_bytes()).map_err(io)?;
        let survey = Survey::of(root.as_fd(), is_ours.then_some(layout)).map_err(io)?;
        if !survey.foreign.is_empty() && !replace {
            let is_of_other = !is_ours && path.join(MARKER).is_file();
            return Err(OpenError::Foreign { path: shown(), names: names(&survey.foreign), is_of_other });
        }
        let Survey { keys, foreign, to_remove } = survey;
        let marker = (!is_ours).then_some(marker);
        let mut directory = Self { root, layout, files, changes: 0, emptied: BTreeSet::new(), to_remove, marker };
        if foreign.is_empty() {
            directory.prepare().map_err(io)?;
        }
        Ok((directory, keys))
    }

    /// Returns the number of files that were written or removed since the start.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Makes these files all that an object has: writes those that differ, removes every other one, and with the last file of a
    /// directory the directory.
    ///
    /// # Errors
    ///
    /// The first file that could not be read or changed, or else a directory. The call can be repeated.
    pub(super) fn apply(&mut self, key: &ObjectKey, wanted: &Files<'_>) -> Result<(), FileError> {
        let failed = |path: &str| {
            let path = path.to_owned();
            move |error| FileError { path, error }
        };
        self.prepare().map_err(failed(""))?;
        for (path, bytes) in wanted {
            self.write(path, bytes).map_err(failed(path))?;
        }
        for path in self.possible(key).map_err(failed(&key.to_string()))? {
            if !wanted.contains_key(&path) {
                self.remove(&path).map_err(failed(&path))?;
            }
        }
        self.prune().map_err(failed(&key.to_string()))
    }

    /// Removes what was left unfinished and what is foreign, and writes the marker last: without it, nothing else is of a mirror. Does
    /// so once; the call can be repeated after a failure.
    pub(super) fn prepare(&mut self) -> io::Result<()> {
        while let Some(path) = self.to_remove.last() {
            match remove(&mut self.files, self.root.as_fd(), path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => drop(self.to_remove.pop()),
            }
        }
        if let Some(marker) = self.marker.clone() {
            self.replace(MARKER, marker.as_bytes())?;
            self.marker = None;
        }
        Ok(())
    }

    /// Returns the paths of the files that an object may have: of those that exist, all.
    fn possible(&self, key: &ObjectKey) -> io::Result<Vec<String>> {
        match self.layout {
            Layout::Objects => Ok(vec![object_file(key, true), object_file(key, false)]),
            Layout::Keys => {
                let mut found = Vec::new();
                if let Some(directory) = self.descend(&data_directory(key))? {
                    self.find(directory.as_fd(), &data_directory(key), key, &mut found)?;
                }
                Ok(found)
            }
        }
    }

    /// Collects the files of an object's data in a directory of it.
    fn find(&self, directory: BorrowedFd<'_>, path: &str, key: &ObjectKey, found: &mut Vec<String>) -> io::Result<()> {
        for entry in entries(directory)? {
            let Ok(name) = std::str::from_utf8(&entry.name) else { continue };
            let path = format!("{path}/{name}");
            if entry.kind == EntryKind::Directory {
                self.find(open_directory(directory, &entry.name)?.as_fd(), &path, key, found)?;
            } else if self.layout.key_of(&path).as_ref() == Some(key) {
                found.push(path);
            }
        }
        Ok(())
    }

    fn write(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let (directories, name) = split(path);
        if let Some(parent) = self.descend(directories)?
            && has_bytes(parent.as_fd(), name, bytes)?
        {
            return Ok(());
        }
        self.replace(path, bytes)?;
        self.changes += 1;
        Ok(())
    }

    /// Writes a file under another name, then makes its directories, so that a full disk leaves no empty ones, and renames it.
    fn replace(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let written = self.files.write(self.root.as_fd(), TEMPORARY, bytes).and_then(|()| {
            let (directories, name) = split(path);
            let parent = self.make(directories)?;
            let parent = parent.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            self.files.rename(self.root.as_fd(), TEMPORARY, parent, name)
        });
        if written.is_err() {
            // Half a file is space that others could use; if it cannot be removed now, the next start does.
            drop(self.files.remove_file(self.root.as_fd(), TEMPORARY.as_bytes()));
        }
        written
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        let (directories, name) = split(path);
        let Some(parent) = self.descend(directories)? else { return Ok(()) };
        match self.files.remove_file(parent.as_fd(), name.as_bytes()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        self.changes += 1;
        self.emptied.insert(directories.to_owned());
        Ok(())
    }

    /// Removes the directories that may be empty, also those of earlier failures. One that fails holds up no other.
    fn prune(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for path in std::mem::take(&mut self.emptied) {
            if let Err(error) = self.prune_from(&path) {
                self.emptied.insert(path);
                result = result.and(Err(error));
            }
        }
        result
    }

    /// Removes a directory, and those that it is in, up to one that stays.
    fn prune_from(&mut self, mut path: &str) -> io::Result<()> {
        while !path.is_empty() {
            let (parents, name) = split(path);
            if let Some(parent) = self.descend(parents)?
                && !remove_empty(&mut self.files, parent.as_fd(), name.as_bytes())?
            {
                break;
            }
            path = parents;
        }
        Ok(())
    }

    /// Opens a directory by its path; `None` if it does not exist.
    fn descend(&self, path: &str) -> io::Result<Option<OwnedFd>> {
        let mut directory = self.root.try_clone()?;
        for name in parts(path) {
            directory = match open_directory(directory.as_fd(), name.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                opened => opened?,
            };
        }
        Ok(Some(directory))
    }

    /// Opens a directory by its path, and makes those that are missing; `None` for the root.
    fn make(&mut self, path: &str) -> io::Result<Option<OwnedFd>> {
        let mut directory: Option<OwnedFd> = None;
        for name in parts(path) {
            let parent = directory.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            let opened = match open_directory(parent, name.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.files.make_directory(parent, name)?;
                    open_directory(parent, name.as_bytes())?
                }
                opened => opened?,
            };
            directory = Some(opened);
        }
        Ok(directory)
    }
}

impl<F> Drop for MirrorDirectory<F> {
    /// Unlocks the directory, also for a child process that is about to start and still has copies of all file descriptors.
    fn drop(&mut self) {
        // Closing the directory unlocks it as well.
        flock(&self.root, FlockOperation::Unlock).ok();
    }
}

/// Returns the text of the marker: a mirror of another resource, or with another layout, has other files.
fn marker(resource: &str, layout: Layout) -> String {
    let layout = if layout == Layout::Keys { ", a file for each key" } else { "" };
    format!("informerd mirror of {resource:?}{layout}\n")
}

/// Returns the directories and the name of a path.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

fn names(foreign: &[String]) -> String {
    let named = foreign.iter().take(NAMED).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    if foreign.len() > NAMED { named + " and more" } else { named }
}
