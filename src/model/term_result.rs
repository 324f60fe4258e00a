//! Result of a term of a selection.

/// Result of a term of a selection for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TermResult {
    /// It selects the object.
    Match,
    /// It does not select the object.
    NoMatch,
    /// The evaluation failed, which counts as no match.
    Failed,
}
