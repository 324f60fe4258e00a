//! Cache of each resource: one upstream list and watch, one writer, any number of readers.
//!
//! ```text
//!   ListerWatcher ──▶ Reflector ──▶ RealFifo ──▶ Informer task ──▶ Indexer ──▶ Snapshot (List, ByIndex, Get)
//!                     list+watch    ordered      one writer        │
//!                                   deltas                         └──▶ watch::Broadcaster ──▶ cursors (Watch)
//! ```
//!
//! - One task per resource writes ([`Informer`]): store, indexes and applied version change together, in upstream order.
//! - Readers take a [`Snapshot`] in O(1) and hold no lock that the writer needs.
//! - A relist is one element of the queue. The indexer turns it into one batch: the difference to the store.
//! - Each resource has one upstream watch, whatever the number of readers and watchers ([`Reflector`]).
//! - A [`SnapshotFile`] holds a state and the proof of its upstream's history. The next start serves it at once, as STALE, and
//!   resumes the watch from its version.
//!
//! Not in this module: the upstreams (`source`), and everything that depends on gRPC.

mod ahead;
mod backoff;
mod checkpoint;
mod demand;
mod health;
mod history;
mod indexer;
mod informer;
mod lister_watcher;
mod problem;
mod provenance;
mod real_fifo;
mod reflector;
mod snapshot_file;

pub use backoff::{Backoff, BackoffConfig};
pub use checkpoint::{Checkpoint, Checkpoints};
pub use demand::{Demand, Waiting};
pub use health::{HealthReport, SourceHealth, SyncState};
pub use history::{Backlog, History, NotInHistory};
pub use indexer::{Indexer, Snapshot};
pub use informer::{Informer, InformerConfig, InformerHandle, InformerStats, JoinError, Joined, Start, Stopped};
pub use lister_watcher::{Evidence, List, ListVersion, ListerWatcher, SourceError, WarmStart, Watch};
pub use problem::{Problem, ProblemChanges, ProblemReason, ProblemReport};
pub use provenance::Provenance;
pub use real_fifo::{Delta, Events, FifoBounds, RealFifo};
pub use reflector::{Reflector, ReflectorConfig, ReflectorStats};
#[cfg(any(test, fuzzing))]
pub(crate) use snapshot_file::fuzzing;
pub use snapshot_file::{
    SavedState, SnapshotDirectory, SnapshotDirectoryError, SnapshotFile, SnapshotFileError, SnapshotFileStats,
};
