//! Names of the files of a mirror: a path below its directory for each object, or for each key of an object's data.
//!
//! | object | path |
//! |---|---|
//! | `web` in namespace `shop` | `shop/web.json` |
//! | `node-a`, without a namespace | `node-a.json` |
//! | `system:node` | `system:node.json` |
//! | `a/b` in `shop`, with a body that is not JSON | `shop/a%2Fb.bin` |
//! | `..` in `shop` | `shop/%2E..json` |
//! | a name of 253 letters | its first 250 letters, `+/`, its last 3 letters, `.json` |
//! | key `app.yaml` of `web` in `shop` | `shop/web/app.yaml` |
//! | key `.env` of `web`, without a namespace | `%/web/%2Eenv` |
//!
//! - ASCII letters and digits and `_`, `:`, `-` and `.` stay; every other byte is `%` and two hexadecimal digits. So are `-` and
//!   `.` at the beginning of a part, and `.` in a namespace: no directory has the name of a file.
//! - A text whose encoding is longer than 250 bytes continues in a directory whose name ends with `+`.
//! - An empty text, where it needs a part, is `%`.
//!
//! Every path has one key at most, and every key one path: a path is valid only if it is that of its key. No part begins with
//! `.`, so that none leads out of the directory or has the name of a file that the mirror itself needs.

use std::fmt::Write;

use crate::model::ObjectKey;

/// Files of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One file with the body.
    Objects,
    /// One file for each key of `data` and `binaryData`.
    Keys,
}

/// Extension of a body that is JSON; `serve --files` reads these.
const JSON: &str = ".json";
/// Extension of every other body.
const BYTES: &str = ".bin";
/// End of the name of a directory whose part continues inside.
const CONTINUED: char = '+';
/// Encoding of an empty text.
const EMPTY: &str = "%";
/// Bound of an encoded part: with the longest extension it is within the 255 bytes that file systems allow.
const MAX_PART_BYTES: usize = 250;

// === impl Layout ===

impl Layout {
    /// Returns the key of the object that a path belongs to; `None` for a path that no object has.
    pub fn key_of(self, path: &str) -> Option<ObjectKey> {
        let parts = decode(path)?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (namespace, name, expected) = match (self, &parts[..]) {
            (Self::Objects, [namespace @ .., file]) if namespace.len() <= 1 => {
                let is_json = file.ends_with(JSON);
                let name = file.strip_suffix(if is_json { JSON } else { BYTES })?;
                let namespace = namespace.first().copied().unwrap_or_default();
                let key = ObjectKey::new(namespace, name).ok()?;
                (namespace, name, object_file(&key, is_json))
            }
            (Self::Keys, &[namespace, name, data_key]) => {
                let key = ObjectKey::new(namespace, name).ok()?;
                (namespace, name, data_file(&key, data_key))
            }
            _ => return None,
        };
        // Of several spellings only the one that the mirror writes is valid.
        if expected == path { ObjectKey::new(namespace, name).ok() } else { None }
    }
}

/// Returns the path of the file with an object's body.
pub(super) fn object_file(key: &ObjectKey, is_json: bool) -> String {
    let mut path = String::new();
    if !key.namespace().is_empty() {
        push_namespace(&mut path, key.namespace());
    }
    push(&mut path, key.name(), true);
    path.push_str(if is_json { JSON } else { BYTES });
    path
}

/// Returns the path of the directory with the data of an object.
pub(super) fn data_directory(key: &ObjectKey) -> String {
    let mut path = String::new();
    push_namespace(&mut path, key.namespace());
    push(&mut path, key.name(), true);
    path
}

/// Returns the path of the file with one key of an object's data.
pub(super) fn data_file(key: &ObjectKey, data_key: &str) -> String {
    let mut path = data_directory(key);
    push(&mut path, data_key, true);
    path
}

fn push_namespace(path: &mut String, namespace: &str) {
    push(path, namespace, false);
}

/// Appends a text to a path, as one part or several. `with_dots` leaves dots as they are.
fn push(path: &mut String, text: &str, with_dots: bool) {
    if !path.is_empty() {
        path.push('/');
    }
    if text.is_empty() {
        path.push_str(EMPTY);
    }
    let mut start = path.len();
    let is_plain = |byte: u8, is_first: bool| match byte {
        b'-' => !is_first,
        b'.' => !is_first && with_dots,
        _ => byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':',
    };
    for byte in text.bytes() {
        let width = if is_plain(byte, path.len() == start) { 1 } else { 3 };
        if path.len() - start + width > MAX_PART_BYTES {
            path.push(CONTINUED);
            path.push('/');
            start = path.len();
        }
        if is_plain(byte, path.len() == start) {
            path.push(char::from(byte));
        } else {
            write!(path, "%{byte:02X}").expect("a string takes everything");
        }
    }
}

/// Returns the texts of a path. Other paths than those of [`push`] have texts too.
fn decode(path: &str) -> Option<Vec<String>> {
    let (mut texts, mut text, mut is_complete) = (Vec::new(), Vec::new(), false);
    for part in path.split('/') {
        let piece = part.strip_suffix(CONTINUED);
        is_complete = piece.is_none();
        unescape(piece.unwrap_or(part), &mut text)?;
        if is_complete {
            texts.push(String::from_utf8(std::mem::take(&mut text)).ok()?);
        }
    }
    is_complete.then_some(texts)
}

