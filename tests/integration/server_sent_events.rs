//! Resources under their own names, over HTTP/1.1 on plain sockets: lists, objects, and watches as server-sent events.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use informerd::{
    auth::{Authentication, Authorizer, Rules, TokenFile},
    cache::{Delta, List},
    grpc::AccessConfig,
    model::{Cause, Event, ResourceVersion},
    proto::pb,
    watch::Retention,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
};

use crate::{
    kubernetes::{Answer, ask, send, serve},
    sandbox::{DEADLINE, Options, Sandbox, pod, pod_at},
};

/// Server of the pods of a sandbox.
pub(crate) struct Api {
    pub(crate) sandbox: Sandbox,
    pub(crate) address: SocketAddr,
    _server: JoinHandle<()>,
}

/// Reader of server-sent events, by the rules of the standard.
pub(crate) struct Events {
    stream: BufReader<TcpStream>,
    text: String,
}

/// Event as a client of the standard gets it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SentEvent {
    name: String,
    id: Option<String>,
    pub(crate) data: Value,
}

impl Events {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(stream), text: String::new() }
    }

    /// Returns the next event; none at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<SentEvent> {
        loop {
            if let Some(at) = self.text.find("\n\n") {
                let block: String = self.text.drain(..at + 2).collect();
                return Some(SentEvent::parse(block.trim_end()));
            }
            let mut size = String::new();
            tokio::time::timeout(DEADLINE, self.stream.read_line(&mut size)).await.expect("a chunk in time").unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            if size == 0 {
                assert_eq!(self.text, "", "a part of an event");
                return None;
            }
            let mut chunk = vec![0; size + 2];
            tokio::time::timeout(DEADLINE, self.stream.read_exact(&mut chunk)).await.expect("a chunk in time").unwrap();
            self.text.push_str(std::str::from_utf8(&chunk[..size]).unwrap());
        }
    }

    async fn some(&mut self, count: usize) -> Vec<SentEvent> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.next().await.expect("an event"));
        }
        events
    }

    pub(crate) async fn words(&mut self, count: usize) -> Vec<String> {
        self.some(count).await.iter().map(SentEvent::words).collect()
    }

    /// Returns all events up to the end of the stream.
    async fn rest(&mut self) -> Vec<SentEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            assert!(events.len() < 100, "no end: {events:#?}");
            events.push(event);
        }
        events
    }
}

impl SentEvent {
    fn parse(block: &str) -> Self {
        let (mut name, mut id, mut data) = ("", None, Vec::new());
        for line in block.lines() {
            let (field, value) = line.split_once(": ").unwrap();
            match field {
                "event" => name = value,
                "id" => id = Some(value.to_owned()),
                "data" => data.push(value),
                other => panic!("an unknown field: {other}"),
            }
        }
        Self { name: name.to_owned(), id, data: serde_json::from_str(&data.join("\n")).unwrap() }
    }

    /// Returns type, name and version.
    fn words(&self) -> String {
        let (object, event_type) = (&self.data["object"], self.data["type"].as_str().unwrap_or("ERROR"));
        assert_eq!(self.name.is_empty(), !object.is_null(), "{self:?}");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = if object.is_null() { String::new() } else { format!(" {}", text(&object["name"])) };
        let of = if object.is_null() { &self.data } else { object };
        format!("{event_type}{name} @{}", text(&of["resourceVersion"]))
    }

    fn id(&self) -> &str {
        self.id.as_deref().expect("an id")
    }
}

impl Api {
    async fn start(objects: &[(&str, &str)]) -> Self {
        Self::with(Options::default(), objects).await
    }

