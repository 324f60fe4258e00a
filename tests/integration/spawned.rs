//! Futures of the library, spawned from concrete types as a program does: a closure, a source, a queue, a handler.
//!
//! That a future may be sent to another thread follows from its types only where they are all known, so that a generic function does
//! not show it.

use std::{
    convert::Infallible,
    future::{pending, ready},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use informerd::{
    app::{App, AppBuilder},
    cache::{
        Action, AddOptions, Controller, ControllerConfig, DeltaFifo, DeltaFifoOptions, Deltas, Fifo, InformerHandle,
        KeyError, KeyFunc, ProcessError, Queue, Reconciler, Reflector, ReflectorConfig,
        ResourceEventHandlerRegistration, SharedInformer, SourceHealth, Start, Store, UndeltaStore, WorkQueue,
    },
    client::{Client, Informer, Query, UntilEvent, UntilOptions, Watch},
    config::Config,
    model::{IndexFunc, Object, ObjectKey, ResourceVersion},
    testing::{self, FakeSource, FakeWatcher},
    watch::{Broadcaster, Cursor, Deliveries, ProxyWatcher, Subscribe, until},
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;

type Item = Deltas<Arc<Object>>;
type Processed = Result<(), String>;

fn objects() -> Arc<Fifo<Arc<Object>>> {
    Arc::new(Fifo::new(KeyFunc::default()))
}

fn deltas() -> Arc<DeltaFifo<Arc<Object>>> {
    Arc::new(DeltaFifo::new(DeltaFifoOptions::new(KeyFunc::default())))
}

/// Number of the calls of functions that capture nothing.
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

async fn process_object(_: Arc<Object>, _: bool) -> Processed {
    count();
    Ok(())
}

async fn process_deltas(_: Item, _: bool) -> Processed {
    count();
    Ok(())
}

/// Each form that a function may have is called by a Controller in a task of its own.
#[tokio::test(start_paused = true)]
async fn a_controller_can_be_spawned_with_any_form_of_function() {
    let source = FakeSource::new();
    source.add(&json!({ "metadata": { "name": "web" } }));
    let (sender, mut called) = mpsc::channel(8);
    let stop = CancellationToken::new();
    macro_rules! spawn {
        ($queue:expr, $process:expr) => {
            tokio::spawn(Controller::new(ControllerConfig::new($queue, source.clone(), $process)).run(stop.clone()))
        };
    }
    macro_rules! report {
        () => {{
            let sender = sender.clone();
            move || sender.try_send(()).map_err(|error| error.to_string())
        }};
    }
    let (block, boxed, at_once) = (report!(), report!(), report!());
    let async_block = move |_: Arc<Object>, _: bool| {
        let report = block.clone();
        async move { report() }
    };
    // The compiler makes no `Fn` of one that captures something.
    let async_closure = async |_: Item, _: bool| {
        count();
        Ok::<_, String>(())
    };
    let boxed = move |_: Arc<Object>, _: bool| -> Pin<Box<dyn Future<Output = Processed> + Send>> {
        let report = boxed.clone();
        Box::pin(async move { report() })
    };
    let ready = move |_: Item, _: bool| ready(at_once());
    let tasks: Vec<JoinHandle<()>> = vec![
        spawn!(objects(), async_block),
        spawn!(deltas(), async_closure),
        spawn!(objects(), boxed),
        spawn!(deltas(), ready),
        spawn!(objects(), process_object),
        spawn!(deltas(), process_deltas),
    ];
    for _ in 0..3 {
        called.recv().await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    stop.cancel();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), 3);
}

/// Accepts what `tokio::spawn` accepts.
fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) {
    drop(future);
}

/// Functions that are compiled and not called: each future is one that a program may spawn.
const _: () = {
    let _: fn(FakeSource, SourceHealth) = spawn_stores;
    let _: fn(WorkQueue<ObjectKey>, &SharedInformer<Value>, &CancellationToken) = spawn_workers;
    let _: fn(Arc<SharedInformer<Value>>, ResourceEventHandlerRegistration, ResourceVersion) = spawn_informer;
    let _: fn(InformerHandle<Deliveries>, Subscribe<Deliveries>) = spawn_handle;
    let _: fn(Broadcaster<Deliveries>, Cursor<Deliveries>, ProxyWatcher<u32>, FakeWatcher) = spawn_watches;
    let _: fn(Client, Query, Watch, Arc<Informer>) = spawn_client;
    let _: fn(AppBuilder, App) = spawn_app;
};

