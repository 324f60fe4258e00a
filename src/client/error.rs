//! Errors of calls: the only place of the client that reads a status.

use std::{collections::BTreeMap, error::Error, fmt, time::Duration};

use prost::Message;
use tonic::{Code, ConnectError, Status, metadata::AsciiMetadataValue};
use tonic_types::{RetryInfo, StatusExt};

use crate::{net::ServerAddress, proto};

/// Failure of a call, by what its caller does next. Its text is one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No connection could be made. Try again, or elsewhere.
    #[error("cannot connect to {address}: {problem}{}", if has_hint(.problem) { "" } else { "; is informerd serving there?" })]
    Unreachable {
        /// Address of the server.
        address: ServerAddress,
        /// Cause as the system reports it.
        problem: String,
    },
    /// Connection or stream broke without a response. Try again.
    #[error("connection to {address} lost: {problem}")]
    Broken {
        /// Address of the server.
        address: ServerAddress,
        /// Cause as the transport reports it.
        problem: String,
    },
    /// Server sent nothing for longer than it had promised. Try again, on another connection.
    #[error("no message from {address} for {after:?}")]
    Silent {
        /// Address of the server.
        address: ServerAddress,
        /// Time without a message.
        after: Duration,
    },
    /// Server responded with an error.
    #[error("{0}")]
    Refused(Box<ServerStatus>),
    /// Token file of the address has no token now, so that nothing was sent. It is read again for each call.
    #[error("{problem} (UNAUTHENTICATED)")]
    TokenFile {
        /// Reason why it has none.
        problem: String,
    },
    /// Conditions of [`Client::until`](super::Client::until) were not met in time.
    #[error("timed out after {after:?} waiting for the conditions{}", .last.as_ref().map(|last| format!(" (last error: {last})")).unwrap_or_default())]
    NotMet {
        /// Time that the client waited.
        after: Duration,
        /// Error that ended the last stream, unless another one is complete since.
        last: Option<Box<ClientError>>,
    },
    /// Server violates its contract; it may be another version. A call fails for good, a watch lists again.
    #[error("invalid response of the server: {problem}")]
    Contract {
        /// Violation that was found.
        problem: String,
    },
    /// Call is not possible with these arguments, or in this process.
    #[error("{problem}")]
    Request {
        /// Reason why the call is not possible.
        problem: String,
    },
}

/// Error status of a server's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerStatus {
    /// Code of gRPC.
    pub code: Code,
    /// Message of the server, in one line.
    pub message: String,
    /// Reason in its `google.rpc.ErrorInfo`, for example `RESOURCE_NOT_FOUND`; none if its domain is not informerd's.
    pub reason: Option<String>,
    /// Metadata of the same `ErrorInfo`.
    pub metadata: BTreeMap<String, String>,
    /// Delay that the server requests before the next attempt, from `google.rpc.RetryInfo`.
    pub retry_after: Option<Duration>,
}

/// Reaction of a watch to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recovery {
    /// Resume from the last safe version.
    Resume,
    /// Relist, beginning with the initial events: the version can no longer be resumed from.
    Relist,
    /// End the watch with the error.
    GiveUp,
}

/// Domain of informerd's reasons.
const DOMAIN: &str = "informerd";
const DRAINING: &str = "DRAINING";
/// Metadata of a status that is none of a server.
const TOKEN_FILE: &str = "informerd-token-file";

// === impl ClientError ===

impl ClientError {
    /// Translates the status of a call.
    pub fn from_status(address: &ServerAddress, status: &Status) -> Self {
        if status.metadata().contains_key(TOKEN_FILE) {
            return Self::TokenFile { problem: one_line(status.message()) };
        }
        // Only a status that was created on this side has a source.
        let Some(source) = status.source() else { return Self::Refused(Box::new(ServerStatus::from_status(status))) };
        let (address, problem) = (address.clone(), with_hint(&TLS_HINTS, address, root_cause(source)));
        if chain(source).any(<dyn Error>::is::<ConnectError>) {
            Self::Unreachable { address, problem }
        } else {
            Self::Broken { address, problem }
        }
    }

    /// Returns the status of a call that was not sent, because the token file has no token.
    pub(super) fn token_file(problem: String) -> Status {
        let mut status = Status::unauthenticated(problem);
        status.metadata_mut().insert(TOKEN_FILE, AsciiMetadataValue::from_static("unread"));
        status
    }

    /// Translates the failure of the first connection.
    pub(super) fn from_connect(address: &ServerAddress, error: &tonic::transport::Error) -> Self {
        Self::Unreachable { address: address.clone(), problem: with_hint(&TLS_HINTS, address, root_cause(error)) }
    }

