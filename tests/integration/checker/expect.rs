//! Events that a selection must receive, derived from a history.

use std::{collections::BTreeMap, rc::Rc};

use informerd::proto::pb::{self, Cause, EventType};

use super::{
    pod::Held,
    selection::Selection,
    truth::{Epoch, State},
    view::Form,
};

/// Event that a client must receive.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts of an event, not a state machine")]
pub(crate) struct Expected {
    event_type: EventType,
    cause: Cause,
    held: Rc<Held>,
    /// Version of the object; for a deletion, that of the deletion.
    object_version: u64,
    /// Versions before and after its batch.
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// Version from which a client resumes that has the whole batch.
    pub(crate) safe: u64,
    /// Number of batches applied, including its own.
    pub(crate) batch: usize,
    /// True if the client's view suppresses it.
    pub(crate) is_suppressed: bool,
    /// True if it is the first of its batch that is sent to the selection, and true if it is the last.
    pub(crate) opens: bool,
    pub(crate) ends: bool,
    /// True if more changes may come at its version.
    is_open: bool,
    /// True if it comes from a relist that moved the version.
    is_in_gap: bool,
    /// Number of further events that it replaces.
    coalesced: u32,
}

impl Expected {
    /// Returns all events after so many batches, those that are suppressed among them.
    pub(crate) fn after(epoch: &Epoch, (selection, form): (Selection, Form), batches: usize) -> Vec<Self> {
        let mut all = Vec::new();
        for (at, batch) in epoch.batches.iter().enumerate().skip(batches) {
            let (first, mut opens) = (all.len(), true);
            for change in &batch.changes {
                let matches = |held: &Option<Rc<Held>>| held.as_ref().map(|held| selection.matches(&held.pod));
                let (event_type, cause) = match (matches(&change.old), matches(&change.new)) {
                    (None, Some(true)) => (EventType::Added, Cause::Unspecified),
                    (Some(false), Some(true)) => (EventType::Added, Cause::EnteredSelection),
                    (Some(true), Some(true)) => (EventType::Modified, Cause::Unspecified),
                    (Some(true), Some(false)) => (EventType::Deleted, Cause::LeftSelection),
                    (Some(true), None) => (EventType::Deleted, change.cause),
                    (None | Some(false), None | Some(false)) => continue,
                };
                // A DELETED carries the last state that the client has.
                let held = if event_type == EventType::Deleted { &change.old } else { &change.new };
                let states = change.old.as_ref().zip(change.new.as_ref());
                // A client may have received a state between two that a relist has found.
                let is_suppressed = event_type == EventType::Modified
                    && !batch.is_gap()
                    && states.is_some_and(|(had, now)| form.suppresses(had, now));
                all.push(Self {
                    event_type,
                    cause,
                    held: Rc::clone(held.as_ref().expect("it matched")),
                    object_version: change.version,
                    before: batch.before,
                    after: batch.after,
                    safe: batch.safe(),
                    batch: at + 1,
                    is_suppressed,
                    opens: !is_suppressed && std::mem::take(&mut opens),
                    ends: false,
                    is_open: batch.is_open,
                    is_in_gap: batch.is_gap(),
                    coalesced: 0,
                });
            }
            if let Some(last) = all[first..].iter_mut().rfind(|event| !event.is_suppressed) {
                last.ends = true;
            }
        }
        all
    }

