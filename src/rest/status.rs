//! Errors as objects of the kind `Status`, with the codes, reasons and texts of Kubernetes: clients act on them.

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use tonic::Code;

use super::body::{self, RestBody};
use crate::{
    grpc::{ApiError, HttpCall},
    model::ApiKind,
    proto::pb,
};

/// Error that a client gets.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Failure {
    code: u16,
    message: String,
    details: Value,
}

/// Error of a request, or refusal of its call.
#[derive(Debug)]
pub(super) enum Refused {
    Failure(Failure),
    Refusal(ApiError),
}

/// Cause of an invalid request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cause {
    reason: &'static str,
    field: &'static str,
    message: String,
}

/// Request whose error is described.
#[derive(Debug, Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) kind: &'a ApiKind,
    pub(super) verb: &'static str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) user: Option<&'a str>,
}

/// Codes of HTTP, their reasons in Kubernetes, and the codes of gRPC that they stand for; the first of several is that of such an error.
const CODES: &[(u16, &str, Code)] = &[
    (400, "BadRequest", Code::InvalidArgument),
    (401, "Unauthorized", Code::Unauthenticated),
    (403, "Forbidden", Code::PermissionDenied),
    (404, "NotFound", Code::NotFound),
    (405, "MethodNotAllowed", Code::InvalidArgument),
    (406, "NotAcceptable", Code::InvalidArgument),
    (410, "Expired", Code::OutOfRange),
    (413, "RequestEntityTooLarge", Code::InvalidArgument),
    (415, "UnsupportedMediaType", Code::InvalidArgument),
    (422, "Invalid", Code::InvalidArgument),
    (429, "TooManyRequests", Code::ResourceExhausted),
    (503, "ServiceUnavailable", Code::Unavailable),
    (504, "Timeout", Code::DeadlineExceeded),
];
const INTERNAL: &(u16, &str, Code) = &(500, "InternalError", Code::Internal);
/// Field of the details of an error after which a client retries, in seconds.
const RETRY: &str = "retryAfterSeconds";

// === impl Refused ===

impl Refused {
    /// Ends the call, and returns the error that its client gets.
    pub(super) fn end(self, call: &mut HttpCall, about: Option<About<'_>>) -> Failure {
        match self {
            Self::Failure(failure) => {
                call.ends(failure.grpc_code());
                failure
            }
            Self::Refusal(refusal) => {
                call.refuse(&refusal);
                Failure::of(&refusal, about)
            }
        }
    }
}

impl From<ApiError> for Refused {
    fn from(refusal: ApiError) -> Self {
        Self::Refusal(refusal)
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

// === impl Cause ===

impl Cause {
    pub(super) fn forbidden(field: &'static str, message: &str) -> Self {
        Self { reason: "FieldValueForbidden", field, message: format!("Forbidden: {message}") }
    }

    pub(super) fn not_supported(field: &'static str, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("Unsupported value: {value:?}: supported values: {}", supported.join(", "));
        Self { reason: "FieldValueNotSupported", field, message }
    }
}

// === impl About ===

impl About<'_> {
    fn details(&self) -> Value {
        let mut details = json!({ "kind": self.kind.plural });
        for (key, value) in [("name", self.name), ("group", &self.kind.group)] {
            if !value.is_empty() {
                details[key] = json!(value);
            }
        }
        details
    }
}

// === impl Failure ===

impl Failure {
    pub(super) fn new(code: u16, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: json!({}) }
    }

    fn retrying(mut self) -> Self {
        self.details[RETRY] = json!(1);
        self
    }

    pub(super) fn not_found() -> Self {
        Self::new(404, "the server could not find the requested resource")
    }

    pub(super) fn unknown_namespace() -> Self {
        Self::new(403, "namespaces are not served here: whether there is one of this name is not known")
    }

    pub(super) fn bad_request(message: &str) -> Self {
        Self::new(400, message)
    }

    pub(super) fn not_acceptable() -> Self {
        Self::new(406, "only the following media types are accepted: application/json")
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(405, "the server does not allow this method on the requested resource: it is read-only")
    }

