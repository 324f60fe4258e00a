//! `WorkQueue` beside client-go's: the same random operations on both, each with a clock of its own that only they advance.
//!
//! Not drawn is the one difference by design (tests/upstream.md): an addition without a delay for a delayed key, and a delayed one for
//! a key that is ready, which here are one addition.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use informerd::cache::{AddOptions, ExponentialRateLimiter, WorkItem, WorkQueue, WorkQueueConfig};
use serde::Serialize;

use crate::etcd::program;

const SEQUENCES: usize = 10_000;
const OPERATIONS: usize = 60;
const KEYS: u32 = 6;

/// Call, and what the queue is after it and after a millisecond more.
#[derive(Debug, Serialize)]
struct Operation {
    op: &'static str,
    key: u32,
    millis: u64,
    got: Option<u32>,
    len: usize,
    requeues: u32,
}

/// Sequence that is being drawn.
struct Drawing {
    random: fastrand::Rng,
    queue: WorkQueue<u32>,
    items: Vec<WorkItem<u32>>,
    now: u64,
    /// Keys that are ready, or are once their processing ends.
    added: BTreeSet<u32>,
    /// Times at which delayed keys become ready.
    delayed: BTreeMap<u32, u64>,
}

impl Drawing {
    /// Applies an operation, if it may be drawn in this state. Delays are whole seconds, and no two operations are at the same
    /// millisecond of one, so that no two keys become ready at the same time.
    async fn draw(&mut self) -> Option<Operation> {
        let key = self.random.u32(..KEYS);
        let mut operation = Operation { op: "", key, millis: 0, got: None, len: 0, requeues: 0 };
        let add = |options| self.queue.try_add(key, options).expect("a queue without a bound");
        match self.random.u32(..20) {
            0..5 if !self.delayed.contains_key(&key) => {
                operation.op = "add";
                add(AddOptions::default());
                self.added.insert(key);
            }
            5..7 if !self.added.contains(&key) => {
                (operation.op, operation.millis) = ("after", 1000 * self.random.u64(1..8));
                add(AddOptions { after: Duration::from_millis(operation.millis), ..AddOptions::default() });
                let due = self.delayed.entry(key).or_insert(u64::MAX);
                *due = (*due).min(self.now + operation.millis);
            }
            7..10 if !self.added.contains(&key) => {
                operation.op = "limited";
                let when = (1000 << self.queue.requeues(&key).min(3)).min(8000);
                add(AddOptions { is_rate_limited: true, ..AddOptions::default() });
                let due = self.delayed.entry(key).or_insert(u64::MAX);
                *due = (*due).min(self.now + when);
            }
            10 => {
                operation.op = "forget";
                self.queue.forget(&key);
            }
            11..15 => {
                operation.op = "get";
                if let Some(item) = self.queue.get().now_or_never() {
                    let item = item.expect("the queue is open");
                    self.added.remove(item.key());
                    operation.got = Some(*item.key());
                    self.items.push(item);
                }
            }
            15..18 if !self.items.is_empty() => {
                let item = self.items.swap_remove(self.random.usize(..self.items.len()));
                (operation.op, operation.key) = ("done", *item.key());
                item.done();
            }
            18..20 => (operation.op, operation.millis) = ("advance", 1000 * self.random.u64(1..4)),
            _ => return None,
        }
        let elapsed = if operation.op == "advance" { operation.millis } else { 0 };
        for millis in [elapsed, 1] {
            tokio::time::advance(Duration::from_millis(millis)).await;
            self.now += millis;
        }
        let (now, added) = (self.now, &mut self.added);
        self.delayed.retain(|&key, due| *due > now || !added.insert(key));
        (operation.len, operation.requeues) = (self.queue.len(), self.queue.requeues(&operation.key));
        Some(operation)
    }
}

/// Draws a sequence by its seed.
fn sequence(seed: u64) -> Vec<Operation> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let limiter = ExponentialRateLimiter::new(Duration::from_secs(1), Duration::from_secs(8));
        let config = WorkQueueConfig { rate_limiter: Box::new(limiter), ..WorkQueueConfig::default() };
        let (random, queue) = (fastrand::Rng::with_seed(seed), WorkQueue::new(config));
        let (items, added, delayed) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        let mut drawing = Drawing { random, queue, items, now: 0, added, delayed };
        let mut operations = Vec::new();
        while operations.len() < OPERATIONS {
            operations.extend(drawing.draw().await);
        }
        operations
    })
}

#[test]
fn random_operations_have_the_same_results_as_on_the_queue_of_client_go() {
    let first =
        std::env::var("INFORMERD_CHECKER_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    let mut process = Command::new(program("INFORMERD_KUBERNETES"))
        .arg("work-queue")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    let seeds = (0..SEQUENCES as u64).map(move |number| first.wrapping_add(number));
    let draws = seeds.clone();
    let drawing = thread::spawn(move || {
        let mut handed_out = 0;
        for seed in draws {
            let operations = sequence(seed);
            handed_out += operations.iter().filter(|operation| operation.got.is_some()).count();
            writeln!(input, "{}", serde_json::to_string(&operations).unwrap()).unwrap();
        }
        handed_out
    });
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    for seed in seeds {
        let difference = lines.next().expect("a line for each sequence").unwrap();
        assert!(difference.is_empty(), "INFORMERD_CHECKER_SEED={seed}: {difference}: {:?}", sequence(seed));
    }
    assert!(drawing.join().unwrap() > 4 * SEQUENCES, "few keys were handed out");
    assert!(process.wait().unwrap().success());
}
