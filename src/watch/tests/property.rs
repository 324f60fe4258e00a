//! Any interleaving of publishing, joining, reading and leaving, against a model that is a plain list of batches: what a
//! cursor takes is exactly the sequence of its selection, but for holes that are announced where they are.

mod script;

use std::collections::{BTreeSet, VecDeque};

use proptest::{collection::vec, prelude::*, sample::select};

use self::script::{APPS, Client, NAMES, Op, Put, any_op, is_selected, selection};
use super::{text::Letter, *};

/// One event that a cursor is to be told.
#[derive(Debug)]
struct Expected {
    line: String,
    version: ResourceVersion,
    wake: u64,
}

/// A cursor, and what is expected of it.
#[expect(clippy::struct_excessive_bools, reason = "a model of independent facts")]
struct Reader {
    cursor: Cursor<Text>,
    client: Client,
    expected: Vec<Expected>,
    position: usize,
    /// Nothing, caught up or not, live.
    phase: Phase,
    frozen_at: Option<usize>,
    blocking: bool,
    /// Under BLOCK: how many events it has to read before it may block.
    left_to_read: usize,
    evicted: bool,
    /// The log has passed it: it was parked.
    is_passed: bool,
    end: Option<End>,
    /// The oldest wake that was kept when it was cut off by a restart.
    floor_at_end: Option<u64>,
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
    config: BroadcasterConfig,
    readers: Vec<Reader>,
    stopped: bool,
    /// The writer has waited as long as it may.
    is_spent: bool,
    /// Wakes that are kept, with their events.
    kept: VecDeque<(u64, usize)>,
    /// The versions before all wakes.
    before: BTreeSet<u128>,
    wake: u64,
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

    fn is(&self, policy: FullChannelPolicy) -> bool {
        self.phase == Phase::Live && self.client.queue.policy == policy
    }

    fn lose_block(&mut self) {
        self.left_to_read = self.client.queue.length.max(1);
    }

    /// The writer waits for it when it is full.
    fn may_block(&self) -> bool {
        self.is(FullChannelPolicy::Block) && self.left_to_read == 0
    }

    /// Where a full queue ends, event by event.
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

    fn offer(&mut self, batch: &Batch, wake: u64, lines: &mut BTreeSet<String>) {
        let number = self.client.selection;
        let of = |object: Option<&Arc<Object>>| object.map(|object| is_selected(number, object));
        let mut told = Vec::new();
        for change in &batch.changes {
            let (event_type, cause) = match (of(change.old.as_ref()), of(change.new.as_ref())) {
                (None, Some(true)) => (EventType::Added, Cause::Change),
                (Some(false), Some(true)) => (EventType::Added, Cause::EnteredSelection),
                (Some(true), Some(true)) => (EventType::Modified, Cause::Change),
                (Some(true), Some(false)) => (EventType::Deleted, Cause::LeftSelection),
                (Some(true), None) => (EventType::Deleted, Cause::Change),
                _ => continue,
            };
            told.push((change, event_type, cause));
        }
        let count = told.len();
        for (at, (change, event_type, cause)) in told.into_iter().enumerate() {
            let version = if at + 1 == count { &batch.after } else { &batch.before };
            let object = if event_type == EventType::Deleted { &change.old } else { &change.new };
            let notice = Notice {
                event_type,
                cause,
                object: object.as_ref().unwrap(),
                object_version: &change.version,
                version,
                coalesced: 0,
                relisted: false,
                open: false,
            };
            let line = text::line(Letter(self.client.format), &notice);
            lines.insert(line.clone());
            self.expected.push(Expected { line, version: version.clone(), wake });
        }
    }
}

impl Model {
    fn new(events: usize, queue_size: usize) -> Self {
        let retention = Retention { events, size: usize::MAX, age: std::time::Duration::MAX };
        let config = BroadcasterConfig { retention, queue_size, ..BroadcasterConfig::default() };
        Self {
            world: World::at(0),
            broadcaster: Broadcaster::new(config, version(0)),
            config,
            readers: Vec::new(),
            stopped: false,
            is_spent: false,
            kept: VecDeque::new(),
            before: BTreeSet::new(),
            wake: 0,
            lines: BTreeSet::new(),
            taken: 0,
            dropped: 0,
        }
    }

