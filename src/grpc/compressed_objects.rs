//! Cache of compressed objects: what many clients receive of a snapshot is compressed once.
//!
//! An entry belongs to objects and a form, not to a snapshot or a selection: a change of one object leaves the entries of all
//! others. Each is a whole message, of one or many initial events, or the objects of one message of a List. Its memory counts as
//! held for clients, within a part of their limit; it is dropped when that limit is near, or when nobody has read it for a minute.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Weak},
};

use smallvec::SmallVec;

use super::compression::Compressed;
use crate::{
    model::Object,
    proto::{Compression, ObjectCache, ObjectFormat, Weighed},
};

/// Cache of the compressed objects of all resources.
#[derive(Debug)]
pub(super) struct CompressedObjects {
    entries: ObjectCache<EntryKey, Entry>,
    /// Secret key of the hashes: without it, a client could construct two views with the same.
    hashes: RandomState,
}

/// Part of the cache in one form.
#[derive(Debug, Clone)]
pub(super) struct CompressedForm {
    cache: Arc<CompressedObjects>,
    compression: Compression,
    hash: u64,
}

/// Use of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Use {
    /// The initial event of one object.
    InitialEvent,
    /// Initial events of one message.
    Batch,
    /// Objects of a message of a List.
    List,
}

/// Hashes of the form and of the objects.
type EntryKey = (u64, u64);

#[derive(Debug, Clone)]
struct Entry(Arc<EntryContent>);

#[derive(Debug)]
struct EntryContent {
    /// The weak references prevent the reuse of the addresses.
    objects: SmallVec<[Weak<Object>; 1]>,
    /// None if they are sent as they are.
    compressed: Option<Arc<Compressed>>,
}

// === impl CompressedObjects ===

impl CompressedObjects {
    /// Creates a cache of at most `max_bytes`. An entry holds the memory of its `Object`s even after those were deleted.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { entries: ObjectCache::new(max_bytes), hashes: RandomState::new() }
    }

    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.entries.bytes()
    }

    /// Empties the cache if its memory is needed, or if nobody has read it for a minute. To be called each second.
    pub(super) fn trim(&self, is_needed: bool) {
        self.entries.trim(is_needed);
    }

    /// Returns the part of the cache for a format; `None` if that is not compressed.
    pub(super) fn form(self: &Arc<Self>, format: &ObjectFormat, usage: Use) -> Option<CompressedForm> {
        let hash = self.hashes.hash_one((format, usage));
        format.compression.map(|compression| CompressedForm { cache: Arc::clone(self), compression, hash })
    }
}

// === impl CompressedForm ===

impl CompressedForm {
    /// Returns these objects in this form, which `encode` has the length of and appends. Returns `None` if they are sent as they
    /// are.
    pub(super) fn get<W: FnOnce(&mut Vec<u8>)>(
        &self,
        objects: &[Arc<Object>],
        encode: impl FnOnce() -> (usize, W),
    ) -> Option<Arc<Compressed>> {
        let Self { cache, compression, hash } = self;
        let key = match objects {
            [object] => address(object) as u64,
            objects => cache.hashes.hash_one(objects.iter().map(address).collect::<SmallVec<[usize; 64]>>()),
        };
        let make = || {
            let (length, write) = encode();
            Entry::new(objects, Compressed::of(*compression, length, write))
        };
        let Entry(entry) = cache.entries.get(&(*hash, key), make);
        // The hashes of other objects may be the same.
        let is_same = entry.objects.iter().map(|object| object.as_ptr().addr()).eq(objects.iter().map(address));
        entry.compressed.clone().filter(|_| is_same)
    }
}

fn address(object: &Arc<Object>) -> usize {
    Arc::as_ptr(object).addr()
}

// === impl Entry ===

impl Entry {
    fn new(objects: &[Arc<Object>], compressed: Option<Compressed>) -> Self {
        let objects = objects.iter().map(Arc::downgrade).collect();
        Self(Arc::new(EntryContent { objects, compressed: compressed.map(Arc::new) }))
    }
}

impl Weighed for Entry {
    fn bytes(&self) -> usize {
        let Self(entry) = self;
        let objects = entry.objects.len() * (size_of::<Object>() + size_of::<Weak<Object>>());
        entry.compressed.as_ref().map_or(0, |compressed| compressed.bytes()) + objects + size_of::<EntryContent>()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::{BufMut, Bytes};

    use super::*;
    use crate::{model::ResourceVersion, proto::PayloadFormat};

    fn object(name: &str) -> Arc<Object> {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}},"value":"{}"}}"#, "x".repeat(1000));
        Arc::new(Object::from_json(Bytes::from(body), "", ResourceVersion::decimal(1)).unwrap())
    }

    fn format(compression: Option<Compression>) -> ObjectFormat {
        ObjectFormat { compression, ..PayloadFormat::Raw.into() }
    }

    /// Gets the bodies of objects, and counts the compressions.
    fn get(form: &CompressedForm, objects: &[Arc<Object>], made: &Cell<u32>) -> Option<Arc<Compressed>> {
        form.get(objects, || {
            made.set(made.get() + 1);
            let length = objects.iter().map(|object| object.body().len()).sum();
            (length, |to: &mut Vec<u8>| objects.iter().for_each(|object| to.put_slice(object.body())))
        })
    }

    #[test]
    fn objects_are_compressed_once_for_each_form() {
        let cache = Arc::new(CompressedObjects::new(1 << 20));
        assert!(cache.form(&format(None), Use::List).is_none());
        let (made, objects) = (Cell::new(0), [object("a"), object("b"), object("c")]);
        let uses = [Use::InitialEvent, Use::List];
        let forms = uses.map(|usage| cache.form(&format(Some(Compression::Gzip)), usage).unwrap());
        for form in &forms {
            for part in [&objects[..1], &objects[1..2], &objects[..2], &objects[1..]] {
                let before = made.get();
                let first = get(form, part, &made).unwrap();
                assert!(Arc::ptr_eq(&first, &get(form, part, &made).unwrap()));
                assert_eq!(made.get(), before + 1);
            }
        }
        let small =
            Arc::new(Object::from_json("{\"metadata\":{\"name\":\"a\"}}", "", ResourceVersion::decimal(1)).unwrap());
        for _ in 0..2 {
            assert!(get(&forms[0], std::slice::from_ref(&small), &made).is_none());
        }
        assert_eq!(made.get(), 9, "also that it is not compressed is kept");
        for n in 0..1000 {
            let next = object(&n.to_string());
            let found = get(&forms[0], std::slice::from_ref(&next), &made).unwrap();
            assert_eq!(made.get(), 10 + n, "memory is reused, and each entry still belongs to its object");
            assert_eq!(found.len(), get(&forms[0], &[next], &made).unwrap().len());
        }
    }
}
