//! Reflector against a scripted upstream, on a paused clock: its requests, their times, and the queued deltas.

mod delays;
mod store;
mod unreadable;
mod warm;

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::stream;
use parking_lot::Mutex;

use super::*;
use crate::{
    cache::{BackoffConfig, FifoBounds, List, SourceError, SyncState},
    model::{Event, Object},
};

/// Scripted answer of the upstream to one call. After the last one it never answers.
#[derive(Debug, Clone)]
enum Answer {
    /// Empty list at this version.
    List(u128),
    FailList(SourceError),
    Refuse(SourceError),
    Watch(Vec<Beat>),
}

#[derive(Debug, Clone)]
enum Beat {
    After(Duration),
    Event(u128),
    /// Event at a version that stays open.
    Open(u128),
    Transaction(u128),
    Bookmark(u128),
    Fail(SourceError),
    /// Open stream instead of a close.
    StayOpen,
}

use Answer::{FailList, List as Listed, Refuse, Watch as Watched};
use Beat::{After, Bookmark, Event as Put, Fail, Open, StayOpen, Transaction};

#[derive(Debug)]
struct Scripted {
    answers: Mutex<VecDeque<Answer>>,
    calls: Arc<Mutex<Vec<String>>>,
    started: Instant,
}

impl Scripted {
    /// Records the call and its time, and returns the next answer.
    fn call(&self, call: &str) -> Option<Answer> {
        let ms = self.started.elapsed().as_millis();
        self.calls.lock().push(format!("{ms} {call}").trim_end().to_owned());
        self.answers.lock().pop_front()
    }
}

impl ListerWatcher for Scripted {
    async fn list(&self, at: ListVersion) -> Result<List, SourceError> {
        let text = match at {
            ListVersion::Any => "0".to_owned(),
            ListVersion::NotOlderThan(version) => version.to_string(),
            ListVersion::MostRecent => String::new(),
        };
        match self.call(&format!("list {text}")) {
            Some(Listed(version)) => Ok(List::new(vec![object(version)], self::version(version))),
            Some(FailList(error)) => Err(error),
            Some(other) => panic!("the script has {other:?}, and a list was asked for"),
            None => std::future::pending().await,
        }
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        match self.call(&format!("watch {from}")) {
            Some(Watched(beats)) => Ok(Box::pin(futures_util::StreamExt::filter_map(stream::iter(beats), play))),
            Some(Refuse(error)) => Err(error),
            Some(other) => panic!("the script has {other:?}, and a watch was asked for"),
            None => std::future::pending().await,
        }
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_secs(5)
    }
}

async fn play(beat: Beat) -> Option<Result<Delta, SourceError>> {
    match beat {
        After(time) => {
            tokio::time::sleep(time).await;
            None
        }
        Open(number) => {
            let events = [Event::Deleted(object(number))].into_iter().collect();
            Some(Ok(Delta::Changes { events, closes: false }))
        }
        Put(number) => Some(Ok(Delta::event(Event::Modified(object(number))))),
        Bookmark(number) => Some(Ok(Delta::event(Event::Bookmark(version(number))))),
        Transaction(number) => {
            Some(Ok(Delta::transaction([Event::Modified(object(number)), Event::Modified(object(number))])))
        }
        Fail(error) => Some(Err(error)),
        StayOpen => std::future::pending().await,
    }
}

/// Result of a script.
struct Run {
    /// Calls, with the milliseconds since the start.
    calls: Vec<String>,
    queued: Vec<String>,
    health: SourceHealth,
    /// Numbers of lists, failed lists, watches, failed watches, events.
    counts: [u64; 5],
}

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn object(number: u128) -> Arc<Object> {
    Arc::new(Object::from_json(Bytes::from_static(b"{}"), "a", version(number)).unwrap())
}

fn secs(secs: u64) -> Beat {
    After(Duration::from_secs(secs))
}

fn busy() -> SourceError {
    SourceError::Busy("429".into())
}

fn expired() -> SourceError {
    SourceError::Expired("410".into())
}

fn unavailable() -> SourceError {
    SourceError::Unavailable("500".into())
}

