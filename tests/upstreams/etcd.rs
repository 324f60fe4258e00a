//! Processes of etcd, and their writers.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{DEADLINE, port::free_address};

/// Release of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// 3.6, of this folder's Go module.
    Latest,
    /// 3.4 of Debian.
    Old,
}

/// Member of a cluster.
pub(crate) struct Etcd {
    version: Version,
    name: String,
    /// Every member, with its peer address.
    cluster: String,
    directory: TempDir,
    /// Number of data directories so far.
    data: usize,
    client: SocketAddr,
    peer: SocketAddr,
    process: Child,
}

/// Writer through etcd's own client.
pub(crate) struct Driver {
    process: Child,
    commands: ChildStdin,
    answers: mpsc::Receiver<String>,
}

pub(crate) const VERSIONS: [Version; 2] = [Version::Latest, Version::Old];

pub(crate) fn program(variable: &str) -> PathBuf {
    env::var_os(variable)
        .map_or_else(|| panic!("{variable} is not set: start these tests with tests/upstreams/run"), PathBuf::from)
}

// === impl Etcd ===

impl Etcd {
    /// Starts a cluster of one member.
    pub(crate) async fn start(version: Version) -> Self {
        Self::cluster(version, 1).await.remove(0)
    }

    pub(crate) async fn cluster(version: Version, members: usize) -> Vec<Self> {
        let addresses: Vec<_> = (0..members * 2).map(|_| free_address()).collect();
        let (clients, peers) = addresses.split_at(members);
        let cluster: Vec<_> = peers.iter().enumerate().map(|(at, peer)| format!("m{at}=http://{peer}")).collect();
        let cluster = cluster.join(",");
        let member = |at: usize| {
            let (directory, name) = (TempDir::new().unwrap(), format!("m{at}"));
            let (client, peer) = (clients[at], peers[at]);
            let process = spawn(version, &directory.path().join("data-0"), &name, client, peer, &cluster);
            Self { version, name, cluster: cluster.clone(), directory, data: 0, client, peer, process }
        };
        let mut members: Vec<_> = (0..members).map(member).collect();
        for member in &mut members {
            member.wait().await;
        }
        members
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.client
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.client)
    }

    pub(crate) fn driver(&self) -> Driver {
        Driver::start(&[&self.url()])
    }

    /// Returns a writer for a cluster with authentication.
    pub(crate) fn driver_as(&self, user: &str, password: &str) -> Driver {
        Driver::start(&[&self.url(), user, password])
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again, with the data that it had.
    pub(crate) async fn restart(&mut self) {
        let data = self.directory.path().join(format!("data-{}", self.data));
        self.process = spawn(self.version, &data, &self.name, self.client, self.peer, &self.cluster);
        self.wait().await;
    }

    /// Sends a signal, such as one that stops or continues the process.
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

    /// Kills it, and replaces its data with a snapshot. `restart` starts it again.
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
                .args(["snapshot", "restore", "--name", &self.name])
                .arg(snapshot)
                .arg("--data-dir")
                .arg(&data)
                .args(["--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &self.cluster])),
        }
    }

    async fn wait(&mut self) {
        let started = Instant::now();
        while let Err(error) = TcpStream::connect(self.client) {
            let ended = self.process.try_wait().unwrap();
            if ended.is_some() || started.elapsed() > DEADLINE {
                let log = self.directory.path().join(format!("data-{}.log", self.data));
                let log = fs::read_to_string(log).unwrap();
                panic!("etcd does not listen at {}: {error}; {ended:?}: {log}", self.client);
            }
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

fn spawn(version: Version, data: &Path, name: &str, client: SocketAddr, peer: SocketAddr, cluster: &str) -> Child {
    let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
    let mut command = match version {
        Version::Latest => {
            let mut command = Command::new(program("INFORMERD_UPSTREAMS"));
            command.arg("serve").arg(data).args([name, &client, cluster]);
            command
        }
        Version::Old => {
            let mut command = Command::new(program("INFORMERD_ETCD_34"));
            command.args(["--name", name, "--logger", "zap", "--log-level", "error"]).arg("--data-dir").arg(data);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", cluster]);
            command
        }
    };
    let log = fs::File::create(data.with_extension("log")).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

pub(crate) fn etcdctl() -> Command {
    let mut command = Command::new(program("INFORMERD_ETCDCTL_34"));
    command.env("ETCDCTL_API", "3");
    command
}

pub(crate) fn run(command: &mut Command) {
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

    /// Writes one transaction, and returns its revision.
    pub(crate) fn write(&mut self, changes: &BTreeMap<String, Option<String>>) -> i64 {
        let put: BTreeMap<_, _> = changes.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))).collect();
        let delete: Vec<_> = changes.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key).collect();
        self.ask(&json!({ "put": put, "delete": delete }))
    }

    pub(crate) fn compact(&mut self, revision: i64) {
        self.ask(&json!({ "compact": revision }));
    }

    /// Enables authentication, for root and a reader of a prefix only.
    pub(crate) fn protect(&mut self, reader: &str, password: &str, prefix: &str) {
        self.ask(&json!({ "reader": { "Name": reader, "Prefix": prefix, "Password": password } }));
    }

    /// Waits until the cluster accepts writes, which may need an election.
    pub(crate) fn settle(&mut self) {
        let started = Instant::now();
        while let Err(error) = self.try_ask(&json!({ "put": { "/settled": "x" } })) {
            assert!(started.elapsed() < DEADLINE, "{error}");
        }
    }

    fn ask(&mut self, command: &Value) -> i64 {
        self.try_ask(command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    fn try_ask(&mut self, command: &Value) -> Result<i64, Value> {
        writeln!(self.commands, "{command}").unwrap();
        let answer: Value = serde_json::from_str(&self.answers.recv_timeout(DEADLINE).expect("an answer")).unwrap();
        match answer.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(answer.get("revision").and_then(Value::as_i64).unwrap_or(0)),
        }
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
