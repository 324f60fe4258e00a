//! Servers, objects and callers of the oracle.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use fastrand::Rng;
use futures_util::{FutureExt, future::BoxFuture};
use informerd::{
    auth::{
        Authentication, Authorizer, CallReviewer, Identity, JwtConfig, JwtVerifier, ReviewAttributes, ReviewConfig,
        ReviewError, Reviewer, Rules, Token, TokenFile, TokenReviewed, TokenReviews, impersonation_headers,
    },
    cache::{Delta, Problem, ProblemReason},
    grpc::AccessConfig,
    model::{Event, NamedViews, Object, ResourceVersion},
    proto::pb,
    source::relay::{RelayConfig, RelayReviewer},
};
use parking_lot::Mutex;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::{Request, Streaming, metadata::MetadataMap};

use super::{
    super::{
        OBJECTS,
        rules::{CALLERS, Caller, Right, RuleSet},
        views,
    },
    leaves::Contract,
    request::Select,
};
use crate::{
    authentication::line,
    sandbox::{Options, Sandbox, next, relay_of, watch_pods},
};

/// Kind of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// Its objects are Secrets.
    Secret,
    /// Bodies need one of its views.
    Required,
    /// Each access is reviewed by another authority, which has neither formats nor views.
    Reviewed,
    /// A relay that forwards the identities of its callers to a plain one.
    Relay,
}

/// Server with a resource, and watches of an operator on it.
pub(super) struct World {
    pub(super) kind: Kind,
    pub(super) sandbox: Sandbox,
    pub(super) contract: Contract,
    /// Open watches of the operator, by their ids.
    pub(super) watches: Vec<(u64, Select)>,
    /// Version of the objects.
    pub(super) object_version: &'static str,
    /// True if callers have watches open, too, of any ids.
    pub(super) has_others: bool,
    rules: Authorizer,
    /// Authority of a relay, and its upstream.
    relay: Option<(Authorizer, Arc<dyn CallReviewer>)>,
    tokens: Tokens,
    /// Streams of these watches, which end when they are dropped.
    streams: Vec<Streaming<pb::WatchResponse>>,
    upstream: Option<Sandbox>,
}

/// Credentials of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Credential {
    /// Of a file.
    Token,
    /// Reviewed by another authority.
    Reviewed,
    Jwt,
    Certificate,
    /// Of a relay that calls on behalf of the caller.
    Impersonated,
}

/// Files with credentials, and the authority that reviews tokens and accesses.
struct Tokens {
    directory: TempDir,
    key: Ed25519KeyPair,
    reviewer: Arc<FakeReviewer>,
}

/// Authority over tokens, and over accesses: by the rules of the oracle.
#[derive(Debug, Default)]
pub(super) struct FakeReviewer {
    /// Names of users whose tokens were revoked.
    pub(super) revoked: Mutex<BTreeSet<String>>,
    rules: Mutex<RuleSet>,
}

/// Problems that the source has: of objects, then of others.
pub(super) const OBJECT_PROBLEMS: [&str; 2] = ["x/big", "z/big"];
pub(super) const OTHER_PROBLEM: &str = "canary/file";
pub(super) const CONFIG_ERROR: &str = "canary of a configuration";
/// Versions of the past of a world: all objects are there, all are gone, all are there again. The newest one is later.
pub(super) const BEGIN: &str = "1";
pub(super) const WENT: &str = "2";
pub(super) const CAME: &str = "3";
pub(super) const OPERATOR: &str = "operator";
const METADATA: i32 = pb::PayloadFormat::Metadata as i32;
const RELAY: &str = "relay";
const ISSUER: &str = "https://issuer.example";

/// Returns the uid of an object.
pub(super) fn uid_of(namespace: &str, name: &str) -> String {
    format!("uid-{namespace}-{name}")
}

