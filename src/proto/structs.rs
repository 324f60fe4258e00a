//! Cache of bodies in the STRUCT format, converted once for all clients that receive them.
//!
//! The conversion parses and rebuilds a body, which takes about fifteen times as long as encoding it: for a thousand clients that
//! begin to watch together with STRUCT, the default, each object would be converted a thousand times. The writer encodes
//! published events once; this cache serves data that is encoded for one client at a time: initial events, lists, lookups and
//! missed events. The other formats are plain copies, which a cache would not make cheaper.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use prost::Message;
use quick_cache::{Weighter, sync::Cache};

use super::json;
use crate::model::Object;

/// Cache of the most recent bodies, with a size limit.
pub struct Structs {
    by_address: Cache<usize, CachedStruct, Weight>,
    /// Number of checks since the last read.
    unread: AtomicU32,
}

/// Body of the object at its key, and of no other: the weak reference prevents the reuse of the address.
#[derive(Clone)]
struct CachedStruct {
    _object: Weak<Object>,
    /// The encoded `Struct`; none if the body is sent raw.
    encoded: Option<Bytes>,
}

#[derive(Clone)]
struct Weight;

/// Estimated size of an entry, for the initial capacity of the cache.
const ESTIMATED_BYTES: usize = 1 << 10;
/// Number of checks without a read after which the cache is emptied; there is one each second.
const MAX_UNREAD: u32 = 60;

// === impl Structs ===

impl Structs {
    /// Creates a cache of at most `max_bytes`. An entry holds the memory of its `Object` even after that was deleted.
    pub fn new(max_bytes: usize) -> Self {
        let weight = max_bytes as u64;
        let by_address = Cache::with_weighter((max_bytes / ESTIMATED_BYTES).max(1), weight, Weight);
        Self { by_address, unread: AtomicU32::new(0) }
    }

    /// Empties the cache if its memory is needed, or if nobody has read it for a minute. To be called each second.
    pub fn trim(&self, is_needed: bool) {
        let unread = self.unread.fetch_add(1, Ordering::Relaxed);
        if is_needed || unread >= MAX_UNREAD {
            self.by_address.clear();
        }
    }

    /// Returns the bytes that it holds.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.by_address.weight()).unwrap_or(usize::MAX)
    }

    /// Returns the body of an object, encoded as a `Struct`; none if it cannot be one.
    pub(super) fn get(&self, object: &Arc<Object>) -> Option<Bytes> {
        self.unread.store(0, Ordering::Relaxed);
        let make = || Ok::<_, std::convert::Infallible>(CachedStruct::of(object));
        match self.by_address.get_or_insert_with(&Arc::as_ptr(object).addr(), make) {
            Ok(body) => body.encoded,
            Err(never) => match never {},
        }
    }
}

impl fmt::Debug for Structs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by_address, .. } = self;
        f.debug_struct("Structs").field("len", &by_address.len()).field("bytes", &by_address.weight()).finish()
    }
}

// === impl CachedStruct ===

impl CachedStruct {
    fn of(object: &Arc<Object>) -> Self {
        let encoded = json::of(object).map(|fields| fields.encode_to_vec().into());
        Self { _object: Arc::downgrade(object), encoded }
    }
}

// === impl Weight ===

impl Weighter<usize, CachedStruct> for Weight {
    fn weight(&self, _: &usize, made: &CachedStruct) -> u64 {
        let entry = size_of::<(usize, CachedStruct)>() + size_of::<Object>();
        (made.encoded.as_ref().map_or(0, Bytes::len) + entry) as u64
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

    #[test]
    fn the_cache_is_bounded() {
        let (structs, bound) = (Structs::new(64 << 10), 64 << 10);
        let objects: Vec<_> = (0..1000).map(|n| object(&n.to_string(), &"x".repeat(500))).collect();
        for object in &objects {
            assert!(structs.get(object).is_some());
            assert!(structs.by_address.weight() <= bound);
        }
        assert!(structs.by_address.weight() > bound / 2);
        let none = Structs::new(0);
        assert!(none.get(&objects[0]).is_some());
        assert_eq!(none.by_address.len(), 0);
    }

    #[test]
    fn the_cache_is_emptied_when_nobody_reads_it_or_its_memory_is_needed() {
        let (structs, object) = (Structs::new(64 << 10), object("a", "b"));
        let first = structs.get(&object).unwrap();
        for _ in 0..2 {
            (0..MAX_UNREAD).for_each(|_| structs.trim(false));
            assert!(is_same(&first, &structs.get(&object).unwrap()), "it was read meanwhile");
        }
        (0..=MAX_UNREAD).for_each(|_| structs.trim(false));
        assert_eq!(structs.bytes(), 0);
        assert!(structs.get(&object).is_some() && structs.bytes() > 0);
        structs.trim(true);
        assert_eq!(structs.bytes(), 0);
    }
}
