//! Server in this process, on port 0, whose upstream is the test; and helpers for its clients.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::Ipv4Addr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt};
use http_body_util::BodyExt;
use informerd::{
    audit::AuditLog,
    auth::Authentication,
    cache::{
        BackoffConfig, Delta, FifoBounds, Informer, InformerConfig, InformerHandle, List, ListVersion, ListerWatcher,
        RealFifo, Reflector, ReflectorConfig, ReflectorStats, RewriteEvidence, SourceHealth,
    },
    config::WatchConfig,
    grpc::{
        self, AccessConfig, GeneratedServices, KubernetesApi, Lifecycle, QuotaConfig, ResourceCalls, ResourceViews,
        Routes, RpcMetrics, ServedResource, Service, ServiceConfig, WireFrame,
    },
    model::{Event, IndexFunc, Indexers, Lineage, NamedViews, Object, Path, ResourceVersion},
    proto::{
        Compression,
        pb::{self, informer_service_client::InformerServiceClient},
    },
    source::relay::{RelayConfig, RelaySource},
    transport::{Chunk, Ledger, Listener, Quota, Rejections, Server, ServerConfig, TrustedPeers},
    watch::{BroadcasterConfig, FullChannelPolicy, QueueOptions, Retention},
};
use prometheus_client::metrics::counter::Counter;
use tokio::{
    net::TcpListener,
    task::{JoinHandle, JoinSet},
};
use tonic::{
    Status, Streaming,
    body::Body,
    transport::{Channel, Endpoint},
};
use tower::{ServiceExt, service_fn, util::BoxCloneService};

use crate::refused_watch::in_headers;

/// Deadline longer than any step here takes, and short enough to find one that hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Server with one resource, "pods", whose upstream is the test.
pub(crate) struct Sandbox {
    pub(crate) informer: InformerHandle<WireFrame>,
    pub(crate) lifecycle: Lifecycle,
    /// Memory held for the clients of the server.
    pub(crate) ledger: Arc<Ledger>,
    refused: Rejections,
    /// State that all calls share, and the one that those of the resource share.
    pub(crate) state: Service,
    pub(crate) calls: ResourceCalls,
    routes: Routes,
    fifo: Arc<RealFifo>,
    address: String,
    lineage: Option<Lineage>,
    next: u128,
    server: JoinHandle<()>,
    pub(crate) reflector: Arc<ReflectorStats>,
    _tasks: JoinSet<()>,
}

/// Options of the sandbox that differ from the server's defaults.
pub(crate) struct Options {
    pub(crate) broadcaster: BroadcasterConfig,
    pub(crate) bookmark_interval: Duration,
    pub(crate) max_watchers: usize,
    /// Share of one peer in watches, compilations and page snapshots, in percent.
    pub(crate) peer_share: u32,
    /// Limit of the memory held for all clients together, in bytes.
    pub(crate) memory: usize,
    /// Compressions that clients may accept.
    pub(crate) compression: Vec<Compression>,
    pub(crate) quotas: QuotaConfig,
    pub(crate) audit: Option<AuditLog>,
    pub(crate) future_wait: Duration,
    pub(crate) drain_period: Duration,
    pub(crate) evicted_grace: Duration,
    pub(crate) progress_timeout: Duration,
    pub(crate) history: Retention,
    /// Indexes besides `node` and `app`.
    pub(crate) indexes: Vec<(String, IndexFunc)>,
    /// Views that requests may name.
    pub(crate) views: NamedViews,
    /// Lineage of the versions; none for decimals.
    pub(crate) lineage: Option<&'static str>,
    pub(crate) allowed_policies: Vec<FullChannelPolicy>,
    /// Policy of watches that request none.
    pub(crate) policy: FullChannelPolicy,
    /// Kind of the source that clients see.
    pub(crate) source: &'static str,
    /// True if the resource serves only metadata.
    pub(crate) is_secret: bool,
    /// Upstream server to relay; none if the test is the upstream.
    pub(crate) relay: Option<RelayConfig>,
    pub(crate) access: AccessConfig,
    pub(crate) authentication: Option<Arc<Authentication>>,
    /// Reason why the newest configuration was rejected.
    pub(crate) config_error: Option<&'static str>,
    /// Kind as which the Kubernetes API has the resource.
    pub(crate) kubernetes: Option<Arc<KubernetesApi>>,
}

