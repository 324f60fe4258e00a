//! Reviews of tokens by another authority, and a cache of its answers.
//!
//! Each token is reviewed once at a time, whoever sends it. An answer is kept for a short time; without one, and while the authority
//! does not answer, a caller is not admitted. Reviews have [turns](crate::turns): a user whose token was accepted before comes before
//! strangers, and a peer that sends one bad token after another comes last.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use quick_cache::unsync::Cache;
use ring::{
    digest::SHA256_OUTPUT_LEN,
    hmac::{self, HMAC_SHA256},
    rand::SystemRandom,
};
use tokio::time::{Instant, timeout};

use super::{
    AuthenticationError, Identity, IdentityDetails, Party, ReviewError, Reviewer, Sender, Token, TokenReviewed, jwt,
};
use crate::{
    log_throttle::LogThrottle,
    turns::{Class, FairSemaphore, Full, QueueBounds},
};

/// Reviewed tokens, and the authority that reviews the others.
pub struct TokenReviews {
    reviewer: Arc<dyn Reviewer>,
    audiences: Arc<[String]>,
    answers: Arc<Answers>,
}

/// Answers that are kept, and reviews that run.
struct Answers {
    /// Key of the hashes of tokens; of this process, so that a hash is of no use elsewhere.
    key: hmac::Key,
    kept: Mutex<Kept>,
    /// Longest time for which a user is kept.
    ttl: Duration,
    turns: Arc<FairSemaphore>,
    metrics: Metrics,
    /// False if one peer may have everything: it stands for all callers, and is not suspect for the tokens of one of them.
    has_suspects: bool,
    log: LogThrottle,
}

/// Users have a cache of their own: no flood of bad tokens evicts them.
struct Kept {
    users: Cache<Hash, (Identity, Instant)>,
    others: Cache<Hash, Other>,
    /// Peers whose last tokens were bad.
    bad: Cache<Party, Bad>,
}

/// Bad tokens of a peer in a row, each once, and the time of the last.
#[derive(Clone)]
struct Bad {
    /// [`MAX_BAD`] at most.
    tokens: Vec<Hash>,
    last: Instant,
}

#[derive(Clone)]
enum Other {
    /// Review that some callers wait for, and that ends with the last of them.
    Running(WeakShared<Review>),
    Refused {
        until: Instant,
    },
}

#[derive(Debug, Default)]
struct Metrics {
    reviews: Family<[(&'static str, &'static str); 1], Counter>,
    hits: Counter,
}

type Hash = [u8; SHA256_OUTPUT_LEN];
type Answer = Result<Identity, AuthenticationError>;
type Review = BoxFuture<'static, Answer>;

/// Most users, and most other tokens, that are kept.
const MAX_KEPT: usize = 8192;
/// Time for which a refusal is kept: a token may become valid.
const REFUSED_TTL: Duration = Duration::from_secs(10);
/// Time limit of a review, with the time that it waits for others.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// Most reviews at a time.
const MAX_REVIEWS: usize = 64;
/// Bounds of the reviews that wait.
const QUEUE: QueueBounds = QueueBounds { calls: 8192, bytes: 16 << 20 };
/// Memory of a waiting review besides its token, of which the request has a copy.
const REVIEW_BYTES: usize = 512;
/// Bad tokens in a row after which a peer comes last.
const MAX_BAD: usize = 8;
/// Time after the last bad token for which the bad tokens of a peer count.
const BAD_TTL: Duration = Duration::from_secs(60);

// === impl TokenReviews ===

