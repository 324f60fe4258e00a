//! Verifier of BLOCK over all clients of a resource of a server: the clients for which the server may wait, for how long, and
//! those that it may end for it.
//!
//! A server that is idle and has not applied all messages is blocked. The verifier checks that:
//!
//! - The server waits only for a client that has read its queue, and whose queue is full and was not half empty since.
//! - It waits for no more than `block_timeout` and a tenth of any period.
//! - It continues without a client that blocks it only when that time is used up.
//! - It ends a client only when all watches of that client together have blocked it for as long: time that others used does not
//!   count.
//!
//! Clients do not see for whom the server waits, so the verifier uses an upper bound: the time in which it may wait for a client.

use std::{collections::BTreeSet, time::Duration};

use super::{record::Moment, truth::Truth};

/// Progress of a server at one time at which all tasks were idle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) moment: Moment,
    /// True if it has not applied all messages.
    pub(crate) is_behind: bool,
}

/// One connection under BLOCK.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) server: usize,
    pub(crate) resource: usize,
    pub(crate) peer: u8,
    pub(crate) length: usize,
    /// True if it is paused while other watches of its Subscribe stream are read.
    pub(crate) pauses: bool,
    pub(crate) epoch: usize,
    /// Turn at which it was joined, and the last turn at which it was open.
    pub(crate) joined: u64,
    pub(crate) left: Option<u64>,
    /// Number of batches applied up to each of its events.
    pub(crate) due: Vec<usize>,
    pub(crate) reads: Vec<Read>,
    /// Turn at which the server ended it as too slow.
    pub(crate) is_slow: Option<u64>,
}

/// Events that it had read after a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    pub(crate) turn: u64,
    pub(crate) events: usize,
    /// Number of due events up to then, including those before its start.
    pub(crate) next: usize,
}

/// Limits of BLOCK.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) block_timeout: Duration,
}

/// Token bucket of time, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    capacity: i128,
    level: i128,
}

/// Pace of a connection's server: true at each index at which the server may wait for the connection.
struct Course {
    may: Vec<bool>,
}

/// Resolution of timers, and rounding errors of divisions, in nanoseconds.
const TOLERANCE: i128 = 2_000_000;

impl Bucket {
    fn new(capacity: Duration) -> Self {
        let capacity = capacity.as_nanos().cast_signed();
        Self { capacity, level: capacity }
    }

    fn pass(&mut self, time: Duration, is_charged: bool, is_refilled: bool) {
        let time = time.as_nanos().cast_signed();
        let charged = if is_charged { time } else { 0 };
        let refilled = if is_refilled { time / 10 } else { 0 };
        self.level = (self.level + refilled - charged).min(self.capacity);
    }
}

impl Pace {
    fn batches(&self) -> usize {
        self.moment.batches
    }
}

/// Verifies all connections of a run under BLOCK together. A resource never waits for clients of another.
pub(crate) fn verify(truths: &[Truth], paces: &[Pace], traces: &[Trace], limits: &Limits) -> Result<(), String> {
    let served: BTreeSet<_> = paces.iter().map(|pace| (pace.moment.server, pace.moment.resource)).collect();
    for (server, resource) in served {
        let is_its = |pace: &&Pace| (pace.moment.server, pace.moment.resource) == (server, resource);
        let paces: Vec<Pace> = paces.iter().filter(is_its).copied().collect();
        let its = traces.iter().filter(|trace| (trace.server, trace.resource) == (server, resource));
        let truth = &truths[resource];
        let courses: Vec<(&Trace, Course)> = its.map(|trace| (trace, trace.course(truth, &paces))).collect();
        waits(&paces, &courses, limits).map_err(|what| format!("resource {resource} of server {server}: {what}"))?;
        for (trace, _) in &courses {
            let told = |turn: u64| paces.partition_point(|pace| pace.moment.turn <= turn);
            if let Some(turn) = trace.is_slow {
                is_slow(&paces[..told(turn)], trace, &courses, limits)?;
            }
        }
    }
    Ok(())
}

