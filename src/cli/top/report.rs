//! Figures as text and as JSON, for `--once`, `-o json` and whatever is no terminal.

use std::time::SystemTime;

use prost_types::Timestamp;
use serde_json::{Value, json};

use super::{
    columns::{Key, Row, Tone, duration},
    list::List,
    sample::{Figures, ResourceFigures, WatcherFigures},
};
use crate::{
    cli::print::{
        RED, YELLOW,
        json::Document,
        table::{Cell, Table},
    },
    proto::pb,
};

/// Options of the text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TextOptions {
    pub(super) sorted_by: Option<Key>,
    pub(super) no_headers: bool,
    pub(super) colors: bool,
}

/// Returns a table of the resources and one of the watches, in all columns, with a blank line between them.
pub(super) fn text(figures: &Figures, now: SystemTime, options: TextOptions) -> String {
    let mut text = String::new();
    push_table(&figures.resources, now, options, &mut text);
    if !figures.watchers.is_empty() {
        text.push('\n');
        push_table(&figures.watchers, now, options, &mut text);
    }
    text
}

fn push_table<R: Row>(rows: &[R], now: SystemTime, options: TextOptions, text: &mut String) {
    let mut list = List::new(options.sorted_by);
    list.arrange(rows);
    let mut table = Table::default();
    if !options.no_headers {
        table.push(R::COLUMNS.iter().map(|column| column.header));
    }
    for row in list.rows(rows) {
        table.push(R::COLUMNS.iter().map(|column| {
            let (text, tone) = (column.cell)(row, now);
            match tone {
                Tone::Plain => Cell::or_none(&text),
                Tone::Warning => Cell::styled(&text, YELLOW),
                Tone::Error => Cell::styled(&text, RED),
            }
        }));
    }
    table.write(&table.widths(), options.colors, text);
}

/// Returns a JSON document in one line. Rates that are not known are null.
pub(super) fn json(figures: &Figures, out: &mut String) {
    let server = &figures.server;
    let document = json!({
        "time": figures.time.map(|time| Timestamp::from(time).to_string()),
        "seconds": figures.elapsed.map(|elapsed| elapsed.as_secs_f64()),
        "server": {
            "version": figures.version,
            "startedAt": server.started_at.map(|at| at.to_string()),
            "draining": server.draining,
            "connections": server.connections,
            "watchers": server.watchers,
            "heldBytes": server.held_bytes,
            "heldBytesLimit": server.held_bytes_limit,
            "residentBytes": server.resident_bytes,
            "changesPerSecond": figures.total.changes,
            "eventsPerSecond": figures.total.events,
            "bytesPerSecond": figures.total.bytes,
            "dropsPerSecond": figures.total.drops,
        },
        "resources": figures.resources.iter().map(resource).collect::<Vec<_>>(),
        "watchers": figures.watchers.iter().map(watcher).collect::<Vec<_>>(),
    });
    Document::from_value(&document).compact(out);
    out.push('\n');
}

fn resource(row: &ResourceFigures) -> Value {
    let ResourceFigures { resource, stats, rates } = row;
    json!({
        "name": resource.name,
        "source": resource.source,
        "state": resource.state().as_str_name().trim_start_matches("SYNC_STATE_"),
        "lastError": resource.last_error,
        "objects": resource.objects,
        "watchers": resource.watchers,
        "parked": stats.parked,
        "maxLagSeconds": duration(stats.max_lag).as_secs_f64(),
        "cacheBytes": stats.cache_bytes,
        "historyBytes": stats.history_bytes,
        "changes": stats.changes,
        "eventsSent": stats.events_sent,
        "bytesSent": stats.bytes_sent,
        "dropped": stats.dropped,
        "changesPerSecond": rates.changes,
        "eventsPerSecond": rates.events,
        "bytesPerSecond": rates.bytes,
        "dropsPerSecond": rates.drops,
    })
}

