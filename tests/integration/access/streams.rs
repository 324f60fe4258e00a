//! Streams that are open when their credentials are revoked, for each authenticator: what begins on one is judged as a new call, and
//! the stream ends, with watches or without. Time is paused.

use std::{
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use informerd::{
    auth::{
        Authentication, Authorizer, Identity, IdentityDetails, JwtConfig, JwtVerifier, Rules, TokenFile, TokenReviews,
    },
    grpc::{AccessConfig, GeneratedServices},
    proto::pb,
};
use rcgen::{KeyPair, PKCS_ED25519};
use ring::signature::Ed25519KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Request, Status, Streaming, metadata::MetadataValue};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest,
};

use super::reviews::FakeReviewer;
use crate::{
    authentication::line,
    sandbox::{Options, Sandbox, pod, reason, watch_pods},
};

/// Longest time, of the paused clock, in which a stream ends.
const LONGEST: Duration = Duration::from_secs(600);

/// Caller whose credentials can be revoked.
struct Case {
    name: &'static str,
    authentication: Authentication,
    authorizer: Authorizer,
    token: Option<String>,
    certificate: Option<Identity>,
    /// Time after the start of the server at which the certificate expires, by the clock of the system.
    lifetime: Option<Duration>,
    on_behalf_of: Option<&'static str>,
    revoke: Box<dyn FnOnce()>,
    expected: (Code, &'static str),
    directory: TempDir,
}

/// Server of a case.
struct Server {
    sandbox: Sandbox,
    _reload: AbortOnDropHandle<()>,
}

/// Time for which a reviewed token is kept; keys and token files are read again every 5 s.
const KEPT: Duration = Duration::from_secs(10);
const INVALID: (Code, &str) = (Code::Unauthenticated, "CREDENTIALS_INVALID");

fn rules(may_impersonate: bool) -> Rules {
    let all = json!({"subjects": ["*"], "verbs": ["get", "list", "watch"], "resources": ["*"], "namespaces": ["*"]});
    let relay = json!({"subjects": ["user:relay"], "verbs": ["impersonate"], "users": ["ann"]});
    let rules: Value = if may_impersonate { json!([all, relay]) } else { json!([all]) };
    Rules::from_value(&rules).unwrap()
}

fn identity(user: &str, expires: Option<SystemTime>) -> Identity {
    Identity::new(IdentityDetails { user: user.to_owned(), expires, ..IdentityDetails::default() })
}

fn jwt(key: &KeyPair) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let claims = json!({"iss": "https://issuer.example", "aud": "informerd", "sub": "ann", "exp": now + 3600});
    let encode = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encode(&json!({"alg": "EdDSA"})), encode(&claims));
    let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&key.serialize_der()).unwrap();
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes())))
}

