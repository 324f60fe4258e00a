//! Script of an etcd cluster.

use proptest::{collection::vec, prelude::*, sample::select};
use tonic::Status;

use crate::source_checker::{
    proxy::NetworkFault,
    upstream::{UpstreamSetup, UpstreamStep},
};

#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(super) members: usize,
    pub(super) version: &'static str,
    pub(super) fragment: usize,
    pub(super) has_user: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// One transaction: keys and their values, `None` for a deletion.
    Write(Vec<(&'static str, Option<Value>)>),
    /// Deletion of every key of the prefix, in one transaction.
    DeleteAll,
    /// Write to another prefix.
    Elsewhere,
    /// Compaction up to so many revisions before the head.
    Compact(i64),
    /// Network fault: to one member, or to all.
    Network(Option<usize>, NetworkFault),
    /// Restart of all members.
    Restart,
    Restore(Restore),
    /// Answers with the raft term of an older entry.
    LowerTerm,
    Election,
    /// Member that applies no more entries.
    Lag,
    NoLeader,
    Hang,
    /// Failure of the next read.
    RefuseOnce(Refusal),
    Refuse(Refusal),
    /// Expiry of all tokens.
    TokensEnd,
    /// Change of the password; the file is wrong until it is healed.
    PasswordChanges,
}

#[derive(Debug, Clone)]
pub(crate) struct Restore {
    /// Number of lost revisions.
    pub(super) back: i64,
    /// Number of transactions of the new history before any client connects: below, at or beyond the lost revision.
    pub(super) ahead: i64,
    /// Number by which the revision is raised, as by `etcdutl snapshot restore --bump-revision`.
    pub(super) bump: i64,
    pub(super) has_another_id: bool,
    /// Number of elections, which raise the raft term again.
    pub(super) elections: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    Number(u32),
    /// Object with labels.
    Json(u32),
    Bytes,
    /// Quotes and braces around bytes that are not UTF-8.
    NearlyJson,
    Empty,
    /// More bytes than the limit of an object.
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

impl Value {
    pub(super) fn bytes(self) -> Vec<u8> {
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
    pub(super) fn status(self) -> Status {
        match self {
            Self::Timeout => Status::unavailable("etcdserver: request timed out"),
            Self::TooManyRequests => Status::resource_exhausted("etcdserver: too many requests"),
            Self::Internal => Status::internal("etcdserver: broken"),
            Self::PermissionDenied => Status::permission_denied("etcdserver: permission denied"),
            Self::LeaderChanged => Status::unavailable("etcdserver: leader changed"),
        }
    }
}

pub(super) const KEYS: [&str; 7] = ["a/x", "a/y", "a/z", "b/x", "b/y/deep", "alone", "b/w"];

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

impl UpstreamSetup for Setup {
    fn any() -> BoxedStrategy<Self> {
        let version = select(vec!["3.6.16", "3.6.16", "3.6.16", "3.5.12", "3.4.31"]);
        (1_usize..3, version, select(vec![1_usize, 2, 1000]), select(vec![false, false, true]))
            .prop_map(|(members, version, fragment, has_user)| Setup { members, version, fragment, has_user })
            .boxed()
    }
}

impl UpstreamStep for Step {
    fn any_write() -> BoxedStrategy<Self> {
        prop_oneof![
            20 => any_transaction(),
            2 => Just(Self::DeleteAll),
            3 => Just(Self::Elsewhere),
            1 => select(&KEYS[..3]).prop_map(|key| Self::Write(vec![(key, Some(Value::TooLarge))])),
        ]
        .boxed()
    }

    fn any_fault() -> BoxedStrategy<Self> {
        let member = prop_oneof![2 => Just(None), 1 => (0_usize..2).prop_map(Some)];
        prop_oneof![
            8 => (member, NetworkFault::any()).prop_map(|(member, fault)| Self::Network(member, fault)),
            2 => Just(Self::Lag),
            2 => Just(Self::NoLeader),
            2 => Just(Self::Hang),
            2 => any_refusal().prop_map(Self::Refuse),
            1 => Just(Self::PasswordChanges),
        ]
        .boxed()
    }

    fn any_event() -> BoxedStrategy<Self> {
        let restore = (0_i64..8, 0_i64..12, select(vec![0_i64, 0, 0, 1000]), any::<bool>(), select(vec![0_u64, 0, 5]))
            .prop_map(|(back, ahead, bump, has_another_id, elections)| Restore {
                back,
                ahead,
                bump,
                has_another_id,
                elections,
            });
        prop_oneof![
            4 => NetworkFault::any_cut().prop_map(|cut| Self::Network(None, cut)),
            3 => (0_i64..6).prop_map(Self::Compact),
            2 => Just(Self::Restart),
            3 => restore.prop_map(Self::Restore),
            1 => Just(Self::LowerTerm),
            1 => Just(Self::Election),
            2 => any_refusal().prop_map(Self::RefuseOnce),
            1 => Just(Self::TokensEnd),
        ]
        .boxed()
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Write(changes) if changes.iter().any(|(_, value)| matches!(value, Some(Value::TooLarge))) => {
                "too large"
            }
            Self::Write(changes) if changes.iter().any(|(_, value)| matches!(value, Some(Value::NearlyJson))) => {
                "nearly JSON"
            }
            Self::Write(_) => "transaction",
            Self::DeleteAll => "deletion of everything",
            Self::Elsewhere => "write elsewhere",
            Self::Compact(_) => "compaction",
            Self::Network(_, fault) => fault.kind(),
            Self::Restart => "restart",
            Self::Restore(Restore { bump: 1.., .. }) => "restore with a raised revision",
            Self::Restore(Restore { has_another_id: true, .. }) => "restore with another cluster id",
            Self::Restore(Restore { back, ahead, .. }) if ahead > back => "restore beyond the last revision",
            Self::Restore(_) => "restore",
            Self::LowerTerm => "lower raft term",
            Self::Election => "election",
            Self::Lag => "lag",
            Self::NoLeader => "no leader",
            Self::Hang => "hang",
            Self::RefuseOnce(_) => "refused once",
            Self::Refuse(_) => "refused",
            Self::TokensEnd => "tokens end",
            Self::PasswordChanges => "password changes",
        }
    }

    fn is_write(&self) -> bool {
        matches!(self, Self::Write(_) | Self::DeleteAll | Self::Elsewhere | Self::Compact(_))
    }
}
