//! Open versions, and lists that are no newer than the held state.

use super::*;

/// The next run has no history: a client that resumes from the previous version needs all of the open one.
#[tokio::test]
async fn a_snapshot_has_the_state_of_the_version_to_resume_from() {
    let held = ["a", "b", "c"].map(|name| pod(name, "", "", version(1))).into();
    let mut indexer = Indexer::new(indexers(), list(held, 5));
    let bounds = Retention { events: 100, size: 1 << 20, age: Duration::from_secs(300) };
    let mut history = History::new(bounds, HistoryPosition { version: version(5), offset: 0 });
    let mut apply = |events: Vec<Event>, closes: bool| {
        history.record(Arc::new(indexer.apply_events(events, closes)), Instant::now());
        let kept = indexer.snapshot().before(&history.ahead());
        kept.objects(None, None).map(|object| object.key().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(apply(vec![delete("a", 9)], false), ["a", "b", "c"]);
    assert_eq!(apply(vec![delete("b", 9)], false), ["a", "b", "c"]);
    assert_eq!(apply(vec![Event::Bookmark(version(9))], true), ["c"]);
    assert_eq!(apply(vec![delete("c", 12)], false), ["c"]);
    assert_eq!(apply(vec![put("d", "", 13)], true), ["d"]);
}

/// A version has one state. A deletion published at the version that all clients have would reach no client that resumes from
/// it.
#[test]
fn a_list_at_the_held_version_must_have_every_held_object() {
    let state = |names: &[&str], at| list(names.iter().map(|name| pod(name, "", "", version(3))).collect(), at);
    let indexer = Indexer::new(indexers(), state(&["a", "b"], 10));
    let missing = |list: &List, rewrite_evidence| {
        indexer.snapshot().rewrite_proof(list, rewrite_evidence).map(ToString::to_string)
    };
    assert_eq!(missing(&state(&["b"], 10), RewriteEvidence::Listed).as_deref(), Some("a"));
    assert_eq!(missing(&state(&["a", "b"], 10), RewriteEvidence::Listed), None);
    assert_eq!(missing(&state(&["b"], 11), RewriteEvidence::Bytes), None, "it was deleted since");
    assert_eq!(missing(&state(&["b"], 10), RewriteEvidence::Held), None, "what the API selects may change");
    let not_served = List { not_served: state(&["a"], 10).objects, ..state(&["b"], 10) };
    assert_eq!(missing(&not_served, RewriteEvidence::Bytes), None);
    let namespace = indexer.snapshot().objects(None, None).next().unwrap().key().namespace().to_owned();
    let lost = List { lost_namespaces: vec![namespace], ..state(&[], 10) };
    assert_eq!(missing(&lost, RewriteEvidence::Listed), None, "nobody asked for it");
    let joined = |namespace: &str| {
        let objects = [state(&["a", "b"], 11).objects, state(&["shop/a"], 11).objects].concat();
        List { new_namespaces: vec![namespace.to_owned()], ..list(objects, 11) }
    };
    assert_eq!(missing(&joined("shop"), RewriteEvidence::Bytes), None, "nobody followed its namespace before");
    assert_eq!(missing(&joined("other"), RewriteEvidence::Bytes).as_deref(), Some("shop/a"));
    let counted = |at| ResourceVersion::of_lineage("abc".into(), at);
    let counts =
        |names: &[&str]| List::new(names.iter().map(|name| pod(name, "", "", counted(3))).collect(), counted(10));
    let indexer = Indexer::new(indexers(), counts(&["a", "b"]));
    assert_eq!(
        indexer.snapshot().rewrite_proof(&counts(&["b"]), RewriteEvidence::Bytes),
        None,
        "a source that counts for it"
    );
}

/// Objects on a shared lease expire by the hundred at one version.
#[test]
fn a_version_is_safe_once_it_is_closed() {
    let held = ["a", "b", "c"].map(|name| pod(name, "", "", version(1))).into();
    let mut indexer = Indexer::new(indexers(), list(held, 5));
    let at = |indexer: &Indexer| (indexer.version().number(), indexer.snapshot().safe_version().number());
    let bounds = |batch: &Batch| (batch.before.number(), batch.after.number(), batch.is_open);
    let first = indexer.apply_events([delete("a", 9)], false);
    assert_eq!((told(&first), bounds(&first), at(&indexer)), (vec!["-a 9".to_owned()], (8, 9, true), (9, 8)));
    assert_eq!(told(&indexer.apply_events([delete("a", 9)], false)), [""; 0], "told again after a reconnection");
    let second = indexer.apply_events([delete("b", 9)], false);
    assert_eq!((bounds(&second), at(&indexer)), ((8, 9, true), (9, 8)));
    let listed = list(vec![pod("c", "", "", version(1)), pod("z", "", "", version(9))], 9);
    assert_eq!(
        indexer.snapshot().rewrite_proof(&listed, RewriteEvidence::Listed),
        None,
        "it may come at the open version"
    );
    let end = indexer.apply(Event::Bookmark(version(9)));
    assert_eq!((bounds(&end), at(&indexer)), ((8, 9, false), (9, 9)));
    let contradiction = indexer.snapshot().rewrite_proof(&listed, RewriteEvidence::Listed).map(ToString::to_string);
    assert_eq!(contradiction.as_deref(), Some("z"), "now it would have come");
    let late = indexer.apply_events([delete("c", 9)], false);
    assert_eq!((bounds(&late), late.is_late(), at(&indexer)), ((9, 9, true), true, (9, 9)));
    let next = indexer.apply_events([put("d", "", 12)], false);
    assert_eq!((bounds(&next), at(&indexer)), ((11, 12, true), (12, 11)));
    let next = indexer.apply(put("e", "", 13));
    assert_eq!((bounds(&next), at(&indexer)), ((12, 13, false), (13, 13)), "a later version closes it");
}

/// A list may have the rest of the open version, or lack it too.
#[test]
fn a_relist_closes_an_open_version_and_begins_before_it() {
    for to in [9, 12] {
        let held = ["a", "b"].map(|name| pod(name, "", "", version(1))).into();
        let mut indexer = Indexer::new(indexers(), list(held, 5));
        indexer.apply_events([delete("a", 9)], false);
        let relist = indexer.replace(list(Vec::new(), to));
        assert_eq!(told(&relist), [format!("-b {to} inferred")]);
        assert_eq!((relist.before, relist.after, relist.is_open), (version(8), version(to), false));
        assert_eq!(indexer.snapshot().safe_version(), &version(to));
    }
}

/// A watch that resumes before an open version gets the older changes again.
#[test]
fn input_older_than_an_open_version_neither_reverts_nor_closes_it() {
    let held = ["a", "b", "c"].map(|name| pod(name, "", "", version(1))).into();
    let mut indexer = Indexer::new(indexers(), list(held, 5));
    indexer.apply_events([delete("a", 9)], false);
    let is_open = |batch: Batch, indexer: &Indexer| {
        assert_eq!((batch.before, batch.after, batch.is_open, batch.is_relist), (version(8), version(9), true, false));
        assert_eq!((indexer.version(), indexer.snapshot().safe_version()), (&version(9), &version(8)));
        batch.changes
    };
    let bookmark = indexer.apply(Event::Bookmark(version(8)));
    assert_eq!(is_open(bookmark, &indexer), []);
    let relisted = indexer.apply_relist([Event::Bookmark(version(8))], Cause::Inferred);
    assert_eq!(is_open(relisted, &indexer), []);
    let listed = indexer.replace(list(vec![pod("c", "", "", version(1))], 8));
    assert_eq!(told(&listed), ["-b 9"], "the list is of a server that has begun the version");
    is_open(listed, &indexer);
}

// === Relist ===
