//! Shards, beside those of the API server with its feature gate on: lists and watches of the same parts have the same objects.

use std::collections::{BTreeMap, BTreeSet};

use informerd::{
    client::{Client, Query},
    model::{Shard, ShardKey},
    proto::pb,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer, CONFIG_MAPS, Kind, THINGS},
    kube::things,
    served::Served,
};

const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const PARTS: u64 = 3;

/// Returns the path of a list of a shard.
fn of_shard(kind: Kind, shard: &str, more: &str) -> String {
    format!("{}?shardSelector={}{more}", kind.all(), utf8_percent_encode(shard, NON_ALPHANUMERIC))
}

/// Checks that what the API server accepts as a shard is one here, and nothing else but hashes without leading zeros.
async fn check_texts(apiserver: &ApiServer) {
    let half = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')";
    for text in [
        half.to_owned(),
        half.replace('\'', "\""),
        half.replace('\'', "\"\"\""),
        half.replace("'0x8", "r'0x8"),
        half.replace("uid", "namespace"),
        half.replace("uid", "name"),
        half.replace("object.metadata.uid", "( object . metadata\n.uid )"),
        half.replace("0x0", "0X0"),
        half.replace("0x8", "0xA"),
        half.replace("0x8", "0x18"),
        half.replace("0x8", "0x0"),
        half.replace('8', "80"),
        half.replace("0x8000000000000000", "0x10000000000000000"),
        half.replace(')', ",)"),
        format!("(({half}) || {half})"),
        format!("({half}"),
        format!("{half} && {half}"),
        format!("{half} || {}", half.replace("uid", "namespace")),
        format!("// a comment\n{half} // and another"),
        format!("{half};"),
        " ".to_owned(),
    ] {
        let theirs = apiserver.ask("GET", &of_shard(CONFIG_MAPS, &text, ""), None).await;
        let ours = text.parse::<Shard>();
        assert_eq!(ours.is_ok(), theirs.is_ok(), "{text}: {ours:?} {:?}", theirs.err());
    }
    let short = half.replace("0x0000000000000000", "0x0");
    assert!(apiserver.ask("GET", &of_shard(CONFIG_MAPS, &short, ""), None).await.is_err(), "it needs all 16 digits");
    assert_eq!(short.parse::<Shard>(), half.parse());
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// Creates an object of a kind in each namespace.
async fn create(apiserver: &ApiServer, kind: Kind, name: &str) {
    for namespace in NAMESPACES {
        apiserver.post(&kind.path(namespace), &kind.object(&json!({ "name": name }), &json!({ "value": name }))).await;
    }
}

/// Kubernetes' `TestShardedList`, `TestShardedListByNamespace` and `TestShardedWatch`, with informerd beside it.
#[tokio::test]
async fn an_object_is_in_the_same_shard_as_at_the_api_server() {
    let apiserver = ApiServer::with(&["--feature-gates=ShardedListAndWatch=true"]).await;
    let config_maps = json!({ "version": "v1", "plural": "configmaps" });
    check_texts(&apiserver).await;
    for (kind, source) in [(THINGS, things()), (CONFIG_MAPS, config_maps)] {
        for number in 0..8 {
            create(&apiserver, kind, &format!("first-{number}")).await;
        }
        let all = apiserver.ask("GET", &kind.all(), None).await.unwrap();
        let all: BTreeSet<String> = all["items"].as_array().unwrap().iter().map(uid).collect();
        assert!(all.len() >= 24);
        let served = Served::kube(&apiserver, ADMIN, source).await;
        let client = Client::connect(&format!("http://{}", served.address()).parse().unwrap()).await.unwrap();
        for key in [ShardKey::Uid, ShardKey::Namespace] {
            let shards: Vec<Shard> = (0..PARTS).map(|part| Shard::part(key.clone(), part, PARTS).unwrap()).collect();
            let (mut found, mut since) = (BTreeSet::new(), BTreeMap::new());
            for shard in &shards {
                let theirs = apiserver.ask("GET", &of_shard(kind, &shard.to_string(), ""), None).await.unwrap();
                // Lists of custom resources are parts too, without this information.
                let is_named = theirs["metadata"]["shardInfo"]["selector"] == json!(shard.to_string());
                assert_eq!(is_named, kind.root == CONFIG_MAPS.root, "{theirs}");
                let version = theirs["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
                let theirs: BTreeSet<String> = theirs["items"].as_array().unwrap().iter().map(uid).collect();
                let query = Query { shard: Some(shard.clone()), ..Query::of("things") };
                let ours = client.list(&query).await.unwrap().objects;
                let uids: BTreeSet<String> = ours.into_iter().map(|object| object.uid).collect();
                assert_eq!(uids, theirs, "{} in {shard}", kind.plural);
                assert!(theirs.iter().all(|uid| found.insert(uid.clone())), "an object is in one shard");
                since.insert(shard.to_string(), version);
            }
            assert_eq!(found, all);

            // Each creation and deletion is an event of one of the shards.
            let name = format!("second-{key}").replace("object.metadata.", "");
            create(&apiserver, kind, &name).await;
            for namespace in NAMESPACES {
                apiserver.ask("DELETE", &format!("{}/{name}", kind.path(namespace)), None).await.unwrap();
            }
            let mut count = 0;
            for shard in &shards {
                let version = &since[&shard.to_string()];
                let theirs = watched(&apiserver, kind, shard, version).await;
                assert_eq!(followed(&client, shard, version, theirs.len()).await, theirs, "{} in {shard}", kind.plural);
                count += theirs.len();
            }
            assert_eq!(count, 2 * NAMESPACES.len());
        }
    }
}

/// Returns the events of a shard at the API server after a version: the type and the uid.
async fn watched(apiserver: &ApiServer, kind: Kind, shard: &Shard, version: &str) -> Vec<(String, String)> {
    let path = of_shard(kind, &shard.to_string(), &format!("&watch=1&timeoutSeconds=3&resourceVersion={version}"));
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let lines = apiserver.client.request_text(request).await.unwrap();
    let event = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        (event["type"].as_str().unwrap().to_owned(), uid(&event["object"]))
    };
    lines.lines().map(event).collect()
}

/// Returns so many events of a shard at informerd after a version.
async fn followed(client: &Client, shard: &Shard, version: &str, count: usize) -> Vec<(String, String)> {
    let request = pb::WatchRequest {
        resource: "things".to_owned(),
        resource_version: version.to_owned(),
        shard: Some(shard.into()),
        ..pb::WatchRequest::default()
    };
    let mut stream = client.open(request).await.unwrap();
    let mut events = Vec::new();
    while events.len() < count {
        let message = tokio::time::timeout(DEADLINE, stream.message()).await.expect("in time").unwrap().unwrap();
        let event_type = message.r#type().as_str_name().trim_start_matches("EVENT_TYPE_").to_owned();
        events.extend(message.object.map(|object| (event_type, object.uid)));
    }
    events
}
