//! Discovery: the served resources, and the values of an index.

use std::sync::{Arc, atomic::Ordering};

use prost::Message;

use super::{
    access::Wanted, call::Call, page::Continued, resource::ServedResource, service::Service, status::ApiError,
    time_slice::TimeSlice,
};
use crate::{
    auth::Operation,
    cache::{Problem, ProblemReason},
    model::{Namespaces, ResourceVersion, View, excerpt},
    process::commit,
    proto::{self, PayloadFormat, pb},
};

/// The "Since:" names of the contract that are implemented in full, sorted.
const CAPABILITIES: &[&str] =
    &["batch", "identity", "library", "limits", "operations", "past", "shards", "sources", "subscribe", "views"];
/// Maximum and default number of index values in one response.
const MAX_INDEX_VALUES: usize = 10_000;
/// Size limit of a response with index values, in bytes; a single value may exceed it.
const MAX_VALUES_BYTES: usize = 1 << 20;
/// Size of the beginning of a value that a page token has: a value may be as large as an object.
const MAX_TOKEN_VALUE_BYTES: usize = 4 << 10;

/// Answers `ListResources` with the resources that the caller may see, of which it learns what it may list.
pub(super) async fn resources(service: &Service, call: &Call) -> Result<pb::ListResourcesResponse, ApiError> {
    let mut resources = Vec::new();
    for (resource, namespaces) in service.seen(call).await? {
        let described = self::resource(&resource);
        resources.push(match namespaces {
            Some(namespaces) => limited(&resource, described, &namespaces).await,
            None => described,
        });
    }
    Ok(pb::ListResourcesResponse { resources, server: Some(server(service, call).await) })
}

/// Describes the server. The reason why its configuration is not the newest is for operators: it names files and resources.
async fn server(service: &Service, call: &Call) -> pb::ServerInfo {
    let config_error = match service.config_error() {
        Some(error) if service.inspect_all(call.identity.as_ref()).await.is_ok() => error.to_string(),
        _ => String::new(),
    };
    let capabilities = CAPABILITIES.iter().map(|&name| name.to_owned()).collect();
    let (version, commit) = (env!("CARGO_PKG_VERSION").to_owned(), commit().to_owned());
    pb::ServerInfo { version, commit, capabilities, config_error }
}

/// Limits the description of a resource to these namespaces. Errors, and problems of a whole source, may name objects of others.
async fn limited(resource: &ServedResource, described: pb::Resource, allowed: &Namespaces) -> pb::Resource {
    let mut objects = 0;
    if let Some(snapshot) = resource.informer.snapshot() {
        let mut slice = TimeSlice::begin();
        for namespace in allowed.iter() {
            for _ in snapshot.objects(Some(namespace), None) {
                objects += 1;
                slice.end().await;
            }
        }
    }
    let pb::Resource { mut namespaces, .. } = described;
    namespaces.retain(|namespace| allowed.contains(namespace));
    let is_readable = |problem: &&Problem| match problem.reason {
        ProblemReason::ObjectTooLarge => {
            problem.subject.split_once('/').is_some_and(|(namespace, _)| allowed.contains(namespace))
        }
        ProblemReason::NamespaceNotFound => allowed.contains(&problem.subject),
        // Without its message, which names files.
        ProblemReason::ObjectsUnread => true,
        _ => false,
    };
    let readable = |found: &Problem| match found.reason {
        ProblemReason::ObjectsUnread => pb::Problem { message: String::new(), ..problem(found) },
        _ => problem(found),
    };
    let health = resource.informer.health();
    let problems = health.problems().iter().filter(is_readable).map(readable).collect();
    let history =
        resource.informer.snapshot().map(|snapshot| resource.informer.history(snapshot.history_id(), Some(allowed)));
    let history = history.unwrap_or_default();
    pb::Resource { history, objects, watchers: 0, last_error: String::new(), problems, namespaces, ..described }
}

/// Describes one resource for `ListResources`.
pub(super) fn resource(resource: &ServedResource) -> pb::Resource {
    let informer = &resource.informer;
    let snapshot = informer.snapshot();
    let health = informer.health();
    let report = informer.report();
    pb::Resource {
        name: resource.name.clone(),
        source: resource.source.to_owned(),
        state: proto::sync_state(report.state).into(),
        resource_version: snapshot.as_ref().map(|snapshot| snapshot.version().to_string()).unwrap_or_default(),
        oldest_resource_version: informer.oldest().map(|version| version.to_string()).unwrap_or_default(),
        objects: snapshot.as_ref().map_or(0, |snapshot| snapshot.len() as u64),
        watchers: informer.watch_stats().map_or(0, |stats| stats.watchers.load(Ordering::Relaxed)),
        indexes: informer.indexers().names().map(str::to_owned).collect(),
        source_seen_at: report.seen_at.map(proto::timestamp),
        last_error: report.last_error.unwrap_or_default(),
        path: informer.provenance().path(),
        problems: health.problems().iter().map(problem).collect(),
        version_format: snapshot.as_ref().map_or_else(Default::default, |of| version_format(of.version())).into(),
        namespaces: health.namespaces(),
        views: resource.views.named().iter().map(named_view).collect(),
        view_required: resource.views.named().is_required(),
        aliases: health.aliases(),
        oldest_at: informer.oldest_at().map(proto::timestamp),
        history: snapshot.map(|snapshot| informer.history(snapshot.history_id(), None)).unwrap_or_default(),
    }
}

