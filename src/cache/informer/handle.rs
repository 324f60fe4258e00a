//! The reading side of an informer: what every answer is made from.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::{mpsc, oneshot};

use super::{Command, InformerStats, JoinError, Joined, Shared, Start, Stopped};
use crate::{
    cache::{Snapshot, SourceHealth},
    model::{Indexers, Reached, ResourceVersion},
    watch::{Backfill, BroadcasterStats, Frame, Subscribe},
};

/// The reading side of an [`Informer`](super::Informer); clones share it.
pub struct InformerHandle<F: Frame> {
    pub(super) shared: Arc<Shared>,
    pub(super) commands: mpsc::Sender<Command<F>>,
    pub(super) backfill: Arc<Backfill<F>>,
}

// === impl InformerHandle ===

impl<F: Frame> InformerHandle<F> {
    /// The applied state; `None` until there is one, by a list or by an earlier start.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.shared.snapshot.load_full()
    }

    /// How far every watcher has been given its events, or will find them at its cursor.
    pub fn distributed(&self) -> Option<Arc<Reached>> {
        self.shared.distributed.load_full()
    }

    /// Returns whether a relist lies between two versions, of which the later one was [distributed](Self::distributed) before:
    /// nobody knows what else happened on the way. More than one relist back it says so wherever there may be one.
    pub fn is_relisted_between(&self, after: &ResourceVersion, up_to: &ResourceVersion) -> bool {
        let (last, before) = &**self.shared.relists.load();
        let is_last_passed = last.as_ref().is_some_and(|last| after < last && last <= up_to);
        is_last_passed || before.as_ref().is_some_and(|before| after < before)
    }

    /// Which history of the upstream is served: how many have been given up. A version of an older one means nothing.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    /// The name of a history of this resource at this server.
    pub fn history(&self, epoch: u64) -> String {
        format!("{}.{epoch}", self.shared.health.provenance().name())
    }

    /// Whether a name is that of another history of this resource at this server. Other servers' cannot be told.
    pub fn is_another_history(&self, history: &str, epoch: u64) -> bool {
        history
            .split_once('.')
            .is_some_and(|(name, told)| name == self.shared.health.provenance().name() && told != epoch.to_string())
    }

    /// The oldest version that a watch can go on from.
    pub fn oldest(&self) -> Option<ResourceVersion> {
        self.shared.oldest.load().as_ref().map(|oldest| ResourceVersion::clone(oldest))
    }

    /// How the source is doing.
    pub fn health(&self) -> &SourceHealth {
        &self.shared.health
    }

    /// The index functions.
    pub fn indexers(&self) -> &Arc<Indexers> {
        &self.shared.indexers
    }

    /// Counters of what was applied.
    pub fn stats(&self) -> &InformerStats {
        &self.shared.stats
    }

    /// Counters of distribution; `None` as long as there is no state.
    pub fn watch_stats(&self) -> Option<Arc<BroadcasterStats>> {
        self.shared.watch_stats.load_full()
    }

    /// What backlogs have been encoded to.
    pub fn backfill(&self) -> &Arc<Backfill<F>> {
        &self.backfill
    }

    /// Waits for a state that the predicate accepts, the present one included. It is asked again about each state whose version
    /// has this number or a higher one, and about the first one of another history. The source is told that somebody waits.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn wait_for(&self, number: u128, is_enough: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        let mut waiting = None;
        loop {
            // Registered before looking, so that what is applied in between is not missed.
            let waiter = self.shared.waiters.wait(number);
            if let Some(snapshot) = self.snapshot().filter(|snapshot| is_enough(snapshot)) {
                return snapshot;
            }
            waiting.get_or_insert_with(|| self.shared.health.demand().wait());
            waiter.woken().await;
        }
    }

    /// Wakes every watch that waits at its cursor: there is something to tell that is no event.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been done or not.
    pub async fn poke(&self) {
        // An informer that has ended has ended its watches.
        drop(self.commands.send(Command::Poke).await);
    }

    /// How often watches were woken for something that is no event; raised before they are, also when the state of the source
    /// has changed.
    pub fn pokes(&self) -> u64 {
        self.shared.pokes.load(Ordering::Acquire)
    }

    /// Starts a watch.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the watch does not exist.
    pub async fn join(&self, start: Start, subscribe: Subscribe<F>) -> Result<Joined<F>, JoinError> {
        let (reply, joined) = oneshot::channel();
        let command = Command::Join { start, subscribe, reply };
        self.commands.send(command).await.map_err(|_| Stopped)?;
        joined.await.map_err(|_| Stopped)?
    }
}

impl<F: Frame> Clone for InformerHandle<F> {
    fn clone(&self) -> Self {
        let backfill = Arc::clone(&self.backfill);
        Self { shared: Arc::clone(&self.shared), commands: self.commands.clone(), backfill }
    }
}

impl<F: Frame> fmt::Debug for InformerHandle<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InformerHandle").field("shared", &self.shared).finish_non_exhaustive()
    }
}
