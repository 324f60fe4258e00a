//! SIGINT and SIGTERM. The first process of a container receives only signals that it handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failure::{FAILED, Failure};

/// Signals that end a command, and the exit codes of shells for them.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

// === impl Signals ===

impl Signals {
    /// Installs the handlers.
    pub(super) fn new() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::new(FAILED, format!("cannot listen for signals: {error}")));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for a signal, and returns the exit code of a process that it kills. Cancel-safe: a later signal is kept for the next
    /// call.
    pub(super) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 128 + 2,
            _ = self.terminate.recv() => 128 + 15,
        }
    }
}
