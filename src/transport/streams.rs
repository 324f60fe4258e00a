//! The streams that are polled in their connection's task, and what wakes them there.
//!
//! Written by wakers of any thread (the ready list) and by the connection's task (everything else). Invariants:
//!
//! - A key is pushed to the ready list before the task is told; the task says that it rests after it has found the list
//!   empty, and looks again when it was told meanwhile. So no wake is lost.
//! - A waker owns no stream: the last reference to one may be dropped under the lock of whoever held it.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    task::{Context, Wake, Waker},
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use slab::Slab;

/// A stream that the service wants polled in the connection's task; an extension of its request.
///
/// A client that reads nothing shuts its window, and while that is shut nobody polls the body of the stream: it can only be
/// reset from outside, by this.
#[derive(Clone)]
pub struct StreamHandle(Arc<StreamWaker>);

/// The streams of one connection.
pub(super) struct Streams {
    slab: Slab<Stream>,
    wakes: Arc<Wakes>,
    arrivals: Arc<Mutex<Arrivals>>,
    /// Being polled; kept for its memory.
    ready: Vec<usize>,
}

struct Stream {
    future: BoxFuture,
    handle: StreamHandle,
    waker: Waker,
}

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes streams from hyper: those that were announced stay, the others get a task of their own.
#[derive(Clone)]
pub(super) struct LocalExecutor {
    wakes: Arc<Wakes>,
    arrivals: Arc<Mutex<Arrivals>>,
}

/// Between hyper, in the middle of the connection's poll, and that task.
#[derive(Default)]
struct Arrivals {
    /// Announced for the stream that hyper hands over next: its service's call and this follow each other in one poll.
    announced: Option<StreamHandle>,
    fresh: Vec<(BoxFuture, StreamHandle)>,
}

/// What is to be polled.
struct Wakes {
    ready: Mutex<Vec<usize>>,
    state: AtomicU8,
    task: AtomicWaker,
}

struct StreamWaker {
    wakes: Arc<Wakes>,
    /// [`UNKNOWN`] until the stream has arrived.
    key: AtomicUsize,
    is_queued: AtomicBool,
    is_reset: AtomicBool,
}

/// The connection itself, in the ready list.
const CONNECTION: usize = usize::MAX;
const UNKNOWN: usize = usize::MAX - 1;

/// The task waits to be woken.
const RESTING: u8 = 0;
/// The task is running, and looks at the list before it rests.
const POLLING: u8 = 1;
/// The task was woken, or is to look again.
const WOKEN: u8 = 2;

// === impl StreamHandle ===

impl StreamHandle {
    /// Ends the stream with `RST_STREAM`, whatever it has still to send.
    pub fn reset(&self) {
        self.0.is_reset.store(true, Ordering::Release);
        self.0.wake_by_ref();
    }
}

impl fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamHandle").field("is_reset", &self.0.is_reset).finish_non_exhaustive()
    }
}

// === impl Streams ===

impl Streams {
    /// None yet, and the executor that brings them.
    pub(super) fn new() -> (Self, LocalExecutor) {
        let wakes =
            Arc::new(Wakes { ready: Mutex::default(), state: AtomicU8::new(RESTING), task: AtomicWaker::new() });
        let arrivals = Arc::default();
        let executor = LocalExecutor { wakes: Arc::clone(&wakes), arrivals: Arc::clone(&arrivals) };
        (Self { slab: Slab::new(), wakes, arrivals, ready: Vec::new() }, executor)
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// The waker of the connection itself.
    pub(super) fn connection_waker(&self) -> Waker {
        Waker::from(Arc::new(StreamWaker::new(&self.wakes, CONNECTION)))
    }

    /// Where wakes go, from now on.
    pub(super) fn register(&self, task: &Waker) {
        self.wakes.task.register(task);
        self.wakes.state.store(POLLING, Ordering::SeqCst);
    }

    /// Polls every stream that is ready. Whether the connection is.
    pub(super) fn poll_ready(&mut self) -> bool {
        let mut is_connection_ready = false;
        let mut ready = std::mem::take(&mut self.ready);
        std::mem::swap(&mut ready, &mut *self.wakes.ready.lock());
        for key in ready.drain(..) {
            match key {
                CONNECTION => is_connection_ready = true,
                key => self.poll(key),
            }
        }
        self.ready = ready;
        is_connection_ready
    }

    /// Takes in the streams that hyper has handed over, to be polled next.
    pub(super) fn admit(&mut self) {
        let fresh = std::mem::take(&mut self.arrivals.lock().fresh);
        for (future, handle) in fresh {
            let waker = Waker::from(Arc::clone(&handle.0));
            let key = self.slab.insert(Stream { future, handle: handle.clone(), waker });
            handle.0.key.store(key, Ordering::Release);
            handle.0.wake_by_ref();
        }
    }

    /// Whether nothing has become ready meanwhile: then the task may return, and the next wake goes to it.
    pub(super) fn rest(&self) -> bool {
        if self.wakes.state.compare_exchange(POLLING, RESTING, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return true;
        }
        self.wakes.state.store(POLLING, Ordering::SeqCst);
        false
    }

    /// Lets others run: the task returns, and is woken at once.
    pub(super) fn make_way(&self, task: &Waker) {
        self.wakes.state.store(WOKEN, Ordering::SeqCst);
        task.wake_by_ref();
    }

    /// Resets every stream.
    pub(super) fn reset_all(&mut self) {
        self.slab.clear();
        self.arrivals.lock().fresh.clear();
    }

    fn poll(&mut self, key: usize) {
        let Some(stream) = self.slab.get_mut(key) else { return };
        stream.handle.0.is_queued.store(false, Ordering::SeqCst);
        let is_over = stream.handle.0.is_reset.load(Ordering::Acquire) || {
            let mut cx = Context::from_waker(&stream.waker);
            let polled = catch_unwind(AssertUnwindSafe(|| stream.future.as_mut().poll(&mut cx).is_ready()));
            polled.unwrap_or_else(|_| {
                tracing::error!("a stream panicked, and was reset; this is a bug");
                true
            })
        };
        if is_over {
            self.slab.remove(key);
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.reset_all();
    }
}

// === impl LocalExecutor ===

impl LocalExecutor {
    /// Keeps the stream that comes next in the connection's task.
    pub(super) fn announce(&self) -> StreamHandle {
        let handle = StreamHandle(Arc::new(StreamWaker::new(&self.wakes, UNKNOWN)));
        self.arrivals.lock().announced = Some(handle.clone());
        handle
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        let mut arrivals = self.arrivals.lock();
        if let Some(handle) = arrivals.announced.take() {
            arrivals.fresh.push((Box::pin(future), handle));
        } else {
            drop(arrivals);
            tokio::spawn(future);
        }
    }
}

impl fmt::Debug for LocalExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalExecutor").finish_non_exhaustive()
    }
}

