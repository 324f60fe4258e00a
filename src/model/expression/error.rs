//! Failures to compile and to evaluate an expression.

use crate::model::SyntaxError;

/// Indicates an expression that was not compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// Text that is no expression.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// Failure to start a thread for the parser, independent of the text.
    #[error("cannot start the parser: {0}; try again")]
    NotParsed(String),
}

/// Reason for a missing value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// A field, a key or an element does not exist.
    #[cfg_attr(not(feature = "cel"), expect(dead_code, reason = "nothing is evaluated"))]
    Missing,
    /// A value has the wrong type, a number is too large, or the budget is spent.
    Error,
}

// === impl Failure ===

impl Failure {
    /// Returns the reason as a text. It has no part of the body.
    pub(super) fn reason(self, max_steps: u64) -> String {
        match self {
            Self::Missing => "a field, a key or an element is missing".to_owned(),
            Self::Error => format!(
                "the result is not true or false, a value has the wrong type, a number is too large, or it takes more than \
                 {max_steps} steps"
            ),
        }
    }
}
