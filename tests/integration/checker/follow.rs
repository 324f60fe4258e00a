//! Verifier of one connection, message by message: ordered, unique, complete or announced, atomic, exact.
//!
//! After a version exactly one sequence of events is correct: [`Follower::next`] advances only by the event that is due, or over
//! a gap that is announced with its exact size. Versions in messages are checked as exactly as contents, so each is a version to
//! resume from; the next connection shows that the server honours it. Under COALESCE a full queue is sent merged
//! ([`Expected::merged`]).

mod bookmarks;
mod merging;

use std::{collections::VecDeque, ops::Range, time::Duration};

use informerd::proto::pb::{self, EventType};

use super::{
    expect::{Expected, object_fields},
    record::{End, Moment, Plan, Received, Segment, Start, Status},
    truth::{Epoch, State, Truth},
    view::Form,
};

/// Counts over all streams.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub(crate) events: u64,
    pub(crate) bookmarks: u64,
    /// Changes that views suppressed, as bookmarks count them.
    pub(crate) suppressed: u64,
    pub(crate) drops: u64,
    pub(crate) cut_batches: u64,
    pub(crate) evictions: u64,
    pub(crate) expired_streams: u64,
    pub(crate) history_rewrites: u64,
    pub(crate) drains: u64,
    pub(crate) timeouts: u64,
    /// Under COALESCE: generations, those of several messages, those that were not read to their end, the events that they
    /// merged, and those that merged to nothing.
    pub(crate) generations: u64,
    pub(crate) long_generations: u64,
    pub(crate) cut_generations: u64,
    pub(crate) merged: u64,
    pub(crate) vanished: u64,
    /// Generations in which changes were suppressed.
    pub(crate) suppressed_generations: u64,
}

pub(crate) struct Follower<'a> {
    truth: &'a Truth,
    plan: &'a Plan,
    segment: &'a Segment,
    epoch_at: usize,
    epoch: &'a Epoch,
    /// All events, those that are suppressed among them, and the number of those that are sent or passed.
    expected: Vec<Expected>,
    next: usize,
    /// Number of suppressed changes among them that no bookmark has counted.
    suppressed: u64,
    /// Last version that the client was given; None while initial events are not complete.
    pub(crate) position: Option<u64>,
    /// State after all events before [`Follower::next`].
    held: State,
    /// Under COALESCE: the events of a generation that are still to be sent, and the number of suppressed changes that count with
    /// the last of them.
    generation: VecDeque<Expected>,
    generation_suppressed: u64,
    /// Under COALESCE: true if changes merge, until the client has received everything.
    merges: bool,
    /// Set once the client has received everything.
    has_had_all: bool,
    /// True if a queue of the client's length would have been full, and not half empty since.
    is_full: bool,
    /// State of the upstream that the client received last.
    told_source: pb::SyncState,
    /// Time in which the next bookmark is due while there is nothing else: the earliest, and the one by which the client has it.
    bookmarks: Range<Duration>,
    /// Time of the last bookmark that came because it was due, or that of the join.
    last_bookmark: Duration,
    stage: Stage,
}

enum Stage {
    /// Objects that are still missing of the state at which it joined.
    InitialEvents(State),
    FirstBookmark,
    Live,
    /// After an ERROR.
    Over,
}

type Verdict = Result<(), String>;

impl<'a> Follower<'a> {
    /// Returns the follower of a connection that was joined.
    pub(crate) fn new(truth: &'a Truth, plan: &'a Plan, segment: &'a Segment, joined: Moment) -> Self {
        let epoch = &truth.epochs[joined.epoch];
        let (position, stage) = match &segment.start {
            Start::InitialEvents => (None, Stage::InitialEvents(epoch.state_at(joined.batches, plan.selection))),
            Start::Bookmark => (None, Stage::FirstBookmark),
            Start::After(version) => (truth.number(joined.epoch, version), Stage::Live),
        };
        let bookmarks = bookmarks::first_due(plan, &segment.start, joined.at);
        let begins = position.map_or(joined.batches, |position| truth.passed(position, &joined));
        Self {
            truth,
            plan,
            segment,
            epoch_at: joined.epoch,
            epoch,
            expected: Expected::after(epoch, (plan.selection, plan.form), begins),
            next: 0,
            suppressed: 0,
            position,
            held: epoch.state_at(begins, plan.selection),
            generation: VecDeque::new(),
            generation_suppressed: 0,
            merges: false,
            has_had_all: false,
            is_full: false,
            told_source: joined.source(),
            // A resumed client has its first bookmark at once, and the next one may come at any time. One that is served together
            // with another watch has that one's bookmark, which may have been due before it joined.
            last_bookmark: match segment.start {
                Start::InitialEvents | Start::Bookmark if plan.share.is_none() => joined.at,
                _ => joined.at.saturating_sub(plan.bookmark_interval()),
            },
            bookmarks,
            stage,
        }
    }

