//! Common parts of the modes: a server, its feed and the load client, from the beginning of a run to its end.

use std::time::{Duration, Instant};

use informerd::proto::pb;
use prost::Message;

use super::{
    client::{Client, ClientConfig},
    error::BenchError,
    process::{self, Memory, Process, Watchdog},
    publisher::{Feed, Pattern},
    report::{Better, Measured, Metric},
    sink::Call,
    stats::Histogram,
    subject::{Running, Setup, Subject},
    template::{Content, INDEX, node},
    witness::Witness,
};

pub(super) const P50: Metric = Metric { key: "p50_ms", heading: "P50 ms", better: Better::Less };
pub(super) const P99: Metric = Metric { key: "p99_ms", heading: "P99 ms", better: Better::Less };
pub(super) const RESIDENT: Metric = Metric { key: "resident_mib", heading: "RSS MiB", better: Better::Less };
pub(super) const SOCKETS: Metric = Metric { key: "sockets_mib", heading: "SOCKETS MiB", better: Better::Neither };

/// Settings of a benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bench {
    /// Subjects; the first is compared with the others.
    pub(super) subjects: Vec<Subject>,
    /// Runs of each subject.
    pub(super) repetitions: usize,
    /// Settings of the load client.
    pub(super) client: ClientConfig,
    /// Policy that watchers request.
    pub(super) policy: pb::FullChannelPolicy,
    /// True if they read initial events in batches.
    pub(super) batches: bool,
    /// Length of their queues, in events.
    pub(super) queue: u32,
    /// Content of the objects.
    pub(super) content: Content,
    /// Events that a server started here keeps in its history.
    pub(super) history: u64,
}

/// Server with its feed and its watchers.
pub(super) struct Run<'a> {
    pub(super) bench: &'a Bench,
    pub(super) client: Client,
    /// View that further watches request, with a bookmark every second, which counts what it suppresses.
    pub(super) view: Option<pb::View>,
    /// True if the watches of a connection are those of one Subscribe call.
    pub(super) subscribes: bool,
    epoch: Instant,
    /// Feed; none while a publisher uses it.
    feed: Option<Feed>,
    /// Process of the server, which ends after the client.
    running: Running,
}

/// Selection of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selected {
    Everything,
    /// Everything too, by a selector that differs for each number.
    AllWithout(u64),
    /// The objects under one value of the index.
    Value(u64),
}

/// Clock readings at the beginning of a measurement.
pub(super) struct Begun {
    at: Instant,
    server: Option<Duration>,
    client: Duration,
    watchdog: Watchdog,
}

/// Result of a measurement.
pub(super) struct PhaseCost {
    pub(super) wall: Duration,
    /// Processor time of the server; none if its process is unknown.
    pub(super) server: Option<Duration>,
    pub(super) client: Duration,
    /// Peak memory.
    pub(super) memory: Memory,
}

/// Time in which surplus events would arrive, and freed memory is returned.
const AFTER: Duration = Duration::from_millis(20);

// === impl Run ===

impl<'a> Run<'a> {
    /// Starts the subject, and connects the client.
    pub(super) fn start(
        bench: &'a Bench,
        subject: &Subject,
        setup: &Setup,
        pattern: Pattern,
    ) -> Result<Self, BenchError> {
        let (running, writer) = subject.start(setup)?;
        let epoch = Instant::now();
        let client = Client::connect(running.address, setup.connections, bench.client, epoch)?;
        let feed = Feed::new(writer, subject.form(), bench.content, pattern, epoch);
        Ok(Self { bench, client, view: None, subscribes: false, epoch, feed: Some(feed), running })
    }

    /// Opens a watch; with or without the current objects.
    pub(super) fn watch(
        &mut self,
        connection: usize,
        selected: Selected,
        from: pb::InitialEvents,
    ) -> Result<usize, BenchError> {
        let request = self.watch_request(selected, from);
        let stream = if self.subscribes {
            self.client.subscribe(connection, request)?
        } else {
            self.client.call(connection, Call::Watch, &request.encode_to_vec())?
        };
        self.client.streams[stream].is_merged = self.merges();
        Ok(stream)
    }

