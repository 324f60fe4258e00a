//! `informerd top` against a real server: one sample as text and as JSON, the stream of documents, and the end of its reader.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
};

use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    client_commands::{Server, Watch, pod, write},
    command_line::signal,
    port::free_address,
    sandbox::DEADLINE,
};

/// Interval of the samples: what a server counts does not depend on it.
const INTERVAL: &str = "100ms";

fn pods() -> TempDir {
    let directory = TempDir::new().unwrap();
    write(&directory, "1.json", &pod("a", "web", "Running"));
    write(&directory, "2.json", &pod("b", "db", "Running"));
    directory
}

/// Starts a watch, and waits until it has the objects.
fn watch(server: &Server, arguments: &[&str]) -> Watch {
    let mut watch = Watch::of(server.command(&[&["watch", "pods"], arguments].concat()));
    assert!(watch.note().starts_with("# synced: "));
    watch
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn one_sample_is_two_tables() {
    let directory = pods();
    let server = Server::of(&directory);
    let _watches = [watch(&server, &["-l", "app=web"]), watch(&server, &["--policy", "drop", "--queue-length", "20"])];
    // Standard output is a pipe: it prints one sample also without --once.
    for once in [&["--once"][..], &[]] {
        let (code, out, err) = server.run(&[&["top", "--interval", INTERVAL, "--sort-by", "id"], once].concat());
        assert_eq!((code, err.as_str()), (0, ""));
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 7, "{out}");
        assert!(lines[0].starts_with("NAME") && lines[0].ends_with("DROPS"), "{out}");
        let pods = words(lines[1]);
        assert_eq!((&pods[..3], pods[8], lines[3]), (&["pods", "SYNCED", "2"][..], "2", ""), "{out}");
        assert!(words(lines[2]).starts_with(&["things", "SYNCED", "2"]), "{out}");
        let (one, other) = (words(lines[5]), words(lines[6]));
        assert_eq!((one[0], one[2], one[4], one[5], one[8]), ("1", "pods", "REPLAY", "live", "0"), "{out}");
        assert_eq!((other[0], other[4], other[6]), ("2", "DROP", "0/20"), "{out}");
        assert!(lines[5].contains("labels=app=web"), "{out}");
        assert!(one[9] != "-" && one[10] != "-", "the rates are those of two samples: {out}");
    }
    let (code, out, err) = server.run(&["top", "things", "--once", "--interval", INTERVAL, "--no-headers"]);
    assert_eq!((code, err.as_str(), out.lines().count()), (0, "", 1), "{out}");
    let (code, _, err) = server.run(&["top", "podz", "--once"]);
    assert_eq!(
        (code, err.as_str()),
        (3, "error: resource \"podz\" not found; did you mean \"pods\"? (known: pods, things)\n")
    );
    let (code, _, err) = server.run(&["top", "--once", "--interval", "1ms"]);
    assert!(code == 2 && err.contains("at least 100ms"), "{err}");
    let (code, _, err) = server.run(&["top", "--once", "--server", "127.0.0.1:1"]);
    assert!(code == 4 && err.starts_with("error: "), "{err}");
}

#[test]
fn a_sample_is_a_document() {
    let directory = pods();
    let server = Server::of(&directory);
    let _watch = watch(&server, &[]);
    let (code, out, err) = server.run(&["top", "--once", "-o", "json", "--interval", INTERVAL]);
    assert_eq!((code, err.as_str(), out.lines().count()), (0, "", 1));
    let document: Value = serde_json::from_str(&out).unwrap();
    let pods = &document["resources"][0];
    assert_eq!((&pods["name"], &pods["objects"], &pods["watchers"]), (&"pods".into(), &2.into(), &1.into()), "{out}");
    assert!(pods["cacheBytes"].as_u64() > Some(100) && pods["changesPerSecond"].is_number(), "{out}");
    let watch = &document["watchers"][0];
    assert_eq!((&watch["id"], &watch["sent"]), (&1.into(), &2.into()), "{out}");
    assert!(watch["eventsPerSecond"].is_number() && watch["bytesPerSecond"].is_number(), "{out}");
    // The first sample may have come late, so this is not the interval.
    assert!(document["seconds"].as_f64() > Some(0.0) && document["time"].is_string(), "{out}");
    assert_eq!(document["server"]["watchers"], 1, "{out}");
}

/// Starts `top -o json`, which prints a document for each sample until it is ended.
fn stream(server: &Server) -> (Child, impl Iterator<Item = Value>) {
    let mut command: Command = server.command(&["top", "pods", "-o", "json", "--interval", INTERVAL]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()))
}

