//! `informerd resources`.

mod status;

use std::time::SystemTime;

use anstyle::Style;
use clap::Args;
use serde_json::{Map, Value, json};

pub(super) use self::status::{EXAMPLES as STATUS_EXAMPLES, StatusFlags, status};
use super::{
    client_flags::{FormatFlags, ServerFlags, TimeoutFlags},
    failure::Failure,
    print::{Output, RED, Record, YELLOW, age::age_of, json::Document, stdout, table::Cell, write_records},
    refresh::RefreshFlags,
};
use crate::proto::pb::{self, SyncState};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd resources
  informerd resources -o wide
  informerd resources -w
  informerd resources -o json";

/// Flags of `informerd resources`.
#[derive(Debug, Clone, Args)]
pub(super) struct ResourcesFlags {
    #[command(flatten)]
    format: FormatFlags,
    #[command(flatten)]
    refresh: RefreshFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

const HEADER: &[&str] = &["NAME", "SOURCE", "STATE", "OBJECTS", "WATCHERS", "INDEXES"];
const WIDE_HEADER: &[&str] = &[
    "NAME", "SOURCE", "STATE", "OBJECTS", "WATCHERS", "INDEXES", "VIEWS", "SEEN", "VERSION", "OLDEST", "PROBLEMS",
    "ERROR",
];

pub(super) async fn run(flags: &ResourcesFlags) -> Result<(), Failure> {
    let output = flags.format.options().output;
    flags.refresh.run(output, (&flags.server, &flags.timeout), async || show(flags).await).await
}

async fn show(flags: &ResourcesFlags) -> Result<(), Failure> {
    let ResourcesFlags { format, server, .. } = flags;
    let pb::ListResourcesResponse { resources, server: info } = server.connect().await?.list_resources().await?;
    let options = format.options();
    let header = if options.output == Output::Wide { WIDE_HEADER } else { HEADER };
    let now = SystemTime::now();
    let records = resources.iter().map(|resource| record(resource, now, header.len())).collect();
    write_records(stdout(), &options, ("resources", header), records)?;
    if let Some(info) = info.filter(|info| !info.config_error.is_empty()) {
        server.note(&format_args!("# configuration not reloaded, last good one in use: {}", info.config_error));
    }
    for resource in &resources {
        match options.output {
            Output::Table if !resource.last_error.is_empty() => {
                server.note(&format_args!("# {}: {}", resource.name, resource.last_error));
            }
            Output::Wide => notes(resource, now).iter().for_each(|note| server.note(note)),
            _ => {}
        }
    }
    Ok(())
}

/// Returns one line for each standing problem.
fn notes(resource: &pb::Resource, now: SystemTime) -> Vec<String> {
    let note = |problem: &pb::Problem| {
        let pb::Problem { reason, message, subject, .. } = problem;
        let of = if subject.is_empty() { String::new() } else { format!(" {subject}") };
        let age = age_of(problem.since, now).map(|age| format!(" (for {age})")).unwrap_or_default();
        format!("# {}: {reason}{of}: {message}{age}", resource.name)
    };
    resource.problems.iter().map(note).collect()
}

fn record(resource: &pb::Resource, now: SystemTime, columns: usize) -> Record {
    let style = state_style(resource.state());
    let state = resource.state().as_str_name().trim_start_matches("SYNC_STATE_");
    let seen = age_of(resource.source_seen_at, now).map_or_else(|| "never".to_owned(), |age| format!("{age} ago"));
    let views: Vec<&str> = resource.views.iter().map(|view| view.name.as_str()).collect();
    let required = if resource.view_required { " (required)" } else { "" };
    let mut cells = vec![
        Cell::new(&resource.name),
        Cell::new(&resource.source),
        Cell::styled(state, style),
        Cell::new(&resource.objects.to_string()),
        Cell::new(&resource.watchers.to_string()),
        Cell::or_none(&resource.indexes.join(",")),
        Cell::or_none(&format!("{}{required}", views.join(","))),
        Cell::new(&seen),
        Cell::or_none(&resource.resource_version),
        Cell::or_none(&resource.oldest_resource_version),
        Cell::new(&shown_count(resource)),
        Cell::or_none(&resource.last_error),
    ];
    cells.truncate(columns);
    Record { name: resource.name.clone(), cells, document: to_document(resource, state) }
}

fn state_style(state: SyncState) -> Style {
    match state {
        SyncState::Stale => RED,
        SyncState::Syncing => YELLOW,
        SyncState::Synced | SyncState::Unspecified => Style::new(),
    }
}

/// Returns the document with the names of the contract's JSON; empty fields are omitted, and numbers are numbers.
fn to_document(resource: &pb::Resource, state: &str) -> Document<'static> {
    let seen_at = resource.source_seen_at.map(|seen_at| seen_at.to_string()).unwrap_or_default();
    let version_format = match resource.version_format() {
        pb::VersionFormat::Unspecified => "",
        format => format.as_str_name().trim_start_matches("VERSION_FORMAT_"),
    };
    let is_empty = |value: &Value| {
        matches!(value, Value::Bool(false)) || value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty)
    };
    let parts: [(&str, Value); 17] = [
        ("name", resource.name.as_str().into()),
        ("source", resource.source.as_str().into()),
        ("state", state.into()),
        ("resourceVersion", resource.resource_version.as_str().into()),
        ("oldestResourceVersion", resource.oldest_resource_version.as_str().into()),
        ("objects", resource.objects.into()),
        ("watchers", resource.watchers.into()),
        ("indexes", resource.indexes.clone().into()),
        ("sourceSeenAt", seen_at.into()),
        ("lastError", resource.last_error.as_str().into()),
        ("problems", resource.problems.iter().map(problem_to_json).collect()),
        ("versionFormat", version_format.into()),
        ("namespaces", resource.namespaces.clone().into()),
        ("history", resource.history.as_str().into()),
        ("views", resource.views.iter().map(view_to_json).collect()),
        ("viewRequired", resource.view_required.into()),
        ("aliases", resource.aliases.clone().into()),
    ];
    Document::from_fields(parts.into_iter().filter(|(_, value)| !is_empty(value)))
}

