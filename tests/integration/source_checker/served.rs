//! Real source under the real Reflector, queue, informer and service, in this process.

use std::{fmt, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use informerd::{
    cache::{
        CheckpointRequests, FifoBounds, Informer, InformerConfig, InformerHandle, ListVersion, ListerWatcher, RealFifo,
        Reflector, ReflectorConfig, ReflectorStats, SavedState, SnapshotDirectory, SnapshotFile, SourceHealth,
        SyncState,
    },
    grpc::{Lifecycle, ResourceViews, Routes, RpcMetrics, ServedResource, Service, ServiceConfig, WireFrame},
    model::Indexers,
    transport::{Listener, Quota, Rejections, Server, ServerConfig, TrustedPeers},
    watch::{BroadcasterConfig, FullChannelPolicy, QueueOptions, Retention},
};
use prometheus_client::metrics::counter::Counter;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::served::service_config;

/// One run of a server.
pub(crate) struct Served {
    pub(crate) routes: Routes,
    pub(crate) informer: InformerHandle<WireFrame>,
    pub(crate) stats: Arc<ReflectorStats>,
    /// True if the run began with the snapshot of the previous one.
    pub(crate) is_warm: bool,
    health: SourceHealth,
    checkpoints: CheckpointRequests,
    kept: Option<(SnapshotDirectory, SnapshotFile)>,
    tasks: JoinSet<()>,
}

/// Time for a source to return a checkpoint.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(5);

impl Served {
    /// Serves a source under the name that the clients use, with the snapshot of an earlier run, if the directory has one and the
    /// source can resume from it.
    pub(crate) fn start<S: ListerWatcher>(source: S, health: SourceHealth, state_directory: &Path) -> Self {
        Self::start_with(
            source,
            health,
            state_directory,
            ReflectorConfig { first_list: ListVersion::MostRecent, ..ReflectorConfig::default() },
        )
    }

    /// Does the same with other retry delays.
    pub(crate) fn start_with<S: ListerWatcher>(
        source: S,
        health: SourceHealth,
        state_directory: &Path,
        reflector: ReflectorConfig,
    ) -> Self {
        let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
        let bound = Retention { events: 10_000, size: 64 << 20, age: Duration::from_secs(300) };
        let config = InformerConfig {
            indexers: Arc::new(Indexers::new([]).unwrap()),
            broadcaster: BroadcasterConfig { retention: bound, ..BroadcasterConfig::default() },
            history: bound,
            rewrite_evidence: source.rewrite_evidence(),
            demand: source.demand(),
            provenance: source.provenance(),
            batch_window: Duration::from_micros(500),
            ..InformerConfig::default()
        };
        let (mut informer, handle) = Informer::new(Arc::clone(&fifo), health.clone(), config);
        let mut reflector = Reflector::new(source, Arc::clone(&fifo), health.clone(), reflector);
        let (stats, checkpoints) = (Arc::clone(reflector.stats()), reflector.checkpoints().clone());
        let kept = reflector.identity().map(|identity| {
            let directory = SnapshotDirectory::open(state_directory).unwrap();
            let file = directory.file("things", &identity);
            (directory, file)
        });
        let mut is_warm = false;
        if let Some(SavedState { mut list, proof, seen_at }) = kept.as_ref().and_then(|(_, file)| file.read().unwrap())
        {
            is_warm = reflector.resume(&mut list, &proof, seen_at).is_ok();
            if is_warm {
                informer.begin_warm(list);
            }
        }
        let resource = ServedResource {
            name: "things".to_owned(),
            source: "test",
            optional: false,
            is_secret: false,
            queue: QueueOptions { policy: FullChannelPolicy::Replay, length: 1024 },
            views: ResourceViews::default(),
            calls: informerd::grpc::ResourceCalls::default(),
            kubernetes: None,
            informer: handle.clone(),
        };
        let config = ServiceConfig { allowed_policies: vec![FullChannelPolicy::Replay], ..service_config() };
        let service = Service::new([resource], config, Lifecycle::default(), Arc::new(RpcMetrics::default()));
        let routes = Routes::new(service.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(informer.run());
        tasks.spawn(reflector.run());
        tasks.spawn(service.run());
        Self { routes, informer: handle, stats, is_warm, health, checkpoints, kept, tasks }
    }

    /// Writes a snapshot for a later run; returns false if there is no state to write.
    pub(crate) async fn save(&self) -> bool {
        let Some((_, file)) = self.kept.as_ref().filter(|_| self.informer.snapshot().is_some()) else { return false };
        match tokio::time::timeout(CHECKPOINT_TIMEOUT, self.checkpoints.take()).await {
            Ok(Some(checkpoint)) => {
                file.write(&checkpoint, self.health.report().seen_at).unwrap();
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    /// Serves over TCP as well, as long as the server runs.
    pub(crate) async fn listen(&mut self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounds = ServerConfig {
            progress_timeout: Duration::from_secs(30),
            stalled: Counter::default(),
            request_timeout: Duration::from_secs(10),
            connections: Quota::new(usize::MAX, 100),
            refused: Rejections::default(),
            drain_period: Duration::ZERO,
            ledger: Arc::default(),
            trusted_peers: TrustedPeers::default(),
        };
        let server = Server::new(self.routes.clone(), Routes::is_watch, bounds);
        self.tasks.spawn(server.serve(Listener::Tcp(listener), CancellationToken::new()));
        address
    }

    /// Returns the last failure of the source.
    pub(crate) fn last_error(&self) -> String {
        self.health.report().last_error.unwrap_or_default()
    }

    /// Returns true if the source is not SYNCED, and does not report why.
    pub(crate) fn is_stale_without_a_reason(&self) -> bool {
        let report = self.health.report();
        report.state != SyncState::Synced && report.last_error.is_none_or(|error| error.is_empty())
    }

    /// Kills the server.
    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("is_warm", &self.is_warm).finish_non_exhaustive()
    }
}
