use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::SystemTime,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use parking_lot::Mutex;
use tokio::time::{Instant, advance, sleep};

use super::*;
use crate::auth::{
    IdentityDetails, Token, TokenReviewed,
    decisions::{MAX_BYTES, REVIEW_TIMEOUT},
};

/// Authority with a set of allowed accesses.
#[derive(Debug, Clone, Default)]
struct FakeReviewer(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Allowed accesses, such as `list pods. shop`.
    allowed: Mutex<BTreeSet<&'static str>>,
    asked: Mutex<Vec<String>>,
    delay: Mutex<Duration>,
    fails: AtomicBool,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl Reviewer for FakeReviewer {
    fn review_token(&self, _: &Token, _: &[String]) -> BoxFuture<'static, Result<TokenReviewed, ReviewError>> {
        unreachable!("no token is reviewed")
    }

    fn review_access(
        &self,
        _: &Identity,
        attributes: ReviewAttributes,
    ) -> BoxFuture<'static, Result<bool, ReviewError>> {
        let ReviewAttributes { verb, group, resource, namespace, name, .. } = attributes;
        let access = format!("{verb} {resource}.{group} {namespace} {name}").trim_end().to_owned();
        let state = Arc::clone(&self.0);
        async move {
            state.asked.lock().push(access.clone());
            let running = state.running.fetch_add(1, Ordering::Relaxed) + 1;
            state.most_running.fetch_max(running, Ordering::Relaxed);
            let delay = *state.delay.lock();
            sleep(delay).await;
            state.running.fetch_sub(1, Ordering::Relaxed);
            if state.fails.load(Ordering::Relaxed) {
                return Err(ReviewError("connection refused".to_owned()));
            }
            let is_allowed = state.allowed.lock().contains(&*access);
            Ok(is_allowed)
        }
        .boxed()
    }
}

impl FakeReviewer {
    fn of(allowed: &[&'static str]) -> Self {
        let this = Self::default();
        this.0.allowed.lock().extend(allowed);
        this
    }

    fn fail(&self, fails: bool) {
        self.0.fails.store(fails, Ordering::Relaxed);
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.asked.lock())
    }

    fn reviews(&self) -> AccessReviews {
        let pods = ReviewAttributes { version: "v1".into(), resource: "pods".into(), ..ReviewAttributes::default() };
        let config = ReviewConfig {
            resources: BTreeMap::from([("web-pods".to_owned(), pods)]),
            ttl: Duration::from_secs(10),
            peer_share: 25,
        };
        AccessReviews::new(Arc::new(self.clone()), config, ReviewMetrics::default())
    }
}

fn caller(user: &str) -> Identity {
    Identity::new(IdentityDetails { user: user.to_owned(), ..IdentityDetails::default() })
}

fn pods(operation: Operation) -> Attributes {
    Attributes::new(operation, "web-pods")
}

fn only(namespaces: &[&str]) -> Scope {
    Scope::Only(namespaces.iter().copied().collect())
}

async fn decide(reviews: &AccessReviews, attributes: &Attributes) -> Result<Scope, AccessError> {
    reviews.authorize(&caller("a"), attributes, &|| ["a", "b", "c", ""].map(str::to_owned).to_vec(), false).await
}

