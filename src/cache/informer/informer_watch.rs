//! Watch of an informer in the same process, as a stream: the initial objects, then the events, whose queue the policy rules.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::stream::FusedStream;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_stream::Stream;

use super::{CacheWatcher, InformerHandle, JoinError, Start, WatchStep};
use crate::{
    cache::{Scan, Snapshot},
    model::{EventType, IndexMatch, Object, ObjectKey, ResourceVersion, Selection},
    watch::{Client, Deliveries, Delivery, End, FullChannelPolicy, QueueOptions, Subscribe, TooLarge},
};

/// Watch of an informer in the same process: [`InformerHandle::watch`].
///
/// It yields the items of the server's Watch call. The objects that exist come first ([`WatchItem::Initial`], sorted by key), then
/// [`WatchItem::Synced`], then every later event ([`WatchItem::Event`]). After [`WatchItem::Ended`] it yields nothing more.
///
/// - It begins at its first poll; if the informer has no state yet, it waits for the first one. It has no task of its own, and must
///   be polled in a tokio runtime with timers.
/// - Its queue is the part of the published events that it has not taken: at most [`QueueOptions::length`] of them, then the policy
///   acts. It takes one event at each poll. Until it has caught up for the first time, every policy behaves as REPLAY.
/// - A watch that lags behind the published events is parked, and gets the events that it missed from the history by itself. It
///   ends with [`End::Expired`] if the history no longer has them.
/// - Its memory does not grow with the number of objects, except under DROP: there it keeps a reference to the last state of each
///   object that it has yielded.
/// - Folding the items gives the selected objects of the store; under DROP it lacks the events of a gap ([`WatchItem::Dropped`]),
///   until the next event of the same object. Each MODIFIED carries the state that the fold has of the object
///   ([`Delivery::previous`]).
/// - Dropping it unsubscribes.
///
/// # Cancel safety
///
/// No item is lost if a future of its next item is dropped.
///
/// # Panics
///
/// Polling panics outside of a tokio runtime.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::{sync::Arc, time::Duration};
///
/// use informerd::{
///     cache::{Delta, FifoBounds, Informer, InformerConfig, List, RealFifo, SourceHealth, WatchItem},
///     model::{Event, EventType, Object, ResourceVersion, Selection},
///     watch::{Deliveries, FullChannelPolicy, QueueOptions},
/// };
/// use tokio_stream::StreamExt;
///
/// let pod = |phase: &str, version| {
///     let body = format!(r#"{{"metadata": {{"name": "web"}}, "status": {{"phase": "{phase}"}}}}"#);
///     Arc::new(Object::from_json(body, "", ResourceVersion::decimal(version)).unwrap())
/// };
///
/// // A Reflector fills the queue; here the program does.
/// let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
/// let health = SourceHealth::new(Duration::from_secs(60), Duration::from_secs(60));
/// let (informer, handle) = Informer::<Deliveries>::new(Arc::clone(&fifo), health, InformerConfig::default());
/// tokio::spawn(informer.run());
/// fifo.push(Delta::Replace(List::new(vec![pod("Pending", 1)], ResourceVersion::decimal(1)))).await;
///
/// let queue = QueueOptions { policy: FullChannelPolicy::Coalesce, length: 100 };
/// let mut watch = handle.watch(Selection::default(), queue);
/// assert_eq!(watch.next().await, Some(WatchItem::Initial(pod("Pending", 1))));
/// assert_eq!(watch.next().await, Some(WatchItem::Synced(ResourceVersion::decimal(1))));
///
/// fifo.push(Delta::event(Event::Modified(pod("Running", 2)))).await;
/// let Some(WatchItem::Event(event)) = watch.next().await else { panic!("it has ended") };
/// assert_eq!(event.event_type, EventType::Modified);
/// assert_eq!((event.previous, event.object), (Some(pod("Pending", 1)), pod("Running", 2)));
/// # }
/// ```
#[must_use = "a watch does nothing unless it is polled"]
pub struct InformerWatch {
    stage: Stage,
    /// Under DROP, the last state yielded of each object. The states of the store are no substitute after a gap.
    received: Option<HashMap<ObjectKey, Arc<Object>, foldhash::fast::RandomState>>,
}

/// Item of an [`InformerWatch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchItem {
    /// Object that existed when the watch began.
    Initial(Arc<Object>),
    /// End of the initial objects: they are the state at this version. Comes once.
    Synced(ResourceVersion),
    /// Change of a selected object.
    Event(Delivery),
    /// Gap, only under DROP. The last state received of some objects is no longer the store's, until their next event; that may be
    /// an addition of an object that the receiver has, or a modification or deletion of one that it does not have.
    Dropped {
        /// Number of missing events of the selection.
        count: u64,
        /// Last version before the gap.
        after: ResourceVersion,
    },
    /// End of the watch, with its reason. Another watch begins with the present state. [`End::HistoryRewritten`] takes precedence
    /// over all other reasons.
    Ended(End),
}

