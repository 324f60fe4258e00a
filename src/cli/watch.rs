//! `informerd watch`: rows on stdout, notes about the watch on stderr.

mod exec;
mod state;

use std::{
    collections::HashMap,
    io::Write,
    ops::ControlFlow,
    time::{Duration, SystemTime},
};

use clap::{Args, ValueEnum, builder::BoolishValueParser};
use futures_util::FutureExt;

use self::exec::EventCommand;
use super::{
    alias::of_resource,
    client_flags::{ChangedFlag, ObjectFlags, TimeoutFlags},
    failure::Failure,
    print::{Event, EventPrinter, Output, stdout},
    reader::Reader,
    signals::Signals,
    waiting,
};
use crate::{
    client::{Note, Progress, Query, Update, WatchOptions},
    config::parse_duration,
    proto::pb::{self, SyncState},
};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml (edit a file in examples/manifests to see a change):
  informerd watch pods
  informerd watch pods -l app=web --watch-only
  informerd watch configmaps platform/feature-flags -o yaml
  informerd watch pods --expression 'object.spec.containers.size() > 1'
  informerd watch pods -n orders -o jsonl | jq .object.status.phase
  informerd watch pods -l app=web --state -o jsonl | jq '.items | length'
  informerd watch pods --index node=node-a --policy coalesce
  informerd watch deployments --diff --timestamps
  informerd watch configmaps --exec 'echo $INFORMERD_EVENT $INFORMERD_NAME; cat' --timeout 10m

It resumes after a restart of the server, and misses nothing. With --state a reader that is slow gets the last state, and not every \
one before it; -o jsonl prints one List a line. Ctrl-C and SIGTERM end it with exit code 0.

--exec runs its command with sh, for one event after the other: the next event waits, and if the queue at the server fills \
meanwhile, the policy applies. The command has INFORMERD_EVENT (ADDED, MODIFIED, DELETED), INFORMERD_CAUSE, INFORMERD_RESOURCE, \
INFORMERD_NAMESPACE, INFORMERD_NAME, INFORMERD_UID, INFORMERD_OBJECT_VERSION and INFORMERD_RESOURCE_VERSION in its environment, \
and on its standard input what -o jsonl prints for the event. A note reports a command that fails.";

/// Flags of `informerd watch`.
#[derive(Debug, Clone, Args)]
pub(super) struct WatchFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// Only objects of this name; NAMESPACE/NAME is one object
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Begin with the current objects
    #[arg(
        long,
        value_name = "BOOL",
        action = clap::ArgAction::Set,
        default_value_t = true,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Selection"
    )]
    initial: bool,
    /// Changes only, as with --initial=false
    #[arg(long, help_heading = "Selection")]
    watch_only: bool,
    /// In place of events, print the whole list, sorted, once it is complete and after changes
    #[arg(
        long,
        help_heading = "Selection",
        conflicts_with_all = ["initial", "watch_only", "since", "policy", "queue_length", "diff", "timestamps", "exec"]
    )]
    state: bool,
    #[command(flatten)]
    changed: ChangedFlag,
    #[command(flatten)]
    events: EventFlags,
    #[command(flatten)]
    objects: ObjectFlags,
}

of_resource!(WatchFlags, objects.server);

/// Flags about the events of a watch.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Events")]
struct EventFlags {
    /// Begin with the changes after this version, as `list` and `watch -o json` print it, in place of the current objects
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["initial", "watch_only"])]
    since: Option<String>,

    /// Policy of the server when the queue of this watch is full [default: the server's]
    #[arg(long, value_name = "POLICY", value_enum)]
    policy: Option<Policy>,

    /// Length of the queue at the server, in events [default: the server's]
    #[arg(long, value_name = "NUMBER")]
    queue_length: Option<u32>,

    /// End after this time, with exit code 0 [default: never]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,

    /// Print the time at which each event was received
    #[arg(long)]
    timestamps: bool,

    /// Print the fields that each change has altered, for tables
    #[arg(long)]
    diff: bool,

    /// Run this command for each event that is printed, one at a time
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,

    /// Kill a command that runs longer than this
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration, requires = "exec")]
    exec_timeout: Duration,
}

