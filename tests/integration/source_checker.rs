//! Source checker: random histories of upstreams and their faults, the real sources, and a model of the truth that shares no code
//! with the server.
//!
//! ```text
//!   script ──▶ upstream (its own protocol) ──▶ proxy ──▶ source, Reflector, queue, informer, service (the real ones)
//!                │                                                  │
//!                └──▶ truth ──▶ verdict ◀── clients ◀───────────────┘ Watch (one that stays, one that hops), List
//! ```
//!
//! A history is a sequence of writes, events, faults, pauses and restarts of the server. After each quiet point one of these must
//! hold; anything else is a violation:
//!
//! - the served, listed and watched state equals the truth, to the byte;
//! - a fault is active, the resource is STALE, and the server has reported that to every client;
//! - a fault is active, and there is no state yet.
//!
//! Further: without faults a write arrives at once, the source makes no list requests, and the state stays SYNCED. When all
//! faults have healed the state is SYNCED and equal within a bound. A watch ends with `HISTORY_CHANGED` only after the upstream's
//! history was rewritten. The number of lists is bounded by their causes. No message contradicts earlier ones.
//!
//! Time is paused where the protocol permits it: the clock jumps to the next timer when all tasks are idle, so that a history of
//! an hour takes milliseconds, with the program's own intervals. The sockets are real; the kernel delivers bytes on the loopback
//! at once.
//!
//! Each upstream's table `NOT_YET` lists the steps that are not drawn yet, because they lead to a known open finding.
//!
//! Directories and pipes work in real time and have no versions: `files` and `stream` are checked with short intervals and many
//! histories in parallel (`live`, `parallel`), and every observation of every client is compared with all states of each object
//! (`timeline`).
//!
//! Only `served`, `live` and the function that starts the source of each upstream use the server; a test checks the imports.

mod client;
mod etcd;
mod files;
mod history;
#[cfg(feature = "kube")]
mod kube;
mod live;
mod parallel;
mod proxy;
mod relay;
mod runner;
mod script;
mod served;
mod stream;
mod timeline;
mod totals;
mod upstream;

#[test]
fn etcd_is_followed_under_random_faults() {
    runner::check::<etcd::Etcd>("etcd", 150);
}

#[test]
#[cfg(feature = "kube")]
fn kube_is_followed_under_random_faults() {
    runner::check::<kube::Kube>("kube", 150);
}

#[test]
fn relays_are_followed_under_random_faults() {
    runner::check::<relay::Relay>("relay", 40);
}

#[test]
fn files_are_followed_under_random_faults() {
    files::check();
}

#[test]
fn a_stream_is_followed_under_random_faults() {
    stream::check();
}

/// A model that used code of the server would prove nothing.
#[test]
fn the_source_checker_does_not_depend_on_the_server() {
    let sources = [
        ("client", include_str!("source_checker/client.rs")),
        ("directory", include_str!("source_checker/files/directory.rs")),
        ("content", include_str!("source_checker/files/content.rs")),
        ("outage", include_str!("source_checker/files/directory/outage.rs")),
        ("volume", include_str!("source_checker/files/directory/volume.rs")),
        ("pipe", include_str!("source_checker/stream/pipe.rs")),
        ("script of files", include_str!("source_checker/files/script.rs")),
        ("script of a stream", include_str!("source_checker/stream/script.rs")),
        ("timeline", include_str!("source_checker/timeline.rs")),
        ("script of etcd", include_str!("source_checker/etcd/script.rs")),
        ("script of kube", include_str!("source_checker/kube/script.rs")),
        ("script of a relay", include_str!("source_checker/relay/script.rs")),
        ("cluster", include_str!("source_checker/etcd/cluster.rs")),
        ("history", include_str!("source_checker/history.rs")),
        ("proxy", include_str!("source_checker/proxy.rs")),
        ("runner", include_str!("source_checker/runner.rs")),
        ("script", include_str!("source_checker/script.rs")),
        ("totals", include_str!("source_checker/totals.rs")),
        ("upstream", include_str!("source_checker/upstream.rs")),
        ("world", include_str!("source_checker/kube/world.rs")),
        ("watch", include_str!("source_checker/kube/api/watch.rs")),
        ("target", include_str!("source_checker/kube/api/target.rs")),
        ("answer", include_str!("source_checker/kube/api/answer.rs")),
        ("api", include_str!("source_checker/kube/api.rs")),
        ("misdeed", include_str!("source_checker/kube/api/violations.rs")),
    ];
    for (name, source) in sources {
        let code = source.replace("use informerd::{\n    grpc::Routes,\n    proto::pb::{self, EventType},\n};", "");
        for named in code.split("informerd::").skip(1) {
            assert!(named.starts_with("proto::pb"), "{name} names {}", named.lines().next().unwrap_or_default());
        }
    }
    // Each source itself is named only where it is configured.
    for (name, source) in [
        ("etcd", include_str!("source_checker/etcd.rs")),
        ("files", include_str!("source_checker/files.rs")),
        ("stream", include_str!("source_checker/stream.rs")),
        ("kube", include_str!("source_checker/kube.rs")),
        ("relay", include_str!("source_checker/relay.rs")),
    ] {
        let code = source.split_once("\nuse ").map_or("", |(_, code)| code);
        let uses: Vec<&str> = code.split("informerd::").skip(1).collect();
        assert_eq!(uses.len(), 1, "{name} names the server once, to configure its source");
        assert!(uses[0].starts_with("{\n    cache::SourceHealth,\n    source::"), "{name}: {}", uses[0]);
    }
}