#[tokio::test(start_paused = true)]
async fn a_caller_gets_the_namespaces_in_which_each_verb_is_allowed() {
    let reviewer =
        FakeReviewer::of(&["list pods. a", "watch pods. a", "list pods. b", "watch pods. c", "list pods. d"]);
    let reviews = reviewer.reviews();
    assert_eq!(decide(&reviews, &pods(Operation::Watch)).await, Ok(only(&["a"])));
    assert_eq!(reviewer.asked()[0], "list pods.", "all namespaces first");
    assert_eq!(decide(&reviews, &pods(Operation::List)).await, Ok(only(&["a", "b"])));
    assert_eq!(decide(&reviews, &pods(Operation::See)).await, Ok(only(&["a", "b", "c"])));
    for (namespace, expected) in [
        ("a", Ok(Scope::All)),
        ("b", Err(AccessError::Denied)),
        ("d", Err(AccessError::Denied)),
        ("e", Err(AccessError::Denied)),
    ] {
        let attributes = Attributes { namespace: Some(namespace.to_owned()), ..pods(Operation::Watch) };
        assert_eq!(decide(&reviews, &attributes).await, expected, "{namespace}");
    }
    let none = Attributes::new(Operation::List, "other");
    assert_eq!(decide(&reviews, &none).await, Err(AccessError::Denied));
    assert!(reviewer.asked().contains(&"list other.informerd a".to_owned()), "a group of its own");

    let everywhere = FakeReviewer::of(&["list pods.", "watch pods."]);
    assert_eq!(decide(&everywhere.reviews(), &pods(Operation::Watch)).await, Ok(Scope::All));
    assert_eq!(everywhere.asked(), ["list pods.", "watch pods."]);
}

