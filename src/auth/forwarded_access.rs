//! Decisions of the upstreams of a relay about the calls of the relay's callers.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock},
    time::Duration,
};

use super::{
    access::{AccessError, Attributes, Scope},
    decisions::{Decision, Decisions, HeapBytes, ReviewMetrics},
    identity::Identity,
    reviewer::{CallReviewer, ReviewError},
};

/// Upstreams that decide about calls to some resources, each about one.
pub(super) struct ForwardedAccess {
    upstreams: BTreeMap<String, Arc<dyn CallReviewer>>,
    decisions: Arc<Decisions<Question, Option<Scope>>>,
}

/// Call that an upstream decides.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Question {
    attributes: Attributes,
    /// Hash of the namespaces that have objects, for a call to all of them: the answer may depend on them, so a new one needs a
    /// new answer.
    present: Option<u64>,
}

// === impl ForwardedAccess ===

impl ForwardedAccess {
    /// Returns the decisions of these upstreams, by the names of the resources; each decision is used for `ttl`. One user has
    /// `peer_share` percent of the reviews at most.
    pub(super) fn new(
        upstreams: BTreeMap<String, Arc<dyn CallReviewer>>,
        ttl: Duration,
        peer_share: u32,
        metrics: ReviewMetrics,
    ) -> Self {
        Self { upstreams, decisions: Decisions::new(ttl, peer_share, metrics) }
    }

    /// Returns the upstream that decides a call. None inspects the watches of a relay, which are its own.
    pub(super) fn upstream_of(&self, attributes: &Attributes) -> Option<&dyn CallReviewer> {
        let upstream = self.upstreams.get(&attributes.resource);
        upstream.filter(|_| !attributes.operation.is_about_watches()).map(|upstream| &**upstream)
    }

    pub(super) async fn authorize(
        &self,
        upstream: &dyn CallReviewer,
        identity: &Identity,
        attributes: &Attributes,
        present: &(dyn Fn() -> Vec<String> + Sync),
        is_stream: bool,
    ) -> Result<Scope, AccessError> {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let present = attributes.namespace.is_none().then(|| KEY.hash_one(present()));
        let question = Question { attributes: attributes.clone(), present };
        let request = |question: Question| upstream.review_call(identity, question.attributes);
        let decision = self.decisions.get(identity, question, is_stream, request).await;
        let scope = decision.map_err(|ReviewError(problem)| AccessError::Unavailable { problem })?;
        scope.ok_or(AccessError::Denied)
    }
}

impl HeapBytes for Question {
    fn heap_bytes(&self) -> usize {
        let Attributes { resource, namespace, name, view, .. } = &self.attributes;
        resource.len() + [namespace, name, view].iter().map(|text| text.as_ref().map_or(0, String::len)).sum::<usize>()
    }
}

impl Decision for Option<Scope> {
    fn is_granted(&self) -> bool {
        self.is_some()
    }
}

impl HeapBytes for Option<Scope> {
    fn heap_bytes(&self) -> usize {
        match self {
            Some(Scope::Only(namespaces)) => {
                namespaces.iter().map(|namespace| size_of::<String>() + namespace.len()).sum()
            }
            Some(Scope::All) | None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, future::BoxFuture};
    use parking_lot::Mutex;
    use tokio::time::advance;

    use super::*;
    use crate::auth::{Authorizer, IdentityDetails, Operation, Rules};

    /// Upstream with one answer for everybody.
    #[derive(Debug)]
    struct FakeUpstream {
        answer: Mutex<Result<Option<Scope>, ReviewError>>,
        asked: Mutex<Vec<(String, Attributes)>>,
    }

    impl CallReviewer for FakeUpstream {
        fn review_call(
            &self,
            identity: &Identity,
            attributes: Attributes,
        ) -> BoxFuture<'static, Result<Option<Scope>, ReviewError>> {
            self.asked.lock().push((identity.user().to_owned(), attributes));
            let answer = self.answer.lock().clone();
            async move { answer }.boxed()
        }
    }

