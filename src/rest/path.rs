//! Paths of requests.

use percent_encoding::percent_decode_str;

/// Target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// `/readyz`, `/livez`, `/healthz`.
    Probe,
    Version,
    /// `/api` or `/apis`.
    Groups {
        is_core: bool,
    },
    /// Kinds of one group and version.
    GroupVersion {
        group: String,
        version: String,
    },
    Objects(Objects),
    /// A `SelfSubjectAccessReview`.
    Review,
    Unknown,
}

/// Objects of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Objects {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    /// Namespace; empty for all.
    pub(super) namespace: String,
    /// Name of one object; empty for all.
    pub(super) name: String,
}

const REVIEWS: [&str; 3] = ["authorization.k8s.io", "v1", "selfsubjectaccessreviews"];

// === impl Target ===

impl Target {
    pub(super) fn of(path: &str) -> Self {
        let parts: Option<Vec<String>> = path.trim_matches('/').split('/').map(decode).collect();
        let parts = parts.unwrap_or_default();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts[..] {
            ["readyz" | "livez" | "healthz", ..] => Self::Probe,
            ["version"] => Self::Version,
            ["api"] => Self::Groups { is_core: true },
            ["apis"] => Self::Groups { is_core: false },
            ["api", version] => Self::GroupVersion { group: String::new(), version: version.to_owned() },
            ["apis", group, version] => Self::GroupVersion { group: group.to_owned(), version: version.to_owned() },
            ["apis", ref rest @ ..] if *rest == REVIEWS => Self::Review,
            ["api", version, ref rest @ ..] => Self::objects("", version, rest),
            ["apis", group, version, ref rest @ ..] => Self::objects(group, version, rest),
            _ => Self::Unknown,
        }
    }

    fn objects(group: &str, version: &str, rest: &[&str]) -> Self {
        let (namespace, plural, name) = match *rest {
            ["namespaces", namespace, plural] if !namespace.is_empty() => (namespace, plural, ""),
            ["namespaces", namespace, plural, name] if !namespace.is_empty() => (namespace, plural, name),
            [plural] => ("", plural, ""),
            [plural, name] => ("", plural, name),
            _ => return Self::Unknown,
        };
        let [group, version, plural, namespace, name] = [group, version, plural, namespace, name].map(str::to_owned);
        Self::Objects(Objects { group, version, plural, namespace, name })
    }
}

fn decode(part: &str) -> Option<String> {
    percent_decode_str(part).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_kind_a_namespace_and_an_object() {
        let objects = |group: &str, plural: &str, namespace: &str, name: &str| {
            let [group, plural, namespace, name] = [group, plural, namespace, name].map(str::to_owned);
            Target::Objects(Objects { group, version: "v1".to_owned(), plural, namespace, name })
        };
        for (path, expected) in [
            ("/api/v1/pods", objects("", "pods", "", "")),
            ("/api/v1/namespaces/shop/pods", objects("", "pods", "shop", "")),
            ("/api/v1/namespaces/shop/pods/a%2Fb", objects("", "pods", "shop", "a/b")),
            ("/api/v1/namespaces/shop", objects("", "namespaces", "", "shop")),
            ("/api/v1/namespaces", objects("", "namespaces", "", "")),
            ("/apis/apps/v1/deployments", objects("apps", "deployments", "", "")),
            ("/apis/apps/v1/namespaces/shop/deployments/web", objects("apps", "deployments", "shop", "web")),
            ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", Target::Review),
            ("/api/", Target::Groups { is_core: true }),
            ("/readyz", Target::Probe),
            ("/", Target::Unknown),
            ("/apis/apps", Target::Unknown),
            ("/api/v1/namespaces/shop/pods/a/log", Target::Unknown),
            ("/api/v1/%ff", Target::Unknown),
        ] {
            assert_eq!(Target::of(path), expected, "{path}");
        }
    }
}