#[tokio::test(start_paused = true)]
async fn the_namespace_of_a_service_account_is_reviewed_also_without_objects() {
    let reviews = FakeReviewer::of(&["list pods. shop", "list pods. other"]).reviews();
    let list = pods(Operation::List);
    let account = caller("system:serviceaccount:shop:web");
    assert_eq!(reviews.authorize(&account, &list, &Vec::new, false).await, Ok(only(&["shop"])));
    for user in ["shop", "system:serviceaccount:none:web", "system:serviceaccount::x", "system:serviceaccount:shop"] {
        assert_eq!(reviews.authorize(&caller(user), &list, &Vec::new, false).await, Err(AccessError::Denied), "{user}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_get_needs_get_or_list_of_the_object() {
    let get = Attributes { namespace: Some("a".to_owned()), name: Some("x".to_owned()), ..pods(Operation::Get) };
    for (allowed, expected) in [
        ("get pods. a x", Ok(Scope::All)),
        ("list pods. a x", Ok(Scope::All)),
        ("watch pods. a x", Err(AccessError::Denied)),
        ("get pods. a y", Err(AccessError::Denied)),
    ] {
        assert_eq!(decide(&FakeReviewer::of(&[allowed]).reviews(), &get).await, expected, "{allowed}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_content_of_secrets_and_the_watches_of_others_are_not_by_the_way() {
    let reviews = FakeReviewer::of(&["list pods.", "admin pods. a"]).reviews();
    let secret = Attributes { is_secret: true, ..pods(Operation::List) };
    assert_eq!(decide(&reviews, &secret).await, Ok(Scope::All));
    for attributes in [
        Attributes { format: Format::Raw, ..secret.clone() },
        Attributes { format: Format::Struct, ..secret.clone() },
        Attributes { selects_content: true, ..secret },
        pods(Operation::Inspect),
        Attributes { namespace: Some("a".to_owned()), ..pods(Operation::Inspect) },
    ] {
        assert_eq!(decide(&reviews, &attributes).await, Err(AccessError::Denied), "{attributes:?}");
    }
    let admin = FakeReviewer::of(&["admin pods."]).reviews();
    assert_eq!(decide(&admin, &pods(Operation::Inspect)).await, Ok(Scope::All));
    for operation in [Operation::List, Operation::Disconnect] {
        assert_eq!(decide(&admin, &pods(operation)).await, Err(AccessError::Denied));
    }
    let ends = FakeReviewer::of(&["disconnect pods."]).reviews();
    assert_eq!(decide(&ends, &pods(Operation::Disconnect)).await, Ok(Scope::All));
    assert_eq!(decide(&ends, &pods(Operation::Inspect)).await, Err(AccessError::Denied));
}

#[tokio::test(start_paused = true)]
async fn a_decision_is_used_until_it_expires_and_none_is_made_without_an_answer() {
    let reviewer = FakeReviewer::of(&["list pods."]);
    let reviews = reviewer.reviews();
    let (list, other) = (pods(Operation::List), Attributes::new(Operation::List, "other"));
    let unavailable = Err(AccessError::Unavailable { problem: "connection refused".to_owned() });
    assert_eq!(decide(&reviews, &list).await, Ok(Scope::All));
    assert_eq!(decide(&reviews, &other).await, Err(AccessError::Denied));
    assert_eq!(reviewer.asked().len(), 5);
    reviewer.fail(true);
    reviewer.0.allowed.lock().clear();
    advance(Duration::from_millis(9_999)).await;
    assert_eq!(decide(&reviews, &list).await, Ok(Scope::All));
    assert_eq!(decide(&reviews, &other).await, Err(AccessError::Denied));
    assert_eq!(reviewer.asked().len(), 0, "known");
    let new = reviews.authorize(&caller("b"), &list, &Vec::new, false).await;
    assert_eq!(new, unavailable, "a new caller");
    advance(Duration::from_millis(1)).await;
    assert_eq!(decide(&reviews, &list).await, unavailable);
    assert_eq!(decide(&reviews, &other).await, unavailable);
    reviewer.fail(false);
    assert_eq!(decide(&reviews, &list).await, Err(AccessError::Denied), "a failure is not kept");
    // Some reviews fail: nothing is decided by the others.
    reviewer.0.allowed.lock().insert("list pods. a");
    advance(Duration::from_secs(10)).await;
    *reviewer.0.delay.lock() = Duration::from_secs(1);
    let failing = async {
        sleep(Duration::from_millis(1500)).await;
        reviewer.fail(true);
    };
    let (decision, ()) = tokio::join!(decide(&reviews, &list), failing);
    assert_eq!(decision, unavailable);
}

#[tokio::test(start_paused = true)]
async fn callers_share_a_review_and_it_ends_with_the_last_of_them() {
    let reviewer = FakeReviewer::of(&["list pods."]);
    *reviewer.0.delay.lock() = Duration::from_secs(2);
    let reviews = Arc::new(reviewer.reviews());
    let call = || {
        let reviews = Arc::clone(&reviews);
        tokio::spawn(async move { decide(&reviews, &pods(Operation::List)).await })
    };
    let calls: Vec<_> = (0..100).map(|_| call()).collect();
    sleep(Duration::from_secs(1)).await;
    calls[0].abort();
    for (number, decision) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(decision.ok(), (number > 0).then_some(Ok(Scope::All)));
    }
    assert_eq!(reviewer.asked(), ["list pods."]);
    advance(Duration::from_secs(10)).await;
    let call_alone = call();
    sleep(Duration::from_secs(1)).await;
    call_alone.abort();
    assert!(call_alone.await.is_err());
    sleep(Duration::from_secs(20)).await;
    assert_eq!(call().await.unwrap(), Ok(Scope::All), "the limit of time is that of the new review");
    assert_eq!(reviewer.asked().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn reviews_are_bounded_in_number_and_time() {
    let reviewer = FakeReviewer::of(&[]);
    *reviewer.0.delay.lock() = Duration::from_millis(10);
    let reviews = Arc::new(reviewer.reviews());
    let namespaces = |count: usize| move || (0..count).map(|number| format!("n{number}")).collect::<Vec<_>>();
    let denied = reviews.authorize(&caller("a"), &pods(Operation::List), &namespaces(200), false).await;
    assert_eq!(denied, Err(AccessError::Denied));
    assert_eq!((reviewer.asked().len(), reviewer.0.most_running.load(Ordering::Relaxed)), (201, 8));
    let too_many = reviews.authorize(&caller("b"), &pods(Operation::List), &namespaces(201), false).await;
    assert_eq!(too_many, Err(AccessError::TooManyNamespaces { limit: 200 }));
    assert_eq!(reviewer.asked().len(), 1);

    let call = |number: usize| {
        let reviews = Arc::clone(&reviews);
        let caller = caller(&format!("c{number}"));
        async move { reviews.authorize(&caller, &pods(Operation::List), &Vec::new, false).await }
    };
    join_all((0..1000).map(call)).await;
    assert_eq!(reviewer.0.most_running.load(Ordering::Relaxed), 48, "the others are for those with a decision before");
    *reviewer.0.delay.lock() = Duration::from_secs(3600);
    let begun = Instant::now();
    let problem = "review of an access not answered within 10s".to_owned();
    let slow = join_all((1000..1100).map(call)).await;
    assert!(slow.iter().all(|decision| *decision == Err(AccessError::Unavailable { problem: problem.clone() })));
    assert_eq!(begun.elapsed(), REVIEW_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_one_user_delays_no_other_and_a_decision_that_lapsed_comes_first() {
    let reviewer = FakeReviewer::of(&["list pods."]);
    let reviews = Arc::new(reviewer.reviews());
    let list = async |user: &str| {
        let began = Instant::now();
        let decided = reviews.authorize(&caller(user), &pods(Operation::List), &Vec::new, false).await;
        (decided, began.elapsed())
    };
    list("ann").await.0.unwrap();
    advance(Duration::from_secs(10)).await;
    *reviewer.0.delay.lock() = Duration::from_secs(1);
    let flood: Vec<_> = (0..4000)
        .map(|at| {
            let (reviews, namespace) = (Arc::clone(&reviews), Some(format!("n{at}")));
            let attributes = Attributes { namespace, ..pods(Operation::List) };
            tokio::spawn(async move { reviews.authorize(&caller("mallory"), &attributes, &Vec::new, false).await })
        })
        .collect();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(reviewer.0.running.load(Ordering::Relaxed), 16, "a quarter for a user");
    let at_once = (Ok(Scope::All), Duration::from_secs(1));
    assert_eq!(list("ann").await, at_once);
    assert_eq!(list("bob").await, at_once);
    for answer in flood {
        assert!(answer.await.unwrap().is_err());
    }

    // All permits of strangers are in use, by authorities that hang; a decision of before has those that are left.
    advance(Duration::from_secs(10)).await;
    *reviewer.0.delay.lock() = Duration::from_secs(3600);
    let strangers: Vec<_> = (0..100)
        .map(|at| {
            let reviews = Arc::clone(&reviews);
            tokio::spawn(async move {
                reviews.authorize(&caller(&format!("s{at}")), &pods(Operation::List), &Vec::new, false).await
            })
        })
        .collect();
    sleep(Duration::from_millis(10)).await;
    *reviewer.0.delay.lock() = Duration::from_secs(1);
    assert_eq!(list("ann").await, at_once);
    *reviewer.0.delay.lock() = Duration::ZERO;
    reviewer.fail(true);
    advance(Duration::from_secs(10)).await;
    assert!(list("ann").await.0.is_err());
    reviewer.fail(false);
    let (decided, waited) = list("ann").await;
    assert_eq!((decided, waited.is_zero()), (Ok(Scope::All), true), "a failure takes nothing of that");
    for answer in strangers {
        answer.abort();
    }
}

/// The class of a review is known for an open stream, and for a caller who was admitted before, whatever failed meanwhile.
#[tokio::test(start_paused = true)]
async fn a_stream_comes_first_and_one_who_was_denied_before_does_not() {
    let reviewer = FakeReviewer::of(&["list pods."]);
    let reviews = Arc::new(reviewer.reviews());
    let list = async |user: &str, namespace: Option<&str>, is_stream| {
        let began = Instant::now();
        let attributes = Attributes { namespace: namespace.map(str::to_owned), ..pods(Operation::List) };
        let decided = reviews.authorize(&caller(user), &attributes, &Vec::new, is_stream).await;
        (decided, began.elapsed())
    };
    assert_eq!(list("ann", None, false).await.0, Ok(Scope::All));
    assert_eq!(list("eve", Some("x"), false).await.0, Err(AccessError::Denied));
    advance(Duration::from_secs(10)).await;
    // All permits of strangers are in use, by an authority that hangs.
    *reviewer.0.delay.lock() = Duration::from_secs(3600);
    let strangers: Vec<_> = (0..100)
        .map(|at| {
            let reviews = Arc::clone(&reviews);
            let stranger = caller(&format!("s{at}"));
            tokio::spawn(async move { reviews.authorize(&stranger, &pods(Operation::List), &Vec::new, false).await })
        })
        .collect();
    sleep(Duration::from_millis(10)).await;
    *reviewer.0.delay.lock() = Duration::from_secs(1);
    let at_once = |decision| (decision, Duration::from_secs(1));
    assert_eq!(list("ann", None, false).await, at_once(Ok(Scope::All)), "admitted before");
    assert_eq!(list("bob", None, true).await, at_once(Ok(Scope::All)), "an open stream, whose decision was forgotten");
    let (decided, waited) = list("eve", Some("x"), false).await;
    assert!(decided.is_err() && waited > Duration::from_secs(5), "{decided:?} {waited:?}");
    for answer in strangers {
        answer.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn decisions_are_of_a_caller_whatever_its_token_and_bounded_in_memory() {
    let reviewer = FakeReviewer::of(&["list pods."]);
    let reviews = reviewer.reviews();
    let details = caller("a").details().clone();
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
    for (details, asked) in [
        (details.clone(), 1),
        (IdentityDetails { expires: Some(later), ..details.clone() }, 0),
        (IdentityDetails { groups: vec!["g".to_owned()], ..details.clone() }, 1),
        (IdentityDetails { uid: "u".to_owned(), ..details.clone() }, 1),
        (IdentityDetails { extra: BTreeMap::from([("k".to_owned(), Vec::new())]), ..details }, 1),
    ] {
        let identity = Identity::new(details);
        assert_eq!(reviews.authorize(&identity, &pods(Operation::List), &Vec::new, false).await, Ok(Scope::All));
        assert_eq!(reviewer.asked().len(), asked, "{:?}", identity.details());
    }
    let name = "x".repeat(60_000);
    for number in 0..600 {
        let attributes = Attributes { name: Some(format!("{name}{number}")), ..pods(Operation::List) };
        assert_eq!(reviews.authorize(&caller("a"), &attributes, &Vec::new, false).await, Err(AccessError::Denied));
    }
    assert!(reviews.decisions.known.lock().weight() <= MAX_BYTES);
}

/// The group of the server: the right gives nothing at the API server itself.
#[tokio::test(start_paused = true)]
async fn impersonation_is_reviewed_for_the_user_and_each_group() {
    let relay = caller("relay");
    let groups = vec!["web".to_owned(), "ops".to_owned()];
    let ann = Identity::new(IdentityDetails { groups, ..caller("ann").details().clone() });
    let needed =
        ["impersonate users.informerd  ann", "impersonate groups.informerd  ops", "impersonate groups.informerd  web"];
    assert_eq!(FakeReviewer::of(&needed).reviews().impersonate(&relay, &ann, false).await, Ok(()));
    for missing in 0..needed.len() {
        let reviewer = FakeReviewer::of(&needed);
        reviewer.0.allowed.lock().remove(needed[missing]);
        assert_eq!(reviewer.reviews().impersonate(&relay, &ann, false).await, Err(AccessError::Denied), "{missing}");
    }
    assert_eq!(FakeReviewer::of(&needed).reviews().impersonate(&relay, &caller("ann"), false).await, Ok(()));
    let failing = FakeReviewer::of(&needed);
    failing.fail(true);
    let unavailable = failing.reviews().impersonate(&relay, &ann, false).await;
    assert!(matches!(unavailable, Err(AccessError::Unavailable { .. })));
}
