//! The budget of one evaluation, and the functions by which an expression pays.
//!
//! CEL always ends, but not soon: loops nest, and values are copied when they are put into lists and added up. So
//! [`super::check`] puts a call of [`CHARGE`] around whatever an operation reads or copies, of [`LOOP`] around what a loop
//! goes through, and of [`KEY`] around what an element is looked up by. Each gives back what it was given, or fails when the
//! budget is spent. An evaluation is synchronous, so its budget lies with its thread.

use std::cell::Cell;

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelBytes, CelDouble, CelInt, CelList, CelMap, CelString, DYN_TYPE, INT_TYPE},
        value::{CowVal, Val},
    },
};

/// `@charge(x, n)`: pays for reading or copying `x` so many times, and is `x`. No text can name it: `@` is no letter of CEL.
pub(super) const CHARGE: &str = "@charge";
/// `@loop(x, n)`: pays for `x`, and for `n` steps for each of its elements; it is `x`.
pub(super) const LOOP: &str = "@loop";
/// `@key(x)`: pays for `x`, and is `x`. A fraction fails here, because a list says so in an error that has a copy of the list.
pub(super) const KEY: &str = "@key";

/// Text is read and copied at some 64 bytes in the time of a step.
const BYTES_A_STEP: usize = 64;

thread_local! {
    /// What is left; none when it was not enough.
    static STEPS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes the functions known.
pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_overload(CHARGE, CHARGE, vec![DYN_TYPE, INT_TYPE], charge)?;
    env.add_overload(KEY, KEY, vec![DYN_TYPE], charge_key)?;
    env.add_overload(LOOP, LOOP, vec![DYN_TYPE, INT_TYPE], charge_loop)
}

/// Evaluates what takes so many steps by itself, with a budget of its own. Returns its value, and whether the budget was
/// enough.
pub(super) fn metered<T>(budget: u64, steps: u64, evaluate: impl FnOnce() -> T) -> (T, bool) {
    STEPS.set(budget.checked_sub(steps));
    let value = evaluate();
    (value, STEPS.take().is_some())
}

/// What a piece of text of so many bytes costs.
pub(super) fn steps_of_text(bytes: usize) -> u64 {
    1 + (bytes / BYTES_A_STEP) as u64
}

fn charge<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (value, times) = value_and_number(arguments)?;
    // What one time costs is counted only as far as it can be paid.
    pay(|limit| steps(&*value, limit).saturating_mul(times))?;
    Ok(value)
}

fn charge_key<'b, 'v>(mut arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let key = arguments.pop().ok_or_else(ExecutionError::missing_argument_or_target)?;
    pay(|limit| steps(&*key, limit))?;
    let is_place = |number: f64| number.fract() == 0.0 && number.abs() < i64::MAX as f64;
    match key.downcast_ref::<CelDouble>() {
        Some(number) if !is_place(*number.inner()) => Err(ExecutionError::function_error(KEY, "it is no whole number")),
        _ => Ok(key),
    }
}

fn charge_loop<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (value, body) = value_and_number(arguments)?;
    pay(|limit| {
        let elements = value.as_sizer().map_or(0, |sizer| sizer.size().inner().unsigned_abs());
        steps(&*value, limit).saturating_add(elements.saturating_mul(body))
    })?;
    // A map has no order that would be the same the next time: the loop goes through its keys, sorted.
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

/// Takes from the budget what the price is; it is enough to know that it is above the limit.
fn pay(price: impl FnOnce(u64) -> u64) -> Result<(), ExecutionError> {
    let left = STEPS.get().and_then(|left| left.checked_sub(price(left)));
    STEPS.set(left);
    left.map(drop).ok_or_else(|| ExecutionError::function_error(CHARGE, "the budget is spent"))
}

/// What a value costs; of one that costs more than the limit, anything above it.
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
