//! Verifier of one logical client: each connection must begin at the right place, and all of them together must add up.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    time::Duration,
};

use informerd::proto::pb::{self, EventType};
use prost::Message;

use super::{
    ask::What,
    blocking::{Read, Trace},
    expect::Expected,
    follow::{Follower, Tally},
    pod::{Held, Pod},
    record::{CallRecord, End, History, Moment, Plan, Received, Record, Segment, Start, Status},
    truth::{State, Truth},
    view::Form,
};

/// Objects that the client holds, by key. None while the client cannot know them.
type Objects = Option<BTreeMap<Key, Content>>;

/// State of a client after all of its connections up to now.
#[derive(Default)]
struct Joined {
    objects: Objects,
    epoch: usize,
    position: Option<u64>,
    /// Version from which on a server has everything that earlier connections have delivered.
    ahead: u64,
    /// Version before the first gap from which the client has not resumed.
    hole_after: Option<u64>,
}

/// Contradiction between a record and the truth.
pub(crate) struct Violation(String);

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Violation {
    pub(crate) fn of(what: String) -> Self {
        Self(what)
    }
}

/// Verifies everything that one client saw.
pub(crate) fn verify(
    truth: &Truth,
    record: &Record,
    future_wait: Duration,
    tally: &mut Tally,
    traces: &mut Vec<Trace>,
) -> Result<(), Violation> {
    let mut joined = Joined::default();
    for (at, segment) in record.segments.iter().enumerate() {
        let place = format!("connection {at} from {:?}, of the client {:?}", segment.start, record.plan);
        let is_joined = begins(truth, segment, future_wait).map_err(|what| Violation(format!("{what}\nin {place}")))?;
        let Some(moment) = is_joined else { continue };
        let mut follower = Follower::new(truth, &record.plan, segment, moment);
        joined.begin(truth, segment, moment, record);
        let mut reads = Vec::new();
        let told = follow(truth, segment, &mut follower, &mut joined, record, tally, &mut reads);
        told.map_err(|(at, what)| {
            let around = around(segment, at);
            Violation(format!("{what}\nin {place}\n{around}\nthe truth:\n{}", follower.around()))
        })?;
        joined.position = follower.position;
        joined.ahead = joined.ahead.max(follower.reaches());
        if record.plan.policy == pb::FullChannelPolicy::Block {
            traces.push(trace(record, segment, moment, &follower, reads));
        }
    }
    Ok(())
}

/// Verifies a client of a resource that no server has.
pub(crate) fn unknown(record: &Record) -> Result<(), Violation> {
    for segment in &record.segments {
        let is_right = match &segment.end {
            End::Status(status, _) => segment.is_refused && (&*status.reason, status.code) == ("RESOURCE_NOT_FOUND", 5),
            // It may leave before it reads that from a stream.
            End::Left => segment.is_refused,
            _ => false,
        };
        if !is_right {
            return Err(Violation(format!("there is no such resource: {segment:?}")));
        }
    }
    Ok(())
}

/// Returns the trace of a connection under BLOCK, to be verified together with others.
fn trace(record: &Record, segment: &Segment, joined: Moment, follower: &Follower<'_>, mut reads: Vec<Read>) -> Trace {
    let (mut events, mut next) = reads.last().map_or((0, 0), |read| (read.events, read.next));
    for received in segment.lost.iter().filter(|received| is_event(&received.message)) {
        (events, next) = (events + 1, next + 1);
        reads.push(Read { turn: received.moment.turn, events, next });
    }
    Trace {
        server: joined.server,
        resource: joined.resource,
        peer: record.plan.peer,
        length: record.plan.length as usize,
        pauses: record.plan.pauses(),
        epoch: joined.epoch,
        joined: joined.turn,
        left: match &segment.end {
            End::Status(_, moment) => Some(moment.turn),
            _ => segment.left.map(|left| left.turn),
        },
        due: follower.due(),
        reads,
        is_slow: match &segment.end {
            End::Status(status, moment) if status.reason == "SLOW_CONSUMER" => Some(moment.turn),
            _ => None,
        },
    }
}

