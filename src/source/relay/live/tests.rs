//! Tests of what each message of the upstream becomes, without a connection.

use super::*;
use crate::{
    cache::SourceHealth,
    model::{ObjectKey, ObjectParts},
    source::relay::{
        RelayClients, RelayConfig,
        state::{LaggingServer, Server},
    },
};

const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(5);

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

/// Returns a watch at version 10.
fn watch() -> RelayWatch {
    let health = SourceHealth::new(HEARTBEAT, HEARTBEAT);
    let config = RelayConfig::new("http://127.0.0.1:1".parse().unwrap(), "pods");
    let shared = Arc::new(RelayShared::new(config, health, &RelayClients::default()));
    let position = Position { version: version(10), history: "one.0".into(), resume_point: None, namespaces: None };
    shared.state.lock().position = Some(position.clone());
    RelayWatch::new(shared, WatchMessages::none(), position)
}

/// Returns the event of an object at a version, in a message at another one.
fn change(event_type: EventType, name: &str, number: u128, at: u128) -> WatchResponse {
    let object = pb::Object {
        name: name.to_owned(),
        uid: "u".to_owned(),
        resource_version: number.to_string(),
        media_type: "application/json".to_owned(),
        body: Some(pb::object::Body::Raw("{}".into())),
        ..pb::Object::default()
    };
    WatchResponse {
        r#type: event_type.into(),
        resource_version: at.to_string(),
        object: Some(object),
        ..WatchResponse::default()
    }
}

fn added(name: &str, number: u128, at: u128) -> WatchResponse {
    change(EventType::Added, name, number, at)
}

fn deleted(name: &str, number: u128, at: u128) -> WatchResponse {
    change(EventType::Deleted, name, number, at)
}

fn open(message: WatchResponse) -> WatchResponse {
    WatchResponse { open: true, ..message }
}

fn relisted(message: WatchResponse) -> WatchResponse {
    WatchResponse { relisted: true, ..message }
}

fn inferred(message: WatchResponse) -> WatchResponse {
    WatchResponse { cause: pb::Cause::Inferred.into(), ..message }
}

fn bookmark_of(number: u128, bookmark: Bookmark) -> WatchResponse {
    WatchResponse {
        r#type: EventType::Bookmark.into(),
        resource_version: number.to_string(),
        bookmark: Some(bookmark),
        ..WatchResponse::default()
    }
}

fn bookmark(number: u128) -> WatchResponse {
    bookmark_of(number, Bookmark { history: "one.0".to_owned(), ..Bookmark::default() })
}

fn text(event: &Event) -> String {
    match event {
        Event::Added(object) | Event::Modified(object) => format!("+{}@{}", object.key().name(), object.version()),
        Event::Deleted(object) | Event::NotServed(object) | Event::Removed(object, _) => {
            format!("-{}@{}", object.key().name(), object.version())
        }
        Event::Bookmark(version) => format!("@{version}"),
    }
}

/// Takes a message, and returns the deltas that it causes, or the error.
fn told(watch: &mut RelayWatch, message: WatchResponse) -> String {
    let first = match watch.take(message) {
        Ok(delta) => delta,
        Err(error) => return format!("{error:?}"),
    };
    let delta = |delta: Delta| match delta {
        Delta::Changes { events, closes } => {
            let events: Vec<_> = events.iter().map(text).collect();
            format!("{}{}", events.join(" "), if closes { "" } else { " ..." })
        }
        Delta::Relist(events, cause) => {
            let events: Vec<_> = events.iter().map(text).collect();
            format!("relist {cause:?} {}", events.join(" "))
        }
        other => panic!("{other:?}"),
    };
    let all: Vec<_> = first.into_iter().chain(watch.ready.drain(..)).map(delta).collect();
    all.join(", ")
}

/// Returns the object and version of the last known change, and true if all changes at that version are known.
fn resume_point(watch: &RelayWatch) -> Option<(String, u128, bool)> {
    let known = watch.position.resume_point.as_ref()?;
    Some((known.key().name().to_owned(), known.version().number(), *known != known.clone().open()))
}

