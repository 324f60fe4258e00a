//! Figures of a server at one moment, and the rates between two moments.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use prost_types::Timestamp;
use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    cli::{
        client_flags::ServerFlags,
        failure::{Failure, UNAVAILABLE},
    },
    client::{Client, ClientError},
    proto::{self, pb},
};

/// Time limit of a sample.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Difference by which the reported start of one process may vary.
const START_TOLERANCE: Duration = Duration::from_secs(2);

/// Counters of a server at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    /// Moment of the counters, in the time of this process.
    pub(super) at: Duration,
    pub(super) time: Option<SystemTime>,
    pub(super) version: String,
    pub(super) stats: pb::GetStatsResponse,
    pub(super) resources: Vec<pb::Resource>,
    pub(super) watchers: Vec<pb::Watcher>,
}

/// Sample with its rates.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    pub(super) time: Option<SystemTime>,
    /// Time since the sample before; none for the first one.
    pub(super) elapsed: Option<Duration>,
    pub(super) version: String,
    pub(super) server: pb::ServerStats,
    pub(super) resources: Vec<ResourceFigures>,
    pub(super) watchers: Vec<WatcherFigures>,
    /// Rates of all resources together.
    pub(super) total: ResourceRates,
}

/// Figures of a resource.
#[derive(Debug, Clone, Default)]
pub(super) struct ResourceFigures {
    pub(super) resource: pb::Resource,
    pub(super) stats: pb::ResourceStats,
    pub(super) rates: ResourceRates,
}

/// Numbers in a second; none if there is no counter to compare with.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ResourceRates {
    pub(super) changes: Option<f64>,
    pub(super) events: Option<f64>,
    pub(super) bytes: Option<f64>,
    pub(super) drops: Option<f64>,
}

/// Figures of a watch.
#[derive(Debug, Clone, Default)]
pub(super) struct WatcherFigures {
    pub(super) watcher: pb::Watcher,
    pub(super) events: Option<f64>,
    pub(super) bytes: Option<f64>,
}

/// Counters of the last sample, to compare with.
#[derive(Debug, Default)]
pub(super) struct Meter {
    last: Option<Counters>,
}

#[derive(Debug)]
struct Counters {
    at: Duration,
    started_at: Option<SystemTime>,
    /// Changes, events, bytes, drops.
    resources: HashMap<String, [u64; 4]>,
    /// By id: the beginning of the watch; events, bytes.
    watchers: HashMap<u64, (Option<Timestamp>, [u64; 2])>,
}

/// Samples of a server at an interval.
#[derive(Debug)]
pub(super) struct Sampler {
    client: Client,
    /// The only resource; empty for all.
    resource: String,
    interval: Duration,
    began: Instant,
    next_at: Instant,
}

// === impl Meter ===

impl Meter {
    /// Returns the figures of a sample, with the rates since the one before.
    pub(super) fn read(&mut self, sample: Sample) -> Figures {
        let Sample { at, time, version, stats, mut resources, watchers } = sample;
        let server = stats.server.unwrap_or_default();
        let started_at = server.started_at.and_then(proto::system_time);
        let mut now = Counters { at, started_at, resources: HashMap::new(), watchers: HashMap::new() };
        let last = self.last.take().filter(|last| last.is_of_process(started_at));
        let elapsed = last.as_ref().map(|last| at.saturating_sub(last.at)).filter(|elapsed| !elapsed.is_zero());
        let seconds = elapsed.map(|elapsed| elapsed.as_secs_f64());
        let mut stats: HashMap<_, _> =
            stats.resources.into_iter().map(|stats| (stats.resource.clone(), stats)).collect();
        resources.sort_by(|one, other| one.name.cmp(&other.name));
        let resources: Vec<_> = resources
            .into_iter()
            .map(|resource| {
                let stats = stats.remove(&resource.name).unwrap_or_default();
                let counters = [stats.changes, stats.events_sent, stats.bytes_sent, stats.dropped];
                let before = last.as_ref().and_then(|last| last.resources.get(&resource.name));
                now.resources.insert(resource.name.clone(), counters);
                let [changes, events, bytes, drops] = rates(counters, before, seconds);
                ResourceFigures { resource, stats, rates: ResourceRates { changes, events, bytes, drops } }
            })
            .collect();
        let watchers = watchers
            .into_iter()
            .map(|watcher| {
                let counters = [watcher.sent, watcher.bytes_sent];
                let before = last.as_ref().and_then(|last| last.watchers.get(&watcher.id));
                // Another process, or another watch of this one, may have the same id.
                let before = before.filter(|(since, _)| *since == watcher.since).map(|(_, counters)| counters);
                now.watchers.insert(watcher.id, (watcher.since, counters));
                let [events, bytes] = rates(counters, before, seconds);
                WatcherFigures { watcher, events, bytes }
            })
            .collect();
        let total = ResourceRates::sum(&resources);
        self.last = Some(now);
        Figures { time, elapsed, version, server, resources, watchers, total }
    }
}

