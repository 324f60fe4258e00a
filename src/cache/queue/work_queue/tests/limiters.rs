//! Rate limiters: client-go's tests.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Limiter that adds a delay with each failure, beside client-go's, which `RateLimiter` makes room for.
#[derive(Default)]
struct Linear {
    failures: BTreeMap<&'static str, u32>,
}

impl RateLimiter<&'static str> for Linear {
    fn when(&mut self, key: &&'static str) -> Duration {
        let failures = self.failures.entry(key).or_default();
        *failures += 1;
        3 * MILLI * *failures
    }

    fn forget(&mut self, key: &&'static str) {
        self.failures.remove(key);
    }

    fn requeues(&self, key: &&'static str) -> u32 {
        self.failures.get(key).copied().unwrap_or_default()
    }
}

fn delays(limiter: &mut impl RateLimiter<&'static str>, key: &'static str, count: usize) -> Vec<Duration> {
    (0..count).map(|_| limiter.when(&key)).collect()
}

/// client-go: `TestItemExponentialFailureRateLimiter`.
#[test]
fn the_delay_of_a_key_doubles_until_it_is_forgotten() {
    let mut limiter = ExponentialRateLimiter::new(MILLI, SECOND);
    assert_eq!(delays(&mut limiter, "one", 5), [1, 2, 4, 8, 16].map(|millis| millis * MILLI));
    assert_eq!(limiter.requeues(&"one"), 5);
    assert_eq!(delays(&mut limiter, "two", 2), [MILLI, 2 * MILLI]);
    assert_eq!(limiter.requeues(&"two"), 2);
    limiter.forget(&"one");
    assert_eq!(limiter.requeues(&"one"), 0);
    assert_eq!(delays(&mut limiter, "one", 1), [MILLI]);
}

/// client-go: `TestItemExponentialFailureRateLimiterOverFlow`.
#[test]
fn a_delay_ends_at_the_longest_one_after_any_number_of_failures() {
    let mut limiter = ExponentialRateLimiter::new(MILLI, 1000 * SECOND);
    assert_eq!(delays(&mut limiter, "one", 6)[5], 32 * MILLI);
    assert_eq!(delays(&mut limiter, "overflow", 2001)[2000], 1000 * SECOND);
    let mut limiter = ExponentialRateLimiter::new(60 * SECOND, 3600 * 1000 * SECOND);
    assert_eq!(delays(&mut limiter, "two", 3)[2], 240 * SECOND);
    assert_eq!(delays(&mut limiter, "overflow", 1001)[1000], 3600 * 1000 * SECOND);
    let mut limiter = ExponentialRateLimiter::new(2 * SECOND, SECOND);
    assert_eq!(delays(&mut limiter, "one", 2), [SECOND, SECOND]);
    let mut limiter = ExponentialRateLimiter::new(SECOND, Duration::MAX);
    assert_eq!(delays(&mut limiter, "one", 200)[199], Duration::MAX);
}

/// client-go: `TestMaxOfRateLimiter`.
#[test]
fn the_longest_delay_of_several_limiters_counts_and_each_one_counts_failures() {
    let exponential = ExponentialRateLimiter::new(MILLI, SECOND);
    let mut limiter =
        MaxOfRateLimiter::new([Box::new(Linear::default()) as Box<dyn RateLimiter<_>>, Box::new(exponential)]);
    assert_eq!(delays(&mut limiter, "one", 6), [3, 6, 9, 12, 16, 32].map(|millis| millis * MILLI));
    assert_eq!(limiter.requeues(&"one"), 6);
    limiter.forget(&"one");
    assert_eq!(limiter.requeues(&"one"), 0);
    assert_eq!(delays(&mut limiter, "one", 2), [3 * MILLI, 6 * MILLI]);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_lets_a_burst_pass_and_then_a_rate() {
    let mut limiter = BucketRateLimiter::new(10.0, 3);
    assert_eq!(delays(&mut limiter, "one", 5), [0, 0, 0, 100, 200].map(|millis| millis * MILLI));
    advance(150 * MILLI).await;
    assert_eq!(delays(&mut limiter, "two", 1), [150 * MILLI]);
    advance(60 * SECOND).await;
    assert_eq!(
        delays(&mut limiter, "one", 4),
        [0, 0, 0, 100].map(|millis| millis * MILLI),
        "no more than the burst is saved"
    );
    RateLimiter::<&str>::forget(&mut limiter, &"one");
    assert_eq!(RateLimiter::<&str>::requeues(&limiter, &"one"), 0);
    let mut closed = BucketRateLimiter::new(0.0, 1);
    assert_eq!(delays(&mut closed, "one", 2), [Duration::ZERO, Duration::MAX]);
}

/// client-go: `TestRateLimitingQueue`.
#[tokio::test(start_paused = true)]
async fn a_queue_delays_by_its_limiter_until_a_key_is_forgotten() {
    let rate_limiter = Box::new(ExponentialRateLimiter::new(MILLI, SECOND));
    let queue = WorkQueue::new(WorkQueueConfig { rate_limiter, ..WorkQueueConfig::default() });
    let began = Instant::now();
    for at in [1, 3, 7] {
        queue.add_rate_limited("one").await;
        assert_eq!(queue.len(), 0);
        queue.get().await.unwrap().done();
        assert_eq!(began.elapsed(), at * MILLI);
    }
    assert_eq!((queue.requeues(&"one"), queue.requeues(&"two")), (3, 0));
    queue.forget(&"one");
    assert_eq!(queue.requeues(&"one"), 0);

    // The shorter one of two delays counts.
    let options = |after| AddOptions { after, is_rate_limited: true, ..AddOptions::default() };
    for (after, at) in [(10 * MILLI, 8), (MILLI, 9)] {
        queue.try_add("one", options(after)).unwrap();
        queue.get().await.unwrap().done();
        assert_eq!(began.elapsed(), at * MILLI);
    }
    assert_eq!(queue.requeues(&"one"), 2);
    let default = WorkQueue::default();
    default.add_rate_limited("one").await;
    let began = Instant::now();
    default.get().await.unwrap().done();
    assert_eq!(began.elapsed(), 5 * MILLI);
}
