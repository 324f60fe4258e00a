//! The program that reads the standard output of a command.

use std::{
    future::pending,
    io::{Stdout, stdout},
};

use tokio::io::{Interest, unix::AsyncFd};

/// Reader of stdout. A command that waits for events would otherwise find only at its next line that nobody reads: `watch | head -1`.
pub(super) struct Reader(Option<AsyncFd<Stdout>>);

// === impl Reader ===

impl Reader {
    /// Begins to observe stdout. A regular file has no reader, and cannot be observed.
    pub(super) fn new() -> Self {
        Self(observe(Interest::ERROR))
    }

    /// Waits until the pipe or socket that is stdout has no reader any more. Cancel-safe.
    pub(super) async fn gone(&self) {
        match &self.0 {
            // Neither an error nor the loss of the terminal leaves anybody to print for.
            Some(stdout) => drop(stdout.ready(Interest::ERROR).await),
            None => pending().await,
        }
    }
}

/// Begins to observe stdout, unless it is a regular file.
#[expect(deprecated, reason = "its descriptor must stay open as long as it is registered: that of stdout does")]
pub(super) fn observe(interest: Interest) -> Option<AsyncFd<Stdout>> {
    AsyncFd::with_interest(stdout(), interest).ok()
}