    fn text(&self, version: u64) -> String {
        self.truth.text(self.epoch_at, version)
    }

    fn position_text(&self) -> String {
        self.position.map(|position| self.text(position)).unwrap_or_default()
    }

    pub(crate) fn message(&mut self, at: usize, tally: &mut Tally) -> Verdict {
        let (length, moment) = (self.plan.length as usize, &self.segment.messages[at].moment);
        self.is_full |= self.untold_events(moment) >= length;
        let before = self.position;
        let verdict = self.tells(at, tally).and_then(|()| self.relisted(at, before));
        // A full queue blocks the writer until it is half empty.
        self.is_full &= self.untold_events(moment) > length / 2;
        verdict
    }

    fn tells(&mut self, at: usize, tally: &mut Tally) -> Verdict {
        let Received { message, was_woken, .. } = &self.segment.messages[at];
        let moment = &self.made_at(at);
        let event_type = message.r#type();
        let is_event = matches!(event_type, EventType::Added | EventType::Modified | EventType::Deleted);
        let fields = (message.object.is_some(), message.bookmark.is_some(), message.dropped.is_some());
        let is_error = event_type == EventType::Error;
        if fields != (is_event, event_type == EventType::Bookmark, event_type == EventType::Dropped)
            || message.error.is_some() != is_error
        {
            return Err("it has not the fields of its type".to_owned());
        }
        if !was_woken {
            return Err("the client waited for it and was not woken".to_owned());
        }
        match (&mut self.stage, event_type) {
            (Stage::Over, _) => Err("there is a message after ERROR".to_owned()),
            (_, EventType::Error) => {
                self.stage = Stage::Over;
                self.error(at, moment)
            }
            (_, EventType::Bookmark) => {
                tally.bookmarks += 1;
                self.bookmark(at, moment, tally)
            }
            (Stage::FirstBookmark, _) => Err("it does not begin with a BOOKMARK where it joined".to_owned()),
            (Stage::InitialEvents(missing), EventType::Added) => {
                tally.events += 1;
                let text = |version| self.truth.text(self.epoch_at, version);
                initial_event(missing, message, self.plan.form, text)
            }
            (Stage::InitialEvents(_), _) => Err("the initial events are not complete".to_owned()),
            (Stage::Live, EventType::Dropped) => {
                tally.drops += 1;
                let is_inside = self.next_event().is_some_and(|at| !self.expected[at].opens);
                tally.cut_batches += u64::from(is_inside);
                self.dropped(message, moment)
            }
            (Stage::Live, _) => {
                tally.events += 1;
                self.begin_generation(at, moment, tally);
                self.due_event(at, moment, tally)
            }
        }
    }

    /// Verifies that a relay receives every relist in its range; otherwise its clients would resume inside a relist from versions
    /// that it never sent.
    fn relisted(&self, at: usize, before: Option<u64>) -> Verdict {
        let is_relay = self.plan.policy == pb::FullChannelPolicy::Replay;
        let (Some(before), Some(after)) = (before, self.position) else { return Ok(()) };
        let is_hidden =
            |batch: &&super::truth::Batch| batch.is_relist && batch.before.max(before) + 1 < batch.after.min(after);
        match self.epoch.batches.iter().find(is_hidden) {
            Some(batch) if is_relay && !self.segment.messages[at].message.relisted => {
                Err(format!("it leads over the relist {}..{}, and does not say so", batch.before, batch.after))
            }
            _ => Ok(()),
        }
    }

