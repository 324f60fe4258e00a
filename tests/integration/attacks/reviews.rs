//! Floods of calls that an authority has to review: bad tokens of a stranger, and accesses of one user. The authority does not answer
//! about those, and about everybody else at once.

use std::{fs, sync::Arc};

use axum::{Router, body::Bytes, extract::Request, response::Response};
use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tonic::{Code, transport::Channel, transport::Endpoint};

use super::{attacked_server::within, number};
use crate::{
    authentication::{ALL, line},
    process::Process,
    sandbox::{reason, watch_pods},
};

/// Reviews that are held: now, and at most.
type Held = Arc<watch::Sender<(usize, usize)>>;

/// Flood of calls.
struct Flood {
    name: &'static str,
    config: String,
    /// Token and namespace of a call.
    call: fn(u64) -> (String, String),
}

/// Review that is held until the server gives it up.
struct Holding(Held);

/// Permits for reviews.
const PERMITS: usize = 64;

// === impl Holding ===

impl Holding {
    fn begin(held: &Held) -> Self {
        held.send_modify(|(now, most)| {
            *now += 1;
            *most = (*most).max(*now);
        });
        Self(Arc::clone(held))
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.send_modify(|(now, _)| *now -= 1);
    }
}

/// Starts the authority, and returns a kubeconfig for it.
async fn authority(held: &Held) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let held = Arc::clone(held);
    let router = Router::new().fallback(move |request: Request| {
        let held = Arc::clone(&held);
        async move { review(&held, request).await }
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!(
        "{{ apiVersion: v1, kind: Config, current-context: x, contexts: [{{ name: x, context: {{ cluster: x, user: x }} }}], \
         clusters: [{{ name: x, cluster: {{ server: 'http://{address}' }} }}], users: [{{ name: x, user: {{}} }}] }}"
    )
}

async fn review(held: &Held, request: Request) -> Response {
    let body: Bytes = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    let token = review["spec"]["token"].as_str().map(str::to_owned);
    let user = review["spec"]["user"].as_str().map(str::to_owned);
    if token.as_ref().or(user.as_ref()).is_some_and(|name| name.starts_with("mallory")) {
        let _holding = Holding::begin(held);
        std::future::pending::<()>().await;
    }
    review["status"] = match token {
        Some(token) => json!({"authenticated": true, "user": {"username": token}, "audiences": ["informerd"]}),
        None => json!({"allowed": true}),
    };
    let response = Response::builder().status(201).header("content-type", "application/json");
    response.body(review.to_string().into()).unwrap()
}

async fn connect(server: &Process, host: [u8; 4]) -> InformerServiceClient<Channel> {
    let endpoint = Endpoint::new(server.address()).unwrap().local_address(Some(host.into()));
    InformerServiceClient::new(endpoint.connect().await.unwrap())
}

fn request<M>(token: &str, message: M) -> tonic::Request<M> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

/// Lists as a new caller from this host.
async fn lists(server: &Process, attack: &str, token: &str, host: [u8; 4]) {
    let list = pb::ListRequest { resource: "pods".to_owned(), ..Default::default() };
    let answer = connect(server, host).await.list(request(token, list)).await;
    let chunk = answer.unwrap_or_else(|status| panic!("{attack}: {status}")).into_inner().message().await;
    assert!(!chunk.unwrap().unwrap().objects.is_empty(), "{attack}");
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_reviews_delay_no_other_caller() {
    let floods = [
        Flood {
            name: "bad tokens",
            config: format!(
                "authentication: {{ token_review: {{ audiences: [informerd], kubeconfig: kube }} }}, {ALL}"
            ),
            call: |number| (format!("mallory{number}"), String::new()),
        },
        Flood {
            name: "accesses of one user",
            config:
                "authentication: { token_file: tokens }, authorization: { subject_access_review: { kubeconfig: kube } }"
                    .to_owned(),
            call: |number| ("mallory".to_owned(), format!("n{number}")),
        },
    ];
    for Flood { name, config, call } in floods {
        let held = Held::default();
        let directory = TempDir::new().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        fs::create_dir(directory.path().join("pods")).unwrap();
        write("pods/a.json", r#"{"kind":"Pod","metadata":{"name":"a"}}"#);
        write("kube", &authority(&held).await);
        write("tokens", &["alice", "bob", "mallory"].map(|user| line(user, user)).concat());
        write(
            "informerd.yaml",
            &format!("{{ {config}, resources: {{ pods: {{ source: {{ files: {{ path: pods }} }} }} }} }}"),
        );
        let server = Process::start(&["--config", directory.path().join("informerd.yaml").to_str().unwrap()], None);
        let mut alice = connect(&server, [127, 0, 0, 1]).await;
        let mut watched = alice.watch(request("alice", watch_pods())).await.unwrap().into_inner();

        let mut flood = JoinSet::new();
        for connection in 0..number(4, 16) {
            let client = connect(&server, [127, 0, 0, 1]).await;
            for at in 0..number(100, 200) {
                let (mut client, (token, namespace)) = (client.clone(), call(connection * 1000 + at));
                let get = pb::GetRequest {
                    resource: "pods".to_owned(),
                    namespace,
                    name: "a".to_owned(),
                    ..Default::default()
                };
                flood.spawn(async move { client.get(request(&token, get)).await.unwrap_err() });
            }
        }
        let mut reviews = held.subscribe();
        within(name, reviews.wait_for(|(now, _)| *now >= PERMITS / 4)).await.unwrap();
        within(name, lists(&server, name, "alice", [127, 0, 0, 1])).await;
        within(name, lists(&server, name, "bob", [127, 0, 0, 2])).await;
        write("pods/b.json", r#"{"kind":"Pod","metadata":{"name":"b"}}"#);
        let sees =
            async { while watched.message().await.unwrap().unwrap().object.is_none_or(|object| object.name != "b") {} };
        within(name, sees).await;
        while let Some(refused) = within(name, flood.join_next()).await {
            let status = refused.unwrap();
            assert_eq!((status.code(), &*reason(&status)), (Code::Unavailable, "AUTHORIZER_UNAVAILABLE"), "{name}");
        }
        // The authority sees a review that was given up a moment later than the next one.
        let (_, most) = *held.borrow();
        assert!(most <= PERMITS / 2, "{name}: {most}");
        assert!(server.get("/livez").await.ends_with("ok\n") && !server.log().contains("panicked"), "{name}");
    }
}
