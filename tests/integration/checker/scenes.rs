//! Scenes of a script: mostly a single step, and sequences that reach rare situations only together.

use std::time::Duration;

use informerd::proto::pb::{FullChannelPolicy, PayloadFormat};
use proptest::{collection::vec, prelude::*, sample::select, strategy::BoxedStrategy};

use super::{
    ask::{Query, Twist},
    record::{Plan, Share},
    script::{
        CALLS, KEYS, PLACES, Question, QuestionKind, ResumeFrom, Step, any_fleet, any_list, any_next_page, any_open,
        any_plan, any_reconnect, any_step, any_transaction, any_until, any_write,
    },
    selection::{Fleet, Selection},
    truth::Write,
    view::Form,
};

type Scene = BoxedStrategy<Vec<Step>>;

pub(super) fn any_scene() -> impl Strategy<Value = Vec<Step>> {
    prop_oneof![
        360 => any_step().prop_map(|step| vec![step]),
        20 => twins(),
        8 => sharers(),
        8 => pauses(),
        5 => breaks(),
        15 => one_is_full(),
        15 => spends(),
        10 => back_and_past(),
        10 => parked_past(),
        20 => torn(),
        20 => between(),
        20 => opens(),
        8 => unchanged(),
        8 => converted(),
        10 => stall(),
        10 => quiet(),
        15 => lags(),
        5 => vanishes(),
        5 => divided(),
        30 => paged(),
        20 => awaited(),
        10 => drained(),
        3 => unknown(),
        3 => crowded(),
        5 => long(),
    ]
}

fn any_place() -> impl Strategy<Value = usize> {
    0..PLACES
}

fn say(count: std::ops::Range<usize>) -> impl Strategy<Value = Step> {
    vec(any_write(), count).prop_map(Step::Say)
}

/// Returns the steps that open a client, and read up to its join.
fn opened(place: usize, plan: Plan) -> [Step; 2] {
    [Step::Open(place, plan), Step::Read(place, 9)]
}

fn replays_all(plan: &Plan) -> Plan {
    Plan { policy: FullChannelPolicy::Replay, selection: Selection::All, timeout: None, min: None, ..plan.clone() }
}

/// Draws two clients of one group.
fn twins() -> Scene {
    let scene = (any_place(), any_plan(), 1_u32..6).prop_map(|(place, plan, length)| {
        let twin = Plan { length, ..plan.clone() };
        [opened(place, plan), opened((place + 1) % PLACES, twin)].concat()
    });
    scene.boxed()
}

/// Returns the plan of a client that connects through Subscribe, from the same host as all other such clients of scenes.
fn shared(plan: &Plan, pauses: bool) -> Plan {
    Plan { share: Some(Share { pauses, has_new_ids: false, is_twin: false }), peer: 1, ..plan.clone() }
}

/// Draws two clients of one stream, of which one is closed and opened again while the other reads.
fn sharers() -> Scene {
    let uses = prop_oneof![3 => Just(None), 1 => (0_usize..2).prop_map(|resource| Some(Step::Use(resource)))];
    let scene = (any_place(), [any_plan(), any_plan()], any::<bool>(), any::<bool>(), uses, vec(say(1..5), 3));
    let scene = scene.prop_map(|(place, [first, second], is_twin, pauses, uses, says)| {
        let other = (place + 1) % PLACES;
        let second = if is_twin { Plan { timeout: None, ..first.clone() } } else { second };
        let opened = [opened(place, shared(&first, pauses)), opened(other, shared(&second, false))];
        let mut says = says.into_iter();
        let mut then =
            opened.into_iter().map(Vec::from).collect::<Vec<_>>().join(&uses.into_iter().collect::<Vec<_>>()[..]);
        then.extend(says.next());
        then.extend([Step::Read(other, 1), Step::Leave(place, 0)]);
        then.extend(says.next());
        then.extend([Step::Read(other, 9), Step::Resume(place, ResumeFrom::Last)]);
        then.extend(says.next());
        then.extend([Step::Read(place, 9), Step::Read(other, 9)]);
        then
    });
    scene.boxed()
}

