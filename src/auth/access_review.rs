//! Decisions of another authority about each access: Kubernetes' `SubjectAccessReview`.
//!
//! Each verb that an operation needs is reviewed alone, first for all namespaces, then for each namespace that matters. Decisions
//! are kept for a while; without one, and without an answer, the call is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    /// Time for which a decision is used.
    pub ttl: Duration,
    /// Share of the reviews that one user may have, in percent.
    pub peer_share: u32,
}

/// Decisions of a [`Reviewer`].
pub(super) struct AccessReviews {
    config: ReviewConfig,
    /// Kinds of the resources: those of the configuration, until they are replaced.
    kinds: ArcSwap<BTreeMap<String, ReviewAttributes>>,
    reviewer: Arc<dyn Reviewer>,
    decisions: Arc<Decisions<ReviewAttributes, bool>>,
}

/// API group of resources that are not of Kubernetes, which are reviewed by their own names, and of the right to impersonate.
const GROUP: &str = "informerd";
/// Most namespaces that are reviewed for a request for all: eight at a time, in some seconds.
const MAX_NAMESPACES: usize = 200;
/// Most reviews at a time for one call.
const MAX_IN_FLIGHT_PER_CALL: usize = 8;

// === impl AccessReviews ===

impl AccessReviews {
    pub(super) fn new(reviewer: Arc<dyn Reviewer>, config: ReviewConfig, metrics: ReviewMetrics) -> Self {
        let decisions = Decisions::new(config.ttl, config.peer_share, metrics);
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
        is_stream: bool,
    ) -> Result<Scope, AccessError> {
        // A review does not distinguish formats: whoever may read the metadata of Secrets would read their content.
        if attributes.is_secret && (attributes.format != Format::Metadata || attributes.selects_content) {
            return Err(AccessError::Denied);
        }
        let requested = attributes.namespace.as_deref().unwrap_or_default();
        if self.is_allowed(identity, attributes, requested, is_stream).await? {
            return Ok(Scope::All);
        }
        if attributes.namespace.is_some() || attributes.operation.is_about_watches() {
            return Err(AccessError::Denied);
        }
        let mut namespaces: BTreeSet<String> = present().into_iter().collect();
        // The one of a service account matters also while nothing is in it: its stream begins before its first object.
        namespaces.extend(own_namespace(identity).map(str::to_owned));
        // The empty one has just been denied, as all namespaces.
        namespaces.remove("");
        if namespaces.len() > MAX_NAMESPACES {
            return Err(AccessError::TooManyNamespaces { limit: MAX_NAMESPACES });
        }
        let reviews = namespaces.into_iter().map(async |namespace| {
            let is_allowed = self.is_allowed(identity, attributes, &namespace, is_stream).await?;
            Ok(is_allowed.then_some(namespace))
        });
        let allowed = stream::iter(reviews).buffer_unordered(MAX_IN_FLIGHT_PER_CALL);
        let allowed: Vec<Option<String>> = allowed.try_collect().await?;
        Names::Only(allowed.into_iter().flatten().collect()).scope(None)
    }

    /// Decides if a caller may make calls on behalf of another: of the user and of each of its groups. They are reviewed in the
    /// group of this server: in that of Kubernetes, the right would be one to act for them at the API server, too.
    pub(super) async fn impersonate(
        &self,
        identity: &Identity,
        impersonated: &Identity,
        is_stream: bool,
    ) -> Result<(), AccessError> {
        let attributes = |resource: &str, name: &str| ReviewAttributes {
            verb: "impersonate".to_owned(),
            group: GROUP.to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            ..ReviewAttributes::default()
        };
        let mut needed = vec![attributes("users", impersonated.user())];
        needed.extend(impersonated.details().groups.iter().map(|group| attributes("groups", group)));
        let reviews = needed.into_iter().map(async |attributes| {
            if self.decide(identity, attributes, is_stream).await? { Ok(()) } else { Err(AccessError::Denied) }
        });
        stream::iter(reviews).buffer_unordered(MAX_IN_FLIGHT_PER_CALL).try_collect().await
    }

    /// Returns true if each verb of the operation is allowed in a namespace; the empty one stands for all.
    async fn is_allowed(
        &self,
        identity: &Identity,
        attributes: &Attributes,
        namespace: &str,
        is_stream: bool,
    ) -> Result<bool, AccessError> {
        let review = async |verb| self.decide(identity, self.reviewed(attributes, namespace, verb), is_stream).await;
        Ok(match attributes.operation {
            Operation::Get => review("get").await? || review("list").await?,
            Operation::List => review("list").await?,
            Operation::Watch => review("list").await? && review("watch").await?,
            // The watches of others are of any namespace.
            Operation::Inspect => self.decide(identity, self.reviewed(attributes, "", "admin"), is_stream).await?,
            Operation::Disconnect => {
                self.decide(identity, self.reviewed(attributes, "", "disconnect"), is_stream).await?
            }
            Operation::See => review("list").await? || review("get").await? || review("watch").await?,
        })
    }

    /// Returns the access that is reviewed for a verb.
    fn reviewed(&self, attributes: &Attributes, namespace: &str, verb: &str) -> ReviewAttributes {
        let Attributes { resource, name, .. } = attributes;
        let kind = self.kinds.load().get(resource).cloned();
        let kind = kind.unwrap_or_else(|| ReviewAttributes {
            group: GROUP.to_owned(),
            resource: resource.clone(),
            ..ReviewAttributes::default()
        });
        ReviewAttributes {
            verb: verb.to_owned(),
            namespace: namespace.to_owned(),
            name: name.clone().unwrap_or_default(),
            ..kind
        }
    }

    async fn decide(
        &self,
        identity: &Identity,
        attributes: ReviewAttributes,
        is_stream: bool,
    ) -> Result<bool, AccessError> {
        let request = |attributes| self.reviewer.review_access(identity, attributes);
        let decision = self.decisions.get(identity, attributes, is_stream, request).await;
        decision.map_err(|ReviewError(problem)| AccessError::Unavailable { problem })
    }
}

debug_fields!(AccessReviews { config });

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
