//! Histories of a chain of servers: a scripted etcd cluster, real origins and a real relay over it, and the relay that is checked.
//!
//! ```text
//!   cluster ──▶ proxy ──▶ origin A ──┐
//!          └──▶ proxy ──▶ origin B ──┴──▶ proxy ──▶ [relay] ──▶ proxy ──▶ the relay that is checked
//! ```

use std::{net::SocketAddr, path::Path, time::Duration};

use informerd::{
    cache::SourceHealth,
    source::{
        etcd::{EtcdConfig, EtcdSource},
        relay::{RelayConfig, RelaySource},
    },
};
use proptest::{collection::vec, prelude::*, sample::select};

use super::{
    etcd::{PREFIX, cluster::Cluster, fact, path},
    proxy::{NetworkFault, Proxy},
    served::Served,
    upstream::{Bounds, Key, Truth, Upstream},
};

pub(crate) struct Relay {
    cluster: Cluster,
    /// From the cluster to each origin.
    up: [Proxy; 2],
    origins: [Node; 2],
    /// From an origin to the relay in between.
    middle: Proxy,
    between: Node,
    /// To the relay that is checked.
    down: Proxy,
    shape: Shape,
    rewrites: u64,
    moves: u64,
    disturbances: u64,
    probes: u32,
}

/// A server, and the directory of its state.
struct Node {
    served: Option<Served>,
    address: SocketAddr,
    state: tempfile::TempDir,
}

