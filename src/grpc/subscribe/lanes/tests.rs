//! Lanes of one stream: their bookmarks, their relists, and what they hold.

use std::task::Waker;

use bytes::Buf;
use prost::Message;

use super::*;
use crate::{
    grpc::{status::ApiError, watch::tests::World, watchers::WatchAccess},
    proto::pb,
    transport::{BoundedBody, BoundedFrame, Room},
};

/// Returns the lanes of a new watch, with this id and interval.
pub(in crate::grpc::subscribe) async fn attached(world: &mut World, id: u32, bookmark_interval: Duration) -> Lanes {
    let body = world.live_watch().await;
    let (key, standing) = body.standing().unwrap();
    let key = LaneKey { bookmark_interval, ..key };
    let mut lanes = Lanes::new(world.service(), body.resource(), &standing, Instant::now()).unwrap();
    lanes.attach(&key, standing, id, body.attach());
    lanes
}

/// Returns the messages of a response, each with the ids of its watches.
pub(in crate::grpc::subscribe) fn messages(deliveries: &mut Deliveries) -> Vec<(Vec<u32>, pb::WatchResponse)> {
    let mut chunk = deliveries.take();
    chunk.advance(PREFIX_BYTES);
    let length = chunk.remaining();
    let response = pb::SubscribeResponse::decode(chunk.copy_to_bytes(length)).unwrap();
    let of_delivery = |delivery: pb::Delivery| {
        let ids = delivery.watch_ids;
        delivery.responses.into_iter().map(move |response| (ids.clone(), response))
    };
    response.deliveries.into_iter().flat_map(of_delivery).collect()
}

/// Returns everything that lanes have.
fn read(lanes: &mut Lanes) -> Vec<(Vec<u32>, pb::WatchResponse)> {
    let mut deliveries = Deliveries::default();
    // The stream does so before each poll.
    lanes.changed();
    lanes.poll(&mut Context::from_waker(Waker::noop()), &mut deliveries, usize::MAX, false);
    messages(&mut deliveries)
}

const MINUTE: Duration = Duration::from_secs(60);

