//! Pieces of initial events.

use std::task::Waker;

use super::*;
use crate::{
    cache::{Indexer, List},
    grpc::watch::tests::World,
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

/// Reads all batches, with a room that grows only where it has to. Returns the messages.
fn read(world: &World, snapshot: &Snapshot, subscribe: &Subscribe<WireFrame>, room: usize) -> Vec<Bytes> {
    let mut initial = InitialEvents::new(snapshot.clone(), subscribe, world.service(), true);
    let (mut messages, mut bytes, mut count) = (Vec::new(), room, 0);
    loop {
        let (mut cx, service) = (Context::from_waker(Waker::noop()), (world.service(), Caller::default()));
        let selected = (&*subscribe.selection, &subscribe.format);
        let (message, events, progress) = initial.next(&mut cx, selected, service, Room { bytes, is_strict: true });
        assert!(message.len() <= bytes && message.is_empty() == (events == 0));
        count += events;
        messages.extend(Some(message.freeze()).filter(|message| !message.is_empty()));
        bytes = room;
        match progress {
            InitialProgress::TooLarge(needed) => bytes = needed,
            InitialProgress::Done => break,
            _ => {}
        }
    }
    assert_eq!(count, 200);
    messages
}

#[tokio::test]
async fn a_batch_is_compressed_once_whatever_the_room() {
    let world = World::of(Vec::new(), |config| config.compression = Compression::ALL.to_vec()).await;
    let object = |n: usize| format!(r#"{{"metadata":{{"name":"o{n}"}},"x":"{}"}}"#, "web ".repeat(400 + n));
    let snapshot = snapshot((0..200).map(object).collect());
    for compression in Compression::ALL {
        let format = ObjectFormat { compression: Some(*compression), ..PayloadFormat::Raw.into() };
        let subscribe = subscribe(None, format);
        let first = read(&world, &snapshot, &subscribe, usize::MAX);
        assert!((5..10).contains(&first.len()), "{} messages of 64 KiB before the compression", first.len());
        let before = work::done();
        for room in [usize::MAX, 1, 700] {
            assert!(read(&world, &snapshot, &subscribe, room) == first);
        }
        assert_eq!(work::done() - before, 0, "bytes are compressed again");
    }
    let plain = subscribe(None, PayloadFormat::Raw.into());
    let count = |room| read(&world, &snapshot, &plain, room).len();
    assert!((5..10).contains(&count(usize::MAX)), "of at most 64 KiB");
    assert!((20..40).contains(&count(16 << 10)), "of at most the room");
    assert_eq!(count(1), 200, "an object has a message of its own where there is room for no more");
}
