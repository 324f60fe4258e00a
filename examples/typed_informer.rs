//! `cargo run --example typed_informer -- http://127.0.0.1:50051 pods app=web`
//!
//! An informer of the objects of an informerd server that have these labels, decoded to a type of this program, and indexed by a
//! closure. It prints the number of pods of each app, and then each change until Ctrl-C.

use std::{error::Error, time::Duration};

use informerd::{
    cache::{Deletion, Entry, HandlerOptions, InformerOptions, ResourceEventHandler, SharedInformer, SourceHealth},
    client::Query,
    model::{IndexFunc, Object},
    source::relay::{RelayConfig, RelaySource},
};
use serde::Deserialize;

/// Part of the objects that this program reads.
#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    status: serde_json::Value,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// Handler that prints. Its calls may wait, and delay nobody else.
struct Printer<P>(P);

impl<P: Fn(String) + Send + 'static> ResourceEventHandler<Pod> for Printer<P> {
    async fn on_add(&mut self, pod: Entry<Pod>, is_in_initial_list: bool) {
        if !is_in_initial_list {
            (self.0)(format!("added {}", pod.metadata.name));
        }
    }

    async fn on_update(&mut self, old: Entry<Pod>, new: Entry<Pod>) {
        (self.0)(format!("updated {}: {} to {}", new.metadata.name, old.status["phase"], new.status["phase"]));
    }

    async fn on_delete(&mut self, pod: Entry<Pod>, _deletion: Deletion) {
        (self.0)(format!("deleted {}", pod.metadata.name));
    }
}

pub(crate) async fn run(
    [server, resource, labels]: [&str; 3],
    print: impl Fn(String) + Clone + Send + 'static,
    end: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let query = Query { label_selector: labels.to_owned(), ..Query::of(resource) };
    let config = RelayConfig { query, ..RelayConfig::new(server.parse()?, resource) };
    let health = SourceHealth::new(config.heartbeat, Duration::from_secs(15));
    let source = RelaySource::new(config, health.clone());
    let options = InformerOptions { name: resource.to_owned(), health: Some(health), ..InformerOptions::default() };
    let informer = SharedInformer::<Pod>::start(source, options);
    let app = |pod: &Object| Some(format!("{}/{}", pod.key().namespace(), pod.labels().get("app")?));
    let by_app = IndexFunc::custom("app", move |pod: &Object| app(pod).into_iter().collect());
    informer.add_indexers([("app".to_owned(), by_app)]).await?;

    let registration = informer.add_handler(Printer(print.clone()), HandlerOptions::default())?;
    registration.wait_for_sync().await;
    let pods = informer.snapshot();
    for app in pods.list_index_func_values("app")? {
        print(format!("{} {app}", pods.by_index("app", &app)?.len()));
    }
    end.await;
    informer.stop().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, server, resource, labels] = &arguments[..] else { return Err("SERVER RESOURCE LABELS".into()) };
    #[expect(clippy::print_stdout, reason = "the output of the program")]
    run([server, resource, labels], |line| println!("{line}"), async { drop(tokio::signal::ctrl_c().await) }).await
}