fn spawn_workers(queue: WorkQueue<ObjectKey>, informer: &SharedInformer<Value>, stop: &CancellationToken) {
    let reconciler = || Reconciler::new(queue.clone()).watch(informer, |object| [object.key().clone()]);
    spawn(reconciler().run(stop.clone(), |_| async { Ok::<_, Infallible>(Action::Done) }));
    spawn(reconciler().run(stop.clone(), async |_: ObjectKey| Ok::<_, Infallible>(Action::Done)));
    spawn(reconciler().run(stop.clone(), reconcile));
    spawn(reconciler().run(stop.clone(), |_| ready(Ok::<_, String>(Action::After(Duration::ZERO)))));
    spawn(reconciler().run(stop.clone(), |_| -> Pin<Box<dyn Future<Output = Result<Action, String>> + Send>> {
        Box::pin(async { Ok(Action::Done) })
    }));
    spawn(async move {
        let item = queue.get().await?;
        queue.add(item.key().clone()).await;
        queue.add_after(item.key().clone(), Duration::ZERO).await;
        queue.add_rate_limited(item.key().clone()).await;
        queue.add_with(item.key().clone(), AddOptions::default()).await;
        item.done();
        queue.shut_down_with_drain().await;
        Some(())
    });
}

async fn reconcile(_: ObjectKey) -> Result<Action, String> {
    Ok(Action::Done)
}

fn spawn_stores(source: FakeSource, health: SourceHealth) {
    let store = Arc::new(UndeltaStore::new(KeyFunc::<Arc<Object>>::default(), drop));
    spawn(Reflector::new(source, store, health, ReflectorConfig::default()).run());
    let numbers = Arc::new(Fifo::new(KeyFunc::infallible(|number: &u32| *number)));
    let queue = Arc::clone(&numbers);
    spawn(async move { queue.pop(async |_: u32, _| Ok::<_, ProcessError<Infallible>>(())).await });
    let queue = Arc::clone(&numbers);
    spawn(async move { queue.pop(|_, _| async { Ok::<_, ProcessError<Infallible>>(()) }).await });
    let queue = Arc::clone(&numbers);
    spawn(async move { queue.pop(|_, _| ready(Ok::<_, ProcessError<Infallible>>(()))).await });
    spawn(async move {
        numbers.add(1).await?;
        numbers.update(1).await?;
        numbers.delete(1).await?;
        numbers.replace(vec![1]).await?;
        numbers.resync().await?;
        numbers.add_if_not_present(1).await?;
        Ok::<_, KeyError>(())
    });
}

fn spawn_informer(
    informer: Arc<SharedInformer<Value>>,
    registration: ResourceEventHandlerRegistration,
    version: ResourceVersion,
) {
    spawn(informer.stop());
    let shared = Arc::clone(&informer);
    spawn(async move { shared.wait_for_cache_sync().await });
    let shared = Arc::clone(&informer);
    spawn(async move { shared.wait_for(&version).await });
    spawn(async move { informer.add_indexers([("app".to_owned(), IndexFunc::Label("app".to_owned()))]).await });
    spawn(async move { registration.wait_for_sync().await });
}

fn spawn_handle(handle: InformerHandle<Deliveries>, subscribe: Subscribe<Deliveries>) {
    spawn(async move {
        handle.wait_for(0, |state| !state.is_empty()).await;
        handle.catch_up(Duration::ZERO).await;
        handle.notify_watches().await;
        handle.join(&Start::Now, subscribe).ok();
        handle.stopped().await;
    });
}

fn spawn_watches(
    mut broadcaster: Broadcaster<Deliveries>,
    mut cursor: Cursor<Deliveries>,
    proxy: ProxyWatcher<u32>,
    fake: FakeWatcher,
) {
    spawn(async move { broadcaster.ready().await });
    spawn(async move { cursor.take(1).await });
    let stop = proxy.stop_handle();
    spawn(async move { stop.stopped().await });
    spawn(until(
        Duration::ZERO,
        proxy.filter(|number| number % 2 == 0),
        [|number: &u32| Ok::<_, Infallible>(*number > 1)],
    ));
    spawn(async move { fake.bookmark(ResourceVersion::decimal(1)).await });
}

fn spawn_client(client: Client, query: Query, mut watch: Watch, informer: Arc<Informer>) {
    spawn(async move { watch.next().await });
    spawn(informer.stop());
    let shared = Arc::clone(&informer);
    spawn(async move { shared.wait_synced().await });
    let shared = Arc::clone(&informer);
    spawn(async move { shared.read_after("1").await });
    spawn(async move { informer.ended().await });
    spawn(async move { Client::connect(&"127.0.0.1:1".parse().unwrap()).await });
    let (one, other) = (client.clone(), query.clone());
    spawn(async move {
        let is_empty = |event: &UntilEvent| event.count == 0;
        one.until(&other, [is_empty], &UntilOptions::default()).await
    });
    spawn(async move {
        client.resources().await?;
        client.server().await?;
        client.list_resources().await?;
        client.watchers_and_ended("pods").await?;
        client.stats().await?;
        client.list(&query).await?;
        client.by_index(&query, "app", "web").await?;
        client.by_index_like(&query, "app", "shop", "web").await?;
        client.get_as(&query, "shop", "web").await?;
        client.values("pods", "app").await
    });
}

fn spawn_app(builder: AppBuilder, app: App) {
    spawn(builder.start());
    spawn(App::start(Config::default()));
    spawn(app.run(pending()));
    spawn(testing::serve([("pods", FakeSource::new())]));
}
