//! `informerd rbac`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
    path::PathBuf,
};

use super::{failure::Failure, print::write_all};
use crate::{
    config::{AuthorityConfig, Config, ServeFlags, SourceConfig},
    source::kube::{KubeCluster, KubeConfig},
};

pub(super) const EXAMPLES: &str = "\
Examples:
  informerd rbac informerd.yaml | kubectl apply -f -
  informerd rbac --kube pods=v1/pods

It contacts no cluster. The roles are for one service account; bind them with `kubectl create clusterrolebinding \
informerd --clusterrole informerd --serviceaccount NAMESPACE:NAME`, or `kubectl create rolebinding` for a Role.";

/// Roles of one cluster.
#[derive(Debug, Default, PartialEq, Eq)]
struct Roles<'a> {
    /// Rules for all namespaces.
    everywhere: Rules<'a>,
    /// Reviews of callers.
    reviews: Rules<'a>,
    by_namespace: BTreeMap<&'a str, Rules<'a>>,
}

const API_VERSION: &str = "rbac.authorization.k8s.io/v1";

/// Plurals by API group.
type Rules<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Kubeconfig and context.
type Cluster<'a> = (&'a Option<PathBuf>, &'a Option<String>);

pub(super) fn run(flags: &ServeFlags) -> Result<(), Failure> {
    let config = Config::load(flags)?;
    let kube = config.resources.values().filter_map(|resource| match &resource.source {
        SourceConfig::Kube(kube) => Some(kube),
        _ => None,
    });
    let mut clusters = clusters(kube);
    add_reviews(&config, &mut clusters);
    let documents: Vec<_> =
        clusters_text(&clusters).into_iter().chain(upstreams(&config).into_iter().map(impersonation)).collect();
    if documents.is_empty() {
        return Err(Failure::usage("no resource has a kube source: add one with --kube, or in the file of --config"));
    }
    Ok(write_all(documents.join("---\n").as_bytes())?)
}

fn clusters<'a>(resources: impl Iterator<Item = &'a KubeConfig>) -> BTreeMap<Cluster<'a>, Roles<'a>> {
    let mut clusters: BTreeMap<Cluster<'a>, Roles<'a>> = BTreeMap::new();
    for KubeConfig { group, plural, namespace, namespaces, namespace_selector, cluster, .. } in resources {
        let KubeCluster { kubeconfig, context } = cluster;
        let roles = clusters.entry((kubeconfig, context)).or_default();
        let named = namespaces.iter().chain([namespace]).filter(|name| !name.is_empty());
        let mut is_everywhere = true;
        for namespace in named {
            is_everywhere = false;
            roles.by_namespace.entry(namespace).or_default().entry(group).or_default().insert(plural);
        }
        if !namespace_selector.is_empty() {
            roles.everywhere.entry("").or_default().insert("namespaces");
        }
        if is_everywhere {
            roles.everywhere.entry(group).or_default().insert(plural);
        }
    }
    clusters.values_mut().for_each(Roles::reduce);
    clusters
}

/// Adds the reviews that the configuration needs.
fn add_reviews<'a>(config: &'a Config, clusters: &mut BTreeMap<Cluster<'a>, Roles<'a>>) {
    let mut add = |kubeconfig, group, plural| {
        let roles: &mut Roles<'a> = clusters.entry((kubeconfig, &None)).or_default();
        roles.reviews.entry(group).or_default().insert(plural);
    };
    let authentication = config.authentication.as_ref();
    if let Some(review) = authentication.and_then(|authentication| authentication.token_review.as_ref()) {
        add(&review.kubeconfig, "authentication.k8s.io", "tokenreviews");
    }
    if let Some(AuthorityConfig::SubjectAccessReview(review)) = &config.authorization.authority {
        add(&review.kubeconfig, "authorization.k8s.io", "subjectaccessreviews");
    }
}

/// Returns the upstreams that a relay calls on behalf of its callers.
fn upstreams(config: &Config) -> BTreeSet<&str> {
    let resources = config.resources.values().filter_map(|resource| match &resource.source {
        SourceConfig::Informerd(relay) if relay.forwards_identity => Some(relay.endpoint.uri()),
        _ => None,
    });
    resources.collect()
}

