//! Driver of a client: a program that speaks one JSON object a line on stdin and stdout.

#![allow(clippy::disallowed_methods, reason = "the script of a scenario bounds its queues")]

use std::{collections::HashMap, path::Path, process::Stdio, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    process::{Child, Command},
    sync::{
        mpsc::{self, UnboundedReceiver, UnboundedSender},
        watch,
    },
    task::JoinHandle,
};

/// Reason why a client does not pass: one line, or several.
pub(crate) type Failure = String;
/// Result of a step, and of a scenario.
pub(crate) type Outcome = Result<(), Failure>;

/// Way to start a driver, once for each scenario.
#[derive(Clone)]
pub(crate) enum Launcher {
    /// A program and its arguments.
    Program(Arc<[String]>),
    /// A driver in this process: it reads commands and writes lines, until there are no more commands.
    #[allow(dead_code, reason = "for the tests of the suite")]
    Function(Arc<DriverFunction>),
}

pub(crate) type DriverFunction =
    dyn Fn(UnboundedReceiver<String>, UnboundedSender<Value>) -> JoinHandle<()> + Send + Sync;

/// Running driver.
pub(crate) struct Driver {
    /// Commands; none once they are over.
    input: Option<UnboundedSender<String>>,
    received: Arc<Mutex<Received>>,
    changed: watch::Receiver<()>,
    running: Running,
    /// Longest wait for a step that has no bound of its own.
    pub(crate) patience: Duration,
    last_id: u64,
}

enum Running {
    Program(Box<Child>),
    Function(JoinHandle<()>),
}

/// Lines of a driver.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) events: Vec<Value>,
    /// Replies by their ids, each with the number of events before it.
    replies: HashMap<u64, (Value, usize)>,
    /// Violation of the protocol.
    problem: Option<String>,
    /// End of stdout.
    has_ended: bool,
    /// End of the driver.
    is_over: bool,
    stderr: Vec<u8>,
}

/// Bytes of stderr that are kept.
const MAX_STDERR: usize = 64 << 10;
/// Buffer for lines, which may be as long as the objects in them.
const LINE_BUFFER: usize = 64 << 10;

// === impl Driver ===

