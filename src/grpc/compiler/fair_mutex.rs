//! Mutual exclusion with fair turns: peers alternate, and so do the connections of each peer, however many calls wait.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::super::{call::Caller, fair_queue::FairQueue};

/// Queue of the calls that wait for the turn.
#[derive(Debug, Default)]
pub(super) struct FairMutex(Mutex<State>);

/// The turn; dropping it passes it on.
#[derive(Debug)]
pub(super) struct FairMutexGuard(Option<Arc<FairMutex>>);

#[derive(Debug, Default)]
struct State {
    is_taken: bool,
    waiting: FairQueue<oneshot::Sender<FairMutexGuard>>,
}

// === impl FairMutex ===

impl FairMutex {
    /// Waits for the turn of a caller.
    ///
    /// # Cancel safety
    ///
    /// Safe. A turn that arrives after the cancellation is passed on.
    pub(super) async fn lock(self: &Arc<Self>, caller: Caller) -> FairMutexGuard {
        let turn = {
            let mut state = self.0.lock();
            if !std::mem::replace(&mut state.is_taken, true) {
                return FairMutexGuard(Some(Arc::clone(self)));
            }
            let (sender, turn) = oneshot::channel();
            state.waiting.push(caller, sender);
            turn
        };
        // Never an error: `self` outlives the waiting calls, and drops no sender unused.
        turn.await.unwrap_or(FairMutexGuard(None))
    }

    /// Passes the turn to the next call that still waits.
    fn pass(self: &Arc<Self>) {
        loop {
            let Some(next) = self.0.lock().next() else { return };
            // A cancelled call is skipped in this loop; a drop of its turn would recurse, once for each cancelled call.
            let Err(mut turn) = next.send(FairMutexGuard(Some(Arc::clone(self)))) else { return };
            turn.0 = None;
        }
    }
}

impl State {
    fn next(&mut self) -> Option<oneshot::Sender<FairMutexGuard>> {
        let next = self.waiting.pop();
        self.is_taken = next.is_some();
        next
    }
}

// === impl FairMutexGuard ===

impl Drop for FairMutexGuard {
    fn drop(&mut self) {
        if let Some(line) = self.0.take() {
            line.pass();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;
    use crate::{
        auth::{Identity, IdentityDetails},
        transport::Peer,
    };

    fn at(port: u16) -> Caller {
        of([127, 0, 0, 1], port, None)
    }

    fn of(host: [u8; 4], port: u16, user: Option<&str>) -> Caller {
        let details = |user: &str| IdentityDetails { user: user.to_owned(), ..IdentityDetails::default() };
        Caller::new(Some(Peer::Tcp((host, port).into())), user.map(|user| Identity::new(details(user))).as_ref())
    }

    #[test]
    fn connections_take_turns_whatever_the_number_of_their_calls() {
        let line = Arc::new(FairMutex::default());
        let mut turn = Some(assert_ready!(task::spawn(line.lock(at(1))).poll()));
        // Connection and position among its calls.
        let calls = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0)];
        let mut waiting: Vec<_> =
            calls.iter().map(|call| (*call, task::spawn(Box::pin(line.lock(at(call.0)))))).collect();
        for (_, call) in &mut waiting {
            assert_pending!(call.poll());
        }
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(turn.take());
            let next = waiting.iter().position(|(_, call)| call.is_woken()).unwrap();
            let (call, mut next) = waiting.remove(next);
            turn = Some(assert_ready!(next.poll()));
            assert!(waiting.iter().all(|(_, call)| !call.is_woken()), "one at a time");
            order.push(call);
        }
        assert_eq!(order, [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2), (1, 3)]);
        drop(turn);
        assert_ready!(task::spawn(line.lock(Caller::default())).poll());
    }

    #[test]
    fn callers_take_turns_whatever_the_number_of_their_connections() {
        let other = of([10, 0, 0, 1], 1, None);
        take_turns(&[at(1), at(2), at(3), at(2), other, other], &[at(1), other, at(2), other, at(3), at(2)]);
        // One user at many hosts, and another at the first of these.
        let [far, farther] = [2, 3].map(|host| of([10, 0, 0, host], 1, Some("a")));
        let [near, same] = ["a", "b"].map(|user| of([10, 0, 0, 1], 1, Some(user)));
        take_turns(&[near, far, farther, near, same, same], &[near, same, far, same, farther, near]);
    }

    fn take_turns(calls: &[Caller], expected: &[Caller]) {
        let line = Arc::new(FairMutex::default());
        let mut turn = Some(assert_ready!(task::spawn(line.lock(at(1))).poll()));
        let mut waiting: Vec<_> = calls.iter().map(|call| (*call, task::spawn(Box::pin(line.lock(*call))))).collect();
        for (_, call) in &mut waiting {
            assert_pending!(call.poll());
        }
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(turn.take());
            let next = waiting.iter().position(|(_, call)| call.is_woken()).unwrap();
            let (call, mut next) = waiting.remove(next);
            turn = Some(assert_ready!(next.poll()));
            order.push(call);
        }
        assert_eq!(order, expected);
    }

    #[test]
    fn a_cancelled_call_delays_no_other() {
        let line = Arc::new(FairMutex::default());
        let turn = assert_ready!(task::spawn(line.lock(at(1))).poll());
        let mut given_up: Vec<_> = (0..100_000).map(|_| task::spawn(Box::pin(line.lock(at(2))))).collect();
        for call in &mut given_up {
            assert_pending!(call.poll());
        }
        let mut other = task::spawn(line.lock(at(2)));
        assert_pending!(other.poll());
        // One of the cancelled calls has received the turn, and not taken it.
        let chosen = given_up.remove(0);
        drop(given_up);
        drop(turn);
        assert!(chosen.is_woken());
        drop(chosen);
        drop(assert_ready!(other.poll()));
        assert!(line.0.lock().waiting.is_empty());
    }
}
