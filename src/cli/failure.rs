//! Failures of commands: a message for the user, and the exit code.

use std::io;

use tonic::Code;

use super::print::{escape, write_line};
use crate::{app::AppError, client::ClientError, config::ConfigErrors};

/// Reason why a command ends before it is done.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// First line: the error; further lines: the names to choose from. None if there is nothing to say.
    pub(super) message: Option<String>,
    pub(super) exit_code: u8,
}

/// Exit code of a failure at run time.
pub(super) const FAILED: u8 = 1;
/// Exit code of an invalid command line or configuration; clap's own code for it.
pub(super) const WRONG_USAGE: u8 = 2;
/// Exit code if a resource or an object does not exist.
pub(super) const NOT_FOUND: u8 = 3;
/// Exit code if the server cannot be reached or does not respond in time.
pub(super) const UNAVAILABLE: u8 = 4;
/// Exit code if the server denies the call to this user.
pub(super) const NOT_ALLOWED: u8 = 5;

/// Largest number of names that a message lists.
const MAX_KNOWN: usize = 20;

// === impl Failure ===

impl Failure {
    pub(super) fn new(exit_code: u8, message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), exit_code }
    }

    /// Returns the failure for a name that the server does not have.
    pub(super) fn unknown(what: &str, wanted: &str, known: &[&str]) -> Self {
        Self::new(NOT_FOUND, escape(&unknown(what, wanted, known)))
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(WRONG_USAGE, message)
    }

    /// Returns the failure of a command whose runtime cannot be started.
    pub(super) fn start(error: &io::Error) -> Self {
        Self::new(FAILED, format!("cannot start: {error}"))
    }

    /// Prints the message on stderr.
    pub(super) fn print(&self) {
        if let Some(message) = &self.message {
            write_line(&format!("error: {message}"));
        }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        // Each line is an error of its own.
        Self::usage(errors.lines().collect::<Vec<_>>().join("\nerror: "))
    }
}

impl From<AppError> for Failure {
    fn from(error: AppError) -> Self {
        Self::new(FAILED, error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The reader of stdout has closed it and needs no more.
            io::ErrorKind::BrokenPipe => Self { message: None, exit_code: 0 },
            _ => Self::new(FAILED, format!("cannot write the output: {error}")),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let message = unknown_name(&error).unwrap_or_else(|| match &error {
            ClientError::Refused(status) if status.reason.is_none() && status.code == Code::Unimplemented => {
                format!("{error}; is this server an informerd?")
            }
            // The server's own message for these needs no addition.
            ClientError::Refused(status)
                if status.reason.is_some() && matches!(status.code, Code::NotFound | Code::InvalidArgument) =>
            {
                status.message.clone()
            }
            error => error.to_string(),
        });
        Self::new(exit_code(error.code()), escape(&message))
    }
}

/// Returns the exit code for a gRPC status; the table is in the help of every command.
pub(super) fn exit_code(code: Code) -> u8 {
    match code {
        Code::Ok => 0,
        Code::InvalidArgument => WRONG_USAGE,
        Code::NotFound => NOT_FOUND,
        Code::Unavailable | Code::DeadlineExceeded => UNAVAILABLE,
        Code::PermissionDenied | Code::Unauthenticated => NOT_ALLOWED,
        _ => FAILED,
    }
}

/// Returns the message for a resource or an index that the server does not have.
fn unknown_name(error: &ClientError) -> Option<String> {
    let what = match error.reason()? {
        "RESOURCE_NOT_FOUND" => "resource",
        "INDEX_NOT_FOUND" => "index",
        _ => return None,
    };
    let wanted = error.metadata(what)?;
    let known: Vec<&str> = error.metadata("known")?.split(',').filter(|name| !name.is_empty()).collect();
    Some(unknown(what, wanted, &known))
}

fn unknown(what: &str, wanted: &str, known: &[&str]) -> String {
    let meant = nearest(wanted, known).map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
    let more = known.len().saturating_sub(MAX_KNOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let listed = known[..known.len().min(MAX_KNOWN)].join(", ");
    format!("{what} {wanted:?} not found{meant} (known: {listed}{more})")
}

/// Returns the known name that was probably meant: the same in another case or number, the one of a kubectl short name, one
/// with this prefix, or one within a small edit distance.
fn nearest<'a>(wanted: &str, known: &[&'a str]) -> Option<&'a str> {
    let wanted = wanted.to_lowercase();
    if wanted.is_empty() {
        return None;
    }
    let find = |is: &dyn Fn(&str) -> bool| known.iter().find(|name| is(&name.to_lowercase())).copied();
    let short = SHORT_NAMES.iter().find(|(short, _)| *short == wanted).map(|(_, name)| *name);
    find(&|name| name == wanted)
        .or_else(|| find(&|name| plurals(&wanted).contains(&name.to_owned()) || plurals(name).contains(&wanted)))
        .or_else(|| find(&|name| Some(name) == short))
        .or_else(|| find(&|name| wanted.len() > 1 && name.starts_with(&wanted)))
        .or_else(|| {
            let distance = |name: &&str| strsim::damerau_levenshtein(&wanted, &name.to_lowercase());
            let name = known.iter().min_by_key(|name| distance(name))?;
            (distance(name) <= (wanted.chars().count() / 3).max(1)).then_some(*name)
        })
}

