//! Ids of a stream: the state of a watch does not hold for the next one with its id.

use super::*;

/// Opens a watch under an id, which must be live.
async fn is_live(stream: &mut Subscription, sandbox: &mut Sandbox, id: u32) {
    stream.watch(id, watch_from_now()).await;
    while stream.next(id).await.bookmark.is_none() {}
    sandbox.put("a", "x", &format!(r#""id":{id}"#)).await;
    assert!(words(&stream.next(id).await).starts_with("MODIFIED x"), "{id}");
}

#[tokio::test]
async fn an_id_that_is_used_again_has_nothing_of_the_watch_before() {
    let mut sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let mut stream = Subscription::open(&sandbox).await;
    let pause = |id| pb::SubscribeRequest { pause: vec![id], ..Default::default() };
    let open = |id, watch| vec![pb::OpenWatch { id, watch: Some(watch) }];

    // Paused before there was one.
    stream.send(pause(1)).await;
    is_live(&mut stream, &mut sandbox, 1).await;

    // Paused and refused.
    let unknown = pb::WatchRequest { resource: "nodes".to_owned(), ..watch_pods() };
    stream.send(pb::SubscribeRequest { open: open(2, unknown), ..pause(2) }).await;
    stream.end(2).await.unwrap();
    is_live(&mut stream, &mut sandbox, 2).await;

    // Paused and closed: while it is queued, and once it is open.
    stream.send(pb::SubscribeRequest { open: open(3, watch_pods()), ..pause(3) }).await;
    stream.close(3).await;
    assert_eq!(stream.end(3).await, None, "OK, without a message");
    is_live(&mut stream, &mut sandbox, 3).await;
    stream.send(pause(3)).await;
    stream.close(3).await;
    stream.end(3).await;
    is_live(&mut stream, &mut sandbox, 3).await;

    // Paused and ended by its timeout.
    let timeout = Some(prost_types::Duration { seconds: 0, nanos: 1 });
    let short = pb::WatchRequest { timeout, ..watch_from_now() };
    stream.send(pb::SubscribeRequest { open: open(4, short), ..pause(4) }).await;
    stream.end(4).await;
    is_live(&mut stream, &mut sandbox, 4).await;

    // Closed and opened by one request, in this order.
    let again = open(4, watch_from_now());
    stream.send(pb::SubscribeRequest { close: vec![4], open: again, ..Default::default() }).await;
    let mut told = Vec::new();
    while told.len() < 2 {
        let response = tokio::time::timeout(DEADLINE, stream.responses.message()).await.expect("in time");
        let deliveries = response.unwrap().unwrap().deliveries.into_iter();
        told.extend(deliveries.filter(|delivery| delivery.watch_ids == [4]).map(|delivery| delivery.ended));
    }
    assert_eq!(told, [true, false], "the end of the first, and the BOOKMARK of the second");
    sandbox.put("a", "y", "").await;
    for id in 1..=4 {
        while !words(&stream.next(id).await).starts_with("ADDED y") {}
    }
}

/// A watch that is closed before it is open is never opened, also if its id is in use again by then.
#[tokio::test]
async fn watches_closed_before_they_are_open_are_told_nothing_but_their_end() {
    const WATCHES: u32 = 300;
    let mut sandbox = Sandbox::start((0..50).map(|at| pod("a", &format!("p{at}"), "")).collect()).await;
    let mut stream = Subscription::open(&sandbox).await;
    let close = || pb::SubscribeRequest { close: (1..=WATCHES).collect(), ..Default::default() };
    stream.watches((1..=WATCHES).map(|id| (id, watch_pods()))).await;
    stream.send(close()).await;
    // More than are opened at a time: what is closed is still queued.
    stream.watches((1..=WATCHES).map(|id| (id, of("b")))).await;
    sandbox.put("b", "new", "").await;
    let (mut ends, mut told) = (BTreeMap::<u32, u32>::new(), BTreeMap::<u32, Vec<String>>::new());
    while told.values().filter(|names| !names.is_empty()).count() < WATCHES as usize {
        let response = tokio::time::timeout(DEADLINE, stream.responses.message()).await.expect("in time");
        for delivery in response.unwrap().unwrap().deliveries {
            for id in delivery.watch_ids {
                *ends.entry(id).or_default() += u32::from(delivery.ended);
                let names = delivery.responses.iter().filter_map(|response| response.object.as_ref());
                told.entry(id).or_default().extend(names.map(|object| object.name.clone()));
            }
        }
    }
    assert!(told.values().all(|names| names == &["new"]), "{told:?}");
    assert!(ends.len() == WATCHES as usize && ends.values().all(|ends| *ends == 1), "{ends:?}");
    assert_eq!(listed(&sandbox).await.len(), WATCHES as usize);
}
