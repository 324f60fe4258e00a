//! No poll works on more than a slice, in any format and call, and work that panics has an end.

use std::future::poll_fn;

use http::{Extensions, HeaderMap};

use super::*;
use crate::{
    grpc::{call::Call, get, list, watch, watch::tests::World},
    model::{ResourceVersion, work},
    proto::{Compression, pb},
    transport::{BoundedBody, BoundedFrame, Room},
    watch::PlannedPanic,
};

fn threads() -> Arc<BulkThreads> {
    Arc::new(BulkThreads::start(1).unwrap())
}

/// Returns large objects and small ones.
fn objects() -> Vec<Arc<Object>> {
    let object = |n: usize| {
        let item = format!(r#"{{"a":{n},"b":"some text","c":[1,2,3]}}"#);
        let items = vec![item; if n.is_multiple_of(8) { 16_000 } else { 200 }].join(",");
        let json = format!(r#"{{"metadata":{{"name":"o{n:02}"}},"list":[{items}]}}"#);
        Arc::new(Object::from_json(json, "", ResourceVersion::decimal(1)).unwrap())
    };
    (0..20).map(object).collect()
}

/// Reads a response to its end, or so many messages of it. Returns the most that one poll has worked on.
async fn most_of_a_poll(mut body: impl BoundedBody, messages: usize) -> usize {
    let (mut most, mut read) = (0, 0);
    let room = Room { bytes: 64 << 10, is_strict: false };
    loop {
        let frame = poll_fn(|cx| {
            let before = work::done();
            let polled = body.poll_bounded(cx, room);
            most = most.max(work::done() - before);
            polled
        });
        let frame = frame.await.map(|frame| frame.map_err(|_| "an error"));
        let Some(Ok(BoundedFrame::Frame(frame))) = frame else { panic!("no frame: {frame:?}") };
        let Ok(mut data) = frame.into_data() else { return most };
        read += std::iter::from_fn(|| crate::grpc::frame::next_message(&mut data)).count();
        if read == messages {
            return most;
        }
    }
}

#[tokio::test]
async fn no_poll_projects_converts_or_compresses_more_than_a_slice() {
    let objects = objects();
    let sizes = objects.iter().map(|object| object.body().len());
    assert!(sizes.clone().max().unwrap() > 4 * SLICE_BYTES);
    let world = World::of(objects.clone(), |config| {
        config.bulk_threads = Some(threads());
        config.compression = Compression::ALL.to_vec();
    });
    let world = world.await;
    let view = pb::View { fields: vec!["list[].b".to_owned()], ..Default::default() };
    for (format, view, compression) in [
        (pb::PayloadFormat::Raw, Some(&view), None),
        (pb::PayloadFormat::Struct, Some(&view), None),
        (pb::PayloadFormat::Struct, None, None),
        (pb::PayloadFormat::Raw, None, Some(Compression::Gzip)),
        (pb::PayloadFormat::Raw, Some(&view), Some(Compression::Gzip)),
    ] {
        let service = world.service();
        let call = || Call { compression, ..Call::new(&HeaderMap::new(), &Extensions::new()) };
        let (resource, format, view) = ("pods".to_owned(), format.into(), view.cloned());
        let get = pb::GetRequest {
            resource: resource.clone(),
            name: "o00".to_owned(),
            format,
            view: view.clone(),
            ..Default::default()
        };
        let list = pb::ListRequest { resource: resource.clone(), format, view: view.clone(), ..Default::default() };
        let watch = pb::WatchRequest { resource, format, view, ..Default::default() };
        let most = [
            most_of_a_poll(get::get(service, get, call()).await.unwrap(), usize::MAX).await,
            most_of_a_poll(list::list(service, list, call()).await.unwrap(), usize::MAX).await,
            most_of_a_poll(watch::open(service, watch, call()).await.unwrap(), objects.len() + 1).await,
        ];
        assert!(most.iter().all(|bytes| *bytes <= 2 * SLICE_BYTES), "{most:?}");
    }
}

#[tokio::test]
async fn work_that_panics_has_an_end_and_other_work_goes_on() {
    let encoder = Encoder::new(Some(threads()));
    let mut panics = encoder.encode(Caller::default(), || std::panic::panic_any(PlannedPanic));
    let mut other = encoder.encode(Caller::default(), || 5);
    assert_eq!(poll_fn(|cx| panics.poll(cx)).await, Err::<(), _>(Failed));
    assert_eq!(poll_fn(|cx| other.poll(cx)).await, Ok(5));

    // A response that looks again begins anew.
    let (mut next, object) = (NextObject::default(), objects().remove(0));
    let panicked = || encoder.encode(Caller::default(), || std::panic::panic_any(PlannedPanic));
    for _ in 0..2 {
        assert_eq!(poll_fn(|cx| next.poll(cx, &object, panicked)).await, Err(Failed));
    }
}
