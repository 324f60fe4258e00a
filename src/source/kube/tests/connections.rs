//! Tests of connections and credentials: their source, the number of renewals, and that no other task waits for them.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use tokio::time::Instant;

use super::*;
use crate::cache::SyncState;

/// Plugin that records its runs and prints the token `t`.
struct Plugin {
    directory: tempfile::TempDir,
    kubeconfig: tempfile::TempPath,
}

// === impl Plugin ===

impl Plugin {
    /// Writes a plugin that runs another command before it prints.
    fn new(server: &str, before: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("plugin");
        let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t","expirationTimestamp":"2099-01-01T00:00:00Z"}}"#;
        let runs = directory.path().join("runs");
        fs::write(&script, format!("#!/bin/sh\necho run >> {}\n{before}\ncat <<X\n{credential}\nX\n", runs.display()))
            .unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let exec = format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: {}}}",
            script.display()
        );
        Self { directory, kubeconfig: kubeconfig(server, &exec) }
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.directory.path().join("runs")).unwrap_or_default().lines().count()
    }

    fn config(&self, fixture: &Fixture) -> KubeConfig {
        KubeConfig { cluster: cluster(&self.kubeconfig), ..fixture.config() }
    }
}

fn cluster(kubeconfig: &Path) -> KubeCluster {
    KubeCluster { kubeconfig: Some(kubeconfig.to_owned()), context: None }
}

/// On a single thread, which a blocking plugin would stop.
#[tokio::test]
async fn a_slow_exec_plugin_delays_nothing_else_and_runs_once_for_a_connection() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.token = Some("t"));
    let plugin = Plugin::new(&fixture.gate.url(), "sleep 2");
    let mut rig = follow(plugin.config(&fixture), None);
    until(|| plugin.runs() == 1).await;
    let mut turns = 0;
    let listed = async {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            turns += 1;
        }
    };
    tokio::select! {
        told = rig.told() => assert_eq!(told, "list 1"),
        () = listed => {}
    }
    assert!(turns >= 10, "while the plugin ran, the runtime had {turns} turns");
    assert_eq!(plugin.runs(), 1, "with a token that is good until 2099");
    fixture.gate.cut();
    fixture.fake.write("a=1");
    fixture.reach(&mut rig).await;
    assert_eq!(plugin.runs(), 1, "another connection needs no other token");
}

/// Returns the largest number of plugin runs since then: one every 10 s.
fn most_runs(since: Instant) -> usize {
    since.elapsed().as_secs() as usize / 10
}

#[tokio::test]
async fn an_exec_plugin_is_not_run_at_each_attempt_of_an_outage() {
    let fixture = Fixture::new().await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let plugin = Plugin::new(&format!("http://{nobody}"), "true");
    let rig = follow(plugin.config(&fixture), None);
    until(|| rig.lists() >= 10).await;
    assert_eq!(plugin.runs(), 1, "{} attempts to list", rig.lists());
}

/// Twenty resources of one cloud provider are no exception: they share one run of the plugin, and its failure.
#[tokio::test]
async fn resources_of_one_cluster_share_a_run_and_its_failure() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.token = Some("t"));
    let clients = KubeClients::default();
    let follow = |config: KubeConfig| {
        let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
        Rig::follow(KubeSource::with_clients(config, health.clone(), &clients), health, None, value)
    };
    let plugin = Plugin::new(&fixture.gate.url(), "sleep 0.2");
    let mut rigs = [(); 5].map(|()| follow(plugin.config(&fixture)));
    for rig in &mut rigs {
        assert_eq!(rig.told().await, "list 1");
    }
    assert_eq!(plugin.runs(), 1);
    drop(rigs);
    let failing = Plugin::new(&fixture.gate.url(), "sleep 0.2; echo no login >&2; exit 3");
    let since = Instant::now();
    let rigs = [(); 5].map(|()| follow(failing.config(&fixture)));
    for rig in &rigs {
        let error = rig.error("no login").await;
        assert!(error.contains("plugin\" failed (exit status: 3): no login"), "{error}");
    }
    until(|| rigs.iter().all(|rig| rig.lists() >= 3)).await;
    let runs = failing.runs();
    assert!(runs <= 1 + most_runs(since), "{runs} runs in {:?}", since.elapsed());
}

