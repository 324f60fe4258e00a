//! A reconciler that fails one time in ten over a server that is killed, with 10,000 objects of an etcd that is killed too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use informerd::{
    cache::{
        Action, BackoffConfig, ExponentialRateLimiter, InformerOptions, Reconciler, ReflectorConfig, SharedInformer,
        WorkQueue, WorkQueueConfig,
    },
    model::ObjectKey,
    source::relay::{RelayConfig, RelaySource},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    DEADLINE,
    etcd::{Driver, Etcd, Version},
    killable::KillableServer,
    truth::PREFIX,
};

/// Versions of the keys; none for a deleted one.
type Versions = BTreeMap<ObjectKey, Option<u128>>;

/// Record of the calls.
#[derive(Debug, Default)]
struct Calls {
    running: BTreeSet<ObjectKey>,
    /// The state that the last call of each key saw.
    last: Versions,
    failed: u32,
    random: fastrand::Rng,
}

const OBJECTS: u32 = 10_000;
/// Most keys of a transaction, below etcd's bound of operations.
const OPERATIONS: u32 = 100;

/// Writes keys in one transaction; each one is deleted one time in five.
fn write(driver: &mut Driver, random: &mut fastrand::Rng, versions: &mut Versions, names: impl Iterator<Item = u32>) {
    let changes: BTreeMap<u32, bool> = names.map(|name| (name, random.u8(..5) > 0)).collect();
    let body = random.u32(..);
    let full =
        changes.iter().map(|(name, exists)| (format!("{PREFIX}a/{name}"), exists.then(|| format!("{{\"n\":{body}}}"))));
    let revision = u128::try_from(driver.write(&full.collect())).unwrap();
    versions.extend(
        changes
            .into_iter()
            .map(|(name, exists)| (ObjectKey::new("a", &name.to_string()).unwrap(), exists.then_some(revision))),
    );
}

/// Waits until the last calls have seen the last states, and then until nothing is left to do.
async fn converge(
    calls: &Mutex<Calls>,
    expected: &Versions,
    queue: &WorkQueue<ObjectKey>,
    informer: &SharedInformer<Value>,
) {
    let started = Instant::now();
    loop {
        let wrong = {
            let calls = calls.lock().unwrap();
            // A key that was deleted before the informer had listed it was not reconciled.
            let mut keys = expected.iter().filter(|(key, state)| state.is_some() || calls.last.contains_key(*key));
            keys.find(|(key, state)| calls.last.get(*key) != Some(*state)).map(|(key, _)| key.clone())
        };
        let stats = queue.stats();
        if wrong.is_none() && (stats.depth, stats.delayed, stats.processing) == (0, 0, 0) {
            return;
        }
        if started.elapsed() >= DEADLINE {
            let problem = wrong.map(|key| {
                let stored = informer.get(&key).map(|thing| thing.version().number());
                format!(
                    "{key} {:?} is {:?} to its last call, {stored:?} here",
                    expected[&key],
                    calls.lock().unwrap().last.get(&key)
                )
            });
            panic!("{problem:?}, at {:?}, {:?}, {stats:?}", informer.last_sync_resource_version(), informer.health());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_reconciliation_of_each_key_sees_its_last_state_whatever_is_killed() {
    let mut etcd = Etcd::start(Version::Latest).await;
    let (mut driver, mut random, mut expected) = (etcd.driver(), fastrand::Rng::with_seed(5), Versions::new());
    for first in (0..OBJECTS).step_by(OPERATIONS as usize) {
        write(&mut driver, &mut random, &mut expected, first..first + OPERATIONS);
    }
    let mut served = KillableServer::start(&etcd);
    served.synced().await;

    let source = RelayConfig::new(format!("http://{}", served.address()).parse().unwrap(), "things");
    let health = informerd::cache::SourceHealth::new(source.heartbeat, DEADLINE);
    let source = RelaySource::new(source, health.clone());
    let backoff = BackoffConfig { max: Duration::from_millis(800), ..BackoffConfig::default() };
    let reflector = ReflectorConfig { backoff, ..ReflectorConfig::default() };
    let options = InformerOptions { health: Some(health), reflector, ..InformerOptions::default() };
    let informer: Arc<SharedInformer<Value>> = Arc::new(SharedInformer::start(source, options));

    let rate_limiter = ExponentialRateLimiter::new(Duration::from_millis(1), Duration::from_millis(100));
    let queue = WorkQueue::new(WorkQueueConfig { rate_limiter: Box::new(rate_limiter), ..WorkQueueConfig::default() });
    let calls = Arc::new(Mutex::new(Calls { random: fastrand::Rng::with_seed(9), ..Calls::default() }));
    let (things, recorded) = (Arc::clone(&informer), Arc::clone(&calls));
    let reconcile = move |key: ObjectKey| {
        let (things, calls) = (Arc::clone(&things), Arc::clone(&recorded));
        async move {
            let fails = {
                let mut calls = calls.lock().unwrap();
                assert!(calls.running.insert(key.clone()), "{key} runs twice at once");
                calls.random.u8(..10) == 0
            };
            let state = things.get(&key).map(|thing| thing.version().number());
            tokio::task::yield_now().await;
            let mut calls = calls.lock().unwrap();
            assert!(calls.running.remove(&key));
            if fails {
                calls.failed += 1;
                return Err("simulated");
            }
            calls.last.insert(key, state);
            Ok(Action::Done)
        }
    };
    let stop = CancellationToken::new();
    let reconciler = Reconciler::new(queue.clone()).watch(&informer, |thing| [thing.key().clone()]).workers(8);
    let task = tokio::spawn(reconciler.run(stop.clone(), reconcile));

    for round in 0..8 {
        for transaction in 0..40 {
            match (transaction, round % 4) {
                (10, 0..=2) => served.kill(),
                (20, 0..=2) => {
                    if round % 4 == 1 {
                        // It lists: what was deleted meanwhile is inferred.
                        fs::remove_file(served.state()).unwrap();
                        driver.compact(i64::try_from(expected.values().flatten().max().copied().unwrap()).unwrap());
                    }
                    served.restart();
                }
                (10, 3) => {
                    etcd.kill();
                    etcd.restart().await;
                    driver.settle();
                }
                _ => {}
            }
            let names: Vec<u32> = (0..OPERATIONS).map(|_| random.u32(..OBJECTS)).collect();
            write(&mut driver, &mut random, &mut expected, names.into_iter());
        }
        converge(&calls, &expected, &queue, &informer).await;
    }
    assert!(calls.lock().unwrap().failed > 2000);
    stop.cancel();
    task.await.unwrap().unwrap();
}
