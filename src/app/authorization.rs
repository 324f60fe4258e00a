//! Authority over the calls of authenticated clients, from the configuration.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{error::AppError, sources::configured};
use crate::{
    auth::{Authorizer, CallReviewer, ReviewAttributes, ReviewConfig, Rules},
    config::{
        self, AuthorityConfig, AuthorizationConfig, Config, ResourceConfig, SourceConfig, SubjectAccessReviewConfig,
    },
    grpc::AccessConfig,
    source::{
        kube::{KubeClients, KubeCluster, KubeReviewer},
        relay::{RelayConfig, RelayReviewer},
    },
};

/// Time for which a decision of an upstream is used: that of the decisions of Kubernetes by default.
const FORWARDED_TTL: Duration = Duration::from_secs(10);
/// Rechecks for which an open stream goes on while the authority does not answer: five minutes by default, in which an API server restarts.
const GRACE_RECHECKS: u32 = 5;

/// Returns the rights of callers by this authority.
pub(super) fn access(authorizer: Option<Authorizer>, config: &AuthorizationConfig) -> AccessConfig {
    let AuthorizationConfig { recheck, .. } = *config;
    AccessConfig { authorizer, recheck, grace: GRACE_RECHECKS * recheck }
}

/// Lets an authority decide about the resources of another configuration, and by its rules.
pub(super) fn update(authorizer: &Authorizer, config: &Config) {
    if let Some(AuthorityConfig::Rules(rules)) = &config.authorization.authority {
        authorizer.set_rules(rules.clone());
    }
    authorizer.set_kinds(kinds(config));
    authorizer.set_upstreams(upstreams(config), FORWARDED_TTL, config.limits.peer_share);
}

/// Returns the authority, which denies everything if the configuration has none; `None` without an authenticator.
pub(super) fn load(config: &Config, clients: &KubeClients) -> Result<Option<Authorizer>, AppError> {
    if config.authentication.is_none() {
        let forwarding = config.resources.values().find(|resource| forwarded(resource).is_some());
        return forwarding.map_or(Ok(None), |ResourceConfig { name, .. }| {
            let problem = format!(
                "resources.{name}.source.informerd.forward_identity: needs to know the callers; add `authentication` with an \
                 authenticator, or remove the key"
            );
            Err(AppError::of("authorization", problem))
        });
    }
    let authorizer = match &config.authorization.authority {
        None => Authorizer::of_rules(Rules::default()),
        Some(AuthorityConfig::Rules(rules)) => Authorizer::of_rules(rules.clone()),
        Some(AuthorityConfig::RulesFile(path)) => {
            let loaded = Authorizer::of_file(path, config::parse_rules);
            loaded.map_err(|error| AppError::of("authorization", error))?
        }
        Some(AuthorityConfig::SubjectAccessReview(review)) => {
            let SubjectAccessReviewConfig { ttl, kubeconfig } = review.clone();
            let cluster = KubeCluster { kubeconfig, context: None };
            KubeReviewer::check(&cluster).map_err(|problem| AppError::of("authorization", problem))?;
            let config = ReviewConfig { resources: kinds(config), ttl, peer_share: config.limits.peer_share };
            Authorizer::of_reviews(Arc::new(KubeReviewer::new(&cluster, clients)), config)
        }
    };
    Ok(Some(authorizer.forwarding(upstreams(config), FORWARDED_TTL, config.limits.peer_share)))
}

/// Returns the kinds that resources are reviewed as.
fn kinds(config: &Config) -> BTreeMap<String, ReviewAttributes> {
    config.resources.values().filter_map(|resource| Some((resource.name.clone(), kind(resource)?))).collect()
}

/// Returns the upstreams that decide about the callers of their resources.
fn upstreams(config: &Config) -> BTreeMap<String, Arc<dyn CallReviewer>> {
    let reviewer = |resource: &ResourceConfig| {
        let reviewer: Arc<dyn CallReviewer> = Arc::new(RelayReviewer::new(forwarded(resource)?));
        Some((resource.name.clone(), reviewer))
    };
    config.resources.values().filter_map(reviewer).collect()
}

/// Returns what an operator may not have meant, in one line each.
pub(super) fn warnings(config: &Config, authorizer: Option<&Authorizer>) -> Vec<String> {
    let is_forwarded = |resource: &ResourceConfig| forwarded(resource).is_some();
    let are_forwarded = !config.resources.is_empty() && config.resources.values().all(is_forwarded);
    let mut warnings = Vec::new();
    if config.authentication.is_some() && config.authorization.authority.is_none() && !are_forwarded {
        warnings.push("every call is denied; add `authorization`".to_owned());
    }
    let views = config.resources.values().map(|resource| (resource.name.as_str(), &*resource.views)).collect();
    let unknown = authorizer.map(|authorizer| authorizer.unknown_names(&views)).unwrap_or_default();
    warnings.extend(unknown.into_iter().map(|problem| format!("authorization: {problem}")));
    warnings
}

/// Logs [warnings].
pub(super) fn warn(config: &Config, authorizer: Option<&Authorizer>) {
    for warning in warnings(config, authorizer) {
        tracing::warn!("{warning}");
    }
}

/// Returns the upstream of a resource if it decides about the callers.
fn forwarded(resource: &ResourceConfig) -> Option<RelayConfig> {
    match configured(resource) {
        SourceConfig::Informerd(relay) if relay.forwards_identity => Some(relay),
        _ => None,
    }
}

/// Returns the kind that a resource is reviewed as; `None` for one that is not of Kubernetes.
fn kind(resource: &ResourceConfig) -> Option<ReviewAttributes> {
    let (group, version, plural) = match (&resource.options.authorize_as, &resource.source) {
        (Some(kind), _) => {
            let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
            (group, "", plural)
        }
        (None, SourceConfig::Kube(kube)) => (&*kube.group, &*kube.version, &*kube.plural),
        (None, _) => return None,
    };
    let [group, version, resource] = [group, version, plural].map(str::to_owned);
    Some(ReviewAttributes { group, version, resource, ..ReviewAttributes::default() })
}
