//! Streams that their connection's task polls, and their wake-ups.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use slab::Slab;

use super::handle::{CONNECTION, ConnectionWakes, PARKED, POLLING, SPAWNED, StreamHandle, StreamWaker, WOKEN};
use crate::log_throttle::LogThrottle;

/// Streams of one connection that its task polls.
pub(super) struct Streams<F> {
    /// Streams by key. Boxed, because the slab allocates four entries at once, and most connections have one stream.
    slab: Slab<Box<Stream<F>>>,
    wakes: Arc<ConnectionWakes>,
    /// Keys that are being polled; kept for the allocation.
    ready: Vec<usize>,
    /// Time of the first look at the clock in this poll of the connection.
    began: Option<Instant>,
    /// True if others of the runtime come first.
    is_late: bool,
}

/// Time for the streams in one poll of their connection; then the task yields to other connections.
const TIME_PER_POLL: Duration = Duration::from_micros(500);
/// Number of polls of streams between two looks at the clock.
const POLLS_PER_LOOK: usize = 16;

struct Stream<F> {
    future: F,
    handle: StreamHandle,
    waker: Waker,
}

/// Stream in a task of its own. It [settles](StreamHandle::settle) wake-ups while it is polled itself, as any other stream does.
pub(super) struct Spawned<F>(Stream<F>);

// === impl Streams ===

impl<F: Future<Output = ()> + Unpin> Streams<F> {
    /// Creates an empty set.
    pub(super) fn new() -> Self {
        Self {
            slab: Slab::new(),
            wakes: Arc::new(ConnectionWakes::new()),
            ready: Vec::new(),
            began: None,
            is_late: false,
        }
    }

    /// Returns the state that all streams of the connection share.
    pub(super) fn wakes(&self) -> &Arc<ConnectionWakes> {
        &self.wakes
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns the waker of the connection itself.
    pub(super) fn connection_waker(&self) -> Waker {
        Waker::from(Arc::new(StreamWaker::new(&self.wakes, CONNECTION)))
    }

    /// Creates the handle of a new stream, which has a task of its own unless it is [inserted](Self::insert).
    pub(super) fn handle(&self) -> StreamHandle {
        StreamHandle(Arc::new(StreamWaker::new(&self.wakes, SPAWNED)))
    }

    /// Adds a stream to the connection's task, which polls it next.
    pub(super) fn insert(&mut self, future: F, handle: &StreamHandle) {
        let waker = Waker::from(Arc::clone(&handle.0));
        let key = self.slab.insert(Box::new(Stream { future, handle: handle.clone(), waker }));
        handle.0.key.store(key, Ordering::Release);
        handle.0.wake_by_ref();
    }

    /// Registers the task that is woken from now on, at the beginning of its poll.
    pub(super) fn register(&mut self, task: &Waker) {
        (self.began, self.is_late) = (None, false);
        self.wakes.task.register(task);
        self.wakes.state.store(POLLING, Ordering::SeqCst);
    }

    /// Polls the streams that are ready, until they are [late](Self::is_late). Returns true if the connection itself is ready.
    pub(super) fn poll_ready(&mut self) -> bool {
        let mut is_connection_ready = false;
        let mut ready = std::mem::take(&mut self.ready);
        std::mem::swap(&mut ready, &mut *self.wakes.ready.lock());
        let mut keys = ready.drain(..).enumerate();
        for (at, key) in keys.by_ref() {
            match key {
                CONNECTION => is_connection_ready = true,
                key => self.poll(key),
            }
            if at % POLLS_PER_LOOK == POLLS_PER_LOOK - 1 {
                self.is_late = self.began.get_or_insert_with(Instant::now).elapsed() > TIME_PER_POLL;
                if self.is_late {
                    break;
                }
            }
        }
        if keys.len() > 0 {
            // They come before those that were woken meanwhile.
            self.wakes.ready.lock().splice(..0, keys.map(|(_, key)| key));
        } else {
            drop(keys);
        }
        self.ready = ready;
        is_connection_ready
    }

    /// Returns true if the time for this poll of the connection is over: the task must [yield](Self::yield_now).
    pub(super) fn is_late(&self) -> bool {
        self.is_late
    }

    /// Parks the task. Returns false if a stream has become ready meanwhile; otherwise the next wake-up wakes the task.
    pub(super) fn try_park(&self) -> bool {
        if self.wakes.state.compare_exchange(POLLING, PARKED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return true;
        }
        self.wakes.state.store(POLLING, Ordering::SeqCst);
        false
    }

    /// Yields: the task must return, and is woken again at once.
    pub(super) fn yield_now(&self, task: &Waker) {
        self.wakes.state.store(WOKEN, Ordering::SeqCst);
        task.wake_by_ref();
    }

    /// Returns true if the last stream is over, and some were ended because of their client.
    pub(super) fn is_deserted(&self) -> bool {
        self.wakes.is_deserted()
    }

    fn poll(&mut self, key: usize) {
        let Some(stream) = self.slab.get_mut(key) else { return };
        if stream.handle.0.state.swap(POLLING, Ordering::SeqCst) != WOKEN {
            return;
        }
        let mut cx = Context::from_waker(&stream.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut stream.future).poll(&mut cx).is_ready()));
        let is_over = polled.unwrap_or_else(|_| {
            static LOG: LogThrottle = LogThrottle::new();
            if let Some(times) = LOG.poll() {
                tracing::error!(times, "stream panicked and was reset; this is a bug");
            }
            stream.handle.fails();
            true
        });
        if is_over {
            self.slab.remove(key);
        }
    }
}

// === impl Spawned ===

