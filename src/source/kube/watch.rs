//! One watch of a resource, line by line.
//!
//! It is the state of a stream, not a task. Invariants:
//!
//! - An event that cannot be read ends the watch before any later event is emitted, and counts as not received.
//! - A line that was not received whole is never emitted.
//! - The API closes a watch after the requested time. The source drops and reopens one that the API does not close in time, and
//!   one whose connection shows no sign of life. It keeps one that is silent over a live connection: APIs without a watch
//!   cache, as for Events, send no bookmarks.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    client::Watchdog,
    head::Head,
    known::{EventEffect, MAX_CHANGES, Position, PositionEvidence},
    line_reader::{LineError, LineReader},
    object::{Bookmark, DecodedObject, ObjectDecoder},
    replay::Replay,
    resume_check::{ResumeCheck, Verdict},
    shared::KubeShared,
    unreadable::UnreadableObject,
};
use crate::{
    cache::{Delta, SourceError},
    model::{Event, EventType, ObjectError, ResourceVersion},
    source::{
        problems::subject_of,
        watch_event::{self, DecodedEvent},
    },
};

/// An open watch.
pub(super) struct KubeWatch {
    shared: Arc<KubeShared>,
    pub(super) lines: LineReader,
    watchdog: Watchdog,
    /// Time of the last line.
    last_message_at: Instant,
    /// Time by which the API should have closed the watch.
    pub(super) deadline: Instant,
    /// Changes that the API has to replay first.
    resume_check: Option<ResumeCheck>,
    /// Change that the API has to replay first, where versions are numbered by lineage.
    replay: Option<Replay>,
    /// Received events, held until the history is recognised; the flag is true for a deletion.
    held: VecDeque<(Event, bool)>,
    /// True until something shows that the API watches from the version.
    is_opening: bool,
    /// True once it is the watch of the resource.
    is_begun: bool,
}

/// Delay after the requested time before a watch that the API has not closed counts as late.
const GRACE: Duration = Duration::from_secs(30);
/// Silence after which a watch counts as open: an API that cannot watch from a version reports it at once.
const OPENING: Duration = Duration::from_secs(5);
/// The same, at least, where a resource may be STALE for less.
const MIN_OPENING: Duration = Duration::from_millis(500);
const NOTHING_TO_WATCH: &str = "the API's text of this version is unknown";

/// Opens a watch after a version, with the changes that the API has to replay first.
pub(super) async fn open(
    shared: &Arc<KubeShared>,
    from: &ResourceVersion,
    resume_check: Option<ResumeCheck>,
) -> Result<KubeWatch, SourceError> {
    let text = shared.known.lock().text_of(from);
    let Some(text) = text else {
        let problem = if shared.known.lock().is_decimal() { "the source is at another one" } else { NOTHING_TO_WATCH };
        return Err(SourceError::Expired(format!("cannot watch from version {from}: {problem}")));
    };
    let live = KubeWatch::open(shared, &[("resourceVersion", &text)]).await?;
    Ok(KubeWatch { is_opening: resume_check.is_none(), resume_check, ..live })
}

/// Opens a watch from before the last change, which the API has to replay.
pub(super) async fn open_replay(shared: &Arc<KubeShared>, replay: Replay) -> Result<KubeWatch, SourceError> {
    let live = KubeWatch::open(shared, &[("resourceVersion", &replay.before)]).await?;
    Ok(KubeWatch { replay: Some(replay), ..live })
}

// === impl KubeShared ===

