//! Command-line binary: parses the arguments, runs, and returns the exit code.

use std::process::ExitCode;

use informerd::cli::Cli;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    Cli::main()
}
