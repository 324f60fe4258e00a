//! The examples in Rust, in the process of this test.

use std::{fs, future::Future, time::Duration};

use informerd::testing::{self, FakeSource};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{client_commands::Server, sandbox::DEADLINE};

#[path = "../../examples/backoff.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod backoff;
#[path = "../../examples/controller.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod controller;
#[path = "../../examples/embedded.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod embedded;
#[path = "../../examples/node-metadata/main.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod node_metadata;
#[path = "../../examples/typed_informer.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod typed_informer;
#[path = "../../examples/work_queue.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod work_queue;

/// Lines that an example prints, and its end.
struct Example {
    lines: mpsc::Receiver<String>,
    _end: oneshot::Sender<()>,
}

impl Example {
    async fn expect(&mut self, line: &str) {
        assert_eq!(self.lines.recv().await.as_deref(), Some(line));
    }
}

/// Returns an example, the function that prints its lines, and the future that it ends with.
fn example() -> (Example, impl Fn(String) + Clone + Send + Sync + 'static, impl Future<Output = ()>) {
    let (sender, lines) = mpsc::channel(64);
    let (end, ended) = oneshot::channel();
    (Example { lines, _end: end }, move |line| drop(sender.try_send(line)), async { drop(ended.await) })
}

#[tokio::test]
async fn the_embedded_example_prints_the_kinds_in_a_directory_and_each_change() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, color: &str| {
        let manifest = json!({ "kind": "Color", "metadata": { "name": name }, "color": color });
        fs::write(directory.path().join(format!("{name}.json")), manifest.to_string()).unwrap();
    };
    write("first", "red");
    write("second", "blue");
    let (mut example, print, end) = example();
    let changes = async {
        example.expect("2 Color").await;
        example.expect("watching").await;
        write("third", "green");
        example.expect("added Color third").await;
        write("third", "black");
        example.expect("updated Color third").await;
        fs::remove_file(directory.path().join("third.json")).unwrap();
        example.expect("deleted Color third").await;
        drop(example);
    };
    let run = embedded::run(directory.path().to_str().unwrap(), print, end);
    let (ran, ()) = timeout(DEADLINE, async { tokio::join!(run, changes) }).await.unwrap();
    ran.unwrap();
}

fn pod(name: &str, phase: &str) -> Value {
    let metadata = json!({ "namespace": "shop", "name": name, "labels": { "app": "web" } });
    json!({ "kind": "Pod", "metadata": metadata, "status": { "phase": phase } })
}

