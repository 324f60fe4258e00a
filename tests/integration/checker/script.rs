//! Script of a run: a configuration, a first state, and any sequence of upstream messages, clients and time.

use std::time::Duration;

use informerd::proto::pb::{FullChannelPolicy, PayloadFormat};
use proptest::{
    collection::vec,
    option::{of, weighted},
    prelude::*,
    sample::{Index, select},
};

use super::{
    ask::{self, Condition, Min, Query, Twist},
    pod::Key,
    record::{Plan, Share},
    scenes::any_scene,
    selection::{Fleet, Selection, ShardBy},
    truth::{Bounds, Write},
    view::{Form, View},
};

/// One run.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) config: Config,
    pub(crate) first: Vec<Write>,
    pub(crate) steps: Vec<Step>,
    /// True if all clients read everything before the server drains.
    pub(crate) settles: bool,
}

/// Bounds that are small enough to be reached in a run.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Number of resources of a server.
    pub(crate) resources: usize,
    pub(crate) has_lineage: bool,
    /// True if the upstream serves the same bytes of an object at each list.
    pub(crate) has_stable_bodies: bool,
    pub(crate) history: Bounds,
    pub(crate) retention: Bounds,
    pub(crate) block_timeout: Duration,
    pub(crate) drain_period: Duration,
    /// True if the writer itself has time for selections without an index; otherwise threads fill their groups.
    pub(crate) has_time: bool,
    /// Padding of each body in bytes; with large bodies a piece of a stream has two.
    pub(crate) padding: usize,
    /// Room for one response of a Subscribe stream, in bytes; a larger message is sent alone.
    pub(crate) room: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Writes, reported in one go.
    Say(Vec<(Write, u64)>),
    /// Writes, reported as one transaction.
    SayAtOnce(Vec<Write>, u64),
    /// Writes, reported one by one at one version, which may still get more.
    SayOpen(Vec<Write>, u64),
    /// Replay of the changes at a version that may still get more, as a Reflector that reconnects receives them.
    Reconnect(Reconnected),
    /// List, after writes that no watch reported.
    Relist(Vec<(Write, u64)>, u64),
    Rewind(u64, u8),
    /// Result of the upstream's own relist, as a relay receives it, after writes that no watch reported.
    Relisted(Vec<(Write, u64)>, u64),
    /// Rewrite of the history, with a version offset; the other fields select the objects that stay, and whether the upstream
    /// reports the rewrite or only its list shows it.
    Rewrite(i64, u8, bool),
    /// Report that the upstream is lost, until it sends something.
    Lose,
    /// New client, which replaces the one in this place.
    Open(usize, Plan),
    /// Read of up to so many pieces in a place.
    Read(usize, usize),
    /// End of a client's connection, with the loss of so many of its last messages, which were in flight.
    Leave(usize, usize),
    Resume(usize, ResumeFrom),
    /// Break of a client's Subscribe stream: all its clients leave, each with the loss of so many of its last messages.
    Break(usize, usize),
    /// End of the requests of a client's Subscribe stream: its watches stay open.
    HalfClose(usize),
    /// Request with a bad id on a client's Subscribe stream, which ends the stream: 0 if this is true, or the id of its watch.
    BadId(usize, bool),
    Wait(u64),
    /// Unary call, which replaces the one in this place.
    Ask(usize, Question),
    /// Request for the page after the one that was read in a place.
    NextPage {
        place: usize,
        twist: Twist,
        page_size: u32,
        is_slow: bool,
    },
    /// Read of the next piece of an answer that is read slowly.
    Poll(usize),
    /// Switch of clients to the other server; the first one starts it.
    Elsewhere,
    /// Switch of upstream messages, clients and calls to this resource; to the first if there is no second.
    Use(usize),
    /// Switch of clients and calls to a resource that no server has.
    UseUnknown,
    /// Writes of the other resource, if there is one.
    Beside(Vec<(Write, u64)>),
    /// Switch of clients to the other server, and drain of the previous one.
    Drain,
}

