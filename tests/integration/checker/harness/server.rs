//! One server: an informer and the RPCs over it, without sockets.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Buf;
use http_body_util::BodyExt;
use informerd::{
    cache::{
        Delta, FifoBounds, Informer, InformerConfig, InformerHandle, RealFifo, RewriteEvidence, Snapshot, SourceHealth,
    },
    grpc::{Body, Lifecycle, ResourceViews, Routes, RpcMetrics, ServedResource, Service, ServiceConfig, WireFrame},
    model::{IndexFunc, Indexers, Path, ResourceVersion},
    proto::pb,
    watch::{BroadcasterConfig, BroadcasterStats, BulkThreads, FullChannelPolicy, QueueOptions, Retention},
};
use prost::Message;
use prost_types::Timestamp;
use tokio::time::Instant;
use tonic::Code;
use tower::Service as _;

use super::FUTURE_WAIT;
use crate::{
    checker::{
        ask::{Condition, RESOURCES},
        client::{framed, status},
        script::{Config, DEFAULT_BOOKMARK_INTERVAL, SILENCE},
        selection::Selection,
        truth::Bounds,
    },
    served::service_config,
};

/// Number larger than the jobs that ever wait at one time.
const MANY_PIECES: usize = 100_000;

pub(super) struct Server {
    pub(super) resources: Vec<Resource>,
    pub(super) lifecycle: Lifecycle,
    pub(super) routes: Routes,
    /// Threads for jobs for which its writers have no time; the harness runs these jobs.
    threads: Arc<BulkThreads>,
    /// Expressions and conditions that it has compiled.
    compiled: HashSet<(&'static str, String)>,
}

/// One resource of a server.
pub(super) struct Resource {
    informer: InformerHandle<WireFrame>,
    /// History in which it began.
    first_epoch: usize,
    fifo: Arc<RealFifo>,
    health: SourceHealth,
    /// Time of the last message; None if its upstream is known to be lost.
    heard_at: Option<Instant>,
}

impl Server {
    /// Starts a server that has not received any message. Each of its resources begins in a history.
    pub(super) fn start(config: &Config, first_epochs: &[usize]) -> Self {
        let threads = Arc::new(BulkThreads::start(0).unwrap());
        let start = |first_epoch: &usize| Resource::start(config, *first_epoch, &threads);
        let resources: Vec<Resource> = first_epochs.iter().map(start).collect();
        let served = resources.iter().zip(RESOURCES).map(|(resource, name)| ServedResource {
            name: name.to_owned(),
            source: "test",
            optional: false,
            is_secret: false,
            queue: QueueOptions { policy: FullChannelPolicy::Replay, length: 1024 },
            views: ResourceViews::default(),
            calls: informerd::grpc::ResourceCalls::default(),
            kubernetes: None,
            informer: resource.informer.clone(),
        });
        let config = ServiceConfig {
            bookmark_interval: DEFAULT_BOOKMARK_INTERVAL,
            drain_period: config.drain_period,
            future_wait: FUTURE_WAIT,
            ..service_config()
        };
        let lifecycle = Lifecycle::default();
        let service = Service::new(served, config, lifecycle.clone(), Arc::new(RpcMetrics::default()));
        let routes = Routes::new(service.clone());
        drop(tokio::spawn(service.run()));
        Self { resources, lifecycle, routes, threads, compiled: HashSet::new() }
    }

    pub(super) fn informers(&self) -> impl Iterator<Item = &InformerHandle<WireFrame>> {
        self.resources.iter().map(|resource| &resource.informer)
    }

    /// Compiles the expression of a selection and conditions before the call that has them. Compilation runs on another thread in
    /// real time, so a call that waited for it would not be idle when all others are.
    pub(super) async fn compile(&mut self, selection: Option<Selection>, conditions: &[Condition]) {
        let resource = RESOURCES[0].to_owned();
        let expression = selection.map(Selection::expression).unwrap_or_default();
        if !expression.is_empty() && self.compiled.insert(("expression", expression.clone())) {
            let message = pb::ListRequest { resource: resource.clone(), expression, ..Default::default() };
            self.ask("InformerService/List", &message.encode_to_vec()).await;
        }
        let texts = conditions.iter().map(|condition| condition.text());
        let mut conditions: Vec<String> =
            texts.filter(|text| self.compiled.insert(("condition", text.clone()))).collect();
        if conditions.is_empty() {
            return;
        }
        // The compiler keeps their order, so when it rejects this one the others are ready.
        conditions.push("refused(".to_owned());
        let watch = pb::WatchRequest { resource, ..Default::default() };
        let answer = self
            .ask("InformerService/Until", &pb::UntilRequest { watch: Some(watch), conditions }.encode_to_vec())
            .await;
        let status = status(answer.headers()).expect("it is refused");
        assert_eq!(status.code, Code::InvalidArgument as i32, "{status:?}");
    }

