//! Source of a resource from its configuration, and the check that it can be read.

use std::sync::Arc;

use super::error::AppError;
use crate::{
    cache::ObjectFilter,
    config::{ResourceConfig, SourceConfig},
    model::FieldCut,
    source::{
        etcd::{EtcdConfig, EtcdSource},
        files::{FilesConfig, FilesSource},
        kube::{KubeConfig, KubeSource},
        relay::{RelayConfig, RelaySource},
        stream::{StreamConfig, StreamSource},
    },
};

/// Checks that the source of a resource can be read now.
pub(super) fn check(config: &ResourceConfig) -> Result<(), AppError> {
    // The configuration may be the program's own, not loaded from a file.
    config.check_secrets().map_err(AppError::new)?;
    config.check_kubernetes().map_err(AppError::new)?;
    let advice = "correct the path, or give the user of informerd permission to read it";
    let problem = match &configured(config) {
        SourceConfig::Own => None,
        SourceConfig::Files(files) => FilesSource::check(&files.path).err().map(|error| error.to_string()),
        SourceConfig::Stream(stream) => StreamSource::check(&stream.path).err().map(|error| error.to_string()),
        SourceConfig::Etcd(etcd) => EtcdSource::check(etcd).err().map(|problem| format!("{problem}; {advice}")),
        SourceConfig::Kube(kube) => KubeSource::check(kube).err(),
        SourceConfig::Informerd(relay) => RelaySource::check(relay).err().map(|problem| format!("{problem}; {advice}")),
    };
    problem.map_or(Ok(()), |problem| Err(AppError::of_resource(&config.name, problem)))
}

/// Returns the filter that removes fields from objects; `None` if there are none to remove, or the source removes them itself.
pub(super) fn filter(resource: &ResourceConfig) -> Option<ObjectFilter> {
    let fields = resource.drop_fields();
    let is_removed_here = !matches!(resource.source, SourceConfig::Kube(_)) && fields != FieldCut::default();
    is_removed_here.then(|| -> ObjectFilter { Arc::new(move |object| Some(object.without(&fields))) })
}

/// Returns the source of a resource, with the resource's name and those of its options that the source applies.
pub(super) fn configured(resource: &ResourceConfig) -> SourceConfig {
    let (name, options) = (resource.name.clone(), &resource.options);
    match resource.source.clone() {
        SourceConfig::Files(files) => SourceConfig::Files(FilesConfig { resource: name, ..files }),
        SourceConfig::Stream(stream) => {
            SourceConfig::Stream(StreamConfig { resource: name, ttl: options.ttl, ..stream })
        }
        SourceConfig::Etcd(etcd) => SourceConfig::Etcd(EtcdConfig { resource: name, ..etcd }),
        SourceConfig::Kube(kube) => {
            SourceConfig::Kube(KubeConfig { resource: name, drop_fields: resource.drop_fields(), ..kube })
        }
        SourceConfig::Informerd(relay) => {
            SourceConfig::Informerd(RelayConfig { allows_secrets: options.allow_secrets, ..relay })
        }
        SourceConfig::Own => SourceConfig::Own,
    }
}
