//! Audit log: a file of lines, written by a thread of its own.
//!
//! ```text
//!   calls ──▶ bounded queue ──▶ thread ──▶ file, or standard error
//! ```
//!
//! A call never waits for the file: a line that the queue has no room for, or that cannot be written, is lost. Lost lines are counted,
//! and a later line has their number. A file that was renamed or removed, as logrotate does, is created again. The module does not
//! depend on what the lines have.

use std::{
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

use crate::log_throttle::LogThrottle;

/// Sender of lines to an audit log; clones share it. The thread ends with the last of them.
#[derive(Debug, Clone)]
pub struct AuditLog {
    queue: SyncSender<Message>,
    losses: Arc<Losses>,
}

/// Numbers of lost lines.
#[derive(Debug, Default)]
struct Losses {
    all: Counter,
    /// Number that no line has reported yet.
    unreported: AtomicU64,
}

#[derive(Debug)]
enum Message {
    Line(String),
    /// Request to answer once everything before it is written.
    Flush(SyncSender<()>),
}

#[derive(Debug)]
enum Target {
    StandardError,
    File { path: PathBuf, file: File },
}

/// Number of lines that wait for the thread.
const QUEUE_LENGTH: usize = 8192;
/// Size from which on the thread writes what it has collected, in bytes.
const BATCH_BYTES: usize = 64 << 10;

// === impl AuditLog ===

impl AuditLog {
    /// Opens the file, to which lines are appended, or standard error for `-`, and starts the thread.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or the thread not be started.
    pub fn open(path: &Path) -> io::Result<Self> {
        let target = match path.to_str() {
            Some("-") => Target::StandardError,
            _ => Target::File { path: path.to_owned(), file: append_to(path)? },
        };
        let (log, lines) = Self::with_queue(QUEUE_LENGTH);
        let losses = Arc::clone(&log.losses);
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || write(target, &losses, &lines))?;
        Ok(log)
    }

    /// Checks that the file can be opened. One that is made for that is removed again.
    ///
    /// # Errors
    ///
    /// If it cannot.
    pub fn check(path: &Path) -> io::Result<()> {
        if path.to_str() == Some("-") {
            return Ok(());
        }
        let is_new = !path.exists();
        append_to(path)?;
        if is_new { std::fs::remove_file(path) } else { Ok(()) }
    }

    fn with_queue(length: usize) -> (Self, Receiver<Message>) {
        let (queue, lines) = sync_channel(length);
        (Self { queue, losses: Arc::default() }, lines)
    }

    /// Adds a line, without its end. Never waits.
    pub fn add(&self, line: String) {
        if self.queue.try_send(Message::Line(line)).is_err() {
            self.losses.add(1);
        }
    }

    /// Waits until what was added before is written, at most for this time. Blocks.
    pub fn flush(&self, timeout: Duration) {
        let (answer, written) = sync_channel(1);
        if self.queue.try_send(Message::Flush(answer)).is_ok() {
            written.recv_timeout(timeout).ok();
        }
    }

    /// Registers the counter of lost lines.
    pub fn register(&self, registry: &mut Registry) {
        let help =
            "Lines of the audit log that were not written, because they came too fast or the file cannot be written";
        registry.register("informerd_audit_lines_lost", help, self.losses.all.clone());
    }
}

// === impl Losses ===

impl Losses {
    fn add(&self, lines: u64) {
        self.all.inc_by(lines);
        self.unreported.fetch_add(lines, Ordering::Relaxed);
    }
}

