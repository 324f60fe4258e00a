//! Selection of the groups that a publish cycle concerns, within the time that selections may take of the writer.
//!
//! Groups are budgeted if they have an expression or a view, or if they must be evaluated for every change, of all or of a
//! namespace. What a view's events took to encode counts from the next cycle on.
//! The writer evaluates them in rising order of cost while they fit. It defers the others: threads fill them ([`Filler`]),
//! until they fit again. A group is never deferred in the middle of a cycle: of a cycle that was not evaluated to its end,
//! nothing is pushed.

use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;

use super::groups::Groups;
use crate::{
    model::{Batch, Change, HistoryPosition, ResourceVersion},
    watch::{
        BroadcasterConfig, Frame,
        bulk::BulkQueue,
        config::BroadcasterStats,
        encoding::{Encoding, GroupShare},
        filler::{Filled, Filler, Published},
        group::{Deferred, Group},
        selected::Selected,
        selection_budget::{Clock, Meter, SelectionBudget, nanos},
        window::Window,
        writer_signals::WriterSignals,
    },
};

/// Result of selecting for one publish cycle, by group.
pub(super) struct Selecting<F: Frame> {
    pub(super) shares: SmallVec<[(Arc<Group<F>>, GroupShare); 1]>,
    /// Groups that did not fit: their logs have nothing of this cycle.
    pub(super) deferred: Vec<usize>,
}

/// Groups that a cycle concerns, found by their routes; empty between two cycles, which use its memory.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Ids of those that one change may concern.
    ids: Vec<usize>,
    /// Changes found for each, by its id.
    selected: HashMap<usize, Selected, foldhash::fast::RandomState>,
}

/// Groups that the writer has no time for.
#[derive(Debug)]
pub(super) struct Deferral<F: Frame> {
    filler: Arc<Filler<F>>,
    budget: SelectionBudget,
    /// Deferrals, perhaps some that have ended: the group, the number of the deferral, and its beginning in nanoseconds.
    deferred: VecDeque<(usize, u64, u64)>,
    next_id: u64,
    /// Cost for each change of the selections that see every one, without the deferred ones.
    cost: u64,
    /// Changes of a cycle: a slowly decaying maximum.
    changes: u64,
}

/// Budgeted groups that a cycle may concern, by number.
struct BudgetedGroups<F: Frame> {
    groups: Vec<Arc<Group<F>>>,
    /// Changes found for each group.
    selected: Vec<Selected>,
    time: Time,
    /// Groups to evaluate for the next change: the first `always` in any case, the others if the change routes to them.
    evaluated: Vec<usize>,
    always: usize,
    /// Numbers of the other groups, by their id.
    found: HashMap<usize, usize, foldhash::fast::RandomState>,
    /// Number of changes in the cycle.
    changes: u64,
    /// Cost for each change of the groups that see every one, without the deferred ones.
    cost: u64,
}

/// Time of a cycle, in nanoseconds.
struct Time {
    left: u64,
    spent: u64,
    /// True for each group that did not fit.
    is_deferred: Vec<bool>,
}

/// Deferred groups that are checked in a cycle.
const CHECKED_GROUPS: usize = 16;
/// Groups for which the memory of a cycle is kept.
const MAX_KEPT: usize = 1024;
/// Minimum time for which a group stays deferred.
const MIN_DEFERRAL: Duration = Duration::from_secs(1);
/// Part of the budget, in percent, within which everything that the writer evaluates must fit before it takes a group back.
const TAKE_BACK_PERCENT: u64 = 70;

// === impl Selecting ===

