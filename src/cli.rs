//! Command line: arguments, commands and exit codes.
//!
//! Data goes to stdout, notes and logs to stderr. Exit codes: 0 success; 1 failure at run time; 2 invalid command line or
//! configuration; 130 and 143 when SIGINT or SIGTERM ends a command that does not end with 0 at one, or a second one cuts a graceful
//! shutdown short. The client commands also have 3, not found; 4, unavailable or timed out; 5, not allowed.

mod alias;
mod check;
mod client_flags;
mod completion;
mod config;
mod describe;
mod explain;
mod failure;
mod get;
mod healthcheck;
mod list;
mod mirror;
mod print;
mod rbac;
mod reader;
mod record;
mod refresh;
mod resources;
mod serve;
mod serve_flags;
mod signals;
mod until;
mod values;
mod verify;
mod version;
mod waiting;
mod watch;
mod watchers;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tokio::runtime::Builder;

use self::{alias::resolved, failure::Failure, serve_flags::ConfigFlags};

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
    Serve(ConfigFlags),
    /// Check a configuration, connect to its sources, and print what would be served
    #[command(after_help = check::EXAMPLES)]
    Check(check::CheckFlags),
    /// Print the configuration in use, or its JSON schema
    #[command(subcommand, after_help = config::EXAMPLES)]
    Config(config::ConfigCommand),
    /// Print the minimal RBAC role for the Kubernetes sources of a configuration
    #[command(after_help = rbac::EXAMPLES)]
    Rbac(ConfigFlags),
    /// Show the resources of a server
    #[command(visible_alias = "api-resources", after_help = help(resources::EXAMPLES))]
    Resources(resources::ResourcesFlags),
    /// Show the resources of several servers side by side
    #[command(after_help = help(resources::STATUS_EXAMPLES))]
    Status(resources::StatusFlags),
    /// List the objects of a resource
    #[command(visible_alias = "ls", after_help = help(list::EXAMPLES))]
    List(list::ListFlags),
    /// Get objects by name
    #[command(after_help = help(get::EXAMPLES))]
    Get(get::GetFlags),
    /// List the objects under a value of an index
    #[command(after_help = help(list::BY_INDEX_EXAMPLES))]
    ByIndex(list::ByIndexFlags),
    /// List the values of an index, with the number of objects under each
    #[command(after_help = help(values::EXAMPLES))]
    Values(values::ValuesFlags),
    /// Show the objects of a resource and every change to them
    #[command(after_help = help(watch::EXAMPLES))]
    Watch(watch::WatchFlags),
    /// Show the objects that differ between two versions of a resource
    #[command(after_help = help(watch::DIFF_EXAMPLES))]
    Diff(watch::DiffFlags),
    /// Write a watch as lines of JSON, for files, pipes and the source `stream`
    #[command(after_help = help(record::EXAMPLES))]
    Record(record::RecordFlags),
    /// Keep a directory with a file for each object of a resource
    #[command(after_help = help(mirror::EXAMPLES))]
    Mirror(mirror::MirrorFlags),
    /// Wait until objects meet conditions
    #[command(visible_alias = "wait", after_help = help(until::EXAMPLES))]
    Until(until::UntilFlags),
    /// Compare the objects that a server serves with those of its upstream
    #[command(after_help = help(verify::EXAMPLES))]
    Verify(verify::VerifyFlags),
    /// Show the open watches: client, selection, policy, lag
    #[command(after_help = help(watchers::EXAMPLES))]
    Watchers(watchers::WatchersFlags),
    /// End open watches: their clients resume
    #[command(after_help = help(watchers::DISCONNECT_EXAMPLES))]
    Disconnect(watchers::DisconnectFlags),
    /// Removed
    #[command(hide = true, disable_help_flag = true)]
    Top {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _arguments: Vec<String>,
    },
    /// Show everything about a resource, or about one object
    #[command(after_help = help(describe::EXAMPLES))]
    Describe(describe::DescribeFlags),
    /// Explain why a watch has an object or not
    #[command(after_help = help(explain::EXAMPLES))]
    Explain(explain::ExplainFlags),
    /// Check that a server is ready, for probes
    #[command(after_help = healthcheck::EXAMPLES)]
    Healthcheck(healthcheck::HealthcheckFlags),
    /// Print the completion script of a shell
    #[command(after_help = completion::EXAMPLES)]
    Completion(completion::CompletionFlags),
    /// Print version, commit and features
    Version(version::VersionFlags),
}

const EXAMPLES: &str = "\
Examples:
  informerd serve --config examples/shop.yaml
  informerd serve --files pods=./manifests@Pod
  informerd resources
  informerd list pods -l app=web
  informerd watch pods";

/// Answer of a command of earlier versions.
const NO_TOP: &str =
    "`top` is no command any more: use `watchers -w` and `resources -w`, or the page at / of the server's admin port";

const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 failure at run time; 2 wrong usage; 3 resource or object not found; 4 server unavailable or \
timed out; 5 not allowed.";

// === impl Cli ===

impl Cli {
    /// Parses the arguments, and runs the command. Answers the completion script of a shell instead, if that has called.
    pub fn main() -> ExitCode {
        if completion::answer(Self::command) { ExitCode::SUCCESS } else { Self::parse().run() }
    }

    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let ended = match self.command {
            Command::Serve(flags) => flags.serve_flags().and_then(|flags| serve::run(&flags)),
            Command::Check(flags) => call(check::run(&flags)),
            Command::Rbac(flags) => flags.serve_flags().and_then(|flags| rbac::run(&flags)),
            Command::Config(command) => config::run(&command),
            Command::Resources(flags) => call(resources::run(&flags)),
            Command::Status(flags) => call(resources::status(&flags)),
            Command::List(flags) => call(resolved(&flags, list::run)),
            Command::Get(flags) => flags.split().and_then(|flags| call(resolved(&flags, get::run))),
            Command::ByIndex(flags) => call(resolved(&flags, list::by_index)),
            Command::Values(flags) => call(resolved(&flags, values::run)),
            Command::Watch(flags) => call(resolved(&flags, watch::run)),
            Command::Diff(flags) => call(resolved(&flags, watch::diff)),
            Command::Record(flags) => call(record::run(&flags)),
            Command::Mirror(flags) => call(mirror::run(&flags)),
            Command::Until(flags) => call(resolved(&flags, until::run)),
            Command::Verify(flags) => call(verify::run(&flags)),
            Command::Watchers(flags) => call(resolved(&flags, watchers::run)),
            Command::Disconnect(flags) => call(watchers::disconnect(&flags)),
            Command::Top { .. } => Err(Failure::usage(NO_TOP)),
            Command::Describe(flags) => call(resolved(&flags.split(), describe::run)),
            Command::Explain(flags) => call(resolved(&flags, explain::run)),
            Command::Healthcheck(flags) => call(healthcheck::run(&flags)),
            Command::Completion(flags) => completion::run(&flags),
            Command::Version(flags) => version::run(&flags),
        };
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                failure.print();
                failure.exit_code.into()
            }
        }
    }
}

/// Runs a command that calls a server.
fn call(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| Failure::start(&error))?;
    signals::end_at_signal()?;
    let ended = runtime.block_on(command);
    // Does not wait for a write that nobody reads.
    runtime.shutdown_background();
    ended
}

/// Returns the help after the flags of a client command.
fn help(examples: &str) -> String {
    format!("{examples}\n\n{EXIT_CODES}")
}
