//! A stream of the upstream that is being followed: batches as they are complete, bookmarks, and proofs of life.
//!
//! ```text
//!   messages ──▶ events of the open batch ──▶ [its last event] ──▶ Delta, at the new Position
//! ```
//!
//! It is a stream's state and not a task. Invariants:
//!
//! - What is handed out ends a batch, or is the version before one: in between, nobody here gets to resume.
//! - A batch that is cut off is forgotten, and told again by the next stream.
//! - While somebody waits for a version, the stream is one with bookmarks at the shortest interval; it takes the place of
//!   the other one, and is given up when nobody has waited for a heartbeat.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    Position, Shared, message,
    proof::{Mark, ResumeCheck},
    resume::unproved,
    upstream::Messages,
};
use crate::{
    cache::{Delta, SourceError, SyncState},
    model::{Cause, Event, ResourceVersion},
    proto::pb::{self, Bookmark, EventType, WatchResponse},
};

/// A stream, and where it is.
pub(super) struct Live {
    shared: Arc<Shared>,
    messages: Messages,
    position: Position,
    /// A version after the position that was handed out, and at which more may come.
    opened: Option<ResourceVersion>,
    /// Changes above the position that were handed out, by their versions: the last one up to a later position is its mark.
    ahead: BTreeMap<u128, Mark>,
    /// Of a stream of another server, which begins before the position: until it is beyond that, nothing is new.
    check: Option<ResumeCheck>,
    /// The events of a batch, as long as the version has not advanced.
    gathered: Vec<Event>,
    /// Of the deletions among them.
    deletion: Cause,
    /// There was a relist upstream on the way from the position.
    is_relisted: bool,
    /// Of the same message as what was handed out last.
    ready: VecDeque<Delta>,
    heard_at: Instant,
    /// Of a stream in a hurry: when somebody was last seen to wait.
    wanted_at: Option<Instant>,
}

// === impl Live ===

impl Live {
    /// A stream that goes on from a position.
    pub(super) fn new(shared: Arc<Shared>, messages: Messages, position: Position) -> Self {
        Self {
            shared,
            messages,
            position,
            opened: None,
            ahead: BTreeMap::new(),
            check: None,
            gathered: Vec::new(),
            deletion: Cause::Change,
            is_relisted: false,
            ready: VecDeque::new(),
            heard_at: Instant::now(),
            wanted_at: None,
        }
    }

    /// Goes on after a version.
    pub(super) async fn resume(shared: Arc<Shared>, from: ResourceVersion) -> Result<Self, SourceError> {
        let unknown = |version| Position { version, history: Arc::default(), mark: None };
        let position = shared.position(&from).unwrap_or_else(|| unknown(from));
        let (messages, check) = shared.open_after(&position, shared.config.heartbeat).await?;
        Ok(Self { check, ..Self::new(shared, messages, position) })
    }

