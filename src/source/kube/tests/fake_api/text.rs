//! Text of requests and answers.

use super::*;

/// Returns an object, or only its metadata if requested.
pub(super) fn partial(query: &Query, object: Value) -> Value {
    if !query.contains_key(PARTIAL) {
        return object;
    }
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// Returns true if an object is in the namespace of the path and has the name of the field selector.
pub(super) fn selects(query: &Query, key: &str) -> bool {
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    if key.starts_with('@') != query.contains_key(NAMESPACES) {
        return false;
    }
    let fields = query.get("fieldSelector").into_iter().flat_map(|fields| fields.split(','));
    let mut names = fields.filter_map(|field| field.strip_prefix("metadata.name="));
    query.get(NAMESPACE).is_none_or(|wanted| wanted == namespace) && names.all(|wanted| wanted == name)
}

/// Returns an object with its type first, as the API writes it in events; a list has the type once.
pub(super) fn typed(object: &Value) -> String {
    let text = object.to_string();
    if object.get("kind").is_some() {
        return text;
    }
    format!(r#"{{"kind":"Widget","apiVersion":"example.com/v1",{}"#, &text[1..])
}

pub(in super::super) fn event(event_type: &str, object: &impl Display) -> String {
    format!(r#"{{"type":"{event_type}","object":{object}}}"#)
}

pub(in super::super) fn bookmark(version: &str, ends: Option<&str>) -> String {
    let mut metadata = json!({"resourceVersion": version});
    if let Some(ends) = ends {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": ends});
    }
    event("BOOKMARK", &json!({"kind": "Widget", "apiVersion": "example.com/v1", "metadata": metadata}))
}

/// Returns an ERROR event with this code and reason.
pub(in super::super) fn failure(code: u16, reason: &str) -> String {
    event("ERROR", &json!({"kind": "Status", "code": code, "reason": reason, "message": "m"}))
}

pub(in super::super) fn expired() -> String {
    failure(410, "Expired")
}

pub(super) fn summary(query: &Query) -> String {
    let get = |key: &str| query.get(key).map_or("", String::as_str);
    let of_metadata = if query.contains_key(PARTIAL) { " of metadata" } else { "" };
    let of_namespaces = if query.contains_key(NAMESPACES) { " of namespaces" } else { "" };
    let of_metadata = if of_namespaces.is_empty() { of_metadata } else { of_namespaces };
    let kind = match (query.contains_key("watch"), query.contains_key("sendInitialEvents")) {
        (true, true) => "initial",
        (true, false) => "watch",
        (false, _) if get("limit") == "1" && get("labelSelector").is_empty() => {
            return format!("head{of_metadata}");
        }
        (false, _) => "list",
    };
    let version = format!("{kind} {}", get("resourceVersion"));
    let limit = query.get("limit").map(|limit| format!(" limit={limit}")).unwrap_or_default();
    let page = if query.contains_key("continue") { " page" } else { "" };
    let exact = if is_exact(query) { " exact" } else { "" };
    let probe = if is_probe(query) { " probe" } else { "" };
    format!("{}{limit}{page}{of_metadata}{exact}{probe}", version.trim_end())
}

pub(super) fn is_exact(query: &Query) -> bool {
    query.get("resourceVersionMatch").is_some_and(|how| how == "Exact")
}

/// Returns true for a watch with the timeout of a probe.
pub(super) fn is_probe(query: &Query) -> bool {
    query.get("timeoutSeconds").is_some_and(|seconds| seconds == "4")
}

pub(super) fn without_initial_events(mut query: Query) -> Query {
    query.remove("sendInitialEvents");
    query
}

pub(super) fn success(body: impl Into<Body>) -> Response {
    Response::new(body.into())
}

pub(super) fn refuse(code: u16, patience: Option<u64>, body: &str) -> Response {
    let mut answer = Response::builder().status(code);
    if let Some(patience) = patience {
        answer = answer.header("retry-after", patience);
    }
    answer.body(Body::from(body.to_owned())).unwrap()
}
