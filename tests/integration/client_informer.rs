//! Informers of the client library, against a server in this process. The rules of streams are those of the conformance suite.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

use informerd::{
    cache::{Delta, ResourceEventHandlerFuncs},
    client::{Client, FreshnessState, Informer, InformerError, Query, ReadError},
    model::{Event, IndexFunc, Object, ResourceVersion},
    proto::pb::{
        self,
        informer_service_server::{InformerService, InformerServiceServer},
    },
    testing::{self, FakeSource},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::timeout};
use tokio_stream::{
    StreamExt,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{Request, Response, Status, codegen::BoxStream};

use crate::sandbox::{DEADLINE, Sandbox, pod, pod_at};

fn object(name: &str, count: usize) -> Value {
    json!({ "metadata": { "name": name, "labels": { "app": "web" } }, "count": count })
}

/// Reads without a pause while the list is applied.
#[tokio::test(flavor = "multi_thread")]
async fn an_informer_is_healthy_only_once_readers_have_the_whole_list() {
    let source = FakeSource::new();
    let count = 5000;
    for at in 0..count {
        source.add(&object(&format!("o{at}"), 0));
    }
    let server = testing::serve([("objects", source.clone())]).await;
    let by_app = IndexFunc::Label("app".to_owned());
    let informer = Informer::builder(server.client(), &Query::of("objects")).index("app", by_app).start().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        let until = std::time::Instant::now() + DEADLINE;
        while !informer.is_healthy() {
            assert!(std::time::Instant::now() < until, "it is not healthy in time");
        }
        (informer.snapshot().list().len(), informer)
    });
    let (seen, informer) = reading.await.unwrap();
    assert_eq!(seen, count);
    assert_eq!(informer.snapshot().by_index("app", "web").unwrap().len(), count);
    timeout(DEADLINE, informer.stop()).await.unwrap();
    assert!(!informer.is_healthy() && informer.ended().await == InformerError::Stopped);
    assert_eq!(informer.snapshot().list().len(), count, "the last state can be read");
}

#[tokio::test]
async fn no_handler_call_begins_after_a_stop_which_waits_for_the_call_that_goes_on() {
    let source = FakeSource::new();
    source.add(&object("a", 0));
    let server = testing::serve([("objects", source.clone())]).await;
    let ((begun, mut has_begun), (end, may_end)) = (tokio::sync::mpsc::channel(1), mpsc::channel());
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let handler = ResourceEventHandlerFuncs::<Object>::new().on_update(move |_, _| {
        if counted.fetch_add(1, Ordering::SeqCst) == 0 {
            begun.try_send(()).unwrap();
            may_end.recv_timeout(DEADLINE).unwrap();
        }
    });
    let builder = Informer::builder(server.client(), &Query::of("objects"));
    let informer = builder.handler(handler, |panic| panic!("{panic}")).start().unwrap();
    timeout(DEADLINE, informer.wait_synced()).await.unwrap().unwrap();
    source.modify(&object("a", 1));
    timeout(DEADLINE, has_begun.recv()).await.unwrap().unwrap();
    let last = source.add(&object("b", 0)).to_string();
    let state = timeout(DEADLINE, informer.read_after(&last)).await.unwrap().unwrap();
    assert_eq!(state.list().len(), 2, "a handler that blocks does not hold up the cache");
    let last = source.modify(&object("b", 2)).to_string();
    timeout(DEADLINE, informer.read_after(&last)).await.unwrap().unwrap();
    let stopped = informer.stop();
    tokio::pin!(stopped);
    assert!(futures_util::poll!(&mut stopped).is_pending(), "a call goes on");
    end.send(()).unwrap();
    timeout(DEADLINE, stopped).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_version_is_waited_for_if_it_can_be_compared() {
    let source = FakeSource::new();
    source.add(&object("a", 0));
    let server = testing::serve([("objects", source.clone())]).await;
    let informer = Informer::builder(server.client(), &Query::of("objects")).start().unwrap();
    timeout(DEADLINE, informer.wait_synced()).await.unwrap().unwrap();
    assert_eq!(informer.version(), Some(source.version()));
    let next = source.version().next().to_string();
    {
        let waiting = informer.read_after(&next);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        source.modify(&object("a", 7));
        let state = timeout(DEADLINE, waiting).await.unwrap().unwrap();
        assert_eq!(state.list()[0].version().to_string(), next);
    }
    let other = informer.read_after("other.1").await.unwrap_err();
    assert!(matches!(&other, ReadError::OtherLineage { .. }) && other.to_string().contains("of another lineage"));
    assert!(matches!(informer.read_after("x").await, Err(ReadError::Invalid(_))));
    timeout(DEADLINE, informer.stop()).await.unwrap();
    let far = source.version().next().next().to_string();
    assert_eq!(informer.read_after(&far).await.unwrap_err(), ReadError::Ended(InformerError::Stopped));
}

#[tokio::test]
async fn a_version_is_waited_for_until_no_more_changes_come_at_it() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let client = Client::connect(&sandbox.address().parse().unwrap()).await.unwrap();
    let informer = Informer::builder(&client, &Query::of("pods")).start().unwrap();
    timeout(DEADLINE, informer.wait_synced()).await.unwrap().unwrap();
    let open = ResourceVersion::decimal(5);
    let events = vec![Event::Modified(pod_at("shop", "b", "", &open))];
    sandbox.say(Delta::Changes { events: events.into(), closes: false }).await;
    let has_b = async {
        while informer.snapshot().list().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, has_b).await.unwrap();
    let waiting = informer.read_after("5");
    tokio::pin!(waiting);
    assert!(futures_util::poll!(&mut waiting).is_pending());
    sandbox.push(Event::Modified(pod_at("shop", "c", "", &open.next()))).await;
    assert!(timeout(DEADLINE, waiting).await.unwrap().unwrap().list().len() >= 2);
}