#[tokio::test]
async fn a_batch_is_delivered_whole_when_its_version_advances() {
    let mut watch = watch();
    assert_eq!(told(&mut watch, added("a", 12, 10)), "");
    assert_eq!(told(&mut watch, added("b", 12, 12)), "+a@12 +b@12");
    assert_eq!(resume_point(&watch), Some(("b".to_owned(), 12, true)));
    assert_eq!(told(&mut watch, added("c", 14, 13)), "@13", "the version before it");
    assert_eq!(told(&mut watch, bookmark(13)), "@13", "inside the batch");
    assert!(told(&mut watch, open(added("d", 14, 13))).contains("open batch inside another"));
    assert!(told(&mut watch, bookmark(14)).contains("version inside a batch"));
    assert!(told(&mut watch, added("d", 14, 12)).starts_with("Busy(\"http://127.0.0.1:1: message at version 12 after"));
    assert_eq!(told(&mut watch, deleted("d", 14, 14)), "+c@14 -d@14");
    assert_eq!(resume_point(&watch), Some(("d".to_owned(), 14, true)));
    assert_eq!(told(&mut watch, bookmark(14)), "@14");
    assert_eq!(told(&mut watch, deleted("c", 9, 14)), "", "one that could not be served has an older version");
    assert_eq!(told(&mut watch, bookmark(15)), "Undecodable(\"http://127.0.0.1:1: version inside a batch\")");
}

#[tokio::test]
async fn a_relist_is_one_with_all_its_batch_and_with_no_other() {
    let mut watch = self::watch();
    assert_eq!(told(&mut watch, added("a", 11, 11)), "+a@11");
    assert_eq!(
        told(&mut watch, relisted(added("b", 15, 12))),
        "relist Change @12",
        "it lies before 12 or in the batch"
    );
    assert!(!resume_point(&watch).unwrap().2, "what was created and deleted in the gap is unknown");
    assert_eq!(told(&mut watch, added("c", 14, 15)), "relist Change +b@15 +c@14 @15");
    assert_eq!(told(&mut watch, added("d", 16, 16)), "+d@16");
    // At the position it lies before it, and what follows is none.
    assert_eq!(told(&mut watch, relisted(bookmark(16))), "@16");
    assert_eq!(told(&mut watch, added("e", 17, 17)), "+e@17");
    assert_eq!(told(&mut watch, relisted(bookmark(18))), "relist Change @18");
    assert_eq!(told(&mut watch, added("f", 19, 19)), "+f@19");
    // In the midst of a batch it belongs to it.
    assert_eq!(told(&mut watch, relisted(added("g", 20, 19))), "");
    assert_eq!(told(&mut watch, bookmark(19)), "@19");
    assert_eq!(told(&mut watch, added("h", 20, 20)), "relist Change +g@20 +h@20");
    // An upstream too old to mark relists.
    assert_eq!(told(&mut watch, inferred(deleted("h", 20, 20))), "");
    assert_eq!(told(&mut watch, added("g", 21, 21)), "relist Inferred -h@20 +g@21");
    assert_eq!(told(&mut watch, added("g", 22, 22)), "+g@22");
}

#[tokio::test]
async fn a_change_ahead_is_delivered_at_once_and_is_the_resume_point_of_a_later_version() {
    let mut watch = self::watch();
    let has_sent_ahead = |watch: &RelayWatch| watch.shared.state.lock().has_sent_ahead;
    assert_eq!(told(&mut watch, open(deleted("a", 11, 10))), "-a@11 ...");
    assert!(!has_sent_ahead(&watch), "a deletion that is repeated hides nothing");
    assert_eq!(told(&mut watch, open(added("b", 11, 10))), "+b@11 ...");
    assert!(has_sent_ahead(&watch));
    assert_eq!(told(&mut watch, open(added("c", 13, 10))), "+c@13 @11 ...", "another watch of the upstream is ahead");
    assert_eq!(told(&mut watch, open(added("d", 12, 10))), "+d@12 @11 ...", "11 is not complete");
    assert_eq!(told(&mut watch, open(added("e", 9, 10))), "+e@9 @11 ...");
    assert_eq!(resume_point(&watch), None);
    assert_eq!(told(&mut watch, bookmark(11)), "@11");
    assert_eq!(resume_point(&watch), Some(("b".to_owned(), 11, false)), "others may have that version");
    assert_eq!(told(&mut watch, open(added("f", 12, 11))), "+f@12 ...");
    // A message at a later version advances to it first.
    assert_eq!(told(&mut watch, open(added("g", 14, 12))), "@12, +g@14 @12 ...");
    assert_eq!(resume_point(&watch), Some(("f".to_owned(), 12, false)));
    assert_eq!(told(&mut watch, added("h", 13, 13)), "+h@13");
    assert_eq!(resume_point(&watch), Some(("h".to_owned(), 13, true)), "a batch is more than the one ahead");
    assert_eq!(told(&mut watch, bookmark(15)), "@15");
    assert_eq!(resume_point(&watch), Some(("g".to_owned(), 14, false)));
    assert_eq!(told(&mut watch, open(inferred(deleted("h", 16, 15)))), "relist Inferred -h@16");
    assert_eq!(told(&mut watch, bookmark(16)), "@16");
    assert_eq!(resume_point(&watch), Some(("h".to_owned(), 16, false)));

    // No change ahead is the last one of a relist, which may have undone it.
    assert_eq!(told(&mut watch, open(added("i", 18, 16))), "+i@18 @16 ...");
    watch.position.resume_point = None;
    assert_eq!(told(&mut watch, relisted(bookmark(19))), "relist Change @19");
    assert_eq!(resume_point(&watch), None);
    assert_eq!(told(&mut watch, bookmark(20)), "@20");
    assert_eq!(resume_point(&watch), None);
}

