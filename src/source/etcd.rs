//! The `etcd` source: every key below a prefix of an etcd cluster, version 3.4 or later.
//!
//! ```text
//!                ┌─▶ list ──▶ objects, ResumePoint ──┐
//!   Connections ─┤                                   ├──▶ KnownCluster (identity, position) ──▶ history check
//!                └─▶ watch ─▶ transactions ──────────┘
//!                      ▲
//!                      └── progress requests: when the watch is idle, or 10 times a second while a caller waits (ProgressDemand)
//! ```
//!
//! The application makes one source for each resource from its configuration, each with a connection of its own; the
//! resource's Reflector drives it. `object` converts keys and values to objects, `resume_check` detects a rewritten history.
//!
//! - Versions are etcd's revisions: a client may resume on any replica that serves the same cluster.
//! - A transaction is one complete batch, however many messages it came in.
//! - A list, and the first response over each connection, are linearizable reads: agreed by the cluster, not one member's view.
//! - After a break the watch resumes; it delivers nothing before the source has checked that the history is the same.
//! - The source moves to the next endpoint only when one fails, and only forward in the list.
//!
//! Waiting, relisting and backing off are the Reflector's, deliberately.

mod connection;
mod list;
mod object;
mod pb;
mod resume_check;
mod source;
mod state;
mod watch;

#[cfg(test)]
mod tests;

use std::{path::PathBuf, time::Duration};

pub use self::source::EtcdSource;
#[cfg(any(test, fuzzing))]
pub(crate) use self::watch::fuzzing;
use crate::net::{ServerAddress, TlsOptions};

/// Configuration of an [`EtcdSource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Name of the resource, for the log.
    pub resource: String,
    /// Addresses of the members of one cluster, with `http` or `https`; at least one.
    pub endpoints: Vec<ServerAddress>,
    /// Prefix of the keys, such as `/settings/`; empty for all keys.
    pub prefix: String,
    /// User, and the file that holds the password; a line end after the password is ignored.
    pub credentials: Option<(String, PathBuf)>,
    /// TLS of endpoints with `https`: files that are read at each connection.
    pub tls: TlsOptions<PathBuf>,
    /// Idle time after which the source checks that etcd responds.
    pub heartbeat: Duration,
    /// Time within which etcd has to answer a request.
    pub answer_timeout: Duration,
    /// Interval of progress requests while a caller waits for a version.
    pub progress_interval: Duration,
}

// === impl EtcdConfig ===

impl EtcdConfig {
    /// Returns the files that a connection is made from.
    pub(self) fn files(&self) -> Vec<PathBuf> {
        let TlsOptions { authority, identity, .. } = &self.tls;
        let identity = identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        let password = self.credentials.iter().map(|(_, path)| path);
        password.chain(authority).chain(identity).cloned().collect()
    }

    /// Returns a configuration without credentials and TLS: a check of contact after 5 idle seconds, 10 seconds to answer,
    /// progress requests every 100 ms while a caller waits.
    pub fn new(resource: &str, endpoints: Vec<ServerAddress>, prefix: &str) -> Self {
        Self {
            resource: resource.to_owned(),
            endpoints,
            prefix: prefix.to_owned(),
            credentials: None,
            tls: TlsOptions::default(),
            heartbeat: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
            progress_interval: Duration::from_millis(100),
        }
    }
}
