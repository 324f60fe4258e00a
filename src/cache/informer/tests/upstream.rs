//! Reactions to proofs of the upstream, and requests to it.

use super::*;

/// A newer list that cannot be of the same history, and one that the source reports to be of another.
#[tokio::test(start_paused = true)]
async fn a_list_that_contradicts_the_held_state_ends_every_watch() {
    let other_body =
        |name: &str, number| Arc::new(Object::from_json(Bytes::from_static(b"[]"), name, version(number)).unwrap());
    let contradictions = [
        ("other bytes at the same version", vec![object("a", 1), other_body("b", 2)]),
        ("an older version than is held", vec![object("a", 1), object("b", 1)]),
        ("an old object that was never there", vec![object("a", 1), object("b", 2), object("c", 2)]),
    ];
    for (what, objects) in contradictions {
        let running = Running::start();
        running.list(vec![object("a", 1), object("b", 2)], version(3)).await;
        let mut cursor = running.watch().cursor;
        running.list(objects, version(9)).await;
        assert_eq!(taken(&mut cursor).await, ["HistoryRewritten"], "{what}");
    }
    let running = Running::start();
    running.list(vec![object("a", 1), object("b", 2)], version(3)).await;
    let mut cursor = running.watch().cursor;
    running.list(vec![object("a", 1), object("b", 4), object("c", 4)], version(9)).await;
    assert_eq!(taken(&mut cursor).await.len(), 2, "what is newer contradicts nothing");
    assert_eq!(count(&running.handle.stats().history_rewrites), 0);

    let history_id = running.handle.history_id();
    running.fifo.push(Delta::HistoryRewritten(List::new(vec![object("a", 1)], version(10)))).await;
    running.reach(&version(10)).await;
    assert_eq!(taken(&mut cursor).await, ["HistoryRewritten"]);
    assert!(running.handle.history_id() > history_id);
}

