//! Lanes of one stream.

use std::task::Waker;

use bytes::Buf;
use prost::Message;

use super::*;
use crate::{
    grpc::{status::ApiError, watch::tests::World, watchers::WatchAccess},
    proto::pb,
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
