//! Verifier of unary calls: each answer must be the state of one version, not older than requested, and in time.
//!
//! The pages of a list are one snapshot: together they are the state at the version that the first one announced, sorted, with
//! each object once. When the server rejects a page token, the token must be of another query, or its snapshot must have been
//! removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use informerd::proto::pb;
use prost::Message;
use prost_types::Timestamp;

use super::{
    ask::{Index, PageOf, Query, Twist, What},
    expect::object_fields,
    pod::{Held, Pod},
    record::{CallRecord, End, Moment, Status},
    selection::Selection,
    truth::Truth,
    untils,
    view::Form,
};

/// Counts over all calls.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) lists: u64,
    /// Lists by the values of an object, and those of an object that does not exist.
    pub(crate) likes: u64,
    pub(crate) likes_of_none: u64,
    pub(crate) gets: u64,
    pub(crate) values: u64,
    /// Pages after the first, and those whose snapshot is older than the current state.
    pub(crate) pages: u64,
    pub(crate) past_pages: u64,
    pub(crate) expired_pages: u64,
    pub(crate) foreign_pages: u64,
    pub(crate) twisted_pages: u64,
    /// Rejected tokens that are of another resource.
    pub(crate) other_resources: u64,
    /// Answers that had to wait for a version, and those that missed their deadline.
    pub(crate) awaited: u64,
    pub(crate) not_reached: u64,
    /// Waits that were met: by events after they joined, inside a batch, and with newer events at the time of the answer.
    pub(crate) untils: u64,
    pub(crate) met_later: u64,
    pub(crate) met_in_a_batch: u64,
    pub(crate) met_slowly: u64,
    /// Waits that ended with an error.
    pub(crate) ended_untils: u64,
    /// Calls for a resource that no server has.
    pub(crate) unknown: u64,
}

/// Page that the client read to its end.
#[derive(Debug, Clone, Copy)]
struct Page {
    resource: usize,
    epoch: usize,
    /// Number of batches in the snapshot.
    batches: usize,
    /// Number of objects up to the end of the page.
    sent: usize,
    /// Moment at which its token was issued, if there is a next page.
    issued: Option<Moment>,
}

/// Number of snapshots that a server keeps.
const KEPT_SNAPSHOTS: usize = 16;
const KEPT_FOR: Duration = Duration::from_secs(300);
/// Longest wait for a state, if the deadline is later or not set.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Verifies all answers of one run.
pub(crate) fn verify(truths: &[Truth], calls: &[CallRecord], tally: &mut Answers) -> Result<(), String> {
    let mut pages: Vec<Option<Page>> = Vec::new();
    for call in calls {
        let page = match truths.get(call.ask.resource) {
            Some(truth) => answer(truth, call, &pages, tally),
            None => unknown(call, tally).map(|()| None),
        };
        pages.push(page.map_err(|what| words(&what, call))?);
    }
    for call in calls {
        tokens(call, &pages, tally).map_err(|what| words(&what, call))?;
    }
    Ok(())
}

/// Verifies a call for a resource that no server has.
fn unknown(call: &CallRecord, tally: &mut Answers) -> Result<(), String> {
    tally.unknown += 1;
    match &call.end {
        End::Status(status, _) if (&*status.reason, status.code) == ("RESOURCE_NOT_FOUND", 5) => Ok(()),
        _ => Err("there is no such resource".to_owned()),
    }
}

fn words(what: &str, call: &CallRecord) -> String {
    let CallRecord { ask, asked, waits, answered, messages, end, .. } = call;
    let (waited, messages) = (waits.last(), messages.len());
    format!(
        "{what}\nin {ask:?}\nasked {asked:?}\nwaited {waited:?}\nanswered {answered:?}, {messages} messages\n{end:?}"
    )
}

