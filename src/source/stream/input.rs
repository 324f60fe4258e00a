//! Input of a stream: standard input, a file or a named pipe.
//!
//! The first list opens it, `reader` reads it. A file or standard input ends once and for all; a named pipe ends whenever its
//! last writer closes it, and continues with the next one.
//!
//! Unix only: a named pipe is opened without waiting for a writer.

use std::{
    fs,
    io::{self, ErrorKind, Read},
    os::{fd::AsFd, unix::fs::FileTypeExt},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    fs::File,
    io::{AsyncReadExt, Interest},
    net::unix::pipe::{OpenOptions, Receiver},
    time::{Instant, sleep, sleep_until},
};

/// Origin of the events of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StreamPath {
    /// Standard input.
    #[default]
    Stdin,
    /// A file or a named pipe.
    Path(PathBuf),
}

/// Reason why a stream cannot be read; the text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Path that does not exist.
    #[error("the file {} does not exist; create it, or correct the path", .0.display())]
    Missing(PathBuf),
    /// Path of a directory or a socket.
    #[error("{} is neither a file nor a named pipe; name the file or pipe with the events", .0.display())]
    NotAStream(PathBuf),
    /// Input that cannot be opened.
    #[error("{what} cannot be read ({reason}); give the user of informerd permission to read it")]
    Unreadable {
        /// The file, or "standard input".
        what: String,
        /// The operating system's message.
        reason: String,
    },
}

/// Input that is being read.
#[derive(Debug)]
pub(super) enum Input {
    /// Input read on a thread that may block.
    File(File),
    Pipe(Pipe),
    Ended,
}

/// Outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// Number of bytes that were read.
    Bytes(usize),
    /// End of the input; see [`Input::reopen`].
    End,
    /// No bytes: a writer closed the pipe, and the next one opened it before the reader noticed. The bytes read since the pipe
    /// was last empty may be of either.
    NextWriter,
}

/// Writer of an empty pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// No writer has opened the pipe, or it is no pipe.
    None,
    /// A writer has opened it, and has written nothing.
    Silent,
    /// It has written this number of bytes meanwhile, which were read.
    Wrote(usize),
}

/// Named pipe, from one end of the stream to the next.
#[derive(Debug)]
pub(super) struct Pipe {
    path: PathBuf,
    receiver: Receiver,
    /// Second handle of the same pipe, for reads without waiting for readiness.
    probe: fs::File,
    has_read: bool,
    has_failed: bool,
    /// Time of the next attempt to open it again.
    reopen_at: Option<Instant>,
}

/// Interval of reads from an empty input that the parent process has made non-blocking.
const NOT_YET: Duration = Duration::from_millis(20);

/// Delay before a pipe is opened again that ended without any bytes, or that could not be opened or read.
const RETRY: Duration = Duration::from_secs(1);

// === impl StreamPath ===

impl StreamPath {
    /// Checks that it can be read now. Does not open a named pipe: its writer would get an error when the check closes it.
    pub(super) fn check(&self) -> Result<(), StreamError> {
        match self {
            Self::Stdin => Ok(()),
            Self::Path(path) if file_type(path)?.is_fifo() => Ok(()),
            Self::Path(path) => fs::File::open(path).map(drop).map_err(|error| StreamError::of(path, &error)),
        }
    }

    /// Opens the input; waits for the disk, but not for a writer. Blocks, and needs tokio's runtime.
    pub(super) fn open(&self) -> Result<Input, StreamError> {
        let Self::Path(path) = self else {
            let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(|error| StreamError::of_stdin(&error))?;
            return Ok(Input::File(File::from_std(stdin.into())));
        };
        let error = |error: io::Error| StreamError::of(path, &error);
        if file_type(path)?.is_fifo() {
            return Pipe::open(path).map(Input::Pipe).map_err(error);
        }
        fs::File::open(path).map(|file| Input::File(File::from_std(file))).map_err(error)
    }
}

// === impl StreamError ===

impl StreamError {
    fn of(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing(path.to_owned()),
            _ => Self::Unreadable { what: path.display().to_string(), reason: error.to_string() },
        }
    }

    fn of_stdin(error: &io::Error) -> Self {
        Self::Unreadable { what: "standard input".to_owned(), reason: error.to_string() }
    }
}

// === impl Input ===

