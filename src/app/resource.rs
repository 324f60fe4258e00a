//! One resource of the configuration: its source, Reflector, queue and informer, connected.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::task::JoinSet;
use tracing::{Instrument, info_span};

use super::{AppError, Ended, infallible, writer::WriterThread};
use crate::{
    cache::{
        FifoBounds, Informer, InformerConfig, ListVersion, ListerWatcher, RealFifo, Reflector, ReflectorConfig,
        SourceHealth,
    },
    config::{Config, EtcdResource, EtcdTlsConfig, KubeResource, ResourceConfig, SourceConfig},
    grpc::ServedResource,
    source::{
        etcd::{EtcdConfig, EtcdSource, EtcdTls},
        files::{FilesConfig, FilesSource},
        kube::{KubeCluster, KubeConfig, KubeSource},
        stream::{self, StreamConfig, StreamPath, StreamSource},
    },
    telemetry::ObservedResource,
};

/// A wake costs some twenty times what an event costs, so that not to gather for half a millisecond would pay nobody.
const LEAST_WINDOW: Duration = Duration::from_micros(500);

/// Whether the sources can be read now.
///
/// # Errors
///
/// The first one that cannot.
pub(super) fn check(config: &Config) -> Result<(), AppError> {
    for ResourceConfig { name, source, .. } in config.resources.values() {
        let resource = || name.clone();
        match source {
            SourceConfig::Files { path, .. } => {
                FilesSource::check(path).map_err(|error| AppError::Directory { resource: resource(), error })?;
            }
            SourceConfig::Stream { path } => {
                let checked = StreamSource::check(&stream_path(path.as_deref()));
                checked.map_err(|error| AppError::Stream { resource: resource(), error })?;
            }
            SourceConfig::Etcd(etcd) => {
                EtcdSource::check(&etcd_config(name, etcd))
                    .map_err(|problem| AppError::Etcd { resource: resource(), problem })?;
            }
            SourceConfig::Kube(kube) => {
                KubeSource::check(&kube_config(name, kube))
                    .map_err(|problem| AppError::Kube { resource: resource(), problem })?;
            }
        }
    }
    Ok(())
}

/// Connects one resource: source, Reflector, queue, informer.
pub(super) fn spawn(
    tasks: &mut JoinSet<Ended>,
    writer: &WriterThread,
    config: &Config,
    resource: &ResourceConfig,
) -> ObservedResource {
    match &resource.source {
        SourceConfig::Files { path, kind } => {
            let files = FilesConfig { kind: kind.clone(), ..FilesConfig::new(path, &resource.name) };
            let health = SourceHealth::new(files.rescan, config.stale_after);
            let source = FilesSource::new(files, health.clone());
            connect(tasks, writer, config, resource, "files", source, health)
        }
        SourceConfig::Stream { path } => {
            let stream = StreamConfig { path: stream_path(path.as_deref()), resource: resource.name.clone() };
            let health = SourceHealth::new(stream::HEARTBEAT, config.stale_after);
            let source = StreamSource::new(stream, health.clone());
            connect(tasks, writer, config, resource, "stream", source, health)
        }
        SourceConfig::Etcd(etcd) => {
            let etcd = etcd_config(&resource.name, etcd);
            let health = SourceHealth::new(etcd.heartbeat, config.stale_after);
            let source = EtcdSource::new(etcd, health.clone());
            connect(tasks, writer, config, resource, "etcd", source, health)
        }
        SourceConfig::Kube(kube) => {
            let kube = kube_config(&resource.name, kube);
            let health = SourceHealth::new(kube.silence, config.stale_after);
            let source = KubeSource::new(kube, health.clone());
            connect(tasks, writer, config, resource, "kube", source, health)
        }
    }
}

fn etcd_config(resource: &str, config: &EtcdResource) -> EtcdConfig {
    let EtcdResource { endpoints, prefix, credentials, tls } = config.clone();
    let EtcdTlsConfig { ca, identity, server_name } = tls;
    let tls = EtcdTls { ca, identity, server_name };
    EtcdConfig { credentials, tls, ..EtcdConfig::new(resource, endpoints, &prefix) }
}

fn kube_config(resource: &str, config: &KubeResource) -> KubeConfig {
    let KubeResource {
        group,
        version,
        plural,
        namespace,
        label_selector,
        field_selector,
        kubeconfig,
        context,
        drop_fields,
    } = config.clone();
    KubeConfig {
        namespace,
        label_selector,
        field_selector,
        cluster: KubeCluster { kubeconfig, context },
        drop_fields,
        ..KubeConfig::new(resource, &group, &version, &plural)
    }
}

fn stream_path(path: Option<&Path>) -> StreamPath {
    path.map_or(StreamPath::Stdin, |path| StreamPath::Path(path.to_owned()))
}

fn connect<S: ListerWatcher>(
    tasks: &mut JoinSet<Ended>,
    writer: &WriterThread,
    config: &Config,
    resource: &ResourceConfig,
    kind: &'static str,
    source: S,
    health: SourceHealth,
) -> ObservedResource {
    let name = resource.name.as_str();
    let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
    let informer_config = InformerConfig {
        indexers: Arc::clone(&resource.indexers),
        broadcaster: config.broadcaster(),
        history: config.history(),
        bodies_prove: !matches!(resource.source, SourceConfig::Kube(_)),
        batch_window: config.watch.batch_window.max(LEAST_WINDOW),
    };
    let (informer, handle) = Informer::new(Arc::clone(&fifo), health.clone(), informer_config);
    let reflector_config = ReflectorConfig { first_list: ListVersion::MostRecent, ..ReflectorConfig::default() };
    let reflector = Reflector::new(source, Arc::clone(&fifo), health, reflector_config);
    let stats = Arc::clone(reflector.stats());

    let span = info_span!("informer", resource = name);
    writer.spawn(tasks, infallible(format!("informer of {name}"), informer.run().instrument(span)));
    let span = info_span!("reflector", resource = name, source = kind);
    writer.spawn(tasks, infallible(format!("reflector of {name}"), reflector.run().instrument(span)));

    let served = ServedResource {
        name: name.to_owned(),
        source: kind,
        optional: resource.optional,
        queue: resource.queue_options(&config.watch),
        informer: handle,
    };
    ObservedResource { resource: served, reflector: stats, fifo }
}
