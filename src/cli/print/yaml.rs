//! YAML in kubectl's layout, from JSON text, token by token: numbers keep all digits, and a string that another reader could
//! take for another type is quoted.

use super::{
    json::{Document, MAX_DEPTH, Token, Tokens, unicode_escape},
    text::is_unsafe,
};

/// Map or sequence that is being written.
struct Block {
    is_map: bool,
    indent: usize,
}

/// Token before the next value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// Beginning of the document.
    Start,
    Key,
    Dash,
}

struct Writer<'o> {
    out: &'o mut String,
    start: usize,
    blocks: Vec<Block>,
    /// True if the cursor is already in the column of the next entry.
    in_place: bool,
}

/// Longest key written in one line; YAML's limit is 1024 characters.
const MAX_KEY_BYTES: usize = 1000;

/// Writes a document. The cursor begins at column `indent`, at the beginning of a line or after a dash, and ends at the
/// beginning of a line.
pub(crate) fn write(document: &Document<'_>, indent: usize, out: &mut String) {
    Writer { out, start: indent, blocks: Vec::new(), in_place: true }.run(document.tokens());
}

// === impl Writer ===

impl Writer<'_> {
    fn run(&mut self, mut tokens: Tokens<'_>) {
        let mut key_next = false;
        while let Some(token) = tokens.next() {
            match (token, self.blocks.last()) {
                (Token::Comma, _) => key_next = true,
                (Token::Colon, _) => {}
                (Token::Close(_), _) => drop(self.blocks.pop()),
                (Token::Text(key), Some(Block { is_map: true, .. })) if key_next => {
                    self.key(key);
                    key_next = false;
                }
                (value, block) => {
                    let after = match block {
                        None => After::Start,
                        Some(Block { is_map: true, .. }) => After::Key,
                        Some(Block { is_map: false, .. }) => {
                            self.begin_entry();
                            self.out.push('-');
                            After::Dash
                        }
                    };
                    self.value(value, after, &mut tokens);
                    key_next = true;
                }
            }
        }
    }

    fn indent(&self) -> usize {
        self.blocks.last().map_or(self.start, |block| block.indent)
    }

    fn begin_entry(&mut self) {
        if !std::mem::take(&mut self.in_place) {
            self.spaces(self.indent());
        }
    }

    fn key(&mut self, key: &str) {
        self.begin_entry();
        let key = match decode(key) {
            Some(text) if is_plain(&text) => text,
            Some(text) => quoted(&text),
            None => key.to_owned(),
        };
        if key.len() > MAX_KEY_BYTES {
            self.out.push_str("? ");
            self.out.push_str(&key);
            self.out.push('\n');
            self.spaces(self.indent());
        } else {
            self.out.push_str(&key);
        }
        self.out.push(':');
    }

    fn value(&mut self, token: Token<'_>, after: After, tokens: &mut Tokens<'_>) {
        if let Token::Open(open) = token {
            let is_empty = matches!(tokens.clone().next(), Some(Token::Close(_)));
            if !is_empty && self.blocks.len() < MAX_DEPTH {
                self.open(open == '{', after);
                return;
            }
            self.blank(after);
            self.flow(token, tokens);
        } else {
            self.blank(after);
            match token {
                Token::Text(text) => self.text(text),
                other => other.write(self.out),
            }
        }
        self.out.push('\n');
    }

    fn open(&mut self, is_map: bool, after: After) {
        let outer = self.indent();
        let indent = match after {
            After::Start => outer,
            // A sequence is not indented below its key, as in kubectl.
            After::Key if !is_map => outer,
            After::Key | After::Dash => outer + 2,
        };
        if after == After::Key {
            self.out.push('\n');
        } else {
            self.blank(after);
        }
        self.in_place = after != After::Key;
        self.blocks.push(Block { is_map, indent });
    }

    fn text(&mut self, text: &str) {
        match decode(text) {
            None => Token::Text(text).write(self.out),
            Some(text) if is_plain(&text) => self.out.push_str(&text),
            Some(text) if is_literal(&text) => self.literal(&text),
            Some(text) => self.out.push_str(&quoted(&text)),
        }
    }

    /// Writes the lines of a text as a block literal.
    fn literal(&mut self, text: &str) {
        let trimmed = text.trim_end_matches('\n');
        self.out.push_str(match text.len() - trimmed.len() {
            0 => "|-",
            1 => "|",
            _ => "|+",
        });
        let indent = self.indent() + 2;
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            self.out.push('\n');
            if !line.is_empty() {
                self.spaces(indent);
                self.out.push_str(line);
            }
        }
    }

    /// Writes a container in one line.
    fn flow(&mut self, open: Token<'_>, tokens: &mut Tokens<'_>) {
        open.write(self.out);
        let mut depth = 1;
        while depth > 0 {
            let Some(token) = tokens.next() else { break };
            match token {
                Token::Open(_) => depth += 1,
                Token::Close(_) => depth -= 1,
                _ => {}
            }
            match token {
                Token::Text(text) => match decode(text) {
                    Some(text) => self.out.push_str(&quoted(&text)),
                    None => token.write(self.out),
                },
                Token::Comma => self.out.push_str(", "),
                Token::Colon => self.out.push_str(": "),
                other => other.write(self.out),
            }
        }
    }

    fn blank(&mut self, after: After) {
        if after != After::Start {
            self.out.push(' ');
        }
    }

    fn spaces(&mut self, count: usize) {
        self.out.extend(std::iter::repeat_n(' ', count));
    }
}

