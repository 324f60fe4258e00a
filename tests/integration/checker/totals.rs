//! Counts of what occurred in the runs of the checker, and of what must occur in a full run.

use informerd::proto::pb;

use super::{
    answers::Answers,
    follow::Tally,
    harness::Run,
    record::{self, End, Start},
    subscription::StreamTally,
};

/// Counts over all runs.
#[derive(Debug, Default)]
pub(super) struct Totals {
    servers: u64,
    clients: u64,
    /// Calls of another resource than the first, and of one that no server has.
    others: u64,
    unknown: u64,
    connections: u64,
    resumes: u64,
    /// Connections to another server than the previous one.
    moves: u64,
    /// Moves among them that followed the end of a draining server.
    drained: u64,
    relists: u64,
    relist_gaps: u64,
    transactions: u64,
    /// Changes after the first at a version that may still get more; changes that came late; and converted objects.
    open_changes: u64,
    late_changes: u64,
    replayed: u64,
    denied: u64,
    expired_versions: u64,
    future_versions: u64,
    settled: u64,
    history_rewrites: u64,
    /// Clients that resumed with a version and named a history that had been rewritten.
    other_histories: u64,
    /// Objects that became too large to be served, in a watch and at a relist.
    not_served: u64,
    not_listed: u64,
    streams: StreamTally,
    pub(super) told: Tally,
    pub(super) answers: Answers,
}

impl Totals {
    pub(super) fn add(&mut self, run: &Run) {
        let segments = || run.records.iter().flat_map(|record| &record.segments);
        let count = |is: &dyn Fn(&record::Segment) -> bool| segments().filter(|segment| is(segment)).count() as u64;
        let refused = |reason: &str, segment: &record::Segment| {
            segment.is_refused && matches!(&segment.end, End::Status(status, _) if status.reason == reason)
        };
        let batches = || run.truths.iter().flat_map(|truth| &truth.epochs).flat_map(|epoch| &epoch.batches);
        self.clients += run.records.len() as u64;
        self.connections += segments().count() as u64;
        self.resumes += count(&|segment| {
            matches!(segment.start, Start::After(_)) && segment.answered.is_some() && !segment.is_refused
        });
        self.servers += run.servers;
        for (from, to) in
            run.records.iter().flat_map(|record| record.segments.iter().zip(record.segments.iter().skip(1)))
        {
            let has_moved = from.asked.server != to.asked.server && matches!(to.start, Start::After(_));
            let has_drained = matches!(&from.end, End::Status(status, _) if status.reason == "DRAINING");
            self.moves += u64::from(has_moved && to.answered.is_some() && !to.is_refused);
            self.drained += u64::from(has_moved && to.answered.is_some() && !to.is_refused && has_drained);
        }
        self.relists += batches().filter(|batch| batch.is_relist).count() as u64;
        self.relist_gaps += batches().filter(|batch| batch.is_relist && batch.before < batch.after).count() as u64;
        self.transactions += batches().filter(|batch| !batch.is_relist && batch.changes.len() > 2).count() as u64;
        let open = || batches().filter(|batch| batch.is_open && !batch.changes.is_empty());
        self.open_changes += open().filter(|batch| !batch.is_late()).count() as u64;
        self.late_changes += open().filter(|batch| batch.is_late()).count() as u64;
        self.history_rewrites += run.truths.iter().map(|truth| truth.epochs.len() as u64 - 1).sum::<u64>();
        let others = run.records.iter().filter(|record| record.resource > 0);
        let (unknown, others): (Vec<_>, Vec<_>) = others.partition(|record| record.resource >= run.truths.len());
        self.others += others.len() as u64;
        self.unknown += unknown.len() as u64;
        for batch in batches() {
            let not_served = batch.changes.iter().filter(|change| change.cause == pb::Cause::NotServed).count() as u64;
            *(if batch.is_relist { &mut self.not_listed } else { &mut self.not_served }) += not_served;
        }
        self.streams += &run.streams;
        self.replayed += run.replayed;
        self.denied += run.denied;
        self.expired_versions += count(&|segment| refused("RESOURCE_VERSION_EXPIRED", segment));
        self.future_versions += count(&|segment| {
            refused("RESOURCE_VERSION_TOO_LARGE", segment)
                || segment.answered.is_some_and(|answered| answered.at > segment.asked.at)
        });
        self.other_histories += count(&|segment| refused("HISTORY_CHANGED", segment));
        self.settled += count(&|segment| segment.settled.is_some());
    }

