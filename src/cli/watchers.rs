//! `informerd watchers`.

use std::time::SystemTime;

use anstyle::Style;
use clap::Args;

use super::{
    client_flags::{FormatFlags, ServerFlags, TimeoutFlags},
    failure::Failure,
    print::{RED, Record, YELLOW, age::age_of, json::Document, stdout, table::Cell, write_records},
    waiting,
};
use crate::proto::pb;

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml and a watch in another terminal:
  informerd watchers
  informerd watchers pods -o json";

/// Flags of `informerd watchers`.
#[derive(Debug, Clone, Args)]
pub(super) struct WatchersFlags {
    /// A name from `informerd resources`; all of them if left out
    #[arg(value_name = "RESOURCE", default_value = "", hide_default_value = true)]
    resource: String,
    #[command(flatten)]
    format: FormatFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

const HEADER: &[&str] = &[
    "ID",
    "RESOURCE",
    "PEER",
    "SELECTION",
    "POLICY",
    "STATE",
    "QUEUED",
    "HELD",
    "SENT",
    "DROPPED",
    "VERSION",
    "AGE",
    "PROGRESS",
];

pub(super) async fn run(flags: &WatchersFlags) -> Result<(), Failure> {
    waiting::limited(&flags.timeout, &flags.server, "", Box::pin(show(flags))).await
}

async fn show(flags: &WatchersFlags) -> Result<(), Failure> {
    let WatchersFlags { resource, format, server, .. } = flags;
    let watchers = server.connect().await?.watchers(resource).await?;
    let (is_empty, options, now) = (watchers.is_empty(), format.options(), SystemTime::now());
    let records = watchers.iter().map(|watcher| record(watcher, now)).collect();
    write_records(stdout(), &options, ("watchers", HEADER), records)?;
    if is_empty && !options.output.is_document() {
        server.note(&"No watchers found.");
    }
    Ok(())
}

fn record(watcher: &pb::Watcher, now: SystemTime) -> Record {
    let policy = watcher.policy().as_str_name().trim_start_matches("FULL_CHANNEL_POLICY_");
    let ago = |at| age_of(at, now).unwrap_or_else(|| "<none>".to_owned());
    let queued = if watcher.parked {
        Cell::styled("parked", YELLOW)
    } else {
        Cell::new(&format!("{}/{}", watcher.queued, watcher.queue_length))
    };
    let state = watcher.state().as_str_name().trim_start_matches("WATCHER_STATE_");
    // Empty for a server that does not report it.
    let state = Some(state).filter(|_| watcher.state() != pb::WatcherState::Unspecified).unwrap_or_default();
    let dropped_style = if watcher.dropped > 0 { RED } else { Style::new() };
    let cells = vec![
        Cell::new(&watcher.id.to_string()),
        Cell::new(&watcher.resource),
        Cell::or_none(&watcher.peer),
        Cell::new(&watcher.selection),
        Cell::new(policy),
        Cell::or_none(state),
        queued,
        Cell::new(&size(watcher.bytes_held)),
        Cell::new(&watcher.sent.to_string()),
        Cell::styled(&watcher.dropped.to_string(), dropped_style),
        Cell::or_none(&watcher.resource_version),
        Cell::new(&ago(watcher.since)),
        Cell::new(&format!("{} ago", ago(watcher.last_progress))),
    ];
    let time = |at: Option<prost_types::Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let parts = [
        ("id", watcher.id.into()),
        ("resource", watcher.resource.as_str().into()),
        ("peer", watcher.peer.as_str().into()),
        ("identity", watcher.identity.as_str().into()),
        ("selection", watcher.selection.as_str().into()),
        ("policy", policy.into()),
        ("state", state.into()),
        ("queueLength", watcher.queue_length.into()),
        ("queued", watcher.queued.into()),
        ("parked", watcher.parked.into()),
        ("bytesHeld", watcher.bytes_held.into()),
        ("sent", watcher.sent.into()),
        ("dropped", watcher.dropped.into()),
        ("resourceVersion", watcher.resource_version.as_str().into()),
        ("since", time(watcher.since).into()),
        ("lastProgress", time(watcher.last_progress).into()),
    ];
    Record { name: watcher.id.to_string(), cells, document: Document::from_fields(parts) }
}

/// Formats a number of bytes as a Kubernetes quantity.
fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..0x400 => (1, ""),
        0x400..0x10_0000 => (1 << 10, "Ki"),
        0x10_0000..0x4000_0000 => (1 << 20, "Mi"),
        _ => (1 << 30, "Gi"),
    };
    format!("{}{name}", bytes / unit)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::print::{Output, PrintOptions};

    #[test]
    fn a_watcher_is_shown_with_its_queue_and_state() {
        let since = prost_types::Timestamp { seconds: 1_000_000_000, nanos: 0 };
        let live = pb::Watcher {
            id: 7,
            resource: "pods".to_owned(),
            peer: "127.0.0.1:40000".to_owned(),
            selection: "labels=app=web".to_owned(),
            policy: pb::FullChannelPolicy::Drop.into(),
            queue_length: 1024,
            queued: 3,
            state: pb::WatcherState::Frozen.into(),
            bytes_held: 70_000,
            sent: 50,
            dropped: 2,
            resource_version: "x.7".to_owned(),
            since: Some(since),
            last_progress: Some(since),
            ..Default::default()
        };
        let state = pb::WatcherState::Unspecified.into();
        let parked = pb::Watcher { id: 8, parked: true, dropped: 0, state, bytes_held: 512, ..live.clone() };
        let now = SystemTime::try_from(since).unwrap() + Duration::from_secs(42);
        let mut out = Vec::new();
        let options = PrintOptions { output: Output::Table, ..PrintOptions::default() };
        let records = [live, parked].iter().map(|watcher| record(watcher, now)).collect();
        write_records(&mut out, &options, ("watchers", HEADER), records).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\
ID   RESOURCE   PEER              SELECTION        POLICY   STATE    QUEUED   HELD   SENT   DROPPED   VERSION   AGE   PROGRESS
7    pods       127.0.0.1:40000   labels=app=web   DROP     FROZEN   3/1024   68Ki   50     2         x.7       42s   42s ago
8    pods       127.0.0.1:40000   labels=app=web   DROP     <none>   parked   512    50     0         x.7       42s   42s ago
"
        );
    }
}
