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

/// Returns the resume point after `name` was changed at a version.
fn resume_point(name: &str, number: u128) -> ResumePoint {
    ResumePoint::after_batch(None, &[Event::Modified(object(name, number))], false).unwrap()
}

/// Returns the resume point of a list's newest object.
fn newest(name: &str, number: u128) -> ResumePoint {
    ResumePoint { is_listed: true, ..resume_point(name, number).open() }
}

fn deleted(name: &str, number: u128) -> ResumePoint {
    ResumePoint::after_batch(None, &[Event::Deleted(object(name, number))], false).unwrap()
}

#[test]
fn a_resume_point_is_the_last_change_of_all() {
    let batch = [Event::Modified(object("a", 5)), Event::Deleted(object("b", 5)), Event::Bookmark(version(6))];
    let changes = BatchChanges::Known(vec![(object("a", 5), false), (object("b", 5), true)]);
    let whole = ResumePoint { batch: changes, ..deleted("b", 5) };
    assert_eq!(ResumePoint::after_batch(Some(resume_point("x", 3)), &batch, false), Some(whole));
    assert_eq!(
        ResumePoint::after_batch(Some(resume_point("x", 3)), &batch[2..], false),
        Some(resume_point("x", 3)),
        "nothing has changed"
    );

    let list = [object("a", 2), object("b", 7), object("c", 9)];
    let listed = |number: u128| ResumePoint::of_list(&list, &version(number)).unwrap();
    assert_eq!(listed(9), newest("c", 9));
    assert_eq!(listed(8), newest("b", 7), "what the version of the list does not cover is no mark");
    assert_eq!(ResumePoint::of_list(&[], &version(9)), None);
}

/// Objects that were created and deleted in the gap of a relist are not known.
#[test]
fn a_relist_has_its_newest_object_as_the_resume_point() {
    let after = |before: ResumePoint, events: &[Event]| ResumePoint::after_batch(Some(before), events, true);
    let newer = [Event::Added(object("b", 5)), Event::Deleted(object("c", 1))];
    assert_eq!(after(resume_point("a", 3), &newer), Some(newest("b", 5)));
    assert_eq!(after(resume_point("a", 3), &newer[1..]), Some(newest("a", 3)));
    assert_eq!(after(resume_point("c", 3), &newer[1..]), None, "it is gone, since when nobody knows");
    assert_eq!(after(resume_point("a", 3), &[]), Some(newest("a", 3)));
    assert_eq!(ResumePoint::after_batch(None, &newer, true), Some(newest("b", 5)));
}

