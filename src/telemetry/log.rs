//! The log of the program, whose filter can be changed while it runs.

use std::{io::IsTerminal, sync::OnceLock};

use parking_lot::Mutex;
use tracing_subscriber::{
    Registry,
    filter::{ParseError, Targets},
    layer::SubscriberExt,
    reload,
    util::SubscriberInitExt,
};

use crate::config::LogFormat;

/// Log filter that does not parse.
#[derive(Debug, thiserror::Error)]
#[error("invalid log filter {filter:?}: {reason}; write a level such as info, or informerd=debug,warn")]
pub struct LogFilterError {
    filter: String,
    reason: String,
}

/// Filter of the log, and its text.
#[derive(Debug)]
pub struct LogFilter {
    handle: reload::Handle<Targets, Registry>,
    text: Mutex<String>,
}

static FILTER: OnceLock<LogFilter> = OnceLock::new();

/// Sends logs to stderr. The binary calls it once.
pub fn init_logs(filter: &str, format: LogFormat) -> Result<(), LogFilterError> {
    let (targets, handle) = reload::Layer::new(parse(filter)?);
    let registry = tracing_subscriber::registry().with(targets);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            registry.with(layer.with_ansi(colour).with_target(false)).init();
        }
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
    }
    FILTER.get_or_init(|| LogFilter { handle, text: Mutex::new(filter.to_owned()) });
    Ok(())
}

/// Returns the filter of [`init_logs`]; `None` in a program that has a log of its own.
pub fn log_filter() -> Option<&'static LogFilter> {
    FILTER.get()
}

fn parse(filter: &str) -> Result<Targets, LogFilterError> {
    filter.parse().map_err(|error: ParseError| LogFilterError { filter: filter.to_owned(), reason: error.to_string() })
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
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_targets_with_levels() {
        for filter in ["info", "DEBUG", "informerd=debug,warn", "off"] {
            assert!(parse(filter).is_ok(), "{filter}");
        }
        let error = parse("informerd=loud").unwrap_err().to_string();
        assert!(error.starts_with("invalid log filter \"informerd=loud\": ") && !error.contains('\n'), "{error}");
    }
}
