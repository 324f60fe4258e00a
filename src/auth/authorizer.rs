//! Decisions about calls.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use arc_swap::{ArcSwap, ArcSwapOption};
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::{
    access::{AccessError, Attributes, Scope},
    access_review::{AccessReviews, ReviewConfig},
    decisions::ReviewMetrics,
    forwarded_access::ForwardedAccess,
    identity::Identity,
    reviewer::{CallReviewer, ReviewAttributes, Reviewer},
    rules::Rules,
};
use crate::{
    model::NamedViews,
    net::{FileError, ReloadedFiles},
};

/// Authority over the calls of authenticated callers. Clones share it.
#[derive(Clone)]
pub struct Authorizer {
    shared: Arc<Shared>,
}

struct Shared {
    authority: Authority,
    /// Upstreams that decide about calls in place of the authority, if there are any.
    forwarded: ArcSwapOption<ForwardedAccess>,
    changes: watch::Sender<()>,
    metrics: ReviewMetrics,
}

#[derive(Debug)]
enum Authority {
    Rules(ArcSwap<Rules>),
    File(Arc<ReloadedFiles<Rules>>),
    Reviews(AccessReviews),
}

// === impl Authorizer ===

impl Authorizer {
    /// Returns the authority of these rules; without any, it denies everything.
    pub fn of_rules(rules: Rules) -> Self {
        Self::of(Authority::Rules(ArcSwap::from_pointee(rules)), ReviewMetrics::default())
    }

    /// Returns the authority of the rules in a file, which [`reload`](Self::reload) reads again.
    ///
    /// # Errors
    ///
    /// If it cannot be read or parsed.
    pub fn of_file(path: &Path, parse: fn(&[u8]) -> Result<Rules, String>) -> Result<Self, FileError> {
        Ok(Self::of(Authority::File(ReloadedFiles::load_one(path, parse)?), ReviewMetrics::default()))
    }

    /// Returns the authority that reviews each access.
    pub fn of_reviews(reviewer: Arc<dyn Reviewer>, config: ReviewConfig) -> Self {
        let metrics = ReviewMetrics::default();
        Self::of(Authority::Reviews(AccessReviews::new(reviewer, config, metrics.clone())), metrics)
    }

