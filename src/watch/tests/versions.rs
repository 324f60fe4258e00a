//! Content of an event: its variant and its versions; and its encoding, once.

use std::collections::BTreeSet;

use super::*;

const REPLAY: QueueOptions = queue(FullChannelPolicy::Replay, 100);

fn deliveries(cursor: &mut Cursor<Deliveries>) -> Vec<Delivery> {
    match cursor.poll_take(&mut Context::from_waker(Waker::noop()), usize::MAX) {
        Poll::Ready(Taken::Frames(frames)) => frames.iter().flat_map(Deliveries::as_slice).cloned().collect(),
        _ => Vec::new(),
    }
}

/// Returns type, cause, name, the object's own version, and the event's object version.
fn told(delivery: &Delivery) -> (EventType, Cause, &str, u128, u128) {
    let Delivery { event_type, cause, object, object_version, .. } = delivery;
    (*event_type, *cause, object.key().name(), object.version().number(), object_version.number())
}

/// No client may resume from inside a batch.
#[test]
fn inside_a_batch_only_the_last_event_of_a_selection_carries_the_batch_version() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let (mut all, mut web, mut db) = (
        broadcaster.subscribe(live(everything(), REPLAY)),
        broadcaster.subscribe(live(app("web"), REPLAY)),
        broadcaster.subscribe(live(app("db"), REPLAY)),
    );
    let mut world = World::at(0);
    let single = world.one("z", "web");
    let batch = world.batch(|world| {
        vec![world.put("a", "web"), world.put("b", "db"), world.put("c", "web"), world.put("d", "none")]
    });
    let empty = Batch { before: version(5), after: version(9), changes: Vec::new(), is_relist: false, is_open: false };
    broadcaster.publish(&[single, batch, empty]);
    assert_eq!(broadcaster.version(), version(9));
    let resume = |cursor: &mut Cursor<Deliveries>| -> Vec<(String, u128)> {
        let of = |d: &Delivery| (d.object.key().name().to_owned(), d.version.number());
        deliveries(cursor).iter().map(of).collect()
    };
    let expected = |events: &[(&str, u128)]| -> Vec<(String, u128)> {
        events.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect()
    };
    assert_eq!(resume(&mut all), expected(&[("z", 1), ("a", 1), ("b", 1), ("c", 1), ("d", 5)]));
    assert_eq!(resume(&mut web), expected(&[("z", 1), ("a", 1), ("c", 5)]));
    assert_eq!(resume(&mut db), expected(&[("b", 5)]));
    for cursor in [&all, &web, &db] {
        assert_eq!(cursor.version(), &version(5));
    }
}

/// No cursor waits for the version to be closed, and no client resumes from it.
#[test]
fn an_open_batch_is_delivered_before_its_version_and_skipped_for_clients_that_have_all_of_it() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    broadcaster.publish(&[world.one("z", "web")]);
    let mut open =
        |name: &str| Batch { before: version(8), after: version(9), is_open: true, ..world.one(name, "web") };
    let (first, second, third) = (open("a"), open("b"), open("c"));
    let mut all = broadcaster.subscribe(live(everything(), REPLAY));
    broadcaster.publish(&[first]);
    assert_eq!(broadcaster.version(), version(8));
    let mut has_it = broadcaster.subscribe_after(live(everything(), queue(FullChannelPolicy::Drop, 1)), &version(9));
    assert_eq!(has_it.version(), &version(9));
    broadcaster.publish(&[second]);
    assert!(deliveries(&mut has_it).is_empty() && has_it.standing(2).is_some());
    let next = Batch { before: version(9), after: version(12), ..world.one("d", "web") };
    broadcaster.publish(&[third, next]);
    let told = |cursor: &mut Cursor<Deliveries>| -> Vec<(String, u128)> {
        let of = |d: &Delivery| (d.object.key().name().to_owned(), d.version.number());
        deliveries(cursor).iter().map(of).collect()
    };
    let event = |name: &str, version| (name.to_owned(), version);
    assert_eq!(told(&mut all), [event("a", 8), event("b", 8), event("c", 8), event("d", 12)]);
    assert_eq!(told(&mut has_it), [event("d", 12)]);
    assert_eq!((has_it.version(), has_it.reached().offset), (&version(12), 5));
}

