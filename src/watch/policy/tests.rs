//! Decisions of each policy in each state, as tables.

use FullChannelPolicy::{Block, Coalesce, Drop, Replay};

use super::*;

const POLICIES: [FullChannelPolicy; 4] = [Drop, Block, Replay, Coalesce];
const CAUGHT_UP: State = State::CatchingUp { has_initial_events: false };

/// Returns the lag of a reader at position 10 with this many unread events, whose queue holds 4 events or 100 bytes.
fn lag(unread: u64, size: u64) -> Lag {
    Lag { position: 10, head: 10 + unread, size, queue_length: 4, queue_size: 100, ..Lag::default() }
}

fn coalescing() -> Coalescing {
    Coalescing::new(false)
}

#[test]
fn a_queue_that_is_just_full_is_not_over() {
    let is = |lag: Lag| [lag.is_full(), lag.is_over(), lag.is_half_read()];
    assert_eq!(is(lag(2, 50)), [false, false, true]);
    assert_eq!([is(lag(3, 50)), is(lag(2, 51))], [[false; 3]; 2]);
    assert_eq!([is(lag(4, 50)), is(lag(2, 100))], [[true, false, false]; 2]);
    assert_eq!([is(lag(5, 50)), is(lag(2, 101))], [[true, true, false]; 2]);
}

#[test]
fn only_a_live_reader_under_block_holds_the_writer_back() {
    let states = [CAUGHT_UP, State::Frozen { until: 12 }, State::Blocking, State::Ended(End::SlowConsumer)];
    for state in states.iter().chain([&State::Coalescing(Box::new(coalescing()))]) {
        assert_eq!(POLICIES.map(|policy| on_publish(policy, state, &lag(9, 900), true)), [OnPublish::Nothing; 4]);
    }
    for policy in [Drop, Replay, Coalesce] {
        assert_eq!(on_publish(policy, &State::Live, &lag(9, 900), true), OnPublish::Nothing);
    }
    let block = |lag: &Lag, may_block| on_publish(Block, &State::Live, lag, may_block);
    assert_eq!(block(&lag(9, 900), false), OnPublish::Nothing, "it has not read enough");
    assert_eq!([lag(3, 99), lag(4, 1), lag(1, 100)].map(|lag| block(&lag, true)), {
        [OnPublish::HasRoom, OnPublish::Block, OnPublish::Block]
    });
    assert_eq!(block(&Lag { tail: 11, ..lag(1, 1) }, true), OnPublish::Replay);
    assert_eq!(block(&Lag { is_deferred: true, ..lag(3, 1) }, true), OnPublish::HasRoom);
    assert_eq!(block(&Lag { is_deferred: true, ..lag(4, 1) }, true), OnPublish::Replay, "the writer is ahead of it");
}

#[test]
fn every_policy_behaves_as_replay_while_catching_up() {
    let [read, gone] = [OnTake::Read { until: 19 }, OnTake::Park];
    let over = lag(9, 900);
    let of = |state: &State, lag: Lag| POLICIES.map(|policy| on_take(policy, state, &lag));
    let all = |next: OnTake| [(); 4].map(|()| next.clone());
    for state in [State::CatchingUp { has_initial_events: true }, CAUGHT_UP] {
        assert_eq!(of(&state, over), all(read.clone()));
        assert_eq!(of(&state, Lag { tail: 11, ..over }), all(gone.clone()));
    }
    let with_initial_events = State::CatchingUp { has_initial_events: true };
    assert_eq!(of(&with_initial_events, lag(0, 0)), all(OnTake::Wait));
    for caught_up in [lag(0, 0), lag(4, 100)] {
        assert_eq!(of(&CAUGHT_UP, caught_up), all(OnTake::GoLive));
        assert_eq!(of(&CAUGHT_UP, Lag { goes_back: true, ..caught_up }), all(OnTake::Park));
    }
    assert_eq!(of(&CAUGHT_UP, Lag { is_ahead: true, ..lag(0, 0) }), all(OnTake::Wait));
    let gone = of(&CAUGHT_UP, Lag { tail: 11, ..lag(4, 100) });
    assert_eq!(
        gone,
        [OnTake::GoLive, OnTake::Park, OnTake::Park, OnTake::Park],
        "under DROP it loses its queue at once"
    );
}

#[test]
fn a_live_reader_takes_by_its_policy() {
    let of = |lag: Lag| POLICIES.map(|policy| on_take(policy, &State::Live, &lag));
    let all = |next: OnTake| [(); 4].map(|()| next.clone());
    assert_eq!(of(lag(0, 0)), all(OnTake::Wait));
    assert_eq!(of(lag(4, 100)), all(OnTake::Read { until: 14 }));
    for (over, until) in [(lag(5, 1), 15), (lag(1, 101), 11)] {
        let read = || OnTake::Read { until };
        assert_eq!(of(over), [OnTake::Freeze, read(), read(), OnTake::Merge]);
        assert_eq!(of(Lag { tail: 11, ..over }), [OnTake::Drop, OnTake::Park, OnTake::Park, OnTake::Merge]);
    }
    assert_eq!(on_take(Block, &State::Blocking, &lag(9, 900)), OnTake::Read { until: 19 });
}

#[test]
fn a_frozen_queue_is_read_to_its_end_and_the_rest_is_lost() {
    let of = |until, lag: &Lag| on_take(Drop, &State::Frozen { until }, lag);
    assert_eq!(of(12, &lag(9, 900)), OnTake::Read { until: 12 });
    assert_eq!(of(10, &lag(9, 900)), OnTake::Drop);
    assert_eq!(of(12, &Lag { tail: 11, ..lag(9, 900) }), OnTake::Drop);
}

#[test]
fn a_coalescing_reader_waits_for_what_merges_until_it_has_everything() {
    let of = |coalescing: Coalescing, is_merged: bool| {
        on_take(
            Coalesce,
            &State::Coalescing(Box::new(coalescing)),
            &Lag { head_offset: u64::from(!is_merged), ..lag(9, 900) },
        )
    };
    assert_eq!([true, false].map(|is_merged| of(coalescing(), is_merged)), [OnTake::Follow, OnTake::Merge]);
    let at_work = Coalescing { generation: None, ..coalescing() };
    assert_eq!(of(at_work, true), OnTake::Merge, "a thread has the generation");
}

#[test]
fn a_reader_that_has_ended_yields_nothing_else() {
    for policy in POLICIES {
        let ended = State::Ended(End::SlowConsumer);
        assert_eq!(on_take(policy, &ended, &lag(9, 900)), OnTake::End(End::SlowConsumer));
    }
}

#[test]
fn a_client_is_ended_only_for_what_it_has_spent_itself() {
    let [none, some] = [Duration::ZERO, Duration::from_nanos(1)];
    assert_eq!([on_full(some, some), on_full(none, some)], [OnFull::Block, OnFull::Replay]);
    assert_eq!([on_full(some, none), on_full(none, none)], [OnFull::End; 2]);
}