    pub(crate) async fn with(options: Options, objects: &[(&str, &str)]) -> Self {
        let objects = objects.iter().map(|(namespace, name)| pod(namespace, name, r#""nodeName":"n1""#)).collect();
        Self::of(Sandbox::start_with(options, objects).await).await
    }

    pub(crate) async fn of(sandbox: Sandbox) -> Self {
        let (address, server) = serve(&sandbox, false).await;
        Self { sandbox, address, _server: server }
    }

    async fn get(&self, target: &str) -> Answer {
        ask(self.address, "GET", target, &[], "").await
    }

    pub(crate) async fn watch(&self, query: &str) -> Events {
        self.watch_by(query, &[]).await
    }

    async fn watch_by(&self, query: &str, headers: &[(&str, &str)]) -> Events {
        let (stream, head) = send(self.address, "GET", &format!("/v1/pods/watch?{query}"), headers, "").await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
        assert!(head.contains("cache-control: no-cache") && head.contains("x-accel-buffering: no"), "{head}");
        Events::new(stream)
    }

    async fn resume(&self, query: &str, id: &str) -> Events {
        self.watch_by(query, &[("Last-Event-ID", id)]).await
    }

    /// Applies a transaction: changes at one version.
    async fn transact(&mut self, names: &[(&str, &str)]) -> ResourceVersion {
        let version = self.sandbox.version();
        let events = names.iter().map(|(namespace, name)| Event::Modified(pod_at(namespace, name, "", &version)));
        self.sandbox.say(Delta::Changes { events: events.collect(), closes: true }).await;
        self.sandbox.reached(&version).await;
        version
    }
}

#[tokio::test]
async fn objects_are_read_under_the_name_of_their_resource() {
    let mut api = Api::start(&[("a", "1"), ("a", "2"), ("b", "3")]).await;
    let list = api.get("/v1/pods").await;
    assert!(list.head.contains("content-type: application/json\r\n"), "{}", list.head);
    let names = |list: &Value| -> Vec<String> {
        let objects = list["objects"].as_array().unwrap().iter();
        objects.map(|object| object["name"].as_str().unwrap().to_owned()).collect()
    };
    let list = list.json();
    assert_eq!((names(&list), &list["resourceVersion"]), (vec!["1".into(), "2".into(), "3".into()], &json!("1")));
    let first = json!({ "name": "1", "namespace": "a", "resourceVersion": "1", "apiVersion": "v1", "kind": "Pod", "labels": { "app": "1" },
        "body": { "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": "a", "name": "1", "labels": { "app": "1" } }, "spec": { "nodeName": "n1" } } });
    assert_eq!(list["objects"][0], first);
    assert_eq!(api.get("/v1/pods/a/1").await.json(), first);
    for (query, expected) in [
        ("namespace=b", &["3"][..]),
        ("labelSelector=app%3D2", &["2"]),
        ("fieldSelector=metadata.name%3D1", &["1"]),
        ("expression=object.metadata.name%20%3E%20%221%22", &["2", "3"]),
        ("namespace=c", &[]),
    ] {
        assert_eq!(names(&api.get(&format!("/v1/pods?{query}")).await.json()), expected, "{query}");
    }
    let page = api.get("/v1/pods?limit=2").await.json();
    assert_eq!((names(&page), &page["remainingItemCount"]), (vec!["1".into(), "2".into()], &json!(1)));
    let rest = api.get(&format!("/v1/pods?limit=2&continue={}", page["continue"].as_str().unwrap())).await.json();
    assert_eq!((names(&rest), rest.get("continue")), (vec!["3".into()], None));
    let bare = api.get("/v1/pods?format=metadata").await.json();
    assert_eq!((bare["objects"][0].get("body"), &bare["objects"][0]["labels"]), (None, &json!({ "app": "1" })));
    assert_eq!(api.get("/v1/pods/a/1?format=metadata").await.json().get("body"), None);
    let changed = api.sandbox.put("a", "1", "").await;
    api.sandbox.reached(changed.version()).await;
    let past = api.get("/v1/pods?resourceVersion=1&resourceVersionMatch=Exact").await.json();
    assert_eq!((&past["resourceVersion"], &past["objects"][0]), (&json!("1"), &first));
    assert_eq!(api.get("/v1/pods/a/1?resourceVersion=1&resourceVersionMatch=Exact").await.json(), first);
    assert_eq!(api.get("/v1/pods/a/1?resourceVersion=2").await.json()["resourceVersion"], "2");
    let head = ask(api.address, "HEAD", "/v1/pods", &[], "").await;
    assert_eq!((head.code, head.text.len()), (200, 0));
}

#[tokio::test]
async fn a_request_that_cannot_be_answered_is_refused_with_a_status() {
    let api = Api::start(&[("a", "1")]).await;
    for (target, code) in [
        ("/v1", 404),
        ("/v1/pods/a", 404),
        ("/v1/pods/a/2", 404),
        ("/v1/pods/-/1", 404),
        ("/v1/pods/a/1/log", 404),
        ("/v1/things", 404),
        ("/v1/things/watch", 404),
        ("/v1/things/a/b", 404),
        ("/v1/pods?watch=true", 400),
        ("/v1/pods?limit=2&limit=3", 400),
        ("/v1/pods?limit=-1", 400),
        ("/v1/pods?format=struct", 400),
        ("/v1/pods?continue=x", 400),
        ("/v1/pods?resourceVersion=x", 400),
        ("/v1/pods?resourceVersionMatch=Exact", 400),
        ("/v1/pods?resourceVersion=1&resourceVersionMatch=exact", 400),
        ("/v1/pods?labelSelector=%3D%3D", 400),
        ("/v1/pods/a/1?namespace=b", 400),
        ("/v1/pods/watch?limit=5", 400),
        ("/v1/pods/watch?policy=fast", 400),
        ("/v1/pods/watch?queueLength=99999999", 400),
        ("/v1/pods/watch?resourceVersion=x", 400),
        ("/v1/pods/watch?fieldSelector=%3D%3D%3D", 400),
        ("/v1/pods/watch?expression=1%20%2B", 400),
        ("/v1/pods/watch?resourceVersion=1;x;2", 400),
    ] {
        assert_eq!(api.get(target).await.failure().0, code, "{target}");
    }
    let unknown = api.get("/v1/pods/watch?labelselector=a").await.json()["message"].as_str().unwrap().to_owned();
    assert!(unknown.contains("unknown parameter \"labelselector\"") && unknown.contains("labelSelector"), "{unknown}");
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer = ask(api.address, method, "/v1/pods", &[("Origin", "http://page.example")], "").await;
        assert_eq!(answer.failure().0, 405, "{method}");
        assert!(!answer.head.contains("access-control-"), "{}", answer.head);
    }
    let options = Options { allowed_policies: vec![informerd::watch::FullChannelPolicy::Drop], ..Options::default() };
    let api = Api::with(options, &[]).await;
    assert_eq!(api.get("/v1/pods/watch?policy=replay").await.failure().0, 400);
}