/// Draws a client that is paused for a long time while another of its stream reads.
fn pauses() -> Scene {
    let rounds = vec((say(0..4), 300_u64..1500), 3..7);
    let timeout = prop_oneof![2 => Just(None), 1 => (1000_u64..4000).prop_map(Some)];
    let scene = (any_place(), [any_plan(), any_plan()], timeout, rounds).prop_map(|(place, plans, timeout, rounds)| {
        let ([paused, reads], other) = (plans, (place + 1) % PLACES);
        let paused = Plan { timeout: timeout.map(Duration::from_millis), min: None, ..paused };
        let opened = [opened(place, shared(&paused, true)), opened(other, shared(&reads, false))].concat();
        let rounds = rounds.into_iter().flat_map(|(say, time)| [say, Step::Read(other, 9), Step::Wait(time)]);
        opened.into_iter().chain(rounds).chain([Step::Read(other, 9), Step::Read(place, 9)]).collect()
    });
    scene.boxed()
}

/// Draws clients of a stream that breaks, or that a bad id ends; all of them resume.
fn breaks() -> Scene {
    let scene = (any_place(), [any_plan(), any_plan(), any_plan()], [say(1..5), say(1..5)], 1_usize..3, 0_usize..3);
    let scene = scene.prop_map(|(place, plans, [before, after], pieces, lost)| {
        let places = [0, 1, 2].map(|at| (place + at) % PLACES);
        let opened = places.into_iter().zip(plans).flat_map(|(place, plan)| opened(place, shared(&plan, false)));
        // Chosen by a number that is drawn anyway, so that the other histories of a seed stay as they are.
        let (breaks, bad_id) = ([Step::Break(place, lost)], [Step::BadId(place, pieces == 1), Step::Read(place, 9)]);
        let ends: &[Step] = if lost < 2 { &breaks } else { &bad_id };
        let breaks = [&[before, Step::Read(place, pieces)], ends, &[after]].concat();
        let comes_back = places.into_iter().map(|place| Step::Resume(place, ResumeFrom::Last));
        opened.chain(breaks).chain(comes_back).chain([Step::Read(place, 9)]).collect()
    });
    scene.boxed()
}

/// Draws two clients of which one has a full queue: it blocks the server for too long, or merges.
fn one_is_full() -> Scene {
    let policy = select(vec![FullChannelPolicy::Block, FullChannelPolicy::Coalesce]);
    let scene = (any_place(), any_plan(), policy, 1_u32..3, 3_u32..6, [say(2..5), say(1..4)], 1_u64..2500);
    let scene = scene.prop_map(|(place, plan, policy, short, long, [fills, later], time)| {
        let other = (place + 1) % PLACES;
        let plan = Plan { policy, timeout: None, min: None, ..plan };
        let opened =
            [(place, short), (other, long)].map(|(place, length)| opened(place, Plan { length, ..plan.clone() }));
        let then = [fills, Step::Wait(time), later, Step::Read(other, 3)];
        opened.concat().into_iter().chain(then).collect()
    });
    scene.boxed()
}

/// Draws two clients under BLOCK; the server waits for one of them, and then for the other.
fn spends() -> Scene {
    let scene = (any_place(), any_plan(), 1_u32..3, 1_u8..4, [say(4..8), say(3..5), say(3..5)], [1_u64..2000, 1..2500]);
    let scene = scene.prop_map(|(place, plan, length, peer, [first, second, third], [short, long])| {
        let other = (place + 1) % PLACES;
        let policy = FullChannelPolicy::Block;
        let selection = Selection::All;
        let plan = Plan { policy, selection, length, sends_initial_events: false, timeout: None, min: None, ..plan };
        let opened = [opened(place, plan.clone()), opened(other, Plan { peer, ..plan })].concat();
        let reads = |place| Step::Read(place, 9);
        let then = [first, reads(place), reads(other), second, reads(other), Step::Wait(short), reads(place)];
        let then = then.into_iter().chain([third, reads(place), Step::Wait(long), reads(other), reads(place)]);
        opened.into_iter().chain(then).collect()
    });
    scene.boxed()
}

fn back_and_past() -> Scene {
    let scene = (any_place(), say(1..5), 1_u64..12, any::<u8>(), say(1..5), say(1..5));
    let scene = scene.prop_map(|(place, before, back, keep, after, later)| {
        vec![before, Step::Rewind(back, keep), after, later, Step::Read(place, 3)]
    });
    scene.boxed()
}