#[tokio::test]
async fn without_bodies_a_change_of_the_version_is_an_update() {
    let source = FakeSource::new();
    source.add(&object("a", 0));
    let server = testing::serve([("objects", source.clone())]).await;
    let (sender, mut updated) = tokio::sync::mpsc::channel(8);
    let handler = ResourceEventHandlerFuncs::<Object>::new().on_update(move |old, new| {
        assert!(old.body().is_empty() && new.body().is_empty());
        sender.try_send(new.version().clone()).unwrap();
    });
    let query = Query { format: pb::PayloadFormat::Metadata, ..Query::of("objects") };
    let informer =
        Informer::builder(server.client(), &query).handler(handler, |panic| panic!("{panic}")).start().unwrap();
    timeout(DEADLINE, informer.wait_synced()).await.unwrap().unwrap();
    let version = source.modify(&object("a", 1));
    assert_eq!(timeout(DEADLINE, updated.recv()).await.unwrap(), Some(version));
}

#[tokio::test]
async fn an_informer_that_cannot_be_served_ends_with_the_error() {
    let server = testing::serve([("objects", FakeSource::new())]).await;
    let informer = Informer::builder(server.client(), &Query::of("others")).start().unwrap();
    let InformerError::Failed(error) = timeout(DEADLINE, informer.ended()).await.unwrap() else {
        panic!("it has failed")
    };
    assert_eq!(error.reason(), Some("RESOURCE_NOT_FOUND"));
    assert_eq!(informer.failure(), Some(error.clone()));
    assert_eq!(informer.wait_synced().await, Err(InformerError::Failed(error)));
    assert!(!informer.is_healthy() && informer.version().is_none());
    timeout(DEADLINE, informer.stop()).await.unwrap();
}

#[tokio::test]
async fn an_index_has_a_name_of_its_own() {
    let client = Client::connect_lazy(&"127.0.0.1:1".parse().unwrap()).unwrap();
    let by_app = || IndexFunc::Label("app".to_owned());
    let builder = Informer::builder(&client, &Query::of("objects")).index("app", by_app()).index("app", by_app());
    assert!(builder.start().is_err());
}

/// Server with the messages of its first watch; later ones get no answer.
struct Scripted(Mutex<Option<tokio::sync::mpsc::Receiver<pb::WatchResponse>>>);

#[tonic::async_trait]
impl InformerService for Scripted {
    async fn watch(&self, _: Request<pb::WatchRequest>) -> Result<Response<BoxStream<pb::WatchResponse>>, Status> {
        let messages = self.0.lock().take();
        match messages {
            Some(messages) => Ok(Response::new(Box::pin(ReceiverStream::new(messages).map(Ok)))),
            None => std::future::pending().await,
        }
    }
}

#[tokio::test]
async fn an_informer_that_heals_a_hole_is_syncing() {
    let (messages, sent) = tokio::sync::mpsc::channel(2);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let scripted = InformerServiceServer::new(Scripted(Mutex::new(Some(sent))));
    let server = tonic::transport::Server::builder().add_service(scripted);
    let serving = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let client = Client::connect(&address.parse().unwrap()).await.unwrap();
    let informer = Informer::builder(&client, &Query::of("objects")).start().unwrap();
    let changed = async |is_live: bool| {
        let changed = async {
            while (informer.freshness().state == FreshnessState::Live) != is_live {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, changed).await.unwrap();
    };
    let message = |event_type: pb::EventType| pb::WatchResponse {
        r#type: event_type.into(),
        resource_version: "5".to_owned(),
        ..pb::WatchResponse::default()
    };
    let bookmark = Some(pb::Bookmark { initial_events_end: true, ..pb::Bookmark::default() });
    messages.send(pb::WatchResponse { bookmark, ..message(pb::EventType::Bookmark) }).await.unwrap();
    changed(true).await;
    let dropped = Some(pb::Dropped { count: 1, after_resource_version: "5".to_owned() });
    messages.send(pb::WatchResponse { dropped, ..message(pb::EventType::Dropped) }).await.unwrap();
    changed(false).await;
    assert_eq!(informer.freshness().state, FreshnessState::Syncing);
    serving.abort();
}