fn unescape(piece: &str, text: &mut Vec<u8>) -> Option<()> {
    let mut rest = piece.as_bytes();
    if piece == EMPTY {
        return Some(());
    }
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            text.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            text.push(*byte);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(namespace, name).unwrap()
    }

    /// Texts that file systems, shells or this encoding could take for something else.
    fn text() -> impl Strategy<Value = String> {
        let hostile = [
            "",
            ".",
            "..",
            "../..",
            "/",
            "//",
            "a/b",
            "%",
            "%2F",
            "%2f",
            "%%",
            "+",
            "a+",
            "+/",
            "-",
            "-rf",
            "a.json",
            ".json",
            "json",
            "a.bin",
            "A",
            "a",
            "é",
            "e\u{301}",
            "a b",
            "a\nb",
            "\\",
            "C:",
            "lost+found",
            ".informerd-mirror",
        ];
        let hostile = prop::sample::select(hostile.map(str::to_owned).to_vec());
        let long = ("[a-zA-Z.%+é/-]{1,4}", 1_usize..400).prop_map(|(part, count)| part.repeat(count));
        prop_oneof![hostile, "[a-c.+%/:-]{0,6}", "[^\0]{0,12}", long]
    }

    fn keys() -> impl Strategy<Value = ObjectKey> {
        (text(), text()).prop_filter_map("a name", |(namespace, name)| ObjectKey::new(&namespace, &name).ok())
    }

    /// Checks that a path is one below the directory that every file system takes.
    fn check(path: &str) {
        for part in path.split('/') {
            assert!(
                !part.is_empty() && !part.starts_with('.') && !part.starts_with('-') && part.len() <= 255,
                "{path}"
            );
            assert!(part.is_ascii() && !part.contains('\0'), "{path}");
        }
    }

    /// Returns the directories that a path needs.
    fn directories(path: &str) -> impl Iterator<Item = &str> {
        path.match_indices('/').map(|(at, _)| &path[..at])
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn every_key_has_one_path_and_every_path_one_key(objects in prop::collection::vec((keys(), any::<bool>(), text()), 2..20)) {
            for layout in [Layout::Objects, Layout::Keys] {
                let mut seen = BTreeMap::new();
                for (key, is_json, data_key) in &objects {
                    let (path, of) = match layout {
                        Layout::Objects => (object_file(key, *is_json), (key.clone(), is_json.to_string())),
                        Layout::Keys => (data_file(key, data_key), (key.clone(), data_key.clone())),
                    };
                    check(&path);
                    prop_assert_eq!(layout.key_of(&path), Some(key.clone()), "{}", path);
                    if let Some(other) = seen.insert(path.clone(), of.clone()) {
                        prop_assert_eq!(other, of, "{}", path);
                    }
                }
                for directory in seen.keys().flat_map(|path| directories(path)) {
                    prop_assert!(!seen.contains_key(directory), "{} is a file and a directory", directory);
                }
            }
        }

        #[test]
        fn a_path_of_a_key_is_the_path_of_that_key_only(path in "[aA.+%2Fj/:-]{0,12}(\\.json|\\.bin|)") {
            if let Some(key) = Layout::Objects.key_of(&path) {
                check(&path);
                prop_assert!([true, false].map(|is_json| object_file(&key, is_json)).contains(&path));
            }
            if let Some(key) = Layout::Keys.key_of(&path) {
                check(&path);
                prop_assert!(path.starts_with(&data_directory(&key)));
            }
        }
    }

    #[test]
    fn ordinary_names_are_readable() {
        let file = |namespace, name| object_file(&key(namespace, name), true);
        assert_eq!(file("shop", "web-1.v2"), "shop/web-1.v2.json");
        assert_eq!(file("", "node-a"), "node-a.json");
        assert_eq!(file("", "system:node"), "system:node.json");
        assert_eq!(object_file(&key("shop", "a/b"), false), "shop/a%2Fb.bin");
        assert_eq!(file("shop", ".."), "shop/%2E..json");
        assert_eq!(file("..", "-x"), "%2E%2E/%2Dx.json");
        assert_ne!(file("shop", "Web"), file("shop", "web"));
        assert_eq!(data_file(&key("shop", "web"), "app.yaml"), "shop/web/app.yaml");
        assert_eq!(data_file(&key("", "web"), ".env"), "%/web/%2Eenv");
    }

    #[test]
    fn a_long_name_continues_in_a_directory() {
        let name = "n".repeat(253);
        let path = object_file(&key("shop", &name), true);
        assert_eq!(path, format!("shop/{}+/nnn.json", &name[..250]));
        assert_eq!(object_file(&key("shop", &name[..250]), true), format!("shop/{}.json", &name[..250]));
        assert_eq!(Layout::Objects.key_of(&path), Some(key("shop", &name)));
        let dots = object_file(&key("", &".".repeat(600)), true);
        check(&dots);
        assert_eq!(Layout::Objects.key_of(&dots).unwrap().name().len(), 600);
    }

    #[test]
    fn other_paths_have_no_key() {
        for path in [
            "",
            "/",
            "a",
            "a.yaml",
            "a.json/",
            "/a.json",
            "a/b/c.json",
            ".json",
            "a/.json",
            ".a.json",
            "..",
            "../a.json",
            "a%2f.json",
            "%61.json",
            "a%2.json",
            "a%.json",
            "%FF.json",
            "a.b/c.json",
            "a+/b.json",
            "a+",
            "é.json",
            "%/a.json",
            "%00.json",
            "lost+found",
            ".informerd-mirror",
            ".informerd-mirror.tmp",
        ] {
            assert_eq!(Layout::Objects.key_of(path), None, "{path}");
        }
        for path in ["a/b", "a/b/", "a/b/c/d", "a/%/c", "a/b/.c", "a/b/..data", "a/b+/c", "a/b/%63"] {
            assert_eq!(Layout::Keys.key_of(path), None, "{path}");
        }
        assert_eq!(Layout::Keys.key_of("a/b/c.json"), Some(key("a", "b")));
    }
}
