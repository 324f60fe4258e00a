use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use futures_util::{FutureExt, future::join_all};
use tokio::time::{advance, sleep};

use super::*;
use crate::auth::ReviewAttributes;

const TTL: Duration = Duration::from_secs(120);

/// Authority of the tests.
#[derive(Debug)]
struct Fake {
    answer: Mutex<Result<TokenReviewed, ReviewError>>,
    /// Time until it answers.
    delay: Mutex<Duration>,
    reviews: AtomicUsize,
    running: Arc<AtomicUsize>,
    most_running: AtomicUsize,
}

/// Counts a running review.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reviewer for Arc<Fake> {
    fn review_token(
        &self,
        token: &Token,
        audiences: &[String],
    ) -> BoxFuture<'static, Result<TokenReviewed, ReviewError>> {
        assert_eq!(audiences, ["informerd"]);
        let (this, token) = (Arc::clone(self), token.clone());
        async move {
            this.reviews.fetch_add(1, Ordering::Relaxed);
            let running = this.running.fetch_add(1, Ordering::Relaxed) + 1;
            let _running = Running(Arc::clone(&this.running));
            this.most_running.fetch_max(running, Ordering::Relaxed);
            let delay = *this.delay.lock();
            sleep(delay).await;
            if token.expose().starts_with("bad") { Ok(TokenReviewed::default()) } else { this.answer.lock().clone() }
        }
        .boxed()
    }

    fn review_access(&self, _: &Identity, _: ReviewAttributes) -> BoxFuture<'static, Result<bool, ReviewError>> {
        unreachable!("the access is not reviewed")
    }
}

impl Fake {
    fn reviews(&self) -> usize {
        self.reviews.load(Ordering::Relaxed)
    }
}

fn reviewed() -> TokenReviewed {
    let user = IdentityDetails {
        user: "system:serviceaccount:shop:web".to_owned(),
        groups: vec!["system:serviceaccounts".to_owned(), "system:authenticated".to_owned()],
        uid: "1".to_owned(),
        extra: BTreeMap::from([("pod".to_owned(), vec!["web-0".to_owned()])]),
        expires: None,
    };
    TokenReviewed { is_authenticated: true, user, audiences: vec!["informerd".to_owned()] }
}

fn reviews() -> (Arc<Fake>, TokenReviews) {
    reviews_with(25)
}

fn reviews_with(peer_share: u32) -> (Arc<Fake>, TokenReviews) {
    let fake = Arc::new(Fake {
        answer: Mutex::new(Ok(reviewed())),
        delay: Mutex::default(),
        reviews: AtomicUsize::new(0),
        running: Arc::default(),
        most_running: AtomicUsize::new(0),
    });
    (Arc::clone(&fake), TokenReviews::new(Arc::new(fake), vec!["informerd".to_owned()], TTL, peer_share))
}

fn token(text: &str) -> Token {
    Token::from_headers([format!("Bearer {text}").as_bytes()]).unwrap().unwrap()
}

/// Requests the user of a token that a peer without a name sends.
async fn user_of(reviews: &TokenReviews, token: &Token) -> Answer {
    reviews.user(token, Sender::Peer(peer(0))).await
}

fn peer(host: u8) -> Party {
    Party::new(&host, &0)
}

fn is_unavailable(answer: &Answer) -> bool {
    matches!(answer, Err(AuthenticationError::Unavailable { .. }))
}

