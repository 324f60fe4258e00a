//! `informerd status`: the resources of several servers side by side.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use anstyle::Style;
use clap::Args;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::state_style;
use crate::{
    cli::{
        client_flags::{Contexts, FormatFlags, ServerFlags, TimeoutFlags},
        failure::{Failure, UNAVAILABLE},
        print::{RED, Record, YELLOW, age::age_of, json::Document, or_unread, stdout, table::Cell, write_records},
        refresh::RefreshFlags,
    },
    proto::pb,
};

pub(crate) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd status
  informerd status -o json

The file of contexts is that of INFORMERD_CONTEXTS, or informerd/contexts.yaml in XDG_CONFIG_HOME (~/.config):

  current: shop-a
  contexts:
    shop-a: { server: https://shop-a:50051, certificate_authority: ca.crt, token_file: token }
    shop-b: { server: https://shop-b:50051, certificate_authority: ca.crt, token_file: token }

BEHIND is the difference to the newest version that one of them has, where their versions can be compared: those of replicas.";

/// Flags of `informerd status`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StatusFlags {
    /// Servers of the file of contexts; all of them if left out, unless --server or --context names one
    #[arg(value_name = "CONTEXT")]
    contexts: Vec<String>,
    #[command(flatten)]
    format: FormatFlags,
    #[command(flatten)]
    refresh: RefreshFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

/// Answer of a server, by the name that it has in the table.
struct Answer {
    name: String,
    answer: Result<pb::ListResourcesResponse, Failure>,
}

/// Time for one server; the others are shown without it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const HEADER: &[&str] =
    &["SERVER", "INFORMERD", "RESOURCE", "STATE", "OBJECTS", "WATCHERS", "SEEN", "VERSION", "BEHIND"];

pub(crate) async fn status(flags: &StatusFlags) -> Result<(), Failure> {
    let output = flags.format.options().output;
    flags.refresh.run(output, (&flags.server, &flags.timeout), async || show(flags).await).await
}

async fn show(flags: &StatusFlags) -> Result<(), Failure> {
    let StatusFlags { contexts, format, server, .. } = flags;
    let contexts: Vec<String> = match &**contexts {
        [] if server.is_of_one() => Vec::new(),
        [] => Contexts::load()?.names().cloned().collect(),
        named => named.to_vec(),
    };
    let mut servers: Vec<_> = contexts.iter().map(|name| (name.clone(), server.of_context(name))).collect();
    if servers.is_empty() {
        servers.push((server.name()?, server.clone()));
    }
    let answers = join_all(servers.into_iter().map(|(name, server)| async move {
        let call = async { Ok(server.connect().await?.list_resources().await?) };
        let late = |_| Err(Failure::new(UNAVAILABLE, format!("no answer within {ANSWER_WITHIN:?}")));
        Answer { name, answer: timeout(ANSWER_WITHIN, call).await.unwrap_or_else(late) }
    }))
    .await;
    let records = records(&answers, SystemTime::now());
    or_unread(write_records(stdout(), &format.options(), ("servers", HEADER), records))?;
    let failures = answers.into_iter().filter_map(|Answer { name, answer }| {
        let Failure { message, exit_code } = answer.err()?;
        Some(Failure { message: message.map(|message| format!("{name}: {message}")), exit_code })
    });
    let failures: Vec<Failure> = failures.collect();
    let Some((last, others)) = failures.split_last() else { return Ok(()) };
    others.iter().for_each(Failure::print);
    Err(Failure { message: last.message.clone(), exit_code: last.exit_code })
}

fn records(answers: &[Answer], now: SystemTime) -> Vec<Record> {
    let resources = answers.iter().filter_map(|of| of.answer.as_ref().ok()).flat_map(|answer| &answer.resources);
    // The newest version of each resource and lineage, and the number of servers that have one.
    let mut newest: BTreeMap<(&str, &str), (u128, usize)> = BTreeMap::new();
    for resource in resources {
        if let Some((lineage, number)) = parts(&resource.resource_version) {
            let (newest, servers) = newest.entry((&resource.name, lineage)).or_default();
            (*newest, *servers) = (number.max(*newest), *servers + 1);
        }
    }
    let behind = |resource: &pb::Resource| {
        let (lineage, number) = parts(&resource.resource_version)?;
        let (newest, servers) = newest.get(&(resource.name.as_str(), lineage))?;
        (*servers > 1).then_some(newest - number)
    };
    let rows = answers.iter().flat_map(|Answer { name, answer }| match answer {
        Ok(answer) => {
            let version = answer.server.as_ref().map_or("", |server| &server.version);
            answer.resources.iter().map(|of| record(name, version, of, behind(of), now)).collect()
        }
        Err(_) => vec![unreachable(name)],
    });
    rows.collect()
}

/// Returns the lineage of a version and its number in that.
fn parts(version: &str) -> Option<(&str, u128)> {
    let (lineage, number) = version.rsplit_once('.').unwrap_or(("", version));
    Some((lineage, number.parse().ok()?))
}

fn record(server: &str, version: &str, resource: &pb::Resource, behind: Option<u128>, now: SystemTime) -> Record {
    let state = resource.state().as_str_name().trim_start_matches("SYNC_STATE_");
    let seen = age_of(resource.source_seen_at, now).map_or_else(|| "never".to_owned(), |age| format!("{age} ago"));
    let style = if behind.is_some_and(|behind| behind > 0) { YELLOW } else { Style::new() };
    let behind = behind.map(|behind| behind.to_string());
    let cells = vec![
        Cell::new(server),
        Cell::or_none(version),
        Cell::new(&resource.name),
        Cell::styled(state, state_style(resource.state())),
        Cell::new(&resource.objects.to_string()),
        Cell::new(&resource.watchers.to_string()),
        Cell::new(&seen),
        Cell::or_none(&resource.resource_version),
        Cell::styled(behind.as_deref().unwrap_or("<none>"), style),
    ];
    let seen_at = resource.source_seen_at.map(|at| at.to_string());
    let document = Document::from_fields([
        ("server", server.into()),
        ("informerd", version.into()),
        ("resource", resource.name.as_str().into()),
        ("state", state.into()),
        ("objects", resource.objects.into()),
        ("watchers", resource.watchers.into()),
        ("sourceSeenAt", seen_at.into()),
        ("resourceVersion", resource.resource_version.as_str().into()),
        ("behind", behind.into()),
    ]);
    Record { name: format!("{server}/{}", resource.name), cells, document }
}

fn unreachable(server: &str) -> Record {
    let none = || Cell::or_none("");
    let mut cells = vec![Cell::new(server), none(), none(), Cell::styled("UNREACHABLE", RED)];
    cells.resize_with(HEADER.len(), none);
    let document = Document::from_fields([("server", server.into()), ("state", "UNREACHABLE".into())]);
    Record { name: server.to_owned(), cells, document }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_compared_by_the_versions_of_one_lineage() {
        let of = |name: &str, version: &str| pb::Resource {
            name: name.to_owned(),
            resource_version: version.to_owned(),
            ..Default::default()
        };
        let answer = |name: &str, pods: &str, files: &str| Answer {
            name: name.to_owned(),
            answer: Ok(pb::ListResourcesResponse {
                resources: vec![of("files", files), of("pods", pods)],
                server: None,
            }),
        };
        let down = Answer { name: "c".to_owned(), answer: Err(Failure::usage("x")) };
        let answers = [answer("a", "9", "x.7"), answer("b", "10", "y.7"), down, answer("d", "", "x.12")];
        let records = records(&answers, SystemTime::UNIX_EPOCH);
        let behind = |at: usize| records[at].document.value()["behind"].clone();
        let names: Vec<&str> = records.iter().map(|record| &*record.name).collect();
        assert_eq!(names, ["a/files", "a/pods", "b/files", "b/pods", "c", "d/files", "d/pods"]);
        let found: Vec<_> = (0..7).map(|at| behind(at).as_str().map(str::to_owned)).collect();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(found, [text("5"), text("1"), None, text("0"), None, text("0"), None]);
        assert!(records.iter().all(|record| record.cells.len() == HEADER.len()));
    }
}
