//! Texts of shards: a part of so many, and Kubernetes' `shardRange`.

use std::str::FromStr;

use super::{Shard, ShardError, ShardKey};
use crate::model::SyntaxError;

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

/// Range as it is written: its field, its first hash, and the hash after its last.
struct Written {
    key: ShardKey,
    start: u128,
    end: u128,
}

const FUNCTION: &str = "shardRange";
const PART: &str = "expected a part such as 2/8 (the first is 0/8), or shardRange(…)";

impl FromStr for Shard {
    type Err = SyntaxError;

    /// Parses a part, or one or more `shardRange` of one field.
    ///
    /// # Errors
    ///
    /// Fails with the position of the character that does not belong there.
    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        if text.contains(FUNCTION) { Parser { text, at: 0 }.shard() } else { part(text) }
    }
}

/// Parses `2/8` or `KEY:2/8`.
fn part(text: &str) -> Result<Shard, SyntaxError> {
    // A path may have both characters.
    let (key, numbers) = text.rsplit_once(':').unwrap_or(("uid", text));
    let at = text.len() - numbers.len();
    let number = |digits: &str| digits.parse::<u64>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
    let pair = numbers.split_once('/').and_then(|(part, of)| Some((number(part)?, number(of)?)));
    let (part, of) = pair.ok_or_else(|| SyntaxError::new(text, at, PART))?;
    let key = ShardKey::parse(key).map_err(|error| match error {
        ShardError::Key(error) => error,
        other => SyntaxError::new(text, 0, other.to_string()),
    })?;
    Shard::part(key, part, of).ok_or_else(|| {
        let range = format!("the first of {of} is 0/{of}, and the last {}/{of}", of.saturating_sub(1));
        SyntaxError::new(text, at, if of == 0 { PART } else { &range })
    })
}

// === impl Parser ===

impl Parser<'_> {
    /// Parses the whole text. Brackets may group ranges in any way: `||` is all that joins them.
    fn shard(mut self) -> Result<Shard, SyntaxError> {
        let (mut key, mut ranges, mut open) = (None, Vec::new(), 0);
        loop {
            open += self.brackets();
            let at = self.at;
            let Written { key: other, start, end } = self.range()?;
            if key.get_or_insert_with(|| other.clone()) != &other {
                return Err(SyntaxError::new(self.text, at, "all ranges need the same field"));
            }
            // Kubernetes' end of the last range, 2^64, is 0.
            ranges.push((start as u64, end as u64));
            while open > 0 && self.eat(")") {
                open -= 1;
            }
            if !self.eat("||") {
                break;
            }
        }
        self.skip();
        if open > 0 || self.at < self.text.len() {
            return Err(self.fail(if open > 0 { "expected ')' or '||'" } else { "expected '||' or the end" }));
        }
        let key = key.unwrap_or(ShardKey::Uid);
        Shard::new(key, &ranges).map_err(|error| SyntaxError::new(self.text, self.text.len(), error.to_string()))
    }

    fn range(&mut self) -> Result<Written, SyntaxError> {
        self.skip();
        let at = self.at;
        if self.word() != FUNCTION {
            return Err(SyntaxError::new(self.text, at, "expected shardRange(FIELD, 'START', 'END')"));
        }
        self.expect("(")?;
        let key = self.argument(Self::field)?;
        self.expect(",")?;
        let start = self.argument(Self::hash)?;
        self.expect(",")?;
        self.skip();
        let at = self.at;
        let end = self.argument(Self::hash)?;
        self.expect(")")?;
        if start >= end {
            return Err(SyntaxError::new(self.text, at, "the end of a range must be greater than its start"));
        }
        Ok(Written { key, start, end })
    }

    /// Parses an argument, perhaps in brackets.
    fn argument<T>(&mut self, parse: fn(&mut Self) -> Result<T, SyntaxError>) -> Result<T, SyntaxError> {
        let open = self.brackets();
        let argument = parse(self)?;
        for _ in 0..open {
            self.expect(")")?;
        }
        Ok(argument)
    }

    fn field(&mut self) -> Result<ShardKey, SyntaxError> {
        self.skip();
        let at = self.at;
        let mut field = self.word().to_owned();
        while self.eat(".") {
            field.push('.');
            field.push_str(self.word());
        }
        match &*field {
            "object.metadata.uid" => Ok(ShardKey::Uid),
            "object.metadata.namespace" => Ok(ShardKey::Namespace),
            _ => Err(SyntaxError::new(self.text, at, "expected object.metadata.uid or object.metadata.namespace")),
        }
    }

    /// Parses a hexadecimal number of up to 64 bits, or 2^64, in a CEL string.
    fn hash(&mut self) -> Result<u128, SyntaxError> {
        self.skip();
        let at = self.at;
        let expected =
            || SyntaxError::new(self.text, at, "expected a hexadecimal number in quotes, such as '0x8000000000000000'");
        let rest = &self.text[at..];
        let raw = rest.strip_prefix(['r', 'R']).unwrap_or(rest);
        let quote =
            ["'''", r#"""""#, "'", "\""].into_iter().find(|quote| raw.starts_with(quote)).ok_or_else(expected)?;
        let (number, after) = raw[quote.len()..].split_once(quote).ok_or_else(expected)?;
        let digits = number.strip_prefix("0x").ok_or_else(expected)?;
        let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        // At most 17 digits, so that it fits.
        let is_number = (1..=17).contains(&digits.len()) && digits.bytes().all(is_hex);
        let hash = u128::from_str_radix(digits, 16).ok().filter(|hash| is_number && *hash <= 1 << 64);
        let hash = hash.ok_or_else(expected)?;
        self.at = self.text.len() - after.len();
        Ok(hash)
    }

    /// Skips opening brackets, and returns their number.
    fn brackets(&mut self) -> usize {
        std::iter::from_fn(|| self.eat("(").then_some(())).count()
    }

    /// Skips blanks and comments.
    fn skip(&mut self) {
        loop {
            let rest = self.text[self.at..].trim_start();
            self.at = self.text.len() - rest.len();
            if !rest.starts_with("//") {
                return;
            }
            self.at += rest.find('\n').unwrap_or(rest.len());
        }
    }

    /// Returns the next identifier; empty if there is none.
    fn word(&mut self) -> &str {
        self.skip();
        let rest = &self.text[self.at..];
        let word = &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip();
        let found = self.text[self.at..].starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), SyntaxError> {
        if self.eat(token) { Ok(()) } else { Err(self.fail(&format!("expected '{token}'"))) }
    }

    fn fail(&self, message: &str) -> SyntaxError {
        SyntaxError::new(self.text, self.at, message)
    }
}
