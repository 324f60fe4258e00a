//! The upstreams. Each is a separate [`ListerWatcher`](crate::cache::ListerWatcher) and does not depend on its readers.

#[cfg(feature = "server")]
pub mod etcd;
#[cfg(feature = "server")]
pub mod files;
#[cfg(feature = "kube")]
pub mod kube;
#[cfg(all(not(feature = "kube"), feature = "server"))]
#[path = "source/kube/without.rs"]
pub mod kube;
#[cfg(feature = "client")]
pub mod relay;
#[cfg(feature = "server")]
pub mod stream;

mod digest;
#[cfg(any(feature = "kube", feature = "server"))]
mod lineage;
#[cfg_attr(not(any(feature = "kube", feature = "server")), expect(dead_code, reason = "a relay needs a part of it"))]
mod problems;
#[cfg_attr(not(any(feature = "kube", feature = "server")), expect(dead_code, reason = "a relay needs a part of it"))]
mod text;
#[cfg(feature = "server")]
mod uids;
#[cfg(any(feature = "kube", feature = "server"))]
mod watch_event;

#[cfg(test)]
mod tests;
