//! Syntax error of the small languages that users write: selectors and paths.

use std::{borrow::Cow, fmt};

/// Indicates a text that does not parse, with the expected input and the offending character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    text: String,
    position: usize,
    message: String,
}

/// Characters of the text that the message shows on either side of the offending one.
const CONTEXT_CHARS: usize = 20;

/// Maximum bytes of a client's text that a message repeats.
const MAX_EXCERPT_BYTES: usize = 256;

/// Returns a client's text for a message, truncated if it is long.
pub fn excerpt(text: &str) -> Cow<'_, str> {
    excerpt_of(text, MAX_EXCERPT_BYTES)
}

/// Returns a text, truncated if it has more bytes.
pub fn excerpt_of(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    let most = max_bytes - '…'.len_utf8();
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    Cow::Owned(format!("{}…", &text[..end]))
}

/// Returns the text with the characters escaped of which `is_unsafe` is true.
#[cfg(any(feature = "client", feature = "kube"))]
pub(crate) fn escaped(text: &str, is_unsafe: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

// === impl SyntaxError ===

impl SyntaxError {
    /// Beginning of the message: the place in the text.
    pub const PLACE: &str = "character ";

    /// Returns an error at byte `offset` of `text`.
    pub fn new(text: &str, offset: usize, message: impl Into<String>) -> Self {
        let position = text.get(..offset).map_or_else(|| text.chars().count(), |before| before.chars().count());
        Self { text: text.to_owned(), position, message: message.into() }
    }

    /// Returns the offending character's position, counted in characters from 1; one past the end if the text ends too
    /// early.
    pub fn position(&self) -> usize {
        self.position + 1
    }
}

impl std::error::Error for SyntaxError {}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.position.saturating_sub(CONTEXT_CHARS);
        let before: String = self.text.chars().skip(start).take(self.position - start).collect();
        let after: String = self.text.chars().skip(self.position).take(CONTEXT_CHARS).collect();
        write!(f, "{}{}: {}: \"{before}»{after}\"", Self::PLACE, self.position(), self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offending_character_is_marked() {
        let error = SyntaxError::new("app=web,tier in a", 16, "expected '('");
        assert_eq!(error.position(), 17);
        assert_eq!(error.to_string(), "character 17: expected '(': \"app=web,tier in »a\"");
    }

    #[test]
    fn a_long_text_is_repeated_in_part() {
        assert_eq!(excerpt("short"), "short");
        for (unit, length) in [("a", 256), ("é", 128), ("€", 85)] {
            let text = unit.repeat(length);
            assert_eq!(excerpt(&text), text);
            let cut = excerpt(&unit.repeat(length * 2)).into_owned();
            assert!(cut.len() <= 256 && cut.len() > 250 && cut.ends_with('…'), "{cut}");
        }
    }

    #[test]
    fn an_offset_past_the_end_or_inside_a_character_does_not_panic() {
        assert_eq!(SyntaxError::new("é", 1, "x").position(), 2);
        assert_eq!(SyntaxError::new("", 0, "x").to_string(), "character 1: x: \"»\"");
    }
}
