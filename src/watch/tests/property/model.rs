//! Model: the effect of each operation on the broadcaster, and on the expected events of its readers.

use super::*;

/// Most changes of a batch.
const BATCH_CHANGES: u64 = 3;

impl Model {
    pub(super) fn new(events: usize) -> Self {
        let retention = Retention { events, size: usize::MAX, age: std::time::Duration::MAX };
        let config = BroadcasterConfig { retention, ..BroadcasterConfig::default() };
        let threads = BulkThreads::manual(Arc::default());
        Self {
            world: World::at(0),
            broadcaster: Broadcaster::new(config, version(0)).deferring_to(Some(&threads)),
            threads,
            config,
            readers: Vec::new(),
            stopped: false,
            is_spent: false,
            taken: 0,
            dropped: 0,
        }
    }

    pub(super) async fn apply(&mut self, op: Op) {
        match op {
            Op::Publish(batches) => {
                if !self.broadcaster.is_blocked() {
                    self.publish(batches);
                }
            }
            Op::Subscribe(client) => self.subscribe(client),
            Op::Take(at, max_size) if at < self.readers.len() => self.take(at, max_size),
            Op::GoLive(at) if at < self.readers.len() => self.readers[at].go_live(),
            Op::Leave(at) if at < self.readers.len() => {
                self.readers.remove(at);
            }
            Op::Bookmark(at) if at < self.readers.len() => self.bookmark(at),
            Op::Take(..) | Op::GoLive(_) | Op::Leave(_) | Op::Bookmark(_) => {}
            Op::Work => drop(self.threads.run_one()),
            Op::Sweep => self.broadcaster.sweep(),
            Op::Wait(is_refilled) => {
                self.is_spent |= self.broadcaster.is_blocked();
                self.broadcaster.ready().await;
                if is_refilled {
                    tokio::time::advance(self.config.block_timeout * 10).await;
                    self.is_spent = false;
                }
                assert!(!self.broadcaster.is_blocked());
            }
            Op::Restart if self.stopped => {}
            Op::Restart => {
                self.world.version += 10;
                rewrite(&mut self.broadcaster, self.world.version);
                self.end_all(&End::HistoryRewritten);
            }
            Op::Stop => {
                self.broadcaster.stop();
                self.end_all(&End::Stopped);
                self.stopped = true;
            }
        }
    }

    fn end_all(&mut self, end: &End) {
        for reader in self.readers.iter_mut().filter(|reader| reader.end.is_none()) {
            reader.end = Some(end.clone());
            assert!(reader.flag.is_set() || !reader.is_parked, "everybody that waits is woken");
            reader.is_parked = false;
        }
    }

    fn publish(&mut self, batches: Vec<Vec<Put>>) {
        let first = self.broadcaster.reached().offset;
        let batches: Vec<Batch> = batches.into_iter().map(|puts| self.batch(&puts)).collect();
        self.broadcaster.publish(&batches);
        if self.stopped {
            return;
        }
        assert_eq!(self.broadcaster.version(), version(self.world.version));
        for reader in self.readers.iter_mut().filter(|reader| reader.end.is_none()) {
            let (before, mut offset) = (reader.expected.len(), first);
            for batch in &batches {
                reader.offer(batch, offset);
                offset += batch.changes.len() as u64;
            }
            let (is_concerned, is_woken) = (reader.expected.len() > before, reader.flag.is_set());
            assert!(is_woken || !(is_concerned && reader.is_parked), "woken when there is something");
            reader.is_parked &= !is_woken;
        }
        // A writer that publishes nothing looks at no queue.
        let has_looked = batches.iter().any(|batch| !batch.changes.is_empty());
        let waits = |reader: &Reader| matches!(reader.cursor.gauge().state(), CursorState::Blocking);
        assert_eq!(self.broadcaster.is_blocked(), self.readers.iter().any(waits));
        let kept = self.broadcaster.oldest_offset();
        for reader in self.readers.iter_mut().filter(|reader| reader.end.is_none() && !reader.is_costly()) {
            let is_full = reader.lag() >= reader.length();
            assert!(is_full || !waits(reader), "nobody holds the writer back with room");
            let must_wait = reader.is_live_under(FullChannelPolicy::Block) && reader.left_to_read == 0;
            let is_over = reader.cursor.gauge().is_evicted() || self.is_spent;
            // Until it may hold the writer back, the history keeps nothing for it: it has expired.
            let is_gone = reader.cursor.gauge().reads_at().is_some_and(|at| at < kept);
            let may_go_on = waits(reader) || is_over || is_gone || !has_looked;
            assert!(!(is_full && must_wait) || may_go_on, "the writer waits for a full queue");
            if is_full && is_over && !waits(reader) {
                // It may have been refused.
                reader.left_to_read = reader.length();
            }
        }
    }

