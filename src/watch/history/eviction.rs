//! Eviction: what a watch can resume from is bounded by age, events and bytes alone. What is evicted is kept, within twice the bounds,
//! for as long as a queue needs it.

use tokio::time::Instant;

use super::{History, Retention};

/// Number of events that are kept beyond twice the bound for who needs them: as many as come in a few publish cycles, before what they
/// replace was counted or merged.
const KEPT_EVENTS: usize = 256;
// === impl History ===

impl History {
    /// Begins to read what the queues need. Returns [what is kept](Self::kept_until).
    pub(in crate::watch) fn begin_keep(&mut self) -> Option<u64> {
        self.evicted.also = u64::MAX;
        self.kept_until()
    }

    /// Keeps what follows an offset, and [also](Self::keep_also_from) what was requested since [`Self::begin_keep`].
    pub(in crate::watch) fn keep_from(&mut self, offset: u64) {
        self.evicted.needed = offset.min(self.evicted.also);
    }

    /// Keeps what follows an offset also, for one who will need it from now on.
    pub(in crate::watch) fn keep_also_from(&mut self, offset: u64) {
        self.evicted.needed = self.evicted.needed.min(offset);
        self.evicted.also = self.evicted.also.min(offset);
    }

    /// Returns the end of what must be counted or merged soon, 0 if that is nothing; `None` if nothing is kept that was evicted.
    pub(in crate::watch) fn kept_until(&self) -> Option<u64> {
        (self.evicted.batches > 0).then_some(self.evicted.kept_until)
    }

    /// Returns the offset before everything that is kept.
    #[cfg(test)]
    pub(in crate::watch) fn begin_offset(&self) -> u64 {
        self.begin.offset
    }

    /// Evicts the oldest batches past the bounds. The caller repeats it periodically: a quiet resource records nothing.
    pub(crate) fn evict_old(&mut self, now: Instant) {
        while self.evict_oldest(now) {}
        self.drop_evicted();
    }

    /// Evicts the oldest version, if it is past the bounds. Returns true if so.
    fn evict_oldest(&mut self, now: Instant) -> bool {
        let (Some(oldest), Some(newest)) = (self.batches.get(self.evicted.batches), self.batches.back()) else {
            return false;
        };
        let is_newest = oldest.what.after() == newest.what.after();
        // More changes may come at this version, or a watch that resumes from it needs its late changes again.
        let has_to_stay = self.current.version != self.applied || newest.what.is_late();
        let is_needed = is_newest && *newest.what.after() == self.applied && has_to_stay;
        if is_needed {
            return false;
        }
        let mut version = oldest.what.after().clone();
        let evicted = self.batches.partition_point(|recorded| *recorded.what.after() <= version);
        let end = self.batches[evicted - 1].end();
        let ahead = self.ahead.partition_point(|(offset, _)| *offset < end);
        let ahead_of = ahead.checked_sub(1).map(|last| &self.ahead[last].1);
        if ahead_of.is_some_and(|ahead| *ahead > self.current.version) {
            return false;
        }
        if self.batches.range(self.evicted.batches..evicted).any(|recorded| recorded.what.is_late()) {
            // Whoever has the version may lack its late changes, and the next one is open.
            if version >= self.current.version {
                return false;
            }
            version = version.next();
        }
        let begun = self.batches.partition_point(|recorded| *recorded.what.after() < version);
        let mut at_version = self.batches.range(begun..).take_while(|recorded| *recorded.what.after() == version);
        let has_several = at_version.any(|recorded| recorded.what.has_several());
        // A client of the Kubernetes API that may lack some of them lists at a later version. Only versions without a lineage are there.
        if has_several && version >= self.current.version && version.lineage().is_none() {
            return false;
        }
        let is_old = now.saturating_duration_since(oldest.at) > self.bounds.age;
        let (events, bytes) = (self.events - self.evicted.events, self.bytes - self.evicted.bytes);
        let is_over = events > self.bounds.events || bytes > self.bounds.size;
        if !is_old && (!is_over || is_newest) {
            return false;
        }
        for recorded in self.batches.range(self.evicted.batches..evicted) {
            self.evicted.events += recorded.what.events();
            self.evicted.bytes += recorded.what.bytes();
            self.oldest.offset = recorded.end();
            self.oldest_at = recorded.at;
        }
        let ahead_of = self.ahead.drain(..ahead).next_back().map(|(_, ahead)| ahead);
        self.oldest_has_several = has_several;
        for passed in ahead_of.into_iter().chain([self.oldest.version.clone()]) {
            version = if passed > version { passed } else { version };
        }
        self.oldest.version = version;
        self.leave_gap();
        self.evicted.evictions.push_back((evicted - self.evicted.batches, self.oldest.clone()));
        self.evicted.batches = evicted;
        true
    }

    /// Advances the oldest version to the end of a relist that it is inside of: it was open, or has lost late changes.
    pub(super) fn leave_gap(&mut self) {
        let next = self.batches.get(self.first_after_passed(&self.oldest.version));
        let relist = next.and_then(|next| Some((next.at, next.what.relist_from_before(&self.oldest.version)?)));
        if let Some((at, relist)) = relist {
            (self.oldest_at, self.oldest.version) = (at, relist.after.clone());
        }
    }

    /// Drops what was evicted and nobody needs, or cannot be kept any longer.
    fn drop_evicted(&mut self) {
        self.evicted.kept_until = 0;
        while let (Some((count, after)), Some(newest)) = (self.evicted.evictions.front(), self.batches.back()) {
            if after.offset > self.evicted.needed {
                // A relist may be larger than all bounds.
                let (kept, kept_bytes) = (self.events - newest.what.events(), self.bytes - newest.what.bytes());
                let Retention { events, size, .. } = self.bounds;
                if kept <= events && kept_bytes <= size {
                    break;
                }
                let most = events.saturating_mul(2).saturating_add(KEPT_EVENTS);
                if kept <= most && kept_bytes <= size.saturating_mul(2) {
                    self.evicted.kept_until = after.offset;
                    break;
                }
            }
            let count = *count;
            for recorded in self.batches.drain(..count) {
                self.events -= recorded.what.events();
                self.bytes -= recorded.what.bytes();
                self.evicted.events -= recorded.what.events();
                self.evicted.bytes -= recorded.what.bytes();
                self.before.clone_from(recorded.what.after());
            }
            self.evicted.batches -= count;
            self.begin = self.evicted.evictions.pop_front().map_or_else(|| self.oldest.clone(), |(_, after)| after);
            while self.relists.get(1).is_some_and(|second| second.offset <= self.begin.offset) {
                self.relists.pop_front();
            }
        }
    }
}
