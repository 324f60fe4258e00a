//! `cargo run --example kube_controller`
//!
//! A controller over the Kubernetes API of `$KUBECONFIG`, or of the cluster that it runs in: it writes to each config map how many
//! pods name it in their label `config`, as the annotation `example.com/pods`. informerd's source and informers read; the crate `kube`
//! writes. Ctrl-C ends it.

use std::{error::Error, time::Duration};

use informerd::{
    cache::{Action, Entry, InformerOptions, InformerSet, Reconciler, SourceHealth, WorkQueue},
    model::{IndexFunc, Object, ObjectKey},
    source::kube::{KubeCluster, KubeConfig, KubeSource},
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use tokio_util::sync::CancellationToken;

const PODS: &str = "example.com/pods";

fn source(plural: &str, cluster: &KubeCluster) -> (KubeSource, InformerOptions) {
    let config = KubeConfig { cluster: cluster.clone(), ..KubeConfig::new(plural, "", "v1", plural) };
    let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
    let source = KubeSource::new(config, health.clone());
    (source, InformerOptions { name: plural.to_owned(), health: Some(health), ..InformerOptions::default() })
}

/// Returns the config map that a pod names.
fn config_of(pod: &Object) -> Option<ObjectKey> {
    ObjectKey::new(pod.key().namespace(), pod.labels().get("config")?).ok()
}

/// Writes the number to the config map, unless it is there.
async fn write(
    client: Client,
    key: ObjectKey,
    config_map: Option<Entry<ConfigMap>>,
    pods: usize,
) -> kube::Result<Action> {
    let Some(config_map) = config_map else { return Ok(Action::Done) };
    let count = pods.to_string();
    if config_map.metadata.annotations.as_ref().and_then(|annotations| annotations.get(PODS)) != Some(&count) {
        let patch = serde_json::json!({ "metadata": { "annotations": { PODS: count } } });
        let api = Api::<ConfigMap>::namespaced(client, key.namespace());
        api.patch_metadata(key.name(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    Ok(Action::Done)
}

pub(crate) async fn run(
    (cluster, client): (KubeCluster, Client),
    end: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let (source_of_maps, options) = source("configmaps", &cluster);
    let mut informers = InformerSet::new();
    let config_maps = informers.start::<ConfigMap>(source_of_maps, options);
    let (source_of_pods, options) = source("pods", &cluster);
    let pods = informers.start::<Pod>(source_of_pods, options);
    let by_config =
        IndexFunc::custom("config", |pod: &Object| config_of(pod).iter().map(ObjectKey::to_string).collect());
    pods.add_indexers([("config".to_owned(), by_config)]).await?;

    let reconciler = Reconciler::new(WorkQueue::default())
        .watch(&config_maps, |config_map| [config_map.key().clone()])
        .watch(&pods, config_of)
        .workers(4);
    let reconcile = move |key: ObjectKey| {
        let pods = pods.index_keys("config", &key.to_string()).map_or(0, |keys| keys.len());
        // A failed write is tried again after a growing delay.
        write(client.clone(), key.clone(), config_maps.get(&key), pods)
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(reconciler.run(stop.clone(), reconcile));
    end.await;
    stop.cancel();
    running.await??;
    informers.stop_within(Duration::from_secs(10)).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    run((KubeCluster::default(), Client::try_default().await?), ctrl_c).await
}
