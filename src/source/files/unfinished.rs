//! Files whose content may be incomplete: their last good content is served meanwhile.
//!
//! `scan` checks each file that it has read. In most cases a prefix of a YAML file is YAML too, so that the text alone does not
//! show that it is still being written. Four signs do:
//!
//! - The file was modified and has not been closed since, according to `notices`.
//! - The file has fewer objects than before, and is the same file: a writer that replaces it by a new one has finished
//!   that. The new objects are applied when a check at least a rescan later finds the file unchanged.
//! - The file was modified, and no notice has come since: a directory is watched only some time after it was created, and the
//!   notice may be late. The content is applied with the next notice, or when the file has been unchanged for [`LEFT_ALONE`]
//!   quiet periods. The target of a symbolic link is exempt: writers create the link when its target is complete.
//! - The file was modified, and its content is invalid: it is reported as unusable when it has been unchanged for as long.
//!
//! The first two end after six rescans: a process may keep a file open for ever, or write it again and again.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use super::{
    FilesConfig,
    catalog::Stamp,
    notices::{DirtySet, Noticed},
};

/// Time without modification after which a file is applied without a notice, in quiet periods.
const LEFT_ALONE: u32 = 5;

/// Signs at one moment.
#[derive(Clone, Copy)]
pub(super) struct Signs<'a> {
    /// Notices; `None` for a list, which has none.
    pub(super) notices: Option<&'a DirtySet>,
    pub(super) shrunk: &'a Shrunk,
    pub(super) config: &'a FilesConfig,
    pub(super) now: Instant,
    /// Same moment as `now`, by the clock of file times.
    pub(super) clock: SystemTime,
}

/// Files that have fewer objects than before.
#[derive(Debug, Default)]
pub(super) struct Shrunk {
    files: BTreeMap<Arc<str>, ShrunkFile>,
}

#[derive(Debug)]
struct ShrunkFile {
    stamp: Stamp,
    /// Time since which the file has this stamp.
    since: Instant,
    /// Time since which the file has fewer objects.
    begin: Instant,
}

// === impl Signs ===

impl Signs<'_> {
    /// Returns the time for which the file at this absolute path has been written, if it is still being written.
    pub(super) fn is_written(&self, absolute: &Path) -> Option<Duration> {
        self.lasts(self.notices?.noticed(absolute)?)
    }

    fn lasts(&self, noticed: Noticed) -> Option<Duration> {
        let begin = noticed.written_since?;
        let lasts = self.now.saturating_duration_since(begin);
        (lasts < self.config.longest()).then_some(lasts)
    }

    /// Returns the time at which a file with this stamp becomes old enough without a notice, if it was not when it was read.
    pub(super) fn left_alone_at(&self, stamp: &Stamp) -> Option<Instant> {
        self.notices?;
        let modified = modified(stamp)?;
        // A time in the future was set by hand, or by another clock.
        let is_past = modified <= SystemTime::now();
        let age = self.clock.duration_since(modified).unwrap_or_default();
        let left = self.config.quiet.saturating_mul(LEFT_ALONE).checked_sub(age)?;
        is_past.then_some(self.now + left)
    }

    /// Returns true if a notice has come that the file at this absolute path was closed since it was modified.
    pub(super) fn is_noticed(&self, absolute: &Path, stamp: &Stamp) -> bool {
        let Some(noticed) = self.notices.and_then(|notices| notices.noticed(absolute)) else { return false };
        let is_later = |at: SystemTime| modified(stamp).is_none_or(|modified| at >= modified);
        match noticed.written_since {
            // A process that has had it open for that long may never close it.
            Some(_) => self.lasts(noticed).is_none(),
            None => noticed.finished_at.is_some_and(is_later),
        }
    }

    /// Returns true if a file with fewer objects than before has to be found with them once more.
    pub(super) fn has_just_shrunk(&self, path: &str, stamp: &Stamp) -> bool {
        let Some(sight) = self.shrunk.files.get(path) else { return true };
        let since = |begin: Instant| self.now.saturating_duration_since(begin);
        let is_unchanged = sight.stamp == *stamp && since(sight.since) >= self.config.rescan;
        !is_unchanged && since(sight.begin) < self.config.longest()
    }
}

// === impl Shrunk ===

impl Shrunk {
    /// Replaces the files by those that have fewer objects now.
    pub(super) fn replace(&mut self, files: BTreeMap<Arc<str>, Stamp>, now: Instant) {
        self.files.retain(|path, _| files.contains_key(path));
        for (path, stamp) in files {
            let sight = self.files.entry(path).or_insert(ShrunkFile { stamp, since: now, begin: now });
            if sight.stamp != stamp {
                (sight.stamp, sight.since) = (stamp, now);
            }
        }
    }
}

fn modified(stamp: &Stamp) -> Option<SystemTime> {
    Some(UNIX_EPOCH + Duration::from_nanos(u64::try_from(stamp.mtime).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::files::root::FileId;

    const RESCAN: Duration = Duration::from_secs(5);

    fn stamp(mtime: i64) -> Stamp {
        Stamp { id: FileId { dev: 1, ino: 1 }, size: 1, mtime, ctime: mtime }
    }

    #[test]
    fn fewer_objects_are_applied_when_a_rescan_confirms_them_or_at_the_time_limit() {
        let base = Instant::now();
        let mut shrunk = Shrunk::default();
        let config = FilesConfig { rescan: RESCAN, ..FilesConfig::new(".", "test") };
        let just = |shrunk: &Shrunk, seconds: u64, mtime: i64| {
            let now = base + Duration::from_secs(seconds);
            Signs { notices: None, shrunk, config: &config, now, clock: UNIX_EPOCH }.has_just_shrunk("a", &stamp(mtime))
        };
        assert!(just(&shrunk, 0, 1), "never seen before");
        shrunk.replace([("a".into(), stamp(1))].into(), base);
        assert!(just(&shrunk, 4, 1));
        assert!(!just(&shrunk, 5, 1));
        assert!(just(&shrunk, 5, 2), "it has changed again");
        for (seconds, mtime) in (5..30).zip(5..30) {
            assert!(just(&shrunk, seconds, mtime));
            shrunk.replace([("a".into(), stamp(mtime))].into(), base + Duration::from_secs(seconds));
        }
        assert!(!just(&shrunk, 30, 30), "it changes all the time");
        shrunk.replace(BTreeMap::new(), base);
        assert!(just(&shrunk, 30, 30));
    }
}
