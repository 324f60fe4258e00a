//! Any sequence of operations against a model of the rules: what is handed out and when, the places, the counters, and every
//! wake-up.

use futures_util::future::BoxFuture;
use proptest::{collection::vec, prelude::*, sample::Index};
use tokio_test::task::Spawn;

use super::*;

type Key = u8;

#[derive(Debug, Clone)]
enum Operation {
    Add(Key, AddOptions),
    /// Adds a key, and waits for a place.
    Wait(Key, AddOptions),
    Forget(Key),
    Get,
    DropGetter(Index),
    DropAddition(Index),
    Done(Index),
    DropItem(Index),
    Advance(u64),
    ShutDown,
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = || 0..6u8;
    let delay = prop_oneof![3 => Just(0u64), 2 => 1..6u64].prop_map(Duration::from_millis);
    let options = (-1..2i32, delay, any::<bool>()).prop_map(|(priority, after, is_rate_limited)| {
        // Of additions without a delay there are more.
        AddOptions { priority, after, is_rate_limited: is_rate_limited && priority == 0 }
    });
    prop_oneof![
        6 => (key(), options.clone()).prop_map(|(key, options)| Operation::Add(key, options)),
        2 => (key(), options).prop_map(|(key, options)| Operation::Wait(key, options)),
        1 => key().prop_map(Operation::Forget),
        6 => Just(Operation::Get),
        1 => any::<Index>().prop_map(Operation::DropGetter),
        1 => any::<Index>().prop_map(Operation::DropAddition),
        5 => any::<Index>().prop_map(Operation::Done),
        1 => any::<Index>().prop_map(Operation::DropItem),
        4 => (0..4u64).prop_map(Operation::Advance),
        1 => (0..12u8).prop_map(|number| if number == 0 { Operation::ShutDown } else { Operation::Advance(1) }),
    ]
}

/// Key that is queued: ready, or delayed until a time.
#[derive(Debug, Clone, Copy)]
struct Queued {
    key: Key,
    priority: i32,
    due: Option<u64>,
}

/// Rules of the queue. Its clock is in milliseconds.
#[derive(Debug, Default)]
struct Model {
    now: u64,
    /// In the order in which they were queued, or became ready.
    queued: Vec<Queued>,
    processing: Vec<(Key, u64)>,
    failures: BTreeMap<Key, u32>,
    max_keys: usize,
    adds: u64,
    retries: u64,
    is_shutting_down: bool,
}

impl Model {
    fn is_in_processing(&self, key: Key) -> bool {
        self.processing.iter().any(|(of, _)| *of == key)
    }

    fn has_place(&self, key: Key) -> bool {
        let mut places: Vec<Key> = self.queued.iter().map(|queued| queued.key).collect();
        places.extend(self.processing.iter().map(|(key, _)| *key));
        places.sort_unstable();
        places.dedup();
        self.is_shutting_down || places.contains(&key) || places.len() < self.max_keys
    }

    /// Adds a key if there is a place for it.
    fn add(&mut self, key: Key, options: AddOptions) -> bool {
        if !self.has_place(key) {
            return false;
        }
        if self.is_shutting_down {
            return true;
        }
        let mut after = options.after.as_millis() as u64;
        if options.is_rate_limited {
            let failures = self.failures.entry(key).or_default();
            let when = (1 << *failures).min(4);
            *failures = (*failures + 1).min(30);
            after = if after == 0 { when } else { after.min(when) };
        }
        self.retries += u64::from(after > 0);
        self.queue(Queued { key, priority: options.priority, due: (after > 0).then_some(self.now + after) });
        true
    }

    fn queue(&mut self, added: Queued) {
        let Some(at) = self.queued.iter().position(|queued| queued.key == added.key) else {
            self.adds += u64::from(added.due.is_none());
            self.queued.push(added);
            return;
        };
        let before = self.queued[at];
        let due = before.due.zip(added.due).map(|(before, added)| before.min(added));
        let becomes_ready = before.due.is_some() && due.is_none();
        let is_raised = added.priority > before.priority;
        self.adds += u64::from(becomes_ready);
        let queued = Queued { priority: before.priority.max(added.priority), due, ..added };
        if becomes_ready || is_raised || due != before.due {
            self.queued.remove(at);
            self.queued.push(queued);
        }
    }