impl KubeShared {
    /// Opens a watch from a version, if the cluster still has the history known up to there.
    ///
    /// The head is proof enough only at the version of the last known change. A cluster restored to a state between that change
    /// and the known version has the change too, and may have had others since, so a broken watch resumes from before the
    /// change. No such proof is needed after a watch that the API itself has just closed, or a list that it has just answered:
    /// both belong to its current history. Later on they prove nothing, since a proxy may have held the watch request until the
    /// cluster was restored.
    ///
    /// With versions numbered by lineage, the API's text before the last change is known, unless that change is older than
    /// the list.
    pub(super) async fn watch(
        self: &Arc<Self>,
        from: &ResourceVersion,
        position: Option<Position>,
    ) -> Result<KubeWatch, SourceError> {
        let Some(position) = position else { return open(self, from, None).await };
        let (from, resume_point, Position { version, origin, .. }) =
            (position.safe(), position.resume_point(), position);
        if origin.is_just_listed() {
            let live = open(self, &from, None).await?;
            if origin.is_just_listed() {
                return Ok(live);
            }
        }
        self.check_cluster().await?;
        let is_counted = version.lineage().is_some();
        if is_counted && origin.is_just_closed() {
            return open(self, &from, None).await;
        }
        if is_counted {
            let replay = self.known.lock().begin_replay();
            let unproved =
                || SourceError::Expired(format!("cannot verify the history: no known change before version {version}"));
            return open_replay(self, replay.ok_or_else(unproved)?).await;
        }
        let head = self.head(&version, resume_point.as_ref()).await?;
        let is_known = match (origin, &resume_point) {
            _ if origin.is_just_closed() => true,
            (PositionEvidence::List(_) | PositionEvidence::Watch | PositionEvidence::Closed(_), None) => {
                head == Head::Empty
            }
            (PositionEvidence::List(_) | PositionEvidence::Watch | PositionEvidence::Closed(_), Some(resume_point)) => {
                head == Head::HasMark && *resume_point.version() == version
            }
            _ => false,
        };
        if is_known {
            return open(self, &from, None).await;
        }
        let Some((resume_point, before)) =
            resume_point.and_then(|resume_point| resume_point.before().map(|before| (resume_point, before)))
        else {
            return Err(SourceError::Expired(format!("cannot verify the history: no version before {version}")));
        };
        open(self, &before, Some(ResumeCheck::new(resume_point, version))).await
    }
}

// === impl KubeWatch ===

impl KubeWatch {
    pub(super) async fn open(shared: &Arc<KubeShared>, query: &[(&str, &str)]) -> Result<Self, SourceError> {
        let time = shared.config.watch_timeout.mul_f64(1.0 + fastrand::f64());
        Self::open_for(shared, query, time).await
    }

