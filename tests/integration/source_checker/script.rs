//! Scripts: the upstream's steps, and the stops, starts and checks of the server and its clients.

use std::{fmt, time::Duration};

use proptest::{collection::vec, prelude::*, sample::select};

use super::upstream::{Upstream, UpstreamSetup, UpstreamStep};

/// One history.
pub(crate) struct Script<U: Upstream> {
    pub(crate) setup: U::Setup,
    /// Number of events after which the hopping client leaves.
    pub(crate) hop: usize,
    /// Page size of the client that lists; 0 for no pages.
    pub(crate) page: u32,
    /// Steps before the server starts.
    pub(crate) first: Vec<U::Step>,
    pub(crate) steps: Vec<Step<U::Step>>,
}

#[derive(Debug, Clone)]
pub(crate) enum Step<S> {
    /// Write, event or fault.
    Upstream(S),
    Wait(Duration),
    /// Quiet point: a wait until the state has settled, and its judgement.
    Quiet,
    /// End of all faults.
    Heal,
    /// Pause in which nothing may change, unless a fault is active.
    Idle(Duration),
    /// Save of the state for a later run.
    Save,
    /// Kill of the server, these steps, and the start of another server from the saved state.
    Restart(Vec<S>),
}

impl<U: Upstream> Clone for Script<U> {
    fn clone(&self) -> Self {
        let Self { setup, hop, page, first, steps } = self;
        Self { setup: setup.clone(), hop: *hop, page: *page, first: first.clone(), steps: steps.clone() }
    }
}

impl<U: Upstream> fmt::Debug for Script<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl<U: Upstream> Script<U> {
    /// Formats the script, with a line for each step.
    pub(crate) fn text(&self) -> String {
        let Self { setup, hop, page, first, steps } = self;
        let steps: Vec<String> = steps.iter().map(|step| format!("  {step:?}")).collect();
        format!("{setup:?}, hop {hop}, page {page}, first {first:?}\n{}", steps.join("\n"))
    }
}

type Scene<U> = BoxedStrategy<Vec<Step<<U as Upstream>::Step>>>;

pub(crate) fn any_script<U: Upstream>() -> impl Strategy<Value = Script<U>> {
    let scene: Scene<U> = any_scene::<U>();
    let first = prop_oneof![1 => Just(Vec::new()), 3 => vec(U::Step::any_write(), 1..6)];
    (U::Setup::any(), 1_usize..6, select(vec![0_u32, 0, 1, 2, 5]), first, vec(scene, 3..9))
        .prop_map(|(setup, hop, page, first, scenes)| Script { setup, hop, page, first, steps: scenes.concat() })
}

fn writes<U: Upstream>(most: usize) -> Scene<U> {
    vec(U::Step::any_write().prop_map(Step::Upstream), 0..=most).boxed()
}

/// Returns a time between the first retry and more than the longest timeout.
fn any_wait() -> impl Strategy<Value = Duration> {
    prop_oneof![4 => 1_u64..300, 3 => 300_u64..5_000, 2 => 5_000_u64..60_000, 1 => 60_000_u64..400_000]
        .prop_map(Duration::from_millis)
}

/// Draws steps that belong together, so that the combinations that lead to failures are frequent.
fn any_scene<U: Upstream>() -> Scene<U> {
    let event = || U::Step::any_event().prop_map(|event| vec![Step::Upstream(event)]);
    let fault = || U::Step::any_fault().prop_map(|fault| vec![Step::Upstream(fault)]);
    let wait = || any_wait().prop_map(|wait| vec![Step::Wait(wait)]);
    let maybe = |scene: Scene<U>| prop_oneof![1 => Just(Vec::new()), 1 => scene.clone()].boxed();
    let quiet = || Just(vec![Step::Quiet]).boxed();
    let heal = || Just(vec![Step::Heal]).boxed();
    let joined = |scenes: Vec<Scene<U>>| scenes.prop_map(|scenes| scenes.concat()).boxed();
    let idle = any_wait().prop_map(|wait| vec![Step::Idle(wait * 3)]).boxed();
    let meanwhile =
        vec(prop_oneof![4 => U::Step::any_write(), 2 => U::Step::any_event(), 1 => U::Step::any_fault()], 0..6);
    let restart = meanwhile.prop_map(|steps| vec![Step::Restart(steps)]).boxed();
    let save = || Just(vec![Step::Save]).boxed();
    prop_oneof![
        // No fault.
        3 => joined(vec![writes::<U>(4), quiet()]),
        2 => joined(vec![writes::<U>(1), idle, writes::<U>(2), quiet()]),
        // Event between writes.
        4 => joined(vec![writes::<U>(3), event().boxed(), writes::<U>(2), quiet()]),
        2 => joined(vec![maybe(quiet()), event().boxed(), event().boxed(), writes::<U>(2), quiet()]),
        // An outage, short or long, with or without a quiet point in it.
        5 => joined(vec![
            writes::<U>(2), maybe(quiet()), fault().boxed(), maybe(wait().boxed()), writes::<U>(3), maybe(event().boxed()),
            writes::<U>(2), maybe(quiet()), maybe(wait().boxed()), heal(), writes::<U>(1), quiet(),
        ]),
        // A fault on top of another.
        2 => joined(vec![
            fault().boxed(), writes::<U>(2), fault().boxed(), maybe(wait().boxed()), writes::<U>(2), quiet(), heal(), quiet(),
        ]),
        // Restart of the server.
        3 => joined(vec![
            writes::<U>(2), maybe(quiet()), save(), writes::<U>(2), maybe(wait().boxed()), restart, heal(), quiet(),
        ]),
    ]
    .boxed()
}
