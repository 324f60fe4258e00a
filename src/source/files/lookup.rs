//! Lookup of one file by the rules of a walk: through the present directories and symbolic links on its path.
//!
//! `engine` calls it for known files that a walk has not met. A walk reads a linked directory at the target that the link had
//! at that moment; a volume that is swapped meanwhile removes that target, and the link then leads to another one, with the
//! same files in it.

use std::{fs, io};

use super::{
    root::{FileId, Root},
    scan::is_absent,
};

/// Outcome of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    /// A walk would read the file.
    Present,
    /// A walk would not read the file: it does not exist, or is something else.
    Absent,
    /// A part of the path cannot be read.
    Unclear,
}

/// Looks for the file at `path`, which is relative to the root.
pub(super) fn look_up(root: &Root, path: &str) -> Lookup {
    match follow(root, path) {
        Ok(true) => Lookup::Present,
        Ok(false) => Lookup::Absent,
        Err(error) if is_absent(&error) => Lookup::Absent,
        Err(_) => Lookup::Unclear,
    }
}

/// Returns true if the path leads to a regular file inside the root, by the rules of `scan`.
fn follow(root: &Root, path: &str) -> io::Result<bool> {
    let mut above = vec![root.id.file];
    let mut absolute = root.path.clone();
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        absolute.push(part);
        let mut metadata = fs::symlink_metadata(&absolute)?;
        let is_link = metadata.is_symlink();
        if is_link {
            absolute = fs::canonicalize(&absolute)?;
            metadata = fs::symlink_metadata(&absolute)?;
        }
        if part.starts_with('.') || !absolute.starts_with(&root.path) {
            return Ok(false);
        }
        if parts.peek().is_none() {
            return Ok(metadata.is_file());
        }
        let id = FileId::of(&metadata);
        if !metadata.is_dir() || (is_link && above.contains(&id)) {
            return Ok(false);
        }
        above.push(id);
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

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
            ("sub/a.json", Lookup::Present),
            ("link.json", Lookup::Present),
            ("sub/b.json", Lookup::Absent),
            ("sub/a.json/c.json", Lookup::Absent),
            ("..data/sub/a.json", Lookup::Absent),
            ("out/a.json", Lookup::Absent),
            ("dangling.json", Lookup::Absent),
            ("loop.json", Lookup::Unclear),
            ("dir.json", Lookup::Absent),
            ("dir.json/up/link.json", Lookup::Absent),
        ] {
            assert_eq!(look_up(&root, path), expected, "{path}");
        }
    }
}