    /// Returns for each event of the selection the number of batches up to it.
    pub(crate) fn due(&self) -> Vec<usize> {
        self.expected.iter().filter(|expected| !expected.is_suppressed).map(|expected| expected.batch).collect()
    }

    /// Returns the number of events that were sent.
    pub(crate) fn told(&self) -> usize {
        count_sent(&self.expected[..self.next])
    }

    /// Returns the index of the next event that is to be sent, whether it has happened or not.
    fn next_event(&self) -> Option<usize> {
        (self.next..self.expected.len()).find(|at| !self.expected[*at].is_suppressed)
    }

    /// Returns the number of events that have happened and were not sent.
    fn untold_events(&self, moment: &Moment) -> usize {
        count_sent(self.untold(moment))
    }

    /// Returns true if changes at the client's version are still to be sent. It may have them from an earlier connection.
    pub(crate) fn lacks_late_changes(&self) -> bool {
        let due = self.next_event().map(|at| &self.expected[at]);
        due.is_some_and(|due| due.is_late() && Some(due.after) <= self.position)
    }

    /// Passes events, and counts those of them that are suppressed.
    fn pass(&mut self, end: usize) {
        for event in &self.expected[self.next..end] {
            event.apply(&mut self.held);
            self.suppressed += u64::from(event.is_suppressed);
        }
        self.next = end;
    }

    /// Returns the events that have happened and were not sent, those that are suppressed among them.
    fn untold(&self, moment: &Moment) -> &[Expected] {
        let is_past = self.epoch_at != moment.epoch;
        let rest = self.expected.get(self.next..).unwrap_or_default();
        &rest[..rest.partition_point(|expected| is_past || expected.batch <= moment.batches)]
    }

    fn event(&mut self, message: &pb::WatchResponse) -> Verdict {
        let text = |version| self.truth.text(self.epoch_at, version);
        let Some(at) = self.next_event() else {
            return Err("nothing more has happened to the selection".to_owned());
        };
        let due = &self.expected[at];
        let version = due.version_after(self.position.unwrap_or_default());
        let differences = due.differences(message, self.plan.form, version, text);
        if differences.is_empty() {
            self.position = Some(version);
            self.pass(at + 1);
            return Ok(());
        }
        let place = self.expected.iter().position(|expected| expected.is_meant_by(message, text));
        let diagnosis = match place {
            Some(meant) if self.expected[meant].is_suppressed => "it is outside of the client's view".to_owned(),
            Some(meant) if meant < at => "it was told before, or lies before where the client resumed".to_owned(),
            Some(meant) if meant > at => {
                format!("{} events before it are missing, and nothing says so", count_sent(&self.expected[at..meant]))
            }
            _ => differences.join("; "),
        };
        Err(format!("{diagnosis}. Due is {}", due.words()))
    }

    fn dropped(&mut self, message: &pb::WatchResponse, moment: &Moment) -> Verdict {
        let dropped = message.dropped.clone().unwrap_or_default();
        if self.plan.policy != pb::FullChannelPolicy::Drop {
            return Err("the client's policy is not DROP".to_owned());
        }
        let left = self.next..self.expected.len();
        let hole = left.filter(|at| !self.expected[*at].is_suppressed).take(dropped.count as usize);
        let hole: Vec<usize> = hole.collect();
        let Some((first, end)) = hole.first().zip(hole.last()).filter(|_| hole.len() == dropped.count as usize) else {
            return Err(format!("{} events are left, {} are said to be missing", hole.len(), dropped.count));
        };
        let (first, last, end) = (&self.expected[*first], &self.expected[*end], end + 1);
        if self.epoch_at == moment.epoch && last.batch > moment.batches {
            return Err(format!("the hole ends with what has not happened: {}", last.words()));
        }
        if !last.ends {
            return Err(format!("the stream goes on inside a batch; the last event of the hole is {}", last.words()));
        }
        // A client that resumed may have joined at a later version than its own, with no events in between.
        let begins = self.truth.number(self.epoch_at, &dropped.after_resource_version);
        let is_between = |begins| first.opens && self.position < Some(begins) && begins <= first.before;
        if begins.is_none() || begins != self.position && !begins.is_some_and(is_between) {
            return Err(format!("the hole begins after {:?}", self.position_text()));
        }
        // The client goes on at the head, which may be above the last event.
        let last = last.version_after(self.position.unwrap_or_default());
        let further = self.expected[end..].iter().take_while(|event| event.is_suppressed);
        let next = self.expected[end..].iter().find(|event| !event.is_suppressed).map_or(u64::MAX, |next| next.before);
        let epoch = &self.truth.epochs[self.epoch_at];
        let head = if self.epoch_at == moment.epoch { moment.safe } else { epoch.safe_at(epoch.batches.len()) };
        let after = self.truth.number(self.epoch_at, &message.resource_version).filter(|after| *after > last);
        let after = after.filter(|after| *after <= next.min(head)).unwrap_or(last);
        let end = end + further.take_while(|event| event.after <= after).count();
        self.expect_version(message, after, "after the hole")?;
        self.position = Some(after);
        self.pass(end);
        Ok(())
    }

