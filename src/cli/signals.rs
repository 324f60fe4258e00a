//! SIGINT, SIGTERM and, for a server, SIGHUP. The first process of a container receives only signals that it handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failure::{FAILED, Failure};

/// Signals that end a command, and the exit codes of shells for them.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// SIGHUP, by which administrators let a server read its configuration again.
pub(super) struct Hangup(Signal);

// === impl Signals ===

impl Signals {
    /// Installs the handlers.
    pub(super) fn new() -> Result<Self, Failure> {
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

// === impl Hangup ===

impl Hangup {
    /// Installs the handler.
    pub(super) fn new() -> Result<Self, Failure> {
        listen(SignalKind::hangup()).map(Self)
    }

    /// Waits for the signal. Cancel-safe, as [`Signals::next`] is.
    pub(super) async fn next(&mut self) {
        self.0.recv().await;
    }
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::new(FAILED, format!("cannot listen for signals: {error}")))
}
