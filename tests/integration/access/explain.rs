//! Explain for callers with some rights: it shows the object, and the values in its body, only to those who may read them.

use std::sync::atomic::Ordering;

use informerd::{
    auth::{Authorizer, Identity, Rules},
    cache::{Problem, ProblemReason},
    grpc::AccessConfig,
    model::NamedViews,
    proto::pb::{self, explain_request::Selection},
};
use prost::Message;
use serde_json::json;
use tonic::{Code, Request};

use super::{forwarding::named, recheck::synced, views};
use crate::sandbox::{Options, Sandbox, pod, reason, watch_pods};

async fn server(views: NamedViews) -> Sandbox {
    let rules = json!([
        {"subjects": ["user:ann"], "verbs": ["list", "watch"], "resources": ["*"], "namespaces": ["x"]},
        {"subjects": ["user:eve"], "verbs": ["get"], "resources": ["*"], "namespaces": ["y"]},
        {"subjects": ["user:ops", "user:meta"], "verbs": ["admin"], "resources": ["*"], "namespaces": ["*"]},
        {"subjects": ["user:meta"], "verbs": ["get"], "resources": ["*"], "namespaces": ["x"], "formats": ["METADATA"]},
        {"subjects": ["user:meta"], "verbs": ["get"], "resources": ["*"], "namespaces": ["y"]},
    ]);
    let authorizer = Authorizer::of_rules(Rules::from_value(&rules).unwrap());
    let access = AccessConfig { authorizer: Some(authorizer), ..AccessConfig::default() };
    let objects = ["x", "y"].map(|namespace| pod(namespace, "a", r#""nodeName":"n1""#));
    Sandbox::start_with(Options { views, access, ..Options::default() }, objects.into()).await
}

fn by<M>(user: &str, message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.extensions_mut().insert::<Identity>(named(user));
    request
}

async fn answer(
    server: &Sandbox,
    user: &str,
    selection: Selection,
    (namespace, name): (&str, &str),
) -> Result<pb::ExplainResponse, (Code, String)> {
    let key = Some(pb::ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() });
    let request = by(user, pb::ExplainRequest { selection: Some(selection), key });
    let answer = server.in_process().explain(request).await;
    answer.map(tonic::Response::into_inner).map_err(|status| (status.code(), reason(&status)))
}

/// Returns the terms in words, or the code and the reason of the refusal.
async fn explain(
    server: &Sandbox,
    user: &str,
    selection: Selection,
    namespace: &str,
    name: &str,
) -> Result<Vec<String>, (Code, String)> {
    let words = |term: &pb::SelectionTerm| {
        let result = term.result().as_str_name().trim_start_matches("TERM_RESULT_");
        format!("{} {} {result} {}", term.field, term.term, term.found)
    };
    let answer = answer(server, user, selection, (namespace, name)).await?;
    Ok(answer.terms.iter().map(words).collect())
}

#[tokio::test]
async fn the_namespaces_of_a_caller_are_a_term_and_other_objects_are_denied() {
    let server = server(NamedViews::default()).await;
    let everything = || Selection::Watch(watch_pods());
    let denied = || Err((Code::PermissionDenied, "ACCESS_DENIED".to_owned()));
    let granted = explain(&server, "ann", everything(), "x", "a").await.unwrap();
    assert_eq!(granted, ["access namespace in (x) MATCH x"]);
    for name in ["a", "none"] {
        assert_eq!(explain(&server, "ann", everything(), "y", name).await, denied(), "whether it exists or not");
        assert_eq!(explain(&server, "ops", everything(), "x", name).await, denied());
    }
    let unwatched = explain(&server, "eve", everything(), "y", "a").await.unwrap();
    assert_eq!(unwatched, ["access namespace in () NO_MATCH y"], "it may get the object, and watch nothing");
}

/// The rights to see a watch are none to what it selects from: no answer depends on an object, or a part of one, that the caller may
/// not read.
#[tokio::test]
async fn an_open_watch_is_explained_as_far_as_the_object_may_be_read() {
    let server = server(NamedViews::default()).await;
    let request = |expression: &str| pb::WatchRequest {
        label_selector: "app=a".to_owned(),
        field_selector: "spec.nodeName=n1".to_owned(),
        expression: expression.to_owned(),
        ..watch_pods()
    };
    // The evaluation of the second fails, and a failure is counted.
    let (fine, fails) =
        if cfg!(feature = "cel") { ("object.spec.nodeName != ''", "object.spec.nodeName > 5") } else { ("", "") };
    let mut streams = Vec::new();
    for expression in [fine, fails] {
        let mut stream = server.in_process().watch(by("ann", request(expression))).await.unwrap().into_inner();
        synced(&mut stream).await;
        streams.push(stream);
    }
    let health = server.informer.health();
    health.set_problem(Problem::new(ProblemReason::ObjectTooLarge, "x/a", "too large"));
    let watcher = || Selection::WatcherId(1);
    let denied = (Code::PermissionDenied, "ACCESS_DENIED".to_owned());
    assert_eq!(explain(&server, "ann", watcher(), "x", "a").await, Err(denied), "it may inspect nothing");
    // Without get and list.
    let hidden = answer(&server, "ops", watcher(), ("x", "a")).await.unwrap();
    let missing = answer(&server, "ops", watcher(), ("x", "none")).await.unwrap();
    assert_eq!(hidden.encode_to_vec(), missing.encode_to_vec());
    assert!(hidden.object.is_none() && hidden.terms.is_empty() && hidden.problem.is_none(), "{hidden:?}");
    assert_eq!(hidden.watcher.unwrap().id, 1);
    // With METADATA only.
    let errors = || server.informer.stats().expression_errors.load(Ordering::Relaxed);
    let before = errors();
    let expected = ["access namespace in (x) MATCH x", "label_selector app=a MATCH a", "field_selector … UNSPECIFIED "];
    for id in [1, 2] {
        let explained = answer(&server, "meta", Selection::WatcherId(id), ("x", "a")).await.unwrap();
        assert!(!explained.selected && explained.problem.is_some(), "{explained:?}");
        let terms = explain(&server, "meta", Selection::WatcherId(id), "x", "a").await.unwrap();
        assert_eq!(terms[..3], expected);
        assert!(terms[3..].iter().all(|term| term == "expression … UNSPECIFIED "), "{terms:?}");
    }
    assert_eq!(errors(), before, "a term without a result is not evaluated");
    // With the body.
    let terms = explain(&server, "meta", watcher(), "y", "a").await.unwrap();
    assert_eq!(terms[0], "access namespace in (x) NO_MATCH y");
    assert_eq!(terms[2], "field_selector spec.nodeName=n1 MATCH n1");
    let not_found = (Code::NotFound, "WATCHER_NOT_FOUND".to_owned());
    assert_eq!(explain(&server, "ops", Selection::WatcherId(77), "x", "a").await, Err(not_found));
}

/// Explain sends no body: without a format it explains the watch that the caller may have.
#[tokio::test]
async fn without_a_format_metadata_is_explained_where_bodies_need_a_view() {
    let server = server(views().required(&["small".to_owned()]).unwrap()).await;
    let of = |format: pb::PayloadFormat| Selection::Watch(pb::WatchRequest { format: format.into(), ..watch_pods() });
    let explained = explain(&server, "ann", of(pb::PayloadFormat::Unspecified), "x", "a").await;
    assert_eq!(explained.unwrap(), ["access namespace in (x) MATCH x"]);
    let refused = explain(&server, "ann", of(pb::PayloadFormat::Raw), "x", "a").await;
    assert_eq!(refused, Err((Code::PermissionDenied, "VIEW_NOT_ALLOWED".to_owned())), "as a watch would be");
}