/// Returns true for an event of a change after the watch joined.
fn is_event(message: &pb::WatchResponse) -> bool {
    message.object.is_some() && message.cause() != pb::Cause::Initial
}

/// Follows the messages, up to the first wrong one.
fn follow(
    truth: &Truth,
    segment: &Segment,
    follower: &mut Follower<'_>,
    joined: &mut Joined,
    record: &Record,
    tally: &mut Tally,
    reads: &mut Vec<Read>,
) -> Result<(), (usize, String)> {
    let count = segment.messages.len();
    let mut events = 0;
    for at in 0..=count {
        for (_, moment) in segment.waits.iter().filter(|(waits, _)| *waits == at) {
            let waits = follower.waits(moment, tally).and_then(|()| follower.is_told_in_time(moment));
            waits.and_then(|()| follower.has_time_left(moment, false)).map_err(|what| (at, what))?;
        }
        for (_, moment) in segment.paused_waits.iter().filter(|(waits, _)| *waits == at) {
            follower.has_time_left(moment, true).map_err(|what| (at, what))?;
        }
        if let Some((_, moment)) = segment.settled.as_ref().filter(|(settled, _)| *settled == at) {
            follower.settled(moment).map_err(|what| (at, what))?;
            let state = truth.epochs[moment.epoch].state_at(moment.batches, record.plan.selection);
            joined.converged(truth, &state, record.plan.form).map_err(|what| (at, what))?;
        }
        if at < count {
            follower.message(at, tally).map_err(|what| (at, what))?;
            let Received { message, moment, .. } = &segment.messages[at];
            joined.fold(truth, message, record.plan.form);
            if message.bookmark.is_some()
                && !follower.lacks_late_changes()
                && let Some(state) = follower.state()
            {
                joined.is_current(truth, state, record.plan.form, follower.position).map_err(|what| (at, what))?;
            }
            events += usize::from(is_event(message));
            reads.push(Read { turn: moment.turn, events, next: follower.told() });
        }
    }
    follower.end(tally).map_err(|what| (count, what))
}

/// Verifies that a connection was rightly joined or rejected. Returns the moment at which it was joined.
fn begins(truth: &Truth, segment: &Segment, future_wait: Duration) -> Result<Option<Moment>, String> {
    if let Some(waited) = segment.waited.filter(|waited| may_be_answered(truth, segment, *waited, future_wait)) {
        return Err(format!("it waits for an answer, and could be answered: {waited:?}"));
    }
    let Some(moment) = segment.answered else {
        return match &segment.end {
            End::Left => Ok(None),
            _ => Err("it was never answered".to_owned()),
        };
    };
    let refusal = match &segment.end {
        End::Status(status, _) if segment.is_refused => Some(status),
        End::Broken(how) => return Err(how.clone()),
        _ => None,
    };
    let Some(refusal) = refusal else {
        if is_of_another_history(segment, moment) {
            return Err("it was joined, and its version is of another history".to_owned());
        }
        match min_reached(truth, segment, moment).and_then(|()| should_begin(truth, segment, moment)) {
            Ok(()) => return Ok(Some(moment)),
            Err(reason) => return Err(format!("it was joined, and had to be refused: {reason}")),
        }
    };
    let waited = moment.since(&segment.asked);
    let is_right = match refusal.reason.as_str() {
        "DRAINING" => moment.is_draining && refusal.code == 14,
        "HISTORY_CHANGED" => is_of_another_history(segment, moment) && refusal.code == 11,
        "SUBSCRIBE_INVALID" => segment.has_bad_id && refusal.code == 3,
        "RESOURCE_VERSION_EXPIRED" => {
            expired_details(truth, refusal, moment)?;
            may_be_expired(truth, segment, moment) && refusal.code == 11
        }
        "RESOURCE_VERSION_TOO_LARGE" => {
            let is_future = should_begin(truth, segment, moment) == Err("RESOURCE_VERSION_TOO_LARGE");
            let is_behind = min_reached(truth, segment, moment) == Err("RESOURCE_VERSION_TOO_LARGE");
            let has_waited = is_behind && waited >= MIN_WAIT || is_future && waited >= future_wait;
            has_waited && refusal.code == 14 && refusal.has_retry_delay
        }
        "RESOURCE_VERSION_INVALID" => {
            min_reached(truth, segment, moment) == Err("RESOURCE_VERSION_INVALID") && refusal.code == 3
        }
        _ => false,
    };
    if is_right { Ok(None) } else { Err(format!("it was refused: {refusal:?}, {moment:?}, after {waited:?}")) }
}

