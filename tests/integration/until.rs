//! Until: conditions met one after the other, and every way in which a wait ends.

use std::{sync::atomic::Ordering, time::Duration};

use informerd::{
    cache::BackoffConfig,
    client::{Client, ClientError, Query, UntilEvent, UntilOptions},
    model::Event,
    proto::pb,
};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::sandbox::{DEADLINE, Options, Sandbox, pod, pod_at, raw, reason, watch_pods, words};

type Met = Result<pb::WatchResponse, Status>;

fn request(watch: pb::WatchRequest, conditions: &[&str]) -> pb::UntilRequest {
    let conditions = conditions.iter().map(|&text| text.to_owned()).collect();
    pb::UntilRequest { watch: Some(watch), conditions }
}

async fn until(sandbox: &Sandbox, request: pb::UntilRequest) -> Met {
    let answer = sandbox.client().await.until(request).await?;
    Ok(answer.into_inner().event.expect("an event"))
}

/// Starts a request, and returns when the server waits.
async fn waiting(sandbox: &Sandbox, request: pb::UntilRequest) -> JoinHandle<Met> {
    let (before, mut client) = (watchers(sandbox), sandbox.client().await);
    let call =
        tokio::spawn(async move { client.until(request).await.map(|answer| answer.into_inner().event.unwrap()) });
    while watchers(sandbox) == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    call
}

async fn end(call: JoinHandle<Met>) -> Met {
    tokio::time::timeout(DEADLINE, call).await.expect("an end in time").unwrap()
}

fn watchers(sandbox: &Sandbox) -> u64 {
    sandbox.informer.watch_stats().map_or(0, |stats| stats.watchers.load(Ordering::Relaxed))
}

async fn no_watchers(sandbox: &Sandbox) {
    let gone = async {
        while watchers(sandbox) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("nothing is left behind");
}

/// Checks that an object too large to be served still exists: it is not DELETED, and counts.
#[tokio::test]
async fn objects_that_can_no_longer_be_served_are_not_absent() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let at = |number| pod_at("shop", "a", "", &informerd::model::ResourceVersion::decimal(number));
    let absent = waiting(&sandbox, request(watch_pods(), &["type == 'SYNCED'", "count == 0"])).await;
    let deleted = waiting(&sandbox, request(watch_pods(), &["type == 'DELETED'"])).await;
    for event in [Event::NotServed(at(2)), Event::Modified(at(3)), Event::NotServed(at(4)), Event::Added(at(5))] {
        sandbox.push(event).await;
    }
    sandbox.push(Event::Deleted(at(6))).await;
    for call in [absent, deleted] {
        let met = end(call).await.unwrap();
        assert_eq!(words(&met), "DELETED a @6");
    }
}

/// apimachinery `TestUntil`, `TestUntilMultipleConditions`.
#[tokio::test]
async fn conditions_are_met_by_existing_objects_and_by_later_events() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", r#""n":1"#), pod("shop", "b", r#""n":2"#)]).await;
    let there = until(&sandbox, request(watch_pods(), &["object.spec.n == 2"])).await.unwrap();
    assert_eq!(words(&there), "ADDED INITIAL b");
    let twice = until(&sandbox, request(watch_pods(), &["type == 'ADDED'", "object.spec.n == 1"])).await.unwrap();
    assert_eq!(words(&twice), "ADDED INITIAL a", "one event meets both");
    let batches = pb::WatchRequest { batch_initial_events: true, ..watch_pods() };
    let there = until(&sandbox, request(batches, &["object.spec.n == 2"])).await.unwrap();
    assert_eq!(
        (words(&there), there.batch.len()),
        ("ADDED INITIAL b".to_owned(), 0),
        "a condition is met by one event"
    );

    let call =
        waiting(&sandbox, request(watch_pods(), &["type == 'ADDED'", "type == 'MODIFIED'", "object.spec.n == 9"]));
    let call = call.await;
    sandbox.put("shop", "a", r#""n":8"#).await;
    sandbox.put("shop", "b", r#""n":9"#).await;
    let met = end(call).await.unwrap();
    assert_eq!(words(&met), "MODIFIED b @3", "another object than the first two were met by");
    no_watchers(&sandbox).await;
}

/// apimachinery `TestUntilMultipleConditionsFail`, `TestUntilTimeout`: the client's deadline is the only one.
#[tokio::test]
async fn unmet_conditions_are_waited_for_until_the_deadline() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut unmet = tonic::Request::new(request(watch_pods(), &["type == 'ADDED'", "type == 'MODIFIED'"]));
    unmet.set_timeout(Duration::from_millis(200));
    let status = sandbox.client().await.until(unmet).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    no_watchers(&sandbox).await;

    let call = waiting(&sandbox, request(watch_pods(), &["false"])).await;
    call.abort();
    no_watchers(&sandbox).await;
}