/// Returns a caller of each authenticator, and one who may act for another.
fn cases() -> Vec<Case> {
    let case = |name, with: &dyn Fn(&mut Case)| {
        let mut case = Case {
            name,
            authentication: Authentication::default(),
            authorizer: Authorizer::of_rules(rules(true)),
            token: Some("good".to_owned()),
            certificate: None,
            lifetime: None,
            on_behalf_of: None,
            revoke: Box::new(|| {}),
            expected: INVALID,
            directory: TempDir::new().unwrap(),
        };
        with(&mut case);
        case
    };
    let mut cases = vec![
        case("token file", &|case| {
            let path = case.directory.path().join("tokens");
            fs::write(&path, line("good", "ann") + &line("other", "bob")).unwrap();
            case.authentication.token_file = Some(TokenFile::load(&path).unwrap());
            case.revoke = Box::new(move || fs::write(&path, line("other", "bob")).unwrap());
        }),
        case("JWT", &|case| {
            let path = case.directory.path().join("keys.pem");
            let [key, other] = [(); 2].map(|()| KeyPair::generate_for(&PKCS_ED25519).unwrap());
            fs::write(&path, key.public_key_pem()).unwrap();
            let config = JwtConfig {
                issuer: "https://issuer.example".to_owned(),
                audiences: vec!["informerd".to_owned()],
                keys: path.clone(),
                user_claim: "sub".to_owned(),
                user_prefix: String::new(),
                groups_claim: None,
                groups_prefix: String::new(),
            };
            case.authentication.jwt = Some(JwtVerifier::load(config).unwrap());
            case.token = Some(jwt(&key));
            case.revoke = Box::new(move || fs::write(&path, other.public_key_pem()).unwrap());
        }),
        case("TokenReview", &|case| {
            let reviewer = FakeReviewer::default();
            let reviews = TokenReviews::new(Arc::new(reviewer.clone()), vec!["informerd".to_owned()], KEPT, 25);
            case.authentication.token_reviews = Some(reviews);
            case.revoke = Box::new(move || reviewer.revoke("good"));
        }),
        case("impersonation", &|case| {
            case.authentication.accepts_certificates = true;
            (case.token, case.certificate) = (None, Some(identity("relay", None)));
            case.on_behalf_of = Some("ann");
            let authorizer = case.authorizer.clone();
            case.revoke = Box::new(move || authorizer.set_rules(rules(false)));
            case.expected = (Code::PermissionDenied, "IMPERSONATION_DENIED");
        }),
    ];
    cases.push(case("certificate", &|case| {
        case.authentication.accepts_certificates = true;
        (case.token, case.lifetime) = (None, Some(Duration::from_secs(2)));
        case.expected = (Code::Unauthenticated, "CREDENTIALS_EXPIRED");
    }));
    cases
}

// === impl Case ===

