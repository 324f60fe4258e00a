//! Problems of a configuration, in the order in which they were found.

use std::{collections::BTreeMap, fmt, path::Path};

use crate::model::escaped;

/// Problem: its place, its description and its remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct ConfigError {
    at: String,
    problem: String,
    /// File and line, if `at` is a key of the file.
    place: Option<String>,
}

/// Error for a configuration that cannot be served; prints one line for each problem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigErrors {
    errors: Vec<ConfigError>,
    /// Number of problems after the first [`MAX_ERRORS`].
    omitted: usize,
}

/// Largest number of problems that are kept; a file of 1 MiB has room for a hundred thousand unknown keys.
const MAX_ERRORS: usize = 100;

const MAX_SHOWN_CHARS: usize = 80;

// === impl ConfigError ===

impl ConfigError {
    pub(super) fn new(at: &str, problem: &str) -> Self {
        Self { at: one_line(at), problem: one_line(problem), place: None }
    }

    /// Returns the place: the path of a key (`watch.queue_length`), a flag (`--listen`) or a file, with line and column if known.
    pub fn at(&self) -> &str {
        &self.at
    }

    /// Returns the file and the line of a key, `informerd.yaml:7`, if it is in the file.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// Returns the description and the remedy.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

// === impl ConfigErrors ===

impl ConfigErrors {
    /// Returns the problems; of very many, the first 100.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ConfigError> {
        self.errors.iter()
    }

    /// Returns a line for each problem, with the file and the line of its key, and one for those that were left out.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let lines = self.errors.iter().map(|error| match &error.place {
            Some(place) => format!("{place}: {error}"),
            None => error.to_string(),
        });
        lines.chain((self.omitted > 0).then(|| format!("{} more problems", self.omitted)))
    }

    /// Adds the places of keys, by their lines in the file; a key that is not there has that of the section.
    pub(super) fn locate(&mut self, file: &Path, lines: &BTreeMap<String, u64>) {
        for error in &mut self.errors {
            let sections = std::iter::successors(Some(&*error.at), |path| path.rsplit_once('.').map(|(path, _)| path));
            let line = sections.into_iter().find_map(|path| lines.get(path));
            error.place = line.map(|line| one_line(&format!("{}:{line}", file.display())));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns true if there is a problem at this key or below it.
    pub(super) fn has_at(&self, key: &str) -> bool {
        let is_below = |rest: &str| rest.is_empty() || rest.starts_with('.');
        self.errors.iter().any(|error| error.at.strip_prefix(key).is_some_and(is_below))
    }

    pub(super) fn push(&mut self, error: ConfigError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        } else {
            self.omitted += 1;
        }
    }

    pub(super) fn add(&mut self, at: &str, problem: impl fmt::Display) {
        self.push(ConfigError::new(at, &problem.to_string()));
    }

    /// Returns the value of a result, or adds its error.
    pub(super) fn check<T>(&mut self, at: &str, result: Result<T, impl fmt::Display>) -> Option<T> {
        result.map_err(|problem| self.add(at, problem)).ok()
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.errors.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        if self.omitted > 0 {
            write!(f, "\nand {} more", self.omitted)?;
        }
        Ok(())
    }
}

/// Returns the text as one line without control characters: users and parsers can write anything into a problem.
fn one_line(text: &str) -> String {
    escaped(text, char::is_control).into_owned()
}

/// Formats a key as one text; a name that could be misread is quoted.
pub(super) fn join<S: AsRef<str>>(path: &[S]) -> String {
    let parts: Vec<_> = path.iter().map(|part| segment(part.as_ref())).collect();
    parts.join(".")
}

/// Returns a name unchanged, or quoted if it could be misread.
fn segment(name: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'/');
    if !name.is_empty() && name.len() <= MAX_SHOWN_CHARS && name.bytes().all(is_plain) {
        return name.to_owned();
    }
    let beginning: String = name.chars().take(MAX_SHOWN_CHARS).collect();
    let more = if beginning.len() < name.len() { "…" } else { "" };
    format!("{beginning:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_one_line() {
        let mut errors = ConfigErrors::default();
        errors.add("a.b", "is\nwrong\u{1b}[31m");
        errors.add("--c", "is too");
        assert_eq!(errors.to_string(), "a.b: is\\nwrong\\u{1b}[31m\n--c: is too");
        assert_eq!(errors.iter().map(ConfigError::at).collect::<Vec<_>>(), ["a.b", "--c"]);
        assert_eq!(errors.iter().map(ConfigError::problem).last(), Some("is too"));
    }

    #[test]
    fn a_problem_of_a_key_has_its_line() {
        let mut errors = ConfigErrors::default();
        for at in ["a.b", "a.c.d", "e", "--a", "x.yaml:7:1"] {
            errors.add(at, "is wrong");
        }
        errors.locate(Path::new("x.yaml"), &BTreeMap::from([("a".to_owned(), 1), ("a.b".to_owned(), 2)]));
        let expected = [
            "x.yaml:2: a.b: is wrong",
            "x.yaml:1: a.c.d: is wrong",
            "e: is wrong",
            "--a: is wrong",
            "x.yaml:7:1: is wrong",
        ];
        assert_eq!(errors.lines().collect::<Vec<_>>(), expected);
        assert_eq!(errors.iter().next().and_then(ConfigError::place), Some("x.yaml:2"));
        (0..MAX_ERRORS).for_each(|_| errors.add("a", ""));
        assert_eq!(errors.lines().last().as_deref(), Some("5 more problems"));
    }

    #[test]
    fn problems_beyond_the_bound_are_counted() {
        let mut errors = ConfigErrors::default();
        for n in 0..MAX_ERRORS + 7 {
            errors.add("a", n);
        }
        assert_eq!(errors.iter().len(), MAX_ERRORS);
        assert!(errors.to_string().ends_with("\na: 99\nand 7 more"));
    }

    #[test]
    fn problems_are_found_by_key() {
        let mut errors = ConfigErrors::default();
        errors.add("a.bc.d", "");
        for (key, is_found) in [("a", true), ("a.bc", true), ("a.bc.d", true), ("a.b", false), ("a.bc.d.e", false)] {
            assert_eq!(errors.has_at(key), is_found, "{key}");
        }
    }

    #[test]
    fn names_that_would_be_misread_are_quoted() {
        let path: Vec<String> = ["resources", "a.b", "c d", "", "é\n", "x-1/y_2"].map(Into::into).into();
        assert_eq!(join(&path), r#"resources."a.b"."c d".""."é\n".x-1/y_2"#);
    }
}
