//! The state at each version of the history is the one that the source had then, and the difference of two versions is that of their
//! states: across transactions, open, late and early changes, relists and an eviction of the history.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::cache::NetChange;

#[derive(Debug, Clone)]
enum Op {
    /// One change, which completes its version.
    One(Change),
    /// Changes at one version.
    Transaction(Vec<Change>),
    /// Changes at a version each, which nobody may separate.
    Batch(Vec<Change>),
    /// A change at a version at which more may come.
    Open(Change),
    /// A change at a version that was complete before, of an object of its own.
    Late(u128),
    /// A change above the version that is complete with it, of an object of its own.
    Early,
    /// A version without changes.
    Bookmark,
    /// A list after a gap, with these changes.
    Relist(Vec<Change>),
    /// A history that begins anew.
    Rewrite,
}

/// Name of an object, and true if it is deleted.
type Change = (usize, bool);

/// State of the source at each version.
struct Truth {
    version: u128,
    /// True while more changes may come at it.
    is_open: bool,
    /// Changes by the order of their arrival.
    changes: Vec<(u128, ObjectKey, Option<Arc<Object>>)>,
    /// Versions inside of relists and batches.
    inside: BTreeSet<u128>,
    /// Highest version of the objects of early changes, and the number of those of late ones.
    early: u128,
    late: usize,
    begin: u128,
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("", name).unwrap()
}

fn any_op() -> impl Strategy<Value = Op> {
    let change = || (0..NAMES.len(), any::<bool>());
    prop_oneof![
        4 => change().prop_map(Op::One),
        2 => vec(change(), 1..4).prop_map(Op::Transaction),
        2 => vec(change(), 1..4).prop_map(Op::Batch),
        2 => change().prop_map(Op::Open),
        1 => (0..4_u128).prop_map(Op::Late),
        1 => Just(Op::Early),
        1 => Just(Op::Bookmark),
        1 => vec(change(), 0..4).prop_map(Op::Relist),
        1 => prop_oneof![4 => Just(Op::Bookmark), 1 => Just(Op::Rewrite)],
    ]
}

// === impl Truth ===

impl Truth {
    fn new() -> Self {
        let inside = BTreeSet::new();
        Self { version: 1, is_open: false, changes: Vec::new(), inside, early: 0, late: 0, begin: 1 }
    }

    fn next(&mut self) -> u128 {
        (self.version, self.is_open) = (self.version + 1, false);
        self.version
    }

    /// Notes a change, and returns its event.
    fn change(&mut self, name: &str, is_deleted: bool, number: u128) -> Event {
        let object = object(name, number);
        self.changes.push((number, object.key().clone(), (!is_deleted).then(|| Arc::clone(&object))));
        if is_deleted { Event::Deleted(object) } else { Event::Modified(object) }
    }

    fn at(&self, number: u128) -> BTreeMap<ObjectKey, Arc<Object>> {
        let mut state = BTreeMap::new();
        for (_, key, object) in self.changes.iter().filter(|(version, ..)| *version <= number) {
            match object {
                Some(object) => state.insert(key.clone(), Arc::clone(object)),
                None => state.remove(key),
            };
        }
        state
    }

    fn delta(&mut self, op: Op) -> Delta {
        match op {
            Op::One(change) => self.delta(Op::Transaction(vec![change])),
            Op::Transaction(changes) => {
                let number = self.next();
                let events = changes.into_iter().map(|(name, deleted)| self.change(NAMES[name], deleted, number));
                Delta::Changes { events: events.collect(), closes: true }
            }
            Op::Batch(changes) => {
                let first = self.version + 1;
                let mut events = Vec::new();
                for (name, deleted) in changes {
                    let number = self.next();
                    events.push(self.change(NAMES[name], deleted, number));
                }
                self.inside.extend(first..self.version);
                Delta::Changes { events: events.into(), closes: true }
            }
            Op::Open((name, deleted)) => {
                let number = self.next();
                self.is_open = true;
                Delta::Changes { events: [self.change(NAMES[name], deleted, number)].into(), closes: false }
            }
            Op::Late(ago) => {
                let number = self.version.saturating_sub(ago).max(self.begin);
                self.late += 1;
                let name = format!("late-{}", self.late);
                Delta::Changes { events: [self.change(&name, false, number)].into(), closes: false }
            }
            Op::Early => {
                let number = self.next();
                let early = number + 3;
                if number <= self.early {
                    return Delta::event(Event::Bookmark(version(number)));
                }
                self.early = early;
                let events = vec![self.change("early", false, early), Event::Bookmark(version(number))];
                Delta::Changes { events: events.into(), closes: true }
            }
            Op::Bookmark => Delta::event(Event::Bookmark(version(self.next()))),
            Op::Relist(changes) => {
                // What came early is in the list, too.
                let before = self.version - u128::from(self.is_open);
                let number = (self.version + 3).max(self.early);
                (self.version, self.is_open) = (number, false);
                for (name, deleted) in changes {
                    drop(self.change(NAMES[name], deleted, number));
                }
                self.inside.extend(before + 1..number);
                Delta::Replace(List::new(self.at(number).into_values().collect(), version(number)))
            }
            Op::Rewrite => {
                let number = self.next().max(self.early);
                self.version = number;
                drop(self.change("a", false, number));
                self.begin = number;
                Delta::HistoryRewritten(List::new(self.at(number).into_values().collect(), version(number)))
            }
        }
    }
}

