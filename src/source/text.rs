//! Foreign text, escaped for one line of a log or an answer.
//!
//! File names and quotes of parsers are under the control of the source's writer: a newline in them must not begin another
//! line, and a control character must not reach a terminal.

/// Longest line, in characters.
const MAX_CHARS: usize = 300;

/// Returns `text` in one line of bounded length, with control characters escaped.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(MAX_CHARS));
    for (count, part) in text.split_whitespace().enumerate() {
        if count > 0 {
            line.push(' ');
        }
        line.push_str(&escaped(part));
    }
    if let Some((end, _)) = line.char_indices().nth(MAX_CHARS) {
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Returns `text` with control characters escaped, of any length.
pub(super) fn escaped(text: &str) -> std::borrow::Cow<'_, str> {
    crate::model::escaped(text, char::is_control)
}

/// Returns the innermost cause of an error, in one line. The outer errors only repeat that something failed.
pub(super) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    one_line(&cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_in_one_line() {
        assert_eq!(one_line("a\n b\u{1b}[31m\r\nc"), "a b\\u{1b}[31m c");
        assert_eq!(one_line(&"é".repeat(1000)).chars().count(), MAX_CHARS + 1);
        assert_eq!(escaped("dir/a\nb.yaml"), "dir/a\\nb.yaml");
    }
}
