//! The upstreams: each is a [`ListerWatcher`](crate::cache::ListerWatcher) of its own, and knows nothing of who reads it.

pub mod etcd;
pub mod files;
pub mod kube;
pub mod relay;
pub mod stream;

mod dial;
mod digest;
mod lineage;
mod problems;
mod text;
mod watch_event;

#[cfg(test)]
mod tests;