    fn bookmark(&mut self, at: usize) {
        let distributed = self.broadcaster.reached();
        let reader = &mut self.readers[at];
        let before = reader.cursor.version().clone();
        let has_advanced = reader.cursor.advance_at_head(Some(&distributed));
        if !has_advanced {
            assert_eq!(reader.cursor.version(), &before);
            return;
        }
        assert!(reader.lag() == 0 && reader.end.is_none(), "a bookmark is never ahead of an event");
        reader.count_suppressed(distributed.offset);
        assert_eq!(reader.cursor.version(), &distributed.version);
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
        let reached = self.broadcaster.reached();
        assert_eq!(cursor.reached(), reached);
        self.readers.push(Reader {
            cursor,
            client,
            expected: Vec::new(),
            suppressed: Vec::new(),
            counted: (0, reached.offset),
            position: 0,
            phase: if initial_events { Phase::Initial } else { Phase::Live },
            frozen_at: None,
            left_to_read: queue.length.max(1),
            end: self.stopped.then_some(End::Stopped),
            flag: Arc::default(),
            is_parked: false,
            taken: 0,
            dropped: 0,
        });
    }

    /// Returns true if the reader goes on.
    fn take(&mut self, at: usize, max_size: usize) {
        let head = self.broadcaster.reached().offset;
        let kept = self.broadcaster.oldest_offset();
        let reader = &mut self.readers[at];
        // Only who is parked has everything that does not concern it.
        let reads_at = reader.cursor.gauge().reads_at();
        let is_passed = reads_at.is_some_and(|at| at < kept);
        let is_gone = is_passed || reader.expected.get(reader.position).is_some_and(|next| next.at.0 < kept);
        let behind = reads_at.map_or(0, |at| head.saturating_sub(at));
        if reader.phase == Phase::CatchingUp && behind <= reader.length() as u64 {
            reader.phase = Phase::Live;
        }
        let before = reader.cursor.version().clone();
        let waker = Waker::from(Arc::clone(&reader.flag));
        let polled = reader.cursor.poll_take(&mut Context::from_waker(&waker), max_size);
        if reader.is_live_under(FullChannelPolicy::Drop)
            && reader.frozen_at.is_none()
            && reader.cursor.gauge().state() == CursorState::Frozen
        {
            reader.frozen_at = Some(reader.position + reader.length());
        }
        let end = reader.frozen_at.unwrap_or(reader.expected.len());
        match polled {
            Poll::Ready(Taken::Frames(frames)) => {
                assert!(reader.end.as_ref().is_none_or(|end| *end == End::Stopped));
                let lines: Vec<String> = frames.iter().flat_map(Text::lines).collect();
                let to = reader.position + lines.len();
                assert!(to > reader.position && to <= end);
                let expected = &reader.expected[reader.position..to];
                assert_eq!(lines, expected.iter().map(|event| event.line.clone()).collect::<Vec<_>>());
                // It may have passed changes that it does not select, too.
                let reached = reader.cursor.version();
                assert!(*reached >= expected.last().unwrap().version);
                assert!(reader.expected.get(to).is_none_or(|next| *reached < next.at.1), "it is ahead of an event");
                assert!(lines.len() == 1 || lines.iter().map(String::len).sum::<usize>() <= max_size);
                let is_lagging = reader.is_live_under(FullChannelPolicy::Drop) && reader.frozen_at.is_none();
                assert!(!is_lagging || reader.lag() <= reader.length(), "a queue that is too long freezes");
                reader.taken += lines.len() as u64;
                reader.count_suppressed(reader.cursor.reached().offset);
                reader.position = to;
                reader.left_to_read = reader.left_to_read.saturating_sub(lines.len());
            }
            Poll::Ready(Taken::Dropped { count, after }) => {
                assert_eq!(reader.client.queue.policy, FullChannelPolicy::Drop);
                // The history drops whole batches.
                let begins = reads_at.map(|at| at.saturating_sub(BATCH_CHANGES - 1));
                let has_gone = begins.is_some_and(|at| head - at > self.config.retention.events as u64);
                assert!(has_gone || reader.frozen_at == Some(reader.position), "not before its queue is read");
                assert_eq!((count, &after), (reader.lag() as u64, &before));
                assert_eq!(reader.cursor.version(), &self.broadcaster.version());
                reader.count_suppressed(head);
                reader.dropped += count;
                (reader.position, reader.frozen_at) = (reader.expected.len(), None);
            }
            Poll::Ready(Taken::Ended(End::SlowConsumer)) => {
                assert_eq!(reader.client.queue.policy, FullChannelPolicy::Block);
                reader.end = Some(End::SlowConsumer);
            }
            Poll::Ready(Taken::Ended(End::Expired { .. })) => {
                let next = reader.expected.get(reader.position).map(|next| next.at.0);
                let is_dropping = reader.client.queue.policy == FullChannelPolicy::Drop;
                assert!(is_gone || is_dropping, "the history has the next one, {next:?} of {kept} to {head}");
                reader.end = Some(End::Expired { oldest: before.clone() });
            }
            Poll::Ready(Taken::Ended(end)) => {
                assert!(end != End::Stopped || reader.lag() == 0, "it first takes everything");
                // Who has ended before may then learn of the end of all.
                let had_ended = matches!(reader.end, Some(End::Expired { .. } | End::SlowConsumer));
                assert!(had_ended || Some(&end) == reader.end.as_ref(), "{end:?} is not {:?}", reader.end);
            }
            Poll::Pending => {
                assert!(reader.lag() == 0 || reader.is_costly(), "there is something to take");
                // A costly one may wait for a thread.
                reader.is_parked = reader.lag() == 0 && !reader.is_costly();
            }
        }
        assert!(reader.cursor.version() >= &before, "versions never go back");
    }

