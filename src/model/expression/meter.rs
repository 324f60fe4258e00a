//! Budget of one evaluation, and the functions that charge an expression.
//!
//! CEL always terminates, but not soon: loops nest, and values are copied when they are put into lists and added. So
//! [`super::check`] wraps every value that an operation reads or copies in a call of [`CHARGE`], every range of a loop in a
//! call of [`LOOP`], and every key of a lookup in a call of [`KEY`]. Each returns its argument, or fails once the budget is
//! spent. An evaluation is synchronous, so its budget is thread-local.

use std::cell::Cell;

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelBytes, CelDouble, CelInt, CelList, CelMap, CelString, DYN_TYPE, INT_TYPE},
        value::{CowVal, Val},
    },
};

/// `@charge(x, n)`: charges for reading or copying `x` `n` times, and returns `x`. No text can contain it: `@` is not
/// allowed in CEL names.
pub(super) const CHARGE: &str = "@charge";
/// `@loop(x, n)`: charges for `x`, and `n` steps for each of its elements; returns `x`, or the sorted keys of a map.
pub(super) const LOOP: &str = "@loop";
/// `@key(x)`: charges for `x`, and returns `x`. A fraction fails here, because a list would report it in an error with a
/// copy of the list.
pub(super) const KEY: &str = "@key";

/// Bytes of text that are read and copied in the time of about one step.
const BYTES_A_STEP: usize = 64;

thread_local! {
    /// Remaining steps; `None` once the budget was exceeded.
    static STEPS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Declares the functions.
pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_overload(CHARGE, CHARGE, vec![DYN_TYPE, INT_TYPE], charge)?;
    env.add_overload(KEY, KEY, vec![DYN_TYPE], charge_key)?;
    env.add_overload(LOOP, LOOP, vec![DYN_TYPE, INT_TYPE], charge_loop)
}

/// Evaluates with a budget, of which `steps` are spent at the start. Returns the value, and true if the budget was enough.
pub(super) fn metered<T>(budget: u64, steps: u64, evaluate: impl FnOnce() -> T) -> (T, bool) {
    STEPS.set(budget.checked_sub(steps));
    let value = evaluate();
    (value, STEPS.take().is_some())
}

/// Returns the cost of a piece of text.
pub(super) fn steps_of_text(bytes: usize) -> u64 {
    1 + (bytes / BYTES_A_STEP) as u64
}

fn charge<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (value, times) = value_and_number(arguments)?;
    // The cost of a single time is counted only as far as it can be paid.
    pay(|limit| steps(&*value, limit).saturating_mul(times))?;
    Ok(value)
}

fn charge_key<'b, 'v>(mut arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let key = arguments.pop().ok_or_else(ExecutionError::missing_argument_or_target)?;
    pay(|limit| steps(&*key, limit))?;
    let is_place = |number: f64| number.fract() == 0.0 && number.abs() < i64::MAX as f64;
    match key.downcast_ref::<CelDouble>() {
        Some(number) if !is_place(*number.inner()) => Err(ExecutionError::function_error(KEY, "not an integer")),
        _ => Ok(key),
    }
}

fn charge_loop<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (value, body) = value_and_number(arguments)?;
    pay(|limit| {
        let elements = value.as_sizer().map_or(0, |sizer| sizer.size().inner().unsigned_abs());
        steps(&*value, limit).saturating_add(elements.saturating_mul(body))
    })?;
    // A map's order differs from one evaluation to the next: the loop iterates over its sorted keys.
    let Some(map) = value.downcast_ref::<CelMap<'_>>() else { return Ok(value) };
    let mut keys: Vec<_> = map.inner().keys().collect();
    keys.sort_unstable();
    let keys: Vec<_> = keys.into_iter().map(|key| key.inner().clone_as_boxed()).collect();
    Ok(CowVal::owned(CelList::from(keys)))
}

fn value_and_number<'b, 'v>(mut arguments: Vec<CowVal<'b, 'v>>) -> Result<(CowVal<'b, 'v>, u64), ExecutionError> {
    let number =
        arguments.pop().as_deref().and_then(|number| number.downcast_ref::<CelInt>().map(|number| *number.inner()));
    let value = arguments.pop().ok_or_else(ExecutionError::missing_argument_or_target)?;
    Ok((value, number.unwrap_or_default().unsigned_abs()))
}

/// Takes a price from the budget; any price above the limit that it is given means that the budget is exceeded.
fn pay(price: impl FnOnce(u64) -> u64) -> Result<(), ExecutionError> {
    let left = STEPS.get().and_then(|left| left.checked_sub(price(left)));
    STEPS.set(left);
    left.map(drop).ok_or_else(|| ExecutionError::function_error(CHARGE, "budget exhausted"))
}

/// Returns the cost of a value; if it exceeds the limit, any number above that.
fn steps(value: &dyn Val, limit: u64) -> u64 {
    if let Some(string) = value.downcast_ref::<CelString<'_>>() {
        return steps_of_text(string.inner().len());
    }
    if let Some(bytes) = value.downcast_ref::<CelBytes<'_>>() {
        return steps_of_text(bytes.inner().len());
    }
    let mut sum = 1;
    let mut add = |value: &dyn Val| {
        sum += steps(value, limit.saturating_sub(sum));
        sum <= limit
    };
    if let Some(list) = value.downcast_ref::<CelList<'_>>() {
        let _is_within = list.inner().iter().all(|element| add(&**element));
    } else if let Some(map) = value.downcast_ref::<CelMap<'_>>() {
        let _is_within = map.inner().iter().all(|(key, value)| add(key.inner()) && add(&**value));
    }
    sum
}
