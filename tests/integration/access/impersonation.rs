//! Calls on behalf of others: who may make them, and whose rights and names they have.

use std::sync::Arc;

use informerd::{
    audit::AuditLog,
    auth::{Authentication, Authorizer, Identity, Rules},
    grpc::AccessConfig,
    proto::pb::{self, admin_service_client::AdminServiceClient},
};
use serde_json::{Value, json};
use tonic::{
    Code, Request, Status,
    metadata::{AsciiMetadataValue, MetadataValue},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{
    forwarding::named,
    recheck::{ended, synced},
};
use crate::sandbox::{DEADLINE, Options, Sandbox, pod, reason, watch_pods};

fn rules(relay: &Value) -> Rules {
    let list = json!([
        {"subjects": ["user:ann", "user:eve"], "verbs": ["*"], "resources": ["*"], "namespaces": ["x"]},
        {"subjects": ["group:web"], "verbs": ["list", "watch"], "resources": ["*"], "namespaces": ["y"]},
        relay,
    ]);
    Rules::from_value(&list).unwrap()
}

fn impersonate(users: &[&str], groups: &[&str]) -> Value {
    let mut rule = json!({"subjects": ["user:relay"], "verbs": ["impersonate"], "users": users});
    if !groups.is_empty() {
        rule["groups"] = json!(groups);
    }
    rule
}

async fn server(authorizer: &Authorizer, options: Options) -> Sandbox {
    let access = AccessConfig { authorizer: Some(authorizer.clone()), ..AccessConfig::default() };
    let authentication = Some(Arc::new(Authentication { accepts_certificates: true, ..Authentication::default() }));
    let objects = ["x", "y", "z"].map(|namespace| pod(namespace, "a", ""));
    Sandbox::start_with(Options { access, authentication, ..options }, objects.into()).await
}

/// Returns a request of a caller on behalf of a user with groups.
fn request<M>(message: M, caller: Option<&str>, user: &str, groups: &[&str]) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(caller) = caller {
        request.extensions_mut().insert::<Identity>(named(caller));
    }
    let headers = request.metadata_mut();
    headers.insert_bin("impersonate-user-bin", MetadataValue::from_bytes(user.as_bytes()));
    for group in groups {
        headers.append_bin("impersonate-group-bin", MetadataValue::from_bytes(group.as_bytes()));
    }
    request
}

/// Returns the namespaces that a watch is limited to.
async fn namespaces(server: &Sandbox, request: Request<pb::WatchRequest>) -> Result<Vec<String>, Status> {
    let mut stream = server.in_process().watch(request).await?.into_inner();
    Ok(synced(&mut stream).await.namespaces)
}

fn why(answer: Result<Vec<String>, Status>) -> (Code, String) {
    let status = answer.unwrap_err();
    (status.code(), reason(&status))
}

fn refusal() -> (Code, String) {
    (Code::PermissionDenied, "IMPERSONATION_DENIED".to_owned())
}

#[tokio::test]
async fn a_call_on_behalf_of_another_has_the_rights_of_the_other() {
    let authorizer = Authorizer::of_rules(rules(&impersonate(&["*"], &["web"])));
    let server = server(&authorizer, Options::default()).await;
    let as_of = |user, groups| request(watch_pods(), Some("relay"), user, groups);
    assert_eq!(namespaces(&server, as_of("ann", &[])).await.unwrap(), ["x"]);
    assert_eq!(namespaces(&server, as_of("ann", &["web"])).await.unwrap(), ["x", "y"]);
    assert_eq!(namespaces(&server, as_of("jürgen, ü", &["web"])).await.unwrap(), ["y"]);
    let denied = (Code::PermissionDenied, "ACCESS_DENIED".to_owned());
    assert_eq!(why(namespaces(&server, as_of("bob", &[])).await), denied, "not the rights of the relay either");

    let answer = server.in_process().watch(as_of("ann", &[])).await.unwrap();
    let confirmed = answer.metadata().get_bin("impersonated-user-bin").unwrap().to_bytes().unwrap();
    assert_eq!(confirmed, "ann");
    let list = pb::ListRequest { resource: "pods".to_owned(), namespace: "z".to_owned(), ..Default::default() };
    let refused = server.in_process().list(request(list, Some("relay"), "ann", &[])).await.unwrap_err();
    assert!(refused.metadata().get_bin("impersonated-user-bin").is_some() && refused.message().contains("ann"));
}

