use super::*;

fn files(directory: &Path, cluster: &str, user: &str) -> KubeCluster {
    let path = directory.join("config");
    let text = format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], users: [{{name: u, user: {{{user}}}}}], \
         clusters: [{{name: k, cluster: {{{cluster}}}}}]}}"
    );
    std::fs::write(&path, text).unwrap();
    KubeCluster { kubeconfig: Some(path), context: None }
}

fn headers(map: &HeaderMap) -> Vec<String> {
    let pair = |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
    map.iter().map(pair).filter(|header| !header.starts_with("user-agent")).collect()
}

#[tokio::test]
async fn a_user_becomes_the_headers_of_client_go() {
    let directory = tempfile::tempdir().unwrap();
    let server = "server: 'http://h:1'";
    for (user, expected) in [
        ("", vec![]),
        ("token: t", vec!["authorization: Bearer t"]),
        ("username: u, password: p", vec!["authorization: Basic dTpw"]),
        ("auth-provider: {name: oidc, config: {id-token: i}}", vec!["authorization: Bearer i"]),
        // Static credentials have precedence over a plugin, which does not run.
        ("token: t, exec: {command: /no/such/plugin}", vec!["authorization: Bearer t"]),
        (
            "as: me, as-uid: '7', as-groups: [a, b], as-user-extra: {Some/Key: [x, y]}",
            vec![
                "impersonate-user: me",
                "impersonate-uid: 7",
                "impersonate-group: a",
                "impersonate-group: b",
                "impersonate-extra-some%2fkey: x",
                "impersonate-extra-some%2fkey: y",
            ],
        ),
    ] {
        let access = Authenticator::new(files(directory.path(), server, user)).get(Need::Any).await.unwrap();
        assert_eq!(headers(&access.headers().await.unwrap()), expected, "{user}");
    }
}

#[tokio::test]
async fn unusable_credentials_are_reported_with_their_key() {
    let directory = tempfile::tempdir().unwrap();
    let nothing = directory.path().join("nothing");
    std::fs::write(&nothing, "").unwrap();
    let authority = format!("server: 'https://h:1', certificate-authority: {}", nothing.display());
    for (cluster, user, problem) in [
        ("server: 'ftp://h'", "", "server \"ftp://h\" of the kubeconfig: the scheme is neither"),
        ("server: 'https://'", "", "server \"https://\" of the kubeconfig: "),
        (&*authority, "", "https://h:1: the certificate authority contains no PEM certificate"),
        (
            "server: 'http://h'",
            "auth-provider: {name: gcp}",
            "auth-provider \"gcp\" of the kubeconfig is not supported",
        ),
        ("server: 'http://h'", "token: \"a\\nb\"", "the token of the kubeconfig contains a line break"),
    ] {
        let error = Authenticator::new(files(directory.path(), cluster, user)).get(Need::Any).await.err().unwrap();
        assert!(error.to_string().contains(problem), "{error}");
    }
}

/// Changed files apply to the next connection; one that is missing while it is replaced is no failure.
#[tokio::test]
async fn files_are_read_again_when_they_have_changed() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = files(directory.path(), "server: 'http://h:1'", "token: one");
    let authenticator = Authenticator::new(cluster.clone());
    let first = authenticator.get(Need::Any).await.unwrap();
    assert!(Arc::ptr_eq(&first, &authenticator.get(Need::Fresh).await.unwrap()));
    assert!(Arc::ptr_eq(&first, &authenticator.get(Need::Other(first.version)).await.unwrap()), "there is no other");
    std::fs::remove_file(directory.path().join("config")).unwrap();
    assert!(Arc::ptr_eq(&first, &authenticator.get(Need::Fresh).await.unwrap()));
    assert!(authenticator.get(Need::Other(first.version)).await.is_err());
    files(directory.path(), "server: 'http://h:1/root/'", "token: three");
    assert!(Arc::ptr_eq(&first, &authenticator.get(Need::Any).await.unwrap()), "nothing needs another");
    let second = authenticator.get(Need::Fresh).await.unwrap();
    assert_eq!(headers(&second.headers().await.unwrap()), ["authorization: Bearer three"]);
    assert_eq!((&*second.root, &*second.authority()), ("/root", "h:1"));
    assert!(Arc::ptr_eq(&second, &authenticator.get(Need::Other(first.version)).await.unwrap()));
}

