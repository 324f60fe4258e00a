//! A replay yields what a cursor would have received live.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{
    model::{Cause, Change, LabelSelector, Object},
    watch::{
        Broadcaster, BroadcasterConfig, Client, Cursor, Deliveries, Delivery, FullChannelPolicy, QueueOptions,
        Subscribe, Taken,
    },
};

pub(in crate::watch) fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn object(name: u8, is_web: bool, number: u128) -> Arc<Object> {
    let app = if is_web { "web" } else { "db" };
    let json = format!(r#"{{"metadata":{{"name":"o{name}","labels":{{"app":"{app}"}}}},"at":{number}}}"#);
    Arc::new(Object::from_json(Bytes::from(json), "x", version(number)).unwrap())
}

/// Returns batches of changes `(name, new state)`, applied in order.
pub(in crate::watch) fn batches(script: &[Vec<(u8, Option<bool>)>]) -> Vec<Arc<Batch>> {
    let mut held: std::collections::BTreeMap<u8, Arc<Object>> = std::collections::BTreeMap::new();
    let mut at = 1;
    let mut all = Vec::new();
    for changes in script {
        let (before, after) = (version(at), version(at + 2));
        let change = |&(name, what): &(u8, Option<bool>)| {
            let old = held.get(&name).cloned();
            let new = what.map(|is_web| object(name, is_web, at + 2));
            match &new {
                Some(new) => drop(held.insert(name, Arc::clone(new))),
                None => drop(held.remove(&name)),
            }
            (old.is_some() || new.is_some()).then(|| Change {
                old,
                new,
                version: after.clone(),
                cause: Cause::Change,
                index_values: None,
            })
        };
        all.push(Arc::new(Batch {
            before,
            after: after.clone(),
            changes: changes.iter().filter_map(change).collect(),
            is_relist: false,
            is_open: false,
        }));
        at += 2;
    }
    all
}

pub(in crate::watch) fn selection(selector: &str) -> Arc<Selection> {
    Arc::new(Selection { labels: LabelSelector::parse(selector).unwrap(), ..Selection::default() })
}

pub(in crate::watch) fn events(frames: &[Deliveries]) -> Vec<Delivery> {
    frames.iter().flat_map(Deliveries::as_slice).cloned().collect()
}

fn live(broadcaster: &mut Broadcaster<Deliveries>, selection: &Arc<Selection>) -> Cursor<Deliveries> {
    broadcaster.subscribe(Subscribe {
        selection: Arc::clone(selection),
        format: (),
        queue: QueueOptions { policy: FullChannelPolicy::Replay, length: 1 },
        client: Client::Watch,
        initial_events: false,
    })
}

fn taken(cursor: &mut Cursor<Deliveries>) -> Vec<Delivery> {
    taken_of(cursor, usize::MAX)
}

fn taken_of(cursor: &mut Cursor<Deliveries>, max_size: usize) -> Vec<Delivery> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match cursor.poll_take(&mut context, max_size) {
        std::task::Poll::Ready(Taken::Frames(frames)) => events(&frames),
        _ => Vec::new(),
    }
}

/// Encodes everything.
pub(in crate::watch) fn replayed(replay: &mut Replay, selection: &Selection) -> Vec<Delivery> {
    let mut all = Vec::new();
    while !replay.is_done() {
        let before = all.len();
        let told = replay.step::<Deliveries>(selection, &(), &mut all);
        assert_eq!(all.len(), before + told as usize);
        assert!(all[before..].iter().all(|event| *replay.version() >= event.version));
    }
    all
}

/// Returns the position before every change.
pub(in crate::watch) fn at(version: ResourceVersion) -> HistoryPosition {
    HistoryPosition { version, offset: 0 }
}

