//! The conformance suite, in this process: the Rust client passes it, and clients that break one rule each do not.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, future::join_all};

use self::wrong_client::Fault;
use crate::sandbox::DEADLINE;

#[path = "../../examples/conformance_driver.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod driver;
#[path = "../../clients/conformance/src/main.rs"]
#[allow(dead_code, reason = "its main is that of a program")]
mod suite;
mod wrong_client;

/// Scenarios at the same time: nearly all of their time is waiting.
const JOBS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_follows_every_rule() {
    let launcher = suite::Launcher::Function(Arc::new(|commands, lines| {
        tokio::spawn(async move { driver::run(commands, lines).await.unwrap() })
    }));
    let scenarios = suite::all();
    assert!(scenarios.len() >= 40, "{} scenarios", scenarios.len());
    let reports: Vec<_> = suite::play(scenarios, launcher, JOBS, DEADLINE / 4).collect().await;
    let failures: String =
        reports.iter().filter(|report| report.outcome.is_err()).map(suite::Report::details).collect();
    assert!(failures.is_empty(), "{failures}");
}

#[tokio::test]
async fn names_and_rules_are_unique_and_rules_are_sentences() {
    let mut scenarios = suite::all();
    for scenario in &scenarios {
        assert!(scenario.rule.ends_with('.') && !scenario.name.contains(' '), "{}: {}", scenario.name, scenario.rule);
    }
    let count = scenarios.len();
    scenarios.sort_by_key(|scenario| scenario.name);
    scenarios.dedup_by_key(|scenario| scenario.name);
    assert_eq!(scenarios.len(), count);
}

/// Plays some scenarios against the simple client of these tests, with a fault, and returns those that it does not pass.
async fn failed(fault: Fault, names: &[&str], patience: Duration) -> Vec<&'static str> {
    let launcher = suite::Launcher::Function(Arc::new(move |commands, lines| {
        tokio::spawn(wrong_client::run(fault, commands, lines))
    }));
    let mut scenarios = suite::all();
    scenarios.retain(|scenario| names.contains(&scenario.name));
    assert_eq!(scenarios.len(), names.len(), "unknown names in {names:?}");
    let reports: Vec<_> = suite::play(scenarios, launcher, JOBS, patience).collect().await;
    reports.iter().filter(|report| report.outcome.is_err()).map(|report| report.name).collect()
}

/// Checks that the suite can fail: each client breaks one rule, and is found by the scenario of that rule. The same client without
/// the fault passes all of these scenarios, so that nothing else about it is what fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_breaks_a_rule_fails_its_scenario() {
    let found = [
        (Fault::IgnoresHistory, "end-ok"),
        (Fault::AppliesHalfBatches, "batch"),
        (Fault::ComparesVersions, "relist-unchanged"),
        (Fault::NeverReconnects, "reset-connection"),
        (Fault::ForgetsTheState, "expired"),
        (Fault::TrustsSilence, "silence"),
        (Fault::KeepsTheConnection, "drain-bookmark"),
        (Fault::IgnoresUids, "uid-live"),
        (Fault::SkipsHoles, "drop-heal"),
        (Fault::TakesStaleForDead, "stale"),
        (Fault::ReadsReasonsOnly, "code-out-of-range"),
        (Fault::IgnoresBatches, "initial-batches"),
    ];
    let names = found.map(|(_, name)| name);
    assert_eq!(failed(Fault::None, &names, DEADLINE / 4).await, [""; 0], "without a fault");
    // Steps that never come are not worth a long wait.
    let played = found.map(|(fault, name)| async move { (fault, name, failed(fault, &[name], DEADLINE / 60).await) });
    for (fault, name, failed) in join_all(played).await {
        assert_eq!(failed, [name], "{fault:?}");
    }
}
