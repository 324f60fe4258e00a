//! Watch in the same process: its items, the previous state of each policy, and its ends.

use futures_util::{FutureExt, StreamExt, stream::FusedStream};
use tokio::task::coop::unconstrained;

use super::*;
use crate::{
    cache::{InformerWatch, WatchItem},
    model::LabelSelector,
    watch::{UntilError, until},
};

const REPLAY: QueueOptions = QueueOptions { policy: FullChannelPolicy::Replay, length: 100 };

fn queue(policy: FullChannelPolicy, length: usize) -> QueueOptions {
    QueueOptions { policy, length }
}

fn everything() -> Selection {
    Selection::default()
}

/// Returns an object of a source with uids.
fn object_of(uid: &str, app: &str, number: u128) -> Arc<Object> {
    let json = format!(r#"{{"metadata":{{"name":"a","uid":"{uid}","labels":{{"app":"{app}"}}}}}}"#);
    Arc::new(Object::from_json(json, "", version(number)).unwrap())
}

/// Formats an item: type, name, the object's own version, and that of the previous state.
fn line(item: &WatchItem) -> String {
    let of = |object: &Object| format!("{} {}", object.key(), object.version());
    match item {
        WatchItem::Initial(object) => format!("={}", of(object)),
        WatchItem::Synced(version) => format!("synced {version}"),
        WatchItem::Event(delivery) => {
            let sign = told(delivery).remove(0);
            let was = delivery.previous.as_ref().map(|previous| format!(" was {}", previous.version()));
            format!("{sign}{}{}", of(&delivery.object), was.unwrap_or_default())
        }
        WatchItem::Dropped { count, after } => format!("dropped {count} after {after}"),
        WatchItem::Ended(end) => format!("{end:?}"),
    }
}

/// Returns the items that a watch has now.
async fn read(watch: &mut InformerWatch) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let next = async {
            // A watch that yields is not at its end.
            for _ in 0..20 {
                if let Some(item) = unconstrained(watch.next()).now_or_never() {
                    return item;
                }
                tokio::task::yield_now().await;
            }
            None
        };
        let Some(item) = next.await else { return lines };
        lines.push(line(&item));
    }
}

/// Returns a watch that has yielded its initial objects.
async fn synced(running: &Running, selection: Selection, queue: QueueOptions) -> InformerWatch {
    let mut watch = running.handle.watch(selection, queue);
    let lines = read(&mut watch).await;
    assert!(lines.last().is_some_and(|last| last.starts_with("synced")), "{lines:?}");
    watch
}

/// Applies changes of `a` at these versions.
async fn apply(running: &Running, versions: impl IntoIterator<Item = u128>) {
    for number in versions {
        running.apply(put("a", number)).await;
    }
}

fn retaining(events: usize, history: usize) -> InformerConfig {
    let config = config();
    let retention = Retention { events, ..config.broadcaster.retention };
    let history = Retention { events: history, ..retention };
    InformerConfig { broadcaster: BroadcasterConfig { retention, ..config.broadcaster }, history, ..config }
}

#[tokio::test(start_paused = true)]
async fn the_initial_objects_come_first_and_then_every_event_with_the_state_before() {
    let running = Running::start();
    running.list(["c", "a", "b"].map(|name| object(name, 1)).into(), version(5)).await;
    let mut watch = running.handle.watch(everything(), REPLAY);
    assert_eq!(read(&mut watch).await, ["=a 1", "=b 1", "=c 1", "synced 5"]);
    running.apply(put("a", 6)).await;
    running.apply(put("d", 7)).await;
    running.apply(Event::Deleted(object("b", 8))).await;
    running.apply(put("a", 9)).await;
    assert_eq!(read(&mut watch).await, ["~a 6 was 1", "+d 7", "-b 1", "~a 9 was 6"]);
    running.list(vec![object("a", 9), object("c", 11)], version(12)).await;
    assert_eq!(read(&mut watch).await, ["-d 7", "~c 11 was 1"]);
    assert!(!watch.is_terminated());
}

