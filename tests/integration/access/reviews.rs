//! Open watches whose rights Kubernetes reviews: an authority that does not answer, and namespaces that appear. Time is paused.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, future::BoxFuture};
use informerd::{
    auth::{
        Authentication, Authorizer, Identity, IdentityDetails, ReviewAttributes, ReviewConfig, ReviewError, Reviewer,
        Rules, Token, TokenReviewed, TokenReviews,
    },
    grpc::AccessConfig,
    proto::pb,
    transport::Peer,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use crate::sandbox::{Options, Sandbox, pod, reason, watch_pods};

/// Authority over tokens, which are the names of their users, and over the namespaces that each user may read.
#[derive(Debug, Clone, Default)]
pub(super) struct FakeReviewer(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// User and namespace; without one, all.
    allowed: Mutex<BTreeSet<(&'static str, &'static str)>>,
    /// Tokens of nobody, besides those that begin with "bad".
    revoked: Mutex<BTreeSet<&'static str>>,
    is_down: AtomicBool,
    /// Time until it answers.
    delay: Mutex<Duration>,
}

const MOMENT: Duration = Duration::from_secs(1);
const RECHECK: Duration = Duration::from_secs(60);
/// Time for which a stream goes on without an answer, after [`RECHECK`].
const GRACE: Duration = Duration::from_secs(150);
/// Time for which a decision about an access is used.
const DECIDED: Duration = Duration::from_secs(10);
/// Time for which the user of a token is known.
const KNOWN: Duration = Duration::from_secs(90);

// === impl FakeReviewer ===

impl FakeReviewer {
    pub(super) fn allow(&self, user: &'static str, namespaces: &[&'static str]) {
        self.0.allowed.lock().extend(namespaces.iter().map(|namespace| (user, *namespace)));
    }

    pub(super) fn revoke(&self, token: &'static str) {
        self.0.revoked.lock().insert(token);
    }

    fn is_down(&self, is_down: bool) {
        self.0.is_down.store(is_down, Ordering::Relaxed);
    }

    fn answer<T: Send + 'static>(&self, answer: T) -> BoxFuture<'static, Result<T, ReviewError>> {
        let (is_down, delay) = (self.0.is_down.load(Ordering::Relaxed), *self.0.delay.lock());
        async move {
            if !delay.is_zero() {
                sleep(delay).await;
            }
            if is_down { Err(ReviewError("connection refused".to_owned())) } else { Ok(answer) }
        }
        .boxed()
    }

    pub(super) fn authorizer(&self) -> Authorizer {
        let config = ReviewConfig { resources: [].into(), ttl: DECIDED, peer_share: 25 };
        Authorizer::of_reviews(Arc::new(self.clone()), config)
    }
}

impl Reviewer for FakeReviewer {
    fn review_token(
        &self,
        token: &Token,
        audiences: &[String],
    ) -> BoxFuture<'static, Result<TokenReviewed, ReviewError>> {
        let user = IdentityDetails { user: token.expose().to_owned(), ..IdentityDetails::default() };
        let is_authenticated = !user.user.starts_with("bad") && !self.0.revoked.lock().contains(&*user.user);
        self.answer(TokenReviewed { is_authenticated, user, audiences: audiences.to_vec() })
    }

    fn review_access(
        &self,
        identity: &Identity,
        attributes: ReviewAttributes,
    ) -> BoxFuture<'static, Result<bool, ReviewError>> {
        let allowed = self.0.allowed.lock();
        self.answer(allowed.contains(&(identity.user(), &*attributes.namespace)))
    }
}

async fn server(authorizer: Authorizer, authentication: Option<Authentication>, namespaces: &[&str]) -> Sandbox {
    let access = AccessConfig { authorizer: Some(authorizer), recheck: RECHECK, grace: GRACE };
    let authentication = authentication.map(Arc::new);
    let objects = namespaces.iter().map(|namespace| pod(namespace, "a", "")).collect();
    Sandbox::start_with(Options { access, authentication, ..Options::default() }, objects).await
}

/// Opens a watch of a user, whose token has its name.
async fn watch(server: &Sandbox, user: &str) -> Result<Streaming<pb::WatchResponse>, Status> {
    let mut request = Request::new(watch_pods());
    request.metadata_mut().insert("authorization", format!("Bearer {user}").parse().unwrap());
    let user = user.to_owned();
    request.extensions_mut().insert(Identity::new(IdentityDetails { user, ..IdentityDetails::default() }));
    Ok(server.in_process().watch(request).await?.into_inner())
}