fn named_view((name, view): (&str, &View)) -> pb::NamedView {
    pb::NamedView { name: name.to_owned(), view: Some(view.into()) }
}

fn version_format(version: &ResourceVersion) -> pb::VersionFormat {
    match version.lineage() {
        None => pb::VersionFormat::Decimal,
        Some(_) => pb::VersionFormat::Lineage,
    }
}

pub(super) fn problem(problem: &Problem) -> pb::Problem {
    pb::Problem {
        reason: problem.reason.as_str().to_owned(),
        message: problem.message.clone(),
        subject: problem.subject.clone(),
        since: Some(proto::timestamp(problem.since)),
    }
}

/// Answers `ListIndexValues` with the values and counts of the namespaces that the caller may read.
pub(super) async fn index_values(
    service: &Service,
    request: &pb::ListIndexValuesRequest,
    call: &Call,
) -> Result<pb::ListIndexValuesResponse, ApiError> {
    let format = pb::PayloadFormat::Metadata.into();
    let mut access = service.access(call, Wanted::objects(Operation::List, &request.resource, "", format)).await?;
    let resource = Arc::clone(&access.resource);
    let index = &request.index;
    let indexers = resource.informer.indexers();
    let unknown = || ApiError::index("index", index, indexers.names());
    let reads_body = indexers.get(index).ok_or_else(unknown)?.reads_body();
    if reads_body {
        access.require_bodies("index by other than namespace and labels").await?;
    }
    service.quotas().call(call)?;
    service.quotas().list(call)?;
    if let Some(audited) = &call.audited {
        // The values of the index are of bodies.
        let format = if reads_body { PayloadFormat::Raw } else { PayloadFormat::Metadata };
        audited.reads(None, Some(&format!("index={}", excerpt(index))), &format.into());
    }
    let bound = pb::ListIndexValuesRequest { page_size: 0, page_token: String::new(), ..request.clone() };
    let namespaces = access.namespaces.as_ref();
    let (id, bound) = (resource.calls.id(), bound.encode_to_vec());
    let query = service.inner.pages.query_hash(&("ListIndexValues", id, bound, call.user(), namespaces));
    let (snapshot, after) = if request.page_token.is_empty() {
        (service.snapshot(&resource, None, call.wait).await?, None)
    } else {
        let Continued { snapshot, after } = service.inner.pages.resume(&request.page_token, query)?;
        (snapshot, Some(after))
    };
    let page_size = match request.page_size as usize {
        0 => MAX_INDEX_VALUES,
        size => size.min(MAX_INDEX_VALUES),
    };
    let after = after.as_deref().map(|after| after.split_once(':').unwrap_or(("", after)));
    let (listed, after) = after.map_or((0, None), |(listed, after)| (listed.parse().unwrap_or(0), Some(after)));
    let entries = snapshot.index_values(index, after).ok_or_else(unknown)?;
    let mut values: Vec<pb::IndexValue> = Vec::new();
    let (mut bytes, mut to_skip, mut skipped) = (0, listed, None);
    let mut next_page_token = String::new();
    let mut slice = TimeSlice::begin();
    for (value, key) in entries {
        slice.end().await;
        if namespaces.is_some_and(|namespaces| !namespaces.contains(key.namespace())) {
            continue;
        }
        if let Some(last) = values.last_mut().filter(|last| last.value == value) {
            last.objects += 1;
            continue;
        }
        if to_skip > 0 || skipped == Some(value) {
            to_skip -= usize::from(skipped != Some(value));
            skipped = Some(value);
            continue;
        }
        if values.len() == page_size || (bytes + value.len() > MAX_VALUES_BYTES && !values.is_empty()) {
            let position = position_after(&values, (listed, after));
            next_page_token = service.inner.pages.token(&snapshot, query, &position, call.caller().origin());
            break;
        }
        bytes += value.len();
        values.push(pb::IndexValue { value: value.to_owned(), objects: 1 });
    }
    if let Some(audited) = &call.audited {
        audited.sends(values.len() as u64);
    }
    Ok(pb::ListIndexValuesResponse {
        resource_version: snapshot.safe_version().to_string(),
        values,
        next_page_token,
        namespaces: proto::namespaces(namespaces),
    })
}

/// Returns the position after these values of an index, of which the first one follows another position: the beginning of the last
/// value, and the number of the listed values that begin so and are longer.
fn position_after(values: &[pb::IndexValue], (listed, after): (usize, Option<&str>)) -> String {
    let last = values.last().map(|last| &*last.value).unwrap_or_default();
    let end = (0..=last.len().min(MAX_TOKEN_VALUE_BYTES)).rev().find(|at| last.is_char_boundary(*at)).unwrap_or(0);
    let start = &last[..end];
    let is_longer = |value: &&pb::IndexValue| value.value.len() > start.len() && value.value.starts_with(start);
    let before = if after == Some(start) { listed } else { 0 };
    format!("{}:{start}", before + values.iter().filter(is_longer).count())
}
