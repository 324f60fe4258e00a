//! A manifest with a mistake and a restart of the server: no client deletes an object that is in the manifest, also not behind a
//! relay; and when the mistake is corrected each receives exactly the difference.

use std::{fs, time::Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    client_commands::{Server, Watch, write},
    port::free_address,
    sandbox::DEADLINE,
};

/// Number of objects in the manifest.
const OBJECTS: usize = 20;

/// Returns a manifest of config maps, of which the eighth has this label.
fn manifest(label: &str) -> String {
    let document = |at: usize| {
        let labels = if at == 7 { format!(", labels: {{on: {label}}}") } else { String::new() };
        format!("kind: ConfigMap\nmetadata: {{name: cm-{at:02}{labels}}}\n")
    };
    (0..OBJECTS).map(document).collect::<Vec<_>>().join("---\n")
}

/// Starts a watch, and reads the initial events.
fn watch(server: &Server) -> Watch {
    let mut watch = Watch::of(server.command(&["watch", "configmaps", "-o", "jsonl"]));
    for _ in 0..OBJECTS {
        assert_eq!(event(&mut watch).0, "ADDED");
    }
    watch
}

/// Returns the type and the name of the next event.
fn event(watch: &mut Watch) -> (String, String) {
    let event: Value = serde_json::from_str(&watch.row()).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
}

/// Waits until the description of the resource contains a text.
fn until_resource(server: &Server, what: &str) -> String {
    let began = Instant::now();
    loop {
        let (code, out, error) = server.run(&["resources", "-o", "jsonl"]);
        if code == 0 && out.contains(what) {
            return out;
        }
        assert!(began.elapsed() < DEADLINE, "{what:?} is not in {out}{error}");
    }
}

fn until_note(watch: &mut Watch, what: &str) {
    while !watch.note().contains(what) {}
}

fn names(server: &Server) -> usize {
    server.run(&["list", "configmaps", "-o", "name"]).1.lines().count()
}

/// Returns the number of files of a mirror.
fn files(directory: &TempDir) -> usize {
    let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| !name.to_string_lossy().starts_with('.')).count()
}

struct Scene {
    directory: TempDir,
    state: TempDir,
    address: String,
    files: String,
}

impl Scene {
    fn new() -> Self {
        let (directory, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = format!("configmaps={}", directory.path().display());
        Self { directory, state, address: free_address().to_string(), files }
    }

    fn write(&self, name: &str, text: &str) {
        write(&self.directory, name, text);
    }

    fn serve(&self, more: &[&str]) -> Server {
        Server::start_at(&self.address, &[&["--files", &self.files], more].concat())
    }

    /// Corrects the label, and checks what each watch receives, up to a later change.
    fn correct(&self, watches: &mut [Watch]) {
        self.write("all.yaml", &manifest("'yes'"));
        for watch in &mut *watches {
            assert_eq!(event(watch), ("MODIFIED".to_owned(), "cm-07".to_owned()));
        }
        self.write("later.yaml", "kind: ConfigMap\nmetadata: {name: later}\n");
        for watch in watches {
            assert_eq!(event(watch), ("ADDED".to_owned(), "later".to_owned()), "nothing in between");
        }
    }
}

#[test]
fn a_mistake_and_a_restart_delete_nothing_at_any_client() {
    let scene = Scene::new();
    scene.write("all.yaml", &manifest("'no'"));
    let server = scene.serve(&[]);
    let upstream = format!("configmaps=http://{}", scene.address);
    let relay_address = free_address().to_string();
    let relay = Server::start_at(&relay_address, &["--relay", &upstream]);
    let lasting_relay = Server::start_at("127.0.0.1:0", &["--relay", &upstream]);
    let mut watches = [watch(&server), watch(&relay), watch(&lasting_relay)];
    let copies = tempfile::tempdir().unwrap();
    let mirror = ["mirror", "configmaps", copies.path().to_str().unwrap(), "--once"];
    assert_eq!(server.run(&mirror).0, 0);
    assert_eq!(files(&copies), OBJECTS);
    let copy = copies.path().join("cm-07.json");
    scene.write("all.yaml", &manifest("yes"));
    let problem = "document 8, line 23, column 38: metadata.labels.on: expected a string, found the boolean yes";
    until_resource(&server, problem);
    assert_eq!(names(&server), OBJECTS, "the last good object is served");

    // Killed, and so is a relay, which then has no state.
    drop((server, relay));
    let server = scene.serve(&[]);
    let described = until_resource(&server, "\"STALE\"");
    assert!(described.contains("OBJECTS_UNREAD") && described.contains(problem), "{described}");
    assert_eq!(names(&server), OBJECTS - 1, "the good documents are served");
    let relay = Server::start_at(&relay_address, &["--relay", &upstream]);
    assert!(until_resource(&relay, "\"STALE\"").contains("OBJECTS_UNREAD"));
    for watch in &mut watches[..2] {
        until_note(watch, "not synced yet");
    }
    until_resource(&lasting_relay, "not synced yet");
    assert_eq!(names(&lasting_relay), OBJECTS);
    let mut mirror = Watch::of(server.command(&mirror));
    until_note(&mut mirror, "objects may exist that it has not read");
    assert!(copy.exists() && files(&copies) == OBJECTS, "a start of a mirror keeps what it may not list");
    scene.correct(&mut watches);
    until_note(&mut mirror, "# synced");
    assert!(fs::read_to_string(copy).unwrap().contains("yes"));
    for server in [&server, &relay, &lasting_relay] {
        until_resource(server, "SYNCED");
        assert_eq!(names(server), OBJECTS + 1);
    }
}

#[test]
fn the_last_good_objects_are_served_after_a_restart_with_a_state_directory() {
    let scene = Scene::new();
    let state = scene.state.path().display().to_string();
    scene.write("all.yaml", &manifest("'no'"));
    let server = scene.serve(&["--state-dir", &state]);
    let mut watches = [watch(&server)];
    while !fs::read_dir(&state).unwrap().any(|file| file.unwrap().path().extension().is_some_and(|of| of == "state")) {}
    scene.write("all.yaml", &manifest("yes"));
    until_resource(&server, "FILE_INVALID");
    drop(server);
    let server = scene.serve(&["--state-dir", &state]);
    let described = until_resource(&server, "SYNCED");
    assert!(described.contains("FILE_INVALID") && !described.contains("OBJECTS_UNREAD"), "{described}");
    assert_eq!(names(&server), OBJECTS);
    until_note(&mut watches[0], "synced");
    scene.correct(&mut watches);
}