/// Flags of the commands that print the current objects, and can go on as `informerd watch`.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Events")]
pub(super) struct FollowFlags {
    /// Print the objects and every change to them, as `informerd watch` does
    #[arg(short, long, conflicts_with_all = ["sort_by", "limit"])]
    pub(super) watch: bool,

    /// With -w: changes only
    #[arg(long, requires = "watch")]
    watch_only: bool,
}

/// Policy of a full queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Events are dropped, and fetched again later
    Drop,
    /// Other watches wait for this one, for a while
    Block,
    /// The server reads its history for this watch
    Replay,
    /// Changes of an object merge
    Coalesce,
}

/// Output of a watch so far.
struct WatchPrinter<'a, W> {
    printer: EventPrinter<'a, W>,
    flags: &'a WatchFlags,
    with_initial: bool,
    is_stale: bool,
    /// Namespaces that the watch is limited to.
    namespaces: Vec<String>,
    notes: WatchNotes,
    /// Last states, to compare with.
    last: HashMap<(String, String), pb::Object>,
}

/// Notes about a watch for its user.
#[derive(Debug, Default)]
pub(super) struct WatchNotes {
    is_synced: bool,
    objects: u64,
}

/// Status reasons after which a watch lists again.
const RELISTED: &[&str] = &["RESOURCE_VERSION_EXPIRED", "HISTORY_CHANGED"];

pub(super) async fn run(flags: &WatchFlags) -> Result<(), Failure> {
    let WatchFlags { resource, name, objects, events, .. } = flags;
    objects.selection.check()?;
    let options = objects.options();
    if events.diff && !options.output.is_table() {
        return Err(Failure::usage("--diff is for tables: leave out -o; -o jsonl prints whole objects to compare"));
    }
    let query = objects.selection.query_of_name(resource, name.as_deref());
    let query = flags.changed.applied_to(query);
    let following = async {
        if flags.state {
            return state::run(resource, query, objects).await;
        }
        let mut printer = WatchPrinter::new(flags, EventPrinter::new(stdout(), &options))?;
        printer.run(&query).await
    };
    match events.timeout {
        None => following.await,
        // What was received is printed: the printer flushes when it waits.
        Some(timeout) => tokio::time::timeout(timeout, following).await.unwrap_or(Ok(())),
    }
}

// === impl FollowFlags ===

impl FollowFlags {
    /// Returns the flags of the same watch.
    pub(super) fn flags(
        &self,
        resource: &str,
        name: Option<&str>,
        timeout: &TimeoutFlags,
        objects: &ObjectFlags,
    ) -> WatchFlags {
        WatchFlags {
            resource: resource.to_owned(),
            name: name.map(str::to_owned),
            initial: true,
            watch_only: self.watch_only,
            state: false,
            changed: ChangedFlag::default(),
            events: EventFlags { timeout: timeout.timeout, ..EventFlags::default() },
            objects: objects.clone(),
        }
    }
}

// === impl EventFlags ===

impl EventFlags {
    /// Returns the options of the queue; none if they are all the server's.
    fn queue(&self) -> Option<pb::QueueOptions> {
        let policy = match self.policy {
            None => pb::FullChannelPolicy::Unspecified,
            Some(Policy::Drop) => pb::FullChannelPolicy::Drop,
            Some(Policy::Block) => pb::FullChannelPolicy::Block,
            Some(Policy::Replay) => pb::FullChannelPolicy::Replay,
            Some(Policy::Coalesce) => pb::FullChannelPolicy::Coalesce,
        };
        let options = pb::QueueOptions { policy: policy.into(), length: self.queue_length.unwrap_or_default() };
        Some(options).filter(|options| *options != pb::QueueOptions::default())
    }
}

// === impl WatchPrinter ===

impl<'a, W: Write> WatchPrinter<'a, W> {
    fn new(flags: &'a WatchFlags, mut printer: EventPrinter<'a, W>) -> Result<Self, Failure> {
        let is_since = flags.events.since.is_some();
        if is_since || flags.events.exec.is_some() {
            // There are no initial events to wait for, or the row of each precedes what its command prints.
            printer.synced()?;
        }
        let with_initial = is_since || (flags.initial && !flags.watch_only);
        let notes = WatchNotes::default();
        Ok(Self { printer, flags, with_initial, is_stale: false, namespaces: Vec::new(), notes, last: HashMap::new() })
    }

