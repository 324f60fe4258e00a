//! Watch: initial events, live events, selections, bookmarks, ends.

use std::collections::BTreeMap;

use informerd::{model::Event, proto::pb};

use crate::sandbox::{
    DEADLINE, Options, Sandbox, end, fold, next, pod, queue, raw, reason, watch_from_now, watch_pods, words,
};

/// Checks the state, each change, and every message of a short watch.
#[tokio::test]
async fn a_watch_begins_with_the_state_and_continues_with_every_change() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "b", ""), pod("shop", "a", "")]).await;
    let mut watch = sandbox.client().await.watch(watch_pods()).await.unwrap().into_inner();
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(next(&mut watch).await);
    }
    assert!(seen[2].bookmark.as_ref().unwrap().initial_events_end);
    let created = sandbox.put("shop", "c", "").await;
    sandbox.put("shop", "c", r#""replicas":2"#).await;
    sandbox.delete(&created).await;
    for _ in 0..3 {
        seen.push(next(&mut watch).await);
    }
    let seen_words: Vec<String> = seen.iter().map(words).collect();
    assert_eq!(
        seen_words,
        ["ADDED INITIAL a", "ADDED INITIAL b", "BOOKMARK @1", "ADDED c @2", "MODIFIED c @3", "DELETED c @4"]
    );
    let deleted = seen[5].object.as_ref().unwrap();
    assert_eq!(deleted.resource_version, "4", "of the deletion");
    assert_eq!(raw(deleted), raw(seen[4].object.as_ref().unwrap()), "with the last state");
}

#[tokio::test]
async fn a_watch_without_initial_events_begins_with_a_bookmark_where_it_joins() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut watch = sandbox.client().await.watch(watch_from_now()).await.unwrap().into_inner();
    assert_eq!(words(&next(&mut watch).await), "BOOKMARK @1");
    sandbox.put("shop", "a", r#""x":1"#).await;
    assert_eq!(words(&next(&mut watch).await), "MODIFIED a @2");
}

/// cacher `TestCacheWatcherHandlesFiltering`, over the wire.
#[tokio::test]
async fn objects_enter_and_leave_a_selection() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", r#""nodeName":"n1""#)]).await;
    let by_field = pb::WatchRequest { field_selector: "spec.nodeName=n2".to_owned(), ..watch_from_now() };
    let index = Some(pb::IndexMatch { name: "node".to_owned(), values: vec!["n2".to_owned()] });
    let by_index = pb::WatchRequest { index, ..watch_from_now() };
    for request in [by_field, by_index] {
        let mut watch = sandbox.client().await.watch(request).await.unwrap().into_inner();
        next(&mut watch).await;
        for node in ["n1", "n2", "n2", "n1"] {
            sandbox.put("shop", "a", &format!(r#""nodeName":"{node}""#)).await;
        }
        let mut seen = Vec::new();
        for _ in 0..3 {
            let response = next(&mut watch).await;
            let text = words(&response);
            seen.push(text.rsplit_once(" @").unwrap().0.to_owned());
            if response.r#type() == pb::EventType::Deleted {
                let object = response.object.unwrap();
                assert!(raw(&object).windows(2).any(|window| window == b"n2"), "the last state that matched");
                assert_eq!(object.resource_version, response.resource_version, "of the change that made it leave");
            }
        }
        assert_eq!(seen, ["ADDED ENTERED_SELECTION a", "MODIFIED a", "DELETED LEFT_SELECTION a"]);
    }
}

/// Checks that a relist is one batch, inside which no client can resume.
#[tokio::test]
async fn a_relist_is_one_batch_of_differences() {
    let before = vec![pod("shop", "gone", ""), pod("shop", "same", ""), pod("shop", "changed", "")];
    let sandbox = Sandbox::start(before.clone()).await;
    let mut watch = sandbox.client().await.watch(watch_from_now()).await.unwrap().into_inner();
    next(&mut watch).await;
    let version = informerd::model::ResourceVersion::decimal(9);
    let changed = crate::sandbox::pod_at("shop", "changed", r#""x":1"#, &version);
    let new = crate::sandbox::pod_at("shop", "new", "", &version);
    sandbox.list(vec![changed, before[1].clone(), new], 10).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(words(&next(&mut watch).await));
    }
    assert_eq!(seen, ["DELETED INFERRED gone @1", "MODIFIED changed @1", "ADDED new @10"]);
}

