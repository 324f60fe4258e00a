//! Runner: draws histories from a seed, runs them on all processors, and shrinks the first that fails.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use tokio::runtime::{Builder, Runtime};

use super::{
    history,
    script::{Script, any_script},
    totals::Totals,
    upstream::Upstream,
};

/// Time for the search of a shorter history that also fails.
const SHRINKING: Duration = Duration::from_secs(20);
/// Number of histories from which on every required kind must occur.
pub(crate) const MANY: u64 = 100;
/// With some seed a rare kind may be missing: a run draws further histories, up to this many times as many, until each has occurred.
pub(crate) const MOST_ROUNDS: u64 = 4;

/// Runs as many histories as `INFORMERD_SOURCE_CHECKER_CASES` says, or `cases`, and more until every required kind has occurred. The seed is fixed, or `INFORMERD_CHECKER_SEED`.
/// `INFORMERD_SOURCE_CHECKER_CASE` runs only that history, with its log. With `INFORMERD_SOURCE_CHECKER_SURVEY` the run continues
/// after a violation, and prints a line for each.
#[allow(clippy::print_stdout, reason = "the figures of a test")]
pub(crate) fn check<U: Upstream>(name: &str, cases: u64) {
    let cases = setting("INFORMERD_SOURCE_CHECKER_CASES").unwrap_or(cases);
    let seed = setting("INFORMERD_CHECKER_SEED").unwrap_or(1);
    let only = setting("INFORMERD_SOURCE_CHECKER_CASE");
    if only.is_some() {
        tracing_subscriber::fmt().with_test_writer().try_init().ok();
    }
    let is_survey = setting("INFORMERD_SOURCE_CHECKER_SURVEY").is_some();
    let (began, totals) = (Instant::now(), Mutex::new(Totals::default()));
    let wrong = Mutex::new(None);
    let (mut first, mut last) = only.map_or((0, cases), |only| (only, only + 1));
    loop {
        let next = AtomicU64::new(first);
        std::thread::scope(|scope| {
            for _ in 0..threads() {
                scope.spawn(|| {
                    loop {
                        let case = next.fetch_add(1, Ordering::Relaxed);
                        if case >= last || wrong.lock().is_some() {
                            return;
                        }
                        let mut of_this = Totals::default();
                        let result = run_case::<U>(seed, case, &mut of_this);
                        totals.lock().merge(of_this);
                        if let (true, Err(violation)) = (is_survey, &result) {
                            let mut lines = violation.lines();
                            println!(
                                "{name} {case}: {} {}",
                                lines.next().unwrap(),
                                lines.next_back().unwrap_or_default()
                            );
                        } else if let Err(violation) = result {
                            wrong.lock().get_or_insert((case, violation));
                            return;
                        }
                    }
                });
            }
        });
        let is_enough = wrong.lock().is_some() || totals.lock().missing::<U>().is_empty();
        if is_enough || only.is_some() || cases < MANY || last >= cases * MOST_ROUNDS {
            break;
        }
        (first, last) = (last, last + cases);
    }
    let totals = totals.into_inner();
    println!("{name}: {} histories of seed {seed} in {:?}: {totals:#?}", totals.histories, began.elapsed());
    if let Some((case, violation)) = wrong.into_inner() {
        let (shrunk, steps) = shrink::<U>(seed, case, violation);
        panic!("{name}: history {case} of seed {seed}: {shrunk}\n\nin {steps}");
    }
    let missing = totals.missing::<U>();
    assert!(only.is_some() || cases < MANY || missing.is_empty(), "{name}: a run without any {missing:?}");
}

/// Runs one history of a seed.
///
/// # Errors
///
/// Returns the violation.
fn run_case<U: Upstream>(seed: u64, case: u64, totals: &mut Totals) -> Result<(), String> {
    let script = any_script::<U>().new_tree(&mut runner(seed, case)).unwrap().current();
    run_script(&script, totals)
}

/// Returns the number of parallel histories: one per processor.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Builds a runtime for a history in real time: the script blocks its thread, and the server has another one.
pub(crate) fn real_time() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn run_script<U: Upstream>(script: &Script<U>, totals: &mut Totals) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let ran = catch_unwind(AssertUnwindSafe(|| runtime.block_on(history::run(script, totals))));
    runtime.shutdown_background();
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

/// Searches a shorter script that also fails.
fn shrink<U: Upstream>(seed: u64, case: u64, violation: String) -> (String, String) {
    let mut tree = any_script::<U>().new_tree(&mut runner(seed, case)).unwrap();
    let (began, mut worst) = (Instant::now(), (violation, tree.current().text()));
    let mut is_simpler = setting("INFORMERD_SOURCE_CHECKER_SHRINK") != Some(0) && tree.simplify();
    while is_simpler && began.elapsed() < SHRINKING {
        let script = tree.current();
        is_simpler = match run_script(&script, &mut Totals::default()) {
            Err(violation) => {
                worst = (violation, script.text());
                tree.simplify()
            }
            Ok(()) => tree.complicate(),
        };
    }
    worst
}

pub(crate) fn runner(seed: u64, case: u64) -> TestRunner {
    // The seed must not begin with zeros only.
    let mut bytes = [1; 16];
    bytes[..8].copy_from_slice(&seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    bytes[8..].copy_from_slice(&(case + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93).to_le_bytes());
    let config = Config { failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::XorShift, &bytes))
}

/// Reads a number from the environment.
pub(crate) fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}
