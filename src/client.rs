//! Client library: the layer below the command line and below every program that embeds, mirrors or records a resource.
//!
//! ```text
//!   Client ──▶ list, by_index, get, changes, values, …     one response, or one typed error
//!      │
//!      ├────▶ until                                       reads a Watch until its events have met conditions
//!      └────▶ Watch ──▶ Update, Update, …                   resumes by itself, until it is dropped
//!              │ ▲
//!              ▼ │ messages of successive streams (the rules of client-go's RetryWatcher), which a Follower reads
//!             View: key → uid, version, hash                the state that the user holds
//!
//!   Informer: Streams, Follower ──▶ deltas ──▶ cache::SharedInformer        the same in a task, with a cache of the objects
//! ```
//!
//! The work of a call or a watch happens in the task that polls it. An informer has tasks of its own; the watches of
//! [`Client::subscribing`] share a task that reads their stream.
//!
//! - **A watch is complete.** Folding the events of a [`Watch`] gives the server's state, across broken streams, restarts,
//!   expired versions and new lineages, even when a stream breaks in the middle of its initial events. The one exception is
//!   opt-in: with [`WatchOptions::heal_drops`] set to false, under DROP, [`Update::Dropped`] reports missing events in band.
//! - **Each change is delivered once.** Events that a server repeats after a resume are filtered out; after a relist only the
//!   difference to the user's state is delivered.
//! - **An error names the next step.** The variants of [`ClientError`] differ by what the caller does next; its text is one line.
//! - **Everything has a bound**: connecting (5 s), a message (64 MiB), silence (three bookmark intervals; 30 s for a response,
//!   100 s for the first message of a resume) and delays (10 s, plus up to 60 s that the server requests). The memory of a watch
//!   grows with the number of selected objects, not with their changes.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use informerd::client::{Client, Query, Update, WatchOptions};
//!
//! let client = Client::connect(&"127.0.0.1:50051".parse()?).await?;
//! let mut watch = client.watch(&Query::of("pods"), &WatchOptions::default());
//! while let Some(update) = watch.next().await {
//!     if let Update::Event { event_type, object, .. } = update? {
//!         println!("{event_type:?} {}/{}", object.namespace, object.name);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Not part of this module: watches that begin without the initial events.

mod channel;
mod connection;
mod error;
mod follower;
mod informer;
mod open_batch;
mod query;
mod streams;
mod subscription;
mod until;
mod update;
mod view;
mod watch;
mod watch_event;
mod watch_messages;
mod watch_options;

#[cfg(feature = "server")]
pub(crate) use channel::Connection;
pub use connection::{Client, GetResult, ListResult};
pub use error::{ClientError, ServerStatus};
pub use informer::{Freshness, FreshnessState, Informer, InformerBuilder, InformerError, ReadError};
pub(crate) use open_batch::OpenBatch;
pub use query::Query;
pub use until::{UntilEvent, UntilOptions};
pub use update::{Note, Progress, Update};
pub use watch::Watch;
pub use watch_event::WatchEventEncoder;
pub use watch_messages::WatchMessages;
pub use watch_options::WatchOptions;

pub use crate::net::{AddressError, ServerAddress, TlsOptions};
