//! Counts over histories.

use std::{collections::BTreeMap, time::Duration};

use super::upstream::Upstream;

/// Counts over all histories.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) histories: u64,
    /// Steps and faults by kind.
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) verdicts: BTreeMap<&'static str, u64>,
    pub(crate) ends: BTreeMap<String, u64>,
    pub(crate) events: u64,
    pub(crate) resumes: u64,
    /// Changes that a view suppressed.
    pub(crate) suppressed: u64,
    pub(crate) restarts: u64,
    pub(crate) warm_starts: u64,
    pub(crate) rewrites: u64,
    pub(crate) lists: u64,
    pub(crate) watches: u64,
    /// Time of the histories, in seconds.
    pub(crate) seconds: u64,
    /// Longest recovery after all faults had healed.
    pub(crate) slowest_recovery: Duration,
}

impl Totals {
    /// Adds the counts of other histories.
    pub(crate) fn merge(&mut self, other: Self) {
        fn add<K: Ord>(to: &mut BTreeMap<K, u64>, from: BTreeMap<K, u64>) {
            for (key, count) in from {
                *to.entry(key).or_default() += count;
            }
        }
        let Self { histories, faults, verdicts, ends, events, resumes, restarts, warm_starts, rewrites, .. } = other;
        self.histories += histories;
        add(&mut self.faults, faults);
        add(&mut self.verdicts, verdicts);
        add(&mut self.ends, ends);
        self.events += events;
        self.resumes += resumes;
        self.suppressed += other.suppressed;
        self.restarts += restarts;
        self.warm_starts += warm_starts;
        self.rewrites += rewrites;
        self.lists += other.lists;
        self.watches += other.watches;
        self.seconds += other.seconds;
        self.slowest_recovery = self.slowest_recovery.max(other.slowest_recovery);
    }

    /// Returns the kinds and events that did not occur, and must occur in a full run.
    pub(crate) fn missing<U: Upstream>(&self) -> Vec<String> {
        let excluded = |kind: &str| U::NOT_YET.iter().any(|(excluded, _)| *excluded == kind);
        let kinds = U::REQUIRED.iter().filter(|kind| !excluded(kind) && !self.faults.contains_key(**kind));
        let counted = [
            ("event", self.events),
            ("resume", self.resumes),
            ("suppressed change", self.suppressed),
            ("restart", self.restarts),
            ("verdict", self.verdicts.get("SYNCED, and equal").copied().unwrap_or_default()),
        ];
        let counted = counted.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name.to_owned());
        kinds.map(|kind| (*kind).to_owned()).chain(counted).collect()
    }
}