/// Returns the rates of counters; none for all if one of them has begun again.
fn rates<const N: usize>(now: [u64; N], before: Option<&[u64; N]>, seconds: Option<f64>) -> [Option<f64>; N] {
    let known = before.zip(seconds).filter(|(before, _)| before.iter().zip(&now).all(|(before, now)| before <= now));
    std::array::from_fn(|at| known.map(|(before, seconds)| (now[at] - before[at]) as f64 / seconds))
}

// === impl Counters ===

impl Counters {
    /// Returns true if the counters are those of a process that began at this time.
    fn is_of_process(&self, started_at: Option<SystemTime>) -> bool {
        match (self.started_at, started_at) {
            (Some(one), Some(other)) => {
                let apart = one.duration_since(other).or_else(|_| other.duration_since(one));
                apart.is_ok_and(|apart| apart <= START_TOLERANCE)
            }
            (one, other) => one == other,
        }
    }
}

// === impl ResourceRates ===

impl ResourceRates {
    /// Returns the sums of the rates that are known.
    fn sum(resources: &[ResourceFigures]) -> Self {
        let sum = |rate: fn(&Self) -> Option<f64>| {
            resources.iter().filter_map(|figures| rate(&figures.rates)).reduce(|one, other| one + other)
        };
        Self {
            changes: sum(|rates| rates.changes),
            events: sum(|rates| rates.events),
            bytes: sum(|rates| rates.bytes),
            drops: sum(|rates| rates.drops),
        }
    }
}

// === impl Sampler ===

impl Sampler {
    /// Connects to a server. The first sample is taken at once.
    pub(super) async fn connect(server: &ServerFlags, resource: &str, interval: Duration) -> Result<Self, Failure> {
        let (client, began) = (server.connect().await?, Instant::now());
        Ok(Self { client, resource: resource.to_owned(), interval, began, next_at: began })
    }

    /// Waits until it is time for the next sample, and takes it.
    pub(super) async fn next(&mut self) -> Result<Sample, Failure> {
        sleep_until(self.next_at).await;
        self.next_at = Instant::now() + self.interval;
        match timeout(TIMEOUT, self.sample()).await {
            Ok(sample) => sample,
            Err(_) => Err(Failure::new(UNAVAILABLE, format!("no figures within {TIMEOUT:?}"))),
        }
    }

