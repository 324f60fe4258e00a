//! Body of an object as a CEL value, made once for all expressions that evaluate it in a row.

use std::{cell::RefCell, collections::VecDeque, fmt, sync::Arc};

use bytes::Bytes;
use cel::common::{
    types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt},
    value::Val,
};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Body as a value; `None` if it is not JSON, or is nested more than 127 deep.
pub(super) type Body = Option<Arc<dyn Val>>;

/// Bodies that this thread has parsed last. Their addresses identify them, which cannot be reused while the cache holds the
/// bodies.
#[derive(Default)]
struct Recent {
    bodies: VecDeque<(Bytes, Body)>,
    bytes: usize,
    /// Number of the last bodies that are kept, however large they are.
    least: usize,
}

/// Guard that ends the sharing of large bodies, also after a panic.
struct Sharing;

/// Reader of any JSON value.
struct Json;

/// Maximum number of bodies: the states before and after the changes of one publish cycle.
const MAX_BODIES: usize = 128;
/// Maximum bytes of the texts; the values are several times as large.
const MAX_BYTES: usize = 256 << 10;

thread_local! {
    static RECENT: RefCell<Recent> = RefCell::default();
}

/// Returns the value of a body.
pub(super) fn value(body: &Bytes) -> Body {
    RECENT.with_borrow_mut(|recent| recent.value(body))
}

/// Does some work, during which the last two bodies are kept, however large they are.
pub(super) fn sharing<T>(work: impl FnOnce() -> T) -> T {
    RECENT.with_borrow_mut(|recent| recent.least = 2);
    let _guard = Sharing;
    work()
}

#[cfg(test)]
thread_local! {
    /// Number of parsed bodies.
    static PARSED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns the number of bodies that were parsed on this thread.
#[cfg(test)]
pub(super) fn parsed() -> u64 {
    PARSED.get()
}

// === impl Recent ===

impl Recent {
    fn value(&mut self, body: &Bytes) -> Body {
        let is_it = |held: &Bytes| held.as_ptr() == body.as_ptr() && held.len() == body.len();
        if let Some((_, value)) = self.bodies.iter().rev().find(|(held, _)| is_it(held)) {
            return value.clone();
        }
        let value = parse(body);
        if body.len() <= MAX_BYTES || self.least > 0 {
            self.bytes += body.len();
            self.bodies.push_back((body.clone(), value.clone()));
            self.trim();
        }
        value
    }

    /// Drops the oldest bodies beyond the bounds.
    fn trim(&mut self) {
        while self.bodies.len() > self.least && (self.bytes > MAX_BYTES || self.bodies.len() > MAX_BODIES) {
            let Some((oldest, _)) = self.bodies.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }
}

// === impl Sharing ===

impl Drop for Sharing {
    fn drop(&mut self) {
        RECENT.with_borrow_mut(|recent| {
            recent.least = 0;
            recent.trim();
        });
    }
}

fn parse(body: &[u8]) -> Body {
    #[cfg(test)]
    PARSED.set(PARSED.get() + 1);
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = Json.deserialize(&mut json).ok()?;
    json.end().ok()?;
    Some(value.into())
}

// === impl Json ===

impl<'de> DeserializeSeed<'de> for Json {
    type Value = Box<dyn Val>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Box<dyn Val>, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Json {
    type Value = Box<dyn Val>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Box<dyn Val>, E> {
        Ok(Box::new(CelNull))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Box<dyn Val>, E> {
        Ok(Box::new(CelBool::from(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Box<dyn Val>, E> {
        Ok(Box::new(CelInt::from(value)))
    }

    /// Returns an int if it fits, so that arithmetic with literals works; a uint above.
    fn visit_u64<E>(self, value: u64) -> Result<Box<dyn Val>, E> {
        Ok(match i64::try_from(value) {
            Ok(value) => Box::new(CelInt::from(value)),
            Err(_) => Box::new(CelUInt::from(value)),
        })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Box<dyn Val>, E> {
        Ok(Box::new(CelDouble::from(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Box<dyn Val>, E> {
        Ok(Box::new(CelString::from(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Box<dyn Val>, E> {
        Ok(Box::new(CelString::from(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Box<dyn Val>, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element_seed(Json)? {
            list.push(element);
        }
        Ok(Box::new(CelList::from(list)))
    }

    /// Keeps the last value of a repeated key, as paths do.
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Box<dyn Val>, A::Error> {
        let mut map = std::collections::HashMap::new();
        while let Some(key) = entries.next_key::<String>()? {
            map.insert(CelMapKey::from(key), entries.next_value_seed(Json)?);
        }
        Ok(Box::new(CelMap::from(map)))
    }
}
