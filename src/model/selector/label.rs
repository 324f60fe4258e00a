//! Label selectors, as apimachinery's `labels.Parse`.

use std::{collections::BTreeSet, fmt, sync::Arc};

use super::{MAX_REQUIREMENTS, MAX_VALUES, SyntaxError, check_length, check_normal_form, write_list};
use crate::model::Labels;

/// Label selector: `app=web,tier in (front,back),!canary,generation>3`. The default selects everything.
///
/// Kubernetes' syntax and meaning: a comma is "and"; `!=` and `notin` match also when the label is missing; `>` and `<`
/// match only labels that are integers; `a=` and `a in ()` require the empty value. Blanks may surround every token.
/// apimachinery misparses an empty value at the end of a list, `(a,,)`; this accepts it as one.
///
/// At most 64 requirements with 256 values, and 8 KiB of text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    /// Sorted, without repetitions.
    requirements: Arc<[Requirement]>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Requirement {
    key: Box<str>,
    test: Test,
}

/// Test of one label. Values are sorted, without repetitions, and at least one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Test {
    Exists,
    DoesNotExist,
    In(Box<[Box<str>]>),
    NotIn(Box<[Box<str>]>),
    GreaterThan(i64),
    LessThan(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// Key, value, `in` or `notin`.
    Word(&'a str),
    Comma,
    Not,
    Open,
    Close,
    Equals,
    NotEquals,
    GreaterThan,
    LessThan,
    End,
}

struct Parser<'a> {
    text: &'a str,
    /// Current token, with its beginning and end.
    token: Token<'a>,
    start: usize,
    end: usize,
    /// Number of values so far.
    values: usize,
}

/// Rule for the characters of a text, and for those at its edges.
struct Part<I, E> {
    what: &'static str,
    inner: I,
    edge: E,
}

/// Maximum length of the name in a label's key, and of a value.
const MAX_NAME_BYTES: usize = 63;

/// Maximum length of the DNS name before the `/` of a label's key.
const MAX_PREFIX_BYTES: usize = 253;

// === impl LabelSelector ===

impl LabelSelector {
    /// Parses a selector; the empty text selects everything.
    ///
    /// # Errors
    ///
    /// Fails with the position of the unexpected token, of the character that a key or value must not have, or of the part
    /// beyond a bound.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        check_length(text)?;
        let mut parser = Parser::new(text);
        if parser.token == Token::End {
            return Ok(Self::default());
        }
        let mut requirements = BTreeSet::new();
        for count in 0.. {
            if count == MAX_REQUIREMENTS {
                return Err(parser.fail(format!("too many requirements in the selector (limit: {MAX_REQUIREMENTS})")));
            }
            requirements.insert(parser.requirement()?);
            match parser.token {
                Token::Comma => parser.advance(),
                Token::End => break,
                _ => return Err(parser.fail("expected ',' or the end of the selector")),
            }
        }
        check_normal_form(Self { requirements: requirements.into_iter().collect() }, text)
    }

    /// Returns true if the labels meet every requirement.
    pub fn matches(&self, labels: Labels<'_>) -> bool {
        self.requirements.iter().all(|Requirement { key, test }| test.matches(labels.get(key)))
    }

    /// Returns each requirement, with its result for the labels and the value that was found.
    pub(crate) fn terms(&self, labels: Labels<'_>) -> impl Iterator<Item = (String, bool, String)> {
        self.requirements.iter().map(move |requirement| {
            let Requirement { key, test } = requirement;
            let found = labels.get(key);
            (requirement.to_string(), test.matches(found), found.unwrap_or_default().to_owned())
        })
    }

    /// Returns the key with the fewest values one of which an object needs.
    pub(crate) fn equality(&self) -> Option<(&str, &[Box<str>])> {
        let needed = self.requirements.iter().filter_map(|Requirement { key, test }| match test {
            Test::In(values) => Some((&**key, &**values)),
            Test::Exists | Test::DoesNotExist | Test::NotIn(_) | Test::GreaterThan(_) | Test::LessThan(_) => None,
        });
        needed.min_by_key(|(_, values)| values.len())
    }

    /// Returns true if everything is selected.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, &self.requirements)
    }
}

