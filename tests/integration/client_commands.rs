//! The client commands as users run them: the binary against a server of the same binary.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::Path,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    command_line::{informerd, signal},
    port::free_address,
    process::Process,
    sandbox::DEADLINE,
};

/// Server in a process of its own, and its address for the commands.
pub(crate) struct Server {
    process: Process,
    pub(crate) address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", arguments)
    }

    pub(crate) fn start_at(listen: &str, arguments: &[&str]) -> Self {
        let process = Process::start_at(listen, arguments, None);
        Self { address: process.grpc.to_string(), process }
    }

    pub(crate) fn shop() -> Self {
        Self::start(&["--config", "examples/shop.yaml"])
    }

    /// Serves everything below a directory as `things`, and its Pods as `pods`.
    pub(crate) fn of(directory: &TempDir) -> Self {
        let path = directory.path().display();
        Self::start(&["--files", &format!("things={path}"), "--files", &format!("pods={path}@Pod")])
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = informerd(arguments);
        command.env("INFORMERD_SERVER", &self.address);
        command
    }

    /// Ends the server with SIGTERM: each watch receives what it has not received yet.
    fn drain(self) {
        self.process.drain();
    }

    /// Returns the exit code, stdout and stderr.
    pub(crate) fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Returns the stdout of a command that succeeds and writes nothing to stderr.
    fn out(&self, arguments: &[&str]) -> String {
        let (code, out, err) = self.run(arguments);
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        out
    }

    /// Returns the exit code and the message of a command that fails.
    fn error(&self, arguments: &[&str]) -> (i32, String) {
        let (code, out, err) = self.run(arguments);
        assert_eq!(out, "", "{arguments:?}");
        (code, err)
    }
}

/// Watch, or another command that waits, read line by line.
pub(crate) struct Watch {
    child: Child,
    rows: BufReader<ChildStdout>,
    notes: BufReader<ChildStderr>,
}

impl Watch {
    fn start(server: &Server, arguments: &[&str]) -> Self {
        Self::of(server.command(&[&["watch"], arguments].concat()))
    }

    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let rows = BufReader::new(child.stdout.take().unwrap());
        let notes = BufReader::new(child.stderr.take().unwrap());
        Self { child, rows, notes }
    }

    pub(crate) fn row(&mut self) -> String {
        line(&mut self.rows)
    }

    pub(crate) fn note(&mut self) -> String {
        line(&mut self.notes)
    }

    /// Sends Ctrl-C. Returns the exit code, and the output that was not read.
    pub(crate) fn interrupt(self) -> (Option<i32>, String, String) {
        self.signal("-INT")
    }

    pub(crate) fn signal(mut self, name: &str) -> (Option<i32>, String, String) {
        signal(&self.child, name);
        let (mut out, mut err) = (String::new(), String::new());
        self.rows.read_to_string(&mut out).unwrap();
        self.notes.read_to_string(&mut err).unwrap();
        (self.child.wait().unwrap().code(), out, err)
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    assert!(from.read_line(&mut line).unwrap() > 0, "the watch has ended");
    line.trim_end_matches('\n').to_owned()
}

pub(crate) fn write(directory: &TempDir, name: &str, text: &str) {
    // One rename, as editors do it.
    let path = directory.path().join(name);
    let hidden = directory.path().join(format!(".{name}.new"));
    fs::write(&hidden, text).unwrap();
    fs::rename(hidden, path).unwrap();
}

pub(crate) fn pod(namespace: &str, name: &str, phase: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod",
  "metadata": {{"namespace": "{namespace}", "name": "{name}", "labels": {{"app": "{name}"}}}},
  "spec": {{"n": 9007199254740993}}, "status": {{"phase": "{phase}"}}}}"#
    )
}

