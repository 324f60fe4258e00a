//! Names that a server has, as candidates of the word that is completed.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    sync::Arc,
    time::Duration,
};

use clap::{ArgMatches, Command, FromArgMatches};
use clap_complete::engine::CompletionCandidate;
use tokio::{runtime::Builder, time::timeout};

use crate::{
    cli::{
        client_flags::{Contexts, ServerFlags},
        print::{escape, reference},
    },
    client::{Client, ClientError},
    proto::pb::{self, PayloadFormat},
};

/// Words before the one that is completed.
pub(super) struct Words(Arc<ArgMatches>);

/// Time for the server: a user waits.
const ANSWER_WITHIN: Duration = Duration::from_millis(300);
/// Most objects whose names are read.
const MAX_OBJECTS: u32 = 5_000;
/// Views that every resource has.
const VIEWS: [&str; 3] = ["@metadata", "@no-status", "@no-managed-fields"];

// === impl Words ===

impl Words {
    /// Parses the words, of which some may be missing.
    pub(super) fn new(command: Command, before: Vec<OsString>) -> Self {
        let parsed = command.ignore_errors(true).try_get_matches_from(before).ok();
        let subcommand = parsed.and_then(|mut parsed| parsed.remove_subcommand()).map(|(_, parsed)| parsed);
        Self(Arc::new(subcommand.unwrap_or_default()))
    }

    /// Returns the function that completes an argument with this id; none if it names nothing of a server.
    pub(super) fn of(&self, id: &str) -> Option<impl Fn(&OsStr) -> Vec<CompletionCandidate> + use<>> {
        type Find = fn(&ArgMatches, &str) -> Vec<String>;
        let find: Find = match id {
            "resource" => resources,
            "namespace" => |words, _| values(words, "namespace"),
            "name" | "names" | "key" | "like" => names,
            "index" => |words, _| resource_of(words).map(|resource| resource.indexes).unwrap_or_default(),
            "value" => |words, _| text(words, "index").map(|index| values(words, index)).unwrap_or_default(),
            "index_value" => pairs,
            "view_name" => views,
            "context" | "contexts" => {
                |_, _| Contexts::load().map(|of| of.names().cloned().collect()).unwrap_or_default()
            }
            _ => return None,
        };
        let words = Arc::clone(&self.0);
        Some(move |current: &OsStr| {
            let Some(current) = current.to_str() else { return Vec::new() };
            let mut found = find(&words, current);
            // A line is a candidate, and none may control the terminal.
            found.retain(|name| name.starts_with(current) && escape(name) == *name && !name.is_empty());
            found.into_iter().map(CompletionCandidate::new).collect()
        })
    }
}

fn text<'a>(words: &'a ArgMatches, id: &str) -> Option<&'a str> {
    words.try_get_one::<String>(id).ok().flatten().map(String::as_str)
}

/// Calls the server of the command line; none without an answer in time.
fn ask<T>(words: &ArgMatches, call: impl AsyncFnOnce(Client) -> Result<T, ClientError>) -> Option<T> {
    let server = ServerFlags::from_arg_matches(words).ok()?;
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let answer = async { call(server.connect().await.ok()?).await.ok() };
    let answered = runtime.block_on(async { timeout(ANSWER_WITHIN, answer).await });
    // The look-up of a host name may take long.
    runtime.shutdown_background();
    answered.ok()?
}

fn resources(words: &ArgMatches, current: &str) -> Vec<String> {
    let known = ask(words, async |client| client.resources().await).unwrap_or_default();
    // `watch` takes several.
    let before = current.rfind(',').map_or("", |at| &current[..=at]);
    known.into_iter().map(|resource| format!("{before}{}", resource.name)).collect()
}

/// Returns the resource that the words name, also by another name.
fn resource_of(words: &ArgMatches) -> Option<pb::Resource> {
    let name = text(words, "resource")?;
    let known = ask(words, async |client| client.resources().await)?;
    known.into_iter().find(|resource| resource.name == name || resource.aliases.iter().any(|alias| alias == name))
}

fn values(words: &ArgMatches, index: &str) -> Vec<String> {
    let Some(resource) = text(words, "resource") else { return Vec::new() };
    let values = ask(words, async |client| client.values(resource, index).await).unwrap_or_default();
    values.values.into_iter().map(|value| value.value).collect()
}

fn pairs(words: &ArgMatches, current: &str) -> Vec<String> {
    if let Some((index, _)) = current.split_once('=') {
        return values(words, index).into_iter().map(|value| format!("{index}={value}")).collect();
    }
    let indexes = resource_of(words).map(|resource| resource.indexes).unwrap_or_default();
    indexes.into_iter().map(|index| format!("{index}=")).collect()
}

fn views(words: &ArgMatches, _: &str) -> Vec<String> {
    let own = resource_of(words).map(|resource| resource.views).unwrap_or_default();
    own.into_iter().map(|view| view.name).chain(VIEWS.map(str::to_owned)).collect()
}

/// Returns the objects as `-o name` prints them; with a namespace, and where it is the only one of its name, by the name alone.
fn names(words: &ArgMatches, current: &str) -> Vec<String> {
    let Some(resource) = text(words, "resource") else { return Vec::new() };
    let namespace = text(words, "namespace");
    let of = namespace.or_else(|| current.split_once('/').map(|(namespace, _)| namespace));
    let request = pb::ListRequest {
        resource: resource.to_owned(),
        namespace: of.unwrap_or_default().to_owned(),
        format: PayloadFormat::Metadata.into(),
        page_size: MAX_OBJECTS,
        ..Default::default()
    };
    let objects = ask(words, async |client| client.list_page(request).await).unwrap_or_default();
    if namespace.is_some() {
        return objects.into_iter().map(|object| object.name).collect();
    }
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for object in &objects {
        *counts.entry(&object.name).or_default() += 1;
    }
    let is_only = |object: &&pb::Object| !object.namespace.is_empty() && counts.get(&*object.name) == Some(&1);
    let by_name = objects.iter().filter(|_| !current.is_empty()).filter(is_only).map(|object| object.name.clone());
    objects.iter().map(reference).chain(by_name).collect()
}