    fn advance(&mut self, millis: u64) {
        self.now += millis;
        let (mut over, rest): (Vec<Queued>, _) =
            self.queued.iter().partition(|queued| queued.due.is_some_and(|due| due <= self.now));
        over.sort_by_key(|queued| queued.due);
        self.adds += over.len() as u64;
        self.queued = rest;
        self.queued.extend(over.into_iter().map(|queued| Queued { due: None, ..queued }));
    }

    fn ready(&self) -> Vec<Queued> {
        let is_ready = |queued: &&Queued| queued.due.is_none() && !self.is_in_processing(queued.key);
        self.queued.iter().filter(is_ready).copied().collect()
    }

    fn take(&mut self) -> Option<(Key, i32)> {
        let ready = self.ready();
        let highest = ready.iter().map(|queued| queued.priority).max()?;
        let taken = *ready.iter().find(|queued| queued.priority == highest)?;
        self.queued.retain(|queued| queued.key != taken.key);
        self.processing.push((taken.key, self.now));
        Some((taken.key, taken.priority))
    }

    fn finish(&mut self, key: Key, returns: Option<i32>) {
        self.processing.retain(|(of, _)| *of != key);
        if let Some(at) = self.queued.iter().position(|queued| queued.key == key && queued.due.is_none()) {
            let queued = self.queued.remove(at);
            self.queued.push(queued);
        } else if let Some(priority) = returns {
            self.queue(Queued { key, priority, due: None });
        }
    }

    fn stats(&self) -> WorkQueueStats {
        let delayed = self.queued.iter().filter(|queued| queued.due.is_some()).count();
        let running = || self.processing.iter().map(|(_, begun)| Duration::from_millis(self.now - begun));
        WorkQueueStats {
            depth: self.queued.len() - delayed,
            delayed,
            processing: self.processing.len(),
            adds: self.adds,
            retries: self.retries,
            unfinished: running().sum(),
            longest_running: running().max().unwrap_or_default(),
        }
    }
}

struct Run {
    queue: WorkQueue<Key>,
    model: Model,
    began: Instant,
    getters: Vec<Spawn<BoxFuture<'static, Option<WorkItem<Key>>>>>,
    additions: Vec<(Key, AddOptions, Spawn<BoxFuture<'static, ()>>)>,
    drain: Option<Spawn<BoxFuture<'static, ()>>>,
    items: Vec<WorkItem<Key>>,
}

impl Run {
    async fn apply(&mut self, operation: Operation) {
        let queue = self.queue.clone();
        match operation {
            Operation::Add(key, options) => {
                let added = queue.try_add(key, options).map_err(|WorkQueueFull(refused)| refused);
                assert_eq!(added, if self.model.add(key, options) { Ok(()) } else { Err(key) });
            }
            Operation::Wait(key, options) => {
                let mut addition = task::spawn(async move { queue.add_with(key, options).await }.boxed());
                let is_added = addition.poll().is_ready();
                assert_eq!(is_added, self.model.add(key, options));
                if !is_added {
                    self.additions.push((key, options, addition));
                }
            }
            Operation::Forget(key) => {
                queue.forget(&key);
                self.model.failures.remove(&key);
            }
            Operation::Get => {
                self.getters.push(task::spawn(async move { queue.get().await }.boxed()));
                self.poll_getter(self.getters.len() - 1);
            }
            Operation::DropGetter(index) if !self.getters.is_empty() => {
                drop(self.getters.swap_remove(index.index(self.getters.len())));
            }
            Operation::DropAddition(index) if !self.additions.is_empty() => {
                drop(self.additions.swap_remove(index.index(self.additions.len())));
            }
            Operation::Done(index) if !self.items.is_empty() => {
                let item = self.items.swap_remove(index.index(self.items.len()));
                self.model.finish(*item.key(), None);
                item.done();
            }
            Operation::DropItem(index) if !self.items.is_empty() => {
                let item = self.items.swap_remove(index.index(self.items.len()));
                self.model.finish(*item.key(), Some(item.priority()));
                drop(item);
            }
            Operation::Advance(millis) => {
                advance(Duration::from_millis(millis)).await;
                self.model.advance(millis);
            }
            Operation::ShutDown => {
                self.model.is_shutting_down = true;
                self.model.queued.retain(|queued| queued.due.is_none());
                self.drain = Some(task::spawn(async move { queue.shut_down_with_drain().await }.boxed()));
                self.poll_drain();
            }
            _ => {}
        }
        self.settle().await;
        self.check();
    }

