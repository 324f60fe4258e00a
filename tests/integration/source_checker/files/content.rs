//! Objects of one file, and its text in each format.

use std::collections::BTreeSet;

/// File: its objects with their bodies, in order.
#[derive(Debug, Clone)]
pub(super) struct FileModel {
    pub(super) objects: Vec<(String, String)>,
    pub(super) is_list: bool,
    /// True if a part of the text cannot be read.
    pub(super) is_damaged: bool,
}

// === impl FileModel ===

impl FileModel {
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.objects.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns true if each object is there once.
    pub(super) fn is_unique(&self) -> bool {
        self.names().len() == self.objects.len()
    }

    /// Returns the text with a mistake in its last object, which makes only that one unreadable.
    pub(super) fn mistaken(&self, path: &str) -> String {
        let text = self.text(path);
        if format(path) == "json" {
            let at = text.rfind(r#""metadata":{"#).unwrap() + r#""metadata":{"#.len();
            return format!("{}\"labels\":{{\"on\":true}},{}", &text[..at], &text[at..]);
        }
        let at = text.rfind("metadata:\n").unwrap() + "metadata:\n".len();
        let indent = text[at..].len() - text[at..].trim_start().len();
        format!("{}{}labels: {{on: yes}}\n{}", &text[..at], " ".repeat(indent), &text[at..])
    }

    /// Returns the file's text, in the format of its extension.
    pub(super) fn text(&self, path: &str) -> String {
        let objects = self.objects.iter().map(|(_, body)| body.as_str());
        match (format(path), self.is_list) {
            ("json", false) => objects.collect::<Vec<_>>().join("\n"),
            ("json", true) => {
                let items = objects.collect::<Vec<_>>().join(",");
                format!("{{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[{items}]}}\n")
            }
            (_, false) => objects.map(|body| yaml(body, "")).collect::<Vec<_>>().join("---\n"),
            (_, true) => {
                let items: String = objects.map(|body| yaml(body, "  ").replacen("  ", "- ", 1)).collect();
                format!("apiVersion: v1\nkind: List\nitems:\n{items}")
            }
        }
    }
}

/// Returns the format of a file, from its extension.
pub(super) fn format(path: &str) -> &str {
    if path.ends_with("json") { "json" } else { "yaml" }
}

/// Returns an object's body, with sorted keys and without blanks: the same for every format.
pub(super) fn object(name: &str, value: u64) -> String {
    format!(r#"{{"kind":"Pod","metadata":{{"name":"{name}"}},"note":"n{value}","value":{value}}}"#)
}

/// Returns the same object in YAML.
fn yaml(body: &str, indent: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(body).unwrap();
    let (name, note) = (value["metadata"]["name"].as_str().unwrap(), value["note"].as_str().unwrap());
    format!(
        "{indent}kind: Pod\n{indent}metadata:\n{indent}  name: {name}\n{indent}note: {note}\n{indent}value: {}\n",
        value["value"]
    )
}