    /// Reads everything that is left, then compares the sums.
    pub(super) fn finish(mut self) {
        for at in 0..self.readers.len() {
            loop {
                while self.threads.run_one() {}
                let before = (self.readers[at].position, self.readers[at].end.clone());
                self.take(at, 300);
                let has_work = self.threads.run_one();
                if (self.readers[at].position, self.readers[at].end.clone()) == before && !has_work {
                    break;
                }
            }
            self.bookmark(at);
            let reader = &self.readers[at];
            if reader.end.as_ref().is_none_or(|end| *end == End::Stopped) {
                let count = reader.taken + reader.dropped;
                assert_eq!(count, reader.expected.len() as u64, "delivered + dropped = offered");
            }
        }
        self.taken += self.readers.iter().map(|reader| reader.taken).sum::<u64>();
        self.dropped += self.readers.iter().map(|reader| reader.dropped).sum::<u64>();
        let stats = Arc::clone(self.broadcaster.stats());
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(count(&stats.watchers), self.readers.len() as u64);
        assert!(count(&stats.delivered) >= self.taken && count(&stats.dropped) >= self.dropped);
        self.readers.clear();
        while self.threads.run_one() {}
        self.broadcaster.sweep();
        assert_eq!((count(&stats.watchers), count(&stats.groups)), (0, 0));
    }
}