#[tokio::test]
async fn a_relist_before_a_change_ahead_leaves_the_next_batch_as_it_is() {
    let mut watch = self::watch();
    assert_eq!(told(&mut watch, relisted(open(added("a", 12, 10)))), "+a@12 @10 ...");
    assert_eq!(told(&mut watch, added("b", 11, 11)), "+b@11");
}

#[tokio::test]
async fn a_bookmark_has_the_history_the_state_and_the_namespaces_of_the_upstream() {
    let mut watch = self::watch();
    let of = |history: &str, namespaces: &[&str]| Bookmark {
        history: history.to_owned(),
        namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
        source: pb::SyncState::Stale.into(),
        ..Bookmark::default()
    };
    assert_eq!(told(&mut watch, bookmark_of(10, of("two.1", &["a"]))), "@10");
    assert_eq!(&*watch.position.history, "two.1");
    assert_eq!(watch.shared.health.report().state, SyncState::Stale);
    let error = told(&mut watch, bookmark_of(11, of("two.1", &["a", "b"])));
    assert!(error.contains("the namespaces that this relay may read have changed"), "{error}");
    let mut withheld = deleted("a", 11, 11);
    withheld.cause = pb::Cause::LeftSelection.into();
    withheld.object = withheld.object.map(|object| pb::Object { body: None, media_type: String::new(), ..object });
    let error = told(&mut watch, withheld);
    assert!(error.contains("the namespaces that this relay may read have changed"), "{error}");
}

fn server(name: &str, is_synced: bool) -> Server {
    let (version, history) = (Some(version(9)), String::new());
    Server { name: name.to_owned(), history, version, is_synced, is_incomplete: false }
}

/// A server that has caught up is not behind any more: when it lags again, its time begins anew.
#[tokio::test]
async fn a_server_that_has_shown_the_history_is_no_longer_behind() {
    let mut watch = self::watch();
    let object = Object::new(ObjectParts::bare(ObjectKey::new("", "x").unwrap(), version(8)));
    let known = ResumePoint::after_batch(None, &[Event::Added(Arc::new(object))], false).unwrap();
    watch.check = Some(ResumeCheck::after(known, version(10)));
    watch.shared.state.lock().server = Some(server("two", true));
    assert_eq!(told(&mut watch, bookmark(9)), "", "it lags");
    assert_eq!(watch.shared.state.lock().behind.len(), 1);
    let error = SourceError::HistoryRewritten("theirs".to_owned());
    assert!(matches!(watch.watch_error(error.clone()), SourceError::Busy(_)), "not that of the position yet");
    assert_eq!(told(&mut watch, added("a", 11, 9)), "", "the first batch beyond the position");
    assert_eq!(told(&mut watch, added("b", 11, 11)), "+a@11 +b@11");
    assert!(watch.check.is_none() && watch.shared.state.lock().behind.is_empty());
    assert_eq!(watch.watch_error(error.clone()), error);
}

