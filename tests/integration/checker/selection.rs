//! Selections of the checker's clients: the request, and the meaning.

use informerd::proto::pb;

use super::pod::Pod;

/// One of the selections of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    All,
    Namespace,
    Name,
    Label,
    LabelSet,
    NoLabel,
    Field,
    NotField,
    Index,
    IndexOfNamespace,
    LabelAndField,
    NameInNamespace,
    IndexOfSeveral,
    Expression,
    NotExpression,
    LabelAndExpression,
    UidShard,
    OtherUidShard,
    NodeShard,
    OtherNodeShard,
    NamespaceShard,
    LabelAndKeyShard,
    /// One part of a fleet.
    Part(Fleet, u8),
}

/// Division of all hashes of a value: into ranges that begin with the hashes of some of its values, given as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fleet {
    pub(crate) by: ShardBy,
    pub(crate) borders: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardBy {
    Uid,
    Namespace,
    Key,
    Node,
}

/// First hash of a range, and the one after its last; 0 stands for 2^64.
type Range = (u64, u64);

/// Uids u1 and u2, u5 and some later ones.
const UIDS: [Range; 2] = [(0, 0x08c4_7d00_0000_0000), (0x08c4_7f00_0000_0000, 0x4000_0000_0000_0000)];
const OTHER_UIDS: [Range; 2] = [(0x08c4_7d00_0000_0000, 0x08c4_7f00_0000_0000), (0x4000_0000_0000_0000, 0)];
/// Node n1, and objects without a node.
const NODES: [Range; 2] = [(0, 0x08b3_7c00_0000_0000), (1 << 63, 0)];
const OTHER_NODES: [Range; 1] = [(0x08b3_7c00_0000_0000, 1 << 63)];
/// Namespace ship.
const NAMESPACES: [Range; 1] = [(0x46e0_0000_0000_0000, 0)];
/// All keys but shop/a.
const KEYS: [Range; 1] = [(0, 0x8bc6_6b00_0000_0000)];

impl Selection {
    pub(crate) const EVERY: [Self; 22] = [
        Self::All,
        Self::Namespace,
        Self::Name,
        Self::Label,
        Self::LabelSet,
        Self::NoLabel,
        Self::Field,
        Self::NotField,
        Self::Index,
        Self::IndexOfNamespace,
        Self::LabelAndField,
        Self::NameInNamespace,
        Self::IndexOfSeveral,
        Self::Expression,
        Self::NotExpression,
        Self::LabelAndExpression,
        Self::UidShard,
        Self::OtherUidShard,
        Self::NodeShard,
        Self::OtherNodeShard,
        Self::NamespaceShard,
        Self::LabelAndKeyShard,
    ];

    /// Selections that a List can have: all but a name.
    pub(crate) const LISTED: [Self; 20] = [
        Self::All,
        Self::Namespace,
        Self::Label,
        Self::LabelSet,
        Self::NoLabel,
        Self::Field,
        Self::NotField,
        Self::Index,
        Self::IndexOfNamespace,
        Self::LabelAndField,
        Self::IndexOfSeveral,
        Self::Expression,
        Self::NotExpression,
        Self::LabelAndExpression,
        Self::UidShard,
        Self::OtherUidShard,
        Self::NodeShard,
        Self::OtherNodeShard,
        Self::NamespaceShard,
        Self::LabelAndKeyShard,
    ];

    /// Returns its expression; empty if it has none.
    pub(crate) fn expression(self) -> String {
        let mut request = pb::WatchRequest::default();
        self.ask(&mut request);
        request.expression
    }