/// Draws a rewrite of the history while a client reads from it, and the client's version also exists in the new one.
fn parked_past() -> Scene {
    // The history discards the first of two publish cycles.
    let before = (say(1..3), say(5..8));
    let scene = (any_place(), any_plan(), before, 8_u64..24, any::<u8>(), [say(3..6), say(3..6), say(3..6)]);
    let scene = scene.prop_map(|(place, plan, (first, second), back, keep, after)| {
        let then = [first, second, Step::Rewind(back, keep)].into_iter().chain(after).chain([Step::Read(place, 3)]);
        opened(place, replays_all(&plan)).into_iter().chain(then).collect()
    });
    scene.boxed()
}

/// Draws large bodies: they do not fit into one piece, so a batch may be half read when there is no room for its rest.
fn torn() -> Scene {
    let scene = (any_place(), any_plan(), vec(any_write(), 4..9), any::<bool>(), say(2..6), say(2..6));
    let scene = scene.prop_map(|(place, plan, writes, is_relist, after, later)| {
        let plan = Plan { form: Form::of(PayloadFormat::Raw), ..replays_all(&plan) };
        let at_once = writes.iter().map(|(write, _)| write.clone()).collect();
        let batch = if is_relist { Step::Relist(writes, 1) } else { Step::SayAtOnce(at_once, 1) };
        let then = [batch, Step::Read(place, 1), after, later, Step::Read(place, 3)];
        opened(place, plan).into_iter().chain(then).collect()
    });
    scene.boxed()
}

/// Draws a resume from a version that no event has, before a batch of several events.
fn between() -> Scene {
    let scene = (any_place(), any_transaction(), 1_u64..3).prop_map(|(place, transaction, back)| {
        vec![transaction, Step::Resume(place, ResumeFrom::Old(back)), Step::Read(place, 3)]
    });
    scene.boxed()
}

/// Draws clients that resume inside a version that still gets more changes, at one server or the other.
fn opens() -> Scene {
    let elsewhere = prop_oneof![2 => Just(None), 1 => Just(Some(Step::Elsewhere))];
    let ends = prop_oneof![
        Just(Step::Say(vec![(Write::Close, 0)])),
        say(1..3),
        (vec(any_write(), 0..3), 0_u64..3).prop_map(|(unseen, step)| Step::Relist(unseen, step)),
    ];
    let from = prop_oneof![3 => Just(ResumeFrom::Last), 1 => (0_u64..2).prop_map(ResumeFrom::Old)];
    let reconnects = prop_oneof![1 => Just(None), 2 => any_reconnect().prop_map(Some)];
    let scene = (any_place(), any_plan(), [any_open(), any_open(), any_open()], reconnects, elsewhere, ends, from);
    let scene = scene.prop_map(|(place, plan, [first, second, third], reconnects, elsewhere, ends, from)| {
        let reads = |pieces| Step::Read(place, pieces);
        let comes_back = [Step::Leave(place, 0)].into_iter().chain(elsewhere).chain([Step::Resume(place, from)]);
        let then = [first, reads(1)].into_iter().chain(comes_back).chain(reconnects);
        let then = then.chain([second, reads(1), third, reads(9), ends, reads(9)]);
        opened(place, plan).into_iter().chain(then).collect()
    });
    scene.boxed()
}

/// Draws a list at the version from which a client resumes, with other bytes at the versions of objects.
fn converted() -> Scene {
    let convert = select(&KEYS[..]).prop_map(|key| (Write::Convert(key), 0));
    let scene = (any_place(), any_plan(), say(2..5), vec(convert, 2..6));
    let scene = scene.prop_map(|(place, plan, before, conversions)| {
        let leaves = [before, Step::Say(vec![(Write::Close, 0)]), Step::Read(place, 9), Step::Leave(place, 0)];
        let comes_back = [Step::Relist(conversions, 0), Step::Resume(place, ResumeFrom::Last), Step::Read(place, 9)];
        opened(place, replays_all(&plan)).into_iter().chain(leaves).chain(comes_back).collect()
    });
    scene.boxed()
}

