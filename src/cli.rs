//! The command line: what the user types, and how each command ends.
//!
//! Data goes to stdout, notes and logs to stderr. Exit codes: 0 done; 1 it failed at run time; 2 the command line or the
//! configuration is wrong; 130 and 143 when a second SIGINT or SIGTERM cut an orderly end short.

mod check;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::ServeFlags;

/// Shared informer caches as a network service: every upstream is listed and watched once, and any number of clients watch,
/// list and query it over gRPC.
#[derive(Debug, Parser)]
#[command(name = "informerd", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve resources over gRPC until SIGINT or SIGTERM
    #[command(after_help = serve::EXAMPLES)]
    Serve(ServeFlags),
    /// Check a configuration and whether its sources can be read, and say what would be served
    #[command(after_help = check::EXAMPLES)]
    Check(ServeFlags),
}

const EXAMPLES: &str = "\
Examples:
  informerd serve --files pods=./manifests@Pod
  informerd serve --config examples/shop.yaml
  informerd check --config examples/shop.yaml";

/// It failed at run time.
const FAILED: u8 = 1;
/// The command line or the configuration is wrong; clap's own code for it.
const WRONG_USAGE: u8 = 2;

// === impl Cli ===

impl Cli {
    /// Carries the command out.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Serve(flags) => serve::run(&flags),
            Command::Check(flags) => check::run(&flags),
        }
    }
}

/// One line for the user on stderr.
fn complain(message: &dyn std::fmt::Display) {
    use std::io::Write;
    // A closed stderr leaves nobody to tell.
    drop(writeln!(std::io::stderr(), "error: {message}"));
}
