//! Events of a watch, in every form.
//!
//! A table is printed when the initial events are complete, so that its columns fit them; each later event is a row at once. A
//! wider cell moves the rest of its row to the right; an object that does not fit the columns begins another table.

use std::{
    io::{self, Write},
    time::SystemTime,
};

use anstyle::Style;

use super::{
    columns::Layout,
    json::Document,
    options::{Output, PrintOptions},
    table::{Cell, GREEN, RED, Table, Widths, YELLOW},
    text::{escape, reference},
};
use crate::proto::pb;

/// Change to an object, as it is printed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    /// ADDED, MODIFIED or DELETED.
    pub(crate) change: pb::EventType,
    pub(crate) cause: pb::Cause,
    /// Version to resume a watch after; empty during initial events.
    pub(crate) resource_version: String,
    pub(crate) object: pb::Object,
}

/// Printer of successive events.
pub(crate) struct EventPrinter<'o, W> {
    out: W,
    options: &'o PrintOptions,
    /// Initial events of a table, until they are complete.
    waiting: Option<Vec<Event>>,
    columns: Option<Columns>,
}

/// Table that is being written.
struct Columns {
    layout: Layout,
    widths: Widths,
    /// One object for each layout so far, so that the next table suits all of them.
    samples: Vec<pb::Object>,
}

/// Width of MODIFIED, which later rows will have.
const EVENT_WIDTH: usize = 8;

// === impl EventPrinter ===

impl<'o, W: Write> EventPrinter<'o, W> {
    pub(crate) fn new(out: W, options: &'o PrintOptions) -> Self {
        let waiting = options.output.is_table().then(Vec::new);
        Self { out, options, waiting, columns: None }
    }

    pub(crate) fn push(&mut self, event: Event) -> io::Result<()> {
        match (self.options.output, &mut self.waiting) {
            (Output::Table | Output::Wide, Some(waiting)) => {
                waiting.push(event);
                Ok(())
            }
            (Output::Table | Output::Wide, None) => self.rows(&[event]),
            _ => self.document(&event),
        }
    }

    /// Prints the initial events when they are complete, or when no more will come.
    pub(crate) fn synced(&mut self) -> io::Result<()> {
        match self.waiting.take() {
            Some(waiting) if !waiting.is_empty() => self.rows(&waiting),
            _ => Ok(()),
        }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn document(&mut self, event: &Event) -> io::Result<()> {
        let mut text = String::new();
        match self.options.output {
            Output::Name => {
                text.push_str(&escape(&reference(&event.object)));
                text.push('\n');
            }
            output => {
                text.push_str(if output == Output::Yaml { "---\n" } else { "" });
                output.document(&event.document(), &mut text);
            }
        }
        self.out.write_all(text.as_bytes())
    }

    fn rows(&mut self, events: &[Event]) -> io::Result<()> {
        let now = SystemTime::now();
        let suits =
            |columns: &Columns| events.iter().all(|event| columns.layout.suits(&event.object, &self.options.columns));
        let is_new = !self.columns.as_ref().is_some_and(suits);
        if is_new {
            self.columns = Some(self.other_columns(events));
        }
        let Some(columns) = &mut self.columns else { return Ok(()) };
        let mut table = Table::default();
        if is_new && !self.options.no_headers {
            table.push(std::iter::once(Cell::new("EVENT")).chain(columns.layout.header()));
        }
        for event in events {
            table.push(std::iter::once(event.cell()).chain(columns.layout.row(&event.object, now)));
        }
        if is_new {
            columns.widths = table.widths().at_least(EVENT_WIDTH);
        }
        let mut text = String::new();
        table.write(&columns.widths, self.options.colors, &mut text);
        self.out.write_all(text.as_bytes())
    }

    /// Returns columns that suit these objects and the earlier ones.
    fn other_columns(&mut self, events: &[Event]) -> Columns {
        let mut samples = self.columns.take().map(|columns| columns.samples).unwrap_or_default();
        let objects: Vec<&pb::Object> = samples.iter().chain(events.iter().map(|event| &event.object)).collect();
        let layout = Layout::of(&objects, &self.options.columns);
        samples.extend(events.first().map(|event| event.object.clone()));
        Columns { layout, widths: Widths::default(), samples }
    }
}

// === impl Event ===

impl Event {
    /// Returns `{"type", "cause", "resourceVersion", "objectVersion", "object"}`, without unset keys. `objectVersion`, the
    /// version of the change itself, is set if a watch cannot resume after it, because more changes may have it.
    fn document(&self) -> Document<'_> {
        let text = |text: &str| Document::from_value(&text.into());
        let mut parts = vec![("type", text(self.type_name()))];
        if self.cause != pb::Cause::Unspecified {
            parts.push(("cause", text(self.cause.as_str_name().trim_start_matches("CAUSE_"))));
        }
        if !self.resource_version.is_empty() {
            parts.push(("resourceVersion", text(&self.resource_version)));
            if self.object.resource_version != self.resource_version {
                parts.push(("objectVersion", text(&self.object.resource_version)));
            }
        }
        parts.push(("object", Document::of(&self.object)));
        Document::from_parts(parts)
    }

