//! Keys and flags of the `kube` source.

use super::{
    ServeFlags, SourceConfig,
    flags::Flagged,
    section::Section,
    value::{
        self, ValueError,
        kube::{check_group, check_namespace, check_plural, check_version},
        quote,
    },
};
use crate::{
    model::{IndexFunc, Indexers},
    source::kube::{KubeCluster, KubeConfig},
};

/// Keys of `PartialObjectMetadata`.
const PARTIAL_KEYS: [&str; 3] = ["apiVersion", "kind", "metadata"];
const WITHOUT: &str = "this informerd was built without the Kubernetes API (cargo feature `kube`); use another source";

/// Reads the section of one resource.
pub(super) fn resolve(section: &Section<'_>, index_section: &Section<'_>, indexers: &Indexers) -> Option<SourceConfig> {
    if !cfg!(feature = "kube") {
        section.add_here(WITHOUT);
        return None;
    }
    let mut kube = KubeConfig::new("", "", "", "").read(section);
    let written = section.written_of(&["namespace", "namespaces", "namespace_selector"]);
    for leaf in written.iter().skip(1) {
        section.add(leaf, format!("excludes `{}`; keep one", written[0]));
    }
    if let Some(leaf) = written.first().filter(|first| **first != "namespace" && kube.has_opaque_versions) {
        let problem =
            "needs the API's own versions; remove `versions: opaque`, or configure one resource per namespace";
        section.add(leaf, problem);
    }
    if kube.is_metadata_only {
        check_indexes(index_section, indexers);
    }
    kube.cluster.kubeconfig = kube.cluster.kubeconfig.map(|path| section.relative(&path));
    Some(SourceConfig::Kube(kube))
}

/// Rejects indexes by fields that metadata-only objects do not have. This cannot be decided for an expression.
fn check_indexes(section: &Section<'_>, indexers: &Indexers) {
    for (name, func) in indexers.iter() {
        let IndexFunc::Path(path) = func else { continue };
        if path.first_key().is_none_or(|first| !PARTIAL_KEYS.contains(&first)) {
            let problem = format!(
                "path {path:?} has no value under metadata_only; write a path below .metadata, or remove metadata_only",
                path = path.as_str()
            );
            section.input().add(&format!("{}.path", section.at(name)), problem);
        }
    }
}

/// Reads `NAME=[GROUP/]VERSION/PLURAL[@NAMESPACE]`.
pub(super) fn parse_flag<'t>(text: &'t str, flags: &ServeFlags) -> Flagged<'t> {
    if !cfg!(feature = "kube") {
        return Err(ValueError::new(WITHOUT));
    }
    let expected = || {
        let what = "NAME=[GROUP/]VERSION/PLURAL[@NAMESPACE] such as web=apps/v1/deployments@shop";
        ValueError::new(format!("expected {what}, found {}", quote(text)))
    };
    let (name, rest) = text.split_once('=').ok_or_else(expected)?;
    value::check_resource_name(name)?;
    let (path, namespace) = rest.split_once('@').unwrap_or((rest, ""));
    let (group_version, plural) = path.rsplit_once('/').ok_or_else(expected)?;
    let (group, version) = group_version.rsplit_once('/').unwrap_or(("", group_version));
    check_group(group)?;
    check_version(version)?;
    check_plural(plural)?;
    check_namespace(namespace)?;
    let kube = KubeConfig {
        namespace: namespace.to_owned(),
        cluster: KubeCluster { kubeconfig: flags.kubeconfig.clone(), context: flags.kube_context.clone() },
        ..KubeConfig::new("", group, version, plural)
    };
    Ok((name, SourceConfig::Kube(kube)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_a_kind_and_perhaps_a_namespace() {
        for (text, group, version, plural, namespace) in [
            ("a=v1/pods", "", "v1", "pods", ""),
            ("a=/v1/pods@shop", "", "v1", "pods", "shop"),
            ("a=apps/v1/deployments", "apps", "v1", "deployments", ""),
            ("a=example.com/v1beta1/widgets@x", "example.com", "v1beta1", "widgets", "x"),
        ] {
            let kube = KubeConfig { namespace: namespace.to_owned(), ..KubeConfig::new("", group, version, plural) };
            assert_eq!(parse_flag(text, &ServeFlags::default()), Ok(("a", SourceConfig::Kube(kube))), "{text}");
        }
        for (text, problem) in [
            ("a", "expected NAME="),
            ("a=pods", "expected NAME="),
            ("a=v1/", "as in API paths"),
            ("a=v1/Pods", "as in API paths"),
            ("a=a/b/v1/pods", "an API group"),
            ("a=v1/pods@a,b", "one namespace"),
            ("A=v1/pods", "resource name has"),
        ] {
            assert!(parse_flag(text, &ServeFlags::default()).unwrap_err().to_string().contains(problem), "{text}");
        }
    }

    #[test]
    #[cfg(not(feature = "kube"))]
    fn a_build_without_the_kube_feature_rejects_kube_sources() {
        let flagged = parse_flag("pods=v1/pods", &ServeFlags::default());
        assert!(flagged.unwrap_err().to_string().contains("built without the Kubernetes API"));
        let errors = Input::none(|section| {
            assert!(resolve(section, section, &Indexers::default()).is_none());
            section.input().errors.take()
        });
        assert!(errors.to_string().contains("built without the Kubernetes API"));
    }
}
