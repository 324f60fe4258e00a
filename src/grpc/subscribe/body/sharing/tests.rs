//! Cost of a pause of many watches.

use std::{
    task::{Context, Waker},
    time::Duration,
};

use http::{Extensions, HeaderMap};
use tonic::body::Body;

use super::*;
use crate::{
    grpc::{
        call::Call,
        request::{RequestBounds, RequestMessages},
        subscribe::requests::Requests,
        watch::tests::World,
    },
    model::work,
    proto::pb,
    transport::{BoundedBody, Room},
};

/// Returns the number of bodies that are looked up for a pause of so many watches, which share theirs, until each has its own.
async fn work_of_a_pause(count: u32) -> usize {
    let world = World::of(Vec::new(), |_| {}).await;
    let bounds = RequestBounds { bytes: 1 << 10, timeout: Duration::from_secs(1), is_stream: true, waits: false };
    let requests = Requests::new(Box::new(RequestMessages::new(Body::empty(), bounds, None)));
    let call = Call::new(&HeaderMap::new(), &Extensions::new());
    let mut stream = SubscribeBody::new(world.service().clone(), requests, call, 1, None);
    let room = Room { bytes: 64 << 10, is_strict: true };
    let mut cx = Context::from_waker(Waker::noop());
    let watch = pb::WatchRequest { resource: "pods".to_owned(), ..Default::default() };
    let open = (1..=count).map(|id| pb::OpenWatch { id, watch: Some(watch.clone()) }).collect();
    stream.apply(pb::SubscribeRequest { open, ..Default::default() }).unwrap();
    let bodies = count.div_ceil(MAX_SHARING as u32) as usize;
    for _ in 0..100 * count {
        drop(stream.poll_bounded(&mut cx, room));
        tokio::task::yield_now().await;
        if stream.watches.values().all(|watch| watch.key().is_some()) && stream.bodies.len() == bodies {
            break;
        }
    }
    assert_eq!(stream.bodies.len(), bodies, "all share");
    let before = work::done();
    stream.apply(pb::SubscribeRequest { pause: (1..=count).collect(), ..Default::default() }).unwrap();
    while !stream.splitting.is_empty() {
        drop(stream.poll_bounded(&mut cx, room));
    }
    assert_eq!(stream.bodies.len(), count as usize, "each has its own");
    work::done() - before
}

#[tokio::test(start_paused = true)]
async fn a_pause_costs_as_much_for_each_watch_however_many_there_are() {
    let (few, many) = (work_of_a_pause(1000).await, work_of_a_pause(8000).await);
    assert!(many <= 10 * few, "{many} for 8 times as many watches, against {few}");
}
