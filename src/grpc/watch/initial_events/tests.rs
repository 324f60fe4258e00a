//! Pieces of initial events.

use std::task::Waker;

use super::*;
use crate::{
    cache::{Indexer, List},
    grpc::{frame::PREFIX_BYTES, watch::tests::World},
    model::{Expression, Indexers, Object, ResourceVersion, work},
    proto::Compression,
    watch::{FullChannelPolicy, QueueOptions},
};

fn subscribe(expression: Option<Expression>, format: ObjectFormat) -> Subscribe<WireFrame> {
    let selection = Arc::new(Selection { expression, ..Selection::default() });
    let queue = QueueOptions { policy: FullChannelPolicy::Replay, length: 1 };
    Subscribe { selection, format, queue, client: Caller::default().client(), initial_events: true }
}

fn snapshot(objects: Vec<String>) -> Snapshot {
    let version = || ResourceVersion::decimal(1);
    let object = |json| Arc::new(Object::from_json(json, "", version()).expect("it is an object"));
    let list = List::new(objects.into_iter().map(object).collect(), ResourceVersion::decimal(1));
    Indexer::new(Arc::new(Indexers::default()), list).snapshot()
}

/// An evaluation that takes longer than a slice is alone in its piece; cheap ones share a piece.
#[tokio::test]
async fn a_piece_ends_with_its_time_slice() {
    let world = World::of(Vec::new(), |_| {}).await;
    let object = |n: usize| {
        let list = vec!["1"; 2000].join(",");
        format!(r#"{{"metadata":{{"name":"o{n}"}},"list":[{list}]}}"#)
    };
    let snapshot = snapshot((0..20).map(object).collect());
    let pieces = |expression: Option<&str>| {
        let expression = expression.map(|text| Expression::parse(text).unwrap().with_max_steps(100_000));
        let subscribe = subscribe(expression, PayloadFormat::Metadata.into());
        let mut initial = InitialEvents::new(snapshot.clone(), &subscribe, world.service(), false);
        (1..1000)
            .find(|_| {
                let room = Room { bytes: usize::MAX, is_strict: false };
                let (mut cx, service) = (Context::from_waker(Waker::noop()), (world.service(), Caller::default()));
                let selected = (&*subscribe.selection, &subscribe.format);
                initial.next(&mut cx, selected, service, room).2 == InitialProgress::Done
            })
            .unwrap()
    };
    // Runs until its steps are spent, and selects nothing.
    let costly = "object.list.all(a, object.list.all(b, a + b == 2))";
    assert_eq!(pieces(Some(costly)), 20 + 1, "the last one finds the end");
    assert!(pieces(None) < 20);
}

/// Reads the initial events, with a room that grows only where it has to. Returns the messages, their number, and the bookmark.
fn read(
    world: &World,
    snapshot: &Snapshot,
    subscribe: &Subscribe<WireFrame>,
    (has_batches, room): (bool, usize),
) -> (Vec<Bytes>, u64, pb::Bookmark) {
    let mut initial = InitialEvents::new(snapshot.clone(), subscribe, world.service(), has_batches);
    let (mut messages, mut bytes, mut count) = (Vec::new(), room, 0);
    loop {
        let (mut cx, service) = (Context::from_waker(Waker::noop()), (world.service(), Caller::default()));
        let selected = (&*subscribe.selection, &subscribe.format);
        let (message, events, progress) = initial.next(&mut cx, selected, service, Room { bytes, is_strict: true });
        assert!(message.len() <= bytes && message.is_empty() == (events == 0));
        count += events;
        let mut message = message.freeze();
        while let Some(length) = message.get(1..PREFIX_BYTES) {
            let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            messages.push(message.split_to(PREFIX_BYTES + length));
        }
        assert!(message.is_empty());
        bytes = room;
        match progress {
            InitialProgress::TooLarge(needed) => {
                // A complete message waits here, and is counted; others are encoded once there is room.
                let waits = has_batches && subscribe.format.compression.is_some();
                assert_eq!(initial.encoded_bytes(), if waits { needed } else { 0 });
                bytes = needed;
            }
            InitialProgress::Done => break,
            _ => {}
        }
    }
    assert_eq!(initial.encoded_bytes(), 0);
    (messages, count, initial.end())
}

#[tokio::test]
async fn a_batch_is_compressed_once_whatever_the_room() {
    TimeSlice::never_end();
    let world = World::of(Vec::new(), |config| config.compression = Compression::ALL.to_vec()).await;
    let object = |n: usize| format!(r#"{{"metadata":{{"name":"o{n}"}},"x":"{}"}}"#, "web ".repeat(400 + n));
    let snapshot = snapshot((0..200).map(object).collect());
    for compression in Compression::ALL {
        let format = ObjectFormat { compression: Some(*compression), ..PayloadFormat::Raw.into() };
        let subscribe = subscribe(None, format);
        let read = |room| read(&world, &snapshot, &subscribe, (true, room));
        let (first, count, _) = read(usize::MAX);
        assert_eq!(count, 200);
        assert!((5..10).contains(&first.len()), "{} messages of 64 KiB before the compression", first.len());
        let before = work::done();
        for room in [usize::MAX, 1, 700] {
            assert!(read(room).0 == first);
        }
        assert_eq!(work::done() - before, 0, "bytes are compressed again");
        let mut initial = InitialEvents::new(snapshot.clone(), &subscribe, world.service(), true);
        let mut next = |bytes| {
            let (mut cx, service) = (Context::from_waker(Waker::noop()), (world.service(), Caller::default()));
            let selected = (&*subscribe.selection, &subscribe.format);
            initial.next(&mut cx, selected, service, Room { bytes, is_strict: true })
        };
        let two = first[0].len() + first[1].len();
        let (messages, events, progress) = next(two);
        assert_eq!(
            (messages.len(), progress),
            (two, InitialProgress::More),
            "what there is room for comes in one turn"
        );
        let (messages, rest, progress) = next(usize::MAX);
        assert_eq!((messages.len(), progress), (first[2..].iter().map(Bytes::len).sum(), InitialProgress::Done));
        assert_eq!(events + rest, 200);
    }
    let format = ObjectFormat { compression: Some(Compression::Gzip), ..PayloadFormat::Raw.into() };
    for expression in [None, Some(Expression::parse("object.x != ''").unwrap())] {
        let subscribe = subscribe(expression, format.clone());
        let (first, ..) = read(&world, &snapshot, &subscribe, (true, usize::MAX));
        for number in [1, 2, 3, 7, 40, 41, 100] {
            TimeSlice::end_with_check(number);
            let (messages, count, _) = read(&world, &snapshot, &subscribe, (true, CHUNK_BYTES));
            assert!(messages == first && count == 200, "slices of {number} checks");
            TimeSlice::end_with_check(u64::MAX);
        }
    }
    let plain = subscribe(None, PayloadFormat::Raw.into());
    let read = |room| {
        let (messages, events, _) = read(&world, &snapshot, &plain, (true, room));
        assert_eq!(events, 200, "room for {room} bytes");
        messages
    };
    let messages = read(usize::MAX);
    assert!(messages.len() < 10 && messages.iter().all(|message| message.len() <= CHUNK_BYTES));
    let count = |room| read(room).len();
    assert!((20..40).contains(&count(16 << 10)), "of at most the room");
    assert_eq!(count(1), 200, "an object has a message of its own where there is room for no more");
}

/// Objects are counted once, however often one is evaluated again for want of room.
#[tokio::test]
async fn the_bookmark_counts_the_evaluations_of_batches_like_those_of_single_events() {
    let world = World::of(Vec::new(), |config| config.compression = Compression::ALL.to_vec()).await;
    let object = |n: usize| {
        let count = if n.is_multiple_of(3) { "\"many\"" } else { "7" };
        format!(r#"{{"metadata":{{"name":"o{n:03}"}},"count":{count},"x":"{}"}}"#, "web ".repeat(400))
    };
    let snapshot = snapshot((0..200).map(object).collect());
    for compression in [None, Some(Compression::Gzip)] {
        let format = ObjectFormat { compression, ..PayloadFormat::Raw.into() };
        let subscribe = subscribe(Some(Expression::parse("object.count > 5").unwrap()), format);
        for (has_batches, room) in [(false, usize::MAX), (false, 1), (true, usize::MAX), (true, 1), (true, 5000)] {
            let (_, count, end) = read(&world, &snapshot, &subscribe, (has_batches, room));
            assert!(end.initial_events_end);
            let errors = end.expression_errors.expect("a third of the evaluations fails");
            let counts = (count, errors.evaluated, errors.failed);
            assert_eq!(counts, (133, 200, 67), "{compression:?} {has_batches} {room}");
            assert_eq!(errors.first.map(|key| key.name).as_deref(), Some("o000"));
        }
    }
}