impl<F> Spawned<F> {
    pub(super) fn new(future: F, handle: &StreamHandle) -> Self {
        Self(Stream { future, handle: handle.clone(), waker: Waker::from(Arc::clone(&handle.0)) })
    }
}

impl<F: Future<Output = ()> + Unpin> Future for Spawned<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let Stream { future, handle, waker } = &mut self.get_mut().0;
        handle.0.task.register(task.waker());
        handle.0.state.store(POLLING, Ordering::SeqCst);
        let polled = Pin::new(future).poll(&mut Context::from_waker(waker));
        let rests = handle.0.state.compare_exchange(POLLING, PARKED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if polled.is_pending() && !rests {
            task.waker().wake_by_ref();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::AtomicU32,
        task::{Poll, Waker},
    };

    use futures_util::{FutureExt, future::BoxFuture, task::noop_waker_ref};
    use parking_lot::Mutex;

    use super::*;

    /// Creates a stream that counts its polls, keeps its waker, and ends at the given poll.
    fn counted(
        handle: &StreamHandle,
        polls: &Arc<AtomicU32>,
        wakers: &Arc<Mutex<Vec<Waker>>>,
        last: u32,
    ) -> BoxFuture<'static, ()> {
        let (handle, polls, wakers) = (handle.clone(), Arc::clone(polls), Arc::clone(wakers));
        std::future::poll_fn(move |cx| {
            if handle.wanted_reset().is_some() {
                return Poll::Ready(());
            }
            wakers.lock().push(cx.waker().clone());
            if polls.fetch_add(1, Ordering::Relaxed) + 1 == last { Poll::Ready(()) } else { Poll::Pending }
        })
        .boxed()
    }

    /// Polls like the connection's task, until no stream is ready.
    fn run(streams: &mut Streams<BoxFuture<'static, ()>>) {
        streams.register(noop_waker_ref());
        loop {
            streams.poll_ready();
            if streams.try_park() {
                return;
            }
        }
    }

    #[test]
    fn a_stream_is_polled_once_for_all_earlier_wake_ups_and_removed_when_it_ends() {
        let mut streams = Streams::new();
        let (polls, wakers) = (Arc::default(), Arc::default());
        let handle = streams.handle();
        streams.insert(counted(&handle, &polls, &wakers, 3), &handle);
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
    fn the_task_is_woken_once_while_parked_and_never_while_polling() {
        struct Count(AtomicU32);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicU32::new(0)));
        let task = Waker::from(Arc::clone(&count));
        let mut streams: Streams<BoxFuture<'static, ()>> = Streams::new();
        let connection = streams.connection_waker();
        streams.register(&task);
        connection.wake_by_ref();
        assert!(!streams.try_park(), "it has to look again");
        assert!(streams.try_park());
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        connection.wake_by_ref();
        connection.wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_reset_stream_and_one_that_panics_are_dropped_and_the_others_go_on() {
        let mut streams = Streams::new();
        let (polls, wakers) = (Arc::default(), Arc::default());
        let [reset, kept, panics] = [(); 3].map(|()| streams.handle());
        streams.insert(counted(&reset, &polls, &wakers, 0), &reset);
        streams.insert(counted(&kept, &polls, &wakers, 0), &kept);
        streams.insert(async { panic!("of a stream") }.boxed(), &panics);
        run(&mut streams);
        assert_eq!((polls.load(Ordering::Relaxed), streams.len()), (2, 2));
        reset.reset();
        run(&mut streams);
        assert_eq!((polls.load(Ordering::Relaxed), streams.len()), (2, 1));
    }

    #[test]
    fn a_discarded_wake_up_causes_no_poll_and_a_later_one_does() {
        let mut streams = Streams::new();
        let (polls, wakers) = (Arc::default(), Arc::default());
        let handle = streams.handle();
        streams.insert(counted(&handle, &polls, &wakers, 0), &handle);
        run(&mut streams);
        let waker = wakers.lock()[0].clone();
        waker.wake_by_ref();
        handle.settle();
        run(&mut streams);
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        waker.wake_by_ref();
        handle.settle();
        waker.wake_by_ref();
        run(&mut streams);
        assert_eq!(polls.load(Ordering::Relaxed), 2, "once");
    }

    #[tokio::test]
    async fn a_stream_with_a_task_of_its_own_is_woken_there() {
        let streams: Streams<BoxFuture<'static, ()>> = Streams::new();
        let handle = streams.handle();
        let (polls, wakers) = (Arc::default(), Arc::default());
        let task = tokio::spawn(Spawned::new(counted(&handle, &polls, &wakers, 0), &handle));
        while polls.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        handle.reset();
        task.await.unwrap();
    }

    /// Streams that take long let others of the runtime run, and each has its turn.
    #[test]
    fn a_poll_of_many_slow_streams_ends_in_time_and_the_rest_comes_first_in_the_next() {
        let mut streams = Streams::new();
        let polled = Arc::new(Mutex::new(Vec::new()));
        for number in 0..100 {
            let (handle, polled) = (streams.handle(), Arc::clone(&polled));
            let slow = std::future::poll_fn(move |_| {
                polled.lock().push(number);
                let until = Instant::now() + TIME_PER_POLL / 4;
                while Instant::now() < until {}
                Poll::Pending
            });
            streams.insert(slow.boxed(), &handle);
        }
        let mut polls = 0;
        while polled.lock().len() < 100 {
            streams.register(noop_waker_ref());
            streams.poll_ready();
            polls += 1;
            assert!(streams.is_late() || polled.lock().len() == 100);
        }
        // The clock is read after each 16 streams: more polls are those of a machine that did something else meanwhile.
        assert!((2..=7).contains(&polls), "{polls}");
        assert_eq!(*polled.lock(), (0..100).collect::<Vec<_>>());
    }
}