enum Stage {
    /// Waiting for the first state, and joining.
    Joining(Pin<Box<dyn Future<Output = Result<Joined, JoinError>> + Send>>),
    Joined(Joined),
    Ended,
}

/// Watch that has joined.
struct Joined {
    /// Objects that are still to be yielded first.
    initial: Option<Box<InitialObjects>>,
    watcher: Box<CacheWatcher<Deliveries>>,
    /// Times at which a watch without events advances to the head.
    advance: Interval,
}

/// Selected objects of a snapshot, found piece by piece.
struct InitialObjects {
    snapshot: Snapshot,
    scan: Scan,
    last_checked: Option<ObjectKey>,
    found: VecDeque<Arc<Object>>,
    is_done: bool,
}

/// Maximum number of objects that are found in advance.
const PIECE: usize = 64;
/// Time after which a scan yields.
const SLICE: Duration = Duration::from_micros(500);
/// Interval at which a watch without events advances to the head. A watch that is then slow to read a burst needs the history only
/// from there on.
const ADVANCE_INTERVAL: Duration = Duration::from_secs(10);

// === impl InformerHandle ===

impl InformerHandle<Deliveries> {
    /// Returns a watch in this process, of the objects of a selection: the present ones, and every later change. It begins at its
    /// first poll, and waits for the first state. Under BLOCK it has a budget of its own ([`Client::Watch`]).
    pub fn watch(&self, selection: impl Into<Arc<Selection>>, queue: QueueOptions) -> InformerWatch {
        InformerWatch::new(self.clone(), selection.into(), queue)
    }
}

// === impl InformerWatch ===

impl InformerWatch {
    pub(super) fn new(informer: InformerHandle<Deliveries>, selection: Arc<Selection>, queue: QueueOptions) -> Self {
        let received = (queue.policy == FullChannelPolicy::Drop).then(HashMap::default);
        let subscribe = Subscribe { selection, format: (), queue, client: Client::Watch, initial_events: true };
        Self { stage: Stage::Joining(Box::pin(Joined::begin(informer, subscribe))), received }
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        let mut item = loop {
            match &mut self.stage {
                Stage::Joining(joining) => match ready!(joining.as_mut().poll(cx)) {
                    Ok(joined) => self.stage = Stage::Joined(joined),
                    Err(error) => break WatchItem::Ended(end_of(error)),
                },
                Stage::Joined(joined) => break ready!(joined.poll_item(cx)),
                Stage::Ended => return Poll::Ready(None),
            }
        };
        if let WatchItem::Ended(_) = item {
            self.stage = Stage::Ended;
        }
        self.compare(&mut item);
        Poll::Ready(Some(item))
    }

    /// Puts the state that was yielded last into an item, where the store's may differ from it.
    fn compare(&mut self, item: &mut WatchItem) {
        let Some(received) = &mut self.received else { return };
        match item {
            WatchItem::Initial(object) => {
                received.insert(object.key().clone(), Arc::clone(object));
            }
            WatchItem::Event(delivery) => {
                let key = delivery.object.key();
                match delivery.event_type {
                    EventType::Added => drop(received.insert(key.clone(), Arc::clone(&delivery.object))),
                    EventType::Modified => {
                        delivery.previous = received.insert(key.clone(), Arc::clone(&delivery.object));
                    }
                    EventType::Deleted => {
                        if let Some(last) = received.remove(key) {
                            delivery.object = last;
                        }
                    }
                }
            }
            WatchItem::Synced(_) | WatchItem::Dropped { .. } | WatchItem::Ended(_) => {}
        }
    }
}

impl Stream for InformerWatch {
    type Item = WatchItem;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        // A watch that lags is always ready: the other tasks of its thread get their turn.
        let coop = ready!(tokio::task::coop::poll_proceed(cx));
        let polled = self.get_mut().poll_item(cx);
        if polled.is_ready() {
            coop.made_progress();
        }
        polled
    }
}

impl FusedStream for InformerWatch {
    fn is_terminated(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }
}

impl fmt::Debug for InformerWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stage, watcher) = match &self.stage {
            Stage::Joining(_) => ("joining", None),
            Stage::Joined(joined) => ("joined", Some(&joined.watcher)),
            Stage::Ended => ("ended", None),
        };
        f.debug_struct("InformerWatch").field("stage", &stage).field("watcher", &watcher).finish_non_exhaustive()
    }
}