    /// Adds a hint to the error of a connection that no server has answered on: later, a broken pipe is that of a server that ends.
    pub(super) fn before_an_answer(self) -> Self {
        match self {
            Self::Broken { address, problem } => {
                let problem = with_hint(&[(false, "broken pipe", USE_TLS)], &address, problem);
                Self::Broken { address, problem }
            }
            other => other,
        }
    }

    /// Translates the status in the last message of a watch.
    pub fn from_proto(status: &tonic_types::Status) -> Self {
        let details = status.encode_to_vec().into();
        let status = Status::with_details(Code::from(status.code), status.message.clone(), details);
        Self::Refused(Box::new(ServerStatus::from_status(&status)))
    }

    /// Returns the error that stands for a bookmark with `draining`.
    pub(super) fn draining() -> Self {
        Self::Refused(Box::new(ServerStatus {
            code: Code::Unavailable,
            message: "the server is shutting down, and closes this stream".to_owned(),
            reason: Some(DRAINING.to_owned()),
            metadata: BTreeMap::new(),
            retry_after: None,
        }))
    }

    /// Returns the error of a server that would ignore a part of the request.
    pub(super) fn unsupported(address: &ServerAddress, version: &str, capability: &str) -> Self {
        let version = if version.is_empty() { String::new() } else { format!(" (version {version})") };
        Self::Refused(Box::new(ServerStatus {
            code: Code::Unimplemented,
            message: format!("informerd at {address}{version} has no {capability}: update it, or request without"),
            reason: Some("NOT_IMPLEMENTED".to_owned()),
            metadata: BTreeMap::new(),
            retry_after: None,
        }))
    }

    pub(crate) fn contract(problem: impl Into<String>) -> Self {
        Self::Contract { problem: problem.into() }
    }

    /// Returns the gRPC code: the server's, or the closest one.
    pub fn code(&self) -> Code {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } => Code::Unavailable,
            Self::Silent { .. } | Self::NotMet { .. } => Code::DeadlineExceeded,
            Self::Refused(status) => status.code,
            Self::TokenFile { .. } => Code::Unauthenticated,
            Self::Contract { .. } => Code::Internal,
            Self::Request { .. } => Code::InvalidArgument,
        }
    }

    /// Returns the server's reason, one of those in `docs/api.md`.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Refused(status) => status.reason.as_deref(),
            _ => None,
        }
    }

    /// Returns one entry of the metadata of the server's reason, for example `known` of `RESOURCE_NOT_FOUND`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        match self {
            Self::Refused(status) => status.metadata.get(key).map(String::as_str),
            _ => None,
        }
    }

    /// Returns the delay that the server requests before the next attempt.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(status) => status.retry_after,
            _ => None,
        }
    }

    /// Returns true if the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        use Code::{Aborted, Cancelled, DeadlineExceeded, Internal, ResourceExhausted, Unavailable, Unknown};
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } | Self::Silent { .. } | Self::NotMet { .. } => true,
            Self::TokenFile { .. } | Self::Contract { .. } | Self::Request { .. } => false,
            Self::Refused(status) => matches!(
                status.code,
                Unavailable | ResourceExhausted | Internal | Unknown | Cancelled | Aborted | DeadlineExceeded
            ),
        }
    }

    /// Returns the reaction to this error, without those before it. It is decided by the code: a proxy may have removed the reason,
    /// and a newer server has others.
    pub(super) fn recovery(&self) -> Recovery {
        if self.code() == Code::OutOfRange {
            Recovery::Relist
        } else if self.is_retryable() || self.code() == Code::Ok {
            // OK: an ERROR without a status says nothing that is final.
            Recovery::Resume
        } else {
            Recovery::GiveUp
        }
    }

    /// Returns true if no server responded.
    pub(super) fn is_about_connection(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Broken { .. } | Self::Silent { .. })
    }

    /// Returns true for a status of the server itself: those of libraries, proxies and the network have no reason, and not this code.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Refused(status) if status.reason.is_some() || status.code == Code::OutOfRange)
    }

    /// Returns true if the client has to leave the connection: it is dead, or its server is draining.
    pub(super) fn invalidates_connection(&self) -> bool {
        matches!(self, Self::Silent { .. }) || self.is_draining()
    }

    /// Returns true if the server is about to end.
    pub(super) fn is_draining(&self) -> bool {
        self.reason() == Some(DRAINING)
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// Returns the innermost cause: the layers above it only report a transport error.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map(|root| one_line(&root.to_string())).unwrap_or_default()
}

