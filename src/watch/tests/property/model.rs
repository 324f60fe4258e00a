//! Model: the effect of each operation on the broadcaster, and on the expected events of its readers.

use super::*;

impl Model {
    pub(super) fn new(events: usize, queue_size: usize) -> Self {
        let retention = Retention { events, size: usize::MAX, age: std::time::Duration::MAX };
        let selection_budget = std::time::Duration::from_micros(20);
        let config = BroadcasterConfig { retention, queue_size, selection_budget, ..BroadcasterConfig::default() };
        let clock: Arc<Stepped> = Arc::default();
        let threads = BulkThreads::manual(Arc::clone(&clock));
        Self {
            world: World::at(0),
            broadcaster: Broadcaster::new(config, version(0)).deferring_to(Some(&threads)),
            threads,
            clock,
            published: Vec::new(),
            has_deferred: false,
            config,
            readers: Vec::new(),
            stopped: false,
            is_spent: false,
            budgets: 0,
            spent: BTreeSet::new(),
            kept: VecDeque::new(),
            before: BTreeSet::new(),
            cycle: 0,
            lines: BTreeSet::new(),
            taken: 0,
            dropped: 0,
        }
    }

    fn floor(&self) -> u64 {
        self.kept.front().map_or(self.cycle + 1, |(cycle, _)| *cycle)
    }

