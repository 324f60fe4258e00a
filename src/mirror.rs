//! Mirror of a resource of an informerd server: a directory with a file for each object.
//!
//! ```text
//!   server ──▶ RelaySource ──▶ Controller ──▶ DeltaFifo ──▶ Writer ──▶ MirrorDirectory
//!              (selection)     list+watch,    newest state     │        files, renamed into place
//!                              resyncs        of each object   │
//!                                  ▲                           ├──▶ settled: the command
//!                                  └────── KnownFiles ◀────────┘
//! ```
//!
//! The command line makes the one mirror of a process. It resumes after a break as a relay does, and has no state besides the
//! directory: a start lists the resource and compares every file.

mod command;
mod content;
mod directory;
mod file_name;
mod file_system;
mod survey;
mod writer;

#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::{
    directory::MirrorDirectory,
    file_system::SystemFiles,
    writer::{KnownFiles, Writer},
};
pub use self::{directory::OpenError, file_name::Layout, writer::Notes};
use crate::{
    admin::{self, ProbeRequest, Probes},
    cache::{
        Controller, ControllerConfig, DeltaFifo, DeltaFifoOptions, Deltas, KeyFunc, Queue, ReflectorError, SourceError,
        SourceHealth, SyncState,
    },
    client::{Query, ServerAddress, TlsOptions},
    model::Object,
    source::relay::{RelayConfig, RelaySource},
};

/// Parameters of a mirror.
pub struct MirrorConfig {
    /// Address of the server.
    pub address: ServerAddress,
    /// TLS of an address with `https`: files that are read at each connection.
    pub tls: TlsOptions<PathBuf>,
    /// Resource and selection.
    pub query: Query,
    /// Directory.
    pub directory: PathBuf,
    /// Files of an object.
    pub layout: Layout,
    /// True to remove foreign files, once the server has answered.
    pub replace: bool,
    /// True to end once all files are written.
    pub once: bool,
    /// Interval at which all files are compared with the objects; 0 for none.
    pub resync: Duration,
    /// Command line to run once all files are written, and after each later batch that has changed one.
    pub then: Option<String>,
    /// Output for notes.
    pub notes: Notes,
}

/// Mirror that has its directory, and has not begun.
pub struct Mirror {
    state: MirrorState,
    source: RelayConfig,
    config: MirrorConfig,
}

/// Probe of a problem, if there is one.
#[derive(Clone)]
struct Probe<P>(P);

/// State of a running mirror, for its probe.
#[derive(Clone)]
struct MirrorState {
    health: SourceHealth,
    queue: Arc<DeltaFifo<Arc<Object>>>,
    writer: Arc<Writer>,
    /// Last error of the upstream that was noted, while it lasts.
    last_error: Arc<Mutex<String>>,
}

/// Silence beyond the heartbeat of the server after which the mirror is stale, as in a server.
const STALE_AFTER: Duration = Duration::from_secs(15);
/// Interval at which the mirror checks if all changes are written: a batch is what came within it.
const SETTLE: Duration = Duration::from_millis(100);
/// Time for the head of a probe's request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the state of the upstream is compared with the one that was noted.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

// === impl MirrorConfig ===

debug_fields!(MirrorConfig { query, directory });

// === impl Mirror ===

impl Mirror {
    /// Takes the directory, and leaves foreign files in it until the server has answered.
    ///
    /// # Errors
    ///
    /// If the directory has foreign files, or cannot be used.
    pub fn open(config: MirrorConfig) -> Result<Self, OpenError> {
        let MirrorConfig { address, tls, query, directory, layout, replace, notes, .. } = &config;
        let (directory, keys) = MirrorDirectory::open(directory, &query.resource, *layout, *replace, SystemFiles)?;
        let holds_earlier = !keys.is_empty();
        let writer = Arc::new(Writer::new(directory, keys, *layout, Arc::clone(notes)));
        let known: Arc<KnownFiles> = Arc::clone(writer.known());
        let options = DeltaFifoOptions { known_objects: Some(known), ..DeltaFifoOptions::new(KeyFunc::default()) };
        let queue = Arc::new(DeltaFifo::new(options));
        let defaults = RelayConfig::new(address.clone(), &query.resource);
        let source = RelayConfig { query: query.clone(), tls: tls.clone(), holds_earlier, ..defaults };
        let health = SourceHealth::new(source.heartbeat, STALE_AFTER);
        Ok(Self { state: MirrorState { health, queue, writer, last_error: Arc::default() }, source, config })
    }

    /// Mirrors until `stop`, or with `once` until all files are written, and serves the probe. Before it ends, it writes what is queued.
    /// Returns true if all files have been written once.
    pub async fn run(self, health: Option<TcpListener>, stop: CancellationToken) -> bool {
        let Self { state, source, config } = self;
        let MirrorConfig { query: Query { resource, .. }, once, resync, then, notes, .. } = config;
        let writer = Arc::clone(&state.writer);
        let process = move |deltas: Deltas<Arc<Object>>, _| {
            let writer = Arc::clone(&writer);
            let processed = tokio::task::spawn_blocking(move || writer.process(&deltas));
            async { processed.await.expect("the writer does not panic") }
        };
        let relay = RelaySource::new(source, state.health.clone());
        let controller = Controller::new(ControllerConfig {
            name: Some(resource.clone()),
            health: Some(state.health.clone()),
            full_resync_period: resync,
            retry_on_error: true,
            on_error: Some(state.error_notes(&resource, &notes)),
            ..ControllerConfig::new(Arc::clone(&state.queue), relay, process)
        });
        let controlling = controller.run(stop.clone());
        let settling = async {
            let has_settled = state.settle(once, then.as_deref(), &resource, &notes, &stop).await;
            stop.cancel();
            has_settled
        };
        let probed = state.clone();
        let serving = serve_probe(health, move || probed.problem());
        tokio::select! {
            // The others never end.
            ((), has_settled) = async { tokio::join!(controlling, settling) } => has_settled,
            () = serving => false,
            () = state.note_health(&resource, &notes) => false,
        }
    }
}

