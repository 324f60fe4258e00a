//! Checker: random histories, random clients, and a model of the correct result that shares no code with the server.
//!
//! ```text
//!   script, scenes ──▶ harness ──▶ Informer, Service, Routes (the real ones, in process; up to two servers)
//!     │                  │                        │
//!     │                  ├──▶ client ◀── pieces ──┤ streams
//!     │                  ├──▶ subscription ◀────┤ Subscribe streams, for several clients each
//!     ▼                  └──▶ call ◀─── answers ──┘ unary calls
//!   truth                      │
//!     └──▶ expect ──▶ follow ◀─┤ record            verify: all connections of one client
//!                    answers ◀─┘                   untils: waits; blocking: all connections of one server
//! ```
//!
//! The checker verifies of every stream, with all reconnects of one client joined:
//!
//! - ordered, unique, complete or announced: a gap is announced with its exact count and the version before it. Events merged
//!   under COALESCE are exactly the difference between what the client held and the current state, and every event is counted;
//! - atomic: no version, bookmark or snapshot inside a batch or a generation;
//! - resumable: a resume continues with the first matching event after the version, at this server or at another over the same
//!   upstream; EXPIRED is returned exactly where it must be;
//! - true bookmarks: never ahead of an event, never behind what the server has sent, never decreasing; a draining server sends
//!   each client its position;
//! - exact views: what a view keeps of each body, and without changes that it does not show; those that are sent, and those that
//!   bookmarks count as suppressed, are what a watch of whole bodies is sent. At each bookmark the client holds what a List with
//!   the same view would have;
//! - exact selection: objects enter and leave it with their cause and the last matching state, at the right version;
//! - prompt and converged: a client that has read everything has received all events; when writes stop, every client that reads
//!   holds the current state, and the server has woken it for that;
//! - the same on a Subscribe stream, which several clients share: each receives what a Watch would send; a paused one nothing but
//!   its end; a closed one its `ended`, and nothing after it; and the stream ends after the last of them;
//! - explained: an ERROR equals the status in the trailers, and its reason is true.
//!
//! Of every unary call: the pages of a list are one snapshot and their tokens are honoured as long as promised; no state is older
//! than requested; a wait ends with the event that met its last condition; and the answer comes as soon as it is possible.
//!
//! Of every resource of every server: it waits for clients under BLOCK exactly as long as the budget allows, and ends no client
//! for time that others spent. A server has one or two resources: objects, histories, sources and page tokens of one never appear
//! in the other, and nothing that happens to one affects clients of the other.
//!
//! `truth`, `pod`, `view`, `selection`, `ask`, `record`, `expect`, `follow`, `blocking`, `verify`, `answers` and `untils` use nothing of
//! the server but the generated messages; a test checks their imports. Sockets and flow control are not covered here, but in the
//! other tests.

mod answers;
mod ask;
mod blocking;
mod call;
pub(crate) mod client;
mod expect;
mod follow;
mod harness;
mod pod;
mod record;
mod scenes;
mod script;
mod selection;
pub(crate) mod subscription;
mod totals;
mod truth;
mod untils;
mod verify;
mod view;

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use informerd::proto::pb;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use self::{
    harness::FUTURE_WAIT,
    pod::Key,
    record::{Plan, Share},
    script::{Config as ScriptConfig, ResumeFrom, Script, Step, any_script},
    selection::Selection,
    totals::Totals,
    truth::{Bounds, Write},
    verify::Violation,
    view::{Form, View},
};

/// Runs a script and checks the recorded results.
fn check(script: &Script, totals: &mut Totals) -> Result<(), Violation> {
    let run = harness::run(script);
    totals.add(&run);
    if let Some(stuck) = run.stuck {
        return Err(Violation::of(stuck));
    }
    let mut traces = Vec::new();
    for record in &run.records {
        match run.truths.get(record.resource) {
            Some(truth) => verify::verify(truth, record, FUTURE_WAIT, &mut totals.told, &mut traces)?,
            None => verify::unknown(record)?,
        }
    }
    verify::histories(&run.records, &run.calls).map_err(Violation::of)?;
    blocking::verify(&run.truths, &run.paces, &traces, &run.limits).map_err(Violation::of)?;
    answers::verify(&run.truths, &run.calls, &mut totals.answers).map_err(Violation::of)
}

