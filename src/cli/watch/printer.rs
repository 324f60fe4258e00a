//! Output of `informerd watch`: the events of one resource or of several, in the order in which they arrive.

use std::{
    collections::HashMap,
    io::Write,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, StreamExt, stream::select_all};

use super::{
    exec::EventCommand,
    flags::{EventFlags, WatchFlags},
    notes::WatchNotes,
};
use crate::{
    cli::{
        failure::Failure,
        print::{Event, EventPrinter, Output},
        reader::Reader,
        signals::Signals,
        waiting,
    },
    client::{Progress, Query, Update, WatchOptions},
    proto::pb::{self, SyncState},
};

/// Output of the watches so far.
pub(super) struct WatchPrinter<'a, W> {
    printer: EventPrinter<'a, W>,
    flags: &'a WatchFlags,
    with_initial: bool,
    resources: Vec<Watched>,
    /// Last states, to compare with.
    last: HashMap<(Arc<str>, String, String), pb::Object>,
}

/// Resource that is watched.
struct Watched {
    resource: Arc<str>,
    /// True after its first update.
    has_begun: bool,
    is_stale: bool,
    notes: WatchNotes,
}

/// Time after which the events of several resources are printed although some have not synced yet.
const SYNC_TIMEOUT: Duration = Duration::from_secs(1);

// === impl WatchPrinter ===

impl<'a, W: Write> WatchPrinter<'a, W> {
    pub(super) fn new(flags: &'a WatchFlags, mut printer: EventPrinter<'a, W>) -> Result<Self, Failure> {
        let is_since = flags.events.since.is_some();
        if is_since || flags.events.exec.is_some() {
            // There are no initial events to wait for, or the row of each precedes what its command prints.
            printer.synced()?;
        }
        let with_initial = is_since || (flags.initial && !flags.watch_only);
        Ok(Self { printer, flags, with_initial, resources: Vec::new(), last: HashMap::new() })
    }

    pub(super) async fn run(&mut self, queries: Vec<Query>) -> Result<(), Failure> {
        let EventFlags { since, .. } = &self.flags.events;
        let options = WatchOptions {
            // A deleted object is printed with its last state.
            keep_objects: self.flags.objects.options().output != Output::Name,
            fail_fast: true,
            queue: self.flags.events.queue(),
            ..WatchOptions::default()
        };
        let client = self.flags.objects.server.connect_lazy()?;
        let client = if queries.len() > 1 { client.subscribing() } else { client };
        let watches = queries.iter().enumerate().map(|(at, query)| {
            let watch = match since {
                Some(version) => client.watch_since(query, &options, version),
                None => client.watch(query, &options),
            };
            watch.map(move |update| (at, update))
        });
        let mut watches = select_all(watches);
        self.resources = queries.iter().map(|query| Watched::new(&query.resource)).collect();
        let (mut signals, reader) = (Signals::of_writer()?, Reader::new());
        let waiting = waiting::note(&self.flags.objects.server, self.only_resource());
        let patience = tokio::time::sleep(SYNC_TIMEOUT);
        tokio::pin!(waiting, patience);
        let (mut is_waiting, mut is_patient) = (true, queries.len() > 1);
        loop {
            // Flushes only when no update is ready.
            let update = if let Some(update) = watches.next().now_or_never() {
                update
            } else {
                self.printer.flush()?;
                tokio::select! {
                    // Cancel-safe: a watch loses nothing when another branch wins.
                    _ = signals.next() => return self.end(),
                    () = reader.gone() => return Ok(()),
                    update = watches.next() => update,
                    note = &mut waiting, if is_waiting => {
                        is_waiting = false;
                        self.note(&note)?;
                        continue;
                    }
                    () = &mut patience, if is_patient => {
                        is_patient = false;
                        self.printer.synced()?;
                        continue;
                    }
                }
            };
            match update {
                Some((at, Ok(update))) => {
                    self.resources[at].has_begun = true;
                    if self.print(at, update, &mut signals).await?.is_break() {
                        return self.end();
                    }
                }
                Some((_, Err(error))) => {
                    self.end()?;
                    return Err(error.into());
                }
                None => return self.end(),
            }
            is_waiting &= !self.resources.iter().all(|watched| watched.has_begun);
        }
    }