fn plurals(name: &str) -> [String; 3] {
    let ies = name.strip_suffix('y').map_or_else(String::new, |stem| format!("{stem}ies"));
    [format!("{name}s"), format!("{name}es"), ies]
}

/// Short names of kubectl that are not prefixes of the full names.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("cm", "configmaps"),
    ("cj", "cronjobs"),
    ("crd", "customresourcedefinitions"),
    ("ds", "daemonsets"),
    ("ep", "endpoints"),
    ("hpa", "horizontalpodautoscalers"),
    ("ing", "ingresses"),
    ("netpol", "networkpolicies"),
    ("ns", "namespaces"),
    ("pdb", "poddisruptionbudgets"),
    ("pv", "persistentvolumes"),
    ("pvc", "persistentvolumeclaims"),
    ("rs", "replicasets"),
    ("sa", "serviceaccounts"),
    ("sts", "statefulsets"),
    ("svc", "services"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ServerStatus;

    const KNOWN: [&str; 5] = ["configmaps", "deployments", "networkpolicies", "pods", "services"];

    fn refused(code: Code, reason: Option<&str>, metadata: &[(&str, &str)]) -> (String, u8) {
        let error = ClientError::Refused(Box::new(ServerStatus {
            code,
            message: "as the server says it".to_owned(),
            reason: reason.map(str::to_owned),
            metadata: metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            retry_after: None,
        }));
        let Failure { message, exit_code } = Failure::from(error);
        (message.unwrap(), exit_code)
    }

    #[test]
    fn the_nearest_known_name_is_found() {
        let table = [
            ("pod", Some("pods")),
            ("Pods", Some("pods")),
            ("POD", Some("pods")),
            ("podss", Some("pods")),
            ("pdos", Some("pods")),
            ("po", Some("pods")),
            ("deploy", Some("deployments")),
            ("deploymnets", Some("deployments")),
            ("svc", Some("services")),
            ("cm", Some("configmaps")),
            ("networkpolicy", Some("networkpolicies")),
            ("netpol", Some("networkpolicies")),
            ("ns", None),
            ("nodes", None),
            ("x", None),
            ("", None),
        ];
        for (wanted, expected) in table {
            assert_eq!(nearest(wanted, &KNOWN), expected, "{wanted}");
        }
        assert_eq!(nearest("pods", &["pod"]), Some("pod"));
        assert_eq!(nearest("pod", &[]), None);
    }

    #[test]
    fn an_unknown_name_is_reported_with_the_known_ones() {
        let known = [("resource", "pod"), ("known", "pods,services")];
        let (message, exit_code) = refused(Code::NotFound, Some("RESOURCE_NOT_FOUND"), &known);
        assert_eq!(message, "resource \"pod\" not found; did you mean \"pods\"? (known: pods, services)");
        assert_eq!(exit_code, NOT_FOUND);
        let known = [("index", "zone"), ("known", "app,namespace")];
        let (message, exit_code) = refused(Code::InvalidArgument, Some("INDEX_NOT_FOUND"), &known);
        assert_eq!(message, "index \"zone\" not found (known: app, namespace)");
        assert_eq!(exit_code, WRONG_USAGE);
        let many = (0..30).map(|n| format!("r{n:02}")).collect::<Vec<_>>().join(",");
        let (message, _) =
            refused(Code::NotFound, Some("RESOURCE_NOT_FOUND"), &[("resource", "pods"), ("known", &many)]);
        assert!(message.ends_with("r18, r19 and 10 more)"), "{message}");
    }

    #[test]
    fn other_errors_have_the_message_of_the_server() {
        let own = "as the server says it";
        let index = refused(Code::InvalidArgument, Some("INDEX_NOT_FOUND"), &[("field", "index")]);
        assert_eq!(index, (own.to_owned(), WRONG_USAGE), "of a server that does not tell what there is");
        assert_eq!(refused(Code::NotFound, Some("OBJECT_NOT_FOUND"), &[]), (own.to_owned(), NOT_FOUND));
        let draining = refused(Code::Unavailable, Some("DRAINING"), &[]);
        assert_eq!(draining, (format!("{own} (UNAVAILABLE / DRAINING)"), UNAVAILABLE));
        let (message, exit_code) = refused(Code::Unimplemented, None, &[]);
        assert!(message.ends_with("is this server an informerd?"), "{message}");
        assert_eq!(exit_code, FAILED);
    }

    #[test]
    fn a_status_becomes_an_exit_code() {
        let table = [
            (Code::Ok, 0),
            (Code::Internal, 1),
            (Code::OutOfRange, 1),
            (Code::Unimplemented, 1),
            (Code::ResourceExhausted, 1),
            (Code::InvalidArgument, 2),
            (Code::NotFound, 3),
            (Code::Unavailable, 4),
            (Code::DeadlineExceeded, 4),
            (Code::PermissionDenied, 5),
            (Code::Unauthenticated, 5),
        ];
        for (code, expected) in table {
            assert_eq!(exit_code(code), expected, "{code:?}");
        }
    }

    #[test]
    fn a_message_cannot_act_on_the_terminal_and_a_closed_pipe_is_no_error() {
        let failure = Failure::from(ClientError::Request { problem: "a\nb\u{1b}[2J".to_owned() });
        assert_eq!(failure.message.as_deref(), Some("a\\nb\\u{1b}[2J"));
        let closed = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(closed, Failure { message: None, exit_code: 0 });
        assert_eq!(Failure::from(io::Error::other("full")).exit_code, FAILED);
    }
}
