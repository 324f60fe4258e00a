//! One watch of a prefix: a stream of complete transactions and progress events.
//!
//! ```text
//!   responses ──▶ revision being gathered ──▶ [after a break: check of the history] ──▶ ready ──▶ Delta
//!   requests  ◀── progress, when the watch is idle or a caller waits
//! ```
//!
//! The watch is the state of a stream, not a task. Invariants:
//!
//! - A revision is delivered whole: the watch gathers its events until a later revision or the last fragment.
//! - Revisions increase. An event of an earlier revision means a broken stream, and is never delivered.
//! - After a start or on a new connection, the watch delivers nothing and does not count as contact before it has checked
//!   that the history is the same. It requests progress at once, so that the check is quick.
//! - The watch fails if the server leaves its requests unanswered.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::{
    cmp::Ordering,
    collections::VecDeque,
    pin::{Pin, pin},
    sync::Arc,
};

use futures_util::future::BoxFuture;
use tokio::{sync::mpsc, time::Instant};
use tonic::{Status, Streaming};

use super::{
    EtcdConfig,
    connection::Connection,
    object::version,
    pb::{
        Event as PbEvent, EventType, RequestUnion, ResponseHeader, WatchCreateRequest, WatchProgressRequest,
        WatchRequest, WatchResponse,
    },
    resume_check::{ResumePoint, Verdict},
    state::{EtcdShared, Position},
};
use crate::{
    cache::{Delta, SourceError},
    model::Event,
    net::connection_files,
};

/// Open watch.
pub(super) struct EtcdWatch {
    shared: Arc<EtcdShared>,
    connection: Connection,
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
    /// Start revision: etcd replays the changes from here on, some of which the resource may already have.
    start: i64,
    /// Position of the resource once everything in `ready` has been delivered.
    last: Position,
    unconfirmed: Option<UnconfirmedChange>,
    /// Events of one revision, while more of them may follow.
    gathered: Vec<PbEvent>,
    /// True if the last message was a fragment and the rest has not arrived.
    is_partial: bool,
    /// Deltas to deliver, each with the position after it.
    ready: VecDeque<(Delta, Position)>,
    last_message_at: Instant,
    /// Time of the last request for progress; `None` if the next one is due now.
    requested_at: Option<Instant>,
    /// Time of the first request since the last response.
    unanswered_since: Option<Instant>,
    /// Completes when the files that the connection was made from have changed.
    changed: Pin<Box<dyn Future<Output = ()> + Send>>,
    head: HeadReads,
}

/// Change that etcd has to replay after a break.
#[derive(Debug)]
struct UnconfirmedChange {
    resume_point: ResumePoint,
    is_repeated: bool,
}

/// Reads of the cluster's revision, for a caller that waits for its confirmation, and for a server whose progress responses cannot be
/// trusted.
#[derive(Default)]
struct HeadReads {
    open: Option<BoxFuture<'static, Result<ResponseHeader, Status>>>,
    /// Begin of the last one.
    begun_at: Option<Instant>,
    /// Revision and begin of the last one that was answered.
    answered: Option<(i64, Instant)>,
}

/// Requests that may wait to be sent; further ones are dropped if the server does not read them.
const REQUEST_QUEUE: usize = 4;

// === impl EtcdWatch ===

