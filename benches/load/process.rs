//! Processes to measure: starting them, and reading their cost.
//!
//! Linux only: the figures are from `/proc`. Dropping a [`Process`] kills it.

use std::{
    collections::VecDeque,
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::Mutex;
use tempfile::NamedTempFile;

use super::error::BenchError;

/// Started server that listens, and reads its events from its standard input.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    pub(super) address: SocketAddr,
    pub(super) stdin: Option<ChildStdin>,
    /// Last lines that it wrote to stderr.
    log: Arc<Mutex<VecDeque<String>>>,
    /// Files that it reads, removed when it ends.
    _files: Vec<NamedTempFile>,
}

/// Peak values that a [`Watchdog`] has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Resident memory of the process, in bytes.
    pub(super) resident: u64,
    /// Memory of all TCP sockets of the machine, both ends, in bytes.
    pub(super) sockets: u64,
}

/// Sampler of a process's memory, every few milliseconds.
#[derive(Debug)]
pub(super) struct Watchdog {
    stop: mpsc::Sender<()>,
    looking: JoinHandle<Memory>,
}

const LOG_LINES: usize = 5;
const LOOK: Duration = Duration::from_millis(20);
/// Size of a page on common Linux servers: the unit of `sockstat`.
const PAGE_BYTES: u64 = 4096;
/// Unit of `/proc/PID/stat`, the same on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// Returns the processor time of a process, including its ended threads.
pub(super) fn cpu_of(pid: u32) -> Duration {
    // All threads, with a resolution of ten milliseconds.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ticks: u64 = stat
        .rsplit(") ")
        .next()
        .map(|fields| fields.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum())
        .unwrap_or_default();
    // Nanosecond resolution, but without threads that have ended.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let precise: Duration = threads.map(|thread| scheduled(&thread.path().join("schedstat"))).sum();
    precise.max(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Returns the processor time of the calling thread.
pub(super) fn cpu_of_this_thread() -> Duration {
    scheduled(Path::new("/proc/thread-self/schedstat"))
}

fn scheduled(path: &Path) -> Duration {
    let text = fs::read_to_string(path).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

/// Returns the current memory; resident memory is 0 if the process is unknown.
pub(super) fn memory_of(pid: Option<u32>) -> Memory {
    let status = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok()).unwrap_or_default();
    let resident = field(&status, "VmRSS:").unwrap_or_default() * 1024;
    let sockets = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let tcp = sockets.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
    Memory { resident, sockets: field(tcp, "mem").unwrap_or_default() * PAGE_BYTES }
}

/// Returns the number after a word.
fn field(text: &str, word: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    words.find(|found| *found == word)?;
    words.next()?.parse().ok()
}

// === impl Process ===

impl Process {
    /// Starts a program, and waits until it logs on stderr that it listens on a loopback address.
    pub(super) fn start(program: &Path, arguments: &[String], files: Vec<NamedTempFile>) -> Result<Self, BenchError> {
        let name = program.display().to_string();
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Variables for the user's own servers are not for this one.
        for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("INFORMERD")) {
            command.env_remove(variable);
        }
        let mut child = command.spawn().map_err(|error| BenchError::Start { name: name.clone(), error })?;
        let stdin = child.stdin.take();
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let (tell, told) = mpsc::channel();
        let mut tell = Some(tell);
        if let Some(stderr) = child.stderr.take() {
            let log = Arc::clone(&log);
            thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    // Sent once: nobody receives it later.
                    if let Some(address) = listening(&line)
                        && let Some(tell) = tell.take()
                    {
                        tell.send(address).ok();
                    }
                    let mut log = log.lock();
                    log.push_back(line);
                    if log.len() > LOG_LINES {
                        log.pop_front();
                    }
                }
            });
        }
        // The sender is dropped when stderr ends, that is with the process.
        let Ok(address) = told.recv() else {
            let said = Vec::from(std::mem::take(&mut *log.lock())).join("; ");
            drop(child.kill());
            drop(child.wait());
            return Err(BenchError::NotListening { name, said });
        };
        Ok(Self { child, address, stdin, log, _files: files })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the last lines that it logged, if it has ended.
    pub(super) fn exit_report(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        let said = Vec::from(self.log.lock().clone()).join("; ");
        Some(format!("{status}: {said}"))
    }

    /// Kills it: readers and writers of its pipes get an error.
    pub(super) fn kill(&mut self) {
        // The process may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the address in a line such as `… grpc listening address=127.0.0.1:50051`.
fn listening(line: &str) -> Option<SocketAddr> {
    let at = line.find("listening").and_then(|start| Some(start + line[start..].find("127.0.0.1:")?))?;
    let text = line[at..].split(|c: char| !c.is_ascii_digit() && c != '.' && c != ':').next()?;
    text.parse().ok()
}

// === impl Watchdog ===

impl Watchdog {
    /// Starts sampling.
    pub(super) fn start(pid: Option<u32>) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let looking = thread::spawn(move || {
            let mut most = Memory::default();
            loop {
                let now = memory_of(pid);
                most.resident = most.resident.max(now.resident);
                most.sockets = most.sockets.max(now.sockets);
                if stopped.recv_timeout(LOOK) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return most;
                }
            }
        });
        Self { stop, looking }
    }

    /// Stops, and returns the peak values.
    pub(super) fn stop(self) -> Memory {
        drop(self.stop);
        self.looking.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_log_of_the_server() {
        let line = "2026-01-02T03:04:05Z  INFO grpc listening address=127.0.0.1:50051";
        assert_eq!(listening(line), Some(([127, 0, 0, 1], 50051).into()));
        let json = r#"{"level":"INFO","message":"grpc listening","address":"127.0.0.1:4"}"#;
        assert_eq!(listening(json), Some(([127, 0, 0, 1], 4).into()));
        assert_eq!(listening("connected to 127.0.0.1:5"), None);
    }

    #[test]
    fn the_time_and_the_memory_of_this_process_are_read() {
        let (before, thread) = (cpu_of(std::process::id()), cpu_of_this_thread());
        let mut number = 1_u64;
        while cpu_of_this_thread() < thread + Duration::from_millis(30) {
            number = std::hint::black_box(number.wrapping_mul(3));
        }
        assert!(cpu_of(std::process::id()) >= before + Duration::from_millis(20));
        assert!(memory_of(Some(std::process::id())).resident > 1 << 20);
        assert_eq!(memory_of(None).resident, 0);
    }

    #[test]
    fn a_program_that_does_not_listen_is_reported_with_its_output() {
        let arguments = ["-c".to_owned(), "echo no port >&2; exit 3".to_owned()];
        let error = Process::start(Path::new("sh"), &arguments, Vec::new()).unwrap_err();
        assert!(error.to_string().contains("no port"), "{error}");
        let error = Process::start(Path::new("/no/such/program"), &[], Vec::new()).unwrap_err();
        assert!(error.to_string().contains("/no/such/program"), "{error}");
    }
}
