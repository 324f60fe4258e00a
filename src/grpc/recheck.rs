//! Checks of the callers of open streams and of the rights of open watches, again and again: rights are revoked, credentials expire,
//! and namespaces appear.
//!
//! A change is left at the watch's entry in the registry, and the body acts on it before it takes another event. Who has no valid
//! credentials any more loses the whole stream. While an authority does not answer, everything goes on, for [`AccessConfig::grace`] at
//! most, but nothing beyond the time at which its credentials expire.
//!
//! No check waits for the authority of another: those that need no review, those that need one, and those that had no answer are
//! separate [queues](Checks), in each of which the callers take turns.
//!
//! [`AccessConfig::grace`]: super::service::AccessConfig::grace

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::Instant;

use super::{
    grant::{Authenticated, Grant},
    service::Service,
    status::ApiError,
    time_slice::TimeSlice,
    watchers::{GrantedWatch, WatchAccess},
};
use crate::{auth::Authorizer, model::Namespaces, turns::FairQueue};

/// Time within which expired credentials and new namespaces are noticed.
const TICK: Duration = Duration::from_secs(1);
/// Number of streams and watches that are checked at a time: each may wait for a review.
const AT_A_TIME: usize = 64;
/// The same for those that had no answer: the other reviews have permits at the authority meanwhile.
const UNANSWERED_AT_A_TIME: usize = AT_A_TIME / SHARE;
/// Part of these that one caller may have, as a divisor.
const SHARE: usize = 4;

/// Checks that wait and run, and the state between them.
struct Recheck<'a> {
    service: &'a Service,
    /// Time at which everything is checked.
    due: Instant,
    /// True if rights have changed since the last check.
    is_changed: bool,
    /// By [`Kind`].
    queues: [Checks; KINDS.len()],
    running: FuturesUnordered<BoxFuture<'a, Checked>>,
    /// Streams and watches in the queues, or whose check runs.
    pending: BTreeSet<Id>,
    /// Watches that are checked again after that, because there are new namespaces.
    again: BTreeSet<Id>,
    limited: LimitedResources,
    unanswered: Unanswered,
    changed: Changed,
    slice: TimeSlice,
}

/// Queue of checks, and the number of those that run.
#[derive(Default)]
struct Checks {
    waiting: FairQueue<Open>,
    running: usize,
    /// Number of these by owner.
    by_owner: HashMap<u64, usize>,
}

/// Kind of a check, by what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The server decides alone.
    Local,
    /// Another authority may have to review the caller or the access.
    Reviewed,
    /// That had no answer at the last check.
    Unanswered,
}

/// Check that is over.
struct Checked {
    kind: Kind,
    owner: u64,
    open: Open,
    answer: Result<Option<Namespaces>, ApiError>,
}

const KINDS: [Kind; 3] = [Kind::Local, Kind::Reviewed, Kind::Unanswered];

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

/// Streams and watches that were to be checked and have had no answer since.
#[derive(Debug, Default)]
struct Unanswered(BTreeMap<Id, NoAnswer>);

