//! The standing problems of one directory: told once when they appear, once when they are mended, and listed as long as
//! they last.
//!
//! Written by `engine` after each scan. Reported to the resource's health and to the log.
//!
//! Invariants:
//! - One line per path, sorted by path.
//! - What is reported, and what one update logs, is bounded at [`MAX_REPORTED`] lines and one that counts the rest.

use std::collections::BTreeMap;

use crate::cache::SourceHealth;

/// The lines that are reported or logged at a time.
const MAX_REPORTED: usize = 100;

/// What is wrong now.
#[derive(Debug)]
pub(super) struct Problems {
    resource: String,
    health: SourceHealth,
    /// The reason by path.
    standing: BTreeMap<String, String>,
}

// === impl Problems ===

impl Problems {
    /// None yet.
    pub(super) fn new(resource: String, health: SourceHealth) -> Self {
        Self { resource, health, standing: BTreeMap::new() }
    }

    /// Takes over what is wrong now, and tells what has changed.
    pub(super) fn update(&mut self, now: BTreeMap<String, String>) {
        if now == self.standing {
            return;
        }
        let resource = &*self.resource;
        let appeared = || now.iter().filter(|(path, reason)| self.standing.get(*path) != Some(reason));
        let mended = || self.standing.keys().filter(|path| !now.contains_key(*path));
        for (path, reason) in appeared().take(MAX_REPORTED) {
            tracing::warn!(source = "files", resource, path, reason, "a file is not served as it is");
        }
        for path in mended().take(MAX_REPORTED) {
            tracing::info!(source = "files", resource, path, "the problem with a file is mended");
        }
        let more = appeared().skip(MAX_REPORTED).count();
        if more > 0 {
            tracing::warn!(source = "files", resource, more, "more files are not served as they are");
        }
        let more = mended().skip(MAX_REPORTED).count();
        if more > 0 {
            tracing::info!(source = "files", resource, more, "the problems with more files are mended");
        }
        self.standing = now;
        self.health.set_problems(self.lines());
    }

    /// The problems as they are reported.
    fn lines(&self) -> Vec<String> {
        let lines = self.standing.iter().take(MAX_REPORTED).map(|(path, reason)| format!("{path}: {reason}"));
        let more = self.standing.len().saturating_sub(MAX_REPORTED);
        lines.chain((more > 0).then(|| format!("and {more} more"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_reported_is_sorted_and_bounded() {
        let health = SourceHealth::new(Duration::ZERO, Duration::ZERO);
        let mut problems = Problems::new("r".into(), health.clone());
        problems.update((0..103).rev().map(|n| (format!("{n:03}"), "bad".into())).collect());
        let lines = problems.lines();
        assert_eq!((lines.len(), &*lines[0], &*lines[100]), (101, "000: bad", "and 3 more"));
        assert_eq!(health.report().problems, 101);
        problems.update(BTreeMap::new());
        assert_eq!(health.report().problems, 0);
    }
}
