//! Time, and the progress of each server at each moment.

use std::time::Duration;

use super::{
    Harness, SLICE, TURNS,
    retained::Before,
    server::{Resource, Server},
};
use crate::checker::{
    blocking::Pace,
    record::{Moment, Served},
    truth::Truth,
};

impl Harness {
    /// Advances the clock.
    pub(super) async fn wait(&mut self, time: Duration) {
        self.rest().await;
        let mut left = time;
        loop {
            // For a blocked server the duration matters, so time advances in steps.
            let is_behind = self.all().into_iter().any(|served| self.is_behind(served));
            let step = if is_behind { left.min(SLICE) } else { left };
            tokio::time::advance(step).await;
            self.waited += step;
            left -= step;
            self.rest().await;
            if left.is_zero() {
                return;
            }
        }
    }

    /// Returns every resource of every server.
    pub(super) fn all(&self) -> Vec<Served> {
        let of = |server| (0..self.truths.len()).map(move |resource| Served { server, resource });
        (0..self.servers.len()).flat_map(of).collect()
    }

    /// Returns the truth of a resource; for one that no server has, that of another.
    pub(super) fn truth_of(&self, resource: usize) -> &Truth {
        self.truths.get(resource).unwrap_or(&self.truths[0])
    }

    /// Returns the history and the versions of a resource that servers finally reach.
    pub(super) fn said(&self, resource: usize) -> (usize, u64, u64) {
        let truth = &self.truths[resource];
        (truth.epochs.len() - 1, truth.seen_version(), truth.safe_version())
    }

    fn is_behind(&self, served: Served) -> bool {
        self.resource_of(served).applied() != self.said(served.resource)
    }

    fn resource_of(&self, Served { server, resource }: Served) -> &Resource {
        &self.servers[server].resources[resource]
    }

    /// Waits until all tasks are idle, and records the progress of each server.
    pub(super) async fn rest(&mut self) {
        let (mut left, mut reached) = (TURNS, self.reached());
        while left > 0 {
            tokio::task::yield_now().await;
            self.servers.iter().for_each(Server::fill);
            let before = std::mem::replace(&mut reached, self.reached());
            left = if reached == before { left - 1 } else { TURNS };
        }
        tokio::task::yield_now().await;
        self.turn += 1;
        assert_eq!(self.began.elapsed(), self.waited, "only the script moves the clock");
        for served in self.all() {
            let (epoch, ..) = self.applied(served);
            let batches = self.batches(served);
            self.truths[served.resource].applied(served.server, epoch, batches, self.waited);
            let is_behind = self.is_behind(served);
            self.paces.push(Pace { moment: self.moment(served), is_behind });
        }
        self.look(Before::verify_charges);
    }

    /// Returns how far all servers are.
    fn reached(&self) -> Vec<(usize, u64, u64)> {
        self.all().into_iter().map(|served| self.applied(served)).collect()
    }

    /// Returns the history and the versions that a server has reached. A history that the script does not have
    /// counts as its last; the messages of clients show that error.
    pub(super) fn applied(&self, served: Served) -> (usize, u64, u64) {
        let (epoch, applied, safe) = self.resource_of(served).applied();
        (epoch.min(self.truths[served.resource].epochs.len() - 1), applied, safe)
    }

    /// Returns the number of batches of its history that a server has applied.
    fn batches(&self, served: Served) -> usize {
        let (epoch, applied, safe) = self.applied(served);
        let changes = self.resource_of(served).changes();
        self.truths[served.resource].batches_at(served.server, epoch, (applied, safe, changes))
    }

    /// Returns the state of a resource that a server has applied by now; for a resource that it does not have, that of another.
    pub(super) fn moment(&self, served: Served) -> Moment {
        let has_it = served.resource < self.truths.len();
        let served = if has_it { served } else { Served { resource: 0, ..served } };
        let (epoch, applied, _) = self.applied(served);
        let batches = self.batches(served);
        let safe = self.truths[served.resource].epochs[epoch].safe_at(batches);
        let is_draining = self.servers[served.server].is_draining();
        let is_drained = is_draining && self.config.drain_period.is_zero();
        let resource = self.resource_of(served);
        Moment {
            at: self.began.elapsed(),
            server: served.server,
            resource: served.resource,
            epoch,
            applied,
            batches,
            safe,
            is_draining,
            silence: resource.silence(),
            seen_at: resource.seen_at(),
            is_drained,
            turn: self.turn,
        }
    }
}
