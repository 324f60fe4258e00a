//! Tests of what may replace the objects that are held, and of the names of histories, without a connection.

use super::*;
use crate::{
    cache::{ListerWatcher, RewriteEvidence},
    model::ObjectParts,
    source::relay::RelaySource,
};

const HEARTBEAT: Duration = Duration::from_secs(5);

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn shared(holds_earlier: bool) -> RelayShared {
    let health = SourceHealth::new(HEARTBEAT, HEARTBEAT);
    let config = RelayConfig::new("http://127.0.0.1:1".parse().unwrap(), "pods");
    RelayShared::new(RelayConfig { holds_earlier, ..config }, health, &RelayClients::default())
}

/// Returns a position at version 10.
fn position(history: &str) -> Position {
    Position { version: version(10), history: history.into(), resume_point: None, namespaces: None }
}

fn server(name: &str, history: &str, is_incomplete: bool) -> Server {
    let (name, history) = (name.to_owned(), history.to_owned());
    Server { name, history, version: None, is_synced: !is_incomplete, is_incomplete }
}

/// Returns a source whose upstream is this server.
fn at(server: Server, holds_earlier: bool) -> RelayShared {
    let shared = shared(holds_earlier);
    shared.state.lock().server = Some(server);
    shared
}

#[test]
fn the_list_of_an_incomplete_upstream_replaces_nothing_that_another_run_may_have_sent() {
    let check = |is_incomplete, holds_earlier, known: Option<&Position>, listed: &ResourceVersion| {
        let shared = at(server("two", "two.0", is_incomplete), holds_earlier);
        let checked = shared.check_complete(known, listed);
        assert!(matches!(checked, Ok(()) | Err(SourceError::Busy(_))), "{checked:?}");
        assert_eq!(shared.health.is_incomplete(), is_incomplete && checked.is_ok());
        checked.is_ok()
    };
    let (own, other, at_20) = (position("two.0"), position("one.0"), version(20));
    assert!(check(true, false, None, &at_20) && check(true, false, Some(&own), &at_20));
    assert!(!check(true, false, Some(&other), &at_20), "versions that both servers have");
    assert!(!check(true, false, Some(&own), &"abc.20".parse().unwrap()));
    assert!(!check(true, true, None, &at_20), "what an earlier run has left");
    assert!(check(true, true, Some(&own), &at_20));
    assert!(check(false, true, None, &at_20) && check(false, false, Some(&other), &at_20));
}

#[test]
fn what_a_rewritten_history_has_left_is_not_replaced_by_an_incomplete_list_either() {
    for (position, holds_earlier) in [(Some(position("one.0")), false), (None, true)] {
        let shared = at(server("one", "one.1", true), holds_earlier);
        shared.state.lock().position = position;
        // It may be rewritten again before the next list.
        for _ in 0..2 {
            shared.failed(SourceError::HistoryRewritten("other".to_owned()));
            assert!(matches!(shared.check_complete(None, &version(20)), Err(SourceError::Busy(_))));
        }
    }
}

#[test]
fn a_saved_position_has_its_namespaces() {
    let config = RelayConfig::new("http://127.0.0.1:1".parse().unwrap(), "pods");
    let source = RelaySource::new(config, SourceHealth::new(HEARTBEAT, HEARTBEAT));
    let warm = source.warm_start().unwrap();
    let proof = r#"{"version":"10","history":"one.0","mark":null,"has_sent_ahead":false,"namespaces":["x"]}"#;
    warm.resume(&version(10), proof.as_bytes()).unwrap();
    assert_eq!(warm.proof().unwrap(), proof);
}

#[test]
fn clients_of_an_earlier_run_wait_for_a_relay_that_has_an_incomplete_list() {
    let shared = at(server("one", "one.0", true), false);
    shared.check_complete(None, &version(20)).unwrap();
    let waits = |version: &ResourceVersion, current: &ResourceVersion| shared.health.may_lack(version, Some(current));
    assert!(waits(&version(10), &version(20)) && !waits(&version(20), &version(20)));
    // A lineage is of one run of the origin.
    let shared = at(server("one", "one.0", true), false);
    let [before, listed] = ["a.5", "a.9"].map(|version| version.parse().unwrap());
    shared.check_complete(None, &listed).unwrap();
    assert!(!shared.health.may_lack(&before, Some(&listed)));
}

/// No change brings what is missing here, and the other server has.
#[test]
fn an_incomplete_relay_lists_at_another_server_and_does_not_resume() {
    let shared = at(server("two", "two.0", false), false);
    assert_eq!(shared.other_history(&position("one.0")), Ok(Some("two.0".to_owned())));
    shared.health.mark_incomplete("unread", Some(version(10)));
    assert!(matches!(shared.other_history(&position("one.0")), Err(SourceError::Expired(_))));
    assert_eq!(shared.other_history(&position("two.0")), Ok(None));
}

#[test]
fn a_history_is_the_same_with_other_namespaces() {
    for (known, now, is_same) in [
        ("s.1.-", "s.1.abc", true),
        ("s.1", "s.1.abc", true),
        ("s.1.abc", "s.1.def", true),
        ("s.1.abc", "s.2.abc", false),
        ("s.1", "s.11", false),
        ("t.1", "s.2", true),
        ("s.1", "", true),
    ] {
        let checked = at(server("s", now, false), false).check_history(Some(&position(known)));
        assert_eq!(checked.is_ok(), is_same, "{known} {now}: {checked:?}");
    }
}

#[test]
fn namespaces_that_come_and_go_prove_no_other_history() {
    let object = |namespace: &str| {
        let key = crate::model::ObjectKey::new(namespace, "a").unwrap();
        Arc::new(Object::new(ObjectParts::bare(key, version(3))))
    };
    let list = List::new(["x", "y", "z"].map(object).to_vec(), version(10));
    let moved = |before: Option<&[&str]>, now: &[&str]| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let namespaces = before.map(|before| owned(before).into());
        let (new, gone) = Position { namespaces, ..position("s.1") }.moved_namespaces(&list, &owned(now));
        (new.join(" "), gone.join(" "))
    };
    let texts = |new: &str, gone: &str| (new.to_owned(), gone.to_owned());
    assert_eq!(moved(Some(&["w", "x"]), &["x", "y"]), texts("y", "w"));
    assert_eq!(moved(Some(&["x"]), &["x"]), texts("", ""));
    assert_eq!(moved(Some(&["x"]), &[]), texts("y z", ""), "all");
    assert_eq!(moved(Some(&[]), &["x"]), texts("", ""));
    assert_eq!(moved(None, &["x"]), texts("", ""), "unknown");

    // The Indexer takes an old object that is not held for a proof, unless it is of a new namespace.
    let held = crate::cache::Indexer::new(Arc::default(), List::new(vec![object("x")], version(10)));
    let of_position = Position { namespaces: Some(["x".to_owned()].into()), ..position("s.1") };
    let mut list = List::new(["x", "y"].map(object).to_vec(), version(10));
    let proof = |list: &List| held.snapshot().rewrite_proof(list, RewriteEvidence::Listed).cloned();
    assert!(proof(&list).is_some());
    (list.new_namespaces, list.lost_namespaces) =
        of_position.moved_namespaces(&list, &["x".to_owned(), "y".to_owned()]);
    assert_eq!(proof(&list), None);
}
