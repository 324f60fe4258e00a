//! The directory itself: checks that it can be served, and that it is still the same one.
//!
//! `FilesSource::check` uses it before the service starts, and `engine` around every scan and between scans.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

/// Reason why a directory cannot be served; the text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// Path that does not exist.
    #[error("the directory {} does not exist; create it, or correct the path", .0.display())]
    Missing(PathBuf),
    /// Path of something else.
    #[error("{} is not a directory; name the directory that holds the manifests", .0.display())]
    NotADirectory(PathBuf),
    /// Directory that cannot be listed or entered.
    #[error("the directory {} cannot be read ({reason}); give the user of informerd permission to read and enter it", path.display())]
    Unreadable {
        /// Path of the directory.
        path: PathBuf,
        /// The operating system's message.
        reason: String,
    },
}

/// Directory that could be read a moment ago.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Root {
    /// Absolute path without symbolic links, which a link inside must not leave.
    pub(super) path: PathBuf,
    pub(super) id: DirectoryId,
}

/// Identity of a directory, whatever its path: a mount differs from its mount point, and a directory that was deleted and
/// created again from the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DirectoryId {
    pub(super) file: FileId,
    /// Time of creation, if the file system records it. ext4 reuses the inode number of a deleted directory at once, and the
    /// kernel the number of an unmounted file system.
    created: Option<SystemTime>,
}

/// Identity of a file, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Finds the directory, and checks that it can be listed and entered.
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
        // A directory that can be listed and not entered shows names of files that cannot be opened.
        fs::metadata(canonical.join(".")).map_err(error)?;
        Ok(Self { path: canonical, id: DirectoryId::of(&metadata) })
    }

    /// Returns true if a walk might now read the file at `path`, which is relative to the root. A walk that reads a linked
    /// directory does so at the target that the link had at that moment; a volume that is swapped meanwhile removes that target,
    /// and the link then leads to another one, with the same files in it.
    pub(super) fn may_lead_to_file(&self, path: &str) -> bool {
        let mut above = vec![self.path.clone()];
        for part in path.split('/') {
            match fs::canonicalize(above[above.len() - 1].join(part)) {
                // A link out of the root, or to a directory above it, is not followed.
                Ok(next) if !part.starts_with('.') && next.starts_with(&self.path) && !above.contains(&next) => {
                    above.push(next);
                }
                outcome => return outcome.is_err_and(|error| !is_absent(&error)),
            }
        }
        fs::symlink_metadata(&above[above.len() - 1]).map_or_else(|error| !is_absent(&error), |file| file.is_file())
    }
}

/// Returns true if a file or directory does not exist.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

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
    fn an_unusable_path_is_reported_with_the_remedy() {
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

    #[test]
    fn a_file_is_found_where_a_walk_would_read_it() {
        let outside = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::write(outside.path().join("a.json"), "{}").unwrap();
        fs::create_dir_all(at("..1/sub")).unwrap();
        fs::write(at("..1/sub/a.json"), "{}").unwrap();
        symlink("..1", at("..data")).unwrap();
        symlink("..data/sub", at("sub")).unwrap();
        symlink("sub/a.json", at("link.json")).unwrap();
        symlink(outside.path(), at("out")).unwrap();
        symlink("none", at("dangling.json")).unwrap();
        symlink("loop.json", at("loop.json")).unwrap();
        fs::create_dir(at("dir.json")).unwrap();
        symlink("..", at("dir.json/up")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        for (path, expected) in [
            ("sub/a.json", true),
            ("link.json", true),
            ("sub/b.json", false),
            ("sub/a.json/c.json", false),
            ("..data/sub/a.json", false),
            ("out/a.json", false),
            ("dangling.json", false),
            ("loop.json", true),
            ("dir.json", false),
            ("dir.json/up/link.json", false),
        ] {
            assert_eq!(root.may_lead_to_file(path), expected, "{path}");
        }
    }
}
