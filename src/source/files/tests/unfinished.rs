//! Files that are read during a write.

use std::io::Write;

use super::*;

const TWO: &str = "metadata: {name: a}\nx: 12\n---\nmetadata: {name: b}\n";

/// Polls the watch for a time.
async fn work(follower: &mut Follower, time: Duration) {
    let until = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < until {
        drop(timeout(SOON, follower.next()).await);
    }
}

/// scp, a slow disk, `helm template >FILE`: half of two documents is one, with half a value.
#[tokio::test]
async fn a_slowly_written_file_is_applied_when_it_is_closed() {
    let rig = Rig::new();
    rig.write("all.yaml", TWO);
    let mut follower = rig.follow().await;
    let mut file = fs::File::create(rig.path("all.yaml")).unwrap();
    file.write_all(&TWO.as_bytes()[..24]).unwrap();
    work(&mut follower, Duration::from_millis(1500)).await;
    file.write_all(&TWO.as_bytes()[24..]).unwrap();
    drop(file);
    work(&mut follower, Duration::from_millis(500)).await;
    assert_eq!(follower.seen, [""; 0], "the content is the same, and was never another one");

    let mut file = fs::File::create(rig.path("new.yaml")).unwrap();
    file.write_all(b"metadata: {name: c}\nx: 1").unwrap();
    work(&mut follower, Duration::from_millis(300)).await;
    assert_eq!(follower.seen, [""; 0], "nor is half of a new file");
    file.write_all(b"2\n").unwrap();
    drop(file);
    assert_eq!(follower.changes(1).await, ["+c"]);
    assert_eq!(follower.body("c"), r#"{"metadata":{"name":"c"},"x":12}"#);
}

#[tokio::test]
async fn a_file_that_stays_open_is_read_after_some_rescans_and_is_never_seen_empty() {
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    rig.write("a.json", pod("a", 1));
    let mut follower = rig.follow().await;
    let mut file = fs::File::create(rig.path("a.json")).unwrap();
    let reports = |part: &'static str| {
        let health = rig.health.clone();
        move |_: &Follower| health.report().last_error.is_some_and(|error| error.contains(part))
    };
    follower.until(reports("a.json: file is still open for writing; read when it is closed, or after 300ms")).await;
    follower.until(reports("a.json: file is empty")).await;
    assert_eq!(follower.seen, [""; 0]);
    let text = pod("a", 2);
    file.write_all(&text.as_bytes()[..10]).unwrap();
    follower.until(reports("EOF")).await;
    assert_eq!(follower.seen, [""; 0]);
    file.write_all(&text.as_bytes()[10..]).unwrap();
    assert_eq!(follower.changes(1).await, ["~a"], "it is open still");
    assert_eq!(rig.invalid().len(), 0);
}

/// Without notices, or with a writer that closes the file in between: `cat a b >FILE`, piece by piece.
#[tokio::test]
async fn fewer_objects_are_applied_when_a_later_scan_confirms_them() {
    let rig = Rig::scanning(SOON * 10);
    rig.write("all.yaml", TWO);
    let mut follower = rig.follow().await;
    rig.write("all.yaml", &TWO[..20]);
    follower.bookmark().await;
    assert_eq!(follower.seen, [""; 0]);
    rig.write("all.yaml", TWO);
    follower.bookmark().await;
    assert_eq!(follower.seen, [""; 0]);
    rig.write("all.yaml", "metadata: {name: a}\nx: 12\n");
    assert_eq!(follower.changes(1).await, ["-b"]);
}

#[tokio::test]
async fn a_replacement_file_with_fewer_objects_is_applied_at_once() {
    let rig = Rig::new();
    rig.write("all.yaml", TWO);
    let mut follower = rig.follow().await;
    rig.replace("all.yaml", "metadata: {name: b}\n");
    assert_eq!(follower.changes(1).await, ["-a"]);
}