impl Driver {
    /// Starts a driver.
    pub(crate) fn start(launcher: &Launcher, patience: Duration) -> Result<Self, Failure> {
        let received = Arc::new(Mutex::new(Received::default()));
        let (sender, changed) = watch::channel(());
        let (input, commands) = mpsc::unbounded_channel();
        let running = match launcher {
            Launcher::Program(words) => {
                let (program, arguments) = words.split_first().ok_or("no driver")?;
                let mut command = Command::new(Path::new(program));
                command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let mut child = command.kill_on_drop(true).spawn().map_err(|error| format!("{program}: {error}"))?;
                let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
                let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err("no pipes".to_owned()) };
                tokio::spawn(read_lines(stdout, Arc::clone(&received), sender));
                tokio::spawn(read_stderr(stderr, Arc::clone(&received)));
                tokio::spawn(write_lines(commands, stdin));
                Running::Program(Box::new(child))
            }
            Launcher::Function(function) => {
                let (output, mut lines) = mpsc::unbounded_channel();
                let taken = Arc::clone(&received);
                tokio::spawn(async move {
                    while let Some(line) = lines.recv().await {
                        taken.lock().take(line);
                        sender.send_replace(());
                    }
                    taken.lock().has_ended = true;
                    sender.send_replace(());
                });
                Running::Function(function(commands, output))
            }
        };
        Ok(Self { input: Some(input), received, changed, running, patience, last_id: 0 })
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, command: &Value) -> Outcome {
        let input = self.input.as_ref().ok_or("the driver has ended")?;
        input.send(command.to_string()).map_err(|_| "the driver does not read its stdin".to_owned())
    }

    /// Sends a command with an id, and returns the reply.
    pub(crate) async fn ask(&mut self, mut command: Value) -> Result<Value, Failure> {
        let id = self.begin(&mut command)?;
        self.reply(id).await
    }

    /// Sends a command with an id, and returns the id.
    pub(crate) fn begin(&mut self, command: &mut Value) -> Result<u64, Failure> {
        self.last_id += 1;
        command["id"] = json!(self.last_id);
        self.send(command)?;
        Ok(self.last_id)
    }

    /// Waits for a reply.
    pub(crate) async fn reply(&mut self, id: u64) -> Result<Value, Failure> {
        let what = format!("no reply to command {id} within {:?}", self.patience);
        self.wait(&what, |received| received.replies.get(&id).map(|(reply, _)| reply.clone())).await
    }

    /// Waits until a function of what was received returns a value.
    pub(crate) async fn wait<T>(
        &mut self,
        what: &str,
        mut find: impl FnMut(&Received) -> Option<T>,
    ) -> Result<T, Failure> {
        let found = async {
            loop {
                self.changed.mark_unchanged();
                {
                    let received = self.received.lock();
                    if let Some(problem) = &received.problem {
                        return Err(problem.clone());
                    }
                    if let Some(found) = find(&received) {
                        return Ok(found);
                    }
                    if received.has_ended {
                        return Err(format!("{what}: the driver has ended"));
                    }
                }
                drop(self.changed.changed().await);
            }
        };
        tokio::time::timeout(self.patience, found).await.unwrap_or_else(|_| Err(what.to_owned()))
    }

    /// Waits until the driver ends or violates the protocol, and returns which.
    pub(crate) async fn broken(&mut self) -> Failure {
        loop {
            self.changed.mark_unchanged();
            {
                let received = self.received.lock();
                if let Some(problem) = &received.problem {
                    return problem.clone();
                }
                if received.has_ended {
                    return "the driver has ended".to_owned();
                }
            }
            drop(self.changed.changed().await);
        }
    }

    /// Returns the number of events before the last reply.
    pub(crate) fn events_before_reply(&self) -> usize {
        self.received.lock().replies.get(&self.last_id).map_or(0, |(_, count)| *count)
    }

    /// Returns what was received, now.
    pub(crate) fn with_events<T>(&self, read: impl FnOnce(&[Value]) -> T) -> T {
        read(&self.received.lock().events)
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.received.lock().stderr).into_owned()
    }

    /// Closes stdin, and waits for the end of the driver.
    pub(crate) async fn end(&mut self) -> Outcome {
        self.input = None;
        let late = format!("the driver did not end within {:?} after its stdin was closed", self.patience);
        // A task that has ended must not be awaited again.
        if !self.received.lock().is_over {
            tokio::time::timeout(self.patience, self.running.ended()).await.unwrap_or_else(|_| Err(late.clone()))?;
            self.received.lock().is_over = true;
        }
        // Its last lines.
        self.wait(&late, |received| received.has_ended.then_some(())).await
    }
}

// === impl Running ===

impl Running {
    async fn ended(&mut self) -> Outcome {
        match self {
            Self::Function(task) => task.await.map_err(|error| format!("the driver failed: {error}")),
            Self::Program(child) => match child.wait().await {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(format!("the driver ended with {status}")),
                Err(error) => Err(format!("the driver cannot be awaited: {error}")),
            },
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Running::Function(task) = &self.running {
            task.abort();
        }
    }
}

async fn read_lines(output: impl AsyncRead + Unpin, received: Arc<Mutex<Received>>, changed: watch::Sender<()>) {
    let mut lines = BufReader::with_capacity(LINE_BUFFER, output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        // Whatever it is.
        let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
        received.lock().take(line);
        changed.send_replace(());
    }
    received.lock().has_ended = true;
    changed.send_replace(());
}

async fn write_lines(mut commands: UnboundedReceiver<String>, mut stdin: impl AsyncWrite + Unpin) {
    while let Some(command) = commands.recv().await {
        let line = format!("{command}\n");
        // A driver that does not read has ended, which shows.
        if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            break;
        }
    }
}

async fn read_stderr(mut stderr: impl AsyncRead + Unpin, received: Arc<Mutex<Received>>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        let kept = &mut received.lock().stderr;
        let room = MAX_STDERR.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..read.min(room)]);
    }
}

// === impl Received ===

impl Received {
    fn take(&mut self, line: Value) {
        if line["event"].is_string() {
            self.events.push(line);
        } else if let Some(id) = line["reply"].as_u64() {
            self.replies.insert(id, (line, self.events.len()));
        } else {
            let shown: String = line.to_string().chars().take(200).collect();
            self.problem.get_or_insert(format!("a line on stdout is neither an event nor a reply: {shown}"));
        }
    }
}
