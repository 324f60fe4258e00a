//! Handler of the changes of an informer, and the thread that calls it.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::proto::pb;

/// Handler of the changes of an informer. The store has a change before its call. A panic is reported, and the next call follows.
pub trait Handler: Send + 'static {
    /// Handles an object that is new to the store.
    fn added(&mut self, object: &Arc<pb::Object>) {
        let _ = object;
    }

    /// Handles another state of an object.
    fn updated(&mut self, old: &Arc<pb::Object>, new: &Arc<pb::Object>) {
        let _ = (old, new);
    }

    /// Handles the end of an object, with its last known state. `CAUSE_UNSPECIFIED` is a deletion that the upstream reported;
    /// `CAUSE_INFERRED` one that nobody saw, found in a list or by another uid under the same key.
    fn deleted(&mut self, last: &Arc<pb::Object>, cause: pb::Cause) {
        let _ = (last, cause);
    }
}

/// Problem of a handler, which does not affect the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandlerProblem {
    /// The handler panicked. Its next call follows.
    #[error("the handler panicked: {message}")]
    Panicked {
        /// Message of the panic.
        message: String,
    },
    /// More calls wait than the limit. They are kept; reported once until the handler has caught up.
    #[error("the handler lags: {waiting} calls wait")]
    Lags {
        /// Number of calls that wait.
        waiting: usize,
    },
}

/// One call of a handler.
#[derive(Debug)]
pub(super) enum Notification {
    Added(Arc<pb::Object>),
    Updated { old: Arc<pb::Object>, new: Arc<pb::Object> },
    Deleted { last: Arc<pb::Object>, cause: pb::Cause },
}

/// Queue of the calls. It has no bound: the store must not wait, and a call that is left out would be a change that is lost.
pub(super) struct Notifier {
    queue: Option<mpsc::Sender<Notification>>,
    shared: Arc<Lag>,
}

struct Lag {
    waiting: AtomicUsize,
    is_reported: AtomicBool,
    limit: usize,
    on_error: Arc<ErrorHandler>,
}

pub(super) type ErrorHandler = dyn Fn(&HandlerProblem) + Send + Sync;

/// Starts the thread of a handler, if there is one. The receiver ends after the last call.
pub(super) fn start(
    thread: thread::Builder,
    handler: Option<Box<dyn Handler>>,
    on_error: Arc<ErrorHandler>,
    limit: usize,
    stop: CancellationToken,
) -> io::Result<(Notifier, oneshot::Receiver<()>)> {
    let (ended, receiver) = oneshot::channel();
    let lag = Lag { waiting: AtomicUsize::new(0), is_reported: AtomicBool::new(false), limit, on_error };
    let shared = Arc::new(lag);
    let mut queue = None;
    if let Some(mut handler) = handler {
        let (sender, receiver) = mpsc::channel();
        let lag = Arc::clone(&shared);
        let run = move || {
            while let Ok(notification) = receiver.recv() {
                if stop.is_cancelled() {
                    break;
                }
                lag.call(&mut *handler, &notification);
            }
            drop((handler, ended));
        };
        thread.name("informer-handler".to_owned()).spawn(run)?;
        queue = Some(sender);
    }
    Ok((Notifier { queue, shared }, receiver))
}

// === impl Notifier ===

impl Notifier {
    pub(super) fn notify(&self, notification: Notification) {
        let Some(queue) = &self.queue else { return };
        let Lag { waiting, is_reported, limit, on_error } = &*self.shared;
        let waiting = waiting.fetch_add(1, Ordering::Relaxed) + 1;
        // An error is the end of the thread.
        drop(queue.send(notification));
        if waiting > *limit && !is_reported.swap(true, Ordering::Relaxed) {
            on_error(&HandlerProblem::Lags { waiting });
        }
    }
}

// === impl Lag ===

impl Lag {
    fn call(&self, handler: &mut dyn Handler, notification: &Notification) {
        if self.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.is_reported.store(false, Ordering::Relaxed);
        }
        let called = catch_unwind(AssertUnwindSafe(|| match notification {
            Notification::Added(object) => handler.added(object),
            Notification::Updated { old, new } => handler.updated(old, new),
            Notification::Deleted { last, cause } => handler.deleted(last, *cause),
        }));
        if let Err(panic) = called {
            (self.on_error)(&HandlerProblem::Panicked { message: message_of(&*panic) });
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Handler whose calls report that they have begun, and wait until they may end.
    struct Blocked {
        begun: mpsc::Sender<()>,
        may_end: mpsc::Receiver<()>,
    }

    impl Handler for Blocked {
        fn added(&mut self, _object: &Arc<pb::Object>) {
            self.begun.send(()).unwrap();
            self.may_end.recv().unwrap();
        }
    }

    #[test]
    fn a_lag_is_reported_once_until_the_handler_has_caught_up() {
        let ((begun, has_begun), (end, may_end)) = (mpsc::channel(), mpsc::channel());
        let problems = Arc::new(Mutex::new(Vec::new()));
        let reported = Arc::clone(&problems);
        let on_error = Arc::new(move |problem: &HandlerProblem| reported.lock().push(problem.clone()));
        let handler = Box::new(Blocked { begun, may_end });
        let started = start(thread::Builder::new(), Some(handler), on_error, 1, CancellationToken::new());
        let (notifier, ended) = started.unwrap();
        let notify = |calls: usize| (0..calls).for_each(|_| notifier.notify(Notification::Added(Arc::default())));
        let finish = |calls: usize| {
            for _ in 0..calls {
                end.send(()).unwrap();
                has_begun.recv().unwrap();
            }
        };
        notify(1);
        has_begun.recv().unwrap();
        // One of these four may wait without a report.
        notify(4);
        let lags = || HandlerProblem::Lags { waiting: 2 };
        assert_eq!(*problems.lock(), [lags()]);
        finish(4);
        notify(3);
        assert_eq!(*problems.lock(), [lags(), lags()]);
        finish(3);
        end.send(()).unwrap();
        drop(notifier);
        assert!(ended.blocking_recv().is_err(), "the end of the thread");
    }
}
