//! Binary record of a whole object, which a later run reads without parsing the body.
//!
//! ```text
//!   namespace, name, lineage (or nothing), number: u128, media type, size of the body: u32, text,
//!   uid, API version and kind: spans of the text, labels: u32, and two spans each
//! ```
//!
//! Numbers are little-endian, a span is two `u32`, anything else has its length before it, as a `u32`.

use super::{Lineage, Object, ObjectKey, ResourceVersion, Span};

/// Media types that a record may have; an object refers to one of them.
const MEDIA_TYPES: [&str; 2] = [super::JSON, super::BYTES];

/// Unread rest of a record.
struct Fields<'a>(&'a [u8]);

// === impl Object ===

impl Object {
    /// Appends the object to a buffer. Returns `false` and appends nothing if the object could not be read again, because
    /// this version does not support its media type.
    pub fn write_record(&self, out: &mut Vec<u8>) -> bool {
        if !MEDIA_TYPES.contains(&self.media_type) {
            return false;
        }
        put(out, self.key.namespace().as_bytes());
        put(out, self.key.name().as_bytes());
        put(out, self.version.lineage().map_or("", Lineage::as_str).as_bytes());
        out.extend_from_slice(&self.version.number().to_le_bytes());
        put(out, self.media_type.as_bytes());
        put_number(out, self.body_len);
        put(out, &self.text);
        for span in [self.uid, self.api_version, self.kind] {
            put_span(out, span);
        }
        put_number(out, self.labels.len());
        for (key, value) in &self.labels {
            put_span(out, *key);
            put_span(out, *value);
        }
        true
    }

    /// Reads an object from its record; the lineage of its version is shared with `like`. Returns `None` if the bytes are
    /// no record.
    pub fn read_record(record: &[u8], like: &ResourceVersion) -> Option<Self> {
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
        let (uid, api_version, kind) = (fields.span(text)?, fields.span(text)?, fields.span(text)?);
        let labels = fields.number()?;
        let labels: Box<[_]> =
            (0..labels).map(|_| Some((fields.span(text)?, fields.span(text)?))).collect::<Option<_>>()?;
        let is_sorted = labels.is_sorted_by(|(a, _), (b, _)| a.of(text) < b.of(text));
        let is_whole = fields.0.is_empty() && body_len <= text.len();
        (is_whole && is_sorted).then(|| Self {
            key,
            version,
            text: text.into(),
            body_len,
            media_type,
            uid,
            api_version,
            kind,
            labels,
        })
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends a number; all are far below 4 GiB.
fn put_number(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_span(out: &mut Vec<u8>, span: Span) {
    out.extend_from_slice(&span.at.to_le_bytes());
    out.extend_from_slice(&span.len.to_le_bytes());
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
    fn span(&mut self, text: &[u8]) -> Option<Span> {
        let span = Span { at: u32::from_le_bytes(*self.array()?), len: u32::from_le_bytes(*self.array()?) };
        let at = span.at as usize;
        str::from_utf8(text.get(at..at.checked_add(span.len as usize)?)?).ok().map(|_| span)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn record(object: &Object) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(object.write_record(&mut out));
        out
    }

    #[test]
    fn what_was_written_is_read_again_whole() {
        let decimal = ResourceVersion::decimal(7);
        let of_lineage: ResourceVersion = "abc.340282366920938463463374607431768211455".parse().unwrap();
        let text = r#"{"kind":"Pod","metadata":{"name":"w\u0065b","namespace":"shop","uid":"u","labels":{"a":"x\ty","b":""}}}"#;
        for version in [&decimal, &of_lineage] {
            for body in [text, "5", "{}"] {
                let object = Object::from_json(body, "named", version.clone()).unwrap().with_type("v1", "Other");
                for like in [&decimal, &of_lineage] {
                    assert_eq!(Object::read_record(&record(&object), like), Some(object.clone()));
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_object_are_none() {
        let object = Object::from_json("{\"kind\":\"Pod\"}", "a", ResourceVersion::decimal(1)).unwrap();
        let record = record(&object);
        for len in 0..record.len() {
            assert_eq!(Object::read_record(&record[..len], object.version()), None, "{len}");
        }
        assert_eq!(Object::read_record(&[&record[..], b"x"].concat(), object.version()), None, "too long");
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
            if let Some(read) = Object::read_record(&record, object.version()) {
                let shown = format!("{read:?} {:?}", read.labels().get("k"));
                prop_assert!(!shown.is_empty());
            }
        }
    }
}