#[tokio::test(start_paused = true)]
async fn the_initial_objects_are_those_selected_however_many_there_are() {
    let running = Running::start();
    let names: Vec<String> = (0..500).map(|at| format!("o{at:03}")).collect();
    let labelled = |(at, name): (usize, &String)| {
        let app = if at % 2 == 0 { "web" } else { "db" };
        let json = format!(r#"{{"metadata":{{"name":"{name}","labels":{{"app":"{app}"}}}}}}"#);
        Arc::new(Object::from_json(json, "", version(1)).unwrap())
    };
    running.list(names.iter().enumerate().map(labelled).collect(), version(1)).await;
    let labels = LabelSelector::parse("app=web").unwrap();
    let mut watch = running.handle.watch(Selection { labels, ..everything() }, REPLAY);
    let mut expected: Vec<String> = names.iter().step_by(2).map(|name| format!("={name} 1")).collect();
    expected.push("synced 1".to_owned());
    assert_eq!(read(&mut watch).await, expected);
}

#[tokio::test(start_paused = true)]
async fn entering_a_selection_is_an_addition_and_leaving_it_a_deletion() {
    let running = Running::start();
    running.list(vec![object_of("u", "db", 1)], version(1)).await;
    let labels = LabelSelector::parse("app=web").unwrap();
    let mut watch = running.handle.watch(Selection { labels, ..everything() }, REPLAY);
    assert_eq!(read(&mut watch).await, ["synced 1"]);
    for (app, number) in [("web", 2), ("web", 3), ("db", 4)] {
        running.apply(Event::Modified(object_of("u", app, number))).await;
    }
    assert_eq!(read(&mut watch).await, ["+a 2", "~a 3 was 2", "-a 3"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_an_informer_without_a_state_waits_for_the_first_one() {
    let running = Running::start();
    let mut watch = running.handle.watch(everything(), REPLAY);
    assert!(read(&mut watch).await.is_empty());
    running.list(vec![object("a", 1)], version(5)).await;
    assert_eq!(read(&mut watch).await, ["=a 1", "synced 5"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_an_informer_that_ends_before_its_first_state_ends() {
    let Running { fifo, handle, task } = Running::start();
    let mut watch = handle.watch(everything(), REPLAY);
    assert!(read(&mut watch).await.is_empty());
    fifo.close();
    task.await.unwrap();
    assert_eq!(watch.next().await, Some(WatchItem::Ended(End::Stopped)));
    assert_eq!((watch.next().await, watch.is_terminated()), (None, true));
    assert_eq!(handle.watch(everything(), REPLAY).next().await, Some(WatchItem::Ended(End::Stopped)));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_informer_ends_its_watches_after_everything_published() {
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let mut watch = synced(&running, everything(), REPLAY).await;
    running.push(put("a", 2)).await;
    running.push(put("a", 3)).await;
    running.fifo.close();
    running.task.await.unwrap();
    assert_eq!(read(&mut watch).await, ["+a 2", "~a 3 was 2", "Stopped"]);
    assert!(watch.is_terminated());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_watch_is_unsubscribed_and_one_that_was_never_polled_never_subscribed() {
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let unpolled = running.handle.watch(everything(), REPLAY);
    let watch = synced(&running, everything(), REPLAY).await;
    let stats = running.handle.watch_stats().unwrap();
    assert_eq!(count(&stats.watchers), 1);
    drop((unpolled, watch));
    assert_eq!(count(&stats.watchers), 0);
}

/// The history has it, though the encoded events are few.
#[tokio::test(start_paused = true)]
async fn a_watch_that_lags_continues_without_a_gap() {
    let running = Running::configured(retaining(2, 10_000));
    running.list(vec![object("a", 1)], version(1)).await;
    for policy in [FullChannelPolicy::Replay, FullChannelPolicy::Block] {
        let mut watch = synced(&running, everything(), queue(policy, 1000)).await;
        let last = running.handle.snapshot().unwrap().version().number();
        // More than is read at a time.
        apply(&running, last + 1..=last + 1500).await;
        let was = |number: u128| format!("~a {number} was {}", number - 1);
        assert_eq!(read(&mut watch).await, (last + 1..=last + 1500).map(was).collect::<Vec<_>>(), "{policy:?}");
        apply(&running, [last + 1501]).await;
        assert_eq!(read(&mut watch).await, [was(last + 1501)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lags_behind_the_history_ends_as_expired() {
    let running = Running::configured(retaining(2, 4));
    running.list(Vec::new(), version(1)).await;
    let mut watch = synced(&running, everything(), REPLAY).await;
    apply(&running, 2..=20).await;
    let ended = WatchItem::Ended(End::Expired { oldest: version(16) });
    assert_eq!(watch.next().await, Some(ended));
}

/// Without it, the watch would have to read everything since its last event.
#[tokio::test(start_paused = true)]
async fn a_watch_without_events_needs_the_history_only_since_it_last_waited() {
    let running = Running::configured(retaining(2, 10));
    running.list(Vec::new(), version(1)).await;
    let of_b = Selection { name: Some("b".to_owned()), ..everything() };
    let mut watch = synced(&running, of_b, REPLAY).await;
    apply(&running, 2..=40).await;
    assert!(tokio::time::timeout(Duration::from_secs(11), watch.next()).await.is_err());
    for number in 41..=45 {
        running.apply(put("b", number)).await;
    }
    assert_eq!(read(&mut watch).await.len(), 5);
}

/// The state before all changes that the event stands for, not the last one of the store.
#[tokio::test(start_paused = true)]
async fn a_coalesced_event_has_the_state_that_the_watch_yielded_last() {
    let running = Running::start();
    running.list(vec![object_of("u", "web", 1)], version(1)).await;
    let mut watch = synced(&running, everything(), queue(FullChannelPolicy::Coalesce, 2)).await;
    let change = async |uid: &str, number| running.apply(Event::Modified(object_of(uid, "web", number))).await;
    for number in 2..=9 {
        change("u", number).await;
    }
    assert_eq!(read(&mut watch).await, ["~a 9 was 1"]);
    change("u", 10).await;
    assert_eq!(read(&mut watch).await, ["~a 10 was 9"]);
    for number in 11..=13 {
        change("u", number).await;
    }
    running.apply(Event::Deleted(object_of("u", "web", 14))).await;
    change("v", 15).await;
    assert_eq!(read(&mut watch).await, ["-a 10", "+a 15"], "another object");
}

#[tokio::test(start_paused = true)]
async fn after_a_gap_an_event_has_the_state_that_the_watch_yielded_last() {
    let running = Running::start();
    running.list(vec![object("a", 1)], version(1)).await;
    let mut watch = synced(&running, everything(), queue(FullChannelPolicy::Drop, 2)).await;
    apply(&running, 2..=6).await;
    assert_eq!(read(&mut watch).await, ["~a 2 was 1", "~a 3 was 2", "dropped 3 after 3"]);
    apply(&running, [7]).await;
    assert_eq!(read(&mut watch).await, ["~a 7 was 3"]);
    apply(&running, 8..=10).await;
    running.apply(put("b", 11)).await;
    assert_eq!(read(&mut watch).await, ["~a 8 was 7", "~a 9 was 8", "dropped 2 after 9"]);
    running.apply(put("b", 12)).await;
    running.apply(Event::Deleted(object("a", 13))).await;
    assert_eq!(read(&mut watch).await, ["~b 12", "-a 9"], "nothing of b was yielded");
}

#[tokio::test(start_paused = true)]
async fn under_block_the_next_batch_waits_until_the_watch_has_yielded_each_event() {
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let mut watch = synced(&running, everything(), queue(FullChannelPolicy::Block, 0)).await;
    apply(&running, [2]).await;
    assert_eq!(read(&mut watch).await, ["+a 2"]);
    let applied = || running.handle.snapshot().unwrap().version().number();
    apply(&running, [3]).await;
    running.push(put("a", 4)).await;
    settle().await;
    assert_eq!(applied(), 3);
    assert_eq!(watch.next().now_or_never().flatten().as_ref().map(line).unwrap(), "~a 3 was 2");
    settle().await;
    running.push(put("a", 5)).await;
    settle().await;
    assert_eq!(applied(), 4);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((applied(), read(&mut watch).await), (5, vec!["SlowConsumer".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_rewritten_history_ends_a_watch_wherever_it_is_and_for_no_other_reason() {
    let running = Running::configured(retaining(2, 1000));
    running.list(vec![object("a", 1)], version(50)).await;
    let mut unread = synced(&running, everything(), REPLAY).await;
    let mut parked = synced(&running, everything(), REPLAY).await;
    apply(&running, 51..=60).await;
    assert_eq!(line(&parked.next().await.unwrap()), "~a 51 was 1");
    let mut idle = synced(&running, everything(), REPLAY).await;
    let mut at_initial_objects = running.handle.watch(everything(), REPLAY);
    assert_eq!(line(&at_initial_objects.next().await.unwrap()), "=a 60");
    running.list(vec![object("a", 7)], version(9)).await;
    assert_eq!(read(&mut idle).await, ["HistoryRewritten"]);
    assert_eq!(read(&mut at_initial_objects).await, ["synced 60", "HistoryRewritten"]);
    assert_eq!(read(&mut parked).await.last().unwrap(), "HistoryRewritten");
    drop(running.fifo);
    running.task.abort();
    settle().await;
    assert_eq!(read(&mut unread).await, ["HistoryRewritten"], "and not that it has stopped");
}

#[tokio::test(start_paused = true)]
async fn conditions_can_wait_on_a_watch() {
    let running = Running::start();
    running.list(vec![object("a", 1)], version(1)).await;
    let is_changed =
        |item: &WatchItem| Ok::<_, End>(matches!(item, WatchItem::Event(event) if event.previous.is_some()));
    let watch = running.handle.watch(everything(), REPLAY);
    let waiting = tokio::spawn(until(Duration::from_secs(30), watch, [is_changed]));
    settle().await;
    running.apply(put("a", 2)).await;
    assert_eq!(line(&waiting.await.unwrap().unwrap().unwrap()), "~a 2 was 1");
    running.fifo.close();
    let closed = until(Duration::ZERO, running.handle.watch(everything(), REPLAY), [is_changed]).await;
    assert!(matches!(closed, Err(UntilError::Closed { last: Some(WatchItem::Ended(End::Stopped)) })), "{closed:?}");
}
