//! Cost of a watcher without events.

use std::time::Duration;

use informerd::proto::pb;

use super::{
    error::BenchError,
    fan_out::{FanOut, Watches},
    publisher::Pattern,
    report::{Better, Measured, Metric},
    run::{Bench, Run, Selected},
    subject::{Setup, Subject},
};

/// Watchers on connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Idle {
    /// Streams, distributed evenly over the connections.
    pub(super) watchers: usize,
    /// Connections; at least 1.
    pub(super) connections: usize,
    pub(super) watches: Watches,
    /// True if they open at once, and close again: the memory is what such a storm costs, and leaves behind.
    pub(super) at_once: bool,
}

const IDLE: Metric = Metric { key: "idle_kib", heading: "IDLE KiB/watcher", better: Better::Less };
const AFTER: Metric = Metric { key: "after_events_kib", heading: "AFTER 10 EVENTS", better: Better::Less };
const CONNECTION: Metric = Metric { key: "connection_kib", heading: "IDLE KiB/connection", better: Better::Less };
const BEFORE: Metric = Metric { key: "resident_before_mib", heading: "RSS BEFORE MiB", better: Better::Neither };
const CLOSED: Metric = Metric { key: "resident_closed_mib", heading: "RSS CLOSED MiB", better: Better::Less };
const SOCKETS: Metric = Metric { key: "sockets_kib", heading: "SOCKET KiB/connection", better: Better::Neither };

/// Events of the warm-up, after which a server has made its one-time allocations.
const WARM: u64 = 100;
const EVENTS: u64 = 10;
/// Watches that open at once. Temporary memory of opening them is not measured, but stays resident if too many open at once.
const AT_A_TIME: usize = 64;
/// Time after which the memory of closed watches is measured.
const CLOSED_FOR: Duration = Duration::from_secs(60);

// === impl Idle ===

impl Idle {
    /// Makes one run: measures the growth of the server's memory.
    pub(super) fn run(self, bench: &Bench, subject: &Subject) -> Result<Measured, BenchError> {
        let Self { watchers, connections, watches, at_once } = self;
        let setup = Setup { streams: watchers.div_ceil(connections), ..FanOut::setup(bench, 1) };
        let mut run = Run::start(bench, subject, &setup, Pattern::in_turn(WARM))?;
        run.watch(0, Selected::Everything, pb::InitialEvents::None)?;
        run.joined(1)?;
        run.deliver(WARM, None, &[WARM])?;

        let before = run.settled_memory()?;
        run.connect(connections, bench.client)?;
        run.subscribes = watches.are_subscribed(subject);
        for watcher in 0..watchers {
            run.watch(1 + watcher % connections, watches.selected(watcher), pb::InitialEvents::None)?;
            if watcher % AT_A_TIME == 0 && !at_once {
                run.joined(2 + watcher)?;
            }
        }
        run.joined(1 + watchers)?;
        let idle = run.settled_memory()?;
        let mut shares = vec![EVENTS; 1 + watchers];
        shares[0] += WARM;
        run.deliver(WARM + EVENTS, None, &shares)?;
        let after = run.settled_memory()?;
        let closed = if at_once { Some(run.memory_closed(CLOSED_FOR)?) } else { None };

        let each = |now: u64, then: u64, count: usize| (now as f64 - then as f64) / 1024.0 / count as f64;
        let sockets = (&SOCKETS, each(idle.sockets, before.sockets, connections));
        if before.resident == 0 {
            return Ok(vec![sockets]);
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let closed = closed
            .map(|closed| [(&BEFORE, mib(before.resident)), (&CLOSED, mib(closed.resident))])
            .into_iter()
            .flatten();
        let measured = [
            (&IDLE, each(idle.resident, before.resident, watchers)),
            (&AFTER, each(after.resident, before.resident, watchers)),
            (&CONNECTION, each(idle.resident, before.resident, connections)),
            sockets,
        ];
        Ok(measured.into_iter().chain(closed).collect())
    }
}
