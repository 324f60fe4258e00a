//! Histories of etcd: the scripted cluster, its events and faults, and the real source over it.

pub(super) mod cluster;
mod pb;
mod script;

use std::{collections::BTreeMap, path::Path, time::Duration};

use informerd::{
    cache::SourceHealth,
    source::etcd::{EtcdConfig, EtcdSource},
};

use self::{
    cluster::Cluster,
    script::{KEYS, Restore, Setup, Step, Value},
};
use super::{
    proxy::{NetworkFault, Proxy},
    served::Served,
    upstream::{Bounds, Fact, Key, Truth, Upstream},
};

pub(crate) struct Etcd {
    cluster: Cluster,
    /// Proxy of each member; all members are one cluster.
    members: Vec<Proxy>,
    password_file: tempfile::NamedTempFile,
    has_user: bool,
    rewrites: u64,
    is_password_wrong: bool,
}

pub(super) const PREFIX: &str = "/things/";
const USER: &str = "informerd";

// === impl Etcd ===

impl Etcd {
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

/// Returns a key below the prefix.
pub(super) fn path(key: &str) -> Vec<u8> {
    format!("{PREFIX}{key}").into_bytes()
}

impl Upstream for Etcd {
    type Setup = Setup;
    type Step = Step;

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

    async fn start(setup: &Setup) -> Self {
        let Setup { members, version, fragment, has_user, .. } = setup;
        let cluster = Cluster::new(version, *fragment, has_user.then(|| "secret".to_owned()));
        let address = cluster.listen().await;
        let members = (0..*members).map(|_| Proxy::to(address)).collect();
        let password_file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(password_file.path(), "secret\n").unwrap();
        Self { cluster, members, password_file, has_user: *has_user, rewrites: 0, is_password_wrong: false }
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Write(changes) => {
                let changes = changes.iter().map(|(key, value)| (path(key), value.map(Value::bytes)));
                self.cluster.set(|store| store.apply(changes.collect()));
            }
            Step::DeleteAll => self.cluster.set(|store| store.delete_all(PREFIX.as_bytes())),
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

    async fn probe(&mut self, number: u32) {
        let value = format!("probe {number}").into_bytes();
        self.cluster.set(|store| store.apply(vec![(path("probe"), Some(value))]));
    }

    async fn serve(&self, state_directory: &Path) -> Served {
        let endpoints = self.members.iter().map(|member| member.address().to_string().parse().unwrap()).collect();
        let credentials = self.has_user.then(|| (USER.to_owned(), self.password_file.path().to_owned()));
        let config = EtcdConfig { credentials, ..EtcdConfig::new("things", endpoints, PREFIX) };
        let health = SourceHealth::new(config.heartbeat, STALE_AFTER);
        Served::start(EtcdSource::new(config, health.clone()), health, state_directory)
    }

    fn truths(&self) -> Vec<Truth> {
        self.cluster.set(|store| {
            let at = |revision: i64| store.at(revision).into_iter().filter_map(fact).collect();
            let mut truths: Vec<Truth> = vec![at(i64::MAX)];
            // A member that applies no more entries continues to answer, and cannot notice it.
            truths.extend(store.lagging_at.map(at));
            truths
        })
    }

    fn rewrites(&self) -> u64 {
        self.rewrites
    }

    fn proxies(&self) -> Vec<&Proxy> {
        self.members.iter().collect()
    }

    fn late_disturbances(&self) -> u64 {
        self.cluster.set(|store| store.counts.refused_once)
    }

    fn has_fault(&self) -> bool {
        let is_faulty = self
            .cluster
            .set(|store| store.lagging_at.is_some() || !store.has_leader || store.hangs || store.refusal.is_some());
        is_faulty || self.is_password_wrong
    }

    fn is_unreachable(&self) -> bool {
        self.members.iter().all(Proxy::is_unreachable)
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            prompt: Duration::from_secs(1),
            // A heartbeat interval without messages, an answer that does not come, and `stale_after`.
            detects: Duration::from_secs(5 + 10 + 15 + 5),
            // The longest delay between two attempts is 60 s; a page may take another 60 s.
            recovers: Duration::from_secs(180),
            lists: 12,
            watches: 1,
            watch: Duration::MAX,
        }
    }

    fn requests(&self) -> Option<(u64, u64)> {
        Some(self.cluster.set(|store| (store.counts.lists, store.counts.watches)))
    }

    fn was_deleted(&self, key: &Key) -> bool {
        was_deleted(&self.cluster, key)
    }

    fn tally(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.cluster.set(|store| store.counts);
        BTreeMap::from([
            ("watch from a compacted revision", counts.compacted_watches),
            ("progress that etcd does not tell", counts.unanswered_progress),
            ("read that was refused", counts.refused),
        ])
    }
}

/// Default of the program.
const STALE_AFTER: Duration = Duration::from_secs(15);
/// Largest size of a served object (3 MiB).
const MOST_BYTES: usize = 3 << 20;

/// Returns the object of a key below the prefix, if it can be served.
pub(super) fn fact((key, kv): (Vec<u8>, pb::mvccpb::KeyValue)) -> Option<(Key, Fact)> {
    let rest = String::from_utf8(key).ok()?;
    let rest = rest.strip_prefix(PREFIX)?;
    let (namespace, name) = rest.split_once('/').unwrap_or(("", rest));
    if kv.value.len() > MOST_BYTES {
        return None;
    }
    let uid = format!("{}/{rest}", kv.create_revision);
    let fact = Fact { uid: Some(uid), version: Some(kv.mod_revision.to_string()), body: kv.value.to_vec() };
    Some(((namespace.to_owned(), name.to_owned()), fact))
}

/// Returns true if a key below the prefix was ever deleted.
pub(super) fn was_deleted(cluster: &Cluster, (namespace, name): &Key) -> bool {
    let key = if namespace.is_empty() { path(name) } else { path(&format!("{namespace}/{name}")) };
    cluster.set(|store| store.deleted.contains(&key))
}