/// Creates the Pods a/web, b/db and b/web, and a file without a name of its own.
fn things() -> TempDir {
    let directory = TempDir::new().unwrap();
    write(&directory, "1.json", &pod("a", "web", "Running"));
    write(&directory, "2.json", &pod("b", "web", "Pending"));
    write(&directory, "3.json", &pod("b", "db", "Running"));
    fs::create_dir(directory.path().join("flags")).unwrap();
    fs::write(directory.path().join("flags/dark.json"), r#"{"on": "yes", "since": "010"}"#).unwrap();
    directory
}

#[test]
fn the_examples_in_the_help_are_true() {
    let server = Server::shop();
    // Those that are not synced yet have a note.
    while !server.run(&["resources"]).2.is_empty() {}
    let binary = Path::new(env!("CARGO_BIN_EXE_informerd"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut count = 0;
    for command in ["resources", "list", "get", "by-index", "values", "watch", "diff", "until"] {
        let help = server.out(&[command, "--help"]);
        assert!(help.contains("Exit codes: 0 success"), "{help}");
        let (_, examples) = help.split_once("Examples").unwrap();
        let examples: Vec<&str> = examples.lines().filter(|line| line.starts_with("  informerd ")).collect();
        assert!((2..=10).contains(&examples.len()), "{help}");
        for example in examples {
            count += 1;
            if command == "watch" || example.ends_with(" -w") {
                // The example up to the pipe, which does not end by itself.
                let command = example.split('|').next().unwrap();
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("exec {command}")]);
                shell.env("PATH", &path).env("INFORMERD_SERVER", &server.address);
                let mut watch = Watch::of(shell);
                if example.contains(" resources ") {
                    assert!(watch.row().starts_with("NAME"), "{example}");
                    assert_eq!(watch.interrupt().0, Some(0), "{example}");
                    continue;
                }
                let note = watch.note();
                let objects = note.split_once("synced: ").and_then(|(_, count)| count.split(' ').next());
                assert!(objects.is_some_and(|objects| objects != "0"), "{example}: {note}");
                assert_eq!(watch.interrupt().0, Some(0), "{example}");
                continue;
            }
            let mut shell = Command::new("sh");
            shell.args(["-c", example]).env("PATH", &path).env("INFORMERD_SERVER", &server.address);
            let (sender, receiver) = mpsc::channel();
            thread::spawn(move || sender.send(shell.output()));
            let output = receiver.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("{example} does not end")).unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            let is_note = match command {
                "until" => err.starts_with("# met: ") && err.lines().count() == 1,
                "diff" => err.starts_with("# 0 added, 0 modified, 0 deleted from "),
                _ => false,
            };
            assert!(output.status.success() && (is_note || err.is_empty()), "{example}: {err}");
            assert!(
                !output.stdout.is_empty() || err.contains("current objects") || command == "diff",
                "{example}: nothing"
            );
        }
    }
    assert!(count > 15, "{count} examples");
}

#[test]
fn objects_are_listed_in_every_form() {
    let directory = things();
    let server = Server::of(&directory);
    let table = "\
NAMESPACE   NAME   READY   STATUS    RESTARTS   NODE
a           web    0/0     Running   0          <none>
b           db     0/0     Running   0          <none>
b           web    0/0     Pending   0          <none>
";
    assert_eq!(server.out(&["list", "pods"]), table);
    assert_eq!(server.out(&["list", "pods", "-A"]), table);
    assert_eq!(server.out(&["get", "pods"]), table, "as kubectl does it");
    let of_b = "\
NAME   READY   STATUS    RESTARTS   NODE     APP
db     0/0     Running   0          <none>   db
";
    assert_eq!(server.out(&["list", "pods", "-n", "b", "-l", "app!=web", "-L", "app"]), of_b);
    let pending = server.out(&["list", "pods", "--field-selector", "status.phase=Pending", "--no-headers"]);
    assert_eq!(pending, "b   web   0/0   Pending   0   <none>\n");
    assert!(server.out(&["list", "pods", "-o", "wide", "--show-labels"]).lines().all(|line| !line.ends_with(' ')));
    let mixed = server.out(&["list", "things"]);
    assert!(mixed.contains("            flags/dark.json   <none>\n"), "{mixed}");

    let names = server.out(&["list", "things", "-o", "name"]);
    assert_eq!(names, "/flags/dark.json\na/web\nb/db\nb/web\n");
    let arguments: Vec<&str> = ["get", "things"].into_iter().chain(names.lines()).chain(["-o", "name"]).collect();
    assert_eq!(server.out(&arguments), names, "what is printed is taken");

    let json = server.out(&["list", "pods", "-o", "json"]);
    assert!(json.starts_with("{\n    \"apiVersion\": \"v1\",\n    \"kind\": \"List\",\n    \"items\": [\n        {\n"));
    assert_eq!(json.matches("\"n\": 9007199254740993").count(), 3, "{json}");
    let yaml = server.out(&["list", "pods", "-o", "yaml"]);
    let read: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(read, serde_json::from_str::<Value>(&json).unwrap());
    let jsonl = server.out(&["list", "pods", "-o", "jsonl"]);
    let bodies: Vec<Value> = jsonl.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(Value::from(bodies), read["items"]);
}