fn view_to_json(view: &pb::NamedView) -> Value {
    let pb::NamedView { name, view } = view;
    let pb::View { fields, drop, .. } = view.clone().unwrap_or_default();
    let paths = [("fields", fields), ("drop", drop)].into_iter().filter(|(_, paths)| !paths.is_empty());
    let paths: Map<_, _> = paths.map(|(key, paths)| (key.to_owned(), paths.into())).collect();
    json!({ "name": name, "view": paths })
}

fn problem_to_json(problem: &pb::Problem) -> Value {
    let pb::Problem { reason, message, subject, since } = problem;
    let since = since.map(|since| since.to_string()).unwrap_or_default();
    let parts = [("reason", &**reason), ("message", message), ("subject", subject), ("since", &since)];
    let set = parts.into_iter().filter(|(_, value)| !value.is_empty());
    Value::Object(set.map(|(key, value)| (key.to_owned(), value.into())).collect::<Map<_, _>>())
}

/// Formats the number of problems, of which a server reports at most 100.
fn shown_count(resource: &pb::Resource) -> String {
    match resource.problems.len() {
        count @ 0..100 => count.to_string(),
        _ => "100+".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::print::PrintOptions;

    fn problem(since: prost_types::Timestamp) -> pb::Problem {
        pb::Problem {
            reason: "FILE_INVALID".to_owned(),
            message: "bad".to_owned(),
            subject: "a.yaml".to_owned(),
            since: Some(since),
        }
    }

    fn printed(output: Output) -> String {
        let seen_at = prost_types::Timestamp { seconds: 1_000_000_000, nanos: 0 };
        let pods = pb::Resource {
            name: "pods".to_owned(),
            source: "files".to_owned(),
            state: SyncState::Stale.into(),
            resource_version: "x.7".to_owned(),
            oldest_resource_version: "x.1".to_owned(),
            objects: 24,
            watchers: 2,
            indexes: vec!["namespace".to_owned(), "node".to_owned()],
            source_seen_at: Some(seen_at),
            last_error: "no\u{1b}".to_owned(),
            problems: vec![problem(seen_at)],
            version_format: pb::VersionFormat::Lineage.into(),
            namespaces: vec!["shop".to_owned()],
            history: "h.0".to_owned(),
            path: Vec::new(),
            views: vec![pb::NamedView {
                name: "small".to_owned(),
                view: Some(pb::View { fields: vec![".spec".to_owned()], ..pb::View::default() }),
            }],
            view_required: true,
            aliases: vec!["po".to_owned(), "pod".to_owned()],
            oldest_at: None,
        };
        let new = pb::Resource { name: "new".to_owned(), state: SyncState::Syncing.into(), ..Default::default() };
        let header = if output == Output::Wide { WIDE_HEADER } else { HEADER };
        let now = SystemTime::try_from(seen_at).unwrap() + Duration::from_secs(42);
        let records = [new, pods].iter().map(|resource| record(resource, now, header.len())).collect();
        let mut out = Vec::new();
        let options = PrintOptions { output, ..PrintOptions::default() };
        write_records(&mut out, &options, ("resources", header), records).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn resources_are_shown_with_their_state() {
        let expected = "\
NAME   SOURCE   STATE     OBJECTS   WATCHERS   INDEXES
new             SYNCING   0         0          <none>
pods   files    STALE     24        2          namespace,node
";
        assert_eq!(printed(Output::Table), expected);
        let wide = printed(Output::Wide);
        assert!(
            wide.contains("42s ago")
                && wide.contains("x.7")
                && wide.contains("small (required)")
                && wide.ends_with("no\\u{1b}\n"),
            "{wide}"
        );
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(90);
        let of = |problem| pb::Resource { name: "pods".to_owned(), problems: vec![problem], ..Default::default() };
        let epoch = prost_types::Timestamp { seconds: 0, nanos: 0 };
        assert_eq!(notes(&of(problem(epoch)), now), ["# pods: FILE_INVALID a.yaml: bad (for 90s)"]);
        let whole = pb::Problem { subject: String::new(), since: None, ..problem(epoch) };
        assert_eq!(notes(&of(whole), now), ["# pods: FILE_INVALID: bad"]);
        let jsonl = printed(Output::Jsonl);
        let expected = r#"{"name":"pods","source":"files","state":"STALE","resourceVersion":"x.7","oldestResourceVersion":"x.1","objects":24,"watchers":2,"indexes":["namespace","node"],"sourceSeenAt":"2001-09-09T01:46:40Z","lastError":"no\u001b","problems":[{"message":"bad","reason":"FILE_INVALID","since":"2001-09-09T01:46:40Z","subject":"a.yaml"}],"versionFormat":"LINEAGE","namespaces":["shop"],"history":"h.0","views":[{"name":"small","view":{"fields":[".spec"]}}],"viewRequired":true,"aliases":["po","pod"]}"#;
        assert_eq!(jsonl.lines().nth(1), Some(expected));
        assert!(
            printed(Output::Json).starts_with("{\n    \"resources\": [\n        {\n            \"name\": \"new\",\n")
        );
    }
}
