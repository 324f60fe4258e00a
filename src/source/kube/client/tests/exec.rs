use super::*;

fn exec(script: &str) -> ExecConfig {
    ExecConfig {
        api_version: "client.authentication.k8s.io/v1".to_owned(),
        command: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        ..ExecConfig::default()
    }
}

fn printed(status: &str) -> String {
    format!(
        "echo '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{status}}}'"
    )
}

async fn problem(exec: &ExecConfig) -> String {
    run(exec, &Cluster::default()).await.err().unwrap()
}

#[tokio::test]
async fn a_plugin_returns_a_token_or_a_certificate_with_its_expiry() {
    let status = r#"{"token":" t\n","expirationTimestamp":"1970-01-01T00:01:40.5Z"}"#;
    let credential = run(&exec(&printed(status)), &Cluster::default()).await.unwrap();
    assert_eq!((credential.token.as_deref(), credential.expires_at), (Some("t"), Some(100)));
    let status = r#"{"clientCertificateData":"c","clientKeyData":"k","expirationTimestamp":null}"#;
    let credential = run(&exec(&printed(status)), &Cluster::default()).await.unwrap();
    assert_eq!((credential.identity.as_deref(), credential.expires_at), (Some(&b"c\nk\n"[..]), None));
    // YAML, as some plugins print; stderr is larger than a pipe's buffer.
    let yaml = "yes complaint | head -c 200000 >&2; \
                printf 'apiVersion: client.authentication.k8s.io/v1\\nkind: ExecCredential\\nstatus:\\n  token: y\\n'";
    assert_eq!(run(&exec(yaml), &Cluster::default()).await.unwrap().token.as_deref(), Some("y"));
}

#[tokio::test]
async fn a_plugin_gets_its_environment_and_the_cluster() {
    let cluster = Cluster {
        server: "https://api".to_owned(),
        certificate_authority_data: Some("Zm9v".to_owned()),
        tls_server_name: Some("name".to_owned()),
        ..Cluster::default()
    };
    let script = "test \"$X\" = 1 && test -z \"$(cat)\" && echo \"$KUBERNETES_EXEC_INFO\" >&2; exit 1";
    let env = vec![crate::source::kube::client::kubeconfig::ExecEnv { name: "X".to_owned(), value: "1".to_owned() }];
    let exec = ExecConfig { env, provide_cluster_info: true, ..exec(script) };
    let problem = run(&exec, &cluster).await.err().unwrap();
    let info = problem.split_once("(exit status: 1): ").unwrap().1;
    let expected = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {
            "interactive": false,
            "cluster": { "server": "https://api", "certificate-authority-data": "Zm9v", "tls-server-name": "name" },
        },
    });
    assert_eq!(serde_json::from_str::<Value>(info).unwrap(), expected);
}

#[tokio::test]
async fn an_unusable_plugin_is_reported_with_the_reason() {
    let version = "echo '{\"apiVersion\":\"v2\",\"kind\":\"ExecCredential\"}'";
    for (script, why) in [
        ("exit 3", "failed (exit status: 3): no output on stderr"),
        ("echo a >&2; echo b >&2; exit 1", "failed (exit status: 1): a b"),
        ("echo nonsense", "the output is not an ExecCredential, at line 1 column 1"),
        ("echo '{\"kind\":\"Pod\"}'", "the output has kind \"Pod\""),
        (version, "the output has apiVersion \"v2\""),
        (&*printed("null"), "the output has no status"),
        (&*printed("{}"), "the output has neither a token nor a client certificate"),
        (&*printed(r#"{"clientKeyData":"k"}"#), "one of client certificate and key without the other"),
        (&*printed(r#"{"token":"t","expirationTimestamp":"soon"}"#), "\"soon\" is not an RFC 3339 time"),
        ("head -c 2000000 /dev/zero", "output too large (limit: 1048576 bytes)"),
    ] {
        let problem = problem(&exec(script)).await;
        assert!(problem.starts_with("exec plugin \"sh\"") && problem.contains(why), "{problem}");
    }
    let missing = ExecConfig {
        command: "/no/such/plugin".to_owned(),
        install_hint: Some("get it\nfrom there".to_owned()),
        ..ExecConfig::default()
    };
    let problem_of_missing = problem(&missing).await;
    assert!(problem_of_missing.contains("cannot be started"), "{problem_of_missing}");
    assert!(problem_of_missing.ends_with("; get it from there"), "{problem_of_missing}");
    let always = ExecConfig { interactive_mode: Some("Always".to_owned()), ..missing };
    assert!(problem(&always).await.contains("needs a terminal"));
}

/// The timeout of a minute is skipped as soon as the plugin has started.
#[tokio::test]
async fn a_plugin_that_hangs_is_named_after_a_minute_and_killed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pid");
    let plugin = exec(&format!("echo $$ > {}; exec sleep 1000", path.display()));
    let problem = tokio::spawn(async move { problem(&plugin).await });
    let started = async {
        loop {
            match std::fs::read_to_string(&path) {
                // The file exists before its content is written.
                Ok(pid) if pid.ends_with('\n') => return pid,
                _ => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    };
    let pid = timeout(EXEC_TIMEOUT / 2, started).await.expect("started in time");
    assert!(!problem.is_finished());
    tokio::time::pause();
    tokio::time::advance(EXEC_TIMEOUT).await;
    tokio::time::resume();
    let expected = "exec plugin \"sh\" did not finish within 60 s; run it by hand, it may wait for a login";
    assert_eq!(problem.await.unwrap(), expected);
    let process = std::path::Path::new("/proc").join(pid.trim()).join("stat");
    let killed = async {
        while std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(EXEC_TIMEOUT, killed).await.expect("killed in time");
}

/// A wrapper script starts children, which outlive it: when the wait for the plugin is given up, and when it has ended.
#[tokio::test]
async fn a_plugin_is_ended_with_its_children() {
    let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let is_running = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    let start = format!("sleep 600 & echo $! > {}", file.display());
    let ended = format!("{start}; {}", printed(r#"{"token":"t"}"#));
    for (script, ends) in [(format!("{start}; wait"), false), (ended, true)] {
        std::fs::write(&file, "").unwrap();
        let exec = exec(&script);
        let running = tokio::spawn(async move { run(&exec, &Cluster::default()).await.map(|made| made.token) });
        let pid = loop {
            let text = std::fs::read_to_string(&file).unwrap();
            if text.ends_with('\n') {
                break text.trim().to_owned();
            }
            tokio::task::yield_now().await;
        };
        if ends {
            assert_eq!(running.await.unwrap(), Ok(Some("t".to_owned())));
        } else {
            assert!(is_running(&pid));
            running.abort();
            running.await.unwrap_err();
        }
        let killed = async {
            while is_running(&pid) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(EXEC_TIMEOUT, killed).await.expect("killed in time");
    }
}
