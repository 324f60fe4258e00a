//! The thread of one resource: its source and its writer run there, and nothing else.
//!
//! What a cache holds is allocated as it is read. An allocator that keeps a heap for each thread, as glibc's does, does not
//! give to one thread what was freed in the heap of another: a source that wanders over all threads of a runtime leaves
//! behind in each what it has replaced since, up to a whole cache in each. Here it stays where it is, and so does the cache.
//!
//! It also keeps resources apart: a relist of one is in the way of no other, and of no client.

use std::io;

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

/// Ends without being waited for when it is dropped; what still runs on it is dropped then.
#[derive(Debug)]
pub(super) struct WriterThread(Option<Runtime>);

// === impl WriterThread ===

impl WriterThread {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("writer").enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        tasks: &mut JoinSet<T>,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        // It is there until it is dropped.
        if let Some(runtime) = &self.0 {
            tasks.spawn_on(task, runtime.handle());
        }
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