/// First message after a reconnection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reconnected {
    /// The same changes again.
    Again,
    /// A bookmark at the version before.
    Bookmark,
    /// The state at that version.
    List,
}

/// Request of a unary call, without versions that are not yet known.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) asked: QuestionKind,
    pub(crate) form: Form,
    pub(crate) min: Option<Min>,
    pub(crate) deadline: Option<Duration>,
    /// True if its answer is read only in [`Step::Poll`].
    pub(crate) is_slow: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum QuestionKind {
    List { query: Query, page_size: u32 },
    Get(Key),
    Until { selection: Selection, conditions: Vec<Condition> },
    Values { index: ask::Index, page_size: u32 },
}

/// Version from which a client resumes.
#[derive(Debug, Clone)]
pub(crate) enum ResumeFrom {
    Last,
    /// The version before the last gap.
    Hole,
    /// So many versions before the newest.
    Old(u64),
    /// A version inside a relist or another batch of several events, or at its ends.
    Batch(usize),
    Future(u64),
    Foreign,
}

pub(crate) const FORMATS: [PayloadFormat; 4] =
    [PayloadFormat::Unspecified, PayloadFormat::Struct, PayloadFormat::Raw, PayloadFormat::Metadata];
pub(super) const KEYS: [Key; 6] =
    [("shop", "a"), ("shop", "b"), ("shop", "c"), ("ship", "a"), ("ship", "b"), ("ship", "d")];
/// Number of clients at one time.
pub(crate) const PLACES: usize = 4;
/// Number of unary calls at one time.
pub(crate) const CALLS: usize = 3;

pub(crate) fn any_script() -> impl Strategy<Value = Script> {
    let first = vec((select(&KEYS[..]), any_app(), any_node()), 0..6);
    let first = first.prop_map(|puts| puts.into_iter().map(|(key, app, node)| Write::Put(key, app, node)).collect());
    let scene = (any_scene(), weighted(0.3, any_write_beside()));
    (any_config(), first, vec(scene, 6..40), weighted(0.7, Just(()))).prop_map(|(config, first, scenes, settles)| {
        let is_one = config.resources == 1;
        let scenes = scenes.into_iter().map(|(mut scene, beside)| {
            if let Some((at, steps)) = beside.filter(|_| !is_one) {
                let at = at.index(scene.len() + 1);
                scene.splice(at..at, steps);
            }
            scene
        });
        Script { config, first, steps: scenes.flatten().collect(), settles: settles.is_some() }
    })
}

/// Returns steps of the other resource at a place in a scene, or of a switch to one of the two.
fn any_write_beside() -> impl Strategy<Value = (Index, Vec<Step>)> {
    let say = vec(any_write(), 1..4).prop_map(Step::Beside);
    let step = prop_oneof![2 => say, 3 => (0_usize..2).prop_map(Step::Use)];
    (any::<Index>(), step.prop_map(|step| vec![step]))
}

fn any_config() -> impl Strategy<Value = Config> {
    let age = prop_oneof![1 => 2_u64..6, 3 => Just(100_000)].prop_map(Duration::from_secs);
    let history = (age.clone(), prop_oneof![3_usize..12, 8..60_usize, Just(10_000)]);
    let retention = (age, prop_oneof![2 => 1_usize..5, 1 => Just(10_000)]);
    let bytes = || weighted(0.2, 1_000_usize..8_000);
    // The event bounds are the same for large bodies as for small ones.
    let bounds = |(age, events), bytes: Option<usize>, padding| {
        let bytes = bytes.map_or(Bounds::ANY_BYTES, |bytes| bytes * (1 + padding / 400));
        Bounds { age, events, bytes }
    };
    let padding = prop_oneof![5 => Just(0), 1 => Just(33_000)];
    let drain_period = prop_oneof![3 => Just(0), 1 => 1_u64..1000].prop_map(Duration::from_millis);
    let room = prop_oneof![3 => Just(64 << 10), 1 => 100_usize..2000];
    let versions = (weighted(0.25, Just(())), any::<bool>(), prop_oneof![3 => Just(1_usize), 1 => Just(2)]);
    (versions, history, retention, (bytes(), bytes()), 100_u64..2000, drain_period, (padding, room)).prop_map(
        move |((lineage, has_stable_bodies, resources), history, retention, bytes, block_ms, drain_period, sizes)| {
            let (padding, room) = sizes;
            Config {
                resources,
                has_lineage: lineage.is_some(),
                has_stable_bodies,
                history: bounds(history, bytes.0, padding),
                // A bound in bytes comes with the other bounds of the history, as in the configuration.
                retention: bounds(if bytes.1.is_some() { history } else { retention }, bytes.1, padding),
                block_timeout: Duration::from_millis(block_ms),
                drain_period,
                has_time: block_ms % 2 == 0,
                padding,
                room,
            }
        },
    )
}