impl<F: Frame> Selecting<F> {
    /// Evaluates the groups' selections for the changes; the first change has the offset `offset`.
    pub(super) fn new(
        groups: &mut Groups<F>,
        mut deferral: Option<&mut Deferral<F>>,
        encoding: &mut Encoding<'_, F>,
        offset: u64,
        found: &mut Found,
    ) -> Self {
        let changes = encoding.changes().len() as u64;
        let left = deferral.as_mut().map(|deferral| deferral.take_back(groups, offset, changes));
        let is_within = |id: &usize| left.is_some() && groups[*id].is_budgeted;
        let (within, free): (Vec<usize>, Vec<usize>) = groups.routes.unrouted().iter().copied().partition(is_within);
        // Groups without a selection come first, so that their events are adjacent.
        let selects_all = |id: &usize| groups[*id].selection.selects_all();
        let (all, selective): (Vec<usize>, Vec<usize>) = free.into_iter().partition(selects_all);
        let mut unrouted: Vec<(usize, Selected)> =
            all.into_iter().chain(selective).map(|id| (id, Selected::default())).collect();
        let mut budgeted = BudgetedGroups::new(within.iter().map(|id| &groups[*id]), changes, left.unwrap_or(0));
        let Found { ids, selected: routed } = found;
        // Change by change: what one group has read of an object is available to the others, and is not kept for long.
        for (at, (batch, change)) in encoding.changes().iter().enumerate() {
            let select = |id: usize, selected: &mut Selected| {
                selected.add(at, groups[id].outcome(batch, change));
            };
            for (id, selected) in &mut unrouted {
                select(*id, selected);
            }
            groups.routes.find(change, ids);
            for id in ids.drain(..) {
                if is_within(&id) {
                    budgeted.add(&groups[id]);
                } else {
                    select(id, routed.entry(id).or_default());
                }
            }
            if let Some(deferral) = &deferral {
                budgeted.evaluate((*batch, *change), at, deferral.filler.clock());
            }
        }
        let BudgetedGroups { groups: within, selected, time, cost, .. } = budgeted;
        let (within, deferred): (Vec<_>, Vec<_>) =
            within.iter().zip(selected).zip(time.is_deferred).partition(|(_, is_deferred)| !is_deferred);
        let within = within.into_iter().map(|((group, selected), _)| (group.id, selected));
        let (mut shares, mut spent) = (SmallVec::new(), time.spent);
        for (id, selected) in unrouted.into_iter().chain(within).chain(routed.drain()) {
            let group = &groups[id];
            let (share, time) =
                group.share(encoding, selected, deferral.as_ref().map(|deferral| deferral.filler.clock()));
            spent = spent.saturating_add(time);
            if !share.is_empty() {
                shares.push((Arc::clone(group), share));
            }
        }
        if let Some(deferral) = deferral {
            deferral.budget.spend(spent);
            deferral.cost = cost;
        }
        routed.shrink_to(MAX_KEPT);
        ids.shrink_to(MAX_KEPT);
        Self { shares, deferred: deferred.into_iter().map(|((group, _), _)| group.id).collect() }
    }
}

// === impl Deferral ===

impl<F: Frame> Deferral<F> {
    pub(super) fn new(
        config: &BroadcasterConfig,
        threads: Arc<BulkQueue>,
        window: &Arc<Window<F>>,
        writer_signals: &Arc<WriterSignals>,
        stats: &Arc<BroadcasterStats>,
        oldest: ResourceVersion,
    ) -> Self {
        let (window, writer_signals, stats) = (Arc::clone(window), Arc::clone(writer_signals), Arc::clone(stats));
        let filler = Arc::new(Filler::new(threads, window, writer_signals, stats, config.queue_size, oldest));
        let budget = SelectionBudget::new(config.selection_budget, config.selection_share);
        Self { filler, budget, deferred: VecDeque::new(), next_id: 0, cost: 0, changes: 0 }
    }

    /// Drops what the history has dropped: a group that has not been filled up to there expires.
    pub(super) fn drop_before(&self, oldest: &HistoryPosition) {
        if !self.deferred.is_empty() {
            self.filler.drop_before(oldest);
        }
    }

    /// Drops the deferred groups that were removed.
    pub(super) fn drop_removed(&self) {
        self.filler.drop_removed();
    }

    /// Drops what was published: no group is deferred any more.
    pub(super) fn clear(&self) {
        self.filler.clear();
    }

    /// Returns the number of deferrals that are kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.deferred.len()
    }

    /// Takes back some of the groups that fit again and have been filled up to an offset, where a cycle of `changes`
    /// changes begins. Returns the time that the cycle may take for selections.
    fn take_back(&mut self, groups: &mut Groups<F>, offset: u64, changes: u64) -> u64 {
        let now = self.filler.clock().now();
        let left = self.budget.begin(now);
        self.changes = changes.max(self.changes - self.changes / 8);
        if self.deferred.is_empty() {
            return left;
        }
        let mut looked_at = 0;
        for _ in 0..self.deferred.len() {
            // Removed groups do not count, or they would accumulate.
            if looked_at == CHECKED_GROUPS {
                break;
            }
            let Some((id, time, since)) = self.deferred.pop_front() else { break };
            let Some(group) = groups.get(id).cloned() else { continue };
            let cost = self.cost.saturating_add(group.cost());
            let fits = cost.saturating_mul(self.changes) <= left * TAKE_BACK_PERCENT / 100
                && now - since >= nanos(MIN_DEFERRAL);
            let mut log = group.log.lock();
            let Some(other) = log.deferred.as_ref().filter(|other| other.id == time) else { continue };
            looked_at += 1;
            // Everything before the cycle is in the log, and no thread has the cycle.
            if fits && other.filled.offset == offset {
                log.end_deferral(&groups.stats);
                drop(log);
                groups.routes.insert(&group.selection, id);
                self.cost = cost;
            } else {
                drop(log);
                self.deferred.push_back((id, time, since));
            }
        }
        if self.deferred.is_empty() {
            self.filler.clear();
        }
        left
    }

    /// Defers groups from the beginning of a cycle, and hands the cycle, which ends at `end`, to all deferred groups.
    pub(super) fn defer<B: Borrow<Batch> + Clone + Into<Arc<Batch>>>(
        &mut self,
        groups: &mut Groups<F>,
        ids: &[usize],
        batches: &[B],
        last_relist: Option<u64>,
        before: &HistoryPosition,
        end: &HistoryPosition,
    ) {
        let now = self.filler.clock().now();
        let mut deferred = Vec::with_capacity(ids.len());
        for id in ids {
            let group = Arc::clone(&groups[*id]);
            groups.routes.remove(&group.selection, *id);
            self.next_id += 1;
            group.log.lock().deferred = Some(Deferred { id: self.next_id, filled: before.clone() });
            self.deferred.push_back((*id, self.next_id, now));
            deferred.push(Filled { group, id: self.next_id, at: before.offset });
        }
        groups.stats.deferred.fetch_add(ids.len() as u64, Ordering::Relaxed);
        groups.stats.deferrals.fetch_add(ids.len() as u64, Ordering::Relaxed);
        if self.deferred.is_empty() {
            return;
        }
        let batches = batches.iter().cloned().map(Into::into).collect();
        let published = Published { batches, last_relist, first: before.offset, end: end.clone() };
        self.filler.publish(published, deferred);
    }
}