/// Formats a script, with a line for each step.
fn words(script: &Script) -> String {
    let Script { config, first, steps, settles } = script;
    let steps: Vec<String> = steps.iter().map(|step| format!("  {step:?}")).collect();
    format!("a script that settles: {settles}, {config:?}, first {first:?}\n{}", steps.join("\n"))
}

/// Reads a number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Returns a runner whose cases depend on the seed alone.
pub(crate) fn runner(cases: u64, seed: u64) -> TestRunner {
    // A generator that is cheap in a debug build. Its seed must not begin with zeros only.
    let mut bytes = [1; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: u32::try_from(cases).unwrap(), failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::XorShift, &bytes))
}

/// Most times that the runs are repeated with other seeds until every kind has occurred.
const MOST_ROUNDS: u64 = 4;

/// 1,200 runs, or `INFORMERD_CHECKER_CASES`, and further ones until every kind has occurred; the seed is fixed, or
/// `INFORMERD_CHECKER_SEED`.
#[test]
fn every_stream_of_every_history_is_true() {
    let (cases, seed) = (setting("INFORMERD_CHECKER_CASES", 1200), setting("INFORMERD_CHECKER_SEED", 1));
    let mut totals = Totals::default();
    // With some seed a rare kind may be missing.
    for seed in (0..MOST_ROUNDS).map(|round| seed.wrapping_add(round << 32)) {
        run(cases, seed, &mut totals);
        if totals.missing().is_empty() {
            return;
        }
    }
    panic!("a run without any {:?}", totals.missing());
}

