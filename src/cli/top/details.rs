//! Details of one resource or one watch: names and values, a line for each.

use std::time::SystemTime;

use super::{
    columns::duration,
    sample::{ResourceFigures, WatcherFigures},
    state::Subject,
};
use crate::{
    cli::print::{
        age::age_of,
        quantity::{byte_rate, bytes, count, delay, rate},
    },
    proto::pb,
};

/// Returns the title, and the facts that have a value.
pub(super) fn facts(subject: &Subject, now: SystemTime) -> (String, Vec<(&'static str, String)>) {
    let (title, mut facts) = match subject {
        Subject::Resource(row) => (format!("Resource {}", row.resource.name), of_resource(row, now)),
        Subject::Watcher(row) => {
            (format!("Watch {} of {}", row.watcher.id, row.watcher.resource), of_watcher(row, now))
        }
    };
    facts.retain(|(_, value)| !value.is_empty());
    (title, facts)
}

fn of_resource(row: &ResourceFigures, now: SystemTime) -> Vec<(&'static str, String)> {
    let ResourceFigures { resource, stats, rates } = row;
    let ago = |at| age_of(at, now).map(|age| format!("{age} ago")).unwrap_or_default();
    let mut facts = vec![
        ("Source", resource.source.clone()),
        ("State", resource.state().as_str_name().trim_start_matches("SYNC_STATE_").to_owned()),
        ("Last contact", ago(resource.source_seen_at)),
        ("Last error", resource.last_error.clone()),
        ("Objects", resource.objects.to_string()),
        ("Cache", bytes(stats.cache_bytes)),
        ("History", bytes(stats.history_bytes)),
        ("Version", resource.resource_version.clone()),
        ("Oldest version", resource.oldest_resource_version.clone()),
        ("Oldest applied", ago(resource.oldest_at)),
        ("Changes", total(stats.changes, &rate(rates.changes))),
        ("Lists", stats.relists.to_string()),
        ("Watchers", resource.watchers.to_string()),
        ("Parked", stats.parked.to_string()),
        ("Longest lag", delay(duration(stats.max_lag))),
        ("Events sent", total(stats.events_sent, &rate(rates.events))),
        ("Bytes sent", format!("{} ({}/s)", bytes(stats.bytes_sent), byte_rate(rates.bytes))),
        ("Events dropped", total(stats.dropped, &rate(rates.drops))),
        ("Suppressed", stats.suppressed.to_string()),
        ("Waited for BLOCK", delay(duration(stats.blocked))),
        ("CEL errors", stats.expression_errors.to_string()),
        ("Indexes", resource.indexes.join(", ")),
        ("Namespaces", resource.namespaces.join(", ")),
    ];
    facts.extend(resource.problems.iter().map(|problem| {
        let pb::Problem { reason, message, subject, since } = problem;
        let age = age_of(*since, now).map(|age| format!(" (for {age})")).unwrap_or_default();
        let subject = if subject.is_empty() { String::new() } else { format!(" {subject}") };
        ("Problem", format!("{reason}{subject}: {message}{age}"))
    }));
    facts
}

fn of_watcher(row: &WatcherFigures, now: SystemTime) -> Vec<(&'static str, String)> {
    let pb::Watcher { peer, identity, selection, queue_length, queued, .. } = &row.watcher;
    let watcher = &row.watcher;
    let ago = |at| age_of(at, now).map(|age| format!("{age} ago")).unwrap_or_default();
    let view = watcher.view.as_ref().map(|view| {
        let dropped = view.drop.iter().map(|path| format!("-{path}"));
        let paths: Vec<String> = view.fields.iter().cloned().chain(dropped).collect();
        let changed = if view.only_if_changed { " (only if changed)" } else { "" };
        format!("{}{}{changed}", view.name, paths.join(","))
    });
    vec![
        ("Client", peer.clone()),
        ("Identity", identity.clone()),
        ("Program", watcher.user_agent.clone()),
        ("Selection", if selection.is_empty() { "everything".to_owned() } else { selection.clone() }),
        ("View", view.unwrap_or_default()),
        ("Format", watcher.format().as_str_name().trim_start_matches("PAYLOAD_FORMAT_").to_owned()),
        ("Policy", row.policy().to_owned()),
        ("State", row.state()),
        ("Queued", format!("{queued} events; queue length {queue_length}")),
        ("Lag", delay(duration(watcher.lag))),
        ("Held", bytes(watcher.bytes_held)),
        ("Events sent", total(watcher.sent, &rate(row.events))),
        ("Bytes sent", format!("{} ({}/s)", bytes(watcher.bytes_sent), byte_rate(row.bytes))),
        ("Events dropped", watcher.dropped.to_string()),
        ("Suppressed", watcher.suppressed.to_string()),
        ("Version", watcher.resource_version.clone()),
        ("Began", ago(watcher.since)),
        ("Last progress", ago(watcher.last_progress)),
    ]
}

fn total(total: u64, rate: &str) -> String {
    format!("{} ({rate}/s)", count(total))
}