debug_fields!(Mirror { config });

// === impl MirrorState ===

impl MirrorState {
    /// Runs the command once all files are written, and after each later batch that has changed one, until `stop`; a command that
    /// runs then is waited for. With `once` it ends after the first time. Returns true if there was one.
    async fn settle(
        &self,
        once: bool,
        then: Option<&str>,
        resource: &str,
        notes: &Notes,
        stop: &CancellationToken,
    ) -> bool {
        let (mut last_changes, mut is_noted) = (None, false);
        loop {
            // Something has been processed, or may have been: it is a part of a batch.
            tokio::select! {
                () = tokio::time::sleep(SETTLE) => {}
                () = stop.cancelled() => return last_changes.is_some(),
            }
            if !self.is_settled() {
                continue;
            }
            // An empty list makes no change that would do so.
            if let Err(error) = self.writer.prepare() {
                if !std::mem::replace(&mut is_noted, true) {
                    notes(&format_args!("# cannot remove foreign files: {error}; retrying"));
                }
                continue;
            }
            let changes = self.writer.changes();
            if last_changes.is_none() {
                let (objects, files) = (count(self.writer.known().len(), "object"), count(changes, "file"));
                notes(&format_args!("# synced: {objects} of {resource}, {files} written or removed"));
            }
            if last_changes.replace(changes) != Some(changes)
                && let Some(then) = then
            {
                command::run(then, notes).await;
            }
            if once {
                return true;
            }
            tokio::select! {
                () = self.writer.processed() => {}
                () = stop.cancelled() => return true,
            }
        }
    }

    /// Returns true if the directory is that of the last known state of the resource.
    fn is_settled(&self) -> bool {
        self.queue.has_synced() && self.queue.is_idle() && self.writer.failed() == 0
    }

    /// Returns the reason why the directory may not be that of the resource.
    fn problem(&self) -> Option<String> {
        let failed = self.writer.failed();
        if !self.queue.has_synced() {
            Some(self.with_error("not synced"))
        } else if self.health.state() != SyncState::Synced {
            Some(self.with_error("stale"))
        } else if failed > 0 {
            Some(format!("not written: {}", count(failed, "object")))
        } else {
            None
        }
    }

    fn with_error(&self, problem: &str) -> String {
        match self.health.report().last_error {
            Some(error) => format!("{problem}: {error}"),
            None => problem.to_owned(),
        }
    }

    /// Returns a handler that notes errors of the upstream, the same one once until it is over. An expired version is none: a list
    /// follows.
    fn error_notes(&self, resource: &str, notes: &Notes) -> Arc<dyn Fn(&ReflectorError) + Send + Sync> {
        let (resource, notes, last) = (resource.to_owned(), Arc::clone(notes), Arc::clone(&self.last_error));
        Arc::new(move |error| {
            if matches!(error, ReflectorError::Watch(SourceError::Expired(_))) {
                return;
            }
            let error = error.to_string();
            if *last.lock() != error {
                notes(&format_args!("# {resource}: {error}; retrying"));
                *last.lock() = error;
            }
        })
    }

    /// Notes each time that the upstream is lost or found again.
    async fn note_health(&self, resource: &str, notes: &Notes) {
        let mut was_stale = false;
        let mut interval = tokio::time::interval(HEALTH_INTERVAL);
        loop {
            interval.tick().await;
            if !self.health.has_failed() {
                self.last_error.lock().clear();
            }
            let is_stale = self.queue.has_synced() && self.health.state() == SyncState::Stale;
            if std::mem::replace(&mut was_stale, is_stale) != is_stale {
                let state = if is_stale { "upstream unreachable" } else { "upstream reachable again" };
                notes(&format_args!("# {resource}: {state}"));
            }
        }
    }
}

// === impl Probe ===

/// `/livez` is for a restart, which helps against no problem of the directory; every other path is the state.
impl<P: Fn() -> Option<String> + Clone + Send + Sync + 'static> Probes for Probe<P> {
    fn answer(&self, path: &str, _query: &str) -> Option<(StatusCode, String)> {
        let problem = if path == "/livez" { None } else { (self.0)() };
        Some(match problem {
            None => (StatusCode::OK, "ok\n".to_owned()),
            Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, problem + "\n"),
        })
    }

    async fn check(&self, _request: ProbeRequest<'_>, _headers: &HeaderMap) -> Result<(), StatusCode> {
        Ok(())
    }

    /// A mirror has no metrics.
    fn count_refused(&self, _reason: &'static str) {}
}

/// Serves the probe, if it has a listener; never returns. The function returns the reason why the directory may not be that of the
/// resource.
pub async fn serve_probe(
    health: Option<TcpListener>,
    problem: impl Fn() -> Option<String> + Clone + Send + Sync + 'static,
) {
    match health {
        Some(listener) => admin::serve(Probe(problem), PROBE_TIMEOUT, listener).await,
        None => std::future::pending().await,
    }
}

/// Returns a number with its noun.
fn count(number: u64, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}
