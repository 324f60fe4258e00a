//! Watches of a client that share one stream, by Subscribe: what they receive, one that is not read, a server without Subscribe,
//! and the relays that use it.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use informerd::{
    app::{App, AppError, CallRequest, CallService},
    client::{Client, Query, Update, Watch, WatchOptions},
    config::{Config, ServeFlags},
    proto::pb::{
        self,
        informer_service_server::{InformerService, InformerServiceServer},
    },
};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_stream::{StreamExt, wrappers::TcpListenerStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Request, Response, Status, Streaming, codegen::BoxStream};
use tower::{ServiceExt, layer::layer_fn, service_fn};

use crate::{
    sandbox::{DEADLINE, Sandbox, fold, next, pod, watch_pods, words},
    tcp_proxy::TcpProxy,
};

const RESOURCES: [&str; 3] = ["a", "b", "c"];

/// Answer of a server to Subscribe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subscribe {
    Served,
    /// As of an older server.
    Missing,
    /// None, while the connection answers PINGs.
    Silent,
}

/// Server whose calls are recorded.
struct Recorded {
    address: String,
    calls: Arc<Mutex<Vec<String>>>,
    _running: AbortOnDropHandle<Result<(), AppError>>,
}

impl Recorded {
    /// Starts a server with this configuration.
    async fn start(config: &str, subscribe: Subscribe) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("informerd.yaml");
        fs::write(&path, format!("listen: 127.0.0.1:0\nadmin: {{listen: none}}\n{config}")).unwrap();
        let config = Config::load(&ServeFlags { config: Some(path), ..ServeFlags::default() }).unwrap();
        let calls = Arc::<Mutex<Vec<String>>>::default();
        let recorded = Arc::clone(&calls);
        let layer = layer_fn(move |service: CallService| {
            let recorded = Arc::clone(&recorded);
            service_fn(move |call: CallRequest| {
                let method = call.uri().path().rsplit('/').next().unwrap().to_owned();
                let subscribe = if method == "Subscribe" { subscribe } else { Subscribe::Served };
                recorded.lock().push(method);
                let answer = service.clone().oneshot(call);
                async move {
                    match subscribe {
                        Subscribe::Served => {}
                        Subscribe::Missing => return Err(Status::unimplemented("an older server")),
                        Subscribe::Silent => std::future::pending().await,
                    }
                    Ok(answer.await.unwrap_or_else(|never| match never {}))
                }
            })
        });
        let app = App::builder(config).layer(layer).start().await.unwrap();
        let address = format!("http://{}", app.grpc_address());
        Self { address, calls, _running: AbortOnDropHandle::new(tokio::spawn(app.run(std::future::pending()))) }
    }

    /// Starts a server of resources with the object `x`.
    async fn files(directory: &TempDir, subscribe: Subscribe) -> Self {
        let resource = |name: &str| {
            let path = directory.path().join(name);
            fs::create_dir_all(&path).unwrap();
            write(directory, name, "x", 0);
            format!("  {name}: {{source: {{files: {{path: {}}}}}}}\n", path.display())
        };
        let config = format!("resources:\n{}", RESOURCES.map(resource).concat());
        Self::start(&config, subscribe).await
    }

    /// Returns the number of calls of a method.
    fn count(&self, method: &str) -> usize {
        self.calls.lock().iter().filter(|called| *called == method).count()
    }
}

fn write(directory: &TempDir, resource: &str, name: &str, n: usize) {
    let path = directory.path().join(resource).join(format!("{name}.yaml"));
    fs::write(path, format!("{{kind: Thing, metadata: {{name: {name}}}, n: {n}}}\n")).unwrap();
}

async fn subscribing(address: &str) -> Client {
    Client::connect(&address.parse().unwrap()).await.unwrap().subscribing()
}

/// Returns the object of the next event.
async fn event(watch: &mut Watch) -> String {
    loop {
        let update = tokio::time::timeout(DEADLINE, watch.next()).await.expect("an update in time");
        if let Update::Event { object, .. } = update.unwrap().unwrap() {
            return object.name;
        }
    }
}

async fn synced(watch: &mut Watch) {
    let synced = async { while !matches!(watch.next().await.unwrap().unwrap(), Update::Synced(_)) {} };
    tokio::time::timeout(DEADLINE, synced).await.expect("it is synced in time");
}

