//! Driver of the Rust client for the conformance suite, and an example of an informer with every option. Commands that name a client
//! have an informer for each.
//!
//! ```sh
//! cargo build --example conformance_driver
//! cargo run --package informerd-conformance -- target/debug/examples/conformance_driver
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "the suite bounds the lines; a handler that blocks is a case that it checks"
)]

use std::{collections::BTreeMap, error::Error, io, sync::Arc, thread, time::Duration};

use informerd::{
    cache::{BackoffConfig, Deletion, Entry, ResourceEventHandler, TypedSnapshot},
    client::{Client, Informer, InformerError, Query, ServerAddress, WatchOptions},
    model::{IndexFunc, Object},
    proto::{self, pb},
};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Runs the driver: answers each command, until there are no more.
pub(crate) async fn run(
    mut commands: UnboundedReceiver<String>,
    lines: UnboundedSender<Value>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut informers = BTreeMap::new();
    while let Some(command) = commands.recv().await {
        let command: Value = serde_json::from_str(&command)?;
        let output = Output { lines: lines.clone(), client: command["client"].as_u64() };
        if command["do"] == "start" {
            informers.insert(output.client, start(&command, &output)?);
            continue;
        }
        let informer = informers.get(&output.client).ok_or("the first command is not `start`")?;
        answer(informer, &command, &output).await;
    }
    Ok(())
}

/// Output of one client.
#[derive(Clone)]
struct Output {
    lines: UnboundedSender<Value>,
    /// Name of the client, if the commands have one.
    client: Option<u64>,
}

impl Output {
    fn send(&self, mut line: Value) {
        if let Some(client) = self.client {
            line["client"] = client.into();
        }
        // Nobody reads the lines of a driver that has ended.
        drop(self.lines.send(line));
    }
}

fn start(command: &Value, output: &Output) -> Result<Arc<Informer>, Box<dyn Error + Send + Sync>> {
    let text = |name: &str| command[name].as_str().unwrap_or_default().to_owned();
    let time = |name: &str| Duration::from_millis(command[name].as_u64().unwrap_or_default());
    let mut address: ServerAddress = text("target").parse()?;
    if !text("token_file").is_empty() {
        address = address.with_token_file(text("token_file")).ok_or("a token would be sent in the clear")?;
    }
    let policy = pb::FullChannelPolicy::from_str_name(&format!("FULL_CHANNEL_POLICY_{}", text("policy")));
    let options = WatchOptions {
        queue: policy.map(|policy| pb::QueueOptions { policy: policy.into(), length: 0 }),
        bookmark_interval: time("bookmark_interval_ms"),
        list_timeout: time("first_message_timeout_ms"),
        resume_timeout: time("first_message_timeout_ms"),
        drain_jitter: time("drain_jitter_ms"),
        backoff: BackoffConfig {
            initial: time("backoff_ms"),
            max: time("max_backoff_ms"),
            ..WatchOptions::default().backoff
        },
        ..WatchOptions::default()
    };
    let query = Query {
        namespace: Some(text("namespace")).filter(|namespace| !namespace.is_empty()),
        label_selector: text("label_selector"),
        format: pb::PayloadFormat::Raw,
        ..Query::of(text("resource"))
    };
    let handler = Printer { output: output.clone(), options: command["handler"].clone() };
    let problems = output.clone();
    let informer = Informer::builder(&Client::connect_lazy(&address)?, &query)
        .options(&options)
        .index("app", IndexFunc::Label("app".to_owned()))
        .handler(handler, move |message| problems.send(json!({ "event": "handler_error", "message": message })))
        .start()?;
    let informer = Arc::new(informer);
    let (waiting, output) = (Arc::clone(&informer), output.clone());
    tokio::spawn(async move {
        if waiting.wait_synced().await.is_ok() {
            output.send(json!({ "event": "synced" }));
        }
        if let InformerError::Failed(error) = waiting.ended().await {
            let code = code_name(&error);
            output.send(json!({ "event": "failed", "code": code, "reason": error.reason() }));
        }
    });
    Ok(informer)
}

