//! Output of the client commands on stdout: tables for people, documents for programs.
//!
//! Objects arrive as messages with RAW bodies and are printed unchanged, except that a body without its key gets it: numbers keep
//! all digits and keys their order. Text from objects cannot control a terminal or begin another line, wherever it is printed;
//! `-o jsonpath` into a file or pipe is the exception.

mod columns;
pub(crate) mod diff;
mod events;
pub(crate) mod json;
pub(crate) mod jsonpath;
mod objects;
mod options;
pub(crate) mod quantity;
mod records;
pub(crate) mod table;
mod text;
mod yaml;

use std::io::{self, BufWriter, StdoutLock, Write};

pub(crate) use self::{
    columns::ColumnOptions,
    events::{Event, EventPrinter},
    objects::{ObjectPrinter, write_list, write_one},
    options::{Color, Output, OutputFlag, OutputParser, PrintOptions, terminal_width},
    records::{Record, write_records},
    table::{RED, YELLOW},
    text::{escape, reference},
};
pub(crate) use crate::printers::age;

/// Prints a line on stderr in one write, so that nothing of another program on the same terminal or pipe comes between.
pub(crate) fn write_line(line: &str) {
    // A closed stderr has no reader.
    drop(io::stderr().write_all(format!("{line}\n").as_bytes()));
}

/// Returns stdout with a buffer: readers see the data when it is flushed.
pub(crate) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

/// Ignores that nobody reads the output, for a command whose exit code and errors are its result as well.
pub(super) fn or_unread(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

/// Writes a whole output to stdout.
pub(super) fn write_all(bytes: &[u8]) -> io::Result<()> {
    let mut out = stdout();
    out.write_all(bytes)?;
    out.flush()
}

#[cfg(test)]
mod tests;
