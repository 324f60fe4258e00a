//! `informerd record`: the binary against a server of the same binary, and a copy that a third one makes of its lines.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::{
    client_commands::{Server, Watch, pod, write},
    command_line::signal,
    port::free_address,
    process::Process,
    sandbox::{DEADLINE, raw},
};

/// Returns the type and the rest of a line.
fn parsed(line: &str) -> (String, Value) {
    let mut line: Value = serde_json::from_str(line).unwrap();
    let event_type = line["type"].take();
    line.as_object_mut().unwrap().remove("type");
    (event_type.as_str().unwrap().to_owned(), line)
}

fn started(server: &Server, arguments: &[&str]) -> Watch {
    Watch::of(server.command(&[&["record"], arguments].concat()))
}

#[test]
fn a_line_is_an_event() {
    let directory = TempDir::new().unwrap();
    write(&directory, "1.json", &pod("a", "web", "Running"));
    write(&directory, "2.json", "{\"on\":\n  true}");
    let server = Server::of(&directory);
    let mut record = started(&server, &["things"]);
    let named = record.row();
    assert_eq!(named, r#"{"type":"ADDED","object":{"on":  true},"name":"2.json"}"#, "in one line");
    let in_one_line = |phase: &str| pod("a", "web", phase).replace('\n', "");
    assert_eq!(record.row(), format!(r#"{{"type":"ADDED","object":{}}}"#, in_one_line("Running")));
    let (event_type, bookmark) = parsed(&record.row());
    let annotations = &bookmark["object"]["metadata"]["annotations"];
    assert_eq!((event_type.as_str(), annotations), ("BOOKMARK", &json!({ "k8s.io/initial-events-end": "true" })));
    assert!(record.note().starts_with("# synced: 2 objects at "));
    write(&directory, "1.json", &pod("a", "web", "Failed"));
    assert_eq!(record.row(), format!(r#"{{"type":"MODIFIED","object":{}}}"#, in_one_line("Failed")));
    fs::remove_file(directory.path().join("1.json")).unwrap();
    assert_eq!(record.row(), format!(r#"{{"type":"DELETED","object":{}}}"#, in_one_line("Failed")));
    assert_eq!(record.signal("-TERM"), (Some(0), String::new(), String::new()));

    let mut selected = started(&server, &["pods", "-l", "app=none", "-q"]);
    assert_eq!(parsed(&selected.row()).0, "BOOKMARK");
    assert_eq!(selected.interrupt(), (Some(0), String::new(), String::new()));
}

#[test]
fn the_examples_in_the_help_are_true() {
    let (server, directory) = (Server::shop(), TempDir::new().unwrap());
    let binary = Path::new(env!("CARGO_BIN_EXE_informerd"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let (_, help, _) = server.run(&["record", "--help"]);
    let examples: Vec<&str> = help.lines().filter(|line| line.starts_with("  informerd record ")).collect();
    assert_eq!(examples.len(), 4, "{help}");
    for example in examples {
        // Up to a pipe, which does not end by itself.
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {}", example.split('|').next().unwrap())]).current_dir(directory.path());
        shell.env("PATH", &path).env("INFORMERD_SERVER", &server.address);
        let mut record = Watch::of(shell);
        let note = record.note();
        assert!(note.starts_with("# synced: ") && !note.starts_with("# synced: 0 "), "{example}: {note}");
        assert_eq!(record.interrupt().0, Some(0), "{example}");
    }
    assert!(fs::read_to_string(directory.path().join("configmaps.jsonl")).unwrap().lines().count() > 1);
}

#[test]
fn a_file_is_not_overwritten_unless_forced() {
    let directory = TempDir::new().unwrap();
    write(&directory, "1.json", &pod("a", "web", "Running"));
    let (server, files) = (Server::of(&directory), TempDir::new().unwrap());
    let path = files.path().join("pods.jsonl");
    let name = path.to_str().unwrap();

    // A record that does not begin leaves no file.
    let refused = server.run(&["record", "pods", "-o", name, "--server", "127.0.0.1:1"]);
    assert!(refused.0 == 4 && !path.exists(), "{refused:?}");
    let refused = server.run(&["record", "pod", "-o", name]);
    assert!(refused.0 == 3 && refused.2.contains("did you mean \"pods\"?") && !path.exists(), "{refused:?}");

    let recorded = |arguments: &[&str]| {
        let mut record = started(&server, &[&["pods", "-o", name], arguments].concat());
        assert!(record.note().starts_with("# synced: 1 object at "));
        assert_eq!(record.signal("-TERM"), (Some(0), String::new(), String::new()));
        fs::read_to_string(&path).unwrap()
    };
    let first = recorded(&[]);
    let types: Vec<String> = first.lines().map(|line| parsed(line).0).collect();
    assert_eq!((types, first.ends_with('\n')), (vec!["ADDED".to_owned(), "BOOKMARK".to_owned()], true));
    let (code, out, error) = server.run(&["record", "pods", "-o", name]);
    let expected = format!("error: {name} exists; choose another file, or overwrite it with --force\n");
    assert_eq!((code, out, error), (2, String::new(), expected));
    assert_eq!(fs::read_to_string(&path).unwrap(), first, "untouched");
    fs::write(&path, "x".repeat(1 << 20)).unwrap();
    let second = recorded(&["--force"]);
    assert_eq!(second.lines().next(), first.lines().next());
    assert!(second.len() < 1 << 20);
}

#[test]
fn an_end_that_is_not_ours_is_an_error_in_the_lines() {
    let directory = TempDir::new().unwrap();
    let server = Server::of(&directory);
    let (code, out, error) = server.run(&["record", "pod"]);
    assert!(code == 3 && error.contains("did you mean \"pods\"?"), "{error}");
    let (event_type, line) = parsed(&out);
    let status = &line["object"];
    assert_eq!((event_type.as_str(), &status["kind"], &status["code"]), ("ERROR", &json!("Status"), &json!(404)));
    assert_eq!((&status["reason"], out.lines().count()), (&json!("NotFound"), 1));
}

/// Returns a server with more objects than a pipe holds.
fn large() -> (TempDir, Server) {
    let directory = TempDir::new().unwrap();
    for at in 0..200 {
        write(&directory, &format!("{at}.json"), &pod("a", &format!("p{at}"), &"x".repeat(5000)));
    }
    let server = Server::of(&directory);
    (directory, server)
}

/// Checks that a signal during a write that nobody reads ends the command after a whole line, and a second signal at once.
#[test]
fn a_signal_does_not_cut_a_line() {
    let (_directory, server) = large();
    let blocked = || {
        let mut record = server.command(&["record", "pods", "-q"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = record.stdout.take().unwrap();
        // The pipe has been full since its beginning came: everything is written as soon as it fits.
        let mut begin = [0; 10];
        out.read_exact(&mut begin).unwrap();
        assert_eq!(begin, *b"{\"type\":\"A");
        signal(&record, "-TERM");
        (record, out)
    };
    let (mut record, mut out) = blocked();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(record.wait().unwrap().code(), Some(0));
    assert!(rest.ends_with("}\n") && rest.lines().skip(1).all(|line| parsed(line).0 != "ERROR"));

    // A first signal between two writes ends it already.
    let is_ended_at_once = |()| {
        let (mut record, _out) = blocked();
        while record.try_wait().unwrap().is_none() {
            signal(&record, "-TERM");
        }
        let code = record.wait().unwrap().code();
        assert!([Some(0), Some(143)].contains(&code), "{code:?}");
        code == Some(143)
    };
    assert!(std::iter::repeat_n((), 20).any(is_ended_at_once));
}

#[test]
fn a_closed_pipe_is_a_quiet_end() {
    let (_directory, server) = large();
    let mut record =
        server.command(&["record", "pods", "-q"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = record.stdout.take().unwrap();
    out.read_exact(&mut [0; 10]).unwrap();
    drop(out);
    let output = record.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

/// Returns the objects of a resource by key: uid, media type, kind, labels, and the body without its line breaks.
async fn objects(
    client: &mut InformerServiceClient<Channel>,
    resource: &str,
) -> BTreeMap<(String, String), Vec<String>> {
    let format = pb::PayloadFormat::Raw.into();
    let request = pb::ListRequest { resource: resource.to_owned(), format, ..pb::ListRequest::default() };
    let mut chunks = client.list(request).await.unwrap().into_inner();
    let mut objects = BTreeMap::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        for object in chunk.objects {
            let body = String::from_utf8_lossy(&raw(&object)).replace(['\n', '\r'], "");
            let labels = format!("{:?}", object.labels);
            objects.insert(
                (object.namespace, object.name),
                vec![object.uid, object.media_type, object.kind, labels, body],
            );
        }
    }
    objects
}

async fn client(address: &str) -> InformerServiceClient<Channel> {
    InformerServiceClient::connect(format!("http://{address}")).await.unwrap()
}

/// Waits until the copies equal the originals.
async fn until_equal(original: &str, copy: &str) {
    let (mut original, mut copy) = (client(original).await, client(copy).await);
    let mut last = String::new();
    let equal = async {
        loop {
            let mut is_equal = true;
            for resource in ["pods", "things"] {
                let (expected, found) = (objects(&mut original, resource).await, objects(&mut copy, resource).await);
                is_equal &= expected == found;
                if expected != found {
                    last = format!("{found:#?} instead of {expected:#?}");
                }
            }
            if is_equal {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, equal).await.is_ok(), "{last}");
}

/// Checks a pipe between the processes, and a named pipe; and bytes, JSON without a name, and uids that no body has.
#[tokio::test]
async fn a_copy_equals_its_original_across_a_kill_with_changes_meanwhile() {
    let directory = TempDir::new().unwrap();
    let [manifests, lines, pipe] = ["manifests", "lines", "pipe"].map(|name| directory.path().join(name));
    fs::create_dir_all(manifests.join("flags")).unwrap();
    let manifest = |name: &str, phase: &str| {
        fs::write(manifests.join(format!("{name}.json")), pod("a", name, phase)).unwrap();
    };
    for name in ["web", "db", "api"] {
        manifest(name, "Running");
    }
    fs::write(manifests.join("flags/dark.json"), "{\"on\":\n true}\n").unwrap();
    let first = [
        r#"{"type":"ADDED","data":"/wA=","namespace":"a","name":"x/y","uid":"3"}"#,
        r#"{"type":"ADDED","object":{"on":true},"namespace":"a","name":"z","uid":"4"}"#,
        r#"{"type":"ADDED","object":null,"name":"é","uid":"5"}"#,
        r#"{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"own","uid":"u","labels":{"a":"b"}}}}"#,
    ];
    fs::write(&lines, first.join("\n")).unwrap();
    let address = free_address().to_string();
    let [pods, things] = [format!("pods={}", manifests.display()), format!("things={}", lines.display())];
    let arguments = ["--files", pods.as_str(), "--stream", things.as_str()];
    let original = Server::start_at(&address, &arguments);

    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut copy = Process::start(&["--stream", &format!("pods={}", pipe.display()), "--stream", "things=-"], None);
    let to_pipe = original.command(&["record", "pods", "-q", "--force", "-o", pipe.to_str().unwrap()]).spawn();
    let mut to_pipe = to_pipe.unwrap();
    let mut to_stdin = original.command(&["record", "things", "-q"]).stdout(Stdio::piped()).spawn().unwrap();
    let (mut from, mut to) = (to_stdin.stdout.take().unwrap(), copy.stdin.take().unwrap());
    let copying = std::thread::spawn(move || io::copy(&mut from, &mut to));
    let copied = copy.grpc.to_string();
    until_equal(&address, &copied).await;
    assert_eq!(objects(&mut client(&copied).await, "things").await.len(), 4);

    drop(original);
    manifest("web", "Failed");
    manifest("new", "Pending");
    fs::remove_file(manifests.join("db.json")).unwrap();
    fs::write(manifests.join("flags/dark.json"), "{\"on\":\n false}\n").unwrap();
    let second = [
        r#"{"type":"ADDED","data":"/wD/","namespace":"a","name":"x/y","uid":"3"}"#,
        r#"{"type":"ADDED","object":{"on":true},"namespace":"a","name":"z","uid":"9"}"#,
        r#"{"type":"ADDED","object":{"on":false},"name":"x","uid":"10"}"#,
    ];
    fs::write(&lines, second.join("\n")).unwrap();
    let original = Server::start_at(&address, &arguments);
    until_equal(&address, &copied).await;
    assert_eq!(objects(&mut client(&copied).await, "things").await.len(), 3);
    manifest("api", "Failed");
    until_equal(&address, &copied).await;

    for record in [&mut to_pipe, &mut to_stdin] {
        signal(record, "-TERM");
        assert_eq!(record.wait().unwrap().code(), Some(0));
    }
    copying.join().unwrap().unwrap();
    drop((original, copy));
}
