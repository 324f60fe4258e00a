//! `cargo run --example controller -- http://127.0.0.1:50051`
//!
//! A controller over the `configmaps` and the `pods` of an informerd server: it reconciles each config map that exists or that a
//! pod names in its label `config`, when one of them changes, and prints how many pods have it. Ctrl-C ends it.

use std::{error::Error, sync::Arc, time::Duration};

use informerd::{
    cache::{Action, InformerOptions, Reconciler, SharedInformer, SourceHealth, WorkQueue},
    model::{IndexFunc, Object, ObjectKey},
    source::relay::{RelayConfig, RelaySource},
};
use tokio_util::sync::CancellationToken;

fn informer(server: &str, resource: &str) -> Result<SharedInformer<Object>, Box<dyn Error>> {
    let config = RelayConfig::new(server.parse()?, resource);
    let health = SourceHealth::new(config.heartbeat, Duration::from_secs(15));
    let source = RelaySource::new(config, health.clone());
    let options = InformerOptions { name: resource.to_owned(), health: Some(health), ..InformerOptions::default() };
    Ok(SharedInformer::start(source, options))
}

/// Returns the config map that a pod names.
fn config_of(pod: &Object) -> Option<ObjectKey> {
    ObjectKey::new(pod.key().namespace(), pod.labels().get("config")?).ok()
}

pub(crate) async fn run(
    server: &str,
    print: impl Fn(String) + Clone + Send + Sync + 'static,
    end: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let (config_maps, pods) = (Arc::new(informer(server, "configmaps")?), Arc::new(informer(server, "pods")?));
    let by_config =
        IndexFunc::custom("config", |pod: &Object| config_of(pod).iter().map(ObjectKey::to_string).collect());
    pods.add_indexers([("config".to_owned(), by_config)]).await?;

    let reconciler = Reconciler::new(WorkQueue::default())
        .watch(&config_maps, |config_map| [config_map.key().clone()])
        .watch(&pods, config_of)
        .workers(4);
    let (all_config_maps, all_pods) = (Arc::clone(&config_maps), Arc::clone(&pods));
    let reconcile = move |key: ObjectKey| {
        let (config_map, pods) = (all_config_maps.get(&key), all_pods.index_keys("config", &key.to_string()));
        let print = print.clone();
        async move {
            // An error is tried again after a growing delay. A program that writes does it here.
            match (config_map, pods?.len()) {
                (Some(_), count) => print(format!("{key}: {count} pods")),
                (None, 0) => print(format!("{key}: gone")),
                (None, count) => print(format!("{key}: missing for {count} pods")),
            }
            Ok::<_, informerd::cache::UnknownIndex>(Action::Done)
        }
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(reconciler.run(stop.clone(), reconcile));
    end.await;
    stop.cancel();
    running.await??;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1).ok_or("name a server")?;
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    #[expect(clippy::print_stdout, reason = "the output of the program")]
    run(&server, |line| println!("{line}"), ctrl_c).await
}