/// Services of a server without a connection.
pub(crate) type InProcess = BoxCloneService<http::Request<Body>, http::Response<Body>, Infallible>;

impl Default for Options {
    fn default() -> Self {
        Self {
            broadcaster: BroadcasterConfig::default(),
            bookmark_interval: Duration::from_secs(30),
            max_watchers: 100_000,
            peer_share: 100,
            memory: 1 << 30,
            compression: Compression::ALL.to_vec(),
            quotas: QuotaConfig::default(),
            audit: None,
            future_wait: Duration::from_secs(90),
            drain_period: Duration::from_secs(5),
            evicted_grace: Duration::from_secs(5),
            progress_timeout: Duration::from_secs(30),
            history: BroadcasterConfig::default().retention,
            indexes: Vec::new(),
            views: NamedViews::default(),
            lineage: None,
            allowed_policies: WatchConfig::default().allowed_policies,
            policy: FullChannelPolicy::Replay,
            source: "test",
            is_secret: false,
            relay: None,
            access: AccessConfig::default(),
            authentication: None,
            config_error: None,
            kubernetes: None,
        }
    }
}

impl Sandbox {
    /// Starts a server whose first list has these objects, at version 1.
    pub(crate) async fn start(objects: Vec<Arc<Object>>) -> Self {
        let sandbox = Self::start_unsynced(Options::default()).await;
        sandbox.list(objects, 1).await;
        sandbox
    }

    pub(crate) async fn start_with(options: Options, objects: Vec<Arc<Object>>) -> Self {
        let sandbox = Self::start_unsynced(options).await;
        sandbox.list(objects, 1).await;
        sandbox
    }

