//! Processes of etcd, and what writes to them.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::DEADLINE;

/// Which etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// 3.6, of this folder's Go module.
    Latest,
    /// Debian's 3.4.
    Old,
}

/// A cluster of one member.
pub(crate) struct Etcd {
    version: Version,
    directory: TempDir,
    /// How many data directories there have been.
    data: usize,
    client: SocketAddr,
    peer: SocketAddr,
    process: Child,
}

/// etcd's own client, which writes.
pub(crate) struct Driver {
    process: Child,
    commands: ChildStdin,
    answers: mpsc::Receiver<String>,
}

pub(crate) const VERSIONS: [Version; 2] = [Version::Latest, Version::Old];

fn program(variable: &str) -> PathBuf {
    env::var_os(variable)
        .map_or_else(|| panic!("{variable} is not set: start these tests with tests/upstreams/run"), PathBuf::from)
}

// === impl Etcd ===

impl Etcd {
    pub(crate) async fn start(version: Version) -> Self {
        let directory = TempDir::new().unwrap();
        // Both at once, so that they differ.
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [client, peer] = listeners.map(|listener| listener.local_addr().unwrap());
        let process = spawn(version, &directory.path().join("data-0"), client, peer);
        let etcd = Self { version, directory, data: 0, client, peer, process };
        etcd.wait().await;
        etcd
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.client
    }

    fn url(&self) -> String {
        format!("http://{}", self.client)
    }

    pub(crate) fn driver(&self) -> Driver {
        Driver::start(&[&self.url()])
    }

    /// For a cluster that asks who writes.
    pub(crate) fn driver_as(&self, user: &str, password: &str) -> Driver {
        Driver::start(&[&self.url(), user, password])
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Again, with what it had.
    pub(crate) async fn restart(&mut self) {
        let data = self.directory.path().join(format!("data-{}", self.data));
        self.process = spawn(self.version, &data, self.client, self.peer);
        self.wait().await;
    }

    /// Stands still, or goes on.
    pub(crate) fn signal(&self, signal: &str) {
        run(Command::new("kill").args([signal, &self.process.id().to_string()]));
    }

    pub(crate) fn snapshot(&self) -> PathBuf {
        let path = self.directory.path().join("snapshot");
        match self.version {
            Version::Latest => drop(self.driver().ask(&json!({ "snapshot": path }))),
            Version::Old => run(etcdctl().args(["--endpoints", &self.url(), "snapshot", "save"]).arg(&path)),
        }
        path
    }

    /// Kills it, and puts a snapshot in the place of what it had. It is started by `restart`.
    pub(crate) fn restore(&mut self, snapshot: &Path) {
        self.kill();
        self.data += 1;
        let data = self.directory.path().join(format!("data-{}", self.data));
        let peer = format!("http://{}", self.peer);
        match self.version {
            Version::Latest => {
                run(Command::new(program("INFORMERD_UPSTREAMS")).arg("restore").arg(snapshot).arg(&data).arg(&peer));
            }
            Version::Old => run(etcdctl()
                .args(["snapshot", "restore", "--name", "default"])
                .arg(snapshot)
                .arg("--data-dir")
                .arg(&data)
                .args(["--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &format!("default={peer}")])),
        }
    }

    async fn wait(&self) {
        let started = Instant::now();
        while TcpStream::connect(self.client).is_err() {
            assert!(started.elapsed() < DEADLINE, "etcd does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn spawn(version: Version, data: &Path, client: SocketAddr, peer: SocketAddr) -> Child {
    let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
    let mut command = match version {
        Version::Latest => {
            let mut command = Command::new(program("INFORMERD_UPSTREAMS"));
            command.arg("serve").arg(data).args([&client, &peer]);
            command
        }
        Version::Old => {
            let mut command = Command::new(program("INFORMERD_ETCD_34"));
            command.args(["--name", "default", "--logger", "zap", "--log-level", "error"]).arg("--data-dir").arg(data);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &format!("default={peer}")]);
            command
        }
    };
    let log = fs::File::create(data.with_extension("log")).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

fn etcdctl() -> Command {
    let mut command = Command::new(program("INFORMERD_ETCDCTL_34"));
    command.env("ETCDCTL_API", "3");
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

// === impl Driver ===

impl Driver {
    fn start(arguments: &[&str]) -> Self {
        let mut process = Command::new(program("INFORMERD_UPSTREAMS"))
            .arg("drive")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || read(output, &sender));
        Self { process, commands, answers }
    }

    /// One transaction; its revision.
    pub(crate) fn write(&mut self, changes: &BTreeMap<String, Option<String>>) -> i64 {
        let put: BTreeMap<_, _> = changes.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))).collect();
        let delete: Vec<_> = changes.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key).collect();
        self.ask(&json!({ "put": put, "delete": delete }))
    }

    pub(crate) fn compact(&mut self, revision: i64) {
        self.ask(&json!({ "compact": revision }));
    }

    /// Lets nobody in any more but root and a reader of a prefix.
    pub(crate) fn protect(&mut self, reader: &str, password: &str, prefix: &str) {
        self.ask(&json!({ "reader": { "Name": reader, "Prefix": prefix, "Password": password } }));
    }

    fn ask(&mut self, command: &Value) -> i64 {
        writeln!(self.commands, "{command}").unwrap();
        let answer: Value = serde_json::from_str(&self.answers.recv_timeout(DEADLINE).expect("an answer")).unwrap();
        assert!(answer.get("error").is_none(), "{command}: {answer}");
        answer.get("revision").and_then(Value::as_i64).unwrap_or(0)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn read(output: ChildStdout, answers: &mpsc::Sender<String>) {
    use std::io::{BufRead, BufReader};
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if answers.send(line).is_err() {
            return;
        }
    }
}
