//! Audit log: a file of lines, written by a thread of its own.
//!
//! ```text
//!   calls ──▶ bounded queue ──▶ thread ──▶ file, or standard error
//! ```
//!
//! A call never waits for the file: a line that the queue has no room for, or that cannot be written, is lost. Lost lines are counted,
//! and a later line has their number. The written part of one of them stays a line by itself. A file that was renamed or removed, as
//! logrotate does, is created again. The module does not depend on what the lines have.

use std::{
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
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
    counts: Arc<Counts>,
}

/// Numbers that the senders and the thread share.
#[derive(Debug, Default)]
struct Counts {
    queued_bytes: AtomicUsize,
    lost: Counter,
    /// Number of lost lines that no line has reported yet.
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
/// Size of these lines, in bytes: that of a line depends on its request.
const QUEUE_BYTES: usize = 16 << 20;
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
        let counts = Arc::clone(&log.counts);
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || write(target, &counts, &lines))?;
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
        (Self { queue, counts: Arc::default() }, lines)
    }

    /// Adds a line, without its end. Never waits.
    pub fn add(&self, line: String) {
        let (queued, bytes) = (&self.counts.queued_bytes, line.len());
        let has_room = queued.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUE_BYTES;
        if !has_room || self.queue.try_send(Message::Line(line)).is_err() {
            queued.fetch_sub(bytes, Ordering::Relaxed);
            self.counts.lose(1);
        }
    }

    /// Waits until what was added before is written, at most for this time. Blocks.
    pub fn flush(&self, timeout: Duration) {
        let (queue, (answer, written)) = (self.queue.clone(), sync_channel(1));
        // The queue may be full, and no send has a time limit: the thread is left to it.
        let request = std::thread::Builder::new().spawn(move || queue.send(Message::Flush(answer)));
        if request.is_ok() {
            written.recv_timeout(timeout).ok();
        }
    }

    /// Registers the counter of lost lines.
    pub fn register(&self, registry: &mut Registry) {
        let help =
            "Lines of the audit log that were not written, because they came too fast or the file cannot be written";
        registry.register("informerd_audit_lines_lost", help, self.counts.lost.clone());
    }
}

// === impl Counts ===

impl Counts {
    fn lose(&self, lines: u64) {
        self.lost.inc_by(lines);
        self.unreported.fetch_add(lines, Ordering::Relaxed);
    }
}

/// Writes the lines until there is no sender.
fn write(mut target: Target, counts: &Counts, lines: &Receiver<Message>) {
    let (log, mut is_torn) = (LogThrottle::new(), false);
    while let Ok(first) = lines.recv() {
        let (mut text, mut flushed, mut next) = (String::new(), Vec::new(), Some(first));
        if is_torn {
            text.push('\n');
        }
        while let Some(message) = next {
            match message {
                Message::Line(line) => {
                    counts.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
                    text.push_str(&line);
                    text.push('\n');
                }
                Message::Flush(answer) => flushed.push(answer),
            }
            next = if text.len() < BATCH_BYTES { lines.try_recv().ok() } else { None };
        }
        let lost = counts.unreported.swap(0, Ordering::Relaxed);
        if lost > 0 {
            writeln!(text, "{{\"event\":\"lost\",\"lines\":{lost}}}").ok();
        }
        let mut rest = text.as_bytes();
        if let Err(error) = target.write(&mut rest) {
            let written = &text.as_bytes()[..text.len() - rest.len()];
            // Neither the report nor the end of an incomplete line is one that was added.
            let others = usize::from(lost > 0) + usize::from(is_torn && written.is_empty());
            let ends = rest.split_inclusive(|byte| *byte == b'\n').count();
            counts.lose((ends - others) as u64);
            is_torn = written.last().map_or(is_torn, |last| *last != b'\n');
            if let Some(times) = log.poll() {
                tracing::warn!(%error, times, lost = counts.lost.get(), "audit log not written");
            }
            // Reported again, and counted once.
            counts.unreported.fetch_add(lost, Ordering::Relaxed);
        } else {
            is_torn = false;
        }
        for answer in flushed {
            answer.send(()).ok();
        }
    }
}

// === impl Target ===

impl Target {
    /// Writes a text, and leaves in it what is not written.
    fn write(&mut self, text: &mut &[u8]) -> io::Result<()> {
        match self {
            Self::StandardError => write_all(&mut io::stderr().lock(), text),
            Self::File { path, file } => {
                let opened = file.metadata()?;
                let is_there = |found: std::fs::Metadata| (found.dev(), found.ino()) == (opened.dev(), opened.ino());
                if !std::fs::metadata(&*path).is_ok_and(is_there) {
                    *file = append_to(path)?;
                }
                write_all(file, text)
            }
        }
    }
}

