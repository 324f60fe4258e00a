//! The keys and flags of the `kube` source.

use serde_json::Value;

use super::{
    KubeResource, ServeFlags, SourceConfig,
    section::{Input, Section},
    value::{self, ValueError, quote},
};
use crate::model::{FieldCut, IndexFunc, Indexers, LabelSelector, Path};

/// `--kube NAME=[GROUP/]VERSION/PLURAL[@NAMESPACE]`, read.
#[derive(Debug, PartialEq, Eq)]
struct KubeFlag<'a> {
    name: &'a str,
    group: &'a str,
    version: &'a str,
    plural: &'a str,
    namespace: &'a str,
}

/// The keys of `PartialObjectMetadata`.
const PARTIAL_KEYS: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// As a DNS label and as a DNS subdomain.
const MAX_LABEL_BYTES: usize = 63;
const MAX_GROUP_BYTES: usize = 253;
/// Each has a watch of its own.
const MAX_NAMESPACES: usize = 100;
const WITHOUT: &str = "this informerd was built without the Kubernetes API (cargo feature `kube`); use another source";

/// Reads the section of one resource.
pub(super) fn resolve(section: &Section<'_>, index_section: &Section<'_>, indexers: &Indexers) -> Option<SourceConfig> {
    if !cfg!(feature = "kube") {
        section.add_here(WITHOUT);
        return None;
    }
    let kube = KubeResource::read(section);
    let written = section.written_of(&["namespace", "namespaces", "namespace_selector"]);
    for leaf in written.iter().skip(1) {
        section.add(leaf, format!("is another way to write `{}`; keep one", written[0]));
    }
    if let Some(leaf) = written.first().filter(|first| **first != "namespace" && kube.has_opaque_versions) {
        let problem = "needs the versions of the API; remove `versions: opaque`, or configure a resource for each";
        section.add(leaf, problem);
    }
    if kube.is_metadata_only {
        check_indexes(index_section, indexers);
    }
    let kubeconfig = kube.kubeconfig.as_deref().map(|path| section.relative(path));
    Some(SourceConfig::Kube(KubeResource { kubeconfig, ..kube }))
}

/// Refuses indexes by what objects with nothing but metadata do not have. Of an expression that cannot be decided.
fn check_indexes(section: &Section<'_>, indexers: &Indexers) {
    for (name, func) in indexers.iter() {
        let IndexFunc::Path(path) = func else { continue };
        if path.first_key().is_none_or(|first| !PARTIAL_KEYS.contains(&first)) {
            let problem = format!(
                "no object has a value at {path:?}: metadata_only keeps nothing else; write a path below .metadata, or \
                 remove metadata_only",
                path = path.as_str()
            );
            section.input().add(&format!("{}.path", section.at(name)), problem);
        }
    }
}

/// The resources that flags name.
pub(super) fn flagged(flags: &ServeFlags, input: &Input<'_>) -> Vec<(&'static str, String, SourceConfig)> {
    let mut sources = Vec::new();
    for text in &flags.kube {
        if !cfg!(feature = "kube") {
            input.add("--kube", WITHOUT);
        } else if let Some(flag) = input.check("--kube", parse_flag(text)) {
            let resource = KubeResource {
                group: flag.group.to_owned(),
                version: flag.version.to_owned(),
                plural: flag.plural.to_owned(),
                namespace: flag.namespace.to_owned(),
                kubeconfig: flags.kubeconfig.clone(),
                context: flags.kube_context.clone(),
                ..KubeResource::default()
            };
            sources.push(("--kube", flag.name.to_owned(), SourceConfig::Kube(resource)));
        }
    }
    sources
}

pub(super) fn field_paths(value: &Value) -> Result<FieldCut, ValueError> {
    let expected = || {
        ValueError::new(format!(
            "expected a list of paths such as [metadata.managedFields], found {}",
            value::found(value)
        ))
    };
    let mut paths = Vec::new();
    for path in value.as_array().ok_or_else(expected)? {
        let path = Path::parse(value::text(path)?);
        paths.push(path.map_err(|error| ValueError::new(format!("{error}; an example: metadata.managedFields")))?);
    }
    FieldCut::new(paths).map_err(|error| ValueError::new(error.to_string()))
}

