//! Items of lists that cannot be read: what is held of them stays, and what is not held is no deletion for clients of an earlier run.

use super::*;
use crate::cache::UnreadableItem;

fn item(name: &str) -> UnreadableItem {
    UnreadableItem { key: ObjectKey::new("", name).ok(), uid: String::new() }
}

impl Running {
    async fn list_with(&self, objects: &[(&str, u128)], unreadable: Vec<UnreadableItem>, at: u128) {
        let objects = objects.iter().map(|(name, version)| object(name, *version)).collect();
        let list = List { unreadable, ..List::new(objects, version(at)) };
        self.fifo.push(Delta::Replace(list)).await;
        self.reach(&version(at)).await;
        self.handle.health().record_contact();
    }

    /// Returns true if a client with this version has to wait.
    fn waits(&self, number: u128) -> bool {
        let snapshot = self.handle.snapshot().unwrap();
        self.handle.health().may_lack(&version(number), Some(snapshot.version()))
    }

    fn subjects(&self) -> Vec<String> {
        self.handle.health().problems().into_iter().map(|problem| problem.subject).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn clients_of_an_earlier_run_wait_until_the_items_of_the_first_list_are_read_or_deleted() {
    let running = Running::start();
    running.list_with(&[("a", 1)], vec![item("b"), item("c"), item("d")], 20).await;
    assert_eq!((running.handle.state(), running.subjects()), (SyncState::Stale, vec!["b".to_owned()]));
    assert!(running.waits(19) && !running.waits(20), "a client with the version of the list has a state of this run");
    assert!(running.handle.health().may_lack(&"abc.7".parse().unwrap(), Some(&version(20))), "another lineage");
    running.apply(put("b", 21)).await;
    assert_eq!(running.subjects(), ["c"], "one after the other");
    running.apply(Event::Deleted(object("c", 22))).await;
    assert!(running.waits(19));
    running.list_with(&[("a", 1), ("b", 21), ("d", 2)], vec![item("a")], 23).await;
    assert_eq!((running.handle.state(), running.subjects()), (SyncState::Synced, vec![]));
    assert!(!running.waits(19));
    assert_eq!(count(&running.handle.stats().history_rewrites), 0, "d was there before, and could not be read");
    running.list_with(&[("b", 21), ("d", 2)], vec![item("a"), item("e")], 24).await;
    assert_eq!(running.handle.snapshot().unwrap().len(), 3, "what is held of a stays");
    assert_eq!(running.handle.state(), SyncState::Synced, "only the first list of a run has clients of an earlier one");
}

#[tokio::test(start_paused = true)]
async fn an_item_of_which_the_snapshot_has_a_state_is_served_and_nobody_waits() {
    let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(5));
    let (mut informer, handle) = Informer::new(Arc::clone(&fifo), health, config());
    informer.begin_warm(List::new(vec![object("a", 3), object("b", 7)], version(10)));
    let running = Running { fifo, handle, task: tokio::spawn(informer.run()) };
    running.list_with(&[("a", 3)], vec![item("b"), item("c")], 20).await;
    assert_eq!((running.handle.snapshot().unwrap().len(), running.subjects()), (2, vec!["c".to_owned()]));
    assert!(running.waits(15));
    running.list_with(&[("a", 3), ("c", 21)], vec![item("b")], 21).await;
    assert_eq!((running.handle.snapshot().unwrap().len(), running.handle.state()), (3, SyncState::Synced));
}

/// An item without a key and a uid may be any object, however many events there are.
#[tokio::test(start_paused = true)]
async fn an_item_without_identity_is_unread_until_a_list_without_it() {
    let running = Running::start();
    running.list_with(&[("a", 1)], vec![UnreadableItem::default()], 20).await;
    running.apply(put("b", 21)).await;
    assert!(running.waits(19));
    running.list_with(&[("a", 1), ("b", 21), ("c", 2)], vec![], 22).await;
    assert!(!running.waits(19));
    assert_eq!(count(&running.handle.stats().history_rewrites), 0, "c was there before, and could not be read");
}

#[tokio::test(start_paused = true)]
async fn an_item_without_a_key_is_known_by_its_uid() {
    let with_uid = |name: &str, number: u128| {
        let body = format!(r#"{{"metadata":{{"name":"{name}","uid":"u-{name}"}}}}"#);
        Arc::new(Object::from_json(Bytes::from(body), "", version(number)).unwrap())
    };
    let of_uid = |uid: &str| UnreadableItem { key: None, uid: uid.to_owned() };
    let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(5));
    let (mut informer, handle) = Informer::new(Arc::clone(&fifo), health, config());
    informer.begin_warm(List::new(vec![with_uid("a", 3)], version(10)));
    let running = Running { fifo, handle, task: tokio::spawn(informer.run()) };
    running.list_with(&[], vec![of_uid("u-a"), of_uid("u-b")], 20).await;
    assert_eq!((running.handle.snapshot().unwrap().len(), running.subjects()), (1, vec!["uid u-b".to_owned()]));
    assert!(running.waits(15));
    running.apply(Event::Added(with_uid("b", 21))).await;
    assert!(!running.waits(15) && running.subjects().is_empty());
}

/// The list ends every watch, because of what the previous run may have sent ahead.
#[tokio::test(start_paused = true)]
async fn what_is_held_of_an_item_stays_when_older_versions_expire() {
    let running = Running::start();
    running.list_with(&[("a", 1), ("b", 1)], vec![], 20).await;
    let list =
        List { unreadable: vec![item("b")], expires_older: true, ..List::new(vec![object("a", 1)], version(25)) };
    running.fifo.push(Delta::Replace(list)).await;
    running.reach(&version(25)).await;
    assert_eq!(running.handle.snapshot().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_state_that_is_not_there_yet_has_its_reason() {
    let running = Running::start();
    running.handle.health().record_contact();
    let report = running.handle.report();
    assert_eq!((report.state, report.last_error.is_some()), (SyncState::Syncing, true));
    running.list(vec![object("a", 1)], version(5)).await;
    let report = running.handle.report();
    assert_eq!((report.state, report.last_error), (SyncState::Synced, None));
}

/// Versions of the history before say nothing: clients of that replace what they have, and nobody waits for its items.
#[tokio::test(start_paused = true)]
async fn the_items_of_a_rewritten_history_are_those_of_its_list() {
    for rewind in [Delta::HistoryRewritten, Delta::Replace] {
        let running = Running::start();
        running.list_with(&[("a", 1)], vec![item("b")], 20).await;
        running.fifo.push(rewind(List::new(vec![object("a", 1)], version(10)))).await;
        running.reach(&version(10)).await;
        running.handle.health().record_contact();
        assert_eq!((running.handle.state(), running.subjects()), (SyncState::Synced, vec![]));
        assert!(!running.waits(15));

        let list = List { unreadable: vec![item("c")], ..List::new(vec![object("a", 1)], version(5)) };
        running.fifo.push(rewind(list)).await;
        running.reach(&version(5)).await;
        assert_eq!(running.subjects(), ["c"]);
        assert!(running.waits(4) && !running.waits(7), "of this history");
    }
}

/// The proof comes with an event, and there is no list of the new history.
#[tokio::test(start_paused = true)]
async fn unread_items_stay_if_an_event_proves_that_the_history_was_rewritten() {
    let of_uid = UnreadableItem { key: None, uid: "u-b".to_owned() };
    let items = [(item("b"), "b"), (of_uid, "uid u-b"), (UnreadableItem::default(), "an item of the first list")];
    for (item, subject) in items {
        let running = Running::start();
        running.list_with(&[("a", 1)], vec![item.clone()], 20).await;
        let ahead = [Event::Modified(object("a", 32)), Event::Bookmark(version(20))];
        running.fifo.push(Delta::transaction(ahead)).await;
        running.list_with(&[("a", 1)], vec![item], 25).await;
        running.apply(Event::Bookmark(version(40))).await;
        assert_eq!(count(&running.handle.stats().history_rewrites), 1, "the change at 32 was not repeated");
        assert_eq!(running.subjects(), [subject]);
        assert!(running.waits(39) && !running.waits(40), "{subject}");
    }
}

/// A snapshot that is served until the first list.
#[tokio::test(start_paused = true)]
async fn an_unreadable_item_of_the_list_that_rewrites_a_snapshot_is_unread() {
    let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(5));
    let (mut informer, handle) = Informer::new(Arc::clone(&fifo), health, config());
    informer.begin_warm(List::new(vec![object("a", 3)], version(10)));
    let running = Running { fifo, handle, task: tokio::spawn(informer.run()) };
    let list = List { unreadable: vec![item("c")], ..List::new(vec![object("a", 3)], version(5)) };
    running.fifo.push(Delta::HistoryRewritten(list)).await;
    running.reach(&version(5)).await;
    assert_eq!(running.subjects(), ["c"]);
}
