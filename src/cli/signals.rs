//! SIGINT, SIGTERM and, for a server, SIGHUP. The first process of a container receives only signals that it handles.

use std::{sync::mpsc, thread, time::Duration};

use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
};

use super::failure::{FAILED, Failure};

/// Signals that end a command, and the exit codes of shells for them.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// Time in which a command ends after a signal, unless it is blocked in a write.
const END_WITHIN: Duration = Duration::from_secs(3);

/// SIGHUP, by which administrators let a server read its configuration again.
pub(super) struct Hangup(Signal);

// === impl Signals ===

impl Signals {
    /// Installs the handlers.
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Installs the handlers of a command that writes to stdout. A full pipe that nobody reads blocks the whole command: a thread of
    /// its own then ends the process.
    pub(super) fn of_writer() -> Result<Self, Failure> {
        let (installs, installed) = mpsc::sync_channel(1);
        let watched = async move {
            let Ok(mut signals) = Self::new() else { return };
            if installs.send(()).is_err() {
                return;
            }
            let code = signals.next().await;
            tokio::time::sleep(END_WITHIN).await;
            std::process::exit(code.into());
        };
        let run = move || Builder::new_current_thread().enable_all().build().map(|runtime| runtime.block_on(watched));
        thread::Builder::new().name("signals".to_owned()).spawn(run).map_err(|error| Failure::start(&error))?;
        installed.recv().map_err(|_| Failure::new(FAILED, "cannot listen for signals"))?;
        Self::new()
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
