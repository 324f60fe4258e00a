//! Decisions of each policy in each state, as tables.

use FullChannelPolicy::{Block, Coalesce, Drop, Replay};

use super::*;

const POLICIES: [FullChannelPolicy; 4] = [Drop, Block, Replay, Coalesce];
const CAUGHT_UP: State = State::CatchingUp { has_initial_events: false };

/// Returns what is unread of a reader at offset 10 with this many unread changes and events, whose queue holds 4 events.
fn unread(changes: u64, events: Option<u64>) -> Unread {
    Unread { at: 10, changes, events, length: 4 }
}

fn all(next: &OnTake) -> [OnTake; 4] {
    [(); 4].map(|()| next.clone())
}

#[test]
fn only_a_live_reader_under_block_holds_the_writer_back() {
    let states = [
        CAUGHT_UP,
        State::Frozen { until: 12, left: 2 },
        State::Blocking,
        State::Merging { ready: None },
        State::Ended(End::SlowConsumer),
    ];
    let full = unread(9, Some(9));
    for state in &states {
        assert_eq!(POLICIES.map(|policy| on_publish(policy, state, &full, true)), [OnPublish::Nothing; 4]);
    }
    for policy in [Drop, Replay, Coalesce] {
        assert_eq!(on_publish(policy, &State::Live, &full, true), OnPublish::Nothing);
    }
    let block = |unread: Unread, may_block| on_publish(Block, &State::Live, &unread, may_block);
    assert_eq!(block(full, false), OnPublish::Nothing, "it has not read enough");
    assert_eq!(block(unread(3, None), true), OnPublish::HasRoom(1), "more events than changes there are not");
    assert_eq!(block(unread(4, None), true), OnPublish::Count);
    assert_eq!(block(unread(4, Some(4)), true), OnPublish::Block);
    assert_eq!(block(unread(9, Some(3)), true), OnPublish::HasRoom(1));
}

#[test]
fn every_policy_behaves_as_replay_while_catching_up() {
    let of = |state: &State, unread: Unread| POLICIES.map(|policy| on_take(policy, state, &unread));
    let with_initial_events = State::CatchingUp { has_initial_events: true };
    for changes in [0, 4, 9] {
        assert_eq!(of(&with_initial_events, unread(changes, None)), all(&OnTake::Read));
    }
    assert_eq!(of(&CAUGHT_UP, unread(5, Some(0))), all(&OnTake::Read));
    for changes in [0, 4] {
        assert_eq!(of(&CAUGHT_UP, unread(changes, None)), all(&OnTake::GoLive));
    }
}

#[test]
fn a_live_reader_takes_by_its_policy() {
    let of = |unread: Unread| POLICIES.map(|policy| on_take(policy, &State::Live, &unread));
    for within in [unread(0, None), unread(4, None), unread(9, Some(4))] {
        assert_eq!(of(within), all(&OnTake::Read));
    }
    assert_eq!(of(unread(5, None)), [OnTake::Count, OnTake::Read, OnTake::Read, OnTake::Count]);
    assert_eq!(of(unread(5, Some(5))), [OnTake::Freeze, OnTake::Read, OnTake::Read, OnTake::Merge]);
    assert_eq!(on_take(Block, &State::Blocking, &unread(9, Some(9))), OnTake::Read);
}

#[test]
fn a_frozen_queue_is_read_to_its_end_and_the_rest_is_lost() {
    let of = |until, events| on_take(Drop, &State::Frozen { until, left: 0 }, &unread(9, events));
    assert_eq!([of(12, None), of(12, Some(9))], [(); 2].map(|()| OnTake::ReadUntil(12)));
    assert_eq!([of(10, None), of(10, Some(9))], [OnTake::Count, OnTake::Drop]);
}

#[test]
fn a_merging_reader_waits_until_everything_published_has_merged() {
    let of = |events| on_take(Coalesce, &State::Merging { ready: None }, &unread(9, events));
    assert_eq!([of(None), of(Some(3))], [OnTake::Count, OnTake::Deliver]);
}

#[test]
fn a_reader_that_has_ended_yields_nothing_else() {
    for policy in POLICIES {
        let ended = State::Ended(End::SlowConsumer);
        assert_eq!(on_take(policy, &ended, &unread(9, None)), OnTake::End(End::SlowConsumer));
    }
}

#[test]
fn a_client_is_ended_only_for_what_it_has_spent_itself() {
    let [none, some] = [Duration::ZERO, Duration::from_nanos(1)];
    assert_eq!([on_full(some, some), on_full(none, some)], [OnFull::Block, OnFull::Replay]);
    assert_eq!([on_full(some, none), on_full(none, none)], [OnFull::End; 2]);
}