/// Runs a script without jitter, for this time.
async fn run_for(time: Duration, answers: Vec<Answer>) -> Run {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let source = Scripted { answers: Mutex::new(answers.into()), calls: Arc::clone(&calls), started: Instant::now() };
    let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(5));
    let backoff = BackoffConfig { jitter: 0.0, ..BackoffConfig::default() };
    let config = ReflectorConfig { backoff, ..ReflectorConfig::default() };
    let reflector = Reflector::new(source, Arc::clone(&fifo), health.clone(), config);
    let stats = Arc::clone(reflector.stats());
    assert!(tokio::time::timeout(time, reflector.run()).await.is_err(), "it never ends by itself");
    let mut queued = Vec::new();
    while !fifo.is_empty() {
        queued.extend(fifo.pop_batch(1, 1).await.into_iter().flatten().map(|delta| match delta {
            Delta::Replace(list) => format!("replace {}", list.version),
            Delta::Changes { events, .. } => match &*events {
                [event @ Event::Bookmark(_)] => format!("bookmark {}", event.version()),
                [event] => format!("put {}", event.version()),
                events => format!("{} at {}", events.len(), events[0].version()),
            },
            Delta::HistoryRewritten(list) => format!("rewind {}", list.version),
            Delta::Checkpoint { proof, .. } => format!("checkpoint {}", String::from_utf8_lossy(&proof)),
            Delta::Relist(events, _) => unreachable!("not in a script: {events:?}"),
        }));
    }
    let calls = calls.lock().clone();
    let ReflectorStats { lists, list_failures, watches, watch_failures, events, .. } = &*stats;
    let counts = [lists, list_failures, watches, watch_failures, events].map(|counter| counter.load(Ordering::Relaxed));
    Run { calls, queued, health, counts }
}

async fn run(answers: Vec<Answer>) -> Run {
    run_for(Duration::from_secs(600), answers).await
}

/// A broken connection does not mean an overloaded upstream, unless it breaks at once.
#[tokio::test(start_paused = true)]
async fn a_broken_watch_is_resumed_at_once_if_it_had_lasted() {
    let broken = || Fail(SourceError::Broken("reset".into()));
    let run = run(vec![
        Listed(5),
        Watched(vec![Put(6), broken()]),
        Watched(vec![secs(1), broken()]),
        Watched(vec![broken()]),
        Watched(vec![Put(7), StayOpen]),
    ]);
    let run = run.await;
    assert_eq!(run.calls, ["0 list 0", "0 watch 5", "0 watch 6", "1000 watch 6", "1800 watch 6"]);
    assert_eq!(run.queued, ["replace 5", "put 6", "put 7"]);
}

/// The upstream repeats the changes at an open version, and the store recognises them.
#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_at_an_open_version_begins_again_before_it() {
    let broken = || Fail(SourceError::Broken("reset".into()));
    let run = run(vec![
        Listed(5),
        Watched(vec![Open(9), Open(9), broken()]),
        // The origin of a relay reports everything before the open version as complete.
        Watched(vec![Open(9), Open(9), Bookmark(8), Open(9), Bookmark(9), broken()]),
        Watched(vec![Put(12), StayOpen]),
    ]);
    let run = run.await;
    assert_eq!(run.calls, ["0 list 0", "0 watch 5", "0 watch 8", "0 watch 9"]);
    assert_eq!(run.queued, ["replace 5", "put 9", "put 9", "put 9", "put 9", "put 9", "bookmark 9", "put 12"]);
}

/// The first list of a rewritten history is a delta of its own; a transaction is one element.
#[tokio::test(start_paused = true)]
async fn the_list_after_a_reported_rewrite_is_queued_as_a_rewritten_history() {
    let changed = SourceError::HistoryRewritten("another cluster".into());
    let run = run(vec![
        Listed(5),
        Watched(vec![Transaction(7), Fail(changed.clone())]),
        FailList(unavailable()),
        Listed(9),
        Watched(vec![secs(2)]),
        Refuse(changed),
        Listed(3),
    ]);
    let run = run.await;
    assert_eq!(run.queued, ["replace 5", "2 at 7", "rewind 9", "rewind 3"]);
    let asked: Vec<&str> = run.calls.iter().map(|call| call.split_once(' ').unwrap().1).collect();
    assert_eq!(asked, ["list 0", "watch 5", "list", "list", "watch 9", "watch 9", "list", "watch 3"]);
}

/// `TestReflectorListAndWatch`, `TestReflectorResourceVersionUpdate`.
#[tokio::test(start_paused = true)]
async fn the_reflector_lists_and_then_watches_from_the_version_of_the_list() {
    let run = run(vec![Listed(10), Watched(vec![Put(11), Bookmark(20), secs(3), Put(30), StayOpen])]).await;
    assert_eq!(run.calls, ["0 list 0", "0 watch 10"]);
    assert_eq!(run.queued, ["replace 10", "put 11", "bookmark 20", "put 30"]);
    assert_eq!(run.counts, [1, 0, 1, 0, 3]);
}

