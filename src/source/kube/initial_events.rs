//! State of a resource, read as the initial events of a watch, which then continues.
//!
//! An API that does not support `sendInitialEvents` refuses the request, or takes it for that of an ordinary watch, which may
//! be busy and never ends its initial events. So the time without progress is bounded. An object that was not yet received
//! counts as progress, until the first change of one that was.

use std::{collections::HashMap, sync::Arc};

use tokio::time::Instant;

use super::{
    line_reader::LineError,
    list::{MAX_LIST_TIME, VersionQuery},
    object::{Bookmark, DecodedObject},
    shared::{KubeShared, ObjectList},
    watch::KubeWatch,
};
use crate::{
    cache::{ListVersion, SourceError},
    model::EventType,
    source::{problems::subject_of, watch_event::DecodedEvent},
};

/// Reads the initial events of a watch, and returns the watch with them.
pub(super) async fn read(shared: &Arc<KubeShared>, at: &ListVersion) -> Result<(ObjectList, KubeWatch), SourceError> {
    let version = VersionQuery::of(shared, at);
    let mut query = vec![("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")];
    if !version.text.is_empty() {
        query.push(("resourceVersion", &version.text));
    }
    let mut live = KubeWatch::open(shared, &query).await?;
    let deadline = live.deadline;
    let patience = shared.config.initial_events_timeout;
    live.lines.end_after(Some(patience));
    let ends_at = Instant::now() + MAX_LIST_TIME;
    live.deadline = Instant::now() + patience;
    let (mut objects, mut problems, mut unreadable) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut has_changes = false;
    loop {
        let told = match live.line().await {
            Ok(Some(told)) => told,
            Ok(None) => {
                return Err(SourceError::Broken("watch closed before the end of its initial events".to_owned()));
            }
            Err(LineError::Silent | LineError::DeadlineExceeded) => {
                return Err(SourceError::Unavailable("initial events not complete in time".to_owned()));
            }
            Err(no_line) => return Err(live.broken(no_line)),
        };
        match live.decode(&told)? {
            DecodedEvent::Change(EventType::Deleted, Err(item)) => {
                unreadable.remove(&item.problem.subject);
                if let Some(key) = &item.identity.key {
                    objects.remove(key);
                    problems.remove(key);
                }
            }
            DecodedEvent::Change(_, Err(item)) => drop(unreadable.insert(item.problem.subject.clone(), item)),
            DecodedEvent::Change(event_type, Ok(DecodedObject { object, problem, .. })) => {
                unreadable.remove(&subject_of(object.key()));
                let key = object.key().clone();
                let is_known = objects.remove(&key).is_some() | problems.remove(&key).is_some();
                has_changes |= is_known || event_type != EventType::Added;
                if !has_changes {
                    live.deadline = (Instant::now() + patience).min(ends_at);
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
                    let list = ObjectList {
                        objects: objects.into_values().collect(),
                        problems: problems.into_values().collect(),
                        unreadable: unreadable.into_values().collect(),
                        version: bookmark.version,
                        kind: if bookmark.kind.is_empty() { String::new() } else { format!("{}List", bookmark.kind) },
                        api_version: bookmark.api_version,
                        ..ObjectList::default()
                    };
                    return Ok((list, live));
                }
            }
            DecodedEvent::Failure(status) => return Err(shared.api.watch_error(status)),
        }
    }
}
