//! Line reader for a streaming answer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::client::Body;
use crate::source::text::root_cause;

/// Body that is read line by line.
pub(super) struct LineReader<B = Body> {
    body: B,
    unread: BytesMut,
    /// Length of the prefix of `unread` without a newline.
    searched: usize,
    /// Longest silence; `None` for as long as the connection lasts.
    silence: Option<Duration>,
}

/// Failure that ends the lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineError {
    /// The connection broke, or the body ended within a line, which is dropped.
    Broken(String),
    /// The silence exceeded its bound.
    Silent,
    /// The deadline of the watch passed; reported by the caller that sets one.
    DeadlineExceeded,
    /// The API did not replay the last known change in time; reported by the caller that waits for it.
    NotReplayed,
    /// A line exceeded [`MAX_LINE_BYTES`].
    TooLong,
}

/// Longest line. A Kubernetes object has at most 1.5 MiB as stored, and more as JSON.
const MAX_LINE_BYTES: usize = 16 << 20;

// === impl LineReader ===

impl<B> LineReader<B>
where
    B: http_body::Body<Data = Bytes, Error: std::error::Error + 'static> + Unpin,
{
    pub(super) fn new(body: B) -> Self {
        Self { body, unread: BytesMut::new(), searched: 0, silence: None }
    }

    /// Bounds the silence from now on; `None` means no bound.
    pub(super) fn end_after(&mut self, silence: Option<Duration>) {
        self.silence = silence;
    }

    /// Returns true if no part of the next line has been received.
    pub(super) fn is_between_lines(&self) -> bool {
        self.unread.is_empty()
    }

    pub(super) fn has_bound(&self) -> bool {
        self.silence.is_some()
    }

    /// Returns the next line without its newline; `None` at the end of the body.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: received data stays.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, LineError> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.unread[self.searched..]) {
                let mut line = self.unread.split_to(self.searched + at + 1);
                self.searched = 0;
                line.truncate(line.len() - 1);
                return Ok(Some(line.freeze()));
            }
            self.searched = self.unread.len();
            if self.searched > MAX_LINE_BYTES {
                return Err(LineError::TooLong);
            }
            let frame = match self.silence {
                Some(silence) => timeout(silence, self.body.frame()).await,
                None => Ok(self.body.frame().await),
            };
            match frame {
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.unread.extend_from_slice(data);
                    }
                }
                Ok(Some(Err(error))) => return Err(LineError::Broken(root_cause(&error))),
                Ok(None) if self.unread.is_empty() => return Ok(None),
                Ok(None) => return Err(LineError::Broken("response ended inside an event".to_owned())),
                Err(_) => return Err(LineError::Silent),
            }
        }
    }
}

debug_fields!([B] LineReader<B>, this => { unread: this.unread.len() });

#[cfg(test)]
mod tests {
    use std::io;

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn lines(chunks: Vec<&'static str>) -> LineReader<impl http_body::Body<Data = Bytes, Error = io::Error> + Unpin> {
        let frame = |chunk: &'static str| Ok(Frame::data(Bytes::from_static(chunk.as_bytes())));
        LineReader::new(StreamBody::new(stream::iter(chunks.into_iter().map(frame))))
    }

    #[tokio::test]
    async fn lines_are_read_whole_however_they_are_split() {
        for chunks in [vec!["a\nbc\n\nd\n"], vec!["a", "\nb", "c\n", "\nd", "\n"]] {
            let mut lines = lines(chunks);
            for expected in ["a", "bc", "", "d"] {
                assert_eq!(lines.next().await, Ok(Some(Bytes::from_static(expected.as_bytes()))));
            }
            assert_eq!(lines.next().await, Ok(None));
        }
        let mut torn = lines(vec!["a\nb"]);
        assert!(torn.next().await.is_ok());
        assert!(matches!(torn.next().await, Err(LineError::Broken(_))));
    }

    #[tokio::test]
    async fn a_line_beyond_the_limit_is_an_error() {
        let chunk: &'static str = "x".repeat(1 << 20).leak();
        assert_eq!(lines(vec![chunk; 18]).next().await, Err(LineError::TooLong));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_beyond_the_bound_ends_the_lines() {
        let body = StreamBody::new(stream::pending::<Result<Frame<Bytes>, io::Error>>());
        let mut lines = LineReader::new(body);
        lines.end_after(Some(Duration::from_secs(120)));
        assert_eq!(lines.next().await, Err(LineError::Silent));
    }
}
