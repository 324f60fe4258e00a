//! Scenarios: each is one rule, in one sentence, and the script that checks it.

/// Defines the scenarios of a module: name, rule, function.
macro_rules! scenarios {
    ($($name:literal, $rule:literal, $play:ident;)*) => {
        pub(super) fn scenarios() -> Vec<Scenario> {
            vec![$(Scenario { name: $name, rule: $rule, play: |world| Box::pin($play(world)) }),*]
        }
    };
}

mod batches;
mod breaks;
mod changes;
mod drains;
mod handlers;
mod initial;
mod refusals;
mod relists;
mod silence;
mod states;
mod statuses;

use super::scenario::Scenario;

/// Returns all scenarios, in the order of the table.
pub(crate) fn all() -> Vec<Scenario> {
    let parts = [
        initial::scenarios(),
        changes::scenarios(),
        batches::scenarios(),
        breaks::scenarios(),
        silence::scenarios(),
        drains::scenarios(),
        refusals::scenarios(),
        statuses::scenarios(),
        relists::scenarios(),
        states::scenarios(),
        handlers::scenarios(),
    ];
    parts.into_iter().flatten().collect()
}
