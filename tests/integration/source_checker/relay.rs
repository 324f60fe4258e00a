//! Histories of a chain of servers: a scripted etcd cluster, real origins and a real relay over it, and the checked relay.
//!
//! ```text
//!   cluster ──▶ proxy ──▶ origin A ──┐
//!          └──▶ proxy ──▶ origin B ──┴──▶ proxy ──▶ [relay] ──▶ proxy ──▶ the checked relay
//! ```
//!
//! The checked relay has a selection of the objects, and the one in between perhaps too.

mod script;

use std::{net::SocketAddr, path::Path, time::Duration};

use informerd::{
    cache::SourceHealth,
    source::{
        etcd::{EtcdConfig, EtcdSource},
        relay::{RelayConfig, RelaySource},
    },
};

use self::script::{KEYS, Selection, Setup, Shape, Step, body};
use super::{
    etcd::{PREFIX, cluster::Cluster, fact, path, was_deleted},
    proxy::{NetworkFault, Proxy},
    served::Served,
    upstream::{Bounds, Fact, Key, Truth, Upstream},
};

pub(crate) struct Relay {
    cluster: Cluster,
    /// Links from the cluster to each origin.
    up: [Proxy; 2],
    origins: [Node; 2],
    /// Link from an origin to the relay in between.
    middle: Proxy,
    between: Node,
    /// Link to the checked relay.
    down: Proxy,
    shape: Shape,
    selection: Selection,
    selection_between: Selection,
    rewrites: u64,
    moves: u64,
    /// Set once both origins were behind one address.
    has_shared: bool,
}

/// Server, and the directory of its state.
struct Node {
    served: Option<Served>,
    address: SocketAddr,
    state: tempfile::TempDir,
}

/// Default of the program.
const STALE_AFTER: Duration = Duration::from_secs(15);

// === impl Relay ===

impl Relay {
    async fn start_origin(&mut self, at: usize) {
        let endpoint = format!("http://{}", self.up[at].address());
        let config = EtcdConfig::new("things", vec![endpoint.parse().unwrap()], PREFIX);
        let health = SourceHealth::new(config.heartbeat, STALE_AFTER);
        let source = EtcdSource::new(config, health.clone());
        let node = &mut self.origins[at];
        node.begin(Served::start(source, health, node.state.path())).await;
    }

    async fn start_between(&mut self) {
        let (source, health) = relay_of(&self.middle, self.selection_between);
        let node = &mut self.between;
        node.begin(Served::start(source, health, node.state.path())).await;
    }

    /// Directs the links to the current servers, and cuts those that change.
    fn link(&mut self) {
        let Shape { origin, is_chain, is_shared } = self.shape;
        let other = if is_shared { 1 - origin } else { origin };
        let origins = [origin, other].map(|at| self.origins[at].address);
        self.has_shared |= is_shared;
        self.middle.lead_to(origins);
        self.down.lead_to(if is_chain { [self.between.address; 2] } else { origins });
    }

    fn restore(&mut self, back: i64, ahead: i64) {
        self.cluster.set(|store| {
            let revision = (store.revision - back).max(1);
            // With as many revisions as before the same keys are written, so that the last known change has its version again.
            let lost = if ahead == back { store.keys_after(revision) } else { Vec::new() };
            store.restore(revision, 0);
            // The term after elections, so that it does not show the rewrite.
            store.raft_term = 9;
            for number in 0..ahead {
                let body = format!(r#"{{"restored":{number}}}"#).into_bytes();
                let key = lost.get(number as usize).cloned().unwrap_or_else(|| path(KEYS[number as usize % 3]));
                store.apply(vec![(key, Some(body))]);
            }
        });
        self.rewrites += 1;
    }
}

impl Node {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        Self { served: None, address: "127.0.0.1:1".parse().unwrap(), state }
    }

    async fn begin(&mut self, mut served: Served) {
        self.address = served.listen().await;
        self.served = Some(served);
    }

    /// Kills the server.
    async fn stop(&mut self, keeps_state: bool) {
        let Some(served) = self.served.take() else { return };
        let is_saved = keeps_state && served.save().await;
        served.stop().await;
        if !is_saved {
            self.state = tempfile::tempdir().unwrap();
        }
    }
}