fn write_all(target: &mut impl Write, text: &mut &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match target.write(text) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => *text = &text[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
    use std::{fs, time::Instant};

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
        assert_eq!(log.counts.lost.get(), 2);
        let counts = Arc::clone(&log.counts);
        drop(log);
        let target = Target::File { path: path.clone(), file: append_to(&path).unwrap() };
        write(target, &counts, &lines);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\n{\"event\":\"lost\",\"lines\":2}\n");
        assert_eq!(counts.unreported.load(Ordering::Relaxed), 0);
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
        assert_eq!(log.counts.lost.get(), 1);
        fs::create_dir(&inner).unwrap();
        log.add("b".to_owned());
        log.flush(TIMEOUT);
        assert_eq!(fs::read_to_string(&path).unwrap(), "b\n{\"event\":\"lost\",\"lines\":1}\n");
    }

    /// Each call adds lines up to the size of its request, whatever the thread does.
    #[test]
    fn queued_lines_have_a_limit_in_bytes_too() {
        const LINES: u64 = 100;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let (log, lines) = AuditLog::with_queue(QUEUE_LENGTH);
        for _ in 0..LINES {
            log.add("x".repeat(1 << 20));
        }
        let queued = LINES - log.counts.lost.get();
        assert!((8..=16).contains(&queued), "{queued} MiB");
        let (counts, target) =
            (Arc::clone(&log.counts), Target::File { path: path.clone(), file: append_to(&path).unwrap() });
        let writer = std::thread::spawn(move || write(target, &counts, &lines));
        log.flush(TIMEOUT);
        // Those that are lost take no room of later ones.
        log.add("last".to_owned());
        log.flush(TIMEOUT);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().filter(|line| line.starts_with('x')).count() as u64, queued);
        assert!(text.ends_with("\nlast\n"));
        drop(log);
        writer.join().unwrap();
    }

    #[test]
    fn the_lines_that_are_written_make_room_for_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = AuditLog::open(&path).unwrap();
        for _ in 0..40 {
            log.add("x".repeat(1 << 20));
            log.flush(TIMEOUT);
        }
        assert_eq!(log.counts.lost.get(), 0);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 40);
    }

    /// A pipe that is full and does not wait is like a disk without room: the last line that it takes is incomplete.
    #[test]
    fn a_line_that_is_incomplete_takes_no_other_with_it() {
        const LINE: usize = 10_000;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let nonblocking = || {
            let mut options = OpenOptions::new();
            options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
            options
        };
        let mut reader = nonblocking().read(true).open(&path).unwrap();
        let file = nonblocking().write(true).open(&path).unwrap();
        let (log, lines) = AuditLog::with_queue(QUEUE_LENGTH);
        let (counts, target) = (Arc::clone(&log.counts), Target::File { path, file });
        let writer = std::thread::spawn(move || write(target, &counts, &lines));
        let mut text = Vec::new();
        let mut read = |text: &mut Vec<u8>| {
            let error = io::Read::read_to_end(&mut reader, text).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        };
        for _ in 0..10 {
            log.add("x".repeat(LINE));
        }
        log.flush(TIMEOUT);
        read(&mut text);
        log.add("last".to_owned());
        log.flush(TIMEOUT);
        read(&mut text);
        let text = String::from_utf8(text).unwrap();
        let found: Vec<&str> = text.lines().collect();
        let (whole, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|line| line.len() == LINE);
        let lost = 10 - whole.len() as u64;
        assert!((1..10).contains(&lost), "{lost}");
        assert!(others[0].len() < LINE && others[0].starts_with('x'), "the incomplete line");
        assert_eq!(others[1..], ["last", &format!("{{\"event\":\"lost\",\"lines\":{lost}}}")]);
        assert_eq!(log.counts.lost.get(), lost);
        drop(log);
        writer.join().unwrap();
    }

    #[test]
    fn a_flush_waits_for_room_in_the_queue() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let (log, lines) = AuditLog::with_queue(2);
        log.add("a".to_owned());
        log.add("b".to_owned());
        let (began, short) = (Instant::now(), Duration::from_millis(20));
        log.flush(short);
        assert!(began.elapsed() >= short, "{:?}", began.elapsed());
        let (counts, target) =
            (Arc::clone(&log.counts), Target::File { path: path.clone(), file: append_to(&path).unwrap() });
        let writer = std::thread::spawn(move || write(target, &counts, &lines));
        log.flush(TIMEOUT);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\n");
        drop(log);
        writer.join().unwrap();
    }
}
