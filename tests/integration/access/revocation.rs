//! Rights and credentials that are revoked while an authority answers nothing about other callers. Time is paused.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use informerd::{
    auth::{
        Authentication, Authorizer, Identity, IdentityDetails, ReviewAttributes, ReviewError, Reviewer, Rules, Token,
        TokenReviewed, TokenReviews,
    },
    grpc::AccessConfig,
    proto::pb::{self, admin_service_client::AdminServiceClient},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tonic::{Code, Request, Status, Streaming};

use super::recheck::{readable, synced, watch};
use crate::sandbox::{Options, Sandbox, pod, reason, watch_pods};

/// Authority over tokens, which are the names of their users. It never answers about some of them.
#[derive(Debug, Clone, Default)]
struct HangingReviewer(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Beginning of the tokens without an answer.
    hanging: Mutex<Option<&'static str>>,
    revoked: Mutex<BTreeSet<&'static str>>,
}

/// Time for which the user of a token is known.
const KNOWN: Duration = Duration::from_secs(1);
const RECHECK: Duration = Duration::from_secs(60);
/// Time within which whoever has an answer loses a right, after the check is due.
const SOON: Duration = Duration::from_secs(5);

impl Reviewer for HangingReviewer {
    fn review_token(
        &self,
        token: &Token,
        audiences: &[String],
    ) -> BoxFuture<'static, Result<TokenReviewed, ReviewError>> {
        let user = IdentityDetails { user: token.expose().to_owned(), ..IdentityDetails::default() };
        let is_authenticated = !self.0.revoked.lock().contains(&*user.user);
        let hangs = self.0.hanging.lock().is_some_and(|beginning| user.user.starts_with(beginning));
        let reviewed = TokenReviewed { is_authenticated, user, audiences: audiences.to_vec() };
        async move { if hangs { std::future::pending().await } else { Ok(reviewed) } }.boxed()
    }

    fn review_access(&self, _: &Identity, _: ReviewAttributes) -> BoxFuture<'static, Result<bool, ReviewError>> {
        unreachable!("rules decide")
    }
}

/// Returns the rules that let these users read everything.
fn readers(users: &[&str]) -> Rules {
    let subjects: Vec<String> = users.iter().map(|user| format!("user:{user}")).collect();
    let rule = json!([{"subjects": subjects, "verbs": ["*"], "resources": ["*"], "namespaces": ["*"]}]);
    Rules::from_value(&rule).unwrap()
}

async fn server(reviewer: &HangingReviewer, authorizer: &Authorizer) -> Sandbox {
    let (audiences, reviewer) = (vec!["informerd".to_owned()], Arc::new(reviewer.clone()));
    let token_reviews = Some(TokenReviews::new(reviewer, audiences, KNOWN, 25));
    let authentication = Authentication { accepts_certificates: true, token_reviews, ..Authentication::default() };
    let access = AccessConfig { authorizer: Some(authorizer.clone()), recheck: RECHECK, ..AccessConfig::default() };
    let options = Options { access, authentication: Some(Arc::new(authentication)), ..Options::default() };
    Sandbox::start_with(options, vec![pod("x", "a", "")]).await
}

/// Opens a watch with a token, which is the name of its user.
async fn by_token(server: &Sandbox, user: &str) -> Streaming<pb::WatchResponse> {
    let mut request = Request::new(watch_pods());
    request.metadata_mut().insert("authorization", format!("Bearer {user}").parse().unwrap());
    server.in_process().watch(request).await.unwrap().into_inner()
}

/// Reads to the end of a stream, and returns the status and the time.
async fn end(stream: &mut Streaming<pb::WatchResponse>) -> (Status, Instant) {
    loop {
        if let Err(status) = stream.message().await {
            return (status, Instant::now());
        }
    }
}

/// A right that rules take away is gone at once, whatever reviews of other callers' tokens are waited for, at the first check without
/// an answer as at a later one.
#[tokio::test(start_paused = true)]
async fn a_change_of_rules_waits_for_no_review_of_others() {
    for rounds in [1, 3] {
        let reviewer = HangingReviewer::default();
        let all: Vec<String> = (0..1000).map(|user| format!("t{user}")).collect();
        let users = |more: &[&'static str]| -> Rules {
            readers(&all.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>())
        };
        let authorizer = Authorizer::of_rules(users(&["ann"]));
        let server = server(&reviewer, &authorizer).await;
        let mut others = Vec::new();
        for user in &all {
            others.push(by_token(&server, user).await);
        }
        let mut stream = watch(&server, watch_pods(), None).await.unwrap();
        synced(&mut stream).await;
        *reviewer.0.hanging.lock() = Some("t");
        sleep(RECHECK * rounds + SOON).await;
        let revoked = Instant::now();
        authorizer.set_rules(users(&[]));
        let (status, ended) = end(&mut stream).await;
        assert_eq!((status.code(), &*reason(&status)), (Code::PermissionDenied, "ACCESS_DENIED"));
        assert!(ended - revoked < SOON, "{rounds}: {:?}", ended - revoked);
    }
}