/// Which server each link leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The origin.
    origin: usize,
    /// There is a relay in between.
    is_chain: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Setup {
    shape: Shape,
    fragment: usize,
    first: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// One transaction: keys and their values, `None` for a deletion.
    Write(Vec<(&'static str, Option<u32>)>),
    DeleteAll,
    Elsewhere,
    /// A compaction, and a cut between the cluster and the origins: they list again, which is one batch.
    Relist,
    /// A fault of the link to the relay that is checked.
    Down(NetworkFault),
    /// A fault of the link to the relay in between.
    Middle(NetworkFault),
    /// A fault of the link from the cluster to an origin.
    Up(usize, NetworkFault),
    /// A server is killed and started again, with or without its state.
    RestartOrigin {
        keeps_state: bool,
    },
    RestartBetween {
        keeps_state: bool,
    },
    /// The cluster is restored: revisions that are lost, and transactions of the new history.
    Restore {
        back: i64,
        ahead: i64,
    },
    /// The same while the origins are down, which start again with or without their state.
    RestoreUnderRestart {
        back: i64,
        ahead: i64,
        keeps_state: bool,
    },
    /// The links lead elsewhere.
    Reorder(Shape),
}

const KEYS: [&str; 6] = ["a/x", "a/y", "a/z", "b/x", "b/y", "alone"];
/// As the program has it by default.
const STALE_AFTER: Duration = Duration::from_secs(15);

// === impl Relay ===

impl Relay {
    async fn start_origin(&mut self, at: usize) {
        let endpoint = format!("http://{}", self.up[at].address());
        let config = EtcdConfig::new("things", vec![endpoint], PREFIX);
        let health = SourceHealth::new(config.heartbeat, STALE_AFTER);
        let source = EtcdSource::new(config, health.clone());
        let node = &mut self.origins[at];
        node.begin(Served::start(source, health, node.state.path())).await;
    }

    async fn start_between(&mut self) {
        let (source, health) = relay_of(&self.middle);
        let node = &mut self.between;
        node.begin(Served::start(source, health, node.state.path())).await;
    }

    /// Leads the links to where the servers are now. Those that led elsewhere are cut.
    fn link(&mut self) {
        let origin = self.origins[self.shape.origin].address;
        self.middle.lead_to(origin);
        self.down.lead_to(if self.shape.is_chain { self.between.address } else { origin });
    }

    fn restore(&mut self, back: i64, ahead: i64) {
        self.cluster.set(|store| {
            store.restore((store.revision - back).max(1), 0);
            // Elections, so that the term is no sign of it.
            store.raft_term = 9;
            for number in 0..ahead {
                let body = format!(r#"{{"restored":{number}}}"#).into_bytes();
                store.apply(vec![(path(KEYS[number as usize % 3]), Some(body))]);
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

fn relay_of(upstream: &Proxy) -> (RelaySource, SourceHealth) {
    let config = RelayConfig::new(&format!("http://{}", upstream.address()), "things");
    let health = SourceHealth::new(config.heartbeat, STALE_AFTER);
    (RelaySource::new(config, health.clone()), health)
}

fn any_shape() -> impl Strategy<Value = Shape> {
    (0_usize..2, any::<bool>()).prop_map(|(origin, is_chain)| Shape { origin, is_chain })
}

impl Upstream for Relay {
    type Setup = Setup;
    type Step = Step;

    const IS_PAUSED: bool = true;
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
    ];

    fn any_setup() -> BoxedStrategy<Setup> {
        let first = prop_oneof![1 => Just(Vec::new()), 3 => vec(Self::any_write(), 1..5)];
        (any_shape(), select(vec![1_usize, 1000]), first)
            .prop_map(|(shape, fragment, first)| Setup { shape, fragment, first })
            .boxed()
    }

    fn any_write() -> BoxedStrategy<Step> {
        let value = prop_oneof![3 => (0_u32..1000).prop_map(Some), 1 => Just(None)];
        prop_oneof![
            12 => vec((select(&KEYS[..]), value), 1..6).prop_map(Step::Write),
            1 => Just(Step::DeleteAll),
            1 => Just(Step::Elsewhere),
        ]
        .boxed()
    }

    fn any_fault() -> BoxedStrategy<Step> {
        let fault = || {
            prop_oneof![
                3 => Just(NetworkFault::Refuse),
                2 => Just(NetworkFault::Close),
                3 => Just(NetworkFault::Freeze),
                1 => (500_u32..5_000).prop_map(NetworkFault::Slow),
            ]
        };
        prop_oneof![
            4 => fault().prop_map(Step::Down),
            2 => fault().prop_map(Step::Middle),
            2 => (0_usize..2, fault()).prop_map(|(origin, fault)| Step::Up(origin, fault)),
        ]
        .boxed()
    }

    fn any_event() -> BoxedStrategy<Step> {
        let cut = prop_oneof![1 => Just(NetworkFault::Cut), 4 => (1_usize..4000).prop_map(NetworkFault::CutAfter)];
        prop_oneof![
            4 => cut.prop_map(Step::Down),
            2 => Just(Step::Relist),
            2 => any::<bool>().prop_map(|keeps_state| Step::RestartOrigin { keeps_state }),
            1 => any::<bool>().prop_map(|keeps_state| Step::RestartBetween { keeps_state }),
            2 => (0_i64..8, 0_i64..12).prop_map(|(back, ahead)| Step::Restore { back, ahead }),
            3 => (0_i64..8, 0_i64..12, any::<bool>())
                .prop_map(|(back, ahead, keeps_state)| Step::RestoreUnderRestart { back, ahead, keeps_state }),
            2 => any_shape().prop_map(Step::Reorder),
        ]
        .boxed()
    }

    fn kind(step: &Step) -> &'static str {
        match step {
            Step::Write(_) => "transaction",
            Step::DeleteAll => "deletion of everything",
            Step::Elsewhere => "write elsewhere",
            Step::Relist => "relist of the origin",
            Step::Down(fault) | Step::Middle(fault) | Step::Up(_, fault) => fault.kind(),
            Step::RestartOrigin { keeps_state: true } => "origin restarted with its state",
            Step::RestartOrigin { .. } => "origin restarted without its state",
            Step::RestartBetween { .. } => "relay in between restarted",
            Step::Restore { .. } => "restore",
            Step::RestoreUnderRestart { keeps_state: true, .. } => {
                "origin restarted with its state over a restored upstream"
            }
            Step::RestoreUnderRestart { .. } => "origin restarted over a restored upstream",
            Step::Reorder(_) => "chain re-ordered",
        }
    }

    fn first_steps(setup: &Setup) -> Vec<Step> {
        setup.first.clone()
    }

    async fn start(setup: &Setup) -> Self {
        let cluster = Cluster::new("3.6.16", setup.fragment, None);
        let address = cluster.listen().await;
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let mut relay = Self {
            cluster,
            up: [Proxy::to(address), Proxy::to(address)],
            origins: [Node::new(), Node::new()],
            middle: Proxy::to(nowhere),
            between: Node::new(),
            down: Proxy::to(nowhere),
            shape: setup.shape,
            rewrites: 0,
            moves: 0,
            disturbances: 0,
            probes: 0,
        };
        relay.start_origin(0).await;
        relay.start_origin(1).await;
        relay.start_between().await;
        relay.link();
        relay
    }

    async fn step(&mut self, step: &Step) {
        self.disturbances += u64::from(!matches!(step, Step::Write(_) | Step::DeleteAll | Step::Elsewhere));
        match step {
            Step::Write(changes) => {
                let body = |number: u32| format!(r#"{{"n":{number}}}"#).into_bytes();
                let changes = changes.iter().map(|(key, value)| (path(key), value.map(body)));
                self.cluster.set(|store| store.apply(changes.collect()));
            }
            Step::DeleteAll => self.cluster.set(|store| {
                let keys = store.at(i64::MAX).into_keys().filter(|key| key.starts_with(PREFIX.as_bytes()));
                store.apply(keys.map(|key| (key, None)).collect());
            }),
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
    }

    async fn probe(&mut self) {
        self.probes += 1;
        let value = format!("probe {}", self.probes).into_bytes();
        self.cluster.set(|store| store.apply(vec![(path("probe"), Some(value))]));
    }

    async fn serve(&self, state_directory: &Path) -> Served {
        let (source, health) = relay_of(&self.down);
        Served::start(source, health, state_directory)
    }

    fn truths(&self) -> Vec<Truth> {
        vec![self.cluster.set(|store| store.at(i64::MAX).into_iter().filter_map(fact).collect())]
    }

    /// A relay that moves between origins may meet a rewrite at each, since each notices it in its own time.
    fn rewrites(&self) -> u64 {
        self.rewrites * (1 + self.moves)
    }

    fn disturbances(&self) -> u64 {
        self.disturbances + self.down.late_cuts() + self.middle.late_cuts()
    }

    fn is_faulty(&self) -> bool {
        self.up.iter().chain([&self.middle, &self.down]).any(Proxy::is_faulty)
    }

    fn is_unreachable(&self) -> bool {
        let is_chain_cut = self.shape.is_chain && self.middle.is_unreachable();
        self.down.is_unreachable() || is_chain_cut || self.up[self.shape.origin].is_unreachable()
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            prompt: Duration::from_secs(1),
            // The origin as the etcd source has it, and two relays that are told; or three heartbeats and `stale_after`.
            detects: Duration::from_secs(35 + 2 * 15),
            // The longest delay at each of three servers, and the time that a relay waits for a version.
            recovers: Duration::from_secs(3 * 60 + 180 + 100),
            lists: 0,
            watch: Duration::MAX,
        }
    }

    fn requests(&self) -> Option<(u64, u64)> {
        None
    }

    fn was_deleted(&self, key: &Key) -> bool {
        let path = if key.0.is_empty() { path(&key.1) } else { path(&format!("{}/{}", key.0, key.1)) };
        self.cluster.set(|store| store.deleted.contains(&path))
    }

    fn tally(&self) -> std::collections::BTreeMap<&'static str, u64> {
        let mut tally = self.down.counts();
        for (kind, count) in self.middle.counts() {
            *tally.entry(kind).or_default() += count;
        }
        tally
    }
}
