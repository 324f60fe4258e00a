//! Verifier of waits: each must end with the event that met its last condition, and as soon as that has happened.
//!
//! The events are those of a watch that begins with the initial events at the version where the wait joined. Conditions are met
//! one after the other; each is first tested on the event that met the one before.

use std::{collections::BTreeSet, rc::Rc};

use informerd::proto::pb::{self, EventType};
use prost::Message;

use super::{
    answers::{self, Answers},
    ask::Condition,
    expect::{Expected, object_fields},
    pod::Held,
    record::{CallRecord, End, Moment},
    selection::Selection,
    truth::Truth,
    view::Form,
};

/// Event on which conditions are tested.
enum Seen<'a> {
    Initial(&'a Rc<Held>),
    Synced,
    Event(&'a Expected),
}

/// Verifies one wait.
pub(super) fn verify(
    truth: &Truth,
    call: &CallRecord,
    (selection, conditions): (Selection, &[Condition]),
    tally: &mut Answers,
) -> Result<(), String> {
    let polls = || call.waits.iter().chain(&call.answered);
    let reached = |moment: &&Moment| answers::reached(truth, call, moment) == Some(true);
    let joined = polls().find(reached);
    let mut before = call.waits.iter().filter(|waited| joined.is_none_or(|joined| waited.turn < joined.turn));
    if let Some(waited) = before.find(|waited| answers::may_be_answered(truth, call, waited)) {
        return Err(format!("it was waited for, and could be answered: {waited:?}"));
    }
    let Some(joined) = joined else {
        return match &call.end {
            End::Left => Ok(()),
            End::Status(status, moment) => answers::refusal(truth, call, None, status, moment, tally),
            _ => Err("it was never answered".to_owned()),
        };
    };
    let (epoch, form) = (&truth.epochs[joined.epoch], call.ask.form.of_all_changes());
    let (state, events) =
        (epoch.state_at(joined.batches, selection), Expected::after(epoch, (selection, form), joined.batches));
    let all = state.values().map(Seen::Initial).chain([Seen::Synced]).chain(events.iter().map(Seen::Event));
    let met = met(conditions, state.len(), all);
    let is_met_at = |moment: &Moment| {
        let happened = |seen: &Seen<'_>| match seen {
            Seen::Initial(_) | Seen::Synced => true,
            Seen::Event(event) => moment.epoch != joined.epoch || event.batch <= moment.batches,
        };
        met.as_ref().is_some_and(happened)
    };
    for waited in call.waits.iter().filter(|waited| waited.turn >= joined.turn) {
        if answers::is_late(call, waited) || waited.is_drained || waited.epoch != joined.epoch || is_met_at(waited) {
            return Err(format!("it waits, and has to end: {waited:?}"));
        }
    }
    let (status, moment) = match &call.end {
        End::Left => return Ok(()),
        End::Status(status, moment) => (status, moment),
        End::Open => return Err("it was never answered".to_owned()),
        End::Broken(how) => return Err(how.clone()),
    };
    if status.code != 0 {
        tally.ended_untils += 1;
        let is_right = match (status.reason.as_str(), status.code) {
            ("DRAINING", 14) => moment.is_draining,
            ("HISTORY_CHANGED", 11) => moment.epoch != joined.epoch,
            ("DEADLINE_EXCEEDED", 4) => answers::is_late(call, moment),
            // At best it has received no event since it joined.
            ("RESOURCE_VERSION_EXPIRED", 11) => moment.epoch == joined.epoch && truth.expiry(joined.safe, moment).0,
            _ => false,
        };
        return if is_right { Ok(()) } else { Err("it ended so".to_owned()) };
    }
    let Some(met) = met.as_ref().filter(|_| is_met_at(moment)) else {
        return Err("its conditions have not been met".to_owned());
    };
    let [(message, _)] = &*call.messages else { return Err("it is not one message".to_owned()) };
    let response = pb::UntilResponse::decode(message.clone()).map_err(|error| error.to_string())?;
    let event = response.event.ok_or("there is no event")?;
    tally.untils += 1;
    let wrong = met.differences(&event, joined, form, |version| truth.text(joined.epoch, version));
    if let Seen::Event(event) = met {
        tally.met_later += 1;
        tally.met_in_a_batch += u64::from(!event.ends);
        tally.met_slowly += u64::from(event.batch < moment.batches);
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("of the event that met the last condition, {}", wrong.join("; ")))
    }
}

/// Returns the event that meets the last condition.
fn met<'a>(conditions: &[Condition], state_len: usize, all: impl Iterator<Item = Seen<'a>>) -> Option<Seen<'a>> {
    let (mut left, mut count) = (conditions, None);
    // These objects still exist, and count.
    let mut not_served = BTreeSet::new();
    for seen in all {
        let (event_type, held) = match &seen {
            Seen::Initial(held) => ("ADDED", Some(*held)),
            Seen::Synced => {
                count = Some(state_len);
                ("SYNCED", None)
            }
            Seen::Event(event) => {
                let (event_type, held) = event.told();
                if event.is_not_served() {
                    not_served.insert(held.pod.key);
                    continue;
                }
                let is_back = event_type == EventType::Added && not_served.remove(&held.pod.key);
                let name = match event_type {
                    EventType::Added => "ADDED",
                    EventType::Deleted => "DELETED",
                    _ => "MODIFIED",
                };
                count = count.map(|count| match event_type {
                    EventType::Added if is_back => count,
                    EventType::Added => count + 1,
                    EventType::Deleted => count - 1,
                    _ => count,
                });
                (name, Some(held))
            }
        };
        while let [first, rest @ ..] = left
            && first.is_met(event_type, held.map(|held| &held.pod), count)
        {
            left = rest;
        }
        if left.is_empty() {
            return Some(seen);
        }
    }
    None
}

impl Seen<'_> {
    fn differences(
        &self,
        message: &pb::WatchResponse,
        joined: &Moment,
        form: Form,
        text: impl Fn(u64) -> String,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        match self {
            Seen::Event(due) => {
                let version = due.version_after(joined.safe);
                return due.differences(message, form, version, text);
            }
            Seen::Initial(held) => {
                if (message.r#type(), message.cause()) != (EventType::Added, pb::Cause::Initial) {
                    wrong.push("it is no initial event".to_owned());
                }
                if !message.resource_version.is_empty() {
                    wrong.push("it has a version".to_owned());
                }
                let object = message.object.clone().unwrap_or_default();
                let fields = object_fields(&object, held, &text(held.version), form);
                let different = fields.into_iter().filter(|(_, is, should)| is != should);
                wrong.extend(different.map(|(what, is, should)| format!("its {what} is {is:?} instead of {should:?}")));
            }
            Seen::Synced => {
                if !message.bookmark.as_ref().is_some_and(|bookmark| bookmark.initial_events_end) {
                    wrong.push("it is not the end of the initial events".to_owned());
                }
                if message.resource_version != text(joined.safe) {
                    wrong.push(format!("its version is not {:?}", text(joined.safe)));
                }
            }
        }
        wrong
    }
}
