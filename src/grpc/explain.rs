//! Explain: the terms of a selection, each with its result for one object.

use std::sync::Arc;

use super::{
    access::Wanted,
    call::Call,
    discovery,
    query::{self, Parts, parts},
    resource::ServedResource,
    service::Service,
    status::ApiError,
    watch,
};
use crate::{
    auth::Operation,
    cache::{Problem, ProblemReason},
    model::{Namespaces, ObjectKey, Part, Selection, Term, TermResult, excerpt},
    proto::{
        self, PayloadFormat,
        pb::{self, explain_request},
    },
};

/// Selection to explain, and what the caller may read of the object.
struct Explained {
    resource: Arc<ServedResource>,
    selection: Arc<Selection>,
    watcher: Option<pb::Watcher>,
    readable: Readable,
}

/// Part of an object that a caller may read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readable {
    /// The answer is that for an object that does not exist.
    Nothing,
    /// Terms that depend on the body have no result.
    Metadata,
    Whole,
}

/// Answers Explain.
pub(super) async fn explain(
    service: &Service,
    request: pb::ExplainRequest,
    call: Call,
) -> Result<pb::ExplainResponse, ApiError> {
    let pb::ObjectKey { namespace, name } = request.key.unwrap_or_default();
    let explained = match request.selection {
        Some(explain_request::Selection::Watch(request)) => {
            of_request(service, &request, (&namespace, &name), &call).await?
        }
        Some(explain_request::Selection::WatcherId(id)) => of_watcher(service, id, (&namespace, &name), &call).await?,
        None => {
            let message = "missing; set watch or watcher_id".to_owned();
            return Err(ApiError::Invalid { reason: "SELECTION_INVALID", field: "selection", message });
        }
    };
    let key = query::key("key", &namespace, &name)?;
    service.quotas().call(&call)?;
    let Explained { resource, selection, watcher, readable } = explained;
    if let Some(audited) = &call.audited {
        // The values of the terms are of the body.
        let has_bodies = readable == Readable::Whole && selection.reads_body();
        let format = if has_bodies { PayloadFormat::Raw } else { PayloadFormat::Metadata };
        audited.reads(Some(&key), Some(&selection.described(resource.is_secret)), &format.into());
    }
    let snapshot = service.snapshot(&resource, None, call.wait).await?;
    let object = snapshot.get(&key).filter(|_| readable != Readable::Nothing);
    if let (Some(audited), Some(_)) = (&call.audited, object) {
        audited.sends(1);
    }
    let terms = object.map_or_else(Vec::new, |object| selection.terms(object, readable == Readable::Whole));
    let is_match = |term: &Term| matches!(term.result, Some((TermResult::Match, _)));
    Ok(pb::ExplainResponse {
        resource_version: snapshot.safe_version().to_string(),
        object: object.map(|object| proto::object(object, object.version(), PayloadFormat::Metadata)),
        selected: object.is_some() && terms.iter().all(is_match),
        terms: terms.into_iter().map(to_proto).collect(),
        problem: problem(&resource, &key).filter(|_| readable != Readable::Nothing),
        watcher,
    })
}

/// Returns the selection of a request, for a caller who may read the object. The namespaces are those in which the caller has the
/// rights of a watch; without any, no object is selected.
async fn of_request(
    service: &Service,
    request: &pb::WatchRequest,
    key: (&str, &str),
    call: &Call,
) -> Result<Explained, ApiError> {
    let mut access = service.access(call, metadata_of(&request.resource, key)).await?;
    let parts = Parts { name: &request.name, ..parts!(request, call.caller()) };
    let selection = query::selection(&mut access, parts).await?;
    let namespaces = match watched(service, request, selection.reads_body(), call).await {
        Ok(namespaces) => namespaces,
        Err(ApiError::AccessDenied { .. }) => Some(Namespaces::default()),
        Err(refusal) => return Err(refusal),
    };
    let selection = Arc::new(Selection { namespaces, ..selection });
    // A selection that depends on the body was refused without the right to that.
    Ok(Explained { resource: Arc::clone(&access.resource), selection, watcher: None, readable: Readable::Whole })
}