    /// Returns the situations that did not occur, and must occur in a full run.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let Self {
            others,
            unknown,
            resumes,
            moves,
            drained,
            relists,
            relist_gaps,
            transactions,
            open_changes,
            late_changes,
            denied,
            expired_versions,
            history_rewrites,
            other_histories,
            not_served,
            not_listed,
            streams,
            told,
            answers,
            ..
        } = self;
        let counted = [
            ("client of a second resource", others),
            ("client of a resource that is not there", unknown),
            ("call for a resource that is not there", &answers.unknown),
            ("page of another resource", &answers.other_resources),
            ("resume", resumes),
            ("resume at another server", moves),
            ("resume after a drain", drained),
            ("relist", relists),
            ("relist gap", relist_gaps),
            ("transaction", transactions),
            ("change at an open version", open_changes),
            ("late change", late_changes),
            ("full queue under BLOCK that nobody waited for", denied),
            ("expired version", expired_versions),
            ("rewind", history_rewrites),
            ("version of another history", other_histories),
            ("stream that was told of a rewind", &told.history_rewrites),
            ("delivery of events for several watches", &streams.shared_events),
            ("delivery of bookmarks for several watches", &streams.shared_bookmarks),
            ("watches that are served as one", &streams.served_as_one),
            ("pause", &streams.pauses),
            ("closed watch", &streams.closes),
            ("watch that a stream refused", &streams.refusals),
            ("end of a paused watch", &streams.paused_ends),
            ("end of a watch that left others open", &streams.single_ends),
            ("id that was in use before", &streams.reused_ids),
            ("stream that broke with several watches", &streams.breaks),
            ("stream that ended with its server", &streams.drains),
            ("stream that was half closed with watches", &streams.half_closed),
            ("half closed stream that ended after its last watch", &streams.completed),
            ("stream that a bad id has ended", &streams.bad_ids),
            ("stream with two resources", &streams.mixed),
            ("object that can no longer be served", not_served),
            ("object that can no longer be served, found at a relist", not_listed),
            ("drop", &told.drops),
            ("cut batch", &told.cut_batches),
            ("eviction under BLOCK", &told.evictions),
            ("bookmark", &told.bookmarks),
            ("change that a view suppressed", &told.suppressed),
            ("generation in which changes were suppressed", &told.suppressed_generations),
            ("drain", &told.drains),
            ("generation", &told.long_generations),
            ("generation that was not read to its end", &told.cut_generations),
            ("generation that left something out", &told.merged),
            ("generation that left nothing", &told.vanished),
            ("page of a state that has changed", &answers.past_pages),
            ("page whose snapshot is gone", &answers.expired_pages),
            ("page of another server", &answers.foreign_pages),
            ("page of another query", &answers.twisted_pages),
            ("object", &answers.gets),
            ("list by the values of an object", &answers.likes),
            ("list by the values of an object that does not exist", &answers.likes_of_none),
            ("values of an index", &answers.values),
            ("answer that was awaited", &answers.awaited),
            ("wait that was met later", &answers.met_later),
            ("wait that was met inside a batch", &answers.met_in_a_batch),
            ("wait that was met, and read late", &answers.met_slowly),
            ("wait that ended", &answers.ended_untils),
            ("version that was awaited in vain", &answers.not_reached),
        ];
        counted.into_iter().filter(|(_, count)| **count == 0).map(|(what, _)| what).collect()
    }
}
