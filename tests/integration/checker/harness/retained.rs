//! Verifier of what servers retain: their gauges and the live objects, compared with each other and with what should be left.
//!
//! - The histories and the encoded blocks hold what they are charged for, whenever all tasks are idle.
//! - A quiet resource retains nothing for clients that have read everything.
//! - When the clients are closed, the server retains nothing of them; when the servers are dropped, nothing at all is left.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use informerd::{
    cache::InformerHandle,
    census::{Count, Kind, alive},
    grpc::WireFrame,
    watch::BroadcasterStats,
};

use super::{Harness, MANY, PLACES, Server};

/// Counts of live objects on this thread before a run.
#[derive(Debug)]
pub(super) struct Before([Count; KINDS.len()]);

/// Time after which servers have removed expired events, and selections without clients.
const SWEPT: Duration = Duration::from_secs(3);
const KINDS: [Kind; 3] = [Kind::Block, Kind::Merging, Kind::Record];

impl Before {
    pub(super) fn now() -> Self {
        Self(KINDS.map(alive))
    }

    /// Returns the counts of live objects of each kind since then.
    fn since(&self) -> [Count; KINDS.len()] {
        let mut counts = KINDS.map(alive);
        for (count, before) in counts.iter_mut().zip(self.0) {
            (count.values, count.size) = (count.values - before.values, count.size - before.size);
        }
        counts
    }

    /// Compares what the servers are charged for with what they hold.
    pub(super) fn verify_charges(&self, servers: &[Server]) -> Result<(), String> {
        let charged = informers(servers).map(|informer| informer.stats().history_bytes.load(Ordering::Relaxed));
        let (charged, [blocks, _, records]) = (charged.sum::<u64>(), self.since());
        if cfg!(debug_assertions) && i64::try_from(charged) != Ok(records.size) {
            return Err(format!("the histories are charged with {charged} bytes, and hold {records:?}"));
        }
        let charged = sum(servers, |stats| &stats.retained_size);
        if cfg!(debug_assertions) && i64::try_from(charged) != Ok(blocks.size) {
            return Err(format!("the blocks are charged with {charged} bytes, and there are {blocks:?}"));
        }
        Ok(())
    }

    /// Verifies that servers retain nothing for clients that read everything long ago.
    pub(super) fn verify_quiet(&self, servers: &[Server]) -> Result<(), String> {
        let charged = sum(servers, |stats| &stats.retained_size);
        let [blocks, merging, _] = self.since();
        if charged > 0 || blocks.values > 0 || merging.values > 0 {
            let left = format!("{charged} bytes are retained; {blocks:?} and {merging:?} are alive");
            return Err(format!("everything was read long ago, and {left}"));
        }
        Ok(())
    }

    /// Verifies that servers retain nothing of closed clients.
    pub(super) fn verify_left(&self, servers: &[Server]) -> Result<(), String> {
        let (cursors, groups) = (sum(servers, |stats| &stats.cursors), sum(servers, |stats| &stats.groups));
        let [blocks, merging, _] = self.since();
        if cursors + groups > 0 || blocks.values > 0 || merging.values > 0 {
            let groups = format!("{cursors} cursors, {groups} selections");
            return Err(format!("everybody has gone, and {groups}, {blocks:?} and {merging:?} are left"));
        }
        Ok(())
    }

    /// Verifies that nothing is left of dropped servers.
    pub(super) fn verify_dropped(&self) -> Result<(), String> {
        let left = self.since();
        if left.iter().any(|count| count.values != 0) {
            return Err(format!("the servers have gone, and of {KINDS:?} there are {left:?}"));
        }
        Ok(())
    }
}

impl Harness {
    /// Waits until all events that clients have read are expired.
    pub(super) async fn quiet(&mut self) {
        self.poll_calls(true).await;
        self.wait(self.config.history.age.max(self.config.retention.age) + SWEPT).await;
        self.poll_calls(true).await;
        for place in 0..PLACES {
            self.read(place, MANY).await;
        }
        self.look(Before::verify_quiet);
    }

    /// Verifies what the servers retain, and keeps the first error.
    pub(super) fn look(&mut self, verify: impl FnOnce(&Before, &[Server]) -> Result<(), String>) {
        let leaked = verify(&self.before, &self.servers).err();
        self.leaked = self.leaked.take().or(leaked);
    }

    /// Waits until the servers have discarded what the closed clients have left.
    pub(super) async fn leave_behind(&mut self) {
        self.wait(SWEPT).await;
        self.look(Before::verify_left);
    }
}

fn sum(servers: &[Server], gauge: fn(&BroadcasterStats) -> &AtomicU64) -> u64 {
    let stats = informers(servers).filter_map(InformerHandle::watch_stats);
    stats.map(|stats| gauge(&stats).load(Ordering::Relaxed)).sum()
}

fn informers(servers: &[Server]) -> impl Iterator<Item = &InformerHandle<WireFrame>> {
    servers.iter().flat_map(Server::informers)
}
