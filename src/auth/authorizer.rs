//! Decisions about calls.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{
    access::{AccessError, Attributes, Scope},
    identity::Identity,
    rules::Rules,
};

/// Authority over the calls of authenticated callers. Clones share it.
#[derive(Clone)]
pub struct Authorizer(Arc<Shared>);

struct Shared {
    rules: ArcSwap<Rules>,
    changes: watch::Sender<()>,
}

// === impl Authorizer ===

impl Authorizer {
    /// Returns the authority of these rules.
    pub fn of_rules(rules: Rules) -> Self {
        Self(Arc::new(Shared { rules: ArcSwap::from_pointee(rules), changes: watch::Sender::new(()) }))
    }

    /// Decides a call. A request for all namespaces of a caller who may not read all of them is narrowed to those that remain.
    /// `present` returns the namespaces that the resource has objects in, for authorities that decide about each alone.
    ///
    /// # Errors
    ///
    /// The same whether the resource, the namespace and the object exist or not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    #[expect(clippy::unused_async, reason = "reviews by another authority are requests to it")]
    pub async fn authorize(
        &self,
        identity: &Identity,
        attributes: &Attributes,
        _present: &(dyn Fn() -> Vec<String> + Sync),
    ) -> Result<Scope, AccessError> {
        self.0.rules.load().authorize(identity, attributes)
    }

    /// Replaces the rules, and notifies the receivers of changes.
    pub fn set_rules(&self, rules: Rules) {
        self.0.rules.store(Arc::new(rules));
        self.0.changes.send_replace(());
    }

    /// Returns a receiver that is notified when decisions may have changed, so that those about open streams are due at once.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }
}

impl fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorizer").finish_non_exhaustive()
    }
}