    impl FakeUpstream {
        fn new() -> Arc<Self> {
            Arc::new(Self { answer: Mutex::new(Ok(Some(Scope::All))), asked: Mutex::default() })
        }

        fn answers(&self, answer: Result<Option<Scope>, ReviewError>) {
            *self.answer.lock() = answer;
        }

        fn asked(&self) -> usize {
            std::mem::take(&mut *self.asked.lock()).len()
        }

        /// Returns the authority of a relay without rules of its own, of the resource "pods".
        fn authorizer(self: &Arc<Self>) -> Authorizer {
            let upstream: Arc<dyn CallReviewer> = self.clone();
            let upstreams = BTreeMap::from([("pods".to_owned(), upstream)]);
            Authorizer::of_rules(Rules::default()).forwarding(upstreams, Duration::from_secs(10), 25)
        }
    }

    fn caller(user: &str) -> Identity {
        Identity::new(IdentityDetails { user: user.to_owned(), ..IdentityDetails::default() })
    }

    async fn list(authorizer: &Authorizer, user: &str, present: &[&str]) -> Result<Scope, AccessError> {
        let present = || present.iter().map(|namespace| (*namespace).to_owned()).collect();
        authorizer.authorize(&caller(user), &Attributes::new(Operation::List, "pods"), &present).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_known_answer_is_used_until_it_expires_and_without_one_a_caller_is_refused() {
        let upstream = FakeUpstream::new();
        let authorizer = upstream.authorizer();
        let some = Scope::Only(["x"].into_iter().collect());
        upstream.answers(Ok(Some(some.clone())));
        assert_eq!(list(&authorizer, "ann", &[]).await, Ok(some.clone()));
        upstream.answers(Ok(None));
        assert_eq!(list(&authorizer, "bob", &[]).await, Err(AccessError::Denied));
        assert_eq!(upstream.asked(), 2);
        upstream.answers(Err(ReviewError("connection refused".to_owned())));
        let unavailable = Err(AccessError::Unavailable { problem: "connection refused".to_owned() });
        assert_eq!(list(&authorizer, "new", &[]).await, unavailable);
        assert_eq!(upstream.asked(), 1);
        advance(Duration::from_millis(9_999)).await;
        assert_eq!(list(&authorizer, "ann", &[]).await, Ok(some));
        assert_eq!(list(&authorizer, "bob", &[]).await, Err(AccessError::Denied));
        assert_eq!(upstream.asked(), 0);
        advance(Duration::from_millis(1)).await;
        assert_eq!(list(&authorizer, "ann", &[]).await, unavailable);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_namespace_needs_a_new_answer() {
        let upstream = FakeUpstream::new();
        let authorizer = upstream.authorizer();
        for (present, asked) in [(&["x"][..], 1), (&["x"], 0), (&["x", "y"], 1), (&["x"], 0)] {
            assert_eq!(list(&authorizer, "ann", present).await, Ok(Scope::All));
            assert_eq!(upstream.asked(), asked, "{present:?}");
        }
        let named = Attributes { namespace: Some("x".to_owned()), ..Attributes::new(Operation::List, "pods") };
        for (present, asked) in [("x", 1), ("y", 0)] {
            let present = || vec![present.to_owned()];
            assert_eq!(authorizer.authorize(&caller("ann"), &named, &present).await, Ok(Scope::All));
            assert_eq!(upstream.asked(), asked, "of one namespace");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_resources_and_the_watches_of_others_are_left_to_the_rules_of_the_relay() {
        let upstream = FakeUpstream::new();
        let authorizer = upstream.authorizer();
        for attributes in [
            Attributes::new(Operation::List, "nodes"),
            Attributes::new(Operation::Inspect, "pods"),
            Attributes::new(Operation::Disconnect, "pods"),
        ] {
            let decision = authorizer.authorize(&caller("ann"), &attributes, &Vec::new).await;
            assert_eq!(decision, Err(AccessError::Denied), "{attributes:?}");
        }
        assert_eq!(upstream.asked(), 0);
    }
}