#[tokio::test(start_paused = true)]
async fn all_who_send_a_token_wait_for_one_review_whose_answer_is_kept_for_its_time() {
    let (fake, reviews) = reviews();
    *fake.delay.lock() = Duration::from_secs(1);
    let good = token("good");
    let answers = join_all((0..100).map(|_| user_of(&reviews, &good))).await;
    let user = Identity::new(reviewed().user);
    assert!(answers.iter().all(|answer| *answer == Ok(user.clone())) && fake.reviews() == 1);
    assert_eq!(reviews.answers.metrics.hits.get(), 0);
    advance(TTL.saturating_sub(Duration::from_millis(1))).await;
    assert_eq!((user_of(&reviews, &good).await, fake.reviews()), (Ok(user.clone()), 1));
    assert_eq!(reviews.answers.metrics.hits.get(), 1);
    advance(Duration::from_millis(1)).await;
    assert_eq!((user_of(&reviews, &good).await, fake.reviews()), (Ok(user), 2));
    let bad = token("bad");
    let answers = join_all((0..100).map(|_| user_of(&reviews, &bad))).await;
    assert!(answers.iter().all(|answer| *answer == Err(AuthenticationError::Invalid)) && fake.reviews() == 3);
    advance(REFUSED_TTL.saturating_sub(Duration::from_millis(1))).await;
    assert_eq!((user_of(&reviews, &bad).await, fake.reviews()), (Err(AuthenticationError::Invalid), 3));
    advance(Duration::from_millis(1)).await;
    assert_eq!((user_of(&reviews, &bad).await, fake.reviews()), (Err(AuthenticationError::Invalid), 4));
}

