//! The keys and flags of the `kube` source.

use std::{path::Path as FilePath, time::Duration};

use serde_json::Value;

use super::{
    KubeResource, SourceConfig,
    error::ConfigErrors,
    keys,
    raw::{RawKube, ServeFlags},
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

/// What is large in every object, and of use to writers alone.
const DROP_FIELDS: [&str; 2] =
    ["metadata.managedFields", "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']"];
/// The keys of `PartialObjectMetadata`.
const PARTIAL_KEYS: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// As a DNS label and as a DNS subdomain.
const MAX_LABEL_BYTES: usize = 63;
const MAX_GROUP_BYTES: usize = 253;
/// A third of it is the time between signs of life, which must leave an API server under load the time to answer.
const MIN_CONTACT_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_CONTACT_TIMEOUT: Duration = Duration::from_secs(300);
/// Each has a watch of its own.
const MAX_NAMESPACES: usize = 100;
const MAX_PAGE_SIZE: u32 = 100_000;
/// A watch costs the API server some requests each time that it is opened.
const MIN_WATCH_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_WATCH_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
const WITHOUT: &str = "this informerd was built without the Kubernetes API (cargo feature `kube`); use another source";

/// Refuses indexes by what objects with nothing but metadata do not have. Of an expression that cannot be decided.
pub(super) fn check_indexes(key: &str, indexers: &Indexers, errors: &mut ConfigErrors) {
    for (name, func) in indexers.iter() {
        let IndexFunc::Path(path) = func else { continue };
        if path.first_key().is_none_or(|first| !PARTIAL_KEYS.contains(&first)) {
            let problem = format!(
                "no object has a value at {path:?}: metadata_only keeps nothing else; write a path below .metadata, or \
                 remove metadata_only",
                path = path.as_str()
            );
            errors.add(&format!("{key}.{}.path", keys::join(&[name])), problem);
        }
    }
}

/// Reads the section of one resource.
pub(super) fn resolve(
    key: &str,
    raw: &RawKube,
    directory: &FilePath,
    drop_fields: FieldCut,
    errors: &mut ConfigErrors,
) -> Option<SourceConfig> {
    if !cfg!(feature = "kube") {
        errors.add(key, WITHOUT);
        return None;
    }
    let at = |leaf: &str| format!("{key}.{leaf}");
    for (leaf, written, example) in [("version", &raw.version, "v1"), ("plural", &raw.plural, "pods")] {
        if written.is_none() {
            errors.add(&at(leaf), format!("is missing; write for example {example}"));
        }
    }
    let mut read = |leaf: &str, written: Option<&Value>, check: fn(&str) -> Result<(), ValueError>| {
        let text = |value: &Value| value::text(value).and_then(|text| check(text).map(|()| text.to_owned()));
        errors.read(&at(leaf), written, text)
    };
    let group = read("group", raw.group.as_ref(), check_group);
    let version = read("version", raw.version.as_ref(), check_version);
    let plural = read("plural", raw.plural.as_ref(), check_plural);
    let namespace = read("namespace", raw.namespace.as_ref(), check_namespace);
    let label_selector = read("label_selector", raw.label_selector.as_ref(), check_label_selector);
    let field_selector = read("field_selector", raw.field_selector.as_ref(), |_| Ok(()));
    let namespace_selector = read("namespace_selector", raw.namespace_selector.as_ref(), check_namespace_selector);
    let context = read("context", raw.context.as_ref(), |_| Ok(()));
    let metadata_only = errors.read(&at("metadata_only"), raw.metadata_only.as_ref(), value::boolean);
    let page_size = errors.read(&at("page_size"), raw.page_size.as_ref(), read_page_size);
    let watch_timeout = errors.read(&at("watch_timeout"), raw.watch_timeout.as_ref(), read_watch_timeout);
    let versions = errors.read(&at("versions"), raw.versions.as_ref(), read_versions);
    let namespaces = errors.read(&at("namespaces"), raw.namespaces.as_ref(), read_namespaces);
    let written = [
        ("namespace", raw.namespace.is_some()),
        ("namespaces", raw.namespaces.is_some()),
        ("namespace_selector", raw.namespace_selector.is_some()),
    ];
    let written: Vec<_> = written.into_iter().filter(|(_, is_written)| *is_written).map(|(leaf, _)| leaf).collect();
    for leaf in written.iter().skip(1) {
        errors.add(&at(leaf), format!("is another way to write `{}`; keep one", written[0]));
    }
    if let Some(leaf) = written.first().filter(|first| **first != "namespace" && versions == Some(true)) {
        errors.add(
            &at(leaf),
            "needs the versions of the API; remove `versions: opaque`, or configure a resource for each",
        );
    }
    let kubeconfig = errors.read(&at("kubeconfig"), raw.kubeconfig.as_ref(), value::file);
    let contact_timeout = errors.read(&at("contact_timeout"), raw.contact_timeout.as_ref(), read_contact_timeout);
    Some(SourceConfig::Kube(KubeResource {
        group: group.unwrap_or_default(),
        version: version?,
        plural: plural?,
        namespace: namespace.unwrap_or_default(),
        namespaces: namespaces.unwrap_or_default(),
        namespace_selector: namespace_selector.unwrap_or_default(),
        label_selector: label_selector.unwrap_or_default(),
        field_selector: field_selector.unwrap_or_default(),
        is_metadata_only: metadata_only.unwrap_or_default(),
        page_size,
        watch_timeout,
        has_opaque_versions: versions.unwrap_or_default(),
        kubeconfig: kubeconfig.map(|path| directory.join(path).components().collect()),
        context,
        contact_timeout,
        drop_fields,
    }))
}

/// What is not kept of bodies.
pub(super) fn drop_fields(key: &str, written: Option<&Value>, errors: &mut ConfigErrors) -> FieldCut {
    errors.read(key, written, read_drop_fields).unwrap_or_else(default_drop_fields)
}

/// The resources that flags name.
pub(super) fn flagged(flags: &ServeFlags, errors: &mut ConfigErrors) -> Vec<(&'static str, String, SourceConfig)> {
    let mut sources = Vec::new();
    for text in &flags.kube {
        if !cfg!(feature = "kube") {
            errors.add("--kube", WITHOUT);
        } else if let Some(flag) = errors.check("--kube", parse_flag(text)) {
            let resource = KubeResource {
                group: flag.group.to_owned(),
                version: flag.version.to_owned(),
                plural: flag.plural.to_owned(),
                namespace: flag.namespace.to_owned(),
                kubeconfig: flags.kubeconfig.clone(),
                context: flags.kube_context.clone(),
                contact_timeout: None,
                drop_fields: default_drop_fields(),
                ..KubeResource::default()
            };
            sources.push(("--kube", flag.name.to_owned(), SourceConfig::Kube(resource)));
        }
    }
    sources
}

fn default_drop_fields() -> FieldCut {
    let paths = DROP_FIELDS.iter().filter_map(|path| Path::parse(path).ok());
    FieldCut::new(paths).unwrap_or_default()
}

fn read_drop_fields(value: &Value) -> Result<FieldCut, ValueError> {
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

fn read_contact_timeout(value: &Value) -> Result<Duration, ValueError> {
    let time = value::positive_duration(value)?;
    if (MIN_CONTACT_TIMEOUT..=MAX_CONTACT_TIMEOUT).contains(&time) {
        return Ok(time);
    }
    Err(ValueError::new(format!("expected a duration from 3s to 5m, found {}", value::found(value))))
}

/// Returns how many objects a page has.
fn read_page_size(value: &Value) -> Result<u32, ValueError> {
    let size =
        value.as_u64().and_then(|size| u32::try_from(size).ok()).filter(|size| (1..=MAX_PAGE_SIZE).contains(size));
    size.ok_or_else(|| {
        ValueError::new(format!(
            "expected a number of objects from 1 to {MAX_PAGE_SIZE}, found {}",
            value::found(value)
        ))
    })
}

fn read_watch_timeout(value: &Value) -> Result<Duration, ValueError> {
    let timeout = value::duration(value)?;
    if !(MIN_WATCH_TIMEOUT..=MAX_WATCH_TIMEOUT).contains(&timeout) {
        return Err(ValueError::new(format!("expected a duration from 10s to 24h, found {}", value::found(value))));
    }
    Ok(timeout)
}

fn read_namespaces(value: &Value) -> Result<Vec<String>, ValueError> {
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

/// Returns whether versions are opaque.
fn read_versions(value: &Value) -> Result<bool, ValueError> {
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

fn check_group(text: &str) -> Result<(), ValueError> {
    let is_group = text.len() <= MAX_GROUP_BYTES && text.split('.').all(is_label);
    check(is_group || text.is_empty(), "an API group such as apps, or \"\" for the core", text)
}

fn check_version(text: &str) -> Result<(), ValueError> {
    check(is_label(text), "a version of an API such as v1", text)
}

fn check_plural(text: &str) -> Result<(), ValueError> {
    check(is_label(text), "a kind as it is written in paths, such as pods", text)
}

fn check_namespace(text: &str) -> Result<(), ValueError> {
    check(is_label(text) || text.is_empty(), "one namespace, or \"\" for all", text)
}

fn check_namespace_selector(text: &str) -> Result<(), ValueError> {
    check(!text.trim().is_empty(), "a label selector such as team=shop", text)?;
    check_label_selector(text)
}

fn check_label_selector(text: &str) -> Result<(), ValueError> {
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
        let mut errors = ConfigErrors::default();
        let flags = ServeFlags { kube: vec!["pods=v1/pods".to_owned()], ..ServeFlags::default() };
        assert!(flagged(&flags, &mut errors).is_empty());
        assert!(resolve("a", &RawKube::default(), FilePath::new(""), FieldCut::default(), &mut errors).is_none());
        assert_eq!(errors.to_string().matches("built without the Kubernetes API").count(), 2);
    }

    #[test]
    fn what_is_dropped_unless_it_is_said_can_be() {
        let json = br#"{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}","a":"b"},"managedFields":[]}}"#;
        assert_eq!(&*default_drop_fields().apply(json), br#"{"metadata":{"annotations":{"a":"b"}}}"#);
    }
}
