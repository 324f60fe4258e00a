//! Checks of the rights of open watches, again and again: rights are revoked, credentials expire, and namespaces appear.
//!
//! A change is left at the watch's entry in the registry, and the body acts on it before it takes another event.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    service::Service,
    status::ApiError,
    time_slice::TimeSlice,
    watchers::{GrantedWatch, WatchAccess},
};
use crate::model::Namespaces;

/// Time within which expired credentials and new namespaces are noticed.
const TICK: Duration = Duration::from_secs(1);
/// Number of watches that are checked at a time: each may wait for a review.
const AT_A_TIME: usize = 64;

/// Memory between two checks.
#[derive(Debug, Default)]
struct Rechecks {
    /// Namespaces of each resource that has limited watches.
    namespaces: BTreeMap<String, Vec<String>>,
    /// Watches for which there was no answer at the last check that was due.
    unanswered: BTreeSet<u64>,
}

// === impl Service ===

impl Service {
    /// Checks the rights of all open watches at each interval, and at once when rules have changed; never returns. In between it
    /// checks those whose credentials have expired, and those limited to some namespaces when others have appeared.
    pub(super) async fn recheck(&self) {
        let Some(authorizer) = &self.config().access.authorizer else { return std::future::pending().await };
        let interval = self.config().access.recheck;
        let mut changes = authorizer.changes();
        let mut due = Instant::now() + interval;
        let mut rechecks = Rechecks::default();
        loop {
            let is_changed = tokio::select! {
                // Cancel-safe: a change that is not returned is seen at the next call.
                Ok(()) = changes.changed() => true,
                () = tokio::time::sleep(TICK) => false,
            };
            let is_due = is_changed || Instant::now() >= due;
            if is_due {
                // After a change soon again: a watch that was being opened may have rights of before.
                due = Instant::now() + if is_changed { TICK } else { interval };
            }
            rechecks.check(self, is_due).await;
        }
    }

    /// Authenticates and authorizes the caller of an open watch again.
    async fn check(&self, watch: &GrantedWatch) -> Result<Option<Namespaces>, ApiError> {
        let GrantedWatch { grant, namespaces, .. } = watch;
        let identity = match &self.config().authentication {
            Some(authentication) => {
                let again = authentication.authenticate(grant.credentials.as_ref()).await;
                let caller = again.map_err(ApiError::authentication)?;
                match &grant.impersonator {
                    Some(_) => self.impersonate(&caller, &grant.identity).await?,
                    None => caller,
                }
            }
            None => grant.identity.clone(),
        };
        self.authorize_again(&identity, &grant.attributes, namespaces.as_ref()).await
    }
}

// === impl Rechecks ===

impl Rechecks {
    /// Checks all open watches if that is due, otherwise those for which something has changed.
    async fn check(&mut self, service: &Service, is_due: bool) {
        let watches = service.watchers().granted();
        let moved = self.moved(service, &watches);
        let now = SystemTime::now();
        let is_chosen = |watch: &&GrantedWatch| {
            is_due
                || watch.grant.identity.has_expired(now)
                || watch.namespaces.is_some() && moved.contains(&*watch.resource.name)
        };
        let chosen: Vec<&GrantedWatch> = watches.iter().filter(is_chosen).collect();
        let mut changed = BTreeSet::new();
        let mut slice = TimeSlice::begin();
        for some in chosen.chunks(AT_A_TIME) {
            let found = join_all(some.iter().map(|watch| service.check(watch))).await;
            for (watch, found) in some.iter().zip(found) {
                let access = self.change(watch.id, found, is_due);
                if access.is_some_and(|access| service.watchers().set_access(watch.id, access)) {
                    changed.insert(&*watch.resource.name);
                }
            }
            slice.end().await;
        }
        if is_due {
            let open: BTreeSet<u64> = watches.iter().map(|watch| watch.id).collect();
            self.unanswered.retain(|id| open.contains(id));
        }
        for resource in service.resources().filter(|resource| changed.contains(&*resource.name)) {
            resource.informer.notify_watches().await;
        }
    }

    /// Returns the change that a check makes. Without an answer, the rights of the last check hold until the next one that is due.
    fn change(&mut self, id: u64, found: Result<Option<Namespaces>, ApiError>, is_due: bool) -> Option<WatchAccess> {
        match found {
            Ok(namespaces) => {
                self.unanswered.remove(&id);
                Some(WatchAccess::Namespaces(namespaces))
            }
            Err(refusal @ ApiError::AuthorizerUnavailable { .. }) => {
                (is_due && !self.unanswered.insert(id)).then_some(WatchAccess::Ended(refusal))
            }
            Err(refusal) => Some(WatchAccess::Ended(refusal)),
        }
    }

    /// Returns the resources with limited watches that have objects in other namespaces than at the last call.
    fn moved<'a>(&mut self, service: &Service, watches: &'a [GrantedWatch]) -> BTreeSet<&'a str> {
        let limited = watches.iter().filter(|watch| watch.namespaces.is_some()).map(|watch| &*watch.resource.name);
        let limited: BTreeSet<&str> = limited.collect();
        self.namespaces.retain(|resource, _| limited.contains(&**resource));
        let mut moved = BTreeSet::new();
        for resource in limited {
            let namespaces = service.namespaces_of(resource);
            // The namespaces may have changed since a new watch was opened.
            if self.namespaces.get(resource) != Some(&namespaces) {
                self.namespaces.insert(resource.to_owned(), namespaces);
                moved.insert(resource);
            }
        }
        moved
    }
}