impl TokenReviews {
    /// Returns reviews by this authority, for tokens with one of these audiences. A user is kept for at most `ttl`, and one peer or
    /// user has `peer_share` percent of the reviews at most.
    pub fn new(reviewer: Arc<dyn Reviewer>, audiences: Vec<String>, ttl: Duration, peer_share: u32) -> Self {
        let key = hmac::Key::generate(HMAC_SHA256, &SystemRandom::new()).expect("the system has random numbers");
        let kept = Kept { users: Cache::new(MAX_KEPT), others: Cache::new(MAX_KEPT), bad: Cache::new(MAX_KEPT) };
        let answers = Answers {
            key,
            kept: Mutex::new(kept),
            ttl,
            turns: FairSemaphore::new(MAX_REVIEWS, QUEUE, peer_share),
            metrics: Metrics::default(),
            has_suspects: peer_share < 100,
            log: LogThrottle::new(),
        };
        Self { reviewer, audiences: audiences.into(), answers: Arc::new(answers) }
    }

    /// Registers the metrics.
    pub(super) fn register(&self, registry: &mut Registry) {
        let Metrics { reviews, hits } = &self.answers.metrics;
        registry.register("informerd_token_reviews", "Reviews of bearer tokens, by result", reviews.clone());
        let help = "Calls whose bearer token had an answer in the cache of reviews";
        registry.register("informerd_token_review_cache_hits", help, hits.clone());
    }

    /// Returns the user of a token: from the cache, or by a review that all who send the token wait for.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the review unless others wait for it.
    pub(super) async fn user(&self, token: &Token, sender: Sender<'_>) -> Answer {
        let hash = self.answers.hash(token);
        let review = {
            let mut kept = self.answers.kept.lock();
            let now = Instant::now();
            let known = kept.users.get(&hash).cloned();
            if let Some((user, until)) = &known
                && now < *until
            {
                self.answers.metrics.hits.inc();
                return Ok(user.clone());
            }
            let running = match kept.others.get(&hash) {
                Some(Other::Refused { until }) if now < *until => {
                    self.answers.metrics.hits.inc();
                    return Err(AuthenticationError::Invalid);
                }
                Some(Other::Running(review)) => review.upgrade(),
                _ => None,
            };
            running.unwrap_or_else(|| {
                let (party, class) = match (&known, sender) {
                    (Some((user, _)), _) | (None, Sender::Stream(user)) => (user.party(), Class::Known),
                    (None, Sender::Peer(peer)) if self.answers.has_suspects => (peer, kept.class(peer, now)),
                    (None, Sender::Peer(peer)) => (peer, Class::New),
                };
                let review = self.review(hash, token, party, class);
                if let Some(running) = review.downgrade() {
                    kept.others.insert(hash, Other::Running(running));
                }
                review
            })
        };
        review.await
    }

    /// Returns true if the answer about a token is in the cache.
    pub(super) fn knows(&self, token: &Token) -> bool {
        let (hash, now, kept) = (self.answers.hash(token), Instant::now(), self.answers.kept.lock());
        let is_refused = |other: &Other| matches!(other, Other::Refused { until } if now < *until);
        kept.users.peek(&hash).is_some_and(|(_, until)| now < *until) || kept.others.peek(&hash).is_some_and(is_refused)
    }

    fn review(&self, hash: Hash, token: &Token, party: Party, class: Class) -> Shared<Review> {
        let (answers, audiences) = (Arc::clone(&self.answers), Arc::clone(&self.audiences));
        let request = self.reviewer.review_token(token, &audiences);
        let expires = jwt::expires(token);
        let bytes = 2 * token.expose().len() + REVIEW_BYTES;
        let review = async move {
            let limited = timeout(REVIEW_TIMEOUT, async {
                let _permit = answers.turns.acquire(party, class, bytes).await?;
                Ok(request.await)
            });
            let reviewed = match limited.await {
                Ok(Ok(reviewed)) => reviewed,
                Ok(Err(full)) => return answers.reject(hash, full),
                Err(_) => Err(ReviewError(format!("no answer within {REVIEW_TIMEOUT:?}"))),
            };
            let user = reviewed.and_then(|reviewed| user(reviewed, &audiences, expires));
            answers.keep(hash, user, (class != Class::Known).then_some(party))
        };
        review.boxed().shared()
    }
}

debug_fields!(TokenReviews { audiences });

