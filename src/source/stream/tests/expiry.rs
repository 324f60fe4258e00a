//! Objects that expire unless the stream reports them again.
//!
//! The clock is paused: it advances by itself when there is nothing to read.

use tokio::time::Instant;

use super::*;

const TTL: Duration = Duration::from_secs(10);

fn with_ttl(config: &mut StreamConfig) {
    config.ttl = Some(TTL);
}

fn write(mut writer: &File, event_type: &str, name: &str) {
    writer.write_all(event(event_type, name, 1).as_bytes()).unwrap();
}

/// Checks that an object that was reported at a time expires within a second after its time to live.
fn assert_expired_in_time(reported: Instant) {
    let age = reported.elapsed();
    assert!(age > TTL && age < TTL + Duration::from_secs(1), "{age:?}");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_not_reported_again_expires() {
    let (_directory, path) = fifo();
    let mut rig = Rig::with(&path, with_ttl).await;
    let pipe = writer(&path);
    let begun = Instant::now();
    for name in ["a", "b", "c"] {
        write(&pipe, "ADDED", name);
        assert!(rig.next().await.starts_with(&format!("+{name}")));
    }
    write(&pipe, "DELETED", "c");
    assert_eq!(rig.next().await, "-c");
    assert!(timeout(TTL / 2, rig.watch.next()).await.is_err());
    let renewed = Instant::now();
    write(&pipe, "ADDED", "b");
    assert!(rig.next().await.starts_with("+b"), "the same bytes renew it");
    assert_eq!(rig.next().await, "^a");
    assert_expired_in_time(begun);
    assert_eq!(rig.health.state(), SyncState::Synced);
    assert_eq!(rig.objects().await.keys().collect::<Vec<_>>(), ["b"]);
    assert_eq!(rig.next().await, "^b");
    assert_expired_in_time(renewed);
    assert!(timeout(10 * TTL, rig.watch.next()).await.is_err(), "each once");
    write(&pipe, "ADDED", "a");
    assert!(rig.next().await.starts_with("+a"));
    assert_eq!(rig.next().await, "^a");
}

#[tokio::test(start_paused = true)]
async fn the_deletion_of_an_earlier_object_leaves_the_later_one_its_time() {
    let (_directory, path) = fifo();
    let mut rig = Rig::with(&path, with_ttl).await;
    let mut pipe = writer(&path);
    let begun = Instant::now();
    for (event_type, uid) in [("ADDED", 2), ("DELETED", 1)] {
        let object = format!(r#"{{"metadata":{{"name":"a","uid":"{uid}"}}}}"#);
        write!(pipe, r#"{{"type":"{event_type}","object":{object}}}"#).unwrap();
        rig.next().await;
    }
    assert_eq!(rig.objects().await.len(), 1);
    assert_eq!(rig.next().await, "^a");
    assert_expired_in_time(begun);
}

#[tokio::test(start_paused = true)]
async fn objects_expire_while_others_are_reported_all_the_time() {
    let (_directory, path) = fifo();
    let mut rig = Rig::with(&path, with_ttl).await;
    let pipe = writer(&path);
    let begun = Instant::now();
    write(&pipe, "ADDED", "silent");
    loop {
        write(&pipe, "MODIFIED", "busy");
        if rig.next().await == "^silent" {
            break;
        }
        assert!(begun.elapsed() < 2 * TTL);
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    assert_expired_in_time(begun);
}

#[tokio::test(start_paused = true)]
async fn objects_expire_after_the_end_of_the_stream_too() {
    let (_directory, path) = file([event("ADDED", "a", 1), event("ADDED", "b", 1)].concat());
    let mut rig = Rig::with(&path, with_ttl).await;
    let begun = Instant::now();
    assert_eq!(rig.all().await.len(), 2);
    let Delta::Changes { events, closes: true } = rig.watch.next().await.unwrap().unwrap() else { panic!() };
    assert!(events.iter().all(|event| matches!(event, Event::Removed(_, _))) && events.len() == 2, "one batch");
    assert_expired_in_time(begun);
    assert_eq!(rig.health.state(), SyncState::Stale);
}

#[tokio::test(start_paused = true)]
async fn a_writer_need_not_confirm_what_has_expired() {
    let (_directory, path) = fifo();
    let mut rig = Rig::with(&path, |config| {
        with_ttl(config);
        config.confirm_after = Some(10 * TTL);
    })
    .await;
    let first = writer(&path);
    write(&first, "ADDED", "a");
    assert!(rig.next().await.starts_with("+a"));
    assert!(timeout(TTL / 2, rig.watch.next()).await.is_err());
    write(&first, "ADDED", "b");
    assert!(rig.next().await.starts_with("+b"));
    drop(first);
    rig.until(SyncState::Stale).await;
    let second = writer(&path);
    write(&second, "ADDED", "b");
    assert!(rig.next().await.starts_with("+b"));
    assert_eq!(rig.health.state(), SyncState::Stale, "a is unconfirmed");
    assert_eq!(rig.next().await, "^a");
    assert_eq!(rig.health.state(), SyncState::Synced);
}

/// As after a suspension of the machine, or under a client that blocks the reader.
#[tokio::test(start_paused = true)]
async fn an_object_whose_report_waits_in_the_input_does_not_expire() {
    let (_directory, path) = fifo();
    let mut rig = Rig::with(&path, with_ttl).await;
    let pipe = writer(&path);
    write(&pipe, "ADDED", "a");
    assert!(rig.next().await.starts_with("+a"));
    write(&pipe, "ADDED", "a");
    tokio::time::advance(2 * TTL).await;
    assert!(rig.next().await.starts_with("+a"));
    let renewed = Instant::now();
    assert_eq!(rig.next().await, "^a");
    assert_expired_in_time(renewed);
}
