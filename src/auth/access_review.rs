//! Decisions of another authority about each access: Kubernetes' `SubjectAccessReview`.
//!
//! Each verb that an operation needs is reviewed alone, first for all namespaces, then for each namespace that matters. Decisions
//! are kept for a while; without one, and without an answer, the call is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    access::{AccessError, Attributes, Format, Names, Operation, Scope},
    decisions::{Decisions, HeapBytes, ReviewMetrics},
    identity::Identity,
    reviewer::{ReviewAttributes, ReviewError, Reviewer},
};

/// Parameters of the reviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewConfig {
    /// Kind that each resource is reviewed as: group, version and plural.
    pub resources: BTreeMap<String, ReviewAttributes>,
    /// Group of resources that are not of Kubernetes, which are reviewed by their own names, and of impersonation.
    pub group: String,
    /// Time for which a decision is used.
    pub ttl: Duration,
    /// Most namespaces that are reviewed for a request for all.
    pub namespaces: usize,
}

/// Decisions of a [`Reviewer`].
pub(super) struct AccessReviews {
    config: ReviewConfig,
    /// Kinds of the resources: those of the configuration, until they are replaced.
    kinds: ArcSwap<BTreeMap<String, ReviewAttributes>>,
    reviewer: Arc<dyn Reviewer>,
    decisions: Arc<Decisions<ReviewAttributes, bool>>,
}

/// Most reviews at a time for one call.
const MAX_IN_FLIGHT_PER_CALL: usize = 8;

// === impl AccessReviews ===

impl AccessReviews {
    pub(super) fn new(reviewer: Arc<dyn Reviewer>, config: ReviewConfig, metrics: ReviewMetrics) -> Self {
        let decisions = Decisions::new(config.ttl, metrics);
        let kinds = ArcSwap::from_pointee(config.resources.clone());
        Self { config, kinds, reviewer, decisions }
    }

    pub(super) fn set_kinds(&self, kinds: BTreeMap<String, ReviewAttributes>) {
        self.kinds.store(Arc::new(kinds));
    }

    pub(super) async fn authorize(
        &self,
        identity: &Identity,
        attributes: &Attributes,
        present: &(dyn Fn() -> Vec<String> + Sync),
    ) -> Result<Scope, AccessError> {
        // A review does not distinguish formats: whoever may read the metadata of Secrets would read their content.
        if attributes.is_secret && (attributes.format != Format::Metadata || attributes.selects_content) {
            return Err(AccessError::Denied);
        }
        let requested = attributes.namespace.as_deref().unwrap_or_default();
        if self.is_allowed(identity, attributes, requested).await? {
            return Ok(Scope::All);
        }
        if attributes.namespace.is_some() || attributes.operation == Operation::Inspect {
            return Err(AccessError::Denied);
        }
        let mut namespaces: BTreeSet<String> = present().into_iter().collect();
        // The one of a service account matters also while nothing is in it: its stream begins before its first object.
        namespaces.extend(own_namespace(identity).map(str::to_owned));
        // The empty one has just been denied, as all namespaces.
        namespaces.remove("");
        let limit = self.config.namespaces;
        if namespaces.len() > limit {
            return Err(AccessError::TooManyNamespaces { limit });
        }
        let reviews = namespaces.into_iter().map(async |namespace| {
            let is_allowed = self.is_allowed(identity, attributes, &namespace).await?;
            Ok(is_allowed.then_some(namespace))
        });
        let allowed = stream::iter(reviews).buffer_unordered(MAX_IN_FLIGHT_PER_CALL);
        let allowed: Vec<Option<String>> = allowed.try_collect().await?;
        Names::Only(allowed.into_iter().flatten().collect()).scope(None)
    }

    /// Decides if a caller may make calls on behalf of another: of the user and of each of its groups. They are reviewed in the
    /// group of this server: in that of Kubernetes, the right would be one to act for them at the API server, too.
    pub(super) async fn impersonate(&self, identity: &Identity, impersonated: &Identity) -> Result<(), AccessError> {
        let attributes = |resource: &str, name: &str| ReviewAttributes {
            verb: "impersonate".to_owned(),
            group: self.config.group.clone(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            ..ReviewAttributes::default()
        };
        let mut needed = vec![attributes("users", impersonated.user())];
        needed.extend(impersonated.details().groups.iter().map(|group| attributes("groups", group)));
        let reviews = needed.into_iter().map(async |attributes| {
            if self.decide(identity, attributes).await? { Ok(()) } else { Err(AccessError::Denied) }
        });
        stream::iter(reviews).buffer_unordered(MAX_IN_FLIGHT_PER_CALL).try_collect().await
    }

    /// Returns true if each verb of the operation is allowed in a namespace; the empty one stands for all.
    async fn is_allowed(
        &self,
        identity: &Identity,
        attributes: &Attributes,
        namespace: &str,
    ) -> Result<bool, AccessError> {
        let review = async |verb| self.review(identity, attributes, namespace, verb).await;
        Ok(match attributes.operation {
            Operation::Get => review("get").await? || review("list").await?,
            Operation::List => review("list").await?,
            Operation::Watch => review("list").await? && review("watch").await?,
            // The watches of others are of any namespace.
            Operation::Inspect => self.review(identity, attributes, "", "admin").await?,
            Operation::See => review("list").await? || review("get").await? || review("watch").await?,
        })
    }

    async fn review(
        &self,
        identity: &Identity,
        attributes: &Attributes,
        namespace: &str,
        verb: &str,
    ) -> Result<bool, AccessError> {
        let Attributes { resource, name, .. } = attributes;
        let kind = self.kinds.load().get(resource).cloned();
        let kind = kind.unwrap_or_else(|| ReviewAttributes {
            group: self.config.group.clone(),
            resource: resource.clone(),
            ..ReviewAttributes::default()
        });
        let attributes = ReviewAttributes {
            verb: verb.to_owned(),
            namespace: namespace.to_owned(),
            name: name.clone().unwrap_or_default(),
            ..kind
        };
        self.decide(identity, attributes).await
    }

    async fn decide(&self, identity: &Identity, attributes: ReviewAttributes) -> Result<bool, AccessError> {
        let request = |attributes| self.reviewer.review_access(identity, attributes);
        let decision = self.decisions.get(identity, attributes, request).await;
        decision.map_err(|ReviewError(problem)| AccessError::Unavailable { problem })
    }
}

impl fmt::Debug for AccessReviews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessReviews").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Returns the namespace of a service account.
fn own_namespace(identity: &Identity) -> Option<&str> {
    let (namespace, _) = identity.user().strip_prefix("system:serviceaccount:")?.split_once(':')?;
    Some(namespace)
}

impl HeapBytes for ReviewAttributes {
    fn heap_bytes(&self) -> usize {
        let Self { verb, group, version, resource, subresource, namespace, name } = self;
        [verb, group, version, resource, subresource, namespace, name].iter().map(|text| text.len()).sum()
    }
}

#[cfg(test)]
mod tests;
