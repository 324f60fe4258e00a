//! Subscribers of a small view, without changes outside of it, beside subscribers of whole objects.

use informerd::proto::pb;

use super::{
    error::BenchError,
    fan_out::FanOut,
    publisher::Pattern,
    report::{Better, Measured, Metric},
    run::{self, Bench, Run, Selected},
    subject::Subject,
};

/// Subscribers of objects that change all the time, outside of the view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Views {
    /// Watchers, each on a connection of its own.
    pub(super) watchers: usize,
    /// Objects that the server holds.
    pub(super) objects: u64,
    /// Number of events, in turn of all objects; every hundredth is a new object, which each subscriber receives.
    pub(super) events: u64,
    /// Events per second; none = as fast as the server reads them.
    pub(super) rate: Option<f64>,
}

const SERVER: Metric = Metric { key: "server_event_us", heading: "SERVER us/event", better: Better::Less };
const CLIENT: Metric = Metric { key: "client_event_us", heading: "CLIENT us/event", better: Better::Less };
const BYTES: Metric = Metric { key: "sent_mib", heading: "SENT MiB", better: Better::Less };
const RECEIVED: Metric = Metric { key: "received", heading: "RECEIVED", better: Better::Neither };
const SUPPRESSED: Metric = Metric { key: "suppressed", heading: "SUPPRESSED", better: Better::Neither };

/// One event in so many is a new object.
const NEW_EVERY: u64 = 100;

// === impl Views ===

impl Views {
    /// Makes one run: with the view, or with whole objects as a control. Each subscriber must receive each new object, and each
    /// other event, or its bookmarks must count it as suppressed.
    pub(super) fn run(&self, bench: &Bench, subject: &Subject, has_view: bool) -> Result<Measured, BenchError> {
        let Self { watchers, objects, events, rate } = *self;
        let pattern = Pattern { new_every: Some(NEW_EVERY), ..Pattern::in_turn(objects) };
        let mut run = Run::start(bench, subject, &FanOut::setup(bench, watchers), pattern)?;
        let witness = run.witness()?;
        run.publish(objects, None, |_| Ok(()))?;
        // It would be one more subscriber.
        drop(witness.finish(objects)?);
        run.view = has_view.then(view);
        for watcher in 0..watchers {
            run.watch(watcher, Selected::Everything, pb::InitialEvents::None)?;
        }
        run.joined(watchers)?;

        let (end, before) = (objects + events, run.client.tally.bytes);
        let begun = run.begin();
        run.deliver(end, rate, &vec![events; watchers])?;
        let took = run.end(begun);
        run.check_again(&vec![events; watchers])?;
        let bytes = run.client.tally.bytes - before;
        let new = pattern.new_objects(objects..end);
        let received = if has_view { new } else { events };
        let tallies = run.client.streams.iter().map(|stream| stream.tally.changes);
        if let Some((stream, got)) = tallies.enumerate().find(|(_, got)| *got != received) {
            return Err(BenchError::Miscounted { stream, expected: received, got });
        }

        let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / events as f64;
        let mut measured = Vec::new();
        measured.extend(took.server.map(|server| (&SERVER, each(server))));
        measured.push((&CLIENT, each(took.client)));
        measured.push((&BYTES, bytes as f64 / f64::from(1 << 20)));
        measured.extend(run::memory(took.memory));
        measured.push((&RECEIVED, received as f64));
        measured.push((&SUPPRESSED, (events - received) as f64));
        Ok(measured)
    }
}

/// Returns what a program on each node needs of a pod.
fn view() -> pb::View {
    let fields = ["metadata.name", "metadata.labels", "spec.nodeName", "status.phase"];
    pb::View { fields: fields.map(str::to_owned).into(), only_if_changed: true, ..Default::default() }
}
