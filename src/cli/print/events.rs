//! Events of a watch, in every form.
//!
//! A table is printed when the initial events are complete, so that its columns fit them; each later event is a row at once. A
//! wider cell moves the rest of its row to the right; an object that does not fit the columns begins another table.

use std::{
    io::{self, Write},
    sync::Arc,
    time::SystemTime,
};

use anstyle::Style;

use prost_types::Timestamp;

use super::{
    columns::Layout,
    diff,
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
    /// Earlier state, in a document of a difference.
    pub(crate) old: Option<pb::Object>,
    /// Time at which it was received, if it is shown.
    pub(crate) time: Option<SystemTime>,
    /// Its resource, if it is shown.
    pub(crate) resource: Option<Arc<str>>,
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
            (output, Some(waiting)) if output.is_table() => {
                waiting.push(event);
                Ok(())
            }
            (output, None) if output.is_table() => self.rows(&[event]),
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

    /// Prints the fields that the last event has altered, after its row, for which it prints the initial events so far.
    pub(crate) fn differences(&mut self, old: &pb::Object, new: &pb::Object) -> io::Result<()> {
        self.synced()?;
        self.out.write_all(diff::lines(old, new, self.options.colors).as_bytes())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn document(&mut self, event: &Event) -> io::Result<()> {
        let mut text = String::new();
        match self.options.output {
            Output::Name => {
                if let Some(resource) = &event.resource {
                    text.push_str(&escape(resource));
                    text.push('/');
                }
                text.push_str(&escape(&reference(&event.object)));
                text.push('\n');
            }
            Output::JsonPath => text = self.options.rendered(&Document::of(&event.object).value()),
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
        let has_time = events.iter().any(|event| event.time.is_some());
        let has_resource = events.iter().any(|event| event.resource.is_some());
        let has_cause = events.iter().any(Event::has_cause);
        if is_new && !self.options.no_headers {
            let time = has_time.then(|| Cell::new("TIME"));
            let resource = has_resource.then(|| Cell::new("RESOURCE"));
            let header = time.into_iter().chain([Cell::new("EVENT")]).chain(resource).chain(columns.layout.header());
            table.push(header.chain(has_cause.then(|| Cell::new("CAUSE"))));
        }
        for event in events {
            let time = has_time.then(|| Cell::new(&event.time()));
            let resource = event.resource.as_deref().map(Cell::new);
            let of_object = columns.layout.row(&event.object, now);
            let row = time.into_iter().chain([event.cell()]).chain(resource).chain(of_object);
            table.push(row.chain(event.has_cause().then(|| Cell::new(event.cause_text()))));
        }
        if is_new {
            columns.widths = table.widths().at_least(usize::from(has_time), EVENT_WIDTH);
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
    /// Returns `{"type", "cause", "time", "resource", "resourceVersion", "objectVersion", "namespace", "name", "uid", "old", "object"}`,
    /// without unset keys except for the key of the object. `objectVersion`, the version of the change itself, is set if a watch
    /// cannot resume after it, because more changes may have it.
    fn document(&self) -> Document<'_> {
        let text = |text: &str| Document::from_value(&text.into());
        let mut parts = vec![("type", text(self.type_name()))];
        if self.cause != pb::Cause::Unspecified {
            parts.push(("cause", text(self.cause_name())));
        }
        if self.time.is_some() {
            parts.push(("time", text(&self.time())));
        }
        if let Some(resource) = &self.resource {
            parts.push(("resource", text(resource)));
        }
        if !self.resource_version.is_empty() {
            parts.push(("resourceVersion", text(&self.resource_version)));
        }
        if self.object.resource_version != self.resource_version {
            parts.push(("objectVersion", text(&self.object.resource_version)));
        }
        parts.extend([("namespace", text(&self.object.namespace)), ("name", text(&self.object.name))]);
        if !self.object.uid.is_empty() {
            parts.push(("uid", text(&self.object.uid)));
        }
        parts.extend(self.old.iter().map(|old| ("old", Document::body(old))));
        parts.push(("object", Document::body(&self.object)));
        Document::from_parts(parts)
    }

    /// Returns the document as a line.
    pub(crate) fn line(&self) -> String {
        let mut line = String::new();
        Output::Jsonl.document(&self.document(), &mut line);
        line
    }

    /// Returns the time in RFC 3339, in UTC, with milliseconds.
    fn time(&self) -> String {
        let since = self.time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()).unwrap_or_default();
        let nanos = (since.subsec_millis() * 1_000_000).cast_signed();
        Timestamp { seconds: since.as_secs().cast_signed(), nanos }.to_string()
    }

    fn has_cause(&self) -> bool {
        self.cause != pb::Cause::Unspecified
    }

    /// Returns the name of the cause; empty if it is unspecified.
    pub(crate) fn cause_name(&self) -> &'static str {
        if self.has_cause() { self.cause.as_str_name().trim_start_matches("CAUSE_") } else { "" }
    }

    fn cause_text(&self) -> &'static str {
        match self.cause {
            pb::Cause::Unspecified => "",
            pb::Cause::Initial => "initial",
            pb::Cause::EnteredSelection => "entered selection",
            pb::Cause::LeftSelection => "left selection",
            pb::Cause::Inferred => "inferred",
            pb::Cause::NotServed => "not served",
            pb::Cause::Expired => "expired",
        }
    }

    fn cell(&self) -> Cell {
        let style = match self.change {
            pb::EventType::Added => GREEN,
            pb::EventType::Modified => YELLOW,
            pb::EventType::Deleted => RED,
            _ => Style::new(),
        };
        Cell::styled(self.type_name(), style)
    }

    /// Returns ADDED, MODIFIED or DELETED.
    pub(crate) fn type_name(&self) -> &'static str {
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
        Event { change, cause, resource_version, object, old: None, time: None, resource: None }
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
EVENT      NAMESPACE   NAME       DATA   CAUSE
ADDED      shop        a          2      initial
ADDED      shop        settings   2      initial
MODIFIED   shop        a          2
DELETED    shop        settings   2      left selection
DELETED    shop        a          2      inferred
DELETED    shop        a          2      not served
DELETED    shop        a          2      expired
ADDED      shop        b          2      entered selection
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
    fn the_fields_of_a_change_follow_its_row_also_before_the_initial_events_are_complete() {
        let options = options(Output::Table);
        let mut out = Vec::new();
        let mut printer = EventPrinter::new(&mut out, &options);
        let changed =
            event(pb::EventType::Modified, pb::Cause::Unspecified, object(r#"{"metadata":{"name":"a"},"n":2}"#));
        let old = object(r#"{"metadata":{"name":"a"},"n":1}"#);
        printer.push(initial("", "b")).unwrap();
        printer.push(changed.clone()).unwrap();
        printer.differences(&old, &changed.object).unwrap();
        printer.synced().unwrap();
        let lines: Vec<&str> = std::str::from_utf8(&out).unwrap().lines().collect();
        assert!(lines[lines.len() - 2].starts_with("MODIFIED   a "), "{lines:?}");
        assert!(lines[lines.len() - 1].contains("~ n: "), "{lines:?}");
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
EVENT      NAME   DATA   CAUSE
ADDED      a      2      initial
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
    fn an_event_has_its_time_if_it_is_wanted() {
        let time = Some(SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_000_000_000_042));
        let added = || vec![Event { time, ..event(pb::EventType::Added, pb::Cause::Unspecified, config_map("", "a")) }];
        let expected =
            "TIME                       EVENT      NAME   DATA\n2001-09-09T01:46:40.042Z   ADDED      a      2\n";
        assert_eq!(printed(Vec::new(), added(), &options(Output::Table)), expected);
        let line = printed(Vec::new(), added(), &options(Output::Jsonl));
        assert!(
            line.starts_with(r#"{"type":"ADDED","time":"2001-09-09T01:46:40.042Z","resourceVersion":"x.8","#),
            "{line}"
        );
    }

    #[test]
    fn events_of_several_resources_have_theirs() {
        let resource = Some("flags".into());
        let added = || {
            vec![Event {
                resource: resource.clone(),
                ..event(pb::EventType::Added, pb::Cause::Unspecified, config_map("", "a"))
            }]
        };
        let expected = "EVENT      RESOURCE   NAME   DATA\nADDED      flags      a      2\n";
        assert_eq!(printed(Vec::new(), added(), &options(Output::Table)), expected);
        let line = printed(Vec::new(), added(), &options(Output::Jsonl));
        assert!(line.starts_with(r#"{"type":"ADDED","resource":"flags","resourceVersion":"x.8","#), "{line}");
        assert_eq!(printed(Vec::new(), added(), &options(Output::Name)), "flags/a\n");
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
        let key = r#""namespace":"","name":"a""#;
        let expected = format!(
            "{{\"type\":\"ADDED\",\"cause\":\"INITIAL\",{key},\"object\":{body}}}\n\
             {{\"type\":\"MODIFIED\",\"resourceVersion\":\"x.8\",{key},\"object\":{body}}}\n"
        );
        assert_eq!(printed(first(), later(), &options(Output::Jsonl)), expected);
        let mut open = event(pb::EventType::Deleted, pb::Cause::Unspecified, object(body));
        open.object.resource_version = "x.9".to_owned();
        let expected = format!(
            "{{\"type\":\"DELETED\",\"resourceVersion\":\"x.8\",\"objectVersion\":\"x.9\",{key},\"object\":{body}}}\n"
        );
        assert_eq!(printed(Vec::new(), vec![open], &options(Output::Jsonl)), expected);
        assert_eq!(printed(first(), later(), &options(Output::Name)), "a\na\n");
        let yaml = "---\ntype: MODIFIED\nresourceVersion: x.8\nnamespace: \"\"\nname: a\nobject:\n  metadata:\n    name: a\n  \"n\": 9007199254740993\n";
        assert_eq!(printed(Vec::new(), later(), &options(Output::Yaml)), yaml);
        let json = printed(first(), later(), &options(Output::Json));
        assert!(json.starts_with("{\n    \"type\": \"ADDED\",\n") && json.ends_with("\n}\n"), "{json}");
        assert_eq!(serde_json::Deserializer::from_str(&json).into_iter::<serde_json::Value>().count(), 2);
    }
}
