//! Command line of the load generator: from arguments to an exit code.

use std::io::{self, Write};

use clap::{CommandFactory, FromArgMatches};

use super::{error::Failure, flags::Flags, mode, print};

const EXAMPLES: &str = "\
Examples:
  # cost of a delivery, saturated and at a fixed rate, with a server started for it
  cargo bench --bench load -- w1 --local
  cargo bench --bench load -- w1 --local --watchers 1000 --rate 20
  cargo bench --bench load -- w2 --local --rate 100 --seconds 10 -o json

  # many watches on one Subscribe call, beside a call of Watch for each
  cargo bench --bench load -- w2 --local --rate 100 --subscribe --baseline watch,floor

  # memory of watchers, effect of a stopped client on the others, and everything at once
  cargo bench --bench load -- idle --local --watchers 10000 --connections 10000
  cargo bench --bench load -- stopped --local --policy drop
  cargo bench --bench load -- storm --local --watchers 100
  cargo bench --bench load -- list --local

  # a small view that suppresses heartbeats, beside whole objects
  cargo bench --bench load -- views --local

  # many pods for many clients at once, compressed, beside uncompressed
  cargo bench --bench load -- compressed --local
  cargo bench --bench load -- compressed --local --list --compression gzip

  # with a running server; its watch.block_timeout bounds a saturated run under BLOCK
  mkfifo /tmp/feed
  informerd serve --stream bench=/tmp/feed &
  cargo bench --bench load -- w1 --server 127.0.0.1:50051 --feed /tmp/feed --pid $! --policy replay

  # with another build of informerd
  cargo bench --bench load -- w1 --local --program ../before/target/release/informerd

  # beside the baselines: naive in w1, w2, w3 and idle, floor in w1, w2, w3, watch in w2 and idle
  cargo bench --bench load -- w1 --local --baseline naive,floor --reps 7

Every run checks that each watcher received each of its events once; otherwise it prints no figures.
Figures are medians of all runs, with the least and the most; `naive / informerd` says how many
times better informerd's median is.

  SERVER us   processor time of the server, user and system, for each delivery (w3: each event)
  BOTH us     the same with that of the load client: full sockets move cost from one to the other
  us/event    processor time for each event of mode views, for all watchers together
  k/s         thousands of deliveries (w3: of events) a second
  P50, P99    latency from the publisher's write to the client's read; of a saturated run, the time in
              full queues and sockets
  RSS         peak of the resident memory of the server
  SOCKETS     peak of the memory of all TCP sockets of the machine, both ends

Exit codes: 0 success; 1 a run failed or its counts differ; 2 wrong usage.";

/// Measures with these arguments, and returns the exit code. Figures go to `out`, notes and errors to `notes`.
pub(in super::super) fn execute(arguments: &[String], out: &mut impl Write, notes: &mut impl Write) -> u8 {
    let name = [env!("CARGO_CRATE_NAME").to_owned()];
    let matches = Flags::command().after_help(EXAMPLES).try_get_matches_from(name.iter().chain(arguments));
    let flags = match matches.and_then(|matches| Flags::from_arg_matches(&matches)) {
        Ok(flags) => flags,
        Err(error) => {
            let text = error.render();
            let written = if error.use_stderr() { write!(notes, "{text}") } else { write!(out, "{text}") };
            // A closed terminal has no reader left.
            drop(written);
            return error.exit_code() as u8;
        }
    };
    match measure(&flags, out, notes) {
        Ok(()) => 0,
        Err(failure) => {
            drop(writeln!(notes, "error: {}", failure.message));
            failure.exit_code
        }
    }
}

fn measure(flags: &Flags, out: &mut impl Write, notes: &mut impl Write) -> Result<(), Failure> {
    let common = flags.common();
    let (bench, mode) = (common.bench()?, flags.mode()?);
    let note = |note: &str| {
        if !common.quiet {
            drop(writeln!(notes, "{note}"));
        }
    };
    let report = mode::run(&bench, &mode, note)?;
    match print::write(&report, common.output, !common.no_headers, out) {
        // The reader has closed the pipe and needs no more.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::new(format!("cannot write: {error}"))),
    }
}
