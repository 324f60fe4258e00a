//! Expressions in CEL (the Common Expression Language) over an object: to select by, to index by, and to wait for.
//!
//! ```text
//!   text ──▶ parse ──▶ check: names, nesting; every costly step is made to pay ──▶ Program
//!   body ──▶ a CEL value, of which a thread keeps the last ones ──▶ Program ──▶ bool, or the values of an index
//! ```
//!
//! `object` is the JSON body; integers are exact. Standard CEL: operators, `has`, `all`, `exists`, `exists_one`, `map`,
//! `filter`, `size`, `contains`, `startsWith`, `endsWith` and conversions. There is neither `matches` nor time.
//!
//! - What fails is false, and counted. A field, key or element that is missing is false too, and not counted: objects differ.
//! - The cost of a text is bounded by its length ([`MAX_EXPRESSION_BYTES`]), and it is parsed on a stack of its own, while the
//!   caller waits. How deep it may be nested is bounded (20 levels), so that its evaluation does not exhaust the stack of any
//!   thread.
//! - The cost of an evaluation is bounded by a budget, [`Expression::DEFAULT_MAX_STEPS`] steps (up to some 0.5 ms) unless
//!   [`Expression::with_max_steps`] sets another. Whatever reads or copies values pays before it does so: a step for each value in them and one for each 64 bytes of text, that of names too; a loop pays for
//!   its whole body for each element. Past the budget it has failed. So an evaluation needs no clock, and has the same
//!   outcome on every replica.
//! - Apart from that, a body becomes a value at the price of parsing it.
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

use bytes::Bytes;

use self::program::Program;
use super::{Object, SyntaxError};

#[cfg(feature = "cel")]
mod body;
#[cfg(feature = "cel")]
mod check;
#[cfg(feature = "cel")]
mod meter;
#[cfg_attr(not(feature = "cel"), path = "expression/without.rs")]
mod program;

/// A CEL expression over `object`. It is the same as another of the same text.
#[derive(Clone)]
pub struct Expression {
    compiled: Arc<Compiled>,
    max_steps: u64,
    errors: Arc<AtomicU64>,
}

/// A CEL expression over `type`, `object` and `count`: whether an event is what is waited for. It is the same as another of
/// the same text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition(Expression);

/// An event as a [`Condition`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct EventView<'a> {
    /// `type`: one of the constants here.
    pub event_type: &'a str,
    /// `object`: its JSON body; null without one.
    pub body: Option<&'a Bytes>,
    /// `count`: how many objects are there after this event. Missing while that is not known.
    pub count: Option<u64>,
}

/// Indicates an expression that was not compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// The text is none.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The parser got no thread to run in, which says nothing about the text.
    #[error("the parser could not be started: {0}; try again")]
    NotParsed(String),
}

struct Compiled {
    text: Box<str>,
    program: Program,
}

/// Why there is no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// A field, a key or an element is not there.
    #[cfg_attr(not(feature = "cel"), expect(dead_code, reason = "nothing is evaluated"))]
    Missing,
    /// A value has the wrong type, a number is too large, or the budget is spent.
    Error,
}

/// The longest text of an expression.
pub const MAX_EXPRESSION_BYTES: usize = 4096;

/// How deep an expression may be nested. Each level of an evaluation was seen to take 40 to 50 KiB of stack, optimised or not,
/// and a thread of tokio's has 2 MiB.
#[cfg(feature = "cel")]
const MAX_LEVELS: usize = 20;

const OBJECT: &str = "object";
const TYPE: &str = "type";
const COUNT: &str = "count";

/// Returns the number of bodies that were parsed on this thread.
#[cfg(all(test, feature = "cel"))]
pub(crate) fn parsed() -> u64 {
    body::parsed()
}

/// Forgets what is kept of the objects of a wake only for as long as it lasts.
pub(super) fn end_wake() {
    program::end_wake();
}

// === impl Expression ===