/// Returns true if the server itself has reported to the client that its version is of a history that was rewritten.
fn is_of_another_history(segment: &Segment, moment: Moment) -> bool {
    let is_another = |history: &History| history.server == moment.server && history.epoch != moment.epoch;
    segment.history.as_ref().is_some_and(is_another)
}

/// Longest wait for the minimum version of a watch.
const MIN_WAIT: Duration = Duration::from_secs(10);

/// Verifies that the state has reached the requested minimum; the error is the reason of the final rejection.
fn min_reached(truth: &Truth, segment: &Segment, moment: Moment) -> Result<(), &'static str> {
    let Some(min) = &segment.min else { return Ok(()) };
    match truth.number(moment.epoch, min) {
        // Then the version from which it resumes is of another lineage too.
        None if matches!(&segment.start, Start::After(version) if is_same_lineage(version, min)) => Ok(()),
        None => Err("RESOURCE_VERSION_INVALID"),
        Some(min) if min > moment.applied => Err("RESOURCE_VERSION_TOO_LARGE"),
        Some(_) => Ok(()),
    }
}

fn is_same_lineage(one: &str, other: &str) -> bool {
    let lineage = |version: &str| version.rsplit_once('.').map(|(lineage, _)| lineage.to_owned());
    lineage(one) == lineage(other)
}

/// Returns true if there is nothing left to wait for.
fn may_be_answered(truth: &Truth, segment: &Segment, moment: Moment, future_wait: Duration) -> bool {
    // A rewrite of the history while a version is awaited is noticed by the server at the end of the wait.
    if is_of_another_history(segment, segment.asked) {
        return true;
    }
    let waited = moment.since(&segment.asked);
    let too_large = Err("RESOURCE_VERSION_TOO_LARGE");
    if min_reached(truth, segment, moment) == too_large {
        return moment.is_draining || waited >= MIN_WAIT;
    }
    let longest = if segment.min.is_some() { MIN_WAIT + future_wait } else { future_wait };
    moment.is_draining || waited >= longest || should_begin(truth, segment, moment) != too_large
}

/// Verifies that the server must join the connection; the error is the reason of the rejection.
fn should_begin(truth: &Truth, segment: &Segment, moment: Moment) -> Result<(), &'static str> {
    let Start::After(version) = &segment.start else { return Ok(()) };
    let Some(version) = truth.number(moment.epoch, version) else { return Err("RESOURCE_VERSION_EXPIRED") };
    let (_, must_be) = truth.expiry(version, &moment);
    match version {
        version if version > moment.applied => Err("RESOURCE_VERSION_TOO_LARGE"),
        _ if must_be => Err("RESOURCE_VERSION_EXPIRED"),
        _ => Ok(()),
    }
}

fn may_be_expired(truth: &Truth, segment: &Segment, moment: Moment) -> bool {
    let Start::After(version) = &segment.start else { return false };
    let Some(version) = truth.number(moment.epoch, version) else { return true };
    truth.expiry(version, &moment).0
}

/// Verifies the details of an EXPIRED status, from which the client decides what to do next.
fn expired_details(truth: &Truth, refusal: &Status, moment: Moment) -> Result<(), String> {
    let number = |key: &str| refusal.metadata.get(key).and_then(|text| truth.number(moment.epoch, text));
    let is_kept = |oldest| !truth.expiry(oldest, &moment).1;
    if number("current") != Some(moment.safe) || !number("oldest").is_some_and(is_kept) {
        return Err(format!("{:?} is not what can be resumed from at {moment:?}", refusal.metadata));
    }
    Ok(())
}

