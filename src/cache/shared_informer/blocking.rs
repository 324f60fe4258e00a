//! Handler that blocks threads.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use tokio::{runtime::Handle, task::spawn_blocking};

use super::{Deletion, Entry, ResourceEventHandler, panic_message};

/// Handler whose calls run on a thread that may block (tokio's `spawn_blocking`), one after the other. Meanwhile events wait in the
/// queue of the handler. The end of the runtime waits for a call.
pub struct BlockingEventHandler<H> {
    /// Absent during a call.
    handler: Option<H>,
    on_panic: Box<dyn Fn(&str) + Send>,
}

// === impl BlockingEventHandler ===

impl<H: Send + 'static> BlockingEventHandler<H> {
    /// Wraps a handler.
    pub fn new(handler: H) -> Self {
        Self { handler: Some(handler), on_panic: Box::new(|_| ()) }
    }

    /// Sets the function that gets the message of each panic of the handler, beside the log. It must not block.
    #[must_use]
    pub fn on_panic(self, on_panic: impl Fn(&str) + Send + 'static) -> Self {
        Self { on_panic: Box::new(on_panic), ..self }
    }

    async fn call(&mut self, call: impl AsyncFnOnce(&mut H) + Send + 'static) {
        let Some(mut handler) = self.handler.take() else { return };
        let runtime = Handle::current();
        let called = spawn_blocking(move || {
            let called = catch_unwind(AssertUnwindSafe(|| runtime.block_on(call(&mut handler))));
            (handler, called)
        });
        // An error is the end of the runtime.
        let Ok((handler, called)) = called.await else { return };
        self.handler = Some(handler);
        if let Err(panic) = called {
            (self.on_panic)(panic_message(&*panic));
            resume_unwind(panic);
        }
    }
}

impl<H: fmt::Debug> fmt::Debug for BlockingEventHandler<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingEventHandler").field("handler", &self.handler).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static, H: ResourceEventHandler<T>> ResourceEventHandler<T> for BlockingEventHandler<H> {
    async fn on_add(&mut self, object: Entry<T>, is_in_initial_list: bool) {
        self.call(async move |handler: &mut H| handler.on_add(object, is_in_initial_list).await).await;
    }

    async fn on_update(&mut self, old: Entry<T>, new: Entry<T>) {
        self.call(async move |handler: &mut H| handler.on_update(old, new).await).await;
    }

    async fn on_delete(&mut self, last_state: Entry<T>, deletion: Deletion) {
        self.call(async move |handler: &mut H| handler.on_delete(last_state, deletion).await).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, mpsc},
        time::Duration,
    };

    use parking_lot::Mutex;
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;
    use crate::{
        cache::{HandlerOptions, InformerOptions, ResourceEventHandlerFuncs, SharedInformer},
        model::Object,
        testing::FakeSource,
        watch::{FullChannelPolicy, QueueOptions},
    };

    const LIMIT: Duration = Duration::from_secs(60);

    /// The runtime has one thread, which serves the informer meanwhile.
    #[tokio::test]
    async fn a_call_that_blocks_holds_up_nothing_and_its_queue_merges() {
        let source = FakeSource::new();
        source.add(&json!({ "metadata": { "name": "a" } }));
        let informer = SharedInformer::<Object>::start(source.clone(), InformerOptions::default());
        let ((begun, mut has_begun), (end, may_end)) = (tokio::sync::mpsc::channel(1), mpsc::channel());
        let versions = Arc::new(Mutex::new(Vec::new()));
        let updated = Arc::clone(&versions);
        let handler = ResourceEventHandlerFuncs::new().on_update(move |_, new: Entry<Object>| {
            if new.version().number() == 3 {
                begun.try_send(()).unwrap();
                may_end.recv_timeout(LIMIT).unwrap();
            }
            updated.lock().push(new.version().clone());
        });
        let queue = QueueOptions { policy: FullChannelPolicy::Coalesce, length: 4 };
        let options = HandlerOptions { queue, ..HandlerOptions::default() };
        let registration = informer.add_handler(BlockingEventHandler::new(handler), options).unwrap();
        assert!(timeout(LIMIT, registration.wait_for_sync()).await.unwrap());
        let modify = |count| source.modify(&json!({ "metadata": { "name": "a" }, "count": count }));
        assert_eq!(modify(0).number(), 3);
        timeout(LIMIT, has_begun.recv()).await.unwrap().unwrap();
        let mut last = source.version();
        for count in 1..100 {
            last = modify(count);
            timeout(LIMIT, informer.wait_for(&last)).await.unwrap().unwrap();
        }
        assert!(versions.lock().is_empty());
        end.send(()).unwrap();
        timeout(LIMIT, informer.stop()).await.unwrap();
        let versions = versions.lock();
        assert!(versions.len() <= 10 && versions.last() == Some(&last), "{versions:?}");
    }

    #[tokio::test]
    async fn a_panic_is_reported_with_its_message_and_the_next_call_follows() {
        let source = FakeSource::new();
        source.add(&json!({ "metadata": { "name": "a" } }));
        source.add(&json!({ "metadata": { "name": "b" } }));
        let informer = SharedInformer::<Object>::start(source.clone(), InformerOptions::default());
        let reports = Arc::new(Mutex::new(Vec::new()));
        let (calls, panics) = (Arc::clone(&reports), Arc::clone(&reports));
        let handler = ResourceEventHandlerFuncs::new().on_add(move |object: Entry<Object>, _| {
            calls.lock().push(format!("add {}", object.key()));
            assert!(object.key().name() != "a", "of {}", object.key());
        });
        let handler =
            BlockingEventHandler::new(handler).on_panic(move |message| panics.lock().push(message.to_owned()));
        let registration = informer.add_handler(handler, HandlerOptions::default()).unwrap();
        assert!(timeout(LIMIT, registration.wait_for_sync()).await.unwrap());
        assert_eq!(*reports.lock(), ["add a", "of a", "add b"]);
        assert_eq!(registration.failures(), 1);
    }
}
