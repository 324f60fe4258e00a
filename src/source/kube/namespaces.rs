//! Several namespaces of one resource: one watch for each, and one list and one version for all ([`merge`] has the rule).
//!
//! ```text
//!   list ──▶ the first namespace at its version R, the others at exactly R ──▶ List at R
//!
//!   namespace a ── watch ──┐
//!   namespace b ── watch ──┼──▶ Merge ──▶ Delta at the merged version
//!   namespace c ── watch ──┘      ▲
//!        └── short watch ── bookmark (while others are ahead of it)
//! ```
//!
//! Each namespace is a resource of its own as far as `list`, `watch`, `head` and `proof` are concerned, with its own position.
//!
//! - A watch that the API closes is opened again by itself. An error of one ends all of them: the Reflector opens them again,
//!   each from its own position.
//! - What a member has received is handed out before anything else is awaited, so that positions and what was handed out agree.
//! - A quiet namespace holds the merged version back until its next bookmark, about a minute. While somebody waits for a later
//!   version, or much is ahead, a short watch from its position is requested beside the one that is open: the API ends it with
//!   a bookmark. What it shows besides comes by the open one.

mod merge;

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    Stream, StreamExt, TryStreamExt,
    stream::{self, FuturesUnordered, SelectAll},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use self::merge::Merge;
use super::{
    KubeConfig,
    client::Client,
    head::Head,
    known::{Known, Origin, Position},
    list,
    object::Bookmark,
    proof::{KeptMark, Mark},
    reading::{Reading, Shared, Stop},
    watch::{self, Live},
};
use crate::{
    cache::{Delta, List, ListVersion, SourceError, SourceHealth, Watch},
    model::{Event, EventType, Object, ResourceVersion},
    source::{problems::KeptProblems, watch_event::Said},
};

/// The namespaces of one resource.
pub(super) struct Namespaces {
    /// The resource as a whole: its problems, and which cluster it is of.
    whole: Arc<Shared>,
    client: Arc<Client>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    members: Vec<Member>,
    merge: Merge,
}

/// One namespace.
#[derive(Debug, Clone)]
struct Member {
    namespace: String,
    shared: Arc<Shared>,
}

/// The open watches of all members.
struct Merged {
    state: Arc<Mutex<State>>,
    members: Vec<Member>,
    health: SourceHealth,
    watches: SelectAll<MemberWatch>,
    probes: FuturesUnordered<Pin<Box<dyn Future<Output = Probe> + Send>>>,
    /// The members that there is a probe of.
    probed: Vec<usize>,
}

/// What a member receives, with its place.
type MemberWatch = Pin<Box<dyn Stream<Item = (usize, Result<Delta, SourceError>)> + Send>>;

/// A member, and the version up to which nothing has happened to it.
type Probe = (usize, Option<ResourceVersion>);

/// The open watch of one member.
struct Followed {
    member: Member,
    live: Live,
    opened_at: Instant,
    is_empty: bool,
}

/// What a later start goes on with.
#[derive(Serialize, Deserialize)]
struct Kept {
    cluster: Option<String>,
    version: String,
    problems: KeptProblems,
    members: Vec<KeptMember>,
}

#[derive(Serialize, Deserialize)]
struct KeptMember {
    namespace: String,
    /// All of it was received.
    version: String,
    /// The version after it is known in part: its changes are the mark's.
    #[serde(default)]
    is_open: bool,
    mark: Option<KeptMark>,
}

/// Requests for different namespaces at a time.
const CONCURRENCY: usize = 8;
/// Attempts to list all namespaces at one version.
const LIST_ATTEMPTS: usize = 4;
/// A watch that ends sooner and empty is not opened again at once.
const VERY_SHORT_WATCH: Duration = Duration::from_secs(1);
/// kube-apiserver sends a bookmark two seconds before the end of a watch.
const PROBE_TIME: Duration = Duration::from_secs(4);
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// So many events are ahead before probes are sent though nobody waits.
const PROBE_AHEAD: usize = 1_000;

// === impl Namespaces ===

impl Namespaces {
    pub(super) fn new(whole: &Arc<Shared>, client: Arc<Client>) -> Self {
        let members = Vec::new();
        let state = State { members, merge: Merge::new(0, ResourceVersion::decimal(0)) };
        Self { whole: Arc::clone(whole), client, state: Arc::new(Mutex::new(state)) }
    }