/// A complete version leaves nothing to skip; a late change at it is new to the client.
#[test]
fn a_cursor_that_joins_after_the_reached_version_gets_later_events_at_it() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    broadcaster.publish(&[world.one("a", "web")]);
    let mut cursor = broadcaster.subscribe_after(live(everything(), REPLAY), &version(1));
    let late = Batch { before: version(1), after: version(1), ..world.one("b", "web") };
    let late = Batch {
        changes: late.changes.into_iter().map(|change| Change { version: version(1), ..change }).collect(),
        ..late
    };
    broadcaster.publish(&[late]);
    let names: Vec<_> = deliveries(&mut cursor).iter().map(|d| d.object.key().name().to_owned()).collect();
    assert_eq!(names, ["b"]);
}

/// One that is first given initial events.
fn after_initial_events(
    broadcaster: &mut Broadcaster<Deliveries>,
    queue: QueueOptions,
    number: u128,
) -> Cursor<Deliveries> {
    let subscribe = Subscribe { initial_events: true, ..live(everything(), queue) };
    let mut cursor = broadcaster.subscribe_after(subscribe, &version(number));
    cursor.go_live();
    cursor
}

#[test]
fn the_policy_applies_to_a_client_with_an_open_version_once_it_has_read_later_events() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    broadcaster.publish(&[world.one("z", "web")]);
    let mut open =
        |name: &str| Batch { before: version(8), after: version(9), is_open: true, ..world.one(name, "web") };
    let (first, second) = (open("a"), open("b"));
    broadcaster.publish(&[first]);
    let mut cursor = after_initial_events(&mut broadcaster, queue(FullChannelPolicy::Drop, 2), 9);
    broadcaster.publish(&[second]);
    assert_eq!((take(&mut cursor, 9), cursor.reached().offset), (vec![], 3));
    broadcaster.publish(&[Batch { before: version(9), after: version(12), ..world.one("d", "web") }]);
    assert_eq!(drain(&mut cursor), [event(EventType::Added, "d", 12)]);
    let mut world = World::at(12);
    broadcaster.publish(&world.several(5));
    let held = [event(EventType::Added, "a", 13), event(EventType::Modified, "a", 14)];
    assert_eq!(drain(&mut cursor), [held.as_slice(), &[Dropped(3, 14)]].concat());
}

#[test]
fn the_policy_applies_at_once_to_a_client_with_a_complete_version() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    broadcaster.publish(&world.several(1));
    let mut cursor = after_initial_events(&mut broadcaster, queue(FullChannelPolicy::Drop, 2), 1);
    assert_eq!(take(&mut cursor, 9), []);
    broadcaster.publish(&world.several(5));
    assert_eq!(drain(&mut cursor), [modified([2, 3]), vec![Dropped(3, 3)]].concat());
}

/// Its version never decreases, also inside the batch.
#[test]
fn a_client_with_an_open_version_gets_a_relist_that_closes_it() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    broadcaster.publish(&[world.one("z", "web")]);
    broadcaster.publish(&[Batch { before: version(8), after: version(9), is_open: true, ..world.one("a", "web") }]);
    let mut cursor = after_initial_events(&mut broadcaster, REPLAY, 9);
    let relist = world.batch(|world| vec![world.put("b", "web"), world.put("c", "web")]);
    broadcaster.publish(&[Batch { before: version(8), after: version(12), is_relist: true, ..relist }]);
    assert_eq!(drain(&mut cursor), [event(EventType::Added, "b", 9), event(EventType::Added, "c", 12)]);
}

#[test]
fn the_version_of_a_cursor_follows_its_events_and_never_decreases() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), REPLAY));
    let mut world = World::at(0);
    let single = world.one("z", "web");
    let batch = world.batch(|world| ["a", "b", "c"].map(|name| world.put(name, "web")).into());
    broadcaster.publish(&[single, batch]);
    let mut versions = vec![cursor.version().number()];
    for is_last in [false, false, false, true] {
        assert!(cursor.standing(4).is_none());
        assert_eq!(take(&mut cursor, 1).len(), 1);
        assert_eq!(cursor.standing(4).is_some(), is_last);
        versions.push(cursor.version().number());
    }
    assert_eq!(versions, [0, 1, 1, 1, 4]);
    let reached = |number, offset| HistoryPosition { version: version(number), offset };
    assert!(cursor.advance_at_head(Some(&reached(3, 2))));
    assert_eq!(cursor.reached(), reached(4, 4));
    assert_eq!(drain(&mut cursor), []);
    assert!(cursor.advance_at_head(Some(&reached(7, 6))));
    assert_eq!(cursor.reached(), reached(7, 6));
}

