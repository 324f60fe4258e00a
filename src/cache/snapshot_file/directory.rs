//! Directory of the snapshot files, for one process at a time.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use ring::digest::{SHA256, digest};

use super::SnapshotFile;

/// Directory of snapshot files, locked against other processes until this is dropped.
#[derive(Debug)]
pub struct SnapshotDirectory {
    path: PathBuf,
    lock: File,
}

/// Reason why a directory cannot hold snapshot files.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotDirectoryError {
    /// The directory is missing and cannot be made, or cannot be written to.
    #[error("{path} cannot be written to: {error}; choose a directory that the user of informerd can write to")]
    Io {
        /// Path of the directory.
        path: String,
        /// Error of the system.
        error: io::Error,
    },
    /// Another process has locked the directory.
    #[error("{path} is in use by another informerd; give each server its own directory")]
    InUse {
        /// Path of the directory.
        path: String,
    },
}

const LOCK: &str = "lock";
/// File that is written to find out if files can be.
const PROBE: &str = "probe";
/// Bound of a file name; with the suffix it stays below the 255 that file systems allow.
const MAX_NAME_BYTES: usize = 200;

// === impl SnapshotDirectory ===

impl SnapshotDirectory {
    /// Makes the directory if it is missing, for its owner alone, and locks it. Blocks for a moment.
    ///
    /// # Errors
    ///
    /// If the directory cannot be made, written to or locked; the message has one line.
    pub fn open(path: &Path) -> Result<Self, SnapshotDirectoryError> {
        let shown = || path.display().to_string();
        let io = |error| SnapshotDirectoryError::Io { path: shown(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
        let mut options = OpenOptions::new();
        let lock = options.write(true).create(true).truncate(false).mode(0o600).open(path.join(LOCK)).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), lock }),
            Err(TryLockError::WouldBlock) => Err(SnapshotDirectoryError::InUse { path: shown() }),
            Err(TryLockError::Error(error)) => Err(io(error)),
        }
    }

    /// Checks that a directory can be made at this path, or written to, without locking it: another process may use it. What it
    /// makes for that is removed again.
    ///
    /// # Errors
    ///
    /// As of [`SnapshotDirectory::open`].
    pub fn check_path(path: &Path) -> Result<(), SnapshotDirectoryError> {
        let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
        let io = |error| SnapshotDirectoryError::Io { path: path.display().to_string(), error };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io);
        let checked = made.and_then(|()| check(path));
        for directory in missing {
            fs::remove_dir(directory).ok();
        }
        checked
    }

    /// Checks that files can be written. Blocks for a moment.
    ///
    /// # Errors
    ///
    /// If they cannot; the message has one line.
    pub fn check(&self) -> Result<(), SnapshotDirectoryError> {
        check(&self.path)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if every user of the machine can write snapshot files there.
    pub fn is_open_to_all(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|metadata| metadata.permissions().mode() & 0o002 != 0)
    }

    /// Returns the file of a resource, with the identity of its source. Any text is a valid name of a resource.
    pub fn file(&self, resource: &str, identity: &str) -> SnapshotFile {
        let path = self.path.join(format!("{}.state", file_name(resource)));
        let (resource, identity) = (resource.to_owned(), identity.to_owned());
        SnapshotFile { path, resource, identity, stats: Arc::default() }
    }
}

impl Drop for SnapshotDirectory {
    /// Unlocks the directory. Without this a child process that is about to start, and still has copies of all file descriptors,
    /// would keep it locked for a moment.
    fn drop(&mut self) {
        // Closing the file unlocks it as well.
        self.lock.unlock().ok();
    }
}

/// Writes a file in a directory, and removes it.
fn check(directory: &Path) -> Result<(), SnapshotDirectoryError> {
    let io = |error| SnapshotDirectoryError::Io { path: directory.display().to_string(), error };
    let path = directory.join(PROBE);
    let mut options = OpenOptions::new();
    let mut probe = options.write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(io)?;
    let written = probe.write_all(PROBE.as_bytes());
    fs::remove_file(path).map_err(io)?;
    written.map_err(io)
}

/// Returns the name itself if every file system takes it, otherwise `_` and its SHA-256, which no resource name equals.
fn file_name(resource: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    if !resource.is_empty() && resource.len() <= MAX_NAME_BYTES && resource.bytes().all(is_plain) {
        return resource.to_owned();
    }
    let sum = digest(&SHA256, resource.as_bytes());
    sum.as_ref().iter().fold("_".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_leaves_nothing_behind_and_needs_no_lock() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        SnapshotDirectory::check_path(&path).unwrap();
        assert!(!parent.path().join("a").exists());
        let open = SnapshotDirectory::open(&path).unwrap();
        SnapshotDirectory::check_path(&path).unwrap();
        open.check().unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "the lock");
        fs::write(parent.path().join("file"), "").unwrap();
        for path in [parent.path().join("file/b"), parent.path().join("file"), "/proc/nope".into()] {
            let problem = SnapshotDirectory::check_path(&path).unwrap_err().to_string();
            assert!(problem.contains(" cannot be written to: "), "{problem}");
        }
    }

    #[test]
    fn every_resource_name_has_a_file_of_its_own() {
        let long = ["x".repeat(201), "x".repeat(253)];
        let names = ["pods", "a.b-c", ".", "..", "", "a/b", "A", "é", "a b", &long[0], &long[1]];
        let mut files: Vec<_> = names.iter().map(|name| file_name(name)).collect();
        assert_eq!(files[..2], ["pods", "a.b-c"]);
        for file in &files {
            assert!(file.len() <= MAX_NAME_BYTES && !file.contains('/'), "{file}");
        }
        files.sort();
        files.dedup();
        assert_eq!(files.len(), names.len());
    }

    #[test]
    fn a_copy_of_the_descriptor_in_a_child_process_does_not_keep_the_lock() {
        let root = tempfile::tempdir().unwrap();
        let directory = SnapshotDirectory::open(root.path()).unwrap();
        let copy = directory.lock.try_clone().unwrap();
        drop(directory);
        SnapshotDirectory::open(root.path()).unwrap();
        drop(copy);
    }

    #[test]
    fn a_directory_is_created_for_its_owner_and_locked_by_one_process() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        let directory = SnapshotDirectory::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!directory.is_open_to_all());
        let error = SnapshotDirectory::open(&path).unwrap_err().to_string();
        assert!(error.ends_with("is in use by another informerd; give each server its own directory"), "{error}");
        drop(directory);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(SnapshotDirectory::open(&path).unwrap().is_open_to_all());
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = SnapshotDirectory::open(&file.join("x")).unwrap_err().to_string();
        assert!(error.contains("cannot be written to: Not a directory"), "{error}");
    }
}
