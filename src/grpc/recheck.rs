//! Checks of the callers of open streams and of the rights of open watches, again and again: rights are revoked, credentials expire,
//! and namespaces appear.
//!
//! A change is left at the watch's entry in the registry, and the body acts on it before it takes another event. Who has no valid
//! credentials any more loses the whole stream. While an authority does not answer, everything goes on, for [`AccessConfig::grace`] at
//! most, but nothing beyond the time at which its credentials expire.
//!
//! [`AccessConfig::grace`]: super::service::AccessConfig::grace

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, Fuse},
    stream::FuturesUnordered,
};
use tokio::time::{Instant, timeout};

use super::{
    grant::Authenticated,
    service::Service,
    status::ApiError,
    time_slice::TimeSlice,
    watchers::{GrantedWatch, WatchAccess},
};
use crate::{auth::Authorizer, model::Namespaces};

/// Time within which expired credentials and new namespaces are noticed.
const TICK: Duration = Duration::from_secs(1);
/// Number of streams and watches that are checked at a time: each may wait for a review.
const AT_A_TIME: usize = 64;

/// Namespaces of each resource that has limited watches, at the last look.
#[derive(Debug, Default)]
struct LimitedResources(BTreeMap<String, Vec<String>>);

/// Open stream of requests, or open watch.
enum Open {
    Stream(u64, Arc<Authenticated>),
    Watch(GrantedWatch),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Id {
    Stream(u64),
    Watch(u64),
}

/// Streams and watches for which there was no answer, since the first check without one.
#[derive(Debug, Default)]
struct Unanswered(BTreeMap<Id, Instant>);

/// Names of the resources of watches whose rights have changed, and that are not woken yet.
#[derive(Debug, Default)]
struct Changed(BTreeSet<String>);

// === impl Service ===

impl Service {
    /// Checks the callers of all open streams and the rights of all open watches at each interval, and at once when rules have
    /// changed; never returns. In between it ends those whose credentials have expired, also while a check waits for an authority,
    /// and checks those limited to some namespaces when others have appeared.
    pub(super) async fn recheck(&self) {
        let access = &self.config().access;
        if access.authorizer.is_none() && self.config().authentication.is_none() {
            return std::future::pending::<()>().await;
        }
        let mut notices = access.authorizer.as_ref().map(Authorizer::changes);
        let (mut due, mut is_changed) = (Instant::now() + access.recheck, false);
        let mut limited = LimitedResources::default();
        // None while a check runs.
        let mut unanswered = Some(Unanswered::default());
        let mut checking: Fuse<BoxFuture<'_, Unanswered>> = Fuse::terminated();
        loop {
            let changed = async {
                if let Some(notices) = &mut notices
                    && notices.changed().await.is_ok()
                {
                    return;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                // Cancel-safe: a change that is not returned is seen at the next call.
                () = changed => (due, is_changed) = (Instant::now(), true),
                () = tokio::time::sleep(TICK) => {}
                after = &mut checking => {
                    unanswered = Some(after);
                    if Instant::now() < due {
                        continue;
                    }
                }
            }
            let mut open = self.without_expired(self.open()).await;
            let Some(mut before) = unanswered.take() else { continue };
            let moved = limited.moved(self, &open);
            if Instant::now() >= due {
                // After a change soon again: a watch that was being opened may have rights of before.
                due = Instant::now() + if std::mem::take(&mut is_changed) { TICK } else { access.recheck };
                before.keep(&open);
            } else {
                open.retain(|open| open.limited().is_some_and(|watch| moved.contains(&watch.resource.name)));
            }
            checking = self.check(open, before).boxed().fuse();
        }
    }

    /// Returns all open streams and watches.
    fn open(&self) -> Vec<Open> {
        let streams = self.open_streams().callers().into_iter().map(|(id, caller)| Open::Stream(id, caller));
        // The end of a stream comes before those of its watches.
        streams.chain(self.watchers().granted().into_iter().map(Open::Watch)).collect()
    }

    /// Ends the streams and watches whose credentials have expired, and returns the others. No authority decides about that:
    /// whatever it answered, these credentials are over.
    async fn without_expired(&self, mut open: Vec<Open>) -> Vec<Open> {
        let (now, mut changed) = (SystemTime::now(), Changed::default());
        open.retain(|open| {
            let has_expired = open.caller().identity.has_expired(now);
            if has_expired {
                changed.end(self, open, ApiError::CredentialsExpired);
            }
            !has_expired
        });
        changed.notify(self).await;
        open
    }

    /// Checks streams and watches, and returns those without an answer. Whoever has an answer does not wait for those.
    async fn check(&self, open: Vec<Open>, mut unanswered: Unanswered) -> Unanswered {
        let (begun, limit) = (Instant::now(), self.config().access.recheck + self.config().access.grace);
        let (mut left, mut running) = (open.into_iter(), FuturesUnordered::new());
        let (mut changed, mut notified, mut slice) = (Changed::default(), begun, TimeSlice::begin());
        loop {
            while running.len() < AT_A_TIME
                && let Some(open) = left.next()
            {
                running.push(self.check_one(open));
            }
            if let Ok(checked) = timeout(TICK, running.next()).await {
                let Some((open, answer)) = checked else { break };
                let is_over = unanswered.ends(open.id(), answer.as_ref().err(), begun, limit);
                match (answer, &open) {
                    (Ok(namespaces), Open::Watch(watch)) => {
                        changed.set(self, watch, WatchAccess::Namespaces(namespaces));
                    }
                    (Err(refusal), _) if is_over => changed.end(self, &open, refusal),
                    _ => {}
                }
            }
            if notified.elapsed() >= TICK {
                changed.notify(self).await;
                notified = Instant::now();
            }
            slice.end().await;
        }
        changed.notify(self).await;
        unanswered
    }

    /// Authenticates the caller again, and authorizes it again if this is a watch.
    async fn check_one(&self, open: Open) -> (Open, Result<Option<Namespaces>, ApiError>) {
        let answer = async {
            let identity = self.authenticate_again(open.caller()).await?;
            let Open::Watch(GrantedWatch { grant, namespaces, .. }) = &open else { return Ok(None) };
            self.authorize_again(&identity, &grant.attributes, namespaces.as_ref()).await
        };
        let answer = answer.await;
        (open, answer)
    }
}

// === impl Open ===

impl Open {
    fn id(&self) -> Id {
        match self {
            Self::Stream(id, _) => Id::Stream(*id),
            Self::Watch(watch) => Id::Watch(watch.id),
        }
    }

