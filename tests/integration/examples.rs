//! The examples in Rust, in the process of this test.

use std::{fs, future::Future};

use informerd::testing::{self, FakeSource};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::sandbox::DEADLINE;

#[path = "../../examples/embedded.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod embedded;
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
fn example() -> (Example, impl Fn(String) + Clone + Send + 'static, impl Future<Output = ()>) {
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
