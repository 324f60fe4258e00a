//! The watcher of kube-rs, in both of its modes, over informerd's own API: what it stores is what the API server has, also after kills.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    pin::pin,
    time::{Duration, Instant},
};

use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{
        WatchStreamExt, reflector,
        reflector::store::{Store, Writer},
        watcher,
    },
};
use serde_json::Value;
use tokio_stream::StreamExt;

use crate::{
    DEADLINE,
    apiserver::{ApiServer, THINGS},
    killable::KillableServer,
    kube::things,
    truth::Truth,
};

/// Versions and data by key.
type Objects = BTreeMap<String, (String, Value)>;

/// Starts a reflector of kube-rs, which tries again for ever.
fn reflect(address: SocketAddr, config: watcher::Config) -> Store<DynamicObject> {
    let client = Client::try_from(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Thing"));
    let writer = Writer::new(kind.clone());
    let (store, events) = (writer.as_reader(), watcher(Api::all_with(client, &kind), config).default_backoff());
    tokio::spawn(async move {
        let mut events = pin!(reflector(writer, events));
        while events.next().await.is_some() {}
    });
    store
}

fn stored(store: &Store<DynamicObject>) -> Objects {
    let of = |object: &DynamicObject| {
        let metadata = &object.metadata;
        let key = format!("{}/{}", metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_ref().unwrap());
        (key, (metadata.resource_version.clone().unwrap(), object.data["data"].clone()))
    };
    store.state().iter().map(|object| of(object)).collect()
}

async fn truth_of(apiserver: &ApiServer) -> Objects {
    let list = apiserver.ask("GET", &THINGS.all(), None).await.unwrap();
    let text = |item: &Value, key: &str| item["metadata"][key].as_str().unwrap().to_owned();
    let of = |item: &Value| {
        let key = format!("{}/{}", text(item, "namespace"), text(item, "name"));
        (key, (text(item, "resourceVersion"), item["data"].clone()))
    };
    list["items"].as_array().unwrap().iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stores_of_kube_rs_are_those_of_the_api_server_after_kills() {
    let (apiserver, mut truth) = (ApiServer::start().await, Truth::new(71));
    for _ in 0..30 {
        apiserver.write(&mut truth, THINGS).await;
    }
    let (mut served, address) = KillableServer::kubernetes(&apiserver, things());
    served.synced().await;
    let stores = [
        ("ListWatch", reflect(address, watcher::Config::default())),
        ("StreamingList", reflect(address, watcher::Config::default().streaming_lists())),
        ("ListWatch in pages", reflect(address, watcher::Config::default().any_semantic().page_size(7))),
    ];
    for round in 0..4 {
        for at in 0..30 {
            if at == 10 && round > 0 {
                served.kill();
            }
            apiserver.write(&mut truth, THINGS).await;
            if at == 20 && round > 0 {
                served.restart();
            }
        }
        let (expected, started) = (truth_of(&apiserver).await, Instant::now());
        assert!(!expected.is_empty());
        for (mode, store) in &stores {
            while stored(store) != expected {
                assert!(started.elapsed() < DEADLINE, "round {round}, {mode}: {:#?}, not {expected:#?}", stored(store));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    let refused = served.count("reflector_lists_total").await;
    assert_eq!(refused, 0, "the server resumes from its snapshot, and needs no list");
}