/// Its notification comes between the look at the watch and its attachment.
#[tokio::test(start_paused = true)]
async fn a_change_of_rights_while_a_watch_is_attached_is_found() {
    let mut world = World::of(Vec::new(), |_| ()).await;
    let body = world.live_watch().await;
    let (key, standing) = body.standing().unwrap();
    let resource = Arc::clone(body.resource());
    let access = WatchAccess::Ended(ApiError::RequestTooLarge { limit: 7 });
    assert!(world.service().watchers().set_access(body.id(), access));
    resource.informer.notify_watches().await;
    World::settle().await;
    let mut lanes = Lanes::new(world.service(), &resource, &standing, Instant::now()).unwrap();
    let number = lanes.attach(&key, standing, 1, body.attach());
    assert_eq!(lanes.changed(), [(number, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_changed_state_of_the_source_is_sent_to_watches_of_every_interval() {
    let mut world = World::of(Vec::new(), |_| ()).await;
    world.health().record_contact();
    World::settle().await;
    let mut lanes = attached(&mut world, 1, Duration::from_secs(1)).await;
    let body = world.live_watch().await;
    let (key, standing) = body.standing().unwrap();
    lanes.attach(&LaneKey { bookmark_interval: MINUTE, ..key }, standing, 2, body.attach());
    assert_eq!(read(&mut lanes), []);
    tokio::time::advance(Duration::from_secs(1)).await;
    // The bookmark of the first one is due before the notification comes.
    world.health().set_unconfirmed(true);
    let sent = read(&mut lanes);
    let state = pb::SyncState::Stale;
    assert!(sent.iter().all(|(_, message)| message.bookmark.as_ref().is_some_and(|b| b.source() == state)), "{sent:?}");
    let mut ids: Vec<u32> = sent.into_iter().flat_map(|(ids, _)| ids).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
}

/// Also one without changes, after which the offset is that of before.
#[tokio::test(start_paused = true)]
async fn a_relist_is_reported_once() {
    for puts in [&[][..], &[(1, 0, Some(0))]] {
        let mut world = World::of(Vec::new(), |_| ()).await;
        world.put(&[(1, 1, Some(0))], false).await;
        let mut lanes = attached(&mut world, 1, Duration::from_secs(1)).await;
        let relisted = |lanes: &mut Lanes| read(lanes).iter().map(|(_, sent)| sent.relisted).collect::<Vec<_>>();
        world.put(&[(2, 0, Some(0))], false).await;
        assert_eq!(relisted(&mut lanes), [false], "{puts:?}");
        world.put(puts, true).await;
        if puts.is_empty() {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(relisted(&mut lanes), [true], "{puts:?}");
        let mut late = attached(&mut world, 2, Duration::from_secs(1)).await;
        for (number, lanes) in [&mut lanes, &mut late].into_iter().enumerate() {
            world.put(&[(2, 0, Some(1))], false).await;
            let sent = relisted(lanes);
            assert!(sent.len() == 1 + number && !sent.contains(&true), "{puts:?} {sent:?}");
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(relisted(&mut lanes).last(), Some(&false), "{puts:?}");
        let body = lanes.detach(0, 1).unwrap();
        assert!(!body.has_gap(), "{puts:?}");
    }
}

/// Of a relist without changes, the events that follow it report it.
#[tokio::test(start_paused = true)]
async fn a_relist_before_the_next_event_is_reported_with_it() {
    let mut world = World::of(Vec::new(), |_| ()).await;
    let mut lanes = attached(&mut world, 1, MINUTE).await;
    world.put(&[(2, 0, Some(0))], false).await;
    world.put(&[], true).await;
    world.put(&[(2, 0, Some(1))], false).await;
    world.put(&[(2, 0, Some(0))], false).await;
    assert_eq!(read(&mut lanes).iter().map(|(_, sent)| sent.relisted).collect::<Vec<_>>(), [false, true, false]);
}

/// Each of its events says so, and the history may have evicted it meanwhile.
#[tokio::test(start_paused = true)]
async fn a_relist_in_hand_is_reported_after_its_eviction() {
    let mut world = World::of(Vec::new(), |_| ()).await;
    let mut lanes = attached(&mut world, 1, MINUTE).await;
    world.put(&[(1, 0, Some(0)), (1, 1, Some(0)), (2, 0, Some(0))], true).await;
    let mut deliveries = Deliveries::default();
    lanes.changed();
    lanes.poll(&mut Context::from_waker(Waker::noop()), &mut deliveries, 1, false);
    let mut sent = messages(&mut deliveries);
    assert_eq!(sent.len(), 1);
    world.put(&[(1, 1, Some(1))], true).await;
    for app in [0, 1].into_iter().cycle().take(120) {
        world.put(&[(1, 0, Some(app))], false).await;
    }
    sent.extend(read(&mut lanes));
    assert_eq!(sent.iter().map(|(_, sent)| sent.relisted).collect::<Vec<_>>(), [true; 3]);
}

/// A relay that does not learn of it would let its clients resume inside of it.
#[tokio::test(start_paused = true)]
async fn a_relist_before_a_change_of_rights_is_reported_with_it() {
    let mut world = World::of(Vec::new(), |_| ()).await;
    let mut lanes = attached(&mut world, 1, MINUTE).await;
    world.put(&[], true).await;
    let mut body = lanes.detach(0, 1).unwrap();
    assert!(body.has_gap());
    let access = WatchAccess::Namespaces(Some(["a"].into_iter().collect()));
    assert!(world.service().watchers().set_access(body.id(), access));
    let room = Room { bytes: usize::MAX, is_strict: false };
    let polled = body.poll_bounded(&mut Context::from_waker(Waker::noop()), room);
    let Poll::Ready(Some(Ok(BoundedFrame::Frame(frame)))) = polled else { panic!("{polled:?}") };
    let mut data = frame.into_data().unwrap();
    data.advance(PREFIX_BYTES);
    assert!(pb::WatchResponse::decode(data.copy_to_bytes(data.remaining())).unwrap().relisted);
}

/// It is charged, until the client reads again.
#[tokio::test(start_paused = true)]
async fn a_stalled_stream_holds_one_batch() {
    let mut world = World::of(Vec::new(), |_| ()).await;
    let mut lanes = attached(&mut world, 1, MINUTE).await;
    for app in [0, 1].into_iter().cycle().take(20) {
        world.put(&[(1, 0, Some(app)), (1, 1, Some(app))], false).await;
    }
    let cx = &mut Context::from_waker(Waker::noop());
    let mut deliveries = Deliveries::default();
    assert!(matches!(lanes.poll(cx, &mut deliveries, 0, true), LanesTurn::TooLarge(_)));
    assert_eq!(lanes.reader.read_ahead(), 0);
    let bodies: usize = lanes
        .batch
        .as_ref()
        .unwrap()
        .0
        .batch
        .changes
        .iter()
        .map(|change| change.new.as_ref().unwrap().body().len())
        .sum();
    assert!(lanes.encoded_bytes() > bodies, "{} of {bodies}", lanes.encoded_bytes());
    assert_eq!(read(&mut lanes).len(), 40);
    assert_eq!((lanes.encoded_bytes(), lanes.reader.read_ahead()), (0, 0));
    // Old states count, too.
    world.put(&[(1, 0, Some(0)), (1, 1, Some(0))], false).await;
    lanes.poll(cx, &mut deliveries, 0, true);
    let changes = &lanes.batch.as_ref().unwrap().0.batch.changes;
    let states = changes.iter().flat_map(|change| change.old.iter().chain(&change.new));
    let held: usize = states.map(|object| object.body().len()).sum();
    assert_eq!(lanes.encoded_bytes(), held + lanes.pending.iter().map(|pending| pending.message.len()).sum::<usize>());
}

/// One that was full stays, and is given up with its last watch.
#[tokio::test(start_paused = true)]
async fn watches_of_a_full_lane_begin_another_one_until_there_is_room() {
    let mut world = World::of(Vec::new(), |_| ()).await;
    let mut lanes = attached(&mut world, 0, MINUTE).await;
    let body = world.live_watch().await;
    let (key, standing) = body.standing().unwrap();
    let key = LaneKey { bookmark_interval: MINUTE, ..key };
    drop(body);
    let mut attach = async |lanes: &mut Lanes, id| {
        let body = world.live_watch().await;
        lanes.attach(&key, standing.clone(), id, body.attach())
    };
    for id in 1..MAX_WATCHES as u32 {
        assert_eq!(attach(&mut lanes, id).await, 0);
    }
    assert_eq!(attach(&mut lanes, 2000).await, 1);
    assert!(lanes.close(1, 2000).is_some());
    assert!(lanes.close(0, 5).is_some());
    assert_eq!(attach(&mut lanes, 5).await, 0);
    assert_eq!(attach(&mut lanes, 2001).await, 1);
    world.put(&[(1, 0, Some(0))], false).await;
    let sizes: Vec<usize> = read(&mut lanes).iter().map(|(ids, _)| ids.len()).collect();
    assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (2, MAX_WATCHES + 1), "one delivery names a bounded number");
}