#[tokio::test]
async fn a_watch_is_the_objects_a_bookmark_and_their_changes() {
    let mut api = Api::start(&[("a", "1"), ("b", "2")]).await;
    let mut watch = api.watch("").await;
    let initial = watch.some(3).await;
    let words: Vec<_> = initial.iter().map(SentEvent::words).collect();
    assert_eq!(words, ["ADDED 1 @1", "ADDED 2 @1", "BOOKMARK @1"]);
    assert_eq!((&initial[0].id, &initial[0].data["cause"]), (&None, &json!("INITIAL")));
    assert_eq!((&*initial[2].name, &initial[2].data["initialEventsEnd"]), ("bookmark", &json!(true)));
    assert!(initial[2].id().starts_with("1;"), "{:?}", initial[2]);
    let changed = api.sandbox.put("a", "1", r#""n":1"#).await;
    let event = watch.next().await.unwrap();
    assert_eq!((event.words(), &event.data["object"]["body"]["spec"]), ("MODIFIED 1 @2".into(), &json!({ "n": 1 })));
    assert!(event.id().starts_with("2;") && event.data.get("cause").is_none(), "{event:?}");
    api.sandbox.delete(&changed).await;
    assert_eq!(watch.words(1).await, ["DELETED 1 @3"]);
    let mut selected = api.watch("namespace=a&labelSelector=app%3Dx&initialEvents=false&format=metadata").await;
    assert_eq!(selected.words(1).await, ["BOOKMARK @3"]);
    api.sandbox.put("a", "x", "").await;
    let event = selected.next().await.unwrap();
    assert_eq!((event.words(), event.data["object"].get("body")), ("ADDED x @4".into(), None));
    let mut later = api.watch("resourceVersion=2&fieldSelector=metadata.namespace%3Da").await;
    assert_eq!(later.words(3).await, ["DELETED 1 @3", "ADDED x @4", "BOOKMARK @4"]);
}

/// Cuts a client off after each event of transactions of several sizes, of which its selection has a part: whatever it has received, the
/// rest comes once, and in order.
#[tokio::test]
async fn a_client_that_resumes_by_its_last_id_misses_and_doubles_nothing() {
    let mut api = Api::start(&[]).await;
    let mut live = api.watch("namespace=shop").await;
    live.words(1).await;
    for names in [
        &[("shop", "a")][..],
        &[("shop", "a"), ("x", "1"), ("shop", "b"), ("shop", "c"), ("x", "2")],
        &[("x", "1"), ("shop", "a b/ä;%")],
        &[("shop", "c"), ("shop", "a"), ("shop", "b")],
    ] {
        api.transact(names).await;
    }
    let all = live.some(8).await;
    // Merged events have an order of their own, which no position of this one is in.
    let mut merged = api.resume("namespace=shop&policy=coalesce", "1").await;
    let merged = merged.some(8).await;
    assert!(merged.iter().all(|event| !event.id().contains("shop/")), "{merged:#?}");
    let inside = all.iter().filter(|event| event.id().contains("shop/")).count();
    assert_eq!(inside, 4, "positions inside a batch: {all:#?}");
    for (at, event) in all.iter().enumerate() {
        // As it reconnects a client repeats the parameters of its first request.
        let mut resumed = api.resume("namespace=shop&resourceVersion=1", event.id()).await;
        let mut rest = resumed.some(all.len() - at).await;
        let bookmark = rest.pop().unwrap();
        assert_eq!(bookmark.words(), "BOOKMARK @5", "after event {at}");
        assert_eq!(rest, all[at + 1..], "after event {at}");
    }
    // Live again: those that have resumed get the next change.
    let mut resumed = api.resume("namespace=shop", all[2].id()).await;
    resumed.some(6).await;
    api.transact(&[("shop", "d")]).await;
    assert_eq!(resumed.words(1).await, ["ADDED d @6"]);
}

#[tokio::test]
async fn a_client_that_was_cut_off_inside_a_relist_gets_the_rest_of_it() {
    let api = Api::start(&[("shop", "gone"), ("shop", "same")]).await;
    let mut watch = api.watch("resourceVersion=1").await;
    watch.words(1).await;
    let at = ResourceVersion::decimal;
    let events = ["x", "y", "z"].map(|name| Event::Modified(pod_at("shop", name, "", &at(5))));
    let deleted = |name: &str, version| Event::Deleted(pod_at("shop", name, "", &at(version)));
    // One object is another one of the same name by now.
    let same = [deleted("same", 6), Event::Modified(pod_at("shop", "same", "", &at(7)))];
    let events = events.into_iter().chain(same).chain([deleted("gone", 9)]);
    api.sandbox.say(Delta::Relist(events.collect(), Cause::Inferred)).await;
    let all = watch.some(6).await;
    assert!(all[5].id().starts_with("9;"), "{all:#?}");
    for (position, event) in all.iter().enumerate() {
        let mut resumed = api.resume("", event.id()).await;
        let rest = resumed.some(all.len() - position).await;
        assert_eq!(rest[..rest.len() - 1], all[position + 1..], "after event {position}");
    }
}

/// At another server a batch may have another order.
#[tokio::test]
async fn another_server_repeats_the_batch() {
    let mut apis = [Api::start(&[]).await, Api::start(&[]).await];
    for api in &mut apis {
        api.transact(&[("shop", "a"), ("shop", "b")]).await;
    }
    let [first, second] = apis;
    let mut watch = first.watch("resourceVersion=1").await;
    let inside = watch.next().await.unwrap();
    assert!(inside.id().contains("shop/a"), "{inside:?}");
    let mut resumed = second.resume("", inside.id()).await;
    assert_eq!(resumed.words(3).await, ["ADDED a @2", "ADDED b @2", "BOOKMARK @2"]);
}

#[tokio::test]
async fn versions_may_be_opaque() {
    let options = Options { lineage: Some("run1"), ..Options::default() };
    let mut api = Api::with(options, &[]).await;
    let mut watch = api.watch("").await;
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark.words(), "BOOKMARK @run1.1");
    let version = api.transact(&[("shop", "a"), ("shop", "b")]).await;
    let events = watch.some(2).await;
    let mut resumed = api.resume("", events[0].id()).await;
    assert_eq!(resumed.next().await.unwrap(), events[1]);
    assert_eq!(api.get(&format!("/v1/pods?resourceVersion={version}")).await.json()["resourceVersion"], "run1.2");
    assert_eq!(api.refused("run0.7").await.0, 410);
}

