//! Any interleaving of publishing, joining, reading and leaving, and of deferring, filling and taking back groups, compared
//! with a model that is a plain list of batches: a cursor takes exactly the sequence of its selection, except for gaps that
//! it reports at their position, and no bookmark is ahead of it.

mod model;
pub(crate) mod script;

use std::collections::{BTreeSet, VecDeque};

use proptest::{collection::vec, prelude::*, sample::select};

use self::script::{APPS, Client, NAMES, Op, Put, any_op, is_selected, selection};
use super::{text::Letter, *};
use crate::watch::selection_budget::Stepped;

/// Event that a cursor must yield.
#[derive(Debug, Clone)]
struct Expected {
    line: String,
    version: ResourceVersion,
    cycle: u64,
    /// Offset and version of the change.
    at: (u64, ResourceVersion),
    /// Offset before which suppressed changes count with it: those of its batch, if it is the last one sent of that.
    passed: u64,
}

/// Cursor, and its expected events.
struct Reader {
    cursor: Cursor<Text>,
    client: Client,
    expected: Vec<Expected>,
    /// Events after them that have not been filled yet.
    unfilled: VecDeque<Expected>,
    /// Offsets of the suppressed changes since it joined.
    suppressed: Vec<u64>,
    /// Number of those that it has taken, and the offset before which it has counted them.
    counted: (u64, u64),
    /// Offset to which its group is filled, if it is deferred.
    filled_to: u64,
    /// Offset at which it joined.
    joined: u64,
    position: usize,
    /// Phase: initial events, catching up, live.
    phase: Phase,
    frozen_at: Option<usize>,
    blocking: bool,
    /// Under BLOCK: number of events that it must read before it may block.
    left_to_read: usize,
    /// Number of its budget.
    budget: usize,
    evicted: bool,
    end: Option<End>,
    flag: Arc<Flag>,
    is_parked: bool,
    taken: u64,
    dropped: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Initial,
    CatchingUp,
    Live,
}

struct Model {
    world: World,
    broadcaster: Broadcaster<Text>,
    threads: BulkThreads,
    clock: Arc<Stepped>,
    /// Position after each publication.
    published: Vec<HistoryPosition>,
    has_deferred: bool,
    config: BroadcasterConfig,
    readers: Vec<Reader>,
    stopped: bool,
    /// True once the writer has waited as long as it may.
    is_spent: bool,
    /// Number of budgets of readers, and those that are spent.
    budgets: usize,
    spent: BTreeSet<usize>,
    /// Publish cycles that are kept, with their events.
    kept: VecDeque<(u64, usize)>,
    /// Versions before all cycles.
    before: BTreeSet<u128>,
    cycle: u64,
    /// Every line that a group could need.
    lines: BTreeSet<String>,
    taken: u64,
    dropped: u64,
}

impl Reader {
    fn lag(&self) -> usize {
        self.expected.len() - self.position
    }

    fn size(&self, range: std::ops::Range<usize>) -> usize {
        self.expected[range].iter().map(|event| event.line.len()).sum()
    }

    fn queued(&self) -> usize {
        self.size(self.position..self.expected.len())
    }

    fn is_over(&self, config: &BroadcasterConfig) -> bool {
        self.lag() > self.client.queue.length.max(1) || self.queued() > config.queue_size
    }

    fn is_full(&self, config: &BroadcasterConfig) -> bool {
        self.lag() >= self.client.queue.length.max(1) || self.queued() >= config.queue_size
    }

    /// Returns true if its next event is not retained any more.
    fn is_gone(&self, floor: u64) -> bool {
        self.expected.get(self.position).is_some_and(|event| event.cycle < floor)
    }

    fn is(&self, policy: FullChannelPolicy) -> bool {
        self.phase == Phase::Live && self.client.queue.policy == policy
    }

    fn lose_block(&mut self) {
        self.left_to_read = self.client.queue.length.max(1);
    }

    /// Returns true if the writer waits for it when it is full.
    fn may_block(&self) -> bool {
        self.is(FullChannelPolicy::Block) && self.left_to_read == 0
    }

