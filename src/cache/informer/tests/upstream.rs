//! What an upstream proves, and what it is told.

use super::*;

/// Invariant 14: a list that is ahead, and cannot be of the same history; and one that is told to be of another.
#[tokio::test(start_paused = true)]
async fn a_list_that_contradicts_what_is_held_ends_every_watch() {
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
        let mut cursor = running.watch().await.cursor.unwrap();
        running.list(objects, version(9)).await;
        assert_eq!(taken(&mut cursor).await, ["HistoryChanged"], "{what}");
    }
    let running = Running::start();
    running.list(vec![object("a", 1), object("b", 2)], version(3)).await;
    let mut cursor = running.watch().await.cursor.unwrap();
    running.list(vec![object("a", 1), object("b", 4), object("c", 4)], version(9)).await;
    assert_eq!(taken(&mut cursor).await.len(), 2, "what is newer contradicts nothing");
    assert_eq!(count(&running.handle.stats().rewinds), 0);

    let epoch = running.handle.epoch();
    running.fifo.push(Delta::Rewind(List::new(vec![object("a", 1)], version(10)))).await;
    running.reach(&version(10)).await;
    assert_eq!(taken(&mut cursor).await, ["HistoryChanged"]);
    assert!(running.handle.epoch() > epoch);
}

/// Invariant 13: the source is told for as long as somebody waits, and not of those who need not.
#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_version_is_a_demand() {
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let demand = running.handle.health().demand().clone();
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