/// apimachinery `TestUntilErrorCondition`, with a difference: here a failure counts as false.
#[tokio::test]
async fn a_condition_that_fails_is_not_met_and_is_counted() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", r#""n":1"#)]).await;
    let call = waiting(&sandbox, request(watch_pods(), &["object.spec.n > '1' || object.spec.m == 1"])).await;
    sandbox.put("shop", "a", r#""n":"2""#).await;
    assert_eq!(words(&end(call).await.unwrap()), "MODIFIED a @2");
    assert_eq!(sandbox.informer.stats().expression_errors.load(Ordering::Relaxed), 0, "what is missing does not count");
    let call = waiting(&sandbox, request(watch_pods(), &["object.spec.n + 1 == 3"])).await;
    sandbox.put("shop", "a", r#""n":2"#).await;
    assert_eq!(words(&end(call).await.unwrap()), "MODIFIED a @3");
    assert_eq!(sandbox.informer.stats().expression_errors.load(Ordering::Relaxed), 1);
}

/// Waits for absence, as `kubectl wait --for=delete` does.
#[tokio::test]
async fn absence_can_be_awaited() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", ""), pod("shop", "b", "")]).await;
    let of = |name: &str| pb::WatchRequest { name: name.to_owned(), ..watch_pods() };
    let none = until(&sandbox, request(of("none"), &["count == 0"])).await.unwrap();
    assert_eq!(words(&none), "BOOKMARK @1");
    assert!(none.object.is_none() && none.bookmark.unwrap().initial_events_end);

    let one = waiting(&sandbox, request(of("a"), &["count == 0"])).await;
    let all = waiting(&sandbox, request(watch_pods(), &["count == 2", "count == 0"])).await;
    let left = pb::WatchRequest { field_selector: "spec.x=".to_owned(), ..of("b") };
    let left = waiting(&sandbox, request(left, &["type == 'DELETED'"])).await;
    sandbox.delete(&pod("shop", "a", "")).await;
    assert_eq!(words(&end(one).await.unwrap()), "DELETED a @2");
    let b = sandbox.put("shop", "b", r#""x":1"#).await;
    assert_eq!(words(&end(left).await.unwrap()), "DELETED LEFT_SELECTION b @3");
    assert!(!all.is_finished(), "one is left");
    sandbox.delete(&b).await;
    assert_eq!(words(&end(all).await.unwrap()), "DELETED b @4");
}

#[tokio::test]
async fn the_number_of_objects_is_missing_until_it_is_known() {
    let pods = (0..1000).map(|n| pod("shop", &format!("p{n}"), "")).collect();
    let mut sandbox = Sandbox::start(pods).await;
    let synced = until(&sandbox, request(watch_pods(), &["count >= 3"])).await.unwrap();
    assert_eq!(words(&synced), "BOOKMARK @1", "after all of them");
    let call = waiting(&sandbox, request(watch_pods(), &["type == 'SYNCED'", "count == 1001"])).await;
    sandbox.put("shop", "p0", r#""x":1"#).await;
    sandbox.put("shop", "more", "").await;
    assert_eq!(words(&end(call).await.unwrap()), "ADDED more @3");
}

#[tokio::test]
async fn the_event_is_in_the_requested_format() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", r#""n":9007199254740993"#)]).await;
    let exact = "object.spec.n == 9007199254740993";
    let body = async |format: pb::PayloadFormat| {
        let watch = pb::WatchRequest { format: format.into(), ..watch_pods() };
        until(&sandbox, request(watch, &[exact])).await.unwrap().object.unwrap()
    };
    assert!(raw(&body(pb::PayloadFormat::Raw).await).ends_with(br#""spec":{"n":9007199254740993}}"#));
    let metadata = body(pb::PayloadFormat::Metadata).await;
    assert_eq!((metadata.body, metadata.labels["app"].as_str()), (None, "a"));
    let Some(pb::object::Body::Struct(fields)) = body(pb::PayloadFormat::Unspecified).await.body else {
        panic!("not a Struct");
    };
    assert!(fields.fields.contains_key("spec"));
}

#[tokio::test]
async fn a_wait_ends_as_its_watch_does() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let changed = waiting(&sandbox, request(watch_pods(), &["false"])).await;
    sandbox.put("shop", "a", r#""x":1"#).await;
    let version = sandbox.version();
    sandbox.reached(&informerd::model::ResourceVersion::decimal(2)).await;
    drop(version);
    // A list at a lower version: the history of the upstream was rewritten.
    sandbox.list(vec![pod("shop", "a", "")], 1).await;
    let status = end(changed).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::OutOfRange, "HISTORY_CHANGED"));

    let drained = waiting(&sandbox, request(watch_pods(), &["false"])).await;
    sandbox.lifecycle.draining.cancel();
    let status = end(drained).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "DRAINING"));
}

