//! `informerd watch`: rows on stdout, notes about the watch on stderr.

mod state;

use std::io::Write;

use clap::{Args, builder::BoolishValueParser};
use futures_util::FutureExt;

use super::{
    client_flags::{ChangedFlag, ObjectFlags},
    failure::Failure,
    print::{Event, EventPrinter, Output, stdout},
    signals::Signals,
};
use crate::{
    client::{Note, Progress, Update, WatchOptions},
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

It resumes after a restart of the server, and misses nothing. With --state a reader that is slow gets the last state, and not every \
one before it; -o jsonl prints one List a line. Ctrl-C and SIGTERM end it with exit code 0.";

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
    #[arg(long, help_heading = "Selection", conflicts_with_all = ["initial", "watch_only"])]
    state: bool,
    #[command(flatten)]
    changed: ChangedFlag,
    #[command(flatten)]
    objects: ObjectFlags,
}

/// Output of a watch so far.
struct WatchPrinter<'a, W> {
    printer: EventPrinter<'a, W>,
    flags: &'a WatchFlags,
    with_initial: bool,
    is_stale: bool,
    notes: WatchNotes,
}

/// Notes about a watch for its user.
#[derive(Debug, Default)]
pub(super) struct WatchNotes {
    is_synced: bool,
    objects: u64,
}

pub(super) async fn run(flags: &WatchFlags) -> Result<(), Failure> {
    let query = flags.objects.selection.query_of_name(&flags.resource, flags.name.as_deref());
    let query = flags.changed.applied_to(query);
    if flags.state {
        return state::run(&flags.resource, query, &flags.objects).await;
    }
    let options = flags.objects.options();
    let watch_options = WatchOptions {
        // A deleted object is printed with its last state.
        keep_objects: options.output != Output::Name,
        fail_fast: true,
        ..WatchOptions::default()
    };
    let mut watch = flags.objects.server.connect_lazy()?.watch(&query, &watch_options);
    let mut teller = WatchPrinter {
        printer: EventPrinter::new(stdout(), &options),
        flags,
        with_initial: flags.initial && !flags.watch_only,
        is_stale: false,
        notes: WatchNotes::default(),
    };
    let mut signals = Signals::new()?;
    loop {
        // Flushes only when no update is ready.
        let update = if let Some(update) = watch.next().now_or_never() {
            update
        } else {
            teller.printer.flush()?;
            tokio::select! {
                // Cancel-safe: a watch loses nothing when another branch wins.
                _ = signals.next() => return teller.end(),
                update = watch.next() => update,
            }
        };
        match update {
            Some(Ok(update)) => teller.print(update)?,
            Some(Err(error)) => {
                teller.end()?;
                return Err(error.into());
            }
            None => return teller.end(),
        }
    }
}

// === impl WatchPrinter ===

impl<W: Write> WatchPrinter<'_, W> {
    fn print(&mut self, update: Update) -> Result<(), Failure> {
        let note = self.notes.of(&update);
        match update {
            Update::Event { event_type, cause, object, resource_version } => {
                if self.notes.is_synced || self.with_initial {
                    self.printer.push(Event { change: event_type, cause, resource_version, object })?;
                }
            }
            Update::Synced(progress) => {
                self.printer.synced()?;
                if let Some(note) = note {
                    self.note(&note)?;
                }
                self.note_source(&progress)?;
            }
            Update::Bookmark(progress) => self.note_source(&progress)?,
            Update::Dropped { .. } | Update::Note(_) => {
                if let Some(note) = note {
                    self.note(&note)?;
                }
            }
        }
        Ok(())
    }

    /// Prints a note if the state of the upstream has changed.
    fn note_source(&mut self, progress: &Progress) -> Result<(), Failure> {
        let is_stale = progress.source == SyncState::Stale;
        if std::mem::replace(&mut self.is_stale, is_stale) != is_stale {
            let resource = &self.flags.resource;
            let what = if is_stale { "upstream unreachable" } else { "upstream reachable again" };
            self.note(&format_args!("# {resource}: {what}"))?;
        }
        Ok(())
    }

    /// Prints a note, after the rows of earlier events.
    fn note(&mut self, note: &dyn std::fmt::Display) -> Result<(), Failure> {
        self.printer.flush()?;
        self.flags.objects.server.note(note);
        Ok(())
    }

    fn end(mut self) -> Result<(), Failure> {
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
