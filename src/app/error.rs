//! Errors that end the server, and the names of tasks whose end is one.

use std::{fmt, io, path::PathBuf};

use tokio::task::JoinError;

use crate::{
    auth::FileError,
    cache::SnapshotDirectoryError,
    config::ValueError,
    source::{files::DirectoryError, stream::StreamError},
};

/// Reason why the server could not start, or ended without a signal.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// Directory that cannot be served.
    #[error("resource {resource}: {error}")]
    Directory {
        /// Name of the resource.
        resource: String,
        /// Cause, and what to do about it.
        error: DirectoryError,
    },
    /// Stream that cannot be read.
    #[error("resource {resource}: {error}")]
    Stream {
        /// Name of the resource.
        resource: String,
        /// Cause, and what to do about it.
        error: StreamError,
    },
    /// Thread of a resource that cannot be started.
    #[error("resource {resource}: cannot start its thread: {error}; raise the limits on threads and open files")]
    Thread {
        /// Name of the resource.
        resource: String,
        /// Error of the system.
        error: io::Error,
    },
    /// Threads for selections that cannot be started.
    #[error("cannot start the threads that evaluate selections: {error}; raise the limit on threads")]
    BulkThreads {
        /// Error of the system.
        error: io::Error,
    },
    /// Configured file of a source, such as a certificate, that cannot be read.
    #[error("resource {resource}: {problem}; correct the path, or give the user of informerd permission to read it")]
    Upstream {
        /// Name of the resource.
        resource: String,
        /// File, and cause.
        problem: String,
    },
    /// Missing cluster, in the place where a kube source is configured to find one.
    #[error("resource {resource}: {problem}")]
    Kube {
        /// Name of the resource.
        resource: String,
        /// File, and what to do about it.
        problem: String,
    },
    /// Secrets that would be served without a key that allows it.
    #[error("{error}")]
    Secrets {
        /// Resource, and what to do about it.
        error: ValueError,
    },
    /// Resource of the program that cannot have its name, or has no source; or an upstream that cannot be listed.
    #[error("resource {resource}: {problem}")]
    Name {
        /// Name of the resource.
        resource: String,
        /// Cause, and what to do about it.
        problem: String,
    },
    /// TLS that cannot be served.
    #[error("tls: {0}")]
    Tls(FileError),
    /// File of an authenticator that cannot be used, or missing cluster for reviews.
    #[error("authentication: {problem}")]
    Authentication {
        /// File, and cause.
        problem: String,
    },
    /// File of rules that cannot be used, or missing cluster for reviews.
    #[error("authorization: {problem}")]
    Authorization {
        /// File, and cause.
        problem: String,
    },
    /// Audit log that cannot be written.
    #[error("audit.file: {} cannot be opened: {error}; correct the path, or give the user of informerd permission to write it", path.display())]
    Audit {
        /// Path as configured.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// Directory that cannot hold snapshot files.
    #[error("state_dir: {error}")]
    StateDirectory {
        /// Cause, and what to do about it.
        error: SnapshotDirectoryError,
    },
    /// Address that cannot be listened on.
    #[error("cannot listen on {address} for {what}: {error}; {hint}")]
    Listen {
        /// Purpose: "gRPC" or "admin".
        what: &'static str,
        /// Address as configured.
        address: String,
        /// Error of the system.
        error: io::Error,
        /// Advice for the user.
        hint: &'static str,
    },
    /// End of a task that should run for ever.
    #[error("{task} ended unexpectedly{detail}")]
    TaskEnded {
        /// Name of the task.
        task: String,
        /// Cause, if the task reported one.
        detail: String,
    },
}

// === impl AppError ===

impl AppError {
    pub(super) fn listen(what: &'static str, address: String, error: io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse if what == "admin" => {
                "stop the process that uses it, choose another address with --admin-listen, or none: --admin-listen none"
            }
            io::ErrorKind::AddrInUse => "stop the process that uses it, or choose another address with --listen",
            io::ErrorKind::PermissionDenied => "choose a port above 1023, or a path that this user can write to",
            io::ErrorKind::NotFound => "create the directory of the socket, or choose another path with --listen",
            _ => "choose an address of this machine",
        };
        Self::Listen { what, address, error, hint }
    }

    pub(super) fn authentication(problem: impl fmt::Display) -> Self {
        Self::Authentication { problem: problem.to_string() }
    }

    pub(super) fn reflection(error: &tonic_reflection::server::Error) -> Self {
        Self::TaskEnded { task: "reflection".to_owned(), detail: format!(": {error}") }
    }

    pub(super) fn ended(ended: Result<String, JoinError>) -> Self {
        match ended {
            Ok(task) => Self::TaskEnded { task, detail: String::new() },
            Err(error) => Self::TaskEnded { task: "a task".to_owned(), detail: format!(": {error}") },
        }
    }
}

/// Runs a task to its end, and returns its name.
pub(super) async fn named(name: impl Into<String>, task: impl Future<Output = ()>) -> String {
    let name = name.into();
    task.await;
    name
}