// === impl BudgetedGroups ===

impl<F: Frame> BudgetedGroups<F> {
    /// Takes the groups that see every change, in rising order of cost, as far as they fit.
    fn new<'a>(groups: impl Iterator<Item = &'a Arc<Group<F>>>, changes: u64, left: u64) -> Self {
        let mut groups: Vec<_> = groups.map(|group| (group.cost(), Arc::clone(group))).collect();
        groups.sort_by_key(|(cost, _)| *cost);
        let (mut sum, mut cost) = (0_u64, 0);
        let mut fits = |each: u64| {
            sum = sum.saturating_add(each.saturating_mul(changes));
            let fits = sum <= left;
            cost += if fits { each } else { 0 };
            fits
        };
        let is_deferred: Vec<bool> = groups.iter().map(|(each, _)| !fits(*each)).collect();
        let groups: Vec<_> = groups.into_iter().map(|(_, group)| group).collect();
        let always = groups.len();
        Self {
            selected: (0..always).map(|_| Selected::default()).collect(),
            time: Time { left, spent: 0, is_deferred },
            groups,
            evaluated: (0..always).collect(),
            always,
            found: HashMap::default(),
            changes,
            cost,
        }
    }

    /// Adds a group that the next change may concern.
    fn add(&mut self, group: &Arc<Group<F>>) {
        let number = *self.found.entry(group.id).or_insert_with(|| {
            self.groups.push(Arc::clone(group));
            self.selected.push(Selected::default());
            self.time.is_deferred.push(false);
            self.groups.len() - 1
        });
        self.evaluated.push(number);
    }

    /// Evaluates the groups' selections for a change, as long as there is time.
    fn evaluate(&mut self, (batch, change): (&Batch, &Change), at: usize, clock: &Clock) {
        if self.evaluated.is_empty() {
            return;
        }
        let Self { groups, selected, time, evaluated, always, changes, .. } = self;
        let is_last = at as u64 + 1 == *changes;
        let mut meter = Meter::begin(clock);
        for number in evaluated.iter().copied() {
            let group = &groups[number];
            if !time.admits(number, group.cost()) {
                continue;
            }
            let evaluate = || selected[number].add(at, group.outcome(batch, change));
            let settle = |run: &[usize], each| time.settle(groups, run, each, is_last);
            meter.evaluate(number, group.is_costly(), evaluate, settle);
        }
        meter.settle(|run, each| time.settle(groups, run, each, is_last));
        evaluated.truncate(*always);
    }
}

// === impl Time ===

impl Time {
    /// Returns true if a group is evaluated. Otherwise it is deferred for the rest of the cycle.
    fn admits(&mut self, number: usize, cost: u64) -> bool {
        let is_deferred = &mut self.is_deferred[number];
        *is_deferred |= self.spent.saturating_add(cost) > self.left;
        !*is_deferred
    }

    /// Charges the time of each of some groups. If they exceed the time that was left they are deferred, and their time is
    /// not charged to the others, unless this was the last change of the cycle.
    fn settle<F: Frame>(&mut self, groups: &[Arc<Group<F>>], run: &[usize], each: u64, is_last: bool) {
        let time = each * run.len() as u64;
        self.spent += time;
        let pay = self.spent > self.left && !is_last;
        self.left += if pay { time } else { 0 };
        for number in run {
            groups[*number].cost.note(each);
            self.is_deferred[*number] |= pay;
        }
    }
}

#[cfg(test)]
mod tests;
