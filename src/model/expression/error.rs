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