/// A token that the API refuses is renewed, once.
#[tokio::test]
async fn a_refused_token_makes_the_plugin_run_again_after_a_while() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.token = Some("t"));
    let plugin = Plugin::new(&fixture.gate.url(), "true");
    let mut rig = follow(plugin.config(&fixture), None);
    assert_eq!(rig.told().await, "list 1");
    let since = Instant::now();
    fixture.fake.set(|store| store.token = Some("other"));
    fixture.gate.cut();
    rig.error("who?").await;
    let runs = plugin.runs();
    assert!(runs <= 1 + most_runs(since), "{runs} runs in {:?}", since.elapsed());
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    until(|| plugin.runs() > runs).await;
    fixture.fake.set(|store| store.token = Some("t"));
    fixture.fake.write("a=1");
    fixture.reach(&mut rig).await;
    assert_eq!(rig.history_rewrites, 0);
}

/// `echo TOKEN >file`: client-go trims the token. The file has precedence over a token in the kubeconfig.
#[tokio::test]
async fn a_token_file_may_end_with_a_line_and_wins_over_a_token() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.token = Some("one"));
    let token = tempfile::NamedTempFile::new().unwrap();
    fs::write(token.path(), "one\n").unwrap();
    let user = format!("token: wrong, tokenFile: {}", token.path().display());
    let path = kubeconfig(&fixture.gate.url(), &user);
    let mut rig = follow(KubeConfig { cluster: cluster(&path), ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 1");
    // The new token is read before the server refuses the old one.
    fs::write(token.path(), "two\r\n").unwrap();
    fixture.fake.set(|store| store.token = Some("two"));
    fixture.gate.cut();
    fixture.fake.write("a=1");
    fixture.reach(&mut rig).await;
    assert_eq!(rig.health.report().last_error, None);
}

#[tokio::test]
async fn an_unusable_token_file_is_reported() {
    let fixture = Fixture::new().await;
    let token = tempfile::NamedTempFile::new().unwrap();
    for (text, problem) in [("a\nb", "line break"), (" \n", "is empty; write a token into it")] {
        fs::write(token.path(), text).unwrap();
        let path = kubeconfig(&fixture.gate.url(), &format!("tokenFile: {}", token.path().display()));
        let rig = follow(KubeConfig { cluster: cluster(&path), ..fixture.config() }, None);
        let error = rig.error(problem).await;
        assert!(error.contains(&token.path().display().to_string()), "{error}");
    }
}

/// The kernel of a frozen proxy still acknowledges every packet, so that TCP alone detects nothing.
#[tokio::test]
async fn a_frozen_connection_is_stale_within_25_seconds_and_is_opened_again() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let usual = KubeConfig::new("", "", "", "").contact_timeout;
    let mut rig = follow(KubeConfig { contact_timeout: usual, ..fixture.config() }, None);
    rig.told().await;
    fixture.gate.freeze(true);
    fixture.fake.write("a=2");
    tokio::time::pause();
    let since = Instant::now();
    while rig.health.state() != SyncState::Stale {
        assert!(since.elapsed() < Duration::from_secs(60), "{:?}", rig.health.report());
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let stale_after = since.elapsed();
    tokio::time::resume();
    assert!(stale_after <= Duration::from_secs(25), "STALE after {stale_after:?}");
    fixture.gate.freeze(false);
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(rig.lists(), 1);
}

/// An API without a watch cache sends no bookmarks, as for Events: the source keeps its watch while the server answers, which
/// one request shows for all resources.
#[tokio::test]
async fn an_idle_watch_stays_open_and_synced_while_its_server_answers() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let clients = KubeClients::default();
    let config = KubeConfig { contact_timeout: Duration::from_secs(15), ..fixture.config() };
    let mut rigs = [(); 3].map(|()| {
        let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
        Rig::follow(KubeSource::with_clients(config.clone(), health.clone(), &clients), health, None, value)
    });
    for rig in &mut rigs {
        rig.told().await;
    }
    let asked = || fixture.fake.asked().into_iter().filter(|asked| asked != "head").collect::<Vec<_>>();
    let watches = asked();
    tokio::time::pause();
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(200) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        for rig in &rigs {
            assert_eq!(rig.health.state(), SyncState::Synced, "after {:?}", since.elapsed());
        }
    }
    tokio::time::resume();
    assert_eq!(asked(), watches, "besides the checks that they are fed");
    let probes = fixture.fake.set(|store| store.probes);
    assert!((30..=45).contains(&probes), "{probes} requests in 200 s for 3 resources");
    fixture.fake.write("a=2");
    for rig in &mut rigs {
        assert_eq!(rig.told().await, "3 ~a=2");
    }
}

