//! Options of the output: format, columns, colours.

use std::{ffi::OsStr, io::IsTerminal};

use clap::{
    ValueEnum,
    builder::{PossibleValue, TypedValueParser},
    error::ErrorKind,
};
use serde_json::Value;

use super::{
    columns::{ColumnOptions, CustomColumn},
    json::Document,
    jsonpath::Template,
    text::is_unsafe,
    yaml,
};

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
    /// Text of a template
    #[value(skip)]
    JsonPath,
    /// Columns of the user
    #[value(skip)]
    CustomColumns,
}

/// Format of the output with its template or its columns, as the user gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OutputFlag {
    pub(crate) output: Output,
    pub(crate) template: Option<Template>,
    pub(crate) columns: Vec<CustomColumn>,
}

/// Parser of [`OutputFlag`].
#[derive(Debug, Clone)]
pub(crate) struct OutputParser;

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
    /// Template of `-o jsonpath`.
    pub(crate) template: Option<Template>,
    pub(crate) columns: ColumnOptions,
    pub(crate) no_headers: bool,
    pub(crate) colors: bool,
    /// Width that tables of records are cut to; none for all of them.
    pub(crate) max_width: Option<usize>,
}

// === impl Output ===

impl Output {
    pub(crate) fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide | Self::CustomColumns)
    }

    /// Returns true if the form is for programs, which detect an empty result by themselves.
    pub(crate) fn is_document(self) -> bool {
        matches!(self, Self::Json | Self::Yaml | Self::Jsonl | Self::JsonPath)
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

// === impl OutputFlag ===

impl OutputFlag {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(template) = text.strip_prefix("jsonpath=") {
            let template = Some(Template::parse(template)?);
            return Ok(Self { output: Output::JsonPath, template, ..Self::default() });
        }
        if let Some(columns) = text.strip_prefix("custom-columns=") {
            let columns = CustomColumn::parse_all(columns)?;
            return Ok(Self { output: Output::CustomColumns, columns, ..Self::default() });
        }
        match text {
            "jsonpath" => Err("has no template: jsonpath={.metadata.name}".to_owned()),
            "custom-columns" => {
                Err("has no columns: custom-columns=NAME:.metadata.name,NODE:.spec.nodeName".to_owned())
            }
            _ => match Output::from_str(text, false) {
                Ok(output) => Ok(Self { output, ..Self::default() }),
                Err(_) => Err(format!("{text:?} is not supported")),
            },
        }
    }
}

// === impl OutputParser ===

impl TypedValueParser for OutputParser {
    type Value = OutputFlag;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<OutputFlag, clap::Error> {
        OutputFlag::parse(&value.to_string_lossy()).map_err(|problem| {
            let argument = argument.map(ToString::to_string).unwrap_or_default();
            let known = "table, wide, json, yaml, jsonl, name, jsonpath=TEMPLATE, custom-columns=COLUMNS";
            let message = format!(
                "invalid value for '{argument}': {problem}\n  [possible values: {known}]\n\nFor more information, try '--help'.\n"
            );
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let templates = [
            PossibleValue::new("jsonpath=TEMPLATE")
                .help("Text of kubectl's JSONPath template: `jsonpath='{.items[*].metadata.name}'`"),
            PossibleValue::new("custom-columns=COLUMNS")
                .help("Table of these columns: `custom-columns=NAME:.metadata.name,NODE:.spec.nodeName`"),
        ];
        Some(Box::new(Output::value_variants().iter().filter_map(Output::to_possible_value).chain(templates)))
    }
}

// === impl PrintOptions ===

impl PrintOptions {
    /// Returns the text of a document as a whole, in a form for programs.
    pub(crate) fn text_of(&self, document: &Document<'_>) -> String {
        if self.output == Output::JsonPath {
            return self.rendered(&document.value());
        }
        let mut text = String::new();
        self.output.document(document, &mut text);
        text
    }

    /// Returns the text of the template for a document. On a terminal, characters that would control it are left out; lines are kept.
    pub(super) fn rendered(&self, document: &Value) -> String {
        let mut text = self.template.as_ref().map(|template| template.render(document)).unwrap_or_default();
        if std::io::stdout().is_terminal() {
            text.retain(|c| matches!(c, '\n' | '\t') || !is_unsafe(c));
        }
        text
    }
}

/// Returns the width of the terminal that is stdout, if it is one.
pub(crate) fn terminal_width() -> Option<usize> {
    let size =
        std::io::stdout().is_terminal().then(|| rustix::termios::tcgetwinsize(std::io::stdout()).ok()).flatten()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
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
