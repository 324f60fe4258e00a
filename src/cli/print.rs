//! Output of the client commands on stdout: tables for people, documents for programs.
//!
//! Objects arrive as messages with RAW bodies and are printed unchanged: numbers keep all digits and keys their order. Text from
//! objects cannot control a terminal or begin another line, wherever it is printed.

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

/// Format of the output.
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
    /// One JSON document per line
    Jsonl,
    /// Names only; `NAMESPACE/NAME` for objects, as `get` takes it
    Name,
}

/// Use of colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    Always,
    Never,
}

/// Options of the output of objects.
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

    /// Returns true if the form is for programs, which detect an empty result by themselves.
    pub(crate) fn is_document(self) -> bool {
        matches!(self, Self::Json | Self::Yaml | Self::Jsonl)
    }
}

// === impl Color ===

impl Color {
    /// Returns true if the output on stdout is coloured.
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

/// Returns true if a terminal would not just show the character: it controls, changes the text direction, or begins a line.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Returns foreign text for one line of a terminal: characters that would control it are escaped.
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

/// Returns the name by which `get` finds the object: `namespace/name`; the name alone for an object without namespace, with a
/// leading slash if the name contains one.
pub(crate) fn reference(object: &pb::Object) -> String {
    let pb::Object { namespace, name, .. } = object;
    match namespace.as_str() {
        "" if name.contains('/') => format!("/{name}"),
        "" => name.clone(),
        _ => format!("{namespace}/{name}"),
    }
}

/// Appends one document as a whole, as for `-o json`, `yaml` and `jsonl`.
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
