//! Verifications in paused time, of a source whose watch leaves out what its lists have.

use std::{future::pending, sync::atomic::AtomicUsize};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::{
    cache::{InformerOptions, InformerTasks, ListVersion, ListerWatcher, SourceError, SourceHealth},
    testing::FakeSource,
};

const INTERVAL: Duration = Duration::from_secs(3600);
/// Time of the test in which at least one verification begins and ends.
const ONE: Duration = Duration::from_secs(3600 + 360 + 700);
/// Time that the fake source may be silent for.
const HEARTBEAT: Duration = Duration::from_secs(1 << 30);

/// Server's side of a resource: its source, its informer and its verifier.
struct Resource {
    source: FakeSource,
    informer: InformerHandle<WireFrame>,
    stats: Arc<VerifyStats>,
    lists: Arc<Mutex<Vec<Instant>>>,
    turn: Arc<Semaphore>,
    _tasks: JoinSet<()>,
}

/// Lister of a fake source, with what happens at each of its lists.
struct FakeLister {
    source: FakeSource,
    lists: Arc<Mutex<Vec<Instant>>>,
    at_list: AtList,
}

/// Event while a list is read.
enum AtList {
    Nothing,
    /// Addition of an object that the watch delivers later.
    AddBefore,
    /// Change of an object, which the list does not have yet and the cache has.
    ModifyAfter,
    /// Nothing, for ever.
    Hang,
    /// Wait for almost the time limit, in which this counter must be 0 at the beginning.
    Exclusive(Arc<AtomicUsize>),
}

impl Lister for FakeLister {
    fn assigns_versions(&self, _list: &List) -> bool {
        true
    }

