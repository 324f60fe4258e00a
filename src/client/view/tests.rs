//! Tests of a view, one stream at a time; `model` runs it against a model of a server.

use bytes::Bytes;

use super::*;
use crate::client::{ClientError, follower::Follower};

mod model;

/// Watch without I/O.
struct Following {
    follower: Follower,
    view: View,
}

impl Following {
    fn new(keep_objects: bool, heal_drops: bool) -> Self {
        Self { follower: Follower::new(heal_drops, None), view: View::new(keep_objects, false) }
    }

    fn begin(&mut self) {
        self.follower.begin();
        self.view.begin(self.follower.is_listing);
    }

    /// Applies a message; returns true if another stream has to fill a hole.
    fn apply(&mut self, message: pb::WatchResponse, updates: &mut VecDeque<Update>) -> Result<bool, ClientError> {
        let followed = self.follower.follow(message)?;
        let has_hole = matches!(followed.news, News::Dropped { healing: Some(_), .. });
        self.view.apply(followed, updates);
        Ok(has_hole)
    }
}

fn object(name: &str, (uid, body, version): &(String, Bytes, String)) -> pb::Object {
    pb::Object {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: uid.clone(),
        resource_version: version.clone(),
        body: Some(pb::object::Body::Raw(body.clone())),
        ..Default::default()
    }
}

fn bookmark(version: String, initial_events_end: bool) -> pb::WatchResponse {
    pb::WatchResponse {
        r#type: pb::EventType::Bookmark.into(),
        resource_version: version,
        bookmark: Some(pb::Bookmark { initial_events_end, ..Default::default() }),
        ..Default::default()
    }
}

/// Applies the messages of one stream; returns the updates as texts.
fn told(watch: &mut Following, messages: impl IntoIterator<Item = pb::WatchResponse>) -> Vec<String> {
    let mut updates = VecDeque::new();
    for message in messages {
        watch.apply(message, &mut updates).unwrap();
    }
    let words = updates.into_iter().map(|update| match update {
        Update::Event { event_type, cause, object, resource_version } => {
            let event_type = event_type.as_str_name().trim_start_matches("EVENT_TYPE_");
            let cause = cause.as_str_name().trim_start_matches("CAUSE_").replace("UNSPECIFIED", "");
            format!("{event_type} {cause} {} {} @{resource_version}", object.name, object.resource_version)
        }
        Update::Note(Note::Relisted { resource_version, changes }) => format!("{changes} changes @{resource_version}"),
        Update::Synced(progress) => format!("SYNCED @{}", progress.resource_version),
        other => format!("{other:?}"),
    });
    words.map(|words| words.replace("  ", " ")).collect()
}

fn added(name: &str, uid: &str, body: &'static str, version: &str) -> pb::WatchResponse {
    let held = (uid.to_owned(), Bytes::from_static(body.as_bytes()), version.to_owned());
    pb::WatchResponse {
        r#type: pb::EventType::Added.into(),
        cause: pb::Cause::Initial.into(),
        object: Some(object(name, &held)),
        ..Default::default()
    }
}

fn end(version: &str) -> pb::WatchResponse {
    bookmark(version.to_owned(), true)
}

#[test]
fn a_relist_in_another_lineage_yields_the_difference() {
    let mut watch = Following::new(true, true);
    watch.begin();
    let first = [("gone", "x"), ("new-uid", "x"), ("other", "x"), ("same", "x")];
    let messages = first.map(|(name, body)| added(name, "1", body, "a.1"));
    let words = told(&mut watch, messages.into_iter().chain([end("a.1")]));
    assert_eq!(words[0], "ADDED INITIAL gone a.1 @");
    assert_eq!(words[4], "SYNCED @a.1");
    watch.follower.expire();
    watch.begin();
    let messages = [added("new-uid", "2", "x", "b.4"), added("other", "1", "y", "b.5"), added("same", "1", "x", "b.6")];
    let words = told(&mut watch, messages.into_iter().chain([added("zoe", "1", "x", "b.7"), end("b.9")]));
    assert_eq!(
        words,
        [
            "DELETED INFERRED new-uid b.4 @",
            "ADDED new-uid b.4 @",
            "MODIFIED other b.5 @",
            "ADDED zoe b.7 @",
            "DELETED INFERRED gone b.9 @",
            "5 changes @b.9",
            "SYNCED @b.9",
        ]
    );
}

