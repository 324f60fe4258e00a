//! A relay that forwards the identity of its callers: its upstream decides what each may read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use informerd::{
    auth::{Attributes, Authentication, Authorizer, CallReviewer, Identity, ReviewError, Rules, Scope, TokenFile},
    grpc::AccessConfig,
    model::ResourceVersion,
    proto::pb,
    source::relay::{RelayConfig, RelayReviewer},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::{Code, Request, Status};

use super::{
    OBJECTS, objects_in,
    recheck::{ended, readable, synced, watch},
    views,
};
use crate::{
    authentication::line,
    sandbox::{DEADLINE, Options, Sandbox, next, pod, reason, relay_of, watch_pods},
    tcp_proxy::TcpProxy,
};

/// Lifetime of a decision that no test outlives.
const LONG: Duration = Duration::from_secs(3600);

/// Server with an authority, and a token for another server.
struct Server {
    sandbox: Sandbox,
    /// Rules of its own.
    rules: Authorizer,
}

/// Token of a relay, and the file with its hash.
struct Tokens(TempDir);

impl Tokens {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("token"), "canary-of-a-relay").unwrap();
        fs::write(directory.path().join("tokens"), line("canary-of-a-relay", "relay")).unwrap();
        Self(directory)
    }

    /// Returns authentication of the relay by its token, and of callers in this process by their identity.
    fn authentication(&self) -> Arc<Authentication> {
        let token_file = Some(TokenFile::load(&self.0.path().join("tokens")).unwrap());
        Arc::new(Authentication { accepts_certificates: true, token_file, ..Authentication::default() })
    }

    fn relay_of(&self, address: &str) -> RelayConfig {
        let relay = relay_of(address);
        let endpoint = relay.endpoint.with_token_file(self.0.path().join("token")).unwrap();
        RelayConfig { endpoint, ..relay }
    }
}

