//! Verifier of bookmarks: the content and the time of each.
//!
//! While there is nothing else to send, the server sends one at each interval that the client requested; the first one of a resumed
//! watch as soon as the client has what it missed. Others come only with a changed state of the upstream, at the end of the stream,
//! or for a relist that no event shows.

use std::{ops::Range, time::Duration};

use informerd::proto::pb::{self, EventType};

use super::{Follower, Stage, Tally, Verdict};
use crate::checker::{
    expect::Expected,
    record::{End, Moment, Plan, Start, Status},
    truth::Batch,
};

/// Resolution of timers.
const RESOLUTION: Duration = Duration::from_millis(1);

/// Returns the earliest and the latest time of the bookmark after one at this time.
pub(super) fn due(plan: &Plan, after: Duration) -> Range<Duration> {
    let due = after + plan.bookmark_interval();
    due..due + RESOLUTION
}

/// Returns the earliest and the latest time of the first bookmark of a connection, while there is nothing else to send.
pub(super) fn first_due(plan: &Plan, start: &Start, joined: Duration) -> Range<Duration> {
    match start {
        Start::After(_) => joined..joined + RESOLUTION,
        Start::InitialEvents | Start::Bookmark => {
            let due = due(plan, joined);
            // On a Subscribe stream it may come with those of other watches.
            if plan.share.is_some() { joined..due.end } else { due }
        }
    }
}

