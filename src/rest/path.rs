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
    /// Objects of a resource under its own name.
    Resource(Resource),
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

/// Objects of a resource under its own name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) name: String,
    pub(super) read: ResourceRead,
}

/// Read of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResourceRead {
    List,
    Watch,
    /// Namespace, which is empty for an object without one, and name.
    Get(String, String),
}

/// Namespace in the path of an object that has none.
const NO_NAMESPACE: &str = "-";
const REVIEWS: [&str; 3] = ["authorization.k8s.io", "v1", "selfsubjectaccessreviews"];

// === impl Target ===

impl Target {
    pub(super) fn of(path: &str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        let parts: Option<Vec<String>> =
            path.split('/').map(decode).map(|part| part.filter(|part| !part.is_empty())).collect();
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
            ["v1", name] if !name.is_empty() => Self::resource(name, ResourceRead::List),
            ["v1", name, "watch"] => Self::resource(name, ResourceRead::Watch),
            ["v1", name, namespace, object] => {
                let namespace = if namespace == NO_NAMESPACE { "" } else { namespace };
                Self::resource(name, ResourceRead::Get(namespace.to_owned(), object.to_owned()))
            }
            _ => Self::Unknown,
        }
    }

    fn resource(name: &str, read: ResourceRead) -> Self {
        Self::Resource(Resource { name: name.to_owned(), read })
    }

    fn objects(group: &str, version: &str, rest: &[&str]) -> Self {
        let (namespace, plural, name) = match *rest {
            ["namespaces", namespace, plural] => (namespace, plural, ""),
            ["namespaces", namespace, plural, name] => (namespace, plural, name),
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
            ("/v1/pods", Target::resource("pods", ResourceRead::List)),
            ("/v1/pods/watch", Target::resource("pods", ResourceRead::Watch)),
            ("/v1/pods/shop/a%2Fb", Target::resource("pods", ResourceRead::Get("shop".to_owned(), "a/b".to_owned()))),
            ("/v1/nodes/-/watch", Target::resource("nodes", ResourceRead::Get(String::new(), "watch".to_owned()))),
            ("/v1/pods/x", Target::Unknown),
            ("/v1", Target::Unknown),
            ("/", Target::Unknown),
            ("/api/v1/pods/", objects("", "pods", "", "")),
            ("//api/v1/pods", Target::Unknown),
            ("/api/v1/pods//", Target::Unknown),
            ("/apis/apps", Target::Unknown),
            ("/api/v1/namespaces/shop/pods/a/log", Target::Unknown),
            ("/api/v1/%ff", Target::Unknown),
        ] {
            assert_eq!(Target::of(path), expected, "{path}");
        }
    }
}
