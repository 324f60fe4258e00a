//! gRPC statuses, which only this module builds: an exhaustive match from typed refusals to codes and reasons.
//!
//! Every status carries `google.rpc.ErrorInfo` (domain `informerd`, a reason, metadata), and `RetryInfo` if a retry helps. The
//! reasons are part of the API: `docs/api.md` lists them, and a test compares the two.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use prost::Message;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{
    exceeded_limit::{ExceededLimit, Limited},
    resource_end::ResourceEnd,
};
use crate::{
    auth::AuthenticationError,
    cache::JoinError,
    model::{ObjectKey, ResourceVersion, ShardError, SyntaxError, VersionError, excerpt},
    transport::{Exceeded, FinalFrames},
    watch::End,
};

/// Error with which the server rejects a call or ends a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ApiError {
    /// The server has no such resource.
    ResourceNotFound { resource: String, known: Vec<String> },
    /// The resource was served until a reload of the configuration.
    ResourceEnded { resource: String, end: ResourceEnd },
    /// The cache has no such object.
    ObjectNotFound { resource: String, key: String },
    /// No open watch has this id, or none that the caller may inspect.
    WatcherNotFound { id: u64 },
    /// A field of the request is invalid. Each field has one reason.
    Invalid { reason: &'static str, field: &'static str, message: String },
    /// The request is too large.
    RequestTooLarge { limit: usize },
    /// The request has not arrived completely in time.
    RequestTimeout { timeout: Duration },
    /// The deadline of the client has passed.
    DeadlineExceeded,
    /// The resource has no such index.
    IndexNotFound { field: &'static str, index: String, known: Vec<String> },
    /// An expression was not parsed, because there was no thread for it.
    NotParsed { field: &'static str, message: String },
    /// A part of the contract that this build does not implement.
    NotImplemented { what: &'static str },
    /// The caller lacks a right.
    AccessDenied { message: String },
    /// The caller may not make calls on behalf of others, or not of this one.
    ImpersonationDenied { message: String },
    /// The snapshot of a page token is no longer kept.
    PageTokenExpired,
    /// A watch cannot resume from this version: the history no longer has the events after it.
    VersionExpired { wanted: Option<ResourceVersion>, oldest: ResourceVersion, current: ResourceVersion },
    /// The upstream's history was rewritten.
    HistoryRewritten,
    /// The namespaces that the caller may read have changed, and its state is not that of the present ones.
    AccessChanged,
    /// The server has not reached the version.
    VersionTooLarge { wanted: ResourceVersion, current: String },
    /// The resource has not synced: no list has been applied.
    NotSynced { resource: String, last_error: Option<String> },
    /// The server is shutting down.
    Draining,
    /// An operator has ended the watch.
    Disconnected,
    /// The client's queue stayed full under BLOCK.
    SlowConsumer { after: ResourceVersion },
    /// Too much memory is held for clients, and this stream has waited longest.
    MemoryExceeded { limit: usize, after: Option<ResourceVersion> },
    /// The operator allows other views of the resource only.
    ViewNotAllowed { resource: String, allowed: String },
    /// The maximum number of different views is in use by open watches of the resource.
    TooManyViews { resource: String, limit: usize },
    /// The call has no credentials.
    CredentialsMissing,
    /// The credentials are of nobody.
    CredentialsInvalid,
    /// The credentials were valid until some time ago.
    CredentialsExpired,
    /// The authority that authenticates callers, or decides what they may read, did not answer.
    AuthorizerUnavailable { problem: String },
    /// The call is above a limit that its caller or peer shares with all others, or at a quota of its caller.
    LimitExceeded(ExceededLimit),
    /// A bug; the log has the details.
    Internal,
}

/// Delay after which a client should retry; clients add jitter of their own.
const RETRY_SOON: Duration = Duration::from_secs(1);

// === impl ApiError ===

impl ApiError {
    /// Creates the error of a request that is not one message.
    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self::Invalid { reason: "REQUEST_INVALID", field: "request", message: message.into() }
    }

    /// Creates the error of a label or field selector that does not parse.
    pub(crate) fn selector(field: &'static str, error: &SyntaxError) -> Self {
        let reason = if field == "field_selector" { "FIELD_SELECTOR_INVALID" } else { "LABEL_SELECTOR_INVALID" };
        Self::Invalid { reason, field, message: error.to_string() }
    }

    /// Creates the error of a text that is not a resource version.
    pub(crate) fn version(field: &'static str, error: &VersionError) -> Self {
        Self::Invalid { reason: "RESOURCE_VERSION_INVALID", field, message: error.to_string() }
    }

    /// Creates the error of a stream that ends because too many bytes are held, for all callers or for its own.
    pub(crate) fn held(exceeded: Exceeded, after: Option<ResourceVersion>) -> Self {
        match exceeded {
            Exceeded::All(limit) => Self::MemoryExceeded { limit, after },
            Exceeded::Share(limit) => ExceededLimit::of_quota(Limited::BytesHeld, limit).resumed_after(after).into(),
        }
    }

    /// Creates the error of a shard that cannot be.
    pub(crate) fn shard(error: &ShardError) -> Self {
        let field = if matches!(error, ShardError::Key(_)) { "shard.key" } else { "shard.ranges" };
        Self::Invalid { reason: "SHARD_INVALID", field, message: error.to_string() }
    }

    /// Creates the error of an index that the resource does not have.
    pub(crate) fn index(field: &'static str, index: &str, known: impl Iterator<Item = impl AsRef<str>>) -> Self {
        let known = known.map(|name| name.as_ref().to_owned()).collect();
        Self::IndexNotFound { field, index: index.to_owned(), known }
    }

    /// Creates the error of an object that is not in the cache.
    pub(crate) fn object(resource: &str, key: &ObjectKey) -> Self {
        Self::ObjectNotFound { resource: resource.to_owned(), key: key.to_string() }
    }

    /// Converts the reason for which a caller is not authenticated.
    pub(crate) fn authentication(error: AuthenticationError) -> Self {
        match error {
            AuthenticationError::Missing => Self::CredentialsMissing,
            AuthenticationError::Invalid => Self::CredentialsInvalid,
            AuthenticationError::Expired => Self::CredentialsExpired,
            AuthenticationError::Unavailable { problem } => Self::AuthorizerUnavailable { problem },
        }
    }

    /// Converts the error of a watch that cannot start.
    pub(crate) fn join(error: JoinError, wanted: Option<&ResourceVersion>, resource: &str) -> Self {
        match error {
            JoinError::NotSynced => Self::NotSynced { resource: resource.to_owned(), last_error: None },
            JoinError::Expired { oldest, current } => Self::VersionExpired { wanted: wanted.cloned(), oldest, current },
            JoinError::TooLarge { current } => match wanted {
                Some(wanted) => Self::VersionTooLarge { wanted: wanted.clone(), current: current.to_string() },
                None => Self::Internal,
            },
            JoinError::Stopped(_) => Self::Draining,
        }
    }

    /// Converts the reason for which a watch ended; `after` is the last version that was handed to the transport.
    pub(crate) fn end(end: &End, after: &ResourceVersion) -> Self {
        match end {
            End::Stopped => Self::Draining,
            End::HistoryRewritten => Self::HistoryRewritten,
            End::Expired { oldest } => {
                let (oldest, current) = (oldest.clone(), oldest.clone());
                Self::VersionExpired { wanted: Some(after.clone()), oldest, current }
            }
            End::SlowConsumer => Self::SlowConsumer { after: after.clone() },
            End::Failed => Self::Internal,
        }
    }

    /// Returns the status code and the reason.
    pub(crate) fn code_and_reason(&self) -> (Code, &'static str) {
        match self {
            Self::ResourceNotFound { .. } => (Code::NotFound, "RESOURCE_NOT_FOUND"),
            Self::ResourceEnded { end: ResourceEnd::Removed, .. } => (Code::NotFound, "RESOURCE_REMOVED"),
            Self::ResourceEnded { end: ResourceEnd::Replaced, .. } => (Code::Unavailable, "RESOURCE_REPLACED"),
            Self::ObjectNotFound { .. } => (Code::NotFound, "OBJECT_NOT_FOUND"),
            Self::WatcherNotFound { .. } => (Code::NotFound, "WATCHER_NOT_FOUND"),
            Self::Invalid { reason, .. } => (Code::InvalidArgument, reason),
            Self::RequestTooLarge { .. } => (Code::InvalidArgument, "REQUEST_INVALID"),
            Self::RequestTimeout { .. } => (Code::DeadlineExceeded, "REQUEST_TIMEOUT"),
            Self::DeadlineExceeded => (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
            Self::IndexNotFound { .. } => (Code::InvalidArgument, "INDEX_NOT_FOUND"),
            Self::NotParsed { .. } => (Code::Unavailable, "EXPRESSION_NOT_PARSED"),
            Self::NotImplemented { .. } => (Code::Unimplemented, "NOT_IMPLEMENTED"),
            Self::AccessDenied { .. } => (Code::PermissionDenied, "ACCESS_DENIED"),
            Self::ImpersonationDenied { .. } => (Code::PermissionDenied, "IMPERSONATION_DENIED"),
            Self::ViewNotAllowed { .. } => (Code::PermissionDenied, "VIEW_NOT_ALLOWED"),
            Self::PageTokenExpired => (Code::OutOfRange, "PAGE_TOKEN_EXPIRED"),
            Self::VersionExpired { .. } => (Code::OutOfRange, "RESOURCE_VERSION_EXPIRED"),
            Self::HistoryRewritten => (Code::OutOfRange, "HISTORY_CHANGED"),
            Self::AccessChanged => (Code::OutOfRange, "ACCESS_CHANGED"),
            Self::VersionTooLarge { .. } => (Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE"),
            Self::NotSynced { .. } => (Code::Unavailable, "NOT_SYNCED"),
            Self::Draining => (Code::Unavailable, "DRAINING"),
            Self::Disconnected => (Code::Unavailable, "DISCONNECTED"),
            Self::SlowConsumer { .. } => (Code::ResourceExhausted, "SLOW_CONSUMER"),
            Self::MemoryExceeded { .. } => (Code::ResourceExhausted, "MEMORY_EXCEEDED"),
            Self::TooManyViews { .. } => (Code::ResourceExhausted, "VIEW_LIMIT"),
            Self::CredentialsMissing => (Code::Unauthenticated, "CREDENTIALS_MISSING"),
            Self::CredentialsInvalid => (Code::Unauthenticated, "CREDENTIALS_INVALID"),
            Self::CredentialsExpired => (Code::Unauthenticated, "CREDENTIALS_EXPIRED"),
            Self::AuthorizerUnavailable { .. } => (Code::Unavailable, "AUTHORIZER_UNAVAILABLE"),
            Self::LimitExceeded(limit) => (limit.code(), limit.reason()),
            Self::Internal => (Code::Internal, "INTERNAL"),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::ResourceNotFound { resource, known } => resource_not_found(resource, known),
            Self::ResourceEnded { resource, end } => end.message(resource),
            Self::ObjectNotFound { resource, key } => format!("{resource} {:?} not found", excerpt(key)),
            Self::WatcherNotFound { id } => {
                format!("watch {id} not found: it has ended, or you may not inspect it; `informerd watchers` lists the open ones")
            }
            Self::Invalid { field, message, .. } | Self::NotParsed { field, message } => {
                // The place in the field is a part of its name.
                let place = if message.starts_with(SyntaxError::PLACE) { "," } else { ":" };
                format!("{field}{place} {message}")
            }
            Self::RequestTooLarge { limit } => {
                format!("request: larger than {limit} bytes; send less in one call")
            }
            Self::RequestTimeout { timeout } => {
                format!("request: not complete after {timeout:?} (limits.request_timeout); send it at once, and half-close")
            }
            Self::DeadlineExceeded => "the deadline of the call has passed".to_owned(),
            Self::IndexNotFound { field, index, known } => {
                format!("{field}: index {:?} not found; known: {}", excerpt(index), known.join(", "))
            }
            Self::NotImplemented { what } => format!("{what} is not implemented by this version or build of informerd"),
            Self::AccessDenied { message } | Self::ImpersonationDenied { message } => message.clone(),
            Self::PageTokenExpired => {
                "page_token: the snapshot of this list has expired: it is kept for 5 minutes, within a limit on snapshots \
                 (limits.peer_share of them for one caller); list again from the first page"
                    .to_owned()
            }
            Self::VersionExpired { wanted, oldest, current } => {
                let wanted = wanted.as_ref().map(|wanted| format!(" {}", excerpt(&wanted.to_string()))).unwrap_or_default();
                format!(
                    "resource version{wanted} has expired (oldest: {oldest}, current: {current}): list again, or watch with \
                     initial_events and without resource_version"
                )
            }
            Self::HistoryRewritten => {
                "the upstream's history was rewritten: list again, or watch without resource_version".to_owned()
            }
            Self::AccessChanged => {
                "the namespaces that the caller may read have changed: list again, or watch without resource_version"
                    .to_owned()
            }
            Self::VersionTooLarge { wanted, current } => {
                format!("resource version {wanted} is too large (current: {current}): retry, here or at another server")
            }
            Self::NotSynced { resource, last_error: None } => format!("{resource} is not synced yet: retry"),
            Self::NotSynced { resource, last_error: Some(error) } => {
                format!("{resource} is not synced yet: {error}")
            }
            Self::Draining => "the server is shutting down; reconnect and resume".to_owned(),
            Self::Disconnected => "an operator has ended this watch (DisconnectWatchers): resume".to_owned(),
            Self::SlowConsumer { after } => {
                format!(
                    "client too slow: its budget under BLOCK (watch.block_timeout) is spent; read faster, and resume after version {after}"
                )
            }
            Self::MemoryExceeded { limit, after } => {
                let resume = after.as_ref().map_or_else(
                    || "and resume from the last version received, or list again".to_owned(),
                    |after| format!("and resume after version {after}"),
                );
                format!(
                    "stream ended: the server holds more than {limit} bytes (limits.memory) for slow clients, and this one has \
                     read nothing for longest; read faster, {resume}"
                )
            }
            Self::ViewNotAllowed { resource, allowed } => view_not_allowed(resource, allowed),
            Self::TooManyViews { resource, limit } => format!(
                "view: {limit} different views of {resource:?} are in use by open watches, or by calls of yours; use one of them, or \
                 retry when others have ended"
            ),
            Self::CredentialsMissing => {
                "credentials are missing: send \"authorization: Bearer TOKEN\" (informerd's commands: --token-file), or use a \
                 client certificate, as the server's operator says"
                    .to_owned()
            }
            Self::CredentialsInvalid => {
                "the credentials are not valid here: send one \"authorization: Bearer TOKEN\" with a token for this server \
                 (informerd's commands: --token-file)"
                    .to_owned()
            }
            Self::CredentialsExpired => "the credentials have expired: renew the token or the certificate".to_owned(),
            Self::AuthorizerUnavailable { problem } => format!("access cannot be decided now: {problem}: retry"),
            Self::LimitExceeded(limit) => limit.message(),
            Self::Internal => "internal error: see the server's log".to_owned(),
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::ResourceNotFound { resource, known } => {
                vec![("resource", excerpt(resource).into_owned()), ("known", known.join(","))]
            }
            Self::ResourceEnded { resource, .. } => vec![("resource", resource.clone())],
            Self::ObjectNotFound { resource, key } => {
                vec![("resource", resource.clone()), ("key", excerpt(key).into_owned())]
            }
            Self::WatcherNotFound { id } => vec![("watcher_id", id.to_string())],
            Self::Invalid { field, .. } | Self::NotParsed { field, .. } => vec![("field", (*field).to_owned())],
            Self::IndexNotFound { field, index, known } => {
                vec![("field", (*field).to_owned()), ("index", excerpt(index).into_owned()), ("known", known.join(","))]
            }
            Self::ViewNotAllowed { allowed, .. } => {
                vec![("field", "view.name".to_owned()), ("known", allowed.replace(", ", ","))]
            }
            Self::RequestTimeout { timeout } => vec![("limit", format!("{timeout:?}"))],
            Self::NotImplemented { what } => vec![("what", (*what).to_owned())],
            Self::VersionExpired { oldest, current, .. } => {
                vec![("oldest", oldest.to_string()), ("current", current.to_string())]
            }
            Self::VersionTooLarge { current, .. } => vec![("current", current.clone())],
            Self::NotSynced { last_error, .. } => {
                last_error.iter().map(|error| ("last_error", error.clone())).collect()
            }
            Self::SlowConsumer { after } => vec![("after", after.to_string())],
            Self::MemoryExceeded { limit, after } => {
                let after = after.iter().map(|after| ("after", after.to_string()));
                [("limit", limit.to_string())].into_iter().chain(after).collect()
            }
            Self::RequestTooLarge { limit } | Self::TooManyViews { limit, .. } => vec![("limit", limit.to_string())],
            Self::LimitExceeded(exceeded) => exceeded.metadata(),
            _ => Vec::new(),
        }
    }

    /// Returns the delay after which a client should retry: always if the code is one that clients retry.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::LimitExceeded(exceeded) => Some(exceeded.retry_after().unwrap_or(RETRY_SOON)),
            Self::RequestTimeout { .. } => Some(RETRY_SOON),
            _ => matches!(self.code_and_reason().0, Code::Unavailable | Code::ResourceExhausted).then_some(RETRY_SOON),
        }
    }

    /// Returns the metric label of the limit that was exceeded, if a limit on clients is the cause.
    pub(crate) fn bound(&self) -> Option<&'static str> {
        match self {
            Self::RequestTooLarge { .. } => Some("request_bytes"),
            Self::RequestTimeout { .. } => Some("request_timeout"),
            Self::TooManyViews { .. } => Some("views"),
            Self::LimitExceeded(limit) => Some(limit.bound()),
            _ => None,
        }
    }

    /// Converts to the status of the RPC.
    pub(crate) fn to_status(&self) -> Status {
        let (code, reason) = self.code_and_reason();
        let metadata: std::collections::HashMap<String, String> =
            self.metadata().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
        if let Some(retry_after) = self.retry_after() {
            details.set_retry_info(Some(retry_after));
        }
        Status::with_error_details(code, self.message(), details)
    }

    /// Converts to the same status as a message: the last one of a watch.
    pub(crate) fn to_proto(&self) -> tonic_types::Status {
        let status = self.to_status();
        tonic_types::Status::decode(status.details()).unwrap_or_else(|_| tonic_types::Status {
            code: status.code() as i32,
            message: status.message().to_owned(),
            details: Vec::new(),
        })
    }
}