    /// Returns true if a change may stand for several.
    fn merges(&self) -> bool {
        self.bench.policy == pb::FullChannelPolicy::Coalesce
    }

    fn watch_request(&self, selected: Selected, from: pb::InitialEvents) -> pb::WatchRequest {
        let (mut label_selector, mut index) = (String::new(), None);
        match selected {
            Selected::Everything => {}
            // No object has this label.
            Selected::AllWithout(label) => label_selector = format!("!label-{label}"),
            Selected::Value(value) => {
                index = Some(pb::IndexMatch { name: INDEX.to_owned(), values: vec![node(value)] });
            }
        }
        pb::WatchRequest {
            resource: self.running.resource.clone(),
            initial_events: from.into(),
            batch_initial_events: self.bench.batches,
            format: pb::PayloadFormat::Raw.into(),
            label_selector,
            index,
            queue: Some(pb::QueueOptions { policy: self.bench.policy.into(), length: self.bench.queue }),
            bookmark_interval: self.view.as_ref().map(|_| prost_types::Duration { seconds: 1, nanos: 0 }),
            view: self.view.clone(),
            ..Default::default()
        }
    }

    /// Returns a watch of everything on its own connection and thread, which has joined.
    pub(super) fn witness(&self) -> Result<Witness, BenchError> {
        let mut client = Client::connect(self.running.address, 1, self.bench.client, self.epoch)?;
        let request = self.watch_request(Selected::Everything, pb::InitialEvents::None);
        let stream = client.call(0, Call::Watch, &request.encode_to_vec())?;
        client.streams[stream].is_merged = self.merges();
        client.run(|client| client.tally.joined == 1)?;
        Ok(Witness::new(client))
    }

    /// Lists everything; returns the number of objects.
    pub(super) fn list(&mut self, connection: usize) -> Result<u64, BenchError> {
        let stream = self.begin_list(connection)?;
        self.read(|client| client.streams[stream].tally.ended == 1)?;
        Ok(self.client.streams[stream].tally.objects)
    }

    /// Begins a List of everything; returns its index in the client's streams.
    pub(super) fn begin_list(&mut self, connection: usize) -> Result<usize, BenchError> {
        let (resource, format) = (self.running.resource.clone(), pb::PayloadFormat::Raw.into());
        let request = pb::ListRequest { resource, format, ..Default::default() };
        self.client.call(connection, Call::List, &request.encode_to_vec())
    }

    /// Opens further connections for the client.
    pub(super) fn connect(&mut self, connections: usize, config: ClientConfig) -> Result<(), BenchError> {
        self.client.open(connections, config)
    }

    /// Reads until this many watches have joined.
    pub(super) fn joined(&mut self, watches: usize) -> Result<(), BenchError> {
        self.read(|client| client.tally.joined == watches as u64)
    }

    /// Reads until the condition is true; reports a server that has ended.
    pub(super) fn read(&mut self, is_done: impl Fn(&Client) -> bool) -> Result<(), BenchError> {
        self.client.run(is_done).map_err(|error| {
            let ended = self.running.process.as_mut().and_then(Process::exit_report);
            ended.map_or(error, |said| BenchError::ServerEnded { said })
        })
    }

    /// Publishes the events up to this one while `meanwhile` runs, and waits for both.
    pub(super) fn publish<T>(
        &mut self,
        up_to: u64,
        rate: Option<f64>,
        meanwhile: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let publishing = self.feed()?.publish(up_to, rate);
        let done = meanwhile(self).inspect_err(|_| self.abandon())?;
        self.feed = Some(publishing.finish()?);
        Ok(done)
    }

