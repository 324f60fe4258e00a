//! Object of an informer: its value, and what the value may lack.

use std::{fmt, ops::Deref, sync::Arc};

use crate::model::{Object, ObjectKey, ResourceVersion};

/// Version of an object, as a [`SharedInformer`](super::SharedInformer) hands it out: the value, to which it dereferences, with the key and
/// the version, which not every value has: objects of etcd and of streams have their name beside it. Clones share both.
pub struct Entry<T> {
    object: Arc<Object>,
    value: Arc<T>,
}

// === impl Entry ===

impl<T> Entry<T> {
    pub(super) fn new(object: Arc<Object>, value: Arc<T>) -> Self {
        Self { object, value }
    }

    /// Returns the key.
    pub fn key(&self) -> &ObjectKey {
        self.object.key()
    }

    /// Returns the version of the object.
    pub fn version(&self) -> &ResourceVersion {
        self.object.version()
    }

    /// Returns the object as the source has it.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Returns the value.
    pub fn value(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self { object: Arc::clone(&self.object), value: Arc::clone(&self.value) }
    }
}

impl<T> Deref for Entry<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

debug_fields!([T: fmt::Debug] Entry<T>, this => { key: this.key(), version: this.version(), value: this.value });