/// Reads to the message with an object of this name, or to the complete bookmark after the initial events.
async fn read_to(stream: &mut Streaming<pb::WatchResponse>, name: &str) -> pb::WatchResponse {
    loop {
        let message = stream.message().await.unwrap().expect("no end");
        let is_synced = message.bookmark.as_ref().is_some_and(|bookmark| bookmark.initial_events_end);
        if name.is_empty() && is_synced || message.object.as_ref().is_some_and(|object| object.name == name) {
            return message;
        }
    }
}

/// Reads to the end: nothing but bookmarks, an ERROR with the version to resume from, and the same status.
async fn end(stream: &mut Streaming<pb::WatchResponse>) -> (String, Status) {
    let mut version = String::new();
    loop {
        match stream.message().await {
            Ok(message) => {
                let message = message.expect("a status");
                assert!(message.object.is_none(), "{message:?}");
                version = message.resource_version;
            }
            Err(status) => return (version, status),
        }
    }
}

/// Returns the reason for which a call is refused; `None` if it is served.
async fn refusal(server: &Sandbox, user: &str) -> Option<String> {
    watch(server, user).await.err().map(|status| reason(&status))
}

#[tokio::test(start_paused = true)]
async fn while_kubernetes_is_down_known_callers_are_served_until_their_decision_expires() {
    let reviewer = FakeReviewer::default();
    reviewer.allow("ann", &["x"]);
    reviewer.allow("bob", &["x"]);
    let mut server = server(reviewer.authorizer(), None, &["x", "z"]).await;
    let opened = Instant::now();
    let mut stream = watch(&server, "ann").await.unwrap();
    read_to(&mut stream, "").await;
    reviewer.is_down(true);
    sleep(DECIDED.saturating_sub(MOMENT)).await;
    assert_eq!(refusal(&server, "ann").await, None, "decided, and not expired");
    assert_eq!(refusal(&server, "bob").await.as_deref(), Some("AUTHORIZER_UNAVAILABLE"), "nobody is admitted unseen");
    sleep(2 * MOMENT).await;
    assert_eq!(refusal(&server, "ann").await.as_deref(), Some("AUTHORIZER_UNAVAILABLE"), "expired");

    // The first check without an answer is due, and the stream goes on.
    sleep(RECHECK).await;
    let seen = server.put("x", "during", "").await;
    assert_eq!(read_to(&mut stream, "during").await.resource_version, seen.version().to_string());
    assert!(opened.elapsed() > RECHECK);
    let (version, status) = end(&mut stream).await;
    assert_eq!((status.code(), &*reason(&status)), (Code::Unavailable, "AUTHORIZER_UNAVAILABLE"));
    assert_eq!(version, seen.version().to_string(), "to resume from");
    // The first check without an answer is due after 60 s.
    let (lasted, limit) = (opened.elapsed(), RECHECK + RECHECK + GRACE);
    assert!((limit..limit + Duration::from_secs(6)).contains(&lasted), "{lasted:?}");

    reviewer.is_down(false);
    assert_eq!(refusal(&server, "ann").await, None);
    assert_eq!(refusal(&server, "bob").await, None);
}

#[tokio::test(start_paused = true)]
async fn an_answer_begins_the_time_without_one_anew() {
    let reviewer = FakeReviewer::default();
    reviewer.allow("ann", &["x"]);
    let mut server = server(reviewer.authorizer(), None, &["x"]).await;
    let opened = Instant::now();
    let mut stream = watch(&server, "ann").await.unwrap();
    read_to(&mut stream, "").await;
    let mut last = String::new();
    for round in 0..6 {
        // Down at all but the third check: longer than the time without an answer, in all.
        reviewer.is_down(round != 3);
        sleep(RECHECK + Duration::from_secs(2)).await;
        last = server.put("x", &format!("in-{round}"), "").await.version().to_string();
        assert_eq!(read_to(&mut stream, &format!("in-{round}")).await.resource_version, last);
    }
    assert!(opened.elapsed() > RECHECK + GRACE + 2 * RECHECK);
    // An answer decides at once.
    reviewer.is_down(false);
    reviewer.0.allowed.lock().clear();
    let (version, status) = end(&mut stream).await;
    assert_eq!((status.code(), &*reason(&status), version), (Code::PermissionDenied, "ACCESS_DENIED", last));
}

