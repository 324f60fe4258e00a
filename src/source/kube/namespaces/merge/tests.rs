//! Property: in whatever order events of namespaces arrive, a client that resumes from a merged version receives exactly the
//! changes above it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use tokio::time::Instant;

use super::*;
use crate::{
    cache::{Indexer, List},
    model::{EventType, HistoryPosition, Indexers, Object, Selection},
    watch::{Backlog, Deliveries, History, NotInHistory, Replay, Retention},
};

/// One write: the namespace, the object, and true for a deletion.
#[derive(Debug, Clone, Copy)]
struct Write {
    namespace: usize,
    name: u8,
    is_deleted: bool,
}

const NAMESPACES: usize = 3;
const BEGIN: u128 = 10;

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn object(write: Write, number: u128) -> Arc<Object> {
    let Write { namespace, name, .. } = write;
    let text = format!(r#"{{"metadata":{{"namespace":"n{namespace}","name":"o{name}"}},"at":{number}}}"#);
    Arc::new(Object::from_json(Bytes::from(text), "x", version(number)).unwrap())
}

fn event(write: Write, number: u128) -> Event {
    if write.is_deleted { Event::Deleted(object(write, number)) } else { Event::Modified(object(write, number)) }
}

/// State of a client: key to version.
type State = BTreeMap<String, u128>;

/// All writes, beginning with the version after [`BEGIN`].
struct Truth(Vec<Write>);

impl Truth {
    fn at(&self, end: u128, is_in: impl Fn(usize) -> bool) -> State {
        let mut state = State::new();
        for (write, number) in self.0.iter().zip(BEGIN + 1..=end).filter(|(write, _)| is_in(write.namespace)) {
            let key = object(*write, number).key().to_string();
            if write.is_deleted {
                state.remove(&key)
            } else {
                state.insert(key, number)
            };
        }
        state
    }

    fn end(&self) -> u128 {
        BEGIN + self.0.len() as u128
    }
}

/// Applies all changes after a version to a state, in parts of `step` batches. A part that ends within a batch is continued by
/// its offset.
fn resumed(history: &History, from: u128, step: usize, state: &mut State) -> Result<ResourceVersion, NotInHistory> {
    let selection = Selection::default();
    let mut backlog = history.after(&version(from))?;
    let mut reached = HistoryPosition { version: version(from), offset: backlog.first };
    loop {
        let Backlog { mut batches, first, .. } = backlog;
        let has_more = batches.len() > step;
        batches.truncate(step);
        let mut replay = Replay::new(batches, first, reached);
        let mut arena = Vec::new();
        while !replay.is_done() {
            replay.step::<Deliveries>(&selection, &(), &mut arena);
        }
        for told in arena {
            assert!(told.version >= version(from), "{told:?} after {from}");
            assert!(told.object_version > version(from), "{told:?} is known at {from}");
            match told.event_type {
                EventType::Deleted => state.remove(&told.object.key().to_string()),
                _ => state.insert(told.object.key().to_string(), told.object.version().number()),
            };
        }
        reached = replay.reached();
        if !has_more {
            return Ok(reached.version);
        }
        backlog = history.after_offset(&reached)?;
    }
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let write = (0..NAMESPACES, 0_u8..3, any::<bool>(), any::<bool>());
    vec(write.prop_map(|(namespace, name, a, b)| Write { namespace, name, is_deleted: a && b }), 1..24)
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn a_watch_resumed_from_a_merged_version_gets_every_change_above_it(
        writes in writes(),
        received in vec((0..NAMESPACES, 0_u8..4), 0..60),
        bound in 1_usize..40,
        step in 1_usize..5,
    ) {
        let truth = Truth(writes);
        let retention = Retention { events: bound, size: 1 << 20, age: Duration::from_secs(300) };
        let mut history = History::new(retention, HistoryPosition { version: version(BEGIN), offset: 0 });
        let mut indexer = Indexer::new(Arc::new(Indexers::default()), List::new(Vec::new(), version(BEGIN)));
        let mut merge = MergedPosition::new(NAMESPACES, version(BEGIN));
        let (mut next, mut reached) = ([BEGIN + 1; NAMESPACES], [BEGIN; NAMESPACES]);
        for (member, what) in received {
            let of_member = |number: &u128| truth.0[(*number - BEGIN - 1) as usize].namespace == member;
            let waiting = (next[member]..=truth.end()).find(of_member);
            let delta = match (waiting, what) {
                // A bookmark: no events of the member up to here.
                (_, 0) => {
                    let end = waiting.map_or(truth.end(), |waiting| waiting - 1).max(next[member] - 1);
                    next[member] = end + 1;
                    Delta::event(Event::Bookmark(version(end)))
                }
                (Some(number), _) => {
                    next[member] = number + 1;
                    let write = truth.0[(number - BEGIN - 1) as usize];
                    Delta::Changes { events: [event(write, number)].into_iter().collect(), closes: !write.is_deleted }
                }
                (None, _) => continue,
            };
            // An open version is not reached yet.
            reached[member] = next[member] - if delta.closes() { 1 } else { 2 };
            for delta in [merge.take(member, delta).unwrap(), merge.progress()].into_iter().flatten() {
                let Delta::Changes { events, closes } = delta else { panic!("{delta:?}") };
                history.record(Arc::new(indexer.apply_events(events, closes)), Instant::now());
            }
            let current = history.current().version.clone();
            prop_assert_eq!(&current, merge.version());
            prop_assert_eq!(Some(current.number()), reached.into_iter().min());
            prop_assert!(*history.oldest() <= current, "the version that everybody has can be resumed from");
            let kept = indexer.snapshot().before(&history.ahead());
            let kept: State = kept.objects(None, None).map(|object| (object.key().to_string(), object.version().number())).collect();
            prop_assert_eq!(&kept, &truth.at(current.number(), |_| true), "what a later start begins with");
            // All received changes, up to a different version in each namespace.
            let mut all = State::new();
            for (member, next) in next.into_iter().enumerate() {
                all.extend(truth.at(next - 1, |namespace| namespace == member));
            }
            for from in history.oldest().number()..=current.number() {
                let mut state = truth.at(from, |_| true);
                let end = resumed(&history, from, step, &mut state);
                prop_assert!(end.as_ref().is_ok_and(|end| *end <= current), "{:?} after {}", end, from);
                prop_assert_eq!(&state, &all, "after {}", from);
            }
        }
    }
}

/// Returns the events of a delta, after which nothing else comes at their version.
fn events(delta: Option<Delta>) -> Vec<Event> {
    match delta {
        Some(Delta::Changes { events, closes: true }) => events.into_vec(),
        None => Vec::new(),
        Some(other) => panic!("{other:?}"),
    }
}

#[test]
fn an_event_that_is_ahead_is_handed_out_at_once_at_the_merged_version() {
    let write = |namespace, name| Write { namespace, name, is_deleted: false };
    let bookmark = |number| Event::Bookmark(version(number));
    let mut merge = MergedPosition::new(2, version(10));
    let first = event(write(0, 1), 12);
    let delta = merge.take(0, Delta::event(first.clone())).unwrap();
    assert_eq!(events(delta), [first, bookmark(10)]);
    assert!(merge.progress().is_none() && merge.ahead() == 1);
    assert_eq!(merge.behind(), [(1, version(10))]);

    let second = event(write(1, 1), 11);
    assert_eq!(events(merge.take(1, Delta::event(second.clone())).unwrap()), [second], "nobody is behind it");
    assert!(merge.progress().is_none() && *merge.version() == version(11));
    let third = event(write(1, 2), 14);
    let delta = merge.take(1, Delta::event(third.clone())).unwrap();
    assert_eq!(events(delta), [third, bookmark(11)], "first the event");
    assert_eq!(events(merge.progress()), [bookmark(12)], "then everybody moves on");
    assert_eq!(merge.ahead(), 1);

    // The version before an open one is reached.
    let gone = event(Write { is_deleted: true, ..write(0, 1) }, 16);
    merge.take(0, Delta::Changes { events: [gone].into_iter().collect(), closes: false }).unwrap();
    assert_eq!((events(merge.progress()), merge.ahead()), (vec![bookmark(14)], 1));
    assert_eq!(merge.behind(), [(1, version(14)), (0, version(15))]);
    merge.note_quiet(1, version(20));
    assert_eq!(events(merge.progress()), [bookmark(15)]);
    merge.take(0, Delta::event(bookmark(18))).unwrap();
    assert_eq!((events(merge.progress()), merge.ahead()), (vec![bookmark(18)], 0));
}

#[test]
fn events_ahead_are_bounded() {
    let mut merge = MergedPosition::new(2, version(10));
    let take = |merge: &mut MergedPosition, number| {
        merge.take(0, Delta::event(event(Write { namespace: 0, name: 1, is_deleted: false }, number)))
    };
    for number in 11..=10 + MAX_AHEAD_EVENTS as u128 {
        take(&mut merge, number).unwrap();
    }
    assert!(matches!(take(&mut merge, 20_000), Err(SourceError::Expired(_))));
}

#[test]
fn a_member_that_repeats_events_stays_where_it_was() {
    let mut merge = MergedPosition::new(0, version(10));
    assert_eq!(merge.highest(), None, "without members");
    merge.begin(version(10), vec![version(12), version(10)]);
    assert_eq!(merge.highest(), Some(&version(12)));
    let repeated = Delta::event(event(Write { namespace: 0, name: 1, is_deleted: false }, 11));
    merge.take(0, repeated).unwrap();
    merge.note_quiet(0, version(11));
    assert_eq!(merge.behind(), [(1, version(10))]);
    merge.note_quiet(1, version(20));
    assert_eq!(merge.behind(), [(0, version(12))], "a bookmark is ahead, too");
    assert_eq!((events(merge.progress()), merge.ahead()), (vec![Event::Bookmark(version(12))], 0));
    // A late change at a version that is complete is ahead of nobody.
    let late = Delta::event(event(Write { namespace: 0, name: 2, is_deleted: false }, 12));
    merge.take(0, late).unwrap();
    assert_eq!(merge.ahead(), 0);
}

#[test]
fn bytes_ahead_are_bounded() {
    let large = |number: u128| {
        let pad = "x".repeat(MAX_AHEAD_BYTES / 10);
        let text = format!(r#"{{"metadata":{{"namespace":"n0","name":"o1"}},"pad":"{pad}"}}"#);
        Delta::event(Event::Modified(Arc::new(Object::from_json(Bytes::from(text), "x", version(number)).unwrap())))
    };
    let mut merge = MergedPosition::new(2, version(10));
    for number in 11..=16 {
        merge.take(0, large(number)).unwrap();
    }
    merge.note_quiet(1, version(16));
    assert!(merge.progress().is_some());
    for number in 17..=22 {
        merge.take(0, large(number)).unwrap();
    }
    let last = (23..=27).map(|number| merge.take(0, large(number))).find_map(Result::err);
    assert!(matches!(last, Some(SourceError::Expired(_))));
}
