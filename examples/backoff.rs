//! `cargo run --example backoff`
//!
//! Two workers over a queue of hosts: one that does not answer is tried again after a delay that doubles, while all hosts together are
//! tried at a bounded rate; one that is given up is forgotten. It prints a line for each attempt.

use std::{error::Error, future::Future, time::Duration};

use informerd::cache::{
    BucketRateLimiter, ExponentialRateLimiter, MaxOfRateLimiter, RateLimiter, WorkQueue, WorkQueueConfig,
};
use tokio::task::JoinSet;

/// Name, and the number of attempts that fail before one succeeds.
type Host = (&'static str, u32);

const WORKERS: usize = 2;
const MAX_FAILURES: u32 = 3;

pub(crate) async fn run(
    hosts: Vec<Host>,
    print: impl Fn(String) + Clone + Send + 'static,
    end: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let of_host = ExponentialRateLimiter::new(Duration::from_millis(10), Duration::from_secs(60));
    let limiters: [Box<dyn RateLimiter<Host>>; 2] = [Box::new(of_host), Box::new(BucketRateLimiter::new(1000.0, 100))];
    let rate_limiter = Box::new(MaxOfRateLimiter::new(limiters));
    let queue = WorkQueue::new(WorkQueueConfig { rate_limiter, ..WorkQueueConfig::default() });
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (queue, print) = (queue.clone(), print.clone());
        workers.spawn(async move {
            while let Some(item) = queue.get().await {
                let (name, failures) = *item.key();
                let failed = queue.requeues(item.key());
                if failed < failures && failed < MAX_FAILURES {
                    print(format!("{name}: no answer"));
                    queue.add_rate_limited(*item.key()).await;
                } else {
                    print(format!("{name}: {}", if failed < failures { "given up" } else { "answers" }));
                    queue.forget(item.key());
                }
                item.done();
            }
        });
    }
    for host in hosts {
        queue.add(host).await;
    }
    end.await;
    // Hosts that wait for their delay are dropped.
    queue.shut_down();
    while let Some(worker) = workers.join_next().await {
        worker?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let hosts = vec![("a.example", 0), ("b.example", 2), ("c.example", 9)];
    #[expect(clippy::print_stdout, reason = "the output of the program")]
    run(hosts, |line| println!("{line}"), tokio::time::sleep(Duration::from_secs(1))).await
}