#[tokio::test]
async fn the_typed_example_prints_the_apps_of_a_server_and_each_change() {
    let pods = FakeSource::new();
    pods.add(&pod("web-1", "Running"));
    pods.add(&pod("web-2", "Running"));
    let server = testing::serve([("pods", pods.clone())]).await;
    let (mut example, print, end) = example();
    let changes = async {
        example.expect("2 shop/web").await;
        pods.add(&json!({ "metadata": { "name": "other", "labels": { "app": "db" } } }));
        pods.add(&pod("web-3", "Pending"));
        example.expect("added web-3").await;
        pods.modify(&pod("web-3", "Running"));
        example.expect(r#"updated web-3: "Pending" to "Running""#).await;
        pods.delete("shop", "web-3");
        example.expect("deleted web-3").await;
        drop(example);
    };
    let address = server.address().to_string();
    let run = typed_informer::run([&address, "pods", "app in (web)"], print, end);
    let (ran, ()) = timeout(DEADLINE, async { tokio::join!(run, changes) }).await.unwrap();
    ran.unwrap();
}

#[tokio::test]
async fn the_controller_example_reconciles_config_maps_when_they_or_their_pods_change() {
    let (config_maps, pods) = (FakeSource::new(), FakeSource::new());
    let web =
        |config: &str| json!({ "metadata": { "namespace": "shop", "name": "web", "labels": { "config": config } } });
    pods.add(&web("first"));
    let server = testing::serve([("configmaps", config_maps.clone()), ("pods", pods.clone())]).await;
    let (mut example, print, end) = example();
    let changes = async {
        example.expect("shop/first: missing for 1 pods").await;
        config_maps.add(&json!({ "metadata": { "namespace": "shop", "name": "first" } }));
        example.expect("shop/first: 1 pods").await;
        pods.delete("shop", "web");
        example.expect("shop/first: 0 pods").await;
        config_maps.delete("shop", "first");
        example.expect("shop/first: gone").await;
        drop(example);
    };
    let address = server.address().to_string();
    let run = controller::run(&address, print, end);
    let (ran, ()) = timeout(DEADLINE, async { tokio::join!(run, changes) }).await.unwrap();
    ran.unwrap();
}

/// With its configuration, over a directory in place of Kubernetes.
#[tokio::test]
async fn the_example_of_node_metadata_prints_small_records_when_they_change() {
    let directory = tempfile::tempdir().unwrap();
    let pods = directory.path().join("pods");
    fs::create_dir(&pods).unwrap();
    let write = |name: &str, node: &str, ip: &str, app: &str, heartbeat: u32| {
        let owner = json!([{ "kind": "ReplicaSet", "name": "web" }]);
        let metadata = json!({ "namespace": "shop", "name": name, "labels": { "app": app }, "ownerReferences": owner });
        let status = json!({ "podIPs": [{ "ip": ip }, { "ip": format!("fd00::{name}") }], "heartbeat": heartbeat });
        let manifest = json!({ "kind": "Pod", "metadata": metadata, "spec": { "nodeName": node }, "status": status });
        // Renamed, so that a reader never finds half of it.
        fs::write(directory.path().join("draft"), manifest.to_string()).unwrap();
        fs::rename(directory.path().join("draft"), pods.join(format!("{name}.json"))).unwrap();
    };
    write("a", "n1", "10.0.0.1", "web", 1);
    write("b", "n1", "10.0.0.2", "web", 1);
    write("other", "n2", "10.0.0.3", "web", 1);
    let config = include_str!("../../examples/node-metadata/informerd.yaml");
    let files = format!("{{ files: {{ path: {} }} }}", pods.display());
    let of_files = config.replace("{ kube: { version: v1, plural: pods } }", &files);
    assert_ne!(of_files, config);
    let config = directory.path().join("informerd.yaml");
    fs::write(&config, of_files).unwrap();
    let server = Server::start_at("127.0.0.1:0", &["--config", config.to_str().unwrap()]);

    let (mut example, print, _) = example();
    let line = |ip: &str, name: &str, app: &str| {
        format!("{ip} shop/{name} {{\"labels\":{{\"app\":\"{app}\"}},\"ownerReferences\":[{{\"name\":\"web\"}}]}}\n")
    };
    let of = |ip: &str, name: &str, app: &str| [line(ip, name, app), line(&format!("fd00::{name}"), name, app)];
    let table = |pods: &[[String; 2]]| {
        let mut lines = pods.concat();
        lines.sort();
        lines.concat()
    };
    let changes = async {
        let (a, b) = (of("10.0.0.1", "a", "web"), of("10.0.0.2", "b", "web"));
        example.expect(&table(std::slice::from_ref(&a))).await;
        example.expect(&table(&[a.clone(), b.clone()])).await;
        // A heartbeat, and a pod of another node, are not printed.
        write("a", "n1", "10.0.0.1", "web", 2);
        write("other", "n2", "10.0.0.4", "db", 2);
        write("b", "n1", "10.0.0.2", "db", 2);
        example.expect(&table(&[a.clone(), of("10.0.0.2", "b", "db")])).await;
        write("a", "n1", "10.0.0.9", "web", 3);
        example.expect(&table(&[of("10.0.0.9", "a", "web"), of("10.0.0.2", "b", "db")])).await;
        write("a", "n2", "10.0.0.9", "web", 3);
        example.expect(&table(&[of("10.0.0.2", "b", "db")])).await;
        fs::remove_file(pods.join("b.json")).unwrap();
        example.expect("").await;
    };
    let address = format!("http://{}", server.address);
    let run = node_metadata::run(&address, "n1", print);
    timeout(DEADLINE, async {
        tokio::select! {
            ran = run => panic!("it has ended: {ran:?}"),
            () = changes => {}
        }
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_backoff_example_tries_again_and_gives_up() {
    let (mut example, print, _) = example();
    let end = tokio::time::sleep(Duration::from_secs(1));
    backoff::run(vec![("b", 2), ("c", 9)], print, end).await.unwrap();
    for line in ["b: no answer", "c: no answer", "b: no answer", "c: no answer", "b: answers"] {
        example.expect(line).await;
    }
    for line in ["c: no answer", "c: given up"] {
        example.expect(line).await;
    }
    assert_eq!(example.lines.recv().await, None);
}

#[tokio::test]
async fn the_work_queue_example_repeats_what_fails_and_gives_up_after_three_attempts() {
    let (mut example, print, _) = example();
    let jobs = vec![("resize", 0), ("upload", 1), ("notify", 9), ("clean", 0), ("index", 2)];
    timeout(DEADLINE, work_queue::run(jobs, print, async {})).await.unwrap().unwrap();
    let mut lines = Vec::new();
    while let Some(line) = example.lines.recv().await {
        lines.push(line);
    }
    // Of one job in this order; jobs run at the same time.
    lines.sort_by_key(|line| line.split(':').next().unwrap().to_owned());
    let expected = [
        "clean: done",
        "index: attempt 1 failed, again later",
        "index: attempt 2 failed, again later",
        "index: done",
        "notify: attempt 1 failed, again later",
        "notify: attempt 2 failed, again later",
        "notify: 3 attempts failed",
        "resize: done",
        "upload: attempt 1 failed, again later",
        "upload: done",
    ];
    assert_eq!(lines, expected);
}
