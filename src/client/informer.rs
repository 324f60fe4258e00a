//! Informer of a client: a cache that follows a resource of a server, and a handler of its changes.
//!
//! ```text
//!   Streams ──▶ messages ──▶ Deltas: pending batch, list ──▶ SharedInformer ──▶ reads
//!                  │                                              └─▶ queue of the handler ──▶ its calls
//!                  └─▶ Connection: freshness
//! ```

mod feed;
mod freshness;
mod handler;

use std::{fmt, sync::Arc, time::Duration};

pub use self::freshness::{Freshness, FreshnessState};
use self::{freshness::Connection, handler::ChangeHandler};
use super::{Client, ClientError, Query, WatchOptions, streams::Streams};
use crate::{
    cache::{
        BackoffConfig, BlockingEventHandler, HandlerOptions, ResourceEventHandler, ResourceEventHandlerRegistration,
        SharedInformer, Snapshot, Stopped, TypedSnapshot,
    },
    model::{IndexFunc, Indexers, IndexersError, Object, ResourceVersion, VersionError},
    proto::pb,
};

/// [`SharedInformer`] of the objects that a query selects, which follows the server until it is stopped, dropped or fails for good.
///
/// A batch of the server (a relist, a transaction, all changes at one version) is applied in one step. After a break the informer
/// resumes from its version; where it cannot, it lists again, keeps the former state until the list is complete, and applies
/// the difference. [`Self::is_healthy`] is true exactly while the cache is the server's state as of its last message.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use informerd::{
///     client::{Client, Informer, Query},
///     model::IndexFunc,
/// };
///
/// let client = Client::connect_lazy(&"127.0.0.1:50051".parse()?)?;
/// let by_app = IndexFunc::Label("app".to_owned());
/// let pods = Informer::builder(&client, &Query::of("pods")).index("app", by_app).start()?;
/// pods.wait_synced().await?;
/// println!("{} pods of web at {:?}", pods.snapshot().by_index("app", "web")?.len(), pods.version());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Informer {
    shared: SharedInformer<Object>,
    connection: Arc<Connection>,
    handler: Option<ResourceEventHandlerRegistration>,
}

/// Options of an informer, before its start.
pub struct InformerBuilder {
    client: Client,
    query: Query,
    options: WatchOptions,
    indexers: Vec<(String, IndexFunc)>,
    handler: Option<Box<AddHandler>>,
}

/// Function that adds the handler to an informer that starts.
type AddHandler = dyn FnOnce(&SharedInformer<Object>) -> Result<ResourceEventHandlerRegistration, Stopped> + Send;

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
    Invalid(#[from] VersionError),
    /// Version of another run of a source without versions of its own: it says nothing about this state.
    #[error("resource version {wanted} is of another lineage than the state at {current}: it cannot be compared")]
    OtherLineage {
        /// Version to wait for.
        wanted: ResourceVersion,
        /// Version of the state.
        current: ResourceVersion,
    },
}

/// Interval of bookmarks: three of them without a message are shown as DISCONNECTED.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(10);

// === impl Informer ===