    /// Returns the type, and the cause unless it is unspecified.
    fn cell(&self) -> Cell {
        let cause = match self.cause {
            pb::Cause::Unspecified => "",
            pb::Cause::Initial => " initial",
            pb::Cause::EnteredSelection => " entered selection",
            pb::Cause::LeftSelection => " left selection",
            pb::Cause::Inferred => " inferred",
            pb::Cause::NotServed => " not served",
            pb::Cause::Expired => " expired",
        };
        let style = match self.change {
            pb::EventType::Added => GREEN,
            pb::EventType::Modified => YELLOW,
            pb::EventType::Deleted => RED,
            _ => Style::new(),
        };
        Cell::styled(&format!("{}{cause}", self.type_name()), style)
    }

    fn type_name(&self) -> &'static str {
        self.change.as_str_name().trim_start_matches("EVENT_TYPE_")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::print::{
        ColumnOptions,
        tests::{config_map, object},
    };

    fn event(change: pb::EventType, cause: pb::Cause, mut object: pb::Object) -> Event {
        let resource_version = if cause == pb::Cause::Initial { String::new() } else { "x.8".to_owned() };
        object.resource_version.clone_from(&resource_version);
        Event { change, cause, resource_version, object }
    }

    fn initial(namespace: &str, name: &str) -> Event {
        event(pb::EventType::Added, pb::Cause::Initial, config_map(namespace, name))
    }

    fn options(output: Output) -> PrintOptions {
        let columns = ColumnOptions { namespace: true, ..ColumnOptions::default() };
        PrintOptions { output, columns, ..PrintOptions::default() }
    }