#[derive(Debug, Clone, Copy)]
struct NoAnswer {
    /// Time at which the first of the checks without an answer was due.
    since: Instant,
    /// True if one of them has failed.
    has_failed: bool,
}

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
        let mut recheck = Recheck::new(self);
        let mut tick = Instant::now() + TICK;
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
                // Cancel-safe: a change that is not returned is seen at the next call, and no check that is over is lost.
                () = changed => recheck.begin_again(),
                () = tokio::time::sleep_until(tick) => {}
                Some(checked) = recheck.running.next() => {
                    recheck.take(checked).await;
                    continue;
                }
            }
            recheck.look().await;
            tick = Instant::now() + TICK;
        }
    }

    /// Returns all open streams and watches.
    fn open(&self) -> Vec<Open> {
        let streams = self.inner.open_streams.callers().into_iter().map(|(id, caller)| Open::Stream(id, caller));
        // The end of a stream comes before those of its watches.
        streams.chain(self.watchers().granted().into_iter().map(Open::Watch)).collect()
    }

    /// Authenticates the caller again, and authorizes it again if this is a watch.
    async fn check_one(&self, open: &Open) -> Result<Option<Namespaces>, ApiError> {
        match open {
            Open::Stream(_, caller) => self.authenticate_again(caller).await.map(|_| None),
            Open::Watch(GrantedWatch { grant, namespaces, .. }) => self.check_again(grant, namespaces.as_ref()).await,
        }
    }

    /// Authenticates the caller of a watch again, and returns the namespaces to which the watch is limited now.
    pub(super) async fn check_again(
        &self,
        grant: &Grant,
        current: Option<&Namespaces>,
    ) -> Result<Option<Namespaces>, ApiError> {
        let identity = self.authenticate_again(&grant.caller).await?;
        self.authorize_again(&identity, &grant.attributes, current).await
    }

    /// Returns true if the check may have to wait for the review of another authority.
    fn needs_review(&self, open: &Open) -> bool {
        let (config, caller) = (self.config(), open.caller());
        let authentication = config.authentication.as_ref();
        if authentication.is_some_and(|authentication| authentication.needs_review(caller.credentials.as_ref())) {
            return true;
        }
        let Some(authorizer) = &config.access.authorizer else { return false };
        match open {
            Open::Watch(watch) if authorizer.needs_review(Some(&watch.grant.attributes)) => true,
            _ => caller.impersonator.is_some() && authorizer.needs_review(None),
        }
    }
}

// === impl Recheck ===

impl<'a> Recheck<'a> {
    fn new(service: &'a Service) -> Self {
        Self {
            service,
            due: Instant::now() + service.config().access.recheck,
            is_changed: false,
            queues: Default::default(),
            running: FuturesUnordered::new(),
            pending: BTreeSet::new(),
            again: BTreeSet::new(),
            limited: LimitedResources::default(),
            unanswered: Unanswered::default(),
            changed: Changed::default(),
            slice: TimeSlice::begin(),
        }
    }

    /// Forgets the checks that wait and run, whose answers may be those of before a change, and makes everything due.
    fn begin_again(&mut self) {
        self.running = FuturesUnordered::new();
        self.queues = Default::default();
        self.pending.clear();
        (self.due, self.is_changed) = (Instant::now(), true);
    }

    /// Begins the checks that are due, and ends what is over without one.
    async fn look(&mut self) {
        let access = &self.service.config().access;
        let limit = access.recheck + access.grace;
        let mut open = self.service.open();
        self.end_expired(&mut open);
        let moved = self.limited.moved(self.service, &open);
        let is_due = Instant::now() >= self.due;
        if is_due {
            // After a change soon again: a stream that was being opened may have rights of before.
            let interval = if std::mem::take(&mut self.is_changed) { TICK } else { access.recheck };
            self.due = Instant::now() + interval;
            self.forget_others(&open);
        }
        for open in open {
            let id = open.id();
            let has_moved = open.limited().is_some_and(|watch| moved.contains(&watch.resource.name));
            if self.unanswered.is_over(id, limit) {
                let problem = format!("no answer within {limit:?}");
                self.changed.end(self.service, &open, ApiError::AuthorizerUnavailable { problem });
            } else if !self.pending.contains(&id) {
                if self.again.remove(&id) || has_moved || is_due {
                    self.push(open);
                }
            } else if has_moved {
                self.again.insert(id);
            }
            self.slice.end().await;
        }
        self.begin();
        self.changed.notify(self.service).await;
    }

    /// Ends the streams and watches whose credentials have expired, and keeps the others. No authority decides about that:
    /// whatever it answered, these credentials are over.
    fn end_expired(&mut self, open: &mut Vec<Open>) {
        let now = SystemTime::now();
        open.retain(|open| {
            let has_expired = open.caller().identity.has_expired(now);
            if has_expired {
                self.changed.end(self.service, open, ApiError::CredentialsExpired);
            }
            !has_expired
        });
    }