/// Returns the role that a relay needs in the cluster of an upstream. It gives no right at the API server itself.
fn impersonation(upstream: &str) -> String {
    format!(
        "# For the cluster that decides about the callers of {upstream}, if it has `subject_access_review`: to forward those of this \
         relay. `resourceNames` limits whom.\napiVersion: {API_VERSION}\nkind: ClusterRole\nmetadata:\n  name: informerd-relay\nrules:\n\
         - apiGroups: [{:?}]\n  resources: [\"groups\", \"users\"]\n  verbs: [impersonate]\n",
        "informerd"
    )
}

fn clusters_text(clusters: &BTreeMap<Cluster<'_>, Roles<'_>>) -> Vec<String> {
    let of_cluster = |(cluster, roles): (&Cluster<'_>, &Roles<'_>)| match cluster {
        (None, None) if clusters.len() == 1 => roles.to_string(),
        (kubeconfig, context) => {
            let kubeconfig = kubeconfig.as_ref().map_or("the usual kubeconfig".into(), |path| path.to_string_lossy());
            let context = context.as_ref().map_or("its current context", |context| context.as_str());
            format!("# {kubeconfig}, {context}\n{roles}")
        }
    };
    clusters.iter().map(of_cluster).collect()
}

// === impl Roles ===

impl Roles<'_> {
    /// Removes rules of a namespace that are already granted everywhere.
    fn reduce(&mut self) {
        for rules in self.by_namespace.values_mut() {
            for (group, plurals) in &mut *rules {
                plurals.retain(|plural| !self.everywhere.get(group).is_some_and(|known| known.contains(plural)));
            }
            rules.retain(|_, plurals| !plurals.is_empty());
        }
        self.by_namespace.retain(|_, rules| !rules.is_empty());
    }
}

impl Display for Roles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_cluster_role = !self.everywhere.is_empty() || !self.reviews.is_empty();
        if has_cluster_role {
            head(f, "ClusterRole", "")?;
        }
        if !self.everywhere.is_empty() {
            rules(f, &self.everywhere, "list, watch")?;
            writeln!(f, "# To notice another cluster under the same address: the uid of this namespace.")?;
            let name = "  resourceNames: [kube-system]\n";
            write!(f, "- apiGroups: [\"\"]\n  resources: [namespaces]\n{name}  verbs: [get]\n")?;
        }
        if !self.reviews.is_empty() {
            writeln!(f, "# To learn from Kubernetes who a caller is, and what it may read.")?;
            rules(f, &self.reviews, "create")?;
        }
        for (at, (namespace, of_namespace)) in self.by_namespace.iter().enumerate() {
            if at > 0 || has_cluster_role {
                writeln!(f, "---")?;
            }
            head(f, "Role", &format!("\n  namespace: {namespace:?}"))?;
            rules(f, of_namespace, "list, watch")?;
        }
        Ok(())
    }
}

fn head(f: &mut fmt::Formatter<'_>, kind: &str, metadata: &str) -> fmt::Result {
    writeln!(f, "apiVersion: {API_VERSION}\nkind: {kind}\nmetadata:\n  name: informerd{metadata}\nrules:")
}