#[tokio::test]
async fn a_wait_counts_as_a_watcher_and_misses_nothing_however_much_happens() {
    let options = Options { max_watchers: 1, ..Options::default() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", r#""n":0"#)]).await;
    // Each change meets a condition of its own.
    let each: Vec<String> = (1..=31).map(|n| format!("object.spec.n == {n}")).collect();
    let each: Vec<&str> = each.iter().map(String::as_str).collect();
    let call = waiting(&sandbox, request(watch_pods(), &each)).await;
    let status = until(&sandbox, request(watch_pods(), &["true"])).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "TOO_MANY_WATCHERS"));
    for n in 1..=31 {
        for other in 0..50 {
            sandbox.put("shop", &format!("other{other}"), "").await;
        }
        sandbox.put("shop", "a", &format!(r#""n":{n}"#)).await;
    }
    assert_eq!(words(&end(call).await.unwrap()), format!("MODIFIED a @{}", 1 + 31 * 51));
}

async fn connect(sandbox: &Sandbox) -> Client {
    Client::connect(&sandbox.address().parse().unwrap()).await.unwrap()
}

#[tokio::test]
async fn the_client_waits_within_its_timeout_and_reports_the_last_error() {
    let options = Options { drain_period: Duration::ZERO, ..Options::default() };
    let sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let client = connect(&sandbox).await;
    let options = UntilOptions { timeout: Some(Duration::from_millis(200)), ..UntilOptions::default() };
    let never = [|_: &UntilEvent| false];
    let until = async |query: &Query| client.until(query, never, &options).await;
    let met = client.until(&Query::of("pods"), [|event: &UntilEvent| event.object.is_some()], &options).await.unwrap();
    assert_eq!((met.event_type, met.object.unwrap().name.as_str(), met.count), (pb::EventType::Added, "a", 1));
    let error = until(&Query::of("pods")).await.unwrap_err();
    assert_eq!(
        (error.code(), error.to_string()),
        (Code::DeadlineExceeded, "timed out after 200ms waiting for the conditions".to_owned())
    );
    let error = until(&Query { expression: "1 +".to_owned(), ..Query::of("pods") }).await.unwrap_err();
    assert_eq!(error.reason(), Some("EXPRESSION_INVALID"), "trying again does not help");
    sandbox.lifecycle.draining.cancel();
    let error = until(&Query::of("pods")).await.unwrap_err();
    assert!(matches!(&error, ClientError::NotMet { last: Some(_), .. }), "{error:?}");
    assert!(error.to_string().starts_with("timed out after 200ms waiting for the conditions (last error: "), "{error}");
    no_watchers(&sandbox).await;
}

#[tokio::test]
async fn the_client_waits_on_after_a_rewritten_history() {
    let sandbox = Sandbox::start(vec![pod("shop", "a", "")]).await;
    sandbox.list(vec![pod("shop", "a", ""), pod("shop", "b", "")], 5).await;
    let client = connect(&sandbox).await;
    let quick = BackoffConfig { initial: Duration::from_millis(1), ..UntilOptions::default().backoff };
    let options = UntilOptions { timeout: Some(DEADLINE), backoff: quick };
    let call = tokio::spawn(async move {
        let conditions = [pb::EventType::Bookmark, pb::EventType::Deleted]
            .map(|event_type| move |event: &UntilEvent| event.event_type == event_type);
        client.until(&Query::of("pods"), conditions, &options).await
    });
    while watchers(&sandbox) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let version = informerd::model::ResourceVersion::decimal(2);
    sandbox.list(vec![pod_at("shop", "a", r#""x":1"#, &version)], 2).await;
    let met = tokio::time::timeout(DEADLINE, call).await.unwrap().unwrap().unwrap();
    let last = met.object.expect("the last state");
    assert_eq!((met.cause, last.name.as_str(), last.body.is_some()), (pb::Cause::Inferred, "b", true));
    assert_eq!((met.count, met.resource_version.as_str()), (1, "2"));
}
