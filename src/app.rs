//! Composition root: a [`Config`] becomes connected tasks, owned in one set and ended in order.
//!
//! A program embeds the server with [`App::builder`]: with the resources of a configuration, with sources that it writes itself,
//! and with [`tower`] layers around every call. `examples/own_source.rs` has all of it.
//!
//! Inside, each resource has a thread with its Reflector and its informer. All of them share the gRPC server with health and
//! reflection, the admin server, and the writer of snapshot files. No other module depends on all layers, and this one has no
//! logic.
//!
//! While it runs, a reload of the configuration exchanges resources; the tasks and watches of the others stay as they are.
//!
//! The shutdown, from the first signal on:
//!
//! 1. `/readyz` and the health service report not ready; for `drain.delay` everything is served as before. The resources catch up
//!    with their upstreams, because clients are to resume at servers that may have listed later (`catch_up.rs`).
//! 2. The server accepts no more connections; every watch gets a BOOKMARK with `draining` and its own position, and ends with
//!    UNAVAILABLE / DRAINING. The snapshot files are written a last time.
//! 3. Streams still open after `drain.period` (a client that reads nothing) are reset. The tasks are aborted, and then the
//!    threads of the resources end.

mod authentication;
mod authorization;
mod builder;
mod catch_up;
mod cgroup;
mod comparison;
mod connector;
mod descriptors;
mod error;
mod listener;
mod paths;
mod reload;
mod resources;
mod snapshot_writer;
mod sources;
mod upstream;
mod verifier;
mod writer;

use std::{collections::BTreeSet, net::SocketAddr, num::NonZeroUsize, path::Path, sync::Arc, time::Duration};

use futures_util::future::join_all;
use serde_json::{Map, Value};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tonic_health::{ServingStatus, server::HealthReporter};

use self::{
    builder::Wrap,
    connector::Connector,
    error::named,
    listener::{GrpcListener, bind_tcp, tls},
    reload::{ConfigSource, Loaded},
    resources::{Exchanged, Resources},
    snapshot_writer::SnapshotWriter,
};
pub use self::{
    builder::{AppBuilder, ServeOptions},
    error::AppError,
    paths::check_paths,
    reload::Reloader,
    upstream::{Upstream, unreachable},
};
#[cfg(feature = "cli")]
pub(crate) use self::{
    comparison::{Comparison, Difference, State},
    descriptors::MAX_CONNECTIONS,
};
pub use crate::grpc::{CallRequest, CallService, RequestBody, ResponseBody};
#[cfg(feature = "kubernetes-api")]
use crate::rest::RestService;
use crate::{
    admin::Admin,
    audit::AuditLog,
    config::{AdminConfig, Config, ConfigErrors, ListenAddr, QuotasConfig, ServeFlags},
    grpc::{
        GeneratedServices, Lifecycle, ListRate, QuotaConfig, Routes, RpcMetrics, ServedResource, Service, ServiceConfig,
    },
    proto::pb,
    source::{kube::KubeClients, relay::RelayClients},
    telemetry,
    transport::{Quota, Server, ServerConfig, Tls},
    watch::BulkThreads,
};

/// Server that is listening and syncing its resources.
pub struct App {
    config: Config,
    service: Service,
    lifecycle: Lifecycle,
    /// Tasks that end with their name.
    tasks: JoinSet<String>,
    resources: Resources,
    source: Option<ConfigSource>,
    snapshot_writer: Option<SnapshotWriter>,
    grpc: GrpcListener,
    admin: Option<(TcpListener, Admin)>,
    kubernetes: Option<GrpcListener>,
    connections: Arc<Quota>,
    audit: Option<AuditLog>,
    tls: Option<Arc<Tls>>,
    layers: Vec<Wrap>,
}

/// Lists at once, after a pause, of a caller whose lists in a second are limited.
const LIST_BURST: u32 = 100;
/// Time to write the snapshot files of all resources while the server drains. The next run can do without them.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for aborted tasks to reach a point where they end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

// === impl App ===

impl App {
    /// Returns a builder, which adds resources and layers of the program to a configuration.
    pub fn builder(config: Config) -> AppBuilder {
        AppBuilder::new(config)
    }

    /// Returns a builder with the configuration of these flags, which the server reads again when [requested](Reloader::reload) and
    /// when its file has changed. It then exchanges the resources that differ; the others and their watches stay as they are, and
    /// so do those that the program serves itself.
    ///
    /// # Errors
    ///
    /// All problems of flags and file.
    pub fn builder_of(flags: ServeFlags) -> Result<AppBuilder, ConfigErrors> {
        let (config, source) = ConfigSource::load(flags)?;
        Ok(AppBuilder::new(config).reloading(source))
    }

