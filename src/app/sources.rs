//! What the configuration says of a source, as the source has it.

use std::path::Path;

use super::AppError;
use crate::{
    config::{EtcdResource, EtcdTlsConfig, KubeResource, RelayResource, ResourceConfig, SourceConfig},
    source::{
        etcd::{EtcdConfig, EtcdSource, EtcdTls},
        files::FilesSource,
        kube::{KubeCluster, KubeConfig, KubeSource},
        relay::{RelayConfig, RelaySource, RelayTls},
        stream::{StreamPath, StreamSource},
    },
};

/// Whether the source of a resource can be read now.
pub(super) fn check(config: &ResourceConfig) -> Result<(), AppError> {
    let ResourceConfig { name, source, .. } = config;
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
                .map_err(|problem| AppError::Upstream { resource: resource(), problem })?;
        }
        SourceConfig::Kube(kube) => {
            KubeSource::check(&kube_config(name, kube))
                .map_err(|problem| AppError::Kube { resource: resource(), problem })?;
        }
        SourceConfig::Informerd(relay) => {
            RelaySource::check(&relay_config(relay))
                .map_err(|problem| AppError::Upstream { resource: resource(), problem })?;
        }
    }
    Ok(())
}

pub(super) fn etcd_config(resource: &str, config: &EtcdResource) -> EtcdConfig {
    let EtcdResource { endpoints, prefix, credentials, tls } = config.clone();
    let EtcdTlsConfig { ca, identity, server_name } = tls;
    let tls = EtcdTls { ca, identity, server_name };
    EtcdConfig { credentials, tls, ..EtcdConfig::new(resource, endpoints, &prefix) }
}

pub(super) fn kube_config(resource: &str, config: &KubeResource) -> KubeConfig {
    let KubeResource {
        group,
        version,
        plural,
        namespace,
        label_selector,
        field_selector,
        kubeconfig,
        context,
        contact_timeout,
        drop_fields,
    } = config.clone();
    let config = KubeConfig::new(resource, &group, &version, &plural);
    KubeConfig {
        contact_timeout: contact_timeout.unwrap_or(config.contact_timeout),
        namespace,
        label_selector,
        field_selector,
        cluster: KubeCluster { kubeconfig, context },
        drop_fields,
        ..config
    }
}

pub(super) fn relay_config(config: &RelayResource) -> RelayConfig {
    let RelayResource { endpoint, resource, ca, identity } = config.clone();
    RelayConfig { tls: RelayTls { ca, identity }, ..RelayConfig::new(&endpoint, &resource) }
}

pub(super) fn stream_path(path: Option<&Path>) -> StreamPath {
    path.map_or(StreamPath::Stdin, |path| StreamPath::Path(path.to_owned()))
}
