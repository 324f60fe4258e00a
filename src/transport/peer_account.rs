//! Account of what peers make the server hold, also before their callers are authenticated: limited for all, and for each peer to its share.
//!
//! A charge is never refused. Above a limit the account ends the oldest charge instead: that of the peer above its share, or of the
//! peer that holds most. So the newest request of a peer is served, and a peer within its share loses nothing to another one above
//! its own.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::{Exceeded, Origin, quota::share_of};

/// Amounts that peers hold of one thing, and their limits.
#[derive(Debug)]
pub struct PeerAccount {
    all: usize,
    each: usize,
    state: Mutex<State>,
}

/// Amount that one call holds; its owner must end the call when the charge is [ended](Self::poll_ended).
#[derive(Debug)]
pub struct PeerCharge {
    account: Arc<PeerAccount>,
    /// Calls without a known peer have the limit for all.
    peer: Option<Origin>,
    /// Number of the entry, in the order of age; 0 without an amount. Only written under the lock of the account.
    number: AtomicUsize,
    end: Arc<End>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    last: usize,
    by_peer: HashMap<Option<Origin>, Holdings>,
}

/// Charges of one peer, by age.
#[derive(Debug, Default)]
struct Holdings {
    held: usize,
    charges: BTreeMap<usize, Held>,
}

#[derive(Debug)]
struct Held {
    amount: usize,
    end: Arc<End>,
}

/// End of a charge, which wakes the task of its call.
#[derive(Debug, Default)]
struct End {
    exceeded: OnceLock<Exceeded>,
    task: AtomicWaker,
}

// === impl PeerAccount ===

impl PeerAccount {
    /// Creates an account of at most `all`, and of `percent` of that for one peer.
    pub fn new(all: usize, percent: u32) -> Arc<Self> {
        let each = share_of(all, percent);
        Arc::new(Self { all, each, state: Mutex::default() })
    }

    /// Creates a charge of a peer, without an amount.
    pub fn charge(self: &Arc<Self>, peer: Option<Origin>) -> PeerCharge {
        PeerCharge { account: Arc::clone(self), peer, number: AtomicUsize::new(0), end: Arc::default() }
    }

    /// Returns the sum of all amounts.
    pub fn held(&self) -> usize {
        self.state.lock().held
    }

    /// Ends the oldest charges while `peer`, whose amount has grown, or all peers hold too much. Returns their ends.
    fn shed(&self, state: &mut State, peer: Option<Origin>) -> Vec<Arc<End>> {
        let mut ended = Vec::new();
        loop {
            let of_peer = state.by_peer.get(&peer).map_or(0, |holdings| holdings.held);
            let (from, exceeded) = if peer.is_some() && of_peer > self.each {
                (peer, Exceeded::Share(self.each))
            } else if state.held > self.all
                && let Some((most, _)) = state.by_peer.iter().max_by_key(|(_, holdings)| holdings.held)
            {
                (*most, Exceeded::All(self.all))
            } else {
                return ended;
            };
            let Some(oldest) = state.by_peer.get(&from).and_then(Holdings::oldest) else { return ended };
            let Some(held) = state.remove(from, oldest) else { return ended };
            held.end.exceeded.get_or_init(|| exceeded);
            ended.push(held.end);
        }
    }
}

// === impl PeerCharge ===

impl PeerCharge {
    /// Adds to the amount. The account may end this charge, or older ones.
    pub fn add(&self, amount: usize) {
        if amount == 0 || self.ended().is_some() {
            return;
        }
        let ended = {
            let mut state = self.account.state.lock();
            // It may have been ended meanwhile.
            if self.ended().is_some() {
                return;
            }
            let number = match self.number.load(Ordering::Relaxed) {
                0 => {
                    state.last += 1;
                    self.number.store(state.last, Ordering::Relaxed);
                    state.last
                }
                number => number,
            };
            state.held += amount;
            let holdings = state.by_peer.entry(self.peer).or_default();
            holdings.held += amount;
            let new = || Held { amount: 0, end: Arc::clone(&self.end) };
            holdings.charges.entry(number).or_insert_with(new).amount += amount;
            self.account.shed(&mut state, self.peer)
        };
        for end in ended {
            end.task.wake();
        }
    }

    /// Subtracts from the amount.
    pub fn sub(&self, amount: usize) {
        self.subtract(Some(amount));
    }

    /// Subtracts all.
    pub fn clear(&self) {
        self.subtract(None);
    }