fn view_not_allowed(resource: &str, allowed: &str) -> String {
    format!("view.name: resource {resource:?} serves views only: name one of {allowed}, or request METADATA")
}

impl From<ApiError> for Status {
    fn from(refusal: ApiError) -> Self {
        refusal.to_status()
    }
}

impl From<ExceededLimit> for ApiError {
    fn from(limit: ExceededLimit) -> Self {
        Self::LimitExceeded(limit)
    }
}

const DOMAIN: &str = "informerd";

/// Creates the end of a response from which a client cannot resume.
pub(super) fn final_frames(exceeded: Exceeded) -> FinalFrames {
    let refusal = ApiError::held(exceeded, None);
    FinalFrames { message: None, trailers: Some(trailers(&refusal.to_status())) }
}

/// Converts a status to trailers, the last frame of a body.
pub(super) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        // The message is not a valid header value; the code is.
        trailers.insert("grpc-status", HeaderValue::from(Code::Internal as i32));
    }
    trailers
}

/// Returns the message about a resource that is not served, with those that the caller may read, if it may read any.
fn resource_not_found(resource: &str, known: &[String]) -> String {
    match (resource, known) {
        (resource, []) => {
            format!("resource {:?} not found; `informerd resources` lists those that you may read", excerpt(resource))
        }
        ("", known) => format!("resource: missing; known: {}", known.join(", ")),
        (resource, known) => format!("resource {:?} not found; known: {}", excerpt(resource), known.join(", ")),
    }
}

#[cfg(test)]
mod tests;