/// Reads the answer to a review. An authority that does not know about audiences returns none, and has not checked them.
fn user(
    reviewed: TokenReviewed,
    audiences: &[String],
    expires: Option<SystemTime>,
) -> Result<Option<Identity>, ReviewError> {
    let TokenReviewed { is_authenticated, user, audiences: reviewed } = reviewed;
    if !is_authenticated || !reviewed.iter().any(|audience| audiences.contains(audience)) {
        return Ok(None);
    }
    if user.user.is_empty() {
        return Err(ReviewError("an authenticated user without a name".to_owned()));
    }
    Ok(Some(Identity::new(IdentityDetails { expires, ..user })))
}

// === impl Kept ===

impl Kept {
    /// Returns the class of a peer with a token that is not known.
    fn class(&self, peer: Party, now: Instant) -> Class {
        let bad = self.bad.peek(&peer.of_owner()).filter(|bad| now < bad.last + BAD_TTL);
        if bad.is_some_and(|bad| bad.tokens.len() >= MAX_BAD) { Class::Suspect } else { Class::New }
    }

    /// Counts the bad tokens of a peer in a row. A client that sends the same one again and again has one.
    fn count(&mut self, peer: Party, hash: Hash, is_good: bool, now: Instant) {
        let peer = peer.of_owner();
        if is_good {
            self.bad.remove(&peer);
            return;
        }
        let before = self.bad.get(&peer).filter(|bad| now < bad.last + BAD_TTL).cloned();
        let Bad { mut tokens, last } = before.unwrap_or(Bad { tokens: Vec::new(), last: now });
        let is_new = !tokens.contains(&hash);
        if is_new && tokens.len() < MAX_BAD {
            tokens.push(hash);
        }
        self.bad.insert(peer, Bad { tokens, last: if is_new { now } else { last } });
    }
}

// === impl Answers ===

impl Answers {
    fn hash(&self, token: &Token) -> Hash {
        let mut hash = Hash::default();
        hash.copy_from_slice(hmac::sign(&self.key, token.expose().as_bytes()).as_ref());
        hash
    }

    /// Returns the answer to a review that was not requested, because too many wait.
    fn reject(&self, hash: Hash, full: Full) -> Answer {
        self.kept.lock().others.remove(&hash);
        self.metrics.reviews.get_or_create(&[("result", "rejected")]).inc();
        Err(AuthenticationError::Unavailable { problem: full.to_string() })
    }

    /// Keeps the answer to a review: the user, or none for a token that is of nobody. A failure is not kept: the next caller tries
    /// again. `peer` is a sender that was not known.
    fn keep(&self, hash: Hash, reviewed: Result<Option<Identity>, ReviewError>, peer: Option<Party>) -> Answer {
        let now = Instant::now();
        let mut kept = self.kept.lock();
        kept.others.remove(&hash);
        if let (Some(peer), Ok(user)) = (peer, &reviewed) {
            kept.count(peer, hash, user.is_some(), now);
        }
        let (result, answer) = match reviewed {
            Ok(Some(user)) => {
                let until_expiry =
                    user.details().expires.map(|expires| expires.duration_since(SystemTime::now()).unwrap_or_default());
                let ttl = until_expiry.map_or(self.ttl, |left| left.min(self.ttl));
                kept.users.insert(hash, (user.clone(), now + ttl));
                ("authenticated", Ok(user))
            }
            Ok(None) => {
                kept.users.remove(&hash);
                kept.others.insert(hash, Other::Refused { until: now + REFUSED_TTL });
                ("refused", Err(AuthenticationError::Invalid))
            }
            Err(error) => {
                if let Some(failures) = self.log.poll() {
                    tracing::warn!(%error, failures, "token review failed");
                }
                let problem = "the review of the token failed".to_owned();
                ("failed", Err(AuthenticationError::Unavailable { problem }))
            }
        };
        self.metrics.reviews.get_or_create(&[("result", result)]).inc();
        answer
    }
}

#[cfg(test)]
mod tests;
