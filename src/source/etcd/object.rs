//! Conversion of etcd's keys and values to objects.
//!
//! The rest of a key after the prefix is split at its first slash into namespace and name; without a slash there is no
//! namespace. The uid is the create revision and the rest of the key (`5/shop/web`): a key that was deleted and put again is another
//! object, and so are the keys that one transaction creates. The version is the revision of the last change. The labels, kind and API version are those of a JSON value; any other value is bytes.
//!
//! A key or value that cannot be an object is left out, and reported as a problem as long as it exists: a key without a name,
//! not in UTF-8, with a NUL or with an empty namespace, and a value above the size limit for clients.

use super::pb::KeyValue;
use crate::{
    cache::{Problem, ProblemReason},
    model::{Object, ObjectKey, ObjectParts, ParsedBody, ResourceVersion},
    source::{problems::subject_of, text::escaped},
};

/// Prefix of the keys of a resource.
#[derive(Debug, Clone)]
pub(super) struct Prefix(Vec<u8>);

// === impl Prefix ===

impl Prefix {
    pub(super) fn new(prefix: &str) -> Self {
        Self(prefix.as_bytes().to_vec())
    }

    /// Returns the start of the range: the smallest possible key if the prefix is empty.
    pub(super) fn first(&self) -> Vec<u8> {
        if self.0.is_empty() { vec![0] } else { self.0.clone() }
    }

    /// Returns the end of the range; in etcd a single NUL means the end of all keys.
    pub(super) fn end(&self) -> Vec<u8> {
        let mut end = self.0.clone();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                return end;
            }
        }
        vec![0]
    }

    /// Returns true for a key of the range.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        key.starts_with(&self.0)
    }

    /// Converts a key and a value to an object, or returns the problem.
    pub(super) fn object(&self, kv: &KeyValue) -> Result<Object, Problem> {
        self.object_of(kv, ParsedBody::new(&kv.value))
    }

    /// Does the same with the parsed value.
    pub(super) fn object_of(&self, kv: &KeyValue, parsed: ParsedBody) -> Result<Object, Problem> {
        let KeyValue { key: bytes, create_revision, mod_revision, value, .. } = kv;
        let problem = |reason, message| Problem::new(reason, self.subject(bytes), message);
        let key = self.key(bytes).map_err(|message| problem(ProblemReason::ObjectInvalid, message))?;
        let uid = uid(*create_revision, &key);
        let object = parsed.object(key, &uid, value, version(*mod_revision));
        object.checked().map_err(|error| problem(ProblemReason::ObjectTooLarge, error.to_string()))
    }

    /// Makes an object of a key, a uid and a version alone, for one that was deleted or cannot be served. A deletion has no
    /// create revision, and so no uid. `None` if the key cannot be that of an object.
    pub(super) fn bare(&self, kv: &KeyValue) -> Option<Object> {
        let key = self.key(&kv.key).ok()?;
        let uid = if kv.create_revision == 0 { String::new() } else { uid(kv.create_revision, &key) };
        let parts = ObjectParts::bare(key, version(kv.mod_revision));
        Some(Object::new(ObjectParts { uid, ..parts }))
    }

    /// Returns the subject of a problem with a key: the object's key, or the escaped etcd key if it is not valid as one.
    pub(super) fn subject(&self, key: &[u8]) -> String {
        match self.key(key) {
            Ok(key) => subject_of(&key),
            Err(_) => escaped(&String::from_utf8_lossy(key)).into_owned(),
        }
    }

    fn key(&self, key: &[u8]) -> Result<ObjectKey, String> {
        let rest = key.strip_prefix(&*self.0).ok_or("the key does not begin with the prefix")?;
        let rest = std::str::from_utf8(rest).map_err(|_| "the key is not UTF-8")?;
        let (namespace, name) = match rest.split_once('/') {
            Some(("", _)) => return Err("the key has a slash after the prefix; end the prefix with a slash".to_owned()),
            Some(parts) => parts,
            None => ("", rest),
        };
        ObjectKey::new(namespace, name).map_err(|error| error.to_string())
    }
}

fn uid(create_revision: i64, key: &ObjectKey) -> String {
    format!("{create_revision}/{key}")
}

