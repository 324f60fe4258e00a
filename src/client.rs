//! The client library: what everything of ours that talks to an informerd stands on.
//!
//! ```text
//!   Client ──▶ list, by_index, get, values, resources      one answer, or one typed error
//!      │
//!      ├────▶ until                                       one event, waited for across calls
//!      └────▶ Watch ──▶ Update, Update, …                   resumes by itself, until it is dropped
//!              │ ▲
//!              ▼ │ messages of one stream after the other (SEMANTICS: RetryWatcher's rules)
//!             View: key → uid, version, hash                what its user has been given
//! ```
//!
//! Written by nobody but its user's task: there is no task and no queue of its own. Used by the command line, by anything
//! that mirrors or records a resource, and by whoever embeds informerd.
//!
//! - **A watch is complete.** Folding the events of a [`Watch`] gives the server's state, across broken streams, restarts,
//!   expired versions and new lineages, even when a stream breaks in the middle of its initial events. The one exception is
//!   asked for: [`WatchOptions::heal_drops`] set to false, under DROP; then [`Update::Dropped`] says so in band.
//! - **A change is told once.** What a server repeats after a resume is taken out; after a relist only the difference to
//!   what its user has been given comes through.
//! - **An error says what to do.** [`ClientError`] is typed by the next step of who gets it, and one line long.
//! - **Everything has a bound**: connecting (5 s), a message (64 MiB), silence (three bookmark intervals; 30 s for an answer, 100 s
//!   for one to a resume), delays (10 s, and
//!   what the server asks for up to 60 s). What a watch holds grows with the objects of its selection, not with their
//!   changes.
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
//! Deliberately not here: a cache to look things up in (fold the updates, or run an `Informer`), TLS, and watches that begin
//! without the initial events.

mod address;
mod connection;
mod error;
mod query;
mod until;
mod update;
mod view;
mod watch;

pub use address::{AddressError, ServerAddress, TlsOptions};
pub use connection::{Client, Got, Listed};
pub use error::{ClientError, ServerStatus};
pub use query::Query;
pub use until::UntilOptions;
pub use update::{Note, Progress, Update};
pub use watch::{Watch, WatchOptions};