// === impl Joined ===

impl Joined {
    /// Joins, once there is a state.
    async fn begin(informer: InformerHandle<Deliveries>, subscribe: Subscribe<Deliveries>) -> Result<Self, JoinError> {
        let joined = loop {
            match informer.join(&Start::Now, subscribe.clone()) {
                Err(JoinError::NotSynced) => tokio::select! {
                    // Cancel-safe by its own contract.
                    _ = informer.wait_for(0, |_| true) => {}
                    // Cancel-safe: nothing is received. The next join reports the end of the informer.
                    () = informer.commands.closed() => {}
                },
                joined => break joined?,
            }
        };
        let (watcher, snapshot) = CacheWatcher::new(informer, subscribe, joined);
        let selection = &watcher.subscribe().selection;
        // Another index may have this name, or none.
        let is_kept = |index: &IndexMatch| snapshot.indexers().get(&index.name) == Some(&index.func);
        let scan = if selection.index.as_ref().is_none_or(is_kept) {
            Scan::of(selection)
        } else {
            Scan::of(&Selection { index: None, ..Selection::clone(selection) })
        };
        let initial = InitialObjects { snapshot, scan, last_checked: None, found: VecDeque::new(), is_done: false };
        let mut advance = tokio::time::interval_at(Instant::now() + ADVANCE_INTERVAL, ADVANCE_INTERVAL);
        advance.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { initial: Some(Box::new(initial)), watcher: Box::new(watcher), advance })
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<WatchItem> {
        if let Some(initial) = &mut self.initial {
            if let Some(object) = ready!(initial.poll_next(cx, &self.watcher.subscribe().selection)) {
                return Poll::Ready(WatchItem::Initial(object));
            }
            self.initial = None;
            self.watcher.end_initial_events();
            return Poll::Ready(WatchItem::Synced(self.watcher.version().clone()));
        }
        loop {
            let Poll::Ready(step) = self.watcher.poll_next(cx, 1, false) else {
                while self.advance.poll_tick(cx).is_ready() {
                    self.watcher.advance_at_head();
                }
                return Poll::Pending;
            };
            let end = match step {
                Ok(WatchStep::Events { frames, .. }) => {
                    let Some(delivery) = frames.iter().flat_map(Deliveries::as_slice).next() else {
                        return yield_now(cx);
                    };
                    return Poll::Ready(WatchItem::Event(delivery.clone()));
                }
                Ok(WatchStep::Dropped { count, after }) => return Poll::Ready(WatchItem::Dropped { count, after }),
                // Any size fits, and the namespaces of this watch do not change.
                Ok(WatchStep::Reselected(_)) | Err(TooLarge(_)) => continue,
                Ok(WatchStep::Ended(end)) => end,
                Ok(WatchStep::NotResumed(error)) => end_of(error),
            };
            let end = if self.watcher.is_history_rewritten() { End::HistoryRewritten } else { end };
            return Poll::Ready(WatchItem::Ended(end));
        }
    }
}

// === impl InitialObjects ===

impl InitialObjects {
    /// Returns the next object; `None` after the last one.
    fn poll_next(&mut self, cx: &Context<'_>, selection: &Selection) -> Poll<Option<Arc<Object>>> {
        if self.found.is_empty() && !self.is_done {
            self.find(selection);
        }
        match self.found.pop_front() {
            None if !self.is_done => yield_now(cx),
            found => Poll::Ready(found),
        }
    }

    /// Finds the next objects.
    fn find(&mut self, selection: &Selection) {
        let after = self.last_checked.take();
        let ends_at = std::time::Instant::now() + SLICE;
        for object in self.scan.objects(&self.snapshot, after.as_ref()) {
            if selection.matches(object) {
                self.found.push_back(Arc::clone(object));
            }
            // Checked after each object, so that each slice makes progress.
            if self.found.len() >= PIECE || std::time::Instant::now() >= ends_at {
                self.last_checked = Some(object.key().clone());
                return;
            }
        }
        self.is_done = true;
    }
}

/// Returns the end of a watch that could not join.
fn end_of(error: JoinError) -> End {
    match error {
        JoinError::Expired { oldest, .. } => End::Expired { oldest },
        // A watch waits for the first state, and joins at the present one or at an offset that it has reached.
        JoinError::NotSynced | JoinError::TooLarge { .. } | JoinError::Stopped(_) => End::Stopped,
    }
}

/// Yields: wakes this task again, after the others that are due.
fn yield_now<T>(cx: &Context<'_>) -> Poll<T> {
    cx.waker().wake_by_ref();
    Poll::Pending
}
