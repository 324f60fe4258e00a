//! Path to the scalars of a JSON text.

mod cut;
mod find;
mod scan;
mod set;
mod view;

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
    sync::Arc,
};

use smallvec::SmallVec;

pub use self::{
    cut::{FieldCut, FieldCutError},
    view::{View, ViewError},
};
use super::SyntaxError;

/// Path into JSON, such as `.spec.nodeName`, `.spec.containers[*].image` or `.metadata.labels['app.kubernetes.io/name']`.
///
/// A subset of kubectl's `JSONPath`, with or without its braces: `{.spec.nodeName}`. The first dot may be left out. A plain
/// key consists of letters, digits and `-_/:@$`; any other key is quoted, with `\` before `\`, `'` and `"`. `[0]` is one
/// element of an array, `[*]` or `[]` is every one; neither applies to a map. At most 32 steps and 1024 bytes.
///
/// Each call walks the text from end to end and builds no tree. The last value of a repeated key counts. A text that is not
/// JSON has no values. Skipped values may be nested at any depth, and a path goes at most 32 deep.
#[derive(Clone, Debug, Eq, PartialOrd, Ord)]
pub struct Path {
    /// Canonical text, which only this path has.
    text: Arc<str>,
    steps: Arc<[Step]>,
}

/// Path at the beginning of a longer text.
#[derive(Debug)]
pub(super) struct PathPrefix {
    /// Parsed path.
    pub(super) path: Path,
    /// End of the path in the text.
    pub(super) end: usize,
    /// Position of its first `[*]`.
    pub(super) wildcard: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Step {
    /// Value of a key of a map.
    Key(Box<str>),
    /// Element of an array.
    Index(usize),
    /// Every element of an array.
    Every,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    wildcard: Option<usize>,
}

/// Values at a path: nearly always one at most.
pub(super) type Values<'a> = SmallVec<[Cow<'a, str>; 1]>;

/// Maximum number of steps: deeper than any field of any Kubernetes kind, and far from the end of a stack.
const MAX_STEPS: usize = 32;

/// Maximum length; a label key alone has up to 317 bytes.
const MAX_BYTES: usize = 1024;

// === impl Path ===

impl FromStr for Path {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        Self::parse(text)
    }
}

impl Path {
    /// Parses a path.
    ///
    /// # Errors
    ///
    /// Fails with the position of the character that is not part of a path, or of the first one beyond a bound.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        let PathPrefix { path, end, .. } = Self::parse_prefix(text, 0)?;
        if end < text.len() {
            return Err(SyntaxError::new(text, end, "expected '.', '[' or the end of the path"));
        }
        Ok(path)
    }

    /// Parses the path that begins at byte `start` of a longer text, up to the first character that is not part of it.
    pub(super) fn parse_prefix(text: &str, start: usize) -> Result<PathPrefix, SyntaxError> {
        let mut parser = Parser { text, at: start, wildcard: None };
        let braced = parser.eat('{');
        let steps = parser.steps()?;
        if braced && !parser.eat('}') {
            return Err(parser.fail("expected '.', '[' or '}'"));
        }
        let Parser { at: end, wildcard, .. } = parser;
        let canonical = canonical(&steps);
        if end - start > MAX_BYTES || canonical.len() > MAX_BYTES {
            let excess = (start..=end.min(start + MAX_BYTES)).rfind(|at| text.is_char_boundary(*at)).unwrap_or(start);
            return Err(SyntaxError::new(text, excess, format!("path too long (limit: {MAX_BYTES} bytes)")));
        }
        Ok(PathPrefix { path: Self { text: canonical.into(), steps: steps.into() }, end, wildcard })
    }

    /// Returns the canonical text: with the first dot, and quotes where they are needed.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the key that the path begins with; `None` for a path that begins with an array element.
    pub fn first_key(&self) -> Option<&str> {
        match self.steps.first() {
            Some(Step::Key(key)) => Some(key),
            Some(Step::Index(_) | Step::Every) | None => None,
        }
    }

    /// Returns true if the path has `[*]`, and may lead to several values.
    pub fn has_wildcard(&self) -> bool {
        self.steps.contains(&Step::Every)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Path {
    fn eq(&self, other: &Self) -> bool {
        // Nearly always they are clones of one path: of a resource's index, in a selection.
        Arc::ptr_eq(&self.text, &other.text) || self.text == other.text
    }
}

impl Hash for Path {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

// === impl Step ===

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) if !key.is_empty() && key.chars().all(is_plain) => write!(f, ".{key}"),
            Self::Key(key) => write!(f, "['{}']", key.replace('\\', r"\\").replace('\'', r"\'")),
            Self::Index(index) => write!(f, "[{index}]"),
            Self::Every => f.write_str("[*]"),
        }
    }
}

