//! `informerd watchers`.

mod disconnect;

use std::time::SystemTime;

use anstyle::Style;
use clap::Args;

pub(super) use self::disconnect::{DisconnectFlags, EXAMPLES as DISCONNECT_EXAMPLES, disconnect};
use super::{
    alias::of_resource,
    client_flags::{FormatFlags, ServerFlags, TimeoutFlags},
    failure::Failure,
    print::{
        Output, RED, Record, YELLOW,
        age::age_of,
        json::Document,
        quantity::{bytes, delay},
        stdout,
        table::Cell,
        write_records,
    },
    refresh::RefreshFlags,
};
use crate::{
    client::ClientError,
    proto::{self, pb},
};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml and a watch in another terminal:
  informerd watchers
  informerd watchers --ended
  informerd watchers -w
  informerd watchers pods -o json";

/// Flags of `informerd watchers`.
#[derive(Debug, Clone, Args)]
pub(super) struct WatchersFlags {
    /// A name from `informerd resources`; all of them if left out
    #[arg(value_name = "RESOURCE", default_value = "", hide_default_value = true)]
    resource: String,
    /// Also the last watches that have ended, each with its time and status
    #[arg(long)]
    ended: bool,
    #[command(flatten)]
    format: FormatFlags,
    #[command(flatten)]
    refresh: RefreshFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

of_resource!(WatchersFlags, server);

const HEADER: &[&str] = &["ID", "RESOURCE", "PEER", "SELECTION", "STATE", "QUEUED", "LAG", "DROPPED"];
const WIDE_HEADER: &[&str] = &[
    "ID",
    "RESOURCE",
    "PEER",
    "SELECTION",
    "STATE",
    "QUEUED",
    "LAG",
    "DROPPED",
    "POLICY",
    "HELD",
    "SENT",
    "BYTES",
    "VERSION",
    "AGE",
    "PROGRESS",
    "IDENTITY",
    "PROGRAM",
];
/// Further columns, with --ended.
const ENDED_HEADER: [&str; 2] = ["ENDED", "STATUS"];

pub(super) async fn run(flags: &WatchersFlags) -> Result<(), Failure> {
    let output = flags.format.options().output;
    flags.refresh.run(output, (&flags.server, &flags.timeout), async || show(flags).await).await
}

async fn show(flags: &WatchersFlags) -> Result<(), Failure> {
    let WatchersFlags { resource, ended, format, server, .. } = flags;
    let client = server.connect().await?;
    let watchers = if *ended { client.watchers_and_ended(resource).await? } else { client.watchers(resource).await? };
    let (is_empty, options, now) = (watchers.is_empty(), format.options(), SystemTime::now());
    let header = if options.output == Output::Wide { WIDE_HEADER } else { HEADER };
    let columns = if *ended { &[header, &ENDED_HEADER].concat() } else { header };
    let records = watchers.iter().map(|watcher| record(watcher, now, header.len(), *ended)).collect();
    write_records(stdout(), &options, ("watchers", columns), records)?;
    if is_empty && !options.output.is_document() {
        server.note(&"No watchers found.");
    }
    Ok(())
}

fn record(watcher: &pb::Watcher, now: SystemTime, columns: usize, with_end: bool) -> Record {
    let policy = watcher.policy().as_str_name().trim_start_matches("FULL_CHANNEL_POLICY_");
    let ago = |at| age_of(at, now).unwrap_or_else(|| "<none>".to_owned());
    let queued = match watcher.queue_length {
        _ if watcher.parked => Cell::styled("parked", YELLOW),
        // Events of the history, which is longer than the queue.
        length if watcher.queued > length => Cell::new(&watcher.queued.to_string()),
        length => Cell::new(&format!("{}/{length}", watcher.queued)),
    };
    let lag = watcher.lag.and_then(proto::duration);
    let lag_cell = lag.map_or_else(|| Cell::or_none(""), |lag| Cell::new(&delay(lag)));
    let state = watcher.state().as_str_name().trim_start_matches("WATCHER_STATE_");
    // Empty for a server that does not report it.
    let state = Some(state).filter(|_| watcher.state() != pb::WatcherState::Unspecified).unwrap_or_default();
    let dropped_style = if watcher.dropped > 0 { RED } else { Style::new() };
    let mut cells = vec![
        Cell::new(&watcher.id.to_string()),
        Cell::new(&watcher.resource),
        Cell::or_none(&watcher.peer),
        Cell::or_none(&watcher.selection),
        Cell::or_none(state),
        queued,
        lag_cell,
        Cell::styled(&watcher.dropped.to_string(), dropped_style),
        Cell::new(policy),
        Cell::new(&bytes(watcher.bytes_held)),
        Cell::new(&watcher.sent.to_string()),
        Cell::new(&bytes(watcher.bytes_sent)),
        Cell::or_none(&watcher.resource_version),
        Cell::new(&ago(watcher.since)),
        Cell::new(&format!("{} ago", ago(watcher.last_progress))),
        Cell::or_none(&watcher.identity),
        Cell::or_none(&watcher.user_agent),
    ];
    cells.truncate(columns);
    let time = |at: Option<prost_types::Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let end_status = watcher.end_status.as_ref().map(|status| ClientError::from_proto(status).to_string());
    if with_end {
        let ended = watcher.ended_at.map(|at| format!("{} ago", ago(Some(at)))).unwrap_or_default();
        cells.extend([Cell::or_none(&ended), Cell::or_none(end_status.as_deref().unwrap_or_default())]);
    }
    let mut parts = vec![
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
        ("lagSeconds", lag.map(|lag| lag.as_secs_f64()).into()),
        ("bytesHeld", watcher.bytes_held.into()),
        ("bytesSent", watcher.bytes_sent.into()),
        ("sent", watcher.sent.into()),
        ("dropped", watcher.dropped.into()),
        ("resourceVersion", watcher.resource_version.as_str().into()),
        ("since", time(watcher.since).into()),
        ("lastProgress", time(watcher.last_progress).into()),
        ("userAgent", watcher.user_agent.as_str().into()),
    ];
    if watcher.ended_at.is_some() {
        parts.extend([("endedAt", time(watcher.ended_at).into()), ("endStatus", end_status.into())]);
    }
    Record { name: watcher.id.to_string(), cells, document: Document::from_fields(parts) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::print::PrintOptions;

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
            lag: Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }),
            user_agent: "client/1".to_owned(),
            bytes_sent: 2048,
            bytes_held: 70_000,
            sent: 50,
            dropped: 2,
            resource_version: "x.7".to_owned(),
            since: Some(since),
            last_progress: Some(since),
            ..Default::default()
        };
        let lag = Some(prost_types::Duration { seconds: 75, nanos: 0 });
        let (state, selection) = (pb::WatcherState::Parked.into(), "labels=app=web,tier in (a,b)".to_owned());
        let parked = pb::Watcher { id: 8, parked: true, dropped: 0, state, lag, selection, ..live.clone() };
        let state = pb::WatcherState::Unspecified.into();
        let replayed = pb::Watcher { id: 9, queue_length: 20, queued: 10_163, state, lag, ..live.clone() };
        let now = SystemTime::try_from(since).unwrap() + Duration::from_secs(42);
        let printed = |output, header: &[&str], max_width| {
            let mut out = Vec::new();
            let options = PrintOptions { output, max_width, ..PrintOptions::default() };
            let watchers = [&live, &parked, &replayed];
            let records = watchers.map(|watcher| record(watcher, now, header.len(), false)).into();
            write_records(&mut out, &options, ("watchers", header), records).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            printed(Output::Table, HEADER, Some(80)),
            "\
ID   RESOURCE   PEER              SELECTION     STATE    QUEUED   LAG    DROPPED
7    pods       127.0.0.1:40000   labels=app…   FROZEN   3/1024   1.5s   2
8    pods       127.0.0.1:40000   labels=app…   PARKED   parked   75s    0
9    pods       127.0.0.1:40000   labels=app…   <none>   10163    75s    2
"
        );
        let wide = printed(Output::Wide, WIDE_HEADER, None);
        let (table, more) = (
            printed(Output::Table, HEADER, None),
            "   POLICY   HELD   SENT   BYTES   VERSION   AGE   PROGRESS   IDENTITY   PROGRAM",
        );
        assert_eq!(wide.lines().next().unwrap(), table.lines().next().unwrap().to_owned() + more);
        assert!(
            wide.contains(
                "   2         DROP     68Ki   50     2.0Ki   x.7       42s   42s ago    <none>     client/1\n"
            ),
            "{wide}"
        );
        let end_status = Some(tonic_types::Status { code: 8, message: "too slow".to_owned(), details: Vec::new() });
        let ended = pb::Watcher { ended_at: Some(since), end_status, ..live.clone() };
        let row = record(&ended, now, HEADER.len(), true);
        assert_eq!(row.cells.len(), HEADER.len() + ENDED_HEADER.len());
        assert_eq!(row.document.value()["endStatus"], "too slow (RESOURCE_EXHAUSTED)");
        assert_eq!(record(&live, now, HEADER.len(), true).document.value().get("endedAt"), None);
    }
}