/// Verifies that every history of every resource of every server has one name, which no other history has.
pub(crate) fn histories(records: &[Record], calls: &[CallRecord]) -> Result<(), String> {
    let of_watch = |segment: &Segment| {
        let bookmarks = segment.messages.iter().filter_map(|received| received.message.bookmark.as_ref());
        let names: Vec<_> = bookmarks.map(|bookmark| bookmark.history.clone()).collect();
        segment.answered.map(|answered| (answered, names))
    };
    let of_call = |call: &CallRecord| {
        let names = call.messages.iter().filter_map(|(message, _)| match &call.ask.what {
            What::List { page: None, .. } => Some(pb::ListResponse::decode(message.clone()).ok()?.history),
            What::Get(_) => Some(pb::GetResponse::decode(message.clone()).ok()?.history),
            _ => None,
        });
        call.answered.map(|answered| (answered, names.collect()))
    };
    let watches = records.iter().flat_map(|record| &record.segments).filter_map(of_watch);
    let mut found: BTreeMap<(usize, usize, usize), String> = BTreeMap::new();
    for (answered, names) in watches.chain(calls.iter().filter_map(of_call)) {
        for name in names {
            let known =
                found.entry((answered.server, answered.resource, answered.epoch)).or_insert_with(|| name.clone());
            if *known != name || name.is_empty() {
                return Err(format!("a history of one server is {known:?} and {name:?}: {answered:?}"));
            }
        }
    }
    let names: BTreeSet<_> = found.values().collect();
    if names.len() < found.len() { Err(format!("several histories have one name: {found:?}")) } else { Ok(()) }
}

impl Joined {
    fn begin(&mut self, truth: &Truth, segment: &Segment, moment: Moment, record: &Record) {
        let from = match &segment.start {
            Start::InitialEvents => {
                self.objects = Some(BTreeMap::new());
                (self.hole_after, self.ahead) = (None, moment.applied);
                None
            }
            // A client that requests no initial events counts as having the state.
            Start::Bookmark => {
                let state = truth.epochs[moment.epoch].state_at(moment.batches, record.plan.selection);
                self.objects = Some(objects_of(truth, moment.epoch, &state, record.plan.form));
                (self.hole_after, self.ahead) = (None, moment.applied);
                None
            }
            Start::After(version) => truth.number(moment.epoch, version),
        };
        if let Some(from) = from {
            if self.epoch != moment.epoch || self.position.is_none_or(|position| from > position) {
                self.objects = None;
            }
            self.hole_after = self.hole_after.filter(|after| from > *after);
            self.skip(truth, truth.never_told(from, &moment), moment.epoch, &record.plan);
        }
        self.epoch = moment.epoch;
    }

    /// Skips batches that the server does not send to the client; the client may have had them from another server.
    fn skip(&mut self, truth: &Truth, batches: Range<usize>, epoch: usize, plan: &Plan) {
        let Some(objects) = &mut self.objects else { return };
        let skipped = Expected::after(&truth.epochs[epoch], (plan.selection, plan.form), batches.start);
        for event in skipped.iter().filter(|event| event.batch <= batches.end) {
            let (event_type, held) = event.told();
            let (key, content) = entry(truth, epoch, held, plan.form);
            match event_type {
                EventType::Deleted => drop(objects.remove(&key)),
                _ => drop(objects.insert(key, content)),
            }
        }
    }

    /// Applies a message. After a resume ADDED and MODIFIED are upserts, and DELETED is idempotent.
    fn fold(&mut self, truth: &Truth, message: &pb::WatchResponse, form: Form) {
        if let Some(dropped) = &message.dropped {
            let after = truth.number(self.epoch, &dropped.after_resource_version);
            self.hole_after = self.hole_after.or(after);
        }
        let (Some(objects), Some(object)) = (&mut self.objects, &message.object) else { return };
        let key = (object.namespace.clone(), object.name.clone());
        if message.r#type() == EventType::Deleted {
            objects.remove(&key);
        } else {
            objects.insert(key, Content::of(object, form));
        }
    }

    /// Verifies that the client holds a state as a List in its form has it.
    fn converged(&self, truth: &Truth, state: &State, form: Form) -> Result<(), String> {
        let Some(objects) = self.objects.as_ref().filter(|_| self.hole_after.is_none()) else { return Ok(()) };
        let right = objects_of(truth, self.epoch, state, form);
        if *objects == right {
            return Ok(());
        }
        let keys = objects.keys().chain(right.keys()).filter(|key| objects.get(*key) != right.get(*key));
        let different = keys.map(|key| format!("{key:?} as {:?}, which is {:?}", objects.get(key), right.get(key)));
        Err(format!("the client holds {}", different.collect::<Vec<_>>().join("; ")))
    }

    /// Verifies the same at a bookmark, unless an earlier connection has delivered what comes after its version.
    fn is_current(&self, truth: &Truth, state: &State, form: Form, position: Option<u64>) -> Result<(), String> {
        if position.is_none_or(|position| position < self.ahead) {
            return Ok(());
        }
        self.converged(truth, state, form).map_err(|what| format!("at this bookmark {what}"))
    }
}

