//! Client commands: flags of watches, templates, order, and the commands beside the data.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::Stdio,
};

use informerd::proto::pb::{
    self,
    admin_service_server::{AdminService, AdminServiceServer},
    informer_service_server::{InformerService, InformerServiceServer},
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_stream::{StreamExt, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, codegen::BoxStream};

use crate::{
    authentication::line,
    client_commands::{Server, Watch, pod, write},
    command_line::{informerd, run, signal},
    sandbox::DEADLINE,
};

/// Creates the Pods a/web and b/db, of which one has started twice, and a value without kind.
fn things() -> TempDir {
    let directory = TempDir::new().unwrap();
    write(&directory, "1.json", &pod("a", "web", "Running"));
    let restarted = pod("b", "db", "Running").replace(
        r#""phase": "Running""#,
        r#""phase": "Running", "containerStatuses": [{"ready": true, "restartCount": 2, "state": {"running": {}}}]"#,
    );
    write(&directory, "2.json", &restarted.replace(r#""spec": {"#, r#""spec": {"containers": [{"image": "db:1"}], "#));
    fs::write(directory.path().join("flag.json"), r#"{"on": true}"#).unwrap();
    directory
}

#[test]
fn templates_columns_order_and_limit() {
    let directory = things();
    let server = Server::of(&directory);
    let out = |arguments: &[&str]| {
        let (code, out, err) = server.run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {err}");
        (out, err)
    };
    let template = "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}";
    assert_eq!(out(&["list", "pods", "-o", template]).0, "web\ndb\n");
    assert_eq!(out(&["get", "pods", "a/web", "-o", "jsonpath={.metadata.labels.app}"]).0, "web");
    assert_eq!(out(&["resources", "-o", "jsonpath={.resources[*].name}"]).0, "pods things");
    let columns = "custom-columns=NAME:.metadata.name,IMAGES:.spec.containers[*].image";
    let table = "NAME   IMAGES\ndb     db:1\nweb    <none>\n";
    assert_eq!(out(&["list", "pods", "-o", columns, "--sort-by", ".metadata.name"]).0, table);
    let (first, note) = out(&["list", "pods", "--sort-by", "{.metadata.namespace}", "--limit", "1"]);
    assert_eq!(
        first,
        "NAMESPACE   NAME   READY   STATUS    RESTARTS   NODE\na           web    0/0     Running   0          <none>\n"
    );
    assert_eq!(note, "# 1 of 2 objects (--limit)\n");
    assert_eq!(out(&["list", "pods", "-n", "b", "--no-headers"]).0, "db   1/1   Running   2   <none>\n");
    let flag: Value = serde_json::from_str(&out(&["get", "things", "flag.json", "-o", "json"]).0).unwrap();
    assert_eq!(flag, serde_json::json!({"on": true, "metadata": {"name": "flag.json"}}));

    let (code, _, err) = server.run(&["list", "pods", "-o", "jsonpath={.items[0}"]);
    assert!(code == 2 && err.contains("a bracket is not closed"), "{err}");
    let (code, _, err) = server.run(&["list", "pods", "--sort-by", ".metadata.nmae"]);
    assert!(code == 2 && err.contains("--sort-by .metadata.nmae: no object has a value there"), "{err}");
    let (code, _, err) = server.run(&["list", "pods", "--limit", "0"]);
    assert!(code == 2 && err.contains("--limit <NUMBER>"), "{err}");
    let (code, _, err) = run(&["list", "pods", "--server", "https://127.0.0.1:1", "--token-file", "none"]);
    assert!(code == Some(2) && err.contains("token file none: No such file"), "a usage error: {err}");
    let (code, _, err) = server.run(&["list", "pods", "-o", "template"]);
    assert!(code == 2 && err.contains("jsonpath=TEMPLATE"), "{err}");
    for (arguments, problem) in [
        (&["list", "pods", "--index", "namespace=a", "--index", "app=x"][..], "two indexes"),
        (&["by-index", "pods", "namespace", "a", "--index", "namespace=a"], "by-index has an index already"),
        (&["watch", "pods", "--diff", "-o", "json"], "--diff is for tables"),
        (&["watch", "pods", "--state", "--since", "1"], "cannot be used with"),
        (&["get", "pods", "a/web", "b/db", "-w"], "--watch: with one NAME"),
        (&["watch", "pods", "--state", "--metadata", "--timeout", "5s"], "cannot be used with"),
    ] {
        let (code, _, err) = server.run(arguments);
        assert!(code == 2 && err.contains(problem), "{arguments:?}: {err}");
    }
    assert_eq!(out(&["list", "pods", "--index", "namespace=b", "-o", "name"]).0, "b/db\n");
}

#[test]
fn two_indexes_are_refused_by_every_command() {
    let directory = things();
    let server = Server::of(&directory);
    let copy = TempDir::new().unwrap();
    let copy = copy.path().join("copy");
    for command in [
        &["list", "pods"][..],
        &["watch", "pods", "--timeout", "5s"],
        &["diff", "pods", "--from", "1"],
        &["explain", "pods", "a/web"],
        &["until", "pods", "--for", "delete", "--timeout", "5s"],
        &["record", "none"],
        &["mirror", "pods", copy.to_str().unwrap(), "--once"],
    ] {
        let (code, _, err) = server.run(&[command, &["--index", "namespace=a", "--index", "app=x"]].concat());
        assert!(code == 2 && err.contains("two indexes"), "{command:?}: {err}");
    }
    assert!(!copy.exists());
}

#[test]
fn a_resource_and_a_name_can_be_one_argument() {
    let directory = things();
    let server = Server::of(&directory);
    let out = |arguments: &[&str]| {
        let (code, out, err) = server.run(arguments);
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        out
    };
    let name = ["-o", "name"];
    for (arguments, expected) in [
        (&["get", "pods/web"][..], "a/web\n"),
        (&["get", "pods/a/web"], "a/web\n"),
        (&["get", "pods/web", "pods/b/db"], "a/web\nb/db\n"),
        (&["get", "pods", "a/web"], "a/web\n"),
    ] {
        assert_eq!(out(&[arguments, &name].concat()), expected, "{arguments:?}");
    }
    assert_eq!(out(&["describe", "pods/web"]), out(&["describe", "pods", "web"]));
    let (code, _, err) = server.run(&["get", "pods/web", "things/flag.json"]);
    assert!(code == 2 && err.contains("RESOURCE/NAME"), "{err}");
    let (code, _, err) = server.run(&["get", "podz/web"]);
    assert!(code == 3 && err.contains("did you mean \"pods\"?"), "{err}");
}

/// Checks that a body is written to the byte, also one that is not JSON.
#[test]
fn a_body_is_written_to_the_byte() {
    let directory = TempDir::new().unwrap();
    let texts = [("a.json", "{ \"n\":  1.00 }"), ("b.json", "[1,\n 2]")];
    for (name, text) in texts {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let server = Server::of(&directory);
    for (name, text) in texts {
        assert_eq!(server.run(&["get", "things", name, "--raw"]), (0, text.to_owned(), String::new()));
    }
    for (arguments, expected) in [
        (&["get", "things", "a.json", "b.json", "--raw"][..], "the body of one object"),
        (&["get", "things", "--raw"], "<NAME>..."),
        (&["get", "things", "a.json", "--raw", "-o", "json"], "cannot be used with"),
        (&["get", "things", "b.json", "--raw", "--fields", "spec"], "b.json has no body in this view"),
    ] {
        let (code, out, err) = server.run(arguments);
        assert!(code > 0 && out.is_empty() && err.contains(expected), "{arguments:?} {err}");
    }
}

#[test]
fn a_watch_without_its_reader_ends_before_the_next_event() {
    let directory = things();
    let server = Server::of(&directory);
    for arguments in [&["watch", "pods"][..], &["watch", "pods", "--state"], &["record", "pods"]] {
        let mut child = server.command(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut rows = BufReader::new(child.stdout.take().unwrap());
        assert!(rows.read_line(&mut String::new()).unwrap() > 0);
        drop(rows);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}");
    }
}

/// Server of the Pods a/web, b/web and b/db, one caller of which has the rights of a rule.
struct Restricted {
    directory: TempDir,
    server: Server,
}

impl Restricted {
    fn to(rule: &str) -> Self {
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("pods")).unwrap();
        for (namespace, name) in [("a", "web"), ("b", "web"), ("b", "db")] {
            let path = directory.path().join(format!("pods/{namespace}-{name}.json"));
            fs::write(path, pod(namespace, name, "Running")).unwrap();
        }
        fs::write(directory.path().join("tokens"), line("secret", "ann")).unwrap();
        fs::write(directory.path().join("token"), "secret").unwrap();
        let rule = format!("{{ subjects: ['user:ann'], resources: [pods], {rule} }}");
        let text = format!(
            "{{ authentication: {{ token_file: tokens }}, authorization: {{ rules: [{rule}] }}, \
             resources: {{ pods: {{ source: {{ files: {{ path: pods }} }} }} }} }}"
        );
        fs::write(directory.path().join("informerd.yaml"), text).unwrap();
        let config = directory.path().join("informerd.yaml");
        let server = Server::start_at("127.0.0.1:0", &["--config", config.to_str().unwrap()]);
        Self { directory, server }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// Returns a command of the caller.
    fn command(&self, arguments: &[&str]) -> std::process::Command {
        self.server.command(&[arguments, &["--token-file", &self.path("token")]].concat())
    }

    /// Returns the exit code, stdout and stderr.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

#[test]
fn an_answer_that_is_limited_to_namespaces_has_a_note() {
    let limited = Restricted::to("verbs: [list, watch], namespaces: [a]");
    let note = "# pods: limited to what you may read: namespaces a\n";
    for (arguments, expected) in [
        (&["list", "pods", "-o", "name"][..], "a/web\n"),
        (&["get", "pods", "web", "-o", "name"], "a/web\n"),
        (&["values", "pods", "namespace", "-o", "name"], "a\n"),
    ] {
        let (code, out, err) = limited.run(arguments);
        assert_eq!((code, out.as_str(), err.as_str()), (0, expected, note), "{arguments:?}");
    }
    // b/db exists, and nobody has deleted it.
    let (code, _, err) = limited.run(&["until", "pods", "db", "--for", "delete"]);
    assert!(code == 0 && err.starts_with(&format!("{note}# met: by the current objects at ")), "{err}");
    let (code, out, err) = limited.run(&["get", "pods", "web", "web", "-o", "name"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "a/web\na/web\n", note), "once");
    let (code, _, err) = limited.run(&["get", "pods", "db"]);
    assert_eq!((code, err), (3, format!("{note}error: pods \"db\" not found in any namespace\n")));
    let (_, _, err) = limited.run(&["list", "pods", "-n", "a", "-o", "name"]);
    assert_eq!(err, "", "it was limited by the request");
    for arguments in [&["watch", "pods", "-o", "name"][..], &["record", "pods"]] {
        let mut watch = Watch::of(limited.command(arguments));
        assert!(watch.note().starts_with("# synced: 1 object "));
        assert_eq!(watch.note() + "\n", note, "{arguments:?}");
    }
    for arguments in [&["watch", "pods", "--state"][..], &["mirror", "pods", &limited.path("copy")]] {
        let mut watch = Watch::of(limited.command(arguments));
        assert_eq!(watch.note() + "\n", note, "{arguments:?}");
        assert!(watch.note().starts_with("# synced: 1 object "));
    }
    // The others are not compared.
    let (code, out, err) =
        limited.run(&["verify", "pods", "--config", &limited.path("informerd.yaml"), "--settle", "0s"]);
    let equal = "# pods: 1 objects are those of the upstream\n";
    assert_eq!((code, out.as_str(), err), (0, "", format!("{note}{equal}")));
    let (code, _, err) = limited.run(&["watchers", "-w"]);
    assert_eq!(code, 5, "{err}");
}

#[test]
fn a_right_to_metadata_alone_is_not_enough_for_states() {
    let limited = Restricted::to("verbs: [list, watch], namespaces: ['*'], formats: [METADATA]");
    for arguments in [&["list", "pods", "--metadata"][..], &["list", "pods"]] {
        let (code, out, err) = limited.run(&[arguments, &["-o", "name"]].concat());
        assert_eq!((code, out.as_str(), err.as_str()), (0, "a/web\nb/db\nb/web\n", ""), "{arguments:?}");
    }
    let (code, out, err) = limited.run(&["watch", "pods", "--state", "-o", "name", "--timeout", "5s"]);
    assert_eq!((code, out.as_str()), (5, ""), "{err}");
}

/// Checks that a command whose output nobody reads has its exit code and its errors nevertheless.
#[test]
fn a_command_without_its_reader_still_reports_its_failure() {
    let directory = things();
    let server = Server::of(&directory);
    let away = directory.path().join("away.yaml");
    let text = format!(
        "resources:\n  pods: {{ source: {{ etcd: {{ endpoints: ['http://127.0.0.1:1'], prefix: / }} }} }}\n  \
         things: {{ source: {{ files: {{ path: {} }} }} }}\n",
        directory.path().join("none").display()
    );
    fs::create_dir(directory.path().join("none")).unwrap();
    fs::write(&away, text).unwrap();
    let (away, contexts) = (away.to_str().unwrap(), directory.path().join("contexts.yaml"));
    fs::write(&contexts, "contexts: { down: { server: '127.0.0.1:1' } }\n").unwrap();
    assert_eq!(server.run(&["until", "things", "--for", "type == 'SYNCED'"]).0, 0);
    for (arguments, expected, problem) in [
        (&["check", away][..], 1, "127.0.0.1:1"),
        (&["verify", "things", "--config", away, "--settle", "0s"], 1, "are not those of the upstream"),
        (&["status", "down"], 4, "down: cannot connect to"),
        (&["disconnect", "999"], 3, "watches not found: 999"),
        (&["get", "pods", "a/web", "a/none"], 3, "not found"),
        (&["explain", "pods", "a/none"], 3, "not found"),
    ] {
        let mut command = server.command(arguments);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.env("INFORMERD_CONTEXTS", &contexts).stdout(writer).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(expected) && err.contains(problem),
            "{arguments:?}: {:?} {err}",
            output.status
        );
    }
}

/// Server with the resource `pods`, also `po`, that nobody may read, and the resource `endless`, whose initial events have no end.
struct Scripted;

#[tonic::async_trait]
impl InformerService for Scripted {
    async fn list_resources(
        &self,
        _: Request<pb::ListResourcesRequest>,
    ) -> Result<Response<pb::ListResourcesResponse>, Status> {
        let pods = pb::Resource { name: "pods".to_owned(), aliases: vec!["po".to_owned()], ..pb::Resource::default() };
        Ok(Response::new(pb::ListResourcesResponse { resources: vec![pods], server: None }))
    }

    async fn watch(
        &self,
        request: Request<pb::WatchRequest>,
    ) -> Result<Response<BoxStream<pb::WatchResponse>>, Status> {
        match &*request.into_inner().resource {
            "endless" => {}
            "pods" => return Err(Status::permission_denied("no right to pods")),
            _ => return Err(Status::not_found("not found")),
        }
        let object = pb::Object { name: "first".to_owned(), resource_version: "1".to_owned(), ..pb::Object::default() };
        let first = pb::WatchResponse {
            r#type: pb::EventType::Added.into(),
            cause: pb::Cause::Initial.into(),
            object: Some(object),
            ..pb::WatchResponse::default()
        };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(first)).chain(tokio_stream::pending()))))
    }
}

#[tonic::async_trait]
impl AdminService for Scripted {
    async fn list_watchers(
        &self,
        request: Request<pb::ListWatchersRequest>,
    ) -> Result<Response<pb::ListWatchersResponse>, Status> {
        match &*request.into_inner().resource {
            "pods" => Err(Status::permission_denied("no right to pods")),
            _ => Err(Status::not_found("not found")),
        }
    }
}

/// Runs a command of a client of the scripted server. Returns the exit code, stdout and stderr.
async fn run_scripted(arguments: &[&str]) -> (Option<i32>, String, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tonic::transport::Server::builder()
        .add_service(InformerServiceServer::new(Scripted))
        .add_service(AdminServiceServer::new(Scripted));
    let serving = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let running = tokio::task::spawn_blocking(move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        informerd(&[&arguments, &["--server", &address][..]].concat()).output().unwrap()
    });
    let output = tokio::time::timeout(DEADLINE, running).await.expect("it ends in time").unwrap();
    serving.abort();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn every_command_has_the_other_names_of_a_resource() {
    let copy = TempDir::new().unwrap();
    let copy = copy.path().join("copy");
    for arguments in [
        &["watch", "po"][..],
        &["record", "po"],
        &["mirror", "po", copy.to_str().unwrap(), "--replace"],
        &["watchers", "po"],
    ] {
        let (code, out, err) = run_scripted(arguments).await;
        assert!(code == Some(5) && err.contains("no right to pods"), "{arguments:?}: {err}");
        // What a record ends with is a line.
        assert!(!out.contains("not found"), "{arguments:?}: {out}");
    }
}

#[tokio::test]
async fn a_mirror_that_starts_before_its_server_has_the_other_names_of_a_resource() {
    let copy = TempDir::new().unwrap();
    let copy = copy.path().join("copy");
    fs::create_dir(&copy).unwrap();
    // An earlier one has made it.
    fs::write(copy.join(".informerd-mirror"), "informerd mirror of \"pods\"\n").unwrap();
    for (files, flags) in [(&[][..], &[][..]), (&["web.json"], &[]), (&["web.json"], &["--replace"])] {
        for file in files {
            fs::write(copy.join(file), "{}").unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let to = address.to_string();
        let arguments = ["mirror", "po", copy.to_str().unwrap(), "--server", &*to];
        let mut child = informerd(&[&arguments[..], flags].concat()).stderr(Stdio::piped()).spawn().unwrap();
        let mut notes = BufReader::new(child.stderr.take().unwrap());
        let mut note = String::new();
        notes.read_line(&mut note).unwrap();
        assert!(note.contains("Connection refused") || note.contains("waiting for the server to tell"), "{note}");
        let listener = TcpListener::bind(address).await.unwrap();
        let server = tonic::transport::Server::builder().add_service(InformerServiceServer::new(Scripted));
        let serving = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let ending = tokio::task::spawn_blocking(move || {
            let mut notes_until_its_end = String::new();
            notes.read_to_string(&mut notes_until_its_end).unwrap();
            (child.wait().unwrap().code(), notes_until_its_end)
        });
        let (code, notes) = tokio::time::timeout(DEADLINE, ending).await.expect("it has the name").unwrap();
        serving.abort();
        // Of `po` it would be another one, which is repeated.
        assert!(code == Some(5) && notes.contains("no right to pods"), "{flags:?}: {notes}");
        assert!(files.iter().all(|file| copy.join(file).exists()));
    }
}

#[tokio::test]
async fn a_signal_before_the_server_has_answered_is_a_good_end() {
    let copy = TempDir::new().unwrap();
    let copy = copy.path().join("copy");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for (arguments, expected) in [
        (&["record", "pods"][..], 0),
        (&["mirror", "pods", copy.to_str().unwrap()], 0),
        (&["mirror", "pods", copy.to_str().unwrap(), "--once"], 143),
    ] {
        let mut child = informerd(&[arguments, &["--server", &address]].concat()).spawn().unwrap();
        let _silent = tokio::time::timeout(DEADLINE, listener.accept()).await.expect("it connects").unwrap();
        signal(&child, "-TERM");
        assert_eq!(child.wait().unwrap().code(), Some(expected), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_watch_that_ends_before_its_first_list_is_complete_prints_what_it_has() {
    let (code, out, err) = run_scripted(&["watch", "endless", "--no-headers", "--timeout", "2s"]).await;
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("ADDED ") && out.contains(" first ") && out.lines().count() == 1, "{out}");
}

#[test]
fn tables_are_refreshed_until_a_signal_also_while_the_server_is_away() {
    let directory = things();
    let server = Server::of(&directory);
    let refreshed =
        |arguments: &[&str]| Watch::of(server.command(&[arguments, &["-w", "--interval", "100ms"]].concat()));
    let mut watchers = refreshed(&["watchers", "-o", "name"]);
    let mut resources = refreshed(&["resources", "--no-headers", "--timeout", "5s"]);
    let watched = |row: String| row.split_whitespace().nth(4).unwrap().to_owned();
    assert_eq!(watched(resources.row()), "0");
    let _watch = Watch::of(server.command(&["watch", "pods"]));
    assert_eq!([watchers.row(), watchers.row()], ["1", "1"]);
    while watched(resources.row()) != "1" {}
    assert_eq!(watchers.signal("-TERM").0, Some(0));
    // Without its reader it ends, too.
    let mut command = server.command(&["watchers", "-o", "name", "-w", "--interval", "1h"]);
    let mut unread = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut reader = unread.stdout.take().unwrap();
    reader.read_exact(&mut [0; 2]).unwrap();
    drop(reader);
    assert_eq!(unread.wait().unwrap().code(), Some(0));
    drop(server);
    let note = resources.note();
    assert!(note.starts_with("# ") && note.ends_with("; it is tried again"), "{note}");
    resources.note();
    assert_eq!(resources.interrupt().0, Some(0));
}

#[test]
fn what_cannot_be_refreshed_is_refused_with_the_remedy() {
    let directory = things();
    let server = Server::of(&directory);
    for (arguments, problem) in [
        (
            &["resources", "-w", "-o", "json"][..],
            "error: -w with json or yaml has no end of a document: use -o jsonl\n",
        ),
        (&["watchers", "-w", "--interval", "10ms"], "at least 100ms"),
        (&["watchers", "--interval", "1s"], "--watch"),
        (&["top", "pods", "--once"], "error: `top` is no command any more: use `watchers -w` and `resources -w`, "),
    ] {
        let (code, out, err) = server.run(arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(problem), "{err}");
    }
}

#[test]
fn a_list_and_a_get_can_go_on_as_a_watch() {
    let directory = things();
    let server = Server::of(&directory);
    let mut list = Watch::of(server.command(&["list", "pods", "-n", "a", "-w", "--no-headers"]));
    let mut get = Watch::of(server.command(&["get", "pods", "a/web", "-w", "--watch-only", "-o", "jsonl"]));
    assert_eq!(list.row(), "ADDED      web   0/0   Running   0   <none>   initial");
    assert!(list.note().starts_with("# synced: 1 object") && get.note().starts_with("# synced: 1 object"));
    write(&directory, "1.json", &pod("a", "web", "Failed"));
    assert_eq!(list.row(), "MODIFIED   web   0/0   Failed    0   <none>");
    let event: Value = serde_json::from_str(&get.row()).unwrap();
    assert_eq!((&event["namespace"], &event["name"]), (&"a".into(), &"web".into()), "{event}");
    for watch in [list, get] {
        assert_eq!(watch.interrupt(), (Some(0), String::new(), String::new()));
    }
}

#[test]
fn a_watch_shows_what_has_changed_and_begins_where_it_is_told() {
    let directory = things();
    let server = Server::of(&directory);
    let mut diff =
        Watch::of(server.command(&["watch", "pods", "a/web", "--diff", "--timestamps", "--policy", "coalesce"]));
    let header = diff.row();
    assert!(header.starts_with("TIME ") && header.contains(" EVENT "), "{header}");
    assert!(diff.row().contains("Z   ADDED "));
    let synced = diff.note();
    let version = synced.rsplit(' ').next().unwrap().to_owned();
    let (_, watchers, _) = server.run(&["watchers", "-o", "custom-columns=POLICY:.policy", "--no-headers"]);
    assert_eq!(watchers, "COALESCE\n");
    write(&directory, "1.json", &pod("a", "web", "Failed"));
    assert!(diff.row().contains("Z   MODIFIED "));
    assert_eq!(diff.row(), "  ~ status.phase: \"Running\" → \"Failed\"");
    assert_eq!(diff.interrupt().0, Some(0));

    let mut since = Watch::of(server.command(&["watch", "pods", "--since", &version, "--no-headers"]));
    assert!(since.note().starts_with("# resumed at "));
    assert_eq!(since.row(), "MODIFIED   a   web   0/0   Failed   0   <none>");
    fs::remove_file(directory.path().join("2.json")).unwrap();
    let deleted = since.row();
    assert!(deleted.starts_with("DELETED    b   db "), "of an object that it has not seen: {deleted}");
    assert_eq!(since.interrupt().0, Some(0));
    check_diff(&server, &version);
    let lineage = version.split('.').next().unwrap();
    let (code, _, err) = server.run(&["watch", "pods", "--since", &format!("{lineage}x.1")]);
    assert!(code == 1 && err.starts_with("error: "), "{code}: {err}");
    let (code, ..) = server.run(&["watch", "pods", "--timeout", "1ms", "-q"]);
    assert_eq!(code, 0, "it ends");
}

/// Checks the differences since a version: a pod has changed, and another one is deleted.
fn check_diff(server: &Server, version: &str) {
    let (code, out, err) = server.run(&["diff", "pods", "--from", version, "--no-headers"]);
    let rows: Vec<&str> = out.lines().collect();
    assert_eq!(
        rows[..2],
        ["MODIFIED   a   web   0/0   Failed   0   <none>", "  ~ status.phase: \"Running\" → \"Failed\""]
    );
    assert!(rows.len() == 3 && rows[2].starts_with("DELETED    b   db "), "{out}");
    let note = format!("# 0 added, 1 modified, 1 deleted from {version} to ");
    assert!(code == 0 && err.starts_with(&note), "{code}: {err}");
    let newest = err.trim().rsplit(' ').next().unwrap();
    let until =
        |to: &str, output: &str| server.run(&["diff", "pods", "--from", version, "--to", to, "-o", output, "-q"]);
    assert_eq!(until(newest, "name").1, "a/web\nb/db\n");
    assert_eq!(until(version, "name"), (0, String::new(), String::new()), "nothing has changed");
    let (_, lines, _) = until(newest, "jsonl");
    let documents: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let phases = [&documents[0]["old"], &documents[0]["object"], &documents[1]["object"]]
        .map(|of| of["status"]["phase"].clone());
    assert_eq!(phases, ["Running", "Failed", "Running"]);
    assert_eq!((&documents[1]["type"], documents[1].get("old")), (&"DELETED".into(), None));
    assert_eq!(server.run(&["diff", "pods", "b/db", "--from", version, "-o", "name"]).1, "b/db\n");
    let (code, _, err) = server.run(&["diff", "pods", "--from", "x.1"]);
    assert!(code == 1 && err.contains("has expired"), "{code}: {err}");
}

#[test]
fn a_command_runs_for_each_event() {
    let directory = things();
    let server = Server::of(&directory);
    let command = r#"echo "$INFORMERD_EVENT $INFORMERD_CAUSE $INFORMERD_NAMESPACE/$INFORMERD_NAME"; read -r line; echo "$line"; test "$INFORMERD_NAME" != db"#;
    let mut watch = Watch::of(server.command(&["watch", "pods", "-n", "b", "--exec", command, "-o", "name"]));
    assert_eq!(watch.row(), "b/db", "the event comes first");
    assert_eq!(watch.row(), "ADDED INITIAL b/db");
    let event: Value = serde_json::from_str(&watch.row()).unwrap();
    assert_eq!((&event["type"], &event["name"]), (&"ADDED".into(), &"db".into()));
    assert_eq!(watch.note(), "# exec: exit status: 1 (ADDED of pods/b/db)");
    assert!(watch.note().starts_with("# synced: 1 object"));
    write(&directory, "3.json", &pod("b", "new", "Running"));
    assert_eq!([watch.row(), watch.row()], ["b/new", "ADDED  b/new"]);
    assert!(watch.row().contains(r#""name":"new""#));
    assert_eq!(watch.interrupt(), (Some(0), String::new(), String::new()));
}

/// Checks the names of servers, and the servers that each command reaches by them.
#[test]
fn a_context_names_a_server_and_its_files() {
    let directory = things();
    let nothing = TempDir::new().unwrap();
    let (one, two) = (Server::of(&directory), Server::of(&nothing));
    let home = TempDir::new().unwrap();
    fs::create_dir(home.path().join("informerd")).unwrap();
    fs::write(home.path().join("informerd/token"), "secret").unwrap();
    let file = home.path().join("informerd/contexts.yaml");
    let text = format!(
        "current: one\ncontexts:\n  one: {{ server: '{}', token_file: token }}\n  two: {{ server: '{}' }}\n  \
         down: {{ server: '127.0.0.1:1' }}\n",
        one.address, two.address
    );
    fs::write(&file, &text).unwrap();
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = informerd(arguments);
        command.env("XDG_CONFIG_HOME", home.path()).envs(variables.iter().copied());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    // The two have two pods and none.
    let count = |arguments: &[&str], variables: &[(&str, &str)]| {
        let (code, out, err) = run(&[&["list", "pods", "-o", "name"], arguments].concat(), variables);
        assert_eq!(code, Some(0), "{arguments:?} {variables:?}: {err}");
        out.lines().count()
    };
    let (first, second) = (one.address.as_str(), two.address.as_str());
    for (arguments, variables, expected) in [
        (&[][..], &[][..], 2),
        (&["--context", "two"], &[("INFORMERD_SERVER", first), ("INFORMERD_CONTEXT", "one")], 0),
        (&["--server", second], &[("INFORMERD_CONTEXT", "one")], 0),
        (&[], &[("INFORMERD_SERVER", second), ("INFORMERD_CONTEXT", "one")], 0),
        (&[], &[("INFORMERD_CONTEXT", "two")], 0),
        (&["--context", "one"], &[("INFORMERD_TOKEN_FILE", "/none")], 2),
        (&[], &[("INFORMERD_SERVER", first), ("INFORMERD_CONTEXTS", "/none")], 2),
    ] {
        assert_eq!(count(arguments, variables), expected, "{arguments:?} {variables:?}");
    }
    for (arguments, variables, expected) in [
        (&["--context", "three"][..], &[][..], "context \"three\" not found in"),
        (&["--context", "one", "--server", "h:1"], &[], "cannot be used with"),
        (&[], &[("INFORMERD_TOKEN_FILE", "/none")], "token file /none: No such file"),
        (&["--context", "one", "--token-file", "/none"], &[], "token file /none: No such file"),
        (&[], &[("INFORMERD_SERVER", "a b")], "INFORMERD_SERVER: invalid server address"),
        (&[], &[("INFORMERD_CLIENT_KEY", "/none")], "belong together"),
    ] {
        let (code, _, err) = run(&[&["list", "pods"], arguments].concat(), variables);
        assert!(code == Some(2) && err.contains(expected), "{arguments:?} {variables:?} {err}");
    }

    // It waits for the first list.
    assert_eq!(
        run(&["list", "things", "--context", "two"], &[]),
        (Some(0), String::new(), "No objects found.\n".to_owned())
    );
    let (code, out, err) = run(&["status", "--no-headers"], &[]);
    let rows = out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows: Vec<_> = rows.map(|row| (row[0], row[2], row[3], row[4])).collect();
    let expected = [
        ("down", "<none>", "UNREACHABLE", "<none>"),
        ("one", "pods", "SYNCED", "2"),
        ("one", "things", "SYNCED", "3"),
        ("two", "pods", "SYNCED", "0"),
        ("two", "things", "SYNCED", "0"),
    ];
    assert_eq!((code, rows.as_slice()), (Some(4), &expected[..]));
    assert!(err.starts_with("error: down: cannot connect to 127.0.0.1:1"), "{err}");
    let (code, out, _) = run(&["status", "two", "one", "-o", "name"], &[]);
    assert_eq!((code, &*out), (Some(0), "two/pods\ntwo/things\none/pods\none/things\n"));
    let (code, _, err) = run(&["status", "two", "--token-file", "/none"], &[]);
    assert!(code == Some(2) && err.contains("token file /none: No such file"), "{code:?}: {err}");
    let (code, out, _) = run(&["status", "-o", "name"], &[("INFORMERD_SERVER", second)]);
    assert_eq!(
        (code, out),
        (Some(0), format!("http://{second}/pods\nhttp://{second}/things\n").replace("http://", ""))
    );
    fs::write(&file, text.replace("token_file", "tokn")).unwrap();
    let (code, _, err) = run(&["list", "pods"], &[]);
    assert!(
        code == Some(2) && err.lines().count() == 1 && err.contains("contexts.yaml") && err.contains("tokn"),
        "{err}"
    );
}

/// Checks that an operator ends a watch, and that its client resumes where it was.
#[test]
fn a_watch_that_is_disconnected_resumes() {
    let directory = things();
    let server = Server::of(&directory);
    let mut watch = Watch::of(server.command(&["watch", "pods", "-o", "name", "--watch-only"]));
    assert!(watch.note().starts_with("# synced"));
    let (_, id, _) = server.run(&["watchers", "-o", "name"]);
    let (code, out, err) = server.run(&["disconnect", id.trim(), "999"]);
    assert_eq!((code, out), (3, format!("watch {} disconnected\n", id.trim())));
    assert_eq!(err, "error: watches not found: 999: they have ended, or are not yours to end\n");
    let note = watch.note();
    assert!(note.starts_with("# reconnecting in") && note.ends_with("(UNAVAILABLE / DISCONNECTED)"), "{note}");
    assert!(watch.note().starts_with("# resumed at"));
    write(&directory, "4.json", &pod("b", "new", "Running"));
    assert_eq!(watch.row(), "b/new");
    let (_, ended, _) = server.run(&["watchers", "--ended"]);
    assert!(ended.contains("DISCONNECTED"), "{ended}");
    assert_eq!(watch.interrupt().0, Some(0));
}

/// Checks that a signal ends a watch while its output is not read: its writes block it.
#[test]
fn a_signal_ends_a_command_whose_reader_has_stopped() {
    let directory = TempDir::new().unwrap();
    // More than a pipe takes.
    write(&directory, "1.json", &pod("b", "large", &"x".repeat(1 << 20)));
    let server = Server::of(&directory);
    for arguments in [
        &["watch", "pods", "-o", "jsonl"][..],
        &["watch", "pods", "--state", "-o", "json"],
        &["record", "pods"],
        &["list", "pods", "-o", "json"],
        &["get", "pods", "large", "--raw"],
        &["until", "pods", "--for", "object.metadata.name == 'large'", "-o", "json"],
    ] {
        let mut command = server.command(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut reader = child.stdout.take().unwrap();
        reader.read_exact(&mut [0]).unwrap();
        signal(&child, "-TERM");
        let (sender, ended) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || sender.send(child.wait().unwrap().code()).unwrap());
        let code = ended.recv_timeout(DEADLINE);
        // One that has not ended is not blocked any more.
        drop(reader);
        waiting.join().unwrap();
        assert_eq!(code, Ok(Some(143)), "{arguments:?}");
    }
}

#[test]
fn a_resource_and_an_object_are_described() {
    let directory = things();
    let server = Server::of(&directory);
    let (code, out, err) = server.run(&["describe", "pods"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("Name:           pods\n") && out.contains("State:          SYNCED\n"), "{out}");
    let (code, out, err) = server.run(&["describe", "pods", "b/db"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("Labels:         app=db\n") && out.contains("\nBody:\n  apiVersion: v1\n"), "{out}");
    let (code, _, err) = server.run(&["describe", "pod"]);
    assert_eq!(code, 3);
    assert!(err.contains("did you mean \"pods\"?"), "{err}");
}

#[test]
fn the_reason_of_a_selection_is_explained() {
    let directory = things();
    let server = Server::of(&directory);
    let (code, out, note) = server.run(&[
        "explain",
        "pods",
        "b/db",
        "-n",
        "b",
        "-l",
        "app in (db,x)",
        "--field-selector",
        "status.phase!=Running",
    ]);
    let expected = "\
FIELD            TERM                    RESULT     FOUND
namespace        b                       MATCH      b
label_selector   app in (db,x)           MATCH      db
field_selector   status.phase!=Running   NO_MATCH   Running
";
    assert_eq!((code, out.as_str()), (0, expected));
    assert_eq!(note, "# pods b/db: not selected: 1 of 3 terms do not match\n");
    let (code, _, err) = server.run(&["explain", "pods", "b/none"]);
    assert!(code == 3 && err.starts_with("error: pods \"b/none\" not found"), "{err}");
    let (code, _, note) = server.run(&["explain", "pods", "db", "-l", "app=db"]);
    assert_eq!((code, note.as_str()), (0, "# pods db: selected: all terms match\n"), "as `get` finds it");
    let (code, _, err) = server.run(&["explain", "pods", "none"]);
    assert!(code == 3 && err.contains("not found"), "{err}");

    let mut watch = Watch::of(server.command(&["watch", "pods", "-l", "app=db", "-o", "name"]));
    watch.row();
    let (_, id, _) = server.run(&["watchers", "-o", "name"]);
    let arguments =
        ["explain", "pods", "a/web", "--watcher", id.trim(), "-o", "jsonpath={.explanations[0].terms[*].found}"];
    let (code, out, note) = server.run(&arguments);
    assert_eq!((code, out.as_str()), (0, "web"));
    assert_eq!(note, "# pods a/web: not selected: 1 of 1 terms do not match\n");
    assert_eq!(watch.interrupt().0, Some(0));
    while !server.run(&["watchers", "--ended"]).1.contains("CANCELLED") {}
    assert_eq!(server.run(&["watchers", "-o", "name"]).1, "", "without the ended ones");
    let (_, out, _) = server.run(&["watchers", "--ended", "-o", "jsonl"]);
    assert!(out.contains(r#""state":"ENDED""#) && out.contains(r#""endedAt":""#), "{out}");

    if cfg!(feature = "cel") {
        let (code, out, err) = server.run(&["list", "pods", "--expression", "object.metadata.name"]);
        assert_eq!((code, out.as_str()), (0, ""));
        let failed = "the expression failed for 2 of 2 objects; the first: a/web: the result is not true or false";
        assert!(err.contains(&format!("\n# {failed}")), "{err}");
        let (_, _, err) = server.run(&["by-index", "pods", "namespace", "b", "--expression", "object.metadata.name"]);
        assert!(err.contains("\n# the expression failed for 1 of 1 objects; the first: b/db: the result"), "{err}");
        // On a machine that is busy the first ones may end before the initial events.
        let watch = ["watch", "pods", "--expression", "object.metadata.name", "--timeout", "100ms"];
        while !server.run(&watch).2.contains(&format!("; {failed}")) {}
        let (_, _, err) = server.run(&["list", "pods", "--expression", "object.none"]);
        assert!(!err.contains("failed"), "a missing field is no failure: {err}");
    }
    // It needs no object.
    if cfg!(feature = "cel") {
        let (code, _, err) = server.run(&["list", "pods", "--expression", "object.metadata.name", "-n", "none"]);
        assert!(code == 0 && !err.contains("failed"), "{err}");
    }
}

#[test]
fn a_probe_needs_no_shell() {
    let directory = things();
    let server = Server::of(&directory);
    // Until the resources have synced, the server is not ready.
    while server.run(&["healthcheck"]).0 != 0 {}
    assert_eq!(server.run(&["healthcheck"]), (0, String::new(), String::new()));
    assert_eq!(server.run(&["healthcheck", "resource/pods"]).0, 0);
    assert_eq!(server.run(&["healthcheck", "resource/none"]).0, 3);
    let socket = directory.path().join("socket");
    let (address, files) = (format!("unix:{}", socket.display()), format!("pods={}@Pod", directory.path().display()));
    let arguments = ["serve", "--listen", &address, "--admin-listen", "none", "--files", &files];
    let mut child = informerd(&arguments).stderr(Stdio::null()).spawn().unwrap();
    while server.run(&["healthcheck", "--server", &address]).0 != 0 {
        assert_eq!(child.try_wait().unwrap(), None, "the server runs");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (code, _, err) = run(&["healthcheck", "--server", "127.0.0.1:1"]);
    assert!(code == Some(4) && err.starts_with("error: cannot connect to "), "{err}");
}

#[test]
fn the_configuration_is_printed_with_its_origins() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.yaml");
    fs::write(&path, "watch: {queue_length: 7}\nresources: {pods: {source: {files: {path: .}}}}\n").unwrap();
    let config = path.to_str().unwrap();
    let mut command = informerd(&["config", "print", "--config", config, "--listen", "127.0.0.1:1", "--show-origin"]);
    let output = command.env("INFORMERD_ADMIN_LISTEN", "none").stderr(Stdio::piped()).output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let words: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [
        ["listen", "127.0.0.1:1", "--listen"],
        ["admin.listen", "none", "INFORMERD_ADMIN_LISTEN"],
        ["watch.queue_length", "7", config],
        ["watch.max_watchers", "100000", "default"],
        ["resources.pods.source.files.path", ".", config],
    ] {
        assert!(words.iter().any(|words| *words == row), "{row:?} is not in\n{out}");
    }
    // What is printed is a configuration.
    let printed = run(&["config", "print", "--config", config]);
    assert_eq!((printed.0, printed.2.as_str()), (Some(0), ""));
    fs::write(&path, &printed.1).unwrap();
    let again = run(&["config", "print", "--config", config]);
    assert_eq!((again.1, again.2), (printed.1, String::new()));
    let (code, schema, _) = run(&["config", "schema"]);
    let schema: Value = serde_json::from_str(&schema).unwrap();
    assert_eq!((code, &schema["properties"]["listen"]["type"]), (Some(0), &"string".into()));
}

#[test]
fn version_and_completion_need_no_server() {
    let (code, text, _) = run(&["version"]);
    assert!(
        code == Some(0) && text.starts_with(concat!("informerd ", env!("CARGO_PKG_VERSION"), "\ncommit: ")),
        "{text}"
    );
    let json: Value = serde_json::from_str(&run(&["version", "-o", "json"]).1).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    let commit = json["commit"].as_str().unwrap();
    assert!(!commit.is_empty() && json["features"].is_array(), "{json}");
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let (code, script, err) = run(&["completion", shell]);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(script.contains("INFORMERD_COMPLETE"), "{shell}");
    }
    let (_, bash, _) = run(&["completion", "bash"]);
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("script");
    fs::write(&path, bash).unwrap();
    assert!(std::process::Command::new("bash").arg("-n").arg(&path).status().unwrap().success());
}
