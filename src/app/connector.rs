//! Connection of a resource: its source, Reflector, queue and informer, and the snapshot file that they begin with.

use std::{collections::BTreeMap, sync::Arc};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    error::{AppError, named},
    snapshot_writer::SnapshotWriter,
    sources::{configured, filter},
    verifier::VerifyThread,
    writer::RuntimeThread,
};
use crate::{
    cache::{
        Informer, InformerOptions, InformerTasks, ListVersion, ListerWatcher, Reflector, ReflectorConfig, SourceHealth,
    },
    config::{Config, ResourceConfig, SourceConfig},
    grpc::{KubernetesApi, MostRecent, ResourceCalls, ResourceViews, ServedResource, WireFrame},
    source::{
        etcd::EtcdSource,
        files::FilesSource,
        kube::{KubeClients, KubeSource},
        relay::{RelayClients, RelaySource},
        stream::{self, StreamSource},
    },
    telemetry::ObservedResource,
    watch::BulkThreads,
};

/// Shared parts that resources are connected with.
pub(super) struct Connector {
    /// Values outside of the resources.
    pub(super) config: Config,
    pub(super) snapshot_writer: Option<SnapshotWriter>,
    /// Threads for the selections that writers have no time for.
    pub(super) threads: Arc<BulkThreads>,
    /// Thread of the verifications, if there are any.
    pub(super) verify: Option<VerifyThread>,
    /// Connections and credentials, shared by all sources of the same cluster.
    pub(super) kube_clients: KubeClients,
    /// Connections, shared by all sources of the same upstream.
    pub(super) relay_clients: RelayClients,
    /// Sources that the program brings itself, by the names of their resources.
    pub(super) own: BTreeMap<String, OwnSource>,
}

/// Resource whose tasks run.
pub(super) struct Connected {
    pub(super) observed: ObservedResource,
    /// Reflector, informer and what is beside them; they end with their names.
    pub(super) tasks: JoinSet<String>,
    /// Ends the tasks in order: what is queued is applied, then the watches end.
    pub(super) stop: CancellationToken,
}

/// Source that a program brings itself: the call that connects it.
pub(super) struct OwnSource(Box<Connect>);

type Connect = dyn FnOnce(&mut Connector, &RuntimeThread, &ResourceConfig) -> Connected + Send;

// === impl Connector ===

