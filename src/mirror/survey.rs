//! Survey of a directory at the start of a mirror: the objects that have files there, what is foreign, and what an earlier
//! mirror left unfinished. It changes nothing.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::{
    file_name::Layout,
    file_system::{Entry, EntryKind, FileSystem, entries, open_directory, remove_empty},
};
use crate::model::ObjectKey;

/// File whose content says that the directory is that of a mirror, and of which. No object's file begins with a dot.
pub(super) const MARKER: &str = ".informerd-mirror";
/// File that is being written. There is one at a time.
pub(super) const TEMPORARY: &str = ".informerd-mirror.tmp";
/// Directory that file systems have at their mount point.
const LOST_AND_FOUND: &str = "lost+found";

/// Number of foreign files that are searched for in a directory that is not that of a mirror, which may be a whole disk.
const SEARCHED: usize = 4;

/// Content of a directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// Objects that have files.
    pub(super) keys: BTreeSet<ObjectKey>,
    /// Paths of foreign files, as text to show; in a directory that is not that of a mirror the first few.
    pub(super) foreign: Vec<String>,
    /// Paths of what has to be removed, foreign files included. Directories are removed with all that they have.
    pub(super) to_remove: Vec<Vec<u8>>,
}

// === impl Survey ===

impl Survey {
    /// Reads a directory. Without a layout, everything in it is foreign.
    pub(super) fn of(root: BorrowedFd<'_>, layout: Option<Layout>) -> io::Result<Self> {
        let mut survey = Self::default();
        for entry in entries(root)? {
            let is_file = entry.kind == EntryKind::File;
            match (&entry.name[..], layout) {
                (name, _) if name == MARKER.as_bytes() && is_file => {}
                (name, _) if name == LOST_AND_FOUND.as_bytes() && entry.kind == EntryKind::Directory => {}
                (name, _) if name == TEMPORARY.as_bytes() && is_file => survey.to_remove.push(entry.name),
                (_, Some(layout)) => {
                    survey.visit(root, Vec::new(), &entry, layout)?;
                }
                (_, None) => {
                    survey.search(root, &[], &entry);
                    survey.to_remove.push(entry.name);
                }
            }
        }
        Ok(survey)
    }

    /// Visits an entry of a mirror's directory. Returns true if it is no empty directory.
    fn visit(&mut self, parent: BorrowedFd<'_>, mut path: Vec<u8>, entry: &Entry, layout: Layout) -> io::Result<bool> {
        push(&mut path, &entry.name);
        if entry.kind == EntryKind::Directory {
            let directory = open_directory(parent, &entry.name)?;
            let mut has_files = false;
            for entry in entries(directory.as_fd())? {
                has_files |= self.visit(directory.as_fd(), path.clone(), &entry, layout)?;
            }
            if !has_files {
                self.to_remove.push(path);
            }
            return Ok(has_files);
        }
        let text = std::str::from_utf8(&path).ok().filter(|_| entry.kind == EntryKind::File);
        if let Some(key) = text.and_then(|text| layout.key_of(text)) {
            self.keys.insert(key);
        } else {
            self.foreign.push(String::from_utf8_lossy(&path).into_owned());
            self.to_remove.push(path);
        }
        Ok(true)
    }

    /// Searches an entry for foreign files, until there are enough. An empty directory, or one that cannot be read, counts.
    fn search(&mut self, parent: BorrowedFd<'_>, path: &[u8], entry: &Entry) {
        if self.foreign.len() >= SEARCHED {
            return;
        }
        let mut path = path.to_vec();
        push(&mut path, &entry.name);
        let shown = String::from_utf8_lossy(&path).into_owned();
        if entry.kind != EntryKind::Directory {
            self.foreign.push(shown);
            return;
        }
        let directory = open_directory(parent, &entry.name);
        let inside = directory.and_then(|directory| Ok((entries(directory.as_fd())?, directory)));
        match inside {
            Ok((entries, directory)) if !entries.is_empty() => {
                for entry in &entries {
                    self.search(directory.as_fd(), &path, entry);
                }
            }
            _ => self.foreign.push(shown + "/"),
        }
    }
}

/// Removes what a survey found at a path, a directory with all that it has.
pub(super) fn remove(files: &mut impl FileSystem, root: BorrowedFd<'_>, path: &[u8]) -> io::Result<()> {
    let mut directory: Option<OwnedFd> = None;
    let mut parts = path.split(|byte| *byte == b'/').peekable();
    while let Some(name) = parts.next() {
        let parent = directory.as_ref().map_or(root, AsFd::as_fd);
        if parts.peek().is_some() {
            directory = Some(open_directory(parent, name)?);
        } else {
            remove_tree(files, parent, name)?;
        }
    }
    Ok(())
}

fn remove_tree(files: &mut impl FileSystem, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match open_directory(parent, name) {
        Ok(directory) => {
            for entry in entries(directory.as_fd())? {
                remove_tree(files, directory.as_fd(), &entry.name)?;
            }
            // One that stays is empty now.
            remove_empty(files, parent, name).map(drop)
        }
        // No directory, or a symbolic link, which is removed itself.
        Err(_) => files.remove_file(parent, name),
    }
}

fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
