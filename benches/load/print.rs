//! Figures of a report: columns for people, documents for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use serde_json::{Value, json, ser::PrettyFormatter};

use super::{
    report::{Metric, Report},
    stats::Spread,
};

/// The form of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Columns
    #[default]
    #[value(alias = "wide")]
    Table,
    /// Indented JSON
    Json,
    /// YAML
    Yaml,
    /// One JSON document a line
    Jsonl,
    /// The names of what was measured
    Name,
}

/// Row of the table, in every form.
struct Row {
    cells: Vec<String>,
    document: Value,
}

/// Writes a row for each subject, and one for each comparison with the first.
pub(super) fn write(report: &Report, output: Output, with_header: bool, out: &mut impl Write) -> io::Result<()> {
    let metrics = report.metrics();
    let mut rows: Vec<Row> = report.subjects().map(|subject| measured(report, subject, &metrics)).collect();
    rows.extend(report.subjects().skip(1).map(|other| compared(report, other, &metrics)));
    match output {
        Output::Table => {
            let header = ["SUBJECT"].into_iter().chain(metrics.iter().map(|metric| metric.heading));
            let header: Vec<String> = header.map(str::to_owned).collect();
            let lines = with_header.then_some(header).into_iter().chain(rows.into_iter().map(|row| row.cells));
            write_table(&lines.collect::<Vec<_>>(), out)?;
        }
        Output::Json | Output::Yaml => {
            let document = json!({ "bench": rows.into_iter().map(|row| row.document).collect::<Vec<_>>() });
            if output == Output::Yaml {
                write!(out, "{}", serde_saphyr::to_string(&document).map_err(io::Error::other)?)?;
            } else {
                let formatter = PrettyFormatter::with_indent(b"    ");
                serde::Serialize::serialize(
                    &document,
                    &mut serde_json::Serializer::with_formatter(&mut *out, formatter),
                )?;
                writeln!(out)?;
            }
        }
        Output::Jsonl => rows.iter().try_for_each(|row| writeln!(out, "{}", row.document))?,
        Output::Name => rows.iter().try_for_each(|row| writeln!(out, "{}", row.cells[0]))?,
    }
    out.flush()
}

/// Writes columns as wide as their widest cells, three blanks apart.
fn write_table(lines: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
    let columns = lines.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or_default())
        .collect();
    lines.iter().try_for_each(|cells| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", padded.collect::<Vec<_>>().join("   ").trim_end())
    })
}

fn measured(report: &Report, subject: &str, metrics: &[&'static Metric]) -> Row {
    let mut values = serde_json::Map::new();
    let mut cells = vec![subject.to_owned()];
    for metric in metrics {
        let Some(Spread { median, min, max }) = report.spread(subject, metric) else {
            cells.push("<none>".to_owned());
            continue;
        };
        let runs = report.values(subject, metric);
        cells.push(if runs.len() == 1 {
            number(median)
        } else {
            format!("{} [{}-{}]", number(median), number(min), number(max))
        });
        let value = json!({ "median": median, "min": min, "max": max, "runs": runs });
        values.insert(metric.key.to_owned(), value);
    }
    Row { cells, document: json!({ "subject": subject, "measured": values }) }
}

fn compared(report: &Report, other: &str, metrics: &[&'static Metric]) -> Row {
    let name = format!("{other} / {}", report.subjects().next().unwrap_or_default());
    let mut values = serde_json::Map::new();
    let mut cells = vec![name.clone()];
    for metric in metrics {
        let ratio = report.ratio(other, metric);
        cells.push(ratio.map(|ratio| format!("{}x", number(ratio))).unwrap_or_default());
        values.extend(ratio.map(|ratio| (metric.key.to_owned(), ratio.into())));
    }
    Row { cells, document: json!({ "subject": name, "times_better": values }) }
}

/// Writes a number with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Better;
    use super::*;

    const COST: Metric = Metric { key: "cost_us", heading: "COST us", better: Better::Less };
    const SIZE: Metric = Metric { key: "size", heading: "SIZE", better: Better::Neither };

    fn written(output: Output, with_header: bool) -> String {
        let mut report = Report::default();
        report.add("ours", vec![(&COST, 1.0), (&SIZE, 5.0)]);
        report.add("ours", vec![(&COST, 3.0), (&SIZE, 5.0)]);
        report.add("theirs", vec![(&COST, 4.0)]);
        let mut out = Vec::new();
        write(&report, output, with_header, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_form_has_the_figures_and_the_ratios() {
        let rows = "ours            2.00 [1.00-3.00]   5.00 [5.00-5.00]\n\
                    theirs          4.00               <none>\n\
                    theirs / ours   2.00x\n";
        assert_eq!(written(Output::Table, false), rows);
        assert_eq!(written(Output::Table, true), format!("SUBJECT         COST us            SIZE\n{rows}"));
        assert_eq!(written(Output::Name, true), "ours\ntheirs\ntheirs / ours\n");
        let lines: Vec<Value> =
            written(Output::Jsonl, true).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            lines[0]["measured"]["cost_us"],
            json!({ "median": 2.0, "min": 1.0, "max": 3.0, "runs": [1.0, 3.0] })
        );
        assert_eq!(lines[2], json!({ "subject": "theirs / ours", "times_better": { "cost_us": 2.0 } }));
        let document: Value = serde_json::from_str(&written(Output::Json, true)).unwrap();
        assert_eq!(document, json!({ "bench": lines }));
        assert_eq!(serde_saphyr::from_str::<Value>(&written(Output::Yaml, true)).unwrap(), document);
    }

    #[test]
    fn a_number_has_three_digits_that_count() {
        let texts = [0.0, 0.1734, 0.99949, 1.734, 17.34, 99.96, 173.4, 17_340.0].map(number);
        assert_eq!(texts, ["0", "0.173", "0.999", "1.73", "17.3", "100", "173", "17340"]);
    }
}
