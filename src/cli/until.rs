//! `informerd until`: watches until an event has met the conditions, and prints it.

use std::time::Duration;

use clap::Args;

use super::{
    alias::of_resource,
    client_flags::ObjectFlags,
    failure::{Failure, UNAVAILABLE},
    print::{reference, stdout, write_one},
    signals::Signals,
};
use crate::{
    client::{Client, ClientError, Query, UntilEvent, UntilOptions},
    config::parse_duration,
    model::{Condition, EventView, JSON},
    proto::pb,
};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd until pods -l app=checkout --for 'object.status.phase == \"Running\"'
  informerd until deployments storefront/web --for 'object.spec.replicas > 1' -o yaml
  informerd until pods -n orders --field-selector status.phase=Running --for 'count >= 2'
  informerd until pods orders/no-such --for delete --timeout 5s

A condition is CEL over `type` (ADDED, MODIFIED, DELETED; SYNCED at the end of the current objects), `object` (null at SYNCED) \
and `count` (the number of selected objects, from SYNCED on). `delete` stands for `count == 0`. Several conditions are met one after the other. \
They see the part of an object that --fields, --drop or --view leaves. A restart of the server does not end the wait: conditions that \
were met stay met.";

/// Flags of `informerd until`.
#[derive(Debug, Clone, Args)]
pub(super) struct UntilFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// Only objects of this name; NAMESPACE/NAME is one object
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Condition on an event: a CEL expression, or `delete`; can be repeated
    #[arg(long = "for", value_name = "CEL", required = true)]
    conditions: Vec<String>,
    /// Time limit for all conditions; 0: none
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    objects: ObjectFlags,
}

of_resource!(UntilFlags, objects.server);

/// Condition of kubectl's `--for=delete`: true at once if there is no object.
const DELETE: &str = "delete";
const NOTHING_LEFT: &str = "count == 0";
/// Time for the number of objects in the error.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn run(flags: &UntilFlags) -> Result<(), Failure> {
    let UntilFlags { resource, name, conditions, timeout, objects } = flags;
    let server = &objects.server;
    let conditions = conditions.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
    let reads_bodies = conditions.iter().any(Condition::reads_body);
    let query = objects.for_output(objects.selection.query_of_name(resource, name.as_deref())?, reads_bodies);
    let conditions = conditions.iter().map(|condition| |event: &UntilEvent| is_met(condition, event));
    let options =
        UntilOptions { timeout: Some(*timeout).filter(|timeout| !timeout.is_zero()), ..UntilOptions::default() };
    let (client, mut signals) = (server.connect().await?, Signals::of_writer()?);
    let met = tokio::select! {
        // The outcome is lost with this process.
        met = client.until(&query, conditions, &options) => met,
        code = signals.next() => return Err(Failure::new(code, format!("{resource}: interrupted before the conditions were met"))),
    };
    let event = match met {
        Ok(event) => event,
        Err(error @ ClientError::NotMet { .. }) => {
            let now = selected_now(&client, query).await.unwrap_or_default();
            return Err(Failure::new(UNAVAILABLE, format!("{resource}: {error} (--timeout){now}")));
        }
        Err(error) => return Err(error.into()),
    };
    server.note_limited(resource, &event.namespaces);
    server.note(&format_args!("# met: {}", describe(&event)));
    match event.object {
        Some(object) => Ok(write_one(object, stdout(), &objects.options())?),
        None => Ok(()),
    }
}

fn parse(text: &str) -> Result<Condition, Failure> {
    let meant = if text.trim() == DELETE { NOTHING_LEFT } else { text };
    Condition::parse(meant).map_err(|error| Failure::usage(format!("--for {text:?}: {error}")))
}

fn is_met(condition: &Condition, event: &UntilEvent) -> bool {
    let event_type = match event.event_type {
        pb::EventType::Added => EventView::ADDED,
        pb::EventType::Modified => EventView::MODIFIED,
        pb::EventType::Deleted => EventView::DELETED,
        _ => EventView::SYNCED,
    };
    let object = event.object.as_ref().filter(|object| object.media_type == JSON);
    let body = object.and_then(|object| match &object.body {
        Some(pb::object::Body::Raw(bytes)) => Some(bytes),
        _ => None,
    });
    // As at the server: the first objects come before their number is known.
    let count = (event.cause != pb::Cause::Initial).then_some(event.count);
    condition.is_met(EventView { event_type, body, count })
}

/// Returns the number of objects that the conditions are about, if the server tells it in time.
async fn selected_now(client: &Client, query: Query) -> Option<String> {
    let query = Query { format: pb::PayloadFormat::Metadata, view: None, ..query };
    let listed = tokio::time::timeout(COUNT_TIMEOUT, client.list(&query)).await.ok()?.ok()?;
    Some(format!("; selected now: {}", listed.objects.len()))
}

/// Describes the event that met the conditions.
fn describe(event: &UntilEvent) -> String {
    let event_type = event.event_type.as_str_name().trim_start_matches("EVENT_TYPE_");
    match &event.object {
        Some(object) => format!("{event_type} {} at {}", reference(object), object.resource_version),
        None => format!("by the current objects at {}", event.resource_version),
    }
}
