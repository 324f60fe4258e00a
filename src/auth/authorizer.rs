//! Decisions about calls.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{
    access::{AccessError, Attributes, Scope},
    access_review::{AccessReviews, ReviewConfig},
    identity::Identity,
    reviewer::Reviewer,
    rules::Rules,
};

/// Authority over the calls of authenticated callers. Clones share it.
#[derive(Clone)]
pub struct Authorizer(Arc<Shared>);

struct Shared {
    authority: Authority,
    changes: watch::Sender<()>,
}

#[derive(Debug)]
enum Authority {
    Rules(ArcSwap<Rules>),
    Reviews(AccessReviews),
}

// === impl Authorizer ===

impl Authorizer {
    /// Returns the authority of these rules; without any, it denies everything.
    pub fn of_rules(rules: Rules) -> Self {
        Self::of(Authority::Rules(ArcSwap::from_pointee(rules)))
    }

    /// Returns the authority that reviews each access.
    pub fn of_reviews(reviewer: Arc<dyn Reviewer>, config: ReviewConfig) -> Self {
        Self::of(Authority::Reviews(AccessReviews::new(reviewer, config)))
    }

    fn of(authority: Authority) -> Self {
        Self(Arc::new(Shared { authority, changes: watch::Sender::new(()) }))
    }

    /// Decides a call. A request for all namespaces of a caller who may not read all of them is narrowed to those that remain.
    /// `present` returns the namespaces to decide about where each has a decision of its own: those that the resource has objects
    /// in, and those that an open stream already reads.
    ///
    /// # Errors
    ///
    /// The same whether the resource, the namespace and the object exist or not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn authorize(
        &self,
        identity: &Identity,
        attributes: &Attributes,
        present: &(dyn Fn() -> Vec<String> + Sync),
    ) -> Result<Scope, AccessError> {
        match &self.0.authority {
            Authority::Rules(rules) => rules.load().authorize(identity, attributes),
            Authority::Reviews(reviews) => reviews.authorize(identity, attributes, present).await,
        }
    }

    /// Returns a receiver that is notified when decisions may have changed, so that those about open streams are due at once.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }
}

impl fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorizer").field("authority", &self.0.authority).finish_non_exhaustive()
    }
}
