//! Options of the output: format, columns, colours.

use std::io::IsTerminal;

use clap::ValueEnum;

use super::{columns::ColumnOptions, json::Document, yaml};

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

// === impl Output ===

impl Output {
    pub(crate) fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    /// Returns true if the form is for programs, which detect an empty result by themselves.
    pub(crate) fn is_document(self) -> bool {
        matches!(self, Self::Json | Self::Yaml | Self::Jsonl)
    }

    /// Appends one document as a whole, as for `-o json`, `yaml` and `jsonl`.
    pub(crate) fn document(self, document: &Document<'_>, out: &mut String) {
        match self {
            Self::Yaml => yaml::write(document, 0, out),
            Self::Jsonl => {
                document.compact(out);
                out.push('\n');
            }
            _ => {
                document.pretty(0, out);
                out.push('\n');
            }
        }
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
