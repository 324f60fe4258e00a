//! Reads of exactly one version, and the differences between two: the objects are those that the resource had then.

use std::{collections::BTreeMap, time::Duration};

use informerd::{
    cache::{Delta, List},
    model::{Event, ResourceVersion},
    proto::pb::{self, EventType, ResourceVersionMatch},
};
use tonic::{Code, Request, Status};

use crate::{
    kubernetes::{ask, serve},
    sandbox::{Options, Sandbox, next, pod, pod_at, raw, reason, watch_pods, words},
};

const EXACT: i32 = ResourceVersionMatch::Exact as i32;

fn list_at(version: &str) -> pb::ListRequest {
    pb::ListRequest {
        resource: "pods".to_owned(),
        format: pb::PayloadFormat::Raw.into(),
        min_resource_version: version.to_owned(),
        resource_version_match: EXACT,
        ..Default::default()
    }
}

/// Returns a request for the pod "shop/a".
fn get_at(version: &str) -> pb::GetRequest {
    pb::GetRequest {
        resource: "pods".to_owned(),
        namespace: "shop".to_owned(),
        name: "a".to_owned(),
        min_resource_version: version.to_owned(),
        resource_version_match: EXACT,
        ..Default::default()
    }
}

fn changes(from: &str, to: &str) -> pb::ChangesRequest {
    pb::ChangesRequest {
        resource: "pods".to_owned(),
        from_resource_version: from.to_owned(),
        to_resource_version: to.to_owned(),
        format: pb::PayloadFormat::Raw.into(),
        ..Default::default()
    }
}

/// Formats an object: key and version.
fn key(object: &pb::Object) -> String {
    format!("{}/{}@{}", object.namespace, object.name, object.resource_version)
}

/// Returns the objects of a list, its versions, and the token of the next page.
async fn listed(sandbox: &Sandbox, request: pb::ListRequest) -> Result<(Vec<String>, String, String), Status> {
    let mut stream = sandbox.client().await.list(request).await?.into_inner();
    let (mut keys, mut version, mut token) = (Vec::new(), String::new(), String::new());
    while let Some(chunk) = stream.message().await? {
        keys.extend(chunk.objects.iter().map(key));
        (version, token) = (chunk.resource_version, chunk.next_page_token);
    }
    Ok((keys, version, token))
}

