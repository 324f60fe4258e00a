use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
};

use proptest::prelude::*;
use tokio_test::{assert_pending, assert_ready, task};

use super::*;

type Call = task::Spawn<Pin<Box<dyn Future<Output = Result<FairPermit, Full>>>>>;

/// Share of one owner where nobody has written another one.
const PERCENT: u32 = 25;
const LARGE: QueueBounds = QueueBounds { calls: 1 << 20, bytes: 1 << 30 };

fn party(owner: u32, connection: u32) -> Party {
    Party::new(&owner, &connection)
}

/// Begins a call, which waits or has its answer.
fn call(semaphore: &Arc<FairSemaphore>, party: Party, class: Class, bytes: usize) -> Call {
    let semaphore = Arc::clone(semaphore);
    task::spawn(Box::pin(async move { semaphore.acquire(party, class, bytes).await }))
}

fn waiting(semaphore: &Arc<FairSemaphore>, party: Party, class: Class) -> Call {
    let mut call = call(semaphore, party, class, 1);
    assert_pending!(call.poll());
    call
}

fn granted(semaphore: &Arc<FairSemaphore>, party: Party, class: Class) -> FairPermit {
    assert_ready!(call(semaphore, party, class, 1).poll()).unwrap()
}

/// Passes one permit from call to call, and returns their names in the order of their turns.
fn turns<N: Copy>(mut permit: FairPermit, mut calls: Vec<(N, Call)>) -> Vec<N> {
    let mut order = Vec::new();
    while !calls.is_empty() {
        drop(permit);
        let at = calls.iter().position(|(_, call)| call.is_woken()).expect("the permit is passed on");
        let (name, mut call) = calls.remove(at);
        permit = assert_ready!(call.poll()).unwrap();
        assert!(calls.iter().all(|(_, call)| !call.is_woken()), "one at a time");
        order.push(name);
    }
    order
}

#[test]
fn owners_take_turns_and_so_do_the_connections_of_each() {
    let semaphore = FairSemaphore::new(1, LARGE, PERCENT);
    let permit = granted(&semaphore, party(1, 1), Class::New);
    let calls = [(1, 1), (1, 1), (1, 1), (1, 2), (2, 1), (2, 1), (3, 1), (1, 3)];
    let calls = calls.map(|(owner, connection)| ((owner, connection), party(owner, connection)));
    let calls = calls.map(|(name, party)| (name, waiting(&semaphore, party, Class::New)));
    let expected = [(1, 1), (2, 1), (3, 1), (1, 2), (2, 1), (1, 3), (1, 1), (1, 1)];
    assert_eq!(turns(permit, calls.into()), expected);
    assert_eq!(semaphore.state.lock().owners.len(), 0);
}

#[test]
fn known_callers_come_first_and_nobody_waits_for_ever() {
    let semaphore = FairSemaphore::new(1, LARGE, PERCENT);
    let permit = granted(&semaphore, party(0, 0), Class::New);
    let mut calls = Vec::new();
    for number in 0..16 {
        calls.push(("suspect", waiting(&semaphore, party(1000 + number, 0), Class::Suspect)));
        calls.push(("new", waiting(&semaphore, party(100 + number, 0), Class::New)));
        calls.push(("known", waiting(&semaphore, party(number, 0), Class::Known)));
    }
    let order = turns(permit, calls);
    let (known, new) = (["known"; 3], ["new"; 1]);
    let expected = [known.as_slice(), &new, &known, &new, &known, &new, &known, &["suspect"]].concat();
    assert_eq!(order[..16], expected, "{order:?}");
}

#[test]
fn an_owner_has_a_quarter_and_a_suspect_a_quarter_of_that() {
    let semaphore = FairSemaphore::new(64, LARGE, PERCENT);
    for (class, share) in [(Class::Suspect, 4), (Class::New, 16), (Class::Known, 16)] {
        let kept: Vec<_> = (0..share).map(|number| granted(&semaphore, party(1, number), class)).collect();
        let more = waiting(&semaphore, party(1, share), class);
        let other = granted(&semaphore, party(2, 0), class);
        drop((more, other, kept));
        assert_eq!(semaphore.state.lock().all, Usage::default(), "{class:?}");
    }
    // An owner has one share, of whatever class its calls are.
    let kept: Vec<_> = (0..16).map(|number| granted(&semaphore, party(1, number), Class::New)).collect();
    drop((waiting(&semaphore, party(1, 0), Class::Known), kept));
    // What it has of before it was suspect does not delay it more.
    let before: Vec<_> = (0..15).map(|number| granted(&semaphore, party(1, number), Class::New)).collect();
    drop((granted(&semaphore, party(1, 0), Class::Suspect), before));
}