impl Follower<'_> {
    pub(super) fn bookmark(&mut self, at: usize, moment: &Moment, tally: &mut Tally) -> Verdict {
        let message = &self.segment.messages[at].message;
        let bookmark = message.bookmark.clone().unwrap_or_default();
        if bookmark.draining && !moment.is_draining {
            return Err("it says draining, and the server is not".to_owned());
        }
        // The server made the first bookmark when it answered the call.
        let first = self.segment.answered.as_ref().filter(|_| matches!(self.stage, Stage::FirstBookmark));
        if ![Some(moment), first].into_iter().flatten().any(|moment| bookmark.source() == moment.source()) {
            return Err(format!("the upstream is {:?}, and it says {:?}", moment.source(), bookmark.source()));
        }
        let next = self.segment.messages.get(at + 1).map(|next| next.message.r#type());
        if bookmark.draining && next.is_some_and(|next| next != EventType::Error) {
            return Err("it says draining, and the stream goes on".to_owned());
        }
        if bookmark.source_seen_at != moment.seen_at && bookmark.source_seen_at != first.and_then(|first| first.seen_at)
        {
            return Err(format!(
                "the upstream was seen at {:?}, and it says {:?}",
                moment.seen_at, bookmark.source_seen_at
            ));
        }
        let is_closing = self.is_closing(at, moment) || bookmark.draining;
        if matches!(self.stage, Stage::Live) {
            self.is_in_time(message, moment, is_closing)?;
        }
        self.told_source = bookmark.source();
        if !matches!(self.stage, Stage::Live) && bookmark.suppressed > 0 {
            return Err(format!(
                "it counts {} suppressed changes, and the client has received none",
                bookmark.suppressed
            ));
        }
        match &self.stage {
            Stage::InitialEvents(missing) if bookmark.initial_events_end => {
                if let Some((namespace, name)) = missing.keys().next() {
                    return Err(format!("{namespace}/{name} and in all {} initial events are missing", missing.len()));
                }
                let joined = self.segment.answered.as_ref().map_or(0, |joined| joined.safe);
                self.stage = Stage::Live;
                self.expect_version(message, joined, "of the state that was sent")?;
                self.position = Some(joined);
                Ok(())
            }
            _ if bookmark.initial_events_end => Err("the initial events had ended, or never began".to_owned()),
            Stage::InitialEvents(_) if is_closing && message.resource_version.is_empty() => Ok(()),
            Stage::InitialEvents(_) => Err("the initial events are not complete".to_owned()),
            Stage::FirstBookmark => {
                let joined = self.segment.answered.as_ref().map_or(0, |joined| joined.safe);
                self.stage = Stage::Live;
                self.expect_version(message, joined, "at which it joined")?;
                self.position = Some(joined);
                Ok(())
            }
            Stage::Live | Stage::Over => self.progress(message, moment, is_closing, tally),
        }
    }

    /// Returns the moment at which the server made a message: that of its reading; or an earlier one, if its Subscribe stream was
    /// polled then and gave nothing to the client, which was paused, or for which there was no room. The end of a watch and the
    /// bookmark at it are made once they are due, and handed out later. A bookmark shows when it was made: it has the state of the
    /// upstream, and the time of the last contact with it.
    pub(super) fn made_at(&self, at: usize) -> Moment {
        let messages = &self.segment.messages;
        if self.segment.polls.is_empty() {
            return messages[at].moment;
        }
        let first = (0..=at).rev().find(|first| !messages[*first].is_with_previous).unwrap_or_default();
        let end = (first + 1..messages.len()).find(|end| !messages[*end].is_with_previous).unwrap_or(messages.len());
        // An ERROR is made together with the bookmark before it, unless nothing can be resumed.
        let error = messages[at].message.error.as_ref();
        if error.is_some_and(|error| Status::of(error).reason == "HISTORY_CHANGED") {
            return messages[at].moment;
        }
        let mut related = messages[first..=at].iter().rev().chain(&messages[at..end]);
        let bookmark = related.find_map(|received| received.message.bookmark.as_ref());
        let Some(bookmark) = bookmark else { return messages[at].moment };
        let is_its = |moment: &&Moment| {
            (moment.source(), moment.seen_at) == (bookmark.source(), bookmark.source_seen_at)
                && moment.epoch == self.epoch_at
        };
        let polls = self.segment.polls.iter().filter(|(before, _)| *before == first).map(|(_, moment)| moment);
        let mut moments = polls.chain([&messages[at].moment]).filter(is_its).rev();
        let last = moments.clone().next().unwrap_or(&messages[at].moment);
        // The one at the end may have any version.
        let is_last = end == messages.len() && matches!(self.segment.end, End::Status(..));
        let version = &messages[at].message.resource_version;
        let is_at_version =
            |moment: &&Moment| self.text(moment.safe.max(self.position.unwrap_or_default())) == *version;
        *moments.find(|moment| is_last || is_at_version(moment)).unwrap_or(last)
    }

    /// Verifies a bookmark in the middle of a stream, or at its end: no event up to its version may be missing.
    fn progress(
        &mut self,
        message: &pb::WatchResponse,
        moment: &Moment,
        is_closing: bool,
        tally: &mut Tally,
    ) -> Verdict {
        let Some(version) = self.truth.number(self.epoch_at, &message.resource_version) else {
            return Err("its version is none of this history".to_owned());
        };
        let position = self.position.unwrap_or_default();
        let is_past = self.epoch_at != moment.epoch;
        if version < position {
            return Err(format!("it goes back behind {}", self.position_text()));
        }
        if !is_past && version > moment.safe.max(position) {
            return Err(format!("it is ahead of what is complete, {}", self.text(moment.safe)));
        }
        if !self.generation.is_empty() && version != position {
            return Err("it lies inside a generation".to_owned());
        }
        // A bookmark for a relist comes at any time.
        if is_closing || message.relisted {
            self.closes(version, tally);
        } else {
            self.waits(moment, tally)?;
        }
        if let Some(due) = self.next_event().map(|at| &self.expected[at]) {
            if version >= due.after && !due.is_late() {
                return Err(format!("it is ahead of an event that was not told: {}", due.words()));
            }
            if !due.opens && version != position && self.told() > 0 {
                return Err(format!("it lies inside a batch: due is {}", due.words()));
            }
        }
        let inside = |batch: &&Batch| {
            batch.before < version && version < batch.after && (batch.is_relist || !batch.changes.is_empty())
        };
        if let Some(batch) = self.epoch.batches.iter().find(inside).filter(|_| version != position) {
            return Err(format!("it lies inside the batch {}..{}", batch.before, batch.after));
        }
        if !is_closing && is_past {
            return Err("the history has changed, and the stream goes on".to_owned());
        }
        if !is_closing && !message.relisted && version != moment.safe.max(position) {
            return Err(format!("nothing is missing up to {}, and it says less", self.text(moment.safe)));
        }
        self.position = Some(version);
        self.counts(message, version, moment, is_closing, tally)
    }

    /// Verifies the number of suppressed changes since the bookmark before: all up to its version, and none that the client would
    /// not pass again when it resumes from there. The end of a stream may lie inside a batch.
    fn counts(
        &mut self,
        message: &pb::WatchResponse,
        version: u64,
        moment: &Moment,
        is_closing: bool,
        tally: &mut Tally,
    ) -> Verdict {
        let leading = self.untold(moment).iter().take_while(|event| event.is_suppressed);
        let is_passed = |event: &&Expected| event.after <= version && !event.is_late();
        let (least, most) = if is_closing || message.relisted {
            let least = leading.clone().take_while(is_passed).count();
            (least, leading.take_while(|event| event.before <= version).count())
        } else {
            let all = leading.count();
            (all, all)
        };
        let is = message.bookmark.as_ref().map_or(0, |bookmark| bookmark.suppressed);
        let should = self.suppressed + least as u64..=self.suppressed + most as u64;
        if !should.contains(&is) {
            return Err(format!("it counts {is} suppressed changes, and there were {should:?}"));
        }
        tally.suppressed += is;
        self.pass(self.next + (is - self.suppressed) as usize);
        self.suppressed = 0;
        Ok(())
    }

    /// Returns true if the bookmark may be the one before an end.
    pub(super) fn is_closing(&self, at: usize, moment: &Moment) -> bool {
        let next = self.segment.messages.get(at + 1).map(|next| next.message.r#type());
        let has_timed_out = self.plan.timeout.is_some_and(|timeout| moment.at >= self.segment.asked.at + timeout);
        next == Some(EventType::Error) || has_timed_out
    }

    /// Verifies that a bookmark in the middle of the stream does not come too early.
    fn is_in_time(&mut self, message: &pb::WatchResponse, moment: &Moment, is_closing: bool) -> Verdict {
        let mut next = due(self.plan, moment.at);
        if self.plan.share.is_some() {
            // A bookmark may come earlier, with those of other watches; but not more of them than one for each interval.
            next.start = self.last_bookmark + self.plan.bookmark_interval();
        }
        let source = message.bookmark.as_ref().map(pb::Bookmark::source);
        if message.relisted || is_closing {
            // The bookmark may have come for another reason.
            self.bookmarks.end = next.end;
        } else if source == Some(self.told_source) && moment.at < self.bookmarks.start {
            return Err(format!("nothing is new, and the next bookmark is due at {:?}", self.bookmarks.start));
        } else if self.plan.share.is_some() && source != Some(self.told_source) {
            // It has come for another reason, or was due.
            self.bookmarks.end = next.end;
        } else {
            (self.bookmarks, self.last_bookmark) = (next, moment.at);
        }
        Ok(())
    }

    /// Verifies that a client that waits, or is paused for at most a second, has not passed its timeout.
    pub(crate) fn has_time_left(&self, moment: &Moment, is_paused: bool) -> Verdict {
        let joined = self.segment.answered.as_ref().map_or(Duration::ZERO, |joined| joined.at);
        // The server looks after paused watches once a second.
        let latest = RESOLUTION + if is_paused { Duration::from_secs(1) } else { Duration::ZERO };
        match self.plan.timeout {
            Some(timeout) if moment.at >= joined + timeout + latest => {
                Err(format!("it waits at {:?}, and joined at {joined:?} with a timeout of {timeout:?}", moment.at))
            }
            _ => Ok(()),
        }
    }

    /// Verifies that a waiting client received its bookmark in time.
    pub(crate) fn is_told_in_time(&self, moment: &Moment) -> Verdict {
        if moment.at < self.bookmarks.end {
            return Ok(());
        }
        Err(format!("the client waits at {:?}, and had to be sent a bookmark at {:?}", moment.at, self.bookmarks.start))
    }
}
