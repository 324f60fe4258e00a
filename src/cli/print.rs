//! What the client commands write to stdout: tables for people, documents for programs.
//!
//! Objects come as messages with RAW bodies and go out as they are: no number loses a digit and no key its place. Text that
//! comes from the objects cannot act on a terminal or begin another line, wherever it stands.

pub(crate) mod age;
mod columns;
mod events;
pub(crate) mod json;
mod kinds;
mod objects;
mod records;
pub(crate) mod table;
mod yaml;

use std::{borrow::Cow, io::IsTerminal};

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;

use self::json::Document;
pub(crate) use self::{
    columns::ColumnOptions,
    events::{Event, EventPrinter},
    objects::{ObjectPrinter, write_one},
    records::{Record, write_records},
};
use crate::proto::pb;

/// The form of what is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Columns that suit the kind
    #[default]
    Table,
    /// The same with more columns
    Wide,
    /// Indented JSON; several objects as a List
    Json,
    /// YAML; several objects as a List
    Yaml,
    /// One JSON document a line
    Jsonl,
    /// Names alone; `NAMESPACE/NAME` for objects, as `get` takes it
    Name,
}

/// When there is colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    Always,
    Never,
}

/// How objects are written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PrintOptions {
    pub(crate) output: Output,
    pub(crate) columns: ColumnOptions,
    pub(crate) no_headers: bool,
    pub(crate) colors: bool,
}

pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();

// === impl Output ===

impl Output {
    pub(crate) fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    /// Whether it is for programs, which see for themselves that there is nothing.
    pub(crate) fn is_document(self) -> bool {
        matches!(self, Self::Json | Self::Yaml | Self::Jsonl)
    }
}

// === impl Color ===

impl Color {
    /// Whether stdout gets colour.
    pub(crate) fn is_on(self) -> bool {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        match self {
            Self::Auto => std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Whether a terminal would not just show a character: it controls, turns the direction of the text, or begins a line.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Foreign text for one line of a terminal: what would act on it stands there as an escape.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out.into()
}

/// What `get` finds the object by: `namespace/name`; the name alone for an object without namespace, with a slash before
/// it if it has one inside.
pub(crate) fn reference(object: &pb::Object) -> String {
    let pb::Object { namespace, name, .. } = object;
    match namespace.as_str() {
        "" if name.contains('/') => format!("/{name}"),
        "" => name.clone(),
        _ => format!("{namespace}/{name}"),
    }
}

/// One document as a whole, which is what `-o json`, `yaml` and `jsonl` write.
pub(crate) fn document(document: &Document<'_>, output: Output, out: &mut String) {
    match output {
        Output::Yaml => yaml::write(document, 0, out),
        Output::Jsonl => {
            document.compact(out);
            out.push('\n');
        }
        _ => {
            document.pretty(0, out);
            out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests;