/// Behind a proxy one address stands for all callers: the operator gives it everything.
#[test]
fn an_owner_has_the_share_that_the_operator_has_written() {
    for (percent, share) in [(1, 1), (25, 16), (50, 32), (100, 64)] {
        let semaphore = FairSemaphore::new(64, LARGE, percent);
        let kept: Vec<_> = (0..share).map(|number| granted(&semaphore, party(1, number), Class::Known)).collect();
        let more = waiting(&semaphore, party(1, share), Class::Known);
        drop((more, kept));
        let QueueBounds { calls, bytes } = semaphore.limits.queue_of_owner;
        assert_eq!((calls, bytes), (LARGE.calls * percent as usize / 100, LARGE.bytes * percent as usize / 100));
    }
}

#[test]
fn a_quarter_of_the_permits_is_for_known_callers() {
    let semaphore = FairSemaphore::new(64, LARGE, PERCENT);
    let strangers: Vec<_> = (0..48).map(|owner| granted(&semaphore, party(owner, 0), Class::New)).collect();
    let next = waiting(&semaphore, party(100, 0), Class::New);
    let suspect = waiting(&semaphore, party(101, 0), Class::Suspect);
    let known: Vec<_> = (0..16).map(|owner| granted(&semaphore, party(200 + owner, 0), Class::Known)).collect();
    let last = waiting(&semaphore, party(300, 0), Class::Known);
    drop((strangers, next, suspect, known, last));
    assert_eq!(semaphore.state.lock().not_known, 0);
}

#[test]
fn a_full_queue_refuses_calls_of_whoever_has_the_most() {
    let semaphore = FairSemaphore::new(1, QueueBounds { calls: 16, bytes: 1600 }, PERCENT);
    let _permit = granted(&semaphore, party(0, 0), Class::New);
    let answer = |call: &mut Call| assert_ready!(call.poll()).unwrap_err();
    // The share of an owner: its connection with the most loses the last call.
    let mut flood: Vec<_> = (0..3).map(|_| waiting(&semaphore, party(1, 1), Class::New)).collect();
    let single = waiting(&semaphore, party(1, 2), Class::New);
    let other = waiting(&semaphore, party(1, 3), Class::New);
    assert_eq!(answer(&mut flood[2]), Full::Share(4));
    assert!(!single.is_woken() && !other.is_woken() && !flood[1].is_woken());
    assert_eq!(answer(&mut call(&semaphore, party(2, 1), Class::New, 401)), Full::Share(4), "bytes count, too");
    // All: the owner with the most, in the lowest class.
    let known: Vec<_> = (0..4).map(|number| waiting(&semaphore, party(3, number), Class::Known)).collect();
    let mut suspects: Vec<_> = (0..3).map(|number| waiting(&semaphore, party(4, number), Class::Suspect)).collect();
    let few: Vec<_> = (0..5).map(|owner| waiting(&semaphore, party(10 + owner, 0), Class::New)).collect();
    let more = waiting(&semaphore, party(20, 0), Class::New);
    assert_eq!(answer(&mut suspects[2]), Full::All(16));
    assert!(known.iter().chain(&few).chain([&single, &other, &more]).all(|call| !call.is_woken()));
    let mut last: Vec<_> = (0..3).map(|owner| waiting(&semaphore, party(30 + owner, 0), Class::New)).collect();
    assert_eq!([answer(&mut suspects[1]), answer(&mut suspects[0])], [Full::All(16); 2]);
    let refused = flood[..2].iter_mut().chain([&mut last[2]]).filter(|call| call.is_woken()).map(answer).count();
    assert_eq!(refused, 1, "of the owner with the most");
    assert!(few.iter().chain([&more]).chain(&known).all(|call| !call.is_woken()));
}

#[test]
fn a_cancelled_call_leaves_the_queue() {
    let semaphore = FairSemaphore::new(1, LARGE, PERCENT);
    let permit = granted(&semaphore, party(1, 1), Class::New);
    let mut given_up: Vec<_> = (0..100_000).map(|_| waiting(&semaphore, party(2, 1), Class::New)).collect();
    let mut other = waiting(&semaphore, party(2, 1), Class::New);
    // One of the cancelled calls has received the permit, and not taken it.
    let chosen = given_up.remove(0);
    drop(given_up);
    assert_eq!(semaphore.state.lock().all, Usage { permits: 1, suspect: 0, calls: 2, bytes: 2 });
    drop(permit);
    assert!(chosen.is_woken());
    drop(chosen);
    drop(assert_ready!(other.poll()).unwrap());
    let state = semaphore.state.lock();
    assert!(state.queues.iter().all(FairQueue::is_empty) && state.owners.is_empty());
}

/// Step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Call {
        owner: u32,
        connection: u32,
        class: Class,
        bytes: usize,
    },
    /// Ends the call with a permit that is at this place among them.
    Release(usize),
    /// Cancels the call that waits at this place.
    Cancel(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![Just(Class::Known), Just(Class::New), Just(Class::Suspect)];
    prop_oneof![
        3 => (0..6_u32, 0..3_u32, class, 1..200_usize)
            .prop_map(|(owner, connection, class, bytes)| Step::Call { owner, connection, class, bytes }),
        2 => any::<usize>().prop_map(Step::Release),
        1 => any::<usize>().prop_map(Step::Cancel),
    ]
}

