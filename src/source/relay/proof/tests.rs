use super::*;
use crate::proto::pb::{self, Bookmark};

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn of(name: &str, uid: &str, number: u128, body: &'static str) -> Arc<Object> {
    let key = ObjectKey::new("n", name).unwrap();
    let media_type = "application/json";
    let body = body.into();
    Arc::new(Object::new(ObjectParts { uid: uid.into(), media_type, body, ..ObjectParts::bare(key, version(number)) }))
}

fn object(name: &str, number: u128) -> Arc<Object> {
    of(name, "u", number, "{}")
}

/// Returns the mark after `name` was changed at a version.
fn mark(name: &str, number: u128) -> Mark {
    Mark::after_batch(None, &[Event::Modified(object(name, number))], false).unwrap()
}

/// Returns the mark of a list's newest object.
fn newest(name: &str, number: u128) -> Mark {
    Mark { is_listed: true, ..mark(name, number).open() }
}

fn deleted(name: &str, number: u128) -> Mark {
    Mark::after_batch(None, &[Event::Deleted(object(name, number))], false).unwrap()
}

#[test]
fn a_mark_is_the_last_change_of_all() {
    let batch = [Event::Modified(object("a", 5)), Event::Deleted(object("b", 5)), Event::Bookmark(version(6))];
    let changes = MarkedBatch::Known(vec![(object("a", 5), false), (object("b", 5), true)]);
    let whole = Mark { batch: changes, ..deleted("b", 5) };
    assert_eq!(Mark::after_batch(Some(mark("x", 3)), &batch, false), Some(whole));
    assert_eq!(Mark::after_batch(Some(mark("x", 3)), &batch[2..], false), Some(mark("x", 3)), "nothing has changed");

    let list = [object("a", 2), object("b", 7), object("c", 9)];
    let listed = |number: u128| Mark::of_list(&list, &version(number)).unwrap();
    assert_eq!(listed(9), newest("c", 9));
    assert_eq!(listed(8), newest("b", 7), "what the version of the list does not cover is no mark");
    assert_eq!(Mark::of_list(&[], &version(9)), None);
}

/// Objects that were created and deleted in the gap of a relist are not known.
#[test]
fn a_relist_has_the_newest_object_as_its_mark() {
    let after = |before: Mark, events: &[Event]| Mark::after_batch(Some(before), events, true);
    let newer = [Event::Added(object("b", 5)), Event::Deleted(object("c", 1))];
    assert_eq!(after(mark("a", 3), &newer), Some(newest("b", 5)));
    assert_eq!(after(mark("a", 3), &newer[1..]), Some(newest("a", 3)));
    assert_eq!(after(mark("c", 3), &newer[1..]), None, "it is gone, since when nobody knows");
    assert_eq!(after(mark("a", 3), &[]), Some(newest("a", 3)));
    assert_eq!(Mark::after_batch(None, &newer, true), Some(newest("b", 5)));
}

#[test]
fn what_another_server_has_is_judged() {
    let other = |found: &Found| matches!(found, Found::OtherHistory(_));
    let judge =
        |mark: &Mark, at: u128, found: Option<Arc<Object>>| mark.judge(&version(9), &version(at), found.as_deref());
    let known = mark("a", 5);
    for at in [5, 9, 20] {
        assert_eq!(judge(&known, at, Some(object("a", 5))), Found::AsKnown, "at {at}");
        assert_eq!(judge(&known, at, None), Found::Later, "at {at}");
        assert!(other(&judge(&known, at, Some(object("a", 4)))), "it did not change at 5");
        assert!(other(&judge(&known, at, Some(of("a", "another", 5, "{}")))));
        assert!(other(&judge(&deleted("a", 5), at, Some(object("a", 4)))), "it was not deleted at 5");
        assert_eq!(judge(&deleted("a", 5), at, None), Found::Later, "when it was deleted is not known");
    }
    assert!(other(&judge(&known, 9, Some(object("a", 7)))), "it did not change between 5 and 9");
    assert_eq!(judge(&known, 20, Some(object("a", 10))), Found::Later);
    for found in [None, Some(object("a", 3))] {
        assert_eq!(judge(&known, 4, found), Found::Behind);
    }
    assert_eq!(judge(&known, 9, Some(of("a", "u", 5, "[]"))), Found::OtherBody);
    let kept: KeptMark = serde_json::from_str(&serde_json::to_string(&known.keep()).unwrap()).unwrap();
    let resumed = Mark::resume(kept).unwrap();
    assert_eq!(judge(&resumed, 9, Some(of("a", "u", 5, "[]"))), Found::OtherBody);
    assert_eq!(judge(&resumed, 9, Some(object("a", 5))), Found::AsKnown);
    assert_eq!(Mark::resume(resumed.keep()).as_ref(), Some(&resumed), "it is kept again");
    let older = KeptMark { digest: String::new(), ..known.keep() };
    assert_eq!(judge(&Mark::resume(older).unwrap(), 9, Some(of("a", "u", 5, "[]"))), Found::AsKnown, "not kept before");
    assert!(other(&judge(&resumed, 9, Some(of("a", "another", 5, "{}")))));
    assert_eq!(known.before(), Some(version(4)));
    assert_eq!(mark("a", 1).before(), None);
}

