//! The binary: parse, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use informerd::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
