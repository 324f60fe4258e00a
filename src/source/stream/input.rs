//! Where the bytes come from: standard input, a file or a named pipe.
//!
//! Opened by the first list, read by `reader`. A file or standard input ends once and for all; a named pipe has an end
//! whenever its last writer goes, and goes on with the next one.
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
    time::sleep,
};

use super::StreamError;

/// Where the events of a resource come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamPath {
    /// Standard input.
    Stdin,
    /// A file or a named pipe.
    Path(PathBuf),
}

/// What is read now.
#[derive(Debug)]
pub(super) enum Input {
    /// Read on a thread that may block.
    File(File),
    Pipe(Pipe),
    Ended,
}

/// The outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// So many bytes.
    Bytes(usize),
    /// There are no more; see [`Input::reopen`].
    End,
    /// No bytes: a writer of the pipe has gone, and the next one came before that was noticed. What was read since the pipe was
    /// found empty may be of either.
    NextWriter,
}

/// A named pipe between two ends.
#[derive(Debug)]
pub(super) struct Pipe {
    path: PathBuf,
    receiver: Receiver,
    /// The same pipe, to be read without asking first whether there is something.
    probe: fs::File,
    has_read: bool,
    has_failed: bool,
}

/// How long an input that has nothing yet is left alone: one that its parent has made non-blocking.
const NOT_YET: Duration = Duration::from_millis(20);

/// Before a pipe is opened again that has told its end before it had told anything, or that could not be opened or read.
const RETRY: Duration = Duration::from_secs(1);

// === impl StreamPath ===

impl StreamPath {
    /// Whether it can be read now. A named pipe is not opened for that: its writer would be told that nobody reads.
    pub(super) fn check(&self) -> Result<(), StreamError> {
        match self {
            Self::Stdin => Ok(()),
            Self::Path(path) if file_type(path)?.is_fifo() => Ok(()),
            Self::Path(path) => fs::File::open(path).map(drop).map_err(|error| StreamError::of(path, &error)),
        }
    }

    /// Opens it; waits for the disk, but not for a writer. To be called where blocking is allowed, on tokio's runtime.
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

// === impl Input ===

impl Input {
    /// Reads what there is, or waits for it.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped before it is ready, nothing was read.
    pub(super) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        match self {
            Self::File(file) => loop {
                // Cancel-safe: what a thread has read for a future that was dropped, the file keeps.
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

    /// Whether more may come after an end, of another writer.
    pub(super) fn has_next_writer(&self) -> bool {
        matches!(self, Self::Pipe(_))
    }

    /// Waits until there may be more after an end; for ever, unless it is a named pipe. Every failure is told, and tried
    /// again after a while.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped before it is ready, nothing has changed.
    pub(super) async fn reopen(&mut self, tell: impl Fn(StreamError)) {
        let Self::Pipe(pipe) = self else {
            *self = Self::Ended;
            return std::future::pending().await;
        };
        let mut is_delayed = !pipe.has_read || pipe.has_failed;
        loop {
            if is_delayed {
                sleep(RETRY).await;
            }
            let path = pipe.path.clone();
            // The old one is kept until then, so that nothing is lost that the next writer has written already.
            match tokio::task::spawn_blocking(move || Pipe::open(&path)).await {
                Ok(Ok(opened)) => break *pipe = opened,
                Ok(Err(error)) => tell(StreamError::of(&pipe.path, &error)),
                // The end of the runtime.
                Err(_) => return std::future::pending().await,
            }
            is_delayed = true;
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
        Ok(Self { path: path.to_owned(), receiver, probe, has_read: false, has_failed: false })
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            if self.has_read {
                // Linux announces no end of a pipe whose last writer had gone before it was opened; reading it tells.
                match self.probe.read(buffer) {
                    Err(error) if is_not_yet(&error) => {}
                    read => return read.map(Received::of),
                }
            }
            let ready = self.receiver.ready(Interest::READABLE).await?;
            match self.receiver.try_read(buffer) {
                // A writer had gone, and the next one came before that was noticed here. The end of a pipe is final to the
                // runtime: it would call this one ready for ever. To be told of it anew, it is registered anew.
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
    async fn a_pipe_whose_writers_follow_each_other_unnoticed_is_waited_for_at_rest() {
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