/// Returns the namespaces to which a watch would be limited.
async fn watched(
    service: &Service,
    request: &pb::WatchRequest,
    reads_body: bool,
    call: &Call,
) -> Result<Option<Namespaces>, ApiError> {
    let is_free = request.format == i32::from(pb::PayloadFormat::Unspecified) && request.view.is_none();
    let mut access = match watch::access(service, request, call).await {
        // Explain sends no body, so without a format it explains the watch that the caller may have.
        Err(ApiError::ViewNotAllowed { .. }) if is_free => {
            let format = pb::PayloadFormat::Metadata.into();
            watch::access(service, &pb::WatchRequest { format, ..request.clone() }, call).await?
        }
        access => access?,
    };
    if reads_body {
        access.require_bodies("selection by other than namespace, name and labels").await?;
    }
    Ok(access.namespaces)
}

/// Returns the selection of an open watch, for a caller who may inspect its resource. The rights to see watches are none to the
/// objects.
async fn of_watcher(service: &Service, id: u64, key: (&str, &str), call: &Call) -> Result<Explained, ApiError> {
    let inspected = service.inspected(call, Operation::Inspect, "").await?;
    let found = service.watchers().find(id).filter(|(resource, ..)| inspected.contains(&resource.name));
    let (resource, selection, watcher) = found.ok_or(ApiError::WatcherNotFound { id })?;
    let readable = match service.access(call, metadata_of(&resource.name, key)).await {
        // The rights are those to another resource, which has this name now; the watches of the former one end.
        Ok(access) if access.resource.calls.id() != resource.calls.id() => {
            return Err(ApiError::WatcherNotFound { id });
        }
        Ok(mut access) => match access.require_bodies("term that depends on the body").await {
            Ok(()) => Readable::Whole,
            Err(ApiError::AccessDenied { .. }) => Readable::Metadata,
            Err(refusal) => return Err(refusal),
        },
        Err(ApiError::AccessDenied { .. }) => Readable::Nothing,
        Err(refusal) => return Err(refusal),
    };
    Ok(Explained { resource, selection, watcher: Some(watcher), readable })
}

/// Returns the request of what Explain shows of an object.
fn metadata_of<'a>(resource: &'a str, (namespace, name): (&'a str, &'a str)) -> Wanted<'a> {
    let format = pb::PayloadFormat::Metadata.into();
    Wanted { operation: Operation::Get, resource, namespace: Some(namespace), name, format, view: None }
}

/// Returns the reason why the source cannot serve a key, if there is one.
fn problem(resource: &ServedResource, key: &ObjectKey) -> Option<pb::Problem> {
    let (health, key) = (resource.informer.health(), key.to_string());
    // A file or a place in a stream may have the text of a key, and its problem be about other objects.
    let is_of_key = |problem: &&Problem| {
        problem.subject == key && matches!(problem.reason, ProblemReason::ObjectTooLarge | ProblemReason::ObjectInvalid)
    };
    health.problems().iter().find(is_of_key).map(discovery::problem)
}

fn to_proto(term: Term) -> pb::SelectionTerm {
    let Term { part, text, result, .. } = term;
    let field = match part {
        Part::Namespace => "namespace",
        Part::Access => "access",
        Part::Name => "name",
        Part::Labels => "label_selector",
        Part::Fields => "field_selector",
        Part::Index => "index",
        Part::Shard => "shard",
        Part::Expression => "expression",
    };
    // The text of a term compares with values of bodies, as in the selection of a watch.
    let Some((result, found)) = result else {
        let (result, found) = (pb::TermResult::Unspecified.into(), String::new());
        return pb::SelectionTerm { field: field.to_owned(), term: "…".to_owned(), result, found };
    };
    let result = match result {
        TermResult::Match => pb::TermResult::Match,
        TermResult::NoMatch => pb::TermResult::NoMatch,
        TermResult::Failed => pb::TermResult::Failed,
    };
    // A value may be as large as an object, and there may be one for each term.
    let found = excerpt(&found).into_owned();
    pb::SelectionTerm { field: field.to_owned(), term: text, result: result.into(), found }
}
