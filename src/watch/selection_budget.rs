//! Time of the writer for selections and views: its bounds, and the measured cost of each.
//!
//! All times are in nanoseconds of a [`Clock`].

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use smallvec::SmallVec;

/// Source of the time by which evaluations are measured.
#[derive(Debug, Clone)]
pub(super) enum Clock {
    /// System clock.
    Since(Instant),
    /// Clock that a test steps.
    #[cfg(test)]
    Stepped(std::sync::Arc<Stepped>),
}

/// Clock that advances only when it is read, by a step that the test sets.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Stepped {
    pub(crate) now: AtomicU64,
    /// Advance at each reading.
    pub(crate) step: AtomicU64,
}

/// Cost of one selection or view for each change: a moving average.
#[derive(Debug)]
pub(super) struct Cost(AtomicU64);

/// Time that selections and views may take of the writer, of each publish cycle and of all its time: a token bucket.
#[derive(Debug)]
pub(super) struct SelectionBudget {
    cycle: u64,
    percent: u64,
    left: u64,
    as_of: u64,
}

/// Timer of evaluations: expressions are measured one by one, other selections in runs.
#[derive(Debug)]
pub(super) struct Meter<'a> {
    clock: &'a Clock,
    since: u64,
    /// Selections evaluated since then.
    run: Run,
}

type Run = SmallVec<[usize; RUN]>;

/// Evaluations of cheap selections that are measured together.
const RUN: usize = 16;
/// Cost that is assumed of a selection before its first evaluation.
const EXPRESSION: Duration = Duration::from_micros(20);
const OTHER: Duration = Duration::from_micros(1);
/// Weight of the average: a new value counts for one part in this many.
const WEIGHT: u64 = 8;

// === impl Clock ===

impl Clock {
    pub(super) fn now(&self) -> u64 {
        match self {
            Self::Since(origin) => nanos(origin.elapsed()),
            #[cfg(test)]
            Self::Stepped(clock) => clock.now.fetch_add(clock.step.load(Ordering::SeqCst), Ordering::SeqCst),
        }
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

// === impl Cost ===

impl Cost {
    pub(super) fn unknown(is_expression: bool) -> Self {
        Self(AtomicU64::new(nanos(if is_expression { EXPRESSION } else { OTHER })))
    }

    pub(super) fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn set(&self, cost: u64) {
        self.0.store(cost, Ordering::Relaxed);
    }

    /// Adds a measured cost. Only one thread at a time evaluates a group.
    pub(super) fn note(&self, cost: u64) {
        let average = self.get();
        self.0.store(average - average / WEIGHT + cost / WEIGHT, Ordering::Relaxed);
    }
}

// === impl SelectionBudget ===

impl SelectionBudget {
    /// Returns a budget of this time for a cycle and this share of all time, in percent.
    pub(super) fn new(cycle: Duration, percent: u32) -> Self {
        let cycle = nanos(cycle);
        Self { cycle, percent: percent.into(), left: cycle, as_of: 0 }
    }

    /// Begins a cycle. Returns the time that it may take.
    pub(super) fn begin(&mut self, now: u64) -> u64 {
        let earned = now.saturating_sub(self.as_of).saturating_mul(self.percent) / 100;
        self.left = self.left.saturating_add(earned).min(self.cycle);
        self.as_of = now;
        self.left
    }

    pub(super) fn spend(&mut self, time: u64) {
        self.left = self.left.saturating_sub(time);
    }
}

// === impl Meter ===

impl<'a> Meter<'a> {
    pub(super) fn begin(clock: &'a Clock) -> Self {
        Self { clock, since: clock.now(), run: Run::new() }
    }

    /// Runs one evaluation, of a selection by its number. Passes the measured selections, and the time of each, to
    /// `settle`.
    pub(super) fn evaluate(
        &mut self,
        number: usize,
        is_expression: bool,
        evaluate: impl FnOnce(),
        mut settle: impl FnMut(&[usize], u64),
    ) {
        if is_expression {
            self.settle(&mut settle);
        }
        evaluate();
        self.run.push(number);
        if is_expression || self.run.len() == RUN {
            self.settle(settle);
        }
    }

    /// Measures the evaluations that have not been measured yet.
    pub(super) fn settle(&mut self, mut settle: impl FnMut(&[usize], u64)) {
        if self.run.is_empty() {
            return;
        }
        let now = self.clock.now();
        let time = now.saturating_sub(self.since);
        self.since = now;
        settle(&self.run, time / self.run.len() as u64);
        self.run.clear();
    }
}