#[allow(clippy::print_stdout, reason = "the figures of a run")]
fn run(cases: u64, seed: u64, totals: &mut Totals) {
    let (totals, count, began) = (RefCell::new(totals), Cell::new(0), Instant::now());
    let result = runner(cases, seed).run(&any_script(), |script| {
        count.set(count.get() + 1);
        check(&script, &mut totals.borrow_mut()).map_err(|violation| TestCaseError::fail(format!("{violation:?}")))
    });
    println!("{cases} cases of seed {seed} in {:?}: {:#?}", began.elapsed(), totals.borrow());
    match result {
        Ok(()) => {}
        Err(TestError::Fail(violation, script)) => {
            let count = count.get();
            panic!(
                "after {count} runs of seed {seed}, with those for a shorter script: {violation}\n\nin {}",
                words(&script)
            )
        }
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

/// Returns bounds that no script reaches.
fn wide_config() -> ScriptConfig {
    let (age, events) = (Duration::from_secs(100_000), 10_000);
    let bounds = Bounds { age, events, bytes: Bounds::ANY_BYTES };
    ScriptConfig {
        resources: 1,
        has_lineage: false,
        has_stable_bodies: false,
        history: bounds,
        retention: bounds,
        block_timeout: Duration::from_secs(1),
        drain_period: Duration::ZERO,
        has_time: true,
        padding: 0,
        room: 64 << 10,
    }
}

fn plain_plan() -> Plan {
    Plan {
        selection: Selection::All,
        form: Form::of(pb::PayloadFormat::Raw),
        policy: pb::FullChannelPolicy::Replay,
        length: 5,
        peer: 1,
        sends_initial_events: true,
        has_batches: true,
        tells_history: false,
        bookmark_interval: None,
        timeout: None,
        min: None,
        share: None,
    }
}

/// Returns a script with one client under COALESCE that does not read. Its group's threads fall behind when much is written at
/// once, and `more` writes follow before the client reads.
fn falls_behind(more: usize) -> Script {
    let few = |events| Bounds { events, ..wide_config().history };
    // With large bodies each cycle of the writer takes two.
    let config = ScriptConfig { has_time: false, padding: 33_000, history: few(3), retention: few(1), ..wide_config() };
    let (policy, selection) = (pb::FullChannelPolicy::Coalesce, Selection::Expression);
    let plan = Plan { policy, selection, length: 1, sends_initial_events: false, ..plain_plan() };
    let say = |count: usize| Step::Say((0..count).map(|_| (put(("shop", "a")), 1)).collect());
    let steps = [Step::Open(0, plan), Step::Read(0, 9), say(2), say(12), say(more), Step::Read(0, 9)];
    Script { config, first: Vec::new(), steps: steps.into(), settles: true }
}

/// Changes that a bookmark has counted as suppressed are not counted again when the changes after it merge, also if the server has
/// discarded them meanwhile.
#[test]
fn a_suppressed_change_is_counted_once() {
    let few = Bounds { events: 3, ..wide_config().history };
    let config = ScriptConfig { history: few, retention: few, ..wide_config() };
    let form = Form { view: View::Missing, only_if_changed: true, ..plain_plan().form };
    let (policy, interval) = (pb::FullChannelPolicy::Coalesce, Duration::from_millis(100));
    let plan = Plan { policy, form, length: 1, bookmark_interval: Some(interval), ..plain_plan() };
    let say = |writes: Vec<Write>| Step::Say(writes.into_iter().map(|write| (write, 1)).collect());
    let [first, second] = [("shop", "a"), ("shop", "b")];
    let suppressed = [say(vec![put(first)]), Step::Wait(100), Step::Read(0, 9)];
    let merged = [say(vec![put(second)]), say(vec![put(first), Write::Recreate(first)]), Step::Read(0, 9)];
    let opened = [say(vec![put(first)]), Step::Open(0, plan), Step::Read(0, 9)];
    let steps = opened.into_iter().chain(suppressed).chain(merged).collect();
    check(&Script { config, first: Vec::new(), steps, settles: true }, &mut Totals::default()).unwrap();
}

/// No BOOKMARK reports a relist once the history was rewritten, so no event after the relist may follow.
#[test]
fn nothing_leads_over_a_relist_unannounced_when_the_history_was_rewritten() {
    // Of namespace `shop`, in which the relist finds nothing.
    let plan = Plan { selection: Selection::Namespace, ..plain_plan() };
    let say = |key| Step::Say(vec![(put(key), 1)]);
    let (relist, reads) = (Step::Relist(vec![(put(("ship", "b")), 1)], 4), || Step::Read(0, 9));
    let leaves = [Step::Open(0, plan), reads(), say(("shop", "a")), reads(), Step::Leave(0, 0), relist];
    // The first change after the relist is none of its namespace, either.
    let resumes = [Step::Resume(0, ResumeFrom::Last), say(("ship", "c")), say(("shop", "a"))];
    let rewritten = [Step::Rewind(2, 0), reads()];
    let steps = leaves.into_iter().chain(resumes).chain(rewritten).collect();
    let script = Script { config: wide_config(), first: Vec::new(), steps, settles: true };
    check(&script, &mut Totals::default()).unwrap();
}

/// Nobody can see a rewrite to the state before an open version, with other bytes only, if bytes are no evidence.
#[test]
fn a_rewrite_that_shows_nothing_is_a_list_of_the_state_before_the_open_version() {
    let config = ScriptConfig { has_lineage: false, has_stable_bodies: false, ..wide_config() };
    let [held, open] = [("ship", "a"), ("shop", "a")];
    let say = || Step::Say(vec![(put(open), 1)]);
    let steps = [Step::SayAtOnce(vec![put(held)], 1), Step::SayOpen(vec![put(open)], 1), Step::Rewind(1, 1), say()];
    let script = Script { config, first: Vec::new(), steps: steps.to_vec(), settles: true };
    check(&script, &mut Totals::default()).unwrap();
}

/// A generation may have begun while its client was paused, and the changes after it are another one.
#[test]
fn generations_begin_while_a_client_is_paused() {
    let share = |pauses| Some(Share { pauses, has_new_ids: false, is_twin: false });
    let slow = Plan { policy: pb::FullChannelPolicy::Coalesce, length: 1, share: share(true), ..plain_plan() };
    let other = Plan { share: share(false), ..plain_plan() };
    let [first, second, third, last] = [("shop", "a"), ("shop", "b"), ("shop", "c"), ("ship", "a")];
    let reads = |place| Step::Read(place, 9);
    let opened = [Step::Open(0, slow), reads(0), Step::Open(1, other), reads(1)];
    let begins =
        [Step::SayOpen(vec![put(first), put(second)], 1), reads(1), Step::SayOpen(vec![put(third)], 1), reads(1)];
    let then = [Step::Say(vec![(put(last), 1), (Write::Delete(second), 1)]), reads(0)];
    let steps = opened.into_iter().chain(begins).chain(then).collect();
    let script = Script { config: wide_config(), first: Vec::new(), steps, settles: true };
    check(&script, &mut Totals::default()).unwrap();
}

/// Under COALESCE a client continues from the history if what the server retains for it took too many bytes. It receives the events one by
/// one then, also those that came after.
#[test]
fn a_coalescing_client_continues_without_its_queue() {
    let share = Some(Share { pauses: false, has_new_ids: false, is_twin: false });
    let few = Bounds { events: 3, ..wide_config().history };
    let config = ScriptConfig { history: few, retention: Bounds { bytes: 1000, ..few }, ..wide_config() };
    let policy = pb::FullChannelPolicy::Coalesce;
    let slow = Plan { policy, length: 1, share, sends_initial_events: false, ..plain_plan() };
    let other = Plan { policy: pb::FullChannelPolicy::Replay, ..slow.clone() };
    let [a, b, c] = [("shop", "a"), ("shop", "b"), ("shop", "c")];
    let opened = [Step::Open(0, slow), Step::Open(1, other), Step::Read(0, 9)];
    // Four changes, of which each counts as 256 bytes and more.
    let say = |write| Step::Say(vec![(write, 1)]);
    let discarded = [say(put(b)), Step::Read(0, 9), Step::SayAtOnce(vec![put(a), put(c), Write::Recreate(b)], 1)];
    let then = [Step::Read(1, 1), Step::Say(vec![(put(a), 1), (put(a), 1)]), Step::Read(1, 9)];
    let steps = opened.into_iter().chain(discarded).chain(then).collect();
    check(&Script { config, first: Vec::new(), steps, settles: true }, &mut Totals::default()).unwrap();
}

/// A watch has one turn in a response, also if it has the place of one that was closed before its turn came. With two, the missed event
/// and the next one of a resumed watch were in one response, and the next one came first: it was in the delivery of another watch.
#[test]
fn a_watch_in_the_place_of_a_closed_one_has_one_turn() {
    let share = Some(Share { pauses: false, has_new_ids: false, is_twin: false });
    let other = Plan { share, sends_initial_events: false, ..plain_plan() };
    let slower = Plan { bookmark_interval: Some(Duration::from_secs(1)), ..other.clone() };
    let say = |name| Step::SayOpen(vec![put(("shop", name))], 1);
    let opened = [Step::Open(1, other), Step::Open(0, slower), Step::Read(0, 9), say("a"), Step::Read(0, 1)];
    let resumes = [Step::Resume(0, ResumeFrom::Last), say("b"), Step::Read(0, 9)];
    let steps = opened.into_iter().chain(resumes).collect();
    let script = Script { config: wide_config(), first: Vec::new(), steps, settles: true };
    check(&script, &mut Totals::default()).unwrap();
}

/// A watch of a Subscribe stream that has resumed from an open version is not served together with others before that is complete: it
/// has what they have not, and its version does not decrease.
#[test]
fn a_watch_that_is_ahead_of_others_is_served_alone() {
    let share = Some(Share { pauses: false, has_new_ids: false, is_twin: false });
    let plan = Plan { share, sends_initial_events: false, ..plain_plan() };
    let [a, b] = [("shop", "a"), ("shop", "b")];
    let (open, reads) = (|| Step::SayOpen(vec![put(a)], 1), || Step::Read(0, 9));
    let opened = [Step::Open(0, plan), reads(), open(), reads(), Step::Leave(0, 0)];
    let resumes = [Step::Resume(0, ResumeFrom::Old(0)), open(), reads(), open(), reads()];
    let then = [Step::Relist(vec![(put(a), 1), (put(b), 1)], 0), reads()];
    let steps = opened.into_iter().chain(resumes).chain(then).collect();
    check(&Script { config: wide_config(), first: Vec::new(), steps, settles: true }, &mut Totals::default()).unwrap();
}

/// The history drops what a client under COALESCE needs before a thread has merged it.
#[test]
fn a_coalescing_client_expires_when_threads_fall_behind_the_history() {
    for more in 1..20 {
        check(&falls_behind(more), &mut Totals::default()).unwrap();
    }
}

/// A server replays a late change if it received it as a change, and not if its first list contained it, even if the client lacks
/// it.
#[test]
fn a_server_must_deliver_changes_that_came_late_after_its_start() {
    let (config, plan) = (wide_config(), plain_plan());
    let keys @ [before, after, later] = [("shop", "a"), ("shop", "b"), ("shop", "c")];
    let late = |key| Step::Relist(vec![(Write::Convert(key), 0)], 0);
    let reads = || Step::Read(0, 9);
    for (moves, has_it) in [(false, false), (false, true), (true, false), (true, true)] {
        let leaves = if has_it {
            [late(before), reads(), Step::Leave(0, 0)]
        } else {
            [reads(), Step::Leave(0, 0), late(before)]
        };
        let then =
            [late(after), Step::Resume(0, ResumeFrom::Last), reads(), Step::SayOpen(vec![put(later)], 1), reads()];
        let steps = [Step::Open(0, plan.clone()), reads()].into_iter().chain(leaves);
        let steps = steps.chain(moves.then_some(Step::Elsewhere)).chain(then).collect();
        let script = Script { config: config.clone(), first: keys.map(put).into(), steps, settles: true };
        check(&script, &mut Totals::default()).unwrap();
        let run = harness::run(&script);
        let messages = run.records[0].segments[1].messages.iter();
        let told: Vec<_> =
            messages.filter_map(|received| Some(received.message.object.as_ref()?.name.clone())).collect();
        assert_eq!(told, if moves { &["b", "c"][..] } else { &["a", "b", "c"] }, "{moves}, {has_it}");
    }
}

fn put(key: Key) -> Write {
    Write::Put(key, Some("web"), None)
}

/// A checker that took its expectations from the server would find nothing.
#[test]
fn the_checker_does_not_depend_on_the_server() {
    let sources = [
        ("answers", include_str!("checker/answers.rs")),
        ("ask", include_str!("checker/ask.rs")),
        ("blocking", include_str!("checker/blocking.rs")),
        ("expect", include_str!("checker/expect.rs")),
        ("follow", include_str!("checker/follow.rs")),
        ("bookmarks", include_str!("checker/follow/bookmarks.rs")),
        ("merging", include_str!("checker/follow/merging.rs")),
        ("pod", include_str!("checker/pod.rs")),
        ("record", include_str!("checker/record.rs")),
        ("selection", include_str!("checker/selection.rs")),
        ("truth", include_str!("checker/truth.rs")),
        ("epoch", include_str!("checker/truth/epoch.rs")),
        ("lists", include_str!("checker/truth/lists.rs")),
        ("untils", include_str!("checker/untils.rs")),
        ("verify", include_str!("checker/verify.rs")),
        ("view", include_str!("checker/view.rs")),
    ];
    for (name, source) in sources {
        for named in source.split("informerd::").skip(1) {
            assert!(named.starts_with("proto::pb"), "{name} names {}", named.lines().next().unwrap_or_default());
        }
    }
}
