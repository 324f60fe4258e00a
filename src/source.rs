//! The upstreams. Each is a separate [`ListerWatcher`](crate::cache::ListerWatcher) and does not depend on its readers.

#[cfg(feature = "server")]
pub mod etcd;
#[cfg(feature = "server")]
pub mod files;
#[cfg(feature = "kube")]
pub mod kube;
#[cfg(not(feature = "kube"))]
#[path = "source/kube/without.rs"]
pub mod kube;
#[cfg(feature = "server")]
pub mod relay;
#[cfg(feature = "server")]
pub mod stream;

mod digest;
mod lineage;
mod problems;
mod text;
#[cfg(feature = "server")]
mod uids;
mod watch_event;

#[cfg(test)]
mod tests;
