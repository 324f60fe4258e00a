//! Requests to the API server, by its own count.

use std::time::Instant;

use futures_util::future::join_all;
use informerd::proto::pb;
use serde_json::json;

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer, CONFIG_MAPS, Kind, THINGS},
    follow::Follower,
    kube::{config_maps, things},
    selection::Selection,
    served::Served,
};

/// Requests for one kind in all namespaces, or for one object of it by name. Only informerd and these tests make them. GETs of
/// kube-system for its uid, which informerd sends before each list and watch, are not counted: the API server makes some, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Requests {
    /// Whole lists, as the initial events of a watch.
    streamed: u64,
    /// Requests for lists: a page each, or the version of the cluster.
    lists: u64,
    /// Lists of one object by its name in its namespace: the last known change, before a watch is opened again.
    heads: u64,
    /// Watches that are open, and those that have been.
    watches: u64,
    /// Watches that were refused.
    refused: u64,
}

const CONNECTIONS: usize = 4;
const CLIENTS: usize = 1_000;
const LISTS: usize = 100;

/// Checks that the number of requests does not depend on the number of clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_gets_one_list_and_watch_whatever_the_number_of_clients() {
    // Without streamed initial events, informerd requests them in vain before each list.
    for (flags, streamed) in [(&[][..], 1), (&["--feature-gates=WatchList=false"], 0)] {
        let apiserver = ApiServer::with(flags).await;
        for (kind, source) in [(THINGS, things()), (CONFIG_MAPS, config_maps())] {
            let before = requests(&apiserver, kind).await;
            create(&apiserver, kind, "first").await;
            let served = Served::kube(&apiserver, ADMIN, source).await;
            let once = Requests { streamed, lists: 1 - streamed, heads: 0, watches: 1, refused: 1 - streamed };
            until_watched(&apiserver, kind).await;
            assert_eq!(requests(&apiserver, kind).await.since(before), once, "no clients");

            let mut followers = follow(&served, 1).await;
            assert_eq!(requests(&apiserver, kind).await.since(before), once, "one client");

            followers.extend(follow(&served, CLIENTS - 1).await);
            let version = create(&apiserver, kind, "second").await;
            for follower in &followers {
                assert_eq!(follower.reach(version).await.told.len(), 2);
            }
            let mut client = served.client().await;
            for _ in 0..LISTS {
                let request = pb::ListRequest { resource: "things".to_owned(), ..pb::ListRequest::default() };
                let listed = client.list(request).await.unwrap().into_inner().message().await.unwrap().unwrap();
                assert_eq!(listed.objects.len(), 2);
            }
            assert_eq!(requests(&apiserver, kind).await.since(before), once, "{CLIENTS} clients");

            // informerd opens a watch again once it has found the last change unchanged: one request for that one object.
            served.cut();
            let version = create(&apiserver, kind, "third").await;
            for follower in &followers {
                assert_eq!(follower.reach(version).await.told.len(), 3);
            }
            let again = Requests { heads: 1, watches: 2, ..once };
            // Between the end of a watch and its count, the API server has it in neither of its metrics.
            let started = Instant::now();
            while requests(&apiserver, kind).await.since(before) != again && started.elapsed() < DEADLINE {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            assert_eq!(requests(&apiserver, kind).await.since(before), again, "after a cut");
        }
    }
}

async fn requests(apiserver: &ApiServer, kind: Kind) -> Requests {
    let metrics = apiserver.metrics().await;
    let resource = format!("resource=\"{}\"", kind.plural);
    let count_of = |scope: &str, name: &str, labels: &[&str]| {
        let labels = [&[&*resource, scope], labels].concat();
        let is_it = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
        metrics.lines().filter(is_it).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let count = |name: &str, labels: &[&str]| count_of("scope=\"cluster\"", name, labels);
    let (total, watch, ok) = ("apiserver_request_total{", "verb=\"WATCH\"", "code=\"200\"");
    let ended = count(total, &[watch, ok]);
    Requests {
        streamed: count("apiserver_watch_list_duration_seconds_count{", &[]),
        lists: count(total, &["verb=\"LIST\"", ok]),
        // The API server counts it as a GET of that object if the resource is a custom one.
        heads: count_of("scope=\"namespace\"", total, &["verb=\"LIST\"", ok])
            + count_of("scope=\"resource\"", total, &["verb=\"GET\"", ok]),
        watches: ended + count("apiserver_longrunning_requests{", &[watch]),
        refused: count(total, &[watch]) - ended,
    }
}

async fn until_watched(apiserver: &ApiServer, kind: Kind) {
    let started = Instant::now();
    while requests(apiserver, kind).await.watches == 0 {
        assert!(started.elapsed() < DEADLINE, "a watch in time");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Creates one more object, and returns its version.
async fn create(apiserver: &ApiServer, kind: Kind, name: &str) -> i64 {
    let metadata = json!({ "name": name, "labels": { "suite": "truth" } });
    let object = kind.object(&metadata, &json!({ "value": name }));
    let created = apiserver.ask("POST", &kind.path("a"), Some(&object)).await.unwrap();
    created["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

async fn follow(served: &Served, clients: usize) -> Vec<Follower> {
    let connections = join_all((0..CONNECTIONS).map(|_| served.client())).await;
    let mut selection = Selection::default();
    selection.request.bookmark_interval = None;
    let following =
        connections.iter().cycle().take(clients).map(|client| Follower::of(client.clone(), selection.clone()));
    join_all(following).await
}

// === impl Requests ===

impl Requests {
    fn since(self, before: Self) -> Self {
        Self {
            streamed: self.streamed - before.streamed,
            lists: self.lists - before.lists,
            heads: self.heads - before.heads,
            watches: self.watches - before.watches,
            refused: self.refused - before.refused,
        }
    }
}
