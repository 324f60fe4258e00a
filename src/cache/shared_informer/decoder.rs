//! Objects as values of a program's type: each version is decoded once, on first use.

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, Weak},
};

use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use super::entry::Entry;
use crate::model::{Object, ObjectKey, ResourceVersion, json_problem};

/// Type of the objects that a [`SharedInformer`](super::SharedInformer) returns: anything that serde makes of JSON, or [`Object`]
/// itself, which is not decoded.
pub trait Decode: Sized + Send + Sync + 'static {
    /// Returns the object as this type.
    fn decode(object: &Arc<Object>, decoder: &Decoder<Self>) -> Decoded<Self>;
}

/// Result of decoding one version of an object.
type Decoded<T> = Result<Arc<T>, Arc<Undecodable>>;

/// Version of an object that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("object {key} at resource version {version} cannot be decoded: {reason}")]
pub struct Undecodable {
    /// Key of the object.
    pub key: ObjectKey,
    /// Version of the object.
    pub version: ResourceVersion,
    /// Error of the decoder.
    pub reason: String,
}

/// Decoded versions of the objects of one informer. Each is kept for as long as anything holds the version, such as the history.
pub struct Decoder<T> {
    decoded: Mutex<DecodedObjects<T>>,
    on_error: Mutex<Arc<ErrorHandler>>,
}

/// Result of one version, once it was used.
type Cell<T> = Arc<OnceLock<Decoded<T>>>;

type ErrorHandler = dyn Fn(&Undecodable) + Send + Sync;

struct DecodedObjects<T> {
    /// Versions by their addresses. A weak reference keeps the address from being used again.
    cells: HashMap<usize, (Weak<Object>, Cell<T>), foldhash::fast::RandomState>,
    /// Number of entries at which those of dropped versions are removed.
    sweep_at: usize,
}

/// Smallest number of entries at which those of dropped versions are removed.
const MIN_SWEEP: usize = 64;

// === impl Decode ===

impl<T: DeserializeOwned + Send + Sync + 'static> Decode for T {
    fn decode(object: &Arc<Object>, decoder: &Decoder<Self>) -> Decoded<Self> {
        decoder.get_or_decode(object, || {
            let json = object.json().ok_or_else(|| format!("{} is not JSON", object.media_type()))?;
            serde_json::from_slice(json).map_err(|error| json_problem(&error))
        })
    }
}

impl Decode for Object {
    fn decode(object: &Arc<Object>, _decoder: &Decoder<Self>) -> Decoded<Self> {
        Ok(Arc::clone(object))
    }
}

// === impl Decoder ===

impl<T: Decode> Decoder<T> {
    pub(super) fn new() -> Self {
        let decoded = DecodedObjects { cells: HashMap::default(), sweep_at: MIN_SWEEP };
        let log: Arc<ErrorHandler> = Arc::new(|error| tracing::warn!(%error, "object left out"));
        Self { decoded: Mutex::new(decoded), on_error: Mutex::new(log) }
    }

    /// Replaces the handler of errors.
    pub(super) fn set_error_handler(&self, handler: impl Fn(&Undecodable) + Send + Sync + 'static) {
        *self.on_error.lock() = Arc::new(handler);
    }

    /// Returns a decoded object; `None` if it cannot be decoded.
    pub(super) fn decode(&self, object: &Arc<Object>) -> Option<Entry<T>> {
        T::decode(object, self).ok().map(|value| Entry::new(Arc::clone(object), value))
    }

    /// Returns the result for this version, and makes it first if it is used for the first time.
    fn get_or_decode(&self, object: &Arc<Object>, decode: impl FnOnce() -> Result<T, String>) -> Decoded<T> {
        let cell = self.decoded.lock().cell(object);
        let mut is_first = false;
        let decoded = cell.get_or_init(|| {
            is_first = true;
            let (key, version) = (object.key().clone(), object.version().clone());
            // The type's own code must not end what reads the object.
            let decoded = catch_unwind(AssertUnwindSafe(decode));
            let decoded =
                decoded.unwrap_or_else(|panic| Err(format!("the decoder panicked: {}", panic_message(&*panic))));
            decoded.map(Arc::new).map_err(|reason| Arc::new(Undecodable { key, version, reason }))
        });
        if let (Err(error), true) = (decoded, is_first) {
            // It may read from the informer, so nothing is locked meanwhile.
            let on_error = Arc::clone(&*self.on_error.lock());
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| on_error(error))) {
                tracing::error!(%error, panic = panic_message(&*panic), "handler of decoding errors panicked");
            }
        }
        decoded.clone()
    }
}

debug_fields!([T] Decoder<T> {});

/// Returns the text of a panic.
pub(in super::super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

// === impl DecodedObjects ===

impl<T> DecodedObjects<T> {
    fn cell(&mut self, object: &Arc<Object>) -> Cell<T> {
        let address = Arc::as_ptr(object).addr();
        if let Some((_, cell)) = self.cells.get(&address) {
            return Arc::clone(cell);
        }
        if self.cells.len() >= self.sweep_at {
            self.cells.retain(|_, (object, _)| object.strong_count() > 0);
            self.sweep_at = (2 * self.cells.len()).max(MIN_SWEEP);
        }
        let cell = Cell::default();
        self.cells.insert(address, (Arc::downgrade(object), Arc::clone(&cell)));
        cell
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn object(name: &str) -> Arc<Object> {
        Arc::new(Object::from_json("{}", name, ResourceVersion::decimal(1)).unwrap())
    }

    #[test]
    fn results_of_dropped_versions_are_removed_and_all_others_stay() {
        let decoder = Decoder::<Value>::new();
        let held: Vec<_> = (0..100).map(|at| object(&format!("held {at}"))).collect();
        let results: Vec<_> = held.iter().map(|object| decoder.decode(object).unwrap()).collect();
        for at in 0..10_000 {
            assert!(decoder.decode(&object(&format!("dropped {at}"))).is_some());
            assert!(decoder.decoded.lock().cells.len() <= 256);
        }
        for (object, result) in held.iter().zip(&results) {
            assert!(Arc::ptr_eq(decoder.decode(object).unwrap().value(), result.value()));
        }
    }
}