impl EtcdWatch {
    /// Opens a watch from a position.
    pub(super) async fn open(
        shared: Arc<EtcdShared>,
        connection: Connection,
        from: Position,
    ) -> Result<Self, SourceError> {
        let is_after_break = connection.id != from.connection;
        let mut unconfirmed = None;
        if is_after_break {
            shared.check_head(&connection, from.revision).await?;
            match from.resume_point.clone() {
                Some(resume_point) => unconfirmed = Some(UnconfirmedChange { resume_point, is_repeated: false }),
                None => shared.check_empty(&connection, from.revision).await?,
            }
        }
        // Never the next revision: etcd answers progress requests only from the start revision on (`progressIfSync`), and
        // would not answer at all in a cluster without writes.
        let start = unconfirmed.as_ref().map_or(from.revision, |unconfirmed| unconfirmed.resume_point.revision());
        let (requests, receiver) = mpsc::channel(REQUEST_QUEUE);
        let create = WatchCreateRequest {
            key: shared.prefix.first(),
            range_end: shared.prefix.end(),
            start_revision: start,
            progress_notify: true,
            fragment: true,
        };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // Cannot fail: the queue is empty, and this function holds its receiver.
        drop(requests.try_send(create));
        let responses = connection.watch(receiver).await.map_err(|status| connection.error(&status))?;
        let now = Instant::now();
        let requested_at = (!is_after_break).then_some(now);
        let changed = Box::pin(connection_files::changed(shared.config.files(), connection.files.clone()));
        let mut live = Self {
            changed,
            start,
            last: Position { connection: connection.id, ..from },
            shared,
            connection,
            requests,
            responses,
            unconfirmed,
            gathered: Vec::new(),
            is_partial: false,
            ready: VecDeque::new(),
            last_message_at: now,
            requested_at,
            unanswered_since: None,
            head: HeadReads::default(),
        };
        let answer_timeout = live.shared.config.answer_timeout;
        match tokio::time::timeout(answer_timeout, live.receive()).await {
            Ok(heard) => heard?,
            Err(_) => return Err(live.silent()),
        }
        Ok(live)
    }

    /// Waits for the next transaction or progress event. After an error the watch has ended.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses nothing: the received messages stay in the watch.
    pub(super) async fn next(&mut self) -> Result<Delta, SourceError> {
        loop {
            if let Some((delta, position)) = self.ready.pop_front() {
                self.shared.known.lock().position = Some(position);
                return Ok(delta);
            }
            self.step().await?;
        }
    }

    /// Reports the error that ended the watch, and drops a connection that it made unusable.
    pub(super) fn fail(&self, error: SourceError) -> SourceError {
        match self.shared.failed(self.connection.id, error) {
            SourceError::Busy(text) => SourceError::Broken(text),
            error => error,
        }
    }