    pub(crate) async fn start_unsynced(options: Options) -> Self {
        let (node, app) = (Path::parse(".spec.nodeName").unwrap(), "app".to_owned());
        let indexers = [("node".to_owned(), IndexFunc::Path(node)), (app.clone(), IndexFunc::Label(app))];
        let indexers = Indexers::new(indexers.into_iter().chain(options.indexes));
        let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
        let heartbeat = options.relay.as_ref().map_or(Duration::from_secs(5), |relay| relay.heartbeat);
        let health = SourceHealth::new(heartbeat, Duration::from_secs(15));
        let relay = options.relay.map(|relay| RelaySource::new(relay, health.clone()));
        let config = InformerConfig {
            indexers: Arc::new(indexers.unwrap()),
            broadcaster: options.broadcaster,
            history: options.history,
            rewrite_evidence: relay.as_ref().map_or(RewriteEvidence::Bytes, ListerWatcher::rewrite_evidence),
            demand: relay.as_ref().map(ListerWatcher::demand).unwrap_or_default(),
            provenance: relay.as_ref().map(ListerWatcher::provenance).unwrap_or_default(),
            batch_window: Duration::from_micros(500),
            ..InformerConfig::default()
        };
        let (informer, handle) = Informer::new(Arc::clone(&fifo), health.clone(), config);
        let (lifecycle, mut tasks, mut reflector) = (Lifecycle::default(), JoinSet::new(), Arc::default());
        tasks.spawn(informer.run());
        if let Some(source) = relay {
            let (initial, max) = (Duration::from_millis(1), Duration::from_millis(20));
            let backoff = BackoffConfig { initial, max, ..BackoffConfig::default() };
            let config = ReflectorConfig { first_list: ListVersion::MostRecent, backoff, ..ReflectorConfig::default() };
            let relay = Reflector::new(source, Arc::clone(&fifo), health, config);
            reflector = Arc::clone(relay.stats());
            tasks.spawn(relay.run());
        }

        let calls = ResourceCalls::default();
        let resource = ServedResource {
            name: "pods".to_owned(),
            source: options.source,
            optional: false,
            is_secret: options.is_secret,
            queue: QueueOptions { policy: options.policy, length: 1024 },
            views: ResourceViews::new(Arc::new(options.views)),
            calls: calls.clone(),
            kubernetes: options.kubernetes,
            informer: handle.clone(),
        };
        let metrics = Arc::new(RpcMetrics::default());
        let service = Service::new(
            [resource],
            ServiceConfig {
                allowed_policies: options.allowed_policies,
                bookmark_interval: options.bookmark_interval,
                future_wait: options.future_wait,
                drain_period: options.drain_period,
                evicted_grace: options.evicted_grace,
                max_watchers: options.max_watchers,
                peer_share: options.peer_share,
                bulk_streams: 2,
                compression: options.compression,
                memory: options.memory,
                audit: options.audit,
                quotas: options.quotas,
                authentication: options.authentication,
                access: options.access,
                ..ServiceConfig::default()
            },
            lifecycle.clone(),
            Arc::clone(&metrics),
        );
        service.set_config_error(options.config_error.map(str::to_owned));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let bounds = server_config(&service, options.progress_timeout, options.drain_period);
        let (routes, ledger) = (Routes::new(service.clone()), Arc::clone(service.ledger()));
        let server = Server::new(routes.clone(), Routes::is_watch, bounds);
        let server = tokio::spawn(server.serve(Listener::Tcp(listener), lifecycle.draining.clone()));
        tasks.spawn(service.clone().run());
        Self {
            state: service,
            calls,
            informer: handle,
            lifecycle,
            ledger,
            refused: metrics.refused().clone(),
            routes,
            fifo,
            address,
            lineage: options.lineage.map(Lineage::from),
            next: 1,
            server,
            reflector,
            _tasks: tasks,
        }
    }

    /// Starts a server whose upstream is the resource "pods" of another server.
    pub(crate) async fn relay(address: &str) -> Self {
        Self::start_unsynced(Options { relay: Some(relay_of(address)), ..Options::default() }).await
    }

    /// Returns the number of refusals for this reason.
    pub(crate) fn refused(&self, reason: &'static str) -> u64 {
        self.refused.counted(reason)
    }

    /// Returns how often the server has listed its upstream.
    pub(crate) fn lists(&self) -> u64 {
        self.reflector.lists.load(Ordering::Relaxed)
    }