/// A list older than the applied version reverts nothing, and the watch from it has to repeat the changes ahead of it.
#[tokio::test(start_paused = true)]
async fn changes_ahead_of_a_list_stay_until_repeated_or_prove_a_rewritten_history() {
    let ahead = |event, safe| Delta::transaction([event, Event::Bookmark(version(safe))]);
    let listed = || vec![object("a", 1), object("b", 2)];
    for (what, repeats, expected) in [
        ("all of it", [Event::Modified(object("a", 12)), Event::Deleted(object("b", 14))], vec!["+d 30"]),
        (
            "not the deletion",
            [Event::Modified(object("a", 12)), Event::Added(object("c", 14))],
            vec!["HistoryRewritten"],
        ),
        ("not the change", [Event::Deleted(object("b", 14)), Event::Added(object("c", 14))], vec!["HistoryRewritten"]),
    ] {
        let running = Running::start();
        running.list(listed(), version(3)).await;
        let mut cursor = running.watch().cursor;
        running.fifo.push(ahead(Event::Modified(object("a", 12)), 3)).await;
        running.fifo.push(ahead(Event::Deleted(object("b", 14)), 3)).await;
        settle().await;
        assert_eq!(taken(&mut cursor).await, ["~a 3", "-b 3"]);
        running.list(listed(), version(5)).await;
        // Changes from before the applied change of the object.
        running.fifo.push(ahead(Event::Modified(object("a", 8)), 5)).await;
        for event in repeats {
            running.fifo.push(ahead(event, 5)).await;
        }
        running.apply(Event::Bookmark(version(20))).await;
        running.apply(Event::Added(object("d", 30))).await;
        assert_eq!(taken(&mut cursor).await, expected, "{what}");
        let snapshot = running.handle.snapshot().unwrap();
        let held: Vec<String> =
            snapshot.objects(None, None).map(|object| format!("{}={}", object.key(), object.version())).collect();
        let expected = match what {
            "all of it" => "a=12 d=30",
            "not the deletion" => "a=12 b=2 c=14 d=30",
            _ => "a=8 c=14 d=30",
        };
        assert_eq!(held.join(" "), expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn changes_ahead_that_a_list_shows_need_not_be_repeated() {
    let ahead = |event, safe| Delta::transaction([event, Event::Bookmark(version(safe))]);
    let running = Running::start();
    running.list(vec![object("a", 1), object("b", 2)], version(3)).await;
    let mut cursor = running.watch().cursor;
    running.fifo.push(ahead(Event::Modified(object("a", 12)), 3)).await;
    running.fifo.push(ahead(Event::Deleted(object("b", 14)), 3)).await;
    settle().await;
    assert_eq!(taken(&mut cursor).await, ["~a 3", "-b 3"]);
    running.list(vec![object("a", 12)], version(5)).await;
    running.apply(Event::Bookmark(version(20))).await;
    running.apply(put("d", 30)).await;
    assert_eq!(taken(&mut cursor).await, ["+d 30"]);
}

/// Only the events that report it count.
#[tokio::test(start_paused = true)]
async fn changes_of_objects_that_can_no_longer_be_served_are_counted() {
    let running = Running::start();
    running.list(vec![object("a", 1), object("b", 1)], version(3)).await;
    running.apply(put("a", 4)).await;
    running.apply(put("b", 5)).await;
    running.apply(Event::NotServed(object("a", 6))).await;
    assert_eq!((count(&running.handle.stats().not_served), count(&running.handle.stats().changes)), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn watches_are_woken_when_the_state_of_the_source_changes_and_only_then() {
    let running = Running::start();
    let health = running.handle.health().clone();
    health.record_contact();
    assert_eq!(running.handle.report().state, SyncState::Syncing, "nothing can be read yet");
    running.list(Vec::new(), version(1)).await;
    assert_eq!(running.handle.report().state, SyncState::Synced);
    let mut notify_seq = Vec::new();
    for (seconds, is_alive) in [(3, false), (10, false), (3, false), (0, true), (3, false)] {
        if is_alive {
            health.record_contact();
        }
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        notify_seq.push(running.handle.notify_seq());
    }
    assert_eq!(notify_seq, [0, 1, 1, 1, 2], "it turned stale after ten seconds, and was alive again");
}

/// The check runs on each state that has the awaited change, and on the first one of another history.
#[tokio::test(start_paused = true)]
async fn a_waiter_for_a_version_is_woken_by_it_or_by_a_rewritten_history() {
    let running = Running::start();
    running.list(vec![object("a", 1)], version(90)).await;
    let (handle, asked) = (running.handle.clone(), Arc::new(AtomicU64::new(0)));
    let counts = Arc::clone(&asked);
    let waiting = tokio::spawn(async move {
        let is_rewritten = |snapshot: &Snapshot| {
            counts.fetch_add(1, Ordering::Relaxed);
            snapshot.version() < &version(90)
        };
        handle.wait_for(1000, is_rewritten).await
    });
    settle().await;
    running.apply(put("a", 91)).await;
    assert_eq!(count(&asked), 1, "not about a version below the one that it waits for");
    running.list(vec![object("a", 1)], version(50)).await;
    assert_eq!(waiting.await.unwrap().version(), &version(50));
}

/// The demand lasts for as long as a caller waits, and a caller with a sufficient state adds none.
#[tokio::test(start_paused = true)]
async fn a_waiter_for_a_version_counts_as_demand() {
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let demand = running.handle.demand().clone();
    running.handle.wait_for(0, |_| true).await;
    assert!(!demand.is_wanted());
    let handle = running.handle.clone();
    let waiting = tokio::spawn(async move { handle.wait_for(0, |snapshot| snapshot.version() >= &version(2)).await });
    settle().await;
    assert!(demand.is_wanted());
    running.apply(Event::Bookmark(version(2))).await;
    waiting.await.unwrap();
    assert!(!demand.is_wanted());
}

/// Contact alone says nothing about the state: the upstream may be behind, and the queue full. Neither a source that reports nothing
/// on request is waited for, nor an upstream that does not respond.
#[tokio::test(start_paused = true)]
async fn a_state_has_caught_up_once_it_has_a_version_that_the_upstream_confirms() {
    let timeout = Duration::from_secs(1);
    let running = Running::configured(InformerConfig { demand: ProgressDemand::met(), ..config() });
    running.list(Vec::new(), version(1)).await;
    let (handle, demand) = (running.handle.clone(), running.handle.demand().clone());
    demand.confirm(Instant::now() - Duration::from_millis(1), version(1));
    let caught_up = tokio::spawn(async move { handle.catch_up(timeout).await });
    settle().await;
    assert!(demand.is_wanted());
    for _ in 0..3 {
        running.handle.health().record_contact();
        tokio::time::advance(Duration::from_millis(30)).await;
        settle().await;
    }
    assert!(!caught_up.is_finished(), "the confirmation is of an earlier request");
    demand.confirm(Instant::now(), version(2));
    settle().await;
    assert!(!caught_up.is_finished(), "the state is at 1");
    running.apply(Event::Bookmark(version(2))).await;
    settle().await;
    assert!(caught_up.await.unwrap() && !demand.is_wanted());

    tokio::time::advance(Duration::from_millis(1)).await;
    let begun = Instant::now();
    assert!(!running.handle.catch_up(timeout).await);
    assert_eq!(begun.elapsed(), timeout);
    assert!(!Running::start().handle.catch_up(timeout).await);
    assert_eq!(begun.elapsed(), timeout);
}
