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
mod options;
mod records;
pub(crate) mod table;
mod text;
mod yaml;

use std::io::{self, BufWriter, StdoutLock};

pub(crate) use self::{
    columns::ColumnOptions,
    events::{Event, EventPrinter},
    objects::{ObjectPrinter, write_list, write_one},
    options::{Color, Output, PrintOptions},
    records::{Record, write_records},
    table::{RED, YELLOW},
    text::{escape, reference},
};

/// Returns stdout with a buffer: readers see the data when it is flushed.
pub(crate) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

#[cfg(test)]
mod tests;
