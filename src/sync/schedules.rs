//! Exploration of the orders between threads: Shuttle draws schedules of a test until one fails.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use shuttle::{
    Config, FailurePersistence, Runner,
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
};

/// Kind of scheduler.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Random,
    /// Probabilistic concurrency testing: finds each order of so many points with a known probability.
    Pct(usize),
}

const KINDS: [Kind; 2] = [Kind::Random, Kind::Pct(4)];

/// Runs 500 schedules of each kind, or `INFORMERD_MODEL_SCHEDULES`; always the same, or those of `INFORMERD_CHECKER_SEED`.
pub(crate) fn explore(schedule: fn()) {
    let schedules = setting("INFORMERD_MODEL_SCHEDULES", 500) as usize;
    let seed = setting("INFORMERD_CHECKER_SEED", 1);
    for kind in KINDS {
        let began = std::time::Instant::now();
        let (count, failure) = run(kind, seed, schedules, schedule);
        println!("{count} schedules of seed {seed}, {kind:?}, in {:?}", began.elapsed());
        assert_eq!(failure, None, "{kind:?}: in schedule {count} of seed {seed}");
    }
}

/// Runs schedules until one fails, on a thread of their own: after a failure Shuttle leaves it unusable. Returns how many were
/// run, and what the last one failed with.
fn run(kind: Kind, seed: u64, schedules: usize, schedule: fn()) -> (usize, Option<String>) {
    fn run_on(scheduler: impl Scheduler + 'static, config: Config, body: impl Fn() + Send + Sync + 'static) {
        Runner::new(scheduler, config).run(body);
    }
    let count: Arc<AtomicUsize> = Arc::default();
    let counted = Arc::clone(&count);
    let body = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        schedule();
    };
    let thread = std::thread::spawn(move || {
        let mut config = Config::new();
        (config.stack_size, config.silence_warnings) = (512 << 10, true);
        config.failure_persistence = FailurePersistence::None;
        match kind {
            Kind::Random => run_on(RandomScheduler::new_from_seed(seed, schedules), config, body),
            Kind::Pct(depth) => run_on(PctScheduler::new_from_seed(seed, depth, schedules), config, body),
        }
    });
    let failure = thread.join().err().map(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    });
    (count.load(Ordering::SeqCst), failure)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}
