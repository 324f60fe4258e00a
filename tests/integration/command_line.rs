//! The binary as users run it: help, errors, exit codes, signals.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::client_commands::Server;

pub(crate) fn informerd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("INFORMERD")) {
        command.env_remove(name);
    }
    command
}

pub(crate) fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = informerd(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn manifests() -> TempDir {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("web.yaml"), "{kind: Pod, metadata: {name: web}}\n").unwrap();
    directory
}

#[test]
fn help_has_examples_and_defaults() {
    let (code, help, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(help.contains("serve") && help.contains("check") && help.contains("Examples:"), "{help}");
    let (_, help, _) = run(&["serve", "--help"]);
    for word in ["127.0.0.1:50051", "INFORMERD_LISTEN", "NAME=DIR[@KIND]", "Examples:"] {
        assert!(help.contains(word), "{word} is not in\n{help}");
    }
    assert_eq!(run(&["--version"]).1.trim(), concat!("informerd ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_example_is_a_good_configuration() {
    let (code, out, err) = run(&["check", "--config", "examples/shop.yaml"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("ok: gRPC on 127.0.0.1:50051, admin on 127.0.0.1:9464\n"), "{out}");
    assert_eq!(out.lines().count(), 5, "{out}");
    assert!(
        out.contains("pods: files below") && out.contains("indexed by app, image, namespace, node, phase"),
        "{out}"
    );
}

#[test]
fn check_prints_the_relayed_resource() {
    let (code, out, err) = run(&["check", "--relay", "pods=http://127.0.0.1:1/all-pods", "--offline"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "it need not be there");
    assert!(out.contains("pods: all-pods of informerd at http://127.0.0.1:1, indexed by namespace\n"), "{out}");
}

#[test]
fn check_connects_to_each_source_and_names_those_that_cannot_be_reached() {
    let directory = manifests();
    let pods = format!("pods={}", directory.path().display());
    let server = Server::start_at("127.0.0.1:0", &["--files", &pods]);
    let there = format!("there=http://{}/pods", server.address);
    let (code, out, err) = run(&["check", "--relay", &there, "--files", &pods]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("ok: gRPC on ") && out.contains("indexed by namespace, reachable\n"), "{out}");

    // A socket that accepts and does not respond.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let [relay, etcd] = ["relay", "etcd"].map(|name| format!("{name}=http://{}/x", silent.local_addr().unwrap()));
    let other = format!("other=http://{}/podz", server.address);
    let sources = [
        "--relay",
        &there,
        "--relay",
        &other,
        "--relay",
        &relay,
        "--etcd",
        &etcd,
        "--etcd",
        "gone=http://127.0.0.1:1/x",
    ];
    let (code, out, err) = run(&[&["check", "--timeout", "1s", "--files", &pods], &sources[..]].concat());
    assert_eq!((code, out.lines().count()), (Some(1), 7), "{out}");
    assert!(out.starts_with("gRPC on "), "{out}");
    assert_eq!((out.matches(", cannot be read\n").count(), out.matches(", reachable\n").count()), (4, 1), "{out}");
    let errors: Vec<&str> = err.lines().collect();
    for (error, expected) in errors.iter().zip([
        "error: resource etcd: no response within 1s",
        "error: resource gone: upstream unavailable: http://127.0.0.1:1: ",
        "error: resource other: http://127.0.0.1:",
        "error: resource relay: no response within 1s",
    ]) {
        assert!(error.starts_with(expected), "{err}");
    }
    assert!(errors.len() == 4 && errors[2].contains("resource \"podz\" not found (known: pods)"), "{err}");
}

#[test]
fn check_opens_each_path_and_looks_for_each_kind_and_rule() {
    let directory = manifests();
    fs::write(directory.path().join("tokens"), "").unwrap();
    let file = directory.path().join("informerd.yaml");
    let text = "authentication: { token_file: tokens }\nauthorization:\n  rules:\n    - { subjects: ['*'], verbs: [list], \
                resources: [pods, podz], namespaces: ['*'] }\nstate_dir: /proc/nope\naudit: { file: /nodir/x }\n\
                resources: { pods: { source: { files: { path: ., kind: Podz } } } }\n";
    fs::write(&file, text).unwrap();
    let (code, out, err) = run(&["check", "--offline", "--config", file.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{err}");
    assert!(out.starts_with("gRPC on "), "not ok: {out}");
    for expected in [
        "warning: authorization: rule 1: resource \"podz\" not served here (known: pods)\n",
        "error: audit.file: /nodir/x cannot be opened: ",
        "error: state_dir: /proc/nope cannot be written to: ",
        " has no object of kind \"Podz\", but ",
    ] {
        assert!(err.contains(expected), "{expected}: {err}");
    }
    let text = text.replace("/proc/nope", "state").replace("/nodir/x", "audit").replace("Podz", "pod");
    fs::write(&file, text).unwrap();
    let (code, _, err) = run(&["check", "--offline", "--config", file.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    let left = ["state", "audit"].map(|name| directory.path().join(name).exists());
    assert_eq!(left, [false; 2], "a check leaves nothing behind");
}

#[test]
fn check_warns_of_a_rule_that_names_an_unknown_view() {
    let directory = manifests();
    fs::write(directory.path().join("tokens"), "").unwrap();
    let file = directory.path().join("informerd.yaml");
    let text = "authentication: { token_file: tokens }\nauthorization:\n  rules:\n    - { subjects: ['*'], verbs: [list], \
                resources: [pods], namespaces: ['*'], views: [smal] }\nresources: { pods: { source: { files: { path: . } }, \
                views: { small: { fields: [spec] } } } }\n";
    fs::write(&file, text).unwrap();
    let (code, out, err) = run(&["check", "--config", file.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("ok: gRPC on "), "{out}");
    assert!(err.starts_with("warning: authorization: rule 1: view \"smal\" not found (known in pods: "), "{err}");
}

#[test]
#[cfg(feature = "kube")]
fn a_kube_source_is_checked_without_a_cluster_and_its_role_is_printed() {
    let directory = TempDir::new().unwrap();
    let kubeconfig = directory.path().join("config");
    let text = "{clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: u, user: {}}], \
                contexts: [{name: c, context: {cluster: k, user: u}}], current-context: c}";
    fs::write(&kubeconfig, text).unwrap();
    let flags = ["--kube", "web=apps/v1/deployments@shop", "--kubeconfig", kubeconfig.to_str().unwrap()];
    let (code, out, err) = run(&[&["check", "--offline"], &flags[..]].concat());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("web: deployments of the Kubernetes API apps/v1 in namespace shop"), "{out}");
    let (code, out, err) = run(&[&["check"], &flags[..]].concat());
    assert_eq!(code, Some(1));
    assert!(out.contains(" in namespace shop, indexed by namespace, cannot be read\n"), "{out}");
    assert!(err.starts_with("error: resource web: ") && err.contains("https://127.0.0.1:1"), "{err}");
    let (code, _, err) = run(&[&["check", "--kube-context", "none"], &flags[..]].concat());
    assert_eq!(code, Some(1));
    assert!(err.contains("context \"none\" not found in the kubeconfig (known: c"), "{err}");
    let (code, _, err) = run(&["check", "--kube", "a=v1/pods", "--kubeconfig", "/no/such/file"]);
    assert_eq!(code, Some(1));
    assert!(err.starts_with("error: resource a: /no/such/file: "), "{err}");
    let (code, _, err) = run(&["check", "--kube", "pods=pods"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("NAME=[GROUP/]VERSION/PLURAL[@NAMESPACE]"), "{err}");
    let (code, out, _) = run(&[&["rbac"], &flags[..]].concat());
    assert_eq!(code, Some(0));
    assert!(out.contains("kind: Role\n") && out.contains("resources: [\"deployments\"]"), "{out}");
}

#[test]
fn all_problems_of_a_configuration_are_reported_at_once() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("bad.yaml");
    fs::write(
        &path,
        "listen: here\nwatch: { queue_lenght: 5, block_timeout: soon }\nresources:\n  pods:\n    \
         source: { files: { path: x } }\n    indexes: { node: { path: 'spec[' } }\n",
    )
    .unwrap();
    for command in ["check", "serve"] {
        let (code, out, err) = run(&[command, path.to_str().unwrap()]);
        assert_eq!((code, out.as_str()), (Some(2), ""));
        assert_eq!(run(&[command, "--config", path.to_str().unwrap()]).2, err, "the same with the flag");
        for part in ["listen", "did you mean `queue_length`", "watch.block_timeout", "resources.pods.indexes.node"] {
            assert!(err.contains(part), "{part} is not in\n{err}");
        }
        assert_eq!(err.lines().filter(|line| !line.trim().is_empty()).count(), 4, "a line for each:\n{err}");
        let mut places: Vec<_> =
            err.lines().map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(": ")).collect();
        places.sort();
        let expected = [1, 2, 2, 6].map(|line| format!("error: {}:{line}", path.display()));
        assert_eq!(places, expected, "{err}");
    }
}

/// Checks for one clear line that says what to do, and for the exit code.
#[test]
fn errors_of_serve_are_one_line() {
    let directory = manifests();
    let good = format!("pods={}", directory.path().display());
    let file = format!("pods={}", directory.path().join("web.yaml").display());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let table: &[(&[&str], i32, &str)] = &[
        (&["serve", "--files", "pods=/no/such/directory"], 1, "/no/such/directory"),
        (&["check", "--files", "pods=/no/such/directory"], 1, "/no/such/directory"),
        (&["serve", "--files", &file], 1, "web.yaml"),
        (&["serve", "--files", "pods"], 2, "NAME=DIR"),
        (&["serve", "--stream", "pods=/no/such/file"], 1, "/no/such/file does not exist"),
        (&["check", "--stream", "pods=/tmp"], 1, "neither a file nor a named pipe"),
        (&["serve", "--stream", "pods"], 2, "NAME=FILE"),
        (&["serve", "--stream", "a=-", "--stream", "b=-"], 2, "standard input"),
        (&["rbac", "--files", &good], 2, "add one with --kube"),
        (&["serve", "--etcd", "a=127.0.0.1:2379/a/"], 2, "NAME=http://HOST:PORT/PREFIX"),
        (&["serve", "--etcd", "a=http://127.0.0.1:1/a/", "--etcd-username", "me"], 2, "--etcd-password-file"),
        (
            &["check", "--etcd", "a=http://h:1/", "--etcd-username", "me", "--etcd-password-file", "/no/such/file"],
            1,
            "/no/such/file cannot be read",
        ),
        (&["serve", "--relay", "a=127.0.0.1:1"], 2, "NAME=http://HOST:PORT[/RESOURCE]"),
        (&["serve"], 2, "--files"),
        (&["serve", "--config", "/no/such/file.yaml"], 2, "/no/such/file.yaml"),
        (&["serve", "--files", &good, "--listen", "nowhere"], 2, "127.0.0.1:50051"),
        (
            &["serve", "--files", &good, "--listen", "unix:/no/such/directory/x.sock"],
            1,
            "create the directory of the socket",
        ),
        (&["check", "a.yaml", "--config", "b.yaml"], 2, "two configurations"),
        (&["serve", "--files", &good, "--listen", "0.0.0.0:0"], 2, "--insecure"),
        (&["serve", "--files", &good, "--listen", &address, "--admin-listen", "none"], 1, "or choose another address"),
        (
            &["serve", "--files", &good, "--listen", "127.0.0.1:0", "--admin-listen", &address],
            1,
            "or none: --admin-listen none",
        ),
        (&["serve", "--files", &good, "--log", "a=b=c"], 2, "log filter"),
        (&["serve", "--files", &good, "--log", "debgu"], 2, "did you mean \"debug\"?"),
        (&["serve", "--no-such-flag"], 2, "--no-such-flag"),
    ];
    for (arguments, expected, hint) in table {
        let (code, out, err) = run(arguments);
        assert_eq!((code, out.as_str()), (Some(*expected), ""), "{arguments:?}: {err}");
        assert!(err.contains(hint), "{arguments:?}: {hint} is not in {err}");
        assert!(err.starts_with("error: "), "{arguments:?}: {err}");
        if !err.contains("Usage:") {
            assert_eq!(err.trim_end().lines().count(), 1, "{arguments:?}: {err}");
        }
    }
}

/// Starts a server, and waits until it listens.
fn serve(directory: &TempDir, arguments: &[&str]) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let files = format!("pods={}", directory.path().display());
    let mut child = informerd(&["serve", "--files", &files, "--listen", "127.0.0.1:0", "--admin-listen", "none"])
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("grpc listening") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "the server has ended");
    }
    let address = line.split("127.0.0.1:").nth(1).unwrap().trim_matches(|c: char| !c.is_ascii_digit());
    (child, log, format!("http://127.0.0.1:{address}"))
}

pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_signal_shuts_the_server_down_gracefully() {
    let directory = manifests();
    for name in ["-INT", "-TERM"] {
        let (mut child, log, _) = serve(&directory, &[]);
        signal(&child, name);
        let rest: Vec<String> = log.lines().map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{rest:?}");
        assert!(rest.last().is_some_and(|line| line.ends_with("shut down")), "{rest:?}");
    }
}

/// Checks that a client that reads nothing delays the end by at most `drain`, and that a second signal ends it at once.
#[tokio::test]
async fn an_open_connection_does_not_delay_the_shutdown_forever() {
    use informerd::proto::pb::informer_service_client::InformerServiceClient;
    let directory = manifests();
    let config = directory.path().join("informerd.yml");
    fs::write(&config, "drain: { delay: 1h, period: 200ms }\n").unwrap();
    let (mut child, log, address) = serve(&directory, &["--config", config.to_str().unwrap()]);
    let mut client = InformerServiceClient::connect(address).await.unwrap();
    let _watch = client.watch(crate::sandbox::watch_pods()).await.unwrap();
    signal(&child, "-TERM");
    let mut lines = log.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("shutting down")), "in its delay");
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn addresses_are_written_as_go_programs_take_them() {
    let directory = manifests();
    let (mut child, _log, address) = serve(&directory, &[]);
    signal(&child, "-TERM");
    child.wait().unwrap();
    let port = address.rsplit(':').next().unwrap();
    let files = format!("pods={}", directory.path().display());
    for (listen, shown) in [("localhost", "127.0.0.1"), ("", "[::]")] {
        let arguments = ["check", "--files", &files, "--insecure", "--listen", &format!("{listen}:{port}")];
        let (code, out, err) = run(&arguments);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(out.starts_with(&format!("ok: gRPC on {shown}:{port}, ")), "{out}");
    }
}

/// Sends each write to stderr as a packet of its own.
#[test]
fn a_message_is_written_at_once() {
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let stderr = std::os::fd::OwnedFd::from(theirs);
    let mut command = informerd(&["check", "--files", "pods=/no/such/directory"]);
    assert_eq!(command.stderr(stderr).status().unwrap().code(), Some(1));
    let mut packet = [0; 4096];
    let length = ours.recv(&mut packet).unwrap();
    let text = String::from_utf8_lossy(&packet[..length]);
    assert!(text.starts_with("error: ") && text.ends_with('\n'), "{text:?}");
}

/// Checks that prose after the flags has no line breaks within sentences: the help is wrapped at the width of the terminal.
#[test]
fn the_help_breaks_no_sentence() {
    let (_, help, _) = run(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"watchers") && commands.len() > 20, "{commands:?}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        let mut wide = informerd(&[command, "--help"]);
        let help = String::from_utf8(wide.env("COLUMNS", "100").output().unwrap().stdout).unwrap();
        let Some((_, prose)) = help.split_once("Examples") else { continue };
        // A line that the width has wrapped is nearly full.
        let lines = prose.lines().skip(1).filter(|line| !line.starts_with("  ") && !line.is_empty());
        for line in lines {
            assert!(line.ends_with(['.', ':']) || line.chars().count() > 60, "{command}: {line}");
        }
    }
}

#[test]
fn logs_can_be_json() {
    let directory = manifests();
    let (mut child, log, _) = serve(&directory, &["--log-format", "json"]);
    signal(&child, "-TERM");
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
    }
    child.wait().unwrap();
}