    async fn run(&mut self, query: &Query) -> Result<(), Failure> {
        let EventFlags { since, .. } = &self.flags.events;
        let options = WatchOptions {
            // A deleted object is printed with its last state.
            keep_objects: self.flags.objects.options().output != Output::Name,
            fail_fast: true,
            queue: self.flags.events.queue(),
            ..WatchOptions::default()
        };
        let client = self.flags.objects.server.connect_lazy()?;
        let mut watch = match since {
            Some(version) => client.watch_since(query, &options, version),
            None => client.watch(query, &options),
        };
        let (mut signals, reader) = (Signals::new()?, Reader::new());
        let waiting = waiting::note(&self.flags.objects.server, &self.flags.resource);
        tokio::pin!(waiting);
        let mut is_waiting = true;
        loop {
            // Flushes only when no update is ready.
            let update = if let Some(update) = watch.next().now_or_never() {
                update
            } else {
                self.printer.flush()?;
                tokio::select! {
                    // Cancel-safe: a watch loses nothing when another branch wins.
                    _ = signals.next() => return self.end(),
                    () = reader.gone() => return Ok(()),
                    update = watch.next() => update,
                    note = &mut waiting, if is_waiting => {
                        is_waiting = false;
                        self.note(&note)?;
                        continue;
                    }
                }
            };
            is_waiting = false;
            match update {
                Some(Ok(update)) => {
                    if self.print(update, &mut signals).await?.is_break() {
                        return self.end();
                    }
                }
                Some(Err(error)) => {
                    self.end()?;
                    return Err(error.into());
                }
                None => return self.end(),
            }
        }
    }