    /// Sends the informer a delta, as a source would.
    pub(crate) async fn say(&self, delta: Delta) {
        self.fifo.push(delta).await;
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the service behind its connections.
    pub(crate) fn routes(&self) -> Routes {
        self.routes.clone()
    }

    /// Returns a client on a connection of its own.
    pub(crate) async fn client(&self) -> InformerServiceClient<Channel> {
        let channel = Endpoint::new(self.address.clone()).unwrap().connect().await.unwrap();
        InformerServiceClient::new(channel).max_decoding_message_size(64 << 20)
    }

    /// Returns a client without a connection: a draining server accepts no new ones. A Watch that is refused fails at once.
    pub(crate) fn in_process(&self) -> InformerServiceClient<InProcess> {
        let service = self.service();
        let service = service_fn(move |request: http::Request<Body>| {
            let is_watch = request.uri().path().ends_with("/Watch");
            let response = service.clone().oneshot(request);
            async move {
                let response = response.await?;
                Ok(if is_watch { in_headers(response).await } else { response })
            }
        });
        InformerServiceClient::new(service.boxed_clone())
    }

    /// Returns the services without a connection, for clients.
    pub(crate) fn service(&self) -> InProcess {
        Self::without_connection(self.routes.clone())
    }

    /// Returns the services and others beside them, without a connection.
    pub(crate) fn service_beside(&self, others: GeneratedServices) -> InProcess {
        Self::without_connection(Routes::beside(self.state.clone(), others))
    }

    fn without_connection(routes: Routes) -> InProcess {
        let whole = |frame: http_body::Frame<Chunk>| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
        let routes = ServiceExt::<http::Request<Body>>::map_response(routes, move |response| {
            response.map(|body: grpc::Body| Body::new(body.map_frame(whole)))
        });
        routes.boxed_clone()
    }

    /// Returns a client with small buffers: the server keeps the unread rest but for 64 KiB and the kernel's buffers.
    pub(crate) async fn slow_client(&self) -> InformerServiceClient<Channel> {
        self.slow_client_from(Ipv4Addr::LOCALHOST).await
    }

    /// Returns a client with small buffers, at this address.
    pub(crate) async fn slow_client_from(&self, address: Ipv4Addr) -> InformerServiceClient<Channel> {
        let endpoint = Endpoint::new(self.address.clone()).unwrap().local_address(Some(address.into()));
        let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
        InformerServiceClient::new(endpoint.connect().await.unwrap())
    }

    /// Sends a list at a version, and waits until the server has applied it.
    pub(crate) async fn list(&self, objects: Vec<Arc<Object>>, version: u128) {
        let version = self.numbered(version);
        self.fifo.push(Delta::Replace(List::new(objects, version.clone()))).await;
        self.reached(&version).await;
    }

    /// Returns the next version.
    pub(crate) fn version(&mut self) -> ResourceVersion {
        self.next += 1;
        self.numbered(self.next)
    }

    fn numbered(&self, number: u128) -> ResourceVersion {
        match &self.lineage {
            Some(lineage) => ResourceVersion::of_lineage(lineage.clone(), number),
            None => ResourceVersion::decimal(number),
        }
    }

    pub(crate) async fn push(&self, event: Event) {
        self.fifo.push(Delta::event(event)).await;
    }

    /// Sends a pod in its next version.
    pub(crate) async fn put(&mut self, namespace: &str, name: &str, spec: &str) -> Arc<Object> {
        let version = self.version();
        let pod = pod_at(namespace, name, spec, &version);
        self.push(Event::Modified(Arc::clone(&pod))).await;
        pod
    }

    /// Deletes a pod.
    pub(crate) async fn delete(&mut self, pod: &Arc<Object>) {
        let version = self.version();
        self.push(Event::Deleted(Arc::new(pod.at_version(version)))).await;
    }

    pub(crate) async fn reached(&self, version: &ResourceVersion) {
        let wait = self.informer.wait_for(0, |snapshot| snapshot.version() >= version);
        tokio::time::timeout(DEADLINE, wait).await.expect("the version is reached");
    }

    /// Waits until the server has ended by itself, with all its connections.
    pub(crate) async fn server_ended(&mut self) {
        tokio::time::timeout(DEADLINE, &mut self.server).await.expect("an end in time").unwrap();
    }
}

/// Returns the configuration of a relay of "pods" of a server, with timeouts for tests.
pub(crate) fn relay_of(address: &str) -> RelayConfig {
    RelayConfig { heartbeat: Duration::from_millis(500), ..RelayConfig::new(address.parse().unwrap(), "pods") }
}

/// Returns a pod at version 1.
pub(crate) fn pod(namespace: &str, name: &str, spec: &str) -> Arc<Object> {
    pod_at(namespace, name, spec, &ResourceVersion::decimal(1))
}

/// Returns a pod at a version; `spec` is the inside of a JSON map.
pub(crate) fn pod_at(namespace: &str, name: &str, spec: &str, version: &ResourceVersion) -> Arc<Object> {
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"{namespace}","name":"{name}","labels":{{"app":"{name}"}}}},"spec":{{{spec}}}}}"#
    );
    Arc::new(Object::from_json(Bytes::from(json), "unnamed", version.clone()).unwrap())
}

