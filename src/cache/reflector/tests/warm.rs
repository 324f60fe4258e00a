//! Proofs for the next run, and the resumption from them.

use std::sync::atomic::AtomicU64;

use tokio::{sync::mpsc, task::JoinHandle};

use super::*;
use crate::{
    cache::{Checkpoint, Informer, InformerConfig, InformerHandle, RewriteEvidence},
    watch::Deliveries,
};

/// Source that delivers the versions it is fed, never lists, and proves the last version that it has returned.
#[derive(Debug)]
struct WarmSource {
    feed: Mutex<Option<mpsc::Receiver<u128>>>,
    handed: Arc<AtomicU64>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl ListerWatcher for WarmSource {
    async fn list(&self, at: ListVersion) -> Result<List, SourceError> {
        self.calls.lock().push(format!("list {at:?}"));
        std::future::pending().await
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        self.calls.lock().push(format!("watch {from}"));
        let feed = self.feed.lock().take().ok_or_else(expired)?;
        let handed = Arc::clone(&self.handed);
        let events = stream::unfold((feed, handed), async |(mut feed, handed)| {
            let number = feed.recv().await?;
            handed.store(number as u64, Ordering::Relaxed);
            Some((Ok(Delta::event(Event::Modified(object(number)))), (feed, handed)))
        });
        Ok(Box::pin(events))
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn warm_start(&self) -> Option<&dyn WarmStart> {
        Some(self)
    }
}

impl WarmStart for WarmSource {
    fn identity(&self) -> String {
        "what it is fed".to_owned()
    }

    fn proof(&self) -> Option<Bytes> {
        let handed = self.handed.load(Ordering::Relaxed);
        (handed > 0).then(|| handed.to_string().into())
    }

    fn resume(&self, version: &ResourceVersion, proof: &[u8]) -> Result<(), String> {
        if version.to_string().as_bytes() != proof {
            return Err(format!("not of {version}"));
        }
        self.handed.store(version.number() as u64, Ordering::Relaxed);
        Ok(())
    }
}

struct Warm {
    feed: mpsc::Sender<u128>,
    fifo: Arc<RealFifo>,
    calls: Arc<Mutex<Vec<String>>>,
    reflector: Reflector<WarmSource>,
}

/// Makes a Reflector that resumes at version 5, if the proof is right.
fn warm(bounds: FifoBounds, proof: &str) -> (Warm, Result<(), String>) {
    let (feed, receiver) = mpsc::channel(1000);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let source = WarmSource { feed: Mutex::new(Some(receiver)), handed: Arc::default(), calls: Arc::clone(&calls) };
    let fifo = Arc::new(RealFifo::new(bounds));
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(5));
    let mut reflector = Reflector::new(source, Arc::clone(&fifo), health, ReflectorConfig::default());
    assert_eq!(reflector.identity().as_deref(), Some("what it is fed"));
    let resumed = reflector.resume(&mut List::new(Vec::new(), version(5)), proof.as_bytes(), None);
    (Warm { feed, fifo, calls, reflector }, resumed)
}

/// Returns the next delta in the queue as a short text.
async fn queued(fifo: &RealFifo) -> String {
    match fifo.pop_batch(1, 1).await.unwrap().remove(0) {
        Delta::Changes { events, .. } => events[0].version().to_string(),
        Delta::Checkpoint { proof, .. } => format!("proof of {}", String::from_utf8_lossy(&proof)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_watched_from_and_listed_only_if_necessary() {
    let (Warm { calls, reflector, feed, .. }, resumed) = warm(FifoBounds::default(), "5");
    resumed.unwrap();
    let running = tokio::spawn(reflector.run());
    tokio::task::yield_now().await;
    assert_eq!(*calls.lock(), ["watch 5"]);
    feed.send(6).await.unwrap();
    drop(feed);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(*calls.lock(), ["watch 5", "watch 6", "list NotOlderThan(6)"], "expired: not older than what is served");
    running.abort();

    let (Warm { calls, reflector, .. }, resumed) = warm(FifoBounds::default(), "4");
    assert_eq!(resumed, Err("not of 5".to_owned()));
    let running = tokio::spawn(reflector.run());
    tokio::task::yield_now().await;
    assert_eq!(*calls.lock(), ["list Any"]);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_proof_is_queued_behind_the_changes_that_it_covers() {
    let (Warm { feed, fifo, reflector, .. }, _) = warm(FifoBounds { deltas: 2, bytes: usize::MAX }, "5");
    let checkpoints = reflector.checkpoints().clone();
    let running = tokio::spawn(reflector.run());
    let take = || {
        let checkpoints = checkpoints.clone();
        tokio::spawn(async move { checkpoints.take().await.map(|Checkpoint { proof, .. }| proof) })
    };
    take();
    assert_eq!(queued(&fifo).await, "proof of 5", "at rest, before any event");
    for number in 6..=20 {
        feed.send(number).await.unwrap();
    }
    // The queue is full, and the Reflector waits for space.
    tokio::task::yield_now().await;
    take();
    let mut last = String::new();
    loop {
        let next = queued(&fifo).await;
        if let Some(of) = next.strip_prefix("proof of ") {
            assert_eq!(of, last);
            break;
        }
        last = next;
    }
    assert_ne!(last, "20", "it does not wait for a pause of the upstream");
    running.abort();
}

/// The source has no proof: the caller gets `None` and does not wait.
#[tokio::test(start_paused = true)]
async fn without_a_proof_there_is_no_checkpoint() {
    let (Warm { reflector, .. }, resumed) = warm(FifoBounds::default(), "4");
    assert!(resumed.is_err());
    let checkpoints = reflector.checkpoints().clone();
    let running = tokio::spawn(reflector.run());
    assert!(checkpoints.take().await.is_none());
    running.abort();
}

/// State and proof match, however many deltas are queued between source and informer.
#[tokio::test]
async fn a_checkpoint_is_of_one_moment() {
    let (Warm { feed, fifo, reflector, .. }, _) = warm(FifoBounds::default(), "5");
    let config = InformerConfig { rewrite_evidence: RewriteEvidence::Bytes, ..InformerConfig::default() };
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(5));
    let (mut informer, handle): (_, InformerHandle<Deliveries>) = Informer::new(Arc::clone(&fifo), health, config);
    informer.begin_warm(List::new(vec![object(3)], version(5)));
    let checkpoints = reflector.checkpoints().clone();
    let running = [tokio::spawn(informer.run()), tokio::spawn(reflector.run())];
    let feeding = tokio::spawn(async move {
        for number in 6..=20_000 {
            feed.send(number).await.unwrap();
        }
        feed.closed().await;
    });
    let mut seen = 0;
    let mut last = 5;
    while last < 20_000 {
        let Checkpoint { snapshot, proof, .. } = checkpoints.take().await.unwrap();
        assert_eq!(snapshot.version().to_string().as_bytes(), proof);
        assert!(snapshot.version().number() >= last);
        last = snapshot.version().number();
        seen += 1;
    }
    assert!(seen > 10, "{seen} checkpoints");
    assert_eq!(handle.snapshot().map(|snapshot| snapshot.version().number()), Some(20_000));
    feeding.abort();
    running.iter().for_each(JoinHandle::abort);
}
