//! Explain: the terms of a selection, each with its result for one object.

use std::sync::Arc;

use super::{
    access::Wanted,
    call::Call,
    discovery,
    query::{self, Parts},
    resource::ServedResource,
    service::Service,
    status::ApiError,
    watch,
};
use crate::{
    auth::Operation,
    model::{Namespaces, Object, ObjectKey, Part, Selection, Term, TermResult},
    proto::pb::{self, explain_request},
};

/// Selection to explain, and what the caller may see of the object.
struct Explained {
    resource: Arc<ServedResource>,
    selection: Arc<Selection>,
    watcher: Option<pb::Watcher>,
    /// True if the caller may read the object's body, and so the values that are found in it.
    shows_values: bool,
}

/// Answers Explain.
pub(super) async fn explain(
    service: &Service,
    request: pb::ExplainRequest,
    call: Call,
) -> Result<pb::ExplainResponse, ApiError> {
    let pb::ObjectKey { namespace, name } = request.key.unwrap_or_default();
    let checked_key = || query::key("key", &namespace, &name);
    let (key, explained) = match request.selection {
        Some(explain_request::Selection::Watch(request)) => {
            let explained = of_request(service, &request, (&namespace, &name), &call).await?;
            (checked_key()?, explained)
        }
        Some(explain_request::Selection::WatcherId(id)) => {
            let explained = of_watcher(service, id, (&namespace, &name), &call).await?;
            (checked_key()?, explained)
        }
        None => {
            let message = "missing; set watch or watcher_id".to_owned();
            return Err(ApiError::Invalid { reason: "SELECTION_INVALID", field: "selection", message });
        }
    };
    service.quotas().call(&call)?;
    let Explained { resource, selection, watcher, shows_values } = explained;
    let snapshot = service.snapshot(&resource, None, call.wait).await?;
    let object = snapshot.get(&key);
    let terms = object.map_or_else(Vec::new, |object| selection.terms(object));
    Ok(pb::ExplainResponse {
        resource_version: snapshot.safe_version().to_string(),
        object: object.map(|object| without_body(object)),
        selected: object.is_some_and(|object| selection.matches(object)),
        terms: terms.into_iter().map(|term| to_proto(term, shows_values)).collect(),
        problem: problem(&resource, &key),
        watcher,
    })
}

/// Returns the selection of a request, for a caller who may read the object. The namespaces are those of the caller's rights to
/// watch; without any, no object is selected.
async fn of_request(
    service: &Service,
    request: &pb::WatchRequest,
    (namespace, name): (&str, &str),
    call: &Call,
) -> Result<Explained, ApiError> {
    let wanted = Wanted {
        operation: Operation::Get,
        resource: &request.resource,
        namespace: Some(namespace),
        name,
        format: request.format,
        view: request.view.as_ref(),
    };
    let mut access = service.access(call, wanted).await?;
    let namespaces = match watch::access(service, request, call).await {
        Ok(access) => access.namespaces,
        Err(ApiError::AccessDenied { .. }) => Some(Namespaces::default()),
        Err(refusal) => return Err(refusal),
    };
    let parts = Parts {
        namespace: &request.namespace,
        name: &request.name,
        label_selector: &request.label_selector,
        field_selector: &request.field_selector,
        expression: &request.expression,
        index: request.index.as_ref(),
        shard: request.shard.as_ref(),
        caller: call.caller(),
    };
    let selection = query::selection(&mut access, parts).await?;
    let shows_values = access.has_bodies();
    let selection = Arc::new(Selection { namespaces, ..selection });
    Ok(Explained { resource: Arc::clone(&access.resource), selection, watcher: None, shows_values })
}

/// Returns the selection of an open watch, for a caller who may inspect its resource.
async fn of_watcher(
    service: &Service,
    id: u64,
    (namespace, name): (&str, &str),
    call: &Call,
) -> Result<Explained, ApiError> {
    let inspected = service.inspected(call, "").await?;
    let found = service.watchers().find(id).filter(|(resource, ..)| inspected.contains(&resource.name));
    let (resource, selection, watcher) = found.ok_or(ApiError::WatcherNotFound { id })?;
    let wanted = Wanted {
        operation: Operation::Get,
        resource: &resource.name,
        namespace: Some(namespace),
        name,
        format: pb::PayloadFormat::Raw.into(),
        view: None,
    };
    // Operators see watches; the bodies of objects are another right.
    let shows_values = match service.access(call, wanted).await {
        Ok(access) => access.has_bodies(),
        Err(ApiError::AccessDenied { .. } | ApiError::ViewNotAllowed { .. }) => false,
        Err(refusal) => return Err(refusal),
    };
    Ok(Explained { resource, selection, watcher: Some(watcher), shows_values })
}

/// Returns the reason why the source cannot serve a key, if there is one.
fn problem(resource: &ServedResource, key: &ObjectKey) -> Option<pb::Problem> {
    let (health, key) = (resource.informer.health(), key.to_string());
    health.problems().iter().find(|problem| problem.subject == key).map(discovery::problem)
}

fn without_body(object: &Object) -> pb::Object {
    let labels = object.labels().iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    pb::Object {
        namespace: object.key().namespace().to_owned(),
        name: object.key().name().to_owned(),
        uid: object.uid().to_owned(),
        resource_version: object.version().to_string(),
        labels: labels.collect(),
        api_version: object.api_version().to_owned(),
        kind: object.kind().to_owned(),
        media_type: object.media_type().to_owned(),
        body: None,
    }
}

fn to_proto(term: Term, shows_values: bool) -> pb::SelectionTerm {
    let Term { part, text, result, found, reads_body } = term;
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
    let result = match result {
        TermResult::Match => pb::TermResult::Match,
        TermResult::NoMatch => pb::TermResult::NoMatch,
        TermResult::Failed => pb::TermResult::Failed,
    };
    let is_shown = shows_values || !reads_body;
    let hidden = |text: String| if is_shown { text } else { String::new() };
    // The text of a term compares with values of bodies, as in the selection of a watch.
    let text = if is_shown { text } else { "…".to_owned() };
    pb::SelectionTerm { field: field.to_owned(), term: text, result: result.into(), found: hidden(found) }
}
