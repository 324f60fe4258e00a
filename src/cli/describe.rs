//! `informerd describe`: everything about a resource, or about one object.

use std::{cell::Cell, time::SystemTime};

use clap::Args;

use super::{
    alias::of_resource,
    client_flags::{ServerFlags, TimeoutFlags},
    failure::Failure,
    get::Finder,
    print::{Output, age::age_of, escape, json::Document, write_all},
    waiting,
};
use crate::{
    client::Query,
    proto::pb::{self, SyncState},
};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd describe pods
  informerd describe deployments storefront/web";

/// Flags of `informerd describe`.
#[derive(Debug, Clone, Args)]
pub(super) struct DescribeFlags {
    /// A name from `informerd resources`; RESOURCE/NAME is kubectl's form of RESOURCE NAME
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// NAME or NAMESPACE/NAME of an object; without it, the resource itself
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Namespace of the object
    #[arg(short, long, value_name = "NAMESPACE", help_heading = "Selection")]
    namespace: Option<String>,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

of_resource!(DescribeFlags, server);

impl DescribeFlags {
    /// Returns the flags with the name of RESOURCE/NAME as a name of its own.
    pub(super) fn split(self) -> Self {
        match (self.resource.split_once('/'), &self.name) {
            (Some((resource, name)), None) => {
                Self { resource: resource.to_owned(), name: Some(name.to_owned()), ..self }
            }
            _ => self,
        }
    }
}

pub(super) async fn run(flags: &DescribeFlags) -> Result<(), Failure> {
    waiting::limited(&flags.timeout, &flags.server, &flags.resource, Box::pin(describe(flags))).await
}

async fn describe(flags: &DescribeFlags) -> Result<(), Failure> {
    let DescribeFlags { resource, name, namespace, server, .. } = flags;
    let client = server.connect().await?;
    let lines = if let Some(name) = name {
        let query = Query { format: pb::PayloadFormat::Raw, ..Query::of(resource) };
        let finder = Finder { client: client.clone(), resource, query, server, is_noted: Cell::default() };
        let object = finder.find(name, namespace.as_deref()).await?;
        of_object(&object)
    } else {
        let resources = client.resources().await?;
        let Some(found) = resources.iter().find(|known| known.name == *resource) else {
            let names: Vec<&str> = resources.iter().map(|known| known.name.as_str()).collect();
            return Err(Failure::unknown("resource", resource, &names));
        };
        of_resource(found, SystemTime::now())
    };
    Ok(write_all(lines.as_bytes())?)
}

/// Returns the facts of a resource, a line for each, those without a value left out.
fn of_resource(resource: &pb::Resource, now: SystemTime) -> String {
    let state = resource.state().as_str_name().trim_start_matches("SYNC_STATE_");
    let seen = age_of(resource.source_seen_at, now).map_or_else(|| "never".to_owned(), |age| format!("{age} ago"));
    let views: Vec<&str> = resource.views.iter().map(|view| view.name.as_str()).collect();
    let format = resource.version_format().as_str_name().trim_start_matches("VERSION_FORMAT_");
    let format = if resource.version_format() == pb::VersionFormat::Unspecified { "" } else { format };
    let mut out = String::new();
    for (name, value) in [
        ("Name", resource.name.as_str()),
        ("Other names", &resource.aliases.join(", ")),
        ("Source", &resource.source),
        ("State", state),
        ("Last contact", &seen),
        ("Last error", &resource.last_error),
        ("Objects", &resource.objects.to_string()),
        ("Watchers", &resource.watchers.to_string()),
        ("Indexes", &resource.indexes.join(", ")),
        ("Views", &views.join(", ")),
        ("View required", if resource.view_required { "yes" } else { "" }),
        ("Namespaces", &resource.namespaces.join(", ")),
        ("Version", &resource.resource_version),
        ("Oldest version", &resource.oldest_resource_version),
        ("Versions", format),
        ("Path", &resource.path.join(" → ")),
    ] {
        push(&mut out, name, value);
    }
    if !resource.problems.is_empty() {
        out.push_str("Problems:\n");
    }
    for pb::Problem { reason, message, subject, since } in &resource.problems {
        let age = age_of(*since, now).map(|age| format!(" (for {age})")).unwrap_or_default();
        let subject = if subject.is_empty() { String::new() } else { format!(" {subject}") };
        out.extend(["  ", &*escape(&format!("{reason}{subject}: {message}{age}")), "\n"]);
    }
    if resource.state() == SyncState::Syncing && resource.last_error.is_empty() {
        out.push_str("The first list is not complete.\n");
    }
    out
}

/// Returns the facts of an object, and its body in YAML.
fn of_object(object: &pb::Object) -> String {
    let mut out = String::new();
    let labels: Vec<String> = object.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    for (name, value) in [
        ("Name", object.name.as_str()),
        ("Namespace", &object.namespace),
        ("Kind", &object.kind),
        ("API version", &object.api_version),
        ("UID", &object.uid),
        ("Version", &object.resource_version),
        ("Labels", &labels.join(", ")),
        ("Media type", &object.media_type),
    ] {
        push(&mut out, name, value);
    }
    if object.body.is_some() {
        out.push_str("Body:\n");
        let mut yaml = String::new();
        Output::Yaml.document(&Document::body(object), &mut yaml);
        out.extend(yaml.lines().flat_map(|line| ["  ", line, "\n"]));
    }
    out
}

fn push(out: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        out.extend([&*format!("{:<16}", format!("{name}:")), &escape(value), "\n"]);
    }
}
