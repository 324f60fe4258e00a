//! Sections of the file: the keys that are set, with their problems, flags and defaults.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{
    error::{ConfigErrors, join},
    value::{self, ValueError, found},
};

/// Flags that were given for keys of the file, by the paths of the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyFlags {
    given: BTreeMap<&'static str, (String, Value)>,
    /// Keys whose value is that of the environment variable.
    variables: BTreeSet<&'static str>,
}

/// Sources of a configuration besides the file's keys, and the problems found so far.
#[derive(Debug)]
pub(super) struct Input<'a> {
    /// Directory of the file, to which its paths are relative.
    pub(super) directory: &'a Path,
    pub(super) flags: &'a KeyFlags,
    pub(super) errors: RefCell<ConfigErrors>,
}

/// Map of keys in the file, and its place there. A key without a value counts as omitted.
#[derive(Debug, Clone)]
pub(super) struct Section<'a> {
    /// Path of the section; empty for the file as a whole.
    path: String,
    keys: Option<&'a Map<String, Value>>,
    input: &'a Input<'a>,
}

// === impl KeyFlags ===

impl KeyFlags {
    /// Adds the value of a flag, with its name for errors.
    pub(super) fn insert(&mut self, path: &'static str, flag: String, value: Value) {
        self.given.insert(path, (flag, value));
    }

    /// Notes that the value of a key is that of its environment variable.
    pub(super) fn note_variable(&mut self, path: &'static str) {
        self.variables.insert(path);
    }

    pub(super) fn is_variable(&self, path: &str) -> bool {
        self.variables.contains(path)
    }

    /// Returns the flag that was given for a key, with its name for errors, and its value.
    pub(super) fn get(&self, path: &str) -> Option<&(String, Value)> {
        self.given.get(path)
    }
}

// === impl Input ===

impl Input<'_> {
    /// Reads an empty section.
    pub(super) fn none<T>(read: impl FnOnce(&Section<'_>) -> T) -> T {
        let flags = KeyFlags::default();
        let input = Input { directory: Path::new(""), flags: &flags, errors: RefCell::default() };
        read(&input.file(None))
    }

    /// Returns the file as a whole.
    pub(super) fn file<'a>(&'a self, keys: Option<&'a Map<String, Value>>) -> Section<'a> {
        Section { path: String::new(), keys, input: self }
    }

    pub(super) fn add(&self, at: &str, problem: impl Display) {
        self.errors.borrow_mut().add(at, problem);
    }

    /// Returns the value of a result, or adds its error.
    pub(super) fn check<T>(&self, at: &str, result: Result<T, impl Display>) -> Option<T> {
        self.errors.borrow_mut().check(at, result)
    }
}

// === impl Section ===

impl<'a> Section<'a> {
    pub(super) fn input(&self) -> &'a Input<'a> {
        self.input
    }

    /// Returns the path of a key.
    pub(super) fn at(&self, key: &str) -> String {
        let key = join(&[key]);
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    /// Returns the flag for a key if it was given, otherwise the path of the key.
    pub(super) fn origin(&self, key: &str) -> String {
        let path = self.at(key);
        self.input.flags.get(&path).map_or(path.clone(), |(flag, _)| flag.clone())
    }

    /// Returns true if a flag for the key was given.
    pub(super) fn is_flagged(&self, key: &str) -> bool {
        self.input.flags.get(&self.at(key)).is_some()
    }

    pub(super) fn is_written(&self, key: &str) -> bool {
        self.written(key).is_some()
    }

    /// Returns the keys among these that are set.
    pub(super) fn written_of(&self, keys: &[&'static str]) -> Vec<&'static str> {
        keys.iter().copied().filter(|key| self.is_written(key)).collect()
    }

    /// Returns true if there is a problem at this key or below it.
    pub(super) fn has_problem(&self, key: &str) -> bool {
        self.input.errors.borrow().has_at(&self.at(key))
    }

    /// Adds a problem of a key.
    pub(super) fn add(&self, key: &str, problem: impl Display) {
        self.input.add(&self.at(key), problem);
    }

    /// Adds a problem of the section.
    pub(super) fn add_here(&self, problem: impl Display) {
        self.input.add(&self.path, problem);
    }

    /// Returns the value of a result, or adds its error to the section.
    pub(super) fn check_here<T>(&self, result: Result<T, impl Display>) -> Option<T> {
        self.input.check(&self.path, result)
    }

    /// Returns the path of a file, relative to the configuration file's directory, without `.` components in between.
    pub(super) fn relative(&self, path: &Path) -> PathBuf {
        self.input.directory.join(path).components().collect()
    }

    /// Returns the section at a key: an empty one if the key is not set, none if its value is not a map.
    pub(super) fn section(&self, key: &str) -> Option<Self> {
        let keys = match self.written(key) {
            None => None,
            Some(Value::Object(keys)) => Some(keys),
            Some(other) => {
                self.add(key, format!("expected a map of keys, found {}", found(other)));
                return None;
            }
        };
        Some(Self { path: self.at(key), keys, input: self.input })
    }

    /// Returns the section at a key, empty if its value is not a map.
    pub(super) fn section_or_empty(&self, key: &str) -> Self {
        self.section(key).unwrap_or_else(|| Self { path: self.at(key), keys: None, input: self.input })
    }

    /// Returns the names of the keys, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let names: BTreeSet<&str> = self.keys.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        names.into_iter()
    }

    /// Reads an optional key; a flag takes precedence.
    pub(super) fn optional<T>(&self, key: &str, read: impl Fn(&Value) -> Result<T, ValueError>) -> Option<T> {
        let path = self.at(key);
        let in_file = self.written(key).and_then(|value| self.input.check(&path, read(value)));
        let in_flag = self.input.flags.get(&path).and_then(|(flag, value)| self.input.check(flag, read(value)));
        in_flag.or(in_file)
    }

    /// Reads a required key.
    pub(super) fn required<T: Default>(
        &self,
        key: &str,
        problem: &str,
        read: impl Fn(&Value) -> Result<T, ValueError>,
    ) -> T {
        if !self.is_written(key) {
            self.add(key, problem);
        }
        self.optional(key, read).unwrap_or_default()
    }

    /// Reads a key with a default, which is a text as in the file.
    ///
    /// # Panics
    ///
    /// If the default is not valid for the key. A test reads all defaults.
    pub(super) fn or_default<T>(&self, key: &str, default: &str, read: impl Fn(&Value) -> Result<T, ValueError>) -> T {
        self.optional(key, &read)
            .unwrap_or_else(|| read(&value::written(default)).expect("a default is within its bounds"))
    }

    fn written(&self, key: &str) -> Option<&'a Value> {
        self.keys?.get(key).filter(|value| !value.is_null())
    }
}
