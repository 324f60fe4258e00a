//! An open stream of the upstream: complete batches, bookmarks and progress.
//!
//! ```text
//!   messages ──▶ events of the open batch ──▶ [its last event] ──▶ Delta, at the new Position
//! ```
//!
//! The watch is the state of a stream, not a task. Invariants:
//!
//! - Each delta ends a batch or is at the version before one: no client can resume from a version in between.
//! - A batch that a break cuts off is discarded, and the next stream replays it.
//! - While a caller waits for a version, a stream with bookmarks at the shortest interval replaces the other one, until no
//!   caller has waited for a heartbeat.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    message::{self, UnreadableObject},
    resume_check::{ResumeCheck, ResumePoint},
    state::{Position, RelayShared, unchecked_history},
};
use crate::{
    cache::{Delta, SourceError, SyncState},
    client::{OpenBatch, WatchMessages},
    model::{Cause, Event, Object, ResourceVersion},
    net::connection_files,
    proto::pb::{self, Bookmark, EventType, WatchResponse},
};

/// Open stream, and its position.
pub(super) struct RelayWatch {
    shared: Arc<RelayShared>,
    messages: WatchMessages,
    position: Position,
    /// Delivered changes above the position, by version: the last one up to a later position is the resume point of that position.
    ahead: BTreeMap<u128, ResumePoint>,
    /// Check of a stream of another server, which begins before the position: no message up to the position is new.
    check: Option<ResumeCheck>,
    /// Batch after the position, while the version has not advanced.
    batch: OpenBatch,
    /// Cause of the deletions in the batch.
    deletion: Cause,
    /// True if the upstream has relisted since the position.
    is_relisted: bool,
    /// Delta of the same message as the one delivered last.
    ready: VecDeque<Delta>,
    last_message_at: Instant,
    /// Times of the last two bookmarks that did not come together with the one before.
    bookmarks_at: [Option<Instant>; 2],
    /// Time at which a caller was last seen waiting, for a stream with short intervals.
    last_demand_at: Option<Instant>,
    /// Completes when the files that the connection was made from have changed.
    changed: Pin<Box<dyn Future<Output = ()> + Send>>,
}

// === impl RelayWatch ===

impl RelayWatch {
    /// Returns a stream that continues from a position.
    pub(super) fn new(shared: Arc<RelayShared>, messages: WatchMessages, position: Position) -> Self {
        let changed = Box::pin(connection_files::changed(shared.config.files(), shared.upstream.files()));
        Self {
            changed,
            shared,
            messages,
            position,
            ahead: BTreeMap::new(),
            check: None,
            batch: OpenBatch::default(),
            deletion: Cause::Change,
            is_relisted: false,
            ready: VecDeque::new(),
            last_message_at: Instant::now(),
            bookmarks_at: [None; 2],
            last_demand_at: None,
        }
    }

    /// Resumes after a version.
    pub(super) async fn resume(shared: Arc<RelayShared>, from: ResourceVersion) -> Result<Self, SourceError> {
        let unknown = |version| Position { version, history: Arc::default(), resume_point: None, namespaces: None };
        let position = shared.position(&from).unwrap_or_else(|| unknown(from));
        let (messages, check) = shared.open_after(&position, shared.config.heartbeat).await?;
        Ok(Self { check, ..Self::new(shared, messages, position) })
    }