    /// Subtracts an amount, or all that there is.
    fn subtract(&self, amount: Option<usize>) {
        if amount == Some(0) || self.number.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut state = self.account.state.lock();
        let number = self.number.load(Ordering::Relaxed);
        let Some(holdings) = state.by_peer.get_mut(&self.peer) else { return };
        // Without an entry the charge was ended.
        let Some(held) = holdings.charges.get_mut(&number) else { return };
        if let Some(amount) = amount.filter(|amount| *amount < held.amount) {
            held.amount -= amount;
            holdings.held -= amount;
            state.held -= amount;
        } else {
            state.remove(self.peer, number);
            self.number.store(0, Ordering::Relaxed);
        }
    }

    /// Waits until the account ends the charge. Returns the limit that was reached.
    pub fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<Exceeded> {
        if let Some(exceeded) = self.ended() {
            return Poll::Ready(exceeded);
        }
        self.end.task.register(cx.waker());
        // It may have been ended before the waker was registered.
        self.ended().map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the limit for which the account has ended the charge.
    pub fn ended(&self) -> Option<Exceeded> {
        self.end.exceeded.get().copied()
    }
}

impl Drop for PeerCharge {
    fn drop(&mut self) {
        self.clear();
    }
}

// === impl State ===

impl State {
    /// Removes a charge.
    fn remove(&mut self, peer: Option<Origin>, number: usize) -> Option<Held> {
        let holdings = self.by_peer.get_mut(&peer)?;
        let held = holdings.charges.remove(&number)?;
        holdings.held -= held.amount;
        self.held -= held.amount;
        if holdings.charges.is_empty() {
            self.by_peer.remove(&peer);
        }
        Some(held)
    }
}

// === impl Holdings ===

impl Holdings {
    fn oldest(&self) -> Option<usize> {
        self.charges.first_key_value().map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    fn peer(number: u32) -> Origin {
        Origin::User(Some(number))
    }

    /// Returns the limits for which the charges were ended.
    fn ends<'a>(charges: impl IntoIterator<Item = &'a PeerCharge>) -> Vec<Option<Exceeded>> {
        charges
            .into_iter()
            .map(|charge| match charge.poll_ended(&mut Context::from_waker(noop_waker_ref())) {
                Poll::Ready(exceeded) => Some(exceeded),
                Poll::Pending => None,
            })
            .collect()
    }

    fn charged(account: &Arc<PeerAccount>, peer: impl Into<Option<Origin>>, amount: usize) -> PeerCharge {
        let charge = account.charge(peer.into());
        charge.add(amount);
        charge
    }

    #[test]
    fn above_its_share_a_peer_loses_its_own_oldest_charges() {
        let account = PeerAccount::new(100, 40);
        let other = charged(&account, peer(2), 40);
        let mut charges: Vec<PeerCharge> = (0..4).map(|_| charged(&account, peer(1), 10)).collect();
        assert_eq!(ends(&charges), [None; 4]);
        charges.push(charged(&account, peer(1), 15));
        let share = Some(Exceeded::Share(40));
        assert_eq!(ends(&charges), [share, share, None, None, None]);
        assert_eq!((ends([&other]), account.held()), (vec![None], 75));
        // What has grown may itself be the oldest.
        charges[2].add(100);
        assert_eq!(ends(&charges), [share, share, share, None, None]);
        assert_eq!(account.held(), 65);
    }

    #[test]
    fn above_the_limit_the_peer_that_holds_most_loses_its_oldest_charge() {
        let account = PeerAccount::new(100, 50);
        let [one, two, three] = [(1, 20), (2, 26), (2, 20)].map(|(id, amount)| charged(&account, peer(id), amount));
        let four = charged(&account, peer(3), 40);
        assert_eq!(ends([&one, &two, &three, &four]), [None, Some(Exceeded::All(100)), None, None]);
        assert_eq!(account.held(), 80);
    }

    #[test]
    fn a_charge_without_an_amount_is_forgotten_and_is_new_when_it_grows_again() {
        let account = PeerAccount::new(10, 100);
        let [first, second] = [4, 4].map(|amount| charged(&account, None, amount));
        first.sub(1);
        first.sub(3);
        assert_eq!(account.held(), 4);
        first.add(4);
        first.add(4);
        assert_eq!(ends([&first, &second]), [None, Some(Exceeded::All(10))]);
        // An ended charge holds nothing, whatever its owner adds and subtracts.
        second.add(100);
        second.sub(100);
        assert_eq!(account.held(), 8);
        drop((first, second));
        assert_eq!((account.held(), account.state.lock().by_peer.len()), (0, 0));
    }
}