    /// Starts a server with nothing but the configuration: checks the sources, listens, and begins to sync.
    ///
    /// # Errors
    ///
    /// If a source cannot be read or an address cannot be listened on.
    pub async fn start(config: Config) -> Result<Self, AppError> {
        Self::builder(config).start().await
    }

    /// Connects everything. `own` has a source for the name of each resource whose source is
    /// [`SourceConfig::Own`](crate::config::SourceConfig::Own).
    async fn connect(builder: AppBuilder) -> Result<Self, AppError> {
        let AppBuilder { config, own, layers, source, .. } = builder;
        check(&config)?;
        authentication::warn(&config);
        let kube_clients = KubeClients::default();
        let authentication = authentication::load(&config, &kube_clients)?;
        let authorizer = authorization::load(&config, &kube_clients)?;
        authorization::warn(&config, authorizer.as_ref());
        let most = descriptors::connections(descriptors::raise(), config.resources.len());
        let connections = Quota::new(most, config.limits.peer_share);
        let grpc = GrpcListener::bind(&config.general.listen).await?;
        let admin_listener = match config.admin.listen {
            Some(address) => Some(bind_tcp("admin", address).await?),
            None => None,
        };

        let kubernetes = match config.kubernetes_listen() {
            Some(address) => Some(GrpcListener::bind(address).await?),
            None => None,
        };

        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let bulk_failed = |error: std::io::Error| {
            let advice = "raise the limit on threads";
            AppError::new(format_args!("cannot start the threads that evaluate selections: {error}; {advice}"))
        };
        let start = || BulkThreads::start((processors / 2).max(1)).map_err(bulk_failed);
        // A whole object may be encoded in one piece, which pieces of the event path must not wait for.
        let (threads, encoding_threads) = (Arc::new(start()?), Arc::new(start()?));
        let (lifecycle, mut tasks) = (Lifecycle::default(), JoinSet::new());
        let snapshot_writer = SnapshotWriter::open(&config);
        let connector = Connector {
            config: config.clone(),
            threads: Arc::clone(&threads),
            snapshot_writer: snapshot_writer.clone(),
            verify: None,
            kube_clients,
            relay_clients: RelayClients::default(),
            own,
        };
        let resources = Resources::start(connector, &config.resources)?;
        if let Some(authentication) = &authentication {
            tasks.spawn(named("authentication", Arc::clone(authentication).reload()));
        }
        if let Some(authorizer) = &authorizer {
            tasks.spawn(named("authorization", authorizer.clone().reload()));
        }
        let open_audit = |path: &Path| AuditLog::open(path).map_err(|error| AppError::audit(path, &error));
        let audit = config.audit.file.as_deref().map(open_audit).transpose()?;
        let service = Service::new(
            resources.observed().load().iter().map(|observed| observed.resource.clone()),
            ServiceConfig {
                allowed_policies: config.watch.allowed_policies.clone(),
                drain_period: config.drain.period,
                max_watchers: config.watch.max_watchers,
                peer_share: config.limits.peer_share,
                request_timeout: config.limits.request_timeout,
                compression: config.general.compression.clone(),
                memory: config.limits.memory.unwrap_or_else(|| cgroup::share(Path::new("/"))),
                audit: audit.clone(),
                quotas: quotas(&config.quotas),
                bulk_streams: processors,
                bulk_threads: Some(encoding_threads),
                authentication,
                access: authorization::access(authorizer, &config.authorization),
                ..ServiceConfig::default()
            },
            lifecycle.clone(),
            Arc::new(RpcMetrics::default()),
        );
        let mut registry = telemetry::registry(resources.observed(), service.clone());
        service.register(&mut registry);
        // A unix socket has no TLS.
        let has_tcp =
            [Some(&grpc), kubernetes.as_ref()].into_iter().flatten().any(|at| matches!(at, GrpcListener::Tcp(_)));
        let tls = tls(&config)?.filter(|_| has_tcp).map(Arc::new);
        if let Some(tls) = &tls {
            tls.register(&mut registry);
        }
        if let Some(source) = &source {
            source.register(&mut registry);
        }
        let admin = admin_listener.map(|listener| {
            let AdminConfig { open_metrics, bodies, hosts, .. } = config.admin.clone();
            let timeout = config.limits.request_timeout;
            (listener, Admin::new(service.clone(), registry, timeout, open_metrics, bodies, hosts))
        });
        Ok(Self {
            config,
            service,
            lifecycle,
            tasks,
            resources,
            source,
            snapshot_writer,
            grpc,
            admin,
            kubernetes,
            connections,
            audit,
            tls,
            layers,
        })
    }

    /// Returns the address of gRPC, with the real port instead of a configured 0.
    pub fn grpc_address(&self) -> ListenAddr {
        self.grpc.address().unwrap_or_else(|| self.config.general.listen.clone())
    }