/// A client that applies its events holds exactly the objects that match.
#[test]
fn entering_and_leaving_a_selection_is_added_and_deleted_with_the_state_that_matched() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut all = broadcaster.subscribe(live(everything(), REPLAY));
    let mut web = broadcaster.subscribe(live(app("web"), REPLAY));
    let mut world = World::at(0);
    let batches = [
        world.one("a", "db"),
        world.one("a", "web"),
        world.one("a", "web"),
        world.one("a", "db"),
        world.one("a", "web"),
        world.batch(|world| vec![world.delete("a")]),
    ];
    broadcaster.publish(&batches);
    let (added, modified, deleted) = (EventType::Added, EventType::Modified, EventType::Deleted);
    assert_eq!(
        deliveries(&mut web).iter().map(told).collect::<Vec<_>>(),
        [
            (added, Cause::EnteredSelection, "a", 2, 2),
            (modified, Cause::Change, "a", 3, 3),
            (deleted, Cause::LeftSelection, "a", 3, 4),
            (added, Cause::EnteredSelection, "a", 5, 5),
            (deleted, Cause::Change, "a", 5, 6),
        ]
    );
    assert_eq!(
        deliveries(&mut all).iter().map(told).collect::<Vec<_>>(),
        [
            (added, Cause::Change, "a", 1, 1),
            (modified, Cause::Change, "a", 2, 2),
            (modified, Cause::Change, "a", 3, 3),
            (modified, Cause::Change, "a", 4, 4),
            (modified, Cause::Change, "a", 5, 5),
            (deleted, Cause::Change, "a", 5, 6),
        ]
    );
}

#[test]
fn an_inferred_deletion_has_its_cause_in_every_selection() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    world.put("a", "web");
    let mut web = broadcaster.subscribe(live(app("web"), REPLAY));
    let inferred = world.batch(|world| vec![Change { cause: Cause::Inferred, ..world.delete("a") }]);
    broadcaster.publish(&[inferred]);
    let taken = deliveries(&mut web);
    assert_eq!(taken.iter().map(told).collect::<Vec<_>>(), [(EventType::Deleted, Cause::Inferred, "a", 1, 2)]);
}

/// The cost of encoding is independent of the number of equal watchers.
#[test]
fn an_event_is_encoded_once_for_equal_watchers_and_dropped_when_all_have_it() {
    let mut broadcaster = broadcaster::<Text>(0);
    let mut world = World::at(0);
    let stats = Arc::clone(broadcaster.stats());
    let encoded = || stats.encoded.load(Ordering::Relaxed);
    let formats = [text::Letter('a'), text::Letter('b')];
    let mut cursors: Vec<_> = (0..20)
        .map(|at| broadcaster.subscribe(Subscribe { format: formats[at / 10], ..live(everything(), REPLAY) }))
        .collect();
    for round in 1..=3 {
        broadcaster.publish(&[world.one("a", "web"), world.one("b", "db")]);
        let mut held = Vec::new();
        for cursor in &mut cursors {
            let taken = cursor.poll_take(&mut Context::from_waker(Waker::noop()), usize::MAX);
            let Poll::Ready(Taken::Frames(frames)) = taken else { panic!("{taken:?}") };
            assert_eq!(frames.iter().flat_map(Text::lines).count(), 2);
            held.extend(frames);
        }
        let places: BTreeSet<_> = held.iter().map(|frame| frame.place().0).collect();
        assert_eq!((encoded(), places.len()), (4 * round, 2), "two events in two formats, and the same bytes for all");
    }
    broadcaster.sweep();
    assert_eq!(stats.retained_size.load(Ordering::Relaxed), 0, "nobody needs them any more");
    drop(cursors);
    broadcaster.sweep();
    assert_eq!(stats.groups.load(Ordering::Relaxed), 0);
}

