//! Decision whether the content of a file that was read is applied. Its last good content is served meanwhile.
//!
//! In most cases a prefix of a YAML file is YAML too, so that the text alone does not show that it is still being written. `scan`
//! collects the facts of each file that it has read, and [`Facts::reason_to_wait`] decides.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::{FilesConfig, catalog::Stamp, notices::Noticed};

/// Time without modification after which a file is applied without a notice, in quiet periods.
const LEFT_ALONE: u32 = 5;

/// Facts of one file, by which its content is applied or not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) writer: Writer,
    /// Time since the last modification.
    pub(super) unmodified: Duration,
    pub(super) quality: Quality,
}

/// State of the writer of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// The file has been open for this time since its first modification.
    Open(Duration),
    /// The content is what its writer has finished.
    Finished,
    Unknown,
}

/// Content of a file that differs from the served one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quality {
    /// Not decoded yet.
    Bytes,
    /// The bytes may be of two contents.
    Torn,
    /// A part cannot be read.
    Invalid,
    /// All can be read, and there are fewer objects.
    Fewer {
        /// Time for which scans have found the same.
        unchanged: Duration,
        /// Time for which scans have found fewer objects.
        lasts: Duration,
    },
    Good,
}

/// Reason not to apply a content yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The file changed during the read.
    Torn,
    /// It was modified and not closed since, for this time. This ends after six rescans: a process may keep it open for ever.
    Open(Duration),
    /// It was modified, and no notice has come since: a directory is watched only some time after it was created, and a notice
    /// may be late. It has to be unmodified for [`LEFT_ALONE`] quiet periods, of which this time is left.
    Unnoticed(Duration),
    /// It was modified, and a part of it cannot be read. The same time is left.
    Invalid(Duration),
    /// It has fewer objects than before, and is the same file: a writer that replaces a file has finished the new one. A scan at
    /// least a rescan later has to find it unchanged. This ends after six rescans: it may be written again and again.
    Fewer,
}

/// File with fewer objects than before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fewer {
    pub(super) stamp: Stamp,
    /// Time since which the file has this stamp.
    pub(super) since: Instant,
    /// Time since which it has fewer objects.
    pub(super) begin: Instant,
}

// === impl Facts ===

impl Facts {
    /// Returns the reason not to apply the content yet, if there is one.
    pub(super) fn reason_to_wait(&self, config: &FilesConfig) -> Option<Reason> {
        let (rescan, longest) = (config.rescan, config.longest());
        let left = (config.quiet * LEFT_ALONE).checked_sub(self.unmodified);
        match (self.quality, self.writer) {
            (Quality::Torn, _) => Some(Reason::Torn),
            (_, Writer::Open(lasts)) if lasts < longest => Some(Reason::Open(lasts)),
            (Quality::Bytes, _) => None,
            (Quality::Invalid, _) => left.map(Reason::Invalid),
            (_, Writer::Unknown) if left.is_some() => left.map(Reason::Unnoticed),
            (Quality::Fewer { unchanged, lasts }, _) if unchanged < rescan && lasts < longest => Some(Reason::Fewer),
            _ => None,
        }
    }
}

// === impl Writer ===

impl Writer {
    /// Returns the state according to the last notice of a file with this stamp. Writers create a link when its target is complete.
    pub(super) fn of(noticed: Option<Noticed>, stamp: &Stamp, is_linked: bool) -> Self {
        match noticed {
            Some(Noticed::Open(since)) => Self::Open(since.elapsed()),
            Some(Noticed::Finished(at)) if modified(stamp).is_none_or(|modified| at >= modified) => Self::Finished,
            _ if is_linked => Self::Finished,
            _ => Self::Unknown,
        }
    }
}

/// Returns the time since the last modification of a file. A time in the future was set by hand, or by another clock.
pub(super) fn unmodified(stamp: &Stamp, clock: SystemTime) -> Duration {
    modified(stamp).and_then(|modified| clock.duration_since(modified).ok()).unwrap_or(Duration::MAX)
}