/// Lists at a lower version, which proves that the history was rewritten.
#[tokio::test]
async fn a_rewritten_history_ends_every_watch_and_new_ones_continue() {
    let sandbox = Sandbox::start_unsynced(Options::default()).await;
    sandbox.list(vec![pod("shop", "a", "")], 100).await;
    let mut watch = sandbox.client().await.watch(watch_pods()).await.unwrap().into_inner();
    next(&mut watch).await;
    next(&mut watch).await;
    sandbox.list(vec![pod("shop", "b", "")], 50).await;
    let error = next(&mut watch).await;
    assert_eq!(error.r#type(), pb::EventType::Error);
    let status = end(&mut watch).await;
    assert_eq!((status.code(), reason(&status).as_str()), (tonic::Code::OutOfRange, "HISTORY_CHANGED"));
    assert_eq!(error.error.unwrap().message, status.message(), "the last message is the status");

    let mut watch = sandbox.client().await.watch(watch_pods()).await.unwrap().into_inner();
    assert_eq!(words(&next(&mut watch).await), "ADDED INITIAL b");
    assert_eq!(words(&next(&mut watch).await), "BOOKMARK @50");
}

#[tokio::test]
async fn an_idle_watch_gets_bookmarks_and_ends_with_ok_at_its_timeout() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let request = pb::WatchRequest {
        bookmark_interval: Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 }),
        timeout: Some(prost_types::Duration { seconds: 0, nanos: 450_000_000 }),
        ..watch_from_now()
    };
    let mut watch = sandbox.client().await.watch(request).await.unwrap().into_inner();
    let mut bookmarks = 0;
    while let Some(response) = tokio::time::timeout(DEADLINE, watch.message()).await.unwrap().unwrap() {
        assert_eq!(words(&response), "BOOKMARK @1");
        let bookmark = response.bookmark.unwrap();
        assert!(!bookmark.initial_events_end && !bookmark.draining);
        bookmarks += 1;
    }
    assert!((2..=7).contains(&bookmarks), "one to begin with, at intervals, and one before the end: {bookmarks}");
}

/// Checks that a bookmark of the upstream advances the version, and that a watch receives it at its own interval.
#[tokio::test]
async fn a_bookmark_carries_the_version_that_everything_was_distributed_up_to() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let request = pb::WatchRequest {
        bookmark_interval: Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 }),
        label_selector: "app=none".to_owned(),
        ..watch_from_now()
    };
    let mut watch = sandbox.client().await.watch(request).await.unwrap().into_inner();
    assert_eq!(words(&next(&mut watch).await), "BOOKMARK @1");
    let version = informerd::model::ResourceVersion::decimal(77);
    sandbox.push(Event::Bookmark(version)).await;
    let reached = async { while words(&next(&mut watch).await) != "BOOKMARK @77" {} };
    tokio::time::timeout(DEADLINE, reached).await.unwrap();
}