    async fn sample(&self) -> Result<Sample, Failure> {
        let (client, began) = (&self.client, self.began);
        let stats = async {
            let stats = client.stats().await?;
            Ok::<_, ClientError>((stats, began.elapsed()))
        };
        let (described, (stats, at)) = tokio::try_join!(client.list_resources(), stats)?;
        let mut resources = described.resources;
        if !self.resource.is_empty() {
            let known: Vec<String> = resources.iter().map(|resource| resource.name.clone()).collect();
            resources.retain(|resource| resource.name == self.resource);
            if resources.is_empty() {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                return Err(Failure::unknown("resource", &self.resource, &known));
            }
        }
        let watchers = client.watchers(&self.resource).await?;
        let version = described.server.map(|server| server.version).unwrap_or_default();
        Ok(Sample { at, time: Some(SystemTime::now()), version, stats, resources, watchers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    /// Returns the sample of a process that began at `start`, with one resource and one watch.
    fn sample(at: u64, start: i64, counters: [u64; 4], watcher: (u64, i64, [u64; 2])) -> Sample {
        let [changes, events_sent, bytes_sent, dropped] = counters;
        let (id, since, [sent, watch_bytes]) = watcher;
        let stats = pb::ResourceStats {
            resource: "pods".to_owned(),
            changes,
            events_sent,
            bytes_sent,
            dropped,
            ..Default::default()
        };
        let server = Some(pb::ServerStats { started_at: Some(time(start)), ..Default::default() });
        let watcher = pb::Watcher { id, since: Some(time(since)), sent, bytes_sent: watch_bytes, ..Default::default() };
        Sample {
            at: Duration::from_secs(at),
            stats: pb::GetStatsResponse { server, resources: vec![stats] },
            resources: vec![pb::Resource { name: "pods".to_owned(), ..Default::default() }],
            watchers: vec![watcher],
            ..Default::default()
        }
    }

    fn read(meter: &mut Meter, sample: Sample) -> ([Option<f64>; 4], [Option<f64>; 2]) {
        let figures = meter.read(sample);
        let ResourceRates { changes, events, bytes, drops } = figures.resources[0].rates;
        assert_eq!(figures.total, figures.resources[0].rates);
        ([changes, events, bytes, drops], [figures.watchers[0].events, figures.watchers[0].bytes])
    }

    #[test]
    fn rates_are_those_since_the_sample_before() {
        let mut meter = Meter::default();
        let first = sample(10, 100, [5, 50, 500, 0], (7, 200, [30, 300]));
        assert_eq!(read(&mut meter, first.clone()), ([None; 4], [None; 2]), "nothing to compare with");
        let second = sample(14, 100, [7, 60, 500, 4], (7, 200, [32, 340]));
        assert_eq!(
            read(&mut meter, second.clone()),
            ([Some(0.5), Some(2.5), Some(0.0), Some(1.0)], [Some(0.5), Some(10.0)])
        );
        assert_eq!(read(&mut meter, second), ([None; 4], [None; 2]), "no time has passed");
    }

    #[test]
    fn a_counter_that_began_again_has_no_rate() {
        let after = |next: Sample| {
            let mut meter = Meter::default();
            meter.read(sample(10, 100, [5, 50, 500, 0], (7, 200, [30, 300])));
            read(&mut meter, next)
        };
        let grown = ([Some(5.0), Some(0.0), Some(0.0), Some(0.0)], [Some(1.0), Some(0.0)]);
        assert_eq!(after(sample(11, 100, [10, 50, 500, 0], (7, 200, [31, 300]))), grown);
        assert_eq!(after(sample(11, 102, [10, 50, 500, 0], (7, 200, [31, 300]))), grown, "the clock is set");
        let restarted = after(sample(11, 110, [10, 50, 500, 0], (7, 200, [31, 300])));
        assert_eq!(restarted, ([None; 4], [None; 2]), "another process");
        let (rates, _) = after(sample(11, 100, [0, 60, 600, 0], (7, 200, [30, 300])));
        assert_eq!(rates, [None; 4], "a resource that a reload has replaced");
        let (_, rates) = after(sample(11, 100, [5, 50, 500, 0], (7, 201, [31, 310])));
        assert_eq!(rates, [None; 2], "another watch of the same id");
        let (_, rates) = after(sample(11, 100, [5, 50, 500, 0], (8, 200, [31, 310])));
        assert_eq!(rates, [None; 2], "a new watch");
        let (_, rates) = after(sample(11, 100, [5, 50, 500, 0], (7, 200, [31, 0])));
        assert_eq!(rates, [None; 2], "a counter of it is lower");
    }
}
