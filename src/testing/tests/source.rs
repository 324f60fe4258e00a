//! The source in memory, under a Reflector and behind the server.

use serde_json::{Value, json};

use super::*;
use crate::cache::{
    Delta, FifoBounds, List, ListVersion, ListerWatcher, RealFifo, Reflector, ReflectorConfig, SourceHealth, Watch,
};

fn pod(name: &str, phase: &str) -> Value {
    json!({ "kind": "Pod", "metadata": { "namespace": "shop", "name": name }, "status": { "phase": phase } })
}

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn listed(list: &List) -> String {
    let objects = list.objects.iter().map(|object| format!(" {}@{}", object.key().name(), object.version()));
    format!("{}:{}", list.version, objects.collect::<String>())
}

fn summary(delta: &Delta) -> String {
    let of = |kind: &str, object: &Object| format!("{kind} {}@{}", object.key().name(), object.version());
    match delta {
        Delta::Replace(list) => format!("list {}", listed(list)),
        Delta::HistoryRewritten(list) => format!("rewritten {}", listed(list)),
        Delta::Changes { events, .. } => match &events[..] {
            [Event::Added(object)] => of("added", object),
            [Event::Modified(object)] => of("modified", object),
            [Event::Deleted(object)] => of("deleted", object),
            events => panic!("{events:?}"),
        },
        delta => panic!("{delta:?}"),
    }
}

/// Returns the items that a watch has now.
fn ready(watch: &mut tokio_test::task::Spawn<Watch>) -> Vec<String> {
    let mut items = Vec::new();
    while let std::task::Poll::Ready(item) = watch.poll_next() {
        match item {
            Some(Ok(delta)) => items.push(summary(&delta)),
            Some(Err(error)) => items.push(error.to_string()),
            None => {
                items.push("end".to_owned());
                break;
            }
        }
    }
    items
}

