//! Wake-ups of many readers at once: a task to which many of them belong is woken once, when all are.

use std::{cell::RefCell, task::Waker};

thread_local! {
    /// Tasks to wake after the present [`wake_all`].
    static TASKS: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// Wakes all, and then the tasks that [`wake_task`] was given meanwhile. Otherwise a task that another thread runs at the first
/// wake-up would find one reader ready, and send its event alone.
pub(in crate::watch) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let outer = TASKS.replace(Some(Vec::new()));
    wakers.into_iter().for_each(Waker::wake);
    TASKS.replace(outer).into_iter().flatten().for_each(Waker::wake);
}

/// Wakes a task to which many readers belong: at once, or after all that are woken with the present one.
#[cfg(any(test, feature = "server"))]
pub(crate) fn wake_task(task: Waker) {
    let at_once = TASKS.with_borrow_mut(|tasks| match tasks {
        Some(tasks) => {
            tasks.push(task);
            None
        }
        None => Some(task),
    });
    if let Some(task) = at_once {
        task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        task::Wake,
    };

    use super::*;

    type Log = Arc<Mutex<Vec<&'static str>>>;

    struct Task(Log);

    struct Reader(Log);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().push("task");
        }
    }

    impl Wake for Reader {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().push("reader");
            wake_task(Waker::from(Arc::new(Task(Arc::clone(&self.0)))));
        }
    }

    #[test]
    fn a_task_is_woken_after_all_its_readers() {
        let log = Log::default();
        let reader = || Waker::from(Arc::new(Reader(Arc::clone(&log))));
        wake_all([reader(), reader()]);
        assert_eq!(std::mem::take(&mut *log.lock().unwrap()), ["reader", "reader", "task", "task"]);
        reader().wake();
        assert_eq!(*log.lock().unwrap(), ["reader", "task"]);
    }
}