#[tokio::test(start_paused = true)]
async fn while_the_authority_does_not_answer_only_known_callers_are_admitted_until_their_time_is_over() {
    let (fake, reviews) = reviews();
    let (known, new) = (token("known"), token("new"));
    user_of(&reviews, &known).await.unwrap();
    *fake.answer.lock() = Err(ReviewError("500".to_owned()));
    assert!(user_of(&reviews, &known).await.is_ok());
    for at in 2..5 {
        assert!(is_unavailable(&user_of(&reviews, &new).await) && fake.reviews() == at, "a failure is not kept");
    }
    advance(TTL).await;
    assert!(is_unavailable(&user_of(&reviews, &known).await));
    // A user without a name is no answer either.
    *fake.answer.lock() = Ok(TokenReviewed { user: IdentityDetails::default(), ..reviewed() });
    assert!(is_unavailable(&user_of(&reviews, &new).await));
    // One that hangs is given up after its time, for all who wait.
    *fake.delay.lock() = Duration::from_secs(3600);
    let began = Instant::now();
    let answers = join_all((0..10).map(|_| user_of(&reviews, &new))).await;
    assert!(answers.iter().all(is_unavailable) && began.elapsed() == REVIEW_TIMEOUT);
    *fake.delay.lock() = Duration::ZERO;
    *fake.answer.lock() = Ok(reviewed());
    assert!(user_of(&reviews, &known).await.is_ok() && user_of(&reviews, &new).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_token_for_another_audience_is_refused() {
    let (fake, reviews) = reviews();
    for (at, audiences) in [vec!["other".to_owned()], Vec::new()].into_iter().enumerate() {
        *fake.answer.lock() = Ok(TokenReviewed { audiences, ..reviewed() });
        assert_eq!(user_of(&reviews, &token(&at.to_string())).await, Err(AuthenticationError::Invalid));
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_is_not_kept_after_the_token_expires() {
    let (fake, reviews) = reviews();
    let expires = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + 20;
    let encode = |text: &str| base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, text);
    let jwt = format!("{}.{}.x", encode(r#"{"alg":"RS256"}"#), encode(&format!(r#"{{"exp":{expires}}}"#)));
    let jwt = token(&jwt.replace(".x", ".eA"));
    let user = user_of(&reviews, &jwt).await.unwrap();
    assert_eq!(user.details().expires, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(expires)));
    advance(Duration::from_secs(18)).await;
    user_of(&reviews, &jwt).await.unwrap();
    assert_eq!(fake.reviews(), 1);
    advance(Duration::from_secs(2)).await;
    user_of(&reviews, &jwt).await.unwrap();
    assert_eq!(fake.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn answers_and_running_reviews_are_bounded_and_bad_tokens_evict_no_good_one() {
    let (fake, reviews) = reviews();
    let good = token("good");
    user_of(&reviews, &good).await.unwrap();
    for at in 0..2 * MAX_KEPT {
        user_of(&reviews, &token(&format!("bad{at}"))).await.unwrap_err();
    }
    let asked = fake.reviews();
    user_of(&reviews, &good).await.unwrap();
    assert_eq!(fake.reviews(), asked);
    for at in 0..2 * MAX_KEPT {
        user_of(&reviews, &token(&at.to_string())).await.unwrap();
    }
    let kept = || {
        let kept = reviews.answers.kept.lock();
        (kept.users.len(), kept.others.len())
    };
    assert!(kept().0 <= MAX_KEPT && kept().1 <= MAX_KEPT, "{:?}", kept());
    *fake.delay.lock() = Duration::from_secs(1);
    // Until then the peer with the bad tokens comes last.
    advance(BAD_TTL).await;
    let tokens: Vec<Token> = (0..3 * MAX_REVIEWS).map(|at| token(&format!("slow{at}"))).collect();
    let from = |at: usize| Sender::Peer(peer(at as u8));
    let answers = join_all(tokens.iter().zip(0..).map(|(token, at)| reviews.user(token, from(at % 8)))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(fake.most_running.load(Ordering::Relaxed), MAX_REVIEWS / 4 * 3, "the others are for known users");
    // A review that cannot begin in time fails like one without an answer.
    let tokens: Vec<Token> = (0..8 * MAX_REVIEWS).map(|at| token(&format!("many{at}"))).collect();
    let answers = join_all(tokens.iter().map(|token| user_of(&reviews, token))).await;
    assert!(answers.iter().any(Result::is_ok) && answers.iter().any(is_unavailable));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_bad_tokens_delays_neither_known_users_nor_other_peers() {
    let (fake, reviews) = reviews();
    let reviews = Arc::new(reviews);
    let (known, new) = (token("known"), token("new"));
    user_of(&reviews, &known).await.unwrap();
    advance(TTL).await;
    *fake.delay.lock() = Duration::from_secs(1);
    let flood = |name: &str, count: usize| -> Vec<_> {
        let send = |at| {
            let (reviews, bad) = (Arc::clone(&reviews), token(&format!("bad-{name}-{at}")));
            let sender = Party::new(&1_u8, &(at % 4));
            tokio::spawn(async move { reviews.user(&bad, Sender::Peer(sender)).await })
        };
        (0..count).map(send).collect()
    };
    let first = flood("first", 4000);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fake.running.load(Ordering::Relaxed), MAX_REVIEWS / 4, "a quarter for a peer");
    let asked = async |token: &Token, sender| {
        let began = Instant::now();
        (reviews.user(token, sender).await.is_ok(), began.elapsed())
    };
    let user = Identity::new(reviewed().user);
    let (at_once, stream) = ((true, Duration::from_secs(1)), token("evicted"));
    assert_eq!(asked(&known, Sender::Peer(peer(1))).await, at_once, "a user who was accepted before");
    assert_eq!(asked(&stream, Sender::Stream(&user)).await, at_once, "an open stream");
    assert_eq!(asked(&new, Sender::Peer(peer(2))).await, at_once, "another peer");
    // A caller at the peer of the flood has a turn after each of the others' connections.
    let (is_accepted, waited) = asked(&token("neighbour"), Sender::Peer(Party::new(&1_u8, &"other"))).await;
    assert!(is_accepted && waited <= 3 * at_once.1, "{waited:?}");
    assert_eq!(reviews.answers.kept.lock().class(Party::new(&1_u8, &0), Instant::now()), Class::New, "none in a row");
    for answer in first {
        let answer = answer.await.unwrap();
        assert!(answer == Err(AuthenticationError::Invalid) || is_unavailable(&answer), "{answer:?}");
    }
    let rejected = reviews.answers.metrics.reviews.get_or_create(&[("result", "rejected")]).get();
    assert!(rejected >= 4000 - QUEUE.calls as u64 / 4 - 16, "{rejected}");
    let second = flood("second", MAX_BAD);
    sleep(Duration::from_secs(2)).await;
    let third = flood("third", 400);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fake.running.load(Ordering::Relaxed), MAX_REVIEWS / 16, "a peer with many bad tokens in a row");
    drop((second, third));
}

#[tokio::test(start_paused = true)]
async fn a_known_user_comes_before_strangers() {
    let (fake, reviews) = reviews();
    let reviews = Arc::new(reviews);
    let known = token("known");
    user_of(&reviews, &known).await.unwrap();
    advance(TTL).await;
    *fake.delay.lock() = Duration::from_secs(4);
    let strangers: Vec<_> = (0..200_u32)
        .map(|at| {
            let (reviews, new) = (Arc::clone(&reviews), token(&format!("new{at}")));
            tokio::spawn(async move { reviews.user(&new, Sender::Peer(Party::new(&at, &0))).await })
        })
        .collect();
    sleep(Duration::from_millis(10)).await;
    let began = Instant::now();
    assert!(reviews.user(&known, Sender::Peer(peer(0))).await.is_ok());
    assert_eq!(began.elapsed(), Duration::from_secs(4), "no stranger has the last permits");
    drop(strangers);
}

#[tokio::test(start_paused = true)]
async fn bad_tokens_count_in_a_row_and_for_a_while() {
    let (_, reviews) = reviews();
    let class = || reviews.answers.kept.lock().class(peer(0), Instant::now());
    for at in 0..MAX_BAD {
        assert_eq!(class(), Class::New);
        user_of(&reviews, &token(&format!("bad{at}"))).await.unwrap_err();
    }
    assert_eq!(class(), Class::Suspect);
    assert_eq!(reviews.answers.kept.lock().class(peer(1), Instant::now()), Class::New);
    user_of(&reviews, &token("good")).await.unwrap();
    assert_eq!(class(), Class::New);
    for at in 0..MAX_BAD {
        user_of(&reviews, &token(&format!("worse{at}"))).await.unwrap();
        user_of(&reviews, &token(&format!("bad-{at}"))).await.unwrap_err();
    }
    assert_eq!(class(), Class::New, "not in a row");
    for at in 0..MAX_BAD {
        user_of(&reviews, &token(&format!("bad--{at}"))).await.unwrap_err();
    }
    assert_eq!(class(), Class::Suspect);
    advance(BAD_TTL).await;
    assert_eq!(class(), Class::New);
}

/// A client that has an old token, and sends it again and again, is no flood.
#[tokio::test(start_paused = true)]
async fn a_bad_token_counts_once() {
    let (fake, reviews) = reviews();
    let class = || reviews.answers.kept.lock().class(peer(0), Instant::now());
    for at in 1..MAX_BAD {
        for _ in 0..3 {
            user_of(&reviews, &token(&format!("bad{at}"))).await.unwrap_err();
            reviews.answers.kept.lock().others.clear();
        }
    }
    assert_eq!(fake.reviews(), 3 * (MAX_BAD - 1));
    assert_eq!(class(), Class::New);
    user_of(&reviews, &token("bad")).await.unwrap_err();
    assert_eq!(class(), Class::Suspect);
}

/// The address of a proxy is that of all callers, and its operator has written that it may have everything.
#[tokio::test(start_paused = true)]
async fn a_peer_that_may_have_everything_is_never_suspect() {
    for (peer_share, running) in [(25, MAX_REVIEWS / 16), (100, MAX_REVIEWS / 4 * 3)] {
        let (fake, reviews) = reviews_with(peer_share);
        for at in 0..MAX_BAD {
            user_of(&reviews, &token(&format!("bad{at}"))).await.unwrap_err();
        }
        *fake.delay.lock() = Duration::from_secs(1);
        let tokens: Vec<Token> = (0..2 * MAX_REVIEWS).map(|at| token(&at.to_string())).collect();
        let calls = join_all(tokens.iter().map(|token| user_of(&reviews, token)));
        drop(tokio::time::timeout(Duration::from_millis(10), calls).await);
        assert_eq!(fake.most_running.load(Ordering::Relaxed), running, "{peer_share} %");
    }
}

#[tokio::test(start_paused = true)]
async fn a_review_ends_with_the_last_caller_that_waits_for_it() {
    let (fake, reviews) = reviews();
    *fake.delay.lock() = Duration::from_secs(1);
    let good = token("good");
    let mut first = Box::pin(user_of(&reviews, &good));
    let mut second = Box::pin(user_of(&reviews, &good));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    drop(first);
    assert!(second.await.is_ok() && fake.reviews() == 1);
    let other = token("other");
    let mut abandoned = Box::pin(user_of(&reviews, &other));
    assert!(abandoned.as_mut().now_or_never().is_none());
    drop(abandoned);
    assert_eq!(fake.running.load(Ordering::Relaxed), 0);
    assert!(user_of(&reviews, &other).await.is_ok() && fake.reviews() == 3);
}
