//! `informerd mirror` as users run it: the binary, a directory, and a server that comes, goes and is killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    command_line::{informerd, signal},
    port::free_address,
    process::Process,
    sandbox::DEADLINE,
};

/// Directory of manifests, its server, and the directory of a mirror.
struct Rig {
    source: TempDir,
    copies: TempDir,
    listen: String,
    server: Option<Process>,
}

/// Mirror in a process of its own, killed when this is dropped.
struct Mirror {
    child: Child,
    notes: BufReader<ChildStderr>,
}

/// Contents by path.
type Tree = BTreeMap<String, Vec<u8>>;

impl Rig {
    fn new() -> Self {
        let (source, copies) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        Self { source, copies, listen: free_address().to_string(), server: None }
    }

    /// Starts the server, or kills it and starts it again.
    fn serve(&mut self) {
        self.server = None;
        let files = format!("things={}", self.source.path().display());
        let pods = format!("pods={}@Pod", self.source.path().display());
        self.server = Some(Process::start_at(&self.listen, &["--files", &files, "--files", &pods], None));
    }

    /// Writes a manifest as careful editors do.
    fn write(&self, path: &str, text: &str) {
        let path = self.source.path().join(path);
        let hidden = path.with_file_name(".new");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&hidden, text).unwrap();
        fs::rename(hidden, path).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.source.path().join(path)).unwrap();
    }

    /// Returns the directory of the mirror.
    fn directory(&self) -> PathBuf {
        self.copies.path().join("copy")
    }

    /// Returns the content of the directory, without the mirror's own file.
    fn copy(&self) -> Tree {
        let mut tree = read(&self.directory());
        tree.remove(".informerd-mirror");
        tree
    }

    fn command(&self, resource: &str, flags: &[&str]) -> std::process::Command {
        let directory = self.directory();
        let mut command = informerd(&[&["mirror", resource, directory.to_str().unwrap()], flags].concat());
        command.env("INFORMERD_SERVER", &self.listen);
        command
    }

    /// Runs a mirror that ends by itself. Returns the exit code and what it has printed.
    fn once(&self, resource: &str, flags: &[&str]) -> (i32, String) {
        let Output { status, stdout, stderr } = self.command(resource, flags).output().unwrap();
        assert_eq!(stdout, b"");
        (status.code().unwrap(), String::from_utf8(stderr).unwrap())
    }

    fn mirror(&self, resource: &str, flags: &[&str]) -> Mirror {
        let mut child = self.command(resource, flags).stderr(Stdio::piped()).spawn().unwrap();
        let notes = BufReader::new(child.stderr.take().unwrap());
        Mirror { child, notes }
    }

    /// Waits until the directory has exactly these files.
    async fn until(&self, expected: &Tree) {
        until(|| {
            let copy = self.copy();
            if copy == *expected { Ok(()) } else { Err(difference(&copy, expected)) }
        })
        .await;
    }

    /// Lists a resource of a server as JSON lines.
    fn list(listen: &str, resource: &str) -> String {
        let output = informerd(&["list", resource, "-o", "jsonl", "--server", listen]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Mirror {
    /// Returns the next note that contains a text.
    fn note(&mut self, wanted: &str) -> String {
        let mut notes = String::new();
        loop {
            let mut note = String::new();
            assert!(self.notes.read_line(&mut note).unwrap() > 0, "it has ended: {notes}");
            if note.contains(wanted) {
                return note.trim_end().to_owned();
            }
            notes.push_str(&note);
        }
    }

    fn terminate(mut self) -> Option<i32> {
        signal(&self.child, "-TERM");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

async fn until(mut is_so: impl FnMut() -> Result<(), String>) {
    let begin = Instant::now();
    while let Err(problem) = is_so() {
        assert!(begin.elapsed() < DEADLINE, "not in time: {problem}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Reads the files of a directory, some of which may vanish meanwhile.
fn read(directory: &Path) -> Tree {
    let mut tree = Tree::new();
    for entry in fs::read_dir(directory).into_iter().flatten().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let inner = read(&entry.path());
            tree.extend(inner.into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else if let Ok(bytes) = fs::read(entry.path()) {
            tree.insert(name, bytes);
        }
    }
    tree
}

fn difference(found: &Tree, expected: &Tree) -> String {
    let differs = |path: &&String| found.get(*path) != expected.get(*path);
    let paths: BTreeSet<_> = found.keys().chain(expected.keys()).filter(differs).collect();
    format!("{} files differ: {:?}", paths.len(), paths.iter().take(5).collect::<Vec<_>>())
}

fn tree<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Tree {
    files.into_iter().map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec())).collect()
}

fn pod(namespace: &str, name: &str, value: &str) -> String {
    format!(r#"{{"kind": "Pod", "metadata": {{"namespace": "{namespace}", "name": "{name}"}}, "value": "{value}"}}"#)
}

/// Returns the status and the text of the probe.
async fn probe(address: SocketAddr, path: &str) -> String {
    let answered = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        format!("{} {text}", head.split(' ').nth(1).unwrap())
    };
    tokio::time::timeout(DEADLINE, answered).await.expect("the probe answers")
}

#[test]
fn a_directory_has_the_objects_and_serves_them_again() {
    let mut rig = Rig::new();
    let long = "n".repeat(253);
    for (file, namespace, name) in
        [("1", "shop", "web"), ("2", "shop", "a/../b"), ("3", "", "node-a"), ("4", "x/y", &long)]
    {
        rig.write(&format!("{file}.json"), &pod(namespace, name, "first"));
    }
    rig.write("flags/dark.json", r#"{"on": "yes"}"#);
    rig.serve();
    let (code, notes) = rig.once("pods", &["--once"]);
    assert_eq!((code, notes.as_str()), (0, "# synced: 4 objects of pods, 4 files written or removed\n"));
    let (web, node) = (pod("shop", "web", "first"), pod("", "node-a", "first"));
    let (hostile, longest) = (pod("shop", "a/../b", "first"), pod("x/y", &long, "first"));
    let long = format!("x%2Fy/{}+/nnn.json", "n".repeat(250));
    let expected =
        tree([("shop/web.json", &*web), ("shop/a%2F..%2Fb.json", &hostile), ("node-a.json", &node), (&long, &longest)]);
    assert_eq!(rig.copy(), expected);

    let (code, notes) = rig.once("pods", &["--once"]);
    assert_eq!((code, notes.as_str()), (0, "# synced: 4 objects of pods, 0 files written or removed\n"));
    let copy = Process::start(&["--files", &format!("copy={}", rig.directory().display())], None);
    assert_eq!(Rig::list(&copy.grpc.to_string(), "copy"), Rig::list(&rig.listen, "pods"));

    let (code, notes) = rig.once("things", &["--once", "--replace", "-n", "shop", "-q"]);
    assert_eq!((code, notes.as_str()), (0, ""));
    assert_eq!(rig.copy(), tree([("shop/web.json", &*web), ("shop/a%2F..%2Fb.json", &hostile)]));
    rig.once("things", &["--once"]);
    assert_eq!(rig.copy()["flags%2Fdark.json.json"], br#"{"on": "yes"}"#);
}

#[test]
fn a_foreign_directory_is_refused_and_stays_as_it_was() {
    let mut rig = Rig::new();
    let foreign = [("a.txt", "a"), ("shop/web.json", "b"), ("shop/web.yaml", "c"), ("z", "d")];
    for (path, text) in foreign {
        let path = rig.directory().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    // The server does not run.
    let (code, notes) = rig.once("pods", &["--once"]);
    assert_eq!(code, 2, "{notes}");
    let named = r#"has files that are not of this mirror: "a.txt", "shop/web.json", "shop/web.yaml" and more; "#;
    assert!(notes.starts_with("error: ") && notes.contains(named), "{notes}");
    assert_eq!(read(&rig.directory()), tree(foreign));
    rig.write("1.json", &pod("shop", "web", "1"));
    rig.serve();
    // It has not been mirrored yet.
    for (resource, flags, expected) in [("pod", &[][..], 3), ("pods", &["-l", "a in"], 2)] {
        let (code, notes) = rig.once(resource, &[&["--once", "--replace"], flags].concat());
        assert_eq!((code, read(&rig.directory())), (expected, tree(foreign)), "{notes}");
    }
    assert_eq!(rig.once("pods", &["--once", "--replace", "-q"]), (0, String::new()));
    assert_eq!(rig.copy(), tree([("shop/web.json", &*pod("shop", "web", "1"))]));
}

#[tokio::test]
async fn foreign_files_are_replaced_once_the_server_has_answered() {
    for objects in [&[("shop/web.json", "web")][..], &[]] {
        let mut rig = Rig::new();
        fs::create_dir(rig.directory()).unwrap();
        fs::write(rig.directory().join("a.txt"), "a").unwrap();
        let mut mirror = rig.mirror("pods", &["--replace"]);
        mirror.note("Connection refused");
        assert_eq!(read(&rig.directory()), tree([("a.txt", "a")]));
        let mut expected = Tree::new();
        for (path, name) in objects {
            rig.write("1.json", &pod("shop", name, "1"));
            expected.extend(tree([(*path, &*pod("shop", name, "1"))]));
        }
        rig.serve();
        mirror.note("# synced");
        assert_eq!(rig.copy(), expected);
        assert!(rig.directory().join(".informerd-mirror").exists());
        assert_eq!(mirror.terminate(), Some(0));
    }
}

/// A restart would not help.
#[tokio::test]
async fn a_mirror_that_waits_for_the_names_of_its_server_answers_probes() {
    let rig = Rig::new();
    fs::create_dir(rig.directory()).unwrap();
    for (file, text) in [(".informerd-mirror", "informerd mirror of \"pods\"\n"), ("web.json", "{}")] {
        fs::write(rig.directory().join(file), text).unwrap();
    }
    let mut mirror = rig.mirror("po", &["--health", "127.0.0.1:0"]);
    let health: SocketAddr = mirror.note("# health at http://").split('/').nth(2).unwrap().parse().unwrap();
    mirror.note("waiting for the server to tell");
    assert_eq!(probe(health, "/livez").await, "200 ok\n");
    let ready = probe(health, "/readyz").await;
    assert!(ready.starts_with("503 not synced: ") && ready.contains("is of another mirror"), "{ready}");
    assert_eq!(mirror.terminate(), Some(0));
}

#[test]
fn a_mirror_that_ends_before_its_only_state_is_complete_has_failed() {
    let rig = Rig::new();
    let mut mirror = rig.mirror("pods", &["--once"]);
    mirror.note("Connection refused");
    assert_eq!(mirror.terminate(), Some(143));
}

#[test]
fn a_signal_after_the_only_state_is_complete_is_no_failure() {
    let mut rig = Rig::new();
    rig.write("1.json", &pod("shop", "web", "1"));
    rig.serve();
    // The command begins when the directory is complete, and ends at a file.
    let go = rig.copies.path().join("go");
    let then = format!("echo begun >&2; until [ -e '{}' ]; do sleep 0.01; done", go.display());
    let mut mirror = rig.mirror("pods", &["--once", "--then", &then]);
    mirror.note("begun");
    signal(&mirror.child, "-TERM");
    fs::write(go, "").unwrap();
    assert_eq!(mirror.child.wait().unwrap().code(), Some(0));
}

#[test]
fn mistakes_in_the_command_line_are_errors() {
    let mut rig = Rig::new();
    rig.write("1.json", &pod("shop", "web", "1"));
    rig.serve();
    for (resource, flags, expected, text) in [
        ("pod", &[][..], 3, r#"resource "pod" not found; did you mean "pods"?"#),
        ("pods", &["-l", "a in"][..], 2, "label"),
        ("pods", &["--health", "8080"], 2, "--health"),
        ("pods", &["--resync", "often"], 2, "--resync"),
    ] {
        let (code, notes) = rig.once(resource, flags);
        assert!(code == expected && notes.contains(text), "{code}: {notes}");
    }
    let _mirror = {
        let mut mirror = rig.mirror("pods", &[]);
        mirror.note("# synced");
        mirror
    };
    let (code, notes) = rig.once("pods", &["--once"]);
    assert!(code == 2 && notes.contains("is in use by another informerd mirror"), "{code}: {notes}");
}

#[tokio::test]
async fn a_mirror_follows_its_server_and_answers_probes() {
    let mut rig = Rig::new();
    rig.write("1.json", &pod("shop", "web", "1"));
    rig.write("2.json", &pod("orders", "db", "1"));
    let log = rig.copies.path().join("log");
    let then = format!("ls {} | wc -l >> {}; false", rig.directory().display(), log.display());
    let mut mirror = rig.mirror("pods", &["--health", "127.0.0.1:0", "--then", &then]);
    let health: SocketAddr = mirror.note("# health at http://").split('/').nth(2).unwrap().parse().unwrap();
    assert!(probe(health, "/").await.starts_with("503 not synced"));
    assert_eq!(probe(health, "/livez").await, "200 ok\n");
    mirror.note("Connection refused");
    rig.serve();
    assert_eq!(mirror.note("# synced"), "# synced: 2 objects of pods, 2 files written or removed");
    assert!(mirror.note("# warning").ends_with("failed: exit status: 1"));
    assert_eq!(probe(health, "/readyz").await, "200 ok\n");
    assert_eq!(fs::read_to_string(&log).unwrap().trim(), "2");

    rig.write("1.json", &pod("shop", "web", "2"));
    rig.remove("2.json");
    rig.until(&tree([("shop/web.json", &*pod("shop", "web", "2"))])).await;
    assert!(!rig.directory().join("orders").exists());
    until(|| {
        let log = fs::read_to_string(&log).unwrap();
        if log.split_whitespace().last() == Some("1") { Ok(()) } else { Err(log) }
    })
    .await;

    // Changes while the server does not run.
    rig.server = None;
    rig.remove("1.json");
    rig.write("3.json", &pod("shop", "new", "3"));
    rig.serve();
    rig.until(&tree([("shop/new.json", &*pod("shop", "new", "3"))])).await;
    assert_eq!(mirror.terminate(), Some(0));
    assert_eq!(rig.copy().len(), 1);
}

#[tokio::test]
async fn a_resync_repairs_files_that_others_have_changed() {
    let mut rig = Rig::new();
    rig.write("1.json", &pod("shop", "web", "1"));
    rig.write("2.json", &pod("shop", "db", "1"));
    rig.serve();
    let mut mirror = rig.mirror("pods", &["--resync", "100ms"]);
    mirror.note("# synced");
    let expected = rig.copy();
    fs::write(rig.directory().join("shop/web.json"), "something else").unwrap();
    rig.until(&expected).await;
    fs::remove_dir_all(rig.directory().join("shop")).unwrap();
    rig.until(&expected).await;
    assert_eq!(mirror.terminate(), Some(0));
}

#[tokio::test]
async fn keys_of_config_maps_and_secrets_are_files() {
    let mut rig = Rig::new();
    let object = |kind: &str, name: &str, data: Value, binary: Value| {
        let metadata = json!({ "namespace": "shop", "name": name });
        json!({ "kind": kind, "metadata": metadata, "data": data, "binaryData": binary }).to_string()
    };
    let config = |data| object("ConfigMap", "settings", data, json!({ "logo.png": "AAEC" }));
    rig.write("1.json", &config(json!({ "app.yaml": "a: 1\n", ".env": "X=1" })));
    rig.write("2.json", &object("Secret", "token", json!({ "token": "c2VjcmV0" }), Value::Null));
    rig.write("3.json", &pod("shop", "web", "1"));
    rig.serve();
    let mut mirror = rig.mirror("things", &["--keys"]);
    assert!(mirror.note("--keys").starts_with("# shop/web: Pod has no files for its keys"));
    mirror.note("# synced");
    let mut expected =
        tree([("shop/settings/app.yaml", "a: 1\n"), ("shop/settings/%2Eenv", "X=1"), ("shop/token/token", "secret")]);
    expected.insert("shop/settings/logo.png".to_owned(), vec![0, 1, 2]);
    assert_eq!(rig.copy(), expected);
    rig.write("1.json", &config(json!({ "app.yaml": "a: 2\n" })));
    rig.remove("2.json");
    expected.remove("shop/settings/%2Eenv");
    expected.remove("shop/token/token");
    expected.insert("shop/settings/app.yaml".to_owned(), b"a: 2\n".to_vec());
    rig.until(&expected).await;
    assert!(!rig.directory().join("shop/token").exists());
}

/// Kills the mirror and its server in turns, at any moment of a storm of changes. `INFORMERD_MIRROR_OBJECTS` is the number of
/// objects.
#[tokio::test]
async fn a_directory_equals_the_resource_after_a_storm_with_kills() {
    let count: usize = std::env::var("INFORMERD_MIRROR_OBJECTS").map_or(300, |count| count.parse().unwrap());
    let rounds = 12;
    let mut rig = Rig::new();
    let mut random = fastrand::Rng::with_seed(20);
    let mut expected = Tree::new();
    let change = |rig: &Rig, expected: &mut Tree, at: usize, value: &str, is_deleted: bool| {
        let (namespace, name) = (format!("n{}", at % 17), format!("Object/{at}"));
        let (file, path) = (format!("{}/{at}.json", at % 7), format!("{namespace}/Object%2F{at}.json"));
        if is_deleted {
            if expected.remove(&path).is_some() {
                rig.remove(&file);
            }
        } else {
            let text = pod(&namespace, &name, value);
            rig.write(&file, &text);
            expected.insert(path, text.into_bytes());
        }
    };
    for at in 0..count {
        change(&rig, &mut expected, at, "first", false);
    }
    rig.serve();
    let mut mirror = rig.mirror("pods", &["-q"]);
    for round in 0..rounds {
        for _ in 0..count / 5 {
            let at = random.usize(..count);
            change(
                &rig,
                &mut expected,
                at,
                &format!("{round} {}", "x".repeat(random.usize(..2000))),
                random.u8(..4) == 0,
            );
        }
        if round % 3 == 0 {
            // A mark that comes after the others of its round: the kill is then in the middle of nothing.
            rig.write("mark.json", &pod("marks", &format!("mark-{round}"), ""));
            let mark = rig.directory().join(format!("marks/mark-{round}.json"));
            until(|| if mark.exists() { Ok(()) } else { Err(format!("{} is there", mark.display())) }).await;
        }
        if round % 2 == 0 {
            drop(mirror);
            for (path, bytes) in rig.copy() {
                let is_whole = path.starts_with('.') || serde_json::from_slice::<Value>(&bytes).is_ok();
                assert!(is_whole, "{path}: a part of a file");
            }
            mirror = rig.mirror("pods", &["-q"]);
        }
        if round % 4 > 1 {
            rig.serve();
        }
    }
    rig.remove("mark.json");
    rig.until(&expected).await;
    assert_eq!(mirror.terminate(), Some(0));
    assert!(!rig.directory().join(".informerd-mirror.tmp").exists());
    let copy = Process::start(&["--files", &format!("copy={}", rig.directory().display())], None);
    assert_eq!(Rig::list(&copy.grpc.to_string(), "copy"), Rig::list(&rig.listen, "pods"));
}
