//! `cargo run --example watch_until --features testing`
//!
//! Waits until a pod is pending, and then until it has failed: with conditions on the updates of a watch of its own, and with
//! `Client::until`, which is one call, for a condition that the server evaluates.

use std::{error::Error, time::Duration};

use informerd::{
    client::{ClientError, Query, UntilEvent, UntilOptions, Update, WatchOptions},
    proto::pb,
    testing::{self, FakeSource},
    watch::{Recorder, until},
};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(30);

fn pod(phase: &str) -> Value {
    json!({ "metadata": { "namespace": "shop", "name": "web" }, "status": { "phase": phase } })
}

/// Returns a condition that an object in this phase meets.
fn in_phase(phase: &'static str) -> impl Fn(&Result<Update, ClientError>) -> Result<bool, String> {
    move |update| match update {
        Ok(Update::Event { object, .. }) => match &object.body {
            Some(pb::object::Body::Raw(body)) => {
                let body: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
                Ok(body["status"]["phase"] == phase)
            }
            _ => Err("no body".to_owned()),
        },
        Ok(_) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) async fn run() -> Result<Vec<String>, Box<dyn Error>> {
    let pods = FakeSource::new();
    pods.add(&pod("Pending"));
    let server = testing::serve([("pods", pods.clone())]).await;
    let query = Query { name: Some("web".into()), format: pb::PayloadFormat::Raw, ..Query::of("pods") };

    let mut watch = Recorder::new(server.client().watch(&query, &WatchOptions::default()));
    let record = watch.record();
    until(TIMEOUT, &mut watch, [in_phase("Pending")]).await.map_err(|error| error.to_string())?;
    pods.modify(&pod("Failed"));
    until(TIMEOUT, watch, [in_phase("Failed")]).await.map_err(|error| error.to_string())?;
    // Both waits read the same watch, which is gone now; the record has what it yielded.
    let mut seen = Vec::new();
    for update in record.events() {
        if let Update::Event { event_type, object, .. } = update? {
            seen.push(format!("{} {}", event_type.as_str_name(), object.name));
        }
    }

    let options = UntilOptions { timeout: Some(TIMEOUT), ..UntilOptions::default() };
    let failed = Query { expression: "object.status.phase == 'Failed'".to_owned(), ..query };
    let met = server.client().until(&failed, [|event: &UntilEvent| event.object.is_some()], &options).await?;
    seen.push(met.object.map(|object| object.name).unwrap_or_default());
    Ok(seen)
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "the result of the program")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", run().await?.join("\n"));
    Ok(())
}
