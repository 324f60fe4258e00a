//! The events that a selection is to be told: a history, seen through it.

use std::rc::Rc;

use informerd::proto::pb::{self, Cause, EventType};

use super::{
    record::Plan,
    selection::Selection,
    truth::{Epoch, Held},
};

/// One event, as it has to be told.
#[derive(Debug)]
pub(crate) struct Expected {
    event_type: EventType,
    cause: Cause,
    held: Rc<Held>,
    /// Of the object; for a deletion, of the deletion.
    object_version: u64,
    /// The bounds of its batch.
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// The first and the last of its batch in the selection.
    pub(crate) opens: bool,
    pub(crate) closes: bool,
}

impl Expected {
    /// Everything that comes after a version.
    pub(crate) fn after(epoch: &Epoch, selection: Selection, version: u64) -> Vec<Self> {
        let mut all = Vec::new();
        for batch in epoch.batches.iter().filter(|batch| batch.after > version) {
            let first = all.len();
            for change in &batch.changes {
                let matches = |held: &Option<Rc<Held>>| held.as_ref().map(|held| selection.matches(&held.pod));
                let (event_type, cause) = match (matches(&change.old), matches(&change.new)) {
                    (None, Some(true)) => (EventType::Added, Cause::Unspecified),
                    (Some(false), Some(true)) => (EventType::Added, Cause::EnteredSelection),
                    (Some(true), Some(true)) => (EventType::Modified, Cause::Unspecified),
                    (Some(true), Some(false)) => (EventType::Deleted, Cause::LeftSelection),
                    (Some(true), None) if change.is_inferred => (EventType::Deleted, Cause::Inferred),
                    (Some(true), None) => (EventType::Deleted, Cause::Unspecified),
                    (None | Some(false), None | Some(false)) => continue,
                };
                // What is gone is told in the last state that the client has.
                let held = if event_type == EventType::Deleted { &change.old } else { &change.new };
                all.push(Self {
                    event_type,
                    cause,
                    held: Rc::clone(held.as_ref().expect("it matched")),
                    object_version: change.version,
                    before: batch.before,
                    after: batch.after,
                    opens: all.len() == first,
                    closes: false,
                });
            }
            if let Some(last) = all[first..].last_mut() {
                last.closes = true;
            }
        }
        all
    }

    /// What is wrong with a message that should tell this; `text` writes a version.
    pub(crate) fn differences(
        &self,
        message: &pb::WatchResponse,
        plan: &Plan,
        version: u64,
        text: impl Fn(u64) -> String,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut compare = |what: &str, is: String, should: String| {
            if is != should {
                wrong.push(format!("its {what} is {is:?} instead of {should:?}"));
            }
        };
        compare("type", message.r#type().as_str_name().into(), self.event_type.as_str_name().into());
        compare("cause", message.cause().as_str_name().into(), self.cause.as_str_name().into());
        compare("resource_version", message.resource_version.clone(), text(version));
        let object = message.object.clone().unwrap_or_default();
        for (what, is, should) in object_fields(&object, &self.held, &text(self.object_version), plan.has_bodies) {
            compare(what, is, should);
        }
        wrong
    }

    /// Whether a message tells of the same change, rightly or not.
    pub(crate) fn is_meant_by(&self, message: &pb::WatchResponse, text: impl Fn(u64) -> String) -> bool {
        let Some(object) = &message.object else { return false };
        (&*object.namespace, &*object.name) == self.held.pod.key && object.resource_version == text(self.object_version)
    }

    pub(crate) fn words(&self) -> String {
        let cause = match self.cause {
            Cause::Unspecified => "",
            cause => cause.as_str_name().trim_start_matches("CAUSE"),
        };
        let (namespace, name) = self.held.pod.key;
        let event_type = self.event_type.as_str_name().trim_start_matches("EVENT_TYPE_");
        let Self { before, after, object_version, .. } = self;
        format!("{event_type}{cause} {namespace}/{name} at {object_version}, of the batch {before}..{after}")
    }
}

/// Each field of an object as it is and as it should be.
pub(crate) fn object_fields(
    object: &pb::Object,
    held: &Held,
    version: &str,
    has_bodies: bool,
) -> Vec<(&'static str, String, String)> {
    let body = match &object.body {
        None => "none".to_owned(),
        Some(pb::object::Body::Raw(raw)) => String::from_utf8_lossy(raw).into_owned(),
        Some(pb::object::Body::Struct(_)) => "a Struct".to_owned(),
    };
    let labels = held.pod.app.map(|app| ("app".to_owned(), app.to_owned()));
    let is = |text: &str| text.to_owned();
    vec![
        ("namespace", object.namespace.clone(), is(held.pod.key.0)),
        ("name", object.name.clone(), is(held.pod.key.1)),
        ("uid", object.uid.clone(), format!("u{}", held.pod.uid)),
        ("object's version", object.resource_version.clone(), is(version)),
        ("labels", format!("{:?}", object.labels), format!("{:?}", std::collections::BTreeMap::from_iter(labels))),
        ("api_version", object.api_version.clone(), is("v1")),
        ("kind", object.kind.clone(), is("Pod")),
        ("media_type", object.media_type.clone(), is("application/json")),
        ("body", body, if has_bodies { held.body.clone() } else { is("none") }),
    ]
}