/// Converts a revision to a version.
pub(super) fn version(revision: i64) -> ResourceVersion {
    // etcd's revisions begin at 1.
    ResourceVersion::decimal(u128::try_from(revision).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MAX_OBJECT_BYTES;

    const JSON: &str = "application/json";
    const BYTES: &str = "application/octet-stream";

    fn kv(key: &str, value: &str) -> KeyValue {
        let (key, value) = (key.as_bytes().to_vec(), value.to_owned().into());
        KeyValue { key, value, create_revision: 5, mod_revision: 7, version: 2 }
    }

    #[test]
    fn a_range_has_exactly_the_keys_with_the_prefix() {
        let range = |prefix: &str| (Prefix::new(prefix).first(), Prefix::new(prefix).end());
        assert_eq!(range("/a/"), (b"/a/".to_vec(), b"/a0".to_vec()));
        assert_eq!(range(""), (vec![0], vec![0]));
        assert_eq!(Prefix(vec![b'a', 0xff, 0xff]).end(), b"b");
        assert_eq!(Prefix(vec![0xff]).end(), vec![0]);
    }

    #[test]
    fn a_key_is_split_at_its_first_slash() {
        let prefix = Prefix::new("/settings/");
        for (key, namespace, name) in [("web", "", "web"), ("shop/web", "shop", "web"), ("shop/a/b", "shop", "a/b")] {
            let object = prefix.object(&kv(&format!("/settings/{key}"), "1")).unwrap();
            assert_eq!((object.key().namespace(), object.key().name()), (namespace, name));
            let uid = format!("5/{key}");
            assert_eq!((object.uid(), object.version().to_string().as_str()), (&*uid, "7"));
            let put = kv(&format!("/settings/{key}"), "");
            let bare = prefix.bare(&put).unwrap();
            assert_eq!((bare.key(), bare.uid(), bare.version().number()), (object.key(), &*uid, 7));
            let bare = prefix.bare(&KeyValue { create_revision: 0, mod_revision: 9, ..put }).unwrap();
            assert_eq!((bare.key(), bare.uid(), bare.version().number()), (object.key(), "", 9));
        }
    }

    #[test]
    fn invalid_keys_are_rejected_with_the_reason() {
        let problem = |prefix: &str, key: &str| Prefix::new(prefix).object(&kv(key, "1")).unwrap_err().message;
        assert_eq!(problem("/a", "/a/b"), "the key has a slash after the prefix; end the prefix with a slash");
        assert_eq!(problem("/a/", "/a/"), "the name is empty");
        assert_eq!(problem("/a/", "/a/ns/"), "the name is empty");
        assert!(problem("/a/", "/a/b\0c").contains("NUL"));
        let key = KeyValue { key: b"/a/\xff".to_vec(), ..KeyValue::default() };
        let problem = Prefix::new("/a/").object(&key).unwrap_err();
        assert_eq!(problem.reason, ProblemReason::ObjectInvalid);
        assert_eq!(problem.to_string(), "/a/\u{fffd}: the key is not UTF-8", "the whole key");
        let large = "x".repeat(MAX_OBJECT_BYTES + 1);
        let problem = Prefix::new("/a/").object(&kv("/a/n/b", &large)).unwrap_err();
        assert_eq!(problem.reason, ProblemReason::ObjectTooLarge);
        assert!(problem.to_string().starts_with("n/b: object too large: 3145729 bytes ("), "{problem}");
    }

    #[test]
    fn a_value_is_json_with_or_without_an_envelope_or_bytes() {
        let object = |value: &str| Prefix::new("").object(&kv("shop/web", value)).unwrap();
        let text = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","namespace":"y","uid":"u","labels":{"app":"web"}}}"#;
        let manifest = object(text);
        assert_eq!((manifest.api_version(), manifest.kind()), ("v1", "Pod"));
        assert_eq!(manifest.labels().get("app"), Some("web"));
        assert_eq!(
            (manifest.key().to_string(), manifest.uid()),
            ("shop/web".to_owned(), "5/shop/web"),
            "the key is etcd's"
        );
        let escaped = object(r#"{"kind":"w\u0065b","metadata":{"labels":{"app":"w\u0065b"}}}"#);
        assert_eq!((escaped.labels().get("app"), escaped.kind(), escaped.uid()), (Some("web"), "web", "5/shop/web"));
        for json in ["{\"a\":1}", "[1]", "5", "\"x\"", "null", r#"{"kind":5}"#, r#"{"metadata":{"labels":{"a":1}}}"#] {
            assert_eq!(object(json).media_type(), JSON, "{json}");
            assert_eq!(object(json).body(), json.as_bytes());
        }
        for bytes in ["", "hello", "{", "\u{1}"] {
            assert_eq!(object(bytes).media_type(), BYTES, "{bytes}");
        }
        for value in
            [&b"{\"a\":\"\xff\xfe\"}"[..], b"\"\xff\"", b"{\"metadata\":{\"labels\":{\"a\":\"b\"}},\"x\":\"\xc3\x28\"}"]
        {
            let object = Prefix::new("").object(&KeyValue { value: value.into(), ..kv("a", "") }).unwrap();
            assert_eq!((object.media_type(), object.labels().get("a")), (BYTES, None), "{}", value.escape_ascii());
        }
    }
}
