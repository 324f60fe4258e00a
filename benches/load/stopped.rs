//! Effect of one client that has stopped reading on the others.

use std::time::Duration;

use informerd::proto::pb;

use super::{
    client::ClientConfig,
    error::BenchError,
    fan_out::FanOut,
    publisher::Pattern,
    report::{Better, Measured, Metric},
    run::{self, Bench, Run, Selected},
    subject::{Setup, Subject},
};

/// Watchers on connections of their own, the last of which reads nothing while events arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stopped {
    /// Number of watchers, including the stopped one; at least 2.
    pub(super) watchers: usize,
    /// Number of events.
    pub(super) events: u64,
    /// Events per second.
    pub(super) rate: f64,
    /// Timeout of BLOCK.
    pub(super) block_timeout: Duration,
}

const SERVER: Metric = Metric { key: "server_us", heading: "SERVER us", better: Better::Less };
const DELIVERED: Metric = Metric { key: "stopped_delivered", heading: "STOPPED GOT", better: Better::Neither };
const MISSED: Metric = Metric { key: "stopped_missed", heading: "MISSED", better: Better::Neither };
const ENDED: Metric = Metric { key: "stopped_ended", heading: "ENDED", better: Better::Neither };

/// Window of the stopped client: HTTP/2's default.
const WINDOW: u32 = 65_535;
const WARM: u64 = 100;

// === impl Stopped ===

impl Stopped {
    /// Makes one run, with a client that stops, or without one as a control.
    pub(super) fn run(&self, bench: &Bench, subject: &Subject, stops: bool) -> Result<Measured, BenchError> {
        let (others, events) = (self.watchers - 1, self.events);
        // Under BLOCK the server waits only for clients that have read one full queue.
        let first = WARM.max(u64::from(bench.queue));
        let end = first + events;
        // REPLAY reads from the history, however long the client has stopped.
        let history = bench.history.max(2 * end);
        let setup = Setup { block_timeout: self.block_timeout, history, ..FanOut::setup(bench, others) };
        let mut run = Run::start(bench, subject, &setup, Pattern::in_turn(WARM))?;
        run.connect(1, ClientConfig { window: WINDOW, ..bench.client })?;
        for watcher in 0..self.watchers {
            run.watch(watcher, Selected::Everything, pb::InitialEvents::None)?;
        }
        let stopped = &mut run.client.streams[others];
        stopped.is_timed = false;
        stopped.may_end = stops && bench.policy == pb::FullChannelPolicy::Block;
        run.joined(self.watchers)?;
        run.deliver(first, None, &vec![first; self.watchers])?;

        let warm = run.client.streams[others].tally;
        run.client.begin_latencies(1);
        run.client.stop(others, stops);
        let begun = run.begin();
        let expected = end * others as u64;
        run.publish(end, Some(self.rate), |run| {
            run.read(|client| {
                let own = client.streams[others].tally;
                client.tally.changes + client.tally.missed - own.changes - own.missed >= expected
            })
        })?;
        let took = run.end(begun);
        let mut measured = run::latencies(run.client.latencies());
        if let Some(server) = took.server {
            measured.push((&SERVER, server.as_secs_f64() * 1e6 / (events * self.watchers as u64) as f64));
        }
        measured.extend(run::memory(took.memory));

        run.client.stop(others, false);
        run.read(|client| {
            let own = client.streams[others].tally;
            own.changes + own.missed >= end || own.ended == 1
        })?;
        let own = run.client.streams[others].tally;
        let mut shares = vec![end; self.watchers];
        if own.ended == 1 {
            shares[others] = own.changes;
        }
        run.check_again(&shares)?;
        measured.push((&DELIVERED, (own.changes - warm.changes) as f64));
        measured.push((&MISSED, (own.missed - warm.missed) as f64));
        measured.push((&ENDED, own.ended as f64));
        Ok(measured)
    }
}
