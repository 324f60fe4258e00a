//! SIGINT, SIGTERM and, for a server, SIGHUP. The first process of a container receives only signals that it handles.

use std::{sync::OnceLock, thread, time::Duration};

use tokio::{
    io::Interest,
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};

use super::{
    failure::{FAILED, Failure},
    reader::observe,
};

/// Signals that end a command, and the exit codes of shells for them.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// Part of the handling that a command has taken over.
enum Handling {
    /// It ends at the first signal, unless it is blocked in a write.
    Writer,
    /// It ends by itself.
    Own,
}

static HANDLING: OnceLock<Handling> = OnceLock::new();

/// Time in which a command ends after a signal.
const END_WITHIN: Duration = Duration::from_secs(3);
/// Time for the reader of stdout to take anything.
const READ_WITHIN: Duration = Duration::from_millis(200);

/// SIGHUP, by which administrators let a server read its configuration again.
pub(super) struct Hangup(Signal);

/// Starts a thread that ends the process at a signal, as the shell would have it, until the command handles signals itself. A
/// full pipe that nobody reads blocks the whole command, so the thread ends that one, too.
pub(super) fn end_at_signal() -> Result<(), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| Failure::start(&error))?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::listen()?
    };
    let watched = async move {
        let code = signals.next().await;
        match HANDLING.get() {
            Some(Handling::Own) => return,
            Some(Handling::Writer) => {
                tokio::select! {
                    () = blocked() => {}
                    _ = signals.next() => {}
                }
            }
            None => {}
        }
        std::process::exit(code.into());
    };
    let run = move || runtime.block_on(watched);
    thread::Builder::new().name("signals".to_owned()).spawn(run).map_err(|error| Failure::start(&error))?;
    Ok(())
}

/// Waits until stdout takes nothing, or the command has had its time.
async fn blocked() {
    if let Some(stdout) = observe(Interest::WRITABLE)
        && timeout(READ_WITHIN, stdout.writable()).await.is_err()
    {
        return;
    }
    tokio::time::sleep(END_WITHIN).await;
}

// === impl Signals ===

impl Signals {
    /// Installs the handlers of a command whose end may take time.
    pub(super) fn new() -> Result<Self, Failure> {
        HANDLING.get_or_init(|| Handling::Own);
        Self::listen()
    }

    fn listen() -> Result<Self, Failure> {
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Installs the handlers of a command that writes to stdout until a signal ends it.
    pub(super) fn of_writer() -> Result<Self, Failure> {
        HANDLING.get_or_init(|| Handling::Writer);
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