#[tokio::test(start_paused = true)]
async fn while_tokens_are_not_reviewed_known_ones_are_accepted_until_their_entry_expires() {
    let reviewer = FakeReviewer::default();
    let token_reviews = TokenReviews::new(Arc::new(reviewer.clone()), vec!["informerd".to_owned()], KNOWN, 25);
    let authentication = Authentication { token_reviews: Some(token_reviews), ..Authentication::default() };
    let rules = json!([{"subjects": ["*"], "verbs": ["*"], "resources": ["*"], "namespaces": ["*"]}]);
    let authorizer = Authorizer::of_rules(Rules::from_value(&rules).unwrap());
    let mut server = server(authorizer, Some(authentication), &["x"]).await;
    let opened = Instant::now();
    let mut stream = watch(&server, "ann").await.unwrap();
    read_to(&mut stream, "").await;
    reviewer.is_down(true);
    sleep(KNOWN.saturating_sub(MOMENT)).await;
    assert_eq!(refusal(&server, "ann").await, None, "known");
    assert_eq!(refusal(&server, "bob").await.as_deref(), Some("AUTHORIZER_UNAVAILABLE"));
    sleep(2 * MOMENT).await;
    assert_eq!(refusal(&server, "ann").await.as_deref(), Some("AUTHORIZER_UNAVAILABLE"), "expired");
    let seen = server.put("x", "during", "").await.version().to_string();
    assert_eq!(read_to(&mut stream, "during").await.resource_version, seen);
    // The check after 60 s finds the entry, that after 120 s none.
    let (version, status) = end(&mut stream).await;
    assert_eq!((status.code(), &*reason(&status)), (Code::Unavailable, "AUTHORIZER_UNAVAILABLE"));
    assert_eq!(version, seen);
    let (lasted, limit) = (opened.elapsed(), 2 * RECHECK + RECHECK + GRACE);
    assert!((limit..limit + Duration::from_secs(7)).contains(&lasted), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_appears_enters_if_its_review_allows_it() {
    let reviewer = FakeReviewer::default();
    reviewer.allow("ann", &["x", "new"]);
    let mut server = server(reviewer.authorizer(), None, &["x", "z"]).await;
    let opened = Instant::now();
    let mut stream = watch(&server, "ann").await.unwrap();
    assert_eq!(read_to(&mut stream, "").await.bookmark.unwrap().namespaces, ["x"]);
    server.put("denied", "hidden", "").await;
    let object = server.put("new", "shown", "").await;
    assert_eq!(read_to(&mut stream, "shown").await.r#type(), pb::EventType::Added);
    assert!(opened.elapsed() < Duration::from_secs(5), "not only when the next check is due");
    let bookmark = loop {
        let message = stream.message().await.unwrap().unwrap();
        assert!(message.object.is_none(), "{message:?}");
        if let Some(bookmark) = message.bookmark.filter(|bookmark| !bookmark.history.ends_with('-')) {
            break bookmark;
        }
    };
    assert_eq!(bookmark.namespaces, ["new", "x"]);

    // The namespace stays while it is allowed, also without objects.
    server.delete(&object).await;
    assert_eq!(read_to(&mut stream, "shown").await.r#type(), pb::EventType::Deleted);
    server.put("denied", "hidden-too", "").await;
    sleep(RECHECK * 2).await;
    server.put("new", "back", "").await;
    let back = read_to(&mut stream, "back").await;
    assert_eq!((back.r#type(), back.cause()), (pb::EventType::Added, pb::Cause::Unspecified), "it had not left");

    // A right that is granted later takes effect at the check that is due.
    reviewer.allow("ann", &["denied"]);
    let granted = Instant::now();
    let names = [read_to(&mut stream, "hidden").await, read_to(&mut stream, "hidden-too").await];
    assert!(names.iter().all(|message| message.cause() == pb::Cause::EnteredSelection), "{names:?}");
    assert!(granted.elapsed() < RECHECK + DECIDED, "{:?}", granted.elapsed());
}

/// Sends calls until it is dropped: each sender waits for an answer before the next call.
struct Flood(#[expect(dead_code, reason = "ends them when it is dropped")] JoinSet<()>);

impl Flood {
    /// `request` returns the call number `n` of all.
    fn begin(server: &Sandbox, request: impl Fn(u64) -> Request<pb::GetRequest> + Send + Sync + 'static) -> Self {
        let (request, last) = (Arc::new(request), Arc::new(AtomicU64::new(0)));
        let mut senders = JoinSet::new();
        for _ in 0..1000 {
            let (mut client, request, last) = (server.in_process(), Arc::clone(&request), Arc::clone(&last));
            senders.spawn(async move {
                loop {
                    let refused = client.get(request(last.fetch_add(1, Ordering::Relaxed))).await;
                    assert!(refused.is_err());
                    sleep(Duration::from_millis(500)).await;
                }
            });
        }
        Self(senders)
    }
}

/// Lists each second, and returns how long the answers took, the shortest first. None is refused.
async fn lists(server: &Sandbox, user: &str, seconds: usize) -> Vec<Duration> {
    let mut waited = Vec::new();
    for _ in 0..seconds {
        let began = Instant::now();
        let request = of(user, 1, pb::ListRequest { resource: "pods".to_owned(), ..Default::default() });
        let mut list = server.in_process().list(request).await.unwrap().into_inner();
        while list.message().await.unwrap().is_some() {}
        waited.push(began.elapsed());
        sleep(MOMENT).await;
    }
    waited.sort_unstable();
    waited
}

/// Returns a request of a user, whose token has its name, from a host.
fn of<M>(user: &str, host: u8, message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {user}").parse().unwrap());
    request.extensions_mut().insert(Peer::Tcp(([10, 0, 0, host], 1).into()));
    request
}

/// Floods a server whose authority needs a second for an answer, with a caller who has an open watch. Neither is the watch ended nor
/// is a call of this caller, or of a new one, refused. A List of its needs `reviews`, one after the other, unless their answers are kept.
async fn survives_a_flood(
    authorizer: Authorizer,
    reviewer: &FakeReviewer,
    reviews: u32,
    flood: fn(u64) -> Request<pb::GetRequest>,
) {
    let token_reviews = TokenReviews::new(Arc::new(reviewer.clone()), vec!["informerd".to_owned()], DECIDED, 25);
    let authentication = Authentication { token_reviews: Some(token_reviews), ..Authentication::default() };
    let access = AccessConfig { authorizer: Some(authorizer), recheck: Duration::from_secs(10), grace: Duration::ZERO };
    let options = Options { access, authentication: Some(Arc::new(authentication)), ..Options::default() };
    let mut server = Sandbox::start_with(options, vec![pod("x", "a", "")]).await;
    let mut stream = server.in_process().watch(of("ann", 1, watch_pods())).await.unwrap().into_inner();
    read_to(&mut stream, "").await;
    *reviewer.0.delay.lock() = MOMENT;
    let _flood = Flood::begin(&server, flood);
    sleep(5 * MOMENT).await;
    let waited = lists(&server, "ann", 40).await;
    let with_reviews: Vec<_> = waited.iter().filter(|time| !time.is_zero()).collect();
    assert!(with_reviews.len() >= 3, "some Lists have reviews: {waited:?}");
    // No more than these take: others have no turn before this caller.
    let enough = reviews * MOMENT + Duration::from_millis(100);
    assert!(*with_reviews[with_reviews.len() / 2] < enough, "{with_reviews:?}");
    assert!(*with_reviews[with_reviews.len() - 1] <= 5 * MOMENT, "{with_reviews:?}");
    let new = lists(&server, "bob", 1).await;
    assert!(new[0] <= 5 * MOMENT, "{new:?}");
    let version = server.put("x", "during", "").await.version().to_string();
    assert_eq!(read_to(&mut stream, "during").await.resource_version, version, "the watch goes on");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_bad_tokens_delays_no_known_caller_and_ends_no_watch() {
    let all = json!([{"subjects": ["*"], "verbs": ["*"], "resources": ["*"], "namespaces": ["*"]}]);
    let authorizer = Authorizer::of_rules(Rules::from_value(&all).unwrap());
    let bad =
        |number| of(&format!("bad{number}"), 2, pb::GetRequest { resource: "pods".to_owned(), ..Default::default() });
    survives_a_flood(authorizer, &FakeReviewer::default(), 1, bad).await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_accesses_of_one_user_delays_no_other_and_ends_no_watch() {
    let reviewer = FakeReviewer::default();
    for user in ["ann", "bob"] {
        reviewer.allow(user, &["x"]);
    }
    let denied = |number| {
        let namespace = format!("n{number}");
        of("mallory", 2, pb::GetRequest { resource: "pods".to_owned(), namespace, ..Default::default() })
    };
    survives_a_flood(reviewer.authorizer(), &reviewer, 3, denied).await;
}

/// While there is no answer the rights of before hold, but no credential beyond its own time.
#[tokio::test(start_paused = true)]
async fn without_an_answer_a_stream_ends_when_its_credentials_expire() {
    let reviewer = FakeReviewer::default();
    reviewer.allow("ann", &["x"]);
    let server = server(reviewer.authorizer(), None, &["x"]).await;
    // The clock of the system decides, which does not stand still with that of the test.
    let expires = Some(SystemTime::now() + Duration::from_millis(500));
    let mut stream = super::recheck::watch(&server, watch_pods(), expires).await.unwrap();
    read_to(&mut stream, "").await;
    // It hangs: the check of the watch waits for it.
    *reviewer.0.delay.lock() = Duration::from_secs(1 << 30);
    sleep(RECHECK + MOMENT).await;
    while expires.is_some_and(|expires| SystemTime::now() < expires) {
        tokio::task::yield_now().await;
    }
    let (_, status) = end(&mut stream).await;
    assert_eq!((status.code(), &*reason(&status)), (Code::Unauthenticated, "CREDENTIALS_EXPIRED"));
}

#[tokio::test(start_paused = true)]
async fn a_stream_reads_what_its_client_closes_while_openings_are_reviewed() {
    let reviewer = FakeReviewer::default();
    reviewer.allow("ann", &["x"]);
    let server = server(reviewer.authorizer(), None, &["x"]).await;
    let (requests, sent) = mpsc::channel(10);
    let mut request = Request::new(ReceiverStream::new(sent));
    let details = IdentityDetails { user: "ann".to_owned(), ..IdentityDetails::default() };
    request.extensions_mut().insert(Identity::new(details));
    let mut responses = server.in_process().subscribe(request).await.unwrap().into_inner();
    let open = |id: u32, namespace: String| {
        let watch = pb::WatchRequest { namespace, ..watch_pods() };
        pb::OpenWatch { id, watch: Some(watch) }
    };
    requests.send(pb::SubscribeRequest { open: vec![open(1, "x".to_owned())], ..Default::default() }).await.unwrap();
    assert_eq!(responses.message().await.unwrap().unwrap().deliveries[0].watch_ids, [1]);

    // More than work at a time, each of which waits for the authority.
    *reviewer.0.delay.lock() = MOMENT;
    let slow = (2..500).map(|id| open(id, format!("n{id}"))).collect();
    requests.send(pb::SubscribeRequest { open: slow, ..Default::default() }).await.unwrap();
    let closed = Instant::now();
    requests.send(pb::SubscribeRequest { close: vec![1, 400], ..Default::default() }).await.unwrap();
    let mut ended = async |count: usize| {
        let mut ids = BTreeSet::new();
        while ids.len() < count {
            let response = responses.message().await.unwrap().unwrap();
            ids.extend(response.deliveries.into_iter().filter(|of| of.ended).flat_map(|of| of.watch_ids));
        }
        ids
    };
    assert_eq!(ended(2).await, [1, 400].into());
    assert!(closed.elapsed() < MOMENT / 10, "{:?}", closed.elapsed());
    assert_eq!(ended(497).await, (2..500).filter(|id| *id != 400).collect());
}

/// Above the number of namespaces that can be reviewed, a call has to name one; a stream keeps those that it has.
#[tokio::test(start_paused = true)]
async fn a_stream_keeps_its_namespaces_when_a_resource_has_too_many() {
    let reviewer = FakeReviewer::default();
    reviewer.allow("web", &["n0", "n1"]);
    let namespaces: Vec<String> = (0..200).map(|at| format!("n{at}")).collect();
    let namespaces: Vec<&str> = namespaces.iter().map(String::as_str).collect();
    let mut server = server(reviewer.authorizer(), None, &namespaces).await;
    let mut stream = watch(&server, "web").await.unwrap();
    read_to(&mut stream, "").await;
    server.put("n200", "of-others", "").await;
    sleep(RECHECK).await;
    assert_eq!(refusal(&server, "web").await.as_deref(), Some("ACCESS_DENIED"), "a call names a namespace");
    let seen = server.put("n0", "later", "").await;
    assert_eq!(read_to(&mut stream, "later").await.resource_version, seen.version().to_string());
    reviewer.0.allowed.lock().remove(&("web", "n1"));
    sleep(RECHECK + DECIDED).await;
    server.put("n1", "hidden", "").await;
    let last = server.put("n0", "last", "").await.version().to_string();
    loop {
        let message = stream.message().await.unwrap().expect("no end");
        assert!(
            message.object.is_none_or(|object| object.name != "hidden"),
            "of a namespace that it may no longer read"
        );
        if message.resource_version == last {
            break;
        }
    }
    reviewer.0.allowed.lock().clear();
    assert_eq!(reason(&end(&mut stream).await.1), "ACCESS_DENIED", "it loses those that it may no longer read");
}
