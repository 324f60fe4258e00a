//! Field selectors, as apimachinery's `fields.ParseSelector`.

use std::{collections::BTreeSet, fmt, sync::Arc};

use smallvec::SmallVec;

use super::{MAX_REQUIREMENTS, SyntaxError, check_length, check_normal_form, write_list};
use crate::model::{
    Object, ObjectKey, excerpt,
    path::{Path, PathPrefix},
};

/// Field selector: `metadata.name=web-1,spec.nodeName!=node-a`. The default selects everything.
///
/// Kubernetes' syntax and meaning, for every [`Path`] without `[*]`: `=`, `==` and `!=` compare the text of a scalar, a
/// comma is "and", `\,`, `\=` and `\\` are escapes in values, blanks are part of a value. A missing value (null, a map, an
/// array, any field of a body that is not JSON) is the empty text. `metadata.name` and `metadata.namespace` are those of
/// the object's key.
///
/// At most 64 requirements and 8 KiB of text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    /// Sorted, without repetitions.
    requirements: Arc<[Requirement]>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Requirement {
    path: Path,
    comparison: Comparison,
    value: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Comparison {
    Equal,
    NotEqual,
}

/// Operators, the longer one first where one begins with another.
const OPERATORS: [(&str, Comparison); 3] =
    [("!=", Comparison::NotEqual), ("==", Comparison::Equal), ("=", Comparison::Equal)];

const NAME: &str = ".metadata.name";

const NAMESPACE: &str = ".metadata.namespace";

// === impl FieldSelector ===

impl FieldSelector {
    /// Parses a selector; the empty text selects everything, and empty terms are skipped.
    ///
    /// # Errors
    ///
    /// Fails with the position of the unexpected character, of a `[*]`, or of the term beyond the bound.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        check_length(text)?;
        let mut requirements = BTreeSet::new();
        let mut count = 0;
        let mut at = 0;
        loop {
            at = text.len() - text[at..].trim_start_matches(',').len();
            if at == text.len() {
                break;
            }
            if count == MAX_REQUIREMENTS {
                let message = format!("too many requirements in the selector (limit: {MAX_REQUIREMENTS})");
                return Err(SyntaxError::new(text, at, message));
            }
            let (requirement, end) = parse_term(text, at)?;
            requirements.insert(requirement);
            count += 1;
            at = end;
        }
        check_normal_form(Self { requirements: requirements.into_iter().collect() }, text)
    }

    /// Returns true if the object meets every requirement. The body is read once, and only if the key does not decide.
    pub fn matches(&self, object: &Object) -> bool {
        let of_key =
            |requirement: &Requirement| requirement.of_key(object.key()).is_none_or(|value| requirement.accepts(value));
        self.requirements.iter().all(of_key) && self.all_in_body(object, Requirement::accepts)
    }

    /// Tests the requirements that read the body, with the value for each, which is empty if it is missing, up to the first for
    /// which the test is false. The body is read once for all of them.
    fn all_in_body(&self, object: &Object, mut test: impl FnMut(&Requirement, &str) -> bool) -> bool {
        let of_body = || self.requirements.iter().filter(|requirement| requirement.reads_body());
        // Sorted, so equal ones follow one another.
        let mut paths: SmallVec<[&Path; 4]> = of_body().map(|requirement| &requirement.path).collect();
        paths.dedup();
        let json = object.json().filter(|_| !paths.is_empty());
        let found = json.map(|json| Path::scalars_of_json(paths.iter().copied(), json)).unwrap_or_default();
        let mut at = 0;
        of_body().all(|requirement| {
            at += usize::from(*paths[at] != requirement.path);
            test(requirement, found.get(at).and_then(Option::as_deref).unwrap_or_default())
        })
    }

    /// Returns each requirement, true if it reads the body, and its result for the object with an excerpt of the value found. One that
    /// reads the body has a result only with `bodies`.
    pub(crate) fn terms(
        &self,
        object: &Object,
        bodies: bool,
    ) -> impl Iterator<Item = (String, bool, Option<(bool, String)>)> {
        let mut in_body = Vec::new();
        if bodies {
            self.all_in_body(object, |requirement, value| {
                in_body.push((requirement.accepts(value), excerpt(value).into_owned()));
                true
            });
        }
        let mut in_body = in_body.into_iter();
        self.requirements.iter().map(move |requirement| {
            let of_key = requirement.of_key(object.key()).map(|value| (requirement.accepts(value), value.to_owned()));
            let reads_body = of_key.is_none();
            (requirement.to_string(), reads_body, of_key.or_else(|| in_body.next()))
        })
    }

    /// Returns paths with the non-empty value that an object needs at each, without those of the key.
    pub(crate) fn equality(&self) -> impl Iterator<Item = (&Path, &str)> {
        let of_body = |path: &Path| ![NAME, NAMESPACE].contains(&path.as_str());
        self.needed().filter(move |(path, value)| of_body(path) && !value.is_empty())
    }

    /// Returns true if the selection depends on more than the key of an object.
    pub fn reads_body(&self) -> bool {
        self.requirements.iter().any(Requirement::reads_body)
    }

    /// Returns the name that an object needs.
    pub(crate) fn name(&self) -> Option<&str> {
        self.needed().find_map(|(path, value)| (path.as_str() == NAME).then_some(value))
    }

    /// Returns the namespace that an object needs.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.needed().find_map(|(path, value)| (path.as_str() == NAMESPACE).then_some(value))
    }

    fn needed(&self) -> impl Iterator<Item = (&Path, &str)> {
        let is_needed = |requirement: &&Requirement| requirement.comparison == Comparison::Equal;
        self.requirements.iter().filter(is_needed).map(|requirement| (&requirement.path, &*requirement.value))
    }

    /// Returns true if everything is selected.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, &self.requirements)
    }
}

