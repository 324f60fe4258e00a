//! The state of a resource as the initial events of a watch, which then goes on (SEMANTICS 1.27, rules 12 to 15).
//!
//! An API that does not know `sendInitialEvents` refuses the request or takes it for that of another watch, which may be busy
//! and never ends its initial events. So what is no progress of them is bounded in time: an object that was not among them yet
//! is progress, until something happens to one that was.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    lines::NoLine,
    object::{Bookmark, Item},
    reading::{Reading, Shared, Stop},
    watch::Live,
};
use crate::{
    cache::{ListVersion, SourceError},
    model::EventType,
    source::watch_event::Said,
};

/// Whether initial events are worth requesting. A failure is of the API server that was connected: the next connection gets
/// another try, and when that fails too, so does every tenth minute.
#[derive(Debug, Default)]
pub(super) struct InitialEvents {
    failures: u32,
    retry_at: Option<Instant>,
}

const RETRY_AFTER: Duration = Duration::from_secs(600);

// === impl InitialEvents ===

impl InitialEvents {
    /// Whether to request them now.
    pub(super) fn are_worthwhile(&self) -> bool {
        self.retry_at.is_none_or(|at| Instant::now() >= at)
    }

    /// They came to their end.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// The API refused them, or did not end them in time.
    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(Instant::now() + RETRY_AFTER);
    }

    /// The next request goes over another connection, perhaps to another API server.
    pub(super) fn has_new_connection(&mut self) {
        if self.failures <= 1 {
            self.retry_at = None;
        }
    }
}

/// Reads the initial events of a watch, and returns the watch with them.
pub(super) async fn read(shared: &Arc<Shared>, at: &ListVersion) -> Result<(Reading, Live), Stop> {
    let version = shared.version_query(at);
    let mut query = vec![("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")];
    if !version.text.is_empty() {
        query.push(("resourceVersion", &version.text));
    }
    let mut live = Live::open(shared, &query).await?;
    let deadline = live.deadline;
    let patience = shared.config.initial_events_timeout;
    live.lines.end_after(Some(patience));
    live.deadline = Instant::now() + patience;
    let (mut objects, mut problems) = (HashMap::new(), HashMap::new());
    let mut has_changes = false;
    loop {
        let told = match live.line().await {
            Ok(Some(told)) => told,
            // From the beginning, after a while.
            Ok(None) => {
                return Err(SourceError::Busy("the watch was closed before its initial events ended".into()).into());
            }
            Err(NoLine::Broken(why)) => {
                shared.initial_events.lock().has_new_connection();
                return Err(SourceError::Busy(why).into());
            }
            Err(NoLine::Silent | NoLine::Late) => {
                shared.initial_events.lock().failed();
                return Err(SourceError::Unavailable("the initial events did not end in time".to_owned()).into());
            }
            Err(no_line @ (NoLine::TooLong | NoLine::NotReplayed)) => return Err(live.broken(no_line).into()),
        };
        match live.decode(&told)? {
            Said::Change(event_type, Item { object, problem, .. }) => {
                let key = object.key().clone();
                let is_known = objects.remove(&key).is_some() | problems.remove(&key).is_some();
                has_changes |= is_known || event_type != EventType::Added;
                if !has_changes {
                    live.deadline = Instant::now() + patience;
                }
                match problem {
                    _ if event_type == EventType::Deleted => {}
                    None => drop(objects.insert(key, Arc::new(object))),
                    Some(problem) => drop(problems.insert(key, (Arc::new(object), problem))),
                }
            }
            Said::Bookmark(object) => {
                let bookmark = Bookmark::read(object).map_err(|error| live.unreadable(&error))?;
                if bookmark.ends_initial_events {
                    live.deadline = deadline;
                    live.lines.end_after(None);
                    let (objects, problems) = (objects.into_values().collect(), problems.into_values().collect());
                    return Ok((Reading { objects, version: bookmark.version, problems }, live));
                }
            }
            Said::Failure(status) => return Err(shared.api.told(status).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_tried_again_at_the_next_connection_and_then_every_tenth_minute() {
        let mut initial = InitialEvents::default();
        assert!(initial.are_worthwhile());
        initial.failed();
        assert!(!initial.are_worthwhile());
        initial.has_new_connection();
        assert!(initial.are_worthwhile());
        initial.failed();
        initial.has_new_connection();
        assert!(!initial.are_worthwhile(), "another connection makes no difference");
        tokio::time::advance(RETRY_AFTER).await;
        assert!(initial.are_worthwhile());
        initial.failed();
        tokio::time::advance(RETRY_AFTER).await;
        initial.succeeded();
        initial.failed();
        initial.has_new_connection();
        assert!(initial.are_worthwhile());
    }
}