fn answer(
    truth: &Truth,
    call: &CallRecord,
    pages: &[Option<Page>],
    tally: &mut Answers,
) -> Result<Option<Page>, String> {
    if !call.was_woken {
        return Err("the client waited for it and was not woken".to_owned());
    }
    let page = match &call.ask.what {
        What::List { page, .. } => page.as_ref(),
        What::Get(_) | What::Values { .. } => None,
        What::Until { selection, conditions } => {
            return untils::verify(truth, call, (*selection, conditions), tally).map(|()| None);
        }
    };
    let may_be_answered = |waited: &&Moment| page.is_some() || may_be_answered(truth, call, waited);
    if let Some(waited) = call.waits.iter().find(may_be_answered) {
        return Err(format!("it was waited for, and could be answered: {waited:?}"));
    }
    let status = match (&call.end, &call.answered) {
        (End::Left, None) => return Ok(None),
        (End::Open, _) => return Err("it was never answered".to_owned()),
        (End::Broken(how), _) => return Err(how.clone()),
        (_, Some(_)) if has_left(call) && call.messages.is_empty() => return Ok(None),
        (End::Left, Some(_)) => None,
        (End::Status(..), Some(_)) if has_left(call) => None,
        (End::Status(status, _), _) => Some(status),
    };
    let moment = call.answered.ok_or("it ended without an answer")?;
    if let Some(status) = status.filter(|status| status.code != 0) {
        return refusal(truth, call, page, status, &moment, tally).map(|()| None);
    }
    if page.is_none() && reached(truth, call, &moment) != Some(true) {
        return Err("it is older than what was asked for".to_owned());
    }
    tally.awaited += u64::from(!call.waits.is_empty());
    match &call.ask.what {
        What::Get(key) => {
            tally.gets += 1;
            let [(message, _)] = &*call.messages else { return Err("it is not one message".to_owned()) };
            let response = pb::GetResponse::decode(message.clone()).map_err(|error| error.to_string())?;
            let state = truth.epochs[moment.epoch].state_at(moment.batches, Selection::All);
            let held = state.get(key).ok_or("there is no such object")?;
            announced(truth, &response.resource_version, moment.epoch, moment.safe)?;
            said_of_source(response.source(), response.source_seen_at, call)?;
            object(truth, moment.epoch, &response.object.unwrap_or_default(), held, call.ask.form)?;
            Ok(None)
        }
        What::Until { .. } => Ok(None),
        What::Values { index, page_size } => {
            tally.values += 1;
            values(truth, call, *index, *page_size, &moment)
        }
        What::List { query, page_size, .. } => {
            let (epoch, batches, sent) = match page {
                None => (moment.epoch, moment.batches, 0),
                Some(PageOf { twist: Twist::None, previous, .. }) => {
                    let Page { epoch, batches, sent, .. } = pages[*previous].ok_or("there was no page before it")?;
                    tally.pages += 1;
                    tally.past_pages += u64::from((epoch, batches) != (moment.epoch, moment.batches));
                    (epoch, batches, sent)
                }
                Some(_) => return Err("a token that is not of this query was accepted".to_owned()),
            };
            tally.lists += u64::from(page.is_none());
            tally.likes += u64::from(page.is_none() && query.like().is_some());
            let sent = list(truth, call, *query, *page_size, (epoch, batches, sent))?;
            Ok(sent.map(|(sent, issued)| Page { resource: call.ask.resource, epoch, batches, sent, issued }))
        }
    }
}

/// Returns true if the call is past the client's deadline.
pub(super) fn is_late(call: &CallRecord, moment: &Moment) -> bool {
    call.ask.deadline.is_some_and(|deadline| moment.since(&call.asked) >= deadline)
}

/// Returns true if the client has not read it to its end, or not before its deadline.
fn has_left(call: &CallRecord) -> bool {
    match &call.end {
        End::Left => true,
        End::Status(status, moment) => {
            (&*status.reason, status.code) == ("DEADLINE_EXCEEDED", 4) && is_late(call, moment)
        }
        End::Open | End::Broken(_) => false,
    }
}

/// Verifies one page. Returns its end and the moment at which its token was issued; None if the client did not read it to its
/// end.
fn list(
    truth: &Truth,
    call: &CallRecord,
    query: Query,
    page_size: u32,
    (epoch, batches, sent): (usize, usize, usize),
) -> Result<Option<(usize, Option<Moment>)>, String> {
    let history = &truth.epochs[epoch];
    let version = history.safe_at(batches);
    let state = match query.like() {
        None => history.state_at(batches, query.selection),
        Some((key, index)) => {
            let mut state = history.state_at(batches, Selection::All);
            let value = index.value(&state.get(&key).ok_or("there is no such object")?.pod);
            let shares = |pod: &Pod| value.is_some() && index.value(pod) == value;
            state.retain(|_, held| shares(&held.pod) && query.selection.matches(&held.pod));
            state
        }
    };
    let limit = if page_size == 0 { usize::MAX } else { page_size as usize };
    let mut due = state.values().skip(sent).take(limit);
    let (mut end, mut last) = (sent, None);
    for (message, moment) in &call.messages {
        if last.is_some_and(|(has_token, _)| has_token) {
            return Err("a chunk comes after the page's end".to_owned());
        }
        let chunk = pb::ListResponse::decode(message.clone()).map_err(|error| error.to_string())?;
        announced(truth, &chunk.resource_version, epoch, version)?;
        said_of_source(chunk.source(), chunk.source_seen_at, call)?;
        for is in &chunk.objects {
            let held = due.next().ok_or("there are more objects than the state or the page has")?;
            object(truth, epoch, is, held, call.ask.form)?;
            end += 1;
        }
        last = Some((!chunk.next_page_token.is_empty(), *moment));
    }
    if has_left(call) {
        return Ok(None);
    }
    let (has_token, at) = last.ok_or("there is not even one chunk")?;
    if due.next().is_some() {
        return Err(format!("{} of {} objects were sent", end - sent, state.len() - sent));
    }
    if has_token != (end < state.len()) {
        return Err(format!("{end} of {} objects were sent, and there is a token: {has_token}", state.len()));
    }
    Ok(Some((end, Some(at).filter(|_| has_token))))
}