    fn caller(&self) -> &Authenticated {
        match self {
            Self::Stream(_, caller) => caller,
            Self::Watch(watch) => &watch.grant.caller,
        }
    }

    /// Returns the watch if it is limited to some namespaces.
    fn limited(&self) -> Option<&GrantedWatch> {
        match self {
            Self::Watch(watch) if watch.namespaces.is_some() => Some(watch),
            Self::Watch(_) | Self::Stream(..) => None,
        }
    }
}

// === impl LimitedResources ===

impl LimitedResources {
    /// Returns the resources with limited watches that have objects in other namespaces than at the last call.
    fn moved(&mut self, service: &Service, open: &[Open]) -> BTreeSet<String> {
        let limited: BTreeSet<&str> =
            open.iter().filter_map(Open::limited).map(|watch| &*watch.resource.name).collect();
        self.0.retain(|resource, _| limited.contains(&**resource));
        let mut moved = BTreeSet::new();
        for resource in limited {
            let namespaces = service.namespaces_of(resource);
            // The namespaces may have changed since a new watch was opened.
            if self.0.get(resource) != Some(&namespaces) {
                self.0.insert(resource.to_owned(), namespaces);
                moved.insert(resource.to_owned());
            }
        }
        moved
    }
}

// === impl Unanswered ===

impl Unanswered {
    /// Forgets what is open no more.
    fn keep(&mut self, open: &[Open]) {
        let open: BTreeSet<Id> = open.iter().map(Open::id).collect();
        self.0.retain(|id, _| open.contains(id));
    }

    /// Returns true if an answer ends a stream or watch: a refusal at once, none after the limit.
    fn ends(&mut self, id: Id, answer: Option<&ApiError>, begun: Instant, limit: Duration) -> bool {
        if let Some(ApiError::AuthorizerUnavailable { .. }) = answer {
            return self.0.entry(id).or_insert(begun).elapsed() >= limit;
        }
        self.0.remove(&id);
        answer.is_some()
    }
}

// === impl Changed ===

impl Changed {
    /// Changes the rights of a watch.
    fn set(&mut self, service: &Service, watch: &GrantedWatch, access: WatchAccess) {
        if service.watchers().set_access(watch.id, access) {
            self.0.insert(watch.resource.name.clone());
        }
    }

    /// Ends a stream or a watch.
    fn end(&mut self, service: &Service, open: &Open, refusal: ApiError) {
        match open {
            Open::Stream(id, _) => service.open_streams().end(*id, refusal),
            Open::Watch(watch) => self.set(service, watch, WatchAccess::Ended(refusal)),
        }
    }

    /// Wakes the watches of the resources.
    async fn notify(&mut self, service: &Service) {
        let changed = std::mem::take(&mut self.0);
        for resource in service.resources().filter(|resource| changed.contains(&*resource.name)) {
            resource.informer.notify_watches().await;
        }
    }
}
