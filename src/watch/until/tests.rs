//! apimachinery's tests of `watch.Until`, on a paused clock.

use std::sync::Arc;

use tokio::time::Instant;

use super::*;
use crate::{
    model::{Event, Object, ResourceVersion},
    testing::{DEFAULT_CHAN_SIZE, FakeWatcher, RaceFreeFakeWatcher},
};

type ConditionFunc = fn(&Event) -> Result<bool, String>;
type Outcome = Result<Option<Event>, UntilError<Event, String>>;

const IS_ADDED: ConditionFunc = |event| Ok(matches!(event, Event::Added(_)));
const IS_MODIFIED: ConditionFunc = |event| Ok(matches!(event, Event::Modified(_)));
const FAILS: ConditionFunc = |_| Err("something bad".to_owned());

const TIMEOUT: Duration = Duration::from_secs(10);

fn object() -> Arc<Object> {
    Arc::new(Object::from_json("{}", "a", ResourceVersion::decimal(1)).unwrap())
}

fn added() -> Event {
    Event::Added(object())
}

fn modified() -> Event {
    Event::Modified(object())
}

fn events_of(watcher: &FakeWatcher) -> impl Stream<Item = Event> + use<> {
    watcher.watch().map(Result::unwrap)
}

/// Sends events to a fake watcher and waits for conditions; returns the watcher too.
async fn wait(timeout: Duration, conditions: &[ConditionFunc], events: Vec<Event>) -> (Outcome, RaceFreeFakeWatcher) {
    let watcher = RaceFreeFakeWatcher::new();
    let watch = watcher.watch().map(Result::unwrap);
    for event in events {
        watcher.send(Ok(event));
    }
    (until(timeout, watch, conditions.iter().copied()).await, watcher)
}

/// `TestUntil`.
#[tokio::test(start_paused = true)]
async fn conditions_are_met_one_after_the_other() {
    let deleted = Event::Deleted(object());
    let both = [IS_ADDED, IS_MODIFIED];
    let (outcome, watcher) = wait(TIMEOUT, &both, vec![added(), modified()]).await;
    assert_eq!(outcome, Ok(Some(modified())));
    assert!(watcher.is_stopped(), "the watch was dropped");
    assert_eq!(wait(TIMEOUT, &both, vec![added(), deleted, modified(), added()]).await.0, Ok(Some(modified())));
    let timed_out = UntilError::TimedOut { after: TIMEOUT, last: Some(added()) };
    assert_eq!(wait(TIMEOUT, &both, vec![modified(), added()]).await.0, Err(timed_out), "not backwards");
    let (outcome, watcher) = wait(TIMEOUT, &[], vec![]).await;
    assert_eq!(outcome, Ok(None), "there is nothing to wait for");
    assert!(watcher.is_stopped());
}

/// `TestUntilMultipleConditions`.
#[tokio::test(start_paused = true)]
async fn one_event_may_meet_several_conditions() {
    assert_eq!(wait(TIMEOUT, &[IS_ADDED, IS_ADDED], vec![added()]).await.0, Ok(Some(added())));
}

#[tokio::test(start_paused = true)]
async fn the_last_of_many_events_may_be_the_one() {
    let mut events = vec![added(); DEFAULT_CHAN_SIZE - 1];
    events.push(modified());
    assert_eq!(wait(TIMEOUT, &[IS_MODIFIED], events).await.0, Ok(Some(modified())));
}

/// `TestUntilMultipleConditionsFail`.
#[tokio::test(start_paused = true)]
async fn a_condition_that_is_never_met_times_out_with_the_last_event() {
    let started = Instant::now();
    let (outcome, watcher) = wait(TIMEOUT, &[IS_ADDED, IS_ADDED, IS_MODIFIED], vec![added()]).await;
    assert_eq!(outcome, Err(UntilError::TimedOut { after: TIMEOUT, last: Some(added()) }));
    assert_eq!(started.elapsed(), TIMEOUT);
    assert!(watcher.is_stopped());
    assert_eq!(wait(TIMEOUT, &[IS_ADDED], vec![]).await.0, Err(UntilError::TimedOut { after: TIMEOUT, last: None }));
}

/// `TestUntilTimeout`.
#[tokio::test(start_paused = true)]
async fn a_timeout_of_zero_is_none() {
    let watcher = FakeWatcher::new();
    let waiting = tokio::spawn(until(Duration::ZERO, events_of(&watcher), [IS_ADDED, IS_MODIFIED]));
    for event in [added(), modified()] {
        time::sleep(Duration::from_secs(86_400)).await;
        assert!(!waiting.is_finished());
        watcher.send(Ok(event)).await.unwrap();
    }
    assert_eq!(waiting.await.unwrap(), Ok(Some(modified())));
}

/// `TestUntilErrorCondition`.
#[tokio::test(start_paused = true)]
async fn the_error_of_a_condition_ends_the_wait() {
    let (outcome, watcher) = wait(TIMEOUT, &[IS_ADDED, FAILS], vec![added(), modified()]).await;
    let error = outcome.unwrap_err();
    assert_eq!(error, UntilError::Condition { error: "something bad".to_owned(), last: added() });
    assert_eq!(error.to_string(), "condition failed: something bad");
    assert!(watcher.is_stopped());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_closes_early_ends_the_wait_with_the_last_event() {
    let watcher = FakeWatcher::new();
    let waiting = tokio::spawn(until(TIMEOUT, events_of(&watcher), [IS_ADDED, IS_MODIFIED]));
    watcher.add(object()).await.unwrap();
    watcher.stop();
    assert_eq!(waiting.await.unwrap(), Err(UntilError::Closed { last: Some(added()) }));
    watcher.reset();
    let waiting = tokio::spawn(until(TIMEOUT, events_of(&watcher), [IS_MODIFIED]));
    watcher.stop();
    assert_eq!(waiting.await.unwrap(), Err(UntilError::Closed { last: None }));
}

/// An error is an item as every other: a condition decides what it means.
#[tokio::test(start_paused = true)]
async fn an_error_of_the_watch_is_seen_by_the_conditions() {
    let watch = tokio_stream::iter([Ok(1), Err("410"), Ok(2)]);
    let is_expired = |item: &Result<i32, &str>| Ok::<_, String>(*item == Err("410"));
    assert_eq!(until(TIMEOUT, watch, [is_expired]).await, Ok(Some(Err("410"))));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_always_has_more_times_out_too() {
    let endless = futures_util::stream::repeat(1);
    let ticking = async {
        loop {
            time::advance(Duration::from_secs(1)).await;
        }
    };
    let waiting = until(TIMEOUT, endless, [|_: &i32| Ok::<_, String>(false)]);
    let outcome = tokio::select! { outcome = waiting => outcome, () = ticking => unreachable!() };
    assert_eq!(outcome, Err(UntilError::TimedOut { after: TIMEOUT, last: Some(1) }));
}
