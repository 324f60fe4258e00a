//! Scanning of a JSON text without building a tree.

use std::ops::Range;

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
        // Strings, which may be long, and the brackets outside of them are all that counts.
        match self.next()? {
            b'"' => return self.text().map(drop),
            b'{' | b'[' => {}
            b',' | b':' | b'}' | b']' => return None,
            _ => {
                let rest = &self.json[self.at..];
                let is_end = |b: &u8| b.is_ascii_whitespace() || b"{}[],:\"".contains(b);
                self.at += rest.iter().position(is_end).unwrap_or(rest.len());
                return Some(());
            }
        }
        loop {
            let rest = self.json.get(self.at..)?;
            let passed = rest.iter().position(|b| matches!(b, b'"' | b'{' | b'}' | b'[' | b']'))?;
            self.at += passed;
            #[cfg(test)]
            crate::model::work::add(passed + 1);
            match self.json[self.at] {
                b'"' => {
                    self.text()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                _ => depth -= 1,
            }
            self.at += 1;
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
            #[cfg(test)]
            crate::model::work::add(self.at - start);
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
        #[cfg(test)]
        crate::model::work::add(1);
        self.json.get(self.at).copied()
    }

    pub(super) fn eat(&mut self, byte: u8) -> Option<bool> {
        let is_next = self.next()? == byte;
        self.at += usize::from(is_next);
        Some(is_next)
    }
}
