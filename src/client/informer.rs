//! Informer of a client: a local store that follows a resource of a server, and handlers of its changes.
//!
//! ```text
//!   Streams ──▶ messages ──▶ Replica: pending batch, list ──▶ Store ──▶ reads
//!                                                               │
//!                                                               └─▶ notifications ──▶ thread of the handler
//! ```
//!
//! One task reads the streams and is the only writer of the store. Readers take snapshots, which never show a part of a batch.

mod builder;
mod freshness;
mod handler;
mod replica;
mod store;

use std::{convert::Infallible, future::poll_fn, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::{
    builder::InformerBuilder,
    freshness::{Freshness, FreshnessState},
    handler::{Handler, HandlerProblem},
    store::InformerSnapshot,
};
use self::{freshness::Connection, handler::Notifier, replica::Replica};
use super::{
    ClientError,
    follower::News,
    streams::{Step, Streams},
};
use crate::model::ResourceVersion;

/// Store of the objects that a query selects, which follows the server until it is stopped, dropped or fails for good.
///
/// A batch of the server (a relist, a transaction, all changes at one version) is applied in one step. After a break the informer
/// resumes from its version; where it cannot, it lists again, keeps the former state until the list is complete, and applies
/// the difference. [`Self::is_healthy`] is true exactly while the store is the server's state as of its last message.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use informerd::client::{Client, Informer, Query};
///
/// let client = Client::connect_lazy(&"127.0.0.1:50051".parse()?)?;
/// let by_app = |pod: &informerd::proto::pb::Object| pod.labels.get("app").cloned().into_iter().collect();
/// let pods = Informer::builder(&client, &Query::of("pods")).index("app", by_app).start();
/// pods.wait_synced().await?;
/// println!("{} pods of web at {}", pods.snapshot().by_index("app", "web").len(), pods.version());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Informer {
    shared: Arc<Shared>,
    stop: CancellationToken,
    /// Becomes true once the last handler call has returned.
    ended: watch::Receiver<bool>,
}

/// State that the task of an informer writes and its users read.
#[derive(Debug)]
struct Shared {
    store: store::Published,
    connection: Connection,
    failure: parking_lot::Mutex<Option<ClientError>>,
    /// Notifies those who wait for a version.
    changed: watch::Sender<()>,
}

/// Reason why an informer has no state to wait for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InformerError {
    /// The informer was stopped.
    #[error("the informer has been stopped")]
    Stopped,
    /// An error after which no other attempt helps.
    #[error(transparent)]
    Failed(#[from] ClientError),
}

/// Reason why a version is not reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// End of the informer.
    #[error(transparent)]
    Ended(#[from] InformerError),
    /// The text is no version.
    #[error(transparent)]
    Invalid(#[from] crate::model::VersionError),
    /// Version of another run of a source without versions of its own: it says nothing about this state.
    #[error("resource version {wanted} is of another lineage than the state at {current}: it cannot be compared")]
    OtherLineage {
        /// Version to wait for.
        wanted: String,
        /// Version of the state.
        current: String,
    },
}

// === impl Informer ===

impl Informer {
    /// Waits until the first list is complete.
    ///
    /// # Errors
    ///
    /// If the informer fails or is stopped before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn wait_synced(&self) -> Result<(), InformerError> {
        self.wait_until(|snapshot| (!snapshot.version().is_empty()).then_some(())).await
    }

    /// Returns true once the first list was complete.
    pub fn has_synced(&self) -> bool {
        !self.snapshot().version().is_empty()
    }

    /// Returns the present state: immutable, and cheap to keep.
    pub fn snapshot(&self) -> InformerSnapshot {
        self.shared.store.load()
    }

    /// Returns the version of the present state; empty before the first list.
    pub fn version(&self) -> String {
        self.snapshot().version().to_owned()
    }

    /// Waits until the store has reached a version, for example that of a write, and returns the state. Wrap it in
    /// `tokio::time::timeout` to limit the wait.
    ///
    /// # Errors
    ///
    /// [`ReadError::OtherLineage`] if the version cannot be compared with the state; if the text is no version; if the informer
    /// fails or is stopped before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn read_after(&self, version: &str) -> Result<InformerSnapshot, ReadError> {
        let wanted: ResourceVersion = version.parse()?;
        let reached = |snapshot: &InformerSnapshot| {
            let current = snapshot.version().parse::<ResourceVersion>().ok()?;
            if !current.same_lineage(&wanted) {
                let (wanted, current) = (wanted.to_string(), current.to_string());
                return Some(Err(ReadError::OtherLineage { wanted, current }));
            }
            (current >= wanted).then(|| Ok(snapshot.clone()))
        };
        self.wait_until(reached).await?
    }

    /// Returns the freshness of the store, computed now.
    pub fn freshness(&self) -> Freshness {
        self.shared.connection.freshness()
    }

    /// Returns true if the state is LIVE or STALE: the store is the server's state as of its last message.
    pub fn is_healthy(&self) -> bool {
        self.freshness().state.is_healthy()
    }

    /// Waits for the end of the informer: its failure, or a stop.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn ended(&self) -> InformerError {
        match self.wait_until(|_| None::<Infallible>).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    /// Returns the error that has ended the informer.
    pub fn failure(&self) -> Option<ClientError> {
        self.shared.failure.lock().clone()
    }

    /// Stops the informer: it closes its stream, and no further handler call begins. The returned future waits for the call that
    /// goes on; without it, the same happens in the background. Stopping a stopped informer does nothing.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.stop.cancel();
        let mut ended = self.ended.clone();
        async move {
            // An error is the end, too.
            drop(ended.wait_for(|ended| *ended).await);
        }
    }

    async fn wait_until<T>(&self, mut find: impl FnMut(&InformerSnapshot) -> Option<T>) -> Result<T, InformerError> {
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if let Some(found) = find(&self.snapshot()) {
                return Ok(found);
            }
            if let Some(error) = self.failure() {
                return Err(error.into());
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = self.stop.cancelled() => return Err(InformerError::Stopped),
            }
        }
    }
}

impl Shared {
    fn fail(&self, error: ClientError) {
        tracing::error!(%error, "informer failed");
        *self.failure.lock() = Some(error);
        self.changed.send_replace(());
    }
}

impl Drop for Informer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Follows the server until the informer is stopped or fails.
async fn follow(mut streams: Streams, shared: Arc<Shared>, mut replica: Replica, notifier: Notifier) {
    while let Some(step) = poll_fn(|cx| streams.poll_next(cx)).await {
        match step {
            Step::Opened => {
                replica.begin(streams.follower().is_listing);
                shared.connection.set_open(true);
            }
            Step::Message(followed) => {
                shared.connection.received();
                if let News::Dropped { count, after, .. } = &followed.news {
                    tracing::info!(count, after, "dropped events are requested again");
                    shared.connection.set_open(false);
                }
                let progress =
                    replica.apply(*followed, streams.follower().position.as_deref(), &shared.store, &notifier);
                // The state of the source and of the store change together with the version.
                if let Some((progress, is_current)) = progress {
                    shared.connection.bookmark(&progress, is_current);
                }
                shared.changed.send_replace(());
            }
            Step::Interrupted { error, lists, delay } => {
                shared.connection.set_open(false);
                tracing::info!(%error, ?delay, lists, "watch of an informer interrupted");
            }
            Step::Failed(error) => {
                shared.connection.set_open(false);
                shared.fail(error);
            }
        }
    }
}
