//! Oracle of rights: random rules, callers, credentials and requests of every RPC, whose answers are compared field by field, and
//! bodies byte by byte, with what a [table](table::TABLE) of rights says.
//!
//! A run makes 6,000 requests, or `INFORMERD_ORACLE_REQUESTS`; the seed is fixed, or `INFORMERD_CHECKER_SEED`.

mod differences;
mod leaves;
mod request;
#[cfg(feature = "kubernetes-api")]
mod rest;
mod rights;
mod streams;
mod table;
mod truth;
mod world;

use std::{collections::BTreeMap, env};

use fastrand::Rng;

use self::{
    differences::differences,
    request::{Ask, METHODS, Method},
    rights::Rights,
    truth::expected,
    world::{Kind, World},
};
use super::rules::{Caller, RuleSet};

pub(super) const NAMESPACES: [&str; 5] = ["", "none", "x", "y", "z"];
/// Requests under one set of rules.
const REQUESTS: usize = 24;
/// Share of the requests that go to each server, in sets of rules.
const KINDS: [Kind; 7] =
    [Kind::Plain, Kind::Secret, Kind::Plain, Kind::Required, Kind::Plain, Kind::Relay, Kind::Reviewed];

/// Most failures that a run reports.
const MAX_FAILURES: usize = 8;

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Answers that differ from the truth.
#[derive(Default)]
struct Failures {
    texts: Vec<String>,
    over_grants: usize,
}

impl Failures {
    /// Adds an answer that has too much, or lacks something. Panics when there are many.
    fn add(&mut self, at: &str, (too_much, missing): (&[String], &[String]), request: &str) {
        if too_much.is_empty() && missing.is_empty() {
            return;
        }
        self.over_grants += usize::from(!too_much.is_empty());
        self.texts.push(format!("{at}: {request}\ntoo much: {too_much:#?}\nmissing: {missing:#?}"));
        if self.texts.len() == MAX_FAILURES {
            self.check();
        }
    }

    fn check(&self) {
        let Self { texts, over_grants } = self;
        assert!(texts.is_empty(), "{over_grants} of {} answers have too much\n{}", texts.len(), texts.join("\n\n"));
    }
}

/// Every answer has what the table grants its caller, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_answer_has_what_the_rights_of_its_caller_grant() {
    let (requests, seed) = (setting("INFORMERD_ORACLE_REQUESTS", 6000), setting("INFORMERD_CHECKER_SEED", 1));
    let mut random = Rng::with_seed(seed);
    let mut worlds = Vec::new();
    for kind in [Kind::Plain, Kind::Secret, Kind::Required, Kind::Reviewed, Kind::Relay] {
        worlds.push(World::start(kind).await.with_past().await);
    }
    let (mut made, mut answered): (u64, BTreeMap<Method, [u64; 2]>) = (0, BTreeMap::new());
    let mut failures = Failures::default();
    'sets: for number in 0.. {
        let kind = KINDS[number % KINDS.len()];
        let world = worlds.iter().find(|world| world.kind == kind).unwrap();
        let rules = RuleSet::draw(&mut random);
        world.set_rules(&rules);
        for _ in 0..REQUESTS {
            if made == requests {
                break 'sets;
            }
            made += 1;
            let (caller, ask) = (Caller::draw(&mut random), Ask::draw(&mut random, world));
            let credential = world.credential(caller, &mut random);
            let rights = Rights { rules: &rules, caller, kind };
            let expected = expected(&ask, &rights, world);
            let count = expected.as_ref().map_or(0, |(_, count)| *count);
            let token = ask.token_of_another(world).await;
            // The page of another caller is that of another query, whatever rights this one has.
            let expected = match expected {
                Ok(_) if token.is_some() => Err("PAGE_TOKEN_INVALID"),
                expected => expected.map(|(expected, _)| expected),
            };
            let answer = ask.call(world, caller, credential, (count, token)).await;
            let (too_much, missing) = differences(&answer, &expected);
            let at = format!("request {made} of seed {seed}, {kind:?}");
            failures.add(&at, (&too_much, &missing), &format!("{caller:?} by {credential:?}: {ask:?}\n{rules:?}"));
            answered.entry(ask.method).or_default()[usize::from(answer.is_ok())] += 1;
        }
    }
    failures.check();
    println!("{made} requests of seed {seed}: refused and answered, by method: {answered:?}");
    let is_drawn = |method: &Method| answered.get(method).is_some_and(|counts| counts.iter().all(|count| *count > 10));
    let drawn = METHODS.iter().filter(|method| **method != Method::Resources);
    assert!(requests < 6000 || drawn.clone().all(is_drawn), "{answered:?}");
}
