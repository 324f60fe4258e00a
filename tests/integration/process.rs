//! The binary in a process of its own: where it listens, what it logs, and its figures in /proc.

use std::{
    fs,
    io::{self, BufRead, BufReader},
    net::SocketAddr,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::Arc,
    thread::JoinHandle,
};

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::sandbox::DEADLINE;

/// Log filter for the lines of all crates that see the bytes of a connection.
pub(crate) const EVERYTHING: &str =
    "trace,h2=trace,hyper=trace,hyper_util=trace,rustls=trace,tokio_rustls=trace,tonic=trace,tower=trace";

/// Server in a process, killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Standard input, until a test takes it.
    pub(crate) stdin: Option<ChildStdin>,
    log: Arc<Mutex<String>>,
    /// Reads the log until the process ends.
    logging: Option<JoinHandle<()>>,
}

/// Answer of `/metrics`.
pub(crate) struct Metrics(pub(crate) String);

/// Raises the limit of open files of this process and its children to the system's maximum: some tests have many clients.
fn raise_open_files() {
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }).unwrap();
}

/// Connects from an address, such as another one of loopback.
pub(crate) async fn connect_from(host: [u8; 4], server: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((host, 0).into())?;
    socket.connect(server).await
}

/// Returns the address in a line of the log.
fn address(line: &str) -> SocketAddr {
    let port = line.split("127.0.0.1:").nth(1).unwrap().trim_matches(|c: char| !c.is_ascii_digit());
    SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()))
}

// === impl Process ===

impl Process {
    /// Starts `informerd serve` with these arguments, on ports of its own, and waits until it listens. `open_files` limits its
    /// open files.
    pub(crate) fn start(args: &[&str], open_files: Option<usize>) -> Self {
        Self::start_at("127.0.0.1:0", args, open_files)
    }

    /// Starts it on this address for gRPC.
    pub(crate) fn start_at(listen: &str, args: &[&str], open_files: Option<usize>) -> Self {
        raise_open_files();
        let limit = open_files.map_or_else(String::new, |open_files| format!("ulimit -n {open_files} && "));
        let mut command = Command::new("sh");
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("INFORMERD")) {
            command.env_remove(name);
        }
        let mut child = command
            .args(["-c", &format!("{limit}exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_informerd"), "serve"])
            .args(["--listen", listen, "--admin-listen", "127.0.0.1:0"])
            .args(args)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log: Arc<Mutex<String>> = Arc::default();
        let kept = Arc::clone(&log);
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut lines = lines.inspect(move |line| kept.lock().extend([line, "\n"]));
        let mut listens = |what: &str| address(&lines.by_ref().find(|line| line.contains(what)).expect("it listens"));
        let (grpc, admin) = (listens("grpc listening"), listens("admin listening"));
        // Reads the log, or the server would block when it writes to the pipe.
        let logging = Some(std::thread::spawn(move || lines.for_each(drop)));
        Self { stdin: child.stdin.take(), child, grpc, admin, log, logging }
    }

    /// Returns the address of the server as clients write it.
    pub(crate) fn address(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// Returns the address of the Kubernetes API.
    pub(crate) fn kubernetes(&self) -> SocketAddr {
        address(self.log().lines().find(|line| line.contains("kubernetes listening")).expect("it listens"))
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the log.
    pub(crate) fn log(&self) -> String {
        self.log.lock().clone()
    }

    /// Sends a GET to the admin port over HTTP/1.0.
    pub(crate) async fn get(&self, path: &str) -> String {
        let got = async {
            let mut stream = TcpStream::connect(self.admin).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        tokio::time::timeout(DEADLINE, got).await.expect("the admin port answers")
    }

    pub(crate) async fn metrics(&self) -> Metrics {
        Metrics(self.get("/metrics").await)
    }

    /// Returns the number of refusals for each of these reasons, once their sum is at least as expected.
    pub(crate) async fn refused<const N: usize>(&self, reasons: [&str; N], expected: u64) -> [u64; N] {
        let mut counted = [0; N];
        let all = async {
            while counted.iter().sum::<u64>() < expected {
                let metrics = self.metrics().await;
                counted = reasons.map(|reason| metrics.refused(reason));
            }
        };
        let is_counted = tokio::time::timeout(DEADLINE, all).await.is_ok();
        assert!(is_counted, "{counted:?} of {expected} refusals are counted: {reasons:?}");
        counted
    }

    /// Returns the number of open files of the server.
    pub(crate) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// Returns the resident memory of the server, in bytes.
    pub(crate) fn resident(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) fn drain(mut self) {
        assert!(Command::new("kill").args(["-TERM", &self.id().to_string()]).status().unwrap().success());
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the exit; the test's connections are closed meanwhile.
    pub(crate) async fn terminate(self) -> ExitStatus {
        self.terminate_with_log().await.0
    }

    /// Does the same, and returns the whole log, too.
    pub(crate) async fn terminate_with_log(mut self) -> (ExitStatus, String) {
        assert!(Command::new("kill").args(["-TERM", &self.id().to_string()]).status().unwrap().success());
        let waited = tokio::task::spawn_blocking(move || {
            let status = self.child.wait().unwrap();
            self.logging.take().expect("it logs until it ends").join().unwrap();
            (status, self.log())
        });
        waited.await.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

// === impl Metrics ===

impl Metrics {
    /// Returns the sum of a metric over all labels that begin with `name`, 0 if nothing was counted.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{', ',', '}']));
        let values = self.0.lines().filter(is_it).map(|line| line.rsplit(' ').next().unwrap());
        values.map(|value| value.parse::<f64>().unwrap()).sum()
    }

    /// Returns the number of refusals for a reason.
    pub(crate) fn refused(&self, reason: &str) -> u64 {
        self.sum(&format!("informerd_refused_total{{reason=\"{reason}\"")) as u64
    }
}
