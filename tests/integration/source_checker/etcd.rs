//! Histories of etcd: the scripted cluster, what may happen to it, and the real source over it.

pub(super) mod cluster;
mod pb;

use std::{collections::BTreeMap, path::Path, time::Duration};

use informerd::{
    cache::SourceHealth,
    source::etcd::{EtcdConfig, EtcdSource},
};
use proptest::{collection::vec, prelude::*, sample::select};
use tonic::Status;

use self::cluster::Cluster;
use super::{
    proxy::{NetworkFault, Proxy},
    served::Served,
    upstream::{Bounds, Fact, Key, Truth, Upstream},
};

pub(crate) struct Etcd {
    cluster: Cluster,
    /// The way to each member, which are one cluster.
    members: Vec<Proxy>,
    password_file: tempfile::NamedTempFile,
    has_user: bool,
    rewrites: u64,
    disturbances: u64,
    probes: u64,
    is_password_wrong: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Setup {
    members: usize,
    version: &'static str,
    fragment: usize,
    has_user: bool,
    /// Transactions before the server starts.
    first: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// One transaction: keys and their values, `None` for a deletion.
    Write(Vec<(&'static str, Option<Value>)>),
    /// Every key of the prefix, in one transaction.
    DeleteAll,
    /// A write to another prefix.
    Elsewhere,
    /// Up to so many revisions before the head.
    Compact(i64),
    /// A fault of the network: to one member, or to all.
    Network(Option<usize>, NetworkFault),
    /// A restart of all members.
    Restart,
    Restore(Restore),
    /// The member answers with the raft term of an older entry.
    LowerTerm,
    Election,
    /// Applies nothing more.
    Lag,
    NoLeader,
    Hang,
    /// The next read fails.
    RefuseOnce(Refusal),
    Refuse(Refusal),
    /// All tokens end.
    TokensEnd,
    /// The password is changed, and the file is wrong until it is healed.
    PasswordChanges,
}

#[derive(Debug, Clone)]
pub(crate) struct Restore {
    /// Revisions that are lost.
    back: i64,
    /// Transactions of the new history before anybody connects: below, at or beyond the lost revision.
    ahead: i64,
    /// The revision is raised, as by `etcdutl snapshot restore --bump-revision`.
    bump: i64,
    has_another_id: bool,
    /// The raft term is raised again by elections.
    elections: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    Number(u32),
    /// With labels.
    Json(u32),
    Bytes,
    /// Quotes and braces around bytes that are no UTF-8.
    NearlyJson,
    Empty,
    /// More than is served.
    TooLarge,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Refusal {
    Timeout,
    TooManyRequests,
    Internal,
    PermissionDenied,
    LeaderChanged,
}

pub(super) const PREFIX: &str = "/things/";
const KEYS: [&str; 7] = ["a/x", "a/y", "a/z", "b/x", "b/y/deep", "alone", "b/w"];
const USER: &str = "informerd";

// === impl Etcd ===

impl Etcd {
    fn network(&self) -> impl Iterator<Item = &Proxy> {
        self.members.iter()
    }

    async fn cut(&mut self) {
        for member in &mut self.members {
            member.begin(NetworkFault::Cut).await;
        }
    }

    async fn restore(&mut self, restore: &Restore) {
        let Restore { back, ahead, bump, has_another_id, elections } = *restore;
        self.cluster.set(|store| {
            let to = (store.revision - back).max(1);
            store.restore(to, bump);
            store.raft_term += elections;
            store.cluster_id += u64::from(has_another_id);
            for number in 0..ahead {
                let key = KEYS[number as usize % 3];
                store.apply(vec![(path(key), Some(format!(r#"{{"restored":{number}}}"#).into_bytes()))]);
            }
        });
        self.rewrites += 1;
        self.cut().await;
    }
}

/// A key below the prefix.
pub(super) fn path(key: &str) -> Vec<u8> {
    format!("{PREFIX}{key}").into_bytes()
}

impl Value {
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Number(number) => number.to_string().into_bytes(),
            Self::Json(number) => {
                format!(r#"{{"metadata":{{"labels":{{"n":"{number}"}}}},"n":{number}}}"#).into_bytes()
            }
            Self::Bytes => vec![0, 159, 146, 150],
            Self::NearlyJson => b"{\"a\":\"\xff\"}".to_vec(),
            Self::Empty => Vec::new(),
            Self::TooLarge => vec![b'x'; (3 << 20) + 1],
        }
    }
}

impl Refusal {
    fn status(self) -> Status {
        match self {
            Self::Timeout => Status::unavailable("etcdserver: request timed out"),
            Self::TooManyRequests => Status::resource_exhausted("etcdserver: too many requests"),
            Self::Internal => Status::internal("etcdserver: broken"),
            Self::PermissionDenied => Status::permission_denied("etcdserver: permission denied"),
            Self::LeaderChanged => Status::unavailable("etcdserver: leader changed"),
        }
    }
}

fn any_value() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        8 => (0_u32..1000).prop_map(|number| Some(Value::Json(number))),
        6 => (0_u32..1000).prop_map(|number| Some(Value::Number(number))),
        2 => Just(Some(Value::Bytes)),
        1 => Just(Some(Value::NearlyJson)),
        1 => Just(Some(Value::Empty)),
        6 => Just(None),
    ]
}

fn any_refusal() -> impl Strategy<Value = Refusal> {
    use Refusal::{Internal, LeaderChanged, PermissionDenied, Timeout, TooManyRequests};
    select(vec![Timeout, TooManyRequests, Internal, PermissionDenied, LeaderChanged])
}

fn any_transaction() -> impl Strategy<Value = Step> {
    vec((select(&KEYS[..]), any_value()), 1..6).prop_map(Step::Write)
}

impl Upstream for Etcd {
    type Setup = Setup;
    type Step = Step;

    const IS_PAUSED: bool = true;
    const NOT_YET: &'static [(&'static str, &'static str)] = &[];
    const REQUIRED: &'static [&'static str] = &[
        "transaction",
        "deletion of everything",
        "write elsewhere",
        "compaction",
        "watch from a compacted revision",
        "network: refused",
        "network: closed",
        "network: cut",
        "network: cut at a byte",
        "network: frozen",
        "network: slow",
        "restart",
        "restore",
        "restore with another cluster id",
        "restore beyond the last revision",
        "restore with a raised revision",
        "lower raft term",
        "lag",
        "no leader",
        "hang",
        "refused once",
        "refused",
        "tokens end",
        "password changes",
        "too large",
    ];

    fn any_setup() -> BoxedStrategy<Setup> {
        let version = select(vec!["3.6.16", "3.6.16", "3.6.16", "3.5.12", "3.4.31"]);
        let first = prop_oneof![1 => Just(Vec::new()), 3 => vec(Self::any_write(), 1..5)];
        (1_usize..3, version, select(vec![1_usize, 2, 1000]), select(vec![false, false, true]), first)
            .prop_map(|(members, version, fragment, has_user, first)| Setup {
                members,
                version,
                fragment,
                has_user,
                first,
            })
            .boxed()
    }

    fn any_write() -> BoxedStrategy<Step> {
        prop_oneof![
            20 => any_transaction(),
            2 => Just(Step::DeleteAll),
            3 => Just(Step::Elsewhere),
            1 => select(&KEYS[..3]).prop_map(|key| Step::Write(vec![(key, Some(Value::TooLarge))])),
        ]
        .boxed()
    }

    fn any_fault() -> BoxedStrategy<Step> {
        let member = prop_oneof![2 => Just(None), 1 => (0_usize..2).prop_map(Some)];
        let fault = prop_oneof![
            3 => Just(NetworkFault::Refuse),
            2 => Just(NetworkFault::Close),
            3 => Just(NetworkFault::Freeze),
            1 => (300_u32..5_000).prop_map(NetworkFault::Slow),
        ];
        prop_oneof![
            8 => (member, fault).prop_map(|(member, fault)| Step::Network(member, fault)),
            2 => Just(Step::Lag),
            2 => Just(Step::NoLeader),
            2 => Just(Step::Hang),
            2 => any_refusal().prop_map(Step::Refuse),
            1 => Just(Step::PasswordChanges),
        ]
        .boxed()
    }

    fn any_event() -> BoxedStrategy<Step> {
        let cut = prop_oneof![
            2 => Just(NetworkFault::Cut),
            3 => (1_usize..3000).prop_map(NetworkFault::CutAfter),
        ];
        let restore = (0_i64..8, 0_i64..12, select(vec![0_i64, 0, 0, 1000]), any::<bool>(), select(vec![0_u64, 0, 5]))
            .prop_map(|(back, ahead, bump, has_another_id, elections)| Restore {
                back,
                ahead,
                bump,
                has_another_id,
                elections,
            });
        prop_oneof![
            4 => cut.prop_map(|cut| Step::Network(None, cut)),
            3 => (0_i64..6).prop_map(Step::Compact),
            2 => Just(Step::Restart),
            3 => restore.prop_map(Step::Restore),
            1 => Just(Step::LowerTerm),
            1 => Just(Step::Election),
            2 => any_refusal().prop_map(Step::RefuseOnce),
            1 => Just(Step::TokensEnd),
        ]
        .boxed()
    }

    fn kind(step: &Step) -> &'static str {
        match step {
            Step::Write(changes) if changes.iter().any(|(_, value)| matches!(value, Some(Value::TooLarge))) => {
                "too large"
            }
            Step::Write(changes) if changes.iter().any(|(_, value)| matches!(value, Some(Value::NearlyJson))) => {
                "nearly JSON"
            }
            Step::Write(_) => "transaction",
            Step::DeleteAll => "deletion of everything",
            Step::Elsewhere => "write elsewhere",
            Step::Compact(_) => "compaction",
            Step::Network(_, fault) => fault.kind(),
            Step::Restart => "restart",
            Step::Restore(Restore { bump: 1.., .. }) => "restore with a raised revision",
            Step::Restore(Restore { has_another_id: true, .. }) => "restore with another cluster id",
            Step::Restore(Restore { back, ahead, .. }) if ahead > back => "restore beyond the last revision",
            Step::Restore(_) => "restore",
            Step::LowerTerm => "lower raft term",
            Step::Election => "election",
            Step::Lag => "lag",
            Step::NoLeader => "no leader",
            Step::Hang => "hang",
            Step::RefuseOnce(_) => "refused once",
            Step::Refuse(_) => "refused",
            Step::TokensEnd => "tokens end",
            Step::PasswordChanges => "password changes",
        }
    }

    fn first_steps(setup: &Setup) -> Vec<Step> {
        setup.first.clone()
    }

    async fn start(setup: &Setup) -> Self {
        let Setup { members, version, fragment, has_user, .. } = setup;
        let cluster = Cluster::new(version, *fragment, has_user.then(|| "secret".to_owned()));
        let address = cluster.listen().await;
        let members = (0..*members).map(|_| Proxy::to(address)).collect();
        let password_file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(password_file.path(), "secret\n").unwrap();
        Self {
            cluster,
            members,
            password_file,
            has_user: *has_user,
            rewrites: 0,
            disturbances: 0,
            probes: 0,
            is_password_wrong: false,
        }
    }

    async fn step(&mut self, step: &Step) {
        let is_write = matches!(step, Step::Write(_) | Step::DeleteAll | Step::Elsewhere | Step::Compact(_));
        self.disturbances += u64::from(!is_write);
        match step {
            Step::Write(changes) => {
                let changes = changes.iter().map(|(key, value)| (path(key), value.map(Value::bytes)));
                self.cluster.set(|store| store.apply(changes.collect()));
            }
            Step::DeleteAll => self.cluster.set(|store| {
                let keys = store.at(i64::MAX).into_keys().filter(|key| key.starts_with(PREFIX.as_bytes()));
                store.apply(keys.map(|key| (key, None)).collect());
            }),
            Step::Elsewhere => self.cluster.set(|store| {
                let value = store.revision.to_string().into_bytes();
                store.apply(vec![(b"/elsewhere/x".to_vec(), Some(value))]);
            }),
            Step::Compact(back) => {
                self.cluster.set(|store| store.compacted = store.compacted.max(store.revision - back).max(0));
            }
            Step::Network(member, fault) => {
                let only = member.map(|member| member % self.members.len());
                for (at, member) in self.members.iter_mut().enumerate() {
                    if only.is_none_or(|only| only == at) {
                        member.begin(*fault).await;
                    }
                }
            }
            Step::Restart => self.cut().await,
            Step::Restore(restore) => self.restore(restore).await,
            Step::LowerTerm => {
                self.cluster.set(|store| store.raft_term = store.raft_term.saturating_sub(1).max(1));
                self.cut().await;
            }
            Step::Election => self.cluster.set(|store| store.raft_term += 1),
            Step::Lag => self.cluster.set(|store| store.lagging_at = store.lagging_at.or(Some(store.revision))),
            Step::NoLeader => self.cluster.set(|store| store.has_leader = false),
            Step::Hang => {
                self.cluster.set(|store| store.hangs = true);
                self.cut().await;
            }
            Step::RefuseOnce(refusal) => {
                self.cluster.set(|store| store.refusals = vec![refusal.status()]);
                self.cut().await;
            }
            Step::Refuse(refusal) => self.cluster.set(|store| store.refusal = Some(refusal.status())),
            Step::TokensEnd => {
                self.cluster.set(|store| store.token += 1);
                self.cut().await;
            }
            Step::PasswordChanges if self.has_user => {
                self.is_password_wrong = true;
                self.cluster.set(|store| {
                    store.password = store.password.take().map(|password| password + "x");
                    store.token += 1;
                });
                self.cut().await;
            }
            Step::PasswordChanges => {}
        }
    }

    async fn heal(&mut self) {
        for member in &mut self.members {
            member.heal();
        }
        let password = self.cluster.set(|store| {
            (store.lagging_at, store.has_leader, store.hangs, store.refusal) = (None, true, false, None);
            store.refusals.clear();
            store.password.clone()
        });
        if let Some(password) = password {
            std::fs::write(self.password_file.path(), password).unwrap();
        }
        self.is_password_wrong = false;
    }

    async fn probe(&mut self) {
        self.probes += 1;
        let value = format!("probe {}", self.probes).into_bytes();
        self.cluster.set(|store| store.apply(vec![(path("probe"), Some(value))]));
    }

    async fn serve(&self, state_directory: &Path) -> Served {
        let endpoints = self.network().map(|member| format!("http://{}", member.address())).collect();
        let credentials = self.has_user.then(|| (USER.to_owned(), self.password_file.path().to_owned()));
        let config = EtcdConfig { credentials, ..EtcdConfig::new("things", endpoints, PREFIX) };
        let health = SourceHealth::new(config.heartbeat, STALE_AFTER);
        Served::start(EtcdSource::new(config, health.clone()), health, state_directory)
    }

    fn truths(&self) -> Vec<Truth> {
        self.cluster.set(|store| {
            let at = |revision: i64| store.at(revision).into_iter().filter_map(fact).collect();
            let mut truths: Vec<Truth> = vec![at(i64::MAX)];
            // A member that applies nothing more goes on to answer, and cannot know.
            truths.extend(store.lagging_at.map(at));
            truths
        })
    }

    fn rewrites(&self) -> u64 {
        self.rewrites
    }

    fn disturbances(&self) -> u64 {
        let refused = self.cluster.set(|store| store.counts.refused_once);
        self.disturbances + refused + self.network().map(Proxy::late_cuts).sum::<u64>()
    }

    fn is_faulty(&self) -> bool {
        let is_faulty = self
            .cluster
            .set(|store| store.lagging_at.is_some() || !store.has_leader || store.hangs || store.refusal.is_some());
        is_faulty || self.is_password_wrong || self.network().any(Proxy::is_faulty)
    }

    fn is_unreachable(&self) -> bool {
        self.network().all(Proxy::is_unreachable)
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            prompt: Duration::from_secs(1),
            // A heartbeat without a word, an answer that does not come, and `stale_after`.
            detects: Duration::from_secs(5 + 10 + 15 + 5),
            // The longest delay between two attempts is 60 s; a page may take another 60 s.
            recovers: Duration::from_secs(180),
            lists: 12,
            watch: Duration::MAX,
        }
    }

    fn requests(&self) -> Option<(u64, u64)> {
        Some(self.cluster.set(|store| (store.counts.lists, store.counts.watches)))
    }

    fn was_deleted(&self, key: &Key) -> bool {
        let path = if key.0.is_empty() { path(&key.1) } else { path(&format!("{}/{}", key.0, key.1)) };
        self.cluster.set(|store| store.deleted.contains(&path))
    }

    fn tally(&self) -> BTreeMap<&'static str, u64> {
        let mut tally = BTreeMap::new();
        for member in &self.members {
            for (kind, count) in member.counts() {
                *tally.entry(kind).or_default() += count;
            }
        }
        let counts = self.cluster.set(|store| store.counts);
        tally.insert("watch from a compacted revision", counts.compacted_watches);
        tally.insert("progress that etcd does not tell", counts.unanswered_progress);
        tally.insert("read that was refused", counts.refused);
        tally.retain(|_, count| *count > 0);
        tally
    }
}

/// As the program has it by default.
const STALE_AFTER: Duration = Duration::from_secs(15);
/// What is served of one object at most (3 MiB).
const MOST_BYTES: usize = 3 << 20;

/// A key below the prefix, if it is one that can be served.
pub(super) fn fact((key, kv): (Vec<u8>, pb::mvccpb::KeyValue)) -> Option<(Key, Fact)> {
    let rest = String::from_utf8(key).ok()?;
    let rest = rest.strip_prefix(PREFIX)?;
    let (namespace, name) = rest.split_once('/').unwrap_or(("", rest));
    if kv.value.len() > MOST_BYTES {
        return None;
    }
    let fact =
        Fact { uid: Some(kv.create_revision.to_string()), version: Some(kv.mod_revision.to_string()), body: kv.value };
    Some(((namespace.to_owned(), name.to_owned()), fact))
}
