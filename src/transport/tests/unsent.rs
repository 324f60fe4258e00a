//! Tests of streams whose windows are shut, or smaller than their messages.

use super::*;

/// A stream of a test, and the client's side of it.
type Stream = (RecvStream, Opened);

/// Window that is smaller than every message.
const WINDOW: u32 = 1;
/// Size of a message that alone exceeds the limit on waiting bytes.
const LARGE: usize = 3 << 20;

/// Opens streams of both kinds.
async fn open(pair: &mut Pair, count: usize) -> Vec<Stream> {
    let mut streams = Vec::new();
    for n in 0..count {
        streams.push(pair.open(if n % 2 == 0 { "/local" } else { "/other" }).await);
    }
    streams
}

fn encoded_bytes(streams: &[Stream]) -> usize {
    streams.iter().map(|(_, opened)| opened.encoded_bytes.load(Ordering::Relaxed)).sum()
}

fn polls(streams: &[Stream]) -> usize {
    streams.iter().map(|(_, opened)| opened.polls.load(Ordering::Relaxed)).sum()
}

#[tokio::test(start_paused = true)]
async fn messages_larger_than_their_windows_wait_unencoded_and_their_streams_are_not_polled() {
    let mut pair = Pair::with_window(1 << 20, WINDOW).await;
    let streams = open(&mut pair, 40).await;
    for (_, opened) in &streams {
        opened.sends.try_send(Bytes::from(vec![7; LARGE])).unwrap();
    }
    settle().await;
    assert_eq!(encoded_bytes(&streams), LARGE, "one");
    let before = polls(&streams);
    assert!(before <= 10 * streams.len(), "{before} polls of {} streams", streams.len());
    settle().await;
    assert_eq!(polls(&streams), before);
}

#[tokio::test(start_paused = true)]
async fn a_stream_woken_without_a_reason_parks_again() {
    let mut pair = Pair::with_window(1 << 20, WINDOW).await;
    let streams = open(&mut pair, 2).await;
    settle().await;
    let before = polls(&streams);
    for (_, opened) in &streams {
        opened.handle.wake();
    }
    settle().await;
    assert_eq!(polls(&streams), before + streams.len(), "once each");
}

#[tokio::test(start_paused = true)]
async fn messages_larger_than_their_windows_are_encoded_one_at_a_time_and_arrive_whole() {
    let mut pair = Pair::with_window(1 << 20, 65_535).await;
    let mut streams = open(&mut pair, 10).await;
    for (_, opened) in &streams {
        for _ in 0..2 {
            opened.sends.try_send(Bytes::from(vec![7; LARGE])).unwrap();
        }
    }
    settle().await;
    assert_eq!(encoded_bytes(&streams), LARGE);
    // When one gives up, the next one is encoded.
    drop(streams.remove(0));
    drop(streams.remove(1));
    let mut reading = tokio::task::JoinSet::new();
    for (mut body, opened) in streams {
        drop(opened.sends);
        reading.spawn(async move { whole(&mut body).await.unwrap().len() });
    }
    assert_eq!(reading.join_all().await, [2 * LARGE; 8]);
}

#[tokio::test(start_paused = true)]
async fn fitting_messages_are_encoded_while_others_wait_for_their_windows() {
    let mut pair = Pair::with_window(1 << 20, 65_535).await;
    let streams = open(&mut pair, 4).await;
    for (_, opened) in &streams {
        opened.sends.try_send(Bytes::from(vec![7; LARGE])).unwrap();
    }
    settle().await;
    let mut others = open(&mut pair, 2).await;
    for (body, opened) in &mut others {
        opened.sends.try_send(Bytes::from_static(b"small")).unwrap();
        assert_eq!(data(body).await, &b"small"[..]);
    }
}

#[tokio::test(start_paused = true)]
async fn fitting_messages_are_not_encoded_for_a_full_socket() {
    let mut pair = Pair::with_window(1000, 1 << 20).await;
    let streams = open(&mut pair, 100).await;
    pair.is_stopped.store(true, Ordering::Relaxed);
    for (_, opened) in &streams {
        for _ in 0..10 {
            opened.sends.try_send(Bytes::from(vec![7; 60_000])).unwrap();
        }
    }
    settle().await;
    let (made_first, polled) = (encoded_bytes(&streams), polls(&streams));
    assert!((512 << 10..700 << 10).contains(&made_first), "{made_first}");
    settle().await;
    assert_eq!((encoded_bytes(&streams), polls(&streams)), (made_first, polled));
    drop(streams);
}

