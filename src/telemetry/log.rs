//! The log of the program, whose filter can be changed while it runs.

use std::{io::IsTerminal, sync::OnceLock};

use parking_lot::Mutex;
use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    reload,
    util::SubscriberInitExt,
};

use super::traces::{self, Traces, TracesError};
use crate::{
    config::{LogFormat, nearest},
    model::excerpt,
};

/// Log filter that does not parse.
#[derive(Debug, thiserror::Error)]
#[error("invalid log filter {filter:?}: {reason}; write a level such as info, or info,informerd::watch=debug")]
pub struct LogFilterError {
    filter: String,
    reason: String,
}

/// Reason why logs and traces cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Filter of the log.
    #[error(transparent)]
    Filter(#[from] LogFilterError),
    /// Variable of OpenTelemetry.
    #[error(transparent)]
    Traces(#[from] TracesError),
}

/// Filter of the log, and its text.
#[derive(Debug)]
pub struct LogFilter {
    handle: reload::Handle<Targets, Registry>,
    text: Mutex<String>,
}

/// Target of the lines of this crate.
const CRATE: &str = "informerd";
/// Levels by their names.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

static FILTER: OnceLock<LogFilter> = OnceLock::new();

/// Sends logs to stderr, and traces as the variables of OpenTelemetry have it. The binary calls it once, in its runtime.
///
/// # Errors
///
/// If the filter or a variable cannot be used.
pub fn init_logs(filter: &str, format: LogFormat) -> Result<Traces, TelemetryError> {
    // A filter of this layer only: the spans of traces do not depend on it.
    let (targets, handle) = reload::Layer::new(parse(filter)?);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let layer = match format {
        LogFormat::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            layer.with_ansi(colour).with_target(false).boxed()
        }
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let (exporting, traces) = traces::layer()?;
    tracing_subscriber::registry().with(layer.with_filter(targets)).with(exporting).init();
    FILTER.get_or_init(|| LogFilter { handle, text: Mutex::new(filter.to_owned()) });
    traces.log();
    Ok(traces)
}

/// Returns the filter of [`init_logs`]; `None` in a program that has a log of its own.
pub fn log_filter() -> Option<&'static LogFilter> {
    FILTER.get()
}

/// Reads a filter: levels and targets with levels, separated by commas. A level alone is that of this crate; the lines of other
/// crates below `info`, such as HTTP/2 frames, need their targets.
fn parse(filter: &str) -> Result<Targets, LogFilterError> {
    let refused = |reason: String| LogFilterError { filter: filter.to_owned(), reason };
    let (mut level, mut targets) = (None, Vec::new());
    for part in filter.split(',').map(str::trim) {
        match part.split_once('=') {
            Some((target, of)) => targets.push((target.trim().to_owned(), parse_level(of.trim()).map_err(refused)?)),
            None if is_own(part) => targets.push((part.to_owned(), LevelFilter::TRACE)),
            None => level = Some(parse_level(part).map_err(refused)?),
        }
    }
    let mut parsed = Targets::new();
    if let Some(level) = level {
        // Of two levels for a target the last one counts.
        parsed = parsed.with_default(level.min(LevelFilter::INFO)).with_target(CRATE, level);
    }
    Ok(parsed.with_targets(targets))
}

fn parse_level(text: &str) -> Result<LevelFilter, String> {
    let lower = text.to_ascii_lowercase();
    let known = LEVELS.iter().find(|(name, _)| *name == lower);
    let problem = || {
        let names = LEVELS.map(|(name, _)| name);
        let meant = nearest(&lower, &names).map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
        format!("unknown level {:?}{meant} (known: {})", excerpt(text), names.join(", "))
    };
    known.map(|(_, level)| *level).ok_or_else(problem)
}

/// Returns true for this crate and its modules.
fn is_own(target: &str) -> bool {
    target.strip_prefix(CRATE).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

// === impl LogFilter ===

impl LogFilter {
    /// Returns the text of the filter.
    pub fn text(&self) -> String {
        self.text.lock().clone()
    }

    /// Changes the filter, until the next change or the end of the program.
    ///
    /// # Errors
    ///
    /// If the text is not a filter; then nothing changes.
    pub fn set(&self, filter: &str) -> Result<(), LogFilterError> {
        let targets = parse(filter)?;
        let failed = |error: reload::Error| LogFilterError { filter: filter.to_owned(), reason: error.to_string() };
        let mut text = self.text.lock();
        self.handle.reload(targets).map_err(failed)?;
        let before = std::mem::replace(&mut *text, filter.to_owned());
        tracing::warn!(filter, before, "log filter changed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_filter_is_a_level_or_targets_with_levels() {
        for filter in ["info", "DEBUG", "informerd=debug,warn", "off", "warn, informerd::watch", "h2=trace"] {
            assert!(parse(filter).is_ok(), "{filter}");
        }
        for (filter, reason) in [
            ("loud", "unknown level \"loud\" (known: off, error, warn, info, debug, trace)"),
            ("debgu", "unknown level \"debgu\"; did you mean \"debug\"? (known: "),
            ("informerd=wran", "unknown level \"wran\"; did you mean \"warn\"? (known: "),
            ("info,hyper", "unknown level \"hyper\" (known: "),
            ("", "unknown level \"\" (known: "),
        ] {
            let error = parse(filter).unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid log filter {filter:?}: {reason}")), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_level_alone_is_that_of_this_crate() {
        let enabled = |filter: &str, target: &str, level: Level| parse(filter).unwrap().would_enable(target, &level);
        for (filter, target, level, expected) in [
            ("debug", "informerd::grpc", Level::DEBUG, true),
            ("debug", "informerd::grpc", Level::TRACE, false),
            ("debug", "h2::codec", Level::DEBUG, false),
            ("debug", "h2::codec", Level::INFO, true),
            ("debug,h2=debug", "h2::codec", Level::DEBUG, true),
            ("warn", "hyper", Level::INFO, false),
            ("warn", "informerd", Level::INFO, false),
            ("informerd=debug,warn", "informerd::grpc", Level::DEBUG, true),
            ("informerd=debug,warn", "hyper", Level::WARN, true),
            ("info,informerd::watch=debug", "informerd::watch::group", Level::DEBUG, true),
            ("info,informerd::watch=debug", "informerd::grpc", Level::DEBUG, false),
            ("informerd::watch", "informerd::watch", Level::TRACE, true),
            ("informerd::watch", "hyper", Level::ERROR, false),
            ("off", "informerd", Level::ERROR, false),
        ] {
            assert_eq!(enabled(filter, target, level), expected, "{filter}: {target} at {level}");
        }
    }
}
