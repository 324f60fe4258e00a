//! Sums over open watches and those that have ended, of which some end meanwhile.

use http::{Extensions, HeaderMap};

use super::*;
use crate::grpc::{call::Call, watch, watch::tests::World};

/// More watches than are read under one acquisition of the lock.
#[tokio::test]
async fn a_watch_that_ends_while_the_others_are_read_counts_once() {
    let world = World::of(Vec::new(), |_| {}).await;
    let service = world.service();
    let open = async || {
        let call = Call::new(&HeaderMap::new(), &Extensions::new());
        let request = pb::WatchRequest { resource: "pods".to_owned(), ..Default::default() };
        let body = watch::open(service, request, call).await.unwrap();
        body.watcher_sent(3);
        body
    };
    let mut bodies = Vec::new();
    for _ in 0..=WATCHES_PER_LOCK {
        bodies.push(open().await);
    }
    let resource = service.resource("pods").unwrap();
    let count = |load: WatchLoad| (load.watchers, load.sent.events);
    let of = |loads: BTreeMap<u64, WatchLoad>| count(loads[&resource.calls.id()]);
    let all = WATCHES_PER_LOCK as u64 + 1;
    assert_eq!(of(service.watchers().loads([&*resource].into_iter())), (all, 3 * all));
    let ended = std::iter::once_with(|| {
        drop(bodies.pop());
        &*resource
    });
    assert_eq!(of(service.watchers().loads(ended)), (all - 1, 3 * all));
    assert_eq!(of(service.watchers().loads([&*resource].into_iter())), (all - 1, 3 * all));
}
