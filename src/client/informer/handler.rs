//! Handler of an informer's changes.

use crate::{
    cache::{Deletion, Entry, ResourceEventHandler},
    model::Object,
};

/// Handler that gets no call for a state that another history has numbered anew.
pub(super) struct ChangeHandler<H>(pub(super) H);

impl<H: ResourceEventHandler<Object>> ResourceEventHandler<Object> for ChangeHandler<H> {
    async fn on_add(&mut self, object: Entry<Object>, is_in_initial_list: bool) {
        self.0.on_add(object, is_in_initial_list).await;
    }

    async fn on_update(&mut self, old: Entry<Object>, new: Entry<Object>) {
        if !is_same(&old, &new) {
            self.0.on_update(old, new).await;
        }
    }

    async fn on_delete(&mut self, last_state: Entry<Object>, deletion: Deletion) {
        self.0.on_delete(last_state, deletion).await;
    }
}

/// Returns true if two states of an object are the same to a handler: another history gives them other versions. Without bodies
/// (METADATA) only the versions show a change.
fn is_same(old: &Object, new: &Object) -> bool {
    let has_body = !old.body().is_empty() || !new.body().is_empty();
    old.labels().iter().eq(new.labels().iter())
        && old.body() == new.body()
        && old.media_type() == new.media_type()
        && (has_body || old.version() == new.version())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::model::{JSON, ObjectKey, ObjectParts, ResourceVersion};

    #[test]
    fn only_a_version_of_an_object_with_a_body_is_no_change() {
        let object = |number, label: &str, body: &'static str, media_type| {
            let bare = ObjectParts::bare(ObjectKey::new("", "a").unwrap(), ResourceVersion::decimal(number));
            let labels = [("app".to_owned(), label.to_owned())].into();
            Object::new(ObjectParts { labels, media_type, body: Bytes::from_static(body.as_bytes()), ..bare })
        };
        let other = "application/octet-stream";
        let old = object(1, "web", "{}", JSON);
        assert!(is_same(&old, &object(2, "web", "{}", JSON)));
        assert!(!is_same(&old, &object(1, "db", "{}", JSON)));
        assert!(!is_same(&old, &object(1, "web", "[]", JSON)));
        assert!(!is_same(&old, &object(1, "web", "{}", other)));
        let bare = object(1, "web", "", other);
        assert!(is_same(&bare, &object(1, "web", "", other)) && !is_same(&bare, &object(2, "web", "", other)));
    }
}