    /// Waits for the next batch or bookmark. After an error the stream has ended.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses nothing: the received messages stay in the stream, or the next stream replays them.
    pub(super) async fn next(&mut self) -> Result<Delta, SourceError> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Ok(delta);
            }
            if self.last_demand_at.is_some_and(|at| at.elapsed() > self.shared.config.heartbeat) {
                self.reopen(None).await?;
            }
            let silent_at = self.last_message_at + self.shared.upstream.silence();
            let demand = self.shared.demand.clone();
            tokio::select! {
                // WatchMessages that have arrived come first: a stream that was not polled for long is not silent.
                biased;
                // Cancel-safe: an incomplete message stays in the stream.
                message = self.messages.message() => {
                    let message = message.map_err(|status| self.watch_error(self.shared.upstream.status(&status)))?;
                    let message = message.ok_or_else(|| self.shared.upstream.ended())?;
                    self.last_message_at = Instant::now();
                    if let Some(delta) = self.take(message)? {
                        self.shared.state.lock().position = Some(self.position.clone());
                        return Ok(delta);
                    }
                }
                // Cancel-safe by its own contract; `reopen` then replaces the stream.
                () = demand.wanted(), if self.last_demand_at.is_none() => self.reopen(Some(Instant::now())).await?,
                () = tokio::time::sleep_until(silent_at) => return Err(self.shared.upstream.silent()),
                // Cancel-safe: it continues at the next poll.
                () = &mut self.changed => return Err(self.shared.upstream.changed()),
            }
        }
    }

    /// Converts the error that ended the stream: after a break the source resumes instead of relisting.
    pub(super) fn fail(&self, error: SourceError) -> SourceError {
        match self.shared.failed(error) {
            SourceError::Busy(text) => SourceError::Broken(text),
            error => error,
        }
    }

    /// Replaces the stream with one at another bookmark interval, from the position.
    async fn reopen(&mut self, last_demand_at: Option<Instant>) -> Result<(), SourceError> {
        let config = &self.shared.config;
        let interval = if last_demand_at.is_some() { config.progress_interval } else { config.heartbeat };
        (self.messages, self.check) = self.shared.open_after(&self.position, interval).await?;
        self.batch.discard();
        self.ready.clear();
        (self.deletion, self.is_relisted) = (Cause::Change, false);
        (self.last_demand_at, self.last_message_at) = (last_demand_at, Instant::now());
        Ok(())
    }

    /// Returns true if a message is new. The others are up to the position, and in its history.
    fn is_new(&mut self, message: &WatchResponse) -> Result<bool, SourceError> {
        let Some(check) = &mut self.check else { return Ok(true) };
        if check.judge(message)? {
            return Ok(true);
        }
        if let Some(bookmark) = &message.bookmark {
            let is_synced =
                message::report_origin(bookmark, &self.position.version, &self.shared.health) == SyncState::Synced;
            self.shared.note_behind(is_synced, &message.resource_version)?;
            self.note_demand();
        }
        Ok(false)
    }

    fn take(&mut self, mut message: WatchResponse) -> Result<Option<Delta>, SourceError> {
        let is_withheld = message::is_withheld(&message);
        message.object = self.shared.upstream.with_body(message.object);
        if !self.is_new(&message)? {
            return Ok(None);
        }
        let version = message.resource_version.clone();
        self.is_relisted |= message.relisted;
        match message.r#type() {
            EventType::Deleted if is_withheld => Err(self.shared.upstream.access_changed()),
            EventType::Added | EventType::Modified | EventType::Deleted => {
                let version = self.not_before(&version)?;
                let (is_inferred, is_open) = (message.cause() == pb::Cause::Inferred, message.open);
                self.shared.upstream.check_secret(message.object.as_ref())?;
                let Some(object) = self.readable(&mut message)? else { return self.pass(version, is_open) };
                let event = message::event(&message, object)?;
                if is_open {
                    return self.take_open(version, event, is_inferred).map(Some);
                }
                // An object at a later version than the message is in a batch that continues.
                if *event.version() <= version && version != self.position.version {
                    self.gather(event, is_inferred);
                    return Ok(Some(self.complete(version)));
                }
                // The message does not say if a relist lies before that version or comes with the batch: then both are relists.
                let is_relisted = self.is_relisted;
                let progress = self.progress(version)?;
                self.is_relisted = is_relisted;
                self.gather(event, is_inferred);
                Ok(progress)
            }
            EventType::Bookmark => {
                let version = self.not_before(&version)?;
                self.bookmark(message.bookmark.unwrap_or_default(), version).map(Some)
            }
            _ => Err(self.watch_error(self.shared.upstream.not_an_event(message))),
        }
    }

    /// Returns the object of an event; `None` for one that cannot be read, which is reported: what is held of it stays.
    fn readable(&self, message: &mut WatchResponse) -> Result<Option<Object>, SourceError> {
        let object = message.object.take().ok_or_else(|| self.shared.upstream.contract("event without an object"))?;
        let object = match message::readable(object) {
            Ok(object) => object,
            Err(unreadable) => match *unreadable {
                UnreadableObject { bare: Some(object), .. } if message.r#type() == EventType::Deleted => object,
                UnreadableObject { problem, .. } => {
                    self.shared.note_unreadable(&problem);
                    return Ok(None);
                }
            },
        };
        self.shared.note_readable(&object);
        Ok(Some(object))
    }

    /// Passes over an event at a version, which may end a batch.
    fn pass(&mut self, version: ResourceVersion, is_open: bool) -> Result<Option<Delta>, SourceError> {
        match is_open {
            true => self.progress(version),
            false if version == self.position.version => Ok(None),
            false => Ok(Some(self.complete(version))),
        }
    }

    /// Converts an error that the upstream sent. A history rewritten there is that of the position only after the check.
    fn watch_error(&self, error: SourceError) -> SourceError {
        if self.check.is_some() { unchecked_history(error) } else { error }
    }

    /// Delivers an event of an open batch at once, as the upstream did. The position stays before the batch.
    fn take_open(&mut self, version: ResourceVersion, event: Event, is_inferred: bool) -> Result<Delta, SourceError> {
        let progress = self.progress(version)?;
        if !self.batch.is_empty() {
            return Err(self.shared.upstream.contract("open batch inside another"));
        }
        self.is_relisted = false;
        let version = &self.position.version;
        if event.version() > version && !matches!(event, Event::Deleted(_) | Event::Removed(_, _)) {
            self.shared.state.lock().has_sent_ahead = true;
        }
        if event.version() > version
            && let Some(resume_point) = ResumePoint::after_batch(None, std::slice::from_ref(&event), false)
        {
            self.ahead.insert(event.version().number(), resume_point.open());
        }
        let events = self.batch.send(version, event);
        let delta = if is_inferred {
            Delta::Relist(events.into_vec(), Cause::Inferred)
        } else {
            Delta::Changes { events, closes: false }
        };
        match progress {
            None => Ok(delta),
            Some(progress) => {
                self.ready.push_back(delta);
                Ok(progress)
            }
        }
    }

    fn gather(&mut self, event: Event, is_inferred: bool) {
        self.batch.push(event);
        if is_inferred {
            // An inferred deletion means a relist, also from an upstream too old to mark relists.
            (self.deletion, self.is_relisted) = (Cause::Inferred, true);
        }
    }

    /// Ends the gathered batch at a version.
    fn complete(&mut self, version: ResourceVersion) -> Delta {
        let events = self.batch.complete(&version);
        let is_relisted = std::mem::take(&mut self.is_relisted);
        let deletion = std::mem::replace(&mut self.deletion, Cause::Change);
        self.position.resume_point = ResumePoint::after_batch(self.position.resume_point.take(), &events, is_relisted);
        let ahead = self.ahead.split_off(&version.next().number());
        let passed = std::mem::replace(&mut self.ahead, ahead).pop_last().filter(|_| !is_relisted);
        if let Some((_, resume_point)) = passed.filter(|(at, _)| {
            self.position.resume_point.as_ref().is_none_or(|resume_point| resume_point.version().number() < *at)
        }) {
            self.position.resume_point = Some(resume_point);
        }
        self.position.version = version;
        if is_relisted { Delta::Relist(events, deletion) } else { Delta::transaction(events) }
    }

    fn bookmark(&mut self, bookmark: Bookmark, version: ResourceVersion) -> Result<Delta, SourceError> {
        let state = message::report_origin(&bookmark, &version, &self.shared.health);
        self.confirm(state, &version);
        let known = self.position.namespaces.get_or_insert_with(|| bookmark.namespaces.as_slice().into());
        if **known != *bookmark.namespaces {
            return Err(self.shared.upstream.access_changed());
        }
        if *bookmark.history != *self.position.history {
            self.position.history = bookmark.history.into();
        }
        self.note_demand();
        let progress = self.progress(version.clone())?;
        // The relist, if any, lies before this version.
        self.is_relisted &= !self.batch.is_empty();
        Ok(progress.unwrap_or(Delta::event(Event::Bookmark(version))))
    }

    /// Confirms the version of a bookmark, of an upstream that is synced itself, for the time of the bookmark before the last one: one may be
    /// on its way for an interval, and the upstream may have learned of the version an interval before.
    fn confirm(&mut self, state: SyncState, version: &ResourceVersion) {
        let [before, last] = self.bookmarks_at;
        if let Some(before) = before.filter(|_| state == SyncState::Synced) {
            self.shared.demand.confirm(before, version.clone());
        }
        // Bookmarks that were held back together count as one.
        if last.is_none_or(|last| last.elapsed() >= self.shared.config.progress_interval / 2) {
            self.bookmarks_at = [last, Some(Instant::now())];
        }
    }

    fn note_demand(&mut self) {
        if self.shared.demand.is_wanted() {
            self.last_demand_at = self.last_demand_at.map(|_| Instant::now());
        }
    }

    /// Advances to a version, which may be the one before a batch. Returns a delta if it is later than the position.
    fn progress(&mut self, version: ResourceVersion) -> Result<Option<Delta>, SourceError> {
        if version == self.position.version {
            return Ok(None);
        }
        if !self.batch.is_empty() {
            return Err(self.shared.upstream.contract("version inside a batch"));
        }
        Ok(Some(self.complete(version)))
    }

    /// Parses the version of a message. An earlier one than the position means a broken stream, and is never delivered.
    fn not_before(&mut self, text: &str) -> Result<ResourceVersion, SourceError> {
        let version = message::version(text)?;
        if version >= self.position.version {
            if self.check.take().is_some() {
                self.shared.state.lock().behind.clear();
            }
            return Ok(version);
        }
        if self.check.is_some() {
            // The first batch beyond the position: the stream's version before it is older.
            return Ok(self.position.version.clone());
        }
        let endpoint = self.shared.config.endpoint.uri();
        Err(SourceError::Busy(format!(
            "{endpoint}: message at version {version} after version {}",
            self.position.version
        )))
    }
}

debug_fields!(RelayWatch { position });

#[cfg(test)]
mod tests;
