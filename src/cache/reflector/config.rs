//! Parameters of a Reflector.

use std::{sync::Arc, time::Duration};

use super::ReflectorError;
use crate::{
    cache::{BackoffConfig, ListVersion},
    model::Object,
};

/// Parameters of a Reflector.
#[derive(Clone, Default)]
pub struct ReflectorConfig {
    /// Name, for its span. `None` for the file and line that made the Reflector.
    pub name: Option<String>,
    /// Freshness of the first list. The service uses [`ListVersion::MostRecent`], so that no restart serves an older state than
    /// before; client-go's default is [`ListVersion::Any`].
    pub first_list: ListVersion,
    /// Delays between attempts.
    pub backoff: BackoffConfig,
    /// Interval of resyncs ([`ReflectorStore::resync`](super::ReflectorStore::resync)) beside the watch, from each list on; 0 for
    /// none. If a resync fails, the watch ends, and a list follows after a delay.
    pub resync_period: Duration,
    /// Decision about a resync that is due; without it each takes place.
    pub should_resync: Option<ShouldResync>,
    /// API version and kind of the objects. Others are reported, counted and left out; an event of another type is a bookmark.
    pub expected: Option<(String, String)>,
    /// Conversion of the objects of lists and events on their way to the store.
    pub filter: Option<ObjectFilter>,
    /// Handler of errors; without it they are logged.
    pub on_error: Option<ErrorHandler>,
}

/// Decision about a resync that is due.
pub(in crate::cache) type ShouldResync = Arc<dyn Fn() -> bool + Send + Sync>;

/// Conversion of an object: the object to store, or `None` for one to leave out. The result for an object is always the same.
///
/// Key, uid and version stay: a change of them panics. An addition or a change of an object that is left out becomes a deletion,
/// so that no earlier state of it remains (client-go's transformers cannot leave out objects).
pub type ObjectFilter = Arc<dyn Fn(Arc<Object>) -> Option<Arc<Object>> + Send + Sync>;

/// Handler of each failed list, each watch that could not be opened or failed, each failed resync, and objects of an unexpected
/// type (client-go's `WatchErrorHandler`). A normal close of a watch is no error.
///
/// It runs in the Reflector's task and has to return at once. Whatever it does, the Reflector continues after its own delay.
pub(in crate::cache) type ErrorHandler = Arc<dyn Fn(&ReflectorError) + Send + Sync>;

// === impl ReflectorConfig ===

impl ReflectorConfig {
    /// Sets the handler of errors ([`ReflectorConfig::on_error`]).
    #[must_use]
    pub fn with_error_handler(self, on_error: impl Fn(&ReflectorError) + Send + Sync + 'static) -> Self {
        Self { on_error: Some(Arc::new(on_error)), ..self }
    }
}

debug_fields!(ReflectorConfig, this => {
    name: this.name,
    first_list: this.first_list,
    backoff: this.backoff,
    resync_period: this.resync_period,
    expected: this.expected,
    has_filter: this.filter.is_some(),
});