    /// Forgets what is open no more.
    fn forget_others(&mut self, open: &[Open]) {
        let open: BTreeSet<Id> = open.iter().map(Open::id).collect();
        self.unanswered.0.retain(|id, _| open.contains(id));
        self.again.retain(|id| open.contains(id));
    }

    /// Adds a check.
    fn push(&mut self, open: Open) {
        let id = open.id();
        let kind = match self.unanswered.awaits(id) {
            _ if !self.service.needs_review(&open) => Kind::Local,
            NoAnswer { has_failed: false, .. } => Kind::Reviewed,
            NoAnswer { has_failed: true, .. } => Kind::Unanswered,
        };
        self.pending.insert(id);
        self.queues[kind as usize].waiting.push(open.caller().party(), open);
    }

    /// Begins the checks whose turn it is.
    fn begin(&mut self) {
        let service = self.service;
        for kind in KINDS {
            while let Some((owner, open)) = self.queues[kind as usize].next(kind) {
                let check = async move {
                    let answer = service.check_one(&open).await;
                    Checked { kind, owner, open, answer }
                };
                self.running.push(check.boxed());
            }
        }
    }

    /// Acts on the answer of a check.
    async fn take(&mut self, checked: Checked) {
        let Checked { kind, owner, open, answer } = checked;
        self.queues[kind as usize].ends(owner);
        self.pending.remove(&open.id());
        if self.unanswered.has(open.id(), answer.as_ref().err()) {
            match (answer, &open) {
                (Ok(namespaces), Open::Watch(watch)) => {
                    self.changed.set(self.service, watch, WatchAccess::Namespaces(namespaces));
                }
                (Err(refusal), _) => self.changed.end(self.service, &open, refusal),
                (Ok(_), Open::Stream(..)) => {}
            }
        }
        self.begin();
        // Otherwise at the next look.
        if self.queues[kind as usize].running == 0 {
            self.changed.notify(self.service).await;
        }
        self.slice.end().await;
    }
}

// === impl Checks ===

impl Checks {
    /// Takes the first check of the owner whose turn it is, if another one of this kind may run.
    fn next(&mut self, kind: Kind) -> Option<(u64, Open)> {
        let most = if kind == Kind::Unanswered { UNANSWERED_AT_A_TIME } else { AT_A_TIME };
        if self.running >= most {
            return None;
        }
        let by_owner = &mut self.by_owner;
        let may_run = |owner: u64| by_owner.get(&owner).is_none_or(|running| *running < most / SHARE);
        let (owner, open) = self.waiting.pop_of(may_run)?;
        self.running += 1;
        *by_owner.entry(owner).or_default() += 1;
        Some((owner, open))
    }

    /// Counts a check that is over.
    fn ends(&mut self, owner: u64) {
        self.running -= 1;
        if let Some(running) = self.by_owner.get_mut(&owner) {
            *running -= 1;
            if *running == 0 {
                self.by_owner.remove(&owner);
            }
        }
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
    /// Returns since when a stream or watch, whose check is due, has had no answer.
    fn awaits(&mut self, id: Id) -> NoAnswer {
        *self.0.entry(id).or_insert(NoAnswer { since: Instant::now(), has_failed: false })
    }

    /// Returns true if a check has an answer: the rights, or a refusal.
    fn has(&mut self, id: Id, refusal: Option<&ApiError>) -> bool {
        if let Some(ApiError::AuthorizerUnavailable { .. }) = refusal {
            self.0.entry(id).and_modify(|waits| waits.has_failed = true);
            return false;
        }
        self.0.remove(&id);
        true
    }

    /// Returns true if there was no answer for too long, once.
    fn is_over(&mut self, id: Id, limit: Duration) -> bool {
        let is_over = self.0.get(&id).is_some_and(|waits| waits.since.elapsed() >= limit);
        if is_over {
            self.0.remove(&id);
        }
        is_over
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
            Open::Stream(id, _) => service.inner.open_streams.end(*id, refusal),
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