    pub(super) async fn list(&self, at: &ListVersion) -> Result<List, SourceError> {
        if self.whole.config.has_opaque_versions {
            return Err(not_decimal());
        }
        let members: Vec<Member> = self.names().iter().map(|name| self.member(name)).collect();
        // No namespace goes back behind what was handed out of it.
        let highest = self.state.lock().merge.highest().cloned();
        let at = match (at, highest.clone()) {
            (ListVersion::NotOlderThan(version), Some(highest)) if highest > *version => {
                &ListVersion::NotOlderThan(highest)
            }
            _ => at,
        };
        for _ in 0..LIST_ATTEMPTS {
            let Some(readings) = read(&members, at).await? else { continue };
            // Only now: it is of this list that the cluster has to be known.
            self.whole.check_cluster().await?;
            return self.settle(members, readings, at, highest.as_ref());
        }
        let text = "the API does not list namespaces at one version (resourceVersionMatch=Exact): follow each of them as a \
                    resource of its own";
        Err(SourceError::Unavailable(text.to_owned()))
    }

    /// Makes one list of those of all namespaces, which are at one version.
    fn settle(
        &self,
        members: Vec<Member>,
        readings: Vec<Reading>,
        at: &ListVersion,
        highest: Option<&ResourceVersion>,
    ) -> Result<List, SourceError> {
        let marks: Vec<_> = readings.iter().map(|reading| Mark::of_list(&reading.objects)).collect();
        let mut all = Reading::default();
        for Reading { objects, version, problems } in readings {
            all.objects.extend(objects);
            all.problems.extend(problems);
            all.version = version;
        }
        if !all.version.parse::<ResourceVersion>().is_ok_and(|version| version.lineage().is_none()) {
            return Err(not_decimal());
        }
        let list = self.whole.settle(all, at)?;
        let mut state = self.state.lock();
        if let Some(highest) = highest.filter(|highest| list.version < **highest) {
            let text = format!("the cluster is at version {}, and {highest} was known", list.version);
            *state = State { members: Vec::new(), merge: Merge::new(0, list.version) };
            return Err(SourceError::HistoryChanged(text));
        }
        let cluster = self.whole.known.lock().cluster().map(str::to_owned);
        for (member, mark) in members.iter().zip(marks) {
            let mut known = member.shared.known.lock();
            if let Some(uid) = &cluster {
                // What was known of another one is forgotten; the list is of this one.
                drop(known.check_cluster(uid));
            }
            known.note_list(&list.version, mark);
        }
        *state = State { merge: Merge::new(members.len(), list.version.clone()), members };
        Ok(list)
    }