    pub(super) async fn apply(&mut self, op: Op) {
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
            Op::Bookmark(at) if at < self.readers.len() => self.bookmark(at),
            Op::Take(..) | Op::GoLive(_) | Op::Leave(_) | Op::Bookmark(_) => {}
            Op::Fill => {
                self.fill();
            }
            Op::Cost(step) => self.clock.step.store(step, Ordering::SeqCst),
            Op::Pause => drop(self.clock.now.fetch_add(2_000_000_000, Ordering::SeqCst)),
            Op::Forget => {
                if let [.., oldest, _] = &self.published[..] {
                    self.broadcaster.drop_before(oldest);
                }
            }
            Op::Sweep => self.broadcaster.sweep(),
            Op::Wait(is_refilled) => {
                self.is_spent |= self.broadcaster.is_blocked();
                self.broadcaster.ready().await;
                if is_refilled {
                    tokio::time::advance(self.config.block_timeout * 10).await;
                    self.is_spent = false;
                    self.spent.clear();
                }
                assert!(!self.broadcaster.is_blocked());
                for reader in self.readers.iter_mut().filter(|reader| reader.blocking) {
                    self.spent.extend(Some(reader.budget).filter(|_| !is_refilled));
                    (reader.blocking, reader.evicted, reader.position) = (false, true, reader.expected.len());
                    assert_eq!(reader.flag.is_set(), reader.is_parked);
                    reader.is_parked = false;
                }
            }
            Op::Restart => {
                self.world.version += 10;
                self.broadcaster.start_new_history(&End::HistoryRewritten, version(self.world.version));
                self.end_all(&End::HistoryRewritten);
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
        for reader in &mut self.readers {
            if reader.end.is_none() {
                reader.end(end.clone());
            }
        }
    }

    fn publish(&mut self, batches: Vec<Vec<Put>>) {
        let config = self.config;
        self.before.insert(self.world.version);
        let first = self.broadcaster.reached().offset;
        let batches: Vec<Batch> = batches.into_iter().map(|puts| self.batch(&puts)).collect();
        self.broadcaster.publish(&batches);
        if self.stopped {
            return;
        }
        assert_eq!(self.broadcaster.version(), &version(self.world.version));
        let events: usize = batches.iter().map(|batch| batch.changes.len()).sum();
        if events > 0 && self.readers.iter().any(|reader| reader.end.is_none()) {
            self.keep(events);
        }
        self.published.push(self.broadcaster.reached().clone());
        assert_eq!(self.broadcaster.reached().offset, first + events as u64);
        let floor = self.floor();
        for reader in self.readers.iter_mut().filter(|reader| reader.end.is_none()) {
            let mut offset = first;
            for batch in &batches {
                reader.offer(batch, offset, &mut self.lines);
                offset += batch.changes.len() as u64;
            }
            self.has_deferred |= reader.cursor.filled().is_some();
            let is_concerned = reader.expect(self.cycle);
            assert_eq!(reader.flag.is_set(), is_concerned && reader.is_parked, "woken when there is something");
            reader.is_parked &= !is_concerned;
            let holds_back = !reader.evicted && !reader.is_gone(floor) && reader.may_block();
            if holds_back && is_concerned && reader.is_full(&config) {
                if self.spent.contains(&reader.budget) {
                    (reader.evicted, reader.position) = (true, reader.expected.len());
                } else if self.is_spent {
                    reader.lose_block();
                }
                reader.blocking = !self.is_spent;
            }
        }
        assert_eq!(self.broadcaster.is_blocked(), self.readers.iter().any(|reader| reader.blocking));
    }

    fn keep(&mut self, events: usize) {
        self.cycle += 1;
        self.kept.push_back((self.cycle, events));
        while self.kept.len() > 1
            && self.kept.iter().map(|(_, events)| events).sum::<usize>() > self.config.retention.events
        {
            self.kept.pop_front();
        }
    }

    /// Returns true if there was work.
    fn fill(&mut self) -> bool {
        let filled: Vec<_> = self.readers.iter().map(|reader| reader.cursor.filled()).collect();
        let has_run = self.threads.run_one();
        if self.broadcaster.cycle() > self.cycle {
            self.keep(0);
        }
        assert_eq!(self.broadcaster.cycle(), self.cycle, "one for a piece of work, however many groups");
        for (reader, before) in self.readers.iter_mut().zip(filled).filter(|(reader, _)| reader.end.is_none()) {
            if let Some(end) = reader.cursor.end() {
                assert!(matches!(end, End::Expired { .. }) && before.is_some(), "{end:?}");
                reader.end(end);
                continue;
            }
            let is_concerned = reader.expect(self.cycle);
            let is_woken = reader.flag.is_set();
            // Events from before it joined also wake it.
            let may_be_woken = is_concerned || before.is_some_and(|filled| filled.offset < reader.joined);
            assert!(is_woken || !(is_concerned && reader.is_parked), "woken when there is something");
            assert!(!is_woken || may_be_woken && reader.is_parked, "and not otherwise");
            reader.is_parked &= !is_woken;
            if is_concerned && !reader.evicted && reader.may_block() && reader.is_full(&self.config) {
                reader.lose_block();
            }
        }
        has_run
    }

    fn bookmark(&mut self, at: usize) {
        let distributed = self.broadcaster.reached().clone();
        let reader = &mut self.readers[at];
        let before = reader.cursor.version().clone();
        let has_all = reader.position == reader.expected.len() && reader.end.is_none() && !reader.evicted;
        assert_eq!(reader.cursor.advance_at_head(Some(&distributed)), has_all);
        if !has_all {
            assert_eq!(reader.cursor.version(), &before);
            return;
        }
        let HistoryPosition { version: reached, offset } = match reader.cursor.filled() {
            Some(filled) if filled.offset < distributed.offset => filled,
            _ => distributed,
        };
        reader.count_suppressed(offset);
        assert_eq!(reader.cursor.version(), if before > reached { &before } else { &reached });
        let is_behind = |next: &Expected| *reader.cursor.version() < next.at.1;
        assert!(reader.unfilled.front().is_none_or(is_behind), "a bookmark is never ahead of an event");
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
        self.budgets += 1;
        self.readers.push(Reader {
            cursor,
            client,
            expected: Vec::new(),
            unfilled: VecDeque::new(),
            suppressed: Vec::new(),
            filled_to: u64::MAX,
            counted: (0, self.broadcaster.reached().offset),
            joined: self.broadcaster.reached().offset,
            position: 0,
            phase: if initial_events { Phase::Initial } else { Phase::Live },
            frozen_at: None,
            blocking: false,
            left_to_read: queue.length.max(1),
            budget: self.budgets,
            evicted: false,
            end: self.stopped.then_some(End::Stopped),
            flag: Arc::default(),
            is_parked: false,
            taken: 0,
            dropped: 0,
        });
    }

    fn take(&mut self, at: usize, max_size: usize) {
        let (floor, config) = (self.floor(), self.config);
        let reader = &mut self.readers[at];
        let is_gone = reader.is_gone(floor);
        // Events filled from before it joined are skipped, and until then it has not caught up.
        let is_skipping = reader.cursor.filled().is_some_and(|filled| filled.offset < reader.joined);
        if reader.phase == Phase::CatchingUp && !reader.is_over(&config) && !is_skipping {
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
                assert!(!is_gone && !reader.evicted && reader.frozen_at != Some(reader.position));
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
                let passed = expected.last().unwrap().passed;
                reader.count_suppressed(passed);
                reader.position = end;
                reader.left_to_read = reader.left_to_read.saturating_sub(lines.len());
            }
            Poll::Ready(Taken::Dropped { count, after }) => {
                assert!(reader.is(FullChannelPolicy::Drop));
                assert!(is_gone || reader.frozen_at == Some(reader.position), "not before its queue is read");
                assert!(count > 0);
                assert_eq!((count, &after), (reader.lag() as u64, &before));
                assert_eq!(reader.cursor.version(), &reader.expected.last().unwrap().version);
                let passed = reader.expected.last().unwrap().passed;
                reader.count_suppressed(passed);
                reader.dropped += count;
                (reader.position, reader.frozen_at) = (head, None);
            }
            Poll::Ready(Taken::Parked) => {
                assert!(is_gone && !reader.evicted && !reader.is(FullChannelPolicy::Drop));
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

    /// Reads everything that is left, then compares the sums.
    pub(super) fn finish(mut self) {
        while self.fill() {}
        assert!(self.readers.iter().all(|reader| reader.unfilled.is_empty()), "everything is filled in the end");
        for at in 0..self.readers.len() {
            loop {
                let before = (self.readers[at].position, self.readers[at].frozen_at);
                self.take(at, 300);
                if (self.readers[at].position, self.readers[at].frozen_at) == before {
                    break;
                }
            }
            self.bookmark(at);
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
        assert!(count(&stats.encoded) <= self.lines.len() as u64 || self.has_deferred, "each variant once");
        assert!(count(&stats.delivered) >= self.taken && count(&stats.dropped) >= self.dropped);
        self.readers.clear();
        self.broadcaster.sweep();
        assert_eq!((count(&stats.watchers), count(&stats.groups), count(&stats.deferred)), (0, 0, 0));
    }
}