#[tokio::test]
async fn watches_of_a_client_are_one_call_where_the_server_has_subscribe() {
    for subscribe in [Subscribe::Served, Subscribe::Missing] {
        let directory = TempDir::new().unwrap();
        let server = Recorded::files(&directory, subscribe).await;
        let client = subscribing(&server.address).await;
        let mut watches = RESOURCES.map(|name| client.watch(&Query::of(name), &WatchOptions::default()));
        for watch in &mut watches {
            synced(watch).await;
        }
        let calls = |server: &Recorded| (server.count("Subscribe"), server.count("Watch"));
        assert_eq!(calls(&server), if subscribe == Subscribe::Served { (1, 0) } else { (3, 3) });
        for (watch, name) in watches.iter_mut().zip(RESOURCES) {
            write(&directory, name, "later", 1);
            assert_eq!(event(watch).await, "later");
        }

        let [mut watch, others @ ..] = watches;
        drop(others);
        let mut open = client.watchers("").await.unwrap();
        while open.len() > 1 {
            tokio::task::yield_now().await;
            open = client.watchers("").await.unwrap();
        }
        assert_eq!(open[0].resource, "a");
        write(&directory, "a", "last", 2);
        assert_eq!(event(&mut watch).await, "last");

        // The stream ends with its last watch, and later ones open another.
        drop(watch);
        while !client.watchers("").await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        synced(&mut client.watch(&Query::of("b"), &WatchOptions::default())).await;
        assert_eq!(calls(&server), if subscribe == Subscribe::Served { (2, 0) } else { (4, 4) });
    }
}