#[test]
fn an_interrupted_list_deletes_nothing_and_repeats_no_event() {
    let mut watch = Following::new(false, true);
    watch.begin();
    assert_eq!(told(&mut watch, [added("a", "", "x", "a.1"), added("b", "", "x", "a.1")]).len(), 2);
    watch.begin();
    assert_eq!(told(&mut watch, [added("a", "", "x", "a.1")]), Vec::<String>::new());
    watch.begin();
    let words = told(&mut watch, [added("a", "", "x", "a.1"), added("c", "", "x", "a.2"), end("a.3")]);
    assert_eq!(words, ["ADDED INITIAL c a.2 @", "DELETED INFERRED b a.3 @", "SYNCED @a.3"]);
}

/// Events in another order are no repetition: `a` is set to an older state, and must advance again.
#[test]
fn a_batch_in_another_order_is_applied_whole() {
    let event = |name: &str, body: &'static str, version: &str| {
        let mut message = added(name, "1", body, version);
        message.resource_version = "a.1".to_owned();
        message
    };
    let mut watch = Following::new(true, true);
    watch.begin();
    told(&mut watch, [end("a.1")]);
    watch.begin();
    told(&mut watch, [event("a", "1", "a.2"), event("z", "1", "a.3"), event("a", "2", "a.4")]);
    watch.begin();
    let mut last = event("z", "1", "a.3");
    last.resource_version = "a.5".to_owned();
    told(&mut watch, [event("x", "1", "a.5"), event("a", "1", "a.2"), event("a", "2", "a.4"), last]);
    let held = &watch.view.known[&("shop".to_owned(), "a".to_owned())];
    assert_eq!(
        (held.object.resource_version.as_str(), watch.follower.position.as_deref(), watch.view.len()),
        ("a.4", Some("a.5"), 3)
    );
}

/// Without a body, only the version can be compared.
#[test]
fn without_bodies_a_version_is_a_change() {
    let metadata = |version: &str| {
        let mut message = added("a", "", "", version);
        message.object.as_mut().unwrap().body = None;
        message
    };
    let mut watch = Following::new(false, true);
    watch.begin();
    told(&mut watch, [metadata("a.1"), end("a.1")]);
    watch.follower.expire();
    watch.begin();
    assert_eq!(told(&mut watch, [metadata("b.1"), end("b.1")])[0], "MODIFIED a b.1 @");
}

/// Objects that leave and enter with the caller's namespaces come at the version that the stream has: a resume repeats none of
/// them.
#[test]
fn the_objects_of_a_namespace_that_is_granted_again_after_a_resume_are_added_again() {
    let bookmark_of = |namespaces: &[&str], initial_events_end| {
        let mut message = bookmark("5".to_owned(), initial_events_end);
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        message.bookmark.as_mut().unwrap().namespaces = namespaces;
        message
    };
    let event = |r#type: pb::EventType, cause: pb::Cause| pb::WatchResponse {
        r#type: r#type.into(),
        cause: cause.into(),
        resource_version: "5".to_owned(),
        ..added("a", "u", "x", "3")
    };
    let granted = || [event(pb::EventType::Added, pb::Cause::EnteredSelection), bookmark_of(&["x", "y"], false)];
    let revoked = || [event(pb::EventType::Deleted, pb::Cause::LeftSelection), bookmark_of(&["x"], false)];
    let mut watch = Following::new(false, true);
    watch.begin();
    told(&mut watch, [bookmark_of(&["x"], true)]);
    for resumes in [true, false, true] {
        if resumes {
            watch.begin();
        }
        assert_eq!(told(&mut watch, granted())[0], "ADDED ENTERED_SELECTION a 3 @5");
        assert_eq!(told(&mut watch, revoked())[0], "DELETED LEFT_SELECTION a 3 @5");
        assert_eq!(watch.view.len(), 0);
    }
}