    /// Returns the resource; empty if there are several.
    fn only_resource(&self) -> &'a str {
        if self.resources.len() > 1 { "" } else { &self.flags.resource }
    }

    /// Prints an update, and runs the command for it. Breaks if a signal has ended the command.
    async fn print(&mut self, at: usize, update: Update, signals: &mut Signals) -> Result<ControlFlow<()>, Failure> {
        let note = self.resources[at].notes.of(&update).map(|note| self.of_resource(at, note));
        match update {
            Update::Event { event_type, cause, object, resource_version } => {
                let time = self.flags.events.timestamps.then(SystemTime::now);
                let resource = (self.resources.len() > 1).then(|| Arc::clone(&self.resources[at].resource));
                let event = Event { change: event_type, cause, resource_version, object, old: None, time, resource };
                return self.event(at, event, signals).await;
            }
            Update::Synced(progress) => {
                if self.resources.iter().all(|watched| watched.notes.is_synced) {
                    self.printer.synced()?;
                }
                if let Some(note) = note {
                    self.note(&note)?;
                }
                self.note_progress(at, &progress)?;
            }
            Update::Bookmark(progress) => self.note_progress(at, &progress)?,
            Update::Dropped { .. } | Update::Note(_) => {
                if let Some(note) = note {
                    self.note(&note)?;
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns a note with the resource that it is about, if there are several.
    fn of_resource(&self, at: usize, note: String) -> String {
        match note.strip_prefix("# ") {
            Some(text) if self.resources.len() > 1 => format!("# {}: {text}", self.resources[at].resource),
            _ => note,
        }
    }

    async fn event(&mut self, at: usize, event: Event, signals: &mut Signals) -> Result<ControlFlow<()>, Failure> {
        let EventFlags { diff, exec, exec_timeout, .. } = &self.flags.events;
        let last = if *diff { self.replace_last(at, &event) } else { None };
        let Watched { resource, notes, .. } = &self.resources[at];
        if !notes.is_synced && !self.with_initial {
            return Ok(ControlFlow::Continue(()));
        }
        let command =
            exec.as_deref().map(|command| (EventCommand { command, resource, timeout: *exec_timeout }, event.clone()));
        let new = last.is_some().then(|| event.object.clone());
        self.printer.push(event)?;
        if let Some((last, new)) = last.zip(new) {
            self.printer.differences(&last, &new)?;
        }
        let Some((command, event)) = command else { return Ok(ControlFlow::Continue(())) };
        self.printer.flush()?;
        let note = tokio::select! {
            note = command.run(&event) => note,
            _ = signals.next() => return Ok(ControlFlow::Break(())),
        };
        if let Some(note) = note {
            self.note(&note)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Keeps the state of an object; returns the last one if the event has changed it.
    fn replace_last(&mut self, at: usize, event: &Event) -> Option<pb::Object> {
        let resource = Arc::clone(&self.resources[at].resource);
        let key = (resource, event.object.namespace.clone(), event.object.name.clone());
        if event.change == pb::EventType::Deleted {
            self.last.remove(&key);
            return None;
        }
        let last = self.last.insert(key, event.object.clone());
        last.filter(|_| event.change == pb::EventType::Modified)
    }

    /// Prints a note if the state of the upstream or the namespaces of the caller have changed.
    fn note_progress(&mut self, at: usize, progress: &Progress) -> Result<(), Failure> {
        let watched = &mut self.resources[at];
        let resource = Arc::clone(&watched.resource);
        let is_stale = progress.source == SyncState::Stale;
        let was_stale = std::mem::replace(&mut watched.is_stale, is_stale);
        if was_stale != is_stale {
            let what = if is_stale { "upstream unreachable" } else { "upstream reachable again" };
            self.note(&format_args!("# {resource}: {what}"))?;
        }
        if let Some(note) = self.resources[at].notes.limit(&resource, progress) {
            self.note(&note)?;
        }
        Ok(())
    }

    /// Prints a note, after the rows of earlier events.
    fn note(&mut self, note: &dyn std::fmt::Display) -> Result<(), Failure> {
        self.printer.flush()?;
        self.flags.objects.server.note(note);
        Ok(())
    }

    /// Prints what was received.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        self.printer.synced()?;
        Ok(self.printer.flush()?)
    }
}

// === impl Watched ===

impl Watched {
    fn new(resource: &str) -> Self {
        Self { resource: resource.into(), has_begun: false, is_stale: false, notes: WatchNotes::default() }
    }
}
