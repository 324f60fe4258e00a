//! Watches, as the page of the admin port shows them.

use std::cmp::Reverse;

use serde_json::{Value, json};

use crate::{
    cache::RecentChanges,
    grpc::{service::Service, status::ApiError},
    model::{Change, LabelSelector, Object, ObjectKey, Selection, Term, TermResult},
    proto::{self, pb},
};

/// Watches in an answer: those that are furthest behind.
const MAX_WATCHES: usize = 200;
/// Ended watches in an answer: the last ones.
const MAX_ENDED: usize = 50;
/// Changes in an answer: the last ones; and those that are looked at for them.
const MAX_CHANGES: usize = 100;
const MAX_LOOKED_AT: u64 = 10_000;
/// Bodies in an answer, in bytes: the last ones.
const MAX_BODY_BYTES: usize = 1 << 20;

/// Changes that the page shows.
#[derive(Debug, Default)]
pub struct ShownChanges {
    /// Name of the resource.
    pub resource: String,
    /// Label selector.
    pub labels: String,
    /// Namespace and name of one object, of which the answer has the bodies; of all objects without a name.
    pub object: Option<(String, String)>,
    /// Number of the history and offset up to which the page has them.
    pub after: Option<(u64, u64)>,
}

// === impl Service ===

impl Service {
    /// Returns the number of the open watches, those that are furthest behind, and the last ones that have ended: of one resource,
    /// or of all if `resource` is empty. Its fields may change with each version.
    pub fn debug_watches(&self, resource: &str) -> Value {
        let (open, behind) = self.watchers().furthest_behind(resource, MAX_WATCHES);
        let mut ended = self.watchers().ended(resource);
        ended.sort_unstable_by_key(|watch| Reverse(watch.ended_at.map(|at| (at.seconds, at.nanos))));
        ended.truncate(MAX_ENDED);
        let to_json = |watches: Vec<pb::Watcher>| watches.iter().map(to_json).collect::<Vec<_>>();
        json!({ "open": open, "watches": to_json(behind), "ended": to_json(ended) })
    }

    /// Returns the last changes of a resource, or of one of its objects; of that with the bodies, unless they are secret.
    ///
    /// # Errors
    ///
    /// A line for a resource, a selector or an object that there is not.
    pub fn debug_changes(&self, shown: &ShownChanges, bodies: bool) -> Result<Value, String> {
        let message = |error: ApiError| error.to_status().message().to_owned();
        let resource = self.resource(&shown.resource).map_err(message)?;
        let labels = LabelSelector::parse(&shown.labels).map_err(|error| format!("labels: {error}"))?;
        let (namespace, name) = shown.object.clone().unzip();
        let selection = Selection { namespace, name, labels, ..Selection::default() };
        let has_bodies = bodies && !resource.is_secret && shown.object.is_some();
        // If it begins anew before the changes are read, the next answer has all of them again.
        let history = resource.informer.history_id();
        let after = shown.after.and_then(|(of, offset)| (of == history).then_some(offset));
        let is_shown = |change: &Change| selection.transition(change).is_some();
        let RecentChanges { changes, offset, has_gap } =
            resource.informer.recent_changes(after, MAX_LOOKED_AT, MAX_CHANGES, is_shown);
        let mut room = MAX_BODY_BYTES;
        let newest_first = changes.iter().rev();
        let changes: Vec<_> = newest_first
            .filter_map(|(offset, of)| change(*offset, of, &selection, has_bodies.then_some(&mut room)))
            .collect();
        Ok(json!({ "history": history, "offset": offset, "gap": has_gap, "bodies": has_bodies, "changes": changes }))
    }

    /// Returns the terms of the selection of an open watch, each with its result for an object; `None` without such a watch or for
    /// what is no key. Terms that depend on bodies have no result.
    pub fn debug_explain(&self, id: u64, namespace: &str, name: &str) -> Option<Value> {
        let (resource, selection, _) = self.watchers().find(id)?;
        let key = ObjectKey::new(namespace, name).ok()?;
        let snapshot = resource.informer.snapshot();
        let object = snapshot.as_ref().and_then(|snapshot| snapshot.get(&key));
        let terms = object.map_or_else(Vec::new, |object| selection.terms(object, false));
        let is_match = |term: &Term| matches!(term.result, Some((TermResult::Match, _)));
        let shown = terms.iter().map(|term| match &term.result {
            None => json!({ "term": format!("a term of the body ({:?})", term.part) }),
            Some((result, value)) => {
                let result = match result {
                    TermResult::Match => "MATCH",
                    TermResult::NoMatch => "NO_MATCH",
                    TermResult::Failed => "FAILED",
                };
                json!({ "term": term.text, "result": result, "value": value })
            }
        });
        let is_known = terms.iter().all(|term| term.result.is_some());
        Some(json!({
            "found": object.is_some(),
            "selected": object.is_some() && is_known && terms.iter().all(is_match),
            "known": is_known,
            "terms": shown.collect::<Vec<_>>(),
        }))
    }
}

/// Returns a change; with the bodies before and after it, as far as they fit into the room that is left.
fn change(offset: u64, change: &Change, selection: &Selection, room: Option<&mut usize>) -> Option<Value> {
    let event_type = selection.transition(change)?.event_type.name();
    let key = change.object().key();
    let mut shown = json!({
        "offset": offset,
        "type": event_type,
        "namespace": key.namespace(),
        "name": key.name(),
        "resourceVersion": change.version.to_string(),
    });
    if let Some(room) = room {
        for (state, name) in [(&change.old, "old"), (&change.new, "new")] {
            let body = state.as_deref().and_then(Object::json).filter(|body| body.len() <= *room);
            *room -= body.map_or(0, <[u8]>::len);
            shown[name] = body.and_then(|body| serde_json::from_slice(body).ok()).unwrap_or_default();
        }
    }
    Some(shown)
}

/// Returns a watch with the names of `informerd watchers -o json`.
fn to_json(watch: &pb::Watcher) -> Value {
    let time = |at: Option<prost_types::Timestamp>| at.map(|at| at.to_string());
    let reason = watch.end_status.as_ref().map(|status| match &*status.message {
        "" => tonic::Code::from_i32(status.code).description().to_owned(),
        message => message.to_owned(),
    });
    json!({
        "id": watch.id,
        "resource": watch.resource,
        "peer": watch.peer,
        "identity": watch.identity,
        "userAgent": watch.user_agent,
        "selection": watch.selection,
        "policy": watch.policy().as_str_name().trim_start_matches("FULL_CHANNEL_POLICY_"),
        "state": watch.state().as_str_name().trim_start_matches("WATCHER_STATE_"),
        "queueLength": watch.queue_length,
        "queued": watch.queued,
        "parked": watch.parked,
        "lagSeconds": watch.lag.and_then(proto::duration).map(|lag| lag.as_secs_f64()),
        "sent": watch.sent,
        "bytesSent": watch.bytes_sent,
        "bytesHeld": watch.bytes_held,
        "dropped": watch.dropped,
        "resourceVersion": watch.resource_version,
        "since": time(watch.since),
        "lastProgress": time(watch.last_progress),
        "endedAt": time(watch.ended_at),
        "endStatus": reason,
    })
}
