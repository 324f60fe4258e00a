//! Several namespaces of one resource: one watch for each, and one list and one version for all ([`merge`] has the rule).
//!
//! ```text
//!   list ──▶ the first namespace at its version R, the others at exactly R ──▶ List at R
//!
//!   namespace a ── watch ──┐
//!   namespace b ── watch ──┼──▶ MergedPosition ──▶ Delta at the merged version
//!   namespace c ── watch ──┘      ▲
//!        └── short watch ── bookmark (while others are ahead of it)
//! ```
//!
//! For `list`, `watch`, `head` and `resume_check` each namespace is a resource of its own, with its own position.
//!
//! - When the API closes the watch of one namespace, only that one is reopened. An error of one ends all of them: the Reflector
//!   reopens them, each from its own position.
//! - Received events of a member are emitted before anything else is awaited, so that positions and emitted events agree.
//! - A quiet namespace holds the merged version back until its next bookmark, about a minute. While a caller waits for a later
//!   version, or many events are ahead, the source requests a short second watch from the namespace's position. The API ends it
//!   with a bookmark if etcd's revision has advanced, as it does constantly in a live cluster. Other events of it are
//!   dropped, since the open watch has them too.

pub(super) mod existence;
mod member;
mod merge;
mod selector;

use std::{pin::Pin, sync::Arc};

use bytes::Bytes;
use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, FuturesUnordered, SelectAll},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::{
    existence::CONCURRENCY,
    member::{Member, MemberWatch, SavedMember, not_decimal},
    merge::MergedPosition,
    selector::Selector,
};
use super::{
    KubeConfig,
    client::Client,
    feed,
    known::KnownState,
    list,
    resume_check::ResumePoint,
    shared::{KubeShared, ObjectList},
};
use crate::{
    cache::{Delta, List, ListVersion, ProgressDemand, SourceError, Watch},
    model::{Event, ResourceVersion, VersionError},
    source::problems::SavedProblems,
};

/// Namespaces of one resource.
pub(super) struct Namespaces {
    /// State of the whole resource: its problems, and its cluster.
    whole: Arc<KubeShared>,
    client: Arc<Client>,
    /// Selector of the namespaces, if they are not configured by name.
    selector: Option<Selector>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    members: Vec<Member>,
    merge: MergedPosition,
}

/// Open watches of all members.
struct MergedWatch {
    state: Arc<Mutex<State>>,
    members: Vec<Member>,
    demand: ProgressDemand,
    /// Completes when the selected namespaces have changed, or their watch fails.
    selection: Pin<Box<dyn Future<Output = SourceError> + Send>>,
    /// Never completes.
    checks: Pin<Box<dyn Future<Output = ()> + Send>>,
    watches: SelectAll<MemberWatch>,
    /// Checks of the feed of each watch. Each completes when its watch lacks a change.
    feeds: FuturesUnordered<Pin<Box<dyn Future<Output = SourceError> + Send>>>,
    probes: FuturesUnordered<Pin<Box<dyn Future<Output = Probe> + Send>>>,
    /// Members with a running probe.
    probed: Vec<usize>,
}

/// A member, and the version up to which it has no events.
type Probe = (usize, Option<ResourceVersion>);

/// Data saved for the next run.
#[derive(Serialize, Deserialize)]
struct SavedNamespaces {
    cluster: Option<String>,
    version: String,
    problems: SavedProblems,
    /// Kind of the lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    members: Vec<SavedMember>,
    selector: Option<SavedMember>,
}

/// Number of attempts to list all namespaces at one version.
const LIST_ATTEMPTS: usize = 4;
/// Number of events ahead at which probes are sent without a waiting caller.
const PROBE_AHEAD: usize = 1_000;

// === impl Namespaces ===