// === impl Requirement ===

impl Requirement {
    /// Returns true if this value at the path meets the requirement.
    fn accepts(&self, value: &str) -> bool {
        (*value == *self.value) == (self.comparison == Comparison::Equal)
    }

    /// Returns the value at the path if that is one of the key.
    fn of_key<'o>(&self, key: &'o ObjectKey) -> Option<&'o str> {
        match self.path.as_str() {
            NAME => Some(key.name()),
            NAMESPACE => Some(key.namespace()),
            _ => None,
        }
    }

    fn reads_body(&self) -> bool {
        ![NAME, NAMESPACE].contains(&self.path.as_str())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.as_str();
        f.write_str(path.strip_prefix('.').unwrap_or(path))?;
        f.write_str(if self.comparison == Comparison::Equal { "=" } else { "!=" })?;
        for part in self.value.split_inclusive(is_special) {
            let plain = part.trim_end_matches(is_special);
            f.write_str(plain)?;
            if plain.len() < part.len() {
                write!(f, "\\{}", &part[plain.len()..])?;
            }
        }
        Ok(())
    }
}

/// Parses the term that begins at byte `start`. It ends at a comma or at the end of the text.
fn parse_term(text: &str, start: usize) -> Result<(Requirement, usize), SyntaxError> {
    let PathPrefix { path, end, wildcard } = Path::parse_prefix(text, start)?;
    if let Some(at) = wildcard {
        return Err(SyntaxError::new(text, at, "[*] is not allowed in a field selector, which compares one value"));
    }
    let Some((operator, comparison)) = OPERATORS.into_iter().find(|(operator, _)| text[end..].starts_with(operator))
    else {
        return Err(SyntaxError::new(text, end, "expected '=', '==' or '!='"));
    };
    let start = end + operator.len();
    let mut value = String::new();
    let mut chars = text[start..].char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            ',' => return Ok((Requirement { path, comparison, value: value.into() }, start + at)),
            '=' => return Err(SyntaxError::new(text, start + at, "expected a value, in which '=' is written '\\='")),
            '\\' => match chars.next() {
                Some((_, escaped)) if is_special(escaped) => value.push(escaped),
                _ => return Err(SyntaxError::new(text, start + at + 1, "expected '\\', ',' or '=' after '\\'")),
            },
            _ => value.push(c),
        }
    }
    Ok((Requirement { path, comparison, value: value.into() }, text.len()))
}

/// Returns true if a `\` precedes the character in a value.
fn is_special(c: char) -> bool {
    matches!(c, '\\' | ',' | '=')
}

#[cfg(test)]
mod tests;
