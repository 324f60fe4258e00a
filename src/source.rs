//! The upstreams. Each is a separate [`ListerWatcher`](crate::cache::ListerWatcher) and does not depend on its readers.

pub mod etcd;
pub mod files;
pub mod kube;
pub mod relay;
pub mod stream;

mod digest;
mod lineage;
mod problems;
mod text;
mod uids;
mod watch_event;

#[cfg(test)]
mod tests;