#[tokio::test]
async fn a_relay_of_several_resources_is_one_call() {
    for subscribe in [Subscribe::Served, Subscribe::Missing] {
        let directory = TempDir::new().unwrap();
        let origin = Recorded::files(&directory, subscribe).await;
        let resource =
            |name: &str| format!("  {name}: {{source: {{informerd: {{endpoint: \"{}\"}}}}}}\n", origin.address);
        let config = format!("resources:\n{}", RESOURCES.map(resource).concat());
        let relay = Recorded::start(&config, Subscribe::Served).await;
        let client = subscribing(&relay.address).await;
        for name in RESOURCES {
            let mut watch = client.watch(&Query::of(name), &WatchOptions::default());
            assert_eq!(event(&mut watch).await, "x");
            synced(&mut watch).await;
            write(&directory, name, "later", 1);
            assert_eq!(event(&mut watch).await, "later");
        }
        let calls = (origin.count("Subscribe"), origin.count("Watch"));
        // A relay opens a watch with more bookmarks while it is waited for.
        assert!(
            if subscribe == Subscribe::Served { calls == (1, 0) } else { calls.0 == calls.1 && calls.1 >= 3 },
            "{calls:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_not_read_is_paused_and_holds_up_no_other() {
    const CHANGES: usize = 2_000;
    let mut sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let client = subscribing(sandbox.address()).await;
    let mut slow = client.open(watch_pods()).await.unwrap();
    let mut fast = client.open(watch_pods()).await.unwrap();
    let filler = "x".repeat(10_000);
    let (mut is_paused, mut views) = (false, [BTreeMap::<String, Bytes>::new(), BTreeMap::new()]);
    for at in 0..CHANGES {
        let version =
            sandbox.put("a", &format!("p{at}"), &format!(r#""filler":"{filler}""#)).await.version().to_string();
        loop {
            let response = next(&mut fast).await;
            fold(&mut views[0], &response);
            if response.resource_version == version {
                break;
            }
        }
        if at % 100 == 99 {
            let sent: Vec<u64> = client.watchers("pods").await.unwrap().iter().map(|watcher| watcher.sent).collect();
            is_paused |= sent.iter().min() < sent.iter().max();
        }
    }
    assert!(is_paused, "the server has not sent everything to the watch that is not read");
    while views[1].len() <= CHANGES {
        let response = next(&mut slow).await;
        fold(&mut views[1], &response);
    }
    assert_eq!(views[0], views[1]);
}

#[tokio::test]
async fn a_refused_watch_and_a_large_request_leave_the_others_alone() {
    let mut sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let client = subscribing(sandbox.address()).await;
    let mut watch = client.open(watch_pods()).await.unwrap();
    let unknown = pb::WatchRequest { resource: "podz".into(), ..watch_pods() };
    let refused = client.open(unknown).await.unwrap_err();
    assert_eq!((refused.code(), refused.reason()), (Code::NotFound, Some("RESOURCE_NOT_FOUND")));
    // Such a request on the stream could be above the server's limit, and end it.
    let label_selector = vec![format!("!{}", "x".repeat(63)); 64].join(",");
    let large = pb::WatchRequest { label_selector, ..watch_pods() };
    let mut other = client.open(large).await.unwrap();
    assert_eq!(words(&next(&mut other).await), "ADDED INITIAL x");
    for expected in ["ADDED INITIAL x", "BOOKMARK @1"] {
        assert_eq!(words(&next(&mut watch).await), expected);
    }
    sandbox.put("a", "y", "").await;
    assert_eq!(words(&next(&mut watch).await), "ADDED y @2");
}

#[tokio::test]
async fn watches_move_together_from_a_server_that_drains() {
    let before = Sandbox::start(vec![pod("a", "x", "")]).await;
    let mut after = Sandbox::start(vec![pod("a", "x", "")]).await;
    let proxy = TcpProxy::to(before.address()).await;
    let client = subscribing(proxy.address()).await;
    let namespaces = ["a", "b", "c"];
    let query = |namespace: &str| Query { namespace: Some(namespace.to_owned()), ..Query::of("pods") };
    let mut watches = namespaces.map(|namespace| client.watch(&query(namespace), &WatchOptions::default()));
    for watch in &mut watches {
        synced(watch).await;
    }
    proxy.lead_to(after.address());
    before.lifecycle.draining.cancel();
    for (watch, namespace) in watches.iter_mut().zip(namespaces) {
        after.put(namespace, "y", "").await;
        assert_eq!(event(watch).await, "y");
    }
}

/// A proxy may answer PINGs for a server that does not respond.
#[tokio::test]
async fn a_watch_leaves_a_connection_on_which_its_opening_is_silent() {
    let directory = TempDir::new().unwrap();
    let silent = Recorded::files(&directory, Subscribe::Silent).await;
    let serving = Recorded::files(&directory, Subscribe::Served).await;
    let proxy = TcpProxy::to(&silent.address).await;
    let client = subscribing(proxy.address()).await;
    let options = WatchOptions { list_timeout: Duration::from_millis(300), ..WatchOptions::default() };
    let mut watch = client.watch(&Query::of("a"), &options);
    while silent.count("Subscribe") == 0 {
        tokio::select! {
            _ = watch.next() => {}
            () = tokio::task::yield_now() => {}
        }
    }
    proxy.lead_to(&serving.address);
    assert_eq!(event(&mut watch).await, "x");
}

/// Server that answers the first watch of each stream, and no other. It counts the streams.
struct FirstWatch(Arc<AtomicUsize>);

#[tonic::async_trait]
impl InformerService for FirstWatch {
    async fn subscribe(
        &self,
        request: Request<Streaming<pb::SubscribeRequest>>,
    ) -> Result<Response<BoxStream<pb::SubscribeResponse>>, Status> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let mut is_first = true;
        let answers = request.into_inner().filter_map(move |request| {
            let opened = request.ok().filter(|_| std::mem::take(&mut is_first))?.open.pop()?;
            let synced = pb::WatchResponse {
                r#type: pb::EventType::Bookmark.into(),
                resource_version: "1".to_owned(),
                bookmark: Some(pb::Bookmark { initial_events_end: true, ..pb::Bookmark::default() }),
                ..pb::WatchResponse::default()
            };
            let delivery = pb::Delivery { watch_ids: vec![opened.id], responses: vec![synced], ended: false };
            Some(Ok(pb::SubscribeResponse { deliveries: vec![delivery] }))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

#[tokio::test]
async fn a_watch_leaves_a_stream_that_ignores_it_and_serves_another() {
    let streams = Arc::<AtomicUsize>::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let service = InformerServiceServer::new(FirstWatch(Arc::clone(&streams)));
    let server = tonic::transport::Server::builder().add_service(service);
    let _serving = AbortOnDropHandle::new(tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener))));
    let client = subscribing(&address).await;
    let options = WatchOptions { list_timeout: Duration::from_millis(300), ..WatchOptions::default() };
    let mut watches = ["a", "b"].map(|name| client.watch(&Query::of(name), &options));
    for (watch, count) in watches.iter_mut().zip(1..) {
        synced(watch).await;
        assert_eq!(streams.load(Ordering::Relaxed), count);
    }
    assert!(watches[0].next().now_or_never().is_none(), "it stays open");
}
