use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_test::{assert_pending, assert_ready_eq};

use super::*;

/// Decoder of what the test sends, which counts its calls.
struct Fake {
    input: mpsc::Receiver<Result<u32, DecodeError>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    decoded: AtomicUsize,
    closed: AtomicUsize,
}

impl Decoder for Fake {
    type Event = u32;

    async fn decode(&mut self) -> Result<u32, DecodeError> {
        self.counts.decoded.fetch_add(1, Ordering::Relaxed);
        self.input.recv().await.unwrap_or(Err(DecodeError::End))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.counts.closed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counts {
    fn closed(&self) -> usize {
        self.closed.load(Ordering::Relaxed)
    }
}

fn rig() -> (StreamWatcher<Fake>, mpsc::Sender<Result<u32, DecodeError>>, Arc<Counts>) {
    let (sender, input) = mpsc::channel(8);
    let counts = Arc::new(Counts::default());
    (StreamWatcher::new(Fake { input, counts: Arc::clone(&counts) }), sender, counts)
}

fn undecodable() -> DecodeError {
    DecodeError::Undecodable("test error".into())
}

/// `TestStreamWatcher`.
#[tokio::test]
async fn events_pass_through_until_the_watch_is_stopped() {
    let (mut watcher, upstream, counts) = rig();
    for event in 1..=3 {
        upstream.send(Ok(event)).await.unwrap();
        assert_eq!(watcher.next().await.unwrap().unwrap(), event);
    }
    upstream.send(Ok(4)).await.unwrap();
    watcher.stop();
    assert_eq!(counts.closed(), 1);
    assert!(watcher.next().await.is_none(), "nothing comes after a stop");
    watcher.stop();
    drop(watcher);
    assert_eq!(counts.closed(), 1, "closed exactly once");
}

/// `TestStreamWatcherError`.
#[tokio::test]
async fn undecodable_bytes_are_reported_once_and_end_the_watch() {
    let (mut watcher, upstream, counts) = rig();
    for _ in 0..3 {
        upstream.send(Err(undecodable())).await.unwrap();
    }
    let error = watcher.next().await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "unable to decode an event from the watch stream: test error");
    assert_eq!(counts.closed(), 1);
    assert!(watcher.next().await.is_none());
    watcher.stop();
    assert!(watcher.next().await.is_none());
}

/// `TestStreamWatcherRace`.
#[tokio::test]
async fn an_unread_error_is_dropped_by_a_stop() {
    let (mut watcher, upstream, counts) = rig();
    upstream.send(Err(undecodable())).await.unwrap();
    watcher.stop();
    assert_eq!(counts.closed(), 1);
    assert!(watcher.next().await.is_none());
}

#[tokio::test]
async fn the_end_of_the_bytes_ends_the_watch_without_an_error() {
    let cut = io::Error::from(io::ErrorKind::ConnectionReset);
    for end in [DecodeError::End, DecodeError::UnexpectedEnd, DecodeError::Io(cut)] {
        let (mut watcher, upstream, counts) = rig();
        upstream.send(Ok(1)).await.unwrap();
        upstream.send(Err(end)).await.unwrap();
        assert_eq!(watcher.next().await.unwrap().unwrap(), 1);
        assert!(watcher.next().await.is_none());
        assert_eq!(counts.closed(), 1);
    }
}

#[test]
fn a_stop_does_not_wait_for_the_decoder_and_nothing_is_decoded_ahead() {
    let (watcher, upstream, counts) = rig();
    let mut watcher = tokio_test::task::spawn(watcher);
    assert_eq!(counts.decoded.load(Ordering::Relaxed), 0, "nobody has asked");
    assert_pending!(watcher.poll_next());
    upstream.try_send(Ok(1)).unwrap();
    upstream.try_send(Ok(2)).unwrap();
    assert!(watcher.is_woken());
    assert_ready_eq!(watcher.poll_next().map(|item| item.map(Result::unwrap)), Some(1));
    assert_eq!(counts.decoded.load(Ordering::Relaxed), 1, "the second is not asked for");
    assert_ready_eq!(watcher.poll_next().map(|item| item.map(Result::unwrap)), Some(2));
    assert_pending!(watcher.poll_next());
    drop(watcher);
    assert_eq!(counts.closed(), 1, "in the midst of decoding");
    assert!(upstream.is_closed());
}
