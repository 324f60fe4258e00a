//! The reflector of kube-rs, unchanged, over a server that speaks Kubernetes.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{
        reflector,
        reflector::store::{Store, Writer},
        watcher,
    },
};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;

use crate::kubernetes::Versions;

/// Reflector of all config maps.
pub(crate) struct Reflector {
    store: Store<DynamicObject>,
    /// Number of lists that it has begun.
    lists: Arc<AtomicU64>,
    running: JoinHandle<()>,
}

// === impl Reflector ===

impl Reflector {
    /// Starts one in each mode: a list and a watch, a watch that begins with all objects, and a list in pages.
    pub(crate) fn of_each_mode(address: &str) -> [Self; 3] {
        let config = watcher::Config::default;
        [config(), config().streaming_lists(), config().any_semantic().page_size(7)]
            .map(|config| Self::start(address, config))
    }

    /// Starts one, which tries again for ever.
    fn start(address: &str, config: watcher::Config) -> Self {
        let client = Client::try_from(Config::new(address.parse().unwrap())).unwrap();
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        let writer = Writer::new(kind.clone());
        let (store, lists) = (writer.as_reader(), Arc::new(AtomicU64::new(0)));
        let (counted, events) = (Arc::clone(&lists), watcher(Api::all_with(client, &kind), config));
        let running = tokio::spawn(async move {
            let mut events = pin!(reflector(writer, events));
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Init) => drop(counted.fetch_add(1, Ordering::Relaxed)),
                    Ok(_) => {}
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
        Self { store, lists, running }
    }

    /// Returns the versions in the store, and how often it has been listed.
    pub(crate) fn stored(&self) -> (Versions, u64) {
        let of = |object: &Arc<DynamicObject>| {
            let metadata = object.metadata.clone();
            let key = format!("{}/{}", metadata.namespace.unwrap_or_default(), metadata.name.unwrap());
            (key, metadata.resource_version.unwrap())
        };
        (self.store.state().iter().map(of).collect(), self.lists.load(Ordering::Relaxed))
    }
}

impl Drop for Reflector {
    fn drop(&mut self) {
        self.running.abort();
    }
}
