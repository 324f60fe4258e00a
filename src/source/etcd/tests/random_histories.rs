//! Random histories with faults of connections, members and the history: the source always arrives at the written state. The
//! rig fails on events that are repeated, incomplete or out of order; here the state, the lists and the rewritten histories are
//! checked.

use std::{env, fmt::Write as _};

use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use tonic::Status;

use super::*;
use crate::source::etcd::tests::fake_etcd::Fault;

/// Script of one history.
#[derive(Debug, Clone)]
struct Script {
    /// Version of the server, with correct progress responses or without.
    version: &'static str,
    members: usize,
    fragment: usize,
    sync_delay: u64,
    /// True if a compaction at the revision of a deletion removes it for watches too.
    drops_tombstones: bool,
    first: Vec<Step>,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    /// One transaction, in the syntax of `FakeEtcd::write`.
    Write(Vec<String>),
    /// A change of a key outside of the prefix.
    Elsewhere,
    /// A compaction up to so many revisions below the newest.
    Compact(i64),
    /// The end of every connection.
    Cut,
    /// A limit on the next connection to each member, which is closed after so many bytes.
    Limit(usize),
    /// Steps during which no member is reachable.
    Outage(Vec<Step>),
    /// The loss of so many revisions, and the steps of the new history.
    Restore(i64, Vec<Step>),
    /// A failure of the next list or watch.
    Refuse(bool),
    /// A change of the raft term, by an election or a member that has caught up by a snapshot.
    Term(u64),
    /// A check that the state is the written one.
    Quiet,
}

/// Number of runs of `every_random_history_is_followed`, unless `INFORMERD_ETCD_CASES` is set.
const CASES: usize = 60;
/// Number of concurrent runs.
const TOGETHER: usize = 20;

fn any_write() -> impl Strategy<Value = Step> {
    let change = (select(vec!["a", "b", "c", "d"]), 0_u8..9, 0_u8..3);
    let change = change.prop_map(|(key, n, kind)| if kind == 0 { format!("-{key}") } else { format!("{key}={n}") });
    vec(change, 1..5).prop_map(|mut changes| {
        // etcd rejects a transaction that changes a key twice.
        changes.sort_by_key(|change| change.trim_start_matches('-').chars().next());
        changes.dedup_by_key(|change| change.trim_start_matches('-').chars().next());
        Step::Write(changes)
    })
}

fn any_change() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any_write(),
        3 => Just(Step::Elsewhere),
        2 => (0_i64..6).prop_map(Step::Compact),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any_change(),
        3 => Just(Step::Cut),
        2 => (1_usize..1500).prop_map(Step::Limit),
        3 => vec(any_change(), 0..5).prop_map(Step::Outage),
        1 => (0_i64..8, vec(any_change(), 0..6)).prop_map(|(lost, steps)| Step::Restore(lost, steps)),
        2 => any::<bool>().prop_map(Step::Refuse),
        1 => (0_u64..5).prop_map(Step::Term),
        4 => Just(Step::Quiet),
    ]
}

fn any_script() -> impl Strategy<Value = Script> {
    let version = select(vec!["3.4.23", "3.6.16"]);
    let fragment = select(vec![1, 2, 3, usize::MAX]);
    let steps = (vec(any_change(), 0..6), vec(any_step(), 4..20));
    (version, 1_usize..3, fragment, select(vec![0, 0, 2]), any::<bool>(), steps).prop_map(
        |(version, members, fragment, sync_delay, drops_tombstones, (first, steps))| Script {
            version,
            members,
            fragment,
            sync_delay,
            drops_tombstones,
            first,
            steps,
        },
    )
}

/// State of the run of a script.
struct Run {
    fake: FakeEtcd,
    gates: Vec<Gate>,
    rig: Rig,
    restores: usize,
    /// Number of steps that may make the source list once more.
    reasons: u64,
}

impl Run {
    fn change(fake: &FakeEtcd, step: &Step) {
        match step {
            Step::Write(changes) => fake.write(&changes.join(" ")),
            Step::Elsewhere => fake.apply(vec![(b"/elsewhere".to_vec(), Some(vec![1]))]),
            Step::Compact(below) => fake.compact((i64::try_from(fake.revision()).unwrap() - below).max(0)),
            _ => unreachable!("it changes no key"),
        }
    }

