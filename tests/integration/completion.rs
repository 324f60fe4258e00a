//! Completion as shells request it: the script of bash in a real bash, and the protocol of the other scripts.

use std::{fs, net::TcpListener, path::Path, process::Command};

use tempfile::TempDir;

use crate::{
    client_commands::{Server, pod, write},
    command_line::informerd,
};

fn things() -> TempDir {
    let directory = TempDir::new().unwrap();
    write(&directory, "s $(x)*.json", "{}");
    for (file, namespace, name) in [("1", "a", "web"), ("2", "b", "web"), ("3", "b", "db")] {
        write(&directory, &format!("{file}.json"), &pod(namespace, name, "Running"));
    }
    directory
}

/// Returns the candidates for a line with the cursor at its end, in a real bash.
fn in_bash(address: &str, line: &str) -> Vec<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_informerd"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let script = "source <(informerd completion bash); COMP_LINE=$1 COMP_POINT=${#1}; compopt() { :; }; _informerd; \
                  [[ ${#COMPREPLY[@]} == 0 ]] || printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = Command::new("timeout");
    command.args(["20", "bash", "-c", script, "bash", line]).env("PATH", path).env("INFORMERD_SERVER", address);
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_names_of_a_server_are_candidates() {
    let directory = things();
    let path = directory.path().display();
    let config = directory.path().join("informerd.config");
    let text = format!(
        r#"{{"resources": {{
            "things": {{"source": {{"files": {{"path": "{path}"}}}}}},
            "pods": {{"source": {{"files": {{"path": "{path}", "kind": "Pod"}}}}, "views": {{"small": {{"fields": ["spec"]}}}},
                "indexes": {{"phase": {{"path": ".status.phase"}}}}}}}}}}"#
    );
    fs::write(&config, text).unwrap();
    let server = Server::start_at("127.0.0.1:0", &["--config", config.to_str().unwrap()]);
    for (line, expected) in [
        ("informerd lis", &["list"][..]),
        ("informerd list p", &["pods"]),
        ("informerd watch things,p", &["things,pods"]),
        ("informerd list pods -n ", &["a", "b"]),
        ("informerd list pods --namespace=", &["a", "b"]),
        ("informerd get pods b/", &["b/db", "b/web"]),
        ("informerd get pods d", &["db"]),
        ("informerd get pods w", &[]),
        ("informerd get pods b/db a", &["a/web"]),
        ("informerd get things s", &["s\\ \\$\\(x\\)\\*.json"]),
        ("informerd get things s\\ ", &["s\\ \\$\\(x\\)\\*.json"]),
        ("informerd describe pods -n b d", &["db"]),
        ("informerd explain pods a", &["a/web"]),
        ("informerd until pods b/d", &["b/db"]),
        ("informerd values pods ph", &["phase"]),
        ("informerd by-index pods phase R", &["Running"]),
        ("informerd by-index pods phase --like a", &["a/web"]),
        // bash has these as three words.
        ("informerd list pods --index ph", &["phase="]),
        ("informerd list pods --index phase=", &["Running"]),
        ("informerd list pods --view s", &["small"]),
        ("informerd list pods --view @m", &["@metadata"]),
        ("informerd list pods -l 'x in (a,b)' --show-l", &["--show-labels"]),
        ("informerd list podz -n ", &[]),
        ("informerd serve --log-format j", &["json"]),
    ] {
        let found = in_bash(&server.address, line);
        let found: Vec<_> = found
            .iter()
            .filter(|found| expected.is_empty() || !found.starts_with('-') || line.contains(" --show"))
            .collect();
        assert_eq!(found, expected, "{line}");
    }
    let line = format!("informerd list --server http://{} p", server.address);
    assert_eq!(in_bash("127.0.0.1:1", &line), ["pods"], "the server of the line, whose colons end words of bash");
    for (shell, index, words) in [("zsh", Some("2"), &["list", "p"][..]), ("fish", None, &["list", "p"])] {
        let mut command = server.command(&[&["--", "informerd"], words].concat());
        command.env("INFORMERD_COMPLETE", shell).envs(index.map(|index| ("_CLAP_COMPLETE_INDEX", index)));
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("pods"), "{shell}: {text}");
    }
}

/// Checks that a server which is away, or does not answer, is no text on the line of a user.
#[test]
fn a_server_that_does_not_answer_has_no_candidates() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in ["127.0.0.1:1".to_owned(), silent.local_addr().unwrap().to_string(), "none".to_owned()] {
        for line in ["informerd list p", "informerd get pods a", "informerd list pods -n "] {
            assert_eq!(in_bash(&address, line), [""; 0], "{address} {line}");
        }
        assert!(in_bash(&address, "informerd list pods --show-l").contains(&"--show-labels".to_owned()));
    }
    let output = informerd(&["--", "informerd", "list", ""]).env("INFORMERD_COMPLETE", "tcsh").output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
}
