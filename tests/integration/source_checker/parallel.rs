//! Runner of histories in real time, which mostly wait: many in parallel, each on its own thread.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use proptest::strategy::{Strategy, ValueTree};

use super::runner::{MANY, MOST_ROUNDS, runner, setting};

/// Counts over all histories: writes and faults by kind, verdicts, observations.
#[derive(Debug, Default)]
pub(crate) struct Counts(BTreeMap<&'static str, u64>);

/// Checker of one source.
pub(crate) struct Checker {
    pub(crate) name: &'static str,
    /// Number of histories, unless `INFORMERD_SOURCE_CHECKER_CASES` is set.
    pub(crate) cases: u64,
    /// Kinds that must occur in a run of some hundred histories.
    pub(crate) required: &'static [&'static str],
    /// Kinds that are not drawn yet, each with the finding that it leads to.
    pub(crate) not_yet: &'static [(&'static str, &'static str)],
}

/// Kinds that a run excludes.
pub(crate) struct Excluded(Vec<String>);

/// Reason for the early end of a history.
pub(crate) enum Stop {
    Violation(String),
    /// A step took so long that a source which reads meanwhile may see it half done.
    TooSlow,
}

/// Number of parallel histories, unless `INFORMERD_SOURCE_CHECKER_THREADS` is set.
const THREADS: usize = 16;
/// Factors of a source's shortest intervals: a history that was too slow for them runs again with longer ones, so that a busy
/// machine costs time and causes no wrong verdicts.
const SLOWER: [u32; 4] = [1, 3, 10, 30];
/// One of this many histories may be too slow for all factors.
const JUDGED: u64 = 50;
/// Time for the search of a shorter history that also fails.
const SHRINKING: Duration = Duration::from_secs(60);

// === impl Counts ===

impl Counts {
    pub(crate) fn count(&mut self, kind: &'static str) {
        self.add(kind, 1);
    }

    pub(crate) fn add(&mut self, kind: &'static str, count: u64) {
        *self.0.entry(kind).or_default() += count;
    }

    fn merge(&mut self, other: Self) {
        for (kind, count) in other.0 {
            self.add(kind, count);
        }
    }
}

// === impl Stop ===

impl From<String> for Stop {
    fn from(violation: String) -> Self {
        Self::Violation(violation)
    }
}

impl Stop {
    /// Adds the place of a violation.
    pub(crate) fn at(self, place: impl Display) -> Self {
        match self {
            Self::Violation(violation) => Self::Violation(format!("{violation}\nat {place}")),
            Self::TooSlow => Self::TooSlow,
        }
    }
}

// === impl Excluded ===

impl Excluded {
    /// Returns true if a step of these kinds is excluded.
    pub(crate) fn has_any(&self, kinds: &[&str]) -> bool {
        self.0.iter().any(|excluded| kinds.contains(&excluded.as_str()))
    }
}

// === impl Checker ===

