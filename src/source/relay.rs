//! The `informerd` source: a resource of another informerd, or a selection of its objects, served on unchanged. A server with
//! such a source is a relay.
//!
//! ```text
//!   Upstream ─┬─▶ list: a Watch from the initial events on ─▶ objects ────────┬─▶ Position (version, history, last change)
//!   (client)  │                               └── continues as ─▶ RelayWatch ─┤
//!             └─▶ watch: a Watch after the position ────────────▶ RelayWatch ─┘
//!                      ▲                                              └─▶ batches, bookmarks, state of the origin
//!                      └── with bookmarks 10 times a second while a caller waits (ProgressDemand)
//! ```
//!
//! The application makes one source for each resource from its configuration; the resource's Reflector drives it. Sources of one
//! upstream share a connection, and their watches one stream, where the upstream has Subscribe ([`RelayClients`]). A relay's clients receive only what a client of the origin may receive:
//!
//! - The relay watches RAW and under REPLAY, and fails before it serves anything if the upstream does not allow that. Each
//!   object keeps its version, uid, labels, type and bytes.
//! - The upstream evaluates the selection. An object that enters it is an addition here, one that leaves it a deletion. To the
//!   history it is a part of the identity: a position, and the last known change, are those of the selection.
//! - A batch is applied when the version advances, whole. A relist upstream is a relist here: its deletions are inferred, and
//!   no client can resume from a version inside of it.
//! - There is one watch at a time, whatever the number of clients. After a break the source resumes at its position, also
//!   after a restart (`WarmStart`).
//! - A rewritten history is detected: by the upstream's `HISTORY_CHANGED`, by versions of another lineage and, if the upstream
//!   has another name (a restart, or another replica), by the last known change (`resume_check`, `state`).
//! - The source waits for an upstream that is behind, as another replica may be. Only one that is SYNCED and behind for longer
//!   than `resume_timeout` has another history.
//! - A path of servers leads to the origin. A relay that finds itself on it, or 16 others, reports an error.
//!
//! A relay that forwards the identity of its callers also requests from the upstream what each of them may read ([`RelayReviewer`]).
//!
//! Waiting, relisting and backing off are the Reflector's, deliberately. The client library's own
//! [`Watch`](crate::client::Watch) is not used, because it hides batches, relists and histories, which a relay passes on.

mod clients;
mod live;
mod message;
mod resume_check;
#[cfg(feature = "server")]
mod reviewer;
mod source;
mod state;
mod upstream;

use std::{path::PathBuf, time::Duration};

#[cfg(feature = "server")]
pub use self::reviewer::RelayReviewer;
pub use self::{clients::RelayClients, source::RelaySource};
use crate::{
    client::Query,
    net::{ServerAddress, TlsOptions},
};

/// Configuration of a [`RelaySource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayConfig {
    /// Address of the upstream.
    pub endpoint: ServerAddress,
    /// Resource at the upstream, and the selection of its objects. The bodies are the upstream's bytes, whatever the format.
    pub query: Query,
    /// True if the objects may be Secrets. If not, and the upstream has them from Kubernetes or relays them, the source reports an
    /// error in place of a list with a Secret.
    pub allows_secrets: bool,
    /// True if objects of an earlier run are held, of which the source has no version: the list of an upstream that has not
    /// been able to read all objects must not replace them.
    pub holds_earlier: bool,
    /// True if the upstream decides what each caller may read, through a [`RelayReviewer`]; the source itself does not read it.
    pub forwards_identity: bool,
    /// TLS of an endpoint with `https`: files that are read at each connection.
    pub tls: TlsOptions<PathBuf>,
    /// Interval of the upstream's bookmarks. After three of these without a message the source gives the stream up.
    pub heartbeat: Duration,
    /// Interval of bookmarks while a caller waits for a version; the least that informerd grants is 100 ms.
    pub progress_interval: Duration,
    /// Time limit for the upstream to answer a call that waits for nothing.
    pub answer_timeout: Duration,
    /// Time limit for the upstream to reach the version to resume from: more than its `future_wait`. An upstream with another
    /// name that is SYNCED and does not reach it for so long has another history.
    pub resume_timeout: Duration,
}

// === impl RelayConfig ===

impl RelayConfig {
    /// Returns the files that a connection is made from.
    pub(self) fn files(&self) -> Vec<PathBuf> {
        let TlsOptions { authority, identity, .. } = &self.tls;
        let identity = identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        authority.iter().chain(identity).cloned().collect()
    }

    /// Returns the configuration of a whole resource, without TLS: a bookmark every 5 seconds, and 10 times a second while a
    /// caller waits.
    pub fn new(endpoint: ServerAddress, resource: &str) -> Self {
        Self {
            endpoint,
            query: Query::of(resource),
            allows_secrets: true,
            holds_earlier: false,
            forwards_identity: false,
            tls: TlsOptions::default(),
            heartbeat: Duration::from_secs(5),
            progress_interval: Duration::from_millis(100),
            answer_timeout: Duration::from_secs(10),
            resume_timeout: Duration::from_secs(100),
        }
    }
}
