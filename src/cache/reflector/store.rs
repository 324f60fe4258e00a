//! Store that a Reflector writes to.

use std::{any::Any, convert::Infallible, fmt, sync::Arc};

use crate::{
    cache::{Delta, KeyError, List, RealFifo, Store},
    model::{Event, Object},
};

/// Store that a Reflector writes to (client-go's `ReflectorStore`).
pub trait ReflectorStore: Send + Sync + 'static {
    /// Reason why the store has rejected something.
    type Error: fmt::Display + Send;

    /// Applies a delta; it waits if the store has a bound. An error ends the watch, and a list follows after a delay.
    ///
    /// # Errors
    ///
    /// If the store rejects the delta, or one of its events; those before it are applied.
    fn apply(&self, delta: Delta) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Emits every object again, if the store has consumers; they compare it with what they have.
    ///
    /// # Errors
    ///
    /// If the store fails. The watch ends, and a list follows after a delay.
    fn resync(&self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Queues every delta. A resync does nothing: each handler of an informer has a resync of its own.
impl ReflectorStore for RealFifo {
    type Error = Infallible;

    fn apply(&self, delta: Delta) -> impl Future<Output = Result<(), Infallible>> + Send {
        self.append(delta)
    }

    async fn resync(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Writes each object by itself, in order: readers may see a part of a transaction. What an unreadable item of a list may be stays.
/// Bookmarks change nothing, and there are no checkpoints.
impl<S: Store<Object = Arc<Object>>> ReflectorStore for S {
    type Error = KeyError;

    async fn apply(&self, delta: Delta) -> Result<(), KeyError> {
        match delta {
            Delta::Replace(list) | Delta::HistoryRewritten(list) => replace(self, list).await,
            Delta::Changes { events, .. } => write(self, events).await,
            Delta::Relist(events, _) => write(self, events).await,
            Delta::Checkpoint { .. } => Ok(()),
        }
    }

    async fn resync(&self) -> Result<(), KeyError> {
        Store::resync(self).await
    }
}

async fn replace<S: Store<Object = Arc<Object>>>(store: &S, mut list: List) -> Result<(), KeyError> {
    let objects = std::mem::take(&mut list.objects);
    let unreadable = list.unreadable();
    let is_kept = |key: &S::Key, held: Option<&Arc<Object>>| match held {
        _ if list.unreadable.is_empty() => false,
        Some(held) => unreadable.may_be(held),
        None => (key as &dyn Any).downcast_ref().is_none_or(|key| unreadable.may_have(key)),
    };
    store.replace_except(objects, is_kept).await
}

async fn write<S>(store: &S, events: impl IntoIterator<Item = Event, IntoIter: Send>) -> Result<(), KeyError>
where
    S: Store<Object = Arc<Object>>,
{
    for event in events {
        match event {
            Event::Added(object) => store.add(object).await?,
            Event::Modified(object) => store.update(object).await?,
            Event::Deleted(object) | Event::NotServed(object) | Event::Removed(object, _) => {
                store.delete(object).await?;
            }
            Event::Bookmark(_) => {}
        }
    }
    Ok(())
}
