//! Rule that merges the watches of several namespaces into one: the events to emit, and their version.
//!
//! Pure. The API numbers the versions of all objects of a kind together, so that a version means the same in each namespace. A
//! namespace has *reached* a version when all events up to it were received: by an event that closes its version, or by a
//! bookmark.
//!
//! - The **merged version** is the lowest one that all namespaces have reached. It is the one to resume from.
//! - An event is emitted at once. One above the merged version is *ahead*: it is followed by the merged version, and a client
//!   that resumes from a version below the event receives it again (from the history of the informer).
//! - When the lowest namespace advances, a bookmark advances all clients.
//! - The order within a namespace is the API's. There is none between namespaces.
//!
//! Bounded: with more than 10,000 events or 16 MiB ahead the resource is listed, which brings all namespaces to one version.

use std::collections::BTreeMap;

use crate::{
    cache::{Delta, SourceError},
    model::{Event, ResourceVersion},
};

/// Position of several watches of one resource.
#[derive(Debug)]
pub(super) struct MergedPosition {
    /// Version that each member has reached.
    reached: Vec<ResourceVersion>,
    /// Merged version as emitted.
    version: ResourceVersion,
    /// Highest version of an emitted event or a bookmark; it may be open.
    highest: ResourceVersion,
    ahead: Ahead,
}

/// Emitted events above the merged version.
#[derive(Debug, Default)]
struct Ahead {
    /// Number and size of the events at each version.
    by_version: BTreeMap<u128, (usize, usize)>,
    events: usize,
    bytes: usize,
}

const MAX_AHEAD_EVENTS: usize = 10_000;
const MAX_AHEAD_BYTES: usize = 16 << 20;

// === impl MergedPosition ===

impl MergedPosition {
    /// Returns the position after a list: all members have reached its version.
    pub(super) fn new(members: usize, version: ResourceVersion) -> Self {
        let (reached, highest) = (vec![version.clone(); members], version.clone());
        Self { reached, version, highest, ahead: Ahead::default() }
    }

    /// Resumes from a version, with the versions that the members have reached.
    pub(super) fn begin(&mut self, version: ResourceVersion, reached: Vec<ResourceVersion>) {
        (self.version, self.reached) = (version, reached);
        for at in 0..self.reached.len() {
            self.note_highest(&self.reached[at].clone());
        }
    }

    /// Returns the merged version as emitted.
    pub(super) fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// Adds received events of a member, and returns the events to emit at once.
    ///
    /// # Errors
    ///
    /// [`SourceError::Expired`] if too much is ahead.
    pub(super) fn take(&mut self, member: usize, delta: Delta) -> Result<Option<Delta>, SourceError> {
        let Delta::Changes { mut events, closes } = delta else { return Ok(Some(delta)) };
        let Some(version) = events.last().map(|last| last.version().clone()) else { return Ok(None) };
        self.note_highest(&version);
        let reached = if closes { version.clone() } else { version.previous() };
        if reached > self.reached[member] {
            self.reached[member] = reached;
        }
        events.retain(|event| !matches!(event, Event::Bookmark(_)));
        if events.is_empty() {
            return Ok(None);
        }
        let lowest = self.lowest().clone();
        if closes && version == lowest && lowest > self.version {
            self.advance(lowest);
            return Ok(Some(Delta::Changes { events, closes }));
        }
        if version > lowest {
            self.ahead.add(version.number(), events.len(), events.iter().map(Event::weight).sum());
        }
        if self.ahead.events > MAX_AHEAD_EVENTS || self.ahead.bytes > MAX_AHEAD_BYTES {
            let text = format!(
                "too many events ({}) ahead of the slowest namespace, which is at version {lowest}",
                self.ahead.events
            );
            return Err(SourceError::Expired(text));
        }
        events.push(Event::Bookmark(self.version.clone()));
        Ok(Some(Delta::Changes { events, closes: true }))
    }

    /// Records that a member has no further events up to a version.
    pub(super) fn note_quiet(&mut self, member: usize, version: ResourceVersion) {
        self.note_highest(&version);
        if version > self.reached[member] {
            self.reached[member] = version;
        }
    }

    fn note_highest(&mut self, version: &ResourceVersion) {
        if *version > self.highest {
            self.highest.clone_from(version);
        }
    }

    /// Returns the bookmark that advances all clients, if there is one to emit.
    pub(super) fn progress(&mut self) -> Option<Delta> {
        let lowest = self.lowest().clone();
        if lowest <= self.version {
            return None;
        }
        self.advance(lowest.clone());
        Some(Delta::event(Event::Bookmark(lowest)))
    }

    /// Returns the number of events ahead.
    pub(super) fn ahead(&self) -> usize {
        self.ahead.events
    }

    /// Returns the members that others are ahead of, the furthest behind first, with the version that they have reached.
    pub(super) fn behind(&self) -> Vec<(usize, ResourceVersion)> {
        let is_behind = |(_, at): &(usize, ResourceVersion)| *at < self.highest;
        let mut behind: Vec<_> = self.reached.iter().cloned().enumerate().filter(is_behind).collect();
        behind.sort_by_key(|(_, at)| at.number());
        behind
    }

    /// Returns the highest version that any member has received; `None` without members.
    pub(super) fn highest(&self) -> Option<&ResourceVersion> {
        Some(&self.highest).filter(|_| !self.reached.is_empty())
    }

    fn lowest(&self) -> &ResourceVersion {
        self.reached.iter().min_by_key(|at| at.number()).unwrap_or(&self.version)
    }

    fn advance(&mut self, version: ResourceVersion) {
        self.ahead.remove_until(version.number());
        self.version = version;
    }
}

// === impl Ahead ===

impl Ahead {
    fn add(&mut self, version: u128, events: usize, bytes: usize) {
        let at = self.by_version.entry(version).or_default();
        *at = (at.0 + events, at.1 + bytes);
        (self.events, self.bytes) = (self.events + events, self.bytes + bytes);
    }

    fn remove_until(&mut self, version: u128) {
        while let Some(first) = self.by_version.first_entry().filter(|first| *first.key() <= version) {
            let (events, bytes) = first.remove();
            (self.events, self.bytes) = (self.events - events, self.bytes - bytes);
        }
    }
}

#[cfg(test)]
mod tests;
