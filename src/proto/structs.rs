//! Cache of bodies in the STRUCT format, converted once for all clients that receive them.
//!
//! The conversion parses and rebuilds a body, which takes about fifteen times as long as encoding it: for a thousand clients that
//! begin to watch together with STRUCT, the default, each object would be converted a thousand times. The writer encodes
//! published events once; this cache serves data that is encoded for one client at a time: initial events, lists, lookups and
//! missed events. The other formats are plain copies, which a cache would not make cheaper.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use prost::Message;

use super::{
    json,
    object_cache::{ObjectCache, Weighed},
};
use crate::model::Object;

/// Cache of the most recent bodies, with a size limit.
#[derive(Debug)]
pub struct Structs(ObjectCache<usize, CachedStruct>);

/// Body of the object at its key, and of no other: the weak reference prevents the reuse of the address.
#[derive(Clone)]
struct CachedStruct {
    _object: Weak<Object>,
    /// The encoded `Struct`; none if the body is sent raw.
    encoded: Option<Bytes>,
}

// === impl Structs ===

impl Structs {
    /// Creates a cache of at most `max_bytes`. An entry holds the memory of its `Object` even after that was deleted.
    pub fn new(max_bytes: usize) -> Self {
        Self(ObjectCache::new(max_bytes))
    }

    /// Empties the cache if its memory is needed, or if nobody has read it for a minute. To be called each second.
    pub fn trim(&self, is_needed: bool) {
        self.0.trim(is_needed);
    }

    /// Returns the bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Returns the body of an object, encoded as a `Struct`; none if it cannot be one.
    pub(super) fn get(&self, object: &Arc<Object>) -> Option<Bytes> {
        self.0.get(&Arc::as_ptr(object).addr(), || CachedStruct::of(object)).encoded
    }
}

// === impl CachedStruct ===

impl CachedStruct {
    fn of(object: &Arc<Object>) -> Self {
        let encoded = json::of(object).map(|fields| fields.encode_to_vec().into());
        Self { _object: Arc::downgrade(object), encoded }
    }
}

impl Weighed for CachedStruct {
    fn bytes(&self) -> usize {
        self.encoded.as_ref().map_or(0, Bytes::len) + size_of::<Object>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ResourceVersion;

    fn object(name: &str, value: &str) -> Arc<Object> {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}},"value":"{value}"}}"#);
        Arc::new(Object::from_json(body, "x", ResourceVersion::decimal(1)).unwrap())
    }

    fn is_same(a: &Bytes, b: &Bytes) -> bool {
        a.as_ptr() == b.as_ptr()
    }

    #[test]
    fn the_struct_of_an_object_is_encoded_once_and_belongs_to_it() {
        let structs = Structs::new(1 << 20);
        let first = object("a", "1");
        let made = structs.get(&first).unwrap();
        assert!(is_same(&made, &structs.get(&first).unwrap()));
        assert_eq!(made, json::of(&first).unwrap().encode_to_vec());
        // Memory is reused, and each body still belongs to the object that it was requested for.
        drop(first);
        for n in 0..1000 {
            let next = object("a", &n.to_string());
            assert_eq!(structs.get(&next).unwrap(), json::of(&next).unwrap().encode_to_vec());
        }
        let list = Arc::new(Object::from_json("[1]", "x", ResourceVersion::decimal(1)).unwrap());
        assert_eq!((structs.get(&list), structs.get(&list)), (None, None));
    }
}