    pub(super) fn forbidden_host() -> Self {
        Self::new(403, "the host is not a name of this server: use localhost or its address")
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, message).retrying()
    }

    /// Creates the error of parameters that do not fit together.
    pub(super) fn invalid(causes: Vec<Cause>) -> Self {
        let texts: Vec<String> =
            causes.iter().map(|Cause { field, message, .. }| format!("{field}: {message}")).collect();
        let text = if let [text] = &texts[..] { text.clone() } else { format!("[{}]", texts.join(", ")) };
        let causes: Vec<Value> = causes
            .into_iter()
            .map(|Cause { reason, field, message }| json!({ "reason": reason, "message": message, "field": field }))
            .collect();
        let details = json!({ "group": "meta.k8s.io", "kind": "ListOptions", "causes": causes });
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {text}");
        Self { details, ..Self::new(422, message) }
    }

    /// Creates the error of a caller without a right.
    pub(super) fn forbidden(about: About<'_>) -> Self {
        let About { kind, verb, namespace, name, user } = about;
        let place = if namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {namespace:?}")
        };
        let of = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!(
            "{}{of} is forbidden: User {:?} cannot {verb} resource {:?} in API group {:?} {place}",
            full_name(kind),
            user.unwrap_or("system:anonymous"),
            kind.plural,
            kind.group
        );
        Self { details: about.details(), ..Self::new(403, message) }
    }

    fn row(&self) -> &'static (u16, &'static str, Code) {
        CODES.iter().find(|(code, ..)| *code == self.code).unwrap_or(INTERNAL)
    }

    /// Returns the gRPC code that the error stands for, in metrics and in the audit log.
    pub(super) fn grpc_code(&self) -> Code {
        self.row().2
    }

    /// Converts the refusal of a call.
    pub(super) fn of(refusal: &ApiError, about: Option<About<'_>>) -> Self {
        match (refusal, about) {
            (ApiError::ObjectNotFound { .. }, Some(about)) => {
                let message = format!("{} {:?} not found", full_name(about.kind), about.name);
                Self { details: about.details(), ..Self::new(404, message) }
            }
            (ApiError::VersionTooLarge { wanted, current }, _) => {
                let cause = json!({ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" });
                let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
                Self { details: json!({ "causes": [cause] }), ..Self::new(504, message) }.retrying()
            }
            (ApiError::PageTokenExpired, _) => Self::new(
                410,
                "The provided continue parameter is too old to display a consistent list result. You must start a new list without \
                 the continue parameter.",
            ),
            (ApiError::Invalid { field: "page_token", .. }, _) => {
                Self::bad_request("continue key is not valid: it is of no list with these parameters")
            }
            (ApiError::VersionExpired { .. }, Some(About { verb: "list", .. })) => {
                Self::new(410, "The resourceVersion for the provided list is too old.")
            }
            (ApiError::VersionExpired { wanted: Some(wanted), oldest, .. }, _) => {
                Self::new(410, format!("too old resource version: {wanted} ({oldest})"))
            }
            // The caller learns the same whether there is such a resource or not.
            (ApiError::AccessDenied { .. }, Some(about)) => Self::forbidden(about),
            _ => {
                let status = refusal.to_status();
                Self::of_code(status.code(), status.message().to_owned())
            }
        }
    }

    /// Converts a status by its code.
    fn of_code(of: Code, message: String) -> Self {
        match CODES.iter().find(|(_, _, code)| *code == of).unwrap_or(INTERNAL) {
            (401, reason, _) => Self::new(401, *reason),
            (code @ (429 | 503), ..) => Self::new(*code, message).retrying(),
            (code, ..) => Self::new(*code, message),
        }
    }

    /// Converts the last message of a watch; `None` for an end after which a client resumes with its version, as after any other.
    pub(super) fn of_watch(message: &pb::WatchResponse) -> Option<Self> {
        if message.r#type() == pb::EventType::Dropped {
            return Some(Self::new(410, "events were dropped because the client did not keep up: list again"));
        }
        let error = message.error.as_ref()?;
        let code = Code::from_i32(error.code);
        (code != Code::Unavailable).then(|| Self::of_code(code, error.message.clone()))
    }

    /// Returns the object.
    pub(super) fn to_json(&self) -> Value {
        let (Self { code, message, details }, (_, reason, _)) = (self, self.row());
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        });
        if *details != json!({}) {
            status["details"] = details.clone();
        }
        status
    }

    /// Returns the last event of a watch.
    pub(super) fn to_event(&self) -> Value {
        json!({ "type": "ERROR", "object": self.to_json() })
    }

    pub(super) fn into_response(self) -> Response<RestBody> {
        let status = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = body::json(status, &self.to_json());
        let headers = response.headers_mut();
        if let Some(seconds) = self.details[RETRY].as_u64() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        response
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> u16 {
        self.code
    }

    #[cfg(test)]
    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

/// Returns `pods`, or `deployments.apps`.
fn full_name(kind: &ApiKind) -> String {
    let ApiKind { plural, group, .. } = kind;
    if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ObjectKey, ResourceVersion};

    #[test]
    fn errors_have_the_reasons_of_kubernetes() {
        let kind = ApiKind::new("apps", "v1", "deployments", "Deployment");
        let about = About { kind: &kind, verb: "get", namespace: "shop", name: "web", user: Some("eve") };
        let of = |refusal: ApiError| {
            let failure = Failure::of(&refusal, Some(about));
            (failure.code, failure.row().1, failure.message.clone(), failure.to_json())
        };
        let key = ObjectKey::new("shop", "web").unwrap();
        let (code, reason, message, json) = of(ApiError::object("web", &key));
        assert_eq!((code, reason, &*message), (404, "NotFound", "deployments.apps \"web\" not found"));
        assert_eq!(json["details"], json!({ "name": "web", "group": "apps", "kind": "deployments" }));
        let (code, reason, message, _) = of(ApiError::AccessDenied { message: "no".to_owned() });
        assert_eq!((code, reason), (403, "Forbidden"));
        assert!(message.starts_with(
            "deployments.apps \"web\" is forbidden: User \"eve\" cannot get resource \"deployments\" in API group \"apps\" in the namespace \"shop\""
        ), "{message}");
        let version = ResourceVersion::decimal;
        let too_large = ApiError::VersionTooLarge { wanted: version(9), current: "3".to_owned() };
        let (code, reason, message, json) = of(too_large);
        assert_eq!((code, reason, &*message), (504, "Timeout", "Timeout: Too large resource version: 9, current: 3"));
        assert_eq!(
            (&json["details"]["causes"][0]["reason"], &json["details"][RETRY]),
            (&json!("ResourceVersionTooLarge"), &json!(1))
        );
        let expired = ApiError::VersionExpired { wanted: Some(version(1)), oldest: version(5), current: version(7) };
        assert_eq!(of(expired.clone()).2, "too old resource version: 1 (5)");
        let of_list = Failure::of(&expired, Some(About { verb: "list", ..about }));
        assert_eq!(of_list.message, "The resourceVersion for the provided list is too old.");
        for (refusal, code, reason) in [
            (ApiError::PageTokenExpired, 410, "Expired"),
            (ApiError::HistoryRewritten, 410, "Expired"),
            (ApiError::CredentialsMissing, 401, "Unauthorized"),
            (ApiError::Draining, 503, "ServiceUnavailable"),
            (ApiError::NotSynced { resource: "x".to_owned(), last_error: None }, 503, "ServiceUnavailable"),
            (ApiError::SlowConsumer { after: version(1) }, 429, "TooManyRequests"),
            (ApiError::request("x"), 400, "BadRequest"),
            (ApiError::NotImplemented { what: "x" }, 500, "InternalError"),
            (ApiError::Internal, 500, "InternalError"),
        ] {
            let found = of(refusal.clone());
            assert_eq!((found.0, found.1), (code, reason), "{}", found.2);
            let headers = Failure::of(&refusal, None).into_response().into_parts().0.headers;
            let has = [header::RETRY_AFTER, header::WWW_AUTHENTICATE].map(|name| headers.contains_key(name));
            assert_eq!(has, [[429, 503].contains(&code), code == 401], "{}", found.2);
        }
    }

    #[test]
    fn a_watch_ends_with_an_error_only_if_its_client_must_not_resume_at_once() {
        let of = |refusal: &ApiError| {
            let mut message = pb::WatchResponse { error: Some(refusal.to_proto()), ..Default::default() };
            message.set_type(pb::EventType::Error);
            Failure::of_watch(&message).map(|failure| failure.code)
        };
        assert_eq!(of(&ApiError::Draining), None);
        assert_eq!(of(&ApiError::HistoryRewritten), Some(410));
        assert_eq!(of(&ApiError::AccessChanged), Some(410));
        assert_eq!(of(&ApiError::SlowConsumer { after: ResourceVersion::decimal(1) }), Some(429));
        assert_eq!(of(&ApiError::CredentialsExpired), Some(401));
        let mut dropped = pb::WatchResponse::default();
        dropped.set_type(pb::EventType::Dropped);
        assert_eq!(Failure::of_watch(&dropped).map(|failure| failure.code), Some(410));
    }
}
