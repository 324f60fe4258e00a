//! What the configuration says of a source, as the source has it.

use std::path::Path;

use crate::{
    config::{EtcdResource, EtcdTlsConfig},
    source::{
        etcd::{EtcdConfig, EtcdTls},
        stream::StreamPath,
    },
};

pub(super) fn etcd_config(resource: &str, config: &EtcdResource) -> EtcdConfig {
    let EtcdResource { endpoints, prefix, credentials, tls } = config.clone();
    let EtcdTlsConfig { ca, identity, server_name } = tls;
    let tls = EtcdTls { ca, identity, server_name };
    EtcdConfig { credentials, tls, ..EtcdConfig::new(resource, endpoints, &prefix) }
}

pub(super) fn stream_path(path: Option<&Path>) -> StreamPath {
    path.map_or(StreamPath::Stdin, |path| StreamPath::Path(path.to_owned()))
}