fn any_app() -> impl Strategy<Value = Option<&'static str>> {
    select(vec![Some("web"), Some("web"), Some("db"), None])
}

fn any_node() -> impl Strategy<Value = Option<&'static str>> {
    select(vec![Some("n1"), Some("n1"), Some("n2"), Some("n3"), None])
}

pub(super) fn any_write() -> impl Strategy<Value = (Write, u64)> {
    let key = || select(&KEYS[..]);
    let write = prop_oneof![
        12 => (key(), any_app(), any_node()).prop_map(|(key, app, node)| Write::Put(key, app, node)),
        4 => key().prop_map(Write::Delete),
        3 => key().prop_map(Write::Recreate),
        1 => key().prop_map(Write::Convert),
        2 => key().prop_map(Write::Outgrow),
        1 => Just(Write::Bookmark),
        1 => Just(Write::Close),
        1 => Just(Write::Repeat),
    ];
    (write, select(vec![1_u64, 1, 1, 3]))
}

/// Returns a transaction whose version may be more than one past the last.
pub(super) fn any_transaction() -> impl Strategy<Value = Step> {
    (vec(any_write(), 2..6), select(vec![1_u64, 3])).prop_map(|(writes, step)| {
        let writes = writes.into_iter().map(|(write, _)| write);
        Step::SayAtOnce(writes.collect(), step)
    })
}

/// Returns some of the changes of an upstream at one version, one by one.
pub(super) fn any_open() -> impl Strategy<Value = Step> {
    (vec(any_write(), 1..4), select(vec![1_u64, 1, 3])).prop_map(|(writes, step)| {
        let writes = writes.into_iter().map(|(write, _)| write);
        Step::SayOpen(writes.collect(), step)
    })
}

pub(super) fn any_reconnect() -> impl Strategy<Value = Step> {
    select(vec![Reconnected::Again, Reconnected::Bookmark, Reconnected::List]).prop_map(Step::Reconnect)
}

pub(super) fn any_plan() -> impl Strategy<Value = Plan> {
    let policies =
        vec![FullChannelPolicy::Drop, FullChannelPolicy::Block, FullChannelPolicy::Replay, FullChannelPolicy::Coalesce];
    let timeout = weighted(0.1, 500_u64..5000);
    let is_min = weighted(0.1, any_min());
    let queue = (select(policies), 1_u32..6, 1_u8..4);
    // The shortest interval is below the minimum of the server.
    let interval = (30_u64..=MAX_BOOKMARK_INTERVAL.as_millis() as u64).prop_map(Duration::from_millis);
    let times = (timeout, weighted(0.3, interval));
    let share = (any::<bool>(), any::<bool>(), weighted(0.4, Just(())));
    let share = share.prop_map(|(pauses, has_new_ids, twin)| Share { pauses, has_new_ids, is_twin: twin.is_some() });
    let start = (weighted(0.6, Just(())), is_min);
    (any_selection(), any_form(), queue, times, start, weighted(0.35, share)).prop_map(
        |(
            selection,
            form,
            (policy, length, peer),
            (timeout, bookmark_interval),
            (sends_initial_events, min),
            share,
        )| Plan {
            selection,
            form,
            policy,
            length,
            // Few hosts, so that streams are shared.
            peer: if share.is_some() { 1 + peer % 2 } else { peer },
            sends_initial_events: sends_initial_events.is_some(),
            has_batches: length % 2 == 0,
            tells_history: peer == 1,
            bookmark_interval,
            timeout: timeout.map(Duration::from_millis),
            min,
            share,
        },
    )
}