type Key = (String, String);

/// Object as a client holds it.
#[derive(Debug, Clone, PartialEq)]
struct Content {
    uid: String,
    /// None where a view suppresses changes: then it may be an older one.
    version: Option<String>,
    labels: BTreeMap<String, String>,
    body: Option<pb::object::Body>,
}

impl Content {
    fn of(object: &pb::Object, form: Form) -> Self {
        let pb::Object { uid, resource_version, labels, body, .. } = object.clone();
        let version = Some(resource_version).filter(|_| !form.only_if_changed);
        Self { uid, version, labels: labels.into_iter().collect(), body }
    }
}

fn objects_of(truth: &Truth, epoch: usize, state: &State, form: Form) -> BTreeMap<Key, Content> {
    state.values().map(|held| entry(truth, epoch, held, form)).collect()
}

fn entry(truth: &Truth, epoch: usize, held: &Held, form: Form) -> (Key, Content) {
    let Pod { key: (namespace, name), uid, app, .. } = &held.pod;
    let content = Content {
        uid: format!("u{uid}"),
        version: Some(truth.text(epoch, held.version)).filter(|_| !form.only_if_changed),
        labels: app.iter().map(|app| ("app".to_owned(), (*app).to_owned())).collect(),
        body: held.body(form),
    };
    (((*namespace).to_owned(), (*name).to_owned()), content)
}

/// Formats the messages around a wrong one.
fn around(segment: &Segment, wrong: usize) -> String {
    let first = wrong.saturating_sub(6);
    let lines = segment.messages.iter().enumerate().skip(first).take(9).map(|(at, received)| {
        let message = &received.message;
        let mark = if at == wrong { "here:" } else { "     " };
        let what = message.r#type().as_str_name().trim_start_matches("EVENT_TYPE_");
        let cause = message.cause().as_str_name().trim_start_matches("CAUSE_");
        let object = message.object.as_ref();
        let object = object.map(|object| {
            format!(" {}/{} {} at {}", object.namespace, object.name, object.uid, object.resource_version)
        });
        let further = if message.coalesced > 0 { format!(" and {} further", message.coalesced) } else { String::new() };
        let rest = (&message.bookmark, &message.dropped).words() + &further;
        let Moment { at: time, epoch, applied, .. } = received.moment;
        let version = &message.resource_version;
        let object = object.unwrap_or_default();
        format!(
            "  {mark} {at}: {what} {cause}{object}{rest} @{version:?} (read at {time:?}, applied {epoch}:{applied})"
        )
    });
    let end = format!("  end: {:?}", segment.end);
    lines.chain([end]).collect::<Vec<_>>().join("\n")
}

trait Words {
    fn words(&self) -> String;
}

impl Words for (&Option<pb::Bookmark>, &Option<pb::Dropped>) {
    fn words(&self) -> String {
        let bookmark = self.0.as_ref().map(|bookmark| match (bookmark.initial_events_end, bookmark.draining) {
            (true, _) => " initial_events_end",
            (_, true) => " draining",
            _ => "",
        });
        let dropped =
            self.1.as_ref().map(|dropped| format!(" {} after {}", dropped.count, dropped.after_resource_version));
        bookmark.map(str::to_owned).into_iter().chain(dropped).collect()
    }
}