/// Returns a message with the version that it carries.
fn message(event_type: EventType, object: Option<Arc<Object>>, carried: u128) -> WatchResponse {
    let object = object.map(|object| crate::proto::object(&object, object.version(), crate::proto::PayloadFormat::Raw));
    let bookmark = (event_type == EventType::Bookmark).then(Bookmark::default);
    let (r#type, resource_version) = (event_type.into(), carried.to_string());
    WatchResponse { r#type, resource_version, object, bookmark, ..WatchResponse::default() }
}

fn changed(name: &str, number: u128) -> WatchResponse {
    message(EventType::Modified, Some(object(name, number)), number)
}

/// Judges messages for a mark and a position at 9.
fn judged(mark: Mark, messages: &[WatchResponse]) -> Result<Vec<bool>, SourceError> {
    let mut check = ResumeCheck::from(mark, version(9));
    messages.iter().map(|message| check.judge(message)).collect()
}

#[test]
fn the_last_known_change_is_replayed_and_nothing_comes_between_it_and_the_position() {
    let bookmark = |number| message(EventType::Bookmark, None, number);
    let batch = [message(EventType::Modified, Some(object("x", 5)), 4), changed("a", 5)];
    let whole = [&batch[..], &[bookmark(7), bookmark(9), changed("b", 10)]].concat();
    let events = [Event::Modified(object("x", 5)), Event::Modified(object("a", 5))];
    let of_batch = Mark::after_batch(None, &events, false).unwrap();
    assert_eq!(judged(of_batch, &whole), Ok(vec![false, false, false, true, true]));
    // The version before a batch may be any that the stream has had.
    let open = [changed("a", 5), message(EventType::Modified, Some(object("b", 10)), 5)];
    assert_eq!(judged(mark("a", 5), &open), Ok(vec![false, true]));

    let is_changed =
        |messages: &[WatchResponse]| matches!(judged(mark("a", 5), messages), Err(SourceError::HistoryChanged(_)));
    assert!(is_changed(&[changed("b", 10)]) && is_changed(&[bookmark(9)]), "it is not replayed");
    assert!(is_changed(&[changed("a", 5), changed("b", 8)]), "nothing changed at 8");
    let gone = message(EventType::Deleted, Some(object("a", 5)), 5);
    assert!(is_changed(&[gone.clone(), bookmark(9)]), "it was not deleted");
    assert_eq!(judged(deleted("a", 5), &[gone, bookmark(9)]), Ok(vec![false, true]));
}

/// A history that was restored may delete the same object at the same version, among other changes.
#[test]
fn all_changes_at_the_version_of_the_last_one_are_replayed() {
    let gone = |name, carried| message(EventType::Deleted, Some(object(name, 5)), carried);
    let (changed, bookmark) =
        (message(EventType::Modified, Some(object("b", 5)), 4), message(EventType::Bookmark, None, 9));
    let events = ["a", "b", "c"].map(|name| Event::Deleted(object(name, 5)));
    let known = Mark::after_batch(None, &events, false).unwrap();
    let kept: KeptMark = serde_json::from_str(&serde_json::to_string(&known.keep()).unwrap()).unwrap();
    let older = KeptMark { batch: None, ..known.keep() };
    for (mark, is_known) in [(known, true), (Mark::resume(kept).unwrap(), true), (Mark::resume(older).unwrap(), false)]
    {
        let judged = |messages: &[WatchResponse]| judged(mark.clone(), messages);
        for same in [[gone("a", 4), gone("b", 4), gone("c", 9)], [gone("b", 4), gone("c", 4), gone("a", 9)]] {
            assert_eq!(
                judged(&[&same[..], std::slice::from_ref(&bookmark)].concat()),
                Ok(vec![false, false, false, true])
            );
        }
        for other in
            [vec![gone("c", 5)], vec![gone("a", 4), changed.clone(), gone("c", 5)], vec![gone("d", 4), gone("c", 5)]]
        {
            let judged = judged(&[&other[..], std::slice::from_ref(&bookmark)].concat());
            assert_eq!(matches!(judged, Err(SourceError::Expired(_))), is_known, "{judged:?}");
        }
    }
}

#[test]
fn what_cannot_be_told_is_listed() {
    let is_unclear = |mark, messages: &[WatchResponse]| matches!(judged(mark, messages), Err(SourceError::Expired(_)));
    let relisted = WatchResponse { relisted: true, ..changed("b", 10) };
    assert!(is_unclear(mark("a", 5), std::slice::from_ref(&relisted)));
    let inferred = message(EventType::Deleted, Some(object("b", 3)), 6);
    assert!(is_unclear(mark("a", 5), &[WatchResponse { cause: pb::Cause::Inferred.into(), ..inferred }]));
    let listed = newest("a", 5);
    assert!(is_unclear(listed, &[changed("a", 5), changed("b", 8)]), "it may have been deleted before the list");
    assert!(is_unclear(mark("a", 5), &[message(EventType::Modified, Some(of("a", "u", 5, "[]")), 5)]));
    // Beyond the position a relist is like any other.
    let bookmark = message(EventType::Bookmark, None, 9);
    assert_eq!(judged(mark("a", 5), &[changed("a", 5), bookmark, relisted]), Ok(vec![false, true, true]));
}