impl Server {
    /// Starts a server that lets the relay read and impersonate, and all others what these rules grant.
    async fn parent(tokens: &Tokens, rules: Rules) -> Self {
        let rules = Authorizer::of_rules(rules);
        let access = AccessConfig { authorizer: Some(rules.clone()), ..AccessConfig::default() };
        let authentication = Some(tokens.authentication());
        let objects = OBJECTS.map(|(namespace, name)| pod(namespace, name, &format!(r#""nodeName":"node-{name}""#)));
        let options = Options { access, authentication, views: views(), ..Options::default() };
        Self { sandbox: Sandbox::start_with(options, objects.into()).await, rules }
    }

    /// Starts a relay that leaves the decisions to its upstream.
    async fn relay(upstream: &RelayConfig, ttl: Duration, authentication: Option<Arc<Authentication>>) -> Self {
        let rules = Authorizer::of_rules(Rules::default());
        let reviewer: Arc<dyn CallReviewer> = Arc::new(RelayReviewer::new(upstream.clone()));
        let authorizer = rules.clone().forwarding(BTreeMap::from([("pods".to_owned(), reviewer)]), ttl, 25);
        let access = AccessConfig { authorizer: Some(authorizer), ..AccessConfig::default() };
        let relay = Some(upstream.clone());
        let options = Options { access, authentication, relay, views: views(), ..Options::default() };
        let sandbox = Sandbox::start_unsynced(options).await;
        sandbox.reached(&ResourceVersion::decimal(1)).await;
        Self { sandbox, rules }
    }

    /// Makes the decisions about open streams due.
    fn recheck(&self) {
        self.rules.set_rules(Rules::default());
    }
}

/// Returns the rules that a relay needs.
fn of_relay() -> [Value; 2] {
    [
        json!({"subjects": ["user:relay"], "verbs": ["list", "watch"], "resources": ["pods"], "namespaces": ["*"]}),
        json!({"subjects": ["user:relay"], "verbs": ["impersonate"], "users": ["*"], "groups": ["*"]}),
    ]
}

/// Returns them, and those that let Ann read these namespaces.
fn with_ann(namespaces: &[&str]) -> Rules {
    let mut rules = of_relay().to_vec();
    if !namespaces.is_empty() {
        rules.push(json!({"subjects": ["user:ann"], "verbs": ["list", "watch"], "resources": ["pods"], "namespaces": namespaces}));
    }
    Rules::from_value(&rules.into()).unwrap()
}

/// Returns the names of the objects that a user lists, or the reason of the refusal.
async fn listed(server: &Sandbox, user: &str) -> Result<Vec<String>, (Code, String)> {
    let refused = |status: Status| (status.code(), reason(&status));
    let mut request = Request::new(pb::ListRequest { resource: "pods".to_owned(), ..Default::default() });
    request.extensions_mut().insert(named(user));
    let mut stream = server.in_process().list(request).await.map_err(refused)?.into_inner();
    let mut names = Vec::new();
    while let Some(chunk) = stream.message().await.map_err(refused)? {
        names.extend(chunk.objects.into_iter().map(|object| format!("{}/{}", object.namespace, object.name)));
    }
    Ok(names)
}

pub(super) fn named(user: &str) -> Identity {
    Identity::new(informerd::auth::IdentityDetails { user: user.to_owned(), ..Default::default() })
}

fn denied() -> Result<Vec<String>, (Code, String)> {
    Err((Code::PermissionDenied, "ACCESS_DENIED".to_owned()))
}

/// The namespaces that a relay may read are no part of the history of its upstream.
#[tokio::test]
async fn other_namespaces_of_a_relay_are_a_difference_for_its_clients() {
    let tokens = Tokens::new();
    let of = |namespaces: &[&str]| {
        let (subjects, verbs) = (["user:relay"], ["list", "watch"]);
        let rule = json!({"subjects": subjects, "verbs": verbs, "resources": ["pods"], "namespaces": namespaces});
        Rules::from_value(&json!([rule])).unwrap()
    };
    let parent = Server::parent(&tokens, of(&["x"])).await;
    let relay = Some(tokens.relay_of(parent.sandbox.address()));
    let relay = Sandbox::start_unsynced(Options { relay, ..Options::default() }).await;
    relay.reached(&ResourceVersion::decimal(1)).await;
    let mut stream = relay.client().await.watch(watch_pods()).await.unwrap().into_inner();
    let mut held = BTreeSet::new();
    for namespaces in [&["x"][..], &["x", "y"], &["y", "z"], &["z"]] {
        parent.rules.set_rules(of(namespaces));
        let expected = objects_in(|namespace| namespaces.contains(&namespace));
        let expected: BTreeSet<_> = expected.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        while held != expected {
            let message = next(&mut stream).await;
            assert!(message.error.is_none(), "{message:?}");
            let Some(object) = &message.object else { continue };
            let key = format!("{}/{}", object.namespace, object.name);
            let is_deleted = message.r#type() == pb::EventType::Deleted;
            assert!(if is_deleted { held.remove(&key) } else { held.insert(key) }, "{message:?}");
        }
    }
}

/// The right to a view of the upstream is one to what a relay of that view has, and to no more of another relay.
#[tokio::test]
async fn a_caller_of_a_view_reads_a_relay_of_that_view() {
    let tokens = Tokens::new();
    let parent = Server::parent(&tokens, with_ann(&[])).await;
    let upstream = tokens.relay_of(parent.sandbox.address());
    let small = || pb::View { name: "small".to_owned(), ..pb::View::default() };
    let query = informerd::client::Query { view: Some(small()), ..upstream.query.clone() };
    let of_view = Server::relay(&RelayConfig { query, ..upstream.clone() }, Duration::ZERO, None).await;
    let whole = Server::relay(&upstream, Duration::ZERO, None).await;
    let base =
        pb::ListRequest { resource: "pods".to_owned(), format: pb::PayloadFormat::Raw.into(), ..Default::default() };
    let field_selector = "spec.x=1".to_owned();
    let metadata = pb::View { name: "@metadata".to_owned(), ..pb::View::default() };
    let requests = [
        base.clone(),
        pb::ListRequest { view: Some(small()), ..base.clone() },
        pb::ListRequest { field_selector, ..base.clone() },
        pb::ListRequest { format: pb::PayloadFormat::Metadata.into(), ..base.clone() },
        pb::ListRequest { view: Some(metadata), ..base.clone() },
    ];
    // Of the relay of the view, then of the relay of everything.
    for (views, expected) in [
        (&["small"][..], [[true, true, false, true, true], [false, false, false, true, false]]),
        (&["@metadata"], [[false, false, false, true, false], [false, false, false, true, true]]),
        (&["none"], [[false, false, false, true, false], [false, false, false, true, false]]),
        (&[], [[true; 5], [true; 5]]),
    ] {
        let mut ann =
            json!({"subjects": ["user:ann"], "verbs": ["list", "get"], "resources": ["pods"], "namespaces": ["x"]});
        if !views.is_empty() {
            ann["views"] = json!(views);
        }
        parent.rules.set_rules(Rules::from_value(&of_relay().into_iter().chain([ann]).collect()).unwrap());
        for (relay, expected) in [&of_view, &whole].into_iter().zip(expected) {
            let mut found = Vec::new();
            for request in &requests {
                let mut request = Request::new(request.clone());
                request.extensions_mut().insert(named("ann"));
                found.push(relay.sandbox.in_process().list(request).await.is_ok());
            }
            assert_eq!(found, expected, "{views:?}");
            let get = pb::GetRequest {
                resource: "pods".to_owned(),
                namespace: "x".to_owned(),
                name: "a".to_owned(),
                format: pb::PayloadFormat::Raw.into(),
                ..Default::default()
            };
            let mut request = Request::new(get);
            request.extensions_mut().insert(named("ann"));
            let got = relay.sandbox.in_process().get(request).await;
            assert_eq!(got.is_ok(), expected[0], "{views:?}: {got:?}");
        }
    }
}

#[tokio::test]
async fn the_resources_of_a_relay_are_those_that_its_upstream_shows_the_caller() {
    let tokens = Tokens::new();
    let of = |verb: &str, namespaces: &[&str]| {
        let ann = json!({"subjects": ["user:ann"], "verbs": [verb], "resources": ["pods"], "namespaces": namespaces});
        Rules::from_value(&of_relay().into_iter().chain([ann]).collect()).unwrap()
    };
    let parent = Server::parent(&tokens, with_ann(&[])).await;
    let relay = Server::relay(&tokens.relay_of(parent.sandbox.address()), Duration::ZERO, None).await;
    // The objects that a caller may only get are not counted.
    for (rules, objects) in [
        (of("list", &["*"]), Some(OBJECTS.len())),
        (of("list", &["x"]), Some(2)),
        (of("get", &["x"]), Some(0)),
        (of("admin", &["*"]), None),
        (with_ann(&[]), None),
    ] {
        parent.rules.set_rules(rules);
        let mut request = Request::new(pb::ListResourcesRequest {});
        request.extensions_mut().insert(named("ann"));
        let resources = relay.sandbox.in_process().list_resources(request).await.unwrap().into_inner().resources;
        let found: Vec<_> = resources.iter().map(|resource| resource.objects).collect();
        assert_eq!(found, Vec::from_iter(objects.map(|count| count as u64)));
    }
}

#[tokio::test]
async fn an_open_stream_follows_the_rights_at_the_upstream() {
    let tokens = Tokens::new();
    let mut parent = Server::parent(&tokens, with_ann(&["x", "y"])).await;
    let relay = Server::relay(&tokens.relay_of(parent.sandbox.address()), Duration::ZERO, None).await;
    let mut stream = watch(&relay.sandbox, watch_pods(), None).await.unwrap();
    let before = synced(&mut stream).await;
    assert_eq!(before.namespaces, ["x", "y"]);

    parent.rules.set_rules(with_ann(&["y", "z"]));
    relay.recheck();
    let mut changes = Vec::new();
    let after = loop {
        let message = next(&mut stream).await;
        if let Some(bookmark) = message.bookmark.as_ref().filter(|bookmark| bookmark.namespaces == ["y", "z"]) {
            break bookmark.clone();
        }
        changes.extend(message.object.as_ref().map(|object| (message.r#type(), object.namespace.clone())));
    };
    let expected = [(pb::EventType::Deleted, "x"), (pb::EventType::Deleted, "x"), (pb::EventType::Added, "z")];
    assert_eq!(changes, expected.map(|(event, namespace)| (event, namespace.to_owned())));
    let resume = |history: &str| pb::WatchRequest {
        resource_version: "1".to_owned(),
        history: history.to_owned(),
        ..watch_pods()
    };
    let refused = watch(&relay.sandbox, resume(&before.history), None).await.unwrap_err();
    assert_eq!((refused.code(), &*reason(&refused)), (Code::OutOfRange, "ACCESS_CHANGED"));
    watch(&relay.sandbox, resume(&after.history), None).await.unwrap();

    let seen = parent.sandbox.put("y", "a", "").await;
    assert_eq!(next(&mut stream).await.resource_version, seen.version().to_string());
    parent.rules.set_rules(with_ann(&[]));
    relay.recheck();
    let (version, status) = ended(&mut stream).await;
    assert_eq!((status.code(), &*reason(&status)), (Code::PermissionDenied, "ACCESS_DENIED"));
    assert_eq!(version, seen.version().to_string());
    let refused = watch(&relay.sandbox, watch_pods(), None).await.unwrap_err();
    assert_eq!(reason(&refused), "ACCESS_DENIED");
}

/// The upstream decides about the namespace without a name as about all of them.
#[tokio::test]
async fn an_open_stream_loses_the_namespace_without_a_name() {
    let tokens = Tokens::new();
    let parent = Server::parent(&tokens, with_ann(&["", "x", "y"])).await;
    let relay = Server::relay(&tokens.relay_of(parent.sandbox.address()), Duration::ZERO, None).await;
    let mut stream = watch(&relay.sandbox, watch_pods(), None).await.unwrap();
    assert_eq!(synced(&mut stream).await.namespaces, ["", "x", "y"]);
    for (granted, gone) in [(&["", "y"][..], "x"), (&["y"], "")] {
        parent.rules.set_rules(with_ann(granted));
        relay.recheck();
        let mut changes = Vec::new();
        let followed = tokio::time::timeout(DEADLINE, async {
            loop {
                let message = next(&mut stream).await;
                let is_last =
                    |bookmark: pb::Bookmark| bookmark.namespaces == granted && !bookmark.history.ends_with('-');
                if message.bookmark.is_some_and(is_last) {
                    return;
                }
                changes.extend(message.object.map(|object| object.namespace));
            }
        });
        followed.await.unwrap_or_else(|_| panic!("the namespaces are not {granted:?}"));
        assert_eq!(changes, [gone; 2]);
    }
}

/// Answer of an upstream to every question.
#[derive(Debug)]
struct FakeUpstream(Mutex<Option<Scope>>);

impl CallReviewer for FakeUpstream {
    fn review_call(&self, _: &Identity, _: Attributes) -> BoxFuture<'static, Result<Option<Scope>, ReviewError>> {
        let answer = self.0.lock().clone();
        async move { Ok(answer) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_revocation_at_the_upstream_ends_a_stream_within_the_recheck_and_the_lifetime_of_a_decision() {
    let upstream = Arc::new(FakeUpstream(Mutex::new(Some(Scope::All))));
    let reviewer: Arc<dyn CallReviewer> = upstream.clone();
    let (ttl, recheck) = (Duration::from_secs(10), Duration::from_secs(60));
    let authorizer =
        Authorizer::of_rules(readable(&[])).forwarding(BTreeMap::from([("pods".to_owned(), reviewer)]), ttl, 25);
    let access = AccessConfig { authorizer: Some(authorizer), recheck, ..AccessConfig::default() };
    let server = Sandbox::start_with(Options { access, ..Options::default() }, vec![pod("x", "a", "")]).await;
    let mut stream = watch(&server, watch_pods(), None).await.unwrap();
    synced(&mut stream).await;
    *upstream.0.lock() = None;
    let revoked = tokio::time::Instant::now();
    let status = loop {
        match stream.message().await {
            Ok(message) => assert!(message.is_some()),
            Err(status) => break status,
        }
    };
    assert_eq!(reason(&status), "ACCESS_DENIED");
    assert!(revoked.elapsed() <= recheck + ttl + Duration::from_secs(2), "{:?}", revoked.elapsed());
}

#[tokio::test]
async fn while_the_upstream_is_down_only_known_callers_are_served() {
    let tokens = Tokens::new();
    let parent = Server::parent(&tokens, with_ann(&["x"])).await;
    let proxy = TcpProxy::to(parent.sandbox.address()).await;
    let relay = Server::relay(&tokens.relay_of(proxy.address()), LONG, None).await;
    assert_eq!(listed(&relay.sandbox, "ann").await.unwrap(), ["x/a", "x/c"]);
    assert_eq!(listed(&relay.sandbox, "eve").await, denied());
    proxy.lead_nowhere();
    proxy.cut();
    assert_eq!(listed(&relay.sandbox, "ann").await.unwrap(), ["x/a", "x/c"]);
    assert_eq!(listed(&relay.sandbox, "eve").await, denied());
    let unavailable = Err((Code::Unavailable, "AUTHORIZER_UNAVAILABLE".to_owned()));
    assert_eq!(listed(&relay.sandbox, "bob").await, unavailable);
    proxy.lead_to(parent.sandbox.address());
    let decided = async {
        while listed(&relay.sandbox, "bob").await != denied() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, decided).await.expect("the upstream is back");
}

/// Each server on the way has to be allowed to act for the caller: the far relay at the middle one, and that one at the parent.
#[tokio::test]
async fn in_a_chain_each_relay_needs_the_right_to_impersonate() {
    let tokens = Tokens::new();
    let parent = Server::parent(&tokens, with_ann(&["x"])).await;
    let middle =
        Server::relay(&tokens.relay_of(parent.sandbox.address()), Duration::ZERO, Some(tokens.authentication())).await;
    middle.rules.set_rules(with_ann(&[]));
    let far = Server::relay(&tokens.relay_of(middle.sandbox.address()), Duration::ZERO, None).await;
    assert_eq!(listed(&far.sandbox, "ann").await.unwrap(), ["x/a", "x/c"]);
    assert_eq!(listed(&far.sandbox, "bob").await, denied());
    middle.rules.set_rules(Rules::default());
    assert_eq!(listed(&far.sandbox, "ann").await, denied());
    middle.rules.set_rules(with_ann(&[]));
    assert_eq!(listed(&far.sandbox, "ann").await.unwrap(), ["x/a", "x/c"]);
    let only_reads = Rules::from_value(&json!([of_relay()[0], {
        "subjects": ["user:ann"], "verbs": ["*"], "resources": ["*"], "namespaces": ["*"]
    }]));
    parent.rules.set_rules(only_reads.unwrap());
    assert_eq!(listed(&far.sandbox, "ann").await, denied());
}

/// Nothing of a relay's credentials is in the error of a caller.
#[tokio::test]
async fn a_relay_whose_own_credentials_are_refused_serves_nobody() {
    let tokens = Tokens::new();
    let parent = Server::parent(&tokens, with_ann(&["*"])).await;
    let relay = Server::relay(&tokens.relay_of(parent.sandbox.address()), Duration::ZERO, None).await;
    fs::write(tokens.0.path().join("token"), "canary-of-nobody").unwrap();
    let error = watch(&relay.sandbox, watch_pods(), None).await.unwrap_err();
    assert_eq!(reason(&error), "AUTHORIZER_UNAVAILABLE");
    assert!(!format!("{error:?}").contains("canary") && !error.message().contains('\n'), "{error:?}");
}