impl Expression {
    /// Whether this build knows expressions.
    pub const IS_SUPPORTED: bool = cfg!(feature = "cel");

    /// The steps of one evaluation unless others are set: up to some 0.5 ms, optimised. A selection usually takes less than
    /// a hundred.
    pub const DEFAULT_MAX_STEPS: u64 = 10_000;

    /// Parses an expression over `object`.
    ///
    /// # Errors
    ///
    /// Point at what is not CEL, is not known, or is beyond a bound; or say that the parser could not run.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        Self::over(text, &[OBJECT])
    }

    fn over(text: &str, variables: &[&str]) -> Result<Self, ExpressionError> {
        let text = text.trim();
        if text.len() > MAX_EXPRESSION_BYTES {
            let excess = (0..=MAX_EXPRESSION_BYTES).rfind(|at| text.is_char_boundary(*at)).unwrap_or_default();
            let message = format!("the expression is longer than {MAX_EXPRESSION_BYTES} bytes");
            return Err(SyntaxError::new(text, excess, message).into());
        }
        let compiled = Compiled { text: text.into(), program: Program::compile(text, variables)? };
        Ok(Self { compiled: Arc::new(compiled), max_steps: Self::DEFAULT_MAX_STEPS, errors: Arc::default() })
    }

    /// Returns the same expression, an evaluation of which fails beyond so many steps.
    #[must_use]
    pub fn with_max_steps(self, max_steps: u64) -> Self {
        Self { max_steps, ..self }
    }

    /// The same, with its failures counted elsewhere.
    #[must_use]
    pub fn counted_in(self, errors: &Arc<AtomicU64>) -> Self {
        Self { errors: Arc::clone(errors), ..self }
    }

    /// Without the spaces around it.
    pub fn as_str(&self) -> &str {
        &self.compiled.text
    }

    /// How often an evaluation has failed; those for which something was missing do not count.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Whether it is true for the object. An object whose body is not JSON never matches.
    pub fn matches(&self, object: &Object) -> bool {
        let Some(body) = object.shared_json() else { return false };
        self.compiled.program.test(self.max_steps, None, Some(&body)).unwrap_or_else(|failure| self.count(failure))
    }

    /// Its values for an index: of a string, number or boolean the one, of a list one for each such element. Strings are as
    /// they are, the others JSON text. Null, maps, failures, and bodies that are not JSON give none.
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

// === impl EventView ===

impl EventView<'_> {
    /// The object was created, or is new to the watcher.
    pub const ADDED: &'static str = "ADDED";
    /// The object was changed.
    pub const MODIFIED: &'static str = "MODIFIED";
    /// The object was deleted, or is gone for the watcher.
    pub const DELETED: &'static str = "DELETED";
    /// The end of the initial events.
    pub const SYNCED: &'static str = "SYNCED";
}

// === impl Condition ===

impl Condition {
    /// Parses an expression over `type`, `object` and `count`.
    ///
    /// # Errors
    ///
    /// Point at what is not CEL, is not known, or is beyond a bound; or say that the parser could not run.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        Expression::over(text, &[TYPE, OBJECT, COUNT]).map(Self)
    }

    /// Returns the same condition, an evaluation of which fails beyond so many steps.
    #[must_use]
    pub fn with_max_steps(self, max_steps: u64) -> Self {
        Self(self.0.with_max_steps(max_steps))
    }

    /// The same, with its failures counted elsewhere.
    #[must_use]
    pub fn counted_in(self, errors: &Arc<AtomicU64>) -> Self {
        Self(self.0.counted_in(errors))
    }

    /// Without the spaces around it.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether it is true for an event. Without a body a failure is what is to be expected: it does not count.
    pub fn is_met(&self, event: EventView<'_>) -> bool {
        let Self(expression) = self;
        let tested = expression.compiled.program.test(expression.max_steps, Some(event), event.body);
        tested.unwrap_or_else(|failure| event.body.is_some() && expression.count(failure))
    }
}

#[cfg(test)]
#[cfg(feature = "cel")]
mod tests;
