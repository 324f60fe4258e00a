//! Expected type and filter: the objects of lists and events on their way to the store.

use std::sync::Arc;

use super::{ObjectFilter, ReflectorError};
use crate::{
    cache::{Delta, List},
    model::{Event, Object, ObjectKey, ObjectParts, ResourceVersion},
};

/// Expected type and filter of a Reflector, at least one of which is set.
pub(super) struct Transformer {
    expected: Option<(String, String)>,
    filter: Option<ObjectFilter>,
}

// === impl Transformer ===

impl Transformer {
    /// Returns `None` if neither is set.
    pub(super) fn new(expected: Option<(String, String)>, filter: Option<ObjectFilter>) -> Option<Self> {
        (expected.is_some() || filter.is_some()).then_some(Self { expected, filter })
    }

    /// Converts the objects of a list, and returns the error of those that it leaves out for their type.
    pub(super) async fn list(&self, list: &mut List) -> Option<ReflectorError> {
        let mut unexpected = None;
        let mut objects = Vec::with_capacity(list.objects.len());
        for object in std::mem::take(&mut list.objects) {
            if self.is_expected(&object, &mut unexpected) {
                objects.extend(self.convert(object));
            }
            // The informer runs on the same thread, and a list may be long.
            tokio::task::consume_budget().await;
        }
        list.objects = objects;
        unexpected
    }

    /// Converts the objects of a delta, and returns the error of those that it leaves out for their type.
    pub(super) async fn delta(&self, delta: &mut Delta) -> Option<ReflectorError> {
        let mut unexpected = None;
        match delta {
            Delta::Replace(list) | Delta::HistoryRewritten(list) => unexpected = self.list(list).await,
            Delta::Changes { events, .. } => {
                for event in events {
                    self.event(event, &mut unexpected);
                }
            }
            Delta::Relist(events, _) => {
                for event in events {
                    self.event(event, &mut unexpected);
                }
            }
            Delta::Checkpoint { .. } => {}
        }
        unexpected
    }

    fn event(&self, event: &mut Event, unexpected: &mut Option<ReflectorError>) {
        let object = match event {
            Event::Added(object) | Event::Modified(object) | Event::Deleted(object) | Event::Removed(object, _) => {
                Arc::clone(object)
            }
            Event::NotServed(_) | Event::Bookmark(_) => return,
        };
        let is_deletion = matches!(event, Event::Deleted(_) | Event::Removed(_, _));
        // The source may know no more than the key of a deleted object.
        let has_type = !is_deletion || !object.kind().is_empty();
        if has_type && !self.is_expected(&object, unexpected) {
            // The source has reached the version, and resumes from there.
            *event = Event::Bookmark(object.version().clone());
            return;
        }
        *event = match (self.convert(Arc::clone(&object)), &*event) {
            (None, _) => Event::Deleted(bare(&object)),
            (Some(object), Event::Added(_)) => Event::Added(object),
            (Some(object), Event::Deleted(_)) => Event::Deleted(object),
            (Some(object), Event::Removed(_, cause)) => Event::Removed(object, *cause),
            (Some(object), _) => Event::Modified(object),
        };
    }

    /// Returns true for an object of the expected type; adds another one to the error.
    fn is_expected(&self, object: &Object, unexpected: &mut Option<ReflectorError>) -> bool {
        let Some((api_version, kind)) = &self.expected else { return true };
        if object.kind() == kind && object.api_version() == api_version {
            return true;
        }
        let text = |api_version: &str, kind: &str| format!("{api_version}, Kind={kind}");
        let error = unexpected.get_or_insert_with(|| ReflectorError::UnexpectedType {
            key: object.key().clone(),
            found: text(object.api_version(), object.kind()),
            expected: text(api_version, kind),
            count: 0,
        });
        if let ReflectorError::UnexpectedType { count, .. } = error {
            *count += 1;
        }
        false
    }

    fn convert(&self, object: Arc<Object>) -> Option<Arc<Object>> {
        let Some(filter) = &self.filter else { return Some(object) };
        let converted = filter(Arc::clone(&object))?;
        assert!(
            identity(&converted) == identity(&object),
            "the filter changed key, uid or version of {}",
            object.key()
        );
        Some(converted)
    }
}

/// Returns the parts that a filter may not change.
fn identity(object: &Object) -> (&ObjectKey, &str, &ResourceVersion) {
    (object.key(), object.uid(), object.version())
}

/// Returns key, uid and version only: a filter that rejects an object has rejected its content.
fn bare(object: &Object) -> Arc<Object> {
    let parts = ObjectParts::bare(object.key().clone(), object.version().clone());
    Arc::new(Object::new(ObjectParts { uid: object.uid().to_owned(), ..parts }))
}