/// Draws a list without changes, of which a relay learns with the next bookmark.
fn unchanged() -> Scene {
    let scene = (any_place(), any_plan(), say(1..3), 2_u64..4).prop_map(|(place, plan, before, step)| {
        let lists =
            [before, Step::Read(place, 9), Step::Relist(Vec::new(), step), Step::Wait(1000), Step::Read(place, 9)];
        opened(place, replays_all(&plan)).into_iter().chain(lists).collect()
    });
    scene.boxed()
}

fn stall() -> Scene {
    (say(1..5), 100_u64..2500).prop_map(|(say, time)| vec![say, Step::Wait(time)]).boxed()
}

/// Draws a client under BLOCK that receives few of many events, and reads late.
fn quiet() -> Scene {
    let scene = (any_place(), any_plan(), vec(say(2..4), 4..8), say(1..4), vec(say(3..9), 2..4));
    let scene = scene.prop_map(|(place, plan, first, theirs, others)| {
        let policy = FullChannelPolicy::Block;
        let plan = Plan { policy, length: 5, sends_initial_events: false, timeout: None, min: None, ..plan };
        // The server waits for it once it has read its queue.
        let first = first.into_iter().flat_map(|say| [say, Step::Read(place, 9)]);
        let then = first.chain([theirs]).chain(others).chain([Step::Read(place, 9)]);
        opened(place, plan).into_iter().chain(then).collect()
    });
    scene.boxed()
}

/// Draws a merging client during many writes, which may receive its generation in parts.
fn lags() -> Scene {
    let scene = (any_place(), any_plan(), 1_u32..3, vec((say(2..12), 1_usize..3), 2..5), 0..4_u8, 1_usize..4);
    let scene = scene.prop_map(|(place, plan, length, rounds, end, lost)| {
        let timeout = (end == 1).then_some(Duration::from_secs(1));
        let selection = if end == 0 { plan.selection } else { Selection::All };
        let plan = Plan { policy: FullChannelPolicy::Coalesce, selection, length, timeout, min: None, ..plan };
        let rounds = rounds.into_iter().flat_map(|(say, pieces)| [say, Step::Read(place, pieces)]);
        // The stream may end between two parts, or the client resumes inside a generation that it has not read completely.
        let end = match end {
            0 => Vec::new(),
            1 => vec![Step::Wait(1000), Step::Read(place, 1)],
            2 => vec![Step::Drain, Step::Read(place, 1)],
            _ => vec![Step::Leave(place, lost), Step::Resume(place, ResumeFrom::Last), Step::Read(place, 9)],
        };
        opened(place, plan).into_iter().chain(rounds).chain(end).collect()
    });
    scene.boxed()
}

/// Draws a merging client, and an object that is created and deleted meanwhile.
fn vanishes() -> Scene {
    let scene = (any_place(), any_plan(), select(&KEYS[..]), any_write(), 1_usize..4);
    let scene = scene.prop_map(|(place, plan, key, full, pieces)| {
        let (selection, policy) = (Selection::All, FullChannelPolicy::Coalesce);
        let plan = Plan { selection, policy, length: 1, timeout: None, min: None, ..plan };
        let say = |write| Step::Say(vec![(write, 1)]);
        let comes_and_goes = [Write::Put(key, Some("web"), None), Write::Delete(key)].map(say);
        let then = [Step::Say(vec![full])].into_iter().chain(comes_and_goes).chain([Step::Read(place, pieces)]);
        [say(Write::Delete(key))].into_iter().chain(opened(place, plan)).chain(then).collect()
    });
    scene.boxed()
}

/// Draws a fleet that is divided among all places, and then divided anew.
fn divided() -> Scene {
    let scene = (any_plan(), [any_fleet(), any_fleet()], [say(2..8), say(2..8)], any::<bool>());
    let scene = scene.prop_map(|(plan, fleets, says, moves)| {
        let plan = Plan { sends_initial_events: true, ..replays_all(&plan) };
        let division = |(fleet, say): (Fleet, Step)| {
            let parts = (0..fleet.parts()).map(move |part| (usize::from(part), Selection::Part(fleet, part)));
            let open = parts.clone().flat_map(|(place, selection)| opened(place, Plan { selection, ..plan.clone() }));
            let reads = parts.map(|(place, _)| Step::Read(place, 9));
            open.chain([say]).chain(reads).collect::<Vec<_>>()
        };
        let steps = fleets.into_iter().zip(says).flat_map(division);
        // Elsewhere the fleet begins with another state.
        steps.chain(moves.then_some(Step::Elsewhere)).collect()
    });
    scene.boxed()
}

