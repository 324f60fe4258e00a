//! Thread of one resource, for its source and its writer only.
//!
//! The cache's memory is allocated while the source reads. An allocator with one heap per thread, such as glibc's, does not
//! reuse in one thread the memory freed in the heap of another: a source that migrates between the threads of a runtime would
//! leave replaced objects in the heap of each, up to a whole cache per thread. Here the source and the cache stay on one
//! thread.
//!
//! It also isolates resources: a relist of one delays no other, and no client.

use std::io;

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

/// Runtime with one thread. Dropping it does not wait for its end; tasks that still run on it are dropped then.
#[derive(Debug)]
pub(super) struct RuntimeThread(Option<Runtime>);

// === impl RuntimeThread ===

impl RuntimeThread {
    /// Starts the thread. It calls `on_start` first, and so do the threads for what blocks.
    pub(super) fn start(name: &str, on_start: fn()) -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name(name).on_thread_start(on_start).enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        tasks: &mut JoinSet<T>,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        // `None` only while it is being dropped.
        if let Some(runtime) = &self.0 {
            tasks.spawn_on(task, runtime.handle());
        }
    }
}

impl Drop for RuntimeThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