/// Returns the text of a JSON string; none if it has half a surrogate pair.
fn decode(text: &str) -> Option<String> {
    serde_json::from_str(text).ok()
}

/// Returns the text in double quotes.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if is_unsafe(c) || is_no_character(c) => out.push_str(&unicode_escape(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns true if a text of several lines can be a block literal.
fn is_literal(text: &str) -> bool {
    let is_text = |c: char| matches!(c, '\n' | '\t') || !(is_unsafe(c) || is_no_character(c));
    text.contains('\n') && !text.starts_with(char::is_whitespace) && text.chars().all(is_text)
}

/// Returns true if every reader, of YAML 1.1 or 1.2, takes the text without quotes for the same string.
fn is_plain(text: &str) -> bool {
    let mut chars = text.chars();
    let starts_well = match chars.next() {
        Some(c) if c.is_alphanumeric() => true,
        Some('/' | '_' | '(' | '$') => true,
        Some('.' | '+' | '-' | '<') => chars.next().is_some_and(|c| c.is_alphanumeric() || c == '/'),
        _ => false,
    };
    starts_well
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && !text
            .chars()
            .any(|c| c.is_control() || is_unsafe(c) || is_no_character(c) || (c.is_whitespace() && c != ' '))
        && !is_word(text)
        && !is_number(text)
}

/// Returns true if some version of YAML takes the text for null or a boolean.
fn is_word(text: &str) -> bool {
    const WORDS: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    WORDS.iter().any(|word| word.eq_ignore_ascii_case(text))
}

/// Returns true if some version of YAML takes the text for a number, a time or a date.
fn is_number(text: &str) -> bool {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = bare.to_ascii_lowercase();
    if [".inf", ".nan", "inf", "nan", "infinity"].contains(&&*lower) {
        return true;
    }
    let all = |text: &str, is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    if let Some(digits) = ["0x", "0o", "0b"].iter().find_map(|prefix| lower.strip_prefix(prefix)) {
        return all(digits, |c| c.is_ascii_hexdigit() || c == '_');
    }
    let is_decimal = |text: &str| {
        let dots = text.matches('.').count();
        // 10.32.0.44 is no number; 1:30 is one, in base sixty.
        all(text, |c| c.is_ascii_digit() || matches!(c, '.' | '_' | ':' | ',')) && (dots < 2 || text.contains(':'))
    };
    if let Some((mantissa, exponent)) = lower.split_once('e') {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if is_decimal(mantissa) && all(exponent, |c| c.is_ascii_digit()) {
            return true;
        }
    }
    is_decimal(bare) || is_date(bare)
}

/// Returns true if the text begins as 2025-11-21 does.
fn is_date(text: &str) -> bool {
    let mut parts = text.splitn(3, '-');
    let mut digits = |lengths: std::ops::RangeInclusive<usize>| {
        parts.next().is_some_and(|part| lengths.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit()))
    };
    digits(4..=4) && digits(1..=2) && parts.next().is_some_and(|day| day.starts_with(|c: char| c.is_ascii_digit()))
}

fn is_no_character(c: char) -> bool {
    matches!(c, '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests;