    async fn list(&self) -> Result<List, String> {
        let number = {
            let mut lists = self.lists.lock();
            lists.push(Instant::now());
            lists.len()
        };
        match &self.at_list {
            AtList::Nothing | AtList::ModifyAfter => {}
            AtList::AddBefore => drop(self.source.add(&object(&format!("new-{number}"), 1))),
            AtList::Hang => pending().await,
            AtList::Exclusive(others) => {
                assert_eq!(others.fetch_add(1, Ordering::Relaxed), 0, "one at a time");
                sleep(Duration::from_secs(500)).await;
                others.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let list = self.source.list(ListVersion::MostRecent).await.map_err(|error| error.to_string());
        if matches!(self.at_list, AtList::ModifyAfter) {
            self.source.modify(&object("a", number + 1));
            sleep(Duration::from_secs(1)).await;
        }
        list
    }
}

impl Resource {
    /// Starts a resource with the objects `a` and `b`, and its verifications.
    async fn start(at_list: AtList, turn: &Arc<Semaphore>) -> Self {
        let source = FakeSource::new();
        source.add(&object("a", 1));
        source.add(&object("b", 1));
        let health = SourceHealth::new(HEARTBEAT, Duration::from_secs(15));
        let options = InformerOptions { health: Some(health), ..InformerOptions::default() };
        let informer_tasks = InformerTasks::<_, WireFrame>::new(source.clone(), options);
        let informer = informer_tasks.handle().clone();
        let mut tasks = JoinSet::new();
        for (_, task) in informer_tasks.into_tasks(CancellationToken::new(), |_, _| ()) {
            tasks.spawn(task);
        }
        informer.wait_for(0, |_| true).await;
        let (stats, lists) = (Arc::new(VerifyStats::default()), Arc::default());
        let verifier = Verifier {
            resource: "things".to_owned(),
            interval: INTERVAL,
            upstream: FakeLister { source: source.clone(), lists: Arc::clone(&lists), at_list },
            informer: informer.clone(),
            stats: Arc::clone(&stats),
            turn: Arc::clone(turn),
        };
        tasks.spawn(verifier.run());
        Self { source, informer, stats, lists, turn: Arc::clone(turn), _tasks: tasks }
    }

    /// Returns the numbers of verifications, none of which is under way: equal, differing, failed and skipped.
    async fn results(&self) -> [u64; 4] {
        drop(self.turn.acquire().await);
        let VerifyStats { equal, differs, failed, skipped, .. } = &*self.stats;
        [equal, differs, failed, skipped].map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the message of the problem.
    fn problem(&self) -> Option<String> {
        let problems = self.informer.health().problems_of(&[ProblemReason::VerifyDiffers]);
        problems.into_iter().next().map(|problem| problem.message)
    }

    /// Returns the times between the lists.
    fn pauses(&self) -> Vec<Duration> {
        self.lists.lock().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

fn object(name: &str, data: usize) -> Value {
    json!({ "metadata": { "namespace": "shop", "name": name }, "data": { "x": data.to_string() } })
}

fn turn() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

#[tokio::test(start_paused = true)]
async fn an_interval_has_one_list_while_nothing_differs() {
    let resource = Resource::start(AtList::Nothing, &turn()).await;
    sleep(10 * INTERVAL).await;
    let [equal, differs, failed, skipped] = resource.results().await;
    assert_eq!((equal as usize, differs, failed, skipped), (resource.lists.lock().len(), 0, 0, 0));
    assert!((9..=10).contains(&equal), "{equal}");
    for pause in resource.pauses() {
        assert!(pause >= INTERVAL && pause <= INTERVAL.mul_f64(1.0 + JITTER) + Duration::from_millis(2), "{pause:?}");
    }
    assert!(resource.stats.completed_at_ms.load(Ordering::Relaxed) > 0);
    assert_eq!(resource.problem(), None);
}

#[tokio::test(start_paused = true)]
async fn objects_that_the_watch_has_left_out_are_reported_until_they_are_served() {
    let resource = Resource::start(AtList::Nothing, &turn()).await;
    resource.source.add_drop_watch(&object("c", 1));
    resource.source.modify_drop_watch(&object("a", 2));
    resource.source.delete_drop_watch("shop", "b");
    sleep(ONE).await;
    let [equal, differs, ..] = resource.results().await;
    assert_eq!((equal, resource.stats.differences.load(Ordering::Relaxed)), (0, 3));
    assert_eq!(resource.lists.lock().len() as u64, 2 * differs, "a second list confirms each difference");
    assert_eq!(resource.pauses()[0], SETTLE[1]);
    let problem = resource.problem().unwrap();
    let expected = "3 objects differ from a list of the upstream: shop/a (version), shop/b (not in the upstream), shop/c (not served); ";
    assert!(problem.starts_with(expected), "{problem}");

    // A watch that resumes receives what the one before it has missed.
    resource.source.close_watches();
    sleep(ONE).await;
    assert_eq!((resource.problem(), resource.stats.differences.load(Ordering::Relaxed)), (None, 0));
    assert!(resource.results().await[0] > 0);
}

#[tokio::test(start_paused = true)]
async fn what_the_cache_receives_later_is_no_difference_and_needs_no_second_list() {
    let resource = Resource::start(AtList::AddBefore, &turn()).await;
    sleep(3 * INTERVAL).await;
    let [equal, differs, ..] = resource.results().await;
    assert_eq!((equal as usize, differs, resource.problem()), (resource.lists.lock().len(), 0, None));
    assert!(equal > 0);
}

#[tokio::test(start_paused = true)]
async fn what_changes_all_the_time_is_no_difference() {
    let resource = Resource::start(AtList::ModifyAfter, &turn()).await;
    sleep(3 * INTERVAL).await;
    let [equal, differs, ..] = resource.results().await;
    assert_eq!(
        (2 * equal as usize, differs, resource.problem()),
        (resource.lists.lock().len(), 0, None),
        "two lists each"
    );
    assert!(equal > 0);
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_is_not_synced_is_not_listed() {
    let resource = Resource::start(AtList::Nothing, &turn()).await;
    resource.informer.health().mark_lost();
    sleep(ONE).await;
    let [equal, differs, failed, skipped] = resource.results().await;
    assert_eq!((equal, differs, failed, resource.lists.lock().len()), (0, 0, 0, 0));
    assert!(skipped > 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_list_is_counted_and_leaves_the_problem_as_it_is() {
    let resource = Resource::start(AtList::Nothing, &turn()).await;
    resource.source.delete_drop_watch("shop", "b");
    sleep(ONE).await;
    let problem = resource.problem();
    assert!(problem.is_some());
    resource.source.fail_list(SourceError::Busy("connection refused".to_owned()));
    let differs = resource.results().await[1];
    sleep(ONE).await;
    let results = resource.results().await;
    assert_eq!((results[2], resource.problem()), (1, problem));
    assert!(results[1] >= differs);
}

#[tokio::test(start_paused = true)]
async fn a_list_without_an_end_is_given_up() {
    let resource = Resource::start(AtList::Hang, &turn()).await;
    sleep(ONE).await;
    let [equal, differs, failed, skipped] = resource.results().await;
    assert_eq!((equal, differs, skipped, resource.problem()), (0, 0, 0, None));
    assert!(failed > 0);
}

#[tokio::test(start_paused = true)]
async fn one_resource_at_a_time_is_verified() {
    let (turn, others) = (turn(), Arc::new(AtomicUsize::new(0)));
    let mut resources = Vec::new();
    for _ in 0..5 {
        resources.push(Resource::start(AtList::Exclusive(Arc::clone(&others)), &turn).await);
    }
    sleep(3 * INTERVAL).await;
    let mut equal = 0;
    for resource in &resources {
        equal += resource.results().await[0];
    }
    assert!(equal >= 5, "{equal}");
}
