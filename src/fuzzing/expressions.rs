//! Expressions: an evaluation has one outcome, and keeps to its budget.

use std::{
    array,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
#[cfg(fuzzing)]
use std::{panic, sync::Once, thread};

use super::{check_error, naive};
use crate::model::{Condition, EventView, Expression, ExpressionError, Object, Path};

/// Largest budget that can be configured.
const MAX_STEPS: u64 = 100_000;
/// Bytes of text that one step copies.
const BYTES_A_STEP: usize = 64;
const MAX_ERROR_BYTES: usize = 2 << 10;

/// Everything that can be observed of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    matches: bool,
    values: Vec<String>,
    errors: u64,
}

/// Compiles a text, and evaluates it on an object.
pub(super) fn check(text: &str, object: &Object) {
    #[cfg(fuzzing)]
    tolerate_the_parser();
    let expression = match Expression::parse(text) {
        Ok(expression) => expression,
        Err(ExpressionError::Syntax(error)) => {
            check_error(text.trim(), &error, MAX_ERROR_BYTES);
            return check_condition(text, object);
        }
        Err(ExpressionError::NotParsed(_)) => return,
    };
    assert_eq!(expression.as_str(), text.trim());
    // Parsed again, the maps of a body have another order in memory.
    let outcomes: [Outcome; 2] = array::from_fn(|_| outcome(&expression, Expression::DEFAULT_MAX_STEPS, &copy(object)));
    let [outcome_once, outcome_again] = &outcomes;
    assert_eq!(outcome_once, outcome_again, "one outcome");
    if outcome_once.errors == 0 {
        assert_eq!(*outcome_once, outcome(&expression, MAX_STEPS, object), "a larger budget changes nothing");
    }
    if outcome_once.matches {
        assert_eq!((outcome_once.errors, outcome_once.values.as_slice()), (0, &["true".to_owned()][..]));
    }
    let bytes: usize = outcome_once.values.iter().map(String::len).sum();
    let bound = object.body().len() + text.len() + BYTES_A_STEP * (Expression::DEFAULT_MAX_STEPS as usize + 1);
    assert!(bytes <= bound, "{bytes} bytes");
    let unpaid = outcome(&expression, 0, object);
    assert!(!unpaid.matches && unpaid.values.is_empty() && unpaid.errors > 0, "nothing is for free");
    check_path(text.trim(), outcome_once, object);
}

fn outcome(expression: &Expression, max_steps: u64, object: &Object) -> Outcome {
    let errors = Arc::new(AtomicU64::new(0));
    let expression = expression.clone().with_max_steps(max_steps).counted_in(&errors);
    let (matches, errors_of_matching) = (expression.matches(object), errors.load(Ordering::Relaxed));
    // Only a condition reports an error for a result that is not boolean.
    errors.store(0, Ordering::Relaxed);
    let values = expression.values(object);
    let errors = errors.load(Ordering::Relaxed);
    assert!(errors_of_matching >= errors, "what fails has no value");
    Outcome { matches, values, errors }
}

/// Checks that the name of a field gives the values at its path. Numbers are compared only if they are written as in CEL.
fn check_path(text: &str, outcome: &Outcome, object: &Object) {
    let Some(names) = text.strip_prefix("object.") else { return };
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let Some(path) = Path::parse(names).ok().filter(|_| names.split('.').all(is_name)) else { return };
    if naive::tree(object.body()).is_none() {
        return;
    }
    let expected = path.values(object.body());
    assert_eq!(outcome.values.len(), expected.len(), "{path}");
    for (found, expected) in outcome.values.iter().zip(&expected) {
        assert!(found == expected || expected.parse::<f64>().is_ok(), "{path}: {found} instead of {expected}");
    }
}

/// Checks a text as an expression over events.
fn check_condition(text: &str, object: &Object) {
    let Ok(condition) = Condition::parse(text) else { return };
    let body = object.shared_body();
    for event_type in [EventView::ADDED, EventView::DELETED, EventView::SYNCED] {
        for (body, count) in [(Some(&body), Some(3)), (None, Some(u64::MAX)), (Some(&body), None)] {
            let event = EventView { event_type, body, count };
            assert_eq!(condition.is_met(event), condition.is_met(event), "{event:?}");
            let unpaid = condition.clone().with_max_steps(0);
            assert!(!unpaid.is_met(event), "nothing is for free");
        }
    }
}

/// Returns a copy of the object with its own memory.
fn copy(object: &Object) -> Object {
    let copy = Object::from_json(object.body(), object.key().name(), object.version().clone());
    copy.expect("what was read is read again")
}

/// Ignores panics of the CEL parser, which its callers catch: libFuzzer's hook ends the process at any panic.
#[cfg(fuzzing)]
fn tolerate_the_parser() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let end = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if thread::current().name() != Some("cel parser") {
                end(panic);
            }
        }));
    });
}
