//! Log of a test: the events of one level, with their fields.

use std::{
    fmt::{Debug, Write as _},
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};

/// Subscriber that keeps the events of a level, one text each.
#[derive(Clone)]
pub(crate) struct TestLog {
    level: Level,
    events: Arc<Mutex<Vec<String>>>,
}

struct Fields(String);

impl TestLog {
    /// Begins to keep the events of this thread, until the guard is dropped.
    pub(crate) fn start(level: Level) -> (Self, DefaultGuard) {
        // With a single subscriber in the process, tracing decides by that of the thread which comes to an event first: if it has none,
        // the event is off for all. A second one keeps it from that.
        static OTHER: LazyLock<Dispatch> =
            LazyLock::new(|| Dispatch::new(TestLog { level: Level::TRACE, events: Arc::default() }));
        LazyLock::force(&OTHER);
        let log = Self { level, events: Arc::default() };
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    /// Returns the events since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.events.lock())
    }
}

impl Subscriber for TestLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == self.level
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.events.lock().push(fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}