#[test]
fn documents_follow_each_other_with_the_rates_of_changes() {
    let directory = pods();
    let server = Server::of(&directory);
    let _watch = watch(&server, &[]);
    let (mut child, mut documents) = stream(&server);
    documents.next().unwrap();
    write(&directory, "1.json", &pod("a", "web", "Failed"));
    let later = documents.find(|document| document["resources"][0]["changesPerSecond"] != 0.0).unwrap();
    let seconds = later["seconds"].as_f64().unwrap();
    let changes = later["resources"][0]["changesPerSecond"].as_f64().unwrap() * seconds;
    assert!((changes - 1.0).abs() < 1e-6, "{later}");
    signal(&child, "-TERM");
    assert!(documents.count() < 100);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn without_its_reader_it_ends() {
    let directory = pods();
    let server = Server::of(&directory);
    let (mut child, mut documents) = stream(&server);
    documents.next().unwrap();
    drop(documents);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// `top` in a terminal of a test.
struct Screen {
    child: Child,
    /// The side of the user, who types.
    user: File,
    /// The side of the program.
    terminal: File,
    /// Output of the program, in the parts that were read.
    parts: Receiver<Vec<u8>>,
    /// Everything that was drawn.
    drawn: String,
}

impl Screen {
    fn start(server: &str) -> Self {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap();
        let terminal: File = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap().into();
        // In a session of its own: the size is that of the controlling terminal, if there is one.
        let mut command = Command::new("setsid");
        command.arg(env!("CARGO_BIN_EXE_informerd")).args(["top", "--interval", INTERVAL, "--server", server]);
        let side = || terminal.try_clone().unwrap();
        command.stdin(side()).stdout(side()).stderr(side()).env("TERM", "xterm-256color");
        set_size(&terminal, 80, 24);
        let (user, (sender, parts)) = (File::from(user), channel());
        let mut seen = user.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Fails once both sides of the terminal are closed.
            while let Ok(length @ 1..) = seen.read(&mut bytes)
                && sender.send(bytes[..length].to_vec()).is_ok()
            {}
        });
        Self { child: command.spawn().unwrap(), user, terminal: side(), parts, drawn: String::new() }
    }

    fn resize(&self, columns: u16, rows: u16) {
        set_size(&self.terminal, columns, rows);
        signal(&self.child, "-WINCH");
    }

    fn press(&mut self, keys: &str) {
        self.user.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until this text is drawn anew.
    fn wait_for(&mut self, text: &str) {
        let from = self.drawn.len();
        while !self.drawn[from..].contains(text) {
            let part = self.parts.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("{text}: not in {}", self.drawn));
            self.drawn.push_str(&String::from_utf8_lossy(&part));
            assert!(self.drawn.len() < 1 << 16, "{text}: not in {}", self.drawn);
        }
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Waits for the end, and checks that the terminal is as it was.
    fn end(mut self) {
        self.wait_for("\u{1b}[?1049l");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        assert!(!self.is_raw(), "lines and echo");
        let (shown, hidden) = (self.drawn.rfind("\u{1b}[?25h"), self.drawn.rfind("\u{1b}[?25l"));
        assert!(shown > hidden, "the cursor is shown");
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // It has ended unless the test fails.
        drop(self.child.kill());
    }
}

fn set_size(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

#[test]
fn a_terminal_shows_a_server_that_goes_and_comes_back() {
    let directory = pods();
    let address = free_address().to_string();
    let serve =
        |name: &str| Server::start_at(&address, &["--files", &format!("{name}={}", directory.path().display())]);
    let server = serve("pods");
    let mut screen = Screen::start(&address);
    screen.wait_for("Watches: 0");
    assert!(screen.is_raw() && !screen.drawn.contains("HISTORY"));
    screen.resize(160, 40);
    screen.wait_for("HISTORY");
    drop(server);
    screen.wait_for("OLD FIGURES");
    let _server = serve("settings");
    screen.wait_for("settings");
    screen.press("?");
    screen.wait_for("bookmarks");
    screen.press("qq");
    screen.end();
}

#[test]
fn a_terminal_is_restored_after_signals_and_ctrl_c() {
    let directory = pods();
    let server = Server::of(&directory);
    for end in ["-TERM", "-INT", "\u{3}"] {
        let mut screen = Screen::start(&server.address);
        screen.wait_for("Watches: 0");
        if end.starts_with('-') {
            signal(&screen.child, end);
        } else {
            screen.press(end);
        }
        screen.end();
    }
}