    /// Returns the end of a full queue, event by event.
    fn freeze(&self, config: &BroadcasterConfig) -> Option<usize> {
        let mut end = self.position;
        while end < self.expected.len()
            && end - self.position < self.client.queue.length.max(1)
            && (end == self.position || self.size(self.position..end + 1) <= config.queue_size)
        {
            end += 1;
        }
        Some(end).filter(|end| *end < self.expected.len())
    }

    fn is_suppressed(&self, change: &Change) -> bool {
        let labels = |object: &Option<Arc<Object>>| {
            object.as_ref().and_then(|object| object.labels().get("app").map(str::to_owned))
        };
        self.client.format == 's' && labels(&change.old) == labels(&change.new)
    }

    /// Ends it: nothing more is filled.
    fn end(&mut self, end: End) {
        self.end = Some(end);
        self.unfilled.clear();
        self.suppressed.retain(|offset| *offset < self.filled_to);
        assert_eq!(self.flag.is_set(), self.is_parked, "everybody that waits is woken");
        self.is_parked = false;
    }

    /// Compares the number of suppressed changes that it has taken with those before an offset that it has reached.
    fn count_suppressed(&mut self, to: u64) {
        let (count, before) = &mut self.counted;
        (*count, *before) = (*count + self.cursor.take_suppressed(), to.max(*before));
        let expected = self.suppressed.iter().filter(|offset| **offset < *before).count();
        assert_eq!(*count, expected as u64, "suppressed before {before}");
    }

    fn offer(&mut self, batch: &Batch, offset: u64, lines: &mut BTreeSet<String>) {
        let number = self.client.selection;
        let of = |object: Option<&Arc<Object>>| object.map(|object| is_selected(number, object));
        let (mut told, after) = (Vec::new(), offset + batch.changes.len() as u64);
        for (offset, change) in (offset..).zip(&batch.changes) {
            let (event_type, cause) = match (of(change.old.as_ref()), of(change.new.as_ref())) {
                (None, Some(true)) => (EventType::Added, Cause::Change),
                (Some(false), Some(true)) => (EventType::Added, Cause::EnteredSelection),
                (Some(true), Some(true)) if self.is_suppressed(change) => {
                    self.suppressed.push(offset);
                    continue;
                }
                (Some(true), Some(true)) => (EventType::Modified, Cause::Change),
                (Some(true), Some(false)) => (EventType::Deleted, Cause::LeftSelection),
                (Some(true), None) => (EventType::Deleted, Cause::Change),
                _ => continue,
            };
            told.push((offset, change, event_type, cause));
        }
        let count = told.len();
        for (at, (offset, change, event_type, cause)) in told.into_iter().enumerate() {
            let at_end = at + 1 == count;
            let version = if at_end { &batch.after } else { &batch.before };
            let object = if event_type == EventType::Deleted { &change.old } else { &change.new };
            let notice = GroupEvent {
                event_type,
                cause,
                object: object.as_ref().unwrap(),
                previous: None,
                object_version: &change.version,
                version,
                coalesced: 0,
                relisted: false,
                open: false,
            };
            let line = text::line(Letter(self.client.format), &notice);
            lines.insert(line.clone());
            let at = (offset, change.version.clone());
            let passed = if at_end { after } else { at.0 };
            self.unfilled.push_back(Expected { line, version: version.clone(), cycle: 0, at, passed });
        }
    }

    /// Expects what is in the log after a publish cycle: everything, or what threads have filled. Returns true if there is
    /// more than before.
    fn expect(&mut self, cycle: u64) -> bool {
        let filled = self.cursor.filled();
        self.filled_to = filled.as_ref().map_or(u64::MAX, |filled| filled.offset);
        let before = self.expected.len();
        while let Some(next) = self.unfilled.pop_front_if(|next| filled.as_ref().is_none_or(|to| next.at.0 < to.offset))
        {
            self.expected.push(Expected { cycle, ..next });
        }
        if self.evicted {
            self.position = self.expected.len();
        }
        self.expected.len() > before
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..crate::property_config() })]

    #[test]
    fn a_cursor_takes_exactly_its_sequence_or_reports_the_missing_events(
        ops in vec(any_op(), 1..120),
        retained in select(vec![3_usize, 12, 100_000]),
        queue_size in select(vec![150_usize, 600, 1 << 20]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut model = Model::new(retained, queue_size);
            for op in ops {
                model.apply(op).await;
            }
            model.finish();
        });
    }
}