pub(super) fn namespaces(value: &Value) -> Result<Vec<String>, ValueError> {
    let list = value.as_array().filter(|list| (1..=MAX_NAMESPACES).contains(&list.len()));
    let expected = || {
        let what = format!("expected a list of 1 to {MAX_NAMESPACES} namespaces such as [shop, stock]");
        ValueError::new(format!(
            "{what}, found {}",
            value.as_array().map_or(value::found(value), |list| list.len().to_string())
        ))
    };
    let mut namespaces = Vec::new();
    for value in list.ok_or_else(expected)? {
        let name = value::text(value)?;
        check(is_label(name), "a namespace", name)?;
        if namespaces.iter().any(|earlier| earlier == name) {
            return Err(ValueError::new(format!("expected each namespace once, found {} again", quote(name))));
        }
        namespaces.push(name.to_owned());
    }
    Ok(namespaces)
}

/// Reads `auto` or `opaque`.
pub(super) fn auto_or_opaque(value: &Value) -> Result<bool, ValueError> {
    match value::text(value)? {
        "auto" => Ok(false),
        "opaque" => Ok(true),
        other => Err(ValueError::new(format!("expected auto or opaque, found {}", quote(other)))),
    }
}

fn parse_flag(text: &str) -> Result<KubeFlag<'_>, ValueError> {
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
    Ok(KubeFlag { name, group, version, plural, namespace })
}

pub(super) fn check_group(text: &str) -> Result<(), ValueError> {
    let is_group = text.len() <= MAX_GROUP_BYTES && text.split('.').all(is_label);
    check(is_group || text.is_empty(), "an API group such as apps, or \"\" for the core", text)
}

pub(super) fn check_version(text: &str) -> Result<(), ValueError> {
    check(is_label(text), "a version of an API such as v1", text)
}

pub(super) fn check_plural(text: &str) -> Result<(), ValueError> {
    check(is_label(text), "a kind as it is written in paths, such as pods", text)
}

pub(super) fn check_namespace(text: &str) -> Result<(), ValueError> {
    check(is_label(text) || text.is_empty(), "one namespace, or \"\" for all", text)
}

pub(super) fn check_namespace_selector(text: &str) -> Result<(), ValueError> {
    check(!text.trim().is_empty(), "a label selector such as team=shop", text)?;
    check_label_selector(text)
}

pub(super) fn check_label_selector(text: &str) -> Result<(), ValueError> {
    LabelSelector::parse(text).map(drop).map_err(|error| ValueError::new(error.to_string()))
}

fn check(is_good: bool, what: &str, text: &str) -> Result<(), ValueError> {
    if is_good { Ok(()) } else { Err(ValueError::new(format!("expected {what}, found {}", quote(text)))) }
}

fn is_label(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    let is_inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    bytes.len() <= MAX_LABEL_BYTES && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResourceOptions;

    #[test]
    fn a_flag_is_a_kind_and_perhaps_a_namespace() {
        for (text, group, version, plural, namespace) in [
            ("a=v1/pods", "", "v1", "pods", ""),
            ("a=/v1/pods@shop", "", "v1", "pods", "shop"),
            ("a=apps/v1/deployments", "apps", "v1", "deployments", ""),
            ("a=example.com/v1beta1/widgets@x", "example.com", "v1beta1", "widgets", "x"),
        ] {
            assert_eq!(parse_flag(text), Ok(KubeFlag { name: "a", group, version, plural, namespace }), "{text}");
        }
        for (text, problem) in [
            ("a", "expected NAME="),
            ("a=pods", "expected NAME="),
            ("a=v1/", "as it is written in paths"),
            ("a=v1/Pods", "as it is written in paths"),
            ("a=a/b/v1/pods", "an API group"),
            ("a=v1/pods@a,b", "one namespace"),
            ("A=v1/pods", "name of a resource"),
        ] {
            assert!(parse_flag(text).unwrap_err().to_string().contains(problem), "{text}");
        }
    }

    #[test]
    #[cfg(not(feature = "kube"))]
    fn a_build_without_it_says_so() {
        let flags = ServeFlags { kube: vec!["pods=v1/pods".to_owned()], ..ServeFlags::default() };
        let errors = Input::none(|section| {
            assert!(flagged(&flags, section.input()).is_empty());
            assert!(resolve(section, section, &Indexers::default()).is_none());
            section.input().errors.take()
        });
        assert_eq!(errors.to_string().matches("built without the Kubernetes API").count(), 2);
    }

    #[test]
    fn what_is_dropped_unless_it_is_said_can_be() {
        let json = br#"{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}","a":"b"},"managedFields":[]}}"#;
        assert_eq!(&*ResourceOptions::default().drop_fields.apply(json), br#"{"metadata":{"annotations":{"a":"b"}}}"#);
    }
}
