//! Decisions of another authority about each access: Kubernetes' `SubjectAccessReview`.
//!
//! Each verb that an operation needs is reviewed alone, first for all namespaces, then for each namespace that matters. Decisions
//! are kept for a while; without one, and without an answer, the call is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt, TryStreamExt,
    future::{BoxFuture, Shared, WeakShared},
    stream,
};
use parking_lot::Mutex;
use quick_cache::{Weighter, unsync::Cache};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::{
    access::{AccessError, Attributes, Format, Names, Operation, Scope},
    identity::Identity,
    reviewer::{ReviewAttributes, ReviewError, Reviewer},
};

/// Parameters of the reviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewConfig {
    /// Kind that each resource is reviewed as: group, version and plural.
    pub resources: BTreeMap<String, ReviewAttributes>,
    /// Group of resources that are not of Kubernetes, which are reviewed by their own names.
    pub group: String,
    /// Time for which a decision is used.
    pub ttl: Duration,
    /// Most namespaces that are reviewed for a request for all.
    pub namespaces: usize,
}

/// Decisions of a [`Reviewer`].
pub(super) struct AccessReviews {
    config: ReviewConfig,
    reviewer: Arc<dyn Reviewer>,
    decisions: Arc<Decisions>,
}

struct Decisions {
    known: Mutex<Cache<Key, Entry, KeyWeighter>>,
    ttl: Duration,
    /// Permits for reviews.
    in_flight: Semaphore,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    caller: Caller,
    attributes: ReviewAttributes,
}

/// Identity without the time at which it expires, which changes with each token.
#[derive(Clone)]
struct Caller(Identity);

#[derive(Clone)]
enum Entry {
    /// Review that some callers wait for, and that ends with the last of them.
    Running(WeakShared<Review>),
    Known {
        is_allowed: bool,
        until: Instant,
    },
}

type Review = BoxFuture<'static, Result<bool, ReviewError>>;

#[derive(Clone)]
struct KeyWeighter;

/// Time limit of one review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Most reviews at a time.
const MAX_IN_FLIGHT: usize = 64;
/// Most reviews at a time for one call.
const MAX_IN_FLIGHT_PER_CALL: usize = 8;
/// Bytes of the decisions kept.
const MAX_BYTES: u64 = 16 << 20;
/// Bytes of a decision without its texts.
const ENTRY_BYTES: usize = 256;

// === impl AccessReviews ===

impl AccessReviews {
    pub(super) fn new(reviewer: Arc<dyn Reviewer>, config: ReviewConfig) -> Self {
        let decisions = Decisions {
            known: Mutex::new(Cache::with_weighter(MAX_BYTES as usize / ENTRY_BYTES, MAX_BYTES, KeyWeighter)),
            ttl: config.ttl,
            in_flight: Semaphore::new(MAX_IN_FLIGHT),
        };
        Self { config, reviewer, decisions: Arc::new(decisions) }
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
        let kind = self.config.resources.get(resource).cloned();
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
        let key = Key { caller: Caller(identity.clone()), attributes };
        let decision = self.decisions.get(key, &*self.reviewer).await;
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

// === impl Decisions ===

impl Decisions {
    /// Returns a known decision, or the one of a review, which all who need it at the time wait for.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the review unless others wait for it.
    async fn get(self: &Arc<Self>, key: Key, reviewer: &dyn Reviewer) -> Result<bool, ReviewError> {
        let review = {
            let mut known = self.known.lock();
            let running = match known.get(&key) {
                Some(Entry::Known { is_allowed, until }) if Instant::now() < *until => return Ok(*is_allowed),
                Some(Entry::Running(review)) => review.upgrade(),
                _ => None,
            };
            running.unwrap_or_else(|| {
                let review = self.review(key.clone(), reviewer);
                if let Some(running) = review.downgrade() {
                    known.insert(key, Entry::Running(running));
                }
                review
            })
        };
        review.await
    }

    fn review(self: &Arc<Self>, key: Key, reviewer: &dyn Reviewer) -> Shared<Review> {
        let this = Arc::clone(self);
        let request = reviewer.review_access(&key.caller.0, key.attributes.clone());
        let review = async move {
            let limited = timeout(REVIEW_TIMEOUT, async {
                let _permit = this.in_flight.acquire().await;
                request.await
            });
            let decision = limited.await.unwrap_or_else(|_| {
                Err(ReviewError(format!("review of an access not answered within {REVIEW_TIMEOUT:?}")))
            });
            let mut known = this.known.lock();
            match decision {
                Ok(is_allowed) => known.insert(key, Entry::Known { is_allowed, until: Instant::now() + this.ttl }),
                // The next caller tries again.
                Err(_) => drop(known.remove(&key)),
            }
            decision
        };
        review.boxed().shared()
    }
}

// === impl Caller ===

impl Caller {
    fn parts(&self) -> (&str, &[String], &str, &BTreeMap<String, Vec<String>>) {
        let details = self.0.details();
        (&details.user, &details.groups, &details.uid, &details.extra)
    }
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

// === impl KeyWeighter ===

impl Weighter<Key, Entry> for KeyWeighter {
    fn weight(&self, key: &Key, _: &Entry) -> u64 {
        let (user, groups, uid, extra) = key.caller.parts();
        let groups: usize = groups.iter().map(String::len).sum();
        let extra: usize =
            extra.iter().map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>()).sum();
        let ReviewAttributes { verb, group, version, resource, subresource, namespace, name } = &key.attributes;
        let texts = [user, uid, verb, group, version, resource, subresource, namespace, name];
        let texts: usize = texts.iter().map(|text| text.len()).sum();
        (ENTRY_BYTES + groups + extra + texts) as u64
    }
}

#[cfg(test)]
mod tests;
