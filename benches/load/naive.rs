//! Naive server: generated code, a broadcast channel, and a separate encoding for every client.
//!
//! The obvious implementation: lines of JSON from stdin become messages in one `tokio::sync::broadcast`; every Watch is a
//! receiver that filters, and tonic's codec encodes the rest. It is not slowed down on purpose: the channel shares messages, so
//! that a watch that filters an event out copies nothing. It has no cache, no history and no versions to resume from. While the
//! slowest receiver has a full queue, the server reads nothing, so that no receiver loses events.

#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "a baseline that cannot go on ends, and says so")]

use std::{io::BufRead, sync::Arc, time::Duration};

use bytes::Bytes;
use informerd::{
    model::{Object, ResourceVersion},
    proto::{self, PayloadFormat, pb},
};
use pb::informer_service_server::{InformerService, InformerServiceServer};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::broadcast;
use tokio_stream::{StreamExt, wrappers::BroadcastStream};
use tonic::{Request, Response, Status, codegen::BoxStream, transport::server::TcpIncoming};

#[allow(clippy::disallowed_types, reason = "it is what this server is about")]
type Sender = broadcast::Sender<Arc<Published>>;

#[derive(Debug)]
struct Published {
    response: pb::WatchResponse,
    node: String,
}

#[derive(Debug)]
struct Naive {
    events: Sender,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    event_type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Pod<'a> {
    #[serde(borrow)]
    spec: Spec<'a>,
}

#[derive(Deserialize)]
struct Spec<'a> {
    #[serde(rename = "nodeName")]
    node_name: &'a str,
}

/// Interval of checks that the slowest receiver has room.
const WAIT: Duration = Duration::from_millis(1);
const STREAMS: u32 = 10_000;

pub(super) fn serve(queue: usize) {
    let (events, _) = broadcast::channel(queue);
    let publisher = events.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        eprintln!("listening address={}", listener.local_addr().unwrap());
        std::thread::spawn(move || publish(&publisher, queue));
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let mut server = tonic::transport::Server::builder().max_concurrent_streams(STREAMS);
        server.add_service(InformerServiceServer::new(Naive { events })).serve_with_incoming(incoming).await.unwrap();
    });
}

#[allow(clippy::disallowed_methods, reason = "a broadcast channel cannot be waited for")]
fn publish(events: &Sender, queue: usize) {
    let mut room = 0;
    for (at, line) in std::io::stdin().lock().lines().enumerate() {
        while room == 0 {
            room = queue - events.len();
            if room == 0 {
                std::thread::sleep(WAIT);
            }
        }
        room -= 1;
        // There may be no receiver yet.
        drop(events.send(Arc::new(published(&line.unwrap(), at as u128 + 1))));
    }
}

fn published(line: &str, at: u128) -> Published {
    let Line { event_type, object } = serde_json::from_str(line).unwrap();
    let pod: Pod<'_> = serde_json::from_str(object.get()).unwrap();
    let version = ResourceVersion::decimal(at);
    let object = Object::from_json(Bytes::copy_from_slice(object.get().as_bytes()), "", version.clone()).unwrap();
    let event_type = pb::EventType::from_str_name(&format!("EVENT_TYPE_{event_type}")).unwrap();
    let response = pb::WatchResponse {
        r#type: event_type.into(),
        resource_version: version.to_string(),
        object: Some(proto::object(&object, &version, PayloadFormat::Raw)),
        ..Default::default()
    };
    Published { response, node: pod.spec.node_name.to_owned() }
}

#[tonic::async_trait]
impl InformerService for Naive {
    async fn watch(
        &self,
        request: Request<pb::WatchRequest>,
    ) -> Result<Response<BoxStream<pb::WatchResponse>>, Status> {
        let selected = request.into_inner().index.map(|index| index.values);
        let joined = pb::WatchResponse {
            r#type: pb::EventType::Bookmark.into(),
            resource_version: "1".to_owned(),
            bookmark: Some(pb::Bookmark::default()),
            ..Default::default()
        };
        let events = BroadcastStream::new(self.events.subscribe()).filter_map(move |event| match event {
            Ok(event) if selected.as_ref().is_none_or(|values| values.contains(&event.node)) => {
                Some(Ok(event.response.clone()))
            }
            Ok(_) => None,
            Err(lost) => Some(Err(Status::data_loss(lost.to_string()))),
        });
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(joined)).chain(events))))
    }
}
