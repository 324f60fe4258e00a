//! Scenario: a scripted server, a client that runs against it, and the result.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    driver::{Failure, Launcher, Outcome},
    world::World,
};

/// Scenario that plays.
pub(crate) type Playing<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// One rule, and the script that checks it.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Rule in one sentence.
    pub(crate) rule: &'static str,
    pub(crate) play: for<'a> fn(&'a mut World) -> Playing<'a>,
}

/// Result of one scenario.
pub(crate) struct Report {
    pub(crate) name: &'static str,
    pub(crate) rule: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    /// Lines of the driver that are events, in order.
    pub(crate) events: Vec<String>,
    /// Everything that arrived at the server, in words.
    pub(crate) received: Vec<String>,
    pub(crate) stderr: String,
}

// === impl Scenario ===

impl Scenario {
    /// Plays the scenario against a driver of its own.
    pub(crate) async fn run(&self, launcher: &Launcher, patience: Duration) -> Report {
        let began_at = Instant::now();
        let mut report = Report::new(self.name, self.rule);
        match World::begin(launcher, patience).await {
            Ok(mut world) => {
                report.outcome = (self.play)(&mut world).await;
                (report.events, report.received, report.stderr) = world.end().await;
            }
            Err(failure) => report.outcome = Err(failure),
        }
        report.took = began_at.elapsed();
        report
    }
}

// === impl Report ===

impl Report {
    fn new(name: &'static str, rule: &'static str) -> Self {
        let (events, received) = (Vec::new(), Vec::new());
        Self { name, rule, outcome: Ok(()), took: Duration::ZERO, events, received, stderr: String::new() }
    }

    /// Creates the report of a scenario that did not end.
    pub(crate) fn failed(name: &'static str, rule: &'static str, failure: Failure) -> Self {
        Self { outcome: Err(failure), ..Self::new(name, rule) }
    }

    /// Returns the row of the table.
    pub(crate) fn row(&self) -> String {
        let result = if self.outcome.is_ok() { "ok" } else { "FAILED" };
        format!("{result:7} {:24} {:>6.2} s", self.name, self.took.as_secs_f64())
    }

    /// Returns the rule, the failure, and all that happened.
    pub(crate) fn details(&self) -> String {
        let lines = |lines: &[String]| {
            if lines.is_empty() { "    (nothing)\n".to_owned() } else { format!("    {}\n", lines.join("\n    ")) }
        };
        let stderr: Vec<_> = self.stderr.lines().map(str::to_owned).collect();
        let failure = self.outcome.as_ref().err().map_or("", String::as_str);
        let Self { name, rule, events, received, .. } = self;
        format!(
            "== {name}: {rule}\n  failure: {failure}\n  events of the driver:\n{}  received by the server:\n{}  stderr of the driver:\n{}",
            lines(events),
            lines(received),
            lines(&stderr)
        )
    }

    /// Returns the result for a program.
    pub(crate) fn json(&self) -> Value {
        let failure = self.outcome.as_ref().err();
        json!({ "name": self.name, "rule": self.rule, "passed": failure.is_none(), "failure": failure, "seconds": self.took.as_secs_f64() })
    }
}