#[test]
fn the_object_of_another_server_is_compared() {
    let other = |found: &ServerVerdict| matches!(found, ServerVerdict::OtherHistory(_));
    let judge = |resume_point: &ResumePoint, at: u128, found: Option<Arc<Object>>| {
        resume_point.judge(&version(9), &version(at), found.as_deref())
    };
    let known = resume_point("a", 5);
    for at in [5, 9, 20] {
        assert_eq!(judge(&known, at, Some(object("a", 5))), ServerVerdict::AsKnown, "at {at}");
        assert_eq!(judge(&known, at, None), ServerVerdict::Later, "at {at}");
        assert!(other(&judge(&known, at, Some(object("a", 4)))), "it did not change at 5");
        assert!(other(&judge(&known, at, Some(of("a", "another", 5, "{}")))));
        assert!(other(&judge(&deleted("a", 5), at, Some(object("a", 4)))), "it was not deleted at 5");
        assert_eq!(judge(&deleted("a", 5), at, None), ServerVerdict::Later, "when it was deleted is not known");
    }
    assert!(other(&judge(&known, 9, Some(object("a", 7)))), "it did not change between 5 and 9");
    assert_eq!(judge(&known, 20, Some(object("a", 10))), ServerVerdict::Later);
    for found in [None, Some(object("a", 3))] {
        assert_eq!(judge(&known, 4, found), ServerVerdict::Behind);
    }
    assert_eq!(judge(&known, 9, Some(of("a", "u", 5, "[]"))), ServerVerdict::OtherBody);
    let kept: SavedResumePoint = serde_json::from_str(&serde_json::to_string(&known.keep()).unwrap()).unwrap();
    let resumed = ResumePoint::resume(kept).unwrap();
    assert_eq!(judge(&resumed, 9, Some(of("a", "u", 5, "[]"))), ServerVerdict::OtherBody);
    assert_eq!(judge(&resumed, 9, Some(object("a", 5))), ServerVerdict::AsKnown);
    assert_eq!(ResumePoint::resume(resumed.keep()).as_ref(), Some(&resumed), "it is kept again");
    let older = SavedResumePoint { digest: String::new(), ..known.keep() };
    assert_eq!(
        judge(&ResumePoint::resume(older).unwrap(), 9, Some(of("a", "u", 5, "[]"))),
        ServerVerdict::AsKnown,
        "not kept before"
    );
    assert!(other(&judge(&resumed, 9, Some(of("a", "another", 5, "{}")))));
    assert_eq!(known.before(), Some(version(4)));
    assert_eq!(resume_point("a", 1).before(), None);
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

/// Judges messages for a resume point and a position at 9.
fn judged(resume_point: ResumePoint, messages: &[WatchResponse]) -> Result<Vec<bool>, SourceError> {
    let mut check = ResumeCheck::from(resume_point, version(9));
    messages.iter().map(|message| check.judge(message)).collect()
}

#[test]
fn the_last_known_change_is_replayed_and_nothing_comes_between_it_and_the_position() {
    let bookmark = |number| message(EventType::Bookmark, None, number);
    let batch = [message(EventType::Modified, Some(object("x", 5)), 4), changed("a", 5)];
    let whole = [&batch[..], &[bookmark(7), bookmark(9), changed("b", 10)]].concat();
    let events = [Event::Modified(object("x", 5)), Event::Modified(object("a", 5))];
    let of_batch = ResumePoint::after_batch(None, &events, false).unwrap();
    assert_eq!(judged(of_batch, &whole), Ok(vec![false, false, false, true, true]));
    // The version before a batch may be any that the stream has had.
    let open = [changed("a", 5), message(EventType::Modified, Some(object("b", 10)), 5)];
    assert_eq!(judged(resume_point("a", 5), &open), Ok(vec![false, true]));

    let is_changed = |messages: &[WatchResponse]| {
        matches!(judged(resume_point("a", 5), messages), Err(SourceError::HistoryRewritten(_)))
    };
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
    let known = ResumePoint::after_batch(None, &events, false).unwrap();
    let kept: SavedResumePoint = serde_json::from_str(&serde_json::to_string(&known.keep()).unwrap()).unwrap();
    let older = SavedResumePoint { batch: None, ..known.keep() };
    for (resume_point, is_known) in
        [(known, true), (ResumePoint::resume(kept).unwrap(), true), (ResumePoint::resume(older).unwrap(), false)]
    {
        let judged = |messages: &[WatchResponse]| judged(resume_point.clone(), messages);
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
fn an_undecided_check_leads_to_a_list() {
    let is_unclear = |resume_point, messages: &[WatchResponse]| {
        matches!(judged(resume_point, messages), Err(SourceError::Expired(_)))
    };
    let relisted = WatchResponse { relisted: true, ..changed("b", 10) };
    assert!(is_unclear(resume_point("a", 5), std::slice::from_ref(&relisted)));
    let inferred = message(EventType::Deleted, Some(object("b", 3)), 6);
    assert!(is_unclear(resume_point("a", 5), &[WatchResponse { cause: pb::Cause::Inferred.into(), ..inferred }]));
    let listed = newest("a", 5);
    assert!(is_unclear(listed, &[changed("a", 5), changed("b", 8)]), "it may have been deleted before the list");
    assert!(is_unclear(resume_point("a", 5), &[message(EventType::Modified, Some(of("a", "u", 5, "[]")), 5)]));
    // Beyond the position a relist is like any other.
    let bookmark = message(EventType::Bookmark, None, 9);
    assert_eq!(judged(resume_point("a", 5), &[changed("a", 5), bookmark, relisted]), Ok(vec![false, true, true]));
}
