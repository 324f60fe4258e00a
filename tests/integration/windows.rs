//! Clients whose windows are smaller than what they request: they do not delay the others.

use std::{future::poll_fn, task::Poll};

use bytes::{BufMut, BytesMut};
use http::Request;
use http_body_util::Full;
use informerd::{
    grpc,
    proto::pb,
    transport::{BoundedBody, BoundedFrame, Room},
};
use prost::Message;
use tonic::transport::Endpoint;
use tower::ServiceExt;

use crate::sandbox::{Sandbox, pod};

/// Size larger than what may wait for the windows of a connection.
const LARGE: usize = 1 << 20;
const OBJECTS: usize = 4;
/// Number of lists, larger than what the sandbox serves at a time.
const LISTS: usize = 40;

async fn sandbox() -> Sandbox {
    let filler = format!(r#""filler":"{}""#, "x".repeat(LARGE));
    Sandbox::start((0..OBJECTS).map(|at| pod("shop", &format!("p{at}"), &filler)).collect()).await
}

fn list_pods() -> pb::ListRequest {
    pb::ListRequest { resource: "pods".to_owned(), format: pb::PayloadFormat::Raw.into(), ..Default::default() }
}

/// Returns the body of a List, as the connection of its client has it.
async fn list(sandbox: &Sandbox) -> grpc::Body {
    let message = list_pods().encode_to_vec();
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(&message);
    let request = Request::post("/informerd.v1.InformerService/List").header("content-type", "application/grpc");
    let request = request.body(Full::new(framed.freeze())).unwrap();
    sandbox.routes().oneshot(request).await.unwrap().into_body()
}

/// Polls for the next frame until there is an answer. Returns the number of polls and the answer.
async fn ask(body: &mut grpc::Body, room: Room) -> (usize, Option<BoundedFrame>) {
    let mut polls = 0;
    let supplied = poll_fn(|cx| {
        polls += 1;
        body.poll_bounded(cx, room)
    });
    let supplied = supplied.await.map(Result::unwrap);
    (polls, supplied)
}

#[tokio::test]
async fn a_stream_without_room_keeps_its_turn_and_others_have_theirs() {
    let sandbox = sandbox().await;
    let (tight, any) = (Room { bytes: 1, is_strict: true }, Room { bytes: 1, is_strict: false });
    let mut stuck = Vec::new();
    for _ in 0..LISTS {
        stuck.push(list(&sandbox).await);
    }
    for body in &mut stuck {
        let (polls, supplied) = ask(body, tight).await;
        let Some(BoundedFrame::TooLarge(needed)) = supplied else { panic!("{supplied:?}") };
        assert!((LARGE..LARGE + (64 << 10)).contains(&needed) && polls <= 2, "{needed} after {polls} polls");
    }
    // Meanwhile another client receives all of it, and waits once for each of its pieces.
    let mut other = list(&sandbox).await;
    let (mut polls, mut frames) = (0, 0);
    while let (more, Some(_)) = ask(&mut other, any).await {
        (polls, frames) = (polls + more, frames + 1);
    }
    assert_eq!(frames, OBJECTS + 1, "and its status");
    assert!(polls <= 2 * (frames + 1), "{polls} polls");
    // With room, those that waited for it continue at once.
    for body in &mut stuck {
        let supplied = poll_fn(|cx| Poll::Ready(body.poll_bounded(cx, any))).await;
        assert!(matches!(supplied, Poll::Ready(Some(Ok(BoundedFrame::Frame(_))))), "{supplied:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_with_windows_of_one_byte_do_not_delay_other_lists() {
    let sandbox = sandbox().await;
    let endpoint = Endpoint::new(sandbox.address().to_owned()).unwrap().initial_stream_window_size(1);
    let channel = endpoint.initial_connection_window_size(1 << 20).connect().await.unwrap();
    let attacker = pb::informer_service_client::InformerServiceClient::new(channel);
    let mut stuck = Vec::new();
    for _ in 0..LISTS {
        stuck.push(attacker.clone().list(list_pods()).await.unwrap().into_inner());
    }
    let mut other = sandbox.client().await.list(list_pods()).await.unwrap().into_inner();
    let mut objects = 0;
    while let Some(page) = other.message().await.unwrap() {
        objects += page.objects.len();
    }
    assert_eq!(objects, OBJECTS);
    drop(stuck);
}
