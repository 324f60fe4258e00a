//! Verifier of COALESCE: when the server may send a generation instead of all events, and its content.

use informerd::proto::pb;

use super::{Follower, Stage, Tally, Verdict};
use crate::checker::{
    expect::Expected,
    record::{End, Moment, Start},
};

impl Follower<'_> {
    /// Returns the events that the server may send merged, instead of all unsent ones; None unless the queue is full, has merged
    /// since, or the server may discard events first.
    pub(super) fn merged(&self, moment: &Moment) -> Option<Vec<Expected>> {
        let untold = self.untold(moment);
        self.may_merge(untold, moment).then(|| self.merged_of(untold)).flatten()
    }

    fn merged_of(&self, untold: &[Expected]) -> Option<Vec<Expected>> {
        let is_between = self.is_coalescing() && self.generation.is_empty() && !untold.is_empty();
        is_between.then(|| Expected::merged(&self.held, untold))
    }

    fn is_coalescing(&self) -> bool {
        self.plan.policy == pb::FullChannelPolicy::Coalesce
    }

    fn may_merge(&self, untold: &[Expected], moment: &Moment) -> bool {
        let is_full = untold.len() > self.plan.length.max(1) as usize;
        let first = untold.first().map_or(moment.batches, |first| first.batch - 1);
        self.merges || is_full || self.truth.may_be_forgotten(self.epoch_at, first)
    }

    pub(super) fn merged_words(&self, moment: &Moment) -> Vec<String> {
        self.merged(moment).unwrap_or_default().iter().map(Expected::words).collect()
    }

    /// Verifies that an event may be sent one by one: once the client has received everything, a full queue must merge. Until
    /// then its policy does not apply.
    pub(super) fn one_by_one(&self, moment: &Moment) -> Verdict {
        let is_full = self.untold(moment).len() > self.plan.length.max(1) as usize;
        if self.is_coalescing() && self.has_had_all && is_full {
            let merged = self.merged_words(moment);
            return Err(format!("its queue is full, and it is not told what that merges to: {merged:?}"));
        }
        Ok(())
    }

    /// Verifies that a stream may expire: a merging stream loses nothing, unless threads are too late for its selection, or the
    /// discarded events take more bytes than may be retained.
    pub(super) fn expires(&self) -> Verdict {
        if self.is_coalescing() && self.has_had_all && self.truth.has_time && !self.truth.keeps_few_bytes() {
            return Err("under COALESCE nothing is lost, however long a client lags".to_owned());
        }
        Ok(())
    }

    /// Accepts the version at the end of a stream, which may be past events that merged to nothing.
    pub(super) fn closes(&mut self, version: u64, tally: &mut Tally) {
        let untold = &self.expected[self.next..];
        let passed = untold.partition_point(|event| event.after <= version);
        if self.merged_of(&untold[..passed]).is_some_and(|merged| merged.is_empty()) {
            tally.vanished += 1;
            self.tell(passed);
        }
    }

    /// Begins a generation if this and the following messages are one, as far as the client has read them. It holds all events up
    /// to its first message, or fewer, up to the end of a batch, when the threads that fill its group are too late: then the
    /// stream expires, its history is rewritten, or it receives the rest from the history.
    pub(super) fn begin_generation(&mut self, at: usize, moment: &Moment, tally: &mut Tally) {
        let untold = self.untold(moment);
        if !self.may_merge(untold, moment) {
            return;
        }
        let is_cut_short = match &self.segment.end {
            End::Status(status, _) => matches!(&*status.reason, "RESOURCE_VERSION_EXPIRED" | "HISTORY_CHANGED"),
            _ => false,
        };
        let first = untold.first().map_or(moment.batches, |first| first.batch - 1);
        let may_lose_group = !self.truth.has_time && self.truth.may_be_forgotten(self.epoch_at, first);
        let earlier = (1..untold.len()).rev().filter(|end| (is_cut_short || may_lose_group) && untold[*end].opens);
        let ends = [untold.len()].into_iter().chain(earlier);
        let told = ends.map(|end| (end, self.merged_of(&untold[..end]).unwrap_or_default()));
        let told = told.filter(|(_, merged)| !merged.is_empty()).find(|(_, merged)| self.is_told(at, merged));
        if let Some((end, merged)) = told {
            // From the history events come one by one.
            self.has_had_all &= end == untold.len();
            tally.generations += 1;
            tally.long_generations += u64::from(merged.len() > 1);
            tally.merged += (end - merged.len()) as u64;
            self.tell(end);
            (self.generation, self.merges) = (merged.into(), true);
        }
    }

    fn is_told(&self, at: usize, merged: &[Expected]) -> bool {
        let messages = self.segment.messages[at..].iter().map(|received| &received.message);
        let mut events = messages.take_while(|message| message.object.is_some()).zip(1..).zip(merged);
        events.all(|((message, nth), due)| {
            let version = self.version_in_generation(due, nth == merged.len());
            due.differences(message, self.plan.format, version, |version| self.text(version)).is_empty()
        })
    }

    /// Counts all events as sent.
    pub(super) fn tell_all(&mut self, moment: &Moment) {
        self.tell(self.untold(moment).len());
    }

    fn tell(&mut self, count: usize) {
        let end = self.next + count;
        for event in &self.expected[self.next..end] {
            event.apply(&mut self.held);
        }
        self.next = end;
    }

    pub(super) fn version_in_generation(&self, due: &Expected, is_last: bool) -> u64 {
        // Events before the last one have the version at which the first merged event begins.
        if is_last { due.safe } else { due.before }.max(self.position.unwrap_or_default())
    }

    pub(super) fn merged_event(&mut self, message: &pb::WatchResponse) -> Verdict {
        let Some(due) = self.generation.pop_front() else { return Ok(()) };
        let version = self.version_in_generation(&due, self.generation.is_empty());
        let differences = due.differences(message, self.plan.format, version, |version| self.text(version));
        self.position = Some(version);
        if differences.is_empty() {
            return Ok(());
        }
        Err(format!("{}. Due is {}", differences.join("; "), due.words()))
    }

    /// Verifies that there is nothing for the client: all events have been sent, or have merged to nothing.
    pub(crate) fn waits(&mut self, moment: &Moment, tally: &mut Tally) -> Verdict {
        if self.epoch_at != moment.epoch {
            return Err("the history has changed, and the client waits".to_owned());
        }
        if !matches!(self.stage, Stage::Live) {
            return Err("the client waits, and was not told where it joined".to_owned());
        }
        if !self.generation.is_empty() {
            return Err("the client waits within a generation".to_owned());
        }
        if self.merged(moment).is_some_and(|merged| merged.is_empty()) {
            tally.vanished += 1;
            self.tell_all(moment);
        }
        if let Some(due) = self.untold(moment).first() {
            return Err(format!("the client waits, and was never told: {}", due.words()));
        }
        // A client that resumes from an open version has caught up only with the events after it.
        self.has_had_all |= self.next > 0 || !matches!(self.segment.start, Start::After(_));
        self.merges = false;
        Ok(())
    }
}