/// Parts of the errors of TLS and HTTP/2, with what they mean at a server that does, or does not, speak TLS.
const TLS_HINTS: [(bool, &str, &str); 7] = [
    (true, "InvalidContentType", "the server does not speak TLS: use http://"),
    (
        true,
        "UnknownIssuer",
        "its certificate is signed by an authority that is not trusted here: name the file of its CA",
    ),
    (true, "CaUsedAsEndEntity", "its certificate is that of a CA: create one with basicConstraints=CA:FALSE"),
    (true, "NotValidForName", "its certificate is for other names: use one of them in the address"),
    (true, "Expired", "its certificate has expired: renew it"),
    (true, "CertificateRequired", "the server requires a client certificate: name its file and that of its key"),
    (false, "frame with invalid size", USE_TLS),
];
const USE_TLS: &str = "if the server speaks TLS, use https://";

/// Adds what to do about an error of TLS, or of its absence.
fn with_hint(hints: &[(bool, &str, &str)], address: &ServerAddress, problem: String) -> String {
    let hint = hints.iter().find(|(is_tls, part, _)| *is_tls == address.is_tls() && problem.contains(part));
    match hint {
        Some((.., hint)) if !address.is_unix() => format!("{problem} ({hint})"),
        _ => problem,
    }
}

fn has_hint(problem: &str) -> bool {
    TLS_HINTS.iter().any(|(.., hint)| problem.strip_suffix(')').is_some_and(|problem| problem.ends_with(hint)))
}

fn one_line(text: &str) -> String {
    text.split(char::is_control).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

// === impl ServerStatus ===

impl ServerStatus {
    fn from_status(status: &Status) -> Self {
        let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN);
        let (reason, metadata) = info.map(|info| (info.reason, info.metadata)).unzip();
        Self {
            code: status.code(),
            message: one_line(status.message()),
            reason,
            metadata: metadata.into_iter().flatten().collect(),
            retry_after: retry_delay(status),
        }
    }
}

/// Returns the delay that a server requests. The conversion of `tonic_types` panics at some numbers in a build with debug assertions.
fn retry_delay(status: &Status) -> Option<Duration> {
    let details = tonic_types::Status::decode(status.details()).ok()?.details;
    let info = details.into_iter().find(|any| any.type_url == RetryInfo::TYPE_URL)?;
    tonic_types::pb::RetryInfo::decode(&*info.value).ok()?.retry_delay.and_then(proto::duration)
}

impl fmt::Display for ServerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.message.is_empty() {
            write!(f, "{} ", self.message)?;
        }
        match &self.reason {
            Some(reason) => write!(f, "({} / {reason})", code_name(self.code)),
            None => write!(f, "({})", code_name(self.code)),
        }
    }
}