impl Checker {
    /// Draws histories and runs them, and more until every required kind has occurred; panics at the first violation. The seed is fixed, or `INFORMERD_CHECKER_SEED`.
    /// `INFORMERD_SOURCE_CHECKER_CASE` runs and prints only that history. `INFORMERD_SOURCE_CHECKER_ALL` includes the kinds that
    /// are not drawn yet, and `INFORMERD_SOURCE_CHECKER_WITHOUT` excludes the kinds that it names. With
    /// `INFORMERD_SOURCE_CHECKER_SURVEY` the run continues after a violation.
    #[allow(clippy::print_stdout, reason = "the figures of a run")]
    pub(crate) fn check<S: Strategy>(
        &self,
        strategy: impl Fn() -> S + Sync,
        run: impl Fn(&S::Value, &Excluded, u32, &mut Counts) -> Result<(), Stop> + Sync,
    ) {
        let cases = setting("INFORMERD_SOURCE_CHECKER_CASES").unwrap_or(self.cases);
        let seed = setting("INFORMERD_CHECKER_SEED").unwrap_or(1);
        let only = setting("INFORMERD_SOURCE_CHECKER_CASE");
        let threads = setting("INFORMERD_SOURCE_CHECKER_THREADS").unwrap_or(THREADS as u64);
        let most = if setting("INFORMERD_SOURCE_CHECKER_SURVEY").is_some() { usize::MAX } else { 1 };
        let excluded = self.excluded();
        let began = Instant::now();
        let (mut first, mut last) = only.map_or((0, cases), |only| (only, only + 1));
        let (totals, failures) = (Mutex::new(Counts::default()), Mutex::new(BTreeMap::new()));
        loop {
            let next = AtomicU64::new(first);
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        let strategy = strategy();
                        loop {
                            let case = next.fetch_add(1, Ordering::Relaxed);
                            if case >= last || failures.lock().len() >= most {
                                return;
                            }
                            let script = strategy.new_tree(&mut runner(seed, case)).unwrap().current();
                            if only.is_some() {
                                println!("{script:#?}");
                            }
                            let mut counts = Counts::default();
                            let result = judge(&script, &excluded, &mut counts, &run);
                            counts.count("history");
                            totals.lock().merge(counts);
                            if let Err(violation) = result {
                                failures.lock().insert(case, violation);
                            }
                        }
                    });
                }
            });
            let is_enough = !failures.lock().is_empty() || self.missing(&totals.lock(), &excluded).is_empty();
            if is_enough || only.is_some() || cases < MANY || last >= cases * MOST_ROUNDS {
                break;
            }
            (first, last) = (last, last + cases);
        }
        let (totals, failures) = (totals.into_inner(), failures.into_inner());
        println!("{} of seed {seed} in {:?}: {totals:#?}", self.name, began.elapsed());
        for (case, violation) in &failures {
            println!("{}: history {case} of seed {seed}: {violation}", self.name);
        }
        if let Some((case, violation)) = failures.into_iter().next() {
            let run = |script: &S::Value| judge(script, &excluded, &mut Counts::default(), &run);
            let (violation, script) = shrink(&strategy(), (seed, case), violation, run);
            panic!("{}: history {case} of seed {seed}: {violation}\n\nin {script}", self.name);
        }
        let unjudged = totals.0.get(TOO_SLOW).copied().unwrap_or_default();
        assert!(unjudged <= last / JUDGED, "{}: {unjudged} of {last} histories were too slow to be judged", self.name);
        let missing = self.missing(&totals, &excluded);
        assert!(only.is_some() || cases < MANY || missing.is_empty(), "{}: a run without any {missing:?}", self.name);
    }

    /// Returns the required kinds that have not occurred.
    fn missing(&self, totals: &Counts, excluded: &Excluded) -> Vec<&'static str> {
        let has_occurred = |kind: &str| totals.0.get(kind).is_some_and(|count| *count > 0);
        self.required.iter().copied().filter(|kind| !excluded.has_any(&[kind]) && !has_occurred(kind)).collect()
    }

    fn excluded(&self) -> Excluded {
        let without = std::env::var("INFORMERD_SOURCE_CHECKER_WITHOUT").unwrap_or_default();
        let mut excluded: Vec<String> = without.split(',').map(str::to_owned).collect();
        if std::env::var_os("INFORMERD_SOURCE_CHECKER_ALL").is_none() {
            excluded.extend(self.not_yet.iter().map(|(kind, _)| (*kind).to_owned()));
        }
        Excluded(excluded)
    }
}

const TOO_SLOW: &str = "too slow to be judged";

/// Runs a history until its script is fast enough for the source's intervals.
fn judge<T>(
    script: &T,
    excluded: &Excluded,
    counts: &mut Counts,
    run: impl Fn(&T, &Excluded, u32, &mut Counts) -> Result<(), Stop>,
) -> Result<(), String> {
    for slower in SLOWER {
        let mut of_this = Counts::default();
        match run(script, excluded, slower, &mut of_this) {
            Err(Stop::TooSlow) => counts.count("run again with longer periods"),
            judged => {
                counts.merge(of_this);
                return match judged {
                    Err(Stop::Violation(violation)) => Err(violation),
                    Ok(()) | Err(Stop::TooSlow) => Ok(()),
                };
            }
        }
    }
    counts.count(TOO_SLOW);
    Ok(())
}

/// Searches a shorter history that also fails, unless `INFORMERD_SOURCE_CHECKER_SHRINK` is 0. Returns the violation and the
/// script.
fn shrink<S: Strategy>(
    strategy: &S,
    (seed, case): (u64, u64),
    violation: String,
    run: impl Fn(&S::Value) -> Result<(), String>,
) -> (String, String) {
    let mut tree = strategy.new_tree(&mut runner(seed, case)).unwrap();
    let mut shortest = (violation, format!("{:#?}", tree.current()));
    let began = Instant::now();
    let mut is_shorter = setting("INFORMERD_SOURCE_CHECKER_SHRINK") != Some(0) && tree.simplify();
    while is_shorter && began.elapsed() < SHRINKING {
        let script = tree.current();
        is_shorter = match run(&script) {
            Err(violation) => {
                shortest = (violation, format!("{script:#?}"));
                tree.simplify()
            }
            Ok(()) => tree.complicate(),
        };
    }
    shortest
}
