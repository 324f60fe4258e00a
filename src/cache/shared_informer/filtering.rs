//! Handler behind a filter.

use super::{Deletion, Entry, ResourceEventHandler};
use crate::model::Cause;

/// Handler that receives what a closure accepts (client-go's `FilteringResourceEventHandler`): an update by which an object is no longer
/// accepted deletes it, and one by which it is accepted adds it. What [`HandlerOptions::selection`](super::HandlerOptions) can
/// say costs less there: what it does not select is not queued.
///
/// The closure must say the same of the same state.
#[derive(Debug)]
pub struct FilteringResourceEventHandler<F, H> {
    /// Accepts an object.
    pub filter: F,
    /// Handler of what is accepted.
    pub handler: H,
}

impl<T, F, H> ResourceEventHandler<T> for FilteringResourceEventHandler<F, H>
where
    T: Send + Sync + 'static,
    F: FnMut(&Entry<T>) -> bool + Send + 'static,
    H: ResourceEventHandler<T>,
{
    async fn on_add(&mut self, object: Entry<T>, is_in_initial_list: bool) {
        if (self.filter)(&object) {
            self.handler.on_add(object, is_in_initial_list).await;
        }
    }

    async fn on_update(&mut self, old: Entry<T>, new: Entry<T>) {
        match ((self.filter)(&old), (self.filter)(&new)) {
            (true, true) => self.handler.on_update(old, new).await,
            (false, true) => self.handler.on_add(new, false).await,
            (true, false) => {
                let version = Some(new.version().clone());
                self.handler.on_delete(old, Deletion { cause: Cause::LeftSelection, version }).await;
            }
            (false, false) => {}
        }
    }

    async fn on_delete(&mut self, last_state: Entry<T>, deletion: Deletion) {
        if (self.filter)(&last_state) {
            self.handler.on_delete(last_state, deletion).await;
        }
    }
}