/// Returns the name as in gRPC's documentation: `NOT_FOUND` for `NotFound`.
fn code_name(code: Code) -> String {
    let mut name = String::new();
    for c in format!("{code:?}").chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    fn address() -> ServerAddress {
        "127.0.0.1:1".parse().unwrap()
    }

    fn refused(code: Code, reason: &str) -> ClientError {
        let details = ErrorDetails::with_error_info(reason, DOMAIN, [("known".to_owned(), "pods".to_owned())]);
        ClientError::from_status(&address(), &Status::with_error_details(code, "not\nhere", details))
    }

    /// A server may send any number.
    #[test]
    fn no_delay_that_a_server_requests_panics() {
        for (seconds, expected) in [(3, Some(Duration::from_secs(3))), (-3, None), (i64::MIN, None)] {
            let delay = prost_types::Duration { seconds, nanos: 0 };
            let value = tonic_types::pb::RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
            let any = prost_types::Any { type_url: RetryInfo::TYPE_URL.to_owned(), value };
            let message = tonic_types::Status { details: vec![any], ..tonic_types::Status::default() };
            let status = Status::with_details(Code::Unavailable, "x", message.encode_to_vec().into());
            assert_eq!(ClientError::from_status(&address(), &status).retry_after(), expected);
        }
    }

    #[test]
    fn an_answer_keeps_its_code_reason_and_metadata_and_is_one_line() {
        let error = refused(Code::NotFound, "RESOURCE_NOT_FOUND");
        assert_eq!((error.code(), error.reason()), (Code::NotFound, Some("RESOURCE_NOT_FOUND")));
        assert_eq!((error.metadata("known"), error.metadata("x")), (Some("pods"), None));
        assert_eq!(error.to_string(), "not here (NOT_FOUND / RESOURCE_NOT_FOUND)");
        let mut details = ErrorDetails::with_error_info("X", "example.com", []);
        details.set_retry_info(Some(Duration::from_secs(3)));
        let foreign = Status::with_error_details(Code::Unavailable, "", details);
        let foreign = ClientError::from_status(&address(), &foreign);
        assert_eq!((foreign.reason(), foreign.retry_after()), (None, Some(Duration::from_secs(3))));
        assert_eq!(foreign.to_string(), "(UNAVAILABLE)");
    }

    #[test]
    fn the_last_message_of_a_watch_is_the_same_error_as_its_status() {
        let status = Status::with_error_details(
            Code::OutOfRange,
            "gone",
            ErrorDetails::with_error_info("HISTORY_CHANGED", DOMAIN, []),
        );
        let proto = tonic_types::Status::decode(status.details()).unwrap();
        assert_eq!(ClientError::from_proto(&proto), ClientError::from_status(&address(), &status));
    }

    /// The rules of client-go's `RetryWatcher` (tools/watch/retrywatcher.go), with a relist where that one ends.
    #[test]
    fn the_recovery_depends_on_code_and_reason() {
        use Recovery::{GiveUp, Relist, Resume};
        for (code, reason, recovery) in [
            (Code::OutOfRange, "RESOURCE_VERSION_EXPIRED", Relist),
            (Code::OutOfRange, "HISTORY_CHANGED", Relist),
            (Code::OutOfRange, "ACCESS_CHANGED", Relist),
            (Code::OutOfRange, "", Relist),
            (Code::OutOfRange, "A_NEW_REASON", Relist),
            (Code::Unavailable, "DRAINING", Resume),
            (Code::Unavailable, "NOT_SYNCED", Resume),
            (Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE", Resume),
            (Code::ResourceExhausted, "SLOW_CONSUMER", Resume),
            (Code::ResourceExhausted, "MEMORY_EXCEEDED", Resume),
            (Code::ResourceExhausted, "TOO_MANY_WATCHERS", Resume),
            (Code::ResourceExhausted, "QUOTA_EXCEEDED", Resume),
            (Code::Internal, "INTERNAL", Resume),
            (Code::Unknown, "", Resume),
            (Code::Cancelled, "", Resume),
            (Code::InvalidArgument, "LABEL_SELECTOR_INVALID", GiveUp),
            (Code::NotFound, "RESOURCE_NOT_FOUND", GiveUp),
            (Code::Unimplemented, "NOT_IMPLEMENTED", GiveUp),
            (Code::PermissionDenied, "", GiveUp),
            (Code::Unauthenticated, "", GiveUp),
        ] {
            let error = refused(code, reason);
            assert_eq!(error.recovery(), recovery, "{code:?} {reason}");
            assert_eq!(error.is_retryable(), recovery == Resume, "{code:?} {reason}");
        }
        let silent = ClientError::Silent { address: address(), after: Duration::from_secs(90) };
        assert_eq!((silent.recovery(), silent.invalidates_connection()), (Resume, true));
        assert_eq!(ClientError::contract("x").recovery(), GiveUp);
        assert!(ClientError::draining().invalidates_connection());
    }

    #[test]
    fn errors_of_tls_have_advice() {
        let hint = |address: &str, problem: &str| with_hint(&TLS_HINTS, &address.parse().unwrap(), problem.to_owned());
        let tls = hint("https://h:1", "received corrupt message of type InvalidContentType");
        assert!(tls.ends_with("(the server does not speak TLS: use http://)"), "{tls}");
        let plain = hint("h:1", "connection error detected: frame with invalid size");
        assert!(plain.ends_with("(if the server speaks TLS, use https://)"), "{plain}");
        assert_eq!(hint("h:1", "InvalidContentType"), "InvalidContentType");
        assert_eq!(hint("h:1", "broken pipe"), "broken pipe", "also that of a server which ends");
        let broken = |address: &str| {
            let error = ClientError::Broken { address: address.parse().unwrap(), problem: "broken pipe".to_owned() };
            error.before_an_answer().to_string()
        };
        assert!(broken("h:1").ends_with("broken pipe (if the server speaks TLS, use https://)"), "{}", broken("h:1"));
        assert!([broken("https://h:1"), broken("unix:/s")].iter().all(|text| text.ends_with("lost: broken pipe")));
    }

    #[test]
    fn a_question_is_no_second_advice() {
        let text =
            |problem: &str| ClientError::Unreachable { address: address(), problem: problem.to_owned() }.to_string();
        assert!(text("refused (os error 111)").ends_with("(os error 111); is informerd serving there?"));
        let known = with_hint(&TLS_HINTS, &"https://h:1".parse().unwrap(), "InvalidContentType".to_owned());
        assert!(text(&known).ends_with("the server does not speak TLS: use http://)"));
    }
}