    /// Prints an update, and runs the command for it. Breaks if a signal has ended the command.
    async fn print(&mut self, update: Update, signals: &mut Signals) -> Result<ControlFlow<()>, Failure> {
        let note = self.notes.of(&update);
        match update {
            Update::Event { event_type, cause, object, resource_version } => {
                let time = self.flags.events.timestamps.then(SystemTime::now);
                return self.event(Event { change: event_type, cause, resource_version, object, time }, signals).await;
            }
            Update::Synced(progress) => {
                self.printer.synced()?;
                if let Some(note) = note {
                    self.note(&note)?;
                }
                self.note_progress(progress)?;
            }
            Update::Bookmark(progress) => self.note_progress(progress)?,
            Update::Dropped { .. } | Update::Note(_) => {
                if let Some(note) = note {
                    self.note(&note)?;
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn event(&mut self, event: Event, signals: &mut Signals) -> Result<ControlFlow<()>, Failure> {
        let EventFlags { diff, exec, exec_timeout, .. } = &self.flags.events;
        let last = if *diff { self.replace_last(&event) } else { None };
        if !self.notes.is_synced && !self.with_initial {
            return Ok(ControlFlow::Continue(()));
        }
        let command = exec.as_deref().map(|command| {
            (EventCommand { command, resource: &self.flags.resource, timeout: *exec_timeout }, event.clone())
        });
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
    fn replace_last(&mut self, event: &Event) -> Option<pb::Object> {
        let key = (event.object.namespace.clone(), event.object.name.clone());
        if event.change == pb::EventType::Deleted {
            self.last.remove(&key);
            return None;
        }
        let last = self.last.insert(key, event.object.clone());
        last.filter(|_| event.change == pb::EventType::Modified)
    }

    /// Prints a note if the state of the upstream or the namespaces of the caller have changed.
    fn note_progress(&mut self, progress: Progress) -> Result<(), Failure> {
        let is_stale = progress.source == SyncState::Stale;
        if std::mem::replace(&mut self.is_stale, is_stale) != is_stale {
            let resource = &self.flags.resource;
            let what = if is_stale { "upstream unreachable" } else { "upstream reachable again" };
            self.note(&format_args!("# {resource}: {what}"))?;
        }
        if self.namespaces != progress.namespaces {
            self.namespaces = progress.namespaces;
            self.printer.flush()?;
            self.flags.objects.server.note_limited(&self.flags.resource, &self.namespaces);
        }
        Ok(())
    }

    /// Prints a note, after the rows of earlier events.
    fn note(&mut self, note: &dyn std::fmt::Display) -> Result<(), Failure> {
        self.printer.flush()?;
        self.flags.objects.server.note(note);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.printer.synced()?;
        Ok(self.printer.flush()?)
    }
}

// === impl WatchNotes ===

impl WatchNotes {
    /// Returns the note for an update, if there is one.
    pub(super) fn of(&mut self, update: &Update) -> Option<String> {
        match update {
            Update::Event { event_type: pb::EventType::Added, .. } => self.objects += 1,
            Update::Event { event_type: pb::EventType::Deleted, .. } => self.objects = self.objects.saturating_sub(1),
            Update::Synced(progress) if !std::mem::replace(&mut self.is_synced, true) => {
                let Self { objects: count, .. } = self;
                let objects = if *count == 1 { "object" } else { "objects" };
                return Some(format!("# synced: {count} {objects} at {}", progress.resource_version));
            }
            Update::Event { .. } | Update::Bookmark(_) | Update::Synced(_) => {}
            Update::Dropped { count, after } => return Some(format!("# {count} events missing after {after}")),
            Update::Note(note) => return Some(describe(note)),
        }
        None
    }
}

fn describe(note: &Note) -> String {
    match note {
        // A new history, or an old version, is nothing to act on: the client lists again.
        Note::Reconnecting { error, .. } if RELISTED.iter().any(|reason| error.reason() == Some(reason)) => {
            "# cannot resume from the last version: listing again, and comparing".to_owned()
        }
        Note::Reconnecting { error, delay } => format!("# reconnecting in {:.1}s: {error}", delay.as_secs_f64()),
        Note::Resumed { resource_version } => format!("# resumed at {resource_version}"),
        Note::Relisted { changes, .. } => {
            format!("# relisted: {changes} {}", if *changes == 1 { "change" } else { "changes" })
        }
        Note::Healing { count, delay, .. } => {
            format!("# {count} events dropped: resuming before them in {:.1}s", delay.as_secs_f64())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::client::ClientError;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        flags: WatchFlags,
    }

    fn parse(arguments: &[&str]) -> WatchFlags {
        Command::try_parse_from([&["watch"], arguments].concat()).unwrap().flags
    }

    #[test]
    fn a_name_may_contain_its_namespace() {
        let chosen = |arguments: &[&str]| {
            let WatchFlags { resource, name, objects, .. } = parse(arguments);
            let query = objects.selection.query_of_name(&resource, name.as_deref());
            (query.namespace.unwrap_or_default(), query.name.unwrap_or_default())
        };
        let pair = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        assert_eq!(chosen(&["pods"]), pair("", ""));
        assert_eq!(chosen(&["pods", "web"]), pair("", "web"));
        assert_eq!(chosen(&["pods", "shop/web"]), pair("shop", "web"));
        assert_eq!(chosen(&["pods", "shop/web", "-n", "shop"]), pair("shop", "web"));
        assert_eq!(chosen(&["pods", "dir/web", "-n", "shop"]), pair("shop", "dir/web"));
        assert_eq!(chosen(&["pods", "/dir/web"]), pair("", "dir/web"));
    }

    #[test]
    fn initial_events_can_be_left_out() {
        assert!(parse(&["pods"]).initial && !parse(&["pods", "--initial=false"]).initial);
        assert!(parse(&["pods", "--watch-only"]).watch_only);
    }

    #[test]
    fn a_state_has_no_initial_events_to_leave_out() {
        assert!(parse(&["pods", "--state", "-l", "app=web", "-o", "yaml"]).state);
        for other in ["--watch-only", "--initial=false"] {
            let error = Command::try_parse_from(["watch", "pods", "--state", other]).unwrap_err().to_string();
            let flag = other.split('=').next().unwrap();
            assert!(error.contains("'--state' cannot be used with") && error.contains(flag), "{error}");
        }
    }

    #[test]
    fn notes_are_one_line() {
        let error = ClientError::Request { problem: "x".to_owned() };
        let note = Note::Reconnecting { error, delay: Duration::from_millis(812) };
        assert_eq!(describe(&note), "# reconnecting in 0.8s: x");
        let relisted = |changes| describe(&Note::Relisted { resource_version: "a.1".to_owned(), changes });
        assert_eq!((relisted(0), relisted(1)), ("# relisted: 0 changes".to_owned(), "# relisted: 1 change".to_owned()));
    }
}
