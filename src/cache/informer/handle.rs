//! Reading side of an informer, the base of every response.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{CYCLE_DELTAS, Command, InformerShared, InformerStats, JoinError, Joined, Start, Stopped, not_in_history};
use crate::{
    cache::{HealthReport, ProgressDemand, Provenance, Snapshot, SourceHealth, SyncState},
    model::{Change, HistoryPosition, Indexers, Namespaces, ResourceVersion},
    watch::{BroadcasterStats, Cursor, Cursors, Frame, History, NotInHistory, Replay, Subscribe},
};

/// Reading side of an [`Informer`](super::Informer); clones share it.
pub struct InformerHandle<F: Frame> {
    pub(super) shared: Arc<InformerShared>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) cursors: Arc<Cursors<F>>,
}

// === impl InformerHandle ===

impl<F: Frame> InformerHandle<F> {
    /// Returns the applied state; `None` before the first list or the snapshot of the previous run.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.shared.snapshot.load_full()
    }

    /// Returns the position up to which every watcher has its events, or will find them at its cursor.
    pub fn distributed(&self) -> Option<Arc<HistoryPosition>> {
        self.shared.distributed.load_full()
    }

    /// Returns the past of the resource.
    #[cfg(feature = "server")]
    pub(crate) fn past(&self) -> &Arc<crate::watch::Past> {
        &self.shared.past
    }

    /// Returns true if a relist lies between two versions, the later of which was [distributed](Self::distributed) before the
    /// call: other changes in between are unknown. More than one relist back it returns true wherever there may be one.
    pub fn is_relisted_between(&self, after: &ResourceVersion, up_to: &ResourceVersion) -> bool {
        let (last, before) = &**self.shared.relists.load();
        let is_last_passed = last.as_ref().is_some_and(|last| after < last && last <= up_to);
        is_last_passed || before.as_ref().is_some_and(|before| after < before)
    }

    /// Returns the number of the present upstream history, counted in rewrites. A version of an older one means nothing.
    pub fn history_id(&self) -> u64 {
        self.shared.history_id.load(Ordering::Acquire)
    }

    /// Returns the name of a history of this resource at this server, for a client that is limited to some namespaces:
    /// `<server>.<history>[.<digest of the namespaces>]`.
    pub fn history(&self, history_id: u64, namespaces: Option<&Namespaces>) -> String {
        let digest = namespaces.map(|namespaces| format!(".{}", namespaces.digest()));
        format!("{}.{history_id}{}", self.shared.provenance.name(), digest.unwrap_or_default())
    }

    /// Returns the name of the same history for a client that has a part of a change of its namespaces: no client can resume
    /// with it.
    pub fn unfinished_history(&self, history_id: u64) -> String {
        format!("{}.-", self.history(history_id, None))
    }

    /// Returns true if a name, of any server, is that of a client limited to exactly these namespaces, or not limited.
    pub fn is_history_of(history: &str, namespaces: Option<&Namespaces>) -> bool {
        history.splitn(3, '.').nth(2) == namespaces.map(Namespaces::digest).as_deref()
    }

    /// Returns true if a name is that of another history of this resource at this server. It cannot judge names of other
    /// servers.
    pub fn is_another_history(&self, history: &str, history_id: u64) -> bool {
        let mut parts = history.splitn(3, '.');
        parts.next() == Some(self.shared.provenance.name())
            && parts.next().is_some_and(|told| told != history_id.to_string())
    }

    /// Returns the oldest version that a watch can resume from.
    pub fn oldest(&self) -> Option<ResourceVersion> {
        self.shared.oldest.load().as_ref().map(|oldest| oldest.0.clone())
    }

    /// Returns the time at which that version was applied here: a client that was connected until then can resume.
    pub fn oldest_at(&self) -> Option<SystemTime> {
        let oldest = self.shared.oldest.load_full()?;
        SystemTime::now().checked_sub(oldest.1.elapsed())
    }

    /// Returns the time, to the second, since which changes after a version wait for a watch that has reached only that; `None` if
    /// there are none, or only of the last second.
    pub fn waiting_since(&self, version: &ResourceVersion) -> Option<Instant> {
        self.shared.timeline.after(version)
    }

    /// Returns the health of the source.
    pub fn health(&self) -> &SourceHealth {
        &self.shared.health
    }

    /// Returns the availability and freshness of the resource.
    pub fn state(&self) -> SyncState {
        if self.shared.snapshot.load().is_some() { self.shared.health.state() } else { SyncState::Syncing }
    }

    /// Returns the health of the source, with the state of the resource.
    pub fn report(&self) -> HealthReport {
        let (state, report) = (self.state(), self.shared.health.report());
        let reason = || (state == SyncState::Syncing).then(|| "the first list has not been applied yet".to_owned());
        HealthReport { state, last_error: report.last_error.or_else(reason), ..report }
    }

    /// Returns the number of callers that wait for a version that this server has not reached yet.
    pub fn demand(&self) -> &ProgressDemand {
        &self.shared.demand
    }

    /// Returns the servers that the objects come through.
    pub fn provenance(&self) -> &Provenance {
        &self.shared.provenance
    }

    /// Returns the index functions.
    pub fn indexers(&self) -> Arc<Indexers> {
        self.shared.indexers.load_full()
    }

    /// Returns the counters of applied changes.
    pub fn stats(&self) -> &InformerStats {
        &self.shared.stats
    }

    /// Returns the counters of distribution; `None` before the first state.
    pub fn watch_stats(&self) -> Option<Arc<BroadcasterStats>> {
        self.shared.snapshot.load().is_some().then(|| Arc::clone(self.cursors.stats()))
    }

    /// Waits for a state that the predicate accepts, the present one included. The predicate runs on each state whose version
    /// has this number or a higher one, and on the first state of another history. Meanwhile the source counts this caller as
    /// waiting ([`ProgressDemand`]).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn wait_for(&self, number: u128, is_enough: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        let mut waiting = None;
        loop {
            // Registered before the check, so that a change in between is not missed.
            let waiter = self.shared.waiters.wait(number);
            if let Some(snapshot) = self.snapshot().filter(|snapshot| is_enough(snapshot)) {
                return snapshot;
            }
            waiting.get_or_insert_with(|| self.shared.demand.wait());
            waiter.woken().await;
        }
    }

    /// Waits until the state is as recent as this call: the upstream confirms a version, and the state has it. Returns false at once
    /// if the source cannot request that, and after `timeout` if the upstream does not respond. Meanwhile the source counts this
    /// caller as waiting ([`ProgressDemand`]).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn catch_up(&self, timeout: Duration) -> bool {
        let demand = &self.shared.demand;
        if !demand.is_met() {
            return false;
        }
        let confirmed = demand.confirmed_since(Instant::now());
        let _waiting = demand.wait();
        let caught_up = async {
            let version = confirmed.await;
            self.wait_for(version.number(), |state| *state.safe_version() >= version).await;
        };
        tokio::time::timeout(timeout, caught_up).await.is_ok()
    }

    /// Waits for the end of the informer's task.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn stopped(&self) {
        self.commands.closed().await;
    }

    /// Wakes every watch that waits at its cursor, for a message that is not an event.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the watches may have been woken or not.
    pub async fn notify_watches(&self) {
        // An informer that has ended has ended its watches.
        drop(self.commands.send(Command::NotifyWatches).await);
    }

    /// Returns how often watches were woken for a message that is not an event, also for a changed state of the source. The
    /// count is raised before they are woken.
    pub fn notify_seq(&self) -> u64 {
        self.shared.notify_seq.load(Ordering::Acquire)
    }

    /// Starts a watch, without a wait: of the published state, and of what the history has before it.
    pub fn join(&self, start: &Start, subscribe: Subscribe<F>) -> Result<Joined<F>, JoinError> {
        if self.commands.is_closed() {
            return Err(Stopped.into());
        }
        let (snapshot, reached, ahead) = {
            // A history begins together with its first state. Apart from that it may be ahead of the published one.
            let history = self.shared.past.history().lock();
            let snapshot = self.snapshot().ok_or(JoinError::NotSynced)?;
            let version = match start {
                Start::Now | Start::Complete => snapshot.safe_version(),
                Start::After(version) => version,
            };
            let offset = match start {
                Start::Now => snapshot.offset(),
                Start::Complete | Start::After(_) => {
                    let position = history.position_after(version).map_err(|error| not_in_history(&history, error))?;
                    if version > snapshot.version() {
                        return Err(JoinError::TooLarge { current: snapshot.safe_version().clone() });
                    }
                    // What was recorded since at such a version, its client has.
                    position.min(snapshot.offset())
                }
            };
            let reached = HistoryPosition { version: version.clone(), offset };
            let ahead = (*start == Start::Complete).then(|| few_ahead(&snapshot, &history)).flatten();
            (snapshot, reached, ahead)
        };
        let cursor = self.cursors.subscribe_at(subscribe, reached, (matches!(start, Start::After(_)), false));
        let history_id = snapshot.history_id();
        let complete = ahead.map(|ahead| snapshot.before(&ahead).at_safe_version());
        let snapshot = complete.unwrap_or_else(|| Snapshot::clone(&snapshot));
        Ok(Joined { snapshot, cursor, history_id })
    }

    /// Sends a command, and waits for its reply.
    pub(super) async fn request<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| Stopped)?;
        self.answer(answer).await
    }

    /// Waits for the reply to a command. One that is pushed while the informer drops its queue stays in it, with its sender of the
    /// reply.
    pub(super) async fn answer<T>(&self, mut answer: oneshot::Receiver<T>) -> Result<T, Stopped> {
        tokio::select! {
            biased;
            // Cancel-safe: a reply that has come is taken below.
            answer = &mut answer => answer.map_err(|_| Stopped),
            // Cancel-safe: nothing is received.
            () = self.commands.closed() => answer.try_recv().map_err(|_| Stopped),
        }
    }

    /// Returns the cursor of a client that has everything up to a position, where it continues.
    pub(super) fn cursor_at(&self, subscribe: Subscribe<F>, reached: HistoryPosition, has_gap: bool) -> Cursor<F> {
        self.cursors.subscribe_at(subscribe, reached, (true, has_gap))
    }

    /// Returns the version to resume from for a client that has received at least one change at `from`: the version before, if there
    /// are several, so that it receives all of them. A list has the version at which a relist ends, too: it is not refused.
    ///
    /// If the history begins at `from`, returns true in addition if there were several: the client needs the objects of that version
    /// again. Deletions among them are unknown, so it lists again wherever a list has a later version.
    #[cfg(feature = "kubernetes-api")]
    pub(crate) fn resume_point(&self, from: ResourceVersion) -> Result<(ResourceVersion, bool), JoinError> {
        let history = self.shared.past.history().lock();
        let begins_inside = history.begins_inside(&from);
        if begins_inside && from < history.current().version {
            return Err(not_in_history(&history, NotInHistory::Expired));
        }
        let relisted = history.before_relist(&from);
        let has_several = |before: &ResourceVersion| {
            // The history begins at this version, or the join has the same error.
            let Ok(backlog) = history.after(before) else { return false };
            let changes = backlog.batches.iter().flat_map(|batch| &batch.changes);
            changes.filter(|change| change.version == from).nth(1).is_some()
        };
        let before = relisted.or_else(|| Some(from.previous()).filter(has_several));
        Ok(before.map_or((from, begins_inside), |before| (before, false)))
    }

    /// Returns the replay of what follows a position, up to an offset that was published.
    pub(super) fn replay(&self, after: &HistoryPosition, to: u64) -> Result<Replay, JoinError> {
        let history = self.shared.past.history().lock();
        history.replay_after(after, to).ok_or_else(|| not_in_history(&history, NotInHistory::Expired))
    }
}

impl<F: Frame> Clone for InformerHandle<F> {
    fn clone(&self) -> Self {
        let cursors = Arc::clone(&self.cursors);
        Self { shared: Arc::clone(&self.shared), commands: self.commands.clone(), cursors }
    }
}

debug_fields!([F: Frame] InformerHandle<F> { shared });

/// Returns the changes of a state after its last complete version, if they are few, and the history has recorded no others since.
fn few_ahead(snapshot: &Snapshot, history: &History) -> Option<Vec<Change>> {
    let current = history.current();
    let is_same = current.offset == snapshot.offset() && current.version == *snapshot.safe_version();
    is_same.then(|| history.ahead()).filter(|ahead| ahead.len() <= CYCLE_DELTAS)
}