// === impl Requirement ===

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, test } = self;
        match test {
            Test::Exists => f.write_str(key),
            Test::DoesNotExist => write!(f, "!{key}"),
            Test::GreaterThan(bound) => write!(f, "{key}>{bound}"),
            Test::LessThan(bound) => write!(f, "{key}<{bound}"),
            Test::In(values) | Test::NotIn(values) => {
                let is_in = matches!(test, Test::In(_));
                if let [value] = &**values {
                    return write!(f, "{key}{}{value}", if is_in { "=" } else { "!=" });
                }
                write!(f, "{key} {} (", if is_in { "in" } else { "notin" })?;
                write_list(f, values)?;
                f.write_str(")")
            }
        }
    }
}

// === impl Test ===

impl Test {
    fn matches(&self, value: Option<&str>) -> bool {
        let integer = || value.and_then(|value| value.parse::<i64>().ok());
        let is_in = |values: &[Box<str>]| value.is_some_and(|value| values.iter().any(|v| **v == *value));
        match self {
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::In(values) => is_in(values),
            Self::NotIn(values) => !is_in(values),
            Self::GreaterThan(bound) => integer().is_some_and(|value| value > *bound),
            Self::LessThan(bound) => integer().is_some_and(|value| value < *bound),
        }
    }
}

// === impl Parser ===

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        let mut parser = Self { text, token: Token::End, start: 0, end: 0, values: 0 };
        parser.advance();
        parser
    }

    /// Advances to the next token; stays at the end after the last one.
    fn advance(&mut self) {
        let blank = |c| matches!(c, ' ' | '\t' | '\r' | '\n');
        let rest = self.text[self.end..].trim_start_matches(blank);
        self.start = self.text.len() - rest.len();
        let (token, length) = match rest.as_bytes() {
            [] => (Token::End, 0),
            [b'=', b'=', ..] => (Token::Equals, 2),
            [b'!', b'=', ..] => (Token::NotEquals, 2),
            [b'=', ..] => (Token::Equals, 1),
            [b'!', ..] => (Token::Not, 1),
            [b',', ..] => (Token::Comma, 1),
            [b'(', ..] => (Token::Open, 1),
            [b')', ..] => (Token::Close, 1),
            [b'>', ..] => (Token::GreaterThan, 1),
            [b'<', ..] => (Token::LessThan, 1),
            _ => {
                let special = |c| blank(c) || matches!(c, '=' | '!' | ',' | '(' | ')' | '>' | '<');
                let length = rest.find(special).unwrap_or(rest.len());
                (Token::Word(&rest[..length]), length)
            }
        };
        self.token = token;
        self.end = self.start + length;
    }

    /// Parses a key with its test. The following token is left to the caller.
    fn requirement(&mut self) -> Result<Requirement, SyntaxError> {
        let is_absent = self.token == Token::Not;
        if is_absent {
            self.advance();
        }
        let key = self.key(if is_absent { "expected a label key" } else { "expected a label key or '!'" })?;
        if is_absent {
            return Ok(Requirement { key, test: Test::DoesNotExist });
        }
        let operator = self.token;
        let test = match operator {
            Token::Comma | Token::End => Test::Exists,
            Token::Equals => Test::In([self.operand()?].into()),
            Token::NotEquals => Test::NotIn([self.operand()?].into()),
            Token::GreaterThan => Test::GreaterThan(self.integer()?),
            Token::LessThan => Test::LessThan(self.integer()?),
            Token::Word("in") => Test::In(self.list()?),
            Token::Word("notin") => Test::NotIn(self.list()?),
            _ => return Err(self.fail("expected '=', '==', '!=', 'in', 'notin', '<' or '>'")),
        };
        Ok(Requirement { key, test })
    }

    fn key(&mut self, expected: &str) -> Result<Box<str>, SyntaxError> {
        let Token::Word(key) = self.token else {
            return Err(self.fail(expected));
        };
        check_key(key).map_err(|(at, message)| SyntaxError::new(self.text, self.start + at, message))?;
        self.advance();
        Ok(key.into())
    }

    /// Parses the operand of an operator: a value, or nothing for the empty value.
    fn operand(&mut self) -> Result<Box<str>, SyntaxError> {
        self.advance();
        match self.token {
            Token::Word(_) | Token::Comma | Token::End => self.value(),
            _ => Err(self.fail("expected a label value")),
        }
    }

    fn integer(&mut self) -> Result<i64, SyntaxError> {
        self.advance();
        let start = self.start;
        let value = self.value()?;
        value.parse().map_err(|_| SyntaxError::new(self.text, start, "expected a 64-bit integer"))
    }

    /// Parses the operand of `in` and `notin`: values in parentheses, each of which may be empty.
    fn list(&mut self) -> Result<Box<[Box<str>]>, SyntaxError> {
        self.advance();
        if self.token != Token::Open {
            return Err(self.fail("expected '('"));
        }
        let mut values = BTreeSet::new();
        loop {
            self.advance();
            values.insert(self.value()?);
            match self.token {
                Token::Comma => {}
                Token::Close => break,
                _ => return Err(self.fail("expected ',' or ')'")),
            }
        }
        self.advance();
        Ok(values.into_iter().collect())
    }

    /// Returns the value at the current token; at any token but a word, the empty value.
    fn value(&mut self) -> Result<Box<str>, SyntaxError> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(self.fail(format!("too many values in the selector (limit: {MAX_VALUES})")));
        }
        let Token::Word(value) = self.token else {
            return Ok("".into());
        };
        check_name(value, "a label value")
            .map_err(|(at, message)| SyntaxError::new(self.text, self.start + at, message))?;
        self.advance();
        Ok(value.into())
    }

    fn fail(&self, message: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.text, self.start, message)
    }
}