/// Returns a form: whole bodies, or a view, which mostly suppresses changes.
fn any_form() -> impl Strategy<Value = Form> {
    let view = (select(&View::EVERY[..]), weighted(0.7, Just(())));
    (any_format(), weighted(0.4, view)).prop_map(|(format, view)| {
        let (view, only_if_changed) = view.map_or((View::Whole, None), |view| view);
        Form { format, view, only_if_changed: only_if_changed.is_some() }.in_format(format)
    })
}

/// Returns a format; RAW, the cheapest, the most often.
fn any_format() -> impl Strategy<Value = PayloadFormat> {
    prop_oneof![3 => Just(PayloadFormat::Raw), 2 => select(&FORMATS[..])]
}

fn any_selection() -> impl Strategy<Value = Selection> {
    prop_oneof![4 => Just(Selection::All), 9 => select(&Selection::EVERY[..]), 1 => any_part()]
}

fn any_part() -> impl Strategy<Value = Selection> {
    (any_fleet(), any::<u8>()).prop_map(|(fleet, part)| Selection::Part(fleet, part % fleet.parts()))
}

pub(super) fn any_fleet() -> impl Strategy<Value = Fleet> {
    // At most as many parts as places.
    let borders = any::<u8>().prop_filter("few parts", |borders| borders.count_ones() < PLACES as u32);
    (select(&ShardBy::EVERY[..]), borders).prop_map(|(by, borders)| Fleet { by, borders })
}

fn any_min() -> impl Strategy<Value = Min> {
    prop_oneof![12 => (-3_i64..5).prop_map(Min::Near), 1 => Just(Min::Foreign)]
}

pub(super) fn any_list(page_size: impl Strategy<Value = u32>) -> impl Strategy<Value = Question> {
    let query = (prop_oneof![9 => select(&Selection::LISTED[..]), 1 => any_part()], any::<bool>());
    let query = query.prop_map(|(selection, is_by_index)| Query { selection, is_by_index });
    any_question((query, page_size).prop_map(|(query, page_size)| QuestionKind::List { query, page_size }))
}

pub(super) fn any_until() -> impl Strategy<Value = Question> {
    let name = || select(vec!["a", "b", "c", "d"]);
    let condition = prop_oneof![
        2 => Just(Condition::Added),
        2 => Just(Condition::Modified),
        2 => Just(Condition::Deleted),
        1 => Just(Condition::Synced),
        3 => (0_usize..5).prop_map(Condition::Count),
        1 => (2_usize..6).prop_map(Condition::AtLeast),
        2 => name().prop_map(Condition::Named),
        2 => name().prop_map(Condition::DeletedNamed),
        2 => select(vec!["web", "db"]).prop_map(Condition::App),
        2 => select(vec!["n1", "n2"]).prop_map(Condition::NotNode),
    ];
    let asked = (any_selection(), vec(condition, 1..5));
    any_question(asked.prop_map(|(selection, conditions)| QuestionKind::Until { selection, conditions }))
}

fn any_values() -> impl Strategy<Value = QuestionKind> {
    let index = select(vec![ask::Index::App, ask::Index::Node, ask::Index::Namespace]);
    (index, 0_u32..4).prop_map(|(index, page_size)| QuestionKind::Values { index, page_size })
}

fn any_question(asked: impl Strategy<Value = QuestionKind>) -> impl Strategy<Value = Question> {
    let deadline = weighted(0.5, 200_u64..3000);
    (asked, any_form(), weighted(0.3, any_min()), deadline, weighted(0.3, Just(()))).prop_map(
        |(asked, form, min, deadline, is_slow)| Question {
            asked,
            form,
            min,
            deadline: deadline.map(Duration::from_millis),
            is_slow: is_slow.is_some(),
        },
    )
}

