//! Servers of the tree: processes at fixed addresses that are killed, ended and started again.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use super::{port::free_address, running::Running};

/// An informerd.
pub(super) struct Server {
    directory: TempDir,
    address: SocketAddr,
    admin: SocketAddr,
    process: Option<Running>,
    /// Processor time of its earlier processes, and their lists.
    before: f64,
    listed: u64,
}

// === impl Server ===

impl Server {
    /// Starts a server over etcd.
    pub(super) fn root(endpoint: &str, prefix: &str) -> Self {
        Self::new(&format!("etcd: {{ endpoints: [{endpoint}], prefix: {prefix} }}"))
    }

    /// Starts a relay of another server.
    pub(super) fn relay(root: &Self) -> Self {
        Self::new(&format!("informerd: {{ endpoint: {} }}", root.url()))
    }

    fn new(source: &str) -> Self {
        let (directory, address, admin) = (TempDir::new().unwrap(), free_address(), free_address());
        let config = format!(
            "state_dir: state\nstate_interval: 1s\ninsecure: true\nlimits: {{ peer_share: 100 }}\n\
             resources:\n  things:\n    source: {{ {source} }}\n"
        );
        fs::write(directory.path().join("config.yaml"), config).unwrap();
        let mut server = Self { directory, address, admin, process: None, before: 0.0, listed: 0 };
        server.start();
        server
    }

    /// Starts it, at the same addresses as before.
    pub(super) fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
        let path = self.directory.path().join("config.yaml");
        let log = fs::File::options().create(true).append(true).open(self.directory.path().join("log")).unwrap();
        command.args(["serve", "--log", "warn", "--config", path.to_str().unwrap()]);
        // Clients connect to many addresses of this machine.
        command.args(["--listen", &format!("0.0.0.0:{}", self.address.port())]);
        command.args(["--admin-listen", &self.admin.to_string()]);
        let mut process = Running(command.stdin(Stdio::null()).stderr(log).spawn().unwrap());
        while TcpStream::connect(self.admin).is_err() {
            if let Some(status) = process.0.try_wait().unwrap() {
                let log = fs::read_to_string(self.directory.path().join("log")).unwrap();
                panic!("the server has ended: {status}: {log}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process = Some(process);
    }

    pub(super) fn kill(&mut self) {
        (self.before, self.listed) = (self.processor(), self.lists());
        self.process = None;
    }

    /// Sends SIGTERM, and waits for the end.
    pub(super) fn terminate(&mut self) {
        (self.before, self.listed) = (self.processor(), self.lists());
        if let Some(Running(child)) = &mut self.process {
            assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
            child.wait().unwrap();
        }
        self.process = None;
    }

    pub(super) fn is_gone(&self) -> bool {
        self.process.is_none()
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn memory(&self, name: &str) -> f64 {
        self.process.as_ref().map_or(0.0, |process| process.memory(name))
    }

    /// Returns the most memory that the process has had, in KiB.
    pub(super) fn peak(&self) -> f64 {
        self.memory("VmHWM")
    }

    /// Returns the processor time of all its processes, in seconds.
    pub(super) fn processor(&self) -> f64 {
        self.before + self.process.as_ref().map_or(0.0, Running::processor)
    }

    /// Returns the number of lists that it has requested from its upstream.
    pub(super) fn lists(&self) -> u64 {
        let listed = self.metric("informerd_reflector_lists_total");
        self.listed + listed.iter().map(|(_, value)| *value as u64).sum::<u64>()
    }

    /// Prints what it has refused.
    pub(super) fn report_refusals(&self) {
        for (labels, value) in self.metric("informerd_refused_total").iter().filter(|(_, value)| *value > 0.0) {
            println!("  {} refused {value}: {labels}", self.address);
        }
    }

    /// Returns the values of a metric by their labels; none while it does not answer.
    fn metric(&self, name: &str) -> Vec<(String, f64)> {
        let ask = || {
            let mut stream = TcpStream::connect_timeout(&self.admin, Duration::from_secs(1))?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        let answer = ask().unwrap_or_default();
        let of = |line: &str| {
            let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
            Some((labels.to_owned(), value.parse().ok()?))
        };
        answer.lines().filter_map(of).collect()
    }
}