/// Verifies the values of an index, from its first one, as a page of all values.
fn values(
    truth: &Truth,
    call: &CallRecord,
    index: Index,
    page_size: u32,
    moment: &Moment,
) -> Result<Option<Page>, String> {
    let Moment { epoch, batches, .. } = *moment;
    let mut all = BTreeMap::<&str, u64>::new();
    for held in truth.epochs[epoch].state_at(batches, Selection::All).values() {
        if let Some(value) = index.value(&held.pod) {
            *all.entry(value).or_default() += 1;
        }
    }
    let [(message, at)] = &*call.messages else { return Err("it is not one message".to_owned()) };
    let response = pb::ListIndexValuesResponse::decode(message.clone()).map_err(|error| error.to_string())?;
    announced(truth, &response.resource_version, epoch, moment.safe)?;
    let limit = if page_size == 0 { usize::MAX } else { page_size as usize };
    let is: Vec<_> = response.values.iter().map(|value| (&*value.value, value.objects)).collect();
    let should: Vec<_> = all.iter().take(limit).map(|(value, objects)| (*value, *objects)).collect();
    if is != should {
        return Err(format!("the values are {is:?} instead of {should:?}"));
    }
    let has_token = !response.next_page_token.is_empty();
    if has_token != (should.len() < all.len()) {
        return Err(format!("{} of {} values were sent, and there is a token: {has_token}", is.len(), all.len()));
    }
    let sent = should.len();
    Ok(Some(Page { resource: call.ask.resource, epoch, batches, sent, issued: Some(*at).filter(|_| has_token) }))
}

fn announced(truth: &Truth, is: &str, epoch: usize, version: u64) -> Result<(), String> {
    let should = truth.text(epoch, version);
    if is == should { Ok(()) } else { Err(format!("it is said to be of {is:?} instead of {should:?}")) }
}

fn said_of_source(is: pb::SyncState, seen_at: Option<Timestamp>, call: &CallRecord) -> Result<(), String> {
    let should = call.answered.as_ref().map(|answered| (answered.source(), answered.seen_at));
    if Some((is, seen_at)) == should {
        return Ok(());
    }
    Err(format!("the upstream is said to be {is:?}, seen at {seen_at:?}, instead of {should:?}"))
}

fn object(truth: &Truth, epoch: usize, is: &pb::Object, held: &Rc<Held>, form: Form) -> Result<(), String> {
    let fields = object_fields(is, held, &truth.text(epoch, held.version), form);
    match fields.into_iter().find(|(_, is, should)| is != should) {
        Some((what, is, should)) => Err(format!("an object's {what} is {is:?} instead of {should:?}")),
        None => Ok(()),
    }
}

/// Returns true if the state has reached the requested version; None if it never can.
pub(super) fn reached(truth: &Truth, call: &CallRecord, moment: &Moment) -> Option<bool> {
    let Some(min) = &call.ask.min else { return Some(true) };
    Some(moment.applied >= truth.number(moment.epoch, min)?)
}

/// Returns true if there was nothing left to wait for.
pub(super) fn may_be_answered(truth: &Truth, call: &CallRecord, moment: &Moment) -> bool {
    let has_timed_out = moment.since(&call.asked) >= call.ask.deadline.unwrap_or(MAX_WAIT).min(MAX_WAIT);
    moment.is_draining || has_timed_out || reached(truth, call, moment) != Some(false)
}

