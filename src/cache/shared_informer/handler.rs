//! Event handlers as a program adds them: the calls that they get, their options, and their registrations.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::entry::Entry;
use crate::{
    model::{Cause, ResourceVersion, Selection},
    watch::{FullChannelPolicy, QueueOptions},
};

/// Handler of the events of an informer (client-go's `ResourceEventHandler`).
///
/// The calls come one after the other, from a task of the handler: the next one begins when the future of the last one is ready.
/// The store has a change before a handler is called with it. Each call follows from the calls before it: an object is added,
/// updated from the state that the handler received last, and deleted from it.
///
/// A panic is logged and counted ([`ResourceEventHandlerRegistration::failures`]), and the next call follows; the call that has
/// panicked counts as done.
///
/// A handler should wait by `.await`, and leave what blocks a thread to [`tokio::task::spawn_blocking`].
pub trait ResourceEventHandler<T>: Send + 'static {
    /// Receives an object that the handler does not have: one that existed when the handler was added, or a new one.
    fn on_add(&mut self, object: Entry<T>, is_in_initial_list: bool) -> impl Future<Output = ()> + Send;

    /// Receives another state of an object; at a resync, the same state twice.
    fn on_update(&mut self, old: Entry<T>, new: Entry<T>) -> impl Future<Output = ()> + Send;

    /// Receives the state of a deleted object that the handler received last.
    fn on_delete(&mut self, last_state: Entry<T>, deletion: Deletion) -> impl Future<Output = ()> + Send;
}

/// Deletion of an object, as a handler receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// Cause, as the source reports it.
    pub cause: Cause,
    /// Version of the deletion; `None` if nobody saw it.
    pub version: Option<ResourceVersion>,
}

/// Handler of closures that do not wait (client-go's `ResourceEventHandlerFuncs`); without a closure, nothing is called.
pub struct ResourceEventHandlerFuncs<T> {
    add: Box<dyn FnMut(Entry<T>, bool) + Send>,
    update: Box<dyn FnMut(Entry<T>, Entry<T>) + Send>,
    delete: Box<dyn FnMut(Entry<T>, Deletion) + Send>,
}

/// Parameters of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerOptions {
    /// Name, for logs.
    pub name: String,
    /// Objects that the handler receives (client-go's `FilteringResourceEventHandler`): one that enters the selection is added, one
    /// that leaves it is deleted.
    pub selection: Selection,
    /// Queue of the handler. Under every policy the handler receives the latest states in the end. Under COALESCE, the default, a
    /// full queue merges; under DROP, the handler receives the difference to the present state; under BLOCK, it delays the writer
    /// and so all others, within [`block_timeout`](crate::watch::BroadcasterConfig::block_timeout).
    pub queue: QueueOptions,
    /// Interval of [`ResourceEventHandler::on_update`] calls for objects without an event in the queue; 0 for none. A shorter one
    /// counts as 1 s, as in client-go.
    pub resync: Duration,
}

/// Registration of a handler. Dropping it removes the handler.
#[derive(Debug)]
#[must_use = "a handler is removed when its registration is dropped"]
pub struct ResourceEventHandlerRegistration {
    pub(super) has_synced: watch::Receiver<bool>,
    pub(super) failures: watch::Receiver<u64>,
    pub(super) removed: CancellationToken,
}

/// Number of events at which the queue of a handler is full.
const QUEUE_LENGTH: usize = 1024;

// === impl ResourceEventHandlerFuncs ===

impl<T> ResourceEventHandlerFuncs<T> {
    /// Makes a handler without closures.
    pub fn new() -> Self {
        Self { add: Box::new(|_, _| ()), update: Box::new(|_, _| ()), delete: Box::new(|_, _| ()) }
    }

    /// Sets the closure for [`ResourceEventHandler::on_add`].
    pub fn on_add(self, closure: impl FnMut(Entry<T>, bool) + Send + 'static) -> Self {
        Self { add: Box::new(closure), ..self }
    }

    /// Sets the closure for [`ResourceEventHandler::on_update`].
    pub fn on_update(self, closure: impl FnMut(Entry<T>, Entry<T>) + Send + 'static) -> Self {
        Self { update: Box::new(closure), ..self }
    }

    /// Sets the closure for [`ResourceEventHandler::on_delete`].
    pub fn on_delete(self, closure: impl FnMut(Entry<T>, Deletion) + Send + 'static) -> Self {
        Self { delete: Box::new(closure), ..self }
    }
}

impl<T: Send + Sync + 'static> ResourceEventHandler<T> for ResourceEventHandlerFuncs<T> {
    async fn on_add(&mut self, object: Entry<T>, is_in_initial_list: bool) {
        (self.add)(object, is_in_initial_list);
    }

    async fn on_update(&mut self, old: Entry<T>, new: Entry<T>) {
        (self.update)(old, new);
    }

    async fn on_delete(&mut self, last_state: Entry<T>, deletion: Deletion) {
        (self.delete)(last_state, deletion);
    }
}

impl<T> Default for ResourceEventHandlerFuncs<T> {
    fn default() -> Self {
        Self::new()
    }
}

debug_fields!([T] ResourceEventHandlerFuncs<T> {});

// === impl Deletion ===

impl Deletion {
    /// Returns the deletion of an object that is missing from a later state.
    pub(super) fn inferred() -> Self {
        Self { cause: Cause::Inferred, version: None }
    }

    /// Returns true if nobody saw the deletion, and the object may have changed before (client-go's `DeletedFinalStateUnknown`); or
    /// if it exists, and cannot be served or decoded.
    pub fn is_inferred(&self) -> bool {
        matches!(self.cause, Cause::Inferred | Cause::NotServed | Cause::Expired)
    }
}

// === impl HandlerOptions ===

impl Default for HandlerOptions {
    fn default() -> Self {
        Self {
            name: "handler".to_owned(),
            selection: Selection::default(),
            queue: QueueOptions { policy: FullChannelPolicy::Coalesce, length: QUEUE_LENGTH },
            resync: Duration::ZERO,
        }
    }
}

// === impl ResourceEventHandlerRegistration ===

impl ResourceEventHandlerRegistration {
    /// Returns true once the handler has returned from the additions of all objects that existed when it was added.
    pub fn has_synced(&self) -> bool {
        *self.has_synced.borrow()
    }

    /// Waits for [`ResourceEventHandlerRegistration::has_synced`]. Returns false if the handler has ended before.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn wait_for_sync(&self) -> bool {
        self.has_synced.clone().wait_for(|has_synced| *has_synced).await.is_ok()
    }

    /// Returns the number of calls that have panicked. The handler goes on after each, without the change of that call.
    pub fn failures(&self) -> u64 {
        *self.failures.borrow()
    }

    /// Removes the handler: no call begins after this has returned. One that has begun, perhaps just now on another thread, goes
    /// on: this waits for nothing, so that a program may call it under a lock that its handler takes. Removing a removed handler
    /// does nothing.
    pub fn remove(&self) {
        self.removed.cancel();
    }
}

impl Drop for ResourceEventHandlerRegistration {
    fn drop(&mut self) {
        self.remove();
    }
}
