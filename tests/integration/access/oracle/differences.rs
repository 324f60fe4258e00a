//! Comparison of an answer with the truth.

use super::{leaves::Leaves, request::Answer, truth::Expected};

/// Returns the differences of an answer: what it has and must not have, then what it lacks.
pub(super) fn differences(answer: &Answer, expected: &Result<Expected, &'static str>) -> (Vec<String>, Vec<String>) {
    let none = Expected::new();
    let (found, wanted): (&Leaves, &Expected) = match (answer, expected) {
        (Err(reason), Err(expected)) if reason == expected => return (Vec::new(), Vec::new()),
        (Err(reason), _) => return (Vec::new(), vec![format!("refused with {reason}; expected {expected:?}")]),
        // An answer in place of a refusal: everything is too much.
        (Ok(found), Err(reason)) if found.is_empty() => {
            return (vec![format!("empty in place of {reason}")], Vec::new());
        }
        (Ok(found), Err(_)) => (found, &none),
        (Ok(found), Ok(expected)) => (found, expected),
    };
    let too_much = found.iter().filter_map(|(path, value)| match wanted.get(path) {
        Some(None) => None,
        Some(Some(expected)) if expected == value => None,
        expected => Some(format!("{path} = {value:?}; expected {expected:?}")),
    });
    let missing = wanted.iter().filter_map(|(path, value)| match value {
        Some(value) if !value.is_empty() && !found.contains_key(path) => Some(format!("{path} = {value:?}")),
        _ => None,
    });
    (too_much.collect(), missing.collect())
}
