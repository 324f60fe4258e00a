//! A stream, piece by piece: what it reads and hands out in one poll, and with which room.

use informerd::transport::Room;

use super::*;
use crate::checker::subscription::{Piece, Subscription as Pieces};

const FULL: Room = Room { bytes: 1 << 20, is_strict: false };
const NONE: Room = Room { bytes: 0, is_strict: true };

async fn stream(sandbox: &Sandbox) -> Pieces {
    Pieces::open(&mut sandbox.routes(), 0, 1, 1000).await
}

fn open(id: u32, watch: pb::WatchRequest) -> pb::OpenWatch {
    pb::OpenWatch { id, watch: Some(watch) }
}

fn opens(watches: impl IntoIterator<Item = pb::OpenWatch>) -> pb::SubscribeRequest {
    pb::SubscribeRequest { open: watches.into_iter().collect(), ..Default::default() }
}

/// Polls until there is something to read, while the stream says that there is.
async fn next(stream: &mut Pieces) -> Vec<pb::Delivery> {
    let began = Instant::now();
    loop {
        match stream.poll(FULL) {
            (Piece::Deliveries(deliveries), true) => return deliveries,
            (Piece::Nothing, true) => {}
            (Piece::Nothing | Piece::Deliveries(_), false) => panic!("it was not woken"),
            (Piece::TooLarge, _) => panic!("it fits"),
            (Piece::Over(end), _) => panic!("it is over: {end:?}"),
        }
        while !stream.is_woken() {
            assert!(began.elapsed() < DEADLINE, "it is woken in time");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn all_requests_that_have_arrived_are_read_though_one_poll_reads_a_limited_number() {
    let sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let mut stream = stream(&sandbox).await;
    for at in 0..63 {
        stream.send(&pb::SubscribeRequest { pause: vec![at + 2], ..Default::default() });
    }
    stream.send(&opens([open(1, watch_from_now())]));
    assert!(next(&mut stream).await[0].responses[0].bookmark.is_some());
}

/// Refusals that the client does not read wait in a limited number: what follows is opened when there is room again.
#[tokio::test]
async fn refusals_that_nobody_reads_are_few() {
    const WATCHES: u32 = 600;
    let sandbox = Sandbox::start_with(Options { max_watchers: 1, ..Options::default() }, vec![pod("a", "x", "")]).await;
    let _other = sandbox.client().await.watch(watch_from_now()).await.unwrap();
    let mut stream = stream(&sandbox).await;
    for first in (1..WATCHES).step_by(100) {
        stream.send(&opens((first..first + 100).map(|id| open(id, watch_from_now()))));
    }
    for _ in 0..100 {
        assert!(!matches!(stream.poll(NONE).0, Piece::Deliveries(_) | Piece::Over(_)));
        tokio::task::yield_now().await;
    }
    let refused = sandbox.refused("watchers");
    assert!((64..=192).contains(&refused), "{refused}");
    let mut ended = Vec::new();
    while ended.len() < WATCHES as usize {
        for delivery in next(&mut stream).await {
            assert!(delivery.ended && delivery.responses[0].error.is_some(), "{delivery:?}");
            ended.extend(delivery.watch_ids);
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, (1..=WATCHES).collect::<Vec<_>>(), "each once");
    assert_eq!(sandbox.refused("watchers"), u64::from(WATCHES));
}

/// A response has at most 64 KiB, ids included, and a watch at most 16 KiB of it, or one message.
#[tokio::test]
async fn a_response_and_each_turn_in_it_are_bounded() {
    const TURN: usize = 16 << 10;
    const RESPONSE: usize = 64 << 10;
    let filler = format!(r#""filler":"{}""#, "x".repeat(1000));
    let sandbox = Sandbox::start((0..300).map(|at| pod("a", &format!("p{at}"), &filler)).collect()).await;
    let mut stream = stream(&sandbox).await;
    // Of other selections, so that each encodes its own.
    let watch = |at: u32| pb::WatchRequest { label_selector: format!("none!=v{at}"), ..watch_pods() };
    stream.send(&opens((1..=6).map(|id| open(id, watch(id)))));
    let (mut objects, mut largest, mut most) = (0, 0, 0);
    while objects < 6 * 300 {
        let deliveries = next(&mut stream).await;
        let response = pb::SubscribeResponse { deliveries };
        most = most.max(prost::Message::encoded_len(&response));
        for delivery in response.deliveries {
            let bytes: usize = delivery.responses.iter().map(prost::Message::encoded_len).sum();
            largest = largest.max(bytes);
            objects += delivery.responses.iter().filter(|response| response.object.is_some()).count();
        }
    }
    assert!(largest <= TURN && most <= RESPONSE && most > TURN, "{largest} of a watch, {most} of a response");
}

/// The messages after one of another watch fit into the response, or wait for the next one.
#[tokio::test]
async fn large_messages_of_several_watches_are_not_in_one_response() {
    let filler = format!(r#""filler":"{}""#, "x".repeat(50_000));
    let sandbox = Sandbox::start(vec![pod("a", "x", &filler), pod("b", "x", &filler)]).await;
    let mut stream = stream(&sandbox).await;
    let of = |namespace: &str| pb::WatchRequest { namespace: namespace.to_owned(), ..watch_pods() };
    stream.send(&opens([open(1, of("a")), open(2, of("b"))]));
    let mut objects = 0;
    while objects < 2 {
        let deliveries = next(&mut stream).await;
        let responses = deliveries.iter().flat_map(|delivery| &delivery.responses);
        let count = responses.filter(|response| response.object.is_some()).count();
        assert!(count <= 1, "{count} of 50 kB");
        objects += count;
    }
}

/// The ends of closed watches wait for the client, too: a client that opens and closes, and reads nothing, is not read on.
#[tokio::test]
async fn ends_of_closed_watches_that_nobody_reads_are_few() {
    const ROUNDS: usize = 20;
    const WATCHES: u32 = 50;
    let sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let mut stream = stream(&sandbox).await;
    for _ in 0..ROUNDS {
        stream.send(&opens((1..=WATCHES).map(|id| open(id, watch_from_now()))));
        stream.send(&pb::SubscribeRequest { close: (1..=WATCHES).collect(), ..Default::default() });
    }
    for _ in 0..100 {
        assert!(!matches!(stream.poll(NONE).0, Piece::Deliveries(_) | Piece::Over(_)));
        tokio::task::yield_now().await;
    }
    let (mut ended, mut most) = (0, 0);
    while ended < ROUNDS * WATCHES as usize {
        let deliveries = next(&mut stream).await;
        let ends: usize =
            deliveries.iter().filter(|delivery| delivery.ended).map(|delivery| delivery.watch_ids.len()).sum();
        most = most.max(ends);
        ended += ends;
    }
    assert!(most < 64 + WATCHES as usize, "{most} ends waited");
}

/// Requests that are read in one poll: watches that were queued and closed are never opened, though their ids are in use again.
#[tokio::test]
async fn a_queued_watch_that_is_closed_is_not_opened_for_the_next_one_of_its_id() {
    const WATCHES: u32 = 100;
    let sandbox = Sandbox::start(vec![pod("a", "old", ""), pod("b", "new", "")]).await;
    let mut stream = stream(&sandbox).await;
    let of = |namespace: &str| pb::WatchRequest { namespace: namespace.to_owned(), ..watch_pods() };
    stream.send(&opens((1..=WATCHES).map(|id| open(id, of("a")))));
    stream.send(&pb::SubscribeRequest { close: (1..=WATCHES).collect(), ..Default::default() });
    stream.send(&opens((1..=WATCHES).map(|id| open(id, of("b")))));
    let mut told = BTreeMap::<u32, Vec<String>>::new();
    while told.len() < WATCHES as usize {
        for delivery in next(&mut stream).await {
            let names = delivery.responses.iter().filter_map(|response| response.object.as_ref());
            let names: Vec<_> = names.map(|object| object.name.clone()).collect();
            for id in delivery.watch_ids.iter().filter(|_| !names.is_empty()) {
                told.entry(*id).or_default().extend(names.clone());
            }
        }
    }
    assert!(told.values().all(|names| names == &["new"]), "{told:?}");
    let mut admin = AdminServiceClient::new(sandbox.service());
    let watchers = admin.list_watchers(pb::ListWatchersRequest::default()).await.unwrap().into_inner();
    assert_eq!(watchers.watchers.len(), WATCHES as usize, "each is open once");
}

/// Watches that are live, paused, waiting for a version, or queued receive the reason for which their stream ends.
#[tokio::test]
async fn each_watch_receives_the_end_of_its_stream() {
    const WATCHES: u32 = 300;
    for is_drained in [false, true] {
        let sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
        let mut stream = stream(&sandbox).await;
        stream.send(&opens([open(1, watch_from_now()), open(2, watch_from_now())]));
        while !next(&mut stream).await.iter().any(|delivery| delivery.watch_ids.contains(&2)) {}
        let resource_version = "99".to_owned();
        let future =
            || pb::WatchRequest { initial_events: 0, resource_version: resource_version.clone(), ..watch_from_now() };
        stream.send(&pb::SubscribeRequest { pause: vec![2], ..opens((3..=WATCHES).map(|id| open(id, future()))) });
        if is_drained {
            assert!(matches!(stream.poll(FULL), (Piece::Nothing, _)));
            sandbox.lifecycle.draining.cancel();
        } else {
            stream.send(&opens([open(0, watch_from_now())]));
        }
        let expected = if is_drained { "DRAINING" } else { "SUBSCRIBE_INVALID" };
        let mut ended = BTreeSet::new();
        while ended.len() < WATCHES as usize {
            for delivery in next(&mut stream).await.into_iter().filter(|delivery| delivery.ended) {
                assert_eq!(refusal(delivery.responses.last().unwrap()).1, expected, "{:?}", delivery.watch_ids);
                assert!(delivery.watch_ids.into_iter().all(|id| ended.insert(id)), "each once");
            }
        }
        assert!(matches!(stream.poll(FULL), (Piece::Over(Ok(_)), _)), "after the last of them");
    }
}
