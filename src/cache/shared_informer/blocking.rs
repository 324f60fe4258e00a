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

debug_fields!([H: fmt::Debug] BlockingEventHandler<H> { handler });

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
