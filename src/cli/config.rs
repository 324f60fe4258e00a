//! `informerd config`: the configuration in use, and its schema.

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::{
    client_flags::FormatFlags,
    failure::Failure,
    print::{Output, Record, json::Document, stdout, table::Cell, write_all, write_records},
    serve_flags::ConfigFlags,
};
use crate::config::{Setting, json_schema, settings};

pub(super) const EXAMPLES: &str = "\
Examples:
  informerd config print examples/shop.yaml
  informerd config print examples/shop.yaml --show-origin
  informerd config schema > informerd.schema.json

The schema is for editors: `# yaml-language-server: $schema=informerd.schema.json` as the first line of the file.";

/// Commands of `informerd config`.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print every key that has a value, with defaults
    Print(Box<PrintFlags>),
    /// Print the JSON schema of the configuration file
    Schema,
}

/// Flags of `informerd config print`.
#[derive(Debug, Clone, Args)]
pub(super) struct PrintFlags {
    /// Print a table of the keys with the flag, variable or file that each comes from, in place of a file
    #[arg(long, help_heading = "Output")]
    show_origin: bool,
    #[command(flatten)]
    serve: ConfigFlags,
    #[command(flatten)]
    format: FormatFlags,
}

pub(super) fn run(command: &ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Print(flags) => print(flags),
        ConfigCommand::Schema => {
            let mut text = String::new();
            Output::Json.document(&Document::from_value(&json_schema()), &mut text);
            Ok(write_all(text.as_bytes())?)
        }
    }
}

fn print(flags: &PrintFlags) -> Result<(), Failure> {
    let settings = settings(&flags.serve.serve_flags()?)?;
    let mut options = flags.format.options();
    if flags.show_origin {
        let records = settings.iter().map(record).collect();
        return Ok(write_records(stdout(), &options, ("settings", &["KEY", "VALUE", "ORIGIN"]), records)?);
    }
    let mut file = Map::new();
    for setting in settings {
        insert(&mut file, &setting.path, setting.value);
    }
    if !options.output.is_document() {
        options.output = Output::Yaml;
    }
    Ok(write_all(options.text_of(&Document::from_value(&file.into())).as_bytes())?)
}

fn record(setting: &Setting) -> Record {
    let (key, origin) = (setting.key(), setting.origin.to_string());
    let value = match &setting.value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Record {
        cells: [key.as_str(), &value, &origin].map(Cell::new).into(),
        document: Document::from_fields([
            ("key", key.as_str().into()),
            ("value", setting.value.clone()),
            ("origin", origin.into()),
        ]),
        name: key,
    }
}

fn insert(section: &mut Map<String, Value>, path: &[String], value: Value) {
    match path {
        [] => {}
        [key] => drop(section.insert(key.clone(), value)),
        [key, rest @ ..] => {
            let below = section.entry(key.clone()).or_insert_with(|| Map::new().into());
            if let Value::Object(below) = below {
                insert(below, rest, value);
            }
        }
    }
}