    /// Merges events for a client that lags under COALESCE and holds `had`: the result has for each key the difference between
    /// that and the final state, at its last change. Its last event is at the end of the last batch, and also counts the events
    /// of objects that were created and deleted in between. Returns too how many events merged to what is suppressed.
    pub(crate) fn merged(had: &State, events: &[Self], form: Form) -> (Vec<Self>, u64) {
        let (mut now, mut of_keys) = (had.clone(), BTreeMap::<_, (usize, Vec<&Self>)>::new());
        let (mut vanished, mut suppressed) = (0, 0);
        for (at, event) in events.iter().enumerate() {
            event.apply(&mut now);
            let key = event.held.pod.key;
            let of_key = of_keys.entry(key).or_default();
            of_key.0 = at;
            of_key.1.push(event);
            if !had.contains_key(&key) && !now.contains_key(&key) {
                vanished += of_key.1.drain(..).len() as u32;
            }
        }
        let mut of_keys: Vec<_> = of_keys.into_iter().collect();
        of_keys.sort_by_key(|(_, (at, _))| *at);
        let mut all: Vec<Self> = Vec::new();
        for (key, (_, of_key)) in of_keys {
            let count = all.len();
            let (had, now) = (had.get(&key), now.get(&key));
            let is_of = |held: &Rc<Held>, event: &&&Self| event.held.pod.uid == held.pod.uid;
            let last = |event_type: EventType, held: &Rc<Held>| {
                let mut of_type = of_key.iter().rev().filter(|event| event.event_type == event_type);
                *of_type.find(|event| is_of(held, event)).expect("it came or went")
            };
            let told = |event_type: EventType, cause: Cause, held: &Rc<Held>, object_version: u64| {
                let Self { after, safe, batch, .. } = *events.last().expect("there is one");
                let (held, before) = (Rc::clone(held), events[0].before);
                Self {
                    event_type,
                    cause,
                    held,
                    object_version,
                    before,
                    after,
                    safe,
                    batch,
                    is_suppressed: false,
                    opens: false,
                    ends: false,
                    is_open: false,
                    is_in_gap: false,
                    coalesced: 0,
                }
            };
            let is_same = had.zip(now).is_some_and(|(had, now)| had.pod.uid == now.pod.uid);
            let may_be_suppressed = had.zip(now).filter(|_| !of_key.iter().any(|event| event.is_in_gap));
            if may_be_suppressed.is_some_and(|(had, now)| form.suppresses(had, now)) {
                suppressed += of_key.len() as u64;
                continue;
            }
            if let (true, Some(now)) = (is_same, now) {
                all.push(told(EventType::Modified, Cause::Unspecified, now, now.version));
            } else {
                all.extend(had.map(|had| {
                    let gone = last(EventType::Deleted, had);
                    told(EventType::Deleted, gone.cause, had, gone.object_version)
                }));
                let came = |now: &Rc<Held>| last(EventType::Added, now).cause;
                all.extend(now.map(|now| told(EventType::Added, came(now), now, now.version)));
            }
            let further = (of_key.len() + count - all.len()) as u32;
            match all[count..].last_mut() {
                Some(last) => last.coalesced = further,
                None => vanished += further,
            }
        }
        if let Some(last) = all.last_mut() {
            last.coalesced += vanished;
        }
        (all, suppressed)
    }

    /// Returns the version that the event carries for a client that was given `position`.
    pub(crate) fn version_after(&self, position: u64) -> u64 {
        if self.ends { self.safe.max(position) } else { self.before.max(position) }
    }

    /// Returns true if it came at a version that was already complete.
    pub(crate) fn is_late(&self) -> bool {
        self.before == self.after
    }

    /// Returns true if its object exists and can no longer be served.
    pub(crate) fn is_not_served(&self) -> bool {
        self.cause == Cause::NotServed
    }

    /// Returns the type of the event and the object that it carries.
    pub(crate) fn told(&self) -> (EventType, &Rc<Held>) {
        (self.event_type, &self.held)
    }

    /// Applies the event to the state of a client.
    pub(crate) fn apply(&self, state: &mut State) {
        match self.event_type {
            EventType::Deleted => drop(state.remove(&self.held.pod.key)),
            _ => drop(state.insert(self.held.pod.key, Rc::clone(&self.held))),
        }
    }

    /// Returns the fields in which a message differs from this event; `text` formats a version.
    pub(crate) fn differences(
        &self,
        message: &pb::WatchResponse,
        form: Form,
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
        compare("open", message.open.to_string(), self.is_open.to_string());
        compare("coalesced", message.coalesced.to_string(), self.coalesced.to_string());
        let object = message.object.clone().unwrap_or_default();
        for (what, is, should) in object_fields(&object, &self.held, &text(self.object_version), form) {
            compare(what, is, should);
        }
        wrong
    }

    /// Returns true if a message is about the same change, correct or not.
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
        let Self { before, after, object_version, coalesced, .. } = self;
        let further = if *coalesced > 0 { format!(" and {coalesced} further") } else { String::new() };
        let suppressed = if self.is_suppressed { " (suppressed)" } else { "" };
        format!(
            "{event_type}{cause} {namespace}/{name} at {object_version}{further}, of the batch {before}..{after}{suppressed}"
        )
    }
}

/// Returns each field of an object as it is and as it should be.
pub(crate) fn object_fields(
    object: &pb::Object,
    held: &Held,
    version: &str,
    form: Form,
) -> Vec<(&'static str, String, String)> {
    let body = match &object.body {
        None => "none".to_owned(),
        Some(pb::object::Body::Raw(raw)) => String::from_utf8_lossy(raw).into_owned(),
        Some(pb::object::Body::Struct(value)) => format!("{value:?}"),
    };
    let expected = match held.body(form) {
        None => "none".to_owned(),
        Some(pb::object::Body::Raw(raw)) => String::from_utf8_lossy(&raw).into_owned(),
        Some(pb::object::Body::Struct(value)) => format!("{value:?}"),
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
        ("body", body, expected),
    ]
}