async fn answer(informer: &Arc<Informer>, command: &Value, output: &Output) {
    let reply = match command["do"].as_str() {
        Some("state") => state(informer, command),
        Some("stop") => {
            informer.stop().await;
            json!({ "reply": command["id"] })
        }
        Some("read_after") => {
            let (informer, command, output) = (Arc::clone(informer), command.clone(), output.clone());
            tokio::spawn(async move {
                let version = command["version"].as_str().unwrap_or_default();
                let timeout = Duration::from_millis(command["timeout_ms"].as_u64().unwrap_or_default());
                let error = match tokio::time::timeout(timeout, informer.read_after(version)).await {
                    Ok(read) => read.err().map(|error| error.to_string()),
                    Err(_) => Some(format!("version {version} was not reached within {timeout:?}")),
                };
                output.send(json!({ "reply": command["id"], "ok": error.is_none(), "error": error }));
            });
            return;
        }
        _ => return,
    };
    output.send(reply);
}

fn state(informer: &Informer, command: &Value) -> Value {
    // In this order: a store that is read after the freshness has all that this is about.
    let (freshness, snapshot) = (informer.freshness(), informer.snapshot());
    json!({
        "reply": command["id"],
        "version": snapshot.safe_version().map(ToString::to_string).unwrap_or_default(),
        "state": freshness.state.to_string(),
        "healthy": freshness.state.is_healthy(),
        "last_message_age_ms": freshness.last_message_age.map(|age| age.as_millis() as u64),
        "source_seen_at": freshness.source_seen_at.map(|at| at.to_string()),
        "objects": snapshot.list().iter().map(|object| object_json(object)).collect::<Vec<_>>(),
        "by_app": by_app(&snapshot),
    })
}

fn by_app(snapshot: &TypedSnapshot<Object>) -> BTreeMap<String, Vec<String>> {
    let keys =
        |app: &str| snapshot.index_keys("app", app).unwrap_or_default().iter().map(ToString::to_string).collect();
    let apps = snapshot.list_index_func_values("app").unwrap_or_default();
    apps.into_iter().map(|app| (app.clone(), keys(&app))).collect()
}

fn object_json(object: &Object) -> Value {
    let body: Option<Value> = object.json().and_then(|json| serde_json::from_slice(json).ok());
    json!({
        "namespace": object.key().namespace(), "name": object.key().name(), "uid": object.uid(),
        "version": object.version().to_string(), "labels": object.labels().iter().collect::<BTreeMap<_, _>>(), "body": body,
    })
}

/// Returns the name of a code as gRPC has it: `PERMISSION_DENIED` of `PermissionDenied`.
fn code_name(error: &informerd::client::ClientError) -> String {
    let mut name = String::new();
    for c in format!("{:?}", error.code()).chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}

/// Handler that prints each call.
struct Printer {
    output: Output,
    options: Value,
}

impl Printer {
    fn print(&self, object: &Object, line: Value) {
        let Value::Object(options) = &self.options else { return };
        let names = |option: &str| options.get(option).and_then(Value::as_str).unwrap_or_default().to_owned();
        if ["*", object.key().name()].contains(&names("delay_on").as_str()) {
            let delay = options.get("delay_ms").and_then(Value::as_u64).unwrap_or_default();
            thread::sleep(Duration::from_millis(delay));
        }
        self.output.send(line);
        assert!(names("fail_on") != object.key().name(), "the handler fails on {}", object.key());
    }
}

impl ResourceEventHandler<Object> for Printer {
    async fn on_add(&mut self, object: Entry<Object>, _is_in_initial_list: bool) {
        self.print(&object, json!({ "event": "added", "object": object_json(&object) }));
    }

    async fn on_update(&mut self, old: Entry<Object>, new: Entry<Object>) {
        self.print(&new, json!({ "event": "updated", "old": object_json(&old), "object": object_json(&new) }));
    }

    async fn on_delete(&mut self, last_state: Entry<Object>, deletion: Deletion) {
        let cause = proto::cause(deletion.cause).as_str_name().trim_start_matches("CAUSE_");
        let cause = if cause == "UNSPECIFIED" { "DELETED" } else { cause };
        let version = deletion.version.unwrap_or_else(|| last_state.version().clone());
        let object = last_state.object().at_version(version);
        self.print(&object, json!({ "event": "deleted", "object": object_json(&object), "cause": cause }));
    }
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "the output of the program")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (sender, commands) = unbounded_channel();
    // Threads: stdin and stdout block.
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let (lines, mut queue) = unbounded_channel::<Value>();
    let printer = thread::spawn(move || {
        while let Some(line) = queue.blocking_recv() {
            println!("{line}");
        }
    });
    run(commands, lines).await?;
    // Its lines may not all be printed yet; those of handler calls that go on are none of a driver that has ended.
    drop(printer);
    Ok(())
}