    /// Waits for the next message, response or timer.
    async fn step(&mut self) -> Result<(), SourceError> {
        let demand = self.shared.demand.clone();
        let progress_interval = self.shared.config.progress_interval;
        // Not after the messages: there may always be more.
        if demand.wants_confirmation() && self.head.begun_at.is_none_or(|at| at.elapsed() >= progress_interval) {
            self.read_head();
        }
        let can_hurry = !demand.is_wanted();
        let is_checking = self.connection.has_reliable_progress && self.unconfirmed.is_some();
        let is_urgent = is_checking || demand.is_wanted() || demand.wants_confirmation();
        let next_request_at = self.next_request_at(is_urgent);
        let head = async {
            match &mut self.head.open {
                Some(head) => head.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // Cancel-safe: the call continues at the next poll.
            header = pin!(head) => {
                self.head.open = None;
                let header = header.map_err(|status| self.connection.error(&status))?;
                self.shared.check_identity(&header)?;
                if let Some(begun_at) = self.head.begun_at.filter(|_| self.is_confirmed()) {
                    demand.confirm(begun_at, version(header.revision));
                }
                if self.connection.has_reliable_progress {
                    return Ok(());
                }
                self.record_contact();
                self.check_reach(header.revision)
            }
            // Messages that have arrived come before the timers: a watch that was not polled for long is not silent.
            // Cancel-safe: an incomplete message stays in the stream.
            message = self.responses.message() => {
                let message = message.map_err(|status| self.connection.error(&status))?;
                self.take(message)
            }
            // Cancel-safe: it continues at the next poll.
            () = &mut self.changed => {
                let endpoint = self.connection.endpoint();
                Err(SourceError::Busy(format!("{endpoint}: the password or a certificate has changed, reconnecting")))
            }
            // Cancel-safe by its own contract; the next round computes an earlier time for the request.
            () = demand.wanted(), if can_hurry => Ok(()),
            () = tokio::time::sleep_until(next_request_at) => self.request_progress(),
        }
    }

    /// Waits for one message, and processes it.
    async fn receive(&mut self) -> Result<(), SourceError> {
        let message = self.responses.message().await.map_err(|status| self.connection.error(&status))?;
        self.take(message)
    }

    fn next_request_at(&self, is_wanted: bool) -> Instant {
        let EtcdConfig { progress_interval, heartbeat, .. } = self.shared.config;
        match self.requested_at {
            None => self.last_message_at,
            Some(requested_at) if is_wanted => requested_at + progress_interval,
            Some(requested_at) => requested_at.max(self.last_message_at) + heartbeat,
        }
    }

    /// Records contact with the upstream, if the history is known to be the same. A fragment does not count: until the rest has
    /// arrived, which takes long for a large value, the served state is older than the response.
    fn record_contact(&self) {
        if !self.is_partial && self.is_confirmed() {
            self.shared.health.record_contact();
        }
    }

    /// Returns true if the history is known to be the same.
    fn is_confirmed(&self) -> bool {
        self.unconfirmed.as_ref().is_none_or(|unconfirmed| unconfirmed.is_repeated)
    }

    /// Begins a read of the cluster's revision, unless there is one.
    fn read_head(&mut self) {
        if self.head.open.is_none() {
            let (connection, key) = (self.connection.clone(), self.shared.prefix.first());
            self.head.open = Some(Box::pin(async move { connection.head(key).await }));
            self.head.begun_at = Some(Instant::now());
        }
    }

    /// Ends the watch, so that the resource is listed, if a caller waits for a revision that only a list can show: the cluster is at a later
    /// one, of other keys, and its server cannot be trusted to report that. Once in a run, and only if it has the state of the run before,
    /// whose clients may have that revision: a caller may request any version, again and again.
    fn check_reach(&mut self, head: i64) -> Result<(), SourceError> {
        let earlier = self.head.answered.replace((head, self.head.begun_at.unwrap_or_else(Instant::now)));
        // Otherwise, changes of the prefix may be on their way.
        let has_settled = !self.is_partial && earlier.is_some_and(|(_, at)| self.last_message_at < at);
        let has_passed = earlier.is_some_and(|(revision, _)| self.last.revision < revision);
        if has_settled
            && has_passed
            && self.is_confirmed()
            && self.shared.demand.is_wanted()
            && self.shared.takes_first_list()
        {
            let (endpoint, at) = (self.connection.endpoint(), self.last.revision);
            return Err(SourceError::Expired(format!(
                "{endpoint}: revision {head} is newer than {at}, which this version of etcd does not report"
            )));
        }
        Ok(())
    }

    /// Requests progress or the head revision, which also shows that etcd responds.
    fn request_progress(&mut self) -> Result<(), SourceError> {
        let now = Instant::now();
        self.requested_at = Some(now);
        let is_reliable = self.connection.has_reliable_progress;
        let silent_since = if is_reliable { *self.unanswered_since.get_or_insert(now) } else { self.last_message_at };
        let is_silent = silent_since.elapsed() > self.shared.config.answer_timeout;
        if is_silent && !self.is_confirmed() {
            // etcd may read its history for long before it replays the change, and another watch would begin that again; or no later
            // revision may ever show that the change is missing. Until then the resource would be STALE.
            return self.judge(Verdict::Unknown);
        }
        if !is_reliable {
            self.read_head();
            return Ok(());
        }
        if is_silent {
            return Err(self.silent());
        }
        let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
        // If the queue is full, the server has not answered the earlier requests either.
        drop(self.requests.try_send(WatchRequest { request_union: Some(progress) }));
        Ok(())
    }

    fn take(&mut self, message: Option<WatchResponse>) -> Result<(), SourceError> {
        let Some(message) = message else {
            return Err(self.connection.cancelled("the watch was closed"));
        };
        self.last_message_at = Instant::now();
        self.unanswered_since = None;
        let WatchResponse { header, created, canceled, compact_revision, cancel_reason, fragment, events, .. } =
            message;
        self.is_partial = fragment;
        if compact_revision > 0 {
            let endpoint = self.connection.endpoint();
            return Err(SourceError::Expired(format!("{endpoint}: revisions before {compact_revision} are compacted")));
        }
        if canceled {
            return Err(self.connection.cancelled(&cancel_reason));
        }
        if created {
            return Ok(());
        }
        if events.is_empty() && !fragment && self.gathered.is_empty() {
            return self.progress(header.unwrap_or_default().revision);
        }
        for event in events {
            if self.gathered.first().is_some_and(|first| revision(first) != revision(&event)) {
                self.complete()?;
            }
            self.gathered.push(event);
        }
        if !fragment {
            self.complete()?;
        }
        Ok(())
    }

    /// Records that etcd has sent everything up to a revision.
    fn progress(&mut self, told: i64) -> Result<(), SourceError> {
        if told < self.last.revision {
            self.record_contact();
            return Ok(());
        }
        self.settle()?;
        self.last.revision = told;
        self.ready.push_back((Delta::event(Event::Bookmark(version(told))), self.last.clone()));
        Ok(())
    }

    /// Processes the gathered revision, which is complete.
    fn complete(&mut self) -> Result<(), SourceError> {
        let events = std::mem::take(&mut self.gathered);
        let Some(revision) = events.first().map(revision) else {
            return Ok(());
        };
        let broken = || SourceError::Busy(format!("event at revision {revision}, which was already complete"));
        if revision <= self.last.revision {
            let Some(unconfirmed) = &mut self.unconfirmed else {
                if revision != self.start || revision != self.last.revision {
                    return Err(broken());
                }
                // The resource has this revision. A list shows only its puts; these events have its deletions as well.
                self.last.resume_point = Some(ResumePoint::of_transaction(revision, &events));
                self.shared.known.lock().position = Some(self.last.clone());
                return Ok(());
            };
            let verdict = match revision.cmp(&unconfirmed.resume_point.revision()) {
                Ordering::Less => return Err(broken()),
                Ordering::Equal => {
                    unconfirmed.is_repeated = true;
                    unconfirmed.resume_point.compare(&events)
                }
                Ordering::Greater => unconfirmed.resume_point.followed_at(revision),
            };
            self.judge(verdict)?;
            if !self.connection.has_reliable_progress {
                // The next message may be a long time away.
                self.record_contact();
            }
            return Ok(());
        }
        self.settle()?;
        let resume_point = ResumePoint::of_transaction(revision, &events);
        self.last = Position { revision, connection: self.connection.id, resume_point: Some(resume_point) };
        let told = self.shared.read(revision, events);
        self.ready.push_back((told, self.last.clone()));
        Ok(())
    }

    /// Ends the check of the history: etcd has replayed the change, or has passed its revision without it.
    fn settle(&mut self) -> Result<(), SourceError> {
        match self.unconfirmed.take() {
            Some(UnconfirmedChange { resume_point, is_repeated: false }) => self.judge(resume_point.missed()),
            _ => Ok(()),
        }
    }

    fn judge(&self, verdict: Verdict) -> Result<(), SourceError> {
        let endpoint = self.connection.endpoint();
        match verdict {
            Verdict::Same => Ok(()),
            Verdict::Other => {
                Err(SourceError::HistoryRewritten(format!("{endpoint}: the last known revision has other changes")))
            }
            Verdict::Unknown => {
                Err(SourceError::Expired(format!("{endpoint}: the last known revision was not replayed")))
            }
        }
    }

    fn silent(&self) -> SourceError {
        let (endpoint, time) = (self.connection.endpoint(), self.shared.config.answer_timeout);
        SourceError::Busy(format!("{endpoint}: no response from the watch for {time:?}"))
    }
}

debug_fields!(EtcdWatch { connection, last });

impl EtcdShared {
    /// Converts a transaction to the events of its objects.
    fn read(&self, revision: i64, events: Vec<PbEvent>) -> Delta {
        let mut told = Vec::with_capacity(events.len());
        for event in events {
            let event_type = event.r#type();
            let Some(kv) = event.kv else { continue };
            let is_new = kv.create_revision == kv.mod_revision;
            let bare = || self.prefix.bare(&kv).map(Arc::new);
            match event_type {
                EventType::Put => match self.prefix.object(&kv) {
                    Ok(object) => {
                        self.problems.clear_object(&self.prefix.subject(&kv.key));
                        let object = Arc::new(object);
                        told.push(if is_new { Event::Added(object) } else { Event::Modified(object) });
                    }
                    Err(problem) => {
                        self.problems.set_object(&problem);
                        told.extend(bare().map(Event::NotServed));
                    }
                },
                EventType::Delete => {
                    self.problems.clear_object(&self.prefix.subject(&kv.key));
                    told.extend(bare().map(Event::Deleted));
                }
            }
        }
        if told.is_empty() {
            told.push(Event::Bookmark(version(revision)));
        }
        Delta::transaction(told)
    }
}

fn revision(event: &PbEvent) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}