/// Returns the body of an object, whole or in a view.
pub(super) fn body_of(namespace: &str, name: &str, view: Option<&str>) -> String {
    let uid = uid_of(namespace, name);
    let metadata = format!(
        r#""metadata":{{"labels":{{"app":"{name}"}},"name":"{name}","namespace":"{namespace}","uid":"{uid}"}}"#
    );
    let spec = format!(r#""spec":{{"canary":"canary-{namespace}-{name}","nodeName":"node-{name}"}}"#);
    match view {
        None => format!(r#"{{"apiVersion":"v1","kind":"Pod",{metadata},{spec}}}"#),
        Some("@metadata") => format!(r#"{{"apiVersion":"v1","kind":"Pod",{metadata}}}"#),
        Some("small") => format!(r#"{{"metadata":{{"name":"{name}"}}}}"#),
        Some(_) => r#"{"kind":"Pod"}"#.to_owned(),
    }
}

pub(super) fn object(namespace: &str, name: &str, version: ResourceVersion) -> Arc<Object> {
    Arc::new(Object::from_json(Bytes::from(body_of(namespace, name, None)), "unnamed", version).unwrap())
}

fn is_of_kubernetes(caller: Caller) -> bool {
    caller.user.starts_with("system:")
}

/// Returns the token of a user.
fn token_of(kind: &str, user: &str) -> String {
    format!("{kind}-of-{}", user.replace(':', "."))
}

// === impl World ===

impl World {
    pub(super) async fn start(kind: Kind) -> Self {
        let tokens = Tokens::new();
        let rules = match kind {
            Kind::Reviewed => tokens.reviews(),
            _ => Authorizer::of_rules(Rules::default()),
        };
        let views = match kind {
            Kind::Required => views().required(&["small".to_owned()]).unwrap(),
            _ => views(),
        };
        let main = tokens.server(kind, &rules, views).await;
        let (sandbox, upstream, relay) = if kind == Kind::Relay {
            let upstream = RelayConfig {
                endpoint: relay_of(main.address())
                    .endpoint
                    .with_token_file(tokens.directory.path().join("relay"))
                    .unwrap(),
                ..relay_of(main.address())
            };
            rules.set_rules(Rules::from_value(&fixed().to_vec().into()).unwrap());
            let (sandbox, relay) = tokens.relay(&upstream).await;
            (sandbox, Some(main), Some(relay))
        } else {
            (main, None, None)
        };
        let mut world = Self {
            kind,
            sandbox,
            contract: Contract::new(),
            watches: Vec::new(),
            object_version: BEGIN,
            has_others: false,
            rules,
            relay,
            tokens,
            streams: Vec::new(),
            upstream,
        };
        world.rules.set_rules(Rules::from_value(&fixed().to_vec().into()).unwrap());
        world.watch().await;
        let health = world.sandbox.informer.health();
        for subject in OBJECT_PROBLEMS {
            health.set_problem(Problem::new(
                ProblemReason::ObjectTooLarge,
                subject,
                format!("canary: {subject} is too large"),
            ));
        }
        health.set_problem(Problem::new(ProblemReason::FileInvalid, OTHER_PROBLEM, "canary: bad"));
        world
    }

    pub(super) fn has_past(&self) -> bool {
        self.object_version != BEGIN
    }

    /// Lets all objects go and come again, and another one come and go.
    pub(super) async fn with_past(mut self) -> Self {
        let at = ResourceVersion::decimal;
        let all = |version: u128| OBJECTS.map(|(namespace, name)| object(namespace, name, at(version)));
        let other = |version: u128| object("x", "other", at(version));
        for events in [
            all(2).map(Event::Deleted).to_vec(),
            all(3).map(Event::Added).to_vec(),
            vec![Event::Added(other(4))],
            vec![Event::Deleted(other(5)), Event::Bookmark(at(5))],
        ] {
            self.upstream().say(Delta::Changes { events: events.into(), closes: true }).await;
        }
        self.sandbox.reached(&at(5)).await;
        self.object_version = CAME;
        self
    }

    /// Opens the watches of the operator.
    async fn watch(&mut self) {
        let selects = match self.kind {
            Kind::Required => &[Select::Label, Select::KeyShard][..],
            _ => &[Select::Label, Select::BodyField, Select::BodyIndex, Select::Expression, Select::BodyShard],
        };
        let operator = Caller { user: OPERATOR, groups: &[] };
        for (select, id) in selects.iter().zip(1..) {
            let format = if self.kind == Kind::Required { pb::PayloadFormat::Metadata } else { pb::PayloadFormat::Raw };
            let request = pb::WatchRequest { format: format.into(), ..select.of(watch_pods()) };
            let request = self.by(operator, Credential::Certificate, request);
            let mut stream = self.sandbox.in_process().watch(request).await.unwrap().into_inner();
            while !next(&mut stream).await.bookmark.is_some_and(|bookmark| bookmark.initial_events_end) {}
            self.watches.push((id, *select));
            self.streams.push(stream);
        }
        // One that has ended.
        let request = self.by(operator, Credential::Certificate, pb::WatchRequest { format: METADATA, ..watch_pods() });
        next(&mut self.sandbox.in_process().watch(request).await.unwrap().into_inner()).await;
    }

    /// Replaces the rules that decide about the callers, and has open streams checked again.
    pub(super) fn set_rules(&self, rules: &RuleSet) {
        rules.clone_into(&mut self.tokens.reviewer.rules.lock());
        self.rules.set_rules(rules.parsed_with(&fixed()));
        self.rules.set_kinds(BTreeMap::new());
        if let Some((authorizer, upstream)) = &self.relay {
            authorizer.set_upstreams(BTreeMap::from([("pods".to_owned(), upstream.clone())]), Duration::ZERO, 25);
        }
    }

    /// Draws credentials that the server accepts for a caller.
    pub(super) fn credential(&self, caller: Caller, random: &mut Rng) -> Credential {
        let all = [
            Credential::Reviewed,
            Credential::Certificate,
            Credential::Token,
            Credential::Jwt,
            Credential::Impersonated,
        ];
        // Rules of a relay decide who acts for others, and none grants it there. Files and JWTs name nobody of Kubernetes.
        let count = match self.kind {
            _ if is_of_kubernetes(caller) => 2,
            Kind::Relay => 4,
            _ => 5,
        };
        all[random.usize(..count)]
    }

    /// Returns the server whose upstream is the test.
    pub(super) fn upstream(&self) -> &Sandbox {
        self.upstream.as_ref().unwrap_or(&self.sandbox)
    }

    pub(super) fn reviewer(&self) -> &FakeReviewer {
        &self.tokens.reviewer
    }

    /// Returns the headers with these credentials.
    #[cfg(feature = "kubernetes-api")]
    pub(super) fn headers(&self, caller: Caller, credential: Credential) -> Vec<(String, String)> {
        let metadata = self.by(caller, credential, ()).into_parts().0.into_headers();
        let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
        metadata.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    /// Returns a request with these credentials, as the transport passes it on.
    pub(super) fn by<M>(&self, caller: Caller, credential: Credential, message: M) -> Request<M> {
        let mut request = Request::new(message);
        let token = match credential {
            Credential::Certificate => {
                request.extensions_mut().insert(caller.identity());
                return request;
            }
            Credential::Token => token_of("token", caller.user),
            Credential::Reviewed => token_of("review", caller.user),
            Credential::Jwt => self.tokens.jwt(caller),
            Credential::Impersonated => {
                *request.metadata_mut() = MetadataMap::from_headers(impersonation_headers(&caller.identity()).unwrap());
                token_of("token", RELAY)
            }
        };
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        request
    }
}

/// Returns the rules of the operator and of the relay.
fn fixed() -> [Value; 3] {
    [
        json!({"subjects": [format!("user:{OPERATOR}")], "verbs": ["list", "watch"], "resources": ["pods"], "namespaces": ["*"], "formats": ["RAW", "STRUCT"]}),
        json!({"subjects": [format!("user:{RELAY}")], "verbs": ["list", "watch"], "resources": ["pods"], "namespaces": ["*"]}),
        json!({"subjects": [format!("user:{RELAY}")], "verbs": ["impersonate"], "users": ["*"], "groups": ["*"]}),
    ]
}

// === impl Tokens ===

impl Tokens {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let write = |name: &str, text: String| fs::write(directory.path().join(name), text).unwrap();
        let of = |caller: &Caller| {
            line(&token_of("token", caller.user), format!("{} {}", caller.user, caller.groups.join(",")).trim())
        };
        let lines: String = CALLERS
            .iter()
            .filter(|caller| !is_of_kubernetes(**caller))
            .chain(&[Caller { user: RELAY, groups: &[] }])
            .map(of)
            .collect();
        write("tokens", lines);
        write("relay", token_of("token", RELAY));
        let public = URL_SAFE_NO_PAD.encode(key.public_key().as_ref());
        write("jwks.json", json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": public}]}).to_string());
        Self { directory, key, reviewer: Arc::default() }
    }

    /// Returns the authority that has each access reviewed.
    fn reviews(&self) -> Authorizer {
        let config = ReviewConfig { resources: BTreeMap::new(), ttl: Duration::ZERO, peer_share: 25 };
        Authorizer::of_reviews(self.reviewer.clone(), config)
    }

    fn authentication(&self) -> Arc<Authentication> {
        let jwt = JwtConfig {
            issuer: ISSUER.to_owned(),
            audiences: vec!["informerd".to_owned()],
            keys: self.directory.path().join("jwks.json"),
            user_claim: "sub".to_owned(),
            user_prefix: String::new(),
            groups_claim: Some("groups".to_owned()),
            groups_prefix: String::new(),
        };
        let reviewer: Arc<dyn Reviewer> = self.reviewer.clone();
        Arc::new(Authentication {
            accepts_certificates: true,
            token_file: Some(TokenFile::load(&self.directory.path().join("tokens")).unwrap()),
            jwt: Some(JwtVerifier::load(jwt).unwrap()),
            token_reviews: Some(TokenReviews::new(reviewer, vec!["informerd".to_owned()], Duration::ZERO, 25)),
        })
    }

    fn jwt(&self, caller: Caller) -> String {
        let expires = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + 3600;
        let claims =
            json!({"iss": ISSUER, "aud": "informerd", "sub": caller.user, "groups": caller.groups, "exp": expires});
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(json!({"alg": "EdDSA"})), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.key.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    async fn server(&self, kind: Kind, rules: &Authorizer, views: NamedViews) -> Sandbox {
        let access = AccessConfig { authorizer: Some(rules.clone()), ..AccessConfig::default() };
        let options = Options {
            access,
            authentication: Some(self.authentication()),
            views,
            is_secret: kind == Kind::Secret,
            #[cfg(feature = "kubernetes-api")]
            kubernetes: Some(super::rest::api()),
            config_error: Some(CONFIG_ERROR),
            ..Options::default()
        };
        let objects = OBJECTS.map(|(namespace, name)| object(namespace, name, ResourceVersion::decimal(1)));
        Sandbox::start_with(options, objects.into()).await
    }

    /// Starts a relay whose own rules let everybody see its watches, and nothing else.
    async fn relay(&self, upstream: &RelayConfig) -> (Sandbox, (Authorizer, Arc<dyn CallReviewer>)) {
        let everybody =
            json!([{"subjects": ["*"], "verbs": ["admin", "disconnect"], "resources": ["*"], "namespaces": ["*"]}]);
        let reviewer: Arc<dyn CallReviewer> = Arc::new(RelayReviewer::new(upstream.clone()));
        let authorizer = Authorizer::of_rules(Rules::from_value(&everybody).unwrap()).forwarding(
            BTreeMap::from([("pods".to_owned(), reviewer.clone())]),
            Duration::ZERO,
            25,
        );
        let access = AccessConfig { authorizer: Some(authorizer.clone()), ..AccessConfig::default() };
        let options = Options {
            access,
            authentication: Some(self.authentication()),
            relay: Some(upstream.clone()),
            #[cfg(feature = "kubernetes-api")]
            kubernetes: Some(super::rest::api()),
            views: views(),
            config_error: Some(CONFIG_ERROR),
            ..Options::default()
        };
        let sandbox = Sandbox::start_unsynced(options).await;
        sandbox.reached(&ResourceVersion::decimal(1)).await;
        (sandbox, (authorizer, reviewer))
    }
}

impl Reviewer for FakeReviewer {
    fn review_token(
        &self,
        token: &Token,
        audiences: &[String],
    ) -> BoxFuture<'static, Result<TokenReviewed, ReviewError>> {
        let caller = CALLERS.iter().find(|caller| token.expose() == token_of("review", caller.user));
        let is_authenticated = caller.is_some_and(|caller| !self.revoked.lock().contains(caller.user));
        let user = caller.map(|caller| caller.identity().details().clone()).unwrap_or_default();
        let reviewed = TokenReviewed { is_authenticated, user, audiences: audiences.to_vec() };
        std::future::ready(Ok(reviewed)).boxed()
    }

    fn review_access(
        &self,
        identity: &Identity,
        attributes: ReviewAttributes,
    ) -> BoxFuture<'static, Result<bool, ReviewError>> {
        let ReviewAttributes { verb, resource, namespace, .. } = &attributes;
        let is_allowed = match identity.user() {
            OPERATOR => resource == "pods" && ["list", "watch"].contains(&verb.as_str()),
            RELAY => verb == "impersonate",
            user => CALLERS.iter().find(|caller| caller.user == user).is_some_and(|caller| {
                let namespace = if namespace.is_empty() { "*" } else { namespace };
                let right = Right { verb, resource, namespace, form: ("METADATA", None) };
                self.rules.lock().allows(caller, right, false)
            }),
        };
        std::future::ready(Ok(is_allowed)).boxed()
    }
}
