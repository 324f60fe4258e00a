//! Operations that change the file system, each on one name in an open directory: a link that somebody puts in the place of a
//! directory leads nowhere.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat},
    io::Errno,
};

/// Operations that change the file system. Tests count them, and let each fail.
pub(super) trait FileSystem {
    /// Makes a directory.
    fn make_directory(&mut self, parent: BorrowedFd<'_>, name: &str) -> io::Result<()>;
    /// Makes an empty file, in the place of one that has its name.
    fn create(&mut self, parent: BorrowedFd<'_>, name: &str) -> io::Result<File>;
    /// Closes a file. Only here does a network file system report that it has no space: the drop of a file hides that.
    fn close(&mut self, file: File) -> io::Result<()>;
    /// Writes a new file, in the place of one that has its name.
    fn write(&mut self, parent: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.create(parent, name)?;
        file.write_all(bytes)?;
        self.close(file)
    }
    /// Renames a file, over another one if there is one.
    fn rename(&mut self, from: BorrowedFd<'_>, name: &str, to: BorrowedFd<'_>, new_name: &str) -> io::Result<()>;
    /// Removes what is no directory. A symbolic link is removed itself.
    fn remove_file(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()>;
}

/// File system of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SystemFiles;

/// Entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    /// Name; names are bytes.
    pub(super) name: Vec<u8>,
    pub(super) kind: EntryKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EntryKind {
    Directory,
    File,
    /// Symbolic link, socket, FIFO or device.
    Other,
}

/// Opens a directory that is no symbolic link.
pub(super) fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

/// Returns the entries of a directory, sorted by name.
pub(super) fn entries(directory: BorrowedFd<'_>) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes().to_vec();
        if name == b"." || name == b".." {
            continue;
        }
        let file_type = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(statat(directory, &name[..], AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            known => known,
        };
        let kind = match file_type {
            FileType::Directory => EntryKind::Directory,
            FileType::RegularFile => EntryKind::File,
            _ => EntryKind::Other,
        };
        entries.push(Entry { name, kind });
    }
    entries.sort();
    Ok(entries)
}

/// Returns true if this is a regular file with exactly these bytes.
pub(super) fn has_bytes(parent: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> io::Result<bool> {
    // A FIFO must not be waited for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(parent, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // Missing, a symbolic link, a socket, or not readable: it is replaced.
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ACCESS) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() != bytes.len() as u64 {
        return Ok(false);
    }
    let mut found = Vec::with_capacity(bytes.len() + 1);
    file.take(bytes.len() as u64 + 1).read_to_end(&mut found)?;
    Ok(found == bytes)
}

/// Removes a directory if it is empty. Returns false if it stays: it has files, is a mount point, or is not to be removed.
pub(super) fn remove_empty(files: &mut impl FileSystem, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<bool> {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory, NotFound, PermissionDenied, ResourceBusy};
    match files.remove_directory(parent, name) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            NotFound => Ok(true),
            AlreadyExists | DirectoryNotEmpty | NotADirectory | PermissionDenied | ResourceBusy => Ok(false),
            _ => Err(error),
        },
    }
}

// === impl SystemFiles ===

impl FileSystem for SystemFiles {
    fn make_directory(&mut self, parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        Ok(mkdirat(parent, name, Mode::from_raw_mode(0o777))?)
    }

    fn create(&mut self, parent: BorrowedFd<'_>, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let open = || openat(parent, name, flags, Mode::from_raw_mode(0o666));
        let file = match open() {
            // Not emptied: it may be a link to a file elsewhere.
            Err(Errno::EXIST) => {
                unlinkat(parent, name, AtFlags::empty())?;
                open()?
            }
            opened => opened?,
        };
        Ok(file.into())
    }

    fn close(&mut self, file: File) -> io::Result<()> {
        Ok(nix::unistd::close(file)?)
    }

    fn rename(&mut self, from: BorrowedFd<'_>, name: &str, to: BorrowedFd<'_>, new_name: &str) -> io::Result<()> {
        Ok(renameat(from, name, to, new_name)?)
    }

    fn remove_file(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        Ok(unlinkat(parent, name, AtFlags::empty())?)
    }

    fn remove_directory(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
    }
}
