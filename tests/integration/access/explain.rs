//! Explain for callers with some rights: it shows the object, and the values in its body, only to those who may read them.

use informerd::{
    auth::{Authorizer, Identity, Rules},
    grpc::AccessConfig,
    proto::pb::{self, explain_request::Selection},
};
use serde_json::json;
use tonic::{Code, Request};

use super::{forwarding::named, recheck::synced};
use crate::sandbox::{Options, Sandbox, pod, reason, watch_pods};

async fn server() -> Sandbox {
    let rules = json!([
        {"subjects": ["user:ann"], "verbs": ["list", "watch"], "resources": ["*"], "namespaces": ["x"]},
        {"subjects": ["user:eve"], "verbs": ["get"], "resources": ["*"], "namespaces": ["y"]},
        {"subjects": ["user:ops"], "verbs": ["admin"], "resources": ["*"], "namespaces": ["*"]},
    ]);
    let authorizer = Authorizer::of_rules(Rules::from_value(&rules).unwrap());
    let access = AccessConfig { authorizer: Some(authorizer), ..AccessConfig::default() };
    let objects = ["x", "y"].map(|namespace| pod(namespace, "a", r#""nodeName":"n1""#));
    Sandbox::start_with(Options { access, ..Options::default() }, objects.into()).await
}

fn by<M>(user: &str, message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.extensions_mut().insert::<Identity>(named(user));
    request
}

/// Returns the terms in words, or the code and the reason of the refusal.
async fn explain(
    server: &Sandbox,
    user: &str,
    selection: Selection,
    namespace: &str,
    name: &str,
) -> Result<Vec<String>, (Code, String)> {
    let key = Some(pb::ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() });
    let request = by(user, pb::ExplainRequest { selection: Some(selection), key });
    let answer = server.in_process().explain(request).await.map_err(|status| (status.code(), reason(&status)))?;
    let words = |term: pb::SelectionTerm| {
        let result = term.result().as_str_name().trim_start_matches("TERM_RESULT_");
        format!("{} {} {result} {}", term.field, term.term, term.found)
    };
    Ok(answer.into_inner().terms.into_iter().map(words).collect())
}

#[tokio::test]
async fn the_namespaces_of_a_caller_are_a_term_and_other_objects_are_denied() {
    let server = server().await;
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

#[tokio::test]
async fn an_open_watch_is_explained_to_operators_without_the_values_of_bodies() {
    let server = server().await;
    let request = pb::WatchRequest {
        label_selector: "app=a".to_owned(),
        field_selector: "spec.nodeName=n1".to_owned(),
        ..watch_pods()
    };
    let mut stream = server.in_process().watch(by("ann", request)).await.unwrap().into_inner();
    synced(&mut stream).await;
    let watcher = || Selection::WatcherId(1);
    let denied = (Code::PermissionDenied, "ACCESS_DENIED".to_owned());
    assert_eq!(explain(&server, "ann", watcher(), "x", "a").await, Err(denied), "it may inspect nothing");
    let explained = explain(&server, "ops", watcher(), "x", "a").await.unwrap();
    assert_eq!(
        explained,
        ["access namespace in (x) MATCH x", "label_selector app=a MATCH a", "field_selector … MATCH "]
    );
    let missing = (Code::NotFound, "WATCHER_NOT_FOUND".to_owned());
    assert_eq!(explain(&server, "ops", Selection::WatcherId(2), "x", "a").await, Err(missing));
}
