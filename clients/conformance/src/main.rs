//! Conformance suite for clients of informerd: scripted servers that break in every way, and the rules that a client follows.
//!
//! ```text
//!   informerd-conformance ── one JSON object a line ──▶ driver (a program around the client)
//!          │    ▲                                          │
//!          │    └──────── handler calls, replies ──────────┤
//!          └── scripted server ◀──────── gRPC ─────────────┘
//! ```
//!
//! Each scenario starts a server and a driver of its own, plays its script, and compares the handler calls, the store, the states
//! and the requests with what the rule demands. docs/clients.md describes the protocol.

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use futures_util::{Stream, StreamExt, stream};
use serde_json::json;

mod call;
mod driver;
mod message;
mod scenario;
mod scenarios;
mod server;
mod socket;
mod watch_stream;
mod world;

pub(crate) use self::{
    driver::Launcher,
    scenario::{Report, Scenario},
    scenarios::all,
};

/// Plays scripted servers against a client of informerd, and checks that it loses nothing, repeats nothing and shows its state.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Print the scenarios and their rules
    #[arg(long)]
    list: bool,
    /// Play only this scenario; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Scenarios at the same time; default: one for each CPU
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Seconds to wait for each step of the client
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=30))]
    patience: u64,
    /// Write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Program around the client, and its arguments
    #[arg(last = true, value_name = "DRIVER", required_unless_present = "list")]
    driver: Vec<String>,
}

/// Longest time for one scenario.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(code) => code,
        Err(problem) => {
            drop(writeln!(io::stderr(), "error: {problem}"));
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> Result<ExitCode, String> {
    let mut out = io::stdout();
    let printed = |error: io::Error| format!("cannot print: {error}");
    let scenarios = chosen(&arguments.only)?;
    if arguments.list {
        for scenario in &scenarios {
            writeln!(out, "{:24} {}", scenario.name, scenario.rule).map_err(printed)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let jobs = arguments.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let launcher = Launcher::Program(arguments.driver.into());
    let mut reports = std::pin::pin!(play(scenarios, launcher, jobs, Duration::from_secs(arguments.patience)));
    let mut all = Vec::new();
    while let Some(report) = reports.next().await {
        writeln!(out, "{}", report.row()).map_err(printed)?;
        all.push(report);
    }
    let failed: Vec<_> = all.iter().filter(|report| report.outcome.is_err()).collect();
    for report in &failed {
        write!(out, "\n{}", report.details()).map_err(printed)?;
    }
    writeln!(out, "\n{} of {} scenarios passed", all.len() - failed.len(), all.len()).map_err(printed)?;
    if let Some(path) = &arguments.report {
        let rows: Vec<_> = all.iter().map(Report::json).collect();
        let text = json!({ "passed": all.len() - failed.len(), "failed": failed.len(), "scenarios": rows });
        fs::write(path, format!("{text:#}\n")).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the scenarios with these names; all without any.
fn chosen(names: &[String]) -> Result<Vec<Scenario>, String> {
    let mut scenarios = all();
    if let Some(unknown) = names.iter().find(|name| !scenarios.iter().any(|scenario| scenario.name == **name)) {
        return Err(format!("no scenario has the name {unknown:?}; --list prints the names"));
    }
    scenarios.retain(|scenario| names.is_empty() || names.iter().any(|name| name == scenario.name));
    Ok(scenarios)
}

/// Plays scenarios, some at the same time; the reports come in the order of the scenarios. `patience` is the longest wait for a step
/// of the client.
pub(crate) fn play(
    scenarios: Vec<Scenario>,
    launcher: Launcher,
    jobs: usize,
    patience: Duration,
) -> impl Stream<Item = Report> {
    let launcher = Arc::new(launcher);
    let playing = stream::iter(scenarios).map(move |scenario| {
        let launcher = Arc::clone(&launcher);
        async move {
            let (name, rule) = (scenario.name, scenario.rule);
            let played =
                tokio::spawn(async move { tokio::time::timeout(LIMIT, scenario.run(&launcher, patience)).await });
            match played.await {
                Ok(Ok(report)) => report,
                Ok(Err(_)) => Report::failed(name, rule, format!("not over within {LIMIT:?}")),
                Err(error) => Report::failed(name, rule, format!("the suite failed: {error}")),
            }
        }
    });
    playing.buffered(jobs.max(1))
}