fn relay_of(upstream: &Proxy, selection: Selection) -> (RelaySource, SourceHealth) {
    let mut config = RelayConfig::new(upstream.address().to_string().parse().unwrap(), "things");
    let query = &mut config.query;
    match selection {
        Selection::Everything => {}
        Selection::Namespace => query.namespace = Some("a".to_owned()),
        Selection::Name => query.name = Some("y".to_owned()),
        Selection::Labels => "parity=even".clone_into(&mut query.label_selector),
        Selection::Fields => "half!=low,metadata.name!=x".clone_into(&mut query.field_selector),
        Selection::Expression => "object.n < 500".clone_into(&mut query.expression),
        Selection::Index => query.index = Some(("namespace".to_owned(), vec!["b".to_owned(), "nowhere".to_owned()])),
        Selection::LabelsInNamespace => {
            query.namespace = Some("b".to_owned());
            "parity in (even)".clone_into(&mut query.label_selector);
        }
    }
    let health = SourceHealth::new(config.heartbeat, STALE_AFTER);
    (RelaySource::new(config, health.clone()), health)
}

impl Upstream for Relay {
    type Setup = Setup;
    type Step = Step;

    const NOT_YET: &'static [(&'static str, &'static str)] = &[];
    const REQUIRED: &'static [&'static str] = &[
        "transaction",
        "deletion of everything",
        "relist of the origin",
        "network: refused",
        "network: closed",
        "network: cut",
        "network: cut at a byte",
        "network: frozen",
        "network: slow",
        "origin restarted with its state",
        "origin restarted without its state",
        "relay in between restarted",
        "restore",
        "origin restarted over a restored upstream",
        "origin restarted with its state over a restored upstream",
        "chain re-ordered",
        "two origins behind one address",
        "lag of an origin",
        "lag of one of two origins behind one address",
        "selection of everything",
        "selection by namespace",
        "selection by name",
        "selection by labels",
        "selection by fields",
        "selection by index",
        "selection by labels in a namespace",
    ];

    async fn start(setup: &Setup) -> Self {
        let cluster = Cluster::new("3.6.16", setup.fragment, None);
        let addresses = [cluster.listen().await, cluster.member(1).listen().await];
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let mut relay = Self {
            cluster,
            up: addresses.map(Proxy::to),
            origins: [Node::new(), Node::new()],
            middle: Proxy::to(nowhere),
            between: Node::new(),
            down: Proxy::to(nowhere),
            shape: setup.shape,
            selection: setup.selection,
            selection_between: if setup.selects_twice { setup.selection } else { Selection::Everything },
            rewrites: 0,
            moves: 0,
            has_shared: false,
        };
        relay.start_origin(0).await;
        relay.start_origin(1).await;
        relay.start_between().await;
        relay.link();
        relay
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Write(changes) => {
                let changes = changes.iter().map(|(key, value)| (path(key), value.map(body)));
                self.cluster.set(|store| store.apply(changes.collect()));
            }
            Step::DeleteAll => self.cluster.set(|store| store.delete_all(PREFIX.as_bytes())),
            Step::Elsewhere => {
                self.cluster.set(|store| store.apply(vec![(b"/elsewhere".to_vec(), Some(b"x".to_vec()))]));
            }
            Step::Relist => {
                self.cluster.set(|store| {
                    store.apply(vec![(path("b/y"), Some(store.revision.to_string().into_bytes()))]);
                    store.apply(vec![(path("a/y"), Some(store.revision.to_string().into_bytes()))]);
                    store.compacted = store.revision;
                });
                for up in &mut self.up {
                    up.begin(NetworkFault::Cut).await;
                }
            }
            Step::Down(fault) => self.down.begin(*fault).await,
            Step::Middle(fault) => self.middle.begin(*fault).await,
            Step::Up(origin, fault) => self.up[*origin].begin(*fault).await,
            Step::RestartOrigin { keeps_state } => {
                let origin = self.shape.origin;
                self.origins[origin].stop(*keeps_state).await;
                self.start_origin(origin).await;
                self.link();
            }
            Step::RestartBetween { keeps_state } => {
                self.between.stop(*keeps_state).await;
                self.start_between().await;
                self.link();
            }
            Step::Restore { back, ahead } => {
                self.restore(*back, *ahead);
                for up in &mut self.up {
                    up.begin(NetworkFault::Cut).await;
                }
            }
            Step::RestoreUnderRestart { back, ahead, keeps_state } => {
                for origin in &mut self.origins {
                    origin.stop(*keeps_state).await;
                }
                self.restore(*back, *ahead);
                for up in &mut self.up {
                    up.begin(NetworkFault::Cut).await;
                }
                self.start_origin(0).await;
                self.start_origin(1).await;
                self.link();
            }
            Step::Lag(origin, shape) => {
                self.cluster.set(|store| {
                    if store.lagging_at.is_none() {
                        (store.lagging_at, store.lagging_member) = (Some(store.revision), Some(*origin));
                    }
                });
                self.shape = *shape;
                self.moves += 1;
                self.link();
            }
            Step::Reorder(shape) => {
                self.shape = *shape;
                self.moves += 1;
                self.link();
            }
        }
    }

    async fn heal(&mut self) {
        let [first, second] = &mut self.up;
        for proxy in [first, second, &mut self.middle, &mut self.down] {
            proxy.heal();
        }
        self.cluster.set(|store| store.lagging_at = None);
    }

    async fn probe(&mut self, number: u32) {
        let value = format!("probe {number}").into_bytes();
        self.cluster.set(|store| store.apply(vec![(path("probe"), Some(value))]));
    }

    async fn serve(&self, state_directory: &Path) -> Served {
        let (source, health) = relay_of(&self.down, self.selection);
        Served::start(source, health, state_directory)
    }

    fn truths(&self) -> Vec<Truth> {
        self.cluster.set(|store| {
            // An origin that lags, or a relay that waits for it, may serve any state since.
            let since = store.lagging_at.unwrap_or(store.revision);
            let is_selected = |(key, fact): &(Key, Fact)| self.selection.matches(key, &fact.body);
            let at = |revision| store.at(revision).into_iter().filter_map(fact).filter(is_selected).collect();
            (since..=store.revision).rev().map(at).collect()
        })
    }

    /// Returns an upper bound. A relay that moves between servers may meet a rewrite twice at each: when it resumes at a server
    /// that has not noticed the rewrite yet, and again when that server has.
    fn rewrites(&self) -> u64 {
        let connections = [&self.middle, &self.down].map(Proxy::connections).into_iter().sum::<usize>();
        let moves = if self.has_shared { connections as u64 } else { self.moves };
        self.rewrites * (1 + 2 * moves)
    }

    fn has_fault(&self) -> bool {
        self.cluster.set(|store| store.lagging_at.is_some())
    }

    fn proxies(&self) -> Vec<&Proxy> {
        self.up.iter().chain([&self.middle, &self.down]).collect()
    }

    fn is_unreachable(&self) -> bool {
        let is_chain_cut = self.shape.is_chain && self.middle.is_unreachable();
        let is_origin_cut = |at: usize| self.up[at].is_unreachable();
        let is_cut = if self.shape.is_shared { (0..2).all(is_origin_cut) } else { is_origin_cut(self.shape.origin) };
        self.down.is_unreachable() || is_chain_cut || is_cut
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            prompt: Duration::from_secs(1),
            // The origin as in the etcd checks, and two relays that receive its state; or three heartbeats and `stale_after`.
            detects: Duration::from_secs(35 + 2 * 15),
            // The longest delay at each of three servers, and the time for which a relay waits for a version.
            recovers: Duration::from_secs(3 * 60 + 180 + 100),
            lists: 0,
            watches: 1,
            watch: Duration::MAX,
        }
    }

    fn requests(&self) -> Option<(u64, u64)> {
        None
    }

    fn was_deleted(&self, key: &Key) -> bool {
        self.selection.is_by_body() || was_deleted(&self.cluster, key)
    }
}
