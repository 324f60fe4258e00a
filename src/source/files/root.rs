//! The directory itself: whether it can be served, and whether it is still the same one.
//!
//! Used by `FilesSource::check` before the service starts, and by `engine` around every scan and from one to the next.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Why a directory cannot be served; the text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// Nothing is there.
    #[error("the directory {} does not exist; create it, or correct the path", .0.display())]
    Missing(PathBuf),
    /// Something else is there.
    #[error("{} is not a directory; name the directory that holds the manifests", .0.display())]
    NotADirectory(PathBuf),
    /// It cannot be listed or entered.
    #[error("the directory {} cannot be read ({reason}); let the user that runs informerd read and enter it", path.display())]
    Unreadable {
        /// Of the directory.
        path: PathBuf,
        /// In the words of the operating system.
        reason: String,
    },
}

/// A directory that could be read a moment ago.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Root {
    /// Absolute and without symbolic links: what a link inside may not leave.
    pub(super) path: PathBuf,
    pub(super) id: DirectoryId,
}

/// Which directory it is, whatever its path: not a mount in the place of its mount point, nor a directory that was deleted and
/// created again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DirectoryId {
    pub(super) file: FileId,
    /// Where the file system records it. ext4 gives the inode number of a deleted directory to the next one at once, and the
    /// kernel the number of a file system that was unmounted.
    created: Option<SystemTime>,
}

/// Which file it is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    pub(super) dev: u64,
    pub(super) ino: u64,
}

// === impl FileId ===

impl FileId {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        Self { dev: metadata.dev(), ino: metadata.ino() }
    }
}

// === impl DirectoryId ===

impl DirectoryId {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        Self { file: FileId::of(metadata), created: metadata.created().ok() }
    }
}

// === impl Root ===

impl Root {
    /// Finds the directory, and makes sure that it can be listed and entered.
    pub(super) fn open(path: &Path) -> Result<Self, DirectoryError> {
        let error = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => DirectoryError::Missing(path.to_owned()),
            io::ErrorKind::NotADirectory => DirectoryError::NotADirectory(path.to_owned()),
            _ => DirectoryError::Unreadable { path: path.to_owned(), reason: error.to_string() },
        };
        let canonical = fs::canonicalize(path).map_err(error)?;
        let metadata = fs::metadata(&canonical).map_err(error)?;
        if !metadata.is_dir() {
            return Err(DirectoryError::NotADirectory(path.to_owned()));
        }
        fs::read_dir(&canonical).map_err(error)?;
        // A directory that can be listed and not entered shows names whose files nobody can open.
        fs::metadata(canonical.join(".")).map_err(error)?;
        Ok(Self { path: canonical, id: DirectoryId::of(&metadata) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_created_again_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("root");
        let create = || {
            fs::create_dir(&path).unwrap();
            Root::open(&path).unwrap()
        };
        let mut known = create();
        // Some file systems give it the same inode number each time.
        for _ in 0..100 {
            fs::remove_dir(&path).unwrap();
            let next = create();
            assert_ne!(next.id, known.id);
            known = next;
        }
        fs::rename(&path, dir.path().join("moved")).unwrap();
        assert_eq!(Root::open(&dir.path().join("moved")).unwrap().id, known.id);
    }

    #[test]
    fn an_unfit_path_is_told_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        fs::write(&file, "").unwrap();
        assert!(Root::open(dir.path()).is_ok());
        let missing = Root::open(&dir.path().join("none")).unwrap_err().to_string();
        assert!(missing.ends_with("/none does not exist; create it, or correct the path"), "{missing}");
        let below = Root::open(&file.join("x")).unwrap_err();
        assert_eq!(below, DirectoryError::NotADirectory(file.join("x")));
        assert_eq!(Root::open(&file).unwrap_err(), DirectoryError::NotADirectory(file));
    }
}