/// A request may load the new contents before the check of the open connections, which are those of the old ones.
#[tokio::test]
async fn other_contents_are_noticed_whoever_loads_them_first() {
    let directory = tempfile::tempdir().unwrap();
    let write = |port: u32| files(directory.path(), &format!("server: 'http://h:{port}'"), "");
    let authenticator = Authenticator::new(write(1));
    authenticator.get(Need::Any).await.unwrap();
    let mut seen = 1;
    let mut is_checked =
        async || (authenticator.has_changed(&mut seen).await, authenticator.has_changed(&mut seen).await);
    assert_eq!(is_checked().await, (false, false));
    write(20);
    authenticator.get(Need::Fresh).await.unwrap();
    assert_eq!(is_checked().await, (true, false), "loaded before the check");
    write(300);
    assert!(is_checked().await.0);
    authenticator.get(Need::Fresh).await.unwrap();
    is_checked().await;
    assert_eq!(is_checked().await, (false, false), "loaded after the check");
    for port in [4000, 300] {
        write(port);
        authenticator.get(Need::Fresh).await.unwrap();
    }
    assert_eq!(is_checked().await, (true, false), "other ones in between");
    // The same contents, written again.
    std::fs::remove_file(directory.path().join("config")).unwrap();
    assert_eq!(is_checked().await, (false, false));
    write(300);
    authenticator.get(Need::Other(5)).await.unwrap();
    assert_eq!(is_checked().await, (false, false));
}

/// kubernetes/kubernetes#68164: a file may be removed after the start.
#[tokio::test]
async fn a_token_file_that_goes_away_leaves_its_last_token() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "t\n").unwrap();
    let cluster = files(directory.path(), "server: 'http://h:1'", "tokenFile: token");
    let access = Authenticator::new(cluster).get(Need::Any).await.unwrap();
    assert_eq!(headers(&access.headers().await.unwrap()), ["authorization: Bearer t"]);
    std::fs::remove_file(&token).unwrap();
    assert_eq!(headers(&access.headers().await.unwrap()), ["authorization: Bearer t"]);
}

/// A plugin runs again after its credentials have expired, and not before.
#[tokio::test]
async fn a_plugin_is_run_again_when_its_credentials_end() {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().join("runs");
    let credential = r#"{\"apiVersion\":\"v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t'$(wc -l <RUNS)'\",\"expirationTimestamp\":\"1970-01-01T00:00:00Z\"}}"#;
    let script = format!("echo >>RUNS; printf '{credential}'").replace("RUNS", &runs.display().to_string());
    let user = format!("exec: {{apiVersion: v1, command: sh, args: [-c, \"{script}\"]}}");
    let authenticator = Authenticator::new(files(directory.path(), "server: 'http://h:1'", &user));
    let first = authenticator.get(Need::Any).await.unwrap();
    assert_eq!(headers(&first.headers().await.unwrap()), ["authorization: Bearer t1"]);
    assert!(Arc::ptr_eq(&first, &authenticator.get(Need::Any).await.unwrap()), "a moment ago");
    tokio::time::pause();
    tokio::time::advance(PLUGIN_INTERVAL).await;
    tokio::time::resume();
    let second = authenticator.get(Need::Any).await.unwrap();
    assert_eq!(headers(&second.headers().await.unwrap()), ["authorization: Bearer t2"]);
    assert!(second.version > first.version);
}

/// A certificate may come before its key, and a new plugin may need a login: connections are still made as before. Each content is
/// tried once.
#[tokio::test]
async fn contents_that_cannot_be_used_have_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().join("runs");
    let write = |user: &str| files(directory.path(), "server: 'http://h:1'", user);
    let authenticator = Authenticator::new(write("token: one"));
    let first = authenticator.get(Need::Any).await.unwrap();
    let mut seen = 1;
    let plugin = format!("exec: {{apiVersion: v1, command: sh, args: [-c, \"echo >>{}; exit 1\"]}}", runs.display());
    for unusable in ["token: \"a\\nb\"", &plugin] {
        write(unusable);
        assert!(Arc::ptr_eq(&first, &authenticator.get(Need::Fresh).await.unwrap()));
        for _ in 0..4 {
            assert!(!authenticator.has_changed(&mut seen).await, "{unusable}");
            tokio::time::pause();
            tokio::time::advance(PLUGIN_INTERVAL).await;
            tokio::time::resume();
        }
    }
    assert_eq!(std::fs::read_to_string(&runs).unwrap().lines().count(), 1);
    write("token: another");
    assert_eq!((authenticator.has_changed(&mut seen).await, authenticator.has_changed(&mut seen).await), (true, false));
    let second = authenticator.get(Need::Any).await.unwrap();
    assert_eq!(headers(&second.headers().await.unwrap()), ["authorization: Bearer another"]);
}
