//! Separate threads for work that must delay neither a writer nor a connection.
//!
//! All resources of a server share them. Work comes in pieces of about half a millisecond, and the owners of pending work
//! take turns. They are threads and not tasks because the kernel preempts a thread; no worker of a runtime waits for them.
//! When the last [`BulkThreads`] is dropped, each thread ends after its current piece.
//!
//! A piece that panics ends what it worked for, and no thread: each [`Work`] runs what depends on others' data guarded, and
//! ends those who wait for it.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::Instant,
};

use crate::{
    log_throttle::LogThrottle,
    sync::{Condvar, Mutex},
};

/// Threads for the work that writers have no time for. A server has half as many as processors, and at least one.
#[derive(Debug)]
pub struct BulkThreads {
    queue: Arc<BulkQueue>,
    threads: Vec<JoinHandle<()>>,
}

/// Queue of work that waits for a thread.
pub(super) struct BulkQueue {
    ready: Mutex<Ready>,
    is_ready: Condvar,
    clock: Clock,
}

/// Work that a bulk thread does one piece at a time.
pub(crate) trait Work: Send + Sync {
    /// Does one piece, and [pushes](BulkThreads::push) itself if there is more.
    fn run(self: Arc<Self>);
}

/// Source of the time by which pieces of work end, in nanoseconds.
#[derive(Debug, Clone)]
pub(super) enum Clock {
    /// System clock.
    Since(Instant),
    /// Clock that a test steps.
    #[cfg(test)]
    Stepped(Arc<Stepped>),
}

/// Clock that advances only when it is read, by a step that the test sets.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Stepped {
    pub(crate) now: std::sync::atomic::AtomicU64,
    /// Advance at each reading.
    pub(crate) step: std::sync::atomic::AtomicU64,
}

/// Payload of the panics that tests plan. Any other panic in a unit test fails it.
#[cfg(test)]
pub(crate) struct PlannedPanic;

#[derive(Default)]
struct Ready {
    works: VecDeque<Arc<dyn Work>>,
    is_over: bool,
}

// === impl Clock ===

impl Clock {
    pub(super) fn now(&self) -> u64 {
        match self {
            Self::Since(origin) => u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX),
            #[cfg(test)]
            Self::Stepped(clock) => {
                use std::sync::atomic::Ordering::SeqCst;
                clock.now.fetch_add(clock.step.load(SeqCst), SeqCst)
            }
        }
    }
}

// === impl BulkThreads ===

impl BulkThreads {
    /// Starts `count` threads. With zero, the caller runs [`Self::run_one`].
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

    /// Queues work for a thread, after all pending work.
    #[cfg(feature = "server")]
    pub(crate) fn push(&self, work: Arc<dyn Work>) {
        self.queue.push(work);
    }

    pub(super) fn queue(&self) -> &Arc<BulkQueue> {
        &self.queue
    }

    /// Returns a queue without threads: a test runs the work.
    #[cfg(test)]
    pub(crate) fn manual(clock: Arc<Stepped>) -> Self {
        Self { queue: BulkQueue::new(Clock::Stepped(clock)), threads: Vec::new() }
    }

    /// Runs one piece of work on this thread; returns true if there was one.
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
        // Not joined: a piece of work may take long on a busy machine.
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

    /// Queues work for a thread, after all pending work.
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

    /// Runs queued work until the threads end.
    fn run(&self) {
        while let Some(work) = self.next() {
            guarded(|| work.run());
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

/// Runs a part of a piece of work. Returns `None` if it panics: the caller ends those who wait for its outcome.
pub(super) fn guarded<T>(part: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(part));
    #[cfg(test)]
    let done =
        done.or_else(|panic| if panic.is::<PlannedPanic>() { Err(panic) } else { std::panic::resume_unwind(panic) });
    done.inspect_err(|_| log_panic()).ok()
}

/// Logs that a part has panicked. What panics once may do so for each object.
fn log_panic() {
    static LOG: LogThrottle = LogThrottle::new();
    if let Some(panics) = LOG.poll() {
        tracing::error!(panics, "bulk work panicked and was ended; this is a bug");
    }
}

debug_fields!(BulkQueue, this => { ready: this.ready.lock().works.len() });

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Sender, channel},
        time::Duration,
    };

    use super::*;

    struct Panics;

    impl Work for Panics {
        fn run(self: Arc<Self>) {
            std::panic::panic_any(PlannedPanic);
        }
    }

    struct Reports(Sender<()>);

    impl Work for Reports {
        fn run(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }

    #[test]
    fn a_piece_that_panics_ends_no_thread() {
        let threads = BulkThreads::start(1).unwrap();
        let (sender, receiver) = channel();
        for _ in 0..3 {
            threads.queue().push(Arc::new(Panics));
        }
        threads.queue().push(Arc::new(Reports(sender)));
        receiver.recv_timeout(Duration::from_secs(60)).expect("the thread works on");
    }
}