// === impl StreamWaker ===

impl StreamWaker {
    fn new(wakes: &Arc<Wakes>, key: usize) -> Self {
        Self {
            wakes: Arc::clone(wakes),
            key: AtomicUsize::new(key),
            is_queued: AtomicBool::new(false),
            is_reset: AtomicBool::new(false),
        }
    }
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let key = self.key.load(Ordering::Acquire);
        if key == UNKNOWN {
            // It is polled once it has arrived.
            return;
        }
        // The connection is not told when it is polled, so it may be in the list twice, which does no harm.
        if key == CONNECTION || !self.is_queued.swap(true, Ordering::SeqCst) {
            self.wakes.ready.lock().push(key);
            if self.wakes.state.swap(WOKEN, Ordering::SeqCst) == RESTING {
                self.wakes.task.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::AtomicU32,
        task::{Poll, Waker},
    };

    use futures_util::task::noop_waker_ref;
    use hyper::rt::Executor;

    use super::*;

    /// Counts its polls, keeps its waker, and ends at the given poll.
    fn counted(polls: &Arc<AtomicU32>, wakers: &Arc<Mutex<Vec<Waker>>>, last: u32) -> impl Future<Output = ()> + use<> {
        let (polls, wakers) = (Arc::clone(polls), Arc::clone(wakers));
        std::future::poll_fn(move |cx| {
            wakers.lock().push(cx.waker().clone());
            if polls.fetch_add(1, Ordering::Relaxed) + 1 == last { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    /// As the connection's task does, until nothing is ready.
    fn run(streams: &mut Streams) {
        streams.register(noop_waker_ref());
        loop {
            streams.poll_ready();
            streams.admit();
            if streams.rest() {
                return;
            }
        }
    }

    #[test]
    fn a_stream_is_polled_once_for_all_wakes_before_it_and_is_gone_when_it_ends() {
        let (mut streams, executor) = Streams::new();
        let (polls, wakers) = (Arc::default(), Arc::default());
        executor.announce();
        executor.execute(counted(&polls, &wakers, 3));
        run(&mut streams);
        assert_eq!((polls.load(Ordering::Relaxed), streams.len()), (1, 1));
        let waker = wakers.lock()[0].clone();
        for _ in 0..5 {
            waker.wake_by_ref();
        }
        run(&mut streams);
        assert_eq!((polls.load(Ordering::Relaxed), streams.len()), (2, 1));
        waker.wake_by_ref();
        run(&mut streams);
        assert_eq!((polls.load(Ordering::Relaxed), streams.len()), (3, 0));
        waker.wake();
        run(&mut streams);
        assert_eq!(polls.load(Ordering::Relaxed), 3, "and is not polled again");
    }

    #[test]
    fn the_task_is_woken_once_when_it_rests_and_never_while_it_polls() {
        struct Count(AtomicU32);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicU32::new(0)));
        let task = Waker::from(Arc::clone(&count));
        let (streams, _executor) = Streams::new();
        let connection = streams.connection_waker();
        streams.register(&task);
        connection.wake_by_ref();
        assert!(!streams.rest(), "it has to look again");
        assert!(streams.rest());
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        connection.wake_by_ref();
        connection.wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_reset_stream_and_one_that_panics_are_dropped_and_the_others_go_on() {
        let (mut streams, executor) = Streams::new();
        let (polls, wakers) = (Arc::default(), Arc::default());
        let reset = executor.announce();
        executor.execute(counted(&polls, &wakers, 0));
        executor.announce();
        executor.execute(counted(&polls, &wakers, 0));
        executor.announce();
        executor.execute(async { panic!("planted") });
        run(&mut streams);
        assert_eq!((polls.load(Ordering::Relaxed), streams.len()), (2, 2));
        reset.reset();
        run(&mut streams);
        assert_eq!((polls.load(Ordering::Relaxed), streams.len()), (2, 1));
    }

    #[tokio::test]
    async fn a_stream_that_was_not_announced_has_a_task_of_its_own() {
        let (mut streams, executor) = Streams::new();
        let (told, hears) = tokio::sync::oneshot::channel();
        executor.execute(async move { told.send(()).unwrap() });
        hears.await.unwrap();
        run(&mut streams);
        assert_eq!(streams.len(), 0);
    }
}