    /// Returns the output of initial events, the sync and later events.
    fn printed(initial: Vec<Event>, later: Vec<Event>, options: &PrintOptions) -> String {
        let mut out = Vec::new();
        let mut printer = EventPrinter::new(&mut out, options);
        for event in initial {
            printer.push(event).unwrap();
        }
        printer.synced().unwrap();
        for event in later {
            printer.push(event).unwrap();
        }
        printer.flush().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_table_is_sized_by_the_initial_events_and_continues_with_rows() {
        use pb::{Cause, EventType};
        let later = vec![
            event(EventType::Modified, Cause::Unspecified, config_map("shop", "a")),
            event(EventType::Deleted, Cause::LeftSelection, config_map("shop", "settings")),
            event(EventType::Deleted, Cause::Inferred, config_map("shop", "a")),
            event(EventType::Deleted, Cause::NotServed, config_map("shop", "a")),
            event(EventType::Deleted, Cause::Expired, config_map("shop", "a")),
            event(EventType::Added, Cause::EnteredSelection, config_map("shop", "b")),
        ];
        let expected = "\
EVENT           NAMESPACE   NAME       DATA
ADDED initial   shop        a          2
ADDED initial   shop        settings   2
MODIFIED        shop        a          2
DELETED left selection   shop        settings   2
DELETED inferred   shop        a          2
DELETED not served   shop        a          2
DELETED expired   shop        a          2
ADDED entered selection   shop        b          2
";
        let first = vec![initial("shop", "a"), initial("shop", "settings")];
        assert_eq!(printed(first, later, &options(Output::Table)), expected);
    }

    #[test]
    fn initial_events_are_printed_when_they_are_complete() {
        let options = options(Output::Table);
        let mut out = Vec::new();
        let mut printer = EventPrinter::new(&mut out, &options);
        printer.push(initial("shop", "a")).unwrap();
        assert!(printer.out.is_empty());
        printer.synced().unwrap();
        assert!(!printer.out.is_empty());
    }

    #[test]
    fn without_initial_events_the_first_one_sizes_the_columns() {
        let later = vec![
            event(pb::EventType::Added, pb::Cause::Unspecified, config_map("shop", "a")),
            event(pb::EventType::Modified, pb::Cause::Unspecified, config_map("shop", "a")),
        ];
        let expected =
            "EVENT      NAMESPACE   NAME   DATA\nADDED      shop        a      2\nMODIFIED   shop        a      2\n";
        assert_eq!(printed(Vec::new(), later, &options(Output::Table)), expected);
    }

    #[test]
    fn an_object_of_another_kind_begins_one_more_table_and_not_one_each_time() {
        let added = |object| event(pb::EventType::Added, pb::Cause::Unspecified, object);
        let pod = || object(r#"{"kind":"Pod","metadata":{"name":"web"}}"#);
        let later = vec![added(pod()), added(config_map("", "b")), added(pod()), added(config_map("shop", "c"))];
        let expected = "\
EVENT           NAME   DATA
ADDED initial   a      2
EVENT      NAME   KIND
ADDED      web    Pod
ADDED      b      ConfigMap
ADDED      web    Pod
EVENT      NAMESPACE   NAME   KIND
ADDED      shop        c      ConfigMap
";
        assert_eq!(printed(vec![initial("", "a")], later, &options(Output::Table)), expected);
    }

    #[test]
    fn deletions_are_red() {
        let deleted = vec![event(pb::EventType::Deleted, pb::Cause::Unspecified, config_map("", "a"))];
        let options = PrintOptions { colors: true, no_headers: true, ..options(Output::Table) };
        assert_eq!(printed(Vec::new(), deleted, &options), "\u{1b}[31mDELETED\u{1b}[0m    a   2\n");
    }

    #[test]
    fn programs_get_a_document_for_each_event() {
        let body = r#"{"metadata":{"name":"a"},"n":9007199254740993}"#;
        let first = || vec![event(pb::EventType::Added, pb::Cause::Initial, object(body))];
        let later = || vec![event(pb::EventType::Modified, pb::Cause::Unspecified, object(body))];
        let expected = format!(
            "{{\"type\":\"ADDED\",\"cause\":\"INITIAL\",\"object\":{body}}}\n\
             {{\"type\":\"MODIFIED\",\"resourceVersion\":\"x.8\",\"object\":{body}}}\n"
        );
        assert_eq!(printed(first(), later(), &options(Output::Jsonl)), expected);
        let mut open = event(pb::EventType::Deleted, pb::Cause::Unspecified, object(body));
        open.object.resource_version = "x.9".to_owned();
        let expected = format!(
            "{{\"type\":\"DELETED\",\"resourceVersion\":\"x.8\",\"objectVersion\":\"x.9\",\"object\":{body}}}\n"
        );
        assert_eq!(printed(Vec::new(), vec![open], &options(Output::Jsonl)), expected);
        assert_eq!(printed(first(), later(), &options(Output::Name)), "a\na\n");
        let yaml =
            "---\ntype: MODIFIED\nresourceVersion: x.8\nobject:\n  metadata:\n    name: a\n  \"n\": 9007199254740993\n";
        assert_eq!(printed(Vec::new(), later(), &options(Output::Yaml)), yaml);
        let json = printed(first(), later(), &options(Output::Json));
        assert!(json.starts_with("{\n    \"type\": \"ADDED\",\n") && json.ends_with("\n}\n"), "{json}");
        assert_eq!(serde_json::Deserializer::from_str(&json).into_iter::<serde_json::Value>().count(), 2);
    }
}
