//! W1, W2 and W3: events for every watcher, or each for one.

use std::time::Duration;

use informerd::proto::pb;

use super::{
    error::BenchError,
    publisher::Pattern,
    report::{Better, Measured, Metric},
    run::{self, Bench, Run, Selected},
    subject::{Kind, Setup, Subject},
};

/// Watchers on connections, and their events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FanOut {
    /// Streams, distributed evenly over the connections.
    pub(super) watchers: usize,
    /// Connections; at least 1.
    pub(super) connections: usize,
    /// Number of measured events; a tenth of it comes before as a warm-up.
    pub(super) events: u64,
    /// Events per second; none = as fast as the server reads them.
    pub(super) rate: Option<f64>,
    /// Number of index values: each watcher selects one, and each event has one. None = everybody watches everything.
    pub(super) values: Option<u64>,
    pub(super) watches: Watches,
}

/// Calls and selections of the watches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Watches {
    /// True if they are those of one Subscribe call. The baselines keep Watch.
    pub(super) subscribe: bool,
    /// True if each has a selection of its own, although all select the same objects.
    pub(super) own_selections: bool,
}

const SERVER: Metric = Metric { key: "server_us", heading: "SERVER us", better: Better::Less };
const CLIENT: Metric = Metric { key: "client_us", heading: "CLIENT us", better: Better::Neither };
const BOTH: Metric = Metric { key: "both_us", heading: "BOTH us", better: Better::Less };
const RATE: Metric = Metric { key: "rate_k", heading: "k/s", better: Better::More };
const DELIVERED: Metric = Metric { key: "delivered", heading: "DELIVERED", better: Better::Neither };

/// Objects that change if everybody watches everything.
const OBJECTS: u64 = 1000;
/// Divisor of the naive server's events. Broadcast-and-filter takes a hundred times as long for an event, so it gets this share.
const NAIVE_SHARE: u64 = 100;
/// A slow client may block the server this long, so that none is evicted here.
const NO_TIMEOUT: Duration = Duration::from_secs(3600);

/// Watches that open at once: the requests of so many fit into the first window of a Subscribe call.
const AT_A_TIME: usize = 256;

// === impl Watches ===

impl Watches {
    /// Returns true if the watches of this subject are opened by Subscribe.
    pub(super) fn are_subscribed(self, subject: &Subject) -> bool {
        self.subscribe
            && matches!(subject, Subject::Local { kind: Kind::Plain | Kind::Identity, .. } | Subject::Remote(_))
    }

    /// Returns the selection of a watch.
    pub(super) fn selected(self, watcher: usize) -> Selected {
        if self.own_selections { Selected::AllWithout(watcher as u64) } else { Selected::Everything }
    }
}

// === impl FanOut ===

