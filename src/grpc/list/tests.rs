//! Messages of compressed Lists: the same whatever the room, and as many in one turn as there is room for.

use std::{future::poll_fn, io::Read, iter};

use flate2::read::GzDecoder;
use http::{Extensions, HeaderMap};
use http_body::Body as _;

use super::*;
use crate::{
    grpc::{
        frame::{PREFIX_BYTES, next_message},
        watch::tests::World,
    },
    model::{ResourceVersion, work},
    proto::Compression,
};

const OBJECTS: usize = 300;

async fn world() -> World {
    let object = |n: usize| {
        let json = format!(r#"{{"metadata":{{"name":"o{n:03}"}},"x":"{}"}}"#, "web ".repeat(400 + n));
        Arc::new(Object::from_json(json, "", ResourceVersion::decimal(1)).unwrap())
    };
    World::of((0..OBJECTS).map(object).collect(), |config| config.compression = Compression::ALL.to_vec()).await
}

/// Message of a response, and true if it is compressed.
type Sent = (bool, Bytes);

fn next_sent(data: &mut Chunk) -> Option<Sent> {
    let is_compressed = data.has_remaining() && data.chunk()[0] == 1;
    next_message(data).map(|message| (is_compressed, message))
}

fn decoded((is_compressed, message): &Sent) -> pb::ListResponse {
    let mut plain = Vec::new();
    if *is_compressed {
        GzDecoder::new(&message[..]).read_to_end(&mut plain).unwrap();
    }
    pb::ListResponse::decode(if *is_compressed { &plain } else { &message[..] }).unwrap()
}

/// Turns of a response, each with its messages, with a room that grows only where it has to.
async fn turns(
    world: &World,
    request: &pb::ListRequest,
    compression: Option<Compression>,
    room: usize,
) -> Vec<Vec<Sent>> {
    let call = Call { compression, ..Call::new(&HeaderMap::new(), &Extensions::new()) };
    let request = pb::ListRequest { resource: "pods".to_owned(), ..request.clone() };
    let mut body = list(world.service(), request, call).await.unwrap();
    let (mut turns, mut bytes) = (Vec::new(), room);
    loop {
        match poll_fn(|cx| body.poll_bounded(cx, Room { bytes, is_strict: true })).await {
            Some(Ok(BoundedFrame::TooLarge(needed))) => {
                assert!(needed > bytes);
                bytes = needed;
            }
            Some(Ok(BoundedFrame::Frame(frame))) => {
                let Ok(mut data) = frame.into_data() else { break };
                assert!(data.remaining() <= bytes);
                turns.push(iter::from_fn(|| next_sent(&mut data)).collect());
                bytes = room;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(body.is_end_stream() && body.encoded_bytes() == 0);
    turns
}

#[tokio::test]
async fn compressed_messages_are_the_same_whatever_the_room_and_share_a_turn() {
    TimeSlice::never_end();
    let world = world().await;
    for compression in Compression::ALL {
        for format in [pb::PayloadFormat::Raw, pb::PayloadFormat::Struct, pb::PayloadFormat::Metadata] {
            let request = pb::ListRequest { format: format.into(), ..Default::default() };
            let first = turns(&world, &request, Some(*compression), CHUNK_BYTES).await.concat();
            let before = work::done();
            let two = first.iter().take(2).map(|(_, message)| PREFIX_BYTES + message.len()).sum();
            // The last one has the end of the page, and comes alone.
            let most = (first.len() - 1).max(1);
            for (room, in_first_turn) in [(usize::MAX, most), (1, 1), (two, most.min(2))] {
                let turns = turns(&world, &request, Some(*compression), room).await;
                assert!(turns.concat() == first, "{format:?} with a room of {room}");
                assert_eq!(turns[0].len(), in_first_turn, "{format:?} with a room of {room}");
            }
            if format == pb::PayloadFormat::Raw {
                assert_eq!(work::done() - before, 0, "bytes are encoded again");
            }
        }
    }
}

/// The objects of each page, by pages of this size.
#[tokio::test]
async fn a_compressed_page_ends_with_its_last_object() {
    let world = world().await;
    for page_size in [1, 7, 100, 299, 300] {
        let mut names = Vec::new();
        let mut request = pb::ListRequest { page_size, ..Default::default() };
        loop {
            let turns = turns(&world, &request, Some(Compression::Gzip), 1 << 10).await;
            let messages: Vec<_> = turns.iter().flatten().map(decoded).collect();
            let page: Vec<_> =
                messages.iter().flat_map(|message| &message.objects).map(|object| object.name.clone()).collect();
            assert_eq!(page.len(), (page_size as usize).min(OBJECTS - names.len()));
            names.extend(page);
            request.page_token.clone_from(&messages.last().unwrap().next_page_token);
            if request.page_token.is_empty() {
                break;
            }
        }
        assert!(names.into_iter().eq((0..OBJECTS).map(|n| format!("o{n:03}"))), "pages of {page_size}");
    }
}

#[tokio::test]
async fn a_slice_that_ends_loses_no_message() {
    let world = world().await;
    let request = pb::ListRequest::default();
    let first = turns(&world, &request, Some(Compression::Gzip), CHUNK_BYTES).await.concat();
    for number in [1, 2, 3, 7, 40, 41, 100] {
        TimeSlice::end_with_check(number);
        let turns = turns(&world, &request, Some(Compression::Gzip), CHUNK_BYTES).await.concat();
        let names = turns.iter().map(decoded).flat_map(|message| message.objects).map(|object| object.name);
        assert!(names.eq((0..OBJECTS).map(|n| format!("o{n:03}"))), "slices of {number} checks");
        assert!(turns == first, "slices of {number} checks");
    }
}
