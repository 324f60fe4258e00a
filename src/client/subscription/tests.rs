//! Bounds of the stream: what is requested at once, and what is held for watches that nobody reads.

use futures_util::{FutureExt, future::poll_fn};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::proto::pb::{self, Delivery, EventType, Object, SubscribeRequest};

const MOMENT: std::time::Duration = std::time::Duration::from_millis(200);

type Responses = mpsc::Sender<Result<SubscribeResponse, Status>>;

/// Limit of a server for a request.
const MAX_REQUEST: usize = 64 << 10;
/// Number of watches that did not fit into one request that closes them.
const MANY: u32 = 22_000;
/// More responses than a test sends at once.
const MAX_RESPONSES: usize = 2000;

fn message(version: u64, bytes: usize) -> WatchResponse {
    let body = Some(pb::object::Body::Raw(vec![b'x'; bytes].into()));
    let object = Some(Object { body, ..Object::default() });
    let resource_version = version.to_string();
    WatchResponse { r#type: EventType::Added.into(), resource_version, object, ..WatchResponse::default() }
}

fn response(watch_ids: Vec<u32>, responses: Vec<WatchResponse>, ended: bool) -> SubscribeResponse {
    SubscribeResponse { deliveries: vec![Delivery { watch_ids, responses, ended }] }
}

fn inboxes(watches: u32) -> Arc<Mutex<Inboxes>> {
    let mut inboxes = Inboxes::default();
    for expected in 1..=watches {
        assert_eq!(inboxes.open(WatchRequest::default()), expected);
    }
    Arc::new(Mutex::new(inboxes))
}

/// Returns all requests that wait.
fn requests(inboxes: &Mutex<Inboxes>) -> Vec<SubscribeRequest> {
    let next = || poll_fn(|cx| inboxes.lock().poll_request(cx)).now_or_never();
    std::iter::from_fn(|| next().flatten()).collect()
}

async fn next(inboxes: &Mutex<Inboxes>, id: u32) -> Option<Result<WatchResponse, Status>> {
    poll_fn(|cx| inboxes.lock().poll_next(id, cx)).await
}

/// Starts the task that reads the stream.
fn stream(inboxes: &Arc<Mutex<Inboxes>>) -> (Responses, AbortOnDropHandle<()>) {
    let (responses, receiver) = mpsc::channel(MAX_RESPONSES);
    let reading = tokio::spawn(read(Arc::clone(inboxes), ReceiverStream::new(receiver)));
    (responses, AbortOnDropHandle::new(reading))
}

#[test]
fn no_request_is_above_the_limit_of_a_server_however_many_watches_change_at_once() {
    type Ids = fn(&SubscribeRequest) -> Vec<u32>;

    let inboxes = inboxes(MANY);
    let all: Vec<u32> = (1..=MANY).collect();
    let check = |ids: Ids| {
        let requests = requests(&inboxes);
        assert!(requests.iter().all(|request| request.encoded_len() <= MAX_REQUEST / 2));
        let mut changed: Vec<u32> = requests.iter().flat_map(ids).collect();
        changed.sort_unstable();
        assert_eq!(changed, all);
    };
    check(|request| request.open.iter().map(|open| open.id).collect());
    inboxes.lock().deliver(response(all.clone(), vec![message(1, 300 << 10)], false));
    check(|request| request.pause.clone());
    for id in &all {
        let message = next(&inboxes, *id).now_or_never().flatten();
        assert!(message.is_some_and(|message| message.is_ok()));
    }
    check(|request| request.resume.clone());
    for id in all.clone() {
        inboxes.lock().close(id);
    }
    check(|request| request.close.clone());
}

#[tokio::test(start_paused = true)]
async fn watches_that_nobody_reads_cost_only_themselves() {
    const UNREAD: u32 = 300;
    let inboxes = inboxes(UNREAD + 1);
    let (responses, _reading) = stream(&inboxes);
    for version in 1..=3 {
        for id in 1..=UNREAD {
            responses.try_send(Ok(response(vec![id], vec![message(version, 100 << 10)], false))).unwrap();
        }
        responses.try_send(Ok(response(vec![UNREAD + 1], vec![message(version, 1)], false))).unwrap();
    }
    for version in 1..=3 {
        let message = next(&inboxes, UNREAD + 1).await.unwrap().unwrap();
        assert_eq!(message.resource_version, version.to_string());
    }

    let closed: Vec<u32> = requests(&inboxes).iter().flat_map(|request| request.close.clone()).collect();
    assert!((100..UNREAD as usize).contains(&closed.len()), "half of what is held: {}", closed.len());
    for id in 1..=UNREAD {
        let first = next(&inboxes, id).await.unwrap();
        if closed.contains(&id) {
            assert_eq!(first.unwrap_err().code(), Code::ResourceExhausted, "its user resumes");
            assert!(next(&inboxes, id).await.is_none());
            inboxes.lock().close(id);
            continue;
        }
        let second = next(&inboxes, id).await.unwrap().unwrap();
        let versions = [first.unwrap().resource_version, second.resource_version];
        assert_eq!(versions, ["1", "2"], "it has lost nothing");
    }
    assert!(requests(&inboxes).iter().all(|request| request.close.is_empty()), "they are closed once");
    let known = inboxes.lock().open(WatchRequest::default());
    assert_eq!(known, UNREAD + 2, "no id is used again before the server has ended its watch");
    inboxes.lock().deliver(response(closed.clone(), Vec::new(), true));
    assert!(closed.contains(&inboxes.lock().open(WatchRequest::default())));
}

/// Ids of watches that have ended while their users still hold them.
#[tokio::test(start_paused = true)]
async fn the_id_of_a_closed_watch_is_used_again_only_after_its_user_and_the_server_have_left_it() {
    for server_ends_first in [true, false] {
        let inboxes = inboxes(256);
        let (responses, _reading) = stream(&inboxes);
        responses.try_send(Ok(response((1..=256).collect(), vec![message(1, 300 << 10)], false))).unwrap();
        // It is delivered after the check.
        responses.try_send(Ok(response(vec![256], Vec::new(), true))).unwrap();
        let closed = async {
            loop {
                let closed = requests(&inboxes).into_iter().find_map(|request| request.close.first().copied());
                if let Some(id) = closed {
                    return id;
                }
                tokio::time::sleep(MOMENT).await;
            }
        };
        let id = closed.await;
        let end = || inboxes.lock().deliver(response(vec![id], Vec::new(), true));
        let leave = || inboxes.lock().close(id);
        if server_ends_first {
            end();
        } else {
            leave();
        }
        assert_eq!(inboxes.lock().open(WatchRequest::default()), 257);
        if server_ends_first {
            leave();
        } else {
            end();
        }
        assert_eq!(inboxes.lock().open(WatchRequest::default()), id);
    }
}

/// A user who reads a little keeps its watch only as long as that is not at the cost of others.
#[tokio::test(start_paused = true)]
async fn users_who_read_enough_keep_their_watches() {
    let inboxes = inboxes(300);
    let (responses, _reading) = stream(&inboxes);
    let quick: Vec<u32> = (1..=100).collect();
    let slow: Vec<u32> = (101..=300).collect();
    let mut version = 0;
    let mut ended = 0;
    for _ in 0..20 {
        for _ in 0..3 {
            version += 1;
            responses.try_send(Ok(response((1..=300).collect(), vec![message(version, 100 << 10)], false))).unwrap();
        }
        tokio::time::sleep(MOMENT).await;
        for id in &quick {
            while let Some(message) = next(&inboxes, *id).now_or_never() {
                assert!(message.unwrap().is_ok());
            }
        }
        for id in &slow {
            if next(&inboxes, *id).now_or_never().flatten().is_some_and(|message| message.is_err()) {
                ended += 1;
            }
        }
    }
    assert!(ended >= 50, "{ended}");
    for id in &quick {
        while let Some(message) = next(&inboxes, *id).now_or_never() {
            assert!(message.unwrap().is_ok());
        }
    }
}
