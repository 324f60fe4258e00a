//! Clients that receive everything at once, compressed, beside clients that receive it as it is.

use informerd::proto::pb;

use super::{
    client::ClientConfig,
    error::BenchError,
    fan_out::FanOut,
    publisher::Pattern,
    report::{Better, Measured, Metric},
    run::{self, Bench, Run, Selected},
    sink::Call,
    subject::{Setup, Subject},
    template::Content,
};

/// Clients of the same objects, which are pods.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Compressed {
    /// Clients, each on a connection of its own.
    pub(super) clients: usize,
    /// Objects that the server holds.
    pub(super) objects: u64,
    /// Call of each client: a Watch with the initial events, or a List.
    pub(super) call: Call,
    /// Name of the compression.
    pub(super) compression: &'static str,
}

const SERVER: Metric = Metric { key: "server_client_ms", heading: "SERVER ms/client", better: Better::Less };
const BYTES: Metric = Metric { key: "client_mib", heading: "MiB/client", better: Better::Less };
const TIME: Metric = Metric { key: "time_s", heading: "TIME s", better: Better::Less };

// === impl Compressed ===

impl Compressed {
    /// Makes one run: with the compression, or without as a control. Each client must receive each object.
    pub(super) fn run(&self, bench: &Bench, subject: &Subject, is_control: bool) -> Result<Measured, BenchError> {
        let Self { clients, objects, call, compression } = *self;
        let client = ClientConfig { accepts: Some(compression).filter(|_| !is_control), ..bench.client };
        let bench = &Bench { content: Content::Pod, client, ..bench.clone() };
        let setup = Setup { compresses: true, ..FanOut::setup(bench, clients) };
        let mut run = Run::start(bench, subject, &setup, Pattern::in_turn(objects))?;
        let witness = run.witness()?;
        run.publish(objects, None, |_| Ok(()))?;
        // It would be one more subscriber.
        drop(witness.finish(objects)?);

        let before = run.client.tally.bytes;
        let begun = run.begin();
        for client in 0..clients {
            match call {
                Call::Watch => run.watch(client, Selected::Everything, pb::InitialEvents::Send)?,
                Call::List => run.begin_list(client)?,
            };
        }
        run.read(|client| client.tally.joined + client.tally.ended == clients as u64)?;
        let took = run.end(begun);
        let tallies = run.client.streams.iter().map(|stream| stream.tally.initial + stream.tally.objects);
        if let Some((stream, got)) = tallies.enumerate().find(|(_, got)| *got != objects) {
            return Err(BenchError::Miscounted { stream, expected: objects, got });
        }

        let bytes = (run.client.tally.bytes - before) as f64 / clients as f64;
        let mut measured = Vec::new();
        measured.extend(took.server.map(|server| (&SERVER, server.as_secs_f64() * 1e3 / clients as f64)));
        measured.push((&BYTES, bytes / f64::from(1 << 20)));
        measured.push((&TIME, took.wall.as_secs_f64()));
        measured.extend(run::memory(took.memory));
        Ok(measured)
    }
}
