//! Scanning of a JSON text without building a tree, for what leaves out parts of it.

use std::ops::Range;

use super::Step;

/// Scanner of a presumed JSON text; it stops where the text is not JSON.
pub(super) struct Scan<'a> {
    pub(super) json: &'a [u8],
    pub(super) at: usize,
}

// === impl Scan ===

impl<'a> Scan<'a> {
    pub(super) fn new(json: &'a [u8]) -> Self {
        Self { json, at: 0 }
    }

    /// Passes a value without reading its content.
    pub(super) fn skip(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.next()? {
                b'"' => {
                    self.text()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' => self.at += 1,
                _ => {
                    let rest = &self.json[self.at..];
                    let is_end = |b: &u8| b.is_ascii_whitespace() || b"{}[],:\"".contains(b);
                    self.at += rest.iter().position(is_end).unwrap_or(rest.len());
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Passes a string, and returns its position, with its quotes.
    pub(super) fn text(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        (self.json.get(start) == Some(&b'"')).then_some(())?;
        self.at += 1;
        loop {
            let rest = self.json.get(self.at..)?;
            self.at += memchr::memchr2(b'"', b'\\', rest)? + 1;
            if self.json[self.at - 1] == b'"' {
                return Some(start..self.at);
            }
            self.at += 1;
        }
    }

    /// Returns the next byte that is not blank.
    pub(super) fn next(&mut self) -> Option<u8> {
        let rest = self.json.get(self.at..)?;
        self.at += rest.iter().position(|b| !b.is_ascii_whitespace())?;
        self.json.get(self.at).copied()
    }

    pub(super) fn eat(&mut self, byte: u8) -> Option<bool> {
        let is_next = self.next()? == byte;
        self.at += usize::from(is_next);
        Some(is_next)
    }
}

/// Returns the rest of a path that begins with a key, whose JSON string this is.
pub(super) fn after_key<'a>(tail: &'a [Step], key: &[u8]) -> Option<&'a [Step]> {
    let (Step::Key(wanted), rest) = tail.split_first()? else { return None };
    let is_wanted = match memchr::memchr(b'\\', key) {
        None => key[1..key.len() - 1] == *wanted.as_bytes(),
        Some(_) => serde_json::from_slice::<String>(key).is_ok_and(|key| key == **wanted),
    };
    is_wanted.then_some(rest)
}
