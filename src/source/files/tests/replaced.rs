//! Directories that are removed and created again, as a whole or in part: files that reappear are not deleted.

use std::process::Command;

use super::*;

/// Polls the watch for a number of rescans; only bookmarks may come.
async fn nothing_happens(follower: &mut Follower, rescans: u32) {
    let until = tokio::time::Instant::now() + SOON * rescans;
    while tokio::time::Instant::now() < until {
        drop(timeout(SOON, follower.next()).await);
    }
    assert_eq!(follower.seen, [""; 0]);
}

/// A volume that is unmounted leaves its mount point: an empty directory at the same path.
#[tokio::test]
async fn a_volume_that_is_unmounted_deletes_nothing() {
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    let mount = || Command::new("mount").args(["-t", "tmpfs", "none"]).arg(rig.path("")).status();
    let unmount = || assert!(Command::new("umount").arg("-l").arg(rig.path("")).status().unwrap().success());
    if !mount().is_ok_and(|status| status.success()) {
        eprintln!("not tested: mounting is not allowed here");
        return;
    }
    rig.write("a.json", pod("a", 1));
    rig.write("b.json", pod("b", 1));
    let mut follower = rig.follow().await;
    unmount();
    nothing_happens(&mut follower, 20).await;
    assert_eq!(follower.state.len(), 2);
    let error = rig.health.report().last_error.unwrap();
    assert!(error.contains("without manifests, as when a volume is unmounted; mount it"), "{error}");

    // Another volume is mounted, in which one of the files is missing.
    assert!(mount().unwrap().success());
    rig.write("a.json", pod("a", 2));
    assert_eq!(follower.changes(2).await, ["~a", "-b"]);
    follower.bookmark().await;
    assert_eq!(rig.health.report().state, crate::cache::SyncState::Stale, "as no Reflector runs");
    drop(follower);
    unmount();
}

#[tokio::test]
async fn a_volume_below_the_directory_that_is_unmounted_deletes_nothing() {
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    rig.write("a.json", pod("a", 1));
    let volume = rig.path("volume");
    fs::create_dir(&volume).unwrap();
    let mount = || Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&volume).status();
    let unmount = || assert!(Command::new("umount").arg("-l").arg(&volume).status().unwrap().success());
    if !mount().is_ok_and(|status| status.success()) {
        eprintln!("not tested: mounting is not allowed here");
        return;
    }
    rig.write("volume/b.json", pod("b", 1));
    rig.write("volume/sub/c.json", pod("c", 1));
    let mut follower = rig.follow().await;
    unmount();
    nothing_happens(&mut follower, 10).await;
    assert!(
        rig.problem().starts_with("volume/: volume unmounted, its objects are kept; mount it"),
        "{}",
        rig.problem()
    );
    // Another volume, which is empty at first.
    assert!(mount().unwrap().success());
    nothing_happens(&mut follower, 10).await;
    rig.write("volume/b.json", pod("b", 2));
    assert_eq!(follower.changes(2).await, ["~b", "-c"]);
    follower.bookmark().await;
    assert_eq!(rig.invalid(), [""; 0]);
    unmount();
    nothing_happens(&mut follower, 10).await;
    fs::remove_dir(&volume).unwrap();
    assert_eq!(follower.changes(1).await, ["-b"]);
}

/// A single file of a `ConfigMap` (`subPath`): the mount point is an empty file.
#[tokio::test]
async fn a_single_file_that_is_unmounted_deletes_nothing() {
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    let (source, file) = (rig.dir.path().join("source.json"), rig.path("a.json"));
    fs::write(&source, pod("a", 1)).unwrap();
    fs::write(&file, "").unwrap();
    let mounted = Command::new("mount").arg("--bind").args([&source, &file]).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("not tested: mounting is not allowed here");
        return;
    }
    let mut follower = rig.follow().await;
    assert_eq!(follower.state.len(), 1);
    fs::write(&source, pod("a", 2)).unwrap();
    assert_eq!(follower.changes(1).await, ["~a"]);
    assert!(Command::new("umount").arg("-l").arg(&file).status().unwrap().success());
    nothing_happens(&mut follower, 10).await;
    assert!(rig.problem().starts_with("a.json: file is empty"), "{}", rig.problem());
}

#[tokio::test]
async fn an_empty_directory_in_the_place_of_the_one_that_was_served_deletes_nothing() {
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    rig.write("a.json", pod("a", 1));
    rig.write("b.json", pod("b", 1));
    let mut follower = rig.follow().await;
    fs::rename(rig.path(""), rig.dir.path().join("old")).unwrap();
    fs::create_dir(rig.path("")).unwrap();
    fs::write(rig.path("README.md"), "no manifest").unwrap();
    nothing_happens(&mut follower, 20).await;
    assert_eq!(follower.state.len(), 2);
    fs::remove_dir_all(rig.path("")).unwrap();
    fs::rename(rig.dir.path().join("old"), rig.path("")).unwrap();
    follower.bookmark().await;
    assert_eq!(follower.seen, [""; 0], "the old one is back");
    rig.remove("a.json");
    assert_eq!(follower.changes(1).await, ["-a"], "and a deletion in it is one");
}