    fn error(&self, at: usize, moment: &Moment) -> Verdict {
        let message = &self.segment.messages[at].message;
        let reason = match &self.segment.end {
            End::Status(status, _) => status.reason.as_str(),
            _ => return Err("the stream did not end with it".to_owned()),
        };
        let is_past = self.epoch_at != moment.epoch;
        let was_polled = self.segment.polls.iter().any(|(count, _)| *count == at);
        if reason == "SUBSCRIBE_INVALID" && (is_past || was_polled) && message.resource_version.is_empty() {
            // Nothing can be resumed, or the end is instead of messages that were made at that poll, and for which there was no room.
            return Ok(());
        }
        if is_past != (reason == "HISTORY_CHANGED") {
            return Err(format!("{reason}, and the history has {}changed", if is_past { "" } else { "not " }));
        }
        if is_past {
            return if message.resource_version.is_empty() { Ok(()) } else { Err("nothing can be resumed".to_owned()) };
        }
        let before = at.checked_sub(1).map(|before| &self.segment.messages[before].message);
        let bookmark = before.and_then(|before| before.bookmark.as_ref());
        if bookmark.is_none_or(|bookmark| bookmark.draining != (reason == "DRAINING")) {
            return Err(format!("{reason} without its BOOKMARK before it"));
        }
        if message.resource_version != self.position_text() {
            return Err(format!("the client is at {:?}", self.position_text()));
        }
        Ok(())
    }

    fn expect_version(&self, message: &pb::WatchResponse, version: u64, what: &str) -> Verdict {
        if message.resource_version == self.text(version) {
            return Ok(());
        }
        Err(format!("its version is not {:?}, {what}", self.text(version)))
    }

    /// Verifies the end of the connection, after its last message.
    pub(crate) fn end(&self, tally: &mut Tally) -> Verdict {
        let is_cut = self.next > 0 && self.next_event().is_some_and(|at| !self.expected[at].opens);
        tally.cut_batches += u64::from(is_cut);
        tally.cut_generations += u64::from(!self.generation.is_empty());
        let (status, moment) = match &self.segment.end {
            End::Open => return Err("it was never ended, though the server was drained".to_owned()),
            End::Left => return Ok(()),
            End::Broken(how) => return Err(how.clone()),
            End::Status(status, moment) => (status, moment),
        };
        let last = self.segment.messages.last();
        if status.code == 0 {
            tally.timeouts += 1;
            let is_told = last.is_some_and(|Received { message, .. }| {
                let moment = self.made_at(self.segment.messages.len() - 1);
                let has_timed_out =
                    self.plan.timeout.is_some_and(|timeout| moment.at >= self.segment.asked.at + timeout);
                has_timed_out && message.r#type() == EventType::Bookmark && self.epoch_at == moment.epoch
            });
            return if is_told { Ok(()) } else { Err("OK without a timeout and its BOOKMARK".to_owned()) };
        }
        let Some(error) = last.and_then(|last| last.message.error.as_ref()) else {
            return Err(format!("{} without an ERROR as the last message", status.reason));
        };
        if *status != Status::of(error) {
            return Err(format!("the last message says {:?}, the status {status:?}", Status::of(error)));
        }
        self.reason(status, moment, tally)
    }