    fn floor(&self) -> u64 {
        self.kept.front().map_or(self.wake + 1, |(wake, _)| *wake)
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Publish(batches) => {
                let blocking = self.readers.iter().any(|reader| reader.blocking);
                if self.broadcaster.is_blocked() && !blocking {
                    self.broadcaster.ready().await;
                }
                assert_eq!(self.broadcaster.is_blocked(), blocking);
                if !blocking {
                    self.publish(batches);
                }
            }
            Op::Subscribe(client) => self.subscribe(client),
            Op::Take(at, max_size) if at < self.readers.len() => self.take(at, max_size),
            Op::GoLive(at) if at < self.readers.len() => {
                let reader = &mut self.readers[at];
                reader.cursor.go_live();
                if reader.phase == Phase::Initial {
                    reader.phase = Phase::CatchingUp;
                }
            }
            Op::Leave(at) if at < self.readers.len() => {
                self.readers.remove(at);
            }
            Op::Take(..) | Op::GoLive(_) | Op::Leave(_) => {}
            Op::Sweep => self.broadcaster.sweep(),
            Op::Wait(is_refilled) => {
                self.is_spent |= self.broadcaster.is_blocked();
                self.broadcaster.ready().await;
                if is_refilled {
                    tokio::time::advance(self.config.block_timeout * 10).await;
                    self.is_spent = false;
                }
                assert!(!self.broadcaster.is_blocked());
                for reader in self.readers.iter_mut().filter(|reader| reader.blocking) {
                    (reader.blocking, reader.evicted, reader.position) = (false, true, reader.expected.len());
                    assert_eq!(reader.flag.is_set(), reader.is_parked);
                    reader.is_parked = false;
                }
            }
            Op::Restart => {
                self.world.version += 10;
                self.broadcaster.restart(&End::HistoryChanged, version(self.world.version));
                self.end_all(&End::HistoryChanged);
                self.kept.clear();
                for reader in &mut self.readers {
                    reader.blocking = false;
                }
            }
            Op::Stop => {
                self.broadcaster.stop(&End::Stopped);
                self.end_all(&End::Stopped);
                self.stopped = true;
            }
        }
    }

    fn end_all(&mut self, end: &End) {
        let floor = self.floor();
        for reader in &mut self.readers {
            if reader.end.is_none() {
                reader.end = Some(end.clone());
                reader.floor_at_end = (*end == End::HistoryChanged).then_some(floor);
                assert_eq!(reader.flag.is_set(), reader.is_parked, "everybody that waits is woken");
                reader.is_parked = false;
            }
        }
    }

    fn publish(&mut self, batches: Vec<Vec<Put>>) {
        self.before.insert(self.world.version);
        let batches: Vec<Batch> = batches.into_iter().map(|puts| self.batch(&puts)).collect();
        self.broadcaster.publish(&batches);
        if self.stopped {
            return;
        }
        assert_eq!(self.broadcaster.version(), &version(self.world.version));
        let events: usize = batches.iter().map(|batch| batch.changes.len()).sum();
        if events > 0 && self.readers.iter().any(|reader| reader.end.is_none()) {
            self.wake += 1;
            self.kept.push_back((self.wake, events));
            while self.kept.len() > 1
                && self.kept.iter().map(|(_, events)| events).sum::<usize>() > self.config.retention.events
            {
                self.kept.pop_front();
            }
        }
        for reader in self.readers.iter_mut().filter(|reader| reader.end.is_none()) {
            let before = reader.expected.len();
            for batch in &batches {
                reader.offer(batch, self.wake, &mut self.lines);
            }
            let is_concerned = reader.expected.len() > before;
            assert_eq!(reader.flag.is_set(), is_concerned && reader.is_parked, "woken when there is something");
            reader.is_parked &= !is_concerned;
            if reader.evicted {
                reader.position = reader.expected.len();
            } else if is_concerned && reader.may_block() && reader.is_full(&self.config) {
                if self.is_spent {
                    reader.lose_block();
                }
                reader.blocking = !self.is_spent;
            }
        }
        assert_eq!(self.broadcaster.is_blocked(), self.readers.iter().any(|reader| reader.blocking));
    }

    fn batch(&mut self, puts: &[Put]) -> Batch {
        self.world.batch(|world| {
            let change = |&(name, app, size): &Put| match app {
                Some(app) => Some(world.put_sized(NAMES[name], APPS[app], size)),
                None => world.objects.contains_key(NAMES[name]).then(|| world.delete(NAMES[name])),
            };
            puts.iter().filter_map(change).collect()
        })
    }

    fn subscribe(&mut self, client: Client) {
        let Client { format, queue, initial_events, .. } = client;
        let selection = Arc::new(selection(client.selection));
        let subscribe =
            Subscribe { selection, format: Letter(format), queue, client: crate::watch::Client::Watch, initial_events };
        let cursor = self.broadcaster.subscribe(subscribe);
        assert_eq!(cursor.version(), self.broadcaster.version());
        self.readers.push(Reader {
            cursor,
            client,
            expected: Vec::new(),
            position: 0,
            phase: if initial_events { Phase::Initial } else { Phase::Live },
            frozen_at: None,
            blocking: false,
            left_to_read: queue.length.max(1),
            evicted: false,
            is_passed: false,
            end: self.stopped.then_some(End::Stopped),
            floor_at_end: None,
            flag: Arc::default(),
            is_parked: false,
            taken: 0,
            dropped: 0,
        });
    }

    fn take(&mut self, at: usize, max_size: usize) {
        let (floor, config) = (self.floor(), self.config);
        let reader = &mut self.readers[at];
        let floor = reader.floor_at_end.unwrap_or(floor);
        // The log is trimmed when it is written to or swept, so what may have gone may still be there.
        let is_kept = reader.may_block() && !reader.is_passed;
        let may_be_gone = reader.expected.get(reader.position).is_some_and(|event| event.wake < floor) && !is_kept;
        if reader.phase == Phase::CatchingUp && !reader.is_over(&config) {
            reader.phase = Phase::Live;
        }
        if reader.is(FullChannelPolicy::Drop) && reader.frozen_at.is_none() && reader.is_over(&config) {
            reader.frozen_at = reader.freeze(&config);
        }
        let before = reader.cursor.version().clone();
        let waker = Waker::from(Arc::clone(&reader.flag));
        let polled = reader.cursor.poll_take(&mut Context::from_waker(&waker), max_size);
        let head = reader.expected.len();
        match polled {
            Poll::Ready(Taken::Frames(frames)) => {
                assert!(!reader.evicted && reader.frozen_at != Some(reader.position));
                let lines: Vec<String> = frames.iter().flat_map(Text::lines).collect();
                let end = reader.position + lines.len();
                assert!(end > reader.position && end <= reader.frozen_at.unwrap_or(head));
                let expected = &reader.expected[reader.position..end];
                assert_eq!(lines, expected.iter().map(|event| event.line.clone()).collect::<Vec<_>>());
                assert_eq!(reader.cursor.version(), &expected.last().unwrap().version);
                let size = reader.size(reader.position..end);
                assert!(lines.len() == 1 || size <= max_size);
                if end < reader.frozen_at.unwrap_or(head) {
                    assert!(size.saturating_add(reader.expected[end].line.len()) > max_size, "it takes all that fits");
                }
                reader.taken += lines.len() as u64;
                reader.position = end;
                reader.left_to_read = reader.left_to_read.saturating_sub(lines.len());
            }
            Poll::Ready(Taken::Dropped { count, after }) => {
                assert!(reader.is(FullChannelPolicy::Drop));
                assert!(may_be_gone || reader.frozen_at == Some(reader.position), "not before its queue is read");
                assert!(count > 0);
                assert_eq!((count, &after), (reader.lag() as u64, &before));
                assert_eq!(reader.cursor.version(), &reader.expected.last().unwrap().version);
                reader.dropped += count;
                (reader.position, reader.frozen_at) = (head, None);
            }
            Poll::Ready(Taken::Parked) => {
                assert!(may_be_gone && !reader.evicted && !reader.is(FullChannelPolicy::Drop));
                assert!(reader.expected[reader.position].wake < floor, "only for what is not retained");
                reader.is_passed = true;
            }
            Poll::Ready(Taken::Ended(End::SlowConsumer)) => assert!(reader.evicted),
            Poll::Ready(Taken::Ended(end)) => {
                assert_eq!(reader.position, head);
                assert_eq!((Some(end), reader.evicted, reader.frozen_at), (reader.end.clone(), false, None));
            }
            Poll::Pending => {
                assert_eq!(reader.position, head);
                assert_eq!((&reader.end, reader.evicted, reader.frozen_at), (&None, false, None));
                reader.is_parked = true;
            }
        }
        assert!(reader.cursor.version() >= &before, "versions never go back");
        let length = reader.client.queue.length;
        reader.blocking &= reader.lag() > length / 2 || reader.queued() > config.queue_size / 2;
    }

    /// Everything that is still to be read, then the sums.
    fn finish(mut self) {
        for at in 0..self.readers.len() {
            loop {
                let before = (self.readers[at].position, self.readers[at].frozen_at);
                self.take(at, 300);
                if (self.readers[at].position, self.readers[at].frozen_at) == before {
                    break;
                }
            }
            let reader = &self.readers[at];
            if reader.position == reader.expected.len() && !reader.evicted {
                assert_eq!(
                    reader.taken + reader.dropped,
                    reader.expected.len() as u64,
                    "delivered + dropped = offered"
                );
            }
        }
        self.taken += self.readers.iter().map(|reader| reader.taken).sum::<u64>();
        self.dropped += self.readers.iter().map(|reader| reader.dropped).sum::<u64>();
        let stats = Arc::clone(self.broadcaster.stats());
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(count(&stats.watchers), self.readers.len() as u64);
        assert!(count(&stats.encoded) <= self.lines.len() as u64, "each variant once");
        assert!(count(&stats.delivered) >= self.taken && count(&stats.dropped) >= self.dropped);
        self.readers.clear();
        self.broadcaster.sweep();
        assert_eq!((count(&stats.watchers), count(&stats.groups)), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_cursor_takes_exactly_its_sequence_or_says_what_is_missing(
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
