//! Conversion of a configured source to the parameters of its implementation.

use std::sync::Arc;

use super::error::AppError;
use crate::{
    cache::ObjectFilter,
    config::{EtcdResource, FilesResource, KubeResource, RelayResource, ResourceConfig, SourceConfig, StreamResource},
    model::FieldCut,
    source::{
        etcd::{EtcdConfig, EtcdSource},
        files::{FilesConfig, FilesSource},
        kube::{KubeCluster, KubeConfig, KubeSource},
        relay::{RelayConfig, RelaySource},
        stream::{StreamConfig, StreamPath, StreamSource},
    },
};

/// Checks that the source of a resource can be read now.
pub(super) fn check(config: &ResourceConfig) -> Result<(), AppError> {
    let ResourceConfig { name, source, .. } = config;
    let resource = || name.clone();
    // The configuration may be the program's own, not loaded from a file.
    config.check_secrets().map_err(|error| AppError::Secrets { error })?;
    match source {
        SourceConfig::Own => {}
        SourceConfig::Files(files) => {
            FilesSource::check(&files.path).map_err(|error| AppError::Directory { resource: resource(), error })?;
        }
        SourceConfig::Stream(stream) => {
            let checked = StreamSource::check(&stream_config(config, stream).path);
            checked.map_err(|error| AppError::Stream { resource: resource(), error })?;
        }
        SourceConfig::Etcd(etcd) => {
            EtcdSource::check(&etcd_config(name, etcd))
                .map_err(|problem| AppError::Upstream { resource: resource(), problem })?;
        }
        SourceConfig::Kube(kube) => {
            KubeSource::check(&kube_config(config, kube))
                .map_err(|problem| AppError::Kube { resource: resource(), problem })?;
        }
        SourceConfig::Informerd(relay) => {
            RelaySource::check(&relay_config(config, relay))
                .map_err(|problem| AppError::Upstream { resource: resource(), problem })?;
        }
    }
    Ok(())
}

/// Returns the filter that removes fields from objects; `None` if there are none to remove, or the source removes them itself.
pub(super) fn filter(resource: &ResourceConfig) -> Option<ObjectFilter> {
    let fields = resource.drop_fields();
    let is_removed_here = !matches!(resource.source, SourceConfig::Kube(_)) && fields != FieldCut::default();
    is_removed_here.then(|| -> ObjectFilter { Arc::new(move |object| Some(object.without(&fields))) })
}

pub(super) fn files_config(resource: &str, config: &FilesResource) -> FilesConfig {
    let FilesResource { path, kind, rescan } = config.clone();
    FilesConfig { kind, rescan, ..FilesConfig::new(path, resource) }
}

pub(super) fn stream_config(resource: &ResourceConfig, config: &StreamResource) -> StreamConfig {
    let StreamResource { path, confirm_after } = config.clone();
    let path = path.map_or(StreamPath::Stdin, StreamPath::Path);
    StreamConfig { path, resource: resource.name.clone(), confirm_after, ttl: resource.options.ttl }
}

pub(super) fn etcd_config(resource: &str, config: &EtcdResource) -> EtcdConfig {
    let EtcdResource { endpoints, prefix, credentials, tls } = config.clone();
    EtcdConfig { credentials, tls, ..EtcdConfig::new(resource, endpoints, &prefix) }
}

pub(super) fn kube_config(resource: &ResourceConfig, config: &KubeResource) -> KubeConfig {
    let KubeResource {
        group,
        version,
        plural,
        namespace,
        namespaces,
        namespace_selector,
        label_selector,
        field_selector,
        is_metadata_only,
        has_opaque_versions,
        kubeconfig,
        context,
    } = config.clone();
    let config = KubeConfig::new(&resource.name, &group, &version, &plural);
    KubeConfig {
        namespace,
        namespaces,
        namespace_selector,
        label_selector,
        field_selector,
        cluster: KubeCluster { kubeconfig, context },
        drop_fields: resource.drop_fields(),
        is_metadata_only,
        has_opaque_versions,
        ..config
    }
}

pub(super) fn relay_config(resource: &ResourceConfig, config: &RelayResource) -> RelayConfig {
    let RelayResource { endpoint, query, tls, forwards_identity: _ } = config.clone();
    let defaults = RelayConfig::new(endpoint, &query.resource);
    RelayConfig { query, tls, allows_secrets: resource.options.allow_secrets, ..defaults }
}
