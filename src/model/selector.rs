//! Selectors by labels and by fields, in Kubernetes' syntax.
//!
//! Both have a normal form: requirements sorted, repeated ones once, every operator in its shortest spelling. Two spellings
//! of the same requirements are equal and print the same, and the printed text parses to the same selector: watchers are
//! grouped by it. Requirements are not simplified against each other: `a>1,a>2` is not `a>2`.

mod field;
mod label;

use std::fmt;

pub use field::FieldSelector;
pub use label::LabelSelector;

use super::SyntaxError;

/// Maximum length of a selector's text, as written and in its normal form: the length of a URL that HTTP servers accept,
/// which carries it in Kubernetes.
const MAX_BYTES: usize = 8 << 10;

/// Maximum number of requirements, an order of magnitude above those of any Kubernetes controller; each is tested against
/// each changed object.
const MAX_REQUIREMENTS: usize = 64;

/// Maximum number of values of all `in` and `notin` together.
const MAX_VALUES: usize = 256;

/// Rejects a text that is too long, before it is parsed.
fn check_length(text: &str) -> Result<(), SyntaxError> {
    if text.len() <= MAX_BYTES {
        return Ok(());
    }
    let excess = (0..=MAX_BYTES).rfind(|at| text.is_char_boundary(*at)).unwrap_or_default();
    Err(SyntaxError::new(text, excess, format!("selector too long (limit: {MAX_BYTES} bytes)")))
}

/// Rejects a selector whose normal form is too long to be parsed again; blanks and escapes can make it longer than the
/// text.
fn check_normal_form<S: fmt::Display>(selector: S, text: &str) -> Result<S, SyntaxError> {
    if selector.to_string().len() <= MAX_BYTES {
        return Ok(selector);
    }
    let message = format!("selector too long in its normal form (limit: {MAX_BYTES} bytes)");
    Err(SyntaxError::new(text, text.len(), message))
}

/// Writes items with commas between them.
fn write_list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            f.write_str(",")?;
        }
        item.fmt(f)?;
    }
    Ok(())
}