/// Verifies for whom a server waits, and for how long.
fn waits(paces: &[Pace], courses: &[(&Trace, Course)], limits: &Limits) -> Result<(), String> {
    // Upper and lower bound of the time that is left.
    let [mut bucket, mut least] = [Bucket::new(limits.block_timeout); 2];
    for (at, pace) in paces.iter().enumerate() {
        if pace.is_behind && !courses.iter().any(|(_, course)| course.may[at]) {
            let known: Vec<_> = courses.iter().map(|(trace, course)| (trace, &course.may[..=at])).collect();
            let moment = pace.moment;
            return Err(format!("it has not applied what was said, and may wait for nobody: {moment:?}, {known:?}"));
        }
        let Some(next) = paces.get(at + 1) else { break };
        bucket.pass(next.moment.since(&pace.moment), pace.is_behind && next.is_behind, true);
        if bucket.level < -TOLERANCE {
            return Err(format!("it has waited {} ns more than it may: {:?}", -bucket.level, next.moment));
        }
        let time = next.moment.since(&pace.moment);
        let is_charged = pace.is_behind || courses.iter().any(|(_, course)| course.may[at]);
        least.pass(time, is_charged, !is_charged);
        // While time passes no client reads or leaves.
        let goes_on = !next.is_behind || next.batches() > pace.batches();
        if pace.is_behind && goes_on && !time.is_zero() && least.level > TOLERANCE {
            return Err(format!("it might have waited {} ns longer, and goes on: {:?}", least.level, next.moment));
        }
    }
    Ok(())
}

/// Verifies that the server could end a connection for the time that its client has used.
fn is_slow(paces: &[Pace], trace: &Trace, courses: &[(&Trace, Course)], limits: &Limits) -> Result<(), String> {
    let mut bucket = Bucket::new(limits.block_timeout);
    let (mut could_be, mut least) = (false, bucket.level);
    for (at, pace) in paces.iter().enumerate() {
        let its = courses.iter().filter(|(other, _)| other.peer == trace.peer);
        let is_charged = its.into_iter().any(|(_, course)| course.may[at]);
        let may = courses.iter().any(|(other, course)| std::ptr::eq(*other, trace) && course.may[at]);
        let before = bucket.level;
        if let Some(next) = paces.get(at + 1) {
            bucket.pass(next.moment.since(&pace.moment), is_charged, !is_charged);
        }
        if may {
            least = least.min(before).min(bucket.level);
            could_be |= least <= TOLERANCE;
        }
    }
    if could_be {
        return Ok(());
    }
    Err(format!("SLOW_CONSUMER with at least {least} ns of the client's budget left, of {trace:?}"))
}

impl Trace {
    fn course(&self, truth: &Truth, paces: &[Pace]) -> Course {
        let mut may = Vec::new();
        let mut reads = self.reads.iter().peekable();
        let length = self.length.max(1);
        let (mut next, mut events, mut told) = (None, 0, 0);
        // True if the server may wait for it once its queue is full, and true if the queue is full.
        let (mut has_right, mut is_full) = (false, false);
        // True if the client has read since its queue became full: the server may wait again for a queue for which it did not
        // have to wait before.
        let mut has_read_since = false;
        for (at, pace) in paces.iter().enumerate() {
            let Moment { turn, epoch, batches, .. } = pace.moment;
            let is_there = turn >= self.joined && self.left.is_none_or(|left| turn <= left) && epoch == self.epoch;
            // True if the client has read since the previous pace; a piece arrives at once.
            let mut has_read = false;
            while let Some(read) = reads.next_if(|read| read.turn < turn) {
                (next, events, has_read) = (Some(read.next), read.events, true);
            }
            let unread = told.max(next.unwrap_or(0)) - next.unwrap_or(0);
            if has_read {
                has_right |= events >= length;
                has_read_since |= is_full;
                is_full &= unread > self.length / 2;
            }
            // A batch without changes, at the current version, may count as applied before it is.
            let applied = paces[..at].last().filter(|last| last.moment.epoch == epoch).map_or(batches, Pace::batches);
            let has_advanced = truth.epochs[epoch].batches[applied.min(batches)..batches]
                .iter()
                .any(|batch| !batch.changes.is_empty());
            if has_advanced && is_full {
                // The server continues: it has given this client up, or never had to wait for it. The client's next read may
                // change that. A watch that was paused may have been served together with another until then: the server waits
                // for it alone from its next step on.
                (has_right, is_full) = (has_read_since || self.pauses, false);
            }
            let due = self.due.partition_point(|batch| *batch <= batches);
            let is_more = due > told;
            told = due;
            let first = next.unwrap_or(0);
            let is_at_length = is_there && told >= first + length;
            has_read_since &= is_full;
            // The server looks at a full queue when it has published anything.
            is_full = is_there && (is_full || (is_more || has_advanced) && has_right && is_at_length);
            may.push(is_full);
        }
        Course { may }
    }
}
