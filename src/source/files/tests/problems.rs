//! Content that cannot be served as it is, and content that is more than one object.

use super::*;

/// Each of these contents keeps all earlier objects.
#[tokio::test]
async fn a_file_that_cannot_be_parsed_keeps_its_last_good_objects() {
    let rig = Rig::new();
    rig.write("a.yaml", "kind: Pod\nmetadata: {name: a}\n");
    rig.write("b.json", pod("b", 1));
    let mut follower = rig.follow().await;
    let garbage: Vec<u8> = (0..=255).cycle().take(4096).collect();
    let bomb = (1..12).fold(String::from("a0: &a0 [x]\n"), |text, n| {
        format!("{text}a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(","))
    });
    for (path, text) in [
        ("a.yaml", b"kind: Pod\nmetadata: {name: a".to_vec()),
        ("a.yaml", garbage.clone()),
        ("a.yaml", bomb.into_bytes()),
        ("a.yaml", b"kind: Pod\nmetadata: {name: [a]}".to_vec()),
        ("b.json", br#"{"kind":"Pod","meta"#.to_vec()),
        ("b.json", garbage),
        ("b.json", b" \n".to_vec()),
    ] {
        let mended = fs::read(rig.path(path)).unwrap();
        rig.write(path, text);
        follower.until(|_| rig.invalid().len() == 1).await;
        let problem = rig.problem();
        assert!(problem.starts_with(&format!("{path}: ")) && problem.ends_with("objects are kept"), "{problem}");
        assert!(!problem.contains('\n') && problem.len() < 400, "{problem}");
        rig.write(path, mended);
        follower.until(|_| rig.invalid().is_empty()).await;
    }
    assert_eq!(follower.seen.len(), 0, "{:?}", follower.seen);
    assert_eq!(rig.keys().await, ["a", "b"]);
}

#[tokio::test]
async fn a_directory_without_manifests_is_reported_until_it_has_one() {
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    rig.write("README.md", "none");
    let mut follower = rig.follow().await;
    let error = rig.health.report().last_error.unwrap();
    assert!(error.ends_with("has no .json, .yaml or .yml file: mount its volume, or correct the path"), "{error}");
    // As if its volume is mounted at last.
    fs::rename(rig.path(""), rig.dir.path().join("below")).unwrap();
    rig.write("a.json", pod("a", 1));
    assert_eq!(follower.changes(1).await, ["+a"]);
    follower.bookmark().await;
    assert_eq!(rig.health.problems(), []);
    rig.remove("a.json");
    assert_eq!(follower.changes(1).await, ["-a"]);
    follower.bookmark().await;
    assert_eq!(rig.health.problems(), [], "deletions made it empty");
}

#[tokio::test]
async fn a_directory_without_the_kind_is_reported_until_it_has_one() {
    let rig = Rig::with(SOON, |config| config.kind = Some("Pods".to_owned()), notices::subscribe);
    rig.write("a.json", pod("a", 1));
    let mut follower = rig.follow().await;
    let error = rig.health.report().last_error.unwrap();
    assert!(error.ends_with("has no object of kind \"Pods\": write it as the files do"), "{error}");
    rig.write("b.json", pod("b", 1).replace("Pod", "Pods"));
    assert_eq!(follower.changes(1).await, ["+b"]);
    follower.bookmark().await;
    assert_eq!(rig.health.problems(), []);
}

#[tokio::test]
async fn a_failed_subscription_is_reported() {
    let rig = Rig::scanning(SOON);
    rig.write("a.json", pod("a", 1));
    rig.follow().await;
    let problems = rig.health.problems();
    assert_eq!((problems.len(), problems[0].reason), (1, ProblemReason::NotificationsUnavailable));
    let message = "change notifications are incomplete, a scan every 50ms finds the rest: no notices here; \
                   the directory is scanned at its interval";
    assert_eq!(problems[0].message, message);
}

#[tokio::test]
async fn a_file_that_is_too_large_is_not_read() {
    let rig = Rig::new();
    rig.write("a.json", pod("a", 1));
    let mut follower = rig.follow().await;
    let file = fs::OpenOptions::new().write(true).open(rig.path("a.json")).unwrap();
    file.set_len(100 << 20).unwrap();
    drop(file);
    follower.until(|_| rig.invalid().len() == 1).await;
    let expected = "a.json: file too large (limit: 67108864 bytes); split it; its last good objects are kept";
    assert_eq!(rig.problem(), expected);
    rig.write("a.json", format!("{{\"x\":{:?}}}", "x".repeat(4 << 20)));
    follower.until(|_| rig.problem().contains("gRPC clients")).await;
    rig.write("a.json", pod("a", 2));
    assert_eq!(follower.changes(1).await, ["~a"]);
}

#[tokio::test]
async fn of_two_objects_with_one_key_the_first_path_wins_until_it_goes() {
    let rig = Rig::new();
    rig.write("b.json", pod("x", "second"));
    rig.write("a.json", pod("x", "first"));
    let mut follower = rig.follow().await;
    assert_eq!(follower.body("x"), pod("x", "first"));
    assert_eq!(rig.problem(), "b.json: x is also in a.json, which comes first and is served");
    rig.remove("a.json");
    assert_eq!(follower.changes(1).await, ["~x"]);
    assert_eq!(follower.body("x"), pod("x", "second"));
    assert_eq!(rig.invalid().len(), 0);
    rig.write("0.json", pod("x", "third"));
    assert_eq!(follower.changes(1).await, ["~x"]);
    rig.remove("b.json");
    follower.until(|_| rig.invalid().is_empty()).await;
    assert_eq!(follower.seen.len(), 0);
}

#[tokio::test]
async fn only_objects_of_the_configured_kind_are_served() {
    let rig = Rig::of_kind("pod");
    rig.write("a.yaml", "kind: Pod\nmetadata: {name: x}\n---\nkind: Service\nmetadata: {name: x}\n");
    let mut follower = rig.follow().await;
    assert_eq!(follower.state.keys().collect::<Vec<_>>(), ["x"]);
    rig.replace("a.yaml", "kind: Service\nmetadata: {name: x}\n");
    assert_eq!(follower.changes(1).await, ["-x"]);
    assert_eq!(rig.invalid().len(), 0);
}

#[tokio::test]
async fn a_list_is_served_as_its_items() {
    let rig = Rig::new();
    rig.write("all.json", format!(r#"{{"apiVersion":"v1","kind":"List","items":[{},{}]}}"#, pod("a", 1), pod("b", 1)));
    let mut follower = rig.follow().await;
    rig.write("all.json", format!(r#"{{"apiVersion":"v1","kind":"List","items":[{},{}]}}"#, pod("a", 1), pod("c", 1)));
    assert_eq!(follower.changes(2).await, ["+c", "-b"], "a deletion is certain a moment later");
}

#[tokio::test]
async fn objects_without_a_name_are_keyed_by_their_path() {
    let rig = Rig::new();
    rig.write("dir/flags.yaml", "on: true\n---\nmetadata: {name: named, namespace: shop}\n---\n[1]\n");
    rig.write("raw.json", " [1, 2] \n");
    assert_eq!(rig.keys().await, ["dir/flags.yaml", "dir/flags.yaml#2", "raw.json", "shop/named"]);
    let mut follower = rig.follow().await;
    fs::remove_dir_all(rig.path("dir")).unwrap();
    follower.changes(3).await;
    assert_eq!(rig.body().await, "[1, 2]", "JSON is served as it is written");
}
