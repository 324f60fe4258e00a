//! Values of the Kubernetes API that the server offers.

use serde_json::Value;

use super::{
    ValueError,
    kube::{check_group, check_plural, check_version},
    quote, text,
};
use crate::model::ApiKind;

/// Kind as which the Kubernetes API has a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubernetesName {
    /// Kind of the source, or one that is made from the name of the resource.
    Auto,
    /// Kind of this name.
    Kind(ApiKind),
}

/// Reads `auto`, or `[GROUP/]VERSION/PLURAL=KIND[,SHORT…][@cluster]`.
pub(crate) fn kubernetes_name(value: &Value) -> Result<KubernetesName, ValueError> {
    let given = text(value)?;
    if given == "auto" {
        return Ok(KubernetesName::Auto);
    }
    let expected = || {
        let what = "auto, or [GROUP/]VERSION/PLURAL=KIND[,SHORT…][@cluster] such as example.com/v1/settings=Setting";
        ValueError::new(format!("expected {what}, found {}", quote(given)))
    };
    let (rest, namespaced) = given.strip_suffix("@cluster").map_or((given, true), |rest| (rest, false));
    let (path, names) = rest.split_once('=').ok_or_else(expected)?;
    let (group_version, plural) = path.rsplit_once('/').ok_or_else(expected)?;
    let (group, version) = group_version.rsplit_once('/').unwrap_or(("", group_version));
    check_group(group)?;
    check_version(version)?;
    check_plural(plural)?;
    let mut names = names.split(',');
    let kind = names.next().filter(|kind| is_kind(kind)).ok_or_else(expected)?;
    let short_names: Vec<String> = names.map(str::to_owned).collect();
    short_names.iter().try_for_each(|name| check_plural(name))?;
    Ok(KubernetesName::Kind(ApiKind { short_names, namespaced, ..ApiKind::new(group, version, plural, kind) }))
}

fn is_kind(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// Reads `refuse` or `warn`; true for the latter.
pub(crate) fn refuse_or_warn(value: &Value) -> Result<bool, ValueError> {
    match text(value)? {
        "refuse" => Ok(false),
        "warn" => Ok(true),
        other => Err(ValueError::new(format!("expected refuse or warn, found {}", quote(other)))),
    }
}

// === impl KubernetesName ===

impl KubernetesName {
    /// Returns the kind of a resource of this name, if its source has none: `web-settings` is `WebSettings` of `informerd.dev/v1`.
    pub fn of_resource(name: &str) -> ApiKind {
        let plural = name.replace('.', "-");
        let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
        let kind: String = plural.split('-').filter(|word| !word.is_empty()).map(capital).collect();
        ApiKind::new("informerd.dev", "v1", &plural, &kind)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kind_has_a_path_and_names() {
        let read = |text: &str| kubernetes_name(&json!(text));
        assert_eq!(read("auto"), Ok(KubernetesName::Auto));
        let kind = ApiKind::new("example.com", "v1", "settings", "Setting");
        assert_eq!(kind.singular, "setting");
        assert_eq!(read("example.com/v1/settings=Setting"), Ok(KubernetesName::Kind(kind.clone())));
        let short = ApiKind { short_names: vec!["set".to_owned(), "st".to_owned()], namespaced: false, ..kind };
        assert_eq!(read("example.com/v1/settings=Setting,set,st@cluster"), Ok(KubernetesName::Kind(short)));
        assert_eq!(read("v1/things=Thing"), Ok(KubernetesName::Kind(ApiKind::new("", "v1", "things", "Thing"))));
        for text in [
            "",
            "settings",
            "v1/settings",
            "settings=Setting",
            "v1/settings=setting",
            "v1/Settings=Setting",
            "v1/s=S,UP",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert_eq!(KubernetesName::of_resource("web.shop-1").kind, "WebShop1");
    }
}