    /// Publishes at a fixed rate while `meanwhile` runs; returns the number of all events so far.
    pub(super) fn publish_while(
        &mut self,
        rate: f64,
        meanwhile: impl FnOnce(&mut Self) -> Result<(), BenchError>,
    ) -> Result<u64, BenchError> {
        let publishing = self.feed()?.publish(u64::MAX, Some(rate));
        meanwhile(self).inspect_err(|_| self.abandon())?;
        let feed = publishing.stop()?;
        let published = feed.next;
        self.feed = Some(feed);
        Ok(published)
    }

    fn feed(&mut self) -> Result<Feed, BenchError> {
        self.feed.take().ok_or_else(|| BenchError::Publish("it is publishing already".to_owned()))
    }

    /// Kills the server after a failure; otherwise the publisher would wait for a reader for ever.
    fn abandon(&mut self) {
        if let Some(process) = &mut self.running.process {
            process.kill();
        }
    }

    /// Publishes the events up to this one, and reads until every watch has received exactly its share of all events so far.
    pub(super) fn deliver(&mut self, up_to: u64, rate: Option<f64>, shares: &[u64]) -> Result<(), BenchError> {
        let total = shares.iter().sum::<u64>();
        self.publish(up_to, rate, |run| run.read(|client| client.tally.changes + client.tally.missed >= total))?;
        self.check(shares)
    }

    /// Reads for a moment longer, and checks that every watch has received exactly these changes.
    pub(super) fn check_again(&mut self, shares: &[u64]) -> Result<(), BenchError> {
        self.client.run_for(AFTER)?;
        self.check(shares)
    }

    fn check(&self, shares: &[u64]) -> Result<(), BenchError> {
        let tallies = self.client.streams.iter().map(|stream| stream.tally);
        for (stream, (tally, expected)) in tallies.zip(shares).enumerate() {
            let got = tally.changes + tally.missed;
            if got != *expected {
                return Err(BenchError::Miscounted { stream, expected: *expected, got });
            }
        }
        Ok(())
    }

    pub(super) fn begin(&self) -> Begun {
        let watchdog = Watchdog::start(self.running.pid);
        let server = self.running.pid.map(process::cpu_of);
        Begun { watchdog, server, client: process::cpu_of_this_thread(), at: Instant::now() }
    }

    /// Returns the cost since `begun`.
    pub(super) fn end(&self, begun: Begun) -> PhaseCost {
        let wall = begun.at.elapsed();
        let client = process::cpu_of_this_thread().saturating_sub(begun.client);
        let now = self.running.pid.map(process::cpu_of);
        let server = now.zip(begun.server).map(|(now, then)| now.saturating_sub(then));
        PhaseCost { wall, server, client, memory: begun.watchdog.stop() }
    }

    /// Closes all connections, and returns the server's memory after some time.
    pub(super) fn memory_closed(&mut self, time: Duration) -> Result<Memory, BenchError> {
        self.client = Client::connect(self.running.address, 0, self.bench.client, self.epoch)?;
        self.client.run_for(time)?;
        Ok(process::memory_of(self.running.pid))
    }

    /// Returns the server's memory after a while without activity.
    pub(super) fn settled_memory(&mut self) -> Result<Memory, BenchError> {
        self.client.run_for(25 * AFTER)?;
        Ok(process::memory_of(self.running.pid))
    }
}

/// Returns the latencies as measurements.
pub(super) fn latencies(histogram: &Histogram) -> Measured {
    let millis = |share| histogram.quantile(share).map(|nanos| nanos as f64 / 1e6);
    let both = [millis(0.5).map(|value| (&P50, value)), millis(0.99).map(|value| (&P99, value))];
    both.into_iter().flatten().collect()
}

/// Returns the memory as measurements.
pub(super) fn memory(memory: Memory) -> Measured {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let sockets = (&SOCKETS, mib(memory.sockets));
    if memory.resident == 0 { vec![sockets] } else { vec![(&RESIDENT, mib(memory.resident)), sockets] }
}
