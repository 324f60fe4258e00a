//! Authority over the calls of authenticated clients, from the configuration.

use std::sync::Arc;

use super::error::AppError;
use crate::{
    auth::{Authorizer, ReviewAttributes, ReviewConfig, Rules},
    config::{self, AuthorityConfig, Config, ResourceConfig, SourceConfig, SubjectAccessReviewConfig},
    source::kube::{KubeClients, KubeCluster, KubeReviewer},
};

/// Returns the authority, which denies everything if the configuration has none; `None` without an authenticator.
pub(super) fn load(config: &Config, clients: &KubeClients) -> Result<Option<Authorizer>, AppError> {
    if config.authentication.is_none() {
        return Ok(None);
    }
    Ok(Some(match &config.authorization.authority {
        None => Authorizer::of_rules(Rules::default()),
        Some(AuthorityConfig::Rules(rules)) => Authorizer::of_rules(rules.clone()),
        Some(AuthorityConfig::RulesFile(path)) => {
            let loaded = Authorizer::of_file(path, config::parse_rules);
            loaded.map_err(|error| AppError::Authorization { problem: error.to_string() })?
        }
        Some(AuthorityConfig::SubjectAccessReview(review)) => {
            let SubjectAccessReviewConfig { ttl, group, kubeconfig, context } = review.clone();
            let cluster = KubeCluster { kubeconfig, context };
            KubeReviewer::check(&cluster).map_err(|problem| AppError::Authorization { problem })?;
            let resources = config.resources.values();
            let resources = resources.filter_map(|resource| Some((resource.name.clone(), kind(resource)?))).collect();
            let namespaces = config.authorization.namespaces;
            let reviewer = KubeReviewer::new(&cluster, clients);
            Authorizer::of_reviews(Arc::new(reviewer), ReviewConfig { resources, group, ttl, namespaces })
        }
    }))
}

/// Logs what an operator may not have meant.
pub(super) fn warn(config: &Config) {
    if config.authentication.is_some() && config.authorization.authority.is_none() {
        tracing::warn!("every call is denied; add `authorization`");
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