/// The headers are never ignored: a proxy that relies on them would give its own rights to everybody.
#[tokio::test]
async fn nobody_acts_for_another_without_the_right() {
    let authorizer = Authorizer::of_rules(rules(&impersonate(&["ann"], &["web"])));
    let server = server(&authorizer, Options::default()).await;
    let call = async |caller, user, groups| namespaces(&server, request(watch_pods(), caller, user, groups)).await;
    assert_eq!(call(Some("relay"), "ann", &["web"]).await.unwrap(), ["x", "y"]);
    for (caller, user, groups) in [
        ("eve", "ann", &[][..]),
        ("ann", "ann", &[]),
        ("relay", "bob", &[]),
        ("relay", "ann", &["web", "ops"]),
        ("relay", "", &[]),
    ] {
        assert_eq!(why(call(Some(caller), user, groups).await), refusal(), "{caller} for {user} {groups:?}");
    }
    let missing = (Code::Unauthenticated, "CREDENTIALS_MISSING".to_owned());
    assert_eq!(why(call(None, "ann", &[]).await), missing);
    for header in ["impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-scopes"] {
        let mut request = Request::new(watch_pods());
        request.extensions_mut().insert(named("eve"));
        request.metadata_mut().insert(header, AsciiMetadataValue::from_static("ann"));
        let status = server.in_process().watch(request).await.unwrap_err();
        assert_eq!((status.code(), reason(&status)), refusal());
        assert!(status.message().contains(header), "{}", status.message());
    }
    let check = HealthCheckRequest { service: String::new() };
    let status =
        HealthClient::new(server.service()).check(request(check, Some("relay"), "ann", &[])).await.unwrap_err();
    assert_eq!((status.code(), reason(&status)), refusal());

    // Nobody is trusted where nobody is authenticated.
    let open = Sandbox::start(vec![pod("x", "a", "")]).await;
    let answer = namespaces(&open, request(watch_pods(), None, "ann", &[])).await;
    assert_eq!(why(answer), refusal());
}

#[tokio::test]
async fn a_stream_ends_when_its_caller_may_no_longer_act_for_the_user() {
    let authorizer = Authorizer::of_rules(rules(&impersonate(&["*"], &[])));
    let server = server(&authorizer, Options::default()).await;
    let mut stream =
        server.in_process().watch(request(watch_pods(), Some("relay"), "ann", &[])).await.unwrap().into_inner();
    assert_eq!(synced(&mut stream).await.namespaces, ["x"]);
    authorizer.set_rules(rules(&impersonate(&["bob"], &[])));
    let (_, status) = ended(&mut stream).await;
    assert_eq!((status.code(), reason(&status)), refusal());
}

#[tokio::test]
async fn the_audit_log_has_the_user_and_who_acts_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let log = AuditLog::open(&path).unwrap();
    let authorizer = Authorizer::of_rules(rules(&json!(
        {"subjects": ["user:ops"], "verbs": ["admin"], "resources": ["*"], "namespaces": ["*"]}
    )));
    let server = server(&authorizer, Options { audit: Some(log.clone()), ..Options::default() }).await;
    let as_ann = || request(watch_pods(), Some("relay"), "ann", &[]);
    assert_eq!(why(namespaces(&server, as_ann()).await), refusal());
    authorizer.set_rules(rules(&impersonate(&["*"], &[])));
    let _open = server.in_process().watch(as_ann()).await.unwrap();
    log.flush(DEADLINE);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<_> = lines.iter().map(|line| (&line["event"], &line["user"], &line["impersonator"])).collect();
    assert_eq!(found[0].0, "denied");
    assert_eq!(found[1], (&json!("begin"), &json!("ann"), &json!("relay")));

    let ops = json!({"subjects": ["user:ops"], "verbs": ["admin"], "resources": ["*"], "namespaces": ["*"]});
    authorizer.set_rules(rules(&ops));
    let mut watchers = Request::new(pb::ListWatchersRequest::default());
    watchers.extensions_mut().insert(named("ops"));
    let watchers = AdminServiceClient::new(server.service()).list_watchers(watchers).await.unwrap().into_inner();
    assert_eq!(watchers.watchers[0].identity, "ann");
}