/// Returns a request to watch pods, RAW.
pub(crate) fn watch_pods() -> pb::WatchRequest {
    pb::WatchRequest { resource: "pods".to_owned(), format: pb::PayloadFormat::Raw.into(), ..Default::default() }
}

/// Returns the same request without initial events.
pub(crate) fn watch_from_now() -> pb::WatchRequest {
    pb::WatchRequest { initial_events: pb::InitialEvents::None.into(), ..watch_pods() }
}

/// Returns a queue with a policy and a length.
pub(crate) fn queue(policy: pb::FullChannelPolicy, length: u32) -> pb::QueueOptions {
    pb::QueueOptions { policy: policy.into(), length }
}

/// Returns the next message of a stream, which must arrive before the deadline.
pub(crate) async fn next(
    stream: &mut (impl Stream<Item = Result<pb::WatchResponse, Status>> + Unpin),
) -> pb::WatchResponse {
    let message = tokio::time::timeout(DEADLINE, stream.next()).await.expect("a message in time");
    message.expect("no end").expect("no status")
}

/// Returns the status of a stream, which must end now.
pub(crate) async fn end(stream: &mut Streaming<pb::WatchResponse>) -> Status {
    loop {
        match tokio::time::timeout(DEADLINE, stream.message()).await.expect("an end in time") {
            Ok(Some(_)) => {}
            Ok(None) => return Status::ok(""),
            Err(status) => return status,
        }
    }
}

/// Returns an event in words: type, cause, name, version.
pub(crate) fn words(response: &pb::WatchResponse) -> String {
    let event_type = response.r#type().as_str_name().trim_start_matches("EVENT_TYPE_");
    let cause = match response.cause() {
        pb::Cause::Unspecified => String::new(),
        cause => format!(" {}", cause.as_str_name().trim_start_matches("CAUSE_")),
    };
    let name = response.object.as_ref().map(|object| format!(" {}", object.name)).unwrap_or_default();
    let version = match response.resource_version.as_str() {
        "" => String::new(),
        version => format!(" @{version}"),
    };
    format!("{event_type}{cause}{name}{version}")
}

/// Folds initial events and events into the state that the client then holds: name to body.
pub(crate) fn fold(view: &mut BTreeMap<String, Bytes>, response: &pb::WatchResponse) {
    let Some(object) = &response.object else { return };
    match response.r#type() {
        pb::EventType::Added => assert!(view.insert(object.name.clone(), raw(object)).is_none(), "ADDED what it had"),
        pb::EventType::Modified => assert!(view.insert(object.name.clone(), raw(object)).is_some(), "MODIFIED unknown"),
        pb::EventType::Deleted => {
            assert_eq!(view.remove(&object.name), Some(raw(object)), "DELETED with the last state");
        }
        other => panic!("{other:?} with an object"),
    }
}

pub(crate) fn raw(object: &pb::Object) -> Bytes {
    match &object.body {
        Some(pb::object::Body::Raw(bytes)) => bytes.clone(),
        other => panic!("not raw: {other:?}"),
    }
}

/// Returns the reason of a status.
pub(crate) fn reason(status: &Status) -> String {
    use tonic_types::StatusExt;
    let details = status.get_error_details();
    let info = details.error_info().unwrap_or_else(|| panic!("no ErrorInfo: {status:?}"));
    assert_eq!(info.domain, "informerd");
    info.reason.clone()
}

/// Returns the limits of the connections of a server.
pub(crate) fn server_config(service: &Service, progress_timeout: Duration, drain_period: Duration) -> ServerConfig {
    ServerConfig {
        progress_timeout,
        stalled: Counter::default(),
        request_timeout: Duration::from_secs(10),
        connections: Quota::new(usize::MAX, 100),
        refused: service.metrics().refused().clone(),
        drain_period,
        ledger: Arc::clone(service.ledger()),
        trusted_peers: TrustedPeers::default(),
    }
}