    /// The next batch or proof of life. After an error there is nothing more.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped: what was received stays, or is told again.
    pub(super) async fn next(&mut self) -> Result<Delta, SourceError> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Ok(delta);
            }
            if self.wanted_at.is_some_and(|at| at.elapsed() > self.shared.config.heartbeat) {
                self.reopen(None).await?;
            }
            let silent_at = self.heard_at + self.shared.upstream.silence();
            let demand = self.shared.health.demand().clone();
            tokio::select! {
                // What has come counts before what has not: a stream that was not polled for long is not silent.
                biased;
                // Cancel-safe: a message that has not come whole stays in the stream.
                message = self.messages.message() => {
                    let message = message.map_err(|status| self.told(self.shared.upstream.status(&status)))?;
                    let message = message.ok_or_else(|| self.shared.upstream.ended())?;
                    self.heard_at = Instant::now();
                    if let Some(delta) = self.take(message)? {
                        self.shared.state.lock().position = Some(self.position.clone());
                        return Ok(delta);
                    }
                }
                // Cancel-safe by its own contract; then the stream is another one.
                () = demand.wanted(), if self.wanted_at.is_none() => self.reopen(Some(Instant::now())).await?,
                () = tokio::time::sleep_until(silent_at) => return Err(self.shared.upstream.silent()),
            }
        }
    }

    /// It has ended, for this reason: what was open is taken up again, and not listed.
    pub(super) fn fail(&self, error: SourceError) -> SourceError {
        match self.shared.failed(error) {
            SourceError::Busy(text) => SourceError::Broken(text),
            error => error,
        }
    }

    /// Goes on from here at another interval.
    async fn reopen(&mut self, wanted_at: Option<Instant>) -> Result<(), SourceError> {
        let config = &self.shared.config;
        let interval = if wanted_at.is_some() { config.progress_interval } else { config.heartbeat };
        (self.messages, self.check) = self.shared.open_after(&self.position, interval).await?;
        self.gathered.clear();
        self.ready.clear();
        (self.deletion, self.is_relisted) = (Cause::Change, false);
        (self.wanted_at, self.heard_at) = (wanted_at, Instant::now());
        Ok(())
    }

    /// Whether a message is new. What is known is of the history that the position belongs to.
    fn is_new(&mut self, message: &WatchResponse) -> Result<bool, SourceError> {
        let Some(check) = &mut self.check else { return Ok(true) };
        if check.judge(message)? {
            return Ok(true);
        }
        if let Some(bookmark) = &message.bookmark {
            let is_synced = message::tell_origin(bookmark, &self.shared.health) == SyncState::Synced;
            self.shared.note_behind(is_synced, &message.resource_version)?;
            self.note_demand();
        }
        Ok(false)
    }

    fn take(&mut self, message: WatchResponse) -> Result<Option<Delta>, SourceError> {
        if !self.is_new(&message)? {
            return Ok(None);
        }
        let version = message.resource_version.clone();
        self.is_relisted |= message.relisted;
        match message.r#type() {
            EventType::Added | EventType::Modified | EventType::Deleted => {
                let version = self.not_before(&version)?;
                let (is_inferred, is_open) = (message.cause() == pb::Cause::Inferred, message.open);
                let event = message::event(message)?;
                if is_open {
                    return self.take_open(version, event, is_inferred).map(Some);
                }
                // What is at a later version than the message is in a batch that goes on.
                if *event.version() <= version && version != self.position.version {
                    self.gather(event, is_inferred);
                    return Ok(Some(self.complete(version)));
                }
                // Whether a relist lies before that version or comes with the batch is not said: then it is both.
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
            _ => Err(self.told(self.shared.upstream.not_an_event(message))),
        }
    }

    /// An error that the upstream has told. The history that has changed there is that of the position only if it is proved.
    fn told(&self, error: SourceError) -> SourceError {
        if self.check.is_some() { unproved(error) } else { error }
    }

    /// An event of a batch that is open is applied at once, as it was upstream. The position is still before it.
    fn take_open(&mut self, version: ResourceVersion, event: Event, is_inferred: bool) -> Result<Delta, SourceError> {
        let progress = self.progress(version)?;
        if !self.gathered.is_empty() {
            return Err(self.shared.upstream.contract("an open batch inside another"));
        }
        self.is_relisted = false;
        let version = &self.position.version;
        if event.version() > version && !matches!(event, Event::Deleted(_)) {
            self.shared.state.lock().has_sent_ahead = true;
        }
        let opened = self.opened.take().filter(|opened| opened > version);
        // What came at a version that was complete before does not move it, nor does what is ahead of the position by more
        // than a version: the upstream has several watches, of which one is ahead.
        let reached = opened.as_ref().unwrap_or(version);
        let is_next =
            *event.version() == version.next() && opened.as_ref().is_none_or(|opened| opened == event.version());
        let end = (!is_next && event.version() != reached).then(|| Event::Bookmark(reached.clone()));
        if event.version() > version
            && let Some(mark) = Mark::after_batch(None, std::slice::from_ref(&event), false)
        {
            self.ahead.insert(event.version().number(), mark.open());
        }
        self.opened = if is_next { Some(event.version().clone()) } else { opened };
        let events = [event].into_iter().chain(end);
        let delta = if is_inferred {
            Delta::Relist(events.collect(), Cause::Inferred)
        } else {
            Delta::Changes { events: events.collect(), closes: false }
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
        self.gathered.push(event);
        if is_inferred {
            // At a relist, whether the upstream is new enough to say so or not.
            (self.deletion, self.is_relisted) = (Cause::Inferred, true);
        }
    }

    /// The batch that was gathered is whole.
    fn complete(&mut self, version: ResourceVersion) -> Delta {
        let mut events = std::mem::take(&mut self.gathered);
        let is_relisted = std::mem::take(&mut self.is_relisted);
        let deletion = std::mem::replace(&mut self.deletion, Cause::Change);
        // The objects of a relist have versions of their own, which need not lead to that of the list.
        if is_relisted || events.last().is_none_or(|last| *last.version() != version) {
            events.push(Event::Bookmark(version.clone()));
        }
        self.position.mark = Mark::after_batch(self.position.mark.take(), &events, is_relisted);
        let ahead = self.ahead.split_off(&version.next().number());
        let passed = std::mem::replace(&mut self.ahead, ahead).pop_last().filter(|_| !is_relisted);
        if let Some((_, mark)) =
            passed.filter(|(at, _)| self.position.mark.as_ref().is_none_or(|mark| mark.version().number() < *at))
        {
            self.position.mark = Some(mark);
        }
        self.position.version = version;
        if is_relisted { Delta::Relist(events, deletion) } else { Delta::transaction(events) }
    }

    fn bookmark(&mut self, bookmark: Bookmark, version: ResourceVersion) -> Result<Delta, SourceError> {
        message::tell_origin(&bookmark, &self.shared.health);
        if *bookmark.history != *self.position.history {
            self.position.history = bookmark.history.into();
        }
        self.note_demand();
        let progress = self.progress(version.clone())?;
        // It was of the way to this version.
        self.is_relisted &= !self.gathered.is_empty();
        Ok(progress.unwrap_or(Delta::event(Event::Bookmark(version))))
    }

    fn note_demand(&mut self) {
        if self.shared.health.demand().is_wanted() {
            self.wanted_at = self.wanted_at.map(|_| Instant::now());
        }
    }

    /// Nothing is missing up to a version that may be the one before a batch; told if it is later than what was told.
    fn progress(&mut self, version: ResourceVersion) -> Result<Option<Delta>, SourceError> {
        if version == self.position.version {
            return Ok(None);
        }
        if !self.gathered.is_empty() {
            return Err(self.shared.upstream.contract("a version inside a batch"));
        }
        Ok(Some(self.complete(version)))
    }

    /// The version of a message: one that goes back is of a broken stream, and is never handed out.
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
        let endpoint = &self.shared.config.endpoint;
        Err(SourceError::Busy(format!("{endpoint}: a message at {version} after {}", self.position.version)))
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("position", &self.position).finish_non_exhaustive()
    }
}
