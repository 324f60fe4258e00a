//! `informerd bench`.

mod flags;

use std::io::Write;

use serde_json::json;

pub(super) use self::flags::BenchFlags;
use super::{
    FAILED,
    client_flags::FormatFlags,
    failure::Failure,
    print::{Record, escape, json::Document, table::Cell, write_records},
    stdout,
};
use crate::bench::{self, BenchError, Metric, Report, Spread};

pub(super) const EXAMPLES: &str = "\
Examples:
  # what a delivery costs, saturated and at a fixed rate, of a server that is started for it
  informerd bench w1 --local
  informerd bench w1 --local --watchers 1000 --rate 20
  informerd bench w2 --local --rate 100 --seconds 10 -o json

  # memory of watchers, what a stopped client does to the others, and everything at once
  informerd bench idle --local --watchers 10000 --connections 10000
  informerd bench stopped --local --policy drop
  informerd bench storm --local --watchers 100
  informerd bench list --local

  # of a server that runs already; its watch.block_timeout bounds a saturated run under BLOCK
  mkfifo /tmp/feed
  informerd serve --stream bench=/tmp/feed &
  informerd bench w1 --server 127.0.0.1:50051 --feed /tmp/feed --pid $! --policy replay

  # beside the baselines, from the source tree: naive in w1, w2, w3 and idle, floor in w1, w2, w3
  cargo bench --bench wire -- w1 --watchers 100 --reps 7

Every run checks that each watcher has had each of its events once; if not, there are no figures.
Figures are medians of all runs, with the least and the most; `naive / informerd` says how many
times better informerd's median is.

  SERVER us   processor time of the server, user and system, for each delivery (w3: each event)
  BOTH us     with that of the load client: when sockets stand full, cost moves from one to the other
  k/s         thousands of deliveries (w3: of events) a second
  P50, P99    from the publisher's write to the client's read; saturated, that is how full queues
              and sockets are
  RSS         resident memory of the server, at most
  SOCKETS     memory of all TCP sockets of the machine, both ends, at most

Exit codes: 0 done; 1 a run failed, or its counts did not fit; 2 wrong usage.";

pub(super) fn run(flags: &BenchFlags) -> Result<(), Failure> {
    let common = flags.common();
    let (bench, mode) = (common.bench()?, flags.mode()?);
    let note = |note: &str| {
        if !common.quiet {
            // A closed stderr leaves nobody to tell.
            drop(writeln!(std::io::stderr(), "{note}"));
        }
    };
    let report = bench::run(&bench, &mode, note)?;
    print(&report, &common.format)
}

/// A row for each subject, and one for each that the first is compared with.
fn print(report: &Report, format: &FormatFlags) -> Result<(), Failure> {
    let metrics = report.metrics();
    let header: Vec<&str> = ["SUBJECT"].into_iter().chain(metrics.iter().map(|metric| metric.heading)).collect();
    let mut records: Vec<Record> = report.subjects().map(|subject| measured(report, subject, &metrics)).collect();
    records.extend(report.subjects().skip(1).map(|other| compared(report, other, &metrics)));
    Ok(write_records(stdout(), &format.options(), ("bench", &header), records)?)
}

fn measured(report: &Report, subject: &str, metrics: &[&'static Metric]) -> Record {
    let mut values = serde_json::Map::new();
    let mut cells = vec![Cell::new(subject)];
    for metric in metrics {
        let Some(Spread { median, min, max }) = report.spread(subject, metric) else {
            cells.push(Cell::new("<none>"));
            continue;
        };
        let runs = report.values(subject, metric);
        let text = if runs.len() == 1 {
            number(median)
        } else {
            format!("{} [{}-{}]", number(median), number(min), number(max))
        };
        cells.push(Cell::new(&text));
        let value = json!({ "median": median, "min": min, "max": max, "runs": runs });
        values.insert(metric.key.to_owned(), value);
    }
    let document = json!({ "subject": subject, "measured": values });
    Record { name: subject.to_owned(), cells, document: Document::from_value(&document) }
}

fn compared(report: &Report, other: &str, metrics: &[&'static Metric]) -> Record {
    let name = format!("{other} / {}", report.subjects().next().unwrap_or_default());
    let mut values = serde_json::Map::new();
    let mut cells = vec![Cell::new(&name)];
    for metric in metrics {
        let ratio = report.ratio(other, metric);
        cells.push(Cell::new(&ratio.map(|ratio| format!("{}x", number(ratio))).unwrap_or_default()));
        values.extend(ratio.map(|ratio| (metric.key.to_owned(), ratio.into())));
    }
    let document = json!({ "subject": name, "times_better": values });
    Record { name, cells, document: Document::from_value(&document) }
}

/// With three digits that count.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

// === impl Failure ===

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        Self::new(FAILED, escape(&error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_three_digits_that_count() {
        let texts = [0.0, 0.1734, 0.99949, 1.734, 17.34, 99.96, 173.4, 17_340.0].map(number);
        assert_eq!(texts, ["0", "0.173", "0.999", "1.73", "17.3", "100", "173", "17340"]);
    }
}