    /// Returns the address of the Kubernetes API, if it is served.
    pub fn kubernetes_address(&self) -> Option<ListenAddr> {
        self.kubernetes.as_ref().and_then(GrpcListener::address)
    }

    /// Returns the handle to request a reload of the configuration; none if the server was [built](App::builder) with one that does
    /// not change.
    pub fn reloader(&self) -> Option<Reloader> {
        self.source.as_ref().map(|source| source.reloader().clone())
    }

    /// Returns the address of the admin port.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|(listener, _)| listener.local_addr().ok())
    }

    /// Serves until `shutdown` is ready, then ends in order.
    ///
    /// # Errors
    ///
    /// If a task ends that should not.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), AppError> {
        tracing::info!(address = %self.grpc_address(), "grpc listening");
        if let Some(address) = self.kubernetes_address() {
            tracing::info!(%address, "kubernetes listening");
        }
        if let Some(address) = self.admin_address() {
            tracing::info!(%address, "admin listening");
        }

        let (reporter, health) = tonic_health::server::health_reporter();
        set_health(&reporter, &self.service, ServingStatus::NotServing).await;
        let services = GeneratedServices::default()
            .with(health)
            .with(reflection().build_v1().map_err(|error| AppError::reflection(&error))?)
            .with(reflection().build_v1alpha().map_err(|error| AppError::reflection(&error))?);
        let routes = Routes::beside(self.service.clone(), services);
        let routes = self.layers.into_iter().rfold(routes, |routes, wrap| wrap(routes));
        let bounds = bounds_of(&self.config, &self.service, self.connections);
        // The socket file is removed when this function returns.
        let (listener, _socket) = self.grpc.with_tls(self.tls.as_ref());
        if let Some(tls) = &self.tls {
            self.tasks.spawn(named("certificates", Arc::clone(tls).reload()));
        }
        let mut server = JoinSet::new();
        #[cfg(feature = "kubernetes-api")]
        let _kubernetes_socket = self.kubernetes.and_then(|kubernetes| {
            let (listener, socket) = kubernetes.with_tls(self.tls.as_ref());
            let rest = RestService::new(self.service.clone(), self.config.kubernetes.warns);
            let serving = Server::new(rest, RestService::is_watch, bounds.clone()).with_http1();
            server.spawn(named("kubernetes server", serving.serve(listener, self.lifecycle.draining.clone())));
            socket
        });
        let serving = Server::new(routes, Routes::is_watch, bounds).serve(listener, self.lifecycle.draining.clone());
        server.spawn(named("grpc server", serving));
        let mut keeping = JoinSet::new();
        if let Some(snapshot_writer) = self.snapshot_writer {
            keeping.spawn(snapshot_writer.run(self.lifecycle.draining.clone()));
        }
        self.tasks.spawn(named("grpc service", self.service.clone().run()));
        self.tasks
            .spawn(named("health", report_health(self.service.clone(), reporter.clone(), self.resources.changes())));
        if let Some((listener, admin)) = self.admin {
            // The admin server runs until the very end, for probes and the last metrics.
            self.tasks.spawn(named("admin server", admin.serve(listener)));
        }

        tokio::pin!(shutdown);
        let failed = loop {
            let loaded = tokio::select! {
                () = &mut shutdown => break None,
                // Cancel-safe: `join_next` and `failed` lose nothing when another arm wins.
                Some(ended) = self.tasks.join_next() => break Some(AppError::ended(ended)),
                Some(ended) = server.join_next() => break Some(AppError::ended(ended)),
                error = self.resources.failed() => break Some(error),
                loaded = next_config(&mut self.source, &self.config) => loaded,
            };
            let outcome = match loaded {
                Ok(loaded) => reload(loaded, &mut self.config, &mut self.resources, &self.service).await,
                Err(problem) => Err(problem),
            };
            if let Some(source) = &mut self.source {
                self.service.set_config_error(source.record(outcome));
            }
        };
        if failed.is_none() {
            tracing::info!("shutting down");
            self.lifecycle.unready.cancel();
            set_health(&reporter, &self.service, ServingStatus::NotServing).await;
            let _demand = catch_up::demand(&self.service);
            tokio::join!(tokio::time::sleep(self.config.drain.delay), catch_up::catch_up(&self.service));
            self.lifecycle.draining.cancel();
            let reserved = async {
                if tokio::time::timeout(FINAL_WRITE_TIMEOUT, keeping.join_next()).await.is_err() {
                    tracing::warn!("last snapshots not written within {FINAL_WRITE_TIMEOUT:?}");
                }
            };
            let ended = async { while server.join_next().await.is_some() {} };
            tokio::join!(ended, reserved);
        }
        // Aborts all tasks at once: one that saw others end would report a failure of its upstream. The bound is for the wait
        // only.
        let aborted = async { tokio::join!(self.tasks.shutdown(), self.resources.shutdown(), server.shutdown()) };
        drop(tokio::time::timeout(ABORT_TIMEOUT, aborted).await);
        if let Some(audit) = self.audit {
            self.service.finish_audit();
            drop(tokio::task::spawn_blocking(move || audit.flush(ABORT_TIMEOUT)).await);
        }
        if let Some(error) = failed {
            return Err(error);
        }
        tracing::info!("shut down");
        Ok(())
    }
}

