//! Any interleaving of publishing, joining, reading and leaving, and of the work of threads, compared
//! with a model that is a plain list of batches: a cursor takes exactly the sequence of its selection, except for gaps that
//! it reports at their position, and no bookmark is ahead of it.

mod model;
pub(crate) mod script;

use proptest::{collection::vec, prelude::*, sample::select};

use self::script::{APPS, Client, NAMES, Op, Put, any_op, is_selected, selection};
use super::{text::Letter, *};

/// Event that a cursor must yield.
#[derive(Debug, Clone)]
struct Expected {
    line: String,
    version: ResourceVersion,
    /// Offset and version of the change.
    at: (u64, ResourceVersion),
}

/// Cursor, and its expected events.
struct Reader {
    cursor: Cursor<Text>,
    client: Client,
    expected: Vec<Expected>,
    /// Offsets of the suppressed changes since it joined.
    suppressed: Vec<u64>,
    /// Number of those that it has taken, and the offset before which it has counted them.
    counted: (u64, u64),
    position: usize,
    /// Phase: initial events, catching up, live.
    phase: Phase,
    frozen_at: Option<usize>,
    /// Under BLOCK: number of events that it must read before it may block.
    left_to_read: usize,
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
    config: BroadcasterConfig,
    readers: Vec<Reader>,
    stopped: bool,
    /// True once the writer has waited as long as it may.
    is_spent: bool,
    taken: u64,
    dropped: u64,
}

impl Reader {
    fn lag(&self) -> usize {
        self.expected.len() - self.position
    }

    fn length(&self) -> usize {
        self.client.queue.length.max(1)
    }

    fn is_costly(&self) -> bool {
        self.client.format == 's'
    }

    fn is_live_under(&self, policy: FullChannelPolicy) -> bool {
        self.phase == Phase::Live && self.client.queue.policy == policy
    }

    fn go_live(&mut self) {
        self.cursor.go_live();
        if self.phase == Phase::Initial {
            self.phase = Phase::CatchingUp;
        }
    }

    fn is_suppressed(&self, change: &Change) -> bool {
        let labels = |object: &Option<Arc<Object>>| {
            object.as_ref().and_then(|object| object.labels().get("app").map(str::to_owned))
        };
        self.client.format == 's' && labels(&change.old) == labels(&change.new)
    }

    /// Compares the number of suppressed changes that it has taken with those before an offset that it has reached.
    fn count_suppressed(&mut self, to: u64) {
        let (count, before) = &mut self.counted;
        (*count, *before) = (*count + self.cursor.take_suppressed(), to.max(*before));
        let expected = self.suppressed.iter().filter(|offset| **offset < *before).count();
        assert_eq!(*count, expected as u64, "suppressed before {before}");
    }

    fn offer(&mut self, batch: &Batch, offset: u64) {
        let number = self.client.selection;
        let of = |object: Option<&Arc<Object>>| object.map(|object| is_selected(number, object));
        let mut told = Vec::new();
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
            let at = (offset, change.version.clone());
            self.expected.push(Expected { line, version: version.clone(), at });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..crate::property_config() })]

    #[test]
    fn a_cursor_takes_exactly_its_sequence_or_reports_the_missing_events(
        ops in vec(any_op(), 1..120),
        retained in select(vec![3_usize, 12, 100_000]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut model = Model::new(retained);
            for op in ops {
                model.apply(op).await;
            }
            model.finish();
        });
    }
}
