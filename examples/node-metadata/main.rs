//! Pods of a node by IP, with owner and labels, at each change: `cargo run --example node-metadata -- http://HOST:PORT NODE`.

use std::{collections::BTreeMap, error::Error};

use informerd::{
    client::{Client, Query, Update, WatchOptions},
    proto::pb::{EventType::Deleted, PayloadFormat::Raw, View, object::Body},
};
use serde_json::Value;

pub(crate) async fn run(server: &str, node: &str, print: impl Fn(String)) -> Result<(), Box<dyn Error>> {
    let view = Some(View { name: "record".to_owned(), only_if_changed: true, ..View::default() });
    let field_selector = format!("spec.nodeName={node}");
    let pods = Query { field_selector, view, format: Raw, ..Query::of("pods") };
    let mut watch = Client::connect(&server.parse()?).await?.watch(&pods, &WatchOptions::default());
    let mut by_ip = BTreeMap::<String, (String, Value)>::new();
    while let Some(update) = watch.next().await {
        let Update::Event { event_type, object, .. } = update? else { continue };
        let pod = format!("{}/{}", object.namespace, object.name);
        by_ip.retain(|_, (of, _)| *of != pod);
        if let (false, Some(Body::Raw(record))) = (event_type == Deleted, &object.body) {
            let record: Value = serde_json::from_slice(record)?;
            for ip in record["status"]["podIPs"].as_array().into_iter().flatten().filter_map(|ip| ip["ip"].as_str()) {
                by_ip.insert(ip.to_owned(), (pod.clone(), record["metadata"].clone()));
            }
        }
        print(
            by_ip.iter().map(|(ip, (pod, metadata))| format!("{ip} {pod} {metadata}\n")).collect::<Vec<_>>().concat(),
        );
    }
    Ok(())
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "the output of the program")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, server, node] = &arguments[..] else { return Err("arguments: http://HOST:PORT NODE".into()) };
    run(server, node, |pods| println!("{pods}")).await
}