fn modified(stamp: &Stamp) -> Option<SystemTime> {
    Some(UNIX_EPOCH + Duration::from_nanos(u64::try_from(stamp.mtime).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::source::files::root::FileId;

    fn config() -> FilesConfig {
        FilesConfig::new(".", "test")
    }

    fn time() -> impl Strategy<Value = Duration> {
        prop_oneof![Just(Duration::ZERO), (0_u64..60_000).prop_map(Duration::from_millis), Just(Duration::MAX)]
    }

    fn facts() -> impl Strategy<Value = Facts> {
        let writer = prop_oneof![time().prop_map(Writer::Open), Just(Writer::Finished), Just(Writer::Unknown)];
        let fewer = (time(), time()).prop_map(|(unchanged, lasts)| Quality::Fewer { unchanged, lasts });
        let quality =
            prop_oneof![Just(Quality::Bytes), Just(Quality::Torn), Just(Quality::Invalid), fewer, Just(Quality::Good)];
        (writer, time(), quality).prop_map(|(writer, unmodified, quality)| Facts { writer, unmodified, quality })
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn a_content_is_applied_if_no_sign_is_left_that_it_is_incomplete(facts in facts()) {
            let config = config();
            let Facts { writer, unmodified, quality } = facts;
            let is_open = matches!(writer, Writer::Open(lasts) if lasts < config.longest());
            let is_young = unmodified <= config.quiet * LEFT_ALONE;
            let needs_age = writer == Writer::Unknown && quality != Quality::Bytes || quality == Quality::Invalid;
            let is_fewer = matches!(quality, Quality::Fewer { unchanged, lasts }
                if unchanged < config.rescan && lasts < config.longest());
            let waits = quality == Quality::Torn || is_open || needs_age && is_young || is_fewer;
            prop_assert_eq!(facts.reason_to_wait(&config).is_some(), waits);
            // Every wait ends without a notice, unless the file is changed again.
            if let Some(Reason::Unnoticed(left) | Reason::Invalid(left)) = facts.reason_to_wait(&config) {
                let later = Facts { unmodified: unmodified + left + Duration::from_nanos(1), ..facts };
                prop_assert!(!matches!(later.reason_to_wait(&config), Some(Reason::Unnoticed(_) | Reason::Invalid(_))));
            }
        }

        #[test]
        fn no_wait_begins_with_time(facts in facts(), by in (0_u64..60_000).prop_map(Duration::from_millis)) {
            let config = config();
            let writer = match facts.writer {
                Writer::Open(lasts) => Writer::Open(lasts.saturating_add(by)),
                other => other,
            };
            let quality = match facts.quality {
                Quality::Fewer { unchanged, lasts } => {
                    Quality::Fewer { unchanged: unchanged.saturating_add(by), lasts: lasts.saturating_add(by) }
                }
                other => other,
            };
            let later = Facts { writer, quality, unmodified: facts.unmodified.saturating_add(by) };
            prop_assert!(facts.reason_to_wait(&config).is_some() || later.reason_to_wait(&config).is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_notice_is_of_the_content_that_was_modified_before_it() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let stamp = |seconds: i64| {
            let mtime = seconds * 1_000_000_000;
            Stamp { id: FileId { dev: 1, ino: 1 }, size: 1, mtime, ctime: 0 }
        };
        let finished = |noticed, mtime| Writer::of(Some(Noticed::Finished(at(noticed))), &stamp(mtime), false);
        assert_eq!(finished(9, 9), Writer::Finished);
        assert_eq!(finished(8, 9), Writer::Unknown, "modified again");
        assert_eq!(finished(0, -1), Writer::Finished, "a time that was set by hand");
        let open = Some(Noticed::Open(Instant::now()));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(Writer::of(open, &stamp(9), true), Writer::Open(Duration::from_secs(5)));
        assert_eq!(Writer::of(None, &stamp(9), false), Writer::Unknown);
        assert_eq!(Writer::of(None, &stamp(9), true), Writer::Finished);
        assert_eq!(unmodified(&stamp(4), at(9)), Duration::from_secs(5));
        assert_eq!(unmodified(&stamp(9), at(9)), Duration::ZERO);
        assert_eq!(unmodified(&stamp(10), at(9)), Duration::MAX);
    }
}