    /// Opens a watch that the API is to close after a time.
    pub(super) async fn open_for(
        shared: &Arc<KubeShared>,
        query: &[(&str, &str)],
        time: Duration,
    ) -> Result<Self, SourceError> {
        let seconds = time.as_secs().max(1).to_string();
        let watch = [("watch", "1"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", &*seconds)];
        let body = shared.api.open(&shared.target(&[&watch, query].concat())).await;
        let body = body.inspect_err(|error| {
            if matches!(error, SourceError::Busy(_)) {
                shared.initial_events.lock().has_new_connection();
            }
        })?;
        Ok(Self {
            watchdog: shared.api.watchdog(&body),
            last_message_at: Instant::now(),
            lines: LineReader::new(body),
            deadline: Instant::now() + time + GRACE,
            shared: Arc::clone(shared),
            resume_check: None,
            replay: None,
            held: VecDeque::new(),
            is_opening: false,
            is_begun: false,
        })
    }

    /// Returns the next event or bookmark; `None` when the API closes the watch.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: received data stays.
    pub(super) async fn next(&mut self) -> Result<Option<Delta>, SourceError> {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.shared.known.lock().note_watch();
        }
        loop {
            if !self.is_unconfirmed()
                && let Some((event, is_deletion)) = self.held.pop_front()
            {
                return self.hand_out(event, is_deletion).map(Some);
            }
            let line = self.first_or_next_line().await.map_err(|no_line| self.broken(no_line))?;
            let Some(line) = line else {
                // Otherwise the API may have closed the watch before it replayed the change.
                if self.resume_check.is_none() && self.replay.is_none() {
                    let seen = self.last_message_at.max(self.watchdog.seen());
                    self.shared.known.lock().note_close(seen);
                }
                return Ok(None);
            };
            let mut is_deletion = false;
            let event = match self.decode(&line)? {
                DecodedEvent::Change(event_type, item) => {
                    let Some(item) = self.readable(event_type, item) else { continue };
                    is_deletion = event_type == EventType::Deleted;
                    if self.is_replayed(is_deletion, &item)? {
                        continue;
                    }
                    self.change(event_type, item)?
                }
                DecodedEvent::Bookmark(object) => {
                    let bookmark = Bookmark::read(object).map_err(|error| self.unreadable(&error))?;
                    if let Some(replay) = &self.replay {
                        replay.check_bookmark(&bookmark.version)?;
                        continue;
                    }
                    let version = self.shared.known.lock().state(&bookmark.version);
                    let version = version.map_err(|error| SourceError::Undecodable(format!("bookmark: {error}")))?;
                    self.shared.note_bookmark();
                    Event::Bookmark(version)
                }
                DecodedEvent::Failure(status) => return Err(self.shared.api.watch_error(status)),
            };
            if self.is_new(&event)? {
                if self.held.len() == MAX_CHANGES {
                    return Err(SourceError::Expired(format!("too many changes at version {}", event.version())));
                }
                self.held.push_back((event, is_deletion));
            }
        }
    }

    fn hand_out(&self, event: Event, is_deletion: bool) -> Result<Delta, SourceError> {
        let EventEffect { closes, is_late, is_beyond_bound } = self.shared.known.lock().note_event(&event, is_deletion);
        if is_late {
            self.shared.health.count_late_change();
        }
        if is_beyond_bound {
            tracing::warn!(version = %event.version(), "too many changes at one version: numbering versions from here");
            self.shared.known.lock().begin_lineage();
            return Err(SourceError::Expired(format!("too many changes at version {}", event.version())));
        }
        Ok(Delta::Changes { events: [event].into_iter().collect(), closes })
    }

    /// Returns true if a change, at a version numbered by lineage, is the replay of the last known one.
    fn is_replayed(&mut self, is_deletion: bool, item: &DecodedObject) -> Result<bool, SourceError> {
        let Some(replay) = &self.replay else { return Ok(false) };
        if replay.judge(is_deletion, &item.object, &item.text)? == Verdict::Further {
            return Ok(false);
        }
        self.shared.health.record_contact();
        // While the version is open, the API replays all of its changes.
        let is_open = replay.is_open;
        self.replay = None;
        Ok(!is_open)
    }

    /// Returns true if an event was not received before the watch was opened.
    fn is_new(&mut self, event: &Event) -> Result<bool, SourceError> {
        let Some(resume_check) = &mut self.resume_check else { return Ok(true) };
        match resume_check.judge(event) {
            Ok(Verdict::Old) => Ok(false),
            Ok(Verdict::Recognised) => {
                self.shared.health.record_contact();
                Ok(false)
            }
            Ok(Verdict::Further) => Ok(true),
            Ok(Verdict::New) => {
                self.resume_check = None;
                Ok(true)
            }
            Err(error) => {
                if matches!(error, SourceError::HistoryRewritten(_)) {
                    self.shared.known.lock().forget();
                }
                Err(error)
            }
        }
    }

    /// Returns the object of an event. One that cannot be read is reported, and the others go on: what is held of it stays, and the
    /// version does not advance. Its deletion needs no more than its key and version.
    fn readable(&self, event_type: EventType, item: Result<DecodedObject, UnreadableObject>) -> Option<DecodedObject> {
        let unreadable = match item {
            Ok(item) => return Some(item),
            Err(unreadable) => unreadable,
        };
        let is_decimal = self.is_decimal();
        let version = |text: &str| {
            if is_decimal { ResourceVersion::parse_decimal(text).ok() } else { Some(ResourceVersion::decimal(1)) }
        };
        if event_type == EventType::Deleted
            && let Some((object, text)) = unreadable.bare(version)
        {
            return Some(DecodedObject { object, text, problem: None });
        }
        if !self.is_unconfirmed() {
            self.shared.health.record_contact();
        }
        self.shared.problems.set_object(&unreadable.problem);
        None
    }

    fn change(&self, event_type: EventType, item: DecodedObject) -> Result<Event, SourceError> {
        let DecodedObject { mut object, text, problem } = item;
        if !self.is_decimal() {
            let version = self.shared.known.lock().change(&text);
            object = object.at_version(version.map_err(|error| SourceError::Undecodable(error.to_string()))?);
        }
        let problems = &self.shared.problems;
        let event = match (event_type, problem) {
            (EventType::Added | EventType::Modified, Some(problem)) => {
                problems.set_object(&problem);
                return Ok(Event::NotServed(Arc::new(object)));
            }
            (EventType::Added, None) => Event::Added,
            (EventType::Modified, None) => Event::Modified,
            (EventType::Deleted, _) => Event::Deleted,
        };
        problems.clear_object(&subject_of(object.key()));
        Ok(event(Arc::new(object)))
    }

    /// Returns the next line. Silence after opening shows that the upstream is alive, unless a line has begun.
    async fn first_or_next_line(&mut self) -> Result<Option<Bytes>, LineError> {
        if self.is_unconfirmed() {
            // The API replays at once. One without bookmarks would be silent for ever if it had nothing to replay.
            return match timeout(self.shared.config.contact_timeout, self.line()).await {
                Ok(line) => line,
                Err(_) if self.lines.is_between_lines() => Err(LineError::NotReplayed),
                Err(_) => self.line().await,
            };
        }
        if self.is_opening {
            let patience = (self.shared.health.stale_after() / 2).max(MIN_OPENING);
            let opening = OPENING.min(self.shared.config.contact_timeout / 2).min(patience);
            let line = timeout(opening, self.line()).await;
            self.is_opening = false;
            match line {
                Ok(line) => return line,
                Err(_) if self.lines.is_between_lines() => self.shared.health.record_contact(),
                Err(_) => {}
            }
        }
        self.line().await
    }

    /// Returns true if the API has yet to replay something.
    fn is_unconfirmed(&self) -> bool {
        self.replay.is_some() || self.resume_check.as_ref().is_some_and(|resume_check| !resume_check.is_recognised())
    }

    pub(super) async fn line(&mut self) -> Result<Option<Bytes>, LineError> {
        loop {
            let line = tokio::select! {
                biased;
                line = timeout_at(self.deadline, self.lines.next()) => line.unwrap_or(Err(LineError::DeadlineExceeded))?,
                // Without the guard, this branch would restart the timeout of the lines.
                () = self.watchdog.next(), if !self.lines.has_bound() => {
                    // A history that is not recognised yet is not reported as fresh, nor is a watch that the API may still
                    // refuse.
                    if !self.is_unconfirmed() && !self.is_opening {
                        self.shared.health.record_contact();
                    }
                    continue;
                }
            };
            if line.is_some() {
                self.last_message_at = Instant::now();
            }
            if line.as_deref().is_none_or(|line| !line.trim_ascii().is_empty()) {
                return Ok(line);
            }
        }
    }

    pub(super) fn broken(&self, no_line: LineError) -> SourceError {
        self.shared.initial_events.lock().has_new_connection();
        match no_line {
            LineError::Broken(why) => SourceError::Broken(why),
            LineError::DeadlineExceeded => SourceError::Broken("watch not closed by the API in time".to_owned()),
            LineError::Silent => SourceError::Broken("no data from the API in time".to_owned()),
            LineError::NotReplayed => SourceError::Expired("last known change not replayed in time".to_owned()),
            LineError::TooLong => SourceError::Undecodable("event too large".to_owned()),
        }
    }

    fn is_decimal(&self) -> bool {
        self.shared.known.lock().is_decimal()
    }

    /// Decodes a line.
    ///
    /// # Errors
    ///
    /// [`SourceError::Undecodable`] if it is no event.
    pub(super) fn decode<'a>(
        &self,
        line: &'a [u8],
    ) -> Result<DecodedEvent<'a, Result<DecodedObject, UnreadableObject>>, SourceError> {
        let reader = ObjectDecoder::new(&self.shared.config, self.is_decimal());
        let said = watch_event::decode(line, |object, _| match reader.read(object.as_bytes()) {
            Ok(object) => Ok(Ok(object)),
            Err(error) => UnreadableObject::of_event(object, error).map(Err),
        });
        said.map_err(SourceError::Undecodable)
    }

    pub(super) fn unreadable(&self, error: &ObjectError) -> SourceError {
        SourceError::Undecodable(format!(
            "bookmark of {}: {}",
            self.shared.config.resource,
            watch_event::describe(error)
        ))
    }
}

debug_fields!(KubeWatch { lines, deadline });