/// They are encoded again for whoever comes later.
#[test]
fn encoded_events_are_bounded() {
    let retention = Retention { size: 100_000, ..BroadcasterConfig::default().retention };
    let mut broadcaster =
        Broadcaster::<Text>::new(BroadcasterConfig { retention, ..BroadcasterConfig::default() }, version(0));
    let (mut all, mut slow) =
        (broadcaster.subscribe(live(everything(), REPLAY)), broadcaster.subscribe(live(everything(), REPLAY)));
    let mut world = World::at(0);
    let mut sizes = [Vec::new(), Vec::new()];
    let mut read = |cursor: &mut Cursor<Text>, at: usize| {
        while let Poll::Ready(Taken::Frames(frames)) =
            cursor.poll_take(&mut Context::from_waker(Waker::noop()), 64 << 10)
        {
            sizes[at].extend(frames.iter().flat_map(Text::lines).map(|line| line.len() / 20_000));
        }
    };
    for _ in 0..3 {
        let batch = world.batch(|world| (0..9).map(|at| world.put_sized("a", "web", 20_000 * at)).collect());
        broadcaster.publish(&[Batch { changes: batch.changes, ..batch }]);
        read(&mut all, 0);
        broadcaster.sweep();
        let retained = broadcaster.stats().retained_size.load(Ordering::Relaxed);
        assert!(retained <= 200_000, "at most one block of its own may be larger: {retained}");
        read(&mut slow, 1);
    }
    assert_eq!(sizes[0].len(), 27);
    assert_eq!(sizes[0], sizes[1]);
}

/// One wake-up for each publish cycle, and none for groups that it does not concern.
#[test]
fn only_groups_with_a_share_are_woken() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursors = ["web", "db"].map(|value| broadcaster.subscribe(live(app(value), REPLAY)));
    let flags = [(); 2].map(|()| Arc::new(Flag::default()));
    for (cursor, flag) in cursors.iter_mut().zip(&flags) {
        let waker = Waker::from(Arc::clone(flag));
        assert!(cursor.poll_take(&mut Context::from_waker(&waker), 1).is_pending());
    }
    let mut world = World::at(0);
    broadcaster.publish(&[world.one("a", "web")]);
    assert_eq!(flags.each_ref().map(|flag| flag.is_set()), [true, false]);
    broadcaster.publish(&[world.one("a", "web")]);
    assert_eq!(flags.each_ref().map(|flag| flag.is_set()), [false, false], "it was woken already");
    broadcaster.publish(&[world.one("a", "db")]);
    assert_eq!(flags.each_ref().map(|flag| flag.is_set()), [false, true]);
    broadcaster.publish(&[Batch {
        before: version(3),
        after: version(4),
        changes: Vec::new(),
        is_relist: false,
        is_open: false,
    }]);
    broadcaster.stop();
    assert_eq!(flags.each_ref().map(|flag| flag.is_set()), [false, false]);
}

#[test]
fn a_rewritten_history_ends_every_cursor_and_serves_later_ones_at_the_new_version() {
    let mut broadcaster = broadcaster::<Deliveries>(100);
    let mut before = broadcaster.subscribe(live(everything(), REPLAY));
    let mut world = World::at(100);
    broadcaster.publish(&world.several(1));
    rewrite(&mut broadcaster, 5);
    let mut after = broadcaster.subscribe(live(everything(), REPLAY));
    assert_eq!(after.version(), &version(5));
    broadcaster.publish(&World::at(5).several(1));
    assert_eq!(drain(&mut before), [Ended(End::HistoryRewritten)]);
    assert_eq!(drain(&mut after), [event(EventType::Added, "a", 6)]);
}

/// Those after the last event of a batch count too.
#[test]
fn a_replay_counts_the_suppressed_changes_of_a_batch() {
    let mut world = World::at(0);
    let batch = world.batch(|world| {
        [("web", 0), ("web", 1), ("db", 0), ("db", 1), ("db", 2)]
            .map(|(app, size)| world.put_sized("a", app, size))
            .into()
    });
    let mut replay = Replay::new([Arc::new(batch)], 0, HistoryPosition { version: version(0), offset: 0 });
    let (mut events, mut suppressed, mut arena) = (0, 0, bytes::BytesMut::new());
    while !replay.is_done() {
        events += replay.step::<Text>(&Selection::default(), &text::Letter('s'), &mut arena);
        suppressed += replay.take_suppressed();
    }
    assert_eq!((events, suppressed), (2, 3));
}

/// A watch may join a new history before anything of it was distributed.
#[test]
fn a_bookmark_in_a_new_history_is_not_of_the_one_before() {
    let mut broadcaster = broadcaster::<Deliveries>(50);
    let before = broadcaster.reached();
    rewrite(&mut broadcaster, 5);
    let mut cursor = broadcaster.subscribe(live(everything(), REPLAY));
    assert!(cursor.advance_at_head(Some(&before)), "nothing is left to take");
    assert_eq!(*cursor.version(), version(5));
}
