//! Lines of the keys in a configuration file, for errors about their values.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

use super::{error::join, file};

/// Value of a key, as far as it has keys of its own.
enum Node {
    Map(Vec<(Spanned<String>, Node)>),
    Other,
}

/// Returns the line of each key, by its path; nothing for a file that does not parse.
pub(super) fn lines(bytes: &[u8]) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = BTreeMap::new();
    if let Ok(root) = serde_saphyr::from_str_with_options(text.trim_start_matches('\u{feff}'), file::options()) {
        add(&root, &mut Vec::new(), &mut lines);
    }
    lines
}

fn add(node: &Node, path: &mut Vec<String>, lines: &mut BTreeMap<String, u64>) {
    let Node::Map(keys) = node else { return };
    for (key, node) in keys {
        path.push(key.value.clone());
        lines.insert(join(path), key.referenced.line());
        add(node, path, lines);
        path.pop();
    }
}

// === impl Node ===

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

/// Methods of a visitor for values without keys.
macro_rules! visits_other {
    ($($visit:ident: $value:ty),*) => {
        $(fn $visit<E>(self, _: $value) -> Result<Node, E> {
            Ok(Node::Other)
        })*
    };
}

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut keys = Vec::new();
        while let Some(entry) = map.next_entry()? {
            keys.push(entry);
        }
        Ok(Node::Map(keys))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Node::Other)
    }

    visits_other!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128);
    visits_other!(visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_yaml_and_json_have_lines() {
        let found = |text: &str| {
            lines(text.as_bytes()).into_iter().map(|(key, line)| format!("{key} {line}")).collect::<Vec<_>>()
        };
        let yaml = "# comment\nlisten: 127.0.0.1:1\nresources:\n  pods:\n    source: { files: { path: x } }\n  a.b:\n    indexes:\n    - x: 1\n    on: ~\n";
        let expected = [
            "listen 2",
            "resources 3",
            "resources.\"a.b\" 6",
            "resources.\"a.b\".indexes 7",
            "resources.\"a.b\".on 9",
            "resources.pods 4",
            "resources.pods.source 5",
            "resources.pods.source.files 5",
            "resources.pods.source.files.path 5",
        ];
        assert_eq!(found(yaml), expected);
        assert_eq!(
            found("\u{feff}{\n\"watch\": {\"x\": 1.5,\n \"y\": -2, \"z\": true}}"),
            ["watch 2", "watch.x 2", "watch.y 3", "watch.z 3"]
        );
        assert_eq!((found("a: [").len(), found("").len(), found("text").len()), (0, 0, 0));
    }
}