impl Input {
    /// Reads the available bytes, or waits for some.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before it is ready has read nothing.
    pub(super) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        match self {
            Self::File(file) => loop {
                // Cancel-safe: the file keeps the bytes that a thread has read for a dropped future.
                match file.read(buffer).await {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(NOT_YET).await,
                    read => return read.map(Received::of),
                }
            },
            Self::Pipe(pipe) => {
                let read = pipe.read(buffer).await;
                pipe.has_failed |= read.is_err();
                read
            }
            Self::Ended => Ok(Received::End),
        }
    }

    /// Looks for a writer of a pipe that was empty. Never waits.
    pub(super) fn look(&mut self, buffer: &mut [u8]) -> Writer {
        let Self::Pipe(pipe) = self else { return Writer::None };
        match pipe.probe.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Writer::Silent,
            Ok(count @ 1..) => {
                pipe.has_read = true;
                Writer::Wrote(count)
            }
            // The next read reports an end or an error.
            Ok(0) | Err(_) => Writer::None,
        }
    }

    /// Returns true if another writer may follow after an end.
    pub(super) fn has_next_writer(&self) -> bool {
        matches!(self, Self::Pipe(_))
    }

    /// Waits after an end until there may be more; for ever, unless it is a named pipe. Reports every failure with `tell`, and
    /// retries after a delay.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before it is ready has changed nothing.
    pub(super) async fn reopen(&mut self, tell: impl Fn(StreamError)) {
        let Self::Pipe(pipe) = self else {
            *self = Self::Ended;
            return std::future::pending().await;
        };
        let is_delayed = !pipe.has_read || pipe.has_failed;
        if is_delayed && pipe.reopen_at.is_none() {
            pipe.reopen_at = Some(Instant::now() + RETRY);
        }
        loop {
            if let Some(at) = pipe.reopen_at {
                sleep_until(at).await;
            }
            let path = pipe.path.clone();
            // The old one stays open until then, so that nothing is lost that the next writer has already written.
            match tokio::task::spawn_blocking(move || Pipe::open(&path)).await {
                Ok(Ok(opened)) => break *pipe = opened,
                Ok(Err(error)) => tell(StreamError::of(&pipe.path, &error)),
                // The end of the runtime.
                Err(_) => return std::future::pending().await,
            }
            pipe.reopen_at = Some(Instant::now() + RETRY);
        }
    }
}

// === impl Received ===

impl Received {
    fn of(count: usize) -> Self {
        if count == 0 { Self::End } else { Self::Bytes(count) }
    }
}

// === impl Pipe ===

impl Pipe {
    fn open(path: &Path) -> io::Result<Self> {
        let receiver = OpenOptions::new().open_receiver(path)?;
        let probe = receiver.as_fd().try_clone_to_owned()?.into();
        Ok(Self { path: path.to_owned(), receiver, probe, has_read: false, has_failed: false, reopen_at: None })
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            if self.has_read {
                // Linux reports no end of a pipe whose last writer closed it before it was opened; only a read shows it.
                match self.probe.read(buffer) {
                    Err(error) if is_not_yet(&error) => {}
                    read => return read.map(Received::of),
                }
            }
            let ready = self.receiver.ready(Interest::READABLE).await?;
            match self.receiver.try_read(buffer) {
                // A writer closed the pipe, and the next one opened it before this read. tokio considers the end of a pipe
                // final, and would report this one ready for ever: only a new registration reports further ends.
                Err(error) if is_not_yet(&error) && ready.is_read_closed() => {
                    self.receiver = Receiver::from_owned_fd(self.probe.as_fd().try_clone_to_owned()?)?;
                    return Ok(Received::NextWriter);
                }
                Err(error) if is_not_yet(&error) => {}
                read => {
                    self.has_read |= read.as_ref().is_ok_and(|read| *read > 0);
                    return read.map(Received::of);
                }
            }
        }
    }
}

fn file_type(path: &Path) -> Result<fs::FileType, StreamError> {
    let file_type = fs::metadata(path).map_err(|error| StreamError::of(path, &error))?.file_type();
    if file_type.is_dir() || file_type.is_socket() {
        return Err(StreamError::NotAStream(path.to_owned()));
    }
    Ok(file_type)
}

fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio_test::{assert_pending, task};

    use super::{
        super::tests::{fifo, writer},
        *,
    };

    #[tokio::test]
    async fn an_unnoticed_change_of_writers_does_not_cause_busy_reads() {
        let (_directory, path) = fifo();
        let mut pipe = Pipe::open(&path).unwrap();
        let mut buffer = [0; 8];

        let mut first = writer(&path);
        first.write_all(b"one").unwrap();
        assert_eq!(pipe.read(&mut buffer).await.unwrap(), Received::Bytes(3));
        drop(first);
        while !pipe.receiver.ready(Interest::READABLE).await.unwrap().is_read_closed() {
            tokio::task::yield_now().await;
        }

        let mut second = writer(&path);
        assert_eq!(pipe.read(&mut buffer).await.unwrap(), Received::NextWriter);
        let mut read = task::spawn(pipe.read(&mut buffer));
        assert_pending!(read.poll(), "nothing is there, and somebody writes");
        second.write_all(b"second").unwrap();
        assert_eq!(read.await.unwrap(), Received::Bytes(6));
        drop(second);
        assert_eq!(pipe.read(&mut buffer).await.unwrap(), Received::End);
    }
}
