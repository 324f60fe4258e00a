//! Explain: it selects what a Watch delivers, term by term, also for an open watch, and shows nobody more than it may see.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use informerd::{
    client::Client,
    model::{Object, ResourceVersion, Shard, ShardKey},
    proto::pb::{self, explain_request::Selection},
};
use proptest::{option, prelude::*, sample::select, strategy::ValueTree, test_runner::TestRunner};
use tonic::Code;

use crate::sandbox::{DEADLINE, Sandbox, next, reason, watch_pods};

type Key = (String, String);

fn objects() -> Vec<Arc<Object>> {
    let object = |(n, namespace): (usize, &str)| {
        let name = format!("web-{}", n % 4);
        let labels = [r#""app":"web""#, r#""app":"db","tier":"back""#, ""][n % 3];
        let spec = [r#""nodeName":"n1","n":1"#, r#""nodeName":"n2","n":"text""#, ""][(n / 2) % 3];
        let json = format!(
            r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","uid":"{n}","labels":{{{labels}}}}},"spec":{{{spec}}}}}"#
        );
        Arc::new(Object::from_json(Bytes::from(json), "", ResourceVersion::decimal(1)).unwrap())
    };
    (0..12).zip(["shop", "bank", "stock"].into_iter().flat_map(|name| [name; 4])).map(object).collect()
}

/// Returns drawn selections of a Watch.
fn selections() -> impl Strategy<Value = pb::WatchRequest> {
    let label_selectors =
        select(vec!["", "app=web", "app!=web", "tier", "!tier,app", "app in (web,db)", "tier notin (back)"]);
    let field_selectors =
        select(vec!["", "spec.nodeName=n1", "spec.nodeName!=n1,spec.n=text", "metadata.name=web-1", "spec.no="]);
    let expressions = if cfg!(feature = "cel") {
        vec!["", "object.spec.n > 0", "has(object.spec.n)", "object.metadata.name.endsWith('1')"]
    } else {
        vec![""]
    };
    let indexes = option::of(select(vec![vec!["n1"], vec!["n2", "n3"], vec!["none"]]));
    let shards = option::of((select(vec!["uid", "namespace", "key", "spec.nodeName"]), 0_u64..3));
    (
        (select(vec!["", "shop", "bank", "none"]), select(vec!["", "web-1", "web-3"])),
        label_selectors,
        field_selectors,
        select(expressions),
        indexes,
        shards,
    )
        .prop_map(|((namespace, name), labels, fields, expression, index, shard)| pb::WatchRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            label_selector: labels.to_owned(),
            field_selector: fields.to_owned(),
            expression: expression.to_owned(),
            index: index.map(|values| pb::IndexMatch {
                name: "node".to_owned(),
                values: values.into_iter().map(str::to_owned).collect(),
            }),
            shard: shard.map(|(key, part)| (&Shard::part(ShardKey::parse(key).unwrap(), part, 3).unwrap()).into()),
            ..watch_pods()
        })
}

fn explain(selection: Selection, namespace: &str, name: &str) -> pb::ExplainRequest {
    let key = Some(pb::ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() });
    pb::ExplainRequest { selection: Some(selection), key }
}

async fn client(sandbox: &Sandbox) -> Client {
    Client::connect(&sandbox.address().parse().unwrap()).await.unwrap()
}