/// Writes the lines until there is no sender.
fn write(mut target: Target, losses: &Losses, lines: &Receiver<Message>) {
    let log = LogThrottle::new();
    while let Ok(first) = lines.recv() {
        let (mut text, mut count, mut flushed, mut next) = (String::new(), 0, Vec::new(), Some(first));
        while let Some(message) = next {
            match message {
                Message::Line(line) => {
                    text.push_str(&line);
                    text.push('\n');
                    count += 1;
                }
                Message::Flush(answer) => flushed.push(answer),
            }
            next = if text.len() < BATCH_BYTES { lines.try_recv().ok() } else { None };
        }
        let lost = losses.unreported.swap(0, Ordering::Relaxed);
        if lost > 0 {
            writeln!(text, "{{\"event\":\"lost\",\"lines\":{lost}}}").ok();
        }
        if let Err(error) = target.write(text.as_bytes()) {
            losses.add(count);
            if let Some(times) = log.poll() {
                tracing::warn!(%error, times, lost = losses.all.get(), "audit log not written");
            }
            // Reported again, and counted once.
            losses.unreported.fetch_add(lost, Ordering::Relaxed);
        }
        for answer in flushed {
            answer.send(()).ok();
        }
    }
}

// === impl Target ===

impl Target {
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        match self {
            Self::StandardError => io::stderr().lock().write_all(text),
            Self::File { path, file } => {
                let opened = file.metadata()?;
                let is_there = |found: std::fs::Metadata| (found.dev(), found.ino()) == (opened.dev(), opened.ino());
                if !std::fs::metadata(&*path).is_ok_and(is_there) {
                    *file = append_to(path)?;
                }
                file.write_all(text)
            }
        }
    }
}

/// Opens a file for others than its owner to neither read nor write: it says who reads what. Never waits: a named pipe must have a
/// reader.
fn append_to(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    if !std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return options.open(path);
    }
    let opened = options.custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| {
        if Errno::from_io_error(&error) != Some(Errno::NXIO) {
            return error;
        }
        io::Error::new(error.kind(), "no program reads this named pipe: start its reader first")
    })?;
    // The thread waits for the reader, as for a slow disk.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn a_file_that_is_renamed_or_removed_is_created_again() {
        let directory = tempfile::tempdir().unwrap();
        let (path, rotated) = (directory.path().join("audit.log"), directory.path().join("audit.log.1"));
        fs::write(&path, "before\n").unwrap();
        let log = AuditLog::open(&path).unwrap();
        let add = |line: &str| {
            log.add(line.to_owned());
            log.flush(TIMEOUT);
        };
        add("a");
        fs::rename(&path, &rotated).unwrap();
        add("b");
        assert_eq!(fs::read_to_string(&rotated).unwrap(), "before\na\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "b\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::remove_file(&path).unwrap();
        add("c");
        assert_eq!(fs::read_to_string(&path).unwrap(), "c\n");
    }

    #[test]
    fn lines_without_room_are_counted_and_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let (log, lines) = AuditLog::with_queue(2);
        for line in ["a", "b", "c", "d"] {
            log.add(line.to_owned());
        }
        assert_eq!(log.losses.all.get(), 2);
        let losses = Arc::clone(&log.losses);
        drop(log);
        let target = Target::File { path: path.clone(), file: append_to(&path).unwrap() };
        write(target, &losses, &lines);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\n{\"event\":\"lost\",\"lines\":2}\n");
        assert_eq!(losses.unreported.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_named_pipe_without_a_reader_is_an_error_and_one_with_a_reader_gets_the_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let error = AuditLog::open(&path).unwrap_err();
        assert!(error.to_string().contains("start its reader first"), "{error}");
        // Opened for both, the test itself does not wait for a writer.
        let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let log = AuditLog::open(&path).unwrap();
        log.add("a".to_owned());
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(reader), &mut line).unwrap();
        assert_eq!(line, "a\n");
    }

    #[test]
    fn a_file_that_cannot_be_created_again_loses_lines_until_it_can() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("logs");
        fs::create_dir(&inner).unwrap();
        let path = inner.join("audit.log");
        assert!(AuditLog::open(&directory.path().join("none/audit.log")).is_err());
        let log = AuditLog::open(&path).unwrap();
        fs::remove_dir_all(&inner).unwrap();
        log.add("a".to_owned());
        log.flush(TIMEOUT);
        assert_eq!(log.losses.all.get(), 1);
        fs::create_dir(&inner).unwrap();
        log.add("b".to_owned());
        log.flush(TIMEOUT);
        assert_eq!(fs::read_to_string(&path).unwrap(), "b\n{\"event\":\"lost\",\"lines\":1}\n");
    }
}
