//! Detection of changes, and the lifetime of watches.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[tokio::test]
async fn an_editor_that_renames_makes_one_change() {
    let rig = Rig::new();
    rig.write("a.json", pod("a", 1));
    let mut follower = rig.follow().await;
    rig.replace("a.json", &pod("a", 2));
    assert_eq!(follower.changes(1).await, ["~a"]);
    assert_eq!(follower.body("a"), pod("a", 2));
    rig.replace("new.json", &pod("b", 1));
    assert_eq!(follower.changes(1).await, ["+b"]);
    rig.remove("a.json");
    assert_eq!(follower.changes(1).await, ["-a"]);
}

#[tokio::test]
async fn a_burst_of_changes_is_delivered_as_its_result() {
    let rig = Rig::new();
    let mut follower = rig.follow().await;
    for n in 0..50 {
        rig.write("a.json", pod("a", n));
    }
    follower.until(|follower| follower.state.get("a").is_some_and(|a| a.body() == pod("a", 49).as_bytes())).await;
    assert!(follower.seen.len() < 10, "{:?}", follower.seen);
}

#[tokio::test]
async fn directories_come_and_go_with_their_files() {
    let rig = Rig::new();
    rig.write("x/a.json", pod("a", 1));
    rig.write("x/unnamed.json", "{}");
    let mut follower = rig.follow().await;
    fs::rename(rig.path("x"), rig.path("y")).unwrap();
    assert_eq!(follower.changes(2).await, ["+y/unnamed.json", "-x/unnamed.json"], "a has the same bytes");
    rig.write("y/new/b.json", pod("b", 1));
    assert_eq!(follower.changes(1).await, ["+b"]);
    rig.write("y/new/b.json", pod("b", 2));
    assert_eq!(follower.changes(1).await, ["~b"]);
    fs::remove_dir_all(rig.path("y")).unwrap();
    assert_eq!(follower.changes(3).await, ["-a", "-b", "-y/unnamed.json"]);
}

#[tokio::test]
async fn changes_beyond_the_limit_of_marked_paths_are_all_found() {
    let rig = Rig::new();
    let mut follower = rig.follow().await;
    for n in 0..1500 {
        rig.write(&format!("{n}.json"), "{}");
    }
    follower.changes(1500).await;
    assert_eq!(follower.state.len(), 1500);
}

#[tokio::test]
async fn without_notices_the_periodic_scan_finds_everything() {
    let rig = Rig::scanning(SOON);
    rig.write("a.json", pod("a", 1));
    let mut follower = rig.follow().await;
    for n in 2..5 {
        // The same size within the clock's resolution: only the bytes differ.
        rig.write("a.json", pod("a", n));
        assert_eq!(follower.changes(1).await, ["~a"]);
    }
    rig.write("b.json", pod("b", 1));
    assert_eq!(follower.changes(1).await, ["+b"]);
    rig.remove("a.json");
    assert_eq!(follower.changes(1).await, ["-a"]);
    assert_eq!(rig.source.heartbeat(), SOON);
}

#[tokio::test]
async fn a_scan_without_changes_changes_no_version() {
    let rig = Rig::scanning(SOON);
    rig.write("a.yaml", "kind: Pod\nmetadata: {name: a, uid: u1}\n");
    rig.write("b.json", pod("b", 1));
    let mut follower = rig.follow().await;
    let before = follower.state.clone();
    for _ in 0..3 {
        follower.bookmark().await;
    }
    drop(follower);
    let list = rig.source.list(ListVersion::MostRecent).await.unwrap();
    assert_eq!(list.objects, before.into_values().collect::<Vec<_>>());
    assert_eq!((list.objects[0].uid(), list.version.number()), ("u1", 1));
    assert!(list.version.lineage().is_some());
    // A change that a list finds is an event as well, and the watch continues from there.
    rig.write("b.json", pod("b", 2));
    let list = rig.source.list(ListVersion::MostRecent).await.unwrap();
    assert_eq!((list.objects[0].version().number(), list.objects[1].version().number()), (1, 2));
    assert_eq!(list.version.number(), 2);
}

#[tokio::test]
async fn changes_between_list_and_watch_are_not_lost() {
    let rig = Rig::new();
    let list = rig.source.list(ListVersion::MostRecent).await.unwrap();
    rig.write("a.json", pod("a", 1));
    let mut watch = rig.source.watch(list.version.clone()).await.unwrap();
    // The file had no notice: it is applied when it has been unchanged for a moment.
    let mut next = async || sole_event(timeout(DEADLINE, watch.next()).await.unwrap().unwrap().unwrap());
    assert!(matches!(next().await, Event::Bookmark(_)));
    assert!(matches!(next().await, Event::Added(object) if object.key().name() == "a"));
    drop(watch);
    let expired = rig.source.watch(list.version).await.err();
    assert!(matches!(expired, Some(SourceError::Expired(_))), "the changes after it were told to another watch");
    let foreign = rig.source.watch("abc.2".parse().unwrap()).await.err();
    assert!(matches!(foreign, Some(SourceError::Expired(_))), "{foreign:?}");
}

#[tokio::test]
async fn the_next_watch_or_list_ends_the_one_before_it() {
    let rig = Rig::new();
    rig.write("a.json", pod("a", 1));
    let mut first = rig.follow().await;
    let mut second = rig.follow().await;
    assert!(timeout(DEADLINE, first.watch.next()).await.unwrap().is_none());
    rig.write("b.json", pod("b", 1));
    assert_eq!(second.changes(1).await, ["+b"]);
    rig.keys().await;
    assert!(timeout(DEADLINE, second.watch.next()).await.unwrap().is_none());
}

static SUBSCRIPTIONS: AtomicUsize = AtomicUsize::new(0);

#[tokio::test]
async fn dropping_the_watch_ends_the_notices() {
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            SUBSCRIPTIONS.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let rig = Rig::with(
        NEVER,
        |_| {},
        |_, _| {
            SUBSCRIPTIONS.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Counted))
        },
    );
    let follower = rig.follow().await;
    assert_eq!(SUBSCRIPTIONS.load(Ordering::SeqCst), 1);
    drop(follower);
    assert_eq!(SUBSCRIPTIONS.load(Ordering::SeqCst), 0);
    // In the middle of its first scan.
    let list = rig.source.list(ListVersion::MostRecent).await.unwrap();
    let mut watch = rig.source.watch(list.version).await.unwrap();
    drop(timeout(Duration::ZERO, watch.next()).await);
    drop(watch);
    rig.keys().await;
    // The list had to wait until that scan's thread released the state; its notices end with the thread's last step.
    let deadline = std::time::Instant::now() + DEADLINE;
    while SUBSCRIPTIONS.load(Ordering::SeqCst) > 0 {
        assert!(std::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
}