    fn change_all(&self, steps: &[Step]) {
        for step in steps {
            Self::change(&self.fake, step);
        }
    }

    fn refuse(&self, is_refusing: bool) {
        self.gates.iter().for_each(|gate| gate.refuse(is_refusing));
    }

    async fn step(&mut self, step: &Step) {
        self.reasons += 1;
        match step {
            Step::Write(_) | Step::Elsewhere | Step::Compact(_) => Self::change(&self.fake, step),
            Step::Cut => self.gates.iter().for_each(Gate::cut),
            Step::Limit(bytes) => {
                self.gates.iter().for_each(|gate| gate.limit_next(*bytes));
                self.gates.iter().for_each(Gate::cut);
            }
            Step::Outage(steps) => {
                self.refuse(true);
                self.change_all(steps);
                self.refuse(false);
            }
            Step::Restore(lost, steps) => {
                self.refuse(true);
                self.rig.fails("connect").await;
                let to = (i64::try_from(self.fake.revision()).unwrap() - lost).max(1);
                self.fake.restore(to);
                self.change_all(steps);
                self.refuse(false);
                self.restores += usize::from(*lost > 0);
            }
            Step::Refuse(is_list) => self.fake.set(|store| {
                let fault = Fault::Refuse(Status::unavailable("etcdserver: leader changed"));
                (if *is_list { &mut store.ranges } else { &mut store.watches }).push_back(fault);
            }),
            Step::Term(term) => self.fake.set(|store| store.raft_term = *term),
            Step::Quiet => self.quiet().await,
        }
    }

    /// Applies events until the state is the written one, which does not change any more.
    async fn quiet(&mut self) {
        let truth = self.fake.state(PREFIX);
        while self.rig.state != truth {
            self.rig.next().await;
        }
    }
}

/// Follows a history to its end, and panics at an error.
async fn follow(script: Script) {
    let fake = FakeEtcd::new();
    fake.set(|store| {
        (store.version, store.fragment) = (script.version, script.fragment);
        store.sync_delay = Duration::from_millis(script.sync_delay);
        store.drops_tombstones = script.drops_tombstones;
    });
    script.first.iter().for_each(|step| Run::change(&fake, step));
    let mut gates = Vec::new();
    for _ in 0..script.members {
        gates.push(fake.member().await);
    }
    let config = EtcdConfig { answer_timeout: Duration::from_secs(2), ..config(&gates.iter().collect::<Vec<_>>()) };
    let rig = Rig::start(config);
    let mut run = Run { fake, gates, rig, restores: 0, reasons: 1 };
    for step in &script.steps {
        run.step(step).await;
    }
    run.quiet().await;
    // The last change arrives at once, over the open watch.
    run.fake.write("last=1");
    run.quiet().await;
    let lists = run.rig.lists() - run.rig.stats.list_failures.load(Ordering::Relaxed);
    let accepted: usize = run.gates.iter().map(Gate::accepted).sum();
    assert!(lists <= run.reasons + accepted as u64, "{lists} lists");
    assert!(
        run.restores > 0 || run.rig.history_rewrites == 0,
        "{} rewinds, and no revision was lost",
        run.rig.history_rewrites
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_random_history_is_followed() {
    let setting = |name: &str, default| env::var(name).map_or(default, |text| text.parse::<usize>().expect("a number"));
    let (cases, seed) = (setting("INFORMERD_ETCD_CASES", CASES), setting("INFORMERD_CHECKER_SEED", 1));
    // A seed must not consist of zeros only.
    let mut bytes = [1; 16];
    bytes[..8].copy_from_slice(&(seed as u64).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::XorShift, &bytes));
    let mut wrong = String::new();
    for first in (0..cases).step_by(TOGETHER) {
        let scripts =
            (first..cases.min(first + TOGETHER)).map(|_| any_script().new_tree(&mut runner).unwrap().current());
        let runs: Vec<_> = scripts.map(|script| (script.clone(), tokio::spawn(follow(script)))).collect();
        for (at, (script, run)) in runs.into_iter().enumerate() {
            if let Err(error) = run.await {
                writeln!(wrong, "history {} of seed {seed}: {error}\n{script:#?}", first + at).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