impl Api {
    /// Returns the code of a watch that resumes.
    async fn refused(&self, id: &str) -> (u16, String) {
        ask(self.address, "GET", "/v1/pods/watch", &[("Last-Event-ID", id)], "").await.failure()
    }
}

#[tokio::test]
async fn an_id_that_has_expired_is_gone() {
    let history = Retention { events: 2, ..informerd::watch::BroadcasterConfig::default().retention };
    let mut api = Api::with(Options { history, ..Options::default() }, &[]).await;
    let mut watch = api.watch("").await;
    let first = watch.next().await.unwrap();
    for _ in 0..5 {
        api.transact(&[("shop", "a")]).await;
    }
    let last = watch.some(5).await.pop().unwrap();
    assert_eq!(api.refused(first.id()).await, (410, "Expired".to_owned()));
    assert_eq!(api.refused("7;other.0;x").await.0, 400);
    let (version, history) = last.id().split_once(';').unwrap();
    let (run, number) = history.split_once('.').unwrap();
    let rewritten = format!("{version};{run}.{}", number.parse::<u64>().unwrap() + 1);
    assert_eq!(api.refused(&rewritten).await, (410, "Expired".to_owned()), "of another history");
    let mut resumed = api.resume("", last.id()).await;
    assert_eq!(resumed.words(1).await, ["BOOKMARK @6"]);
    let other = vec![pod_at("shop", "other", "", &ResourceVersion::decimal(3))];
    api.sandbox.say(Delta::HistoryRewritten(List::new(other, ResourceVersion::decimal(3)))).await;
    let end = resumed.rest().await.pop().unwrap();
    assert_eq!(
        (&*end.name, &end.id, &end.data["code"], &end.data["kind"]),
        ("error", &None, &json!(410), &json!("Status"))
    );
    assert_eq!(api.refused(last.id()).await.0, 410);
    let mut fresh = api.watch("").await;
    assert_eq!(fresh.words(2).await, ["ADDED other @3", "BOOKMARK @3"]);
}

