//! Threads of their own for work that is to delay neither a writer nor a connection.
//!
//! Shared by all resources of a server. What is to be done comes in pieces of about half a millisecond, taken in turn by
//! whoever has some; the kernel preempts a thread, but no task. No worker of a runtime waits for them. They end when the
//! last [`BulkThreads`] is dropped, each after its piece.

use std::{collections::VecDeque, fmt, io, sync::Arc, thread::JoinHandle, time::Instant};

use super::selection_budget::Clock;
use crate::sync::{Condvar, Mutex};

/// The threads that do what writers have no time for; a server has half as many as it has processors, and at least one.
#[derive(Debug)]
pub struct BulkThreads {
    queue: Arc<BulkQueue>,
    threads: Vec<JoinHandle<()>>,
}

/// Work that waits for a thread.
pub(super) struct BulkQueue {
    ready: Mutex<Ready>,
    is_ready: Condvar,
    clock: Clock,
}

/// Does one piece of work.
pub(super) trait Work: Send + Sync {
    /// Does it, and [pushes](BulkQueue::push) itself if there is more.
    fn run(self: Arc<Self>);
}

#[derive(Default)]
struct Ready {
    works: VecDeque<Arc<dyn Work>>,
    is_over: bool,
}

// === impl BulkThreads ===

impl BulkThreads {
    /// Starts so many threads. Without any, whoever has them calls [`Self::run_one`].
    pub fn start(count: usize) -> io::Result<Self> {
        let queue = BulkQueue::new(Clock::Since(Instant::now()));
        let mut threads = Self { queue, threads: Vec::with_capacity(count) };
        for _ in 0..count {
            let queue = Arc::clone(&threads.queue);
            let thread = std::thread::Builder::new().name("bulk".to_owned()).spawn(move || queue.run())?;
            threads.threads.push(thread);
        }
        Ok(threads)
    }

    pub(super) fn queue(&self) -> &Arc<BulkQueue> {
        &self.queue
    }

    /// Without threads: a test runs what there is to do.
    #[cfg(test)]
    pub(crate) fn manual(clock: Arc<super::selection_budget::Stepped>) -> Self {
        Self { queue: BulkQueue::new(Clock::Stepped(clock)), threads: Vec::new() }
    }

    /// Returns what each of the threads runs.
    #[cfg(test)]
    pub(crate) fn body(&self) -> impl FnOnce() + Send + use<> {
        let queue = Arc::clone(&self.queue);
        move || queue.run()
    }

    /// Does one piece of work on this thread; returns whether there was one.
    pub fn run_one(&self) -> bool {
        let work = self.queue.ready.lock().works.pop_front();
        work.map(Work::run).is_some()
    }
}

impl Drop for BulkThreads {
    fn drop(&mut self) {
        let works = {
            let mut ready = self.queue.ready.lock();
            ready.is_over = true;
            std::mem::take(&mut ready.works)
        };
        drop(works);
        self.queue.is_ready.notify_all();
        // Not waited for: a piece of work may be long when the machine is busy.
        self.threads.clear();
    }
}

// === impl BulkQueue ===

impl BulkQueue {
    fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { ready: Mutex::default(), is_ready: Condvar::new(), clock })
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Gives some work to a thread, after what waits already.
    pub(super) fn push(&self, work: Arc<dyn Work>) {
        {
            let mut ready = self.ready.lock();
            if ready.is_over {
                return;
            }
            ready.works.push_back(work);
        }
        self.is_ready.notify_one();
    }

    /// Does what comes until the threads end.
    fn run(&self) {
        while let Some(work) = self.next() {
            work.run();
        }
    }

    fn next(&self) -> Option<Arc<dyn Work>> {
        let mut ready = self.ready.lock();
        loop {
            if ready.is_over {
                return None;
            }
            if let Some(work) = ready.works.pop_front() {
                return Some(work);
            }
            self.is_ready.wait(&mut ready);
        }
    }
}

impl fmt::Debug for BulkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkQueue").field("ready", &self.ready.lock().works.len()).finish_non_exhaustive()
    }
}