    /// Polls a getter. Returns true if it has ended.
    fn poll_getter(&mut self, at: usize) -> bool {
        let std::task::Poll::Ready(item) = self.getters[at].poll() else { return false };
        let expected = self.model.take();
        assert_eq!(item.as_ref().map(|item| (*item.key(), item.priority())), expected);
        assert!(item.is_some() || self.model.is_shutting_down);
        self.items.extend(item);
        drop(self.getters.remove(at));
        true
    }

    fn poll_drain(&mut self) {
        let is_drained = self.model.ready().is_empty() && self.model.processing.is_empty();
        let Some(drain) = &mut self.drain else { return };
        assert_eq!(drain.poll().is_ready(), is_drained);
        if is_drained {
            self.drain = None;
        }
    }

    /// Polls what is woken until nothing is: those who then wait have nothing to wait for but a later operation.
    async fn settle(&mut self) {
        loop {
            // Another budget of the runtime.
            tokio::task::yield_now().await;
            if let Some(at) = self.getters.iter().position(Spawn::is_woken) {
                self.poll_getter(at);
            } else if let Some(at) = self.additions.iter().position(|(.., addition)| addition.is_woken()) {
                let (key, options, addition) = &mut self.additions[at];
                let is_added = addition.poll().is_ready();
                assert_eq!(is_added, self.model.add(*key, *options));
                if is_added {
                    drop(self.additions.swap_remove(at));
                }
            } else if self.drain.as_ref().is_some_and(Spawn::is_woken) {
                self.poll_drain();
            } else {
                return;
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.began.elapsed(), Duration::from_millis(self.model.now));
        assert_eq!(self.queue.stats(), self.model.stats());
        assert_eq!(self.queue.len(), self.model.ready().len());
        assert_eq!(self.queue.is_shutting_down(), self.model.is_shutting_down);
        for key in 0..6 {
            assert_eq!(self.queue.requeues(&key), self.model.failures.get(&key).copied().unwrap_or_default());
        }
        let is_over = self.model.ready().is_empty() && !self.model.is_shutting_down;
        assert!(self.getters.is_empty() || is_over, "a getter sleeps while a key is ready");
        assert!(
            self.additions.iter().all(|(key, ..)| !self.model.has_place(*key)),
            "an addition sleeps beside a place"
        );
    }
}

fn run(operations: Vec<Operation>, max_keys: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let rate_limiter = Box::new(ExponentialRateLimiter::new(MILLI, 4 * MILLI));
        let mut run = Run {
            queue: WorkQueue::new(WorkQueueConfig { rate_limiter, max_keys }),
            model: Model { max_keys, ..Model::default() },
            began: Instant::now(),
            getters: Vec::new(),
            additions: Vec::new(),
            drain: None,
            items: Vec::new(),
        };
        for operation in operations {
            run.apply(operation).await;
        }
        // Everything that was added is handed out, and the drain ends.
        run.apply(Operation::Advance(10)).await;
        run.apply(Operation::ShutDown).await;
        while !(run.items.is_empty() && run.model.ready().is_empty()) {
            run.apply(Operation::Get).await;
            while let Some(item) = run.items.pop() {
                run.model.finish(*item.key(), None);
                item.done();
                run.settle().await;
                run.check();
            }
        }
        assert!(run.getters.is_empty() && run.additions.is_empty() && run.drain.is_none());
    });
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn a_work_queue_follows_the_model(operations in vec(operation(), 0..80), max_keys in 1..8usize) {
        run(operations, max_keys);
    }
}
