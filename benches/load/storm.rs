//! Many clients that request everything at once: a storm of snapshots, and Lists.

use informerd::proto::pb;

use super::{
    error::BenchError,
    fan_out::FanOut,
    publisher::Pattern,
    report::{Better, Measured, Metric},
    run::{self, Bench, PhaseCost, Run, Selected},
    subject::{Setup, Subject},
};

/// Clients that all watch at once, with the current objects, while events arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Storm {
    /// Watchers, each on a connection of its own.
    pub(super) watchers: usize,
    /// Objects that the server holds.
    pub(super) objects: u64,
    /// Events per second meanwhile.
    pub(super) rate: f64,
}

/// Lists of everything, in sequence, while events arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Lists {
    /// Number of Lists.
    pub(super) count: u64,
    /// Objects in each.
    pub(super) objects: u64,
    /// Events per second meanwhile.
    pub(super) rate: f64,
}

const TIME: Metric = Metric { key: "time_s", heading: "TIME s", better: Better::Less };
const THROUGHPUT: Metric = Metric { key: "throughput_gb_s", heading: "GB/s", better: Better::More };
const PER_CORE: Metric = Metric { key: "per_core_gb_s", heading: "GB/s PER SERVER CORE", better: Better::More };
const QUIET_P50: Metric = Metric { key: "quiet_p50_ms", heading: "QUIET P50 ms", better: Better::Less };
const QUIET_P99: Metric = Metric { key: "quiet_p99_ms", heading: "QUIET P99 ms", better: Better::Less };
const BEFORE: Metric = Metric { key: "resident_before_mib", heading: "RSS BEFORE MiB", better: Better::Less };

/// Events before the load begins, for comparison, at the rate of the mode.
const QUIET: u64 = 200;

// === impl Storm ===

impl Storm {
    /// Makes one run: measures its time, and the latency of events meanwhile.
    pub(super) fn run(&self, bench: &Bench, subject: &Subject) -> Result<Measured, BenchError> {
        let Self { watchers, objects, rate } = *self;
        measure(bench, subject, objects, rate, |run| {
            run.connect(watchers, bench.client)?;
            for watcher in 0..watchers {
                run.watch(watcher, Selected::Everything, pb::InitialEvents::Send)?;
            }
            run.joined(watchers)?;
            let tallies = run.client.streams.iter().map(|stream| stream.tally.initial);
            match tallies.enumerate().find(|(_, initial)| *initial != objects) {
                Some((stream, got)) => Err(BenchError::Miscounted { stream, expected: objects, got }),
                None => Ok(()),
            }
        })
    }
}

// === impl Lists ===

impl Lists {
    /// Makes one run: measures the rate of Lists, and the latency of events meanwhile.
    pub(super) fn run(&self, bench: &Bench, subject: &Subject) -> Result<Measured, BenchError> {
        let Self { count, objects, rate } = *self;
        measure(bench, subject, objects, rate, |run| {
            run.connect(1, bench.client)?;
            for list in 0..count as usize {
                let got = run.list(0)?;
                if got != objects {
                    return Err(BenchError::Miscounted { stream: list, expected: objects, got });
                }
            }
            Ok(())
        })
    }
}

/// Fills a server with objects, and runs an action while events arrive, which a witness watches.
fn measure(
    bench: &Bench,
    subject: &Subject,
    objects: u64,
    rate: f64,
    load: impl FnOnce(&mut Run<'_>) -> Result<(), BenchError>,
) -> Result<Measured, BenchError> {
    // A client that is still receiving its objects catches up from the history.
    let history = bench.history.max(objects);
    let mut run = Run::start(bench, subject, &Setup { history, ..FanOut::setup(bench, 0) }, Pattern::in_turn(objects))?;
    let witness = run.witness()?;
    run.publish(objects, None, |_| Ok(()))?;
    let (_, witness) = witness.pause(objects)?;
    run.publish(objects + QUIET, Some(rate), |_| Ok(()))?;
    let (quiet, witness) = witness.pause(objects + QUIET)?;

    let before = run.settled_memory()?;
    let begun = run.begin();
    let mut took = None;
    let published = run.publish_while(rate, |run| {
        load(run)?;
        took = Some(run.end(begun));
        Ok(())
    })?;
    let witness = witness.finish(published)?;

    let bytes = run.client.tally.bytes as f64 / 1e9;
    let mut measured = Vec::new();
    if let Some(PhaseCost { wall, server, memory, .. }) = took {
        measured.extend([(&TIME, wall.as_secs_f64()), (&THROUGHPUT, bytes / wall.as_secs_f64())]);
        measured.extend(server.map(|server| (&PER_CORE, bytes / server.as_secs_f64())));
        measured.extend(run::latencies(witness.latencies()));
        let millis = |share| quiet.quantile(share).map(|nanos| nanos as f64 / 1e6);
        measured.extend(millis(0.5).map(|value| (&QUIET_P50, value)));
        measured.extend(millis(0.99).map(|value| (&QUIET_P99, value)));
        if before.resident > 0 {
            measured.push((&BEFORE, before.resident as f64 / f64::from(1 << 20)));
        }
        measured.extend(run::memory(memory));
    }
    Ok(measured)
}