/// Watches of one caller wait for each other's expressions, and are not yet among those whose rights are checked again.
#[tokio::test(start_paused = true)]
async fn a_watch_whose_rights_are_revoked_while_it_waits_for_its_expression_is_refused() {
    const WATCHES: usize = 64;
    for (left, expected) in [(&[][..], "ACCESS_DENIED"), (&["x"], "ACCESS_CHANGED")] {
        let authorizer = Authorizer::of_rules(readable(&["x", "y"]));
        let mut server = server(&HangingReviewer::default(), &authorizer).await;
        let in_y = server.put("y", "b", "").await;
        server.reached(in_y.version()).await;
        let is_revoked = Cell::new(false);
        let opened = join_all((0..WATCHES).map(async |at| {
            let terms: Vec<String> = (0..40).map(|term| format!("object.spec.node != 'n{at}-{term}'")).collect();
            let request = pb::WatchRequest { expression: terms.join(" && "), ..watch_pods() };
            let opened = watch(&server, request, None).await;
            (is_revoked.get(), opened.err().map(|status| reason(&status)))
        }));
        let revoked = async {
            // Until all wait.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            authorizer.set_rules(readable(left));
            is_revoked.set(true);
        };
        let (opened, ()) = tokio::join!(opened, revoked);
        let after: Vec<_> = opened.into_iter().filter(|(is_after, _)| *is_after).map(|(_, refusal)| refusal).collect();
        assert!(after.len() > WATCHES / 2, "{}", after.len());
        let others: Vec<_> = after.iter().filter(|refusal| refusal.as_deref() != Some(expected)).collect();
        // One may have been checked just before.
        assert!(others.len() <= 1, "{others:?} of {}", after.len());
    }
}

/// One caller with many watches has a part of the checks at most: the token of another is reviewed when that is due.
#[tokio::test(start_paused = true)]
async fn a_revoked_token_waits_for_no_review_of_a_caller_with_many_watches() {
    for rounds in [1, 3] {
        let reviewer = HangingReviewer::default();
        let authorizer = Authorizer::of_rules(readers(&["many", "bob"]));
        let server = server(&reviewer, &authorizer).await;
        let mut others = Vec::new();
        for _ in 0..2000 {
            others.push(by_token(&server, "many").await);
        }
        let mut stream = by_token(&server, "bob").await;
        synced(&mut stream).await;
        let opened = Instant::now();
        *reviewer.0.hanging.lock() = Some("many");
        sleep((RECHECK * rounds).saturating_sub(SOON)).await;
        reviewer.0.revoked.lock().insert("bob");
        let (status, ended) = end(&mut stream).await;
        assert_eq!((status.code(), &*reason(&status)), (Code::Unauthenticated, "CREDENTIALS_INVALID"));
        let lasted = ended - opened;
        // The second check is due an interval after the first, and each time a second later at most.
        assert!(lasted < RECHECK * rounds + SOON, "{rounds}: {lasted:?}");
    }
}

/// A certificate may expire while its connection is open: the next call is refused, as a watch on an open stream is, also where no
/// authenticator is configured.
#[tokio::test(start_paused = true)]
async fn a_certificate_that_has_expired_is_refused_without_an_authenticator() {
    let server = Sandbox::start(vec![pod("x", "a", "")]).await;
    let expired = Some(SystemTime::now() - Duration::from_secs(1));
    let refused = watch(&server, watch_pods(), expired).await.unwrap_err();
    assert_eq!((refused.code(), &*reason(&refused)), (Code::Unauthenticated, "CREDENTIALS_EXPIRED"));
    let valid = Some(SystemTime::now() + Duration::from_secs(3600));
    assert!(watch(&server, watch_pods(), valid).await.is_ok());
}

/// The metrics, the state and the filter of the log are those of the server, too.
#[tokio::test]
async fn without_a_resource_the_right_to_inspect_all_is_needed() {
    let server = server(&HangingReviewer::default(), &Authorizer::of_rules(readers(&["ops"]))).await;
    server.state.set_resources([]);
    for (token, expected) in [("bob", Some(Code::PermissionDenied)), ("ops", None)] {
        let bearer = format!("Bearer {token}");
        let headers = [(http::header::AUTHORIZATION, bearer.parse().unwrap())];
        let checked = server.state.check_operator(&headers.into_iter().collect(), ([10, 0, 0, 1], 1).into()).await;
        assert_eq!(checked.err().map(|status| status.code()), expected, "{token}");
        let mut stats = Request::new(pb::GetStatsRequest {});
        stats.metadata_mut().insert("authorization", bearer.parse().unwrap());
        let stats = AdminServiceClient::new(server.service()).get_stats(stats).await;
        assert_eq!(stats.err().map(|status| status.code()), expected, "{token}");
    }
}

/// A flood of bad tokens at the admin port delays its sender alone.
#[tokio::test(start_paused = true)]
async fn senders_to_the_admin_port_take_turns() {
    let reviewer = HangingReviewer::default();
    let server = server(&reviewer, &Authorizer::of_rules(readers(&["ops"]))).await;
    *reviewer.0.hanging.lock() = Some("bad");
    let check = |token: String, host: u8| {
        let headers = [(http::header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap())];
        let service = server.state.clone();
        tokio::spawn(async move {
            service.check_operator(&headers.into_iter().collect(), ([10, 0, 0, host], 1).into()).await
        })
    };
    let _flood: Vec<_> = (0..100).map(|at| check(format!("bad{at}"), 1)).collect();
    sleep(Duration::from_millis(10)).await;
    let began = Instant::now();
    check("ops".to_owned(), 2).await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}
