//! State of a resource, read as the initial events of a watch, which then continues.
//!
//! An API that does not support `sendInitialEvents` refuses the request, or takes it for that of an ordinary watch, which may
//! be busy and never ends its initial events. So the time without progress is bounded. An object that was not yet received
//! counts as progress, until the first change of one that was.

use std::{collections::HashMap, sync::Arc};

use tokio::time::Instant;

use super::{
    line_reader::LineError,
    list::VersionQuery,
    object::{Bookmark, DecodedObject},
    shared::{KubeShared, ListFailure, ObjectList},
    watch::KubeWatch,
};
use crate::{
    cache::{ListVersion, SourceError},
    model::EventType,
    source::watch_event::DecodedEvent,
};

/// Reads the initial events of a watch, and returns the watch with them.
pub(super) async fn read(shared: &Arc<KubeShared>, at: &ListVersion) -> Result<(ObjectList, KubeWatch), ListFailure> {
    let version = VersionQuery::of(shared, at);
    let mut query = vec![("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")];
    if !version.text.is_empty() {
        query.push(("resourceVersion", &version.text));
    }
    let mut live = KubeWatch::open(shared, &query).await?;
    let deadline = live.deadline;
    let patience = shared.config.initial_events_timeout;
    live.lines.end_after(Some(patience));
    live.deadline = Instant::now() + patience;
    let (mut objects, mut problems) = (HashMap::new(), HashMap::new());
    let mut has_changes = false;
    loop {
        let told = match live.line().await {
            Ok(Some(told)) => told,
            // The Reflector begins again, after a backoff.
            Ok(None) => {
                return Err(SourceError::Busy("watch closed before the end of its initial events".into()).into());
            }
            Err(LineError::Broken(why)) => {
                shared.initial_events.lock().has_new_connection();
                return Err(SourceError::Busy(why).into());
            }
            Err(LineError::Silent | LineError::DeadlineExceeded) => {
                shared.initial_events.lock().failed();
                return Err(SourceError::Unavailable("initial events not complete in time".to_owned()).into());
            }
            Err(no_line @ (LineError::TooLong | LineError::NotReplayed)) => return Err(live.broken(no_line).into()),
        };
        match live.decode(&told)? {
            DecodedEvent::Change(event_type, DecodedObject { object, problem, .. }) => {
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
            DecodedEvent::Bookmark(object) => {
                let bookmark = Bookmark::read(object).map_err(|error| live.unreadable(&error))?;
                if bookmark.ends_initial_events {
                    live.deadline = deadline;
                    live.lines.end_after(None);
                    let (objects, problems) = (objects.into_values().collect(), problems.into_values().collect());
                    return Ok((ObjectList { objects, version: bookmark.version, problems }, live));
                }
            }
            DecodedEvent::Failure(status) => return Err(shared.api.watch_error(status).into()),
        }
    }
}