/// Draws a list that a client reads page by page during writes.
fn paged() -> Scene {
    let scene = (0..CALLS).prop_flat_map(move |place| {
        let between = || prop_oneof![30 => say(1..5), 1 => Just(Step::Elsewhere)];
        let next = || (between(), any_next_page(place), Just(Step::Poll(place)));
        (any_list(1_u32..3), vec(next(), 1..4)).prop_map(move |(list, next)| {
            let next = next.into_iter().flat_map(|(between, next, poll)| [between, next, poll]);
            [first_page(place, list)].into_iter().chain(next).collect()
        })
    });
    scene.boxed()
}

/// Draws a client that resumes at another server, from where the draining one has left it.
fn drained() -> Scene {
    let scene = (any_place(), any_plan(), say(1..8), any::<bool>(), say(1..4), any::<bool>(), say(1..4));
    let scene = scene.prop_map(|(place, plan, before, is_ahead, unread, reads, after)| {
        let starts = is_ahead.then_some([Step::Elsewhere, Step::Elsewhere]).into_iter().flatten();
        let reads = reads.then_some(Step::Read(place, 1));
        let ends =
            [Step::Drain, Step::Read(place, 9), after, Step::Resume(place, ResumeFrom::Last), Step::Read(place, 9)];
        let then = starts.chain([before]).chain(reads).chain([unread]).chain(ends);
        opened(place, Plan { timeout: None, min: None, ..plan }).into_iter().chain(then).collect()
    });
    scene.boxed()
}

/// Draws a wait for an event that others write.
fn awaited() -> Scene {
    let write = || prop_oneof![2 => say(1..5), 1 => any_transaction()];
    let scene = (0..CALLS, any_until(), vec((write(), any::<bool>()), 2..6)).prop_map(|(place, until, writes)| {
        let polls = |is_polled: bool| is_polled.then_some(Step::Poll(place));
        let then = writes.into_iter().flat_map(|(write, is_polled)| [write].into_iter().chain(polls(is_polled)));
        [Step::Ask(place, until)].into_iter().chain(then).collect()
    });
    scene.boxed()
}

/// Draws clients and calls of a resource that no server has.
fn unknown() -> Scene {
    let asks = prop_oneof![any_list(Just(1)), any_until()];
    let scene = (any_place(), any_plan(), 0..CALLS, asks, 0_usize..2).prop_map(|(place, plan, call, asks, then)| {
        vec![Step::UseUnknown, Step::Open(place, plan), Step::Ask(call, asks), Step::Use(then)]
    });
    scene.boxed()
}

/// Draws a list whose snapshot is evicted by others, unless its next page is requested in between.
fn crowded() -> Scene {
    let scene = (any_list(Just(1)), vec(any_write(), 15..18), 0..2_usize).prop_map(|(list, writes, between)| {
        let query = Query { selection: Selection::All, is_by_index: false };
        let list = Question { asked: QuestionKind::List { query, page_size: 1 }, ..list };
        let others = writes.into_iter().flat_map(|write| [Step::Say(vec![write]), first_page(1, list.clone())]);
        let mut steps: Vec<Step> = [first_page(0, list.clone())].into_iter().chain(others).collect();
        (0..between).for_each(|_| steps.insert(12, next_page()));
        steps.push(next_page());
        steps
    });
    scene.boxed()
}

/// Draws a list that takes a long time.
fn long() -> Scene {
    let any_time = || prop_oneof![2 => 100_000_u64..300_000, 1 => 300_001_u64..302_000];
    let scene = (any_list(Just(1)), any_time(), any_time()).prop_map(|(list, first, second)| {
        let query = Query { selection: Selection::All, is_by_index: false };
        let list = Question { asked: QuestionKind::List { query, page_size: 1 }, ..list };
        vec![first_page(0, list), Step::Wait(first), next_page(), Step::Wait(second), next_page()]
    });
    scene.boxed()
}

fn first_page(place: usize, list: Question) -> Step {
    Step::Ask(place, Question { is_slow: false, min: None, ..list })
}

fn next_page() -> Step {
    Step::NextPage { place: 0, twist: Twist::None, page_size: 1, is_slow: false }
}
