//! Start with the snapshot of the previous run.

use super::*;

fn begun() -> Running {
    begun_with(List::new(vec![object("a", 3), object("b", 7)], version(10)))
}

fn begun_with(list: List) -> Running {
    let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(5));
    let (mut informer, handle) = Informer::new(Arc::clone(&fifo), health, config());
    informer.begin_warm(list);
    Running { fifo, handle, task: tokio::spawn(informer.run()) }
}

fn after(running: &Running, number: u128) -> Result<Joined<Deliveries>, JoinError> {
    running.handle.join(&Start::After(version(number)), replay())
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_served_at_once_and_stale_until_contact() {
    let running = begun();
    let snapshot = running.handle.snapshot().unwrap();
    assert_eq!((snapshot.len(), snapshot.version()), (2, &version(10)));
    assert_eq!(running.handle.distributed().unwrap().version, version(10));
    assert_eq!(running.handle.state(), SyncState::Stale);
    assert_eq!(count(&running.handle.stats().replaces), 0, "nothing was listed");
    running.handle.health().record_contact();
    assert_eq!(running.handle.state(), SyncState::Synced);
}

/// The history before the snapshot is unknown, and that after it is still empty.
#[tokio::test(start_paused = true)]
async fn the_version_of_a_snapshot_and_later_ones_can_be_resumed_from() {
    let running = begun();
    for number in [1, 3, 7, 9] {
        let error = after(&running, number).unwrap_err();
        assert_eq!(error, JoinError::Expired { oldest: version(10), current: version(10) });
    }
    assert_eq!(after(&running, 12).unwrap_err(), JoinError::TooLarge { current: version(10) });
    let mut joined = after(&running, 10).unwrap();
    running.apply(put("b", 12)).await;
    running.apply(put("c", 15)).await;
    assert_eq!(taken(&mut joined.cursor).await, ["~b 12", "+c 15"]);
    // A client that has seen 12 before resumes from there.
    for (number, missed) in [(12, "+c 15"), (10, "~b 12 +c 15")] {
        let mut cursor = after(&running, number).unwrap().cursor;
        assert_eq!(taken(&mut cursor).await.join(" "), missed);
    }
    assert!(matches!(after(&running, 9), Err(JoinError::Expired { .. })));
}

/// Bookmarks lead the version of a snapshot over that of its last change, which may be all that a client has.
#[tokio::test(start_paused = true)]
async fn a_snapshot_can_be_resumed_from_the_last_change_before_it() {
    let running = Running::start();
    running.list(vec![object("a", 3)], version(10)).await;
    let unchanged_since = async || {
        let (reply, checkpoint) = oneshot::channel();
        running.fifo.push(Delta::Checkpoint { proof: Bytes::new(), reply }).await;
        checkpoint.await.unwrap().unchanged_since
    };
    for event in [put("b", 12), Event::Bookmark(version(20))] {
        running.apply(event).await;
        assert_eq!(unchanged_since().await, version(12));
    }
    // Whoever has the version of a transaction, or of an object of a relist, may lack the rest of it.
    let transaction = Delta::Changes { events: vec![put("c", 22), put("d", 22)].into(), closes: true };
    let relist = Delta::Relist(vec![put("e", 35), put("f", 38), Event::Bookmark(version(39))], Cause::Inferred);
    for (delta, bookmark) in [(transaction, version(30)), (relist, version(50))] {
        running.fifo.push(delta).await;
        running.apply(Event::Bookmark(bookmark.clone())).await;
        assert_eq!(unchanged_since().await, bookmark);
    }
    let list = |since| List { unchanged_since: Some(since), ..List::new(vec![object("a", 3)], version(20)) };
    let running = begun_with(list(version(12)));
    for number in [3, 11] {
        let error = after(&running, number).unwrap_err();
        assert_eq!(error, JoinError::Expired { oldest: version(12), current: version(20) });
    }
    let mut joined: Vec<_> = [12, 15, 20].map(|number| after(&running, number).unwrap()).into();
    running.apply(put("b", 22)).await;
    for joined in &mut joined {
        assert_eq!(taken(&mut joined.cursor).await, ["+b 22"]);
    }
    let running = begun_with(list("other.12".parse().unwrap()));
    assert!(after(&running, 12).is_err() && after(&running, 20).is_ok(), "of another lineage");
}

#[tokio::test(start_paused = true)]
async fn a_list_after_a_snapshot_is_applied_as_a_difference_and_leaves_a_gap() {
    let running = begun();
    let mut cursor = running.watch().cursor;
    running.list(vec![object("b", 7), object("c", 17)], version(20)).await;
    assert_eq!(taken(&mut cursor).await, ["-a 10 inferred", "+c 20"]);
    assert!(after(&running, 10).is_ok());
    assert!(matches!(after(&running, 15), Err(JoinError::Expired { .. })), "inside the gap");
    assert!(after(&running, 20).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_rewritten_history_ends_the_watches_of_a_snapshot() {
    for rewind in [
        Delta::HistoryRewritten(List::new(vec![object("a", 3)], version(30))),
        Delta::Replace(List::new(vec![object("a", 3)], version(9))),
        Delta::Replace(List::new(vec![object("a", 4), object("b", 7)], version(30))),
    ] {
        let running = begun();
        let (mut cursor, history_id) = (running.watch().cursor, running.handle.history_id());
        let at = rewind.version().unwrap().clone();
        running.fifo.push(rewind).await;
        running.reach(&at).await;
        assert_eq!(taken(&mut cursor).await, ["HistoryRewritten"]);
        assert!(running.handle.history_id() > history_id);
        assert_eq!(count(&running.handle.stats().history_rewrites), 1);
    }
}

/// The previous run may have sent its clients changes above 10, and the list hides their outcome.
#[tokio::test(start_paused = true)]
async fn a_list_that_expires_older_versions_ends_every_watch_but_not_the_history() {
    let list = |at| List { expires_older: true, ..List::new(vec![object("a", 3), object("b", 7)], version(at)) };
    let running = begun();
    let (mut cursor, history_id) = (after(&running, 10).unwrap().cursor, running.handle.history_id());
    running.fifo.push(Delta::Replace(list(10))).await;
    settle().await;
    assert_eq!(taken(&mut cursor).await, [""; 0], "nothing is between 10 and 10");
    let reached = (*running.handle.distributed().unwrap()).clone();
    let before = running.handle.snapshot().unwrap();
    running.fifo.push(Delta::Replace(list(20))).await;
    running.reach(&version(20)).await;
    let replaced = running.handle.snapshot().unwrap().replaced_bytes();
    assert_eq!(replaced, before.replaced_bytes() + before.size(), "who still holds that is charged");
    assert_eq!(taken(&mut cursor).await, ["Expired { oldest: 20 }"]);
    let expired = JoinError::Expired { oldest: version(20), current: version(20) };
    for start in [Start::After(version(10)), Start::After(version(15))] {
        assert_eq!(running.handle.join(&start, replay()).unwrap_err(), expired);
    }
    let mut before = running.handle.cursor_at(replay(), reached, false);
    assert_eq!(taken(&mut before).await, ["Expired { oldest: 20 }"]);
    assert_eq!((running.handle.history_id(), count(&running.handle.stats().history_rewrites)), (history_id, 0));
    let mut resumed = after(&running, 20).unwrap().cursor;
    let at_offset = running.handle.distributed().unwrap();
    running.apply(put("c", 21)).await;
    assert_eq!(taken(&mut resumed).await, ["+c 21"]);
    let mut again = running.handle.cursor_at(replay(), (*at_offset).clone(), false);
    assert_eq!(taken(&mut again).await, ["+c 21"]);
}