/// Returns the changes, one text each, and the later version.
async fn differences(sandbox: &Sandbox, request: pb::ChangesRequest) -> Result<(Vec<String>, String), Status> {
    let mut stream = sandbox.client().await.changes(request).await?.into_inner();
    let (mut found, mut version) = (Vec::new(), String::new());
    while let Some(chunk) = stream.message().await? {
        found.extend(chunk.changes.iter().map(|change| {
            let states = [&change.old, &change.new].map(|state| state.as_ref().map(key).unwrap_or_default());
            format!("{} {} → {}", change.r#type().as_str_name().trim_start_matches("EVENT_TYPE_"), states[0], states[1])
        }));
        version = chunk.resource_version;
    }
    Ok((found, version))
}

/// A sandbox with the versions 1 to 5: a and b exist; a changes; c is added; b is deleted; c moves to another node.
async fn shop() -> Sandbox {
    shop_with(Options::default()).await
}

async fn shop_with(options: Options) -> Sandbox {
    let pods = vec![pod("shop", "a", r#""nodeName":"n1""#), pod("shop", "b", "")];
    let mut sandbox = Sandbox::start_with(options, pods).await;
    let b = pod("shop", "b", "");
    sandbox.put("shop", "a", r#""nodeName":"n2""#).await;
    sandbox.put("shop", "c", r#""nodeName":"n1""#).await;
    sandbox.delete(&b).await;
    let last = sandbox.put("shop", "c", r#""nodeName":"n2""#).await;
    sandbox.push(Event::Bookmark(last.version().clone())).await;
    sandbox.reached(last.version()).await;
    sandbox
}

#[tokio::test]
async fn a_list_of_a_version_has_its_objects() {
    let sandbox = shop().await;
    let expected: [&[&str]; 5] = [
        &["shop/a@1", "shop/b@1"],
        &["shop/a@2", "shop/b@1"],
        &["shop/a@2", "shop/b@1", "shop/c@3"],
        &["shop/a@2", "shop/c@3"],
        &["shop/a@2", "shop/c@5"],
    ];
    for (version, expected) in ["1", "2", "3", "4", "5"].into_iter().zip(expected) {
        let (keys, found, _) = listed(&sandbox, list_at(version)).await.unwrap();
        assert_eq!((keys, &*found), (expected.iter().map(|&key| key.to_owned()).collect(), version));
    }
    let later = pb::ListRequest { resource_version_match: 0, ..list_at("2") };
    assert_eq!(listed(&sandbox, later).await.unwrap().1, "5", "not older than");
    let index = |version: &str, value: &str| pb::ListRequest {
        index: Some(pb::IndexMatch { name: "node".to_owned(), values: vec![value.to_owned()] }),
        ..list_at(version)
    };
    for (version, on_n1, on_n2) in [("1", &["shop/a@1"][..], &[][..]), ("3", &["shop/c@3"], &["shop/a@2"])] {
        assert_eq!(listed(&sandbox, index(version, "n1")).await.unwrap().0, on_n1, "{version}");
        assert_eq!(listed(&sandbox, index(version, "n2")).await.unwrap().0, on_n2, "{version}");
    }
}

#[tokio::test]
async fn a_lookup_and_a_get_of_a_version_have_its_objects() {
    let sandbox = shop().await;
    let mut client = sandbox.client().await;
    let by_index = |version: &str, value: &str, like: &str| pb::ByIndexRequest {
        resource: "pods".to_owned(),
        index: "node".to_owned(),
        value: value.to_owned(),
        like: (!like.is_empty()).then(|| pb::ObjectKey { namespace: "shop".to_owned(), name: like.to_owned() }),
        min_resource_version: version.to_owned(),
        resource_version_match: EXACT,
        ..Default::default()
    };
    for (request, expected) in [
        (by_index("2", "n1", ""), &[][..]),
        (by_index("4", "n1", ""), &["shop/c@3"]),
        (by_index("5", "", "c"), &["shop/a@2", "shop/c@5"]),
        (by_index("4", "", "c"), &["shop/c@3"]),
    ] {
        let chunk = client.by_index(request.clone()).await.unwrap().into_inner().message().await.unwrap().unwrap();
        assert_eq!(chunk.objects.iter().map(key).collect::<Vec<_>>(), expected, "{request:?}");
        assert_eq!(chunk.resource_version, request.min_resource_version);
    }
    assert_eq!(reason(&client.by_index(by_index("2", "", "c")).await.unwrap_err()), "OBJECT_NOT_FOUND");
    let get = |name: &str, version: &str| pb::GetRequest { name: name.to_owned(), ..get_at(version) };
    for (name, version, expected) in
        [("a", "1", "shop/a@1"), ("a", "4", "shop/a@2"), ("b", "3", "shop/b@1"), ("c", "5", "shop/c@5")]
    {
        let got = client.get(get(name, version)).await.unwrap().into_inner();
        assert_eq!((key(&got.object.unwrap()), &*got.resource_version), (expected.to_owned(), version));
    }
    for (name, version) in [("c", "2"), ("b", "4"), ("b", "5")] {
        let status = client.get(get(name, version)).await.unwrap_err();
        assert_eq!(reason(&status), "OBJECT_NOT_FOUND", "{name} at {version}");
    }
}

#[tokio::test]
async fn the_pages_of_a_version_are_all_of_that_version() {
    let mut sandbox = shop().await;
    let mut request = pb::ListRequest { page_size: 1, ..list_at("3") };
    let mut keys = Vec::new();
    loop {
        let (page, version, token) = listed(&sandbox, request.clone()).await.unwrap();
        assert_eq!(version, "3");
        keys.extend(page);
        if token.is_empty() {
            break;
        }
        request.page_token = token;
        let other = pb::ListRequest { resource_version_match: 0, ..request.clone() };
        assert_eq!(reason(&listed(&sandbox, other).await.unwrap_err()), "PAGE_TOKEN_INVALID");
        let put = sandbox.put("shop", "a", "").await;
        sandbox.reached(put.version()).await;
    }
    assert_eq!(keys, ["shop/a@2", "shop/b@1", "shop/c@3"]);
}

#[tokio::test]
async fn versions_without_a_state_are_refused() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let at = |number: u128| ResourceVersion::decimal(number);
    let events =
        vec![Event::Modified(pod_at("shop", "b", "", &at(3))), Event::Modified(pod_at("shop", "c", "", &at(5)))];
    sandbox.say(Delta::Changes { events: events.into(), closes: true }).await;
    sandbox.reached(&at(5)).await;
    sandbox.list(vec![pod("shop", "a", "")], 9).await;
    sandbox.reached(&at(9)).await;
    let refused = async |version: &str, expected: &str| {
        let status = listed(&sandbox, list_at(version)).await.unwrap_err();
        assert_eq!(reason(&status), expected, "{version}: {status}");
        let mut client = sandbox.client().await;
        assert_eq!(reason(&client.get(get_at(version)).await.unwrap_err()), expected, "{version}");
        status
    };
    for (version, what) in [("4", "inside a batch"), ("7", "inside a relist"), ("x.5", "another lineage")] {
        assert_eq!(refused(version, "RESOURCE_VERSION_EXPIRED").await.code(), Code::OutOfRange, "{what}");
    }
    assert_eq!(refused("", "RESOURCE_VERSION_INVALID").await.code(), Code::InvalidArgument);
    let unknown = pb::ListRequest { resource_version_match: 7, ..list_at("9") };
    assert_eq!(reason(&listed(&sandbox, unknown).await.unwrap_err()), "RESOURCE_VERSION_INVALID");
    for version in ["1", "2", "5", "9"] {
        assert_eq!(listed(&sandbox, list_at(version)).await.unwrap().1, version);
    }
    let put = sandbox.put("shop", "a", "").await;
    sandbox.reached(put.version()).await;
}

#[tokio::test(start_paused = true)]
async fn a_later_version_is_awaited() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let at = |number: u128| ResourceVersion::decimal(number);
    // More changes may come at this version.
    let events = vec![Event::Modified(pod_at("shop", "b", "", &at(5)))];
    sandbox.say(Delta::Changes { events: events.into(), closes: false }).await;
    sandbox.reached(&at(5)).await;
    let mut client = sandbox.in_process();
    let status = client.list(list_at("5")).await.unwrap_err();
    assert_eq!((status.code(), &*reason(&status)), (Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE"));
    let mut other = client.clone();
    let (listed, ()) = tokio::join!(other.list(list_at("5")), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sandbox.push(Event::Modified(pod_at("shop", "c", "", &at(7)))).await;
    });
    let chunk = listed.unwrap().into_inner().message().await.unwrap().unwrap();
    assert_eq!(chunk.objects.iter().map(key).collect::<Vec<_>>(), ["shop/a@1", "shop/b@5"]);
}

#[tokio::test(start_paused = true)]
async fn states_of_the_past_are_limited_in_number() {
    let sandbox = shop_with(Options { peer_share: 25, ..Options::default() }).await;
    let mut client = sandbox.in_process();
    let mut open = Vec::new();
    // One caller has a quarter of sixteen.
    for _ in 0..4 {
        open.push(client.list(list_at("3")).await.unwrap());
    }
    let present = client.list(list_at("5")).await.unwrap();
    let status = client.list(list_at("3")).await.unwrap_err();
    assert_eq!((status.code(), &*reason(&status)), (Code::ResourceExhausted, "TOO_MANY_PAST_STATES"));
    assert_eq!(sandbox.refused("past_states"), 1);
    let mut other = client.clone();
    let waiting = async { other.changes(changes("3", "4")).await.map(drop) };
    let (waited, ()) = tokio::join!(waiting, async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        open.pop();
    });
    waited.unwrap();
    // A watch is limited where it begins with such a state: while more changes may come at its version, and there are many.
    let complete = pb::WatchRequest { complete_initial_events: true, ..watch_pods() };
    open.push(client.list(list_at("3")).await.unwrap());
    drop(client.watch(complete.clone()).await.unwrap());
    let opens = async |number: u128, count: usize| {
        let at = ResourceVersion::decimal(number);
        let events = (0..count).map(|name| Event::Modified(pod_at("shop", &format!("d{name:03}"), "", &at)));
        sandbox.say(Delta::Changes { events: events.collect(), closes: false }).await;
        sandbox.reached(&at).await;
    };
    opens(7, 1).await;
    let mut few = client.watch(complete.clone()).await.unwrap().into_inner();
    let mut begins = Vec::new();
    for _ in 0..4 {
        begins.push(words(&next(&mut few).await));
    }
    assert_eq!(begins, ["ADDED INITIAL a", "ADDED INITIAL c", "BOOKMARK @6", "ADDED d000 @6"]);
    opens(9, 100).await;
    let status = client.watch(complete.clone()).await.unwrap_err();
    assert_eq!(reason(&status), "TOO_MANY_PAST_STATES");
    open.clear();
    let mut watches = Vec::new();
    for _ in 0..2 {
        let mut watch = client.watch(complete.clone()).await.unwrap().into_inner();
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push(words(&next(&mut watch).await));
        }
        let d = "ADDED INITIAL d000";
        assert_eq!(seen, ["ADDED INITIAL a", "ADDED INITIAL c", d, "BOOKMARK @8", "MODIFIED d000 @8"]);
        watches.push(watch);
    }
    drop((watches, present));
}

/// The list of the new history is at the version that the request waits for.
#[tokio::test(start_paused = true)]
async fn a_version_of_a_history_that_is_rewritten_while_a_request_waits_is_not_read() {
    for method in ["list", "get", "changes", "http list", "http get"] {
        let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
        let (address, _server) = serve(&sandbox, false).await;
        let mut client = sandbox.in_process();
        let present = client.list(pb::ListRequest { resource: "pods".to_owned(), ..Default::default() }).await.unwrap();
        let history = present.into_inner().message().await.unwrap().unwrap().history;
        let (run, number) = history.split_once('.').unwrap();
        let other = format!("{run}.{}", number.parse::<u64>().unwrap() + 1);
        let other = pb::ListRequest { history: other, ..list_at("9") };
        let begun = tokio::time::Instant::now();
        assert_eq!(reason(&client.list(other).await.unwrap_err()), "HISTORY_CHANGED");
        assert!(begun.elapsed() < Duration::from_secs(1), "without waiting for the version");
        let query = format!("resourceVersion=9;{history}&resourceVersionMatch=Exact");
        let read = async {
            match method {
                "list" => {
                    client.list(pb::ListRequest { history, ..list_at("9") }).await.map(drop).map_err(|it| reason(&it))
                }
                "changes" => client
                    .changes(pb::ChangesRequest { history, ..changes("1", "9") })
                    .await
                    .map(drop)
                    .map_err(|it| reason(&it)),
                "get" => {
                    let get = pb::GetRequest { history, ..get_at("9") };
                    client.get(get).await.map(drop).map_err(|it| reason(&it))
                }
                _ => {
                    let path = if method == "http get" { "/v1/pods/shop/a" } else { "/v1/pods" };
                    let answer = ask(address, "GET", &format!("{path}?{query}"), &[], "").await;
                    let message = answer.json()["message"].to_string();
                    if message.contains("history was rewritten") { Err("HISTORY_CHANGED".to_owned()) } else { Ok(()) }
                }
            }
        };
        let (read, ()) = tokio::join!(read, async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let version = ResourceVersion::decimal(9);
            let other = vec![pod_at("shop", "a", r#""is":"another""#, &version)];
            sandbox.say(Delta::HistoryRewritten(List::new(other, version))).await;
        });
        assert_eq!(read, Err("HISTORY_CHANGED".to_owned()), "{method}");
    }
}

/// The list of the new history is at the version that the request reads.
#[tokio::test(start_paused = true)]
async fn a_version_of_a_history_that_is_rewritten_while_a_request_waits_for_its_turn_is_not_read() {
    for method in ["list", "get", "changes"] {
        let sandbox = shop_with(Options { peer_share: 25, ..Options::default() }).await;
        let mut client = sandbox.in_process();
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(client.list(list_at("3")).await.unwrap());
        }
        let present = client.list(pb::ListRequest { resource: "pods".to_owned(), ..Default::default() }).await.unwrap();
        let history = present.into_inner().message().await.unwrap().unwrap().history;
        let read = async {
            match method {
                "list" => client.list(pb::ListRequest { history, ..list_at("3") }).await.map(drop),
                "changes" => client.changes(pb::ChangesRequest { history, ..changes("3", "3") }).await.map(drop),
                _ => client.get(pb::GetRequest { history, ..get_at("3") }).await.map(drop),
            }
        };
        let (read, ()) = tokio::join!(read, async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let version = ResourceVersion::decimal(3);
            let other = vec![pod_at("shop", "a", r#""is":"another""#, &version)];
            sandbox.say(Delta::HistoryRewritten(List::new(other, version))).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            open.clear();
        });
        assert_eq!(reason(&read.unwrap_err()), "HISTORY_CHANGED", "{method}");
    }
}

#[tokio::test]
async fn a_difference_has_each_object_once() {
    let sandbox = shop().await;
    for (from, to, expected) in [
        ("1", "5", &["MODIFIED shop/a@1 → shop/a@2", "DELETED shop/b@1 → ", "ADDED  → shop/c@5"][..]),
        ("1", "", &["MODIFIED shop/a@1 → shop/a@2", "DELETED shop/b@1 → ", "ADDED  → shop/c@5"]),
        ("2", "4", &["DELETED shop/b@1 → ", "ADDED  → shop/c@3"]),
        ("3", "5", &["DELETED shop/b@1 → ", "MODIFIED shop/c@3 → shop/c@5"]),
        ("5", "5", &[]),
    ] {
        let (found, version) = differences(&sandbox, changes(from, to)).await.unwrap();
        assert_eq!(found, expected, "{from} to {to}");
        assert_eq!(version, if to.is_empty() { "5" } else { to });
    }
    let selected = pb::ChangesRequest { field_selector: "spec.nodeName=n1".to_owned(), ..changes("1", "3") };
    let (found, _) = differences(&sandbox, selected).await.unwrap();
    assert_eq!(found, ["DELETED shop/a@1 → ", "ADDED  → shop/c@3"], "selected before, and after");
    let named = pb::ChangesRequest { name: "b".to_owned(), ..changes("1", "5") };
    assert_eq!(differences(&sandbox, named).await.unwrap().0, ["DELETED shop/b@1 → "]);
    let index = Some(pb::IndexMatch { name: "node".to_owned(), values: vec!["n2".to_owned()] });
    let indexed = pb::ChangesRequest { index, ..changes("1", "5") };
    assert_eq!(differences(&sandbox, indexed).await.unwrap().0, ["ADDED  → shop/a@2", "ADDED  → shop/c@5"]);
    let elsewhere = pb::ChangesRequest { namespace: "other".to_owned(), ..changes("1", "5") };
    assert_eq!(differences(&sandbox, elsewhere).await.unwrap().0, [""; 0]);
    let view = Some(pb::View { fields: vec!["spec.nodeName".to_owned()], ..Default::default() });
    let viewed = pb::ChangesRequest { view, name: "a".to_owned(), ..changes("1", "5") };
    let mut stream = sandbox.client().await.changes(viewed).await.unwrap().into_inner();
    let change = stream.message().await.unwrap().unwrap().changes.remove(0);
    let bodies = [change.old.unwrap(), change.new.unwrap()].map(|object| raw(&object));
    assert_eq!(bodies, [&br#"{"spec":{"nodeName":"n1"}}"#[..], br#"{"spec":{"nodeName":"n2"}}"#]);
}

#[tokio::test]
async fn a_difference_of_other_versions_is_refused() {
    let sandbox = shop().await;
    for (from, to, expected) in [
        ("", "3", "RESOURCE_VERSION_INVALID"),
        ("x", "3", "RESOURCE_VERSION_INVALID"),
        ("4", "3", "RESOURCE_VERSION_INVALID"),
        ("x.1", "3", "RESOURCE_VERSION_EXPIRED"),
        ("3", "x.1", "RESOURCE_VERSION_EXPIRED"),
    ] {
        let status = differences(&sandbox, changes(from, to)).await.unwrap_err();
        assert_eq!(reason(&status), expected, "{from} to {to}: {status}");
    }
    let mut client = sandbox.in_process();
    let mut late = Request::new(changes("3", "9"));
    late.set_timeout(Duration::from_millis(100));
    assert_eq!(reason(&client.changes(late).await.unwrap_err()), "RESOURCE_VERSION_TOO_LARGE");
    let unknown = pb::ChangesRequest { resource: "none".to_owned(), ..changes("1", "2") };
    assert_eq!(reason(&client.changes(unknown).await.unwrap_err()), "RESOURCE_NOT_FOUND");
}

/// Two states that do not fit into one message are sent, the earlier one without its body.
#[tokio::test]
async fn large_and_many_changes_are_sent_in_chunks() {
    let large = |fill: &str| format!(r#""fill":"{}""#, fill.repeat(2_500_000));
    let mut sandbox = Sandbox::start_with(Options::default(), vec![pod("shop", "large", &large("x"))]).await;
    for at in 0..3000 {
        sandbox.put("shop", &format!("p{at:04}"), r#""fill":"0123456789""#).await;
    }
    let last = sandbox.put("shop", "large", &large("y")).await;
    sandbox.reached(last.version()).await;
    let mut stream = sandbox.client().await.changes(changes("1", "")).await.unwrap().into_inner();
    let (mut chunks, mut types, mut names) = (0, BTreeMap::<EventType, usize>::new(), Vec::new());
    while let Some(chunk) = stream.message().await.unwrap() {
        chunks += 1;
        for change in chunk.changes {
            *types.entry(change.r#type()).or_default() += 1;
            let new = change.new.unwrap();
            if let Some(old) = change.old {
                assert_eq!((old.body.is_none(), key(&old)), (true, "shop/large@1".to_owned()));
                assert_eq!(raw(&new).len(), last.body().len());
            }
            names.push(new.name);
        }
    }
    assert!(chunks > 3, "{chunks}");
    assert_eq!(types, BTreeMap::from([(EventType::Added, 3000), (EventType::Modified, 1)]));
    assert!(names.is_sorted());
}