impl Connector {
    /// Starts the thread of the verifications, if one of these resources is verified.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(super) fn prepare(&mut self, resources: &BTreeMap<String, ResourceConfig>) -> Result<(), AppError> {
        let mut verified = resources.values().filter(|resource| resource.options.verify_interval.is_some());
        if let (None, Some(resource)) = (&self.verify, verified.next()) {
            let started = VerifyThread::start();
            let thread = started.map_err(|error| AppError::thread(&resource.name, &error))?;
            self.verify = Some(thread);
        }
        Ok(())
    }

    /// Connects one resource: source, Reflector, queue, informer.
    pub(super) fn resource(&mut self, writer: &RuntimeThread, resource: &ResourceConfig) -> Connected {
        let stale_after = self.config.general.stale_after;
        match configured(resource) {
            SourceConfig::Files(files) => {
                let health = SourceHealth::new(files.rescan, stale_after);
                let source = FilesSource::new(files, health.clone());
                self.connect(writer, resource, "files", source, health)
            }
            SourceConfig::Stream(stream) => {
                let health = SourceHealth::new(stream::HEARTBEAT, stale_after);
                let source = StreamSource::new(stream, health.clone());
                self.connect(writer, resource, "stream", source, health)
            }
            SourceConfig::Etcd(etcd) => {
                let health = SourceHealth::new(etcd.heartbeat, stale_after);
                let source = EtcdSource::new(etcd, health.clone());
                self.connect(writer, resource, "etcd", source, health)
            }
            SourceConfig::Kube(kube) => {
                let health = SourceHealth::new(kube.contact_timeout, stale_after);
                let discovery = KubeSource::discover(&kube, health.clone(), &self.kube_clients);
                let source = KubeSource::with_clients(kube, health.clone(), &self.kube_clients);
                let most_recent = MostRecent::new(source.most_recent());
                let api = resource.api_kind().map(|kind| KubernetesApi {
                    is_discovered: kind.kind.is_empty(),
                    kind,
                    most_recent: Some(most_recent),
                });
                let mut connected = self.connect_as(writer, resource, ("kube", api), source, health);
                let stop = connected.stop.clone();
                let discovery = async move {
                    tokio::select! {
                        () = discovery => stop.cancelled().await,
                        () = stop.cancelled() => {}
                    }
                };
                writer.spawn(&mut connected.tasks, named("discovery", discovery));
                connected
            }
            SourceConfig::Informerd(relay) => {
                let health = SourceHealth::new(relay.heartbeat, stale_after);
                let source = RelaySource::with_clients(relay, health.clone(), &self.relay_clients);
                self.connect(writer, resource, "informerd", source, health)
            }
            SourceConfig::Own => {
                let source = self.own.remove(&resource.name);
                let OwnSource(connect) = source.unwrap_or_else(|| panic!("resource {}: no source", resource.name));
                connect(self, writer, resource)
            }
        }
    }

    fn connect<S: ListerWatcher>(
        &mut self,
        writer: &RuntimeThread,
        resource: &ResourceConfig,
        kind: &'static str,
        source: S,
        health: SourceHealth,
    ) -> Connected {
        let api = resource.api_kind().map(|kind| KubernetesApi { kind, is_discovered: false, most_recent: None });
        self.connect_as(writer, resource, (kind, api), source, health)
    }

    fn connect_as<S: ListerWatcher>(
        &mut self,
        writer: &RuntimeThread,
        resource: &ResourceConfig,
        (kind, kubernetes): (&'static str, Option<KubernetesApi>),
        source: S,
        health: SourceHealth,
    ) -> Connected {
        let config = &self.config;
        let name = resource.name.as_str();
        let reflector = ReflectorConfig {
            first_list: ListVersion::MostRecent,
            filter: filter(resource),
            ..ReflectorConfig::default()
        };
        let options = InformerOptions {
            name: name.to_owned(),
            kind,
            health: Some(health),
            indexers: Arc::clone(&resource.indexers),
            reflector,
            broadcaster: config.broadcaster(),
            history: config.history,
            threads: Some(Arc::clone(&self.threads)),
            ..InformerOptions::default()
        };
        let informer_tasks = InformerTasks::new(source, options);
        let (informer, reflector) = (informer_tasks.handle().clone(), informer_tasks.reflector());
        let (fifo, stats) = (Arc::clone(informer_tasks.fifo()), Arc::clone(reflector.stats()));
        let kept = self.snapshot_writer.as_ref().zip(reflector.identity()).and_then(|(snapshot_writer, identity)| {
            snapshot_writer.add(resource, &identity, reflector.checkpoints(), &informer)
        });
        let begins_with = kept.clone();
        let begin = move |informer: &mut Informer<WireFrame>, reflector: &mut Reflector<S>| {
            if let Some(kept) = begins_with {
                kept.begin(informer, reflector);
            }
        };
        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        for (task, running) in informer_tasks.into_tasks(stop.clone(), begin) {
            writer.spawn(&mut tasks, named(task, running));
        }

        let verify = resource.options.verify_interval.zip(self.verify.as_ref());
        let verify = verify
            .map(|(interval, thread)| thread.spawn(&mut tasks, interval, resource, informer.clone(), stop.clone()));
        let served = ServedResource {
            name: name.to_owned(),
            source: kind,
            optional: resource.options.optional,
            is_secret: resource.is_secret(),
            queue: config.watch.queue_options(),
            views: ResourceViews::new(Arc::clone(&resource.views)),
            informer,
            calls: ResourceCalls::default(),
            kubernetes: kubernetes.map(Arc::new),
        };
        let snapshot_file = kept.map(|kept| Arc::clone(kept.stats()));
        Connected {
            observed: ObservedResource { resource: served, reflector: stats, fifo, snapshot_file, verify },
            tasks,
            stop,
        }
    }
}

// === impl OwnSource ===

impl OwnSource {
    /// Returns a source that is not connected yet.
    pub(super) fn new(source: impl ListerWatcher) -> Self {
        Self(Box::new(|connector, writer, resource| {
            let health = SourceHealth::new(source.heartbeat(), connector.config.general.stale_after);
            connector.connect(writer, resource, "own", source, health)
        }))
    }
}

debug_fields!(OwnSource {});