/// The service requests the most recent state, so that a restart serves no older one.
#[tokio::test(start_paused = true)]
async fn the_first_list_has_the_configured_freshness() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let answers = Mutex::new(vec![Listed(10)].into());
    let source = Scripted { answers, calls: Arc::clone(&calls), started: Instant::now() };
    let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
    let health = SourceHealth::new(Duration::ZERO, Duration::ZERO);
    let config = ReflectorConfig { first_list: ListVersion::MostRecent, ..ReflectorConfig::default() };
    let reflector = Reflector::new(source, fifo, health, config);
    assert!(tokio::time::timeout(Duration::from_secs(1), reflector.run()).await.is_err());
    assert_eq!(*calls.lock(), ["0 list", "0 watch 10"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_closes_normally_is_resumed_at_once_and_without_a_list() {
    let answers = vec![
        Listed(10),
        Watched(vec![Put(11)]),
        Watched(vec![secs(2)]),
        Watched(vec![secs(300), Bookmark(40)]),
        Watched(vec![StayOpen]),
    ];
    let run = run(answers).await;
    assert_eq!(run.calls, ["0 list 0", "0 watch 10", "0 watch 11", "2000 watch 11", "302000 watch 40"]);
    assert_eq!(run.counts, [1, 0, 4, 0, 2]);
}

/// `TestNoRelistOnTooManyRequests`, `TestBackoffOnTooManyRequests`.
#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_busy_is_watched_again_with_growing_delays_and_not_listed() {
    let answers = vec![
        Listed(10),
        Refuse(busy()),
        Refuse(busy()),
        Watched(vec![Bookmark(10), Fail(busy())]),
        Refuse(busy()),
        Watched(vec![StayOpen]),
    ];
    let run = run(answers).await;
    assert_eq!(
        run.calls,
        ["0 list 0", "0 watch 10", "800 watch 10", "2400 watch 10", "5600 watch 10", "12000 watch 10"]
    );
    assert_eq!(run.counts, [1, 0, 5, 4, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_very_short_watch_without_events_leads_to_a_list_after_a_delay() {
    let answers = vec![
        Listed(10),
        Watched(vec![]),
        Listed(12),
        Watched(vec![After(Duration::from_millis(999))]),
        Listed(13),
        Watched(vec![StayOpen]),
    ];
    let run = run(answers).await;
    assert_eq!(run.calls, ["0 list 0", "0 watch 10", "800 list 10", "800 watch 12", "3399 list 12", "3399 watch 13"]);
    assert_eq!(run.queued, ["replace 10", "replace 12", "replace 13"]);
    assert_eq!(run.counts, [3, 0, 3, 2, 0]);
}

/// `TestReflectorListAndWatchWithErrors`, `TestReflectorReplacesStoreOnUnsafeDelete`, `TestCloseWatchChannelOnError`.
#[tokio::test(start_paused = true)]
async fn an_error_of_a_watch_leads_to_a_list_after_a_delay_and_later_events_are_not_read() {
    for error in [unavailable(), SourceError::Undecodable("bad".into())] {
        let answers = vec![
            Listed(10),
            Watched(vec![Put(11), Fail(error.clone()), Put(12), StayOpen]),
            Listed(13),
            Watched(vec![StayOpen]),
        ];
        let run = run(answers).await;
        assert_eq!(run.calls, ["0 list 0", "0 watch 10", "800 list 11", "800 watch 13"], "{error}");
        assert_eq!(run.queued, ["replace 10", "put 11", "replace 13"]);
        assert_eq!(run.counts, [2, 0, 2, 1, 1]);
    }
}

/// `TestReflectorFullListIfExpired`, kubernetes #86430.
#[tokio::test(start_paused = true)]
async fn an_expired_watch_lists_not_older_and_only_an_expired_list_the_most_recent_state() {
    let answers = vec![
        Listed(10),
        Refuse(expired()),
        FailList(expired()),
        FailList(unavailable()),
        Listed(20),
        Watched(vec![Fail(unavailable())]),
        Listed(21),
        Watched(vec![StayOpen]),
    ];
    let run = run(answers).await;
    assert_eq!(
        run.calls,
        ["0 list 0", "0 watch 10", "0 list 10", "0 list", "800 list", "800 watch 20", "2400 list 20", "2400 watch 21",]
    );
    assert_eq!(run.counts, [5, 2, 3, 2, 0]);
}

/// The first list after an expired watch comes at once. An upstream whose versions expire as soon as they are watched is
/// listed after growing delays.
#[tokio::test(start_paused = true)]
async fn a_list_after_an_expired_watch_comes_at_once_and_only_the_first() {
    let answers = vec![
        Listed(10),
        Watched(vec![Put(11), Fail(expired()), Put(12)]),
        Listed(20),
        Watched(vec![Fail(expired())]),
        Listed(21),
        Refuse(expired()),
        Listed(22),
        Watched(vec![Bookmark(23), Fail(expired())]),
        Listed(24),
        Watched(vec![secs(10), Fail(expired())]),
        Listed(25),
        Watched(vec![StayOpen]),
    ];
    let run = run(answers).await;
    assert_eq!(
        run.calls,
        [
            "0 list 0",
            "0 watch 10",
            "0 list 11",
            "0 watch 20",
            "800 list 20",
            "800 watch 21",
            "2400 list 21",
            "2400 watch 22",
            "2400 list 23",
            "2400 watch 24",
            "12400 list 24",
            "12400 watch 25",
        ]
    );
    assert_eq!(run.queued[..3], ["replace 10", "put 11", "replace 20"]);
}

/// A client that acts on SYNCED would act on an old state.
#[tokio::test(start_paused = true)]
async fn an_expired_watch_is_stale_until_it_is_listed() {
    for expiring in [Refuse(expired()), Watched(vec![Fail(expired())])] {
        let script = |more: &[Answer]| [&[Listed(10), Watched(vec![Put(11)]), expiring.clone()], more].concat();
        let run = run_for(Duration::from_secs(1), script(&[])).await;
        assert_eq!(run.health.state(), SyncState::Stale, "its list is not answered yet");
        let run = run_for(Duration::from_secs(1), script(&[FailList(unavailable())])).await;
        assert_eq!(run.health.state(), SyncState::Stale);
        let run = run_for(Duration::from_secs(1), script(&[Listed(12)])).await;
        assert_eq!(run.health.state(), SyncState::Synced);
    }
}

#[tokio::test(start_paused = true)]
async fn the_health_of_the_source_follows_its_answers() {
    let run = run_for(Duration::from_secs(1), vec![FailList(unavailable()), FailList(busy())]).await;
    let report = run.health.report();
    assert_eq!(report.last_error.as_deref(), Some("list failed: upstream unavailable: 429"));
    assert_eq!((report.state, report.seen_at), (SyncState::Stale, None));

    let run = run_for(Duration::from_secs(1), vec![FailList(unavailable()), Listed(10)]).await;
    assert_eq!((run.health.report().state, run.health.report().last_error), (SyncState::Synced, None));

    let failing = Watched(vec![secs(60), Put(11), secs(4), Fail(unavailable())]);
    let run = run_for(Duration::from_secs(66), vec![Listed(10), failing]).await;
    let report = run.health.report();
    assert_eq!(
        (report.state, report.last_error.as_deref()),
        (SyncState::Synced, Some("watch failed: 500")),
        "seen 6 s ago"
    );
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(run.health.report().state, SyncState::Stale);
}

/// Backpressure: a full queue stops the upstream's stream, and loses nothing.
#[tokio::test(start_paused = true)]
async fn a_full_queue_stops_reading_from_the_upstream() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let events = (11..100).map(Put).chain([StayOpen]).collect();
    let answers = Mutex::new(vec![Listed(10), Watched(events)].into());
    let source = Scripted { answers, calls, started: Instant::now() };
    let fifo = Arc::new(RealFifo::new(FifoBounds { deltas: 4, bytes: usize::MAX }));
    let health = SourceHealth::new(Duration::ZERO, Duration::ZERO);
    let reflector = Reflector::new(source, Arc::clone(&fifo), health, ReflectorConfig::default());
    let stats = Arc::clone(reflector.stats());
    let task = tokio::spawn(reflector.run());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fifo.len(), 4);
    assert_eq!(stats.events.load(Ordering::Relaxed), 4, "three that are queued, and one in hand");
    let mut versions = Vec::new();
    while versions.len() < 90 {
        for delta in fifo.pop_batch(3, usize::MAX).await.unwrap() {
            versions.push(match delta {
                Delta::Replace(list) => list.version.number(),
                Delta::Changes { events, .. } => events[0].version().number(),
                Delta::HistoryRewritten(_) | Delta::Relist(..) | Delta::Checkpoint { .. } => {
                    unreachable!("not in this script")
                }
            });
        }
    }
    assert_eq!(versions, (10..100).collect::<Vec<_>>());
    task.abort();
}
