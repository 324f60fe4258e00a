//! Outages: the directory itself is removed, created again or replaced.

use super::*;
use crate::cache::SyncState;

#[tokio::test]
async fn a_missing_directory_deletes_nothing() {
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    rig.write("a.json", pod("a", 1));
    rig.write("b.json", pod("b", 1));
    let mut follower = rig.follow().await;
    fs::rename(rig.path(""), rig.dir.path().join("away")).unwrap();
    follower.until(|_| rig.health.has_failed()).await;
    let error = rig.health.report().last_error.unwrap();
    assert!(error.ends_with("does not exist; create it, or correct the path"), "{error}");
    // A step or two of the periodic scan: no event, and no contact.
    assert!(timeout(SOON * 4, follower.next()).await.is_err());

    rig.write("a.json", pod("a", 2));
    rig.write("c.json", pod("c", 1));
    assert_eq!(follower.changes(3).await, ["~a", "+c", "-b"], "back, with ordinary changes; deletions wait");
    follower.bookmark().await;
    rig.write("c.json", pod("c", 2));
    assert_eq!(follower.changes(1).await, ["~c"]);
}

#[tokio::test]
async fn removing_the_directory_with_everything_in_it_deletes_nothing() {
    let rig = Rig::scanning(SOON);
    for n in 0..20 {
        rig.write(&format!("sub/{n:02}.json"), pod(&n.to_string(), 1));
    }
    let mut follower = rig.follow().await;
    // There is no scan while the watch is not polled.
    fs::remove_dir_all(rig.path("")).unwrap();
    follower.until(|_| rig.health.has_failed()).await;
    assert_eq!((follower.state.len(), follower.seen.len()), (20, 0));
}

#[tokio::test]
async fn notices_continue_when_the_directory_is_created_again() {
    // After the notice of the removal there are no others, only the periodic scan: so a short interval.
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    rig.write("a.json", pod("a", 1));
    let mut follower = rig.follow().await;
    fs::rename(rig.path(""), rig.dir.path().join("old")).unwrap();
    fs::create_dir(rig.path("")).unwrap();
    rig.write("a.json", pod("a", 2));
    follower.until(|follower| follower.body("a") == pod("a", 2)).await;
    // Changes in the old directory have no effect any more.
    fs::write(rig.dir.path().join("old/a.json"), pod("a", 3)).unwrap();
    rig.write("b.json", pod("b", 1));
    follower.until(|follower| follower.state.contains_key("b")).await;
    assert_eq!(follower.body("a"), pod("a", 2));
}

#[tokio::test]
async fn a_replaced_directory_is_subscribed_to_again() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let rig = Rig::with(
        SOON,
        |_| {},
        |path, dirty| {
            COUNT.fetch_add(1, Ordering::SeqCst);
            notices::subscribe(path, dirty)
        },
    );
    let mut follower = rig.follow().await;
    follower.bookmark().await;
    assert_eq!(COUNT.load(Ordering::SeqCst), 1, "scans alone do not subscribe again");
    fs::rename(rig.path(""), rig.dir.path().join("old")).unwrap();
    fs::create_dir(rig.path("")).unwrap();
    follower.until(|_| COUNT.load(Ordering::SeqCst) == 2).await;
}

/// Absent for a moment, just at the subscription: that is not a limit of the system, after which the next attempt is a minute
/// later.
#[tokio::test]
async fn a_directory_missing_at_its_subscription_has_notices_once_it_exists() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let rig = Rig::with(
        SOON,
        |_| {},
        |path, dirty| {
            // The root, then a directory below it.
            let gone = match COUNT.fetch_add(1, Ordering::SeqCst) {
                0 => path.to_owned(),
                1 => path.join("sub"),
                _ => return notices::subscribe(path, dirty),
            };
            let aside = path.with_extension("aside");
            fs::rename(&gone, &aside).unwrap();
            let subscribed = notices::subscribe(&gone, dirty);
            fs::rename(&aside, &gone).unwrap();
            subscribed
        },
    );
    rig.write("sub/a.json", pod("a", 1));
    let mut follower = rig.follow().await;
    follower.until(|_| COUNT.load(Ordering::SeqCst) == 3 && rig.health.problems().is_empty()).await;
    assert_eq!((follower.state.len(), follower.seen.len()), (1, 0));
}

/// Such a root is a symbolic link to a release: `current -> releases/7`.
#[tokio::test]
async fn a_root_that_is_a_link_is_followed_when_it_is_swapped() {
    let rig = Rig::with(SOON, |config| config.path = config.path.with_file_name("current"), notices::subscribe);
    let current = rig.dir.path().join("current");
    fs::create_dir(rig.dir.path().join("next")).unwrap();
    fs::write(rig.dir.path().join("next/a.json"), pod("a", 2)).unwrap();
    rig.write("a.json", pod("a", 1));
    std::os::unix::fs::symlink("root", &current).unwrap();
    let mut follower = rig.follow().await;
    std::os::unix::fs::symlink("next", rig.dir.path().join("tmp")).unwrap();
    fs::rename(rig.dir.path().join("tmp"), &current).unwrap();
    assert_eq!(follower.changes(1).await, ["~a"]);
}

#[tokio::test]
async fn a_list_without_the_directory_fails_with_the_remedy() {
    let rig = Rig::new();
    fs::remove_dir(rig.path("")).unwrap();
    let error = rig.source.list(ListVersion::Any).await.unwrap_err();
    assert!(matches!(&error, SourceError::Unavailable(text) if text.contains("does not exist; create it")), "{error}");
    assert_eq!(rig.health.report().state, SyncState::Stale);
    rig.write("a.json", pod("a", 1));
    let list = rig.source.list(ListVersion::Any).await.unwrap();
    assert_eq!((list.objects.len(), list.version.number()), (1, 1));
    assert!(FilesSource::check(&rig.path("")).is_ok());
    let error = FilesSource::check(&rig.path("a.json")).unwrap_err().to_string();
    assert!(error.contains("is not a directory; name the directory that holds the manifests"), "{error}");
}

/// Under root, which may read everything, the test does nothing.
#[tokio::test]
async fn objects_of_unreadable_files_are_kept() {
    use std::os::unix::fs::PermissionsExt;
    let rig = Rig::scanning(SOON);
    rig.write("a.json", pod("a", 1));
    rig.write("sub/b.json", pod("b", 1));
    let mode = |path: &str, mode| fs::set_permissions(rig.path(path), fs::Permissions::from_mode(mode)).unwrap();
    mode("sub", 0o000);
    let is_root = fs::read_dir(rig.path("sub")).is_ok();
    mode("sub", 0o755);
    if is_root {
        return;
    }
    let mut follower = rig.follow().await;
    for locked in ["sub", "a.json"] {
        mode(locked, 0o000);
        follower.until(|_| rig.invalid().len() == 1).await;
        assert!(rig.problem().contains("denied"), "{}", rig.problem());
        follower.bookmark().await;
        mode(locked, 0o755);
        follower.until(|_| rig.invalid().is_empty()).await;
    }
    mode("", 0o000);
    follower.until(|_| rig.health.has_failed()).await;
    mode("", 0o755);
    follower.bookmark().await;
    assert_eq!(follower.seen.len(), 0);
}