#[test]
fn get_finds_an_object_by_its_name_in_any_namespace() {
    let directory = things();
    let server = Server::of(&directory);
    assert_eq!(server.out(&["get", "pods", "db", "-o", "name"]), "b/db\n");
    let body: Value = serde_json::from_str(&server.out(&["get", "pods", "a/web", "-o", "json"])).unwrap();
    assert_eq!((&body["kind"], &body["metadata"]["namespace"]), (&"Pod".into(), &"a".into()));
    assert_eq!(server.out(&["get", "pods", "web", "-n", "b", "-o", "name"]), "b/web\n");
    for name in ["flags/dark.json", "/flags/dark.json"] {
        let yaml = "\"on\": \"yes\"\nsince: \"010\"\nmetadata:\n  name: flags/dark.json\n";
        assert_eq!(server.out(&["get", "things", name, "-o", "yaml"]), yaml);
    }
    let (code, error) = server.error(&["get", "pods", "web"]);
    let expected =
        "error: pods \"web\" is ambiguous (2 objects): use -n NAMESPACE, or one of these:\n  a/web\n  b/web\n";
    assert_eq!((code, error.as_str()), (2, expected));
    let (code, error) = server.error(&["get", "pods", "nobody"]);
    assert_eq!((code, error.as_str()), (3, "error: pods \"nobody\" not found in any namespace\n"));
    assert_eq!(server.error(&["get", "pods", "a/db"]), (3, "error: pods \"a/db\" not found\n".to_owned()));
    let (code, out, err) = server.run(&["get", "pods", "db", "nobody", "a/web", "-o", "name"]);
    assert_eq!((code, out.as_str()), (3, "b/db\na/web\n"), "what there is, is printed");
    assert_eq!(err, "error: pods \"nobody\" not found in any namespace\n");
    assert_eq!(server.error(&["get", "pods", "db", "-l", "app=db"]).0, 2);
}