impl Case {
    async fn server(&mut self, recheck: Duration) -> Server {
        if let Some(lifetime) = self.lifetime {
            self.certificate = Some(identity("ann", Some(SystemTime::now() + lifetime)));
        }
        let access = AccessConfig { authorizer: Some(self.authorizer.clone()), recheck, ..AccessConfig::default() };
        let authentication = Arc::new(std::mem::take(&mut self.authentication));
        let reload = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&authentication).reload()));
        let options = Options { access, authentication: Some(authentication), ..Options::default() };
        Server { sandbox: Sandbox::start_with(options, vec![pod("x", "a", "")]).await, _reload: reload }
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        if let Some(certificate) = &self.certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        if let Some(user) = self.on_behalf_of {
            request.metadata_mut().insert_bin("impersonate-user-bin", MetadataValue::from_bytes(user.as_bytes()));
        }
        request
    }

    async fn subscribe(
        &self,
        server: &Server,
    ) -> (mpsc::Sender<pb::SubscribeRequest>, Streaming<pb::SubscribeResponse>) {
        let (requests, sent) = mpsc::channel(10);
        let stream = server.sandbox.in_process().subscribe(self.request(ReceiverStream::new(sent))).await;
        (requests, stream.unwrap_or_else(|status| panic!("{}: {status}", self.name)).into_inner())
    }

    /// Waits until a new call is refused.
    async fn is_refused(&self, server: &Server) {
        loop {
            let list = pb::ListRequest { resource: "pods".to_owned(), ..Default::default() };
            if let Err(status) = server.sandbox.in_process().list(self.request(list)).await {
                return self.is_expected(&status);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn is_expected(&self, status: &Status) {
        assert_eq!((status.code(), &*reason(status)), self.expected, "{}: {status}", self.name);
    }
}

fn open(id: u32) -> pb::SubscribeRequest {
    pb::SubscribeRequest { open: vec![pb::OpenWatch { id, watch: Some(watch_pods()) }], ..Default::default() }
}

/// Reads to the message with the object "a".
async fn read_object(stream: &mut Streaming<pb::SubscribeResponse>) {
    loop {
        let response = stream.message().await.unwrap().unwrap();
        let mut messages = response.deliveries.iter().flat_map(|delivery| &delivery.responses);
        if messages.any(|message| message.object.is_some()) {
            return;
        }
    }
}

/// Reads to the end of the stream, or of the watch `id`: no object comes. Returns the status.
async fn read_end(stream: &mut Streaming<pb::SubscribeResponse>, id: Option<u32>) -> Status {
    tokio::time::timeout(LONGEST, read_to_end(stream, id)).await.expect("the end in time")
}

async fn read_to_end(stream: &mut Streaming<pb::SubscribeResponse>, id: Option<u32>) -> Status {
    loop {
        let response = match stream.message().await {
            Ok(response) => response.expect("a status that is not OK"),
            Err(status) => return status,
        };
        for delivery in response.deliveries {
            let last = delivery.responses.last().and_then(|message| message.error.clone());
            assert!(delivery.responses.iter().all(|message| message.object.is_none()), "{:?}", delivery.responses);
            if let Some(last) = last.filter(|_| id.is_some_and(|id| delivery.watch_ids.contains(&id))) {
                return Status::with_details(
                    last.code.into(),
                    last.message.clone(),
                    prost::Message::encode_to_vec(&last).into(),
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_begins_on_a_stream_is_judged_as_a_new_call() {
    for mut case in cases() {
        // No check of the stream comes meanwhile, unless something tells of the change.
        let server = case.server(Duration::from_secs(600)).await;
        let (requests, mut stream) = case.subscribe(&server).await;
        requests.send(open(1)).await.unwrap();
        read_object(&mut stream).await;
        requests.send(pb::SubscribeRequest { close: vec![1], ..Default::default() }).await.unwrap();
        std::mem::replace(&mut case.revoke, Box::new(|| {}))();
        case.is_refused(&server).await;
        // Refused if the stream has ended by itself.
        drop(requests.send(open(2)).await);
        case.is_expected(&read_end(&mut stream, Some(2)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_credentials_with_watches_or_without() {
    let recheck = Duration::from_secs(60);
    for is_half_closed in [false, true] {
        for mut case in cases() {
            let server = case.server(recheck).await;
            let (requests, mut stream) = case.subscribe(&server).await;
            requests.send(open(1)).await.unwrap();
            read_object(&mut stream).await;
            let requests = if is_half_closed {
                drop(requests);
                None
            } else {
                requests.send(pb::SubscribeRequest { close: vec![1], ..Default::default() }).await.unwrap();
                Some(requests)
            };
            std::mem::replace(&mut case.revoke, Box::new(|| {}))();
            case.is_refused(&server).await;
            let refused = Instant::now();
            case.is_expected(&read_end(&mut stream, None).await);
            let lasted = refused.elapsed();
            assert!(lasted <= recheck + Duration::from_secs(2), "{}: {lasted:?}", case.name);
            drop(requests);
        }
    }
}

/// A stream of reflection has no watches, and nothing but its credentials.
#[tokio::test(start_paused = true)]
async fn a_reflection_stream_ends_with_its_credentials() {
    for mut case in cases() {
        let server = case.server(Duration::from_secs(60)).await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .unwrap();
        let service = server.sandbox.service_beside(GeneratedServices::default().with(reflection));
        let (requests, sent) = mpsc::channel(10);
        let request = case.request(ReceiverStream::new(sent));
        let answer = ServerReflectionClient::new(service).server_reflection_info(request).await;
        let mut stream = answer.unwrap_or_else(|status| panic!("{}: {status}", case.name)).into_inner();
        let message_request = Some(MessageRequest::ListServices(String::new()));
        requests.send(ServerReflectionRequest { message_request, ..Default::default() }).await.unwrap();
        assert!(stream.message().await.unwrap().is_some(), "{}", case.name);
        std::mem::replace(&mut case.revoke, Box::new(|| {}))();
        case.is_refused(&server).await;
        case.is_expected(&stream.message().await.unwrap_err());
        drop(requests);
    }
}