#[tokio::test(start_paused = true)]
async fn streams_whose_windows_are_shut_are_reset_and_those_that_wait_for_nothing_stay() {
    for window in [0, WINDOW] {
        let mut pair = Pair::with_window(1 << 20, window).await;
        let stuck = open(&mut pair, 4).await;
        let idle = open(&mut pair, 2).await;
        let began = Instant::now();
        for (_, opened) in &stuck {
            opened.sends.try_send(Bytes::from_static(b"message")).unwrap();
        }
        // The bodies of some streams have ended already.
        let (mut bodies, mut sends): (Vec<_>, Vec<_>) =
            stuck.into_iter().map(|(body, opened)| (body, opened.sends)).unzip();
        sends.truncate(2);
        for body in &mut bodies {
            let ended = loop {
                match body.data().await {
                    Some(Ok(_)) => {}
                    ended => break ended.unwrap().unwrap_err(),
                }
            };
            assert_eq!(ended.reason(), Some(Reason::ENHANCE_YOUR_CALM));
        }
        for sends in sends {
            sends.closed().await;
        }
        let passed = began.elapsed();
        assert!(passed >= PROGRESS_TIMEOUT && passed <= PROGRESS_TIMEOUT * 5 / 4, "{passed:?}");
        tokio::time::sleep(PROGRESS_TIMEOUT * 10).await;
        assert_eq!(pair.stalled.get(), 4);
        assert!(idle.iter().all(|(_, opened)| !opened.sends.is_closed()));
        // The connection is closed after the last stream.
        assert!(!pair.server.is_finished());
        drop(idle);
        drop(bodies);
        // With or without an error: the client may have closed before the last frame.
        drop(tokio::time::timeout(Duration::from_secs(1), pair.server).await.unwrap().unwrap());
    }
}

