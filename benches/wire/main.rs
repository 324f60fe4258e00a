//! What a delivery costs, of informerd and in turns of two baselines: a naive server, and plain writes of the same bytes.
//!
//! ```sh
//! cargo bench --bench wire -- w1 --watchers 100 --reps 7      # `informerd bench --help` says what else there is
//! ```
//!
//! Runs `informerd bench --local` with itself as the program of the baselines.

#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "a baseline that cannot go on ends, and says so")]

mod floor;
mod naive;

use std::{
    env,
    process::{Command, ExitCode},
};

fn main() -> ExitCode {
    // cargo bench adds one of its own.
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |at: usize| arguments[at].parse().unwrap();
    match arguments.first().map(String::as_str) {
        Some("naive") => naive::serve(number(1)),
        Some("floor") => floor::serve(number(1), number(2)),
        _ => {
            let program = env::current_exe().unwrap().display().to_string();
            let mut bench = Command::new(env!("CARGO_BIN_EXE_informerd"));
            bench.arg("bench").args(arguments.iter().take(1)).arg("--local");
            bench.arg(format!("--baseline=naive={program},floor={program}")).args(arguments.iter().skip(1));
            let status = bench.status().unwrap();
            return ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1));
        }
    }
    ExitCode::SUCCESS
}
