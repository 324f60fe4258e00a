//! `cargo run --example work_queue`
//!
//! Four workers over a queue of jobs: a job that fails is put back, a newer job of the same name replaces a waiting one, and none
//! runs twice at a time. It prints a line for each attempt.

use std::{error::Error, future::Future, sync::Arc, time::Duration};

use informerd::cache::{Fifo, KeyFunc, MapStore, PopError, ProcessError, Queue, Store};
use tokio::{task::JoinSet, time::sleep};

/// Name, and work: the number of attempts that fail before one succeeds.
type Job = (&'static str, u32);

const WORKERS: usize = 4;
const MAX_ATTEMPTS: u32 = 3;

pub(crate) async fn run(
    jobs: Vec<Job>,
    print: impl Fn(String) + Clone + Send + 'static,
    end: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let by_name = KeyFunc::infallible(|(name, _): &Job| *name);
    let queue = Arc::new(Fifo::new(by_name.clone()));
    let attempts = Arc::new(MapStore::new(by_name));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (queue, attempts, print) = (Arc::clone(&queue), Arc::clone(&attempts), print.clone());
        workers.spawn(async move {
            loop {
                let attempts = Arc::clone(&attempts);
                let process = async move |(name, failures): Job, _| {
                    let attempt = attempts.get_by_key(&name).map_or(1, |(_, attempts)| attempts + 1);
                    attempts.insert((name, attempt)).map_err(|error| error.to_string())?;
                    // The work.
                    sleep(Duration::from_millis(10)).await;
                    match attempt {
                        _ if attempt > failures => Ok(()),
                        MAX_ATTEMPTS => Err(ProcessError::Failed(format!("{attempt} attempts failed"))),
                        _ => Err(ProcessError::Requeue(Some(format!("{name}: attempt {attempt} failed")))),
                    }
                };
                match queue.pop(process).await {
                    Ok((name, _)) => print(format!("{name}: done")),
                    Err(PopError::Requeued(error)) => print(format!("{error}, again later")),
                    Err(PopError::Failed { item: (name, _), error }) => print(format!("{name}: {error}")),
                    Err(PopError::Closed) => break,
                }
            }
        });
    }
    for job in jobs {
        queue.add(job).await?;
    }
    end.await;
    // The workers end once everything is done.
    queue.close();
    while let Some(worker) = workers.join_next().await {
        worker?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let jobs = vec![("resize", 0), ("upload", 1), ("index", 2), ("notify", 9), ("clean", 0)];
    #[expect(clippy::print_stdout, reason = "the output of the program")]
    run(jobs, |line| println!("{line}"), async {}).await
}
