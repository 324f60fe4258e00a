//! Errors that end the server, and the names of tasks whose end is one.

use std::{fmt, io, path::Path};

use tokio::task::JoinError;

/// Reason why the server could not start, or ended without a signal, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AppError(String);

// === impl AppError ===

impl AppError {
    pub(super) fn new(problem: impl fmt::Display) -> Self {
        Self(problem.to_string())
    }

    /// Creates the error of a section of the configuration, or of a key.
    pub(super) fn of(section: &str, problem: impl fmt::Display) -> Self {
        Self(format!("{section}: {problem}"))
    }

    pub(super) fn of_resource(resource: &str, problem: impl fmt::Display) -> Self {
        Self(format!("resource {resource}: {problem}"))
    }

    /// Creates the error of a thread of a resource that cannot be started.
    pub(super) fn thread(resource: &str, error: &io::Error) -> Self {
        let advice = "raise the limits on threads and open files";
        Self::of_resource(resource, format_args!("cannot start its thread: {error}; {advice}"))
    }

    /// Creates the error of an audit log that cannot be written.
    pub(super) fn audit(path: &Path, error: &io::Error) -> Self {
        let advice = "correct the path, or give the user of informerd permission to write it";
        Self::of("audit.file", format_args!("{} cannot be opened: {error}; {advice}", path.display()))
    }

    pub(super) fn listen(what: &str, address: impl fmt::Display, error: &io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse if what == "admin" => {
                "stop the process that uses it, choose another address with --admin-listen, or none: --admin-listen none"
            }
            io::ErrorKind::AddrInUse => "stop the process that uses it, or choose another address with --listen",
            io::ErrorKind::PermissionDenied => "choose a port above 1023, or a path that this user can write to",
            io::ErrorKind::NotFound => "create the directory of the socket, or choose another path with --listen",
            _ => "choose an address of this machine",
        };
        Self(format!("cannot listen on {address} for {what}: {error}; {hint}"))
    }

    pub(super) fn authentication(problem: impl fmt::Display) -> Self {
        Self::of("authentication", problem)
    }

    pub(super) fn reflection(error: &tonic_reflection::server::Error) -> Self {
        Self(format!("reflection ended unexpectedly: {error}"))
    }

    pub(super) fn ended(ended: Result<String, JoinError>) -> Self {
        match ended {
            Ok(task) => Self(format!("{task} ended unexpectedly")),
            Err(error) => Self(format!("a task ended unexpectedly: {error}")),
        }
    }
}

/// Runs a task to its end, and returns its name.
pub(super) async fn named(name: impl Into<String>, task: impl Future<Output = ()>) -> String {
    let name = name.into();
    task.await;
    name
}
