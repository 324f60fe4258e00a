//! Reads of single files, safe against other users' changes to the directory.
//!
//! `scan` calls it after it has checked the path; a file that has been replaced since then is detected here.
//!
//! Invariants:
//! - Opening never waits (a FIFO without a writer), and only regular files are read.
//! - Nothing outside the root is read: the check is of the location of the opened file, so that a link that was swapped after
//!   the scan's check does not lead outside.
//! - No more than [`MAX_FILE_BYTES`] are read, however fast the file grows.
//! - A trusted stamp is one whose file cannot have changed since without getting another stamp.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::fs::OFlags;

use super::{catalog::Stamp, root::FileId};

/// Limit of the size of a file, in bytes: enough for a List of two dozen objects of the largest size.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// Age of a change below which a stamp is not trusted, because the file can change again without getting another time (git
/// calls such a file racy). In nanoseconds; two seconds is the coarsest clock of any file system in use.
const RACY_NANOS: i64 = 2_000_000_000;

/// Capacity in bytes above which the buffer of a large file is freed.
const BUFFER_BYTES: usize = 1 << 20;

/// Reads files one after another into one buffer.
#[derive(Debug, Default)]
pub(super) struct Reader {
    buffer: Vec<u8>,
}

/// Outcome of a read.
#[derive(Debug)]
pub(super) enum Outcome<'r> {
    /// All bytes of the file. Without a trusted stamp they have to be read again next time. Torn ones may be of two contents,
    /// because the file changed during the read.
    Bytes { stamp: Stamp, is_trusted: bool, is_torn: bool, bytes: &'r [u8] },
    /// The file must not be used, for this reason.
    Refused(Option<Stamp>, String),
    /// The path is no regular file.
    NotAFile,
}

// === impl Reader ===

impl Reader {
    /// Reads the file at `path`, which has to be below `root`; both are without symbolic links.
    pub(super) fn read(&mut self, root: &Path, path: &Path) -> io::Result<Outcome<'_>> {
        if self.buffer.capacity() > BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        self.buffer.clear();
        let now = SystemTime::now();
        let mut file =
            fs::OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Outcome::NotAFile);
        }
        if !is_inside(root, &file, path) {
            return Ok(Outcome::Refused(None, "file moved out of the directory; not read".into()));
        }
        let stamp = Stamp::of(&metadata);
        let is_trusted = stamp.is_trusted(now);
        let mut size = metadata.len();
        if size <= MAX_FILE_BYTES {
            self.buffer.reserve(size as usize + 1);
            size = file.by_ref().take(MAX_FILE_BYTES + 1).read_to_end(&mut self.buffer)? as u64;
        }
        if size > MAX_FILE_BYTES {
            let reason = format!("file too large (limit: {MAX_FILE_BYTES} bytes); split it");
            return Ok(Outcome::Refused(is_trusted.then_some(stamp), reason));
        }
        let is_torn = Stamp::of(&file.metadata()?) != stamp;
        Ok(Outcome::Bytes { stamp, is_trusted, is_torn, bytes: &self.buffer })
    }
}

// === impl Stamp ===

impl Stamp {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        Self {
            id: FileId::of(metadata),
            size: metadata.size(),
            mtime: nanos(metadata.mtime(), metadata.mtime_nsec()),
            ctime: nanos(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Returns true if the last change is old enough for the stamp to identify the content. A time of change in the future (the
    /// clock of a file server) counts as recent; a modification time in the future was set by hand.
    fn is_trusted(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok());
        now.is_some_and(|now| {
            let settled = now.saturating_sub(RACY_NANOS);
            self.ctime < settled && self.mtime.abs_diff(now) > RACY_NANOS.unsigned_abs()
        })
    }
}

/// Returns true if the opened file itself is below the root, whatever its path. Without `/proc` it resolves the path once
/// more.
fn is_inside(root: &Path, file: &File, path: &Path) -> bool {
    use std::os::fd::AsRawFd;
    let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::read_link(opened).or_else(|_| fs::canonicalize(path)).is_ok_and(|path| path.starts_with(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_trusted_once_the_file_has_been_left_alone() {
        let second = |seconds: i64| seconds * 1_000_000_000;
        let now = UNIX_EPOCH + std::time::Duration::from_secs(100);
        for (mtime, ctime, trusted) in [
            (90, 90, true),
            (90, 99, false),
            (99, 90, false),
            (90, 200, false),
            // Set by hand, and unrelated to the time at which the bytes were written.
            (200, 90, true),
            (0, 90, true),
        ] {
            let stamp = Stamp { id: FileId { dev: 1, ino: 1 }, size: 1, mtime: second(mtime), ctime: second(ctime) };
            assert_eq!(stamp.is_trusted(now), trusted, "{mtime} {ctime}");
        }
    }

    #[test]
    fn a_file_swapped_after_the_check_is_not_read() {
        let outside = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret.json"), "{}").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("dir")).unwrap();
        let mut reader = Reader::default();
        let root = fs::canonicalize(root.path()).unwrap();
        let outcome = reader.read(&root, &root.join("dir/secret.json")).unwrap();
        assert!(matches!(outcome, Outcome::Refused(None, _)), "{outcome:?}");
        assert!(matches!(reader.read(&root, &root).unwrap(), Outcome::NotAFile));
    }
}
