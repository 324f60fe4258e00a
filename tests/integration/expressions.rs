//! Expressions in watches, lists and lookups, and the counters of their failures.

use std::{sync::atomic::Ordering, time::Duration};

use informerd::{
    client::{Client, Query},
    model::{Expression, IndexFunc},
    proto::pb,
};

use crate::sandbox::{DEADLINE, Options, Sandbox, next, pod, reason, watch_from_now, watch_pods, words};

const MANY: &str = "object.spec.containers.size() > 1";

fn containers(count: usize) -> String {
    format!(r#""containers":[{}]"#, vec![r#"{"image":"x"}"#; count].join(","))
}

async fn listed(sandbox: &Sandbox, request: pb::ListRequest) -> Vec<String> {
    let request = pb::ListRequest { resource: "pods".to_owned(), ..request };
    let mut stream = sandbox.client().await.list(request).await.unwrap().into_inner();
    let mut names = Vec::new();
    while let Some(chunk) = stream.message().await.unwrap() {
        names.extend(chunk.objects.into_iter().map(|object| object.name));
    }
    names
}

#[tokio::test]
async fn objects_enter_and_leave_an_expression() {
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", &containers(2)), pod("shop", "b", &containers(1))]).await;
    let watch = pb::WatchRequest { expression: MANY.to_owned(), ..watch_pods() };
    let mut watch = sandbox.client().await.watch(watch).await.unwrap().into_inner();
    sandbox.put("shop", "b", &containers(3)).await;
    sandbox.put("shop", "b", &containers(2)).await;
    sandbox.put("shop", "a", &containers(0)).await;
    sandbox.put("shop", "a", "").await;
    let b = sandbox.put("shop", "b", "").await;
    sandbox.delete(&b).await;
    sandbox.put("shop", "c", &containers(5)).await;
    let mut seen = Vec::new();
    while seen.len() < 7 {
        seen.push(words(&next(&mut watch).await));
    }
    assert_eq!(
        seen,
        [
            "ADDED INITIAL a",
            "BOOKMARK @1",
            "ADDED ENTERED_SELECTION b @2",
            "MODIFIED b @3",
            "DELETED LEFT_SELECTION a @4",
            "DELETED LEFT_SELECTION b @6",
            "ADDED c @8"
        ]
    );
    assert_eq!(sandbox.informer.stats().expression_errors.load(Ordering::Relaxed), 0, "a missing field is no failure");
}

/// Checks that watches with the same text share a group: the server selects and encodes an event once for all of them.
#[tokio::test]
async fn watches_of_one_expression_share_its_cost() {
    let mut sandbox = Sandbox::start(Vec::new()).await;
    let mut watches = Vec::new();
    for expression in [MANY, "  object.spec.containers.size() > 1 ", MANY] {
        let watch = pb::WatchRequest { expression: expression.to_owned(), ..watch_from_now() };
        let mut watch = sandbox.client().await.watch(watch).await.unwrap().into_inner();
        next(&mut watch).await;
        watches.push(watch);
    }
    let stats = sandbox.informer.watch_stats().unwrap();
    assert_eq!((stats.watchers.load(Ordering::Relaxed), stats.groups.load(Ordering::Relaxed)), (3, 1));
    sandbox.put("shop", "a", &containers(2)).await;
    for watch in &mut watches {
        assert_eq!(words(&next(watch).await), "ADDED a @2");
    }
    assert_eq!(stats.encoded.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_list_and_a_lookup_are_selected_by_an_expression() {
    let objects = vec![
        pod("shop", "a", r#""nodeName":"n1","n":1"#),
        pod("shop", "b", r#""nodeName":"n1","n":9007199254740993"#),
        pod("shop", "c", r#""nodeName":"n2","n":"three""#),
        pod("shop", "d", ""),
    ];
    let sandbox = Sandbox::start(objects).await;
    let list = |expression: &str| pb::ListRequest { expression: expression.to_owned(), ..Default::default() };
    assert_eq!(listed(&sandbox, list("object.spec.n == 9007199254740993")).await, ["b"]);
    assert_eq!(listed(&sandbox, list("!has(object.spec.n)")).await, ["d"]);
    assert_eq!(listed(&sandbox, list("object.metadata.labels.app in ['a', 'd']")).await, ["a", "d"]);
    let narrow = pb::ListRequest { label_selector: "app!=a".to_owned(), ..list("object.spec.nodeName == 'n1'") };
    assert_eq!(listed(&sandbox, narrow).await, ["b"]);
    let errors = || sandbox.informer.stats().expression_errors.load(Ordering::Relaxed);
    assert_eq!(errors(), 0);
    assert_eq!(listed(&sandbox, list("object.spec.n > 0")).await, ["a", "b"]);
    assert_eq!(errors(), 1, "\"three\" is no number; what is missing does not count");

    let client = Client::connect(&sandbox.address().parse().unwrap()).await.unwrap();
    let query = Query { expression: "object.spec.n == 1".to_owned(), ..Query::of("pods") };
    let names = |objects: Vec<pb::Object>| objects.into_iter().map(|object| object.name).collect::<Vec<_>>();
    assert_eq!(names(client.by_index(&query, "node", "n1").await.unwrap().objects), ["a"]);
    assert_eq!(names(client.list(&query).await.unwrap().objects), ["a"]);

    // The next page needs the same expression.
    let mut page =
        pb::ListRequest { resource: "pods".to_owned(), page_size: 1, ..list("object.spec.nodeName == 'n1'") };
    let mut grpc = sandbox.client().await;
    let first = grpc.list(page.clone()).await.unwrap().into_inner().message().await.unwrap().unwrap();
    page.page_token = first.next_page_token;
    let second = grpc.list(page.clone()).await.unwrap().into_inner().message().await.unwrap().unwrap();
    assert_eq!((first.objects[0].name.as_str(), second.objects[0].name.as_str()), ("a", "b"));
    page.expression = "true".to_owned();
    assert_eq!(reason(&grpc.list(page).await.unwrap_err()), "PAGE_TOKEN_INVALID");
}

#[tokio::test]
async fn an_index_has_the_values_of_an_expression() {
    let by_image = "object.spec.containers.map(c, c.image.startsWith('x') ? c.image : 'other')";
    let options = Options {
        indexes: vec![
            ("image".to_owned(), IndexFunc::Expression(Expression::parse(by_image).unwrap())),
            ("half".to_owned(), IndexFunc::Expression(Expression::parse("object.spec.n / 2").unwrap())),
        ],
        ..Options::default()
    };
    let two = r#""n":7,"containers":[{"image":"x:1"},{"image":"y:2"},{"image":"z:3"}]"#;
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", two), pod("shop", "b", r#""n":"7""#)]).await;
    let client = Client::connect(&sandbox.address().parse().unwrap()).await.unwrap();
    let values = async |index: &str| {
        let values = client.values("pods", index).await.unwrap();
        values.values.into_iter().map(|value| format!("{} {}", value.value, value.objects)).collect::<Vec<_>>()
    };
    assert_eq!(values("image").await, ["other 1", "x:1 1"]);
    assert_eq!(values("half").await, ["3 1"]);
    assert!(sandbox.informer.indexers().expression_errors() >= 1, "half of \"7\" is none");
    let found = client.by_index(&Query::of("pods"), "image", "x:1").await.unwrap().objects;
    assert_eq!((found.len(), found[0].name.as_str()), (1, "a"));

    let index = Some(pb::IndexMatch { name: "half".to_owned(), values: vec!["4".to_owned()] });
    let watch = pb::WatchRequest { index, ..watch_from_now() };
    let mut watch = sandbox.client().await.watch(watch).await.unwrap().into_inner();
    next(&mut watch).await;
    sandbox.put("shop", "b", r#""n":7"#).await;
    sandbox.put("shop", "b", r#""n":8"#).await;
    sandbox.put("shop", "b", r#""n":10"#).await;
    assert_eq!(words(&next(&mut watch).await), "ADDED ENTERED_SELECTION b @3");
    assert_eq!(words(&next(&mut watch).await), "DELETED LEFT_SELECTION b @4");
}

/// Returns the failures of each page of a List with pages of this size.
async fn failures(sandbox: &Sandbox, page_size: u32, expression: &str) -> Vec<Option<String>> {
    let mut request =
        pb::ListRequest { resource: "pods".to_owned(), expression: expression.to_owned(), page_size, ..<_>::default() };
    let mut failures = Vec::new();
    loop {
        let mut chunks = sandbox.client().await.list(request.clone()).await.unwrap().into_inner();
        let mut last = None;
        while let Some(chunk) = chunks.message().await.unwrap() {
            assert!(
                last.replace(chunk).is_none_or(|chunk| chunk.expression_errors.is_none()),
                "only on the last chunk"
            );
        }
        let last = last.unwrap();
        failures.push(last.expression_errors.as_ref().map(failure));
        if last.next_page_token.is_empty() {
            return failures;
        }
        request.page_token = last.next_page_token;
    }
}

fn failure(errors: &pb::ExpressionErrors) -> String {
    assert!(
        errors.first_reason.starts_with("the result is not true or false, a value has the wrong type"),
        "{errors:?}"
    );
    format!("{} of {} from {}", errors.failed, errors.evaluated, errors.first.as_ref().unwrap().name)
}

/// The sum over the pages is that of one List, whatever their size: an object that the end of a page has passed is counted on the
/// page to which it belongs.
#[tokio::test]
async fn a_list_counts_the_objects_that_its_expression_failed_for() {
    let number = |name: &str, n: &str| pod("shop", name, &format!(r#""n":{n}"#));
    let objects = vec![
        number("a", "1"),
        number("b", r#""x""#),
        number("c", r#""x""#),
        number("d", "1"),
        number("e", r#""x""#),
        pod("shop", "f", ""),
        number("g", "0"),
    ];
    let sandbox = Sandbox::start(objects).await;
    let some = |text: &str| Some(text.to_owned());
    let expression = "object.spec.n > 0";
    assert_eq!(failures(&sandbox, 0, expression).await, [some("3 of 7 from b")]);
    assert_eq!(failures(&sandbox, 2, expression).await, [some("3 of 7 from b")]);
    assert_eq!(failures(&sandbox, 1, expression).await, [None, some("3 of 6 from b")]);
    assert_eq!(failures(&sandbox, 0, "object.none").await, [None]);
    assert_eq!(failures(&sandbox, 0, "").await, [None]);
    let narrow = pb::ByIndexRequest {
        resource: "pods".to_owned(),
        index: "namespace".to_owned(),
        value: "shop".to_owned(),
        label_selector: "app in (c, d)".to_owned(),
        expression: expression.to_owned(),
        ..Default::default()
    };
    let found = sandbox.client().await.by_index(narrow).await.unwrap().into_inner().message().await.unwrap().unwrap();
    assert_eq!(
        found.expression_errors.as_ref().map(failure),
        some("1 of 2 from c"),
        "the rest of the selection decides first"
    );

    let watch = pb::WatchRequest { expression: expression.to_owned(), ..watch_pods() };
    let mut watch = sandbox.client().await.watch(watch).await.unwrap().into_inner();
    let bookmark = loop {
        if let Some(bookmark) = next(&mut watch).await.bookmark {
            break bookmark;
        }
    };
    assert!(bookmark.initial_events_end);
    assert_eq!(bookmark.expression_errors.as_ref().map(failure), some("3 of 7 from b"));
}

/// The failures of a List of several chunks are on the last one, also if that has no objects.
#[tokio::test]
async fn the_last_chunk_has_the_failures() {
    let large = "x".repeat(300 << 10);
    let mut objects: Vec<_> =
        (0..8).map(|n| pod("shop", &format!("a{n}"), &format!(r#""n":1,"x":"{large}""#))).collect();
    objects.push(pod("shop", "b", r#""n":"x""#));
    let sandbox = Sandbox::start(objects).await;
    assert_eq!(failures(&sandbox, 0, "object.spec.n > 0").await, [Some("1 of 9 from b".to_owned())]);
    assert_eq!(failures(&sandbox, 8, "object.spec.n > 0").await, [Some("1 of 9 from b".to_owned())]);
}

/// Checks that one client's costly expression fails within its budget, and that the others get their events in time.
#[tokio::test]
async fn a_costly_expression_delays_no_other_client() {
    let numbers = |n: usize| format!(r#""n":{n},"list":[{}]"#, vec!["1"; 2000].join(","));
    let mut sandbox = Sandbox::start(vec![pod("shop", "a", &numbers(0))]).await;
    let l = "object.spec.list";
    let costly = format!("{l}.all(a, {l}.all(b, {l}.all(c, a + b + c == 3)))");
    let watch = pb::WatchRequest { expression: costly, ..watch_pods() };
    let mut costly = sandbox.client().await.watch(watch).await.unwrap().into_inner();
    assert_eq!(words(&next(&mut costly).await), "BOOKMARK @1", "it has failed, which is false");
    let mut other = sandbox.client().await.watch(watch_from_now()).await.unwrap().into_inner();
    next(&mut other).await;
    let started = std::time::Instant::now();
    for n in 1..=10 {
        sandbox.put("shop", "a", &numbers(n)).await;
        assert_eq!(words(&next(&mut other).await), format!("MODIFIED a @{}", n + 1));
    }
    assert!(started.elapsed() < DEADLINE / 4, "{:?}", started.elapsed());
    assert_eq!(sandbox.informer.stats().expression_errors.load(Ordering::Relaxed), 1 + 20, "before and after each");
    tokio::time::timeout(Duration::from_millis(50), next(&mut costly)).await.expect_err("nothing was selected");
    // One loop over the list is within the largest budget that can be configured, but not within the default one.
    let request =
        pb::ListRequest { resource: "pods".to_owned(), expression: format!("{l}.all(a, a == 1)"), ..<_>::default() };
    let mut list = sandbox.client().await.list(request).await.unwrap().into_inner();
    let list = list.message().await.unwrap().unwrap();
    assert_eq!((list.objects.len(), sandbox.informer.stats().expression_errors.load(Ordering::Relaxed)), (0, 22));
}