#[test]
fn indexes_and_resources_are_shown() {
    let server = Server::shop();
    while !server.run(&["resources"]).2.is_empty() {}
    assert_eq!(server.out(&["values", "pods", "phase"]), "VALUE     OBJECTS\nFailed    1\nPending   1\nRunning   19\n");
    let values: Value = serde_json::from_str(&server.out(&["values", "pods", "node", "-o", "json"])).unwrap();
    assert_eq!(values["values"][0], serde_json::json!({"value": "node-a", "objects": 5}));
    assert_eq!(server.out(&["by-index", "pods", "node", "node-a", "-o", "name"]).lines().count(), 5);
    assert_eq!(server.out(&["by-index", "pods", "node", "node-a", "-n", "platform"]).lines().count(), 2);
    let (code, out, err) = server.run(&["by-index", "pods", "node", "nowhere"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", "No objects found.\n"));
    let resources = server.out(&["resources"]);
    let row: Vec<&str> = resources.lines().nth(3).unwrap().split_whitespace().collect();
    assert_eq!(row, ["pods", "files", "SYNCED", "21", "0", "app,image,namespace,node,phase"]);
    assert_eq!(server.out(&["resources", "-o", "name"]), "configmaps\ndeployments\npods\nservices\n");
    let resources: Value = serde_saphyr::from_str(&server.out(&["resources", "-o", "yaml"])).unwrap();
    assert_eq!(resources["resources"][2]["objects"], 21);
}

#[test]
fn an_empty_result_is_no_error_and_prints_a_note_unless_quiet() {
    let directory = things();
    let server = Server::of(&directory);
    let empty = (0, String::new(), "No objects found in namespace \"c\".\n".to_owned());
    assert_eq!(server.run(&["list", "pods", "-n", "c"]), empty);
    assert_eq!(server.run(&["list", "pods", "-n", "c", "-q"]), (0, String::new(), String::new()));
    assert_eq!(server.run(&["list", "pods", "-n", "c", "-o", "jsonl"]), (0, String::new(), String::new()));
    let list = server.out(&["list", "pods", "-n", "c", "-o", "yaml"]);
    assert!(list.starts_with("apiVersion: v1\nkind: List\nitems: []\nmetadata:\n  resourceVersion: \""), "{list}");
}

/// Checks that a failure is one line on stderr, with the exit code that the help documents.
#[test]
fn errors_are_one_line() {
    let server = Server::shop();
    // Connections to this listener wait for ever.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    let table: &[(&[&str], i32, &str)] = &[
        (
            &["list", "pod"],
            3,
            "resource \"pod\" not found; did you mean \"pods\"? (known: configmaps, deployments, pods, services)",
        ),
        (&["watch", "Pods", "--state"], 3, "did you mean \"pods\"?"),
        (&["watch", "pods", "--state", "--watch-only"], 2, "'--state' cannot be used with '--watch-only'"),
        (&["watch", "Pods"], 3, "did you mean \"pods\"?"),
        (&["get", "deploy", "web"], 3, "did you mean \"deployments\"?"),
        (
            &["values", "pods", "nodes"],
            2,
            "index \"nodes\" not found; did you mean \"node\"? (known: app, image, namespace, node, phase)",
        ),
        (&["by-index", "pods", "zone", "x"], 2, "index \"zone\" not found (known: app, image, namespace, node, phase)"),
        (&["by-index", "pods", "node", "--like", "orders/none"], 3, "pods \"orders/none\" not found"),
        (&["list", "pods", "-l", "a in"], 2, "label_selector, character 5: expected '('"),
        (&["watch", "pods", "--field-selector", "a"], 2, "field_selector, character 2: "),
        (&["list", "pods", "--expression", "1 +"], 2, "expression, character 4: expected more: "),
        (
            &["get", "pods", "web", "--expression", "true"],
            2,
            "a name cannot be given together with selectors; leave out one of them",
        ),
        (&["until", "pods", "--for", "object.n =="], 2, "--for \"object.n ==\": character 12: expected more: "),
        (
            &["until", "pods", "--for", "false", "--timeout", "100ms"],
            4,
            "pods: timed out after 100ms waiting for the conditions (--timeout)",
        ),
        (&["until", "pod", "--for", "delete"], 3, "did you mean \"pods\"?"),
        (&["until", "pods"], 2, "--for <CEL>"),
        (&["until", "pods", "--for", "true", "--server", "127.0.0.1:1"], 4, "cannot connect to 127.0.0.1:1"),
        (&["list", "pods", "--server", "127.0.0.1:1"], 4, "cannot connect to 127.0.0.1:1"),
        (
            &["list", "pods", "--server", &silent, "--timeout", "100ms"],
            4,
            "timed out after 100ms: no complete response (--timeout)",
        ),
        (&["watch", "pods", "--server", "unix:/no/such.sock"], 4, "cannot connect to unix:/no/such.sock"),
        (&["resources", "--server", "https://localhost"], 2, "port is missing"),
        (&["resources", "--certificate-authority", "none.pem"], 2, "none.pem: No such file"),
        (
            &["resources", "--certificate-authority", "Cargo.toml"],
            2,
            "certificates need TLS: use --server https://HOST:PORT instead of ",
        ),
        (&["resources", "--token-file", "none"], 2, "token file none: No such file"),
        (
            &["resources", "--token-file", "none", "--server", "192.0.2.1:50051"],
            2,
            "a token is not sent in the clear: use --server https://HOST:PORT or a Unix socket instead of 192.0.2.1:50051",
        ),
        (&["resources", "--client-key", "Cargo.toml"], 2, "--client-certificate"),
        (&["list"], 2, "<RESOURCE>"),
        (&["list", "pods", "-o", "xml"], 2, "jsonl"),
    ];
    for (arguments, expected, hint) in table {
        let (code, error) = server.error(arguments);
        assert_eq!(code, *expected, "{arguments:?}: {error}");
        assert!(error.starts_with("error: ") && error.contains(hint), "{arguments:?}: {hint} is not in {error}");
        if !error.contains("--help") {
            assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
        }
    }
}

#[test]
fn a_watch_shows_the_state_and_every_change() {
    let directory = things();
    let server = Server::of(&directory);
    let mut watch = Watch::start(&server, &["pods", "-l", "app=web"]);
    assert_eq!(watch.row(), "EVENT      NAMESPACE   NAME   READY   STATUS    RESTARTS   NODE     CAUSE");
    assert_eq!(watch.row(), "ADDED      a           web    0/0     Running   0          <none>   initial");
    assert_eq!(watch.row(), "ADDED      b           web    0/0     Pending   0          <none>   initial");
    assert!(watch.note().starts_with("# synced: 2 objects at "));
    write(&directory, "2.json", &pod("b", "web", "Failed"));
    assert_eq!(watch.row(), "MODIFIED   b           web    0/0     Failed    0          <none>");
    fs::remove_file(directory.path().join("1.json")).unwrap();
    assert_eq!(watch.row(), "DELETED    a           web    0/0     Running   0          <none>");
    write(&directory, "2.json", &pod("b", "web", "Failed").replace(r#""app": "web""#, r#""app": "other""#));
    assert_eq!(watch.row(), "DELETED    b           web    0/0     Failed    0          <none>   left selection");
    write(&directory, "2.json", &pod("b", "web", "Running"));
    assert_eq!(watch.row(), "ADDED      b           web    0/0     Running   0          <none>   entered selection");
    assert_eq!(watch.interrupt(), (Some(0), String::new(), String::new()));
}

#[test]
fn a_watch_for_changes_alone_and_for_programs() {
    let directory = things();
    let server = Server::of(&directory);
    let mut rows = Watch::start(&server, &["pods", "b/web", "--watch-only"]);
    let mut lines = Watch::start(&server, &["pods", "-n", "b", "-o", "jsonl", "--initial=false"]);
    let mut names = Watch::start(&server, &["pods", "-o", "name", "-q", "--color", "always"]);
    assert_eq!([names.row(), names.row(), names.row()], ["a/web", "b/db", "b/web"]);
    assert!(rows.note().starts_with("# synced: 1 object at ") && lines.note().starts_with("# synced: 2 objects at "));
    write(&directory, "2.json", &pod("b", "web", "Failed"));
    assert_eq!(rows.row(), "EVENT      NAMESPACE   NAME   READY   STATUS   RESTARTS   NODE");
    assert_eq!(rows.row(), "MODIFIED   b           web    0/0     Failed   0          <none>");
    let event: Value = serde_json::from_str(&lines.row()).unwrap();
    assert_eq!((&event["type"], &event["object"]["status"]["phase"]), (&"MODIFIED".into(), &"Failed".into()));
    assert!(event["resourceVersion"].is_string() && event.get("cause").is_none(), "{event}");
    assert_eq!(names.row(), "b/web");
    for (watch, name) in [(rows, "-INT"), (lines, "-TERM"), (names, "-TERM")] {
        assert_eq!(watch.signal(name), (Some(0), String::new(), String::new()));
    }
}

#[test]
fn until_prints_the_event_that_met_the_condition() {
    let directory = things();
    let server = Server::of(&directory);
    let arguments = ["until", "pods", "b/web", "--for", "object.status.phase == 'Pending'", "-o", "name"];
    let (code, out, note) = server.run(&arguments);
    assert_eq!((code, out.as_str()), (0, "b/web\n"));
    assert!(note.starts_with("# met: ADDED b/web at ") && note.lines().count() == 1, "{note}");
    assert_eq!(server.out(&[&arguments[..], &["-q"]].concat()), "b/web\n");
    let row = server.out(&["until", "pods", "-n", "b", "-l", "app=web", "--for", "true", "-q"]);
    assert_eq!(row, "NAME   READY   STATUS    RESTARTS   NODE\nweb    0/0     Pending   0          <none>\n");

    let (code, out, note) = server.run(&["until", "pods", "nobody", "--for", "delete"]);
    assert_eq!((code, out.as_str()), (0, ""), "as kubectl wait has it");
    assert!(note.starts_with("# met: by the current objects at "), "{note}");

    let wait =
        |arguments: &[&str]| Watch::of(server.command(&[&["until", "pods", "--timeout", "1m"], arguments].concat()));
    let mut deleted = wait(&["a/web", "--for", "delete", "-o", "jsonl"]);
    let twice = ["--for", "object.status.phase == 'Failed'", "--for", "object.status.phase == 'Running'"];
    let mut mended = wait(&[&["b/web", "--no-headers"], &twice[..]].concat());
    // Both commands must be waiting first: an earlier change would be part of the initial state.
    while !server.out(&["resources", "-o", "jsonl"]).contains(r#""watchers":2"#) {}
    fs::remove_file(directory.path().join("1.json")).unwrap();
    assert!(deleted.note().starts_with("# met: DELETED a/web at "));
    let body: Value = serde_json::from_str(&deleted.row()).unwrap();
    assert_eq!(body["metadata"]["namespace"], "a", "the last state");
    // Two steps, or the command could miss the first: each waits until the server has seen the change.
    let is_failed = ["list", "pods", "--expression", "object.status.phase == 'Failed'", "-o", "name"];
    write(&directory, "2.json", &pod("b", "web", "Failed"));
    while server.run(&is_failed).1 != "b/web\n" {}
    write(&directory, "2.json", &pod("b", "web", "Running"));
    assert!(mended.note().starts_with("# met: MODIFIED b/web at "));
    assert_eq!(mended.row(), "b   web   0/0   Running   0   <none>");
    assert_eq!(mended.child.wait().unwrap().code(), Some(0));

    // The first process of a container receives only the signals that it handles.
    let waiting = [("-INT", 130), ("-TERM", 143)].map(|(name, code)| (wait(&["nobody", "--for", "false"]), name, code));
    while !server.out(&["resources", "-o", "jsonl"]).contains(r#""watchers":2"#) {}
    for (wait, name, code) in waiting {
        let told = "error: pods: interrupted before the conditions were met\n".to_owned();
        assert_eq!(wait.signal(name), (Some(code), String::new(), told));
    }
}

/// Checks that a condition stays met across a restart, and that what was deleted meanwhile is an event.
#[test]
fn waiting_outlives_the_server() {
    let directory = things();
    let files = format!("pods={}@Pod", directory.path().display());
    let address = free_address().to_string();
    let server = Server::start_at(&address, &["--files", &files]);
    let mut command = server.command(&["until", "pods", "b/web", "--for", "object.status.phase == 'Pending'"]);
    command.args(["--for", "object.status.phase == 'Failed'", "--for", "type == 'DELETED'"]);
    let mut waiting = Watch::of({
        command.args(["--timeout", "0", "-o", "name"]);
        command
    });
    // Once its watch is LIVE, the server has sent the initial state, and a drain waits until that is written.
    let is_live = |server: &Server| server.out(&["watchers", "-o", "jsonl"]).contains(r#""state":"LIVE""#);
    while !is_live(&server) {}
    server.drain();
    write(&directory, "2.json", &pod("b", "web", "Failed"));
    let server = Server::start_at(&address, &["--files", &files]);
    while !is_live(&server) {}
    server.drain();
    fs::remove_file(directory.path().join("2.json")).unwrap();
    let _server = Server::start_at(&address, &["--files", &files]);
    assert_eq!(waiting.row(), "b/web");
    assert!(waiting.note().starts_with("# met: DELETED b/web at "));
    assert_eq!(waiting.child.wait().unwrap().code(), Some(0));
}

/// Checks that the lists are whole and sorted, that a restart of the server without a change prints nothing, and that a reader
/// that stalls gets the last state.
#[test]
fn a_state_is_the_whole_list_after_each_change() {
    let directory = things();
    let files = format!("pods={}@Pod", directory.path().display());
    let address = free_address().to_string();
    let server = Server::start_at(&address, &["--files", &files]);
    let mut rows = Watch::start(&server, &["pods", "--state", "-l", "app=web", "--no-headers"]);
    assert_eq!(
        [rows.row(), rows.row()],
        ["a   web   0/0   Running   0   <none>", "b   web   0/0   Pending   0   <none>"]
    );
    assert!(rows.note().starts_with("# synced: 2 objects at "));
    write(&directory, "2.json", &pod("b", "web", "Failed"));
    assert_eq!(
        [rows.row(), rows.row(), rows.row()],
        ["", "a   web   0/0   Running   0   <none>", "b   web   0/0   Failed    0   <none>"]
    );
    let mut lists = Watch::start(&server, &["pods", "--state", "-o", "jsonl"]);
    let names = |line: String| -> Vec<String> {
        let list: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&list["apiVersion"], &list["kind"]), (&"v1".into(), &"List".into()));
        let metadata = |object: &Value, key: &str| object["metadata"][key].as_str().unwrap().to_owned();
        let name = |object| format!("{}/{}", metadata(object, "namespace"), metadata(object, "name"));
        list["items"].as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(names(lists.row()), ["a/web", "b/db", "b/web"]);
    drop(server);
    assert!(rows.note().starts_with("# watch failed: "));
    let server = Server::start_at(&address, &["--files", &files]);
    write(&directory, "0.json", &pod("a", "api", "Running"));
    assert_eq!(names(lists.row()), ["a/api", "a/web", "b/db", "b/web"], "nothing for the restart alone");
    fs::remove_file(directory.path().join("2.json")).unwrap();
    assert_eq!([rows.row(), rows.row()], ["", "a   web   0/0   Running   0   <none>"]);
    assert_eq!(names(lists.row()), ["a/api", "a/web", "b/db"]);

    // With a view the labels are no part of the body.
    let labels = ["pods", "--state", "-n", "b", "--fields", "spec", "-L", "app", "--no-headers"];
    let mut labels = Watch::start(&server, &labels);
    assert!(labels.row().ends_with("   db"));
    write(&directory, "3.json", &pod("b", "db", "Running").replace(r#""app": "db""#, r#""app": "other""#));
    assert_eq!(labels.row(), "");
    assert!(labels.row().ends_with("   other"));
    assert_eq!(labels.interrupt().0, Some(0));

    // The pipe holds a fraction of these lists.
    for n in 0..300 {
        write(&directory, &format!("p{n}.json"), &pod("c", &format!("p{n:03}"), &"x".repeat(300)));
    }
    let all = server.out(&["list", "pods", "-o", "name"]).lines().count();
    let last = std::iter::repeat_with(|| names(lists.row())).find(|names| names.len() == 303).unwrap();
    assert!(all <= 303 && last.is_sorted());
    for watch in [rows, lists] {
        let (code, out, _) = watch.interrupt();
        assert_eq!((code, out.as_str()), (Some(0), ""));
    }
}

/// Checks that nothing is missed while no server runs, and that only the difference is reported.
#[test]
fn a_watch_outlives_its_server() {
    let directory = things();
    let files = format!("pods={}@Pod", directory.path().display());
    let address = free_address().to_string();
    let server = Server::start_at(&address, &["--files", &files]);
    let mut watch = Watch::start(&server, &["pods", "--no-headers"]);
    assert_eq!([watch.row(), watch.row(), watch.row()].map(|row| row.ends_with("initial")), [true; 3]);
    assert!(watch.note().starts_with("# synced: 3 objects at "));
    drop(server);
    let note = watch.note();
    assert!(note.starts_with("# reconnecting in "), "{note}");
    fs::remove_file(directory.path().join("1.json")).unwrap();
    write(&directory, "3.json", &pod("b", "db", "Failed"));
    let _server = Server::start_at(&address, &["--files", &files]);
    let mut rows = [watch.row(), watch.row()];
    rows.sort_unstable();
    let expected = [
        "DELETED    a   web   0/0   Running   0   <none>   inferred",
        "MODIFIED   b   db    0/0   Failed    0   <none>",
    ];
    assert_eq!(rows, expected);
    let mut notes = std::iter::repeat_with(|| watch.note()).skip_while(|note| note.starts_with("# reconnecting in "));
    let expected = ["# cannot resume from the last version: listing again, and comparing", "# relisted: 2 changes"];
    assert_eq!([notes.next().unwrap(), notes.next().unwrap()], expected);
    drop(notes);
    assert_eq!(watch.interrupt(), (Some(0), String::new(), String::new()));
}

#[test]
fn a_closed_pipe_is_a_quiet_end() {
    let directory = TempDir::new().unwrap();
    for n in 0..500 {
        write(&directory, &format!("{n}.json"), &pod("a", &format!("p{n}"), &"x".repeat(1000)));
    }
    let server = Server::of(&directory);
    for arguments in [&["list", "pods"][..], &["list", "pods", "-o", "yaml"], &["watch", "pods", "-o", "jsonl", "-q"]] {
        let mut child = server.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{arguments:?}");
    }
}

/// Checks that control characters of an object do not reach the terminal, and that colour is used only when requested.
#[test]
fn only_our_own_escapes_reach_a_terminal() {
    let directory = TempDir::new().unwrap();
    write(&directory, "1.json", &pod("a", "web", r"\u001b[2J\nx"));
    let server = Server::of(&directory);
    assert!(!server.out(&["list", "pods"]).contains('\u{1b}'), "not a terminal");
    let table = server.out(&["list", "pods", "--no-headers", "--color", "always"]);
    assert_eq!(table, "a   web   0/0   \\u{1b}[2J\\nx   0   <none>\n");
    let mut watch = Watch::start(&server, &["pods", "--no-headers", "--color", "always", "--watch-only"]);
    watch.note();
    fs::remove_file(directory.path().join("1.json")).unwrap();
    assert_eq!(watch.row(), "\u{1b}[31mDELETED\u{1b}[0m    a   web   0/0   \\u{1b}[2J\\nx   0   <none>");
    assert_eq!(watch.interrupt().0, Some(0));
}

#[test]
fn several_resources_are_watched_at_once() {
    let directory = TempDir::new().unwrap();
    write(&directory, "1.json", &pod("a", "web", "Running"));
    let server = Server::of(&directory);
    let mut watch = Watch::start(&server, &["pods,things", "-o", "jsonl"]);
    let mut rows = || {
        let rows = [watch.row(), watch.row()].map(|row| serde_json::from_str::<Value>(&row).unwrap());
        let mut rows = rows.map(|row| ["resource", "type", "name"].map(|key| row[key].as_str().unwrap().to_owned()));
        rows.sort();
        rows.map(|row| row.join(" "))
    };
    assert_eq!(rows(), ["pods ADDED web", "things ADDED web"]);
    write(&directory, "1.json", &pod("a", "web", "Failed"));
    assert_eq!(rows(), ["pods MODIFIED web", "things MODIFIED web"]);
    let (code, _, err) = watch.interrupt();
    let mut notes: Vec<&str> = err.lines().collect();
    notes.sort_unstable();
    assert_eq!((code, notes.len()), (Some(0), 2), "{err}");
    assert!(notes[0].starts_with("# pods: synced: 1 object at "), "{err}");
    assert!(notes[1].starts_with("# things: synced: 1 object at "), "{err}");

    let mut watch = Watch::start(&server, &["pods,things", "-q"]);
    assert_eq!(watch.row(), "EVENT      RESOURCE   NAMESPACE   NAME   READY   STATUS   RESTARTS   NODE     CAUSE");
    let mut rows = [watch.row(), watch.row()];
    rows.sort();
    assert!(rows[0].starts_with("ADDED      pods       a           web "), "{rows:?}");
    assert!(rows[1].starts_with("ADDED      things     a           web "), "{rows:?}");
    assert_eq!(watch.interrupt().0, Some(0));
    let (code, error) = server.error(&["watch", "pods,podz", "-o", "jsonl", "--initial=false"]);
    assert!(code == 3 && error.contains("resource \"podz\" not found"), "{error}");
    let (code, error) = server.error(&["watch", "pods,things", "--state"]);
    assert_eq!((code, error.as_str()), (2, "error: --state is the list of one resource: name one\n"));
}
