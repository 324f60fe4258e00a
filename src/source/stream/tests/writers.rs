//! Successive writers of a named pipe: objects that the next one does not confirm.
//!
//! The clock is paused: it advances by itself when there is nothing to read.

use super::*;

/// Pause between writers; two of them are longer than [`DEFAULT_CONFIRM_AFTER`].
const A_PAUSE: Duration = Duration::from_secs(6);

/// Returns a source whose writer has written these objects and closed the pipe.
async fn left(path: &std::path::Path, names: &[&str], change: impl FnOnce(&mut StreamConfig)) -> Rig {
    let mut rig = Rig::with(path, change).await;
    write(path, "ADDED", names, 1);
    for name in names {
        assert!(rig.next().await.starts_with(&format!("+{name} ")));
    }
    rig.until(SyncState::Stale).await;
    rig
}

/// Writes these objects, as a writer that stays until the result is dropped.
fn write(path: &std::path::Path, event_type: &str, names: &[&str], at: usize) -> File {
    let mut writer = writer(path);
    let text: String = names.iter().map(|name| event(event_type, name, at)).collect();
    writer.write_all(text.as_bytes()).unwrap();
    writer
}

/// `while :; do kubectl get pods -A -w --output-watch-events -o json >pipe; done`: each writer begins with all objects.
#[tokio::test(start_paused = true)]
async fn objects_that_the_next_writer_does_not_repeat_in_time_are_deleted() {
    let (_directory, path) = fifo();
    let mut rig = left(&path, &["a", "b", "c", "d"], |_| {}).await;
    let mut second = write(&path, "ADDED", &["a"], 1);
    assert!(rig.next().await.starts_with("+a"));
    assert_eq!(rig.health.state(), SyncState::Stale, "the others are unconfirmed");
    let began = tokio::time::Instant::now();
    tokio::time::sleep(A_PAUSE).await;
    // Another one, after a pause; then events of confirmed objects, as from a busy cluster.
    second.write_all(event("MODIFIED", "c", 2).as_bytes()).unwrap();
    assert!(rig.next().await.starts_with("~c"));
    let confirmed = tokio::time::Instant::now();
    assert_eq!(confirmed - began, A_PAUSE);
    loop {
        second.write_all(event("MODIFIED", "a", 2).as_bytes()).unwrap();
        assert!(rig.next().await.starts_with("~a"));
        assert_eq!((rig.health.state(), rig.objects().await.len()), (SyncState::Stale, 4));
        if let Ok(relist) = timeout(A_PAUSE, rig.next()).await {
            assert_eq!(relist, "relist -b -d");
            break;
        }
    }
    let steps = DEFAULT_CONFIRM_AFTER..DEFAULT_CONFIRM_AFTER * 11 / 10;
    assert!(steps.contains(&confirmed.elapsed()), "{:?}", confirmed.elapsed());
    assert_eq!(rig.health.state(), SyncState::Synced);
    assert_eq!(rig.objects().await.keys().collect::<Vec<_>>(), ["a", "c"]);
    assert!(timeout(DEADLINE, rig.watch.next()).await.is_err(), "once");
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_repeats_or_confirms_everything_is_synced_at_once() {
    let (_directory, path) = fifo();
    let mut rig = left(&path, &["a", "b"], |_| {}).await;
    let mut second = write(&path, "ADDED", &["b"], 1);
    assert!(rig.next().await.starts_with("+b"));
    assert_eq!(rig.health.state(), SyncState::Stale);
    second.write_all(event("DELETED", "a", 1).as_bytes()).unwrap();
    assert_eq!(rig.next().await, "-a");
    assert_eq!(rig.health.state(), SyncState::Synced, "nothing is unconfirmed");
    drop(second);
    rig.until(SyncState::Stale).await;

    let began = tokio::time::Instant::now();
    let end = r#"{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    let mut third = write(&path, "ADDED", &["c"], 1);
    third.write_all(end.as_bytes()).unwrap();
    assert!(rig.next().await.starts_with("+c"));
    assert_eq!(rig.next().await, "relist -b");
    assert_eq!((rig.health.state(), began.elapsed()), (SyncState::Synced, Duration::ZERO));
    third.write_all(end.as_bytes()).unwrap();
    assert_eq!(rig.next().await, "bookmark", "it ends nothing a second time");
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_ends_before_confirming_leaves_everything_to_the_next_one() {
    let (_directory, path) = fifo();
    let mut rig = left(&path, &["a", "b"], |_| {}).await;
    for name in ["b", "c"] {
        drop(write(&path, "ADDED", &[name], 2));
        assert!(rig.next().await.starts_with(&format!("+{name} ")));
        assert!(timeout(DEADLINE, rig.watch.next()).await.is_err(), "nobody is there to confirm anything");
        assert_eq!((rig.health.state(), rig.objects().await.contains_key("a")), (SyncState::Stale, true));
    }
    // A writer that has opened the pipe and writes nothing yet.
    let mut last = writer(&path);
    assert!(timeout(DEADLINE, rig.watch.next()).await.is_err());
    assert_eq!(rig.health.state(), SyncState::Stale);
    last.write_all(event("ADDED", "a", 1).as_bytes()).unwrap();
    assert!(rig.next().await.starts_with("+a"));
    assert_eq!(rig.next().await, "relist -b -c");
}

/// A client under BLOCK blocks the reader, and so the writer: the pipe is full.
#[tokio::test(start_paused = true)]
async fn time_without_a_reader_is_no_silence_of_the_writer() {
    let (_directory, path) = fifo();
    let mut rig = left(&path, &["a", "b"], |_| {}).await;
    let mut second = write(&path, "ADDED", &["a"], 1);
    assert!(rig.next().await.starts_with("+a"));
    assert!(timeout(A_WHILE, rig.watch.next()).await.is_err(), "it is waited for now");
    second.write_all(event("ADDED", "c", 1).as_bytes()).unwrap();
    tokio::time::sleep(DEADLINE).await;
    assert!(rig.next().await.starts_with("+c"));
    assert!(timeout(A_WHILE, rig.watch.next()).await.is_err(), "the writer may go on now");
    second.write_all(event("ADDED", "b", 1).as_bytes()).unwrap();
    tokio::time::sleep(DEADLINE).await;
    assert!(rig.next().await.starts_with("+b"), "it was there before the time was over");
    assert_eq!(rig.health.state(), SyncState::Synced);
}

#[tokio::test(start_paused = true)]
async fn writers_that_send_changes_alone_confirm_nothing_where_that_is_configured() {
    let (_directory, path) = fifo();
    let mut rig = left(&path, &["a", "b"], |config| config.confirm_after = None).await;
    let _second = write(&path, "MODIFIED", &["a"], 2);
    assert!(rig.next().await.starts_with("~a"));
    assert_eq!(rig.health.state(), SyncState::Synced);
    assert!(timeout(DEADLINE, rig.watch.next()).await.is_err());
    assert_eq!(rig.objects().await.len(), 2);
}

/// The next writer opens the pipe before the end of the one before it was read.
#[tokio::test(start_paused = true)]
async fn the_objects_of_a_writer_that_was_replaced_unnoticed_must_be_confirmed_too() {
    let (_directory, path) = fifo();
    let mut rig = Rig::open(&path).await;
    let first = write(&path, "ADDED", &["a", "b"], 1);
    assert!(rig.next().await.starts_with("+a"));
    assert!(rig.next().await.starts_with("+b"));
    assert!(timeout(A_WHILE, rig.watch.next()).await.is_err(), "empty, and its writer is there");
    drop(first);
    // The runtime records the end, and nothing reads.
    tokio::time::sleep(A_WHILE).await;
    let second = write(&path, "ADDED", &["c"], 1);
    assert!(rig.next().await.starts_with("+c"));
    assert!(timeout(A_WHILE, rig.watch.next()).await.is_err());
    assert_eq!(rig.health.state(), SyncState::Stale);
    assert_eq!(rig.next().await, "relist -a -b");
    assert_eq!(rig.objects().await.keys().collect::<Vec<_>>(), ["c"]);
    drop(second);
    rig.until(SyncState::Stale).await;
}
