//! The source checker is checked: bugs are planted in the sources, and it has to find each.
//!
//! A bug is planted on the thread of a history, and on those that the runtime of the history starts, so that histories with
//! different bugs run beside each other. Threads that a library starts by itself have no bug.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use informerd::planted::{self, Bug};
use parking_lot::Mutex;
use tokio::runtime::Builder;

use super::{
    runner::{run_case, setting, threads},
    totals::Totals,
    upstream::Upstream,
};

/// Bugs of the engine that an upstream meets as well: other bytes at the same version come from an API alone.
const ALSO: [(&str, Bug); 1] = [("kube", Bug::BodiesAreNotCompared)];
/// The histories in which bugs are looked for are always the same.
const SEED: u64 = 1;

/// Has every thread that the runtime starts do what is planted on this one.
pub(crate) fn inherit(builder: &mut Builder) {
    let bug = planted::planted_here();
    builder.on_thread_start(move || planted::plant(bug));
}

/// Whether a bug is planted on this thread.
pub(crate) fn has_bug() -> bool {
    planted::planted_here().is_some()
}

/// Plants every bug of an upstream, and looks for it in histories that are always the same: in `cases` at most, or in as many
/// as `INFORMERD_SOURCE_CHECKER_BUG_CASES` says. With `INFORMERD_CHECKER_BUG` only those are planted whose name contains it.
#[allow(clippy::print_stdout, reason = "the figures of a test")]
pub(crate) fn find_all(
    upstream: &str,
    cases: u64,
    threads: usize,
    run: impl Fn(u64, u64) -> Result<(), String> + Sync,
) {
    let cases = setting("INFORMERD_SOURCE_CHECKER_BUG_CASES").unwrap_or(cases);
    let named = std::env::var("INFORMERD_CHECKER_BUG").unwrap_or_default();
    let mut wrong = Vec::new();
    println!("{:<40} histories until found", format!("bug of {upstream}"));
    let also = ALSO.iter().filter(|(name, _)| *name == upstream).map(|(_, bug)| bug);
    let bugs = Bug::of(upstream).iter().chain(also);
    for bug in bugs.filter(|bug| format!("{bug:?}").contains(&named)) {
        let began = Instant::now();
        let found = find(*bug, cases, threads, &run);
        let is_reached = planted::take_reached(*bug);
        let (name, took) = (format!("{bug:?}"), began.elapsed());
        if let Some((case, violation)) = found {
            let line: String = violation.lines().next().unwrap_or_default().chars().take(160).collect();
            println!("{name:<40} {} ({took:.1?}): {line}", case + 1);
        } else {
            println!("{name:<40} not in {cases} ({took:.1?})");
            wrong.push(format!("{name} was {}reached and never found", if is_reached { "" } else { "not " }));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The same for an upstream whose histories run in paused time.
pub(crate) fn find_all_paused<U: Upstream>(upstream: &str, cases: u64) {
    find_all(upstream, cases, threads(), |seed, case| run_case::<U>(seed, case, &mut Totals::default()));
}

/// The first history in which a bug is found, and how.
fn find(
    bug: Bug,
    cases: u64,
    threads: usize,
    run: impl Fn(u64, u64) -> Result<(), String> + Sync,
) -> Option<(u64, String)> {
    let (next, first) = (AtomicU64::new(0), Mutex::new(None::<(u64, String)>));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                planted::plant(Some(bug));
                loop {
                    let case = next.fetch_add(1, Ordering::Relaxed);
                    if case >= cases || first.lock().is_some() {
                        return;
                    }
                    if let Err(violation) = run(SEED, case) {
                        let mut first = first.lock();
                        if first.as_ref().is_none_or(|(other, _)| case < *other) {
                            *first = Some((case, violation));
                        }
                    }
                }
            });
        }
    });
    first.into_inner()
}
