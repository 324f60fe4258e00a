//! CEL expressions (Common Expression Language) over an object: for selections, indexes and wait conditions.
//!
//! ```text
//!   text ──▶ parse ──▶ check: names, nesting; charges are added to every costly step ──▶ Program
//!   body ──▶ a CEL value, of which a thread caches the last ones ──▶ Program ──▶ bool, or the values of an index
//! ```
//!
//! `object` is the JSON body; integers are exact. Standard CEL: operators, `has`, `all`, `exists`, `exists_one`, `map`,
//! `filter`, `size`, `contains`, `startsWith`, `endsWith` and conversions. There is neither `matches` nor time.
//!
//! - A failed evaluation is false, and counted. A missing field, key or element is false too, and not counted: objects
//!   differ.
//! - The length of a text bounds its cost ([`MAX_EXPRESSION_BYTES`]). It is parsed on a stack of its own, while the caller
//!   waits. Its nesting is bounded (20 levels), so that no evaluation exhausts the stack of a thread.
//! - A budget bounds the cost of an evaluation: [`Expression::DEFAULT_MAX_STEPS`] steps (up to about 0.5 ms) unless
//!   [`Expression::with_max_steps`] sets another. An operation that reads or copies values is charged before it does so: a
//!   step for each value and one for each 64 bytes of text, names included. A loop is charged its whole body for each
//!   element. Beyond the budget the evaluation fails. So an evaluation needs no clock, and has the same outcome on every
//!   replica.
//! - Besides, converting a body to a value costs as much as parsing it.
//!
//! Without the cargo feature `cel`, no expression parses ([`Expression::IS_SUPPORTED`]).

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

pub use self::{error::ExpressionError, evaluations::Evaluations, variables::EventView};
use self::{
    error::Failure,
    program::Program,
    variables::{COUNT, OBJECT, TYPE},
};
use super::{Object, SyntaxError, TermResult};

#[cfg(feature = "cel")]
mod body;
#[cfg(feature = "cel")]
mod check;
mod error;
mod evaluations;
#[cfg(feature = "cel")]
mod meter;
#[cfg_attr(not(feature = "cel"), path = "expression/without.rs")]
mod program;
#[cfg(feature = "cel")]
mod result_type;
mod variables;

/// CEL expression over `object`. Expressions with the same text are equal.
#[derive(Clone)]
pub struct Expression {
    compiled: Arc<Compiled>,
    max_steps: u64,
    errors: Arc<AtomicU64>,
}

/// CEL expression over `type`, `object` and `count` that tests if an event ends a wait. Conditions with the same text are
/// equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition(Expression);

struct Compiled {
    text: Box<str>,
    program: Program,
}

/// Maximum length of an expression's text.
pub const MAX_EXPRESSION_BYTES: usize = 4096;

/// Returns the number of bodies that were parsed on this thread.
#[cfg(all(test, feature = "cel"))]
pub(crate) fn parsed() -> u64 {
    body::parsed()
}

/// Does some work that evaluates many expressions for the same few objects, each of which is parsed once, however large it is.
pub fn sharing_bodies<T>(work: impl FnOnce() -> T) -> T {
    program::sharing(work)
}

// === impl Expression ===

impl Expression {
    /// True if this build supports expressions.
    pub const IS_SUPPORTED: bool = cfg!(feature = "cel");

    /// Default budget of one evaluation: up to about 0.5 ms, optimised. A selection usually takes less than a hundred
    /// steps.
    pub const DEFAULT_MAX_STEPS: u64 = 10_000;