impl Informer {
    /// Returns the options of an informer of a server, with their defaults: bodies as RAW bytes, whatever the query has, except
    /// for METADATA; a bookmark every 10 s; no handler.
    pub fn builder(client: &Client, query: &Query) -> InformerBuilder {
        let format = match query.format {
            pb::PayloadFormat::Metadata => pb::PayloadFormat::Metadata,
            _ => pb::PayloadFormat::Raw,
        };
        InformerBuilder {
            client: client.clone(),
            query: Query { format, ..query.clone() },
            options: WatchOptions {
                bookmark_interval: BOOKMARK_INTERVAL,
                // With its jitter at most 0.2 s to 10 s, as of the other clients.
                backoff: BackoffConfig { max: Duration::from_secs(5), ..WatchOptions::default().backoff },
                ..WatchOptions::default()
            },
            indexers: Vec::new(),
            handler: None,
        }
    }

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
        self.shared.wait_for_cache_sync().await.map(drop).map_err(|_| self.end())
    }

    /// Returns true once the first list was complete.
    pub fn has_synced(&self) -> bool {
        self.shared.has_synced()
    }

    /// Returns the present state: immutable, and cheap to keep.
    pub fn snapshot(&self) -> TypedSnapshot<Object> {
        self.shared.snapshot()
    }

    /// Returns the version of the present state: a Watch from here misses nothing. `None` before the first list.
    pub fn version(&self) -> Option<ResourceVersion> {
        self.snapshot().safe_version().cloned()
    }

    /// Waits until the state has reached a version, for example that of a write, and returns it. Wrap it in
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
    pub async fn read_after(&self, version: &str) -> Result<TypedSnapshot<Object>, ReadError> {
        let wanted: ResourceVersion = version.parse()?;
        let is_reached = |state: &Snapshot| *state.safe_version() >= wanted;
        let is_other = |state: &Snapshot| !state.safe_version().same_lineage(&wanted);
        let state = self.shared.reach(wanted.number(), |state| is_reached(state) || is_other(state)).await;
        let state = state.map_err(|_| self.end())?;
        if is_other(&state) {
            return Err(ReadError::OtherLineage { wanted, current: state.safe_version().clone() });
        }
        Ok(self.shared.typed(Some(state)))
    }

    /// Returns the freshness of the state, computed now.
    pub fn freshness(&self) -> Freshness {
        let freshness = self.connection.freshness();
        let state = if self.shared.is_stopped() { FreshnessState::Disconnected } else { freshness.state };
        Freshness { state, ..freshness }
    }

    /// Returns true if the freshness is LIVE or STALE: the cache is the server's state as of its last message.
    pub fn is_healthy(&self) -> bool {
        self.freshness().state.is_healthy()
    }

    /// Waits for the end of the informer: its failure, or a stop.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn ended(&self) -> InformerError {
        self.shared.handle().stopped().await;
        self.end()
    }

    /// Returns the error that has ended the informer.
    pub fn failure(&self) -> Option<ClientError> {
        self.connection.failure()
    }

    /// Stops the informer: it closes its stream, and no further handler call begins. The returned future waits for the call that
    /// goes on; without it, the same happens in the background. Stopping a stopped informer does nothing.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        if let Some(handler) = &self.handler {
            handler.remove();
        }
        self.shared.stop()
    }

    fn end(&self) -> InformerError {
        self.failure().map_or(InformerError::Stopped, InformerError::Failed)
    }
}

// === impl InformerBuilder ===

impl InformerBuilder {
    /// Sets the queue, the intervals and the delays. `keep_objects`, `heal_drops` and `fail_fast` have no effect: the cache has
    /// the objects, drops are always healed, and a server that is not there yet is awaited.
    #[must_use]
    pub fn options(mut self, options: &WatchOptions) -> Self {
        self.options = WatchOptions { heal_drops: true, fail_fast: false, ..options.clone() };
        self
    }

    /// Adds an index, for [`TypedSnapshot::by_index`].
    #[must_use]
    pub fn index(mut self, name: impl Into<String>, function: IndexFunc) -> Self {
        self.indexers.push((name.into(), function));
        self
    }

    /// Sets the handler of the changes. Its calls come one after the other, and may block ([`BlockingEventHandler`]). They do not
    /// hold up the cache: above 1,024 waiting events the queue merges those of an object (COALESCE). Each panic is logged, and
    /// `on_panic` gets its message.
    #[must_use]
    pub fn handler(
        mut self,
        handler: impl ResourceEventHandler<Object>,
        on_panic: impl Fn(&str) + Send + 'static,
    ) -> Self {
        let handler = BlockingEventHandler::new(ChangeHandler(handler)).on_panic(on_panic);
        let options = HandlerOptions { name: "informer".to_owned(), ..HandlerOptions::default() };
        self.handler = Some(Box::new(|shared| shared.add_handler(handler, options)));
        self
    }

    /// Starts the informer, in tasks of the current runtime.
    ///
    /// # Errors
    ///
    /// If a name of an index is not valid, or used twice.
    ///
    /// # Panics
    ///
    /// If there is no tokio runtime.
    pub fn start(self) -> Result<Informer, IndexersError> {
        let indexers = Arc::new(Indexers::new(self.indexers)?);
        let streams = Streams::new(self.client, self.query.watch_request(), &self.options, None);
        let connection = Arc::new(Connection::new(streams.idle_timeout()));
        let feeding = Arc::clone(&connection);
        let shared = SharedInformer::start_fed(indexers, |fifo| feed::feed(streams, feeding, fifo));
        // It has not been stopped.
        let handler = self.handler.and_then(|add| add(&shared).ok());
        Ok(Informer { shared, connection, handler })
    }
}

impl fmt::Debug for InformerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indexers: Vec<_> = self.indexers.iter().map(|(name, _)| name).collect();
        f.debug_struct("InformerBuilder")
            .field("query", &self.query)
            .field("indexers", &indexers)
            .finish_non_exhaustive()
    }
}
