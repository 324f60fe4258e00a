//! Script of a chain of servers.

use proptest::{collection::vec, prelude::*, sample::select};

use crate::source_checker::{
    proxy::NetworkFault,
    upstream::{Key, UpstreamSetup, UpstreamStep},
};

/// Selection of the checked relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    Everything,
    Namespace,
    Name,
    Labels,
    Fields,
    Expression,
    Index,
    LabelsInNamespace,
}

/// Server to which each link leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Index of the origin.
    pub(super) origin: usize,
    /// True if there is a relay in between.
    pub(super) is_chain: bool,
    /// True if both origins are behind one address: connections alternate between them.
    pub(super) is_shared: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(super) shape: Shape,
    pub(super) fragment: usize,
    pub(super) selection: Selection,
    /// True if the relay in between has the same selection instead of everything.
    pub(super) selects_twice: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// One transaction: keys and their values, `None` for a deletion.
    Write(Vec<(&'static str, Option<u32>)>),
    DeleteAll,
    Elsewhere,
    /// A compaction, and a cut between the cluster and the origins: they relist, which is one batch.
    Relist,
    /// A fault of the link to the checked relay.
    Down(NetworkFault),
    /// A fault of the link to the relay in between.
    Middle(NetworkFault),
    /// A fault of the link from the cluster to an origin.
    Up(usize, NetworkFault),
    /// Kill and restart of a server, with or without its state.
    RestartOrigin {
        keeps_state: bool,
    },
    RestartBetween {
        keeps_state: bool,
    },
    /// Restore of the cluster: the number of lost revisions, and that of the new history's transactions.
    Restore {
        back: i64,
        ahead: i64,
    },
    /// Restore while the origins are down; they start again with or without their state.
    RestoreUnderRestart {
        back: i64,
        ahead: i64,
        keeps_state: bool,
    },
    /// Lag of the cluster member of an origin, which applies nothing more; and the links may change to it or to both origins.
    Lag(usize, Shape),
    /// Change of the links.
    Reorder(Shape),
}

pub(super) const KEYS: [&str; 6] = ["a/x", "a/y", "a/z", "b/x", "b/y", "alone"];

impl Selection {
    /// Selections, of which each other one is as frequent as all that select.
    fn any() -> impl Strategy<Value = Self> {
        let selective = [Self::Namespace, Self::Name, Self::Labels, Self::Fields, Self::Index, Self::LabelsInNamespace];
        let expression = Some(Self::Expression).filter(|_| cfg!(feature = "cel"));
        prop_oneof![2 => Just(Self::Everything), 3 => select(selective.into_iter().chain(expression).collect::<Vec<_>>())]
    }

    /// Returns true if it selects an object. A missing value is no label, the empty text to a field selector, and matches no
    /// expression.
    pub(super) fn matches(self, (namespace, name): &Key, body: &[u8]) -> bool {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let is_even = body["metadata"]["labels"]["parity"] == "even";
        match self {
            Self::Everything => true,
            Self::Namespace => namespace == "a",
            Self::Name => name == "y",
            Self::Labels => is_even,
            Self::Fields => body["half"] != "low" && name != "x",
            Self::Expression => body["n"].as_u64().is_some_and(|n| n < 500),
            Self::Index => namespace == "b",
            Self::LabelsInNamespace => is_even && namespace == "b",
        }
    }

    /// Returns true if a change of its body can make an object leave the selection.
    pub(super) fn is_by_body(self) -> bool {
        matches!(self, Self::Labels | Self::Fields | Self::Expression | Self::LabelsInNamespace)
    }
}

/// Returns the body of an object.
pub(super) fn body(number: u32) -> Vec<u8> {
    let parity = if number.is_multiple_of(2) { "even" } else { "odd" };
    let half = if number < 500 { "low" } else { "high" };
    let labels = format!(r#"{{"parity":"{parity}"}}"#);
    format!(r#"{{"metadata":{{"labels":{labels}}},"half":"{half}","n":{number}}}"#).into_bytes()
}

fn any_shape() -> impl Strategy<Value = Shape> {
    (0_usize..2, any::<bool>(), prop::bool::weighted(0.3)).prop_map(|(origin, is_chain, is_shared)| Shape {
        origin,
        is_chain,
        is_shared,
    })
}

/// Draws the numbers of lost and of new revisions: often equal, so that the same objects have the same revisions again.
fn any_restore() -> impl Strategy<Value = (i64, i64)> {
    prop_oneof![3 => (0_i64..8, 0_i64..12), 1 => (2_i64..8).prop_map(|back| (back, back))]
}

impl UpstreamSetup for Setup {
    fn any() -> BoxedStrategy<Self> {
        (any_shape(), select(vec![1_usize, 1000]), Selection::any(), any::<bool>())
            .prop_map(|(shape, fragment, selection, selects_twice)| Self { shape, fragment, selection, selects_twice })
            .boxed()
    }

    fn kinds(&self) -> Vec<&'static str> {
        vec![match self.selection {
            Selection::Everything => "selection of everything",
            Selection::Namespace => "selection by namespace",
            Selection::Name => "selection by name",
            Selection::Labels => "selection by labels",
            Selection::Fields => "selection by fields",
            Selection::Expression => "selection by expression",
            Selection::Index => "selection by index",
            Selection::LabelsInNamespace => "selection by labels in a namespace",
        }]
    }
}

impl UpstreamStep for Step {
    fn any_write() -> BoxedStrategy<Self> {
        let value = prop_oneof![3 => (0_u32..1000).prop_map(Some), 1 => Just(None)];
        prop_oneof![
            12 => vec((select(&KEYS[..]), value), 1..6).prop_map(Self::Write),
            1 => Just(Self::DeleteAll),
            1 => Just(Self::Elsewhere),
        ]
        .boxed()
    }

    fn any_fault() -> BoxedStrategy<Self> {
        prop_oneof![
            4 => NetworkFault::any().prop_map(Self::Down),
            2 => NetworkFault::any().prop_map(Self::Middle),
            2 => (0_usize..2, any_shape()).prop_map(|(origin, shape)| Self::Lag(origin, shape)),
            2 => (0_usize..2, NetworkFault::any()).prop_map(|(origin, fault)| Self::Up(origin, fault)),
        ]
        .boxed()
    }

    fn any_event() -> BoxedStrategy<Self> {
        prop_oneof![
            4 => NetworkFault::any_cut().prop_map(Self::Down),
            2 => Just(Self::Relist),
            2 => any::<bool>().prop_map(|keeps_state| Self::RestartOrigin { keeps_state }),
            1 => any::<bool>().prop_map(|keeps_state| Self::RestartBetween { keeps_state }),
            2 => any_restore().prop_map(|(back, ahead)| Self::Restore { back, ahead }),
            3 => (any_restore(), any::<bool>()).prop_map(|((back, ahead), keeps_state)| Self::RestoreUnderRestart {
                back,
                ahead,
                keeps_state,
            }),
            2 => any_shape().prop_map(Self::Reorder),
        ]
        .boxed()
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Write(_) => "transaction",
            Self::DeleteAll => "deletion of everything",
            Self::Elsewhere => "write elsewhere",
            Self::Relist => "relist of the origin",
            Self::Down(fault) | Self::Middle(fault) | Self::Up(_, fault) => fault.kind(),
            Self::RestartOrigin { keeps_state: true } => "origin restarted with its state",
            Self::RestartOrigin { .. } => "origin restarted without its state",
            Self::RestartBetween { .. } => "relay in between restarted",
            Self::Restore { .. } => "restore",
            Self::RestoreUnderRestart { keeps_state: true, .. } => {
                "origin restarted with its state over a restored upstream"
            }
            Self::RestoreUnderRestart { .. } => "origin restarted over a restored upstream",
            Self::Lag(_, Shape { is_shared: true, .. }) => "lag of one of two origins behind one address",
            Self::Lag(..) => "lag of an origin",
            Self::Reorder(Shape { is_shared: true, .. }) => "two origins behind one address",
            Self::Reorder(_) => "chain re-ordered",
        }
    }

    fn is_write(&self) -> bool {
        matches!(self, Self::Write(_) | Self::DeleteAll | Self::Elsewhere)
    }
}