// === impl Part ===

impl<I: Fn(char) -> bool, E: Fn(char) -> bool> Part<I, E> {
    fn check(&self, text: &str) -> Result<(), (usize, String)> {
        let Self { what, inner, edge } = self;
        if let Some((at, c)) = text.char_indices().find(|(_, c)| !inner(*c)) {
            return Err((at, format!("{c:?} is not allowed in {what}")));
        }
        if text.starts_with(|c| !edge(c)) {
            return Err((0, format!("{what} must begin with a letter or digit")));
        }
        if text.ends_with(|c| !edge(c)) {
            return Err((text.len() - 1, format!("{what} must end with a letter or digit")));
        }
        Ok(())
    }
}

/// Checks a key (apimachinery's `IsQualifiedName`): an optional DNS name and `/`, and a name. Fails with the position and
/// the reason.
fn check_key(key: &str) -> Result<(), (usize, String)> {
    let Some((prefix, name)) = key.split_once('/') else {
        return check_name(key, "a label key");
    };
    let mut at = 0;
    for label in prefix.split('.') {
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let part = Part { what: "the prefix of a label key", inner: |c| edge(c) || c == '-', edge };
        if label.is_empty() {
            return Err((at, format!("{} has an empty part", part.what)));
        }
        part.check(label).map_err(|(offset, message)| (at + offset, message))?;
        at += label.len() + 1;
    }
    if prefix.len() > MAX_PREFIX_BYTES {
        return Err((
            MAX_PREFIX_BYTES,
            format!("the prefix of a label key must have at most {MAX_PREFIX_BYTES} characters"),
        ));
    }
    if name.is_empty() {
        return Err((at, "expected a name after '/'".to_owned()));
    }
    check_name(name, "a label key").map_err(|(offset, message)| (at + offset, message))
}

/// Checks a value (apimachinery's `IsValidLabelValue`), or the name of a key. Fails with the position and the reason.
fn check_name(name: &str, what: &'static str) -> Result<(), (usize, String)> {
    let edge = |c: char| c.is_ascii_alphanumeric();
    Part { what, inner: |c| edge(c) || matches!(c, '-' | '_' | '.'), edge }.check(name)?;
    if name.len() > MAX_NAME_BYTES {
        return Err((MAX_NAME_BYTES, format!("{what} must have at most {MAX_NAME_BYTES} characters")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