impl AppBuilder {
    /// Checks the sources, listens, and begins to sync.
    ///
    /// # Errors
    ///
    /// If a source cannot be read or is missing, an address cannot be listened on, or a resource cannot have its name.
    pub async fn start(mut self) -> Result<App, AppError> {
        self.check()?;
        App::connect(self).await
    }
}

debug_fields!(App { config });

/// Checks that the files and directories of a configuration can be read now, without a connection. Returns what its author may not
/// have meant, in one line each.
///
/// # Errors
///
/// The first source that cannot be read.
pub fn check(config: &Config) -> Result<Vec<String>, AppError> {
    tls(config)?;
    let clients = KubeClients::default();
    authentication::load(config, &clients)?;
    let authorizer = authorization::load(config, &clients)?;
    config.resources.values().try_for_each(sources::check)?;
    Ok(authorization::warnings(config, authorizer.as_ref()))
}

/// Returns the limits of the connections of each listener.
fn bounds_of(config: &Config, service: &Service, connections: Arc<Quota>) -> ServerConfig {
    ServerConfig {
        progress_timeout: config.watch.progress_timeout,
        stalled: service.metrics().stalled(),
        request_timeout: config.limits.request_timeout,
        refused: service.metrics().refused().clone(),
        connections,
        drain_period: config.drain.period,
        ledger: Arc::clone(service.ledger()),
        trusted_peers: config.limits.trusted_peers.iter().copied().collect(),
    }
}

fn quotas(config: &QuotasConfig) -> QuotaConfig {
    let QuotasConfig { streams, lists_per_second, bulk_responses, bytes_held } = *config;
    let lists = lists_per_second.map(|per_second| ListRate { per_second, burst: LIST_BURST });
    QuotaConfig { streams, lists, bulk_responses, bytes_held }
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// Waits for another configuration; for ever if there is no source of any.
async fn next_config(source: &mut Option<ConfigSource>, current: &Config) -> Result<Loaded, String> {
    match source {
        Some(source) => source.next(current).await,
        None => std::future::pending().await,
    }
}

/// Exchanges what differs in a configuration that was read again. Returns the keys of its file.
///
/// # Errors
///
/// If it cannot be served, as one line; then nothing is exchanged.
async fn reload(
    (config, file): Loaded,
    current: &mut Config,
    resources: &mut Resources,
    service: &Service,
) -> Result<Map<String, Value>, String> {
    let exchanged = resources.exchange(&config, service).await.map_err(|error| error.to_string())?;
    *current = config;
    let Exchanged { added, replaced, removed } = exchanged;
    tracing::info!(?added, ?replaced, ?removed, "configuration reloaded");
    Ok(file)
}

/// Reports a resource as serving once it has had a state, and the server once all resources that are not optional have.
async fn report_health(service: Service, mut reporter: HealthReporter, mut changes: watch::Receiver<()>) {
    let mut known: BTreeSet<String> = BTreeSet::new();
    loop {
        let present: BTreeSet<String> = service.resources().map(|resource| health_name(&resource)).collect();
        for gone in known.difference(&present) {
            reporter.clear_service_status(gone).await;
        }
        known = present;
        let watched = service.resources().map(async |resource| {
            if resource.informer.snapshot().is_none() {
                reporter.set_service_status(health_name(&resource), ServingStatus::NotServing).await;
            }
            resource.informer.wait_for(0, |_| true).await;
            if !service.is_shutting_down() {
                reporter.set_service_status(health_name(&resource), ServingStatus::Serving).await;
            }
            if service.is_ready() {
                reporter.set_service_status("", ServingStatus::Serving).await;
            }
        });
        tokio::select! {
            () = async { join_all(watched).await; std::future::pending::<()>().await } => {}
            next = changes.changed() => if next.is_err() { return std::future::pending().await },
        }
    }
}

/// Sets the same status for the server and for every resource.
async fn set_health(reporter: &HealthReporter, service: &Service, status: ServingStatus) {
    reporter.set_service_status("", status).await;
    for resource in service.resources() {
        reporter.set_service_status(health_name(&resource), status).await;
    }
}

fn health_name(resource: &ServedResource) -> String {
    format!("resource/{}", resource.name)
}