    pub(super) async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        let members = {
            let mut state = self.state.lock();
            let reached: Option<Vec<_>> = state.members.iter().map(Member::reached).collect();
            let reached = reached.filter(|reached| reached.iter().all(|reached| *reached >= from));
            let reached =
                reached.ok_or_else(|| SourceError::Expired(format!("{from} is not where the resource is")))?;
            state.merge.begin(from.clone(), reached);
            state.members.clone()
        };
        let from = &from;
        let watches: Vec<_> = stream::iter(members.iter().cloned().enumerate())
            .map(|(at, member)| async move { member.follow(from).await.map(|followed| followed.into_stream(at)) })
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        let merged = Merged {
            state: Arc::clone(&self.state),
            members,
            health: self.whole.health.clone(),
            watches: watches.into_iter().collect(),
            probes: FuturesUnordered::new(),
            probed: Vec::new(),
        };
        Ok(Box::pin(stream::unfold(Some(merged), |merged| async move {
            let mut merged = merged?;
            match merged.next().await {
                Ok(delta) => Some((Ok(delta), Some(merged))),
                Err(error) => Some((Err(error), None)),
            }
        })))
    }

    /// What the objects depend upon besides the rest of the configuration.
    pub(super) fn identity(&self) -> String {
        format!("in {:?}", self.names())
    }

    pub(super) fn proof(&self) -> Option<Bytes> {
        let state = self.state.lock();
        let members: Option<Vec<_>> = state.members.iter().map(Member::keep).collect();
        let kept = Kept {
            cluster: self.whole.known.lock().cluster().map(str::to_owned),
            version: state.merge.version().to_string(),
            problems: self.whole.problems.keep(),
            members: members.filter(|members| !members.is_empty())?,
        };
        serde_json::to_vec(&kept).ok().map(Bytes::from)
    }

    /// Goes on from where an earlier start was. The kept state is that of the merged version: a namespace that was ahead is
    /// watched from there.
    pub(super) fn resume(&self, at: &ResourceVersion, proof: &[u8]) -> Result<(), String> {
        let unreadable = |error: &dyn std::fmt::Display| format!("its proof cannot be read: {error}");
        let kept: Kept = serde_json::from_slice(proof).map_err(|error| unreadable(&error))?;
        let Kept { cluster, version, problems, members } = kept;
        if version != at.to_string() {
            return Err(format!("its proof is of version {version}, and it is at {at}"));
        }
        let (mut resumed, mut reached) = (Vec::new(), Vec::new());
        for KeptMember { namespace, version, is_open, mark } in members {
            let version: ResourceVersion = version.parse().map_err(|error| unreadable(&error))?;
            let member = self.member(&namespace);
            let mark = mark.and_then(Mark::resume);
            *member.shared.known.lock() = Known::resume(cluster.clone(), version.clone(), is_open, mark);
            resumed.push(member);
            reached.push(version);
        }
        *self.whole.known.lock() = Known::resume(cluster, at.clone(), false, None);
        let mut merge = Merge::new(0, at.clone());
        merge.begin(at.clone(), reached);
        *self.state.lock() = State { members: resumed, merge };
        self.whole.problems.resume(problems);
        Ok(())
    }

    fn names(&self) -> Vec<String> {
        self.whole.config.namespaces.clone()
    }

    /// The member that there is, or a new one.
    fn member(&self, namespace: &str) -> Member {
        let state = self.state.lock();
        state.members.iter().find(|member| member.namespace == namespace).cloned().unwrap_or_else(|| {
            let config = KubeConfig { namespace: namespace.to_owned(), ..self.whole.config.clone() };
            let shared = Shared::new(config, Arc::clone(&self.client), self.whole.health.clone());
            Member { namespace: namespace.to_owned(), shared: Arc::new(shared) }
        })
    }
}

impl std::fmt::Debug for Namespaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Namespaces").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Reads all namespaces at one version; `None` when the API has answered with different ones, or has forgotten the first.
async fn read(members: &[Member], at: &ListVersion) -> Result<Option<Vec<Reading>>, SourceError> {
    let Some((first, others)) = members.split_first() else { return Ok(None) };
    let into_error = |stop| match stop {
        Stop::NotDecimal => not_decimal(),
        Stop::Source(error) => error,
    };
    let first = list::read(&first.shared, at).await.map_err(into_error)?;
    let version = first.version.clone();
    let others = stream::iter(others.iter().cloned())
        .map(|member| {
            let version = version.clone();
            async move { list::read_exact(&member.shared, version).await }
        })
        .buffered(CONCURRENCY)
        .try_collect::<Vec<_>>();
    let others = match others.await {
        Err(Stop::Source(SourceError::Expired(problem))) => {
            tracing::info!(problem, "a namespace is not listed at the version of the first");
            return Ok(None);
        }
        others => others.map_err(into_error)?,
    };
    let readings: Vec<_> = [first].into_iter().chain(others).collect();
    Ok(Some(readings).filter(|readings| readings.iter().all(|reading| reading.version == version)))
}

fn not_decimal() -> SourceError {
    let text = "the API's versions are not decimals, so that namespaces cannot be compared: follow each of them as a resource \
                of its own";
    SourceError::Undecodable(text.to_owned())
}

// === impl Member ===

impl Member {
    /// The version that was handed out completely; `None` when that is not known.
    fn reached(&self) -> Option<ResourceVersion> {
        self.shared.known.lock().position().map(Position::safe)
    }

    /// Opens its watch, for a resource that goes on from a merged version.
    async fn follow(self, merged: &ResourceVersion) -> Result<Followed, SourceError> {
        let position = self.shared.known.lock().position().cloned();
        let is_ahead = |position: &Position| {
            let mark = position.mark().filter(|_| !position.is_open());
            position.safe() > *merged || mark.is_some_and(|mark| mark.version() > merged)
        };
        let ahead = position.filter(|position| position.origin == Origin::EarlierStart && is_ahead(position));
        let live = match ahead {
            Some(position) => self.open_behind(merged, position).await?,
            None => self.open().await?,
        };
        Ok(Followed { member: self, live, opened_at: Instant::now(), is_empty: true })
    }

