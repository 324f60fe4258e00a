//! Cost of a server: deliveries, idle watchers, a stopped client, storms of snapshots, Lists.
//!
//! ```sh
//! cargo bench --bench load -- w1 --local --watchers 100      # `cargo bench --bench load -- --help` has all of it
//! ```
//!
//! This program is also its baselines: it starts itself as `naive` and `floor`.

mod floor;
// Without a harness tests are left out, but not their helpers. The integration tests have it, and this lint.
#[allow(dead_code, unused_imports, reason = "of the unit tests")]
#[path = "load.rs"]
mod load;
mod naive;

use std::{env, io, process::ExitCode};

fn main() -> ExitCode {
    run(&[])
}

/// Runs the load generator with its command line, where these arguments follow the mode; or serves a baseline.
pub(crate) fn run(after_mode: &[&str]) -> ExitCode {
    // cargo bench adds its own argument.
    let mut arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |text: &str| text.parse().expect("a number");
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["naive", queue] => naive::serve(number(queue)),
        ["floor", connections, streams] => floor::serve(number(connections), number(streams)),
        _ => {
            let mode = arguments.len().min(1);
            arguments.splice(mode..mode, after_mode.iter().map(|argument| (*argument).to_owned()));
            return load::execute(&arguments, &mut io::stdout().lock(), &mut io::stderr()).into();
        }
    }
    ExitCode::SUCCESS
}