impl Namespaces {
    pub(super) fn new(whole: &Arc<KubeShared>, client: Arc<Client>) -> Self {
        let members = Vec::new();
        let state = State { members, merge: MergedPosition::new(0, ResourceVersion::decimal(0)) };
        let has_selector = !whole.config.namespace_selector.is_empty();
        let selector = has_selector.then(|| Selector::new(whole, Arc::clone(&client)));
        Self { whole: Arc::clone(whole), client, selector, state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the names of the namespaces, which a selector finds now.
    pub(super) async fn names(&self) -> Result<Vec<String>, SourceError> {
        match &self.selector {
            Some(selector) => selector.list().await.map(|(names, _)| names),
            None => Ok(self.whole.config.namespaces.clone()),
        }
    }

    pub(super) async fn list(&self, at: &ListVersion) -> Result<List, SourceError> {
        if self.whole.config.has_opaque_versions {
            return Err(not_decimal());
        }
        let (names, version) = match &self.selector {
            Some(selector) => selector.list().await?,
            None => (self.whole.config.namespaces.clone(), String::new()),
        };
        self.whole.health.set_namespaces(names.clone());
        let members: Vec<Member> = names.iter().map(|name| self.member(name)).collect();
        self.find_sent_ahead(&members).await?;
        // No namespace may fall behind its emitted events.
        let highest = self.state.lock().merge.highest().cloned();
        let at = match (at, highest.clone()) {
            (ListVersion::NotOlderThan(version), Some(highest)) if highest > *version => {
                &ListVersion::NotOlderThan(highest)
            }
            _ => at,
        };
        if members.is_empty() {
            self.whole.check_cluster().await?;
            return self.settle(members, vec![ObjectList { version, ..ObjectList::default() }], at, highest.as_ref());
        }
        for _ in 0..LIST_ATTEMPTS {
            let Some(readings) = read(&members, at).await? else { continue };
            for reading in &readings {
                self.whole.check_kind(reading).await?;
            }
            // Not before: this list's cluster is the one to check.
            self.whole.check_cluster().await?;
            if self.selector.is_none() {
                let empty = names.iter().zip(&readings).filter(|(_, reading)| reading.objects.is_empty());
                existence::check(&self.whole, &empty.map(|(name, _)| name.clone()).collect::<Vec<_>>()).await;
            }
            return self.settle(members, readings, at, highest.as_ref());
        }
        let text = "the API does not list namespaces at one version (resourceVersionMatch=Exact); configure a resource for \
                    each namespace";
        Err(SourceError::Unavailable(text.to_owned()))
    }

    /// Combines the lists of all namespaces, which are at one version.
    fn settle(
        &self,
        members: Vec<Member>,
        readings: Vec<ObjectList>,
        at: &ListVersion,
        highest: Option<&ResourceVersion>,
    ) -> Result<List, SourceError> {
        let marks: Vec<_> = readings.iter().map(|reading| ResumePoint::of_list(&reading.objects)).collect();
        let mut all = ObjectList::default();
        for ObjectList { objects, version, problems, unreadable, .. } in readings {
            all.objects.extend(objects);
            all.problems.extend(problems);
            all.unreadable.extend(unreadable);
            all.version = version;
        }
        if ResourceVersion::parse_decimal(&all.version).is_err() {
            return Err(not_decimal());
        }
        let mut list = self.whole.settle(all, at)?;
        let mut state = self.state.lock();
        list.expires_older = self.whole.sent_ahead.is_above(state.merge.version());
        let names = |members: &[Member], others: &[Member]| {
            let names = members.iter().map(|member| &member.namespace);
            names.filter(|name| others.iter().all(|other| other.namespace != **name)).cloned().collect()
        };
        list.new_namespaces = names(&members, &state.members);
        list.lost_namespaces = names(&state.members, &members);
        if let Some(highest) = highest.filter(|highest| list.version < **highest) {
            let text = format!("cluster version {} is older than the last known version {highest}", list.version);
            *state = State { members: Vec::new(), merge: MergedPosition::new(0, list.version) };
            return Err(SourceError::HistoryRewritten(text));
        }
        let cluster = self.whole.known.lock().cluster().map(str::to_owned);
        if let Some((selector, uid)) = self.selector.as_ref().zip(cluster.as_deref()) {
            selector.check_cluster(uid);
        }
        for (member, resume_point) in members.iter().zip(marks) {
            let mut known = member.shared.known.lock();
            if let Some(uid) = &cluster {
                // The position of another cluster is dropped; the list is of this one.
                drop(known.check_cluster(uid));
            }
            known.note_list(&list.version, resume_point);
        }
        for lost in &list.lost_namespaces {
            self.whole.health.clear_unfed(lost);
        }
        *state = State { merge: MergedPosition::new(members.len(), list.version.clone()), members };
        if let Some(selector) = &self.selector {
            selector.note_followed();
        }
        Ok(list)
    }

    pub(super) async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        if self.is_outdated() {
            return Err(selector::expired());
        }
        let members = {
            let state = self.state.lock();
            let reached: Option<Vec<_>> = state.members.iter().map(Member::reached).collect();
            // A late change opens a version again that was complete.
            if !reached.is_some_and(|reached| reached.iter().all(|reached| *reached >= from)) {
                let text = format!("cannot watch from version {from}: the source is at another one");
                return Err(SourceError::Expired(text));
            }
            state.members.clone()
        };
        self.find_sent_ahead(&members).await?;
        let from = &from;
        let watches: Vec<_> = stream::iter(members.iter().cloned().enumerate())
            .map(|(at, member)| async move { member.follow(from).await.map(|followed| followed.into_stream(at)) })
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        // Not before: one that was ahead at the end of a previous run begins at the merged version again.
        let reached = members.iter().map(|member| member.reached().unwrap_or_else(|| from.clone())).collect();
        self.state.lock().merge.begin(from.clone(), reached);
        let names: Vec<_> = members.iter().map(|member| member.namespace.clone()).collect();
        let configured = if self.selector.is_some() { Vec::new() } else { names.clone() };
        let merged = MergedWatch {
            selection: match &self.selector {
                Some(selector) => Box::pin(selector.clone().changed(selector.follow().await?, names)),
                None => Box::pin(std::future::pending()),
            },
            checks: Box::pin(existence::keep_checking(Arc::clone(&self.whole), configured)),
            state: Arc::clone(&self.state),
            feeds: self.watched(&members).map(feed_of).collect(),
            members,
            demand: self.whole.demand.clone(),
            watches: watches.into_iter().collect(),
            probes: FuturesUnordered::new(),
            probed: Vec::new(),
        };
        Ok(self.whole.relisting(Box::pin(stream::try_unfold(merged, |mut merged| async move {
            let next = merged.next().await;
            next.map(|delta| Some((delta, merged)))
        }))))
    }

    async fn find_sent_ahead(&self, members: &[Member]) -> Result<(), SourceError> {
        match members.first() {
            Some(first) => self.whole.sent_ahead.find(first.shared.present_version()).await,
            None => Ok(()),
        }
    }

    /// Returns the states of all open watches: that of each namespace, and that of the selector.
    fn watched<'a>(&'a self, members: &'a [Member]) -> impl Iterator<Item = &'a Arc<KubeShared>> {
        members.iter().map(|member| &member.shared).chain(self.selector.as_ref().map(Selector::shared))
    }

    /// Returns the part of the identity that namespaces add.
    pub(super) fn identity(&self) -> String {
        let KubeConfig { namespaces, namespace_selector, .. } = &self.whole.config;
        format!("in {namespaces:?} and by labels {namespace_selector:?}")
    }

    fn is_outdated(&self) -> bool {
        self.selector.as_ref().is_some_and(Selector::is_outdated)
    }

    pub(super) fn proof(&self) -> Option<Bytes> {
        if self.is_outdated() {
            return None;
        }
        let state = self.state.lock();
        let members: Option<Vec<_>> = state.members.iter().map(Member::keep).collect();
        let kept = SavedNamespaces {
            cluster: self.whole.known.lock().cluster().map(str::to_owned),
            version: state.merge.version().to_string(),
            problems: self.whole.problems.keep(),
            kind: self.whole.list_kind.get(),
            members: members?,
            selector: self.selector.as_ref().map(|selector| selector.keep().ok_or(())).transpose().ok()?,
        };
        serde_json::to_vec(&kept).ok().map(Bytes::from)
    }

    /// Restores the state of a previous run, which is that of the merged version: the watch of a namespace that was ahead
    /// begins there.
    pub(super) fn resume(&self, at: &ResourceVersion, proof: &[u8]) -> Result<(), String> {
        let unreadable = |error: &dyn std::fmt::Display| format!("invalid resume proof: {error}");
        let kept: SavedNamespaces = serde_json::from_slice(proof).map_err(|error| unreadable(&error))?;
        let SavedNamespaces { cluster, version, problems, kind, members, selector } = kept;
        if version != at.to_string() {
            return Err(format!("resume proof of version {version} for a snapshot at {at}"));
        }
        // A single namespace is never ahead, unless others were selected before.
        if members.len() > 1 || self.selector.is_some() || members.iter().any(|member| member.leaves_open) {
            self.whole.sent_ahead.resume();
        }
        let (mut resumed, mut reached) = (Vec::new(), Vec::new());
        for SavedMember { namespace, version, is_open, leaves_open, resume_point } in members {
            let version: ResourceVersion = version.parse().map_err(|error| unreadable(&error))?;
            let member = self.member(&namespace);
            let resume_point = resume_point.and_then(ResumePoint::resume);
            let known = KnownState::resume(cluster.clone(), version.clone(), is_open, resume_point);
            *member.shared.known.lock() = known.with_open_versions(leaves_open);
            resumed.push(member);
            reached.push(version);
        }
        if let Some((selector, kept)) = self.selector.as_ref().zip(selector) {
            let version = kept.version.parse().map_err(|error: VersionError| unreadable(&error))?;
            selector.resume(cluster.clone(), version, kept.is_open, kept.resume_point.and_then(ResumePoint::resume));
        }
        self.whole.health.set_namespaces(resumed.iter().map(|member| member.namespace.clone()).collect());
        *self.whole.known.lock() = KnownState::resume(cluster, at.clone(), false, None);
        let mut merge = MergedPosition::new(0, at.clone());
        merge.begin(at.clone(), reached);
        *self.state.lock() = State { members: resumed, merge };
        self.whole.problems.resume(problems);
        self.whole.list_kind.resume(kind);
        Ok(())
    }

    /// Returns the existing member, or a new one.
    fn member(&self, namespace: &str) -> Member {
        let state = self.state.lock();
        state.members.iter().find(|member| member.namespace == namespace).cloned().unwrap_or_else(|| {
            let config = KubeConfig { namespace: namespace.to_owned(), ..self.whole.config.clone() };
            let shared = KubeShared::new(config, Arc::clone(&self.client), self.whole.health.clone());
            Member { namespace: namespace.to_owned(), shared: Arc::new(shared) }
        })
    }
}

debug_fields!(Namespaces { state });

/// Lists all namespaces at one version; `None` if the API answered with different ones, or no longer has the first one.
async fn read(members: &[Member], at: &ListVersion) -> Result<Option<Vec<ObjectList>>, SourceError> {
    let Some((first, others)) = members.split_first() else { return Ok(None) };
    let first = list::read(&first.shared, at).await?;
    let version = first.version.clone();
    let others = stream::iter(others.iter().cloned())
        .map(|member| {
            let version = version.clone();
            async move { list::read_exact(&member.shared, version).await }
        })
        .buffered(CONCURRENCY)
        .try_collect::<Vec<_>>();
    let others = match others.await {
        Err(SourceError::Expired(problem)) => {
            tracing::info!(problem, "namespace not listed at the version of the first");
            return Ok(None);
        }
        others => others?,
    };
    let readings: Vec<_> = [first].into_iter().chain(others).collect();
    Ok(Some(readings).filter(|readings| readings.iter().all(|reading| reading.version == version)))
}

/// Returns the check of the feed of one watch.
fn feed_of(watched: &Arc<KubeShared>) -> Pin<Box<dyn Future<Output = SourceError> + Send>> {
    Box::pin(feed::keep_checking(Arc::clone(watched)))
}

// === impl MergedWatch ===

impl MergedWatch {
    async fn next(&mut self) -> Result<Delta, SourceError> {
        loop {
            if let Some(delta) = self.state.lock().merge.progress() {
                return Ok(delta);
            }
            let ahead = self.state.lock().merge.ahead();
            let demand = self.demand.clone();
            let has_room = self.probes.len() < CONCURRENCY && !self.unprobed().is_empty();
            if has_room && (ahead > PROBE_AHEAD || demand.is_wanted()) {
                self.probe();
            }
            tokio::select! {
                // Received events come before new requests. All branches are cancel-safe: they take nothing that they do not
                // return.
                biased;
                Some((at, received)) = self.watches.next() => {
                    if let Some(delta) = self.state.lock().merge.take(at, received?)? {
                        return Ok(delta);
                    }
                }
                Some((at, quiet)) = self.probes.next() => {
                    self.probed.retain(|probed| *probed != at);
                    if let Some(version) = quiet {
                        self.members[at].shared.known.lock().note_event(&Event::Bookmark(version), false);
                        if let Some(reached) = self.members[at].reached() {
                            self.state.lock().merge.note_quiet(at, reached);
                        }
                    }
                }
                error = &mut self.selection => return Err(error),
                Some(error) = self.feeds.next() => return Err(error),
                () = &mut self.checks => {}
                () = demand.wanted(), if has_room && !demand.is_wanted() => {}
            }
        }
    }

    /// Returns the members without a running probe that others are ahead of.
    fn unprobed(&self) -> Vec<(usize, ResourceVersion)> {
        let mut behind = self.state.lock().merge.behind();
        behind.retain(|(at, _)| !self.probed.contains(at));
        behind
    }

    fn probe(&mut self) {
        for (at, from) in self.unprobed().into_iter().take(CONCURRENCY - self.probes.len()) {
            let member = self.members[at].clone();
            self.probed.push(at);
            self.probes.push(Box::pin(async move { (at, member.probe(from).await) }));
        }
    }
}
