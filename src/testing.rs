//! Fakes for tests of code that uses informerd: watches, a source in memory, and a server in the same process.
//!
//! | client-go and apimachinery | here |
//! |---|---|
//! | `watch.NewFake`, `watch.NewFakeWithChanSize` | [`FakeWatcher`] |
//! | `watch.NewRaceFreeFake` | [`RaceFreeFakeWatcher`] |
//! | `cache/testing.FakeControllerSource` | [`FakeSource`] |
//! | `fake.NewSimpleClientset` | [`serve`] with a [`FakeSource`]: the real server, and a client of it |
//!
//! A fake is the sending half, and clones share it; its `watch()` is the receiving half, a
//! [`Stream`](tokio_stream::Stream). Dropping that stops the watch, which [`FakeWatcher::is_stopped`] shows.
//!
//! The feature `testing` adds this module. Nothing in it is for production: a misuse panics, and memory has no bound.

mod fake_source;
mod fake_watcher;
mod race_free;
#[cfg(feature = "server")]
mod server;

pub use fake_source::FakeSource;
pub use fake_watcher::{FakeItem, FakeWatch, FakeWatcher, Stopped};
pub use race_free::{DEFAULT_CHAN_SIZE, RaceFreeFakeWatcher};
#[cfg(feature = "server")]
pub use server::{TestServer, serve};

#[cfg(test)]
mod tests;
