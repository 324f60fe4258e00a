//! Binary record of a whole object, which a later run reads without parsing the body.
//!
//! ```text
//!   namespace, name, lineage (or nothing), number: u128, media type, size of the body: u32, text,
//!   uid, API version and kind: spans of the text, labels: u32, and two spans each
//! ```
//!
//! Numbers are little-endian, a span is two `u32`, anything else has its length before it, as a `u32`.

use crate::model::{Envelope, Lineage, Object, ObjectKey, ResourceVersion};

/// Media types that a record may have; an object refers to one of them.
const MEDIA_TYPES: [&str; 2] = ["application/json", "application/octet-stream"];

/// Unread rest of a record.
struct Fields<'a>(&'a [u8]);

/// Appends an object to a buffer. Returns `false` and appends nothing if the object could not be read again, because this
/// version does not support its media type.
pub(super) fn write(object: &Object, out: &mut Vec<u8>) -> bool {
    if !MEDIA_TYPES.contains(&object.media_type()) {
        return false;
    }
    let text = object.text();
    put(out, object.key().namespace().as_bytes());
    put(out, object.key().name().as_bytes());
    put(out, object.version().lineage().map_or("", Lineage::as_str).as_bytes());
    out.extend_from_slice(&object.version().number().to_le_bytes());
    put(out, object.media_type().as_bytes());
    put_number(out, object.body().len());
    put(out, text);
    for string in [object.uid(), object.api_version(), object.kind()] {
        put_span(out, text, string);
    }
    put_number(out, object.labels().iter().len());
    for (key, value) in object.labels().iter() {
        put_span(out, text, key);
        put_span(out, text, value);
    }
    true
}

/// Reads an object from its record; the lineage of its version is shared with `like`. Returns `None` if the bytes are no
/// record.
pub(super) fn read(record: &[u8], like: &ResourceVersion) -> Option<Object> {
    let mut fields = Fields(record);
    let key = ObjectKey::new(fields.text()?, fields.text()?).ok()?;
    let (lineage, number) = (fields.text()?, u128::from_le_bytes(*fields.array()?));
    let version = match like.lineage().filter(|shared| shared.as_str() == lineage) {
        Some(shared) => ResourceVersion::of_lineage(shared.clone(), number),
        None if lineage.is_empty() => ResourceVersion::decimal(number),
        None => ResourceVersion::of_lineage(Lineage::parse(lineage)?, number),
    };
    let media_type = fields.text()?;
    let media_type = MEDIA_TYPES.into_iter().find(|known| *known == media_type)?;
    let (body_len, text) = (fields.number()?, fields.bytes()?);
    let [uid, api_version, kind] = [fields.span(text)?, fields.span(text)?, fields.span(text)?].map(Into::into);
    let labels = fields.number()?;
    let labels: Vec<_> =
        (0..labels).map(|_| Some((fields.span(text)?.into(), fields.span(text)?.into()))).collect::<Option<_>>()?;
    let is_sorted = labels.is_sorted_by(|(a, _), (b, _)| a < b);
    let is_whole = fields.0.is_empty() && body_len <= text.len();
    let envelope = Envelope { api_version, kind, uid, labels, ..Envelope::default() };
    // An earlier program may have served what is too large for this one: the source then reports it.
    let object = || Object::from_text(key, version, media_type, text, body_len, &envelope).checked().ok();
    (is_whole && is_sorted).then(object).flatten()
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends a number; all are far below 4 GiB.
fn put_number(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

/// Appends the position of a string that is in the text, or is empty.
fn put_span(out: &mut Vec<u8>, text: &[u8], string: &str) {
    let at = if string.is_empty() { 0 } else { string.as_ptr().addr() - text.as_ptr().addr() };
    put_number(out, at);
    put_number(out, string.len());
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(array)
    }

    fn number(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(*self.array()?)).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.bytes()?).ok()
    }

    /// Reads the span of a string in a text.
    fn span<'t>(&mut self, text: &'t [u8]) -> Option<&'t str> {
        let (at, len) = (self.number()?, self.number()?);
        str::from_utf8(text.get(at..at.checked_add(len)?)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn record(object: &Object) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(write(object, &mut out));
        out
    }

    /// Files of earlier versions are read as long as the format has the same number.
    #[test]
    fn a_record_has_the_bytes_that_earlier_versions_wrote() {
        let body = r#"{"kind":"Pod","metadata":{"namespace":"n","name":"a","uid":"u","labels":{"k":"\u0076"}}}"#;
        let object = Object::from_json(body, "", "abc.7".parse().unwrap()).unwrap().with_type("v1", "Pod");
        let mut expected = b"\x01\0\0\0n\x01\0\0\0a\x03\0\0\0abc\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        expected.extend_from_slice(b"\x10\0\0\0application/json");
        // The body, and what is not in it: the value without its escape, and the type.
        let text = format!("{body}vv1Pod");
        assert_eq!((body.len(), text.len()), (88, 94));
        expected.extend_from_slice(b"\x58\0\0\0\x5e\0\0\0");
        expected.extend_from_slice(text.as_bytes());
        for number in [60_u32, 1, 89, 2, 91, 3, 1, 74, 1, 88, 1] {
            expected.extend(number.to_le_bytes());
        }
        assert_eq!(record(&object), expected);
        assert_eq!(read(&expected, object.version()), Some(object));
    }

    #[test]
    fn a_written_record_is_read_back_whole() {
        let decimal = ResourceVersion::decimal(7);
        let of_lineage: ResourceVersion = "abc.340282366920938463463374607431768211455".parse().unwrap();
        let text = r#"{"kind":"Pod","metadata":{"name":"w\u0065b","namespace":"shop","uid":"u","labels":{"a":"x\ty","b":""}}}"#;
        for version in [&decimal, &of_lineage] {
            for body in [text, "5", "{}"] {
                let object = Object::from_json(body, "named", version.clone()).unwrap().with_type("v1", "Other");
                for like in [&decimal, &of_lineage] {
                    assert_eq!(read(&record(&object), like), Some(object.clone()));
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_object_are_none() {
        let object = Object::from_json("{\"kind\":\"Pod\"}", "a", ResourceVersion::decimal(1)).unwrap();
        let record = record(&object);
        for len in 0..record.len() {
            assert_eq!(read(&record[..len], object.version()), None, "{len}");
        }
        assert_eq!(read(&[&record[..], b"x"].concat(), object.version()), None, "too long");
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        /// No bytes cause a panic, neither at reading nor when the object is used.
        #[test]
        fn any_bytes_are_an_object_or_none(at in any::<prop::sample::Index>(), bytes in vec(any::<u8>(), 1..5)) {
            let text = r#"{"kind":"Pod","metadata":{"name":"a","uid":"u","labels":{"k":"v"}}}"#;
            let object = Object::from_json(text, "a", ResourceVersion::decimal(1)).unwrap();
            let mut record = record(&object);
            let at = at.index(record.len());
            let end = (at + bytes.len()).min(record.len());
            record.splice(at..end, bytes);
            if let Some(read) = read(&record, object.version()) {
                let shown = format!("{read:?} {:?}", read.labels().get("k"));
                prop_assert!(!shown.is_empty());
            }
        }
    }
}