pub(super) fn any_next_page(place: usize) -> impl Strategy<Value = Step> {
    let twist =
        prop_oneof![12 => Just(Twist::None), 5 => (0_u8..5).prop_map(Twist::OtherQuery), 1 => Just(Twist::Garbage)];
    (twist, select(vec![1_u32, 1, 2, 3, 0]), weighted(0.2, Just(()))).prop_map(move |(twist, page_size, is_slow)| {
        Step::NextPage { place, twist, page_size, is_slow: is_slow.is_some() }
    })
}

/// Heartbeat interval of the upstream, and the time by which it may be late; a resource is STALE when it has been silent for
/// their sum.
pub(crate) const SILENCE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(3)];
/// Default of the server, and the longest interval that a client requests.
pub(crate) const DEFAULT_BOOKMARK_INTERVAL: Duration = Duration::from_millis(700);
pub(crate) const MAX_BOOKMARK_INTERVAL: Duration = Duration::from_millis(1500);

pub(super) fn any_step() -> impl Strategy<Value = Step> {
    let place = || 0..PLACES;
    let from = prop_oneof![
        8 => Just(ResumeFrom::Last),
        2 => Just(ResumeFrom::Hole),
        3 => (0_u64..30).prop_map(ResumeFrom::Old),
        3 => any::<usize>().prop_map(ResumeFrom::Batch),
        1 => (1_u64..8).prop_map(ResumeFrom::Future),
        1 => Just(ResumeFrom::Foreign),
    ];
    let lost = of(1_usize..4).prop_map(Option::unwrap_or_default);
    prop_oneof![
        20 => vec(any_write(), 1..5).prop_map(Step::Say),
        5 => (vec(any_write(), 0..5), 0_u64..4).prop_map(|(unseen, step)| Step::Relist(unseen, step)),
        4 => any_transaction(),
        4 => any_open(),
        1 => any_reconnect(),
        1 => (prop_oneof![1_u64..4, 1..20_u64], any::<u8>()).prop_map(|(back, keep)| Step::Rewind(back, keep)),
        2 => (vec(any_write(), 0..5), 0_u64..4).prop_map(|(unseen, step)| Step::Relisted(unseen, step)),
        1 => (-12_i64..12, any::<u8>(), any::<bool>()).prop_map(|(ahead, keep, says)| Step::Rewrite(ahead, keep, says)),
        1 => Just(Step::Lose),
        6 => (place(), any_plan()).prop_map(|(place, plan)| Step::Open(place, plan)),
        16 => (place(), 1_usize..4).prop_map(|(place, pieces)| Step::Read(place, pieces)),
        3 => (place(), lost).prop_map(|(place, lost)| Step::Leave(place, lost)),
        7 => (place(), from).prop_map(|(place, from)| Step::Resume(place, from)),
        1 => (place(), 0_usize..3).prop_map(|(place, lost)| Step::Break(place, lost)),
        1 => place().prop_map(Step::HalfClose),
        4 => (10_u64..3000).prop_map(Step::Wait),
        3 => (0..CALLS, any_list(prop_oneof![Just(0), 1_u32..4])).prop_map(|(place, list)| Step::Ask(place, list)),
        1 => (0..CALLS, any_question(select(&KEYS[..]).prop_map(QuestionKind::Get)))
            .prop_map(|(place, get)| Step::Ask(place, get)),
        1 => (0..CALLS, any_question(any_values())).prop_map(|(place, values)| Step::Ask(place, values)),
        2 => (0..CALLS, any_until()).prop_map(|(place, until)| Step::Ask(place, until)),
        2 => (0..CALLS).prop_map(Step::Poll),
        2 => (0..CALLS).prop_flat_map(any_next_page),
        1 => prop_oneof![Just(Step::Elsewhere), Just(Step::Drain)],
    ]
}