proptest! {
    #![proptest_config(crate::property_config())]

    /// Checks that the bounds hold whatever happens, no permit is lost, no permit is free while a call may have it, and each call that is neither
    /// refused nor cancelled has its turn, those of one connection and class in order.
    #[test]
    fn bounds_hold_and_nobody_is_forgotten(permits in 1..20_usize, percent in prop_oneof![Just(PERCENT), Just(100), 1..100_u32], steps in prop::collection::vec(step(), 1..200)) {
        let bounds = QueueBounds { calls: 24, bytes: 2400 };
        let semaphore = FairSemaphore::new(permits, bounds, percent);
        let limits = semaphore.limits;
        let mut held: Vec<(u32, Class, FairPermit)> = Vec::new();
        let mut waits: Vec<(u32, u32, Class, usize, Call)> = Vec::new();
        let mut left: VecDeque<Step> = steps.into();
        let (mut ended, mut since) = (0, BTreeMap::new());
        while !left.is_empty() || !waits.is_empty() {
            match left.pop_front().unwrap_or(Step::Release(0)) {
                Step::Call { owner, connection, class, bytes } => {
                    waits.push((owner, connection, class, ended, call(&semaphore, party(owner, connection), class, bytes)));
                    ended += 1;
                }
                Step::Release(at) if !held.is_empty() => drop(held.remove(at % held.len())),
                Step::Cancel(at) if !waits.is_empty() => drop(waits.remove(at % waits.len())),
                Step::Release(_) | Step::Cancel(_) => {}
            }
            let (mut at, mut polls) = (0, 2 * waits.len());
            // Twice: the newest call enters the queue last, and may have others refused.
            while polls > 0 && !waits.is_empty() {
                polls -= 1;
                at %= waits.len();
                let std::task::Poll::Ready(answer) = waits[at].4.poll() else {
                    at += 1;
                    continue;
                };
                let (owner, connection, class, number, _) = waits.remove(at);
                if let Ok(permit) = answer {
                    let last = since.insert((owner, connection, class as usize), number);
                    prop_assert!(last.is_none_or(|last| last < number), "in order");
                    held.push((owner, class, permit));
                }
            }
            let of = |owner: u32| held.iter().filter(|(other, ..)| *other == owner).count();
            let strangers = held.iter().filter(|(_, class, _)| *class != Class::Known).count();
            prop_assert!(held.len() <= permits && strangers <= permits - permits / RESERVED);
            for owner in 0..6 {
                prop_assert!(of(owner) <= limits.permits_of_owner);
                let is_waiting = |class| waits.iter().any(|wait| wait.0 == owner && wait.2 == class);
                let could_have = of(owner) < limits.permits_of_owner && held.len() < permits;
                prop_assert!(!(could_have && is_waiting(Class::Known)), "a free permit");
            }
            let state = semaphore.state.lock();
            prop_assert_eq!((state.all.permits, state.all.calls), (held.len(), waits.len()));
            prop_assert!(state.all.calls <= bounds.calls && state.all.bytes <= bounds.bytes);
            prop_assert!(!state.owners.values().any(|usage| usage.exceeds(limits.queue_of_owner)));
        }
        drop(held);
        prop_assert_eq!(semaphore.state.lock().owners.len(), 0);
    }

    /// A call waits for a bounded number of turns, whatever others send meanwhile.
    #[test]
    fn no_caller_starves(
        class in prop_oneof![Just(Class::Known), Just(Class::New), Just(Class::Suspect)],
        others in prop::collection::vec((1..6_u32, 0..3_u32, 0..CLASSES.len()), 300),
    ) {
        let semaphore = FairSemaphore::new(1, LARGE, PERCENT);
        let mut permit = granted(&semaphore, party(9, 9), Class::New);
        let mut calls: Vec<Call> = Vec::new();
        let begin = |calls: &mut Vec<Call>, (owner, connection, class): (u32, u32, usize)| {
            calls.push(waiting(&semaphore, party(owner, connection), CLASSES[class]));
        };
        for other in &others[..100] {
            begin(&mut calls, *other);
        }
        let mut mine = waiting(&semaphore, party(0, 0), class);
        let mut turns = 0;
        for other in &others[100..] {
            drop(permit);
            turns += 1;
            if mine.is_woken() {
                break;
            }
            let at = calls.iter().position(task::Spawn::is_woken).unwrap();
            permit = assert_ready!(calls.remove(at).poll()).unwrap();
            begin(&mut calls, *other);
            if turns > 150 {
                break;
            }
        }
        // Six owners take turns, and each class has one turn of four that the class above has.
        prop_assert!(turns <= 6 * 16 + 1 && mine.is_woken(), "{turns} turns");
        drop(assert_ready!(mine.poll()));
    }
}
