//! Tables that are shown again and again.

use std::{io::Write, time::Duration};

use clap::Args;

use super::{
    client_flags::{ServerFlags, TimeoutFlags},
    failure::{Failure, UNAVAILABLE},
    print::{Output, stdout, terminal_width},
    reader::Reader,
    signals::Signals,
    waiting,
};
use crate::config::parse_duration;

/// Flags of a command whose table is refreshed.
#[derive(Debug, Clone, Args)]
pub(super) struct RefreshFlags {
    /// Show it again and again, until Ctrl-C: a terminal is cleared before each time
    #[arg(short, long, help_heading = "Output")]
    watch: bool,
    /// Time between two of these
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "2s",
        value_parser = parse_interval,
        requires = "watch",
        help_heading = "Output"
    )]
    interval: Duration,
}

/// Shortest interval: a server computes each answer.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

// === impl RefreshFlags ===

impl RefreshFlags {
    /// Shows a table, once or until a signal, or until nobody reads it. While the server is away it is tried again.
    pub(super) async fn run(
        &self,
        output: Output,
        (server, timeout): (&ServerFlags, &TimeoutFlags),
        show: impl AsyncFn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.watch {
            return waiting::limited(timeout, server, "", Box::pin(show())).await;
        }
        if matches!(output, Output::Json | Output::Yaml) {
            return Err(Failure::usage("-w with json or yaml has no end of a document: use -o jsonl"));
        }
        let (mut signals, reader) = (Signals::of_writer()?, Reader::new());
        let shown = async {
            loop {
                if terminal_width().is_some() {
                    stdout().write_all(b"\x1b[H\x1b[2J")?;
                }
                match waiting::limited(timeout, server, "", Box::pin(show())).await {
                    Err(Failure { message: Some(message), exit_code: UNAVAILABLE }) => {
                        server.note(&format_args!("# {message}; it is tried again"));
                    }
                    ended => ended?,
                }
                tokio::time::sleep(self.interval).await;
            }
        };
        tokio::select! {
            ended = shown => ended,
            _ = signals.next() => Ok(()),
            () = reader.gone() => Ok(()),
        }
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|error| error.to_string())?;
    if interval < MIN_INTERVAL { Err(format!("at least {MIN_INTERVAL:?}")) } else { Ok(interval) }
}
