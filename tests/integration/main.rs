//! Integration tests: one binary, one sandbox, one file for each topic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod attacks;
mod audit;
mod authentication;
#[path = "../upstreams/authority.rs"]
mod authority;
mod authorization;
mod bench;
mod canaries;
mod checker;
mod client;
mod client_commands;
mod client_informer;
mod command_line;
mod completion;
mod compression;
mod conformance;
mod connections;
mod contract;
#[cfg(feature = "kube")]
mod deploy;
mod documents;
mod embedding;
#[cfg(feature = "testing")]
mod examples;
mod explain;
mod expressions;
mod files;
mod generated;
mod generator;
#[cfg(feature = "kubernetes-api")]
mod kubernetes;
#[cfg(feature = "kubernetes-api")]
mod kubernetes_listener;
mod list;
#[path = "../../benches/load/load.rs"]
mod load;
mod malformed;
#[cfg(feature = "kube")]
#[path = "../upstreams/manifest.rs"]
mod manifest;
mod memory;
mod mirror;
mod operate_commands;
mod operators;
mod past;
#[path = "../upstreams/port.rs"]
mod port;
mod process;
mod proxies;
mod quotas;
mod record;
mod refusals;
mod refused_watch;
mod relay;
mod reload;
mod resume;
mod sandbox;
mod secrets;
mod served;
#[cfg(feature = "kubernetes-api")]
mod server_sent_events;
mod shards;
mod shutdown;
mod sizes;
mod slow_client;
mod source_checker;
mod spawned;
mod stats;
mod stream;
mod subscribe;
mod subscription;
mod tcp_proxy;
mod tidy;
mod tls;
mod unread_manifests;
mod until;
mod verify;
mod views;
mod warm;
mod watch;
mod windows;