// === impl Parser ===

impl<'a> Parser<'a> {
    fn steps(&mut self) -> Result<Vec<Step>, SyntaxError> {
        let mut steps = Vec::new();
        loop {
            let start = self.at;
            let step = if self.eat('[') {
                self.bracket()?
            } else if self.eat('.') || steps.is_empty() {
                Step::Key(self.name()?)
            } else {
                return Ok(steps);
            };
            if steps.len() == MAX_STEPS {
                return Err(SyntaxError::new(
                    self.text,
                    start,
                    format!("too many steps in the path (limit: {MAX_STEPS})"),
                ));
            }
            steps.push(step);
        }
    }

    fn name(&mut self) -> Result<Box<str>, SyntaxError> {
        let rest = self.rest();
        let name = &rest[..rest.find(|c| !is_plain(c)).unwrap_or(rest.len())];
        if name.is_empty() {
            return Err(self.fail("expected a key (of letters, digits and -_/:@$; any other is written ['key'])"));
        }
        self.at += name.len();
        Ok(name.into())
    }

    /// Parses the step after `[`.
    fn bracket(&mut self) -> Result<Step, SyntaxError> {
        let start = self.at - 1;
        let step = if self.eat('*') || self.rest().starts_with(']') {
            self.wildcard.get_or_insert(start);
            Step::Every
        } else if self.eat('\'') {
            Step::Key(self.quoted('\'')?)
        } else if self.eat('"') {
            Step::Key(self.quoted('"')?)
        } else {
            let rest = self.rest();
            let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
            if digits.is_empty() {
                return Err(self.fail("expected '*', an index or a quoted key"));
            }
            let index = digits.parse().map_err(|_| self.fail("the index is too large"))?;
            self.at += digits.len();
            Step::Index(index)
        };
        if !self.eat(']') {
            return Err(self.fail("expected ']'"));
        }
        Ok(step)
    }

    /// Parses the key after an opening quote, up to the closing one.
    fn quoted(&mut self, quote: char) -> Result<Box<str>, SyntaxError> {
        let mut key = String::new();
        while !self.eat(quote) {
            if self.eat('\\') && !self.rest().starts_with(['\\', '\'', '"']) {
                return Err(self.fail("expected '\\' or a quote after '\\'"));
            }
            let Some(c) = self.rest().chars().next() else {
                return Err(self.fail(format!("expected the closing {quote}")));
            };
            key.push(c);
            self.at += c.len_utf8();
        }
        Ok(key.into())
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.rest().starts_with(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn fail(&self, message: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.text, self.at, message)
    }
}

fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "-_/:@$".contains(c)
}

/// Returns the rest of a path that begins with a key, whose JSON string this is.
fn after_key<'a>(tail: &'a [Step], key: &[u8]) -> Option<&'a [Step]> {
    let (Step::Key(wanted), rest) = tail.split_first()? else { return None };
    let key = &key[1..key.len() - 1];
    let is_wanted = match key.len().cmp(&wanted.len()) {
        // Escapes are longer than what they stand for.
        Ordering::Less => false,
        Ordering::Equal => *key == *wanted.as_bytes() && !wanted.contains('\\'),
        Ordering::Greater => memchr::memchr(b'\\', key).is_some() && unescaped(key).is_some_and(|key| *key == **wanted),
    };
    is_wanted.then_some(rest)
}

/// Returns the text of a JSON string without its quotes; `None` if that is not Unicode.
fn unescaped(text: &[u8]) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', text).is_none() {
        return str::from_utf8(text).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice(&[b"\"", text, b"\""].concat()).ok().map(Cow::Owned)
}

fn canonical(steps: &[Step]) -> String {
    steps.iter().map(Step::to_string).collect()
}

#[cfg(test)]
mod tests;