fn watcher(row: &WatcherFigures) -> Value {
    let watcher = &row.watcher;
    let state = match watcher.state() {
        pb::WatcherState::Unspecified => "",
        state => state.as_str_name().trim_start_matches("WATCHER_STATE_"),
    };
    json!({
        "id": watcher.id,
        "resource": watcher.resource,
        "peer": watcher.peer,
        "identity": watcher.identity,
        "userAgent": watcher.user_agent,
        "selection": watcher.selection,
        "policy": row.policy(),
        "state": state,
        "queueLength": watcher.queue_length,
        "queued": watcher.queued,
        "parked": watcher.parked,
        "lagSeconds": duration(watcher.lag).as_secs_f64(),
        "bytesHeld": watcher.bytes_held,
        "sent": watcher.sent,
        "bytesSent": watcher.bytes_sent,
        "dropped": watcher.dropped,
        "resourceVersion": watcher.resource_version,
        "since": watcher.since.map(|at| at.to_string()),
        "eventsPerSecond": row.events,
        "bytesPerSecond": row.bytes,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::top::sample::ResourceRates;

    fn figures() -> Figures {
        let resource = pb::Resource {
            name: "pods".to_owned(),
            state: pb::SyncState::Stale.into(),
            objects: 21,
            watchers: 2,
            ..Default::default()
        };
        let stats = pb::ResourceStats { cache_bytes: 70_000, dropped: 2, ..Default::default() };
        let rates = ResourceRates { changes: Some(0.5), ..Default::default() };
        let watch = |id, events| WatcherFigures {
            watcher: pb::Watcher {
                id,
                resource: "pods".to_owned(),
                peer: "a\u{1b}[2J".to_owned(),
                policy: pb::FullChannelPolicy::Replay.into(),
                queue_length: 20,
                queued: id as u32 * 10,
                state: pb::WatcherState::CatchingUp.into(),
                ..Default::default()
            },
            events,
            bytes: None,
        };
        Figures {
            elapsed: Some(Duration::from_secs(2)),
            resources: vec![ResourceFigures { resource, stats, rates }],
            watchers: vec![watch(1, Some(1.5)), watch(7, Some(123_456.0))],
            ..Default::default()
        }
    }

    #[test]
    fn a_sample_is_two_tables() {
        let options = TextOptions::default();
        let expected = "\
NAME   STATE   OBJECTS   CHANGES/S   EVENTS/S   BYTES/S   CACHE   HISTORY   WATCHERS   PARKED   LAG   DROPS
pods   STALE   21        0.5         -          -         68Ki    0         2          0        0     2

ID   CLIENT       RESOURCE   SELECTION   POLICY   STATE     QUEUE   LAG   DROPS   EVENTS/S   BYTES/S   HELD   AGE
7    a\\u{1b}[2J   pods       <none>      REPLAY   catchup   70      0     0       123k       -         0      -
1    a\\u{1b}[2J   pods       <none>      REPLAY   catchup   10/20   0     0       1.5        -         0      -
";
        assert_eq!(text(&figures(), SystemTime::UNIX_EPOCH, options), expected);
        let by_queue = TextOptions { sorted_by: Some(Key::Id), no_headers: true, colors: true };
        let text = text(&figures(), SystemTime::UNIX_EPOCH, by_queue);
        let ids: Vec<_> = text.lines().map(|line| line.chars().next()).collect();
        assert_eq!(ids, [Some('p'), None, Some('1'), Some('7')], "{text}");
        assert!(text.contains("\u{1b}[31mSTALE\u{1b}[0m"), "{text}");
    }

    #[test]
    fn a_sample_is_a_line_of_json() {
        let mut line = String::new();
        json(&figures(), &mut line);
        assert_eq!((line.matches('\n').count(), line.contains('\u{1b}')), (1, false));
        let document: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(document["resources"][0]["changesPerSecond"], 0.5);
        assert_eq!(document["resources"][0]["bytesPerSecond"], Value::Null);
        assert_eq!(document["watchers"][1]["eventsPerSecond"], 123_456.0);
        assert_eq!(document["watchers"][0]["peer"], "a\u{1b}[2J");
        assert_eq!((&document["seconds"], &document["time"]), (&2.0.into(), &Value::Null));
    }
}
