//! informerd over real upstreams: etcd 3.6, Debian's 3.4 and the API server of Kubernetes, killed, stopped, cut off, compacted
//! and restored.
//!
//! `tests/upstreams/run` gets what it needs and starts it; `cargo test` leaves it out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod aggregated;
mod apiserver;
mod authority;
mod chart;
mod contact;
mod controller;
#[cfg(feature = "kubernetes-api")]
mod controllers;
mod crd;
mod deploy;
mod etcd;
mod expiry;
mod faults;
mod follow;
#[allow(dead_code, reason = "the tests of the source use the rest")]
#[path = "../../src/source/tests/gate.rs"]
mod gate;
mod hops;
mod image;
mod journal;
mod killable;
mod kube;
#[cfg(feature = "kubernetes-api")]
mod kube_rs;
#[cfg(feature = "kubernetes-api")]
mod kubernetes;
mod manifest;
mod metadata;
mod monitoring;
mod namespaces;
#[cfg(feature = "kubernetes-api")]
mod parameters;
mod pipe;
mod pod;
mod port;
mod quiet;
mod reconciler;
mod record;
mod requests;
mod restore;
mod root;
mod selection;
mod served;
mod shards;
#[cfg(feature = "kubernetes-api")]
mod state_metrics;
#[cfg(feature = "kubernetes-api")]
mod storage;
mod storm;
#[cfg(feature = "kubernetes-api")]
mod targets;
mod truth;
mod verify;
#[cfg(feature = "kubernetes-api")]
mod versions;
mod warm;
mod warm_kube;
mod work_queue;

use std::time::Duration;

/// Deadline longer than any step here takes, and short enough to find one that hangs.
const DEADLINE: Duration = Duration::from_secs(60);