fn rules(f: &mut fmt::Formatter<'_>, rules: &Rules<'_>, verbs: &str) -> fmt::Result {
    for (group, plurals) in rules {
        let plurals: Vec<String> = plurals.iter().map(|plural| format!("{plural:?}")).collect();
        let plurals = plurals.join(", ");
        writeln!(f, "- apiGroups: [{group:?}]\n  resources: [{plurals}]\n  verbs: [{verbs}]")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{AuthenticationConfig, ResourceConfig, SubjectAccessReviewConfig, TokenReviewConfig};
    use crate::source::relay::RelayConfig;

    fn text(clusters: &BTreeMap<Cluster<'_>, Roles<'_>>) -> String {
        clusters_text(clusters).join("---\n")
    }

    fn resource(group: &str, plural: &str, namespace: &str) -> KubeConfig {
        KubeConfig { namespace: namespace.to_owned(), ..KubeConfig::new("", group, "v1", plural) }
    }

    fn documents(resources: &[KubeConfig]) -> Vec<Value> {
        let text = text(&clusters(resources.iter()));
        text.split("---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
    }

    fn rule(group: &str, resources: &[&str]) -> Value {
        json!({"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]})
    }

    #[test]
    fn a_role_allows_only_the_requests_of_the_source() {
        let kube_system =
            json!({"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]});
        let found = documents(&[
            resource("", "pods", ""),
            resource("apps", "deployments", ""),
            resource("", "pods", "shop"),
            resource("", "services", ""),
            resource("example.com", "widgets", "shop"),
        ]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["kind"], "ClusterRole");
        let rules = [rule("", &["pods", "services"]), rule("apps", &["deployments"]), kube_system];
        assert_eq!(found[0]["rules"], json!(rules));
        assert_eq!((&found[1]["kind"], &found[1]["metadata"]["namespace"]), (&json!("Role"), &json!("shop")));
        assert_eq!(found[1]["rules"], json!([rule("example.com", &["widgets"])]), "pods are allowed everywhere");
    }

    #[test]
    fn one_namespace_needs_no_cluster_role() {
        let found = documents(&[resource("", "secrets", "123"), resource("", "configmaps", "b")]);
        let kinds: Vec<_> =
            found.iter().map(|role| (role["kind"].as_str(), role["metadata"]["namespace"].as_str())).collect();
        assert_eq!(kinds, [(Some("Role"), Some("123")), (Some("Role"), Some("b"))]);
        let several = KubeConfig { namespaces: vec!["a".into(), "b".into()], ..resource("", "pods", "") };
        let found = documents(&[several]);
        assert_eq!(found.iter().map(|role| &role["metadata"]["namespace"]).collect::<Vec<_>>(), ["a", "b"]);
        let selected = KubeConfig { namespace_selector: "a=b".to_owned(), ..resource("", "pods", "") };
        let found = documents(&[selected]);
        assert_eq!(
            (&found[0]["kind"], &found[0]["rules"][0]),
            (&json!("ClusterRole"), &rule("", &["namespaces", "pods"]))
        );
    }

    #[test]
    fn reviews_of_callers_are_for_the_whole_cluster() {
        let review = AuthorityConfig::SubjectAccessReview(SubjectAccessReviewConfig::default());
        let mut config = Config::default();
        config.authorization.authority = Some(review);
        config.authentication = Some(AuthenticationConfig {
            token_review: Some(TokenReviewConfig::default()),
            ..AuthenticationConfig::default()
        });
        let pods = [resource("", "pods", "shop")];
        let mut clusters = clusters(pods.iter());
        add_reviews(&config, &mut clusters);
        let text = text(&clusters);
        let found: Vec<Value> = text.split("---\n").map(|text| serde_saphyr::from_str(text).unwrap()).collect();
        let kinds: Vec<_> = found.iter().map(|role| role["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["ClusterRole", "Role"]);
        let create =
            |group: &str, plural: &str| json!({"apiGroups": [group], "resources": [plural], "verbs": ["create"]});
        let reviews =
            [create("authentication.k8s.io", "tokenreviews"), create("authorization.k8s.io", "subjectaccessreviews")];
        assert_eq!(found[0]["rules"], json!(reviews));
        assert_eq!(found[1]["rules"], json!([rule("", &["pods"])]));
    }

    #[test]
    fn a_relay_that_forwards_identities_needs_the_right_to_impersonate() {
        let mut config = Config::default();
        for (name, forwards_identity) in [("a", true), ("b", true), ("c", false)] {
            let endpoint = format!("https://{name}:1").parse().unwrap();
            let relay = RelayConfig { forwards_identity, ..RelayConfig::new(endpoint, name) };
            let source = SourceConfig::Informerd(relay);
            let (indexers, views, options) = Default::default();
            config
                .resources
                .insert(name.to_owned(), ResourceConfig { name: name.to_owned(), source, indexers, views, options });
        }
        let upstreams = upstreams(&config);
        assert_eq!(Vec::from_iter(upstreams), ["https://a:1", "https://b:1"]);
        let text = impersonation("https://a:1");
        assert!(text.starts_with("# For the cluster that decides about the callers of https://a:1,"), "{text}");
        let document: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(document["metadata"]["name"], "informerd-relay", "not the role of the server itself");
        let rule = json!({"apiGroups": ["informerd"], "resources": ["groups", "users"], "verbs": ["impersonate"]});
        assert_eq!(document["rules"], json!([rule]));
    }

    #[test]
    fn each_cluster_has_roles_of_its_own() {
        let mut other = resource("", "pods", "");
        other.cluster.context = Some("other".to_owned());
        let resources = [resource("", "pods", ""), other];
        let text = text(&clusters(resources.iter()));
        assert!(text.contains("# the usual kubeconfig, other\n") && text.matches("ClusterRole").count() == 2, "{text}");
    }
}