impl FanOut {
    /// Makes one run. The costs are those of a delivery; of an event if each has one watcher.
    pub(super) fn run(&self, bench: &Bench, subject: &Subject) -> Result<Measured, BenchError> {
        let pattern = self.pattern();
        let streams = self.watchers.div_ceil(self.connections);
        let setup = Setup { streams, ..Self::setup(bench, self.connections) };
        let setup = Setup { is_indexed: self.values.is_some(), ..setup };
        let mut run = Run::start(bench, subject, &setup, pattern)?;
        run.subscribes = self.watches.are_subscribed(subject);
        for watcher in 0..self.watchers {
            let value = self.values.map(|_| Selected::Value(watcher as u64));
            let selected = value.unwrap_or_else(|| self.watches.selected(watcher));
            run.watch(watcher % self.connections, selected, pb::InitialEvents::None)?;
            if run.subscribes && (watcher + 1).is_multiple_of(AT_A_TIME) {
                run.joined(watcher + 1)?;
            }
        }
        run.joined(self.watchers)?;

        let (warm, end) = self.range(subject, &pattern);
        run.deliver(warm, None, &pattern.shares(0..warm, self.watchers))?;
        run.client.begin_latencies(if self.rate.is_some() { 1 } else { 16 });
        let before = run.client.tally.changes;
        let shares = pattern.shares(0..end, self.watchers);
        let begun = run.begin();
        run.deliver(end, self.rate, &shares)?;
        let took = run.end(begun);
        let measured_latencies = run::latencies(run.client.latencies());
        run.check_again(&shares)?;

        let delivered = run.client.tally.changes - before;
        let units = if self.values.is_some() { end - warm } else { delivered };
        let each = |time: Duration| time.as_secs_f64() * 1e6 / units as f64;
        let mut measured = Vec::new();
        if let Some(server) = took.server {
            measured.extend([
                (&SERVER, each(server)),
                (&CLIENT, each(took.client)),
                (&BOTH, each(server + took.client)),
            ]);
        } else {
            measured.push((&CLIENT, each(took.client)));
        }
        measured.push((&RATE, units as f64 / 1e3 / took.wall.as_secs_f64()));
        measured.extend(measured_latencies);
        measured.extend(run::memory(took.memory));
        measured.push((&DELIVERED, delivered as f64));
        Ok(measured)
    }

    /// Returns a setup with a stream on each of these connections.
    pub(super) fn setup(bench: &Bench, connections: usize) -> Setup {
        Setup {
            connections,
            streams: 1,
            queue: bench.queue,
            history: bench.history,
            block_timeout: NO_TIMEOUT,
            is_indexed: false,
            compresses: false,
        }
    }

    fn pattern(&self) -> Pattern {
        match self.values {
            Some(values) => Pattern {
                objects: values,
                first: values,
                is_random: true,
                watched: Some((self.watchers as u64).min(values)),
                new_every: None,
            },
            None => Pattern::in_turn(OBJECTS),
        }
    }

    /// Returns the numbers of the first measured event and of the event after the last.
    fn range(&self, subject: &Subject, pattern: &Pattern) -> (u64, u64) {
        let is_naive = matches!(subject, Subject::Naive { .. });
        let share = if is_naive && self.values.is_some() && self.rate.is_none() { NAIVE_SHARE } else { 1 };
        let events = (self.events / share).max(1);
        // An event without a watcher cannot be waited for: the last one must have one.
        let watched = |end: &u64| pattern.watched.is_none_or(|watched| pattern.object(end - 1) < watched);
        let ending_at = |least: u64| (least..u64::MAX).find(watched).unwrap_or(least);
        let warm = ending_at((events / 10).max(pattern.first).max(1));
        (warm, ending_at(warm + events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SELECTIVE: FanOut = FanOut {
        watchers: 10,
        connections: 2,
        events: 1000,
        rate: None,
        values: Some(500),
        watches: Watches { subscribe: false, own_selections: false },
    };

    #[test]
    fn the_last_event_has_a_watcher() {
        let subject = Subject::local(Some("x".into()), Kind::Plain);
        let pattern = SELECTIVE.pattern();
        let (warm, end) = SELECTIVE.range(&subject, &pattern);
        assert!(warm >= 500 && end >= warm + 1000, "each object first, then the events: {warm} {end}");
        assert!(pattern.object(warm - 1) < 10 && pattern.object(end - 1) < 10);
        let everybody = FanOut { values: None, ..SELECTIVE };
        assert_eq!(everybody.range(&subject, &everybody.pattern()), (100, 1100));
    }

    #[test]
    fn broadcast_and_filter_gets_fewer_events_unless_they_are_paced() {
        let naive = Subject::Naive { program: "x".into() };
        let all = FanOut { values: Some(10), events: 10_000, ..SELECTIVE };
        assert_eq!(all.range(&naive, &all.pattern()), (10, 110));
        let paced = FanOut { rate: Some(1e3), ..all };
        assert_eq!(paced.range(&naive, &paced.pattern()), (1000, 11_000));
    }
}
