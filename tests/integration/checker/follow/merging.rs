//! Verifier of COALESCE: when the server may send a generation instead of all events, and its content.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, VecDeque},
};

use informerd::proto::pb;

use super::{Follower, Stage, Tally, Verdict};
use crate::checker::{
    expect::Expected,
    record::{End, Moment, Start},
};

/// Events that the server may have merged to one generation, and what they merge to.
#[derive(Clone)]
struct MergedRange {
    start: usize,
    end: usize,
    merged: Vec<Expected>,
    suppressed: u64,
    /// True if those before `start` have merged to nothing.
    is_after_nothing: bool,
    /// True if they were all events at the time.
    has_all: bool,
}

/// Number of messages after one, at each of which all generations are tried that explain it.
const MAX_TRIED: usize = 3;

impl Follower<'_> {
    /// Returns the events that the server may send merged, instead of all unsent ones; None unless the queue is full, has merged
    /// since, or the server may discard events first.
    fn merged(&self, moment: &Moment) -> Option<Vec<Expected>> {
        let end = self.next + self.untold(moment).len();
        let start = self.merge_starts(end).next().filter(|_| self.may_merge(moment))?;
        Some(self.merged_of(start, end).0)
    }

    /// Returns the indexes at which merging may begin: at the next event that is sent, or at any suppressed change before it, since the
    /// server has passed those that it read together with the last event. The version of the first message says which.
    fn merge_starts(&self, end: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.next_event().filter(|first| *first < end && self.is_between_generations());
        first.into_iter().flat_map({
            let next = self.next;
            move |first| next..=first
        })
    }

    fn is_between_generations(&self) -> bool {
        self.is_coalescing() && self.generation.is_empty()
    }

    /// Returns what the events of a range merge to, and the number of changes that are suppressed for that. The changes between
    /// the client's position and the range are suppressed.
    fn merged_of(&self, start: usize, end: usize) -> (Vec<Expected>, u64) {
        let mut held = self.held.clone();
        self.expected[self.next..start].iter().for_each(|event| event.apply(&mut held));
        Expected::merged(&held, &self.expected[start..end], self.plan.form)
    }

    fn is_coalescing(&self) -> bool {
        self.plan.policy == pb::FullChannelPolicy::Coalesce
    }

    fn may_merge(&self, moment: &Moment) -> bool {
        let is_full = self.untold_events(moment) > self.plan.length.max(1) as usize;
        self.merges || is_full || self.truth.may_be_forgotten(self.epoch_at, self.batches_told(moment))
    }

    /// Returns the number of batches before the next event that is sent.
    fn batches_told(&self, moment: &Moment) -> usize {
        let first = self.untold(moment).iter().find(|event| !event.is_suppressed);
        first.map_or(moment.batches, |first| first.batch - 1)
    }

    fn merged_words(&self, moment: &Moment) -> Vec<String> {
        self.merged(moment).unwrap_or_default().iter().map(Expected::words).collect()
    }

    /// Verifies that an event may be sent one by one: once the client has received everything, a full queue must merge. Until
    /// then its policy does not apply.
    fn one_by_one(&self, moment: &Moment) -> Verdict {
        let is_full = self.untold_events(moment) > self.plan.length.max(1) as usize;
        if self.is_coalescing() && self.has_had_all && is_full {
            let merged = self.merged_words(moment);
            return Err(format!("its queue is full, and it is not told what that merges to: {merged:?}"));
        }
        Ok(())
    }

    /// Until it has received everything again, its policy does not act on a client whose queue the server may have discarded because of
    /// its bytes: it receives the events from the history.
    fn lose_queue(&mut self, at: usize) {
        let moment = &self.segment.messages[at].moment;
        self.has_had_all &= !self.truth.may_exceed_bytes(self.epoch_at, self.batches_told(moment), moment);
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
        // Changes of a version that may get more come with the version before, and merge with what is before them.
        for version_of in [|event: &Expected| event.after, |event: &Expected| event.safe] {
            let end = self.next + self.expected[self.next..].partition_point(|event| version_of(event) <= version);
            self.vanishes(end, tally);
        }
    }

    /// Passes events if they merge to nothing.
    fn vanishes(&mut self, end: usize, tally: &mut Tally) {
        for start in self.merge_starts(end) {
            let (merged, suppressed) = self.merged_of(start, end);
            if merged.is_empty() {
                tally.vanished += 1;
                self.pass(start);
                self.tell(end);
                self.suppressed += suppressed;
                return;
            }
        }
    }

    /// Passes events that had merged to nothing when the client's Subscribe stream was polled and gave it nothing, if the message is
    /// what came next. A client that reads waits then, and [`Follower::waits`] passes them.
    fn vanish_before(&mut self, at: usize, tally: &mut Tally) {
        let ends = self.polled_ends(at, |moment| self.may_merge(moment));
        if ends.is_empty() {
            return;
        }
        let message = &self.segment.messages[at].message;
        let is_told = |this: &Self, from: usize| {
            let due = (from..this.expected.len()).find(|at| !this.expected[*at].is_suppressed);
            due.map(|due| &this.expected[due]).is_some_and(|due| due.is_meant_by(message, |version| this.text(version)))
        };
        if is_told(self, self.next) {
            return;
        }
        if let Some(end) = ends.into_iter().find(|end| is_told(self, *end)) {
            self.vanishes(end, tally);
        }
    }

    /// Returns the ends of what a poll that gave nothing before a message may have merged: all events at the time, or, where a thread
    /// merges after the poll, up to a later batch.
    fn polled_ends(&self, at: usize, is_of: impl Fn(&Moment) -> bool) -> BTreeSet<usize> {
        let polls = self.segment.polls.iter().filter(|(before, moment)| *before == at && is_of(moment));
        let mut ends: BTreeSet<usize> = polls.map(|(_, moment)| self.next + self.untold(moment).len()).collect();
        if let Some(first) = ends.first().copied().filter(|_| !self.truth.has_time) {
            let all = self.next + self.untold(&self.segment.messages[at].moment).len();
            ends.extend((first.max(self.next + 1)..all).filter(|end| self.is_between_batches(*end)));
        }
        ends
    }

    fn is_between_batches(&self, end: usize) -> bool {
        self.expected[end].batch != self.expected[end - 1].batch
    }

    /// Begins a generation if this and the following messages are one, as far as the client has read them. It holds all events up
    /// to its first message, or fewer, up to the end of a batch, when the threads that merge for it are too late: then the
    /// stream expires, its history is rewritten, or it receives the rest from the history.
    pub(super) fn begin_generation(&mut self, at: usize, moment: &Moment, tally: &mut Tally) {
        self.begin_one_of(at, moment, tally, 0);
    }

    fn begin_one_of(&mut self, at: usize, moment: &Moment, tally: &mut Tally, tried: usize) {
        self.lose_queue(at);
        if !self.is_between_generations() || !self.may_merge(moment) {
            return;
        }
        let mut ranges = self.generations(at, moment);
        // Without a poll before it only one is possible, if it is there to its end. Of several, all of which have this message, one has
        // those after it too.
        let was_polled = self.segment.polls.iter().any(|(before, _)| *before == at);
        let events =
            self.segment.messages[at..].iter().take_while(|received| received.message.object.is_some()).count();
        let is_whole = |range: &MergedRange| range.merged.len() <= events;
        let is_one = !was_polled && ranges.first().is_none_or(|range| tried > 0 || is_whole(range));
        // Of those further on, the first that is possible.
        let is_one = is_one || tried == MAX_TRIED;
        let right =
            if is_one { Some(0) } else { (0..ranges.len()).find(|nth| self.explains(Some(&ranges[*nth]), at, tried)) };
        let right = right.or_else(|| Some(0).filter(|_| !self.explains(None, at, tried)));
        if let Some(range) = right.filter(|nth| *nth < ranges.len()).map(|nth| ranges.swap_remove(nth)) {
            self.begin(range, tally);
        }
    }

    /// Returns the generations that a message may begin.
    fn generations(&self, at: usize, moment: &Moment) -> Vec<MergedRange> {
        let is_cut_short = match &self.segment.end {
            End::Status(status, _) => matches!(&*status.reason, "RESOURCE_VERSION_EXPIRED" | "HISTORY_CHANGED"),
            _ => false,
        };
        let may_lose_group =
            !self.truth.has_time && self.truth.may_be_forgotten(self.epoch_at, self.batches_told(moment));
        let all = self.next + self.untold(moment).len();
        let earlier = (self.next + 1..all).rev();
        let earlier = earlier.filter(|end| (is_cut_short || may_lose_group) && self.is_between_batches(*end));
        // The server may have begun it when there was no room for it.
        let mut polled = self.polled_ends(at, |_| true);
        polled.retain(|end| *end < all);
        let ends = [all].into_iter().chain(polled.iter().copied()).chain(earlier);
        // What came before may have merged to nothing.
        let vanished = polled.iter().copied().filter(|start| self.merged_of(self.next, *start).0.is_empty());
        let vanished: Vec<usize> = vanished.collect();
        let after = |end| vanished.iter().copied().filter(move |start| *start < end);
        let ranges = ends.flat_map(|end| self.merge_starts(end).chain(after(end)).map(move |start| (start, end)));
        let told = ranges.map(|(start, end)| (start, end, self.merged_of(start, end)));
        let told = told.filter(|(.., (merged, _))| !merged.is_empty() && self.is_told(at, merged));
        let mut told = told.map(|(start, end, (merged, suppressed))| {
            let (is_after_nothing, has_all) = (vanished.contains(&start), end == all || polled.contains(&end));
            MergedRange { start, end, merged, suppressed, is_after_nothing, has_all }
        });
        if polled.is_empty() {
            return told.next().into_iter().collect();
        }
        // The fewest events first: those that follow and are suppressed may be part of the next generation.
        let mut told: Vec<_> = told.collect();
        told.sort_by_key(|range| (Reverse(range.merged.len()), range.end));
        told
    }

    fn begin(&mut self, range: MergedRange, tally: &mut Tally) {
        let MergedRange { start, end, merged, suppressed, is_after_nothing, has_all } = range;
        // From the history events come one by one.
        self.has_had_all &= has_all;
        tally.generations += 1;
        tally.long_generations += u64::from(merged.len() > 1);
        tally.merged += (end - start).saturating_sub(merged.len()) as u64;
        tally.suppressed_generations += u64::from(suppressed > 0);
        if is_after_nothing {
            self.suppressed += self.merged_of(self.next, start).1;
            self.tell(start);
        } else {
            self.pass(start);
        }
        self.tell(end);
        (self.generation, self.generation_suppressed, self.merges) = (merged.into(), suppressed, true);
    }

    /// Returns true if a generation, or none, explains a message and those after it, up to one that is no event.
    fn explains(&mut self, range: Option<&MergedRange>, at: usize, tried: usize) -> bool {
        let position = (self.next, self.position, self.suppressed, self.held.clone());
        let (has_had_all, merges) = (self.has_had_all, self.merges);
        let mut tally = Tally::default();
        if let Some(range) = range {
            self.begin(range.clone(), &mut tally);
        }
        let mut is_explained = true;
        for (at, received) in self.segment.messages.iter().enumerate().skip(at) {
            if received.message.object.is_none() || !is_explained {
                break;
            }
            is_explained = self.due_event(at, &received.moment, &mut tally).is_ok();
            // Nothing waits within a generation.
            is_explained &= self.generation.is_empty() || !self.segment.waits.iter().any(|(count, _)| *count == at + 1);
            if let Some(next) = self.segment.messages.get(at + 1).filter(|next| next.message.object.is_some()) {
                self.begin_one_of(at + 1, &next.moment, &mut tally, tried + 1);
            }
        }
        (self.next, self.position, self.suppressed, self.held) = position;
        (self.has_had_all, self.merges) = (has_had_all, merges);
        (self.generation, self.generation_suppressed) = (VecDeque::new(), 0);
        is_explained
    }

    /// Verifies the next event: of a generation that has begun, or one that is sent as it is.
    pub(super) fn due_event(&mut self, at: usize, moment: &Moment, tally: &mut Tally) -> Verdict {
        let message = &self.segment.messages[at].message;
        if !self.generation.is_empty() {
            return self.merged_event(message);
        }
        self.vanish_before(at, tally);
        self.one_by_one(moment)?;
        let merged = self.merged_words(moment);
        let or_merged = if merged.is_empty() { String::new() } else { format!("; or, merged: {merged:?}") };
        self.event(message).map_err(|what| what + &or_merged)
    }

    fn is_told(&self, at: usize, merged: &[Expected]) -> bool {
        let messages = self.segment.messages[at..].iter().map(|received| &received.message);
        let mut events = messages.take_while(|message| message.object.is_some()).zip(1..).zip(merged);
        events.all(|((message, nth), due)| {
            let version = self.version_in_generation(due, nth == merged.len());
            due.differences(message, self.plan.form, version, |version| self.text(version)).is_empty()
        })
    }

    /// Counts merged events as sent.
    fn tell(&mut self, end: usize) {
        for event in &self.expected[self.next..end] {
            event.apply(&mut self.held);
        }
        self.next = end;
    }

    pub(super) fn version_in_generation(&self, due: &Expected, is_last: bool) -> u64 {
        // Events before the last one have the version at which the first merged event begins.
        if is_last { due.safe } else { due.before }.max(self.position.unwrap_or_default())
    }

    fn merged_event(&mut self, message: &pb::WatchResponse) -> Verdict {
        let Some(due) = self.generation.pop_front() else { return Ok(()) };
        let version = self.version_in_generation(&due, self.generation.is_empty());
        if self.generation.is_empty() {
            self.suppressed += std::mem::take(&mut self.generation_suppressed);
        }
        let differences = due.differences(message, self.plan.form, version, |version| self.text(version));
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
        if self.may_merge(moment) {
            self.vanishes(self.next + self.untold(moment).len(), tally);
        }
        if let Some(due) = self.untold(moment).iter().find(|event| !event.is_suppressed) {
            return Err(format!("the client waits, and was never told: {}", due.words()));
        }
        // A client that resumes from an open version has caught up only with the events after it.
        self.has_had_all |= self.told() > 0 || !matches!(self.segment.start, Start::After(_));
        self.merges = false;
        Ok(())
    }
}