    fn of(authority: Authority, metrics: ReviewMetrics) -> Self {
        let (forwarded, changes) = (ArcSwapOption::empty(), watch::Sender::new(()));
        Self { shared: Arc::new(Shared { authority, forwarded, changes, metrics }) }
    }

    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.shared.metrics.register(registry);
    }

    /// Leaves the decisions about reading some resources to their upstreams. Each decision is used for `ttl`, and one user has
    /// `peer_share` percent of the reviews at most.
    #[must_use]
    pub fn forwarding(
        self,
        upstreams: BTreeMap<String, Arc<dyn CallReviewer>>,
        ttl: Duration,
        peer_share: u32,
    ) -> Self {
        self.set_upstreams(upstreams, ttl, peer_share);
        self
    }

    /// Replaces the upstreams that decide about reading some resources, with what they have decided, and notifies the receivers of
    /// changes.
    pub fn set_upstreams(&self, upstreams: BTreeMap<String, Arc<dyn CallReviewer>>, ttl: Duration, peer_share: u32) {
        let metrics = self.shared.metrics.clone();
        let forwarded =
            (!upstreams.is_empty()).then(|| Arc::new(ForwardedAccess::new(upstreams, ttl, peer_share, metrics)));
        self.shared.forwarded.store(forwarded);
        self.shared.changes.send_replace(());
    }

    /// Replaces the kinds that resources are reviewed as, by an authority that [reviews](Self::of_reviews) each access, and notifies
    /// the receivers of changes. Another authority stays as it is.
    pub fn set_kinds(&self, kinds: BTreeMap<String, ReviewAttributes>) {
        if let Authority::Reviews(reviews) = &self.shared.authority {
            reviews.set_kinds(kinds);
            self.shared.changes.send_replace(());
        }
    }

    /// Decides a call. A request for all namespaces of a caller who may not read all of them is narrowed to those that remain.
    /// `present` returns the namespaces to decide about where each has a decision of its own: those that the resource has objects
    /// in.
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
        self.decide(identity, attributes, present, false).await
    }

    /// Decides the same; with `is_stream` for an open stream, whose caller is known: its review comes before those of strangers.
    pub(crate) async fn decide(
        &self,
        identity: &Identity,
        attributes: &Attributes,
        present: &(dyn Fn() -> Vec<String> + Sync),
        is_stream: bool,
    ) -> Result<Scope, AccessError> {
        if let Some(forwarded) = self.shared.forwarded.load_full()
            && let Some(upstream) = forwarded.upstream_of(attributes)
        {
            return forwarded.authorize(upstream, identity, attributes, present, is_stream).await;
        }
        match &self.shared.authority {
            Authority::Rules(rules) => rules.load().authorize(identity, attributes),
            Authority::File(file) => file.with(|rules| rules.authorize(identity, attributes)),
            Authority::Reviews(reviews) => reviews.authorize(identity, attributes, present, is_stream).await,
        }
    }

    /// Returns true if another authority reviews these calls, or, without attributes, impersonations.
    pub(crate) fn needs_review(&self, attributes: Option<&Attributes>) -> bool {
        let forwarded = self.shared.forwarded.load();
        matches!(self.shared.authority, Authority::Reviews(_))
            || attributes.zip(forwarded.as_ref()).is_some_and(|(of, forwarded)| forwarded.upstream_of(of).is_some())
    }

    /// Returns the [resources](Rules::unknown_resources) and [views](Rules::unknown_views) that rules name and that are not among these.
    pub fn unknown_names(&self, resources: &BTreeMap<&str, &NamedViews>) -> Vec<String> {
        let unknown = |rules: &Rules| [rules.unknown_resources(resources), rules.unknown_views(resources)].concat();
        match &self.shared.authority {
            Authority::Rules(rules) => unknown(&rules.load()),
            Authority::File(file) => file.with(unknown),
            Authority::Reviews(_) => Vec::new(),
        }
    }

    /// Decides if a caller may make calls on behalf of another identity; `is_stream` as in [`Self::decide`].
    ///
    /// # Errors
    ///
    /// If it may not, or that cannot be decided now.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn impersonate(
        &self,
        identity: &Identity,
        impersonated: &Identity,
        is_stream: bool,
    ) -> Result<(), AccessError> {
        match &self.shared.authority {
            Authority::Rules(rules) => rules.load().impersonate(identity, impersonated),
            Authority::File(file) => file.with(|rules| rules.impersonate(identity, impersonated)),
            Authority::Reviews(reviews) => reviews.impersonate(identity, impersonated, is_stream).await,
        }
    }

    /// Replaces the rules that the authority was [made of](Self::of_rules), and notifies the receivers of changes. One of a file or
    /// of reviews stays as it is.
    pub fn set_rules(&self, rules: Rules) {
        if let Authority::Rules(current) = &self.shared.authority {
            current.store(Arc::new(rules));
            self.shared.changes.send_replace(());
        }
    }

    /// Reads the rules of a file again whenever it changes; never returns. While the file cannot be used, the last good rules are.
    pub async fn reload(self) {
        match &self.shared.authority {
            Authority::File(file) => Arc::clone(file).reload(|| self.shared.changes.send_replace(())).await,
            Authority::Rules(_) | Authority::Reviews(_) => std::future::pending().await,
        }
    }

    /// Returns a receiver that is notified when decisions may have changed, so that those about open streams are due at once.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }
}

debug_fields!(Authorizer, this => { authority: this.shared.authority });

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;
    use crate::auth::{IdentityDetails, Operation};

    /// Parses the texts `all` and `none`.
    fn parse(content: &[u8]) -> Result<Rules, String> {
        let rule = r#"[{"subjects": ["*"], "verbs": ["*"], "resources": ["*"], "namespaces": ["*"]}]"#;
        match content {
            b"all" => Ok(Rules::from_value(&serde_json::from_str(rule).unwrap()).unwrap()),
            b"none" => Ok(Rules::default()),
            _ => Err("is bad".to_owned()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rules_of_a_file_are_reloaded_with_a_notice_and_the_last_good_ones_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules");
        fs::write(&path, "none").unwrap();
        let authorizer = Authorizer::of_file(&path, parse).unwrap();
        let _reloading = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(authorizer.clone().reload()));
        let mut changes = authorizer.changes();
        let caller = Identity::new(IdentityDetails { user: "a".to_owned(), ..IdentityDetails::default() });
        for (content, is_changed, is_allowed) in [
            (Some("none"), false, false),
            (Some("all"), true, true),
            (Some("bad"), false, true),
            (None, false, true),
            (Some("none"), true, false),
        ] {
            match content {
                Some(content) => fs::write(&path, content).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            // The time stands still while the file is read.
            tokio::time::sleep(Duration::from_secs(12)).await;
            assert_eq!(changes.has_changed().unwrap(), is_changed, "{content:?}");
            changes.mark_unchanged();
            let decision = authorizer.authorize(&caller, &Attributes::new(Operation::List, "x"), &Vec::new).await;
            assert_eq!(decision.is_ok(), is_allowed, "{content:?}");
        }
    }
}
