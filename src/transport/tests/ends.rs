//! Ends that the server decides: each has its reason for the stream, and its log line.

use super::*;

/// Preface and SETTINGS of a client, and a complete GET of `/local`.
const REQUEST: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
    \0\0\x0d\x01\x05\0\0\0\x01\x82\x86\x04\x06/local\x01\x01x";

/// Ends a stream for this reason. Returns its handle, and true if a line was logged.
async fn end_by(end: StreamEnd) -> (StreamHandle, bool) {
    let mut serving = serve(1000);
    // Frames that a client of h2 does not send.
    let sent: &[u8] = match end {
        StreamEnd::IncompleteFrame => b"\0\0\x08",
        // A WINDOW_UPDATE of zero for the connection.
        StreamEnd::ProtocolError => b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0",
        _ => b"",
    };
    if !sent.is_empty() {
        serving.far.write_all(REQUEST).await.unwrap();
        let Opened { handle, sends, .. } = serving.opened.recv().await.unwrap();
        serving.far.write_all(sent).await.unwrap();
        sends.closed().await;
        return (handle, serving.ends.has(end));
    }
    let window = if end == StreamEnd::Stalled { 0 } else { 1 << 20 };
    let mut pair = Pair::over(serving, |far| far, window, 1 << 30).await;
    let (_body, Opened { handle, sends, .. }) =
        pair.open(if end == StreamEnd::Failed { "/broken" } else { "/local" }).await;
    match end {
        StreamEnd::Evicted => handle.reset(),
        StreamEnd::Stalled => sends.try_send(Bytes::from_static(b"message")).unwrap(),
        StreamEnd::Exhausted => drop(handle.exhaust(false)),
        StreamEnd::OwnerExhausted => drop(handle.exhaust(true)),
        StreamEnd::Drained => {
            pair.draining.cancel();
            pair.cut.cancel();
        }
        StreamEnd::ConnectionStalled => {
            pair.is_stopped.store(true, Ordering::Relaxed);
            sends.try_send(Bytes::from(vec![7; 60_000])).unwrap();
        }
        StreamEnd::KeepAliveTimeout => pair.is_stopped.store(true, Ordering::Relaxed),
        StreamEnd::Failed | StreamEnd::IncompleteFrame | StreamEnd::ProtocolError => {}
    }
    sends.closed().await;
    (handle, pair.ends.has(end))
}

#[tokio::test(start_paused = true)]
async fn every_end_by_the_server_has_its_reason_and_a_line() {
    for (index, end) in StreamEnd::ALL.into_iter().enumerate() {
        // Without an arm for it, a new kind of end does not compile.
        let (place, is_logged_here) = match end {
            // Whoever requests these logs them.
            StreamEnd::Evicted => (0, false),
            StreamEnd::Stalled => (1, true),
            StreamEnd::Exhausted => (2, false),
            StreamEnd::OwnerExhausted => (3, false),
            StreamEnd::Drained => (4, true),
            StreamEnd::ConnectionStalled => (5, true),
            StreamEnd::KeepAliveTimeout => (6, true),
            StreamEnd::IncompleteFrame => (7, true),
            StreamEnd::ProtocolError => (8, true),
            StreamEnd::Failed => (9, false),
        };
        assert_eq!(place, index);
        let ended = tokio::time::timeout(Duration::from_secs(600), end_by(end)).await;
        let (handle, is_logged) = ended.unwrap_or_else(|_| panic!("{end:?} in time"));
        assert_eq!((handle.ended(), is_logged), (Some(end), is_logged_here), "{end:?}");
    }
}

#[tokio::test]
async fn an_end_by_the_client_is_none_by_the_server() {
    let mut pair = Pair::new(1000).await;
    let (body, Opened { handle, sends, .. }) = pair.open("/local").await;
    drop(body);
    sends.closed().await;
    assert_eq!(handle.ended(), None);
    let (_body, Opened { handle, sends, .. }) = pair.open("/local").await;
    pair.client_task.abort();
    sends.closed().await;
    assert_eq!(handle.ended(), None);
}

#[tokio::test(start_paused = true)]
async fn a_draining_connection_ends_with_its_last_stream_or_when_it_is_cut() {
    for (is_cut, path) in [(false, "/local"), (false, "/other"), (true, "/local"), (true, "/other")] {
        let mut pair = Pair::new(1 << 20).await;
        let (mut body, opened) = pair.open(path).await;
        pair.draining.cancel();
        // The client learns that the server accepts no new streams, and the old one continues.
        opened.sends.try_send(Bytes::from_static(b"last words")).unwrap();
        assert_eq!(data(&mut body).await, &b"last words"[..]);
        let refused = Request::get("http://x/local").body(()).unwrap();
        let refused = match pair.client.send_request(refused, true) {
            Ok((response, _)) => response.await.err(),
            Err(error) => Some(error),
        };
        assert!(refused.is_some());
        assert!(!pair.server.is_finished());
        drop(pair.client);
        if is_cut {
            pair.cut.cancel();
            let cut = tokio::time::timeout(Duration::from_secs(1), whole(&mut body)).await;
            assert!(cut.expect("the stream is reset").is_err());
        } else {
            drop(opened);
            assert!(whole(&mut body).await.unwrap().is_empty());
        }
        drop(body);
        pair.server.await.unwrap().unwrap();
        pair.client_task.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_ends_soon_after_the_drain_begins() {
    let silent = serve(1000);
    let began = Instant::now();
    silent.draining.cancel();
    silent.server.await.unwrap().unwrap();
    assert_eq!(began.elapsed(), linger_time(Duration::from_secs(5)));
}

/// A body has the place of its call in the account of the peer.
#[tokio::test(start_paused = true)]
async fn a_body_stays_until_its_last_bytes_are_sent_or_discarded() {
    for path in ["/local", "/other", "/discarded"] {
        let mut pair = Pair::with_window(1 << 20, 1).await;
        let (mut body, Opened { sends, polls, .. }) = pair.open(path).await;
        sends.try_send(Bytes::from(vec![7; 300])).unwrap();
        drop(sends);
        settle().await;
        let is_discarded = path == "/discarded";
        assert_eq!(Arc::strong_count(&polls), if is_discarded { 1 } else { 2 }, "{path}");
        let read = whole(&mut body).await.map_err(|error| error.reason());
        assert_eq!(
            read.map(|read| read.len()),
            if is_discarded { Err(Some(Reason::ENHANCE_YOUR_CALM)) } else { Ok(300) }
        );
        settle().await;
        assert_eq!(Arc::strong_count(&polls), 1, "{path}");
    }
}