/// Deployments run `rm -rf DIRECTORY && git clone REPOSITORY DIRECTORY`.
#[tokio::test]
async fn a_directory_that_is_cloned_again_changes_by_the_difference() {
    let rig = Rig::with(Duration::from_secs(2), |config| config.quiet = DEFAULT_QUIET, notices::subscribe);
    let repository = rig.dir.path().join("repository");
    let git = |script: &str| {
        let script = format!("set -e; {script}");
        let status = Command::new("sh")
            .args(["-c", &script])
            .envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_SYSTEM", "/dev/null")])
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "test")))
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "test@localhost")))
            .env("repository", &repository)
            .env("root", rig.path(""))
            .status();
        assert!(status.unwrap().success());
    };
    git("git init -q \"$repository\"");
    for n in 0..200 {
        fs::create_dir_all(repository.join(format!("dir{}", n % 10))).unwrap();
        fs::write(repository.join(format!("dir{}/{n}.json", n % 10)), pod(&format!("pod-{n:03}"), 1)).unwrap();
    }
    git("cd \"$repository\"; git add .; git commit -qm one; rm -rf \"$root\"; git clone -q \"$repository\" \"$root\"");
    let mut follower = rig.follow().await;
    assert_eq!(follower.state.len(), 200);

    fs::write(repository.join("dir1/1.json"), pod("pod-001", 2)).unwrap();
    fs::remove_file(repository.join("dir2/2.json")).unwrap();
    fs::remove_file(repository.join("dir3/3.json")).unwrap();
    fs::rename(repository.join("dir4"), repository.join("moved")).unwrap();
    fs::write(repository.join("new.json"), pod("pod-new", 1)).unwrap();
    git(
        "cd \"$repository\"; git add -A .; git commit -qm two; rm -rf \"$root\"; git clone -q \"$repository\" \"$root\"",
    );
    let mut changes = follower.changes(4).await;
    // A scan during the clone finds a part of the files; nothing is deleted before all are known.
    changes[..2].sort_unstable();
    assert_eq!(changes, ["+pod-new", "~pod-001", "-pod-002", "-pod-003"]);
    follower.bookmark().await;
    assert_eq!(follower.seen, [""; 0]);
    rig.remove("new.json");
    assert_eq!(follower.changes(1).await, ["-pod-new"]);
}

/// Writes a version of a volume and swaps its link, as the kubelet's `AtomicWriter` does: a link beside, a rename, and the
/// removal of the old directory.
fn swap(root: &Path, below: &str, at: u32, files: u32) {
    let data = root.join(format!("..{at}")).join(below);
    fs::create_dir_all(&data).unwrap();
    for n in 0..files {
        fs::write(data.join(format!("{n:03}.json")), pod(&n.to_string(), 1)).unwrap();
    }
    let link = root.join("..data_tmp");
    std::os::unix::fs::symlink(format!("..{at}"), &link).unwrap();
    fs::rename(link, root.join("..data")).unwrap();
    if at > 0 {
        fs::remove_dir_all(root.join(format!("..{}", at - 1))).unwrap();
    }
}

/// Swaps a volume again and again, always with the same content. Returns the events.
async fn swapped(rig: &Rig, below: &'static str, files: u32, swaps: u32) -> Vec<String> {
    let mut follower = rig.follow().await;
    assert_eq!(follower.state.len(), files as usize);
    for at in 1..=swaps {
        let root = rig.path("");
        let swapping = tokio::task::spawn_blocking(move || swap(&root, below, at, files));
        while !swapping.is_finished() {
            drop(timeout(Duration::from_millis(20), follower.next()).await);
        }
        swapping.await.unwrap();
        drop(timeout(Duration::from_millis(u64::from(at % 7)), follower.next()).await);
    }
    follower.seen
}

/// A volume of a `ConfigMap` with `items: [{path: sub/..}]`: one link, to a directory. A swap falls into the middle of a walk
/// only by chance; a test of `engine` does not depend on that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_swapped_while_it_is_read_deletes_nothing() {
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    swap(&rig.path(""), "sub", 0, 300);
    rig.link("..data/sub", "sub");
    assert_eq!(swapped(&rig, "sub", 300, 30).await, [""; 0]);
}

/// The usual shape: one link for each file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_links_that_is_swapped_while_it_is_read_deletes_nothing() {
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    swap(&rig.path(""), "", 0, 50);
    for n in 0..50 {
        rig.link(format!("..data/{n:03}.json"), &format!("{n:03}.json"));
    }
    assert_eq!(swapped(&rig, "", 50, 100).await, [""; 0]);
}
