//! SIGINT and SIGTERM. The first process of a container hears only those that it listens for.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{FAILED, failure::Failure};

/// The signals that end a command, and the exit codes of shells for them.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

// === impl Signals ===

impl Signals {
    /// Listens from now on.
    pub(super) fn new() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::new(FAILED, format!("cannot listen for signals: {error}")));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for a signal, and gives the exit code of a process that it kills. Cancel-safe: a signal that comes later is kept
    /// for the next call.
    pub(super) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 128 + 2,
            _ = self.terminate.recv() => 128 + 15,
        }
    }
}
