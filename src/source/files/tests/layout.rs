//! Files and directories that count as manifests of the directory, and those that do not.

use std::{os::unix::net::UnixListener, process::Command};

use super::*;

#[tokio::test]
async fn manifests_are_read_in_any_directory_and_dotfiles_nowhere() {
    let rig = Rig::new();
    for path in ["a.json", "b.yaml", "sub/deep/c.yml", "x.json/d.json"] {
        rig.write(path, r#"{"a":1}"#);
    }
    for path in [".a.json", ".git/a.json", "sub/..2024/a.yaml", "README.md", "a.yaml~", "a.yaml.bak", "json"] {
        rig.write(path, pod("no", path));
    }
    assert_eq!(rig.keys().await, ["a.json", "b.yaml", "sub/deep/c.yml", "x.json/d.json"]);
    assert_eq!(rig.invalid().len(), 0);
}

/// Only the name of the link is a key; the volume's own directories begin with dots.
#[tokio::test]
async fn a_config_map_volume_is_served_and_its_swap_is_a_change() {
    let rig = Rig::new();
    let version = |at: &str, a: &str| {
        rig.write(&format!("..{at}/a.yaml"), a);
        rig.write(&format!("..{at}/b.yaml"), pod("b", "same"));
        let data = rig.path("..data_tmp");
        std::os::unix::fs::symlink(format!("..{at}"), &data).unwrap();
        fs::rename(data, rig.path("..data")).unwrap();
    };
    version("2024_11_20", &pod("a", 1));
    rig.link("..data/a.yaml", "a.yaml");
    rig.link("..data/b.yaml", "b.yaml");
    let mut follower = rig.follow().await;
    assert_eq!(follower.state.keys().collect::<Vec<_>>(), ["a", "b"]);
    let untouched = follower.state["b"].clone();

    version("2024_11_21", &pod("a", 2));
    fs::remove_dir_all(rig.path("..2024_11_20")).unwrap();
    assert_eq!(follower.changes(1).await, ["~a"]);
    assert!(follower.body("a").contains("\"2\""));
    assert!(Arc::ptr_eq(&follower.state["b"], &untouched), "the same bytes in another file");

    version("2024_11_22", &pod("a", 3));
    assert_eq!(follower.changes(1).await, ["~a"], "a second swap is noticed as well");
    assert_eq!(rig.invalid().len(), 0);
}

#[tokio::test]
async fn a_link_out_of_the_directory_is_refused() {
    let rig = Rig::new();
    fs::write(rig.dir.path().join("secret.json"), pod("secret", 1)).unwrap();
    fs::create_dir(rig.dir.path().join("root-2")).unwrap();
    fs::write(rig.dir.path().join("root-2/secret.json"), pod("secret", 1)).unwrap();
    rig.write("dir/a.json", pod("a", 1));
    rig.link("../secret.json", "relative.json");
    rig.link(rig.dir.path().join("secret.json"), "absolute.json");
    rig.link("../root-2", "directory");
    rig.link("relative.json", "chain.json");
    assert_eq!(rig.keys().await, ["a"]);
    let report = rig.health.report();
    assert_eq!(report.problems, 4);
    let expected = "absolute.json: the symbolic link leaves the directory; not followed";
    assert_eq!(report.last_error.as_deref(), Some(expected));
}

#[tokio::test]
async fn a_link_that_turns_outwards_loses_its_objects() {
    let rig = Rig::new();
    fs::write(rig.dir.path().join("secret.json"), pod("secret", 1)).unwrap();
    rig.write("data.txt", pod("a", 1));
    rig.link("data.txt", "a.json");
    let mut follower = rig.follow().await;
    assert_eq!(follower.state.keys().collect::<Vec<_>>(), ["a"]);
    rig.remove("a.json");
    rig.link("../secret.json", "a.json");
    assert_eq!(follower.changes(1).await, ["-a"]);
    assert!(rig.problem().contains("leaves the directory"));
}

#[tokio::test]
async fn cycles_of_links_end() {
    let rig = Rig::new();
    rig.write("dir/a.json", "{}");
    rig.write("other/b.json", "{}");
    rig.link(".", "self");
    rig.link("..", "dir/up");
    rig.link("../other", "dir/other");
    rig.link("../dir", "other/dir");
    rig.link("loop.json", "loop.json");
    // Each directory is reached by its own name and once through the other; a link back is not followed.
    assert_eq!(rig.keys().await, ["dir/a.json", "dir/other/b.json", "other/b.json", "other/dir/a.json"]);
    let problems = rig.invalid();
    assert_eq!(problems.len(), 6, "{problems:?}");
    assert!(
        problems.contains(&"dir/other/dir: the symbolic link points to a directory above it; not followed".to_owned())
    );
    let error = rig.health.report().last_error.unwrap();
    assert!(error.contains("keep theirs: ./loop.json/: cannot be read: "), "{error}");
}

#[tokio::test]
async fn a_link_to_nothing_is_reported() {
    let rig = Rig::new();
    rig.link("none", "a.json");
    rig.link("none", "not-a-manifest");
    assert_eq!(rig.keys().await, [""; 0]);
    assert_eq!(rig.problem(), "a.json: the target of the symbolic link does not exist");
}

#[tokio::test]
async fn only_regular_files_are_opened() {
    let rig = Rig::new();
    rig.write("a.json", pod("a", 1));
    assert!(Command::new("mkfifo").arg(rig.path("pipe.json")).status().unwrap().success());
    let _socket = UnixListener::bind(rig.path("socket.json")).unwrap();
    rig.link("pipe.json", "link.json");
    rig.link("/dev/zero", "zero.json");
    let keys = timeout(DEADLINE, rig.keys()).await.expect("opening a FIFO would wait for its writer");
    assert_eq!(keys, ["a"]);

    let mut follower = rig.follow().await;
    rig.remove("a.json");
    assert!(Command::new("mkfifo").arg(rig.path("a.json")).status().unwrap().success());
    assert_eq!(follower.changes(1).await, ["-a"]);
}

#[tokio::test]
async fn directories_are_followed_to_a_bounded_depth() {
    let rig = Rig::new();
    let deep = |levels: usize| "d/".repeat(levels);
    rig.write(&format!("{}a.json", deep(31)), pod("a", 1));
    rig.write(&format!("{}b.json", deep(32)), pod("b", 1));
    assert_eq!(rig.keys().await, ["a"]);
    assert!(rig.problem().ends_with("nested too deeply (limit: 32 directories); not read"), "{}", rig.problem());
}

#[tokio::test]
async fn a_name_that_is_not_utf_8_is_reported() {
    use std::os::unix::ffi::OsStrExt;
    let rig = Rig::new();
    let name = std::ffi::OsStr::from_bytes(b"\xff\n.json");
    fs::write(rig.path("").join(name), pod("a", 1)).unwrap();
    assert_eq!(rig.keys().await, [""; 0]);
    assert_eq!(rig.problem(), "\u{fffd}\\n.json: name is not UTF-8; rename it");
}

#[test]
fn beyond_the_limit_of_entries_known_files_stay() {
    use super::super::{
        catalog::Catalog,
        root::Root,
        scan::{Pending, Scanner, may_hold},
    };
    let rig = Rig::new();
    for n in 0..5 {
        rig.write(&format!("{n}.json"), "{}");
    }
    let (root, catalog) = (Root::open(&rig.path("")).unwrap(), Catalog::new("a".into()));
    let token = tokio_util::sync::CancellationToken::new();
    let config = FilesConfig { rescan: NEVER, ..FilesConfig::new(".", "test") };
    let pending = Pending::new();
    let scanner = || Scanner::new(&root, &catalog, &config, &pending, None, &token);
    let scan = scanner().with_max_entries(3).walk().unwrap();
    assert_eq!((scan.seen.len(), scan.problems.len()), (3, 1));
    assert!(may_hold(&scan.unknown, "any.json"));
    let scan = scanner().with_max_entries(5).walk().unwrap();
    assert_eq!((scan.seen.len(), scan.problems.len()), (5, 0));
    assert!(!may_hold(&scan.unknown, "any.json"));
}