    /// Parses an expression over `object`.
    ///
    /// # Errors
    ///
    /// Fails with the position of text that is not CEL, of an unknown name, or of the part beyond a bound; or if the parser
    /// could not run.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        Self::over(text, &[OBJECT])
    }

    /// Parses an expression over `object` that selects objects.
    ///
    /// # Errors
    ///
    /// The same, and if its outermost operation proves that its result is never true or false, such as of `1 + 1`.
    pub fn selecting(text: &str) -> Result<Self, ExpressionError> {
        Self::parse(text)?.boolean()
    }

    /// Returns the expression, unless its result is never a boolean.
    fn boolean(self) -> Result<Self, ExpressionError> {
        let Some(found) = self.compiled.program.other_than_bool() else { return Ok(self) };
        let message = format!("expected an expression that is true or false; the result of this one is {found}");
        Err(SyntaxError::new(self.as_str(), 0, message).into())
    }

    fn over(text: &str, variables: &[&str]) -> Result<Self, ExpressionError> {
        let text = text.trim();
        if text.len() > MAX_EXPRESSION_BYTES {
            let excess = (0..=MAX_EXPRESSION_BYTES).rfind(|at| text.is_char_boundary(*at)).unwrap_or_default();
            let message = format!("expression too long (limit: {MAX_EXPRESSION_BYTES} bytes)");
            return Err(SyntaxError::new(text, excess, message).into());
        }
        let compiled = Compiled { text: text.into(), program: Program::compile(text, variables)? };
        Ok(Self { compiled: Arc::new(compiled), max_steps: Self::DEFAULT_MAX_STEPS, errors: Arc::default() })
    }

    /// Returns the same expression, an evaluation of which fails beyond `max_steps` steps.
    #[must_use]
    pub fn with_max_steps(self, max_steps: u64) -> Self {
        Self { max_steps, ..self }
    }

    /// Returns the same expression, which counts its failures in `errors`.
    #[must_use]
    pub fn counted_in(self, errors: &Arc<AtomicU64>) -> Self {
        Self { errors: Arc::clone(errors), ..self }
    }

    /// Returns the text without surrounding spaces.
    pub fn as_str(&self) -> &str {
        &self.compiled.text
    }

    /// Returns the number of failed evaluations; those with something missing do not count.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Returns true if the expression is true for the object. An object whose body is not JSON never matches.
    pub fn matches(&self, object: &Object) -> bool {
        self.test(object).unwrap_or_else(|failure| self.count(failure))
    }

    fn test(&self, object: &Object) -> Result<bool, Failure> {
        let Some(body) = object.shared_json() else { return Ok(false) };
        self.compiled.program.test(self.max_steps, None, Some(&body))
    }

    /// Does the same, and adds an object for which the expression is not true to `evaluations`.
    pub(super) fn matches_counted(&self, object: &Object, evaluations: &mut Evaluations) -> bool {
        let tested = self.test(object);
        if tested != Ok(true) {
            let failure = tested.err().filter(|failure| *failure == Failure::Error);
            evaluations.add_other(object, failure.map(|failure| (failure, self.max_steps)));
        }
        tested.unwrap_or_else(|failure| self.count(failure))
    }

    /// Returns the result for the object, with the reason if it is not true. Failures are not counted.
    pub fn explain(&self, object: &Object) -> (TermResult, String) {
        let Some(body) = object.shared_json() else {
            return (TermResult::NoMatch, "the body is not JSON".to_owned());
        };
        match self.compiled.program.test(self.max_steps, None, Some(&body)) {
            Ok(true) => (TermResult::Match, "true".to_owned()),
            Ok(false) => (TermResult::NoMatch, "false".to_owned()),
            Err(failure @ Failure::Missing) => (TermResult::NoMatch, failure.reason(self.max_steps)),
            Err(failure @ Failure::Error) => (TermResult::Failed, failure.reason(self.max_steps)),
        }
    }

    /// Returns the values for an index: one for a string, number or boolean, and one for each such element of a list.
    /// Strings are unquoted, the others JSON text. Null, maps, failures, and bodies that are not JSON yield none.
    pub fn values(&self, object: &Object) -> Vec<String> {
        let Some(body) = object.shared_json() else { return Vec::new() };
        self.compiled.program.values(self.max_steps, &body).unwrap_or_else(|failure| self.count(failure))
    }

    fn count<T: Default>(&self, failure: Failure) -> T {
        if failure == Failure::Error {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        T::default()
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.compiled.text == other.compiled.text
    }
}

impl Eq for Expression {}

impl Hash for Expression {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.compiled.text.hash(state);
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.compiled.text)
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.compiled.text).finish()
    }
}

// === impl Condition ===

impl Condition {
    /// Parses an expression over `type`, `object` and `count`.
    ///
    /// # Errors
    ///
    /// Fails with the position of text that is not CEL, of an unknown name, or of the part beyond a bound; if the result is never
    /// true or false; or if the parser could not run.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        Expression::over(text, &[TYPE, OBJECT, COUNT])?.boolean().map(Self)
    }

    /// Returns the same condition, an evaluation of which fails beyond `max_steps` steps.
    #[must_use]
    pub fn with_max_steps(self, max_steps: u64) -> Self {
        Self(self.0.with_max_steps(max_steps))
    }

    /// Returns the same condition, which counts its failures in `errors`.
    #[must_use]
    pub fn counted_in(self, errors: &Arc<AtomicU64>) -> Self {
        Self(self.0.counted_in(errors))
    }

    /// Returns the text without surrounding spaces.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns true if the condition may depend on the body: its text has the variable's name, perhaps in another meaning.
    pub fn reads_body(&self) -> bool {
        self.as_str().contains(OBJECT)
    }

    /// Returns true if the condition is true for an event. Without a body, failures are expected and do not count.
    pub fn is_met(&self, event: EventView<'_>) -> bool {
        let Self(expression) = self;
        let tested = expression.compiled.program.test(expression.max_steps, Some(event), event.body);
        tested.unwrap_or_else(|failure| event.body.is_some() && expression.count(failure))
    }
}

#[cfg(test)]
#[cfg(feature = "cel")]
mod tests;