/// Compares each version, and each pair of versions, with the truth. Returns the number of states that the history has.
fn check(handle: &InformerHandle<Deliveries>, truth: &Truth, is_history_long: bool) -> usize {
    let safe = handle.snapshot().unwrap().safe_version().number();
    let mut states = Vec::new();
    for number in 0..=truth.version.max(truth.early) + 1 {
        let at = version(number);
        let state = match handle.state_at(&at) {
            Ok(state) => state,
            Err(JoinError::TooLarge { .. }) => {
                assert!(number > safe, "{number} is complete");
                continue;
            }
            Err(JoinError::Expired { oldest, .. }) => {
                let is_before = number < oldest.number();
                assert!(is_before || truth.inside.contains(&number), "{number}: oldest {oldest}");
                assert!(!is_history_long || !is_before || number < truth.begin, "{number}: oldest {oldest}");
                assert!(matches!(handle.object_at(&key("a"), &at), Err(JoinError::Expired { .. })));
                continue;
            }
            Err(error) => panic!("{number}: {error:?}"),
        };
        assert!(number <= safe, "{number} is not complete");
        assert_eq!((state.version(), state.safe_version()), (&at, &at));
        let expected = truth.at(number);
        let found: BTreeMap<_, _> =
            state.objects(None, None).map(|object| (object.key().clone(), Arc::clone(object))).collect();
        assert_eq!(found, expected, "{number}");
        assert_eq!(state.body_bytes(), expected.values().map(|object| object.body().len()).sum::<usize>());
        for name in NAMES {
            let key = key(name);
            let (object, history_id) = handle.object_at(&key, &at).unwrap();
            assert_eq!((object.as_ref(), history_id), (expected.get(&key), state.history_id()), "{key} at {number}");
        }
        states.push((at, expected));
    }
    for (from, before) in &states {
        for (to, after) in states.iter().filter(|(to, _)| from <= to) {
            let keys: BTreeSet<&ObjectKey> = before.keys().chain(after.keys()).collect();
            let differing = keys.into_iter().filter(|key| before.get(key) != after.get(key));
            let expected: Vec<NetChange> = differing
                .map(|key| NetChange { old: before.get(key).cloned(), new: after.get(key).cloned() })
                .collect();
            assert_eq!(handle.changes_between(from, to).unwrap().0, expected, "{from} to {to}");
        }
    }
    states.len()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..crate::property_config() })]

    #[test]
    fn the_state_at_a_version_is_that_of_the_source(
        ops in vec(any_op(), 1..30),
        history in select(vec![4_usize, 100_000]),
        reads_in_between in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut retention = config().history;
            retention.events = history;
            let running = Running::configured(InformerConfig { history: retention, ..config() });
            running.list(Vec::new(), version(1)).await;
            let mut truth = Truth::new();
            for op in ops {
                let delta = truth.delta(op);
                running.fifo.push(delta).await;
                settle().await;
                if reads_in_between {
                    check(&running.handle, &truth, history > 4);
                }
            }
            assert!(check(&running.handle, &truth, history > 4) > 0);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_of_another_lineage_or_before_the_history_has_no_state() {
    let running = Running::start();
    running.list(vec![object("a", 3)], version(5)).await;
    running.apply(put("a", 7)).await;
    let expired = JoinError::Expired { oldest: version(5), current: version(7) };
    assert_eq!(running.handle.state_at(&version(4)).unwrap_err(), expired);
    assert_eq!(running.handle.state_at(&"x.5".parse().unwrap()).unwrap_err(), expired);
    assert_eq!(running.handle.state_at(&version(8)).unwrap_err(), JoinError::TooLarge { current: version(7) });
    let (error, at) = running.handle.changes_between(&version(4), &version(7)).unwrap_err();
    assert_eq!((error, at), (expired.clone(), version(4)));
    let (error, at) = running.handle.changes_between(&version(5), &version(9)).unwrap_err();
    assert_eq!((error, at), (JoinError::TooLarge { current: version(7) }, version(9)));
    assert_eq!(running.handle.state_at(&version(6)).unwrap().get(&key("a")), Some(&object("a", 3)));
    assert_eq!(count(&running.handle.stats().past_states), 2, "of the last one, and of that for version 7");
}

/// The version of an object that a relist finds may be older than the state before, which did not have it: a field selector of the
/// Kubernetes API may come to select an object that has not changed.
#[tokio::test(start_paused = true)]
async fn what_a_relist_has_found_was_not_there_before() {
    let running = Running::configured(InformerConfig { rewrite_evidence: RewriteEvidence::Held, ..config() });
    running.list(vec![object("a", 3)], version(5)).await;
    running.list(vec![object("a", 3), object("b", 2)], version(9)).await;
    let names = |number| {
        let state = running.handle.state_at(&version(number)).unwrap();
        ["a", "b"].map(|name| state.get(&key(name)).is_some())
    };
    assert_eq!([names(5), names(9)], [[true, false], [true, true]]);
    assert_eq!(running.handle.object_at(&key("b"), &version(5)).unwrap().0, None);
}

#[tokio::test(start_paused = true)]
async fn nobody_gets_a_part_of_a_batch() {
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let events = vec![put("a", 3), put("b", 5)];
    running.fifo.push(Delta::Changes { events: events.into(), closes: true }).await;
    running.reach(&version(5)).await;
    let states = (1..=5).map(|number| running.handle.state_at(&version(number)).map(|state| state.len()).ok());
    assert_eq!(states.collect::<Vec<_>>(), [Some(0), Some(0), None, None, Some(2)]);
}

/// Each change is in one answer, if the next request begins where the last answer ended, or the answer says that some are missing.
#[tokio::test(start_paused = true)]
async fn recent_changes_continue_where_the_last_ones_ended() {
    let retention = Retention { events: 40, ..BroadcasterConfig::default().retention };
    let running = Running::with(BroadcasterConfig { retention, ..BroadcasterConfig::default() });
    running.list(Vec::new(), version(1)).await;
    let mut random = fastrand::Rng::with_seed(7);
    let (mut number, mut at, mut seen, mut gaps) = (1, 0, 0, 0);
    for _ in 0..200 {
        let count = random.u128(..60);
        for _ in 0..count {
            number += 1;
            running.apply(put(["a", "b"][(number % 2) as usize], number)).await;
        }
        let (looked_at, most) = (random.u64(1..60), random.usize(1..60));
        let recent = running.handle.recent_changes(Some(at), looked_at, most, |_| true);
        let found: Vec<_> = recent.changes.iter().map(|(offset, change)| (*offset, change.version.number())).collect();
        let kept = (count as u64).min(looked_at).min(40).min(most as u64);
        let expected: Vec<_> = (number - u128::from(kept) + 1..=number).map(|of| (of as u64 - 1, of)).collect();
        assert_eq!(found, expected);
        assert_eq!((recent.has_gap, recent.offset), (u128::from(kept) < count, number as u64 - 1));
        (at, seen, gaps) = (recent.offset, seen + kept, gaps + u64::from(recent.has_gap));
    }
    assert!(seen > 1000 && (20..180).contains(&gaps), "{seen} {gaps}");
    let of_a = |change: &crate::model::Change| change.object().key().name() == "a";
    let recent = running.handle.recent_changes(None, 10, 3, of_a);
    let last = number - number % 2;
    let found: Vec<_> = recent.changes.iter().map(|(_, change)| change.version.number()).collect();
    assert_eq!((found, recent.has_gap), (vec![last - 4, last - 2, last], false));
    let of_another = running.handle.recent_changes(Some(u64::MAX), 10, 3, of_a);
    assert_eq!(of_another.changes.len(), 3, "an offset that is not reached yet is of another history");
}

/// The writer goes on between the pieces that are read, and the state is still that of its version.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_state_is_read_while_the_writer_writes() {
    const DEADLINE: Duration = Duration::from_secs(60);
    let running = Running::start();
    let names: Vec<String> = (0..50).map(|at| format!("object-{at}")).collect();
    running.list(names.iter().map(|name| object(name, 1)).collect(), version(1)).await;
    let (fifo, written) = (Arc::clone(&running.fifo), names.clone());
    let writer = tokio::spawn(async move {
        for number in 2..8000_u128 {
            fifo.push(Delta::event(put(&written[(number % 50) as usize], number))).await;
        }
    });
    let mut checked = 0;
    let reading = async {
        while !writer.is_finished() {
            let number = running.handle.snapshot().unwrap().version().number();
            let at = number / 2 + 1;
            let state = running.handle.state_at(&version(at)).unwrap();
            for (index, name) in names.iter().enumerate() {
                let last = (2..=at).rev().find(|number| number % 50 == index as u128).unwrap_or(1);
                let found = state.get(&key(name)).unwrap().version().number();
                assert_eq!(found, last, "{name} at {at}");
            }
            checked += 1;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.unwrap();
    assert!(checked > 0);
}
