//! Generator of the operations on a Broadcaster, and of its clients' options.

use proptest::{collection::vec, prelude::*, sample::select};

use super::super::*;
use crate::model::{Shard, ShardKey};

/// Options of a client; selections by label, by name, by namespace, by index and by shard, and some that nothing routes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    pub(super) selection: usize,
    pub(super) format: char,
    pub(super) queue: QueueOptions,
    pub(super) initial_events: bool,
}

/// Objects by number: a label for a put, none for a deletion.
pub(crate) type Put = (usize, Option<usize>, usize);

#[derive(Debug, Clone)]
pub(super) enum Op {
    /// One publish cycle: batches of changes.
    Publish(Vec<Vec<Put>>),
    Subscribe(Client),
    Take(usize, usize),
    GoLive(usize),
    Leave(usize),
    Sweep,
    /// A bookmark for the watch at this index.
    Bookmark(usize),
    /// One piece of work of the threads.
    Work,
    /// The writer waits for the clients that block, until their budgets are spent; and then perhaps until they are full
    /// again.
    Wait(bool),
    Restart,
    Stop,
}

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];
pub(crate) const APPS: [&str; 3] = ["web", "db", "none"];
pub(crate) const SELECTIONS: usize = 14;

pub(crate) fn selection(number: usize) -> Selection {
    let index = |values: &[&str]| IndexMatch {
        name: "app".into(),
        func: IndexFunc::Label("app".into()),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let shard = |start, end| Shard::new(ShardKey::Key, &[(start, end)]).ok();
    let mut selection = Selection::default();
    match number {
        0 => {}
        1 => selection.labels = LabelSelector::parse("app=web").unwrap(),
        2 => selection.labels = LabelSelector::parse("app in (web,db)").unwrap(),
        3 => selection.name = Some("a".into()),
        4 => selection.index = Some(index(&["web", "none"])),
        5 => {
            selection.index = Some(index(&["db"]));
            selection.name = Some("b".into());
        }
        6 => selection.namespace = Some("shop".into()),
        7 => selection.labels = LabelSelector::parse("app!=web").unwrap(),
        8 => selection.labels = LabelSelector::parse("app!=none").unwrap(),
        10 => selection.namespaces = Some(["bank", "shop"].into_iter().collect()),
        11 => selection.namespaces = Some(["bank"].into_iter().collect()),
        12 => selection.shard = shard(0x8bc6_6b00_0000_0000, 0),
        13 => {
            selection.namespace = Some("shop".into());
            selection.shard = shard(0, 0x8bc6_6b00_0000_0000);
        }
        _ => {
            selection.namespace = Some("shop".into());
            selection.labels = LabelSelector::parse("app!=db").unwrap();
        }
    }
    selection
}

/// Returns true if the selection has the object, decided by the objects' names and labels alone.
pub(crate) fn is_selected(number: usize, object: &Object) -> bool {
    let (name, app) = (object.key().name(), object.labels().get("app").unwrap());
    match number {
        1 => app == "web",
        2 | 8 => app != "none",
        3 | 12 => name == "a",
        4 | 9 => app != "db",
        5 => app == "db" && name == "b",
        7 => app != "web",
        11 => false,
        13 => name != "a",
        _ => true,
    }
}

pub(crate) fn any_put() -> impl Strategy<Value = Put> {
    (0..NAMES.len(), proptest::option::weighted(0.8, 0..APPS.len()), select(vec![0_usize, 0, 10, 400]))
}

pub(super) fn any_op() -> impl Strategy<Value = Op> {
    let policy = select(vec![FullChannelPolicy::Drop, FullChannelPolicy::Block, FullChannelPolicy::Replay]);
    let client = (0..SELECTIONS, select(vec!['a', 'b', 's', 's']), policy, 0_usize..5, any::<bool>()).prop_map(
        |(selection, format, policy, length, initial_events)| Client {
            selection,
            format,
            queue: queue(policy, length),
            initial_events,
        },
    );
    let size = select(vec![1_usize, 100, 200, 500, usize::MAX]);
    prop_oneof![
        12 => vec(vec(any_put(), 0..4), 1..4).prop_map(Op::Publish),
        4 => client.prop_map(Op::Subscribe),
        16 => (0..8_usize, size).prop_map(|(at, size)| Op::Take(at, size)),
        3 => (0..8_usize).prop_map(Op::GoLive),
        1 => (0..8_usize).prop_map(Op::Leave),
        1 => Just(Op::Sweep),
        2 => any::<bool>().prop_map(Op::Wait),
        4 => (0..8_usize).prop_map(Op::Bookmark),
        8 => Just(Op::Work),
        1 => prop_oneof![4 => Just(Op::Sweep), 2 => Just(Op::Restart), 1 => Just(Op::Stop)],
    ]
}
