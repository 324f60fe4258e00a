//! `informerd top`: load of resources and watches, live on a terminal, or as text and JSON.

mod columns;
mod details;
mod list;
mod report;
mod sample;
mod screen;
mod state;
mod terminal;

use std::{
    io::{IsTerminal, Write},
    time::{Duration, SystemTime},
};

use clap::{Args, ValueEnum};

use self::{
    columns::Key,
    report::TextOptions,
    sample::{Meter, Sampler},
    state::State,
};
use super::{
    alias::of_resource,
    client_flags::ServerFlags,
    failure::{Failure, NOT_ALLOWED, NOT_FOUND, WRONG_USAGE},
    print::{Color, stdout},
    reader::Reader,
    signals::Signals,
};
use crate::config::parse_duration;

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd top
  informerd top pods --sort-by lag
  informerd top --once --interval 1s
  informerd top -o json --interval 10s | jq .server.eventsPerSecond

On a terminal it is a live screen; `?` shows its keys. Where stdout is no terminal, it prints one sample, as --once does. \
-o json prints one document a line for each sample, until Ctrl-C or with --once for one. Rates are those between two samples. \
It needs the right to inspect every resource.";

/// Flags of `informerd top`.
#[derive(Debug, Clone, Args)]
pub(super) struct TopFlags {
    /// A name from `informerd resources`; all of them if left out
    #[arg(value_name = "RESOURCE", default_value = "", hide_default_value = true)]
    resource: String,
    /// Print one sample as text, and end
    #[arg(long, help_heading = "Output")]
    once: bool,
    /// Time between two samples
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_interval, help_heading = "Output")]
    interval: Duration,
    /// Column to sort by, of the table that has it
    #[arg(long, value_name = "COLUMN", value_enum, help_heading = "Output")]
    sort_by: Option<Key>,
    /// Format of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t, help_heading = "Output")]
    output: Form,
    /// Print no header lines
    #[arg(long, help_heading = "Output")]
    no_headers: bool,
    /// When to use colour
    #[arg(long, value_name = "WHEN", value_enum, default_value_t, help_heading = "Output")]
    color: Color,
    #[command(flatten)]
    server: ServerFlags,
}

of_resource!(TopFlags, server);

/// Format of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Live screen, or tables with --once
    #[default]
    Table,
    /// One JSON document a line for each sample
    Json,
}

/// Shortest time between two samples: a server counts its watches for each.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn run(flags: &TopFlags) -> Result<(), Failure> {
    let TopFlags { resource, interval, server, .. } = flags;
    let mut sampler = Sampler::connect(server, resource, *interval).await?;
    let (first, mut meter) = (sampler.next().await?, Meter::default());
    if flags.output == Form::Table && !flags.once && std::io::stdout().is_terminal() {
        let mut state = State::new(server.server_text(), resource, flags.sort_by);
        state.has_colors = flags.color.is_on();
        return terminal::run(state, meter, first, sampler).await;
    }
    let (mut signals, reader) = (Signals::of_writer()?, Reader::new());
    meter.read(first);
    loop {
        let sample = tokio::select! {
            _ = signals.next() => return Ok(()),
            () = reader.gone() => return Ok(()),
            sample = sampler.next() => sample,
        };
        let is_last = flags.once || flags.output == Form::Table;
        match sample {
            Ok(sample) => {
                let figures = meter.read(sample);
                let mut text = String::new();
                match flags.output {
                    Form::Json => report::json(&figures, &mut text),
                    Form::Table => text = report::text(&figures, SystemTime::now(), flags.text_options()),
                }
                let mut out = stdout();
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
            Err(failure) if is_last || is_permanent(&failure) => return Err(failure),
            Err(failure) => {
                server
                    .note(&format_args!("# no figures: {}; next in {interval:?}", failure.message.unwrap_or_default()));
            }
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Returns true if later samples will fail, too.
fn is_permanent(failure: &Failure) -> bool {
    matches!(failure.exit_code, NOT_ALLOWED | NOT_FOUND | WRONG_USAGE)
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(interval) if interval < MIN_INTERVAL => Err(format!("at least {MIN_INTERVAL:?}")),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

// === impl TopFlags ===

impl TopFlags {
    fn text_options(&self) -> TextOptions {
        TextOptions { sorted_by: self.sort_by, no_headers: self.no_headers, colors: self.color.is_on() }
    }
}