    /// Sets it in a request.
    pub(crate) fn ask(self, request: &mut pb::WatchRequest) {
        let index = |name: &str, values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            Some(pb::IndexMatch { name: name.to_owned(), values })
        };
        let shard = |key: &str, ranges: &[Range]| {
            let ranges = ranges.iter().map(|&(start, end)| pb::ShardRange { start, end }).collect();
            Some(pb::Shard { key: key.to_owned(), ranges })
        };
        match self {
            Self::All => {}
            Self::Namespace => "shop".clone_into(&mut request.namespace),
            Self::Name => "a".clone_into(&mut request.name),
            Self::Label => "app=web".clone_into(&mut request.label_selector),
            Self::LabelSet => "app in (web,db)".clone_into(&mut request.label_selector),
            Self::NoLabel => "!app".clone_into(&mut request.label_selector),
            Self::Field => "spec.nodeName=n1".clone_into(&mut request.field_selector),
            Self::NotField => "spec.nodeName!=n1".clone_into(&mut request.field_selector),
            Self::Index => request.index = index("node", &["n1", "n2"]),
            Self::IndexOfNamespace => {
                request.index = index("app", &["db"]);
                "shop".clone_into(&mut request.namespace);
            }
            Self::LabelAndField => {
                "app!=db".clone_into(&mut request.label_selector);
                "metadata.name!=b,spec.nodeName!=n2".clone_into(&mut request.field_selector);
            }
            Self::NameInNamespace => {
                "shop".clone_into(&mut request.namespace);
                "a".clone_into(&mut request.name);
            }
            // One value twice, and one that no object has.
            Self::IndexOfSeveral => {
                request.index = index("node", &["n3", "n1", "nowhere", "n3"]);
                "app".clone_into(&mut request.label_selector);
            }
            Self::Expression => "object.metadata.labels.app == 'web'".clone_into(&mut request.expression),
            Self::NotExpression => "object.spec.nodeName != 'n1'".clone_into(&mut request.expression),
            Self::LabelAndExpression => {
                "app".clone_into(&mut request.label_selector);
                "object.metadata.name in ['a', 'c']".clone_into(&mut request.expression);
            }
            Self::UidShard => request.shard = shard("uid", &UIDS),
            Self::OtherUidShard => request.shard = shard("uid", &OTHER_UIDS),
            Self::NodeShard => request.shard = shard("spec.nodeName", &NODES),
            Self::OtherNodeShard => request.shard = shard("spec.nodeName", &OTHER_NODES),
            Self::NamespaceShard => request.shard = shard("namespace", &NAMESPACES),
            Self::LabelAndKeyShard => {
                "app".clone_into(&mut request.label_selector);
                request.shard = shard("key", &KEYS);
            }
            Self::Part(fleet, part) => request.shard = shard(fleet.by.name(), &[fleet.range(part)]),
        }
    }

    /// Returns true if it selects the object. A missing value is the empty string to a field selector, is in no index, and
    /// matches no expression. The other shard of two has what the first has not.
    pub(crate) fn matches(self, pod: &Pod) -> bool {
        let (namespace, name) = pod.key;
        match self {
            Self::All => true,
            Self::Namespace => namespace == "shop",
            Self::Name => name == "a",
            Self::Label | Self::Expression => pod.app == Some("web"),
            Self::LabelSet => pod.app == Some("web") || pod.app == Some("db"),
            Self::NoLabel => pod.app.is_none(),
            Self::Field => pod.node == Some("n1"),
            Self::NotField => pod.node != Some("n1"),
            Self::Index => pod.node == Some("n1") || pod.node == Some("n2"),
            Self::IndexOfNamespace => pod.app == Some("db") && namespace == "shop",
            Self::LabelAndField => pod.app != Some("db") && name != "b" && pod.node != Some("n2"),
            Self::NameInNamespace => pod.key == ("shop", "a"),
            Self::IndexOfSeveral => pod.app.is_some() && (pod.node == Some("n1") || pod.node == Some("n3")),
            Self::NotExpression => pod.node.is_some() && pod.node != Some("n1"),
            Self::LabelAndExpression => pod.app.is_some() && (name == "a" || name == "c"),
            Self::UidShard => is_in(&format!("u{}", pod.uid), &UIDS),
            Self::OtherUidShard => !is_in(&format!("u{}", pod.uid), &UIDS),
            Self::NodeShard => is_in(pod.node.unwrap_or_default(), &NODES),
            Self::OtherNodeShard => !is_in(pod.node.unwrap_or_default(), &NODES),
            Self::NamespaceShard => namespace == "ship",
            Self::LabelAndKeyShard => pod.app.is_some() && pod.key != ("shop", "a"),
            Self::Part(fleet, part) => is_in(&fleet.by.value(pod), &[fleet.range(part)]),
        }
    }
}

impl Fleet {
    /// Returns the number of its parts.
    pub(crate) fn parts(self) -> u8 {
        self.starts().len() as u8
    }

    fn starts(self) -> Vec<u64> {
        let values = self.by.values().iter().enumerate();
        let borders = values.filter(|(at, _)| self.borders >> at & 1 == 1).map(|(_, value)| hash(value));
        let mut starts: Vec<u64> = [0].into_iter().chain(borders).collect();
        starts.sort_unstable();
        starts
    }

    fn range(self, part: u8) -> Range {
        let (starts, part) = (self.starts(), usize::from(part));
        (starts[part], starts.get(part + 1).copied().unwrap_or_default())
    }
}

impl ShardBy {
    pub(crate) const EVERY: [Self; 4] = [Self::Uid, Self::Namespace, Self::Key, Self::Node];

    fn name(self) -> &'static str {
        match self {
            Self::Uid => "uid",
            Self::Namespace => "namespace",
            Self::Key => "key",
            Self::Node => "spec.nodeName",
        }
    }

    /// Returns values that objects have, at most one for each bit of [`Fleet::borders`].
    fn values(self) -> &'static [&'static str] {
        match self {
            Self::Uid => &["u1", "u2", "u3", "u5", "u8", "u13", "u21", "u34"],
            Self::Namespace => &["shop", "ship"],
            Self::Key => &["shop/a", "shop/b", "shop/c", "ship/a", "ship/b", "ship/d"],
            Self::Node => &["n1", "n2", "n3", ""],
        }
    }

    fn value(self, pod: &Pod) -> String {
        match self {
            Self::Uid => format!("u{}", pod.uid),
            Self::Namespace => pod.key.0.to_owned(),
            Self::Key => format!("{}/{}", pod.key.0, pod.key.1),
            Self::Node => pod.node.unwrap_or_default().to_owned(),
        }
    }
}

/// Returns true if the hash of a value is in one of the ranges.
fn is_in(value: &str, ranges: &[Range]) -> bool {
    let hash = hash(value);
    ranges.iter().any(|&(start, end)| start <= hash && (end == 0 || hash < end))
}

fn hash(value: &str) -> u64 {
    let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    value.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}
