//! Start of an informer.

use std::{fmt, sync::Arc, thread, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Handler, HandlerProblem, Informer, Shared, follow,
    freshness::Connection,
    handler::{self, ErrorHandler},
    replica::Replica,
    store::{IndexFunction, Published, Store},
};
use crate::{
    cache::BackoffConfig,
    client::{Client, ClientError, Query, WatchOptions, streams::Streams},
    proto::pb,
};

/// Options of an informer, before its start.
pub struct InformerBuilder {
    client: Client,
    query: Query,
    options: WatchOptions,
    indexers: Vec<(String, IndexFunction)>,
    handler: Option<Box<dyn Handler>>,
    on_error: Arc<ErrorHandler>,
    max_lag: usize,
}

/// Interval of bookmarks: three of them without a message are shown as DISCONNECTED.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(10);
/// Waiting handler calls after which a lag is reported.
const MAX_LAG: usize = 10_000;

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
            on_error: Arc::new(|problem| tracing::error!(%problem, "handler of an informer")),
            max_lag: MAX_LAG,
        }
    }
}

// === impl InformerBuilder ===

impl InformerBuilder {
    /// Sets the queue, the intervals and the delays. `keep_objects`, `heal_drops` and `fail_fast` have no effect: the store has
    /// the objects, drops are always healed, and a server that is not there yet is awaited.
    #[must_use]
    pub fn options(mut self, options: &WatchOptions) -> Self {
        self.options = WatchOptions { heal_drops: true, fail_fast: false, ..options.clone() };
        self
    }

    /// Adds an index: a function that returns the values of an object, for [`InformerSnapshot::by_index`](super::InformerSnapshot::by_index).
    #[must_use]
    pub fn index(
        mut self,
        name: impl Into<String>,
        values: impl Fn(&pb::Object) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.indexers.push((name.into(), Arc::new(values)));
        self
    }

    /// Sets the handler of the changes. Its calls come one after the other, from a thread of its own: it may block, and does not
    /// hold up the store.
    #[must_use]
    pub fn handler(mut self, handler: impl Handler) -> Self {
        self.handler = Some(Box::new(handler));
        self
    }

    /// Sets the function that gets the panics of the handler and its lag; the default writes a log. It is called from the threads
    /// that find them, and must not block.
    #[must_use]
    pub fn on_error(mut self, on_error: impl Fn(&HandlerProblem) + Send + Sync + 'static) -> Self {
        self.on_error = Arc::new(on_error);
        self
    }

    /// Sets the number of waiting handler calls above which a lag is reported, once until the handler has caught up; 10,000. They
    /// are kept, whatever their number.
    #[must_use]
    pub fn max_lag(mut self, calls: usize) -> Self {
        self.max_lag = calls;
        self
    }

    /// Starts the informer, in a task of the current runtime and, with a handler, a thread. If that cannot be started, the informer
    /// has failed.
    ///
    /// # Panics
    ///
    /// If there is no tokio runtime.
    pub fn start(self) -> Informer {
        self.start_with(thread::Builder::new())
    }

    fn start_with(self, thread: thread::Builder) -> Informer {
        let streams = Streams::new(self.client, self.query.watch_request(), &self.options, None);
        let stop = CancellationToken::new();
        let started = handler::start(thread, self.handler, self.on_error, self.max_lag, stop.clone());
        let shared = Arc::new(Shared {
            store: Published::default(),
            connection: Connection::new(streams.idle_timeout()),
            failure: parking_lot::Mutex::default(),
            changed: watch::channel(()).0,
        });
        let (sender, ended) = watch::channel(false);
        let (following, stopped) = (Arc::clone(&shared), stop.clone());
        tokio::spawn(async move {
            match started {
                Ok((notifier, handled)) => {
                    let replica = Replica::new(Store::new(self.indexers));
                    let follow = follow(streams, Arc::clone(&following), replica, notifier);
                    // Dropping it closes the stream, and leaves the handler without more to do.
                    stopped.run_until_cancelled(follow).await;
                    stopped.cancelled().await;
                    following.connection.set_open(false);
                    drop(handled.await);
                }
                Err(error) => {
                    let problem = format!("cannot start the thread of a handler: {error}");
                    following.fail(ClientError::Request { problem });
                }
            }
            sender.send_replace(true);
        });
        Informer { shared, stop, ended }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_informer_without_a_thread_for_its_handler_has_failed() {
        struct Nothing;
        impl Handler for Nothing {}

        let client = Client::connect_lazy(&"127.0.0.1:1".parse().unwrap()).unwrap();
        // No system has room for such a stack.
        let thread = thread::Builder::new().stack_size(1 << 60);
        let informer = Informer::builder(&client, &Query::of("pods")).handler(Nothing).start_with(thread);
        let error = informer.ended().await.to_string();
        assert!(error.starts_with("cannot start the thread of a handler: "), "{error}");
        assert!(!informer.is_healthy());
        informer.stop().await;
    }
}