/// The time before the end of the pause does not count: the client had nothing to read.
#[tokio::test(start_paused = true)]
async fn a_paused_stream_stays_and_has_the_whole_time_once_its_window_is_shut() {
    let mut pair = Pair::with_window(1 << 20, 0).await;
    let (mut body, opened) = pair.open("/paused").await;
    // The last PING was answered half of the time before.
    tokio::time::sleep(PROGRESS_TIMEOUT * 21 / 2).await;
    assert!(!opened.sends.is_closed() && pair.stalled.get() == 0);
    let began = Instant::now();
    opened.sends.try_send(Bytes::from_static(b"message")).unwrap();
    let ended = body.data().await.unwrap().unwrap_err();
    assert_eq!(ended.reason(), Some(Reason::ENHANCE_YOUR_CALM));
    let passed = began.elapsed();
    assert!(passed >= PROGRESS_TIMEOUT && passed <= PROGRESS_TIMEOUT * 5 / 4, "{passed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_slow_progress_stays_and_those_that_wait_for_it_as_well() {
    let mut pair = Pair::with_window(1 << 20, 100).await;
    let mut streams = open(&mut pair, 4).await;
    for (_, opened) in &streams {
        opened.sends.try_send(Bytes::from(vec![7; LARGE])).unwrap();
    }
    // The client of the first reads a little now and then, also after its body has ended; the others wait in the queue.
    let (mut first, opened) = streams.remove(0);
    drop(opened);
    for _ in 0..20 {
        assert!(!data(&mut first).await.is_empty());
        assert!(streams.iter().all(|(_, opened)| !opened.sends.is_closed()), "their client holds up nothing");
        tokio::time::sleep(PROGRESS_TIMEOUT * 2 / 3).await;
    }
    // Once its client reads nothing any more, the first is reset, and makes room for the others.
    let ended = loop {
        match first.data().await {
            Some(Ok(_)) => {}
            ended => break ended.unwrap().unwrap_err(),
        }
    };
    assert_eq!(ended.reason(), Some(Reason::ENHANCE_YOUR_CALM));
    let mut reading = tokio::task::JoinSet::new();
    for (mut body, opened) in streams {
        drop(opened.sends);
        reading.spawn(async move { whole(&mut body).await.unwrap().len() });
    }
    assert_eq!(reading.join_all().await, [LARGE; 3]);
}

#[tokio::test(start_paused = true)]
async fn waiting_bytes_are_counted_until_their_streams_end() {
    let mut pair = Pair::with_window(1 << 20, WINDOW).await;
    let streams = open(&mut pair, 6).await;
    for (_, opened) in &streams {
        opened.sends.try_send(Bytes::from(vec![7; LARGE])).unwrap();
    }
    settle().await;
    // One message was handed out, and the other bodies hold theirs.
    let expected = HeldBytes { sending: LARGE, encoded_bytes: 5 * LARGE, kept: 0, requests: 0 };
    assert_eq!(pair.ledger.waiting(), expected);
    assert!(streams.iter().all(|(_, opened)| opened.handle.bytes_held() == LARGE));
    pair.ledger.keep(10);
    assert_eq!(pair.ledger.waiting().total(), 6 * LARGE + 10);
    for (mut body, opened) in streams {
        opened.handle.reset();
        assert!(whole(&mut body).await.is_err());
    }
    assert_eq!(pair.ledger.waiting(), HeldBytes { kept: 10, ..HeldBytes::default() });
    drop(pair.client);
    pair.server.await.unwrap().unwrap();
    pair.ledger.keep(0);
    assert_eq!(pair.ledger.waiting(), HeldBytes::default());
}

#[tokio::test(start_paused = true)]
async fn bytes_that_the_socket_does_not_accept_are_counted() {
    let mut pair = Pair::with_window(1000, 1 << 20).await;
    let (_stuck, opened) = pair.open("/local").await;
    pair.is_stopped.store(true, Ordering::Relaxed);
    opened.sends.try_send(Bytes::from(vec![7; 60_000])).unwrap();
    settle().await;
    let waiting = pair.ledger.waiting();
    assert!((60_000..200_000).contains(&waiting.sending), "{waiting:?}");
}

#[tokio::test(start_paused = true)]
async fn above_the_limit_the_streams_end_that_have_waited_longest() {
    let mut pair = Pair::with_window(1 << 20, WINDOW).await;
    let ledger = Arc::clone(&pair.ledger);
    let sweeper = tokio::spawn(async move { ledger.run().await });
    let (mut idle, to_idle) = pair.open("/local").await;
    let mut stuck = Vec::new();
    for (body, opened) in open(&mut pair, 2).await {
        opened.sends.try_send(Bytes::from(vec![7; LARGE])).unwrap();
        // The ledger checks meanwhile: a byte of the first was written at its start.
        tokio::time::sleep(Duration::from_secs(5)).await;
        stuck.push((body, opened));
    }
    assert_eq!((pair.ledger.waiting().total(), pair.ledger.ended()), (2 * LARGE, 0), "less than the limit");

    // One message more exceeds the limit. The first was handed to HTTP/2, so that nothing can be sent after it.
    let (third, to_third) = pair.open("/other").await;
    to_third.sends.try_send(Bytes::from(vec![7; LARGE])).unwrap();
    let (mut first, to_first) = stuck.remove(0);
    to_first.sends.closed().await;
    assert_eq!(whole(&mut first).await.unwrap_err().reason(), Some(Reason::ENHANCE_YOUR_CALM));

    // The next message is handed out, and its client reads a little now and then; those behind it have waited longer.
    let (mut second, _to_second) = stuck.remove(0);
    let reads = tokio::spawn(async move {
        loop {
            assert!(!data(&mut second).await.is_empty());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((pair.ledger.waiting().total(), pair.ledger.ended()), (2 * LARGE, 1));
    let (_fourth, to_fourth) = pair.open("/local").await;
    to_fourth.sends.try_send(Bytes::from(vec![7; LARGE])).unwrap();
    to_third.sends.closed().await;
    let mut third = third;
    assert!(third.data().await.is_none());
    let trailers = third.trailers().await.unwrap().unwrap();
    assert_eq!(trailers["limit"], MEMORY.to_string().as_str());
    assert_eq!((pair.ledger.waiting().total(), pair.ledger.ended()), (2 * LARGE, 2));

    to_idle.sends.try_send(Bytes::from_static(b"x")).unwrap();
    assert_eq!(data(&mut idle).await, &b"x"[..]);
    assert_eq!(pair.stalled.get(), 0);
    reads.abort();
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn above_the_limit_of_an_owner_its_own_stream_ends_that_has_waited_longest() {
    let mut pair = Pair::with_window(1 << 20, WINDOW).await;
    let ledger = Arc::clone(&pair.ledger);
    let sweeper = tokio::spawn(async move { ledger.run().await });
    let [one, other] = [1, 2].map(Origin::Identity);
    let mut stuck = Vec::new();
    // The other's stream is large enough alone, has waited for longer, and is on the same connection.
    for (owner, bytes) in [(other, LARGE), (one, LARGE), (one, LARGE / 4)] {
        let (body, opened) = pair.open("/local").await;
        opened.handle.belongs_to(owner);
        opened.sends.try_send(Bytes::from(vec![7; bytes])).unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        stuck.push((body, opened));
    }
    let exceeded = |owner| pair.ledger.exceeded_by(owner);
    assert_eq!((exceeded(one), exceeded(other)), (None, None), "less than the limit");

    let (_late, to_late) = pair.open("/other").await;
    to_late.handle.belongs_to(one);
    to_late.sends.try_send(Bytes::from(vec![7; LARGE])).unwrap();
    stuck[1].1.sends.closed().await;
    let exceeded = |owner| pair.ledger.exceeded_by(owner);
    assert_eq!((exceeded(one), exceeded(other)), (Some(OWNER_MEMORY), None), "new calls are refused meanwhile");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((pair.ledger.exceeded_by(one), pair.ledger.ended()), (None, 1), "the others are less, and wait on");
    let is_open = |at: usize| !stuck[at].1.sends.is_closed();
    assert!(is_open(0) && is_open(2) && !to_late.sends.is_closed());
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_streams_whose_client_reads_nothing_is_closed_soon() {
    let mut pair = Pair::with_window(1000, 1 << 20).await;
    let (_stuck, opened) = pair.open("/local").await;
    pair.is_stopped.store(true, Ordering::Relaxed);
    for _ in 0..4 {
        opened.sends.try_send(Bytes::from(vec![7; 60_000])).unwrap();
    }
    settle().await;
    opened.handle.exhaust(false);
    let began = Instant::now();
    let ended = pair.server.await.unwrap();
    assert!(matches!(ended, Err(ConnectionError::Stuck(_))), "{ended:?}");
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
}
