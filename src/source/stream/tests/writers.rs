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
    let mut last = writer(&path);
    assert!(timeout(A_PAUSE, rig.watch.next()).await.is_err());
    assert_eq!(rig.health.state(), SyncState::Stale);
    last.write_all(event("ADDED", "a", 1).as_bytes()).unwrap();
    assert!(rig.next().await.starts_with("+a"));
    assert_eq!(rig.next().await, "relist -b -c");
}

/// A writer of an empty cluster has nothing to write.
#[tokio::test(start_paused = true)]
async fn a_writer_that_has_opened_the_pipe_and_is_silent_confirms_in_time() {
    let (_directory, path) = fifo();
    let mut rig = left(&path, &["a", "b"], |_| {}).await;
    assert!(timeout(2 * DEFAULT_CONFIRM_AFTER, rig.watch.next()).await.is_err(), "nobody has opened it");
    let began = tokio::time::Instant::now();
    let _silent = writer(&path);
    assert_eq!(rig.next().await, "relist -a -b");
    let steps = DEFAULT_CONFIRM_AFTER..DEFAULT_CONFIRM_AFTER * 12 / 10;
    assert!(steps.contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(rig.health.state(), SyncState::Synced);
}

/// Events were lost: the writer has to repeat every object, as a new one does.
#[tokio::test(start_paused = true)]
async fn an_error_in_a_pipe_leaves_its_objects_unconfirmed() {
    let (_directory, path) = fifo();
    for (code, reason) in [(410, "Expired"), (500, "InternalError")] {
        let mut rig = Rig::open(&path).await;
        let mut kubectl = write(&path, "ADDED", &["a", "b"], 1);
        assert!(rig.next().await.starts_with("+a"));
        assert!(rig.next().await.starts_with("+b"));
        assert_eq!(rig.health.state(), SyncState::Synced);
        let status = format!(r#"{{"kind":"Status","message":"too old","reason":"{reason}","code":{code}}}"#);
        kubectl.write_all(format!(r#"{{"type":"ERROR","object":{status}}}"#).as_bytes()).unwrap();
        kubectl.write_all(event("MODIFIED", "a", 2).as_bytes()).unwrap();
        assert!(rig.next().await.starts_with("~a"));
        let report = rig.health.report();
        assert_eq!((report.state, report.problems), (SyncState::Stale, 1), "{code}: {report:?}");
        assert!(report.last_error.unwrap().starts_with("2 objects not confirmed yet"), "{code}");
        assert_eq!(rig.next().await, "relist -b", "{code}");
        assert_eq!(rig.health.report().problems, 0, "{code}");
        assert_eq!(rig.health.state(), SyncState::Synced, "{code}");
        drop(kubectl);
    }
}

/// Nothing that cannot be read is absent: it may be any object.
#[tokio::test(start_paused = true)]
async fn a_writer_with_an_unreadable_event_confirms_the_absence_of_nothing() {
    let (_directory, path) = fifo();
    let mut rig = left(&path, &["a", "b"], |_| {}).await;
    let mut second = write(&path, "ADDED", &["a"], 1);
    second.write_all(br#"{"type":"ADDED","object":{"metadata":{"name":7}}}"#).unwrap();
    second
        .write_all(br#"{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#)
        .unwrap();
    assert!(rig.next().await.starts_with("+a"));
    assert!(timeout(3 * DEFAULT_CONFIRM_AFTER, rig.watch.next()).await.is_err());
    let names: Vec<_> = rig.objects().await.into_keys().collect();
    assert_eq!((rig.health.state(), names), (SyncState::Stale, vec!["a".to_owned(), "b".to_owned()]));
    assert!(rig.health.problems().iter().any(|problem| problem.reason == ProblemReason::ObjectInvalid));
    drop(second);
    assert!(timeout(A_PAUSE, rig.watch.next()).await.is_err(), "its end is noticed");
    let _third = write(&path, "ADDED", &["a"], 1);
    assert!(rig.next().await.starts_with("+a"));
    assert_eq!(rig.next().await, "relist -b", "the next one has no such event");
}

/// The half of an event may be of any object, whether the rest of it is still to come or not.
#[tokio::test(start_paused = true)]
async fn a_writer_whose_event_broke_off_confirms_the_absence_of_nothing() {
    let (_directory, path) = fifo();
    let mut rig = left(&path, &["a", "b", "c"], |_| {}).await;
    let mut second = write(&path, "ADDED", &["a"], 1);
    assert!(rig.next().await.starts_with("+a"));
    let half = event("ADDED", "b", 1);
    let (half, rest) = half.split_at(half.find("{\"metadata").unwrap());
    second.write_all(half.as_bytes()).unwrap();
    assert!(timeout(3 * DEFAULT_CONFIRM_AFTER, rig.watch.next()).await.is_err(), "the rest may come");
    second.write_all(rest.as_bytes()).unwrap();
    assert!(rig.next().await.starts_with("+b"));
    assert_eq!(rig.next().await, "relist -c");

    drop(second);
    rig.until(SyncState::Stale).await;
    let mut third = writer(&path);
    let end = r#"{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    third.write_all(format!("{}\n{}{end}", &half[..20], event("ADDED", "a", 1)).as_bytes()).unwrap();
    assert!(rig.next().await.starts_with("+a"));
    assert!(timeout(3 * DEFAULT_CONFIRM_AFTER, rig.watch.next()).await.is_err());
    assert_eq!((rig.health.state(), rig.objects().await.len()), (SyncState::Stale, 2));
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

/// The events between the last time that the pipe was empty and the change of writers may be of either.
#[tokio::test(start_paused = true)]
async fn an_event_that_may_be_of_a_writer_that_came_unnoticed_counts_if_it_cannot_be_read() {
    let unreadable = r#"{"type":"ADDED","object":{"metadata":{"name":7}}}"#;
    let half = event("ADDED", "d", 1);
    for (of_first, of_second, is_deleted) in [("", unreadable, false), (&half[..20], "", false), (unreadable, "", true)]
    {
        let (_directory, path) = fifo();
        let mut rig = Rig::open(&path).await;
        let mut first = write(&path, "ADDED", &["a", "b"], 1);
        first.write_all(of_first.as_bytes()).unwrap();
        assert!(rig.next().await.starts_with("+a"));
        assert!(rig.next().await.starts_with("+b"));
        assert!(timeout(A_WHILE, rig.watch.next()).await.is_err(), "empty, and its writer is there");
        drop(first);
        tokio::time::sleep(A_WHILE).await;
        let mut second = writer(&path);
        let text = format!("{of_second}{}\n{}", event("ADDED", "b", 1), event("ADDED", "c", 1));
        second.write_all(text.as_bytes()).unwrap();
        while !rig.next().await.starts_with("+c") {}
        let outcome = timeout(DEFAULT_CONFIRM_AFTER * 3 / 2, rig.next()).await.ok();
        assert_eq!(outcome, is_deleted.then(|| "relist -a".to_owned()), "{of_first:?} {of_second:?}");
    }
}