    async fn ask(&mut self, method: &str, message: &[u8]) -> http::Response<Body> {
        let request = http::Request::post(format!("/informerd.v1.{method}"))
            .header("content-type", "application/grpc")
            .body(framed(message));
        let Ok(answer) = self.routes.call(request.unwrap()).await;
        answer
    }

    /// Lists its open watches.
    pub(super) async fn watchers(&mut self) -> Vec<pb::Watcher> {
        let request = pb::ListWatchersRequest::default().encode_to_vec();
        let answer = self.ask("AdminService/ListWatchers", &request).await.into_body().collect().await;
        let mut message = answer.expect("it answers").to_bytes();
        message.advance(5);
        pb::ListWatchersResponse::decode(message).expect("it is a message").watchers
    }

    pub(super) fn is_draining(&self) -> bool {
        self.lifecycle.draining.is_cancelled()
    }

    /// Runs the jobs for which its writer has no time.
    pub(super) fn fill(&self) {
        let pieces = (0..MANY_PIECES).take_while(|_| self.threads.run_one()).count();
        assert!(pieces < MANY_PIECES, "threads never come to rest");
    }

    /// Returns the number of full queues under BLOCK for which the server did not wait.
    pub(super) fn denied(&self) -> u64 {
        self.sum(|stats| &stats.denied)
    }

    fn sum(&self, counter: fn(&BroadcasterStats) -> &AtomicU64) -> u64 {
        let stats = self.informers().filter_map(InformerHandle::watch_stats);
        stats.map(|stats| counter(&stats).load(Ordering::Relaxed)).sum()
    }
}

impl Resource {
    fn start(config: &Config, first_epoch: usize, threads: &Arc<BulkThreads>) -> Self {
        let Config { has_stable_bodies, has_time, history, retention, block_timeout, .. } = *config;
        let path = |text: &str| IndexFunc::Path(Path::parse(text).unwrap());
        let indexers = Indexers::new([
            ("node".to_owned(), path(".spec.nodeName")),
            ("app".to_owned(), IndexFunc::Label("app".to_owned())),
        ]);
        let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
        let health = SourceHealth::new(SILENCE[0], SILENCE[1]);
        let bound = |Bounds { age, events, bytes }| Retention { events, size: bytes, age };
        let broadcaster =
            BroadcasterConfig { retention: bound(retention), block_timeout, ..BroadcasterConfig::default() };
        let config = InformerConfig {
            indexers: Arc::new(indexers.unwrap()),
            broadcaster,
            history: bound(history),
            rewrite_evidence: if has_stable_bodies { RewriteEvidence::Bytes } else { RewriteEvidence::Listed },
            ..InformerConfig::default()
        };
        let (mut task, informer) = Informer::new(Arc::clone(&fifo), health.clone(), config);
        if !has_time {
            task = task.deferring_to(threads);
        }
        drop(tokio::spawn(task.run()));
        Self { informer, first_epoch, fifo, health, heard_at: None }
    }

    pub(super) async fn push(&mut self, delta: Delta) {
        self.health.record_contact();
        self.heard_at = Some(Instant::now());
        self.fifo.push(delta).await;
    }

    /// Reports its upstream as lost.
    pub(super) fn lose(&mut self) {
        self.health.mark_lost();
        self.heard_at = None;
    }

    /// Returns the time since the last message of its upstream; None if the upstream is known to be lost.
    pub(super) fn silence(&self) -> Option<Duration> {
        self.heard_at.map(|heard_at| heard_at.elapsed())
    }

    /// Returns the wall-clock time of the last contact with its upstream.
    pub(super) fn seen_at(&self) -> Option<Timestamp> {
        self.health.report().seen_at.map(Timestamp::from)
    }

    /// Returns the history and the version that it has reached, and the version from which its clients resume.
    pub(super) fn applied(&self) -> (usize, u64, u64) {
        let number = |version: &ResourceVersion| u64::try_from(version.number()).unwrap();
        let versions = |snapshot: Arc<Snapshot>| (number(snapshot.version()), number(snapshot.safe_version()));
        let (version, safe) = self.informer.snapshot().map_or((0, 0), versions);
        let history_rewrites = self.informer.stats().history_rewrites.load(Ordering::Relaxed) as usize;
        (self.first_epoch + history_rewrites, version, safe)
    }

    /// Returns the number of changes that it has applied.
    pub(super) fn changes(&self) -> u64 {
        self.informer.stats().changes.load(Ordering::Relaxed)
    }
}