/// Draws selections, and compares the explanation for each object with the initial events of a Watch: that of the request, and that
/// of the open watch.
#[tokio::test]
async fn what_is_selected_is_what_a_watch_delivers() {
    let sandbox = Sandbox::start(objects()).await;
    let client = client(&sandbox).await;
    let mut runner = TestRunner::deterministic();
    let (mut selected_count, mut failed_count) = (0, 0);
    for _ in 0..60 {
        let request = selections().new_tree(&mut runner).unwrap().current();
        let mut stream = client.open(request.clone()).await.unwrap();
        let mut delivered: BTreeSet<Key> = BTreeSet::new();
        while let Some(object) = next(&mut stream).await.object {
            delivered.insert((object.namespace, object.name));
        }
        let watcher = client.watchers("pods").await.unwrap().pop().unwrap();
        for object in objects() {
            let (namespace, name) = (object.key().namespace(), object.key().name());
            let is_delivered = delivered.contains(&(namespace.to_owned(), name.to_owned()));
            let explained = client.explain(explain(Selection::Watch(request.clone()), namespace, name)).await.unwrap();
            assert_eq!(explained.selected, is_delivered, "{request:?} of {}: {explained:?}", object.key());
            let is_match = |term: &pb::SelectionTerm| term.result() == pb::TermResult::Match;
            assert_eq!(explained.terms.iter().all(is_match), is_delivered, "{request:?}: {explained:?}");
            failed_count += explained.terms.iter().filter(|term| term.result() == pb::TermResult::Failed).count();
            selected_count += usize::from(is_delivered);
            assert_eq!(explained.object.as_ref().map(|object| object.body.is_none()), Some(true));
            let of_watcher = client.explain(explain(Selection::WatcherId(watcher.id), namespace, name)).await.unwrap();
            assert_eq!((of_watcher.selected, of_watcher.terms), (explained.selected, explained.terms));
            assert_eq!(of_watcher.watcher.unwrap().id, watcher.id);
        }
        drop(stream);
        let ended = async {
            while !client.watchers("pods").await.unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, ended).await.unwrap();
    }
    assert!(selected_count > 10, "{selected_count} of the objects were selected");
    assert!(failed_count > 0 || !cfg!(feature = "cel"), "no evaluation failed");
}

#[tokio::test]
async fn every_term_has_its_result_and_the_value_that_was_found() {
    let sandbox = Sandbox::start(objects()).await;
    let client = client(&sandbox).await;
    let request = pb::WatchRequest {
        namespace: "shop".to_owned(),
        label_selector: "app in (web,api),tier!=back".to_owned(),
        field_selector: "spec.nodeName=n1".to_owned(),
        index: Some(pb::IndexMatch { name: "node".to_owned(), values: vec!["n2".to_owned()] }),
        ..watch_pods()
    };
    let explained = client.explain(explain(Selection::Watch(request), "shop", "web-1")).await.unwrap();
    let shown = |term: &pb::SelectionTerm| {
        let result = term.result().as_str_name().trim_start_matches("TERM_RESULT_");
        format!("{} {} {result} {:?}", term.field, term.term, term.found)
    };
    assert_eq!(
        explained.terms.iter().map(shown).collect::<Vec<_>>(),
        [
            "namespace shop MATCH \"shop\"",
            "label_selector app in (api,web) NO_MATCH \"db\"",
            "label_selector tier!=back NO_MATCH \"back\"",
            "field_selector spec.nodeName=n1 MATCH \"n1\"",
            "index node in (n2) NO_MATCH \"n1\"",
        ]
    );
    assert!(!explained.selected);
    assert_eq!(explained.object.unwrap().labels["app"], "db");
}

#[tokio::test]
async fn an_object_that_is_not_there_has_no_terms_and_bad_requests_are_refused() {
    let sandbox = Sandbox::start(objects()).await;
    let client = client(&sandbox).await;
    let everything = || Selection::Watch(watch_pods());
    let missing = client.explain(explain(everything(), "shop", "nobody")).await.unwrap();
    assert!(missing.object.is_none() && missing.terms.is_empty() && !missing.selected, "{missing:?}");
    assert_eq!(missing.resource_version, "1");
    let mut grpc = sandbox.client().await;
    let other = pb::WatchRequest { resource: "nothing".to_owned(), ..watch_pods() };
    for (request, code, expected) in [
        (explain(Selection::WatcherId(77), "shop", "web-1"), Code::NotFound, "WATCHER_NOT_FOUND"),
        (explain(Selection::Watch(other), "shop", "web-1"), Code::NotFound, "RESOURCE_NOT_FOUND"),
        (explain(everything(), "shop", ""), Code::InvalidArgument, "NAME_INVALID"),
        (
            pb::ExplainRequest { selection: None, ..explain(everything(), "shop", "web-1") },
            Code::InvalidArgument,
            "SELECTION_INVALID",
        ),
    ] {
        let status = grpc.explain(request).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (code, expected));
    }
}
