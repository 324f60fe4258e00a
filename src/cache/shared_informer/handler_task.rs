//! Task of one handler: it reads a watch, and calls the handler with what follows from the objects that it has.

use std::{collections::BTreeMap, ops::Bound, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::{
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;

use super::{
    decoder::{Decode, Decoder, panic_message},
    entry::Entry,
    handler::{Deletion, HandlerOptions, ResourceEventHandler, ResourceEventHandlerRegistration},
};
use crate::{
    cache::{InformerHandle, WatchItem, indexer::is_replaced},
    model::{EventType, Object, ObjectKey, Selection},
    watch::{Deliveries, Delivery, End},
};

/// Handler, and the objects that it has.
struct HandlerTask<T, H> {
    handle: InformerHandle<Deliveries>,
    decoder: Arc<Decoder<T>>,
    handler: H,
    /// States that the handler received last, also those that cannot be decoded.
    delivered: BTreeMap<ObjectKey, Arc<Object>>,
    has_synced: watch::Sender<bool>,
    /// Number of calls that have panicked.
    failures: watch::Sender<u64>,
    removed: CancellationToken,
    /// Name, for logs.
    name: String,
}

/// Least interval of resyncs.
const MIN_RESYNC: Duration = Duration::from_secs(1);

/// Returns a registration of a handler, and its task.
pub(super) fn register<T: Decode>(
    handle: InformerHandle<Deliveries>,
    decoder: Arc<Decoder<T>>,
    handler: impl ResourceEventHandler<T>,
    options: HandlerOptions,
) -> (ResourceEventHandlerRegistration, impl Future<Output = ()> + Send) {
    let (sender, has_synced) = watch::channel(false);
    let removed = CancellationToken::new();
    let (failures, counted) = watch::channel(0);
    let registration = ResourceEventHandlerRegistration { has_synced, failures: counted, removed: removed.clone() };
    let (delivered, name) = (BTreeMap::new(), options.name.clone());
    let task = HandlerTask { handle, decoder, handler, delivered, has_synced: sender, failures, removed, name };
    (registration, task.run(options))
}

// === impl HandlerTask ===

impl<T: Decode, H: ResourceEventHandler<T>> HandlerTask<T, H> {
    async fn run(mut self, options: HandlerOptions) {
        let HandlerOptions { selection, queue, resync, .. } = options;
        let selection = Arc::new(selection);
        let mut resync = (!resync.is_zero()).then(|| resync_interval(resync.max(MIN_RESYNC)));
        loop {
            let mut watch = self.handle.watch(Arc::clone(&selection), queue);
            let mut last = None;
            loop {
                tokio::select! {
                    // Removal first, and resyncs before events, of which there may always be more.
                    biased;
                    () = self.removed.cancelled() => return,
                    // Cancel-safe: a tick is not lost.
                    () = tick(&mut resync), if *self.has_synced.borrow() => {
                        self.resync().await;
                        // The handler may take longer than the interval: events come in between.
                        resync.as_mut().map(Interval::reset);
                    }
                    // Cancel-safe by its own contract.
                    item = watch.next() => match item {
                        Some(WatchItem::Initial(object)) => self.deliver_present(&mut last, object).await,
                        Some(WatchItem::Synced(_)) => self.finish_present(last.as_ref()).await,
                        Some(WatchItem::Event(event)) => self.deliver_event(event).await,
                        Some(WatchItem::Ended(End::Stopped)) | None => return self.finish(&selection).await,
                        // Another watch yields the present state, and the handler gets the difference.
                        Some(WatchItem::Dropped { .. } | WatchItem::Ended(_)) => break,
                    },
                }
                // Neither a watch nor a handler has to wait for anything.
                tokio::task::consume_budget().await;
            }
        }
    }

    async fn deliver_event(&mut self, event: Delivery) {
        let key = event.object.key().clone();
        match event.event_type {
            EventType::Added | EventType::Modified => self.deliver(&key, Ok(event.object)).await,
            EventType::Deleted => {
                let deletion = Deletion { cause: event.cause, version: Some(event.object_version) };
                self.deliver(&key, Err(deletion)).await;
            }
        }
    }

    /// Delivers the next one of the present objects, which come sorted by key, and the deletions of those that are missing before
    /// it.
    async fn deliver_present(&mut self, last: &mut Option<ObjectKey>, object: Arc<Object>) {
        let key = object.key().clone();
        self.delete_between(last.as_ref(), Some(&key)).await;
        self.deliver(&key, Ok(object)).await;
        *last = Some(key);
    }

    async fn finish_present(&mut self, last: Option<&ObjectKey>) {
        self.delete_between(last, None).await;
        self.has_synced.send_replace(true);
    }

    /// Delivers what the last watch of a stopped informer has not: it may have ended before, for another reason.
    async fn finish(&mut self, selection: &Selection) {
        let Some(snapshot) = self.handle.snapshot() else { return };
        let mut last = None;
        for object in snapshot.objects(None, None).filter(|object| selection.matches(object)) {
            self.deliver_present(&mut last, Arc::clone(object)).await;
        }
        self.finish_present(last.as_ref()).await;
    }

    async fn delete_between(&mut self, after: Option<&ObjectKey>, before: Option<&ObjectKey>) {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), before.map_or(Bound::Unbounded, Bound::Excluded));
        let absent: Vec<ObjectKey> = self.delivered.range(range).map(|(key, _)| key.clone()).collect();
        for key in absent {
            self.deliver(&key, Err(Deletion::inferred())).await;
        }
    }

    /// Calls the handler with the new state of an object, or its deletion, if that differs from the state that it has.
    async fn deliver(&mut self, key: &ObjectKey, new: Result<Arc<Object>, Deletion>) {
        let old = match &new {
            Ok(new) => self.delivered.insert(key.clone(), Arc::clone(new)),
            Err(_) => self.delivered.remove(key),
        };
        // To the handler, an object that it cannot have does not exist.
        let (new, deletion) = match new {
            Ok(new) => (Some(new), Deletion::inferred()),
            Err(deletion) => (None, deletion),
        };
        if old == new {
            return;
        }
        let is_other = old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| is_replaced(old, new));
        let [old, new] = [old, new].map(|state| state.and_then(|state| self.decoder.decode(&state)));
        match (old, new) {
            (Some(old), Some(new)) if is_other => {
                self.delete(old, Deletion::inferred()).await;
                self.add(new).await;
            }
            (Some(old), Some(new)) => self.update(old, new).await,
            (Some(old), None) => self.delete(old, deletion).await,
            (None, Some(new)) => self.add(new).await,
            (None, None) => {}
        }
    }

    /// Calls the handler with every object that has no event in the queue: the store has it in the same state.
    async fn resync(&mut self) {
        let objects: Vec<Arc<Object>> = self.delivered.values().cloned().collect();
        for object in objects {
            let snapshot = self.handle.snapshot();
            let stored = snapshot.as_ref().and_then(|snapshot| snapshot.get(object.key()));
            if stored.is_some_and(|stored| Arc::ptr_eq(stored, &object))
                && let Some(object) = self.decoder.decode(&object)
            {
                self.update(object.clone(), object).await;
            }
        }
    }

    async fn add(&mut self, object: Entry<T>) {
        let is_in_initial_list = !*self.has_synced.borrow();
        self.call(|handler| handler.on_add(object, is_in_initial_list)).await;
    }

    async fn update(&mut self, old: Entry<T>, new: Entry<T>) {
        self.call(|handler| handler.on_update(old, new)).await;
    }

    async fn delete(&mut self, last_state: Entry<T>, deletion: Deletion) {
        self.call(|handler| handler.on_delete(last_state, deletion)).await;
    }

    /// Calls the handler, unless it is removed. A panic is reported, and the next call follows, as of the handlers of all clients.
    async fn call<'a, F: Future<Output = ()> + Send>(&'a mut self, call: impl FnOnce(&'a mut H) -> F + Send) {
        if self.removed.is_cancelled() {
            return;
        }
        let handler = &mut self.handler;
        // The closures of a handler run before its future is polled, or within it.
        let called = AssertUnwindSafe(async move { call(handler).await }).catch_unwind().await;
        if let Err(panic) = called {
            self.failures.send_modify(|failures| *failures += 1);
            tracing::error!(handler = self.name, panic = panic_message(&*panic), "event handler panicked");
        }
    }
}

fn resync_interval(period: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Waits for the next resync, if there are any.
async fn tick(resync: &mut Option<Interval>) {
    match resync {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}