#[tokio::test(start_paused = true)]
async fn another_server_that_is_synced_and_behind_for_too_long_has_another_history() {
    let watch = self::watch();
    let (shared, limit) = (&watch.shared, watch.shared.config.resume_timeout);
    let lag = |name: &str, is_synced| {
        shared.state.lock().server = Some(server(name, is_synced));
        shared.failed(SourceError::VersionTooLarge("at 9".to_owned()))
    };
    let is_waiting = |error: SourceError| matches!(error, SourceError::NotYet(_));
    assert!(is_waiting(lag("two", true)));
    tokio::time::advance(limit / 2).await;
    assert!(is_waiting(lag("two", true)) && is_waiting(lag("three", true)));
    // The same server is awaited for ever, and one that is not synced may still sync.
    for (name, is_synced) in [("one", true), ("two", false)] {
        tokio::time::advance(limit).await;
        assert!(is_waiting(lag(name, is_synced)), "{name}");
        assert!(is_waiting(lag("two", true)), "its time begins anew");
    }
    tokio::time::advance(limit).await;
    assert!(matches!(lag("two", true), SourceError::HistoryRewritten(_)));
    let state = shared.state.lock();
    assert!(state.position.is_none() && state.behind.is_empty());
    drop(state);
    shared.state.lock().position = Some(watch.position.clone());
    for number in 0..20 {
        lag(&format!("replica {number}"), true);
    }
    let behind = &shared.state.lock().behind;
    let names: Vec<_> = behind.iter().map(|LaggingServer { server, .. }| &**server).collect();
    assert_eq!((names.len(), names[0], names[15]), (16, "replica 19", "replica 4"), "the last ones");
}

/// The Reflector resumes after a break, and lists for nothing that the position survives.
#[tokio::test]
async fn only_a_rewritten_history_takes_the_position() {
    let watch = self::watch();
    let busy = watch.fail(SourceError::Busy("cut".to_owned()));
    assert_eq!(busy, SourceError::Broken("cut".to_owned()));
    let expired = SourceError::Expired("old".to_owned());
    assert_eq!(watch.fail(expired.clone()), expired);
    assert!(watch.shared.position(&version(10)).is_some() && watch.shared.position(&version(11)).is_none());
    watch.fail(SourceError::HistoryRewritten("other".to_owned()));
    assert!(watch.shared.position(&version(10)).is_none());
}

/// The last readable state of an object stays, and the batch that it belongs to is delivered.
#[tokio::test]
async fn an_object_that_cannot_be_read_is_passed_over_in_its_batch() {
    let mut watch = self::watch();
    let bad = |message: WatchResponse| {
        let object = message.object.map(|object| pb::Object { media_type: "image/png".to_owned(), ..object });
        WatchResponse { object, ..message }
    };
    let problems = |watch: &RelayWatch| watch.shared.health.problems().len();
    assert_eq!(told(&mut watch, added("a", 12, 10)), "");
    assert_eq!(told(&mut watch, bad(added("b", 12, 10))), "");
    assert_eq!((told(&mut watch, bad(added("c", 12, 12))), problems(&watch)), ("+a@12".to_owned(), 2));
    assert_eq!((told(&mut watch, bad(deleted("c", 13, 13))), problems(&watch)), ("-c@13".to_owned(), 1));
    assert_eq!((told(&mut watch, added("b", 14, 14)), problems(&watch)), ("+b@14".to_owned(), 0));
    assert_eq!(told(&mut watch, open(bad(added("b", 16, 15)))), "@15");
}

/// Neither one whose upstream is STALE confirms anything, nor do those that come together after they were held back.
#[tokio::test(start_paused = true)]
async fn a_version_is_confirmed_by_the_third_bookmark_since_then() {
    let mut watch = self::watch();
    let demand = watch.shared.demand.clone();
    let mut confirmed = tokio_test::task::spawn(demand.confirmed_since(Instant::now()));
    let stale = |number| {
        let bookmark =
            Bookmark { history: "one.0".to_owned(), source: pb::SyncState::Stale.into(), ..Bookmark::default() };
        bookmark_of(number, bookmark)
    };
    for message in [bookmark(11), bookmark(12), bookmark(13), bookmark(14)] {
        told(&mut watch, message);
    }
    for message in [bookmark(15), stale(16), stale(17)] {
        tokio::time::advance(watch.shared.config.progress_interval).await;
        told(&mut watch, message);
    }
    tokio_test::assert_pending!(confirmed.poll());
    tokio::time::advance(watch.shared.config.progress_interval).await;
    told(&mut watch, bookmark(18));
    assert_eq!(tokio_test::assert_ready!(confirmed.poll()), version(18));
}