/// A new version of an unchanged body is a change, which the list of another lineage has for all objects.
#[test]
fn the_version_of_an_object_counts_within_one_lineage() {
    let mut watch = Following::new(false, true);
    watch.begin();
    told(&mut watch, [added("a", "u", "x", "a.1"), end("a.1")]);
    let mut relist = |own: &str, at: &str| {
        watch.follower.expire();
        watch.begin();
        told(&mut watch, [added("a", "u", "x", own), end(at)])[0].clone()
    };
    assert_eq!(relist("a.2", "a.3"), "MODIFIED a a.2 @");
    assert_eq!(relist("a.2", "a.4"), "0 changes @a.4");
    assert_eq!(relist("b.5", "b.6"), "0 changes @b.6");
}

/// A CRD that gains a default changes the bodies that are served, while the versions stay the same.
#[test]
fn another_body_at_the_same_version_is_a_change() {
    let mut watch = Following::new(false, false);
    watch.begin();
    assert_eq!(told(&mut watch, [added("a", "u", "x", "3"), end("5")]), ["ADDED INITIAL a 3 @", "SYNCED @5"]);
    watch.begin();
    let modified = |body, version: &str| pb::WatchResponse {
        r#type: pb::EventType::Modified.into(),
        cause: pb::Cause::Unspecified.into(),
        resource_version: version.to_owned(),
        ..added("a", "u", body, "3")
    };
    assert_eq!(told(&mut watch, [modified("y", "9")]), ["MODIFIED a 3 @9"]);
    assert_eq!(told(&mut watch, [modified("y", "10")]), [""; 0], "a repetition");
    watch.follower.expire();
    watch.begin();
    let again = told(&mut watch, [added("a", "u", "z", "3"), end("12")]);
    assert_eq!(again, ["MODIFIED a 3 @", "1 changes @12", "SYNCED @12"]);
}

/// The first half has the version before: a user that has acted on it alone must not resume after the second.
#[test]
fn another_object_under_a_key_is_a_deletion_before_the_version_of_its_addition() {
    let mut watch = Following::new(false, true);
    watch.begin();
    told(&mut watch, [added("a", "1", "x", "a.1"), end("a.1")]);
    let mut message = added("a", "2", "x", "a.2");
    message.resource_version = "a.2".to_owned();
    message.cause = pb::Cause::Unspecified.into();
    assert_eq!(told(&mut watch, [message]), ["DELETED INFERRED a a.2 @a.1", "ADDED a a.2 @a.2"]);
}

#[test]
fn an_unhealed_hole_is_reported_and_lasts_until_the_next_list() {
    let mut watch = Following::new(false, false);
    watch.begin();
    told(&mut watch, [added("a", "1", "x", "a.1"), end("a.1")]);
    let dropped = pb::Dropped { count: 3, after_resource_version: "a.1".to_owned() };
    let dropped = pb::WatchResponse {
        r#type: pb::EventType::Dropped.into(),
        resource_version: "a.4".to_owned(),
        dropped: Some(dropped),
        ..Default::default()
    };
    let mut updates = VecDeque::new();
    assert_eq!(watch.apply(dropped, &mut updates), Ok(false));
    assert_eq!(updates, [Update::Dropped { count: 3, after: "a.1".to_owned() }]);
    assert_eq!((watch.follower.position.as_deref(), watch.view.has_hole), (Some("a.4"), true));
    // A deletion of the object that the hole has hidden: the object held under its key is deleted all the same.
    let mut deleted = added("a", "2", "x", "a.5");
    deleted.r#type = pb::EventType::Deleted.into();
    deleted.resource_version = "a.5".to_owned();
    assert_eq!(told(&mut watch, [deleted]).len(), 1);
    assert_eq!(watch.view.len(), 0);
}