#[tokio::test]
async fn draining_sends_every_watch_the_version_up_to_which_it_has_everything() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut client = sandbox.client().await;
    let mut all = client.watch(watch_pods()).await.unwrap().into_inner();
    let none = pb::WatchRequest { label_selector: "app=none".to_owned(), ..watch_from_now() };
    let mut none = client.watch(none).await.unwrap().into_inner();
    for _ in 0..2 {
        next(&mut all).await;
    }
    next(&mut none).await;
    sandbox.put("shop", "a", r#""x":1"#).await;
    next(&mut all).await;
    sandbox.lifecycle.draining.cancel();
    // Also one without events, which is past its last bookmark: a server that has listed since has no history from there on.
    for watch in [&mut all, &mut none] {
        let bookmark = next(watch).await;
        assert!(bookmark.bookmark.unwrap().draining);
        assert_eq!(bookmark.resource_version, "2");
        assert_eq!(next(watch).await.r#type(), pb::EventType::Error);
        let status = end(watch).await;
        assert_eq!((status.code(), reason(&status).as_str()), (tonic::Code::Unavailable, "DRAINING"));
    }
    sandbox.server_ended().await;
}

/// Checks that a client folds what it reads into the server's state, at whatever moment of a storm it joins.
#[tokio::test]
async fn watches_that_join_during_a_storm_hold_the_state_at_its_end() {
    const CHANGES: usize = 3_000;
    const WATCHES: usize = 20;
    let mut sandbox = Sandbox::start((0..50).map(|at| pod("shop", &format!("p{at}"), "")).collect()).await;
    let mut client = sandbox.client().await;
    let last = format!("{}", CHANGES + 1);
    let mut readers = tokio::task::JoinSet::new();
    for at in 0..CHANGES {
        if at % (CHANGES / WATCHES) == 0 {
            let policy = [pb::FullChannelPolicy::Block, pb::FullChannelPolicy::Replay][at % 2];
            let request = pb::WatchRequest { queue: Some(queue(policy, 100)), ..watch_pods() };
            let (mut client, last) = (client.clone(), last.clone());
            readers.spawn(async move {
                let mut watch = client.watch(request).await.unwrap().into_inner();
                let mut view = BTreeMap::new();
                loop {
                    let response = next(&mut watch).await;
                    fold(&mut view, &response);
                    if response.resource_version == last {
                        return view;
                    }
                }
            });
        }
        let name = format!("p{}", at * 7 % 60);
        let held = sandbox.informer.snapshot().unwrap();
        let key = informerd::model::ObjectKey::new("shop", &name).unwrap();
        match held.get(&key).filter(|_| at % 5 == 0) {
            Some(pod) => sandbox.delete(&pod.clone()).await,
            None => drop(sandbox.put("shop", &name, &format!(r#""n":{at}"#)).await),
        }
    }
    let version = informerd::model::ResourceVersion::decimal(CHANGES as u128 + 1);
    sandbox.reached(&version).await;
    let mut listed = BTreeMap::new();
    let request =
        pb::ListRequest { resource: "pods".to_owned(), format: pb::PayloadFormat::Raw.into(), ..Default::default() };
    let mut chunks = client.list(request).await.unwrap().into_inner();
    while let Some(chunk) = chunks.message().await.unwrap() {
        listed.extend(chunk.objects.iter().map(|object| (object.name.clone(), raw(object))));
    }
    let mut views = 0;
    while let Some(view) = readers.join_next().await {
        assert_eq!(view.unwrap(), listed, "invariant: a List at a version is the fold of a Watch up to it");
        views += 1;
    }
    assert_eq!(views, WATCHES);
}

/// Checks that a relist of the same state yields no event.
#[tokio::test]
async fn a_relist_without_a_difference_produces_nothing() {
    let pods = vec![pod("shop", "a", ""), pod("shop", "b", "")];
    let mut sandbox = Sandbox::start(pods.clone()).await;
    let mut watch = sandbox.client().await.watch(watch_from_now()).await.unwrap().into_inner();
    next(&mut watch).await;
    sandbox.list(pods, 5).await;
    for _ in 0..5 {
        sandbox.version();
    }
    sandbox.put("shop", "a", r#""x":1"#).await;
    assert_eq!(words(&next(&mut watch).await), "MODIFIED a @7");
}

#[tokio::test]
async fn a_watch_ends_when_its_client_disconnects() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut client = sandbox.client().await;
    let mut watches = Vec::new();
    for _ in 0..100 {
        watches.push(client.watch(watch_pods()).await.unwrap().into_inner());
    }
    let stats = sandbox.informer.watch_stats().unwrap();
    let open = || stats.watchers.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(open(), 100);
    drop(watches);
    let gone = async {
        while open() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("every watch is let go of");
}

/// A connection polls its watches in one task, which has a budget for its timers.
#[tokio::test]
async fn every_silent_watch_of_a_connection_with_many_gets_its_bookmarks() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let client = sandbox.client().await;
    let interval = Some(prost_types::Duration { seconds: 0, nanos: 300_000_000 });
    let request = pb::WatchRequest { bookmark_interval: interval, ..watch_from_now() };
    let opening = (0..400).map(|_| {
        let (mut client, request) = (client.clone(), request.clone());
        async move { client.watch(request).await.unwrap().into_inner() }
    });
    let mut watches = futures_util::future::join_all(opening).await;
    for round in 0..3 {
        for watch in &mut watches {
            assert_eq!(words(&next(watch).await), "BOOKMARK @1", "round {round}");
        }
    }
}