#[test]
fn a_position_inside_a_batch_is_no_version_to_resume_from() {
    let batches = batches(&[vec![(1, Some(true)), (2, Some(false)), (3, Some(true))], vec![(2, Some(false))]]);
    let told = |selector| {
        let mut replay = Replay::new(batches.clone(), 0, at(version(1)));
        let events = replayed(&mut replay, &selection(selector));
        assert_eq!(replay.version(), &version(5), "to the end, whatever was told");
        let line = |event: &Delivery| format!("{}@{}", event.object.key(), event.version);
        events.iter().map(line).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(told(""), "o1@1 o2@1 o3@3 o2@5");
    assert_eq!(told("app=web"), "o1@1 o3@3", "the last of the selection carries the batch's version");
    assert_eq!(told("app=none"), "");
}

#[test]
fn an_offset_inside_a_batch_counts_from_the_first_change_of_all() {
    let batches = batches(&[vec![(1, Some(true)), (2, Some(true)), (3, Some(true))]]);
    let mut replay = Replay::new(batches, 10, HistoryPosition { version: version(1), offset: 11 });
    assert_eq!(replay.reached(), HistoryPosition { version: version(1), offset: 11 });
    replay.step::<Deliveries>(&selection(""), &(), &mut Vec::new());
    assert_eq!(replay.reached().offset, 12);
}

#[test]
fn a_version_between_two_batches_never_decreases() {
    let batches = batches(&[vec![(1, Some(true)), (2, Some(true))]]);
    let mut replay = Replay::new(batches, 0, at(version(2)));
    let versions: Vec<_> = replayed(&mut replay, &selection("")).into_iter().map(|event| event.version).collect();
    assert_eq!(versions, [version(2), version(3)]);
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn a_replay_yields_the_published_events(
        script in prop::collection::vec(
            prop::collection::vec((0_u8..4, prop::option::weighted(0.8, any::<bool>())), 0..5), 0..12),
        from in 0_usize..12,
    ) {
        let batches = batches(&script);
        let from = from.min(batches.len());
        for selection in [selection(""), selection("app=web"), selection("app!=web")] {
            let start = batches.get(from).map_or_else(|| version(1 + 2 * batches.len() as u128), |b| b.before.clone());
            let mut broadcaster = Broadcaster::new(BroadcasterConfig::default(), start.clone());
            let mut cursor = live(&mut broadcaster, &selection);
            broadcaster.publish(&batches[from..]);
            let published = taken(&mut cursor);
            let mut replay = Replay::new(batches[from..].to_vec(), 0, at(start));
            prop_assert_eq!(replayed(&mut replay, &selection), published);
        }
    }
    /// A cursor that is parked after any of its events resumes with the next one, also inside a batch.
    #[test]
    fn a_replay_from_the_offset_of_a_cursor_is_the_rest(
        script in prop::collection::vec(
            prop::collection::vec((0_u8..4, prop::option::weighted(0.8, any::<bool>())), 0..5), 1..12),
    ) {
        let batches = batches(&script);
        for selection in [selection(""), selection("app=web"), selection("app!=web")] {
            let mut broadcaster = Broadcaster::new(BroadcasterConfig::default(), batches[0].before.clone());
            let mut cursor = live(&mut broadcaster, &selection);
            let mut places = vec![cursor.reached()];
            broadcaster.publish(&batches);
            let mut events = Vec::new();
            loop {
                let event = taken_of(&mut cursor, 1);
                if event.is_empty() {
                    break;
                }
                events.extend(event);
                places.push(cursor.reached());
            }
            prop_assert_eq!(places.len(), events.len() + 1);
            for (nth, reached) in places.into_iter().enumerate() {
                // Batches as a history returns them: from the batch that contains the offset.
                let ends = batches.iter().scan(0, |end, batch| {
                    *end += batch.changes.len() as u64;
                    Some(*end)
                });
                let first = ends.clone().take_while(|end| *end <= reached.offset).count();
                let offset = ends.take(first).last().unwrap_or_default();
                let mut replay = Replay::new(batches[first..].to_vec(), offset, reached);
                let rest = replayed(&mut replay, &selection);
                prop_assert_eq!(&rest, &events[nth..]);
                prop_assert_eq!(replay.reached().offset, batches.iter().map(|batch| batch.changes.len() as u64).sum::<u64>());
            }
        }
    }
}

/// Of a batch that it has, a client needs the changes that were ahead of its version, and no others.
#[test]
fn a_client_receives_only_the_changes_ahead_above_its_version() {
    let ahead = |(name, number): (u8, u128)| {
        let change = Change {
            old: None,
            new: Some(object(name, true, number)),
            version: version(number),
            cause: Cause::Change,
            index_values: None,
        };
        let (before, after) = (version(5), version(5));
        Arc::new(Batch { before, after, changes: vec![change], is_relist: false, is_open: true })
    };
    let told = |from| {
        let mut replay = Replay::new([(1, 12), (2, 14), (3, 13)].map(ahead).to_vec(), 0, at(version(from)));
        let told = replayed(&mut replay, &selection(""));
        told.iter().map(|event| event.object.key().name().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!([5, 6, 12, 13, 14].map(told), ["o1 o2 o3", "o1 o2 o3", "o2 o3", "o2", ""]);
}