/// Returns a proxy that forwards bytes, with the heads of the requests that it received.
async fn proxy() -> (std::net::SocketAddr, std::sync::Arc<parking_lot::Mutex<Vec<String>>>) {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let noted = std::sync::Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let noted = std::sync::Arc::clone(&noted);
            tokio::spawn(async move {
                let mut client = BufReader::new(client);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    client.read_line(&mut head).await.unwrap();
                }
                let target = head.split(' ').nth(1).unwrap().to_owned();
                noted.lock().push(head.replace("\r\n", " "));
                // Only the proxy resolves the name in the request.
                let port = target.rsplit_once(':').unwrap().1;
                let mut server = tokio::net::TcpStream::connect(format!("127.0.0.1:{port}")).await.unwrap();
                client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    (address, requests)
}

#[tokio::test]
async fn the_proxy_of_a_kubeconfig_leads_to_its_api_server() {
    let fixture = Fixture::new().await;
    let (proxy, requests) = proxy().await;
    let server = format!("http://api.invalid:{}", fixture.gate.port());
    let path = kubeconfig(&server, "");
    let with_proxy = |url: &str| {
        let text = fs::read_to_string(&path).unwrap();
        let other = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        fs::write(&other, text.replace("cluster: {server:", &format!("cluster: {{proxy-url: '{url}', server:")))
            .unwrap();
        other
    };
    let led = with_proxy(&format!("http://u:p@{proxy}"));
    let mut rig = follow(KubeConfig { cluster: cluster(&led), ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 1");
    fixture.fake.write("a=1");
    assert_eq!(rig.told().await, "2 +a=1");
    let host = format!("api.invalid:{}", fixture.gate.port());
    let expected = format!("CONNECT {host} HTTP/1.1 Host: {host} Proxy-Authorization: Basic dTpw  ");
    assert_eq!(requests.lock().first(), Some(&expected));
    drop(rig);
    for (url, problem) in [
        ("ftp://x", "proxy-url of the kubeconfig is not a valid proxy: unsupported scheme \"ftp\""),
        ("http://127.0.0.1:1", "proxy 127.0.0.1:1 (proxy-url of the kubeconfig): 127.0.0.1:1: Connection refused"),
    ] {
        let led = with_proxy(url);
        let rig = follow(KubeConfig { cluster: cluster(&led), ..fixture.config() }, None);
        rig.error(problem).await;
    }
}

/// The old server stays: only the file shows that there is another one.
#[tokio::test]
async fn a_connection_ends_when_the_file_that_it_was_made_from_changes() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let mut rig = fixture.listed().await;
    let (accepted, text) = (fixture.gate.accepted(), fs::read_to_string(&*fixture.kubeconfig).unwrap());
    // The same contents, written again.
    fs::write(&*fixture.kubeconfig, &text).unwrap();
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(6)).await;
    tokio::time::resume();
    fixture.fake.write("a=2");
    assert_eq!((rig.told().await, fixture.gate.accepted()), ("3 ~a=2".to_owned(), accepted));
    let other = FakeApi::new();
    other.write("b=1 c=1");
    other.set(|store| store.cluster = Some("u-2"));
    let gate = Gate::to(other.listen().await).await;
    fs::write(&*fixture.kubeconfig, text.replace(&fixture.gate.url(), &gate.url())).unwrap();
    let changed = Instant::now();
    assert!(rig.told().await.starts_with("rewind"));
    assert!(changed.elapsed() < Duration::from_secs(10), "{:?}", changed.elapsed());
    assert_eq!(rig.state, other.state());
}
