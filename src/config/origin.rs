//! Values in use with their origin, for `informerd config print`.

use std::{fmt, path::PathBuf};

use serde_json::{Map, Value};

use super::{Config, ConfigErrors, ServeFlags, error::join, keys::reference, value};

/// Key with the value in use, and the place that it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Parts of the path of the key, such as `watch`, `queue_length`.
    pub path: Vec<String>,
    /// Value as it is written in the file; that of a flag as a text.
    pub value: Value,
    /// Origin of the value.
    pub origin: Origin,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Flag of the command line, with its name.
    Flag(String),
    /// Environment variable, with its name.
    Variable(String),
    /// Configuration file.
    File(PathBuf),
    /// Default of the table.
    Default,
}

/// Returns the keys that have a value: those of the file, of flags and variables, and those with a default, in the order of the
/// reference; the resources follow. A password in an address is hidden.
///
/// # Errors
///
/// All problems of the configuration, as [`Config::load`].
pub fn settings(flags: &ServeFlags) -> Result<Vec<Setting>, ConfigErrors> {
    let (_, file) = Config::load_with_file(flags)?;
    let in_file = || Origin::File(flags.config.clone().unwrap_or_default());
    let mut settings = Vec::new();
    for key in reference().iter().filter(|key| !key.path.contains('<')) {
        let parts: Vec<&str> = key.path.split('.').collect();
        let (value, origin) = match (flags.keys.get(key.path), written(&file, &parts), key.default) {
            (Some((_, value)), ..) => {
                let flag = key.flag.expect("a flag was given");
                let is_variable = flags.keys.is_variable(key.path);
                let name = if is_variable { flag.variable.to_owned() } else { format!("--{}", flag.name) };
                (value.clone(), if is_variable { Origin::Variable(name) } else { Origin::Flag(name) })
            }
            (None, Some(value), _) => (value.clone(), in_file()),
            (None, None, Some(default)) if is_in_use(&file, &parts) => (value::written(default), Origin::Default),
            (None, None, _) => continue,
        };
        settings.push(Setting { path: parts.into_iter().map(str::to_owned).collect(), value: hidden(value), origin });
    }
    if let Some(Value::Object(resources)) = file.get("resources") {
        add_written(&mut vec!["resources".to_owned()], resources, &in_file(), &mut settings);
    }
    for (flag, texts) in [
        ("--files", &flags.files),
        ("--stream", &flags.stream),
        ("--etcd", &flags.etcd),
        ("--relay", &flags.relay),
        ("--kube", &flags.kube),
    ] {
        for text in texts {
            let (name, source) = text.split_once('=').unwrap_or((text, ""));
            let path = vec!["resources".to_owned(), name.to_owned(), "source".to_owned(), flag[2..].to_owned()];
            settings.push(Setting { path, value: hidden(source.into()), origin: Origin::Flag(flag.to_owned()) });
        }
    }
    Ok(settings)
}

/// Returns true if the default of a key is in use: a section within a section, such as `authentication.jwt`, is off unless it is
/// written.
fn is_in_use(file: &Map<String, Value>, path: &[&str]) -> bool {
    path.len() <= 2 || written(file, &path[..path.len() - 1]).is_some()
}

/// Returns the value at a path in the file.
fn written<'a>(file: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(file.get(*first)?, |section, key| section.get(*key)).filter(|value| !value.is_null())
}

/// Adds the keys below a section, each with its value.
fn add_written(path: &mut Vec<String>, section: &Map<String, Value>, origin: &Origin, settings: &mut Vec<Setting>) {
    for (key, value) in section.iter().filter(|(_, value)| !value.is_null()) {
        path.push(key.clone());
        match value {
            Value::Object(below) if !below.is_empty() => add_written(path, below, origin, settings),
            value => {
                settings.push(Setting { path: path.clone(), value: hidden(value.clone()), origin: origin.clone() });
            }
        }
        path.pop();
    }
}

/// Hides the password in each address of a value.
fn hidden(value: Value) -> Value {
    match value {
        Value::String(text) => {
            match text.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('@')?))) {
                Some((scheme, (_, host))) => format!("{scheme}://…@{host}").into(),
                None => text.into(),
            }
        }
        Value::Array(items) => items.into_iter().map(hidden).collect(),
        other => other,
    }
}

// === impl Setting ===

impl Setting {
    /// Returns the path of the key, as in errors.
    pub fn key(&self) -> String {
        join(&self.path)
    }
}

// === impl Origin ===

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
            Self::File(path) => path.display().fmt(f),
            Self::Default => f.write_str("default"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_of_an_address_is_hidden() {
        assert_eq!(hidden("http://user:secret@host:1/x".into()), "http://…@host:1/x");
        assert_eq!(hidden(vec!["https://a:b@c", "d"].into()), serde_json::json!(["https://…@c", "d"]));
        assert_eq!(hidden("a@b".into()), "a@b");
    }

    #[test]
    fn a_setting_comes_from_a_flag_the_file_or_the_table() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        let text = "listen: 127.0.0.1:1\nwatch: {queue_length: 7}\nresources: {a: {source: {files: {path: x}}}}\n";
        std::fs::write(&path, text).unwrap();
        let flags =
            ServeFlags { config: Some(path.clone()), files: vec!["b=./y@Pod".to_owned()], ..ServeFlags::default() };
        let flags = flags.with("listen", "127.0.0.1:2");
        let settings = settings(&flags).unwrap();
        let found = |key: &str| {
            let setting = settings.iter().find(|setting| setting.key() == key).unwrap_or_else(|| panic!("no {key}"));
            (setting.value.clone(), setting.origin.to_string())
        };
        let file = path.display().to_string();
        assert_eq!(found("listen"), ("127.0.0.1:2".into(), "--listen".to_owned()));
        assert_eq!(found("watch.queue_length"), (7.into(), file.clone()));
        assert_eq!(found("watch.max_watchers"), (100_000.into(), "default".to_owned()));
        assert_eq!(found("resources.a.source.files.path"), ("x".into(), file));
        assert_eq!(found("resources.b.source.files"), ("./y@Pod".into(), "--files".to_owned()));
    }
}