#[tokio::test]
async fn a_drain_ends_a_watch_with_a_position_and_no_error() {
    let mut api = Api::start(&[("shop", "a")]).await;
    let mut watch = api.watch("").await;
    watch.words(2).await;
    api.transact(&[("shop", "b")]).await;
    watch.words(1).await;
    let (rest, ()) = tokio::join!(watch.rest(), async { api.sandbox.lifecycle.draining.cancel() });
    let words: Vec<_> = rest.iter().map(SentEvent::words).collect();
    assert_eq!(words, ["BOOKMARK @2"]);
    assert!(rest[0].id().starts_with("2;"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_after_its_timeout_and_sends_bookmarks_until_then() {
    let api = Api::start(&[("shop", "a")]).await;
    let begun = tokio::time::Instant::now();
    let mut watch = api.watch("resourceVersion=1&timeoutSeconds=70").await;
    let words: Vec<_> = watch.rest().await.iter().map(SentEvent::words).collect();
    assert_eq!(words, ["BOOKMARK @1"; 4], "at its begin, after 30 and 60 seconds, and at its end");
    assert_eq!(begun.elapsed().as_secs(), 70);
}

fn rules(namespaces: &[&str]) -> Rules {
    let rules = if namespaces.is_empty() {
        json!([])
    } else {
        json!([{ "subjects": ["user:ann"], "verbs": ["get", "list", "watch"], "resources": ["pods"], "namespaces": namespaces }])
    };
    Rules::from_value(&rules).unwrap()
}

#[tokio::test]
async fn a_caller_gets_what_its_rights_allow_as_long_as_they_do() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("tokens");
    std::fs::write(&path, crate::authentication::line("secret", "ann")).unwrap();
    let authorizer = Authorizer::of_rules(rules(&["shop"]));
    let access = AccessConfig { authorizer: Some(authorizer.clone()), ..AccessConfig::default() };
    let token_file = Some(TokenFile::load(&path).unwrap());
    let authentication = Some(Arc::new(Authentication { token_file, ..Authentication::default() }));
    let options = Options { access, authentication, ..Options::default() };
    let api = Api::with(options, &[("shop", "a"), ("other", "b")]).await;
    let bearer = [("Authorization", "Bearer secret")];
    let by = async |target: &str| ask(api.address, "GET", target, &bearer, "").await;
    for target in ["/v1/pods", "/v1/pods/watch", "/v1/pods/other/b", "/v1/pods?namespace=other", "/v1/things/x/y"] {
        assert_eq!(by(target).await.failure(), (403, "Forbidden".to_owned()), "{target}");
        assert_eq!(api.get(target).await.failure(), (401, "Unauthorized".to_owned()), "{target}");
    }
    assert_eq!(by("/v1/pods?namespace=shop").await.json()["objects"].as_array().unwrap().len(), 1);
    assert_eq!(by("/v1/pods/shop/a").await.code, 200);
    let mut watch = api.watch_by("namespace=shop", &bearer).await;
    assert_eq!(watch.words(2).await, ["ADDED a @1", "BOOKMARK @1"]);
    authorizer.set_rules(rules(&["other"]));
    let mut rest = watch.rest().await;
    let end = rest.pop().unwrap();
    assert_eq!((&*end.name, &end.data["code"], &end.data["reason"]), ("error", &json!(403), &json!("Forbidden")));
    let words: Vec<_> = rest.iter().map(SentEvent::words).collect();
    assert_eq!(words, ["BOOKMARK @1"], "the position up to which it had the right");
}

/// A selection by the content of bodies shows that content.
#[tokio::test]
async fn a_selection_by_content_needs_the_right_to_it_everywhere() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("tokens");
    std::fs::write(&path, crate::authentication::line("secret", "ann")).unwrap();
    let of = |namespaces: &[&str], formats: &[&str]| json!({ "subjects": ["user:ann"], "verbs": ["list", "watch"], "resources": ["pods"], "namespaces": namespaces, "formats": formats });
    let rules =
        Rules::from_value(&json!([of(&["*"], &["METADATA"]), of(&["shop"], &["METADATA", "STRUCT", "RAW"])])).unwrap();
    let access = AccessConfig { authorizer: Some(Authorizer::of_rules(rules)), ..AccessConfig::default() };
    let authentication =
        Authentication { token_file: Some(TokenFile::load(&path).unwrap()), ..Authentication::default() };
    let options = Options { access, authentication: Some(Arc::new(authentication)), ..Options::default() };
    let api = Api::with(options, &[("shop", "a"), ("other", "b")]).await;
    let by = async |target: &str| ask(api.address, "GET", target, &[("Authorization", "Bearer secret")], "").await;
    for read in ["", "/watch"] {
        for select in [
            "expression=object.spec.nodeName%3D%3D%22n1%22",
            "fieldSelector=spec.nodeName%3Dn1",
            "shard=spec.nodeName:0/1",
        ] {
            let target = format!("/v1/pods{read}?format=metadata&timeoutSeconds=1&{select}");
            let target = if read.is_empty() { target.replace("&timeoutSeconds=1", "") } else { target };
            assert_eq!(by(&target).await.failure().0, 403, "{target}");
            assert_eq!(by(&format!("{target}&namespace=shop")).await.code, 200, "{target}");
        }
        assert_eq!(by(&format!("/v1/pods{read}")).await.failure().0, 403, "no bodies of the others");
    }
    let all = by("/v1/pods?format=metadata").await.json();
    assert_eq!(all["objects"].as_array().unwrap().len(), 2);
    assert!(all["objects"].as_array().unwrap().iter().all(|object| object.get("body").is_none()));
}

#[tokio::test]
async fn watches_share_each_encoded_event() {
    let mut api = Api::start(&[]).await;
    let mut watches = Vec::new();
    for at in 0..20 {
        // Of different users and queues.
        let mut watch = api.watch(&format!("queueLength={}", at + 10)).await;
        watch.words(1).await;
        watches.push(watch);
    }
    let encoded = |api: &Api| {
        let stats = api.sandbox.informer.watch_stats().unwrap();
        stats.encoded.load(std::sync::atomic::Ordering::Relaxed)
    };
    let before = encoded(&api);
    for _ in 0..5 {
        api.transact(&[("shop", "a"), ("shop", "b")]).await;
    }
    for watch in &mut watches {
        watch.some(10).await;
    }
    assert_eq!(encoded(&api) - before, 10, "once for all");
    let channel = tonic::transport::Endpoint::new(api.sandbox.address().to_owned()).unwrap().connect().await.unwrap();
    let mut admin = pb::admin_service_client::AdminServiceClient::new(channel);
    let listed = admin.list_watchers(pb::ListWatchersRequest::default()).await.unwrap().into_inner().watchers;
    assert_eq!((listed.len(), &*listed[0].resource), (20, "pods"), "among those of gRPC");
    assert_eq!(api.sandbox.ledger.waiting().requests, 0, "a watch has limits of its own");
}

/// Opens a watch whose client has small buffers.
async fn slow_watch(api: &Api, query: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(api.address).await.unwrap();
    let request = format!("GET /v1/pods/watch?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        tokio::time::timeout(DEADLINE, stream.read_exact(&mut byte)).await.expect("a head in time").unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    stream
}

/// A client that reads nothing for a while loses nothing, or gets the number of what it lost, by its policy.
#[tokio::test]
async fn a_slow_reader_gets_what_its_policy_says() {
    const EVENTS: u64 = 400;
    for policy in ["replay", "coalesce", "drop"] {
        let history = Retention { size: 1 << 30, ..informerd::watch::BroadcasterConfig::default().retention };
        let mut api = Api::with(Options { history, ..Options::default() }, &[]).await;
        let mut watch = Events::new(slow_watch(&api, &format!("policy={policy}&queueLength=8")).await);
        watch.words(1).await;
        let filler = "x".repeat(64 << 10);
        for at in 0..EVENTS {
            let put = api.sandbox.put("shop", &format!("p{}", at % 4), &format!(r#""n":{at},"x":"{filler}""#)).await;
            api.sandbox.reached(put.version()).await;
        }
        let (mut counted, mut others, mut last) = (0, 0, String::new());
        while counted + others < EVENTS {
            let event = watch.next().await.unwrap();
            match &*event.name {
                "" => {
                    counted += 1;
                    let merged = event.data["coalesced"].as_u64().unwrap_or_default();
                    assert!(merged == 0 || policy == "coalesce", "{policy}");
                    others += merged;
                    last = event.words();
                }
                "dropped" => {
                    assert_eq!(policy, "drop");
                    others += event.data["count"].as_u64().unwrap();
                }
                "bookmark" => {}
                other => panic!("{other}"),
            }
        }
        assert_eq!(counted + others, EVENTS, "{policy}: each event is there, or counted");
        assert_eq!(others > 0, policy != "replay", "{policy}");
        if policy != "drop" {
            assert_eq!(last, format!("MODIFIED p{} @{}", (EVENTS - 1) % 4, EVENTS + 1), "{policy}");
        }
    }
}

/// Lets paused time pass until something is so. The limit is of real time: what other threads do takes none of the paused one.
pub(crate) async fn passes(is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "it is so in time");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The server ends it, and its memory is free.
#[tokio::test(start_paused = true)]
async fn a_reader_that_never_reads_is_closed() {
    let mut api = Api::start(&[]).await;
    let stream = slow_watch(&api, "").await;
    let filler = "x".repeat(256 << 10);
    for at in 0..64 {
        api.sandbox.put("shop", &format!("p{at}"), &format!(r#""x":"{filler}""#)).await;
    }
    passes(|| api.sandbox.ledger.connections() == 0).await;
    assert_eq!(api.sandbox.ledger.waiting().total(), 0);
    drop(stream);
}

/// As browsers do under TLS: many watches on one connection of HTTP/2.
#[tokio::test]
async fn watches_share_a_connection_of_http_2() {
    let mut api = Api::start(&[("shop", "a")]).await;
    let (client, connection) = h2::client::handshake(TcpStream::connect(api.address).await.unwrap()).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let mut bodies = Vec::new();
    for query in ["", "?labelSelector=app%3Da"].into_iter().cycle().take(10) {
        let request = http::Request::get(format!("http://localhost/v1/pods/watch{query}")).body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let (head, body) = response.await.unwrap().into_parts();
        assert_eq!(
            (head.status, &head.headers["content-type"]),
            (http::StatusCode::OK, &http::HeaderValue::from_static("text/event-stream"))
        );
        bodies.push((body, String::new()));
    }
    api.sandbox.put("shop", "a", "").await;
    for (body, text) in &mut bodies {
        while !text.contains("MODIFIED") {
            let data = tokio::time::timeout(DEADLINE, body.data()).await.expect("data in time").unwrap().unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            text.push_str(std::str::from_utf8(&data).unwrap());
        }
        let events: Vec<_> = text.trim_end().split("\n\n").map(|block| SentEvent::parse(block).words()).collect();
        assert_eq!(events, ["ADDED a @1", "BOOKMARK @1", "MODIFIED a @2"]);
    }
    api.sandbox.lifecycle.draining.cancel();
    for (body, text) in &mut bodies {
        text.clear();
        while let Some(data) = tokio::time::timeout(DEADLINE, body.data()).await.expect("an end in time") {
            text.push_str(std::str::from_utf8(&data.unwrap()).unwrap());
        }
        assert_eq!(SentEvent::parse(text.trim_end()).words(), "BOOKMARK @2");
        assert!(body.trailers().await.unwrap().is_none(), "those of gRPC");
    }
    driver.abort();
}

#[tokio::test]
async fn a_page_in_a_browser_reaches_no_objects_under_its_own_name() {
    let api = Api::start(&[("shop", "a")]).await;
    let stream = TcpStream::connect(api.address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    writer.write_all(b"GET /v1/pods/watch HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    reader.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}
