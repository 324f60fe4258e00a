//! Watches, as the page of the admin port shows them.

use std::cmp::Reverse;

use serde_json::{Value, json};

use crate::{
    grpc::service::Service,
    model::{ObjectKey, Term, TermResult},
    proto::{self, pb},
};

/// Watches in an answer: those that are furthest behind.
const MAX_WATCHES: usize = 200;
/// Ended watches in an answer: the last ones.
const MAX_ENDED: usize = 50;

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