async fn watch(source: &FakeSource, from: u128) -> tokio_test::task::Spawn<Watch> {
    tokio_test::task::spawn(source.watch(version(from)).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_source_counts_versions_and_a_watch_has_every_change_after_its_own() {
    let source = FakeSource::new();
    assert_eq!(listed(&source.list(ListVersion::Any).await.unwrap()), "1:");
    let mut live = watch(&source, 1).await;
    assert_eq!(ready(&mut live), [""; 0]);
    assert_eq!(source.add(&pod("a", "Pending")), version(2));
    assert!(live.is_woken());
    assert_eq!(source.modify(&pod("a", "Running")), version(3));
    assert_eq!(source.add(&pod("b", "Pending")), version(4));
    assert_eq!(source.delete("shop", "a"), version(5));
    let all = ["added a@2", "modified a@3", "added b@4", "deleted a@5"];
    assert_eq!(ready(&mut live), all);
    assert_eq!(ready(&mut watch(&source, 3).await), all[2..]);
    assert_eq!(ready(&mut watch(&source, 5).await), [""; 0]);
    assert_eq!(listed(&source.list(ListVersion::NotOlderThan(version(5))).await.unwrap()), "5: b@4");
    assert_eq!(source.version(), version(5));
    let early = source.list(ListVersion::NotOlderThan(version(6))).await.unwrap_err();
    assert!(matches!(early, SourceError::VersionTooLarge(_)));
    assert!(matches!(source.watch(version(6)).await.err(), Some(SourceError::VersionTooLarge(_))));
}

/// client-go's `AddDropWatch`, `ModifyDropWatch`, `DeleteDropWatch`.
#[tokio::test(start_paused = true)]
async fn open_watches_miss_what_is_changed_behind_them() {
    let source = FakeSource::new();
    source.add(&pod("a", "Pending"));
    let mut live = watch(&source, 2).await;
    source.add_drop_watch(&pod("b", "Pending"));
    source.modify_drop_watch(&pod("a", "Running"));
    source.add(&pod("c", "Pending"));
    source.delete_drop_watch("shop", "a");
    assert_eq!(ready(&mut live), ["added c@5"]);
    assert_eq!(ready(&mut watch(&source, 2).await), ["added b@3", "modified a@4", "added c@5", "deleted a@6"]);
    assert_eq!(listed(&source.list(ListVersion::MostRecent).await.unwrap()), "6: b@3 c@5");
}

/// client-go: `TestResetWatch`.
#[tokio::test(start_paused = true)]
async fn watches_close_after_the_changes_before_and_versions_expire() {
    let source = FakeSource::new();
    let mut live = watch(&source, 1).await;
    source.add(&pod("a", "Pending"));
    source.expire();
    source.close_watches();
    source.modify(&pod("a", "Running"));
    assert_eq!(ready(&mut live), ["added a@2", "end"]);
    assert_eq!(ready(&mut watch(&source, 2).await), ["modified a@3"], "the close was before this watch");
    assert!(matches!(source.watch(version(1)).await.err(), Some(SourceError::Expired(_))));
}

#[tokio::test(start_paused = true)]
async fn requests_fail_as_often_as_the_test_says() {
    let source = FakeSource::new();
    let refused = || SourceError::Refused("403".to_owned());
    source.fail_list(refused());
    source.fail_list(broken());
    source.fail_watch(refused());
    assert_eq!(source.list(ListVersion::Any).await, Err(refused()));
    assert_eq!(source.list(ListVersion::Any).await, Err(broken()));
    assert!(source.list(ListVersion::Any).await.is_ok());
    assert_eq!(source.watch(version(1)).await.err(), Some(refused()));
    assert!(source.watch(version(1)).await.is_ok());
}

/// Runs a Reflector over the source, with its queue.
struct Running {
    fifo: Arc<RealFifo>,
    task: JoinHandle<()>,
}

impl Running {
    fn start(source: &FakeSource) -> Self {
        let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
        let health = SourceHealth::new(source.heartbeat(), Duration::from_secs(15));
        let reflector = Reflector::new(source.clone(), Arc::clone(&fifo), health, ReflectorConfig::default());
        Self { fifo, task: tokio::spawn(reflector.run()) }
    }

    async fn next(&self) -> String {
        summary(&self.fifo.pop_batch(1, 1).await.unwrap()[0])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_reflector_follows_the_source_across_every_fault() {
    let source = FakeSource::new();
    source.fail_list(broken());
    source.add(&pod("a", "Pending"));
    let running = Running::start(&source);
    assert_eq!(running.next().await, "list 2: a@2");
    source.add(&pod("b", "Pending"));
    assert_eq!(running.next().await, "added b@3");

    source.close_watches();
    source.modify(&pod("b", "Running"));
    assert_eq!(running.next().await, "modified b@4", "without a list");

    source.delete_drop_watch("shop", "a");
    source.expire();
    source.close_watches();
    assert_eq!(running.next().await, "list 5: b@4");

    tokio::time::sleep(Duration::from_secs(10)).await;
    source.rewrite_history();
    source.add(&pod("c", "Pending"));
    assert_eq!(running.next().await, "rewritten 3: b@2 c@3");
    source.delete("shop", "b");
    assert_eq!(running.next().await, "deleted b@4");
}

#[tokio::test(start_paused = true)]
async fn a_rewritten_history_has_no_old_version_until_it_was_listed() {
    let source = FakeSource::new();
    source.add(&pod("a", "Pending"));
    let mut live = watch(&source, 2).await;
    source.rewrite_history();
    assert_eq!(ready(&mut live), ["upstream history rewritten: restored from a backup", "end"]);
    let is_rewritten = |error| matches!(error, Some(SourceError::HistoryRewritten(_)));
    assert!(is_rewritten(source.watch(version(2)).await.err()));
    assert!(is_rewritten(source.list(ListVersion::NotOlderThan(version(2))).await.err()));
    assert_eq!(listed(&source.list(ListVersion::MostRecent).await.unwrap()), "2: a@2");
    source.add(&pod("b", "Pending"));
    assert_eq!(ready(&mut watch(&source, 2).await), ["added b@3"], "and no change of the history before");
}

#[cfg(feature = "server")]
#[tokio::test]
async fn a_server_of_fakes_serves_them_until_it_is_dropped() {
    use crate::client::{Client, ClientError, Query};

    let (pods, nodes) = (FakeSource::new(), FakeSource::new());
    pods.add(&pod("a", "Running"));
    let server = serve([("pods", pods.clone()), ("nodes", nodes)]).await;
    let client = server.client().clone();
    let names = async |resource: &str| {
        let listed = client.list(&Query::of(resource)).await?;
        Ok::<_, ClientError>(listed.objects.into_iter().map(|object| object.name).collect::<Vec<_>>())
    };
    assert_eq!(names("pods").await.unwrap(), ["a"]);
    assert_eq!(names("nodes").await.unwrap(), [""; 0]);
    let other = Client::connect(server.address()).await.unwrap();
    assert_eq!(other.resources().await.unwrap().len(), 2);
    drop(server);
    assert!(names("pods").await.is_err());
}
