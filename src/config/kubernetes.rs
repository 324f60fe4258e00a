//! Checks of what the Kubernetes API serves.

use std::collections::BTreeMap;

use super::{
    Config, GeneralConfig, KubernetesConfig, KubernetesName, ListenAddr, ResourceConfig, SourceConfig,
    section::Section, value::ValueError,
};
use crate::model::{ApiKind, FieldCut, Path};

const WITHOUT: &str = "this informerd was built without it (cargo feature `kubernetes-api`); remove the key";

/// Reads the section, and checks its address like that of gRPC.
pub(super) fn resolve(section: &Section<'_>, general: &GeneralConfig, has_tls: bool) -> KubernetesConfig {
    let config = KubernetesConfig::read(section);
    let Some(listen) = &config.listen else { return config };
    if !cfg!(feature = "kubernetes-api") {
        section.add("listen", WITHOUT);
    } else if !listen.is_local() && !general.insecure && !has_tls {
        let problem = format!(
            "{listen} is not loopback and has no `tls`: add `tls: {{ cert: ..., key: ... }}`, or --insecure (or \
             `insecure: true`) to serve it in plain text, or listen on 127.0.0.1:8001"
        );
        section.add("listen", problem);
    } else if *listen == general.listen && !matches!(listen, ListenAddr::Tcp(address) if address.port() == 0) {
        section.add("listen", format!("{listen} is already the address of gRPC (listen); choose another port"));
    }
    config
}

/// Checks that no two resources are of one kind.
pub(super) fn check_kinds(section: &Section<'_>, resources: &BTreeMap<String, ResourceConfig>) {
    let mut kinds: BTreeMap<(String, String, String), &String> = BTreeMap::new();
    for (name, resource) in resources {
        let Some(ApiKind { group, version, plural, .. }) = resource.api_kind() else { continue };
        let kind = format!("{version}/{plural} of the group {group:?}");
        if let Some(earlier) = kinds.insert((group, version, plural), name) {
            section.add(name, format!("has `kubernetes` as {kind}, like `{earlier}`; give one of them another kind"));
        }
    }
}

// === impl ResourceConfig ===

impl ResourceConfig {
    /// Returns the kind as which the Kubernetes API serves the resource, if it does. That of a kube source has no kind: its source
    /// reports it.
    pub fn api_kind(&self) -> Option<ApiKind> {
        let columns = self.options.kubernetes_columns.clone();
        let kind = match (self.options.kubernetes.as_ref()?, &self.source) {
            (KubernetesName::Kind(kind), _) => kind.clone(),
            (KubernetesName::Auto, SourceConfig::Kube(kube)) => {
                ApiKind::new(&kube.group, &kube.version, &kube.plural, "")
            }
            (KubernetesName::Auto, _) => KubernetesName::of_resource(&self.name),
        };
        Some(ApiKind { columns, ..kind })
    }

    /// Checks that clients of Kubernetes can be served.
    ///
    /// # Errors
    ///
    /// Why not, and what to do about it.
    pub fn check_kubernetes(&self) -> Result<(), ValueError> {
        if self.options.kubernetes.is_none() {
            return if self.options.kubernetes_columns.is_empty() {
                Ok(())
            } else {
                let problem =
                    "`kubernetes_columns` is without `kubernetes`; add `kubernetes: auto`, or remove the columns";
                Err(ValueError::new(format!("resource {:?}: {problem}", self.name)))
            };
        }
        let refuse = |problem: &str| Err(ValueError::new(format!("resource {:?}: `kubernetes` {problem}", self.name)));
        match &self.source {
            SourceConfig::Files(_) | SourceConfig::Stream(_) => {
                return refuse(
                    "needs versions that are integers in the order of the changes, also across restarts, and a `files` or `stream` \
                     source has none; remove the key, or use another source",
                );
            }
            SourceConfig::Kube(kube) if kube.has_opaque_versions => {
                return refuse("needs the API's own versions; remove `versions: opaque`, or the key");
            }
            SourceConfig::Kube(kube) if !kube.namespaces.is_empty() || !kube.namespace_selector.is_empty() => {
                return refuse(
                    "needs one list, and each of several namespaces has its own: clients that resume from the version of an object \
                     would miss changes of the others; configure one resource for all namespaces",
                );
            }
            _ => {}
        }
        if self.views.is_required() {
            return refuse(
                "serves whole objects, and `allowed_views` allows nobody to read them: a request of the Kubernetes API names no view; \
                 remove one of the keys",
            );
        }
        if self.options.read_only_clients {
            return Ok(());
        }
        let is_part = match &self.source {
            SourceConfig::Kube(kube) => kube.is_metadata_only,
            SourceConfig::Informerd(relay) => relay.query.view.is_some(),
            _ => false,
        };
        if is_part {
            return refuse(
                "serves a part of each object; a client that writes it back erases the rest: remove the view, or add \
                           `read_only_clients: true`",
            );
        }
        let managed = Path::parse(".metadata.managedFields").ok().and_then(|path| FieldCut::new([path]).ok());
        let dropped = self.drop_fields();
        if dropped != FieldCut::default() && Some(dropped) != managed {
            return refuse(
                "and `drop_fields`: a client that writes an object back erases the fields that it does not receive; write \
                           `drop_fields: [.metadata.managedFields]`, which the API server keeps, or add `read_only_clients: true`",
            );
        }
        Ok(())
    }
}

// === impl Config ===

impl Config {
    /// Returns the address of the Kubernetes API, if this build has it.
    pub fn kubernetes_listen(&self) -> Option<&ListenAddr> {
        self.kubernetes.listen.as_ref().filter(|_| cfg!(feature = "kubernetes-api"))
    }
}