pub(super) fn refusal(
    truth: &Truth,
    call: &CallRecord,
    page: Option<&PageOf>,
    status: &Status,
    moment: &Moment,
    tally: &mut Answers,
) -> Result<(), String> {
    let reached = if page.is_some() { Some(true) } else { reached(truth, call, moment) };
    let twist = page.map(|page| page.twist);
    let is_right = match (status.reason.as_str(), status.code) {
        ("PAGE_TOKEN_INVALID", 3) => {
            tally.twisted_pages += 1;
            tally.other_resources += u64::from(twist == Some(Twist::OtherQuery(2)));
            matches!(twist, Some(Twist::OtherQuery(_) | Twist::Garbage))
        }
        // The tokens of all calls together show later if the snapshot was removed.
        ("PAGE_TOKEN_EXPIRED", 11) => matches!(twist, Some(Twist::None | Twist::OtherQuery(_))),
        ("RESOURCE_VERSION_INVALID", 3) => reached.is_none(),
        ("RESOURCE_VERSION_TOO_LARGE", 14) => {
            tally.not_reached += 1;
            // The client must receive the error before its deadline.
            let wait = call.ask.deadline.map_or(MAX_WAIT, |deadline| (deadline / 10 * 9).min(MAX_WAIT));
            let current = status.metadata.get("current");
            reached == Some(false)
                && moment.since(&call.asked) >= wait
                && status.has_retry_delay
                && current == Some(&truth.text(moment.epoch, moment.applied))
        }
        ("DRAINING", 14) => moment.is_draining && reached == Some(false) && status.has_retry_delay,
        ("OBJECT_NOT_FOUND", 5) => {
            let state = truth.epochs[moment.epoch].state_at(moment.batches, Selection::All);
            let key = match &call.ask.what {
                What::Get(key) => Some(*key),
                // The pages of a list are of the snapshot that had the object.
                What::List { query, page: None, .. } => query.like().map(|(key, _)| key),
                _ => None,
            };
            tally.likes_of_none += u64::from(!matches!(call.ask.what, What::Get(_)));
            reached == Some(true) && key.is_some_and(|key| !state.contains_key(&key))
        }
        _ => false,
    };
    if is_right { Ok(()) } else { Err("it was refused".to_owned()) }
}

/// Verifies that the server rightly accepted or rejected the token of a page.
fn tokens(call: &CallRecord, pages: &[Option<Page>], tally: &mut Answers) -> Result<(), String> {
    let What::List { page: Some(PageOf { twist, previous, .. }), .. } = &call.ask.what else { return Ok(()) };
    let (Some(used), Some(of)) = (call.answered, pages[*previous]) else { return Ok(()) };
    let is_expired = matches!(&call.end, End::Status(status, _) if status.reason == "PAGE_TOKEN_EXPIRED");
    if *twist != Twist::None {
        // Another server cannot read the token; the one that gave it out refuses it for its query.
        let is_its_own = of.issued.is_some_and(|token| token.server == used.server);
        return if is_expired && is_its_own { Err("its own token is refused as unknown".to_owned()) } else { Ok(()) };
    }
    tally.expired_pages += u64::from(is_expired);
    let snapshot = |page: &Page| (page.resource, page.epoch, page.batches);
    let issued =
        |page: &Page| page.issued.filter(|issued| issued.turn < used.turn).map(|issued| (issued, snapshot(page)));
    let issued: Vec<(Moment, (usize, usize, usize))> = pages.iter().flatten().filter_map(issued).collect();
    let token = of.issued.ok_or("it has no token")?;
    if token.server != used.server {
        tally.foreign_pages += 1;
        return if is_expired {
            Ok(())
        } else {
            Err("it was honoured by a server that did not give it out".to_owned())
        };
    }
    // A snapshot is as new as its last token. At one version the checker cannot tell which pages share a snapshot.
    let later = |than: Moment| issued.iter().filter(move |(issued, _)| issued.turn > than.turn);
    let newest = later(token).filter(|(_, other)| *other == snapshot(&of)).map(|(issued, _)| *issued);
    let newest = newest.max_by_key(|issued| issued.turn).unwrap_or(token);
    let others: BTreeSet<_> = later(newest).map(|(_, other)| other).collect();
    let may_be = used.since(&token) > KEPT_FOR || later(token).count() >= KEPT_SNAPSHOTS;
    let must_be = used.since(&newest) > KEPT_FOR || others.len() >= KEPT_SNAPSHOTS;
    match is_expired {
        true if !may_be => Err(format!("it is said to have expired, and its snapshot is kept: {token:?}")),
        false if must_be => Err(format!("it was honoured, and its snapshot has to be gone: {token:?}")),
        _ => Ok(()),
    }
}