    fn reason(&self, status: &Status, moment: &Moment, tally: &mut Tally) -> Verdict {
        let metadata = |key: &str| status.metadata.get(key).cloned().unwrap_or_default();
        match (status.reason.as_str(), status.code) {
            ("DRAINING", 14) if moment.is_draining => tally.drains += 1,
            ("HISTORY_CHANGED", 11) => tally.history_rewrites += 1,
            ("SUBSCRIBE_INVALID", 3) if self.segment.has_bad_id => {}
            ("SLOW_CONSUMER", 8) => {
                tally.evictions += 1;
                let (untold, length) = (self.untold_events(moment), self.plan.length as usize);
                if self.plan.policy != pb::FullChannelPolicy::Block || !self.is_full && untold < length {
                    return Err(format!(
                        "SLOW_CONSUMER with {untold} of {length} events untold, {:?}",
                        self.plan.policy
                    ));
                }
                if metadata("after") != self.position_text() {
                    return Err(format!("{:?} is not the last version that was handed out", metadata("after")));
                }
            }
            ("RESOURCE_VERSION_EXPIRED", 11) => {
                tally.expired_streams += 1;
                let position = self.position.unwrap_or_default();
                let may_be = |moment| self.truth.expiry(position, moment).0;
                // Of a paused watch, the end may be older than its reading, and of the history before.
                if !may_be(moment) && !may_be(&self.made_at(self.segment.messages.len() - 1)) {
                    return Err(format!("{position} is not expired"));
                }
                self.expires()?;
            }
            (reason, code) => return Err(format!("{reason} with code {code} explains nothing")),
        }
        Ok(())
    }

    /// Returns the state of the client after everything that it was sent; None if the stream has ended, or lies inside initial
    /// events or a generation.
    pub(crate) fn state(&self) -> Option<&State> {
        (matches!(self.stage, Stage::Live) && self.generation.is_empty()).then_some(&self.held)
    }

    /// Returns the version from which on any server has everything that the client was sent.
    pub(crate) fn reaches(&self) -> u64 {
        let told = self.expected[..self.next].iter().map(|event| event.after + u64::from(event.is_late()));
        told.max().unwrap_or_default()
    }

    /// Verifies that nothing is left to send: writes have stopped, and the client has read everything.
    pub(crate) fn settled(&self, moment: &Moment) -> Verdict {
        let due = self.next_event().map(|at| &self.expected[at]);
        if let Some(due) = due.filter(|due| due.batch <= moment.batches) {
            return Err(format!("the client waits, and was never told: {}", due.words()));
        }
        let at = self.position.unwrap_or_default().max(moment.safe);
        if !matches!(self.stage, Stage::Live) || self.position != Some(at) {
            let (at, position) = (self.text(at), self.position_text());
            return Err(format!("the client waits at {position:?}, and no BOOKMARK tells it that it is at {at:?}"));
        }
        Ok(())
    }

    /// Formats the event that is due, and those around it.
    pub(crate) fn around(&self) -> String {
        let first = self.next.saturating_sub(3);
        let lines =
            self.expected.iter().enumerate().skip(first).take(8).map(|(at, expected)| {
                format!("  {} {}", if at == self.next { "due:" } else { "    " }, expected.words())
            });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Returns how many of the events are sent.
fn count_sent(events: &[Expected]) -> usize {
    events.iter().filter(|event| !event.is_suppressed).count()
}

fn initial_event(
    missing: &mut State,
    message: &pb::WatchResponse,
    form: Form,
    text: impl Fn(u64) -> String,
) -> Verdict {
    let object = message.object.clone().unwrap_or_default();
    let key = missing.keys().find(|key| **key == (&*object.namespace, &*object.name)).copied();
    let Some(held) = key.and_then(|key| missing.remove(&key)) else {
        return Err("it was sent before, or was not there when the watch joined".to_owned());
    };
    if message.cause() != pb::Cause::Initial || !message.resource_version.is_empty() {
        return Err("an initial event has CAUSE_INITIAL and no version".to_owned());
    }
    let version = text(held.version);
    match object_fields(&object, &held, &version, form).into_iter().find(|(_, is, should)| is != should) {
        Some((what, is, should)) => Err(format!("its {what} is {is:?} instead of {should:?}")),
        None => Ok(()),
    }
}