    /// Opens the watch of a namespace that was ahead when an earlier start ended, at the merged version, which is that of the
    /// kept state.
    async fn open_behind(&self, merged: &ResourceVersion, position: Position) -> Result<Live, SourceError> {
        let (mark, Position { version, .. }) = (position.mark(), position);
        self.shared.check_cluster().await?;
        if self.shared.head(&version, mark.as_ref()).await? != Head::HasMark {
            let text = format!("the namespace {} has nothing at {version} to be recognised by", self.namespace);
            return Err(SourceError::Expired(text));
        }
        let live = watch::open(&self.shared, merged, None).await?;
        let mut known = self.shared.known.lock();
        *known = Known::resume(known.cluster().map(str::to_owned), merged.clone(), false, None);
        drop(known);
        Ok(live)
    }

    async fn open(&self) -> Result<Live, SourceError> {
        let expired = || SourceError::Expired(format!("nothing is known of the namespace {}", self.namespace));
        let from = self.reached().ok_or_else(expired)?;
        let position = self.shared.known.lock().begin_watch(&from);
        self.shared.watch(&from, position).await
    }

    fn keep(&self) -> Option<KeptMember> {
        let known = self.shared.known.lock();
        let position = known.position()?;
        let (is_open, mark) = (position.is_open(), position.mark().as_ref().map(Mark::keep));
        Some(KeptMember { namespace: self.namespace.clone(), version: position.safe().to_string(), is_open, mark })
    }

    /// Returns a version up to which nothing has happened after this one, if the API tells.
    async fn probe(self, from: ResourceVersion) -> Option<ResourceVersion> {
        let begun = Instant::now();
        let found = self.probe_once(&from).await;
        if found.is_none() {
            sleep_until(begun + PROBE_INTERVAL).await;
        }
        found
    }

    async fn probe_once(&self, from: &ResourceVersion) -> Option<ResourceVersion> {
        let query = [("resourceVersion", &*from.to_string())];
        let mut live = Live::open_for(&self.shared, &query, PROBE_TIME).await.ok()?;
        loop {
            let received = live.line().await.ok()??;
            match live.decode(&received).ok()? {
                Said::Bookmark(object) => {
                    let version: ResourceVersion = Bookmark::read(object).ok()?.version.parse().ok()?;
                    if version > *from {
                        return Some(version);
                    }
                }
                // Of a version that is open what is known comes again.
                Said::Change(EventType::Deleted, item) if self.has_deleted(&item.object) => {}
                _ => return None,
            }
        }
    }

    fn has_deleted(&self, last: &Object) -> bool {
        let mark = self.shared.known.lock().position().and_then(Position::mark);
        mark.is_some_and(|mark| mark.has_deletion(last))
    }
}

// === impl Followed ===

impl Followed {
    fn into_stream(self, at: usize) -> MemberWatch {
        Box::pin(stream::unfold(Some(self), move |followed| async move {
            let mut followed = followed?;
            match followed.next().await {
                Ok(delta) => Some(((at, Ok(delta)), Some(followed))),
                Err(error) => Some(((at, Err(error)), None)),
            }
        }))
    }

    async fn next(&mut self) -> Result<Delta, SourceError> {
        loop {
            if let Some(delta) = self.live.next().await? {
                self.is_empty = false;
                return Ok(delta);
            }
            if self.is_empty && self.opened_at.elapsed() < VERY_SHORT_WATCH {
                let text = format!("the watch of the namespace {} was closed at once", self.member.namespace);
                return Err(SourceError::Busy(text));
            }
            self.live = self.member.open().await?;
            (self.opened_at, self.is_empty) = (Instant::now(), true);
        }
    }
}

// === impl Merged ===

impl Merged {
    async fn next(&mut self) -> Result<Delta, SourceError> {
        loop {
            if let Some(delta) = self.state.lock().merge.progress() {
                return Ok(delta);
            }
            let ahead = self.state.lock().merge.ahead();
            let demand = self.health.demand().clone();
            let has_room = self.probes.len() < CONCURRENCY && !self.unprobed().is_empty();
            if has_room && (ahead > PROBE_AHEAD || demand.is_wanted()) {
                self.probe();
            }
            tokio::select! {
                // What was received counts before what is asked for. All are cancel-safe: nothing is taken that is not used.
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
                () = demand.wanted(), if has_room && !demand.is_wanted() => {}
            }
        }
    }

    /// The members that others are ahead of and that there is no probe of.
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
